"""Moving the write-ahead log into the file, beside the writer.

In: the log's length after each commit. Out: checkpoints by a thread with a connection of its own, so
that no commit waits for them; only where the log outgrows its bound does the writer wait.
"""

from __future__ import annotations

import logging
import threading

import apsw

from ...errors import StoreFailed
from . import connection

log = logging.getLogger("posthouse.store")

START_PAGES = 8_192
"""The log's length at which a checkpoint begins: 32 MiB."""
BOUND_PAGES = 65_536
"""The log's length at which the writer waits: 256 MiB."""
WAIT_S = 5.0


class Checkpointer:
    """One thread that checkpoints when the log is long enough."""

    def __init__(self, path: str, *, vfs: str | None, synchronous: str) -> None:
        self._db = connection.connect(path, vfs=vfs, synchronous=synchronous, create=False)
        self._path = path
        self._wanted = threading.Event()
        self._done = threading.Condition()
        self._pages = 0
        self._closing = False
        self.failure: apsw.Error | None = None
        """A write or sync that failed: the store must not go on, since trying again would lie."""
        self._thread = threading.Thread(target=self._run, name="posthouse-checkpoint", daemon=True)
        self._thread.start()

    def on_commit(self, db: apsw.Connection, name: str, pages: int) -> int:
        """SQLite's hook: the log has this many pages now."""
        self._pages = pages
        if pages >= START_PAGES:
            self._wanted.set()
        return apsw.SQLITE_OK

    def make_room(self) -> None:
        """Wait, within reason, while the log is over its bound."""
        if self._pages >= BOUND_PAGES and self.failure is None:
            with self._done:
                self._wanted.set()
                self._done.wait(WAIT_S)
                self._pages = 0  # the next commit says how long it is

    def _run(self) -> None:
        while True:
            self._wanted.wait()
            self._wanted.clear()
            if self._closing:
                return
            try:
                self._db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
            except apsw.Error as error:
                # Nothing is lost: the log keeps what was not moved.
                log.warning("checkpoint of %s failed: %s", self._path, error)
                if isinstance(connection.translate(self._path, error), StoreFailed):
                    self.failure = error
            with self._done:
                self._done.notify_all()
            if self.failure is not None:
                return

    def close(self) -> None:
        """End the thread; a checkpoint under way is finished first."""
        self._closing = True
        self._wanted.set()
        self._thread.join()
        connection.discard(self._db)
