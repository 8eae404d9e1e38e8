"""Opening the database file: lock, checks, settings, schema; and translating its errors.

In: a path. Out: connections that sync before they answer. It never knows what the tables mean.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.resources
import os
import sys
from collections.abc import Iterator
from typing import Any

import apsw

from ...errors import (
    InvalidInput,
    SchemaMismatch,
    StoreCorrupt,
    StoreError,
    StoreFailed,
    StoreFull,
    StoreHeld,
    StoreUnavailable,
)

SQLITE_OLDEST = (3, 51, 3)
"""Older ones can corrupt a WAL when two connections write or checkpoint at once."""
APPLICATION_ID = 0x504F5354  # "POST"
SCHEMA_VERSION = 5
PAGE_SIZE = 4_096
"""Small: at a million messages most pages of a commit are touched for one row (docs/decisions/0003)."""


def check_library(version: str) -> None:
    """Refuse a SQLite library that is known to corrupt."""
    if tuple(int(part) for part in version.split(".")) < SQLITE_OLDEST:
        oldest = ".".join(map(str, SQLITE_OLDEST))
        raise SchemaMismatch(f"SQLite {version} has a bug that corrupts its log; {oldest} or newer is needed")


class Holder:
    """The lock that makes this process the only one that writes to a store."""

    def __init__(self, path: str) -> None:
        self._path = path + ".lock"
        try:
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreUnavailable(f"cannot open {self._path}: {error.strerror}") from error
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            by = os.read(self._fd, 400).decode(errors="replace").strip() or "another process"
            os.close(self._fd)
            raise StoreHeld(f"{path} is held by {by}") from None
        program = " ".join(os.path.basename(part) if i == 0 else part for i, part in enumerate(sys.argv[:3]))
        try:
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, f"process {os.getpid()} ({program or 'python'})\n".encode(errors="replace"), 0)
        except OSError:
            pass  # a full disk: the lock holds without a name in it

    def release(self) -> None:
        """Let another process have the store. The file stays: removing it would race with its next holder."""
        os.close(self._fd)


def connect(
    path: str, *, vfs: str | None, synchronous: str, create: bool, readonly: bool = False, cache_kib: int = 1_024
) -> apsw.Connection:
    """A connection with the settings that the store's promises rest on.

    It has no lock of its own, which each bound value would take: whoever uses it sees to it that no other thread does.
    """
    flags = apsw.SQLITE_OPEN_READONLY if readonly else apsw.SQLITE_OPEN_READWRITE
    flags |= apsw.SQLITE_OPEN_NOMUTEX
    if create:
        flags |= apsw.SQLITE_OPEN_CREATE
        create_private(path)
    db = apsw.Connection(path, flags=flags, vfs=vfs)
    try:
        _set_up(db, path, synchronous=synchronous, create=create, readonly=readonly, cache_kib=cache_kib)
    except BaseException:
        discard(db)
        raise
    return db


def create_private(path: str, *, anew: bool = False) -> None:
    """Make the file, if there is none, readable by its owner alone; SQLite gives its log the same mode.

    ``anew``: what a program that was killed may have left there is removed.
    """
    if anew:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise StoreUnavailable(f"cannot open {path} for writing: {error.strerror}") from error


def _set_up(db: apsw.Connection, path: str, *, synchronous: str, create: bool, readonly: bool, cache_kib: int) -> None:
    db.set_busy_timeout(5_000)
    check_schema(db, path)  # before anything is changed: the file may be somebody else's
    if create:
        db.execute(f"PRAGMA page_size={PAGE_SIZE}")
        db.execute("PRAGMA auto_vacuum=INCREMENTAL")
    if not readonly:
        (mode,) = db.execute("PRAGMA journal_mode=WAL").fetchall()[0]
        if mode != "wal":
            raise StoreUnavailable(f"{path}: the file system does not support a write-ahead log")
        db.execute(f"PRAGMA synchronous={synchronous}")
        db.execute("PRAGMA wal_autocheckpoint=0")
    db.execute(f"PRAGMA cache_size=-{cache_kib}")
    db.execute("PRAGMA temp_store=MEMORY")
    db.execute("PRAGMA trusted_schema=OFF")
    # A connection knows that the file has a log, and can checkpoint it, only once it has read.
    db.execute("SELECT 1 FROM sqlite_schema").fetchall()


def check_schema(db: Any, path: str) -> int:
    """The schema's version; refuse one that is newer than this program's, or no store of ours."""
    (application,) = db.execute("PRAGMA application_id").fetchall()[0]
    (version,) = db.execute("PRAGMA user_version").fetchall()[0]
    (tables,) = db.execute("SELECT count(*) FROM sqlite_master").fetchall()[0]
    if tables and application != APPLICATION_ID:
        raise SchemaMismatch(f"{path} is a SQLite file, but no Posthouse store")
    if version > SCHEMA_VERSION:
        raise SchemaMismatch(
            f"{path} has schema {version}, this program knows {SCHEMA_VERSION}: use the newer Posthouse that wrote it"
        )
    return int(version)


def migrate(db: apsw.Connection, path: str) -> None:
    """Bring the schema forward to this program's."""
    version = check_schema(db, path)
    _run_scripts(db, version)
    model = apsw.Connection(":memory:")
    _run_scripts(model, 0)
    found = _definitions(db)
    for table, definition in _definitions(model).items():
        if found.get(table) != definition:
            raise StoreCorrupt(f"{path} is damaged: the definition of {table.decode()} is not what was written")
    model.close()


def _run_scripts(db: Any, version: int) -> None:
    for step in range(version + 1, SCHEMA_VERSION + 1):
        script = importlib.resources.files("posthouse.stores").joinpath("schema", f"{step:04}.sql").read_text()
        with db:
            db.execute(script)
            db.execute(f"PRAGMA application_id={APPLICATION_ID}")
            db.execute(f"PRAGMA user_version={step}")


def _definitions(db: Any) -> dict[bytes, bytes | None]:
    # As bytes: what is damaged may be no text any more.
    return dict(db.execute("SELECT CAST(name AS BLOB), CAST(sql AS BLOB) FROM sqlite_schema").fetchall())


_SYNC_FAILURES = {
    apsw.SQLITE_IOERR_FSYNC,
    apsw.SQLITE_IOERR_DIR_FSYNC,
    apsw.SQLITE_IOERR_WRITE,
    apsw.SQLITE_IOERR_TRUNCATE,
}


@contextlib.contextmanager
def translated(path: str) -> Iterator[None]:
    """Turn the driver's errors into ours, and so what comes of rows that are not as they were written."""
    try:
        yield
    except apsw.Error as error:
        raise translate(path, error) from error
    except (LookupError, ValueError, TypeError, AttributeError) as error:
        raise StoreCorrupt(f"{path} is damaged: rows cannot be read ({type(error).__name__}: {error})") from error


def translate(path: str, error: apsw.Error) -> StoreError:
    """What an error of the driver means to us."""
    extended = getattr(error, "extendedresult", None)
    if isinstance(error, apsw.FullError) or extended == apsw.SQLITE_IOERR_SHMSIZE:
        return StoreFull(f"no room on the disk for {path}; what was accepted is safe")
    if isinstance(error, apsw.IOError):
        # After a failed sync the kernel may have dropped the dirty pages: trying again would lie.
        if extended in _SYNC_FAILURES:
            return StoreFailed(f"a write or sync of {path} failed: {error}")
        return StoreUnavailable(f"{path}: {error}")
    if isinstance(error, apsw.ConstraintError | apsw.MisuseError | apsw.SQLError):
        return StoreFailed(f"a mistake of this program: {error}")
    if isinstance(error, apsw.CorruptError | apsw.NotADBError):
        return StoreCorrupt(f"{path} is damaged: {error}")
    if isinstance(error, apsw.BusyError | apsw.LockedError):
        return StoreHeld(f"{path} is locked by another program: {error}")
    if isinstance(error, apsw.CantOpenError | apsw.PermissionsError | apsw.ReadOnlyError | apsw.AuthError):
        return StoreUnavailable(f"cannot open {path} for writing: {error}")
    return StoreUnavailable(f"{path}: {error}")


def identity(db: Any) -> tuple[str, int]:
    """A store's node and the last offset of its journal."""
    meta = dict(db.execute("SELECT name, value FROM meta").fetchall())
    (last,) = db.execute("SELECT max(last) FROM chunk").fetchall()[0]
    return str(meta["node"]), max(last or 0, int(meta["trimmed_offset"]))


def discard(db: Any) -> None:
    """Close a connection whose disk failed: nothing is synced, written or retried on the way."""
    try:
        db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        db.close(True)
    except apsw.Error:
        pass  # the handle is gone, and its file is for the next opening to recover


def check_path(path: object) -> str:
    """A usable file name for a store."""
    if isinstance(path, os.PathLike):
        path = os.fspath(path)
    if not isinstance(path, str) or not path or "\0" in path:
        raise InvalidInput(f"a store's path must be a file name: {path!r}")
    return os.path.abspath(path)
