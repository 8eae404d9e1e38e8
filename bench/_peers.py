"""Other durable queues on SQLite, each used in the way that serves it best.

All are synchronous, so their callers are threads, and all have one queue, so callers take what is next.
Where a library may be shared between threads it is: SQLite has one writer, and connections that wait
for each other by sleeping are slower at 200 threads than threads that wait for one lock.
"""

from __future__ import annotations

import importlib.metadata
import itertools
import sqlite3
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from _load import Figures, Timing, drive_threads


class Peer(ABC):
    """An open queue of another library; safe to use from many threads."""

    title: str
    package: str
    usage: str
    """How it is used here, for the reader of the table."""

    @abstractmethod
    def __init__(self, folder: Path) -> None:
        """Open the queue in a folder of its own, or make it."""

    @abstractmethod
    def post(self, body: bytes) -> None:
        """Store one message."""

    @abstractmethod
    def lease(self) -> Any:
        """Take the next message; there is one."""

    @abstractmethod
    def settle(self, leased: Any) -> None:
        """Say that it is done."""

    @abstractmethod
    def connection(self) -> sqlite3.Connection:
        """The connection that writes."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the files."""

    def measure(self, lifecycle: bool, callers: int, timing: Timing) -> Figures:
        """One round."""
        if lifecycle:
            return drive_threads(self._time_lifecycle, 3, callers, timing)
        return drive_threads(self._time_post, 1, callers, timing)

    def perform(self, posts: int, lifecycles: int, between: Callable[[], None]) -> None:
        """A few of each, one after the other; ``between`` is called before, between and behind."""
        between()
        for _ in range(posts):
            self.post(b"x" * 1_024)
        between()
        for _ in range(lifecycles):
            self.post(b"x" * 1_024)
            self.settle(self.lease())
        between()

    def settings(self) -> str:
        """What its database is told about syncing."""
        mode, synchronous = (
            self.connection().execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous")
        )
        return f"journal_mode={mode} synchronous={synchronous}"

    @classmethod
    def version(cls) -> str:
        return f"{cls.package} {importlib.metadata.version(cls.package)}"

    def _time_post(self, texts: Iterator[bytes], spent: list[float]) -> None:
        body = next(texts)
        began = time.perf_counter()
        self.post(body)
        spent.append(time.perf_counter() - began)

    def _time_lifecycle(self, texts: Iterator[bytes], spent: list[float]) -> None:
        body = next(texts)
        began = time.perf_counter()
        self.post(body)
        posted = time.perf_counter()
        leased = self.lease()
        taken = time.perf_counter()
        self.settle(leased)
        spent += (posted - began, taken - posted, time.perf_counter() - taken)


class Huey(Peer):
    """Its own lock around its one connection; to lease deletes, to settle stores a result."""

    title = "huey"
    package = "huey"
    usage = "SqliteHuey's storage as it comes: enqueue, dequeue (which deletes), put_data of a result"
    fsync: bool | None = None

    def __init__(self, folder: Path) -> None:
        from huey import SqliteHuey

        options = {} if self.fsync is None else {"fsync": self.fsync}
        self._storage = SqliteHuey(filename=str(folder / "huey.db"), **options).storage
        self._keys = itertools.count(time.time_ns())

    def post(self, body: bytes) -> None:
        self._storage.enqueue(body)

    def lease(self) -> Any:
        body = self._storage.dequeue()
        if body is None:
            raise RuntimeError("the queue is empty")
        return next(self._keys)

    def settle(self, leased: Any) -> None:
        self._storage.put_data(str(leased), b"done", is_result=True)

    def connection(self) -> sqlite3.Connection:
        connection: Any = self._storage.conn
        assert isinstance(connection, sqlite3.Connection)
        return connection

    def close(self) -> None:
        self._storage.close()


class HueySynced(Huey):
    """The same, told to sync."""

    title = "huey, fsync"
    usage = "the same with its option fsync=True"
    fsync = True


class PersistQueue(Peer):
    """Its own locks around two connections, one to put and one to get."""

    title = "persist-queue"
    package = "persist-queue"
    usage = (
        "SQLiteAckQueue(multithreading=True): put, get, ack by id; acked rows, which slow it down, cleared as it goes"
    )

    def __init__(self, folder: Path) -> None:
        from persistqueue import SQLiteAckQueue

        self._queue = SQLiteAckQueue(str(folder), multithreading=True)

    def post(self, body: bytes) -> None:
        self._queue.put(body)

    def lease(self) -> Any:
        return self._queue.get(block=False, raw=True)["pqid"]

    def settle(self, leased: Any) -> None:
        self._queue.ack(id=leased)
        if leased % 200 == 0:
            self._queue.clear_acked_data(max_delete=1_000, keep_latest=0)

    def connection(self) -> sqlite3.Connection:
        connection: Any = self._queue._putter
        assert isinstance(connection, sqlite3.Connection)
        return connection

    def close(self) -> None:
        self._queue.close()


class LiteQueue(Peer):
    """One connection for all with a lock around it, since a pop is a transaction of several statements."""

    title = "litequeue"
    package = "litequeue"
    usage = "put (1 KiB of text: it takes no bytes), pop, done; one connection and a lock"
    pragma = ""

    def __init__(self, folder: Path) -> None:
        import litequeue

        self._queue = litequeue.LiteQueue(str(folder / "queue.db"))
        self._lock = threading.Lock()
        if self.pragma:
            self._queue.conn.execute(self.pragma)

    def post(self, body: bytes) -> None:
        text = body[:512].hex()
        with self._lock:
            self._queue.put(text)

    def lease(self) -> Any:
        with self._lock:
            message = self._queue.pop()
        if message is None:
            raise RuntimeError("the queue is empty")
        return message.message_id

    def settle(self, leased: Any) -> None:
        with self._lock:
            self._queue.done(leased)

    def connection(self) -> sqlite3.Connection:
        connection: Any = self._queue.conn
        assert isinstance(connection, sqlite3.Connection)
        return connection

    def close(self) -> None:
        self._queue.close()


class LiteQueueSynced(LiteQueue):
    """The same, its connection told to sync."""

    title = "litequeue, FULL"
    usage = "the same with PRAGMA synchronous=FULL on its connection"
    pragma = "PRAGMA synchronous=FULL"


PEERS: tuple[type[Peer], ...] = (Huey, HueySynced, PersistQueue, LiteQueue, LiteQueueSynced)
