"""Looking things up: records by their keys, from memory or from the tables, each only once in memory.

In: names, refs, numbers. Out: records. It changes nothing that is stored.

Why in bulk: the driver gives up the interpreter lock at every statement, and beside a busy event loop it
waits up to a switch interval to get it back. A batch of any size must be a few statements.

Why indexes lag: an index on ids, or on lanes, touches a page of its own for each message, at random.
New messages are only appended; their index entries are kept in memory and written later, many at a
time in the order of the index. At start, what is above the watermark is read again.
"""

from __future__ import annotations

import bisect
import functools
import hashlib
import heapq
import logging
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

import apsw
import orjson
from isal import isal_zlib

from ...errors import InvalidInput, StoreCorrupt
from ...mailbox.command import Filter
from ...mailbox.message import Instant, State
from ...mailbox.policy import Policy, policy_from
from . import bulk
from .records import CODES, LEASED, READY, RECEIVED, STATES, Box, Desk, Entry, Lane, Rota

log = logging.getLogger("posthouse.store")

PAGE_ENTRIES = 64
"""How many messages of a lane are read from the queue index at once."""

_MESSAGE = (
    "number, lane_id, seq, state, posted_at, post_commit, attempts, unreceived, life, quiet, progress, due_at,"
    " expires_at, since, batch, note, id, sender, kind, extra, size_bytes, crc"
)
_MEMORY = "number, lane_id, seq, state, posted_at, attempts, life, since, note, id, sender, kind, size_bytes"
_LANE = "l.id, l.mailbox_id, l.name, s.last_seq, s.depth, s.paused, s.served, s.counts, s.row_crc"
_BOX = "m.id, m.desk_id, m.name, s.lanes, s.paused, s.served, s.counts, s.row_crc"


# A mailbox without a row of its own has one lane, or is new: that lane is read with it.
_ONLY_LANE = _LANE.replace("s.", "ls.")
_JOIN_STATE = (
    "LEFT JOIN mailbox_state s ON s.id = m.id"
    " LEFT JOIN lane l ON l.mailbox_id = m.id AND (s.id IS NULL OR s.lanes = 1) LEFT JOIN lane_state ls ON ls.id = l.id"
)


_ID_HASH: Final = hashlib.blake2b(digest_size=4)
_INT32: Final = struct.Struct(">i")

_READ_BOXES = (
    f"SELECT {_BOX}, {_ONLY_LANE} FROM {{rows}} j CROSS JOIN mailbox m ON m.desk_id = j.column1 AND m.name = j.column2"
    f" {_JOIN_STATE}"
)
_READ_HEADS = (
    "SELECT q.lane_id, q.seq, q.number FROM {rows} j CROSS JOIN queue q ON q.lane_id = j.column1 AND q.seq ="
    " (SELECT min(seq) FROM queue WHERE lane_id = j.column1 AND seq > j.column2)"
)


def id_hash(id: str) -> int:
    """The upper half of a known key: all messages with one id stand together."""
    hash = _ID_HASH.copy()  # faster than to make one anew
    hash.update(id.encode())
    return int(_INT32.unpack(hash.digest())[0])


def known_key(box_id: int, sender: str, id: str) -> int:
    """The key under which a message is known; rows decide, since hashes may collide."""
    low = isal_zlib.crc32(sender.encode(), box_id)
    return (id_hash(id) << 32) | low


def as_json(value: object) -> str:
    """A bulk statement's rows."""
    return orjson.dumps(value).decode()


_F = TypeVar("_F", bound=Callable[..., Any])


def reads_rows(method: _F) -> _F:
    """For methods that make records of rows: rows that make none are damaged, and the store says so."""

    @functools.wraps(method)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        try:
            return method(*args, **kwargs)
        except (LookupError, TypeError, ValueError, AttributeError, InvalidInput) as error:
            raise StoreCorrupt(f"stored rows cannot be read ({type(error).__name__}: {error})") from error

    return wrapped  # type: ignore[return-value]


class Runs:
    """Index work under way: each list is sorted in the order of its index and written from its end."""

    __slots__ = ("gone", "known", "lanes", "unqueue")

    def __init__(self) -> None:
        self.known: list[tuple[int, int]] = []
        self.lanes: list[int] = []
        self.gone: list[int] = []
        self.unqueue: list[tuple[int, int]] = []


class Lookup:
    """Records by their keys, and what a batch has changed of them."""

    def __init__(self, db: apsw.Connection, policies: Mapping[str, Policy]) -> None:
        # Any: what a row holds is the schema's to say, and the type checker cannot read that.
        self.db: Any = db
        self.policies = policies
        self.load()

    @reads_rows
    def load(self) -> None:
        """Forget everything in memory and begin again from what is committed."""
        self.desks: dict[str, Desk] = {}
        self.desks_by_id: dict[int, Desk] = {}
        self.boxes: dict[tuple[str, str], Box] = {}
        self.boxes_by_id: dict[int, Box] = {}
        self.lanes: dict[int, Lane] = {}
        self.entries: dict[int, Entry] = {}
        self.refs: dict[tuple[int, str, str], Entry] = {}
        self.held: dict[tuple[str, str], dict[int, Entry]] = {}
        self.ends: list[tuple[Instant, int]] = []
        self.ends_max = 0
        self.boxes_max = 0
        self.timers: list[tuple[Instant, int]] = []
        self.dirty: dict[int, Entry] = {}
        self.dirty_lanes: dict[int, Lane] = {}
        self.dirty_boxes: dict[int, Box] = {}
        self.dirty_kept: dict[tuple[str, str], bytes | None] = {}
        self.undo: list[Callable[[], None]] | None = None
        self.events: list[tuple[Any, ...]] = []  # in the order of Event's fields; plain, since many are made
        self.probed: dict[tuple[int, str, str], int] = {}  # looked up in this batch, with their keys
        # Both in ascending order of number, so that the first key is the oldest that an index lacks.
        self.unknown: dict[int, int] = {}  # number → known key
        self.fresh: dict[int, Entry] = {}  # not in the queue index
        self.unsorted = False  # something was put back out of order
        self.gone: dict[int, tuple[int, int]] = {}  # number → (lane id, seq): rows to be deleted in bulk
        self.unqueue: dict[tuple[int, int], int] = {}  # queue entries to be deleted in bulk
        self.forgotten: set[int] = set()  # in this batch; their rows are still in the tables
        self.dropped_rows: list[int] = []
        self.dropped_memories: list[int] = []
        self.dropped_leases: list[int] = []
        self.dropped_known: list[tuple[int, int]] = []
        self.requeued: dict[int, Entry] = {}
        self.loaded: list[Entry] = []
        self.runs = Runs()
        self.bodies_bytes = 0
        self.bodied: dict[int, Entry] = {}
        self.corrupt: int = getattr(self, "corrupt", 0)
        self.tick = 0
        db = self.db
        meta = dict(db.execute("SELECT name, value FROM meta").fetchall())
        self.node: str = str(meta["node"])
        restored_from = meta.get("restored_from")
        self.restored_from: dict[str, Any] | None = None if restored_from is None else orjson.loads(restored_from)
        self.recorded_restore = False
        self.watermark: int
        self.last_at: Instant
        last_number, self.watermark, self.last_at = db.execute(
            "SELECT last_number, watermark, last_at FROM head"
        ).fetchall()[0]
        self.next_number = last_number + 1
        for id, name, mailboxes, depth, counts, oldest in db.execute(
            "SELECT id, name, mailboxes, depth, counts, oldest FROM desk ORDER BY id"
        ).fetchall():
            desk = self._add_desk(id, name)
            desk.mailboxes, desk.depth, desk.counts = mailboxes, depth, _counts(counts)
            desk.oldest = oldest
            desk.stored = (mailboxes, depth, counts, oldest)
        for name in self.policies:
            if name not in self.desks:
                with db:
                    db.execute(
                        "INSERT INTO desk (name, policy) VALUES (?, ?)", (name, _policy_text(self.policies[name]))
                    )
                self._add_desk(db.last_insert_rowid(), name)

        def top(table: str, column: str = "id") -> int:
            (value,) = db.execute(f"SELECT coalesce(max({column}), 0) FROM {table}").fetchall()[0]
            return int(value)

        self.next_box = top("mailbox") + 1
        self.next_lane = top("lane") + 1
        self.trimmed = int(meta["trimmed_offset"])
        (left,) = db.execute("SELECT EXISTS (SELECT 1 FROM chunk WHERE last <= ?)", (self.trimmed,)).fetchall()[0]
        self.trimming = bool(left)
        last = db.execute("SELECT last, hash FROM chunk ORDER BY first DESC LIMIT 1").fetchall()
        self.next_offset: int
        self.chain: bytes
        if last:
            self.next_offset, self.chain = last[0][0] + 1, last[0][1]
        else:
            self.next_offset, self.chain = int(meta["trimmed_offset"]) + 1, bytes(meta["trimmed_hash"])
        self.commit = self.next_offset
        for number, lane_id, seq in db.execute("SELECT number, lane_id, seq FROM gone").fetchall():
            self.gone[number] = (lane_id, seq)
            self.unqueue[(lane_id, seq)] = number
        above = (self.watermark,)
        young = db.execute(
            "SELECT number FROM message WHERE number > ?1 UNION SELECT number FROM memory WHERE number > ?1 ORDER BY 1",
            above,
        ).fetchall()
        for entry in self.read_rows([row[0] for row in young]):
            self._mark_unknown(entry)
            if entry.state is READY:
                self._mark_unindexed(entry)
        leases = db.execute(
            "SELECT number, token, holder, ends_at, received, lease_commit FROM lease ORDER BY number"
        ).fetchall()
        self.read_rows([row[0] for row in leases])
        for number, token, holder, ends_at, received, lease_commit in leases:
            if number not in self.entries:
                continue  # its row is damaged beyond use, and was reported
            entry = self.entries[number]
            entry.state = RECEIVED if received else LEASED
            entry.lane.in_flight += 1
            entry.token, entry.holder, entry.ends_at = token, holder, ends_at
            entry.lease_commit, entry.lease_stored = lease_commit, True
            self.hold(entry)
        for due_at, lane_id in db.execute(
            "SELECT due_at, lane_id FROM message WHERE due_at > 0 AND state = 0"
        ).fetchall():
            heapq.heappush(self.timers, (due_at, lane_id))

    def _add_desk(self, id: int, name: str) -> Desk:
        desk = Desk(id, name, self.policies.get(name))
        self.desks[name] = desk
        self.desks_by_id[id] = desk
        return desk

    def box(self, desk: str, name: str) -> Box | None:
        """A mailbox, if there is one."""
        box = self.boxes.get((desk, name))
        if box is None and (desk, name) not in self.boxes:
            self.read_boxes([(desk, name)])
            box = self.boxes.get((desk, name))
        if box is not None:
            box.used = self.tick
        return box

    @reads_rows
    def read_boxes(self, names: Sequence[tuple[str, str]]) -> None:
        """Bring these mailboxes, and the only lane of each that has just one, into memory."""
        wanted: list[Any] = []
        for desk, name in names:
            if desk in self.desks:
                wanted += (self.desks[desk].id, name)
        self._boxes_from_rows(bulk.select(self.db, _READ_BOXES, 2, wanted))

    def _boxes_from_rows(self, rows: Iterable[tuple[Any, ...]]) -> None:
        damaged: list[Box] = []
        for id, desk_id, name, lanes, paused, served, counts, crc, *lane_row in rows:
            if id in self.boxes_by_id:
                continue
            desk = self.desks_by_id.get(desk_id)
            if desk is None:
                raise StoreCorrupt(f"mailbox {id} is of desk {desk_id}, which does not exist")
            box = Box(id, desk, name, new=False)
            box.used = self.tick
            self.boxes[(desk.name, name)] = box
            self.boxes_by_id[id] = box
            if lanes is not None:
                if crc != place_crc((id, desk_id, name, lanes, paused, served, counts)):
                    damaged.append(box)
                    continue
                box.lane_count, box.paused, box.served = lanes, paused, served
            if lanes is not None and lanes > 1:
                tally = _counts(counts)
                box.depth = tally.pop(READY, 0)
                box.counts = tally
            elif lane_row[0] is not None:
                # What its only lane says is newer than what its own row says.
                lane = self._lane_from_row(tuple(lane_row))
                box.lane_count = 1
                box.depth = lane.depth
                box.counts = dict(lane.counts)
        for box in damaged:
            self._mend_box(box)

    @reads_rows
    def _lane_from_row(self, row: tuple[Any, ...]) -> Lane:
        id, box_id, name, last_seq, depth, paused, served, counts, crc = row
        lane = self.lanes.get(id)
        if lane is not None:
            return lane
        box = self.boxes_by_id.get(box_id)
        if box is None:
            raise StoreCorrupt(f"lane {id} is of mailbox {box_id}, which does not exist")
        lane = Lane(id, box, name, new=False)
        if crc == place_crc((id, box.desk.id, box.name, name, last_seq, depth, paused, served, counts)):
            lane.last_seq, lane.depth, lane.paused, lane.served = last_seq, depth, paused, served
            lane.counts = _counts(counts)
            lane.waiting = depth > 0
        else:
            self._mend_lane(lane)
        lane.old_read = lane.depth == 0
        box.lanes[name] = lane
        self.lanes[id] = lane
        if box.rota is not None and lane.depth:
            box.rota.wake(lane, 0)
        return lane

    def _mend_lane(self, lane: Lane) -> None:
        """Count a lane anew whose row is not what was written; a pause of it is lost."""
        self._report(f"lane {lane.id}, {lane.name!r} of {lane.box.name!r}, is damaged: it is counted anew")
        for code, count, last_seq in self.db.execute(
            "SELECT state, count(*), max(seq) FROM message WHERE lane_id = ?"
            " AND number NOT IN (SELECT number FROM gone) GROUP BY state",
            (lane.id,),
        ).fetchall():
            lane.last_seq = max(lane.last_seq, last_seq)
            if code == 0:
                lane.depth = count
            else:
                lane.counts[STATES[code]] = count
        (remembered,) = self.db.execute("SELECT max(seq) FROM memory WHERE lane_id = ?", (lane.id,)).fetchall()[0]
        lane.last_seq = max(lane.last_seq, remembered or 0)
        self.dirty_lanes[lane.id] = lane

    def _mend_box(self, box: Box) -> None:
        """The same for a mailbox."""
        self._report(f"mailbox {box.id}, {box.name!r}, is damaged: it is counted anew")
        for row in self.db.execute(
            f"SELECT {_LANE} FROM lane l JOIN lane_state s ON s.id = l.id WHERE l.mailbox_id = ?", (box.id,)
        ).fetchall():
            lane = self._lane_from_row(row)
            box.lane_count += 1
            box.depth += lane.depth
            for state, count in lane.counts.items():
                box.counts[state] = box.counts.get(state, 0) + count
        self.dirty_boxes[box.id] = box

    def lane(self, box: Box, name: str) -> Lane | None:
        """A lane of a mailbox, if there is one."""
        lane = box.lanes.get(name)
        if lane is None and not box.new and box.lane_count > len(box.lanes):
            lane = self._read_one_lane(box, name)
        return lane

    @reads_rows
    def _read_one_lane(self, box: Box, name: str) -> Lane | None:
        rows = self.db.execute(
            f"SELECT {_LANE} FROM lane l JOIN lane_state s ON s.id = l.id WHERE l.mailbox_id = ? AND l.name = ?",
            (box.id, name),
        ).fetchall()
        return self._lane_from_row(rows[0]) if rows else None

    @reads_rows
    def lanes_by_id(self, ids: Iterable[int]) -> None:
        """Bring lanes and their mailboxes into memory by number."""
        missing = [id for id in set(ids) if id not in self.lanes]
        if not missing:
            return
        rows = self.db.execute(
            f"SELECT {_LANE} FROM jsonb_each(?) j JOIN lane l ON l.id = j.value JOIN lane_state s ON s.id = l.id",
            (as_json(missing),),
        ).fetchall()
        boxes = [row[1] for row in rows if row[1] not in self.boxes_by_id]
        if boxes:
            self._boxes_from_rows(
                self.db.execute(
                    f"SELECT {_BOX}, {_ONLY_LANE} FROM jsonb_each(?) j JOIN mailbox m ON m.id = j.value {_JOIN_STATE}",
                    (as_json(boxes),),
                ).fetchall()
            )
        for row in rows:
            self._lane_from_row(row)

    def _entry_from_row(self, row: tuple[Any, ...]) -> Entry:
        entry = Entry(row[0], self.lanes[row[1]], row[2], row[16], row[17], row[18], row[4])
        entry.stored = True
        entry.corrupt = isal_zlib.crc32(orjson.dumps(row[:-1])) != row[-1]
        entry.state = STATES[row[3]]
        entry.post_commit, entry.attempts, entry.unreceived, entry.life = row[5:9]
        entry.quiet = bool(row[9])
        entry.progress, entry.due_at, entry.expires_at, entry.since, entry.batch = row[10:15]
        if row[15] is not None:
            entry.reason, entry.error = orjson.loads(row[15])
        if row[19] is not None:
            entry.batch_key, headers, entry.cause, entry.own_due_at, entry.own_expires_at = orjson.loads(row[19])
            if headers:
                entry.headers = headers
        entry.size_bytes, entry.crc = row[20:22]
        return entry

    def _entry_from_memory(self, row: tuple[Any, ...]) -> Entry:
        number, lane_id, seq, state, posted_at, attempts, life, since, note, id, sender, kind, size_bytes, crc = row
        entry = Entry(number, self.lanes[lane_id], seq, id, sender, kind, posted_at)
        entry.remembered = entry.memory = True
        entry.corrupt = isal_zlib.crc32(orjson.dumps(row[:-1])) != crc
        entry.state, entry.attempts, entry.life, entry.since = STATES[state], attempts, life, since
        entry.size_bytes = size_bytes
        if note is not None:
            entry.reason, entry.error = orjson.loads(note)
        return entry

    def _remember(self, entry: Entry) -> None:
        self.entries[entry.number] = entry
        self.loaded.append(entry)
        key = (entry.lane.box.id, entry.sender, entry.id)
        other = self.refs.get(key)
        if other is None or other.number < entry.number:
            self.refs[key] = entry

    @reads_rows
    def read_rows(self, numbers: Sequence[int]) -> list[Entry]:
        """Messages or memories by number, as far as there are any; a row that is to be deleted is none."""
        missing = [number for number in numbers if number not in self.entries and number not in self.forgotten]
        kept = [number for number in missing if number not in self.gone]
        if kept:
            self._read_table("message", _MESSAGE, kept, self._entry_from_row)
            missing = [number for number in missing if number not in self.entries]
        if missing:
            self._read_table("memory", _MEMORY, missing, self._entry_from_memory)
        return [self.entries[number] for number in numbers if number in self.entries]

    def slack(self) -> int:
        """How many rows of the tables at most are not what they were before this batch."""
        return len(self.dirty) + len(self.forgotten)

    def _read_table(
        self, table: str, columns: str, numbers: Sequence[int], make: Callable[[tuple[Any, ...]], Entry]
    ) -> None:
        query = f"SELECT {columns}, row_crc FROM {table} WHERE number IN (SELECT value FROM jsonb_each(?))"
        try:
            rows = self.db.execute(query, (as_json(numbers),)).fetchall()
            self.lanes_by_id(row[1] for row in rows)
        except (UnicodeDecodeError, TypeError):
            # One of them is no text any more: read them one by one, so that it alone is lost.
            rows = []
            for number in numbers:
                rows += self._read_damaged(query, table, number)
        for row in rows:
            try:
                entry = make(row)
            except (ValueError, TypeError, KeyError, IndexError) as error:
                self._report(f"{table} {row[0]} cannot be read: it is set aside ({error})")
                continue
            if entry.corrupt:
                self._report(
                    f"{table} {entry.number}, id {entry.id!r} for {entry.lane.box.name!r}, is damaged: it is set aside"
                )
            self._remember(entry)

    def _read_damaged(self, query: str, table: str, number: int) -> list[tuple[Any, ...]]:
        try:
            rows: list[tuple[Any, ...]] = self.db.execute(query, (as_json([number]),)).fetchall()
            self.lanes_by_id(row[1] for row in rows)
            return rows
        except (UnicodeDecodeError, TypeError) as error:
            self._report(f"{table} {number} cannot be read: it is set aside ({error})")
            return []

    def _report(self, what: str) -> None:
        log.warning("%s", what)
        self.corrupt += 1

    @reads_rows
    def probe(self, refs: Iterable[tuple[int, str, str]]) -> None:
        """Look these up in the index of known ids, so that ``find`` knows whether they are there."""
        keys = {
            ref: known_key(ref[0], ref[1], ref[2]) for ref in refs if ref not in self.refs and ref not in self.probed
        }
        if not keys:
            return
        rows = self.db.execute(
            "SELECT k.number FROM jsonb_each(?) j JOIN known k ON k.key = j.value", (as_json(list(keys.values())),)
        ).fetchall()
        if rows:
            self.read_rows([row[0] for row in rows])
        self.probed.update(keys)

    def find(self, box: Box, sender: str, id: str) -> Entry | None:
        """The message, or what is remembered of it."""
        ref = (box.id, sender, id)
        entry = self.refs.get(ref)
        if entry is None and ref not in self.probed and not box.new:
            self.probe([ref])
            entry = self.refs.get(ref)
        return entry

    def in_lane(self, lane: Lane) -> Iterator[Entry]:
        """The lane's messages that are ready, leased or received, in order."""
        i = j = 0
        while True:
            while i >= len(lane.old) and not lane.old_read:
                self._read_lane(lane)
            fresh = lane.fresh
            if i < len(lane.old) and (j >= len(fresh) or lane.old[i].seq < fresh[j].seq):
                entry = lane.old[i]
                i += 1
            elif j < len(fresh):
                entry = fresh[j]
                j += 1
            else:
                return
            state = entry.state
            if state is READY or state is LEASED or state is RECEIVED:
                yield entry

    @reads_rows
    def _read_lane(self, lane: Lane) -> None:
        rows = self.db.execute(
            "SELECT seq, number FROM queue WHERE lane_id = ? AND seq > ? ORDER BY seq LIMIT ?",
            (lane.id, lane.old_next, PAGE_ENTRIES),
        ).fetchall()
        self._extend_lane(lane, rows, PAGE_ENTRIES)

    def _extend_lane(self, lane: Lane, rows: Sequence[tuple[int, int]], asked: int) -> None:
        self.read_rows([number for _, number in rows])
        for seq, number in rows:
            entry = self.entries.get(number)
            if entry is None or entry.remembered:
                # Left over by a crash between a message's end and the bulk delete of its place. (One that has
                # just ended in this batch keeps its place: the batch's group may be undone.)
                self.unqueue[(lane.id, seq)] = number
            elif not entry.unindexed and not entry.in_old:
                # One that is unindexed is in the fresh list already.
                entry.in_old = True
                lane.old.append(entry)
        if len(rows) < asked:
            lane.old_read = True
        if rows:
            lane.old_next = max(lane.old_next, rows[-1][0])

    @reads_rows
    def read_heads(self, lanes: Sequence[Lane]) -> None:
        """Bring the first stored message of each of these lanes into memory, all with a few statements."""
        wanted = [lane for lane in lanes if not lane.old and not lane.old_read]
        if len(wanted) < 2:
            return  # the walk reads a page by itself
        ends: list[Any] = []
        for lane in wanted:
            ends += (lane.id, lane.old_next)
        rows = bulk.select(self.db, _READ_HEADS, 2, ends)
        self.read_rows([row[2] for row in rows])
        for lane_id, seq, number in rows:
            self._extend_lane(self.lanes[lane_id], [(seq, number)], 1)
        self.read_bodies([lane.old[0] for lane in wanted if lane.old])

    @reads_rows
    def read_bodies(self, entries: Iterable[Entry]) -> None:
        """Bring the bodies of these messages into memory; one that is damaged stays None."""
        missing = [entry.number for entry in entries if entry.body is None]
        if not missing:
            return
        rows = self.db.execute(
            "SELECT number, body FROM message WHERE number IN (SELECT value FROM jsonb_each(?))", (as_json(missing),)
        ).fetchall()
        for number, body in rows:
            entry = self.entries[number]
            if isinstance(body, bytes) and len(body) == entry.size_bytes and isal_zlib.crc32(body) == entry.crc:
                self._keep_body(entry, body)

    def _keep_body(self, entry: Entry, body: bytes) -> None:
        entry.body = body
        self.bodied[entry.number] = entry
        self.bodies_bytes += len(body)

    @reads_rows
    def rota(self, desk: Desk) -> Rota:
        """The mailboxes of a desk in their turn."""
        if desk.rota is None:
            desk.rota = Rota()
            self._boxes_from_rows(
                self.db.execute(
                    f"SELECT {_BOX}, {_ONLY_LANE} FROM mailbox m {_JOIN_STATE} WHERE m.desk_id = ?"
                    " AND EXISTS (SELECT 1 FROM lane_state w WHERE w.mailbox_id = m.id AND w.waiting = 1)",
                    (desk.id,),
                ).fetchall()
            )
            for box in self.boxes_by_id.values():
                if box.desk is desk:
                    box.hint = None
                    if box.depth:
                        desk.rota.wake(box, 0)
        return desk.rota

    def lane_rota(self, box: Box) -> Rota:
        """The lanes of a mailbox in their turn."""
        if box.rota is None:
            self.read_lanes(box)
            box.rota = Rota()
            for lane in box.lanes.values():
                lane.hint = None
                if lane.depth:
                    box.rota.wake(lane, 0)
        return box.rota

    @reads_rows
    def read_lanes(self, box: Box) -> None:
        """Bring every lane of a mailbox that holds messages into memory."""
        if not box.new:
            for row in self.db.execute(
                f"SELECT {_LANE} FROM lane_state s JOIN lane l ON l.id = s.id WHERE s.mailbox_id = ? AND s.waiting = 1",
                (box.id,),
            ).fetchall():
                self._lane_from_row(row)

    def hold(self, entry: Entry) -> None:
        """Note under its token that a message is held."""
        key = (entry.lane.box.desk.name, entry.token or "")
        held = self.held.get(key)
        if held is None:
            self.held[key] = {entry.number: entry}
        else:
            held[entry.number] = entry
        if entry.ends_at is not None:
            heapq.heappush(self.ends, (entry.ends_at, entry.number))
        if self.undo is not None:
            self.undo.append(lambda: self._unhold(key, entry))

    def _unhold(self, key: tuple[str, str], entry: Entry) -> None:
        held = self.held.get(key)
        if held is not None:
            held.pop(entry.number, None)
            if not held:
                del self.held[key]

    def _mark_unknown(self, entry: Entry) -> None:
        if not entry.unknown:
            entry.unknown = True
            ref = (entry.lane.box.id, entry.sender, entry.id)
            self.unknown[entry.number] = self.probed.get(ref) or known_key(*ref)

    def _mark_unindexed(self, entry: Entry) -> None:
        entry.unindexed = True
        fresh = entry.lane.fresh
        if not fresh or fresh[-1].seq < entry.seq:
            fresh.append(entry)
        else:
            bisect.insort(fresh, entry, key=seq_of)
        if entry.number > self.watermark:
            self.fresh[entry.number] = entry


def seq_of(entry: Entry) -> int:
    """The key by which a lane's lists are sorted."""
    return entry.seq


def kept_policies(db: Any, given: Mapping[str, Policy]) -> dict[str, Policy]:
    """The given policies, and those that desks were last used with: a desk keeps its policy."""
    policies = dict(given)
    for name, text in db.execute("SELECT name, policy FROM desk ORDER BY id").fetchall():
        if name not in policies:
            if text is not None:
                policies[name] = policy_from(name, orjson.loads(text))
        elif text != _policy_text(policies[name]):
            with db:
                db.execute("UPDATE desk SET policy = ? WHERE name = ?", (_policy_text(policies[name]), name))
    return policies


def _policy_text(policy: Policy) -> str:
    return as_json(policy.as_json())


def place_crc(columns: tuple[Any, ...]) -> int:
    """The check of a lane's or a mailbox's row."""
    return isal_zlib.crc32(orjson.dumps(columns))


def _counts(text: str | None) -> dict[State, int]:
    return {} if text is None else {State(name): count for name, count in orjson.loads(text).items()}


def scan_sql(filter: Filter, states: Iterable[State]) -> tuple[str, list[Any]]:
    """FROM and WHERE that narrow a scan of kept messages; the rules decide on each row."""
    tables = "message m"
    codes = sorted({CODES[state] for state in states})
    where = [f"m.state IN ({', '.join(map(str, codes)) or 'NULL'})"]
    if codes and codes[0] > 0:
        # Said in so many words, or the index of what has left its lane is not used and every message is looked at.
        where.append("m.state > 0")
    values: list[Any] = []
    if filter.id is not None:
        low = id_hash(filter.id) << 32
        where.append(
            "m.id = ? AND (m.number > (SELECT watermark FROM head)"
            " OR m.number IN (SELECT number FROM known WHERE key BETWEEN ? AND ?))"
        )
        values += [filter.id, low, low | 0xFFFFFFFF]
    if filter.mailbox is not None:
        lanes = (
            "SELECT l.id FROM lane l JOIN mailbox b ON b.id = l.mailbox_id"
            " JOIN desk d ON d.id = b.desk_id WHERE d.name = ? AND b.name = ?"
        )
        where.append(f"m.lane_id IN ({lanes})")
        values += [filter.desk, filter.mailbox]
        if filter.id is None and 0 in codes:
            # What is in its lane stands in the queue index, or is too young for it; what is not has its own index.
            tables = (
                f"(SELECT number FROM queue WHERE lane_id IN ({lanes})"
                " UNION SELECT number FROM message WHERE number > (SELECT watermark FROM head)"
                " UNION SELECT number FROM message INDEXED BY message_aside WHERE state > 0) w"
                " CROSS JOIN message m ON m.number = w.number"
            )
            values = [filter.desk, filter.mailbox, *values]
    return f"{tables} WHERE {' AND '.join(where)}", values
