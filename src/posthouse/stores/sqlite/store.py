"""The embedded store: SQLite with a write-ahead log, synced before it answers.

In: batches of commands from one writer thread, read queries from any. Out: outcomes, views, chunks.
A batch is one transaction: its commands run over the working set, what they changed is written in
bulk with its journal chunk, and the commit is synced. A second thread moves the log into the file.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import apsw
import orjson

from ...errors import InvalidInput, StoreError, StoreFailed
from ...journal.chunk import GENESIS, decode
from ...mailbox.command import Command, Filter
from ...mailbox.event import Event
from ...mailbox.message import Instant, Ref, check_name
from ...mailbox.outcome import Outcome
from ...mailbox.policy import Policy
from ...mailbox.store import Chunk, DeskView, LaneView, MailboxView, MessageView, Segment
from . import connection, flush, integrity, reads, shelves
from .checkpoint import Checkpointer
from .commands import Applier
from .lookup import kept_policies
from .working import WorkingSet

log = logging.getLogger("posthouse.store")

CACHE_KIB = 24_576
"""Pages that the writer keeps in memory."""


class SqliteStore:
    """Messages in one SQLite file that this process holds."""

    durable = True

    def __init__(
        self,
        path: str,
        policies: Mapping[str, Policy],
        holder: connection.Holder,
        db: apsw.Connection,
        checkpointer: Checkpointer,
        vfs: str | None,
    ) -> None:
        self.path = path
        self.policies: Mapping[str, Policy] = dict(policies)
        self._holder = holder
        self._vfs = vfs
        self._db: Any = db  # rows hold what the schema says
        self._checkpointer = checkpointer
        # Readers wait for the end of an apply(), so that they see only what is committed.
        self._lock = threading.RLock()
        self._work = WorkingSet(db, self.policies)
        self._applier = Applier(self._work)
        self._closed = False
        self._loaded = True
        self._failure: StoreFailed | None = None

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        policies: Mapping[str, Policy],
        node: str | None = None,
        *,
        vfs: str | None = None,
        synchronous: str = "FULL",
    ) -> SqliteStore:
        """Open or create a store; the only process to do so until it is closed.

        ``node`` names a new store in the journal; an existing one keeps its name. A desk that is in the store
        and not among ``policies`` keeps the policy that it was last used with.
        """
        file = connection.check_path(path)
        for name, policy in policies.items():
            if name != policy.name:
                raise InvalidInput(f"policy {policy.name!r} is given under the name {name!r}")
        connection.check_library(apsw.sqlite_lib_version())
        folder = os.path.dirname(file)
        try:
            os.makedirs(folder, mode=0o700, exist_ok=True)
        except OSError as error:
            raise InvalidInput(f"cannot make the folder {folder}: {error.strerror}") from error
        with contextlib.ExitStack() as undo, connection.translated(file):
            holder = connection.Holder(file)
            undo.callback(holder.release)
            db = connection.connect(file, vfs=vfs, synchronous=synchronous, create=True, cache_kib=CACHE_KIB)
            undo.callback(connection.discard, db)
            connection.migrate(db, file)
            _name_node(db, node)
            checkpointer = Checkpointer(file, vfs=vfs, synchronous=synchronous)
            undo.callback(checkpointer.close)
            db.set_wal_hook(checkpointer.on_commit)
            store = cls(file, kept_policies(db, policies), holder, db, checkpointer, vfs)
            undo.pop_all()
            return store

    @property
    def node(self) -> str:
        """This store's name in the journal."""
        return self._work.node

    def last_at(self) -> Instant:
        """The instant of the last command, 0 if there was none."""
        with self._lock:
            return self._work.last_at

    @property
    def corrupt(self) -> int:
        """How many damaged messages were set aside since the store was opened."""
        return self._work.corrupt

    # ------------------------------------------------------------------ commands

    def apply(self, commands: Sequence[Command]) -> list[Outcome]:
        """Apply a batch in one transaction with its events; return when it is synced."""
        self._checkpointer.make_room()
        with self._lock:
            work = self._work
            self._check()
            try:
                outcomes = self._applier.apply(commands)
                if not flush.is_idle(work):
                    self._db.execute("BEGIN IMMEDIATE")
                    flush.flush(work)
                    self._db.execute("COMMIT")
                flush.tidy(work)
            except BaseException as error:
                self._loaded = False
                failure = connection.translate(self.path, error) if isinstance(error, apsw.Error) else error
                if isinstance(failure, StoreFailed):
                    self._failure = failure
                else:
                    self._roll_back()
                if failure is error:
                    raise
                raise failure from error
            return outcomes

    def _check(self) -> None:
        """Refuse to go on after a failed write or sync; read again what a failed batch left half read."""
        if self._failure is None and self._checkpointer.failure is not None:
            self._failure = StoreFailed(f"a checkpoint of {self.path} failed: {self._checkpointer.failure}")
        if self._failure is not None:
            raise StoreFailed(str(self._failure)) from self._failure
        if not self._loaded:
            with connection.translated(self.path):
                self._work.load()
            self._loaded = True

    @contextlib.contextmanager
    def _reading(self) -> Iterator[WorkingSet]:
        """The working set as of the last commit, for a query of any thread."""
        with self._lock, connection.translated(self.path):
            if not self._loaded and self._failure is None:
                self._check()
            yield self._work
            flush.let_go(self._work)

    def _roll_back(self) -> None:
        """Undo a batch: the database does its part, the working set begins again from what is committed."""
        try:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            self._work.load()
            self._loaded = True
        except (apsw.Error, StoreError) as error:
            # The batch's own error is what the caller must see; the next one loads again before it begins.
            log.error("the store cannot be read after a failed batch: %s", error)

    # ------------------------------------------------------------------ views

    def next_at(self, at: Instant) -> Instant | None:
        """The earliest instant after ``at`` at which a wait, a lease or a quiet period ends."""
        with self._reading() as work:
            return reads.next_at(work, at)

    def due(self, after: Instant, until: Instant, limit: int) -> list[tuple[str, str]]:
        """The mailboxes with a wait that ended after ``after`` and by ``until``; each end is told once."""
        with self._reading() as work:
            return reads.due(work, until, limit)

    def desks(self) -> list[DeskView]:
        """Every desk of the policies, and those that still hold messages."""
        with self._reading() as work:
            return reads.desks(work)

    def mailboxes(
        self, desk: str | None = None, contains: str = "", after: tuple[str, str] | None = None, limit: int = 50
    ) -> list[MailboxView]:
        """A page of mailboxes in order of (desk, name)."""
        with self._reading() as work:
            return reads.mailboxes(work, desk, contains, after, limit)

    def mailbox(self, desk: str, name: str) -> MailboxView | None:
        """One mailbox, if anything was ever posted to it or it was paused."""
        with self._reading() as work:
            box = work.box(desk, name)
            return None if box is None else reads.mailbox_view(work, box)

    def lanes(self, desk: str, mailbox: str, after: str | None = None, limit: int = 50) -> list[LaneView]:
        """A page of a mailbox's lanes in order of name."""
        with self._reading() as work:
            return reads.lanes(work, desk, mailbox, after, limit)

    def lane(self, desk: str, mailbox: str, name: str) -> LaneView | None:
        """One lane."""
        with self._reading() as work:
            box = work.box(desk, mailbox)
            lane = None if box is None else work.lane(box, name)
            return None if lane is None else reads.lane_view(work, lane)

    def in_lane(self, desk: str, mailbox: str, lane: str, limit: int = 50) -> list[MessageView]:
        """The messages that hold the lane, head first."""
        with self._reading() as work:
            return reads.in_lane(work, desk, mailbox, lane, limit)

    def message(self, ref: Ref) -> MessageView | None:
        """One message or what is remembered of it."""
        with self._reading() as work:
            box = work.box(ref.desk, ref.mailbox)
            entry = None if box is None else work.find(box, ref.sender, ref.id)
            return None if entry is None else reads.message_view(work, entry)

    def find(self, id: str, limit: int = 50) -> list[MessageView]:
        """Messages with this id in any mailbox, and what is remembered of them, by number."""
        with self._reading() as work:
            return reads.find(work, id, limit)

    def messages(self, filter: Filter, after: int = 0, limit: int = 50) -> list[MessageView]:
        """A page of kept messages by number; the filter's states, or all."""
        with self._reading() as work:
            return reads.messages(work, filter, after, limit)

    def bodies(self, refs: Sequence[Ref]) -> list[bytes | None]:
        """The bodies of these messages, None where there is none (any more)."""
        with self._reading() as work:
            return reads.bodies(work, refs)

    def kept(self, shelf: str, after: str = "", limit: int = 1_000) -> list[tuple[str, bytes]]:
        """A page of what a shelf holds: keys above ``after`` with their values, in order."""
        with self._reading() as work:
            return shelves.page(work.db, shelf, after, limit)

    def kept_value(self, shelf: str, key: str) -> bytes | None:
        """What a shelf holds under this key, None if nothing."""
        with self._reading() as work:
            return shelves.value(work.db, shelf, key)

    # ------------------------------------------------------------------ journal

    def offset(self) -> int:
        """The journal's last offset."""
        with self._lock:
            return self._work.next_offset - 1

    def chunks(self, after: int = 0) -> Iterator[Chunk]:
        """Journal chunks whose last offset is above ``after``, in order, a page at a time."""
        while True:
            with self._lock, connection.translated(self.path):
                after = max(after, self._work.trimmed)
                rows = self._db.execute(
                    "SELECT first, last, prev, hash, data FROM chunk WHERE last > ? AND first >="
                    " coalesce((SELECT max(first) FROM chunk WHERE first <= ?), 0) ORDER BY first LIMIT 64",
                    (after, after + 1),
                ).fetchall()
            for row in rows:
                yield Chunk(*row)
            if len(rows) < 64:
                return
            after = rows[-1][1]

    def events(self, after: int = 0) -> Iterator[tuple[int, int, Event]]:
        """(offset, commit, event) above ``after``, in order, as far as the store still has them."""
        for chunk in self.chunks(after):
            for offset, event in enumerate(decode(chunk.data), chunk.first):
                if offset > after:
                    yield offset, chunk.first, event

    def segments(self) -> list[Segment]:
        """Every exported segment and at most one planned, in order."""
        with self._lock, connection.translated(self.path):
            rows = self._db.execute("SELECT first, last, prev, chain FROM segment ORDER BY first").fetchall()
        return [Segment(*row) for row in rows]

    def plan_segment(self, last: int) -> Segment:
        """Commit the boundary of the next segment; one that is planned already is the answer."""
        with self._lock, connection.translated(self.path):
            segments = self.segments()
            if segments and not segments[-1].chain:
                return segments[-1]
            first, prev = (segments[-1].last + 1, segments[-1].chain) if segments else (1, "0" * 64)
            ends = self._db.execute("SELECT 1 FROM chunk WHERE last = ?", (last,)).fetchall()
            if last < first or not ends:
                raise InvalidInput(f"a segment from {first} cannot end at {last}: no chunk ends there")
            segment = Segment(first, last, prev, "")
            with self._db:
                self._db.execute("INSERT INTO segment VALUES (?, ?, ?, ?)", segment)
            return segment

    def finish_segment(self, segment: Segment) -> None:
        """Record that the planned segment is on disk with its chain; commits to come delete its chunks, a few each."""
        with self._lock, connection.translated(self.path):
            segments = self.segments()
            if segment in segments and segment.chain:
                return
            if not segment.chain or segments[-1:] != [segment._replace(chain="")]:
                raise InvalidInput(f"segment {segment.first}-{segment.last} is not the planned one")
            (last_hash,) = self._db.execute("SELECT hash FROM chunk WHERE last = ?", (segment.last,)).fetchall()[0]
            with self._db:
                self._db.execute("UPDATE segment SET chain = ? WHERE first = ?", (segment.chain, segment.first))
                for name, value in (("trimmed_offset", segment.last), ("trimmed_hash", last_hash)):
                    self._db.execute("UPDATE meta SET value = ? WHERE name = ?", (value, name))
            self._work.trimmed, self._work.trimming = segment.last, True

    # ------------------------------------------------------------------ upkeep

    def _look(self) -> Any:
        """A connection that sees the store as it is now and holds nobody up."""
        return connection.connect(self.path, vfs=self._vfs, synchronous="FULL", create=False, readonly=True)

    def snapshot(self, path: str | os.PathLike[str]) -> tuple[str, int]:
        """Copy the store as it is now to a new file, while commits go on; return its node and last offset."""
        target = connection.check_path(path)
        if os.path.exists(target):
            raise InvalidInput(f"{target} exists already")
        partial = target + ".partial"
        with connection.translated(target), contextlib.closing(self._look()) as db:
            try:
                connection.create_private(partial, anew=True)
                db.execute("VACUUM INTO ?", (partial,))
                with contextlib.closing(apsw.Connection(partial)) as copy:
                    found = connection.identity(copy)
                os.rename(partial, target)
            except BaseException:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(partial)
                raise
        return found

    def facts(self) -> dict[str, Any]:
        """What a doctor wants to know of the file."""
        with self._lock, connection.translated(self.path):
            pragma = {
                name: self._db.execute(f"PRAGMA {name}").fetchall()[0][0]
                for name in ("page_count", "page_size", "freelist_count", "user_version", "journal_mode", "synchronous")
            }
            log_file = self.path + "-wal"
            return {
                **pragma,
                "sqlite": apsw.sqlite_lib_version(),
                "wal_bytes": os.path.getsize(log_file) if os.path.exists(log_file) else 0,
                "file_bytes": os.path.getsize(self.path),
                "corrupt": self.corrupt,
            }

    def integrity(self) -> list[str]:
        """What is wrong with the file: SQLite's own check, and tables that disagree; empty if nothing is."""
        with connection.translated(self.path), contextlib.closing(self._look()) as db:
            return integrity.findings(db)

    def close(self) -> None:
        """Let go of the store; what was applied stays."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._checkpointer.close()
            try:
                if self._failure is None and self._checkpointer.failure is None:
                    if self._loaded and self._work.next_number - 1 > self._work.watermark:
                        with self._db:
                            flush.catch_up(self._work)
                    self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            except apsw.Error as error:
                # The file and its log hold everything that was acknowledged; the next opening recovers it.
                log.warning("%s was not tidied up when it was closed: %s", self.path, error)
            connection.discard(self._db)
            self._holder.release()


def _name_node(db: Any, node: str | None) -> None:
    if db.execute("SELECT 1 FROM meta WHERE name = 'node'").fetchall():
        return
    name = node or "local"
    check_node(name)
    with db:
        for key, value in (("node", name), ("trimmed_offset", 0), ("trimmed_hash", GENESIS)):
            db.execute("INSERT INTO meta VALUES (?, ?)", (key, value))


def check_node(name: str) -> None:
    """Raise InvalidInput unless the name can be a folder of the journal."""
    check_name("node", name)
    if not all(c.isascii() and (c.isalnum() or c in "._-") for c in name) or name in (".", ".."):
        raise InvalidInput(f"a node's name is made of letters, digits, '.', '_' and '-': {name!r}")


def restore(snapshot: str | os.PathLike[str], path: str | os.PathLike[str], node: str) -> dict[str, Any]:
    """Make a store from a snapshot under a new node name, since it would reuse offsets; what Start records.

    Queue, leases and dedup memory are the snapshot's; the journal begins anew.
    """
    source, target = connection.check_path(snapshot), connection.check_path(path)
    check_node(node)
    if not os.path.isfile(source):
        raise InvalidInput(f"there is no snapshot {source}")
    if os.path.exists(target):
        raise InvalidInput(f"{target} exists already")
    os.makedirs(os.path.dirname(target), mode=0o700, exist_ok=True)
    holder = connection.Holder(target)
    try:
        with connection.translated(source):
            origin: Any = connection.connect(source, vfs=None, synchronous="FULL", create=False, readonly=True)
            connection.check_schema(origin, source)
            origin_node, offset = connection.identity(origin)
            restored_from = {"node": origin_node, "offset": offset}
            if origin_node == node:
                raise InvalidInput(f"the snapshot is of node {node!r}: a restored store needs another name")
            partial = target + ".restoring"
            connection.create_private(partial, anew=True)
            origin.execute("VACUUM INTO ?", (partial,))
            origin.close()
        with connection.translated(target):
            db: Any = connection.connect(partial, vfs=None, synchronous="FULL", create=False)
            with db:
                db.execute("DELETE FROM chunk")
                db.execute("DELETE FROM segment")
                for key, value in (
                    ("node", node),
                    ("trimmed_offset", 0),
                    ("trimmed_hash", GENESIS),
                    # For the first Start, however late it comes.
                    ("restored_from", orjson.dumps(restored_from).decode()),
                ):
                    db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            db.close()
        os.rename(partial, target)
        folder = os.open(os.path.dirname(target), os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)
    finally:
        holder.release()
    return restored_from
