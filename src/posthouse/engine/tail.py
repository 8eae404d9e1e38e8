"""The tail: follows the journal of an engine's own store, and tells its listeners of every event once.

In: the store's chunks, as they are committed. Out: lists of events to listeners, in order, on the thread that reads.
It begins where its owner says; what was trimmed before it was read is a gap, and
a listener that cares is told so.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Sequence

from ..errors import EngineClosed, StoreCorrupt, StoreError
from ..journal.chunk import decode
from ..journal.feed import may_hold
from ..mailbox.command import Command
from ..mailbox.event import Event
from ..mailbox.outcome import Outcome
from ..mailbox.store import Chunk
from .engine import Engine

log = logging.getLogger("posthouse.journal")

EVERY_S = 0.1
"""How often the journal is looked at: little and often holds up nobody else."""
Listener = Callable[[Sequence[Event], int, bool], None]
"""Told of events, the last one's offset, and whether some before them are missing."""


class Tail:
    """Reads the journal from ``start`` to ``close``."""

    def __init__(self, engine: Engine, after: int, every_s: float = EVERY_S, words: Sequence[str] = ()) -> None:
        """``after``: the offset behind which to begin.

        ``words``: only commits in which one of these stands are told, and the one before each; others are not parsed.
        """
        self._engine = engine
        self._words = tuple(words)
        self._skipped: Chunk | None = None
        self._every_s = every_s
        self._after = after
        self._listeners: list[Listener] = []
        self._reading = threading.Lock()
        self._more = True
        """Something was committed since the journal was last looked at."""
        self._task: asyncio.Task[None] | None = None

    def listen(self, listener: Listener) -> None:
        """Tell it of what comes; it must not raise, and is called on a thread of its own."""
        self._listeners.append(listener)

    def start(self) -> None:
        """Begin; on a running event loop."""
        # What is about to be trimmed is read first.
        self._engine.before_trim.append(self.catch_up)
        self._engine.on_commit.append(self._committed)
        self._task = asyncio.create_task(self._run(), name="journal tail")

    async def close(self) -> None:
        """Read what there is, and stop. Idempotent."""
        if self._task is None:
            return
        task, self._task = self._task, None
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        with contextlib.suppress(ValueError):
            self._engine.before_trim.remove(self.catch_up)
            self._engine.on_commit.remove(self._committed)
        with contextlib.suppress(StoreError):
            await asyncio.to_thread(self.catch_up)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            try:
                # The store is not asked here: it answers when its commit is done, and the loop would wait.
                if self._more:
                    self._more = False
                    await asyncio.to_thread(self.catch_up)
            except EngineClosed:
                return
            except StoreError as error:
                log.warning("the journal cannot be followed for now: %s", error)

    def _committed(self, commands: Sequence[Command], outcomes: Sequence[Outcome], seconds: float) -> None:
        self._more = True

    def catch_up(self) -> None:
        """Read all that is committed by now; from any thread."""
        with self._reading:
            for chunk in self._engine.store.chunks(self._after):
                gap = chunk.first > self._after + 1
                # A chunk may begin before the place at which this one began.
                known = max(0, self._after + 1 - chunk.first)
                if self._words and not self._speaks_of(chunk):
                    self._skipped = chunk
                else:
                    if self._skipped is not None:
                        self._tell(self._skipped, 0, False)
                        self._skipped = None
                    self._tell(chunk, known, gap)
                self._after = chunk.last

    def _speaks_of(self, chunk: Chunk) -> bool:
        try:
            return may_hold(chunk, *self._words)
        except StoreCorrupt:
            return True  # and it is told as a gap

    def _tell(self, chunk: Chunk, known: int, gap: bool) -> None:
        try:
            events = decode(chunk.data)
        except StoreCorrupt:
            log.error("journal chunk %d-%d cannot be read", chunk.first, chunk.last)
            events, gap = [], True
        for listener in self._listeners:
            listener(events[known:], chunk.last, gap)
