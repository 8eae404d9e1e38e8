"""Where a lake keeps its own record: as files on a disk, as a small Delta table in an object store.

In: documents by name. Out: the same documents, each written as a whole. On a disk a lock keeps others off. An object
store has none: there a sign tells others that somebody is at work (``sign``), and should two be so all the same, only
one can go on. Each has read the record once, when he began, and every write must follow that and his own, as Delta's
commits do: of two who are at work on one lake, the second to write is refused.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import orjson

from ..errors import StoreCorrupt, StoreHeld, StoreUnavailable
from . import sign

if TYPE_CHECKING:
    from deltalake import DeltaTable

FOLDER = "_posthouse"
TABLE = "record"

Document = Mapping[str, Any]


class Record(Protocol):
    """Documents of one lake."""

    locks: bool
    """Whether ``alone`` keeps others off for certain."""

    def read(self, name: str) -> dict[str, Any] | None:
        """A document; None where there is none. StoreCorrupt where it is damaged."""

    def write(self, changes: Mapping[str, Document | None]) -> None:
        """Put documents, or take them away (None); StoreHeld where another was faster."""

    def alone(self, doing: str) -> contextlib.AbstractContextManager[None]:
        """Keep others off, where that is possible; StoreHeld names who has the lake."""

    def tidy(self) -> None:
        """Remove what earlier writes left behind."""


class FileRecord:
    """On a disk: a file for each document, and a lock."""

    locks = True

    def __init__(self, root: str, place: str) -> None:
        self._folder = os.path.join(root, FOLDER)
        self._place = place

    def read(self, name: str) -> dict[str, Any] | None:
        """A document; None where there is none."""
        try:
            with open(self._path(name), "rb") as file:
                content = file.read()
        except FileNotFoundError:
            return None
        return _document(content, f"{self._place}/{FOLDER}/{name}.json")

    def write(self, changes: Mapping[str, Document | None]) -> None:
        """Put documents one after the other, each by a rename, then take away."""
        os.makedirs(self._folder, exist_ok=True)
        for name, document in changes.items():
            if document is None:
                continue
            draft = f"{self._path(name)}.new"
            with open(draft, "wb") as file:
                file.write(orjson.dumps(document))
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, self._path(name))
        self._sync_names()
        for name, document in changes.items():
            if document is None:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self._path(name))

    @contextlib.contextmanager
    def alone(self, doing: str) -> Iterator[None]:
        """Hold the lock; it goes with the process, however that ends."""
        os.makedirs(self._folder, exist_ok=True)
        handle = os.open(os.path.join(self._folder, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.read(handle, 500).decode(errors="replace").strip() or "another process"
                raise StoreHeld(f"{holder} is at work on the lake {self._place}") from None
            os.ftruncate(handle, 0)
            os.pwrite(handle, sign.who(doing).encode(), 0)
            yield
        finally:
            os.close(handle)

    def tidy(self) -> None:
        """A rename leaves nothing behind."""

    def _sync_names(self) -> None:
        """See to it that new names outlast the machine, too."""
        folder = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _path(self, name: str) -> str:
        return os.path.join(self._folder, f"{name}.json")


class TableRecord:
    """In an object store: one Delta table with a row for each document."""

    locks = False

    def __init__(self, place: str) -> None:
        self._place = place
        self._table: DeltaTable | None = None
        self._documents: dict[str, str] = {}
        self._is_alone = False

    def read(self, name: str) -> dict[str, Any] | None:
        """A document as it is now, and in ``alone`` as it was at the start or was written since.

        What is written next must follow what was read.
        """
        if not self._is_alone:
            self._load()
        text = self._documents.get(name)
        return None if text is None else _document(text.encode(), f"{self._place}/{FOLDER}/{TABLE}: {name}")

    def write(self, changes: Mapping[str, Document | None]) -> None:
        """Put and take away in one commit, which must be the next one after what was read."""
        import pyarrow
        from deltalake import CommitProperties, DeltaTable, write_deltalake
        from deltalake.exceptions import DeltaError

        after = {name: text for name, text in self._documents.items() if name not in changes}
        after |= {name: orjson.dumps(document).decode() for name, document in changes.items() if document is not None}
        rows = pyarrow.table({"name": [*after], "document": [*after.values()]})
        try:
            if self._table is None:
                write_deltalake(self._url, rows, mode="error")
                # Not as it is by now: another may have gone on already.
                self._table = DeltaTable(self._url, version=0)
            else:
                once = CommitProperties(max_commit_retries=0)
                write_deltalake(self._table, rows, mode="overwrite", commit_properties=once)
        except DeltaError as error:
            raise StoreHeld(f"another process is at work on the lake {self._place}: {_line(error)}") from error
        self._documents = after

    @contextlib.contextmanager
    def alone(self, doing: str) -> Iterator[None]:
        """Show a sign, and read the record once: whoever is overtaken from here on is refused when he writes."""
        with sign.Sign(self._place, FOLDER, doing).shown():
            self._load()
            self._is_alone = True
            try:
                yield
            except StoreHeld:
                raise
            except Exception as error:
                # Who is overtaken may also miss what the other has cleared away.
                if self._has_moved():
                    raise StoreHeld(f"another process has gone on with the lake {self._place}") from error
                raise
            finally:
                self._is_alone = False

    def tidy(self) -> None:
        """Remove the versions of more than a week ago."""
        self._load()
        if self._table is not None:
            self._table.create_checkpoint()
            self._table.cleanup_metadata()
            self._table.vacuum(retention_hours=168, dry_run=False)

    def _has_moved(self) -> bool:
        """Whether another wrote since this one read or wrote."""
        before = None if self._table is None else self._table.version()
        with contextlib.suppress(StoreUnavailable):
            self._load()
        return before != (None if self._table is None else self._table.version())

    @property
    def _url(self) -> str:
        return f"{self._place}/{FOLDER}/{TABLE}"

    def _load(self) -> None:
        from deltalake import DeltaTable, QueryBuilder
        from deltalake.exceptions import DeltaError, TableNotFoundError

        try:
            table = DeltaTable(self._url)
        except TableNotFoundError:
            self._table, self._documents = None, {}
            return
        except (DeltaError, OSError) as error:
            raise StoreUnavailable(f"the record of the lake {self._place} cannot be read: {_line(error)}") from error
        found: dict[str, str] = {}
        for batch in QueryBuilder().register("t", table).execute("SELECT name, document FROM t"):
            found |= zip(batch.column("name").to_pylist(), batch.column("document").to_pylist(), strict=True)
        self._table, self._documents = table, found


def _document(content: bytes, where: str) -> dict[str, Any]:
    try:
        found = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise StoreCorrupt(f"{where} is damaged: {error}") from error
    if not isinstance(found, dict):
        raise StoreCorrupt(f"{where} is damaged: it is no object")
    return found


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]
