"""Attendance: follows who comes and goes, for the page of peers and agents.

In: the journal: its newest segments, then what the store still has, then what is committed from now on. Out: a
``Presence`` that is told of all of it in order. It reads in threads of its own, and writes nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path

from ..control import presence as control
from ..control.presence import WINDOW_S, Presence
from ..engine.engine import Engine
from ..engine.tail import Tail
from ..errors import PosthouseError
from ..journal import notes
from ..mailbox.event import Event
from ..mailbox.message import SECOND

log = logging.getLogger("posthouse.console")

EVERY_S = 1.0
BACK_MAX = 500_000
"""Events of the store that are read at the start, at most."""


class Attendance:
    """Runs from ``start`` to ``close``."""

    def __init__(self, engine: Engine, journal: Path) -> None:
        self._engine = engine
        self._journal = journal
        self.presence = Presence()
        self._tail: Tail | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin; what was before is read behind this."""
        control.following(self._engine, self.presence)
        self._task = asyncio.create_task(self._run(), name="console attendance")

    async def close(self) -> None:
        """Stop. Idempotent."""
        control.following(self._engine, None)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        if self._tail is not None:
            await self._tail.close()
            self._tail = None

    async def caught_up(self) -> None:
        """Return when all that was committed before this call is known."""
        if self._task is not None:
            await asyncio.shield(self._task)
        if self._tail is not None:
            await asyncio.to_thread(self._tail.catch_up)

    async def _run(self) -> None:
        after = await asyncio.to_thread(self._read_back)
        self._tail = Tail(self._engine, after, EVERY_S, notes.KINDS)
        self._tail.listen(self._told)
        self._tail.start()

    def _read_back(self) -> int:
        """Learn what segments tell of the last day; the offset behind which the store is to be read."""
        store = self._engine.store
        since = self._engine.now() - WINDOW_S * SECOND
        last = 0
        try:
            found = notes.exported(self._journal, store.node, since)
            last = found.last
            self.presence.since = found.since
            self.presence.take(found.notes, 0)
        except PosthouseError as error:
            log.info("who was connected before is known from the store only: %s", error)
        return max(last, store.offset() - BACK_MAX)

    def _told(self, events: Sequence[Event], last: int, gap: bool) -> None:
        if events:
            if self.presence.since is None:
                self.presence.since = events[0].at
            self.presence.take(notes.of(events), events[-1].at)
