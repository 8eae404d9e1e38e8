"""Moving the write-ahead log into the file, beside the writer.

In: the log's length after each commit. Out: checkpoints by a thread with a connection of its own, so that no commit
waits for them but the one that finds the log all but moved. It waits for the rest, a few milliseconds, since only a log
that is moved to its end begins anew: without that wait a busy writer is always a commit ahead, and the thread moves
commit after commit, each page anew.
"""

from __future__ import annotations

import logging
import threading
import time

import apsw

from ...errors import StoreFailed
from . import connection

log = logging.getLogger("posthouse.store")

START_PAGES = 8_192
"""The log's length at which a checkpoint begins: 32 MiB."""
BOUND_PAGES = 65_536
"""The log's length at which the writer waits, however much is left to move: 256 MiB."""
REST_PART = 8
"""The writer waits for the rest when that is no more than this part of START_PAGES,"""
PASSES = 3
"""or after so many checkpoints of which none came to the log's end."""
WAIT_S = 5.0
REST_WAIT_S = 0.25


class Checkpointer:
    """One thread that checkpoints when the log is long enough."""

    def __init__(self, path: str, *, vfs: str | None, synchronous: str) -> None:
        self._db = connection.connect(path, vfs=vfs, synchronous=synchronous, create=False)
        self._path = path
        self._changed = threading.Condition()  # guards what follows
        self._wanted = False
        self._pages = 0
        """The log's length."""
        self._moved = 0
        """How much of it was moved, as far as is known."""
        self._start = 0
        """The length at which it is looked at, over START_PAGES where it could not be emptied."""
        self._passes = 0
        """Since the log began, or could not be emptied."""
        self._closing = False
        self.failure: apsw.Error | None = None
        """A write or sync that failed: the store must not go on, since trying again would lie."""
        self._thread = threading.Thread(target=self._run, name="posthouse-checkpoint", daemon=True)
        self._thread.start()

    def on_commit(self, db: apsw.Connection, name: str, pages: int) -> int:
        """SQLite's hook: the log has this many pages now."""
        with self._changed:
            if pages < self._pages:
                self._moved = self._start = self._passes = 0
            self._pages = pages
            if pages >= max(START_PAGES, self._start) and not self._is_nearly_moved():
                self._ask()
        return apsw.SQLITE_OK

    def make_room(self) -> None:
        """Wait, within reason, while the log is over its bound or all but moved."""
        # Without the lock: only the writer's own commits make the log longer.
        if self._pages < START_PAGES:
            return
        with self._changed:
            if self._pages >= BOUND_PAGES and self.failure is None:
                self._ask()
                self._changed.wait(WAIT_S)
                self._pages = self._moved = 0  # the next commit says how long it is
            elif self._pages >= self._start and self._is_nearly_moved():
                self._wait_for_rest()

    def _is_nearly_moved(self) -> bool:
        rest = self._pages - self._moved
        return self._moved > 0 and (rest <= START_PAGES // REST_PART or self._passes >= PASSES)

    def _wait_for_rest(self) -> None:
        """Let the log be moved to its end. One pass may be under way that began before the last commit."""
        last, until = self._passes + 2, time.monotonic() + REST_WAIT_S
        while self._moved < self._pages and self._passes < last and self.failure is None:
            left_s = until - time.monotonic()
            if left_s <= 0:
                break
            self._ask()
            self._changed.wait(left_s)
        if self._moved < self._pages:
            # Somebody reads from it. It is tried again when the log has grown as much once more.
            self._start = self._pages + START_PAGES
            self._passes = 0

    def _ask(self) -> None:
        self._wanted = True
        self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not (self._wanted or self._closing):
                    self._changed.wait()
                if self._closing:
                    return
                self._wanted = False
            moved = 0
            failure: apsw.Error | None = None
            try:
                _, moved = self._db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
            except apsw.Error as error:
                # Nothing is lost: the log keeps what was not moved.
                log.warning("checkpoint of %s failed: %s", self._path, error)
                if isinstance(connection.translate(self._path, error), StoreFailed):
                    failure = error
            with self._changed:
                # The log may have begun anew meanwhile.
                self._moved = moved if moved <= self._pages else 0
                self._passes += 1
                self.failure = failure
                self._changed.notify_all()
            if failure is not None:
                return

    def close(self) -> None:
        """End the thread; a checkpoint under way is finished first."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()
        connection.discard(self._db)
