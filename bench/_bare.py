"""The least that durable posts by coroutines can cost here: one INSERT a group, and nothing that makes it a queue.

No ids are compared, no lane is numbered, nothing is counted or journaled. What is between this and the ceiling is
the price of Python's event loop and of SQLite; no queue built on them comes nearer to the ceiling.
"""

from __future__ import annotations

import asyncio
import itertools
import queue
import threading
import time
from pathlib import Path
from typing import Any

import apsw
import uvloop
from _load import Figures, Stopwatch, Timing, bodies, figures

Entry = tuple["asyncio.Future[None]", bytes]


class Bare:
    """Coroutines hand over bodies; a thread inserts all of an iteration in one statement, commits, wakes them."""

    def __init__(self, path: Path) -> None:
        self._db = apsw.Connection(str(path))
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = FULL")
        self._db.execute("CREATE TABLE message (number INTEGER PRIMARY KEY, body BLOB NOT NULL)")
        self._groups: queue.SimpleQueue[list[Entry] | None] = queue.SimpleQueue()
        self._entries: list[Entry] = []
        self._numbers = itertools.count(1)

    def measure(self, callers: int, timing: Timing) -> Figures:
        """Posts a second."""
        return uvloop.run(self._measure(callers, timing))

    async def _measure(self, callers: int, timing: Timing) -> Figures:
        loop = asyncio.get_running_loop()
        writer = threading.Thread(target=self._write, args=(loop,))
        writer.start()
        spent: list[float] = []
        until = time.perf_counter() + timing.warm_s + timing.measure_s

        async def call(caller: int) -> None:
            texts = bodies(caller)
            while (before := time.perf_counter()) < until:
                await self._post(loop, next(texts))
                spent.append(time.perf_counter() - before)

        tasks = [loop.create_task(call(caller)) for caller in range(callers)]
        await asyncio.sleep(timing.warm_s)
        first, watch = len(spent), Stopwatch()
        await asyncio.sleep(timing.measure_s)
        measured, lasted_s = spent[first:], watch.read()
        await asyncio.gather(*tasks)
        self._groups.put(None)
        await loop.run_in_executor(None, writer.join)
        self._db.close()
        return figures(measured, 1, lasted_s)

    def _post(self, loop: asyncio.AbstractEventLoop, body: bytes) -> asyncio.Future[None]:
        future: asyncio.Future[None] = loop.create_future()
        if not self._entries:
            loop.call_soon(self._hand_over)
        self._entries.append((future, body))
        return future

    def _hand_over(self) -> None:
        entries, self._entries = self._entries, []
        self._groups.put(entries)

    def _write(self, loop: asyncio.AbstractEventLoop) -> None:
        while (entries := self._groups.get()) is not None:
            values: list[Any] = []
            for _, body in entries:
                values += (next(self._numbers), body)
            self._db.execute("BEGIN")
            self._db.execute(f"INSERT INTO message VALUES {','.join(['(?,?)'] * len(entries))}", values)
            self._db.execute("COMMIT")
            loop.call_soon_threadsafe(self._wake, entries)

    @staticmethod
    def _wake(entries: list[Entry]) -> None:
        for future, _ in entries:
            future.set_result(None)
