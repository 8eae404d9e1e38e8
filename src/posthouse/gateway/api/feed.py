"""The feed: what happens to messages, told to those who listen while it happens.

In: the engine's word that something was committed. Out: events of the journal, in order and each once, to every
listener. The journal is read only while somebody listens, once for all of them; the newest events are kept at hand. Who
begins earlier, or falls behind, reads from the store what it still has, and is told where something is missing.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import NamedTuple

from ...engine.engine import Engine
from ...errors import EngineClosed, StoreCorrupt, StoreError
from ...journal.chunk import decode
from ...mailbox.command import Command
from ...mailbox.event import Event
from ...mailbox.outcome import Outcome
from ...mailbox.store import Store

log = logging.getLogger("posthouse.gateway")

PAGE = 2_000
AT_HAND = 10_000
"""Newest events that are kept in memory."""
GATHER_S = 0.005
"""How long to wait after a commit, so that a busy journal is not read for each one."""
STORE_PAUSE_S = 1.0


class Told(NamedTuple):
    """An event and where it stands."""

    offset: int
    event: Event


class Listener:
    """One who listens, from behind ``after`` on."""

    def __init__(self, feed: Feed, after: int) -> None:
        self._feed = feed
        self.after = after
        """The offset of the last event that it was told."""
        self.missing = 0
        """Events that the store had no longer when it was their turn."""

    @property
    def ended(self) -> bool:
        """Nothing more comes."""
        return self._feed.closed

    async def take(self, wait_s: float) -> list[Told]:
        """The next events, waiting for them at most ``wait_s``; none when that has passed, or at the end."""
        try:
            async with asyncio.timeout(wait_s):
                while not self.ended:
                    moved = self._feed.moved
                    told = await self._feed.since(self.after)
                    if told:
                        self.missing += told[0].offset - self.after - 1
                        self.after = told[-1].offset
                        return told
                    await moved.wait()
        except TimeoutError:
            pass
        return []


class Feed:
    """Reads the journal while somebody listens, from ``start`` to ``close``."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._listening = 0
        self._at_hand: list[Told] = []
        self._after = 0
        """Up to here the journal was read."""
        self.moved = asyncio.Event()
        """Set, and replaced by a new one, whenever there is more."""
        self._committed = asyncio.Event()
        self._wanted = False
        """Whether a commit is worth a word."""
        self._task: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.closed = False

    def start(self) -> None:
        """Begin; on a running event loop."""
        self._loop = asyncio.get_running_loop()
        self._engine.on_commit.append(self._on_commit)
        self._task = asyncio.create_task(self._run(), name="gateway feed")

    async def close(self) -> None:
        """Let every listener go. Idempotent."""
        self.closed = True
        if self._on_commit in self._engine.on_commit:
            self._engine.on_commit.remove(self._on_commit)
        self.moved.set()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    @property
    def listening(self) -> int:
        """How many listen."""
        return self._listening

    @contextmanager
    def listen(self, after: int | None = None) -> Iterator[Listener]:
        """Listen to what is committed from now on, or to what stands behind ``after``."""
        if self._listening == 0:
            self._at_hand.clear()
            self._after = self._engine.store.offset()
            # What is committed from here on is told; what was committed before is in that offset.
            self._wanted = True
            self._committed.set()
        self._listening += 1
        try:
            yield Listener(self, self._engine.store.offset() if after is None else after)
        finally:
            self._listening -= 1
            if self._listening == 0:
                self._wanted = False

    async def since(self, after: int) -> list[Told]:
        """A page of events behind an offset, as far as they were read by now."""
        if after >= self._after:
            return []
        if self._at_hand and self._at_hand[0].offset <= after + 1:
            begin = bisect_right(self._at_hand, after, key=lambda told: told.offset)
            return self._at_hand[begin : begin + PAGE]
        return [told for told in await self._read(after) if told.offset <= self._after]

    def _on_commit(self, commands: Sequence[Command], outcomes: Sequence[Outcome], seconds: float) -> None:
        # On the writer's thread, after every commit.
        if self._wanted and self._loop is not None:
            self._wanted = False
            try:
                self._loop.call_soon_threadsafe(self._committed.set)
            except RuntimeError:
                pass  # the loop is closed: nobody listens any more

    async def _run(self) -> None:
        while True:
            await self._committed.wait()
            self._committed.clear()
            await asyncio.sleep(GATHER_S)
            # Before reading: what is committed while we read is worth another word.
            self._wanted = self._listening > 0
            try:
                while told := await self._read(self._after):
                    self._at_hand += told
                    if len(self._at_hand) > 2 * AT_HAND:
                        del self._at_hand[:-AT_HAND]
                    self._after = told[-1].offset
                    moved, self.moved = self.moved, asyncio.Event()
                    moved.set()
            except EngineClosed:
                return
            except StoreError as error:
                log.warning("the journal cannot be followed for now: %s", error)
                await asyncio.sleep(STORE_PAUSE_S)
                self._committed.set()

    async def _read(self, after: int) -> list[Told]:
        return await self._engine.read(lambda store: list(islice(_events(store, after), PAGE)))


def _events(store: Store, after: int) -> Iterator[Told]:
    for chunk in store.chunks(after):
        try:
            events = decode(chunk.data)
        except StoreCorrupt:
            # Its offsets are missing then, as if they had been trimmed.
            log.error("journal chunk %d-%d cannot be read", chunk.first, chunk.last)
            continue
        for offset, event in enumerate(events, chunk.first):
            if offset > after:
                yield Told(offset, event)
