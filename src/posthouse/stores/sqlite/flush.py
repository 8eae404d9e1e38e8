"""Writing the working set: what changed in a batch, its events, and a slice of the lagging indexes.

In: the working set after the batch's commands. Out: a few bulk statements inside the open transaction,
and after the commit a tidied working set. Each table costs one statement, or few, whatever the size of the batch.
"""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Mapping
from typing import Any

import orjson
from isal import isal_zlib

from ...journal import chunk as chunks
from ...mailbox.message import State
from . import bulk, shelves
from .lookup import PAGE_ENTRIES, as_json, place_crc, seq_of
from .records import CODES, READY, RECEIVED, Box, Entry, Lane, in_lane_now
from .working import WorkingSet

LAG_ENTRIES = 16_384
"""How many messages an index may lack before a run over it begins."""
LAG_DELETES = 4_096
"""Rows of finished messages that are still to be deleted."""
LAG_PLACES = 16_384
"""Places in the queue index that are still to be deleted."""
SLICE_ENTRIES = 64
"""How many index entries are written with one commit at least."""
COLD_NUMBERS = 8_192
"""Rows older than this many posts are deleted in bulk, younger ones at once: their pages are at hand."""
TRIM_CHUNKS = 16
"""Exported chunks that are deleted with one commit."""
BOXES_MAX = 40_000
"""Mailboxes kept in memory."""
ENDS_MAX = 8_192
"""Ends of leases in memory before those that are stale are dropped."""
BODIES_BYTES_MAX = 8 << 20
"""Bodies kept in memory, so that leasing what came lately need not read."""


def _array(rows: list[bytes]) -> str:
    return (b"[" + b",".join(rows) + b"]").decode()


def _columns(count: int) -> str:
    return ", ".join(f"value->>{i}" for i in range(count))


# All but ``waiting``, which an index hangs on.
_UPDATE_LANE = " ON CONFLICT (id) DO UPDATE SET " + ", ".join(
    f"{column} = excluded.{column}" for column in ("last_seq", "depth", "paused", "served", "counts", "row_crc")
)
_TURN_LANE = f"{_UPDATE_LANE}, mailbox_id = excluded.mailbox_id, waiting = excluded.waiting"
_INSERT_BOX = f"INSERT OR REPLACE INTO mailbox_state SELECT {_columns(6)} FROM jsonb_each(?)"
_UPDATE_MESSAGE = (
    "UPDATE message SET state = v->>3, post_commit = v->>5, attempts = v->>6, unreceived = v->>7, life = v->>8,"
    " progress = v->>10, due_at = v->>11, expires_at = v->>12, since = v->>13, batch = v->>14, note = v->>15,"
    " keep_until = v->>22, row_crc = v->>23 FROM (SELECT value AS v FROM jsonb_each(?)) WHERE number = v->>0"
)


def flush(work: WorkingSet) -> None:
    """Write all that changed; the caller commits."""
    _flush_places(work)
    posts = _flush_entries(work)
    _flush_indexes(work, posts)
    if work.dirty_kept:
        shelves.write(work.db, work.dirty_kept)
    if work.events:
        sealed = chunks.seal(work.chain, work.next_offset, work.events)
        work.db.execute("INSERT INTO chunk VALUES (?, ?, ?, ?, ?)", sealed)
        work.next_offset, work.chain = sealed.last + 1, sealed.hash
    if work.trimming:
        _trim_chunks(work)
    if work.recorded_restore:
        work.db.execute("DELETE FROM meta WHERE name = 'restored_from'")
    work.db.execute(
        "UPDATE head SET last_number = ?, watermark = ?, last_at = ?",
        (work.next_number - 1, work.watermark, work.last_at),
    )


def _trim_chunks(work: WorkingSet) -> None:
    """Delete some of the chunks that were exported, and give some of their pages back."""
    work.db.execute(
        "DELETE FROM chunk WHERE first IN (SELECT first FROM chunk WHERE last <= ? ORDER BY first LIMIT ?)",
        (work.trimmed, TRIM_CHUNKS),
    )
    work.trimming = work.db.changes() == TRIM_CHUNKS
    work.db.execute(f"PRAGMA incremental_vacuum({TRIM_CHUNKS})").fetchall()


def is_idle(work: WorkingSet) -> bool:
    """Whether a batch changed nothing and wrote no event."""
    return not (
        work.events
        or work.dirty
        or work.dirty_lanes
        or work.dirty_boxes
        or work.dirty_kept
        or work.dropped_rows
        or work.dropped_memories
        or work.dropped_known
    )


def _flush_places(work: WorkingSet) -> None:
    db = work.db
    boxes = work.dirty_boxes.values()
    lanes = work.dirty_lanes.values()
    new_boxes = [(box.id, box.desk.id, box.name) for box in boxes if box.new]
    if new_boxes:
        db.execute(f"INSERT INTO mailbox SELECT {_columns(3)} FROM jsonb_each(?)", (as_json(new_boxes),))
    new_lanes = [(lane.id, lane.box.id, lane.name) for lane in lanes if lane.new]
    if new_lanes:
        db.execute(f"INSERT INTO lane SELECT {_columns(3)} FROM jsonb_each(?)", (as_json(new_lanes),))
    # A mailbox with one lane that nobody paused or served has no row: its lane's says it all.
    moved = [
        _box_row(box) for box in boxes if box.lane_count > 1 or box.paused is not None or box.served or not box.new
    ]
    if moved:
        db.execute(_INSERT_BOX, (as_json(moved),))
    if lanes:
        rows: list[Any] = []
        turned: list[Any] = []  # those that hold messages and held none, or the other way round
        for lane_id in sorted(work.dirty_lanes):
            lane = work.dirty_lanes[lane_id]
            waiting = lane.depth > 0
            if lane.waiting == waiting:
                rows.extend(_lane_row(lane))
            else:
                lane.waiting = waiting
                turned.extend(_lane_row(lane))
        # A statement that FAILs, and is undone with all others, needs no copies of the pages that it changes.
        bulk.insert(db, "OR FAIL INTO lane_state", 9, rows, _UPDATE_LANE)
        bulk.insert(db, "OR FAIL INTO lane_state", 9, turned, _TURN_LANE)

    for desk in work.desks.values():
        state = (desk.mailboxes, desk.depth, _tally(desk.counts, 0), desk.oldest)
        if state != desk.stored:
            db.execute(
                "UPDATE desk SET mailboxes = ?, depth = ?, counts = ?, oldest = ? WHERE id = ?", (*state, desk.id)
            )
            desk.stored = state


def _box_row(box: Box) -> tuple[Any, ...]:
    counts = _tally(box.counts, box.depth)
    crc = place_crc((box.id, box.desk.id, box.name, box.lane_count, box.paused, box.served, counts))
    return box.id, box.lane_count, box.paused, box.served, counts, crc


def _lane_row(lane: Lane) -> tuple[Any, ...]:
    counts = _tally(lane.counts, 0) if lane.counts else None
    box = lane.box
    id: Any = lane.id
    last_seq: Any = lane.last_seq
    depth: Any = lane.depth
    served: Any = lane.served
    crc = place_crc((id, box.desk.id, box.name, lane.name, last_seq, depth, lane.paused, served, counts))
    return id, box.id, last_seq, depth, lane.paused, served, counts, crc, int(lane.depth > 0)


def _flush_entries(work: WorkingSet) -> int:
    """Write messages, memories and leases; return how many messages were new."""
    posts = 0
    inserts: list[Any] = []
    updates: list[bytes] = []
    memories: list[Any] = []
    deletes: list[int] = work.dropped_rows
    leases: list[Any] = []
    unleases: list[int] = work.dropped_leases
    gone: list[tuple[int, int, int]] = []
    cold = work.next_number - COLD_NUMBERS
    for entry in work.dirty.values():
        number = entry.number
        if entry.memory:
            if not entry.remembered:
                _add_memory(memories, entry)
            if entry.stored:
                if number < cold:
                    gone.append((number, entry.lane.id, entry.seq))
                else:
                    deletes.append(number)
            if entry.lease_stored:
                unleases.append(number)
            continue
        lane = entry.lane
        if not entry.stored:
            assert entry.body is not None
            _add_message(inserts, entry)
            inserts.append(entry.body)
            posts += 1
        elif entry.row_changed:
            row: list[Any] = []
            _add_message(row, entry)
            updates.append(orjson.dumps(row))
        if entry.lease_changed:
            if entry.token is not None:
                leases.extend(
                    (
                        number, lane.id, lane.box.id, entry.token, entry.holder, entry.ends_at,
                        int(entry.state is RECEIVED), entry.lease_commit,
                    )
                )  # fmt: skip
            elif entry.lease_stored:
                unleases.append(number)
    db = work.db
    # First of all, so that the pages that become free are filled again and not written in vain.
    for table, numbers in (("lease", unleases), ("message", deletes), ("memory", work.dropped_memories)):
        _delete(db, table, numbers)
    bulk.insert(db, "OR FAIL INTO message", 25, inserts)
    if updates:
        db.execute(_UPDATE_MESSAGE, (_array(updates),))
    bulk.insert(db, "OR REPLACE INTO memory", 15, memories)
    bulk.insert(db, "OR REPLACE INTO lease", 8, leases)
    if work.dropped_known:
        db.execute(
            "DELETE FROM known WHERE (key, number) IN (SELECT value->>0, value->>1 FROM jsonb_each(?))",
            (as_json(sorted(work.dropped_known)),),
        )
    if gone:
        gone.sort()
        db.execute(f"INSERT OR REPLACE INTO gone SELECT {_columns(3)} FROM jsonb_each(?)", (as_json(gone),))
        for number, lane_id, seq in gone:
            work.gone[number] = (lane_id, seq)
    return posts


def _delete(db: Any, table: str, numbers: list[int]) -> None:
    """Delete rows by number."""
    if not numbers:
        return
    numbers.sort()
    if numbers[-1] - numbers[0] == len(numbers) - 1 == len(set(numbers)) - 1:
        # All there are from the first to the last, as what came together often goes together.
        db.execute(f"DELETE FROM {table} WHERE number BETWEEN ? AND ?", (numbers[0], numbers[-1]))
    else:
        db.execute(f"DELETE FROM {table} WHERE number IN (SELECT value FROM jsonb_each(?))", (as_json(numbers),))


def _flush_indexes(work: WorkingSet, posts: int) -> None:
    """Write a slice of each index that lags too far, in the order of that index."""
    db = work.db
    runs = work.runs
    if work.requeued:
        rows = [(entry.lane.id, entry.seq, entry.number) for entry in work.requeued.values() if in_lane_now(entry)]
        for lane_id, seq, _ in rows:
            work.unqueue.pop((lane_id, seq), None)
        db.execute(f"INSERT OR IGNORE INTO queue SELECT {_columns(3)} FROM jsonb_each(?)", (as_json(sorted(rows)),))
    if len(work.unknown) > LAG_ENTRIES and not runs.known:
        runs.known = sorted(((key, number) for number, key in work.unknown.items()), reverse=True)
    if len(work.fresh) > LAG_ENTRIES and not runs.lanes:
        runs.lanes = sorted({entry.lane.id for entry in work.fresh.values()}, reverse=True)
    if len(work.gone) > LAG_DELETES and not runs.gone:
        runs.gone = sorted(work.gone, reverse=True)
    if len(work.unqueue) > LAG_PLACES and not runs.unqueue:
        runs.unqueue = sorted(work.unqueue, reverse=True)
    count = max(SLICE_ENTRIES, 4 * posts)
    if runs.known:
        known: list[int] = []
        for key, number in _take(runs.known, count):
            if work.unknown.pop(number, None) is None:
                continue
            known += (key, number)
            entry = work.entries[number]
            entry.unknown = False
            work.loaded.append(entry)
        bulk.insert(db, "OR IGNORE INTO known", 2, known)
    if runs.lanes:
        _flush_lanes(work, count)
    if runs.gone:
        numbers = [number for number in _take(runs.gone, count) if number in work.gone]
        for table in ("message", "gone"):
            _delete(db, table, numbers)
        for number in numbers:
            lane_id, seq = work.gone.pop(number)
            work.unqueue[(lane_id, seq)] = number
    if runs.unqueue:
        places = [place for place in _take(runs.unqueue, count) if work.unqueue.pop(place, None) is not None]
        db.execute(
            "DELETE FROM queue WHERE (lane_id, seq) IN (SELECT value->>0, value->>1 FROM jsonb_each(?))",
            (as_json(places),),
        )
    if work.unsorted:
        work.unknown = dict(sorted(work.unknown.items()))
        work.fresh = dict(sorted(work.fresh.items()))
        work.unsorted = False
    oldest = [next(iter(numbers)) for numbers in (work.unknown, work.fresh) if numbers]
    work.watermark = max(work.watermark, min([work.next_number, *oldest]) - 1)


def _take(run: list[Any], count: int) -> list[Any]:
    """The next ``count`` of a run that is sorted backwards."""
    taken = run[: -count - 1 : -1]
    del run[-count:]
    return taken


def _flush_lanes(work: WorkingSet, count: int) -> None:
    """Move whole lanes from the fresh lists to the queue index."""
    rows: list[int] = []
    while work.runs.lanes and len(rows) < 3 * count:
        lane = work.lanes[work.runs.lanes.pop()]
        for entry in lane.fresh:
            entry.unindexed = False
            work.fresh.pop(entry.number, None)
            work.loaded.append(entry)
            if not in_lane_now(entry):
                continue
            rows += (lane.id, entry.seq, entry.number)
            _place(lane, entry)
        lane.fresh = []
    bulk.insert(work.db, "OR IGNORE INTO queue", 3, rows)


def _place(lane: Lane, entry: Entry) -> None:
    """Put an entry of the queue index where it belongs in what was read of it, if that goes so far."""
    old = lane.old
    if entry.in_old or not (lane.old_read or entry.seq <= lane.old_next):
        return
    if old and entry.seq < old[-1].seq:
        bisect.insort(old, entry, key=seq_of)
    elif len(old) < PAGE_ENTRIES or not lane.old_read:
        old.append(entry)
    else:
        # The rest of a long lane is read again when its turn comes.
        lane.old_read = False
        lane.old_next = old[-1].seq
        return
    entry.in_old = True


def catch_up(work: WorkingSet) -> None:
    """Write all that the indexes lack, so that the next opening has nothing to read again; the caller commits."""
    runs = work.runs
    runs.known = sorted(((key, number) for number, key in work.unknown.items()), reverse=True)
    runs.lanes = sorted({entry.lane.id for entry in work.fresh.values()}, reverse=True)
    runs.gone = sorted(work.gone, reverse=True)
    while runs.known or runs.lanes or runs.gone:
        _flush_indexes(work, LAG_ENTRIES)
    runs.unqueue = sorted(work.unqueue, reverse=True)
    while runs.unqueue:
        _flush_indexes(work, LAG_ENTRIES)
    work.db.execute("UPDATE head SET watermark = ?", (work.watermark,))


def tidy(work: WorkingSet) -> None:
    """After a commit: mark what is stored, and let go of what need not be in memory."""
    for box in work.dirty_boxes.values():
        box.new = False
    for lane in work.dirty_lanes.values():
        lane.new = False
        if lane.holes:
            _trim(work, lane)
    loaded = work.loaded
    for entry in work.dirty.values():
        if entry.memory:
            entry.remembered = True
            entry.stored = entry.lease_stored = False
        else:
            entry.stored = True
            entry.lease_stored = entry.token is not None
        entry.row_changed = entry.lease_changed = False
    loaded.extend(work.dirty.values())
    let_go(work)
    for changed in (
        work.dirty, work.dirty_lanes, work.dirty_boxes, work.dropped_rows, work.dropped_memories, work.dropped_leases,
        work.dropped_known, work.requeued, work.forgotten, work.events, work.dirty_kept,
    ):  # fmt: skip
        changed.clear()
    work.commit = work.next_offset
    work.tick += 1
    if work.recorded_restore:
        work.restored_from, work.recorded_restore = None, False
    if len(work.boxes_by_id) > max(BOXES_MAX, work.boxes_max):
        _drop_boxes(work)
    if len(work.ends) > work.ends_max:
        _drop_ends(work)


def let_go(work: WorkingSet) -> None:
    """Forget the messages that were only looked at, and the oldest bodies, so that memory stays bounded."""
    for entry in work.loaded:
        if entry.unknown or entry.unindexed or entry.in_old or entry.token is not None:
            continue
        if work.entries.pop(entry.number, None) is not None:
            ref = (entry.lane.box.id, entry.sender, entry.id)
            if work.refs.get(ref) is entry:
                del work.refs[ref]
            work.drop_body(entry)
    work.loaded.clear()
    # What was looked up may have been let go of: it must be looked up again.
    work.probed.clear()
    if work.bodies_bytes > BODIES_BYTES_MAX:
        _drop_bodies(work)


def _trim(work: WorkingSet, lane: Lane) -> None:
    """Take what left the lane out of its lists."""
    lane.holes = 0
    kept: list[Entry] = []
    for entry in lane.old:
        if in_lane_now(entry):
            kept.append(entry)
        else:
            entry.in_old = False
            work.loaded.append(entry)
            if not entry.memory or entry.number not in work.gone:
                work.unqueue[(lane.id, entry.seq)] = entry.number
    lane.old = kept
    if lane.fresh:
        fresh: list[Entry] = []
        for entry in lane.fresh:
            if in_lane_now(entry):
                fresh.append(entry)
            else:
                entry.unindexed = False
                work.fresh.pop(entry.number, None)
                work.loaded.append(entry)
        lane.fresh = fresh


def _drop_bodies(work: WorkingSet) -> None:
    for entry in list(work.bodied.values()):
        if work.bodies_bytes <= BODIES_BYTES_MAX // 2:
            return
        work.drop_body(entry)


def _drop_ends(work: WorkingSet) -> None:
    """Let go of the ends of leases that ended otherwise."""
    work.ends = [
        (entry.ends_at, entry.number) for held in work.held.values() for entry in held.values() if entry.ends_at
    ]
    heapq.heapify(work.ends)
    work.ends_max = max(ENDS_MAX, 2 * len(work.ends))


def _drop_boxes(work: WorkingSet) -> None:
    """Let go of the mailboxes that were not used for the longest, where nothing is under way."""
    # A record that a message in memory points to must stay the only one of its kind.
    needed = {work.entries[number].lane.id for number in work.unknown}
    boxes = sorted(work.boxes_by_id.values(), key=lambda box: box.used)
    for box in boxes[: len(boxes) // 4]:
        lanes = box.lanes.values()
        if box.rota is not None or box.hint is not None:
            continue
        if any(lane.fresh or lane.in_flight or lane.id in needed for lane in lanes):
            continue
        for lane in lanes:
            for entry in lane.old:
                work.drop_body(entry)
                work.entries.pop(entry.number, None)
                work.refs.pop((box.id, entry.sender, entry.id), None)
            del work.lanes[lane.id]
            lane.old.clear()
        # A mailbox and its lanes point to each other: parted, they are freed at once.
        box.lanes.clear()
        del work.boxes_by_id[box.id], work.boxes[(box.desk.name, box.name)]
    # Where many are needed, it is not tried again at every commit.
    work.boxes_max = len(work.boxes_by_id) + BOXES_MAX // 4


def _add_message(rows: list[Any], entry: Entry) -> None:
    """Add the values of a message's row but for its body."""
    row = (
        entry.number, entry.lane.id, entry.seq, CODES[entry.state], entry.posted_at, entry.post_commit,
        entry.attempts, entry.unreceived, entry.life, int(entry.quiet), entry.progress, entry.due_at,
        entry.expires_at, entry.since, entry.batch, _note(entry), entry.id, entry.sender, entry.kind,
        _extra(entry), entry.size_bytes, entry.crc,
    )  # fmt: skip
    values: Any = row
    rows.extend(values)
    since = entry.since
    keep_us = None if since is None else entry.lane.box.desk.keep_us[entry.state]
    rows.append(None if since is None or keep_us is None else since + keep_us)
    rows.append(isal_zlib.crc32(orjson.dumps(values)))


def _add_memory(rows: list[Any], entry: Entry) -> None:
    """Add the values of a memory's row."""
    since = entry.since
    assert since is not None
    know_us = entry.lane.box.desk.know_us[entry.state]
    row = (
        entry.number, entry.lane.id, entry.seq, CODES[entry.state], entry.posted_at, entry.attempts, entry.life,
        since, _note(entry), entry.id, entry.sender, entry.kind, entry.size_bytes,
    )  # fmt: skip
    values: Any = row
    rows.extend(values)
    rows.append(None if know_us is None else since + know_us)
    rows.append(isal_zlib.crc32(orjson.dumps(values)))


def _tally(counts: Mapping[State, int], depth: int) -> str | None:
    plain = {str(state): count for state, count in counts.items()}
    if depth:
        plain[str(READY)] = depth
    return as_json(plain) if plain else None


def _note(entry: Entry) -> str | None:
    return None if entry.reason is None and entry.error is None else as_json((entry.reason, entry.error))


def _extra(entry: Entry) -> str | None:
    if not (
        entry.batch_key
        or entry.headers
        or entry.cause
        or entry.own_due_at is not None
        or entry.own_expires_at is not None
    ):
        return None
    return as_json((entry.batch_key, dict(entry.headers), entry.cause, entry.own_due_at, entry.own_expires_at))
