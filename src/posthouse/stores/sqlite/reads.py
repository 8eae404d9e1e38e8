"""Read queries over the working set and the tables. They change nothing but what is in memory."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

from ...mailbox import rules
from ...mailbox.command import Filter
from ...mailbox.message import Instant, Ref, State
from ...mailbox.store import DeskView, LaneView, MailboxView, MessageView
from .lookup import id_hash, scan_sql
from .records import LEASED, READY, RECEIVED, Box, Entry, Lane, in_lane_now
from .turns import leasable_at
from .working import WorkingSet

_PAGE = 512


def next_at(work: WorkingSet, at: Instant) -> Instant | None:
    """The earliest end of a wait or a lease after ``at``; what is past or stale is dropped."""
    ended: list[tuple[Instant, int]] = []  # waits that nobody asked for yet (``due``): look behind them
    instants: list[Instant] = []
    while work.timers and not instants:
        wake_at, lane_id = work.timers[0]
        if wake_at <= at:
            ended.append(heapq.heappop(work.timers))
        elif _is_true(work, lane_id, wake_at, at):
            instants.append(wake_at)
        else:
            heapq.heappop(work.timers)
    for timer in ended:
        heapq.heappush(work.timers, timer)
    while work.ends and not _is_held_until(work, *work.ends[0]):
        heapq.heappop(work.ends)
    if work.ends and work.ends[0][0] > at:
        instants.append(work.ends[0][0])
    else:
        # Leases have run out and wait for the sweep; the earliest that has not is further down.
        instants += [ends_at for ends_at, number in work.ends if ends_at > at and _is_held_until(work, ends_at, number)]
    return min(instants, default=None)


def due(work: WorkingSet, until: Instant, limit: int) -> list[tuple[str, str]]:
    """The mailboxes with a wait that ended by ``until`` and was not told before; at most about ``limit``."""
    ended: dict[int, None] = {}
    while work.timers and work.timers[0][0] <= until:
        _, lane_id = heapq.heappop(work.timers)
        # Past the limit everybody is rung for: whose they were does not matter.
        if len(ended) < limit:
            ended[lane_id] = None
    work.lanes_by_id(ended)
    boxes = {lane.box.id: lane.box for lane in map(work.lanes.get, ended) if lane is not None}
    return [(box.desk.name, box.name) for box in boxes.values()]


def _is_held_until(work: WorkingSet, ends_at: Instant, number: int) -> bool:
    entry = work.entries.get(number)
    return entry is not None and entry.token is not None and entry.ends_at == ends_at


def _is_true(work: WorkingSet, lane_id: int, wake_at: Instant, at: Instant) -> bool:
    """Whether a timer still says when its lane can be leased from; a quiet period that goes on moves it."""
    lane = work.lanes.get(lane_id)
    if lane is None or not lane.box.desk.policy.quiet_s:
        return True
    true_at = leasable_at(work, lane, at)
    if true_at is not None and true_at > wake_at:
        work.ring_at(lane, true_at)
    # ``at`` may lie before the lane's newest post, from where it looks as if nothing were to be waited for.
    return true_at in (wake_at, 0)


def _counts(depth: int, aside: dict[State, int], entries: Iterable[Entry]) -> dict[State, int]:
    """Counts by state; ``entries`` are those in flight."""
    counts = dict(aside)
    for entry in entries:
        counts[entry.state] = counts.get(entry.state, 0) + 1
    ready = depth - counts.get(LEASED, 0) - counts.get(RECEIVED, 0)
    if ready:
        counts[READY] = ready
    return counts


def desks(work: WorkingSet) -> list[DeskView]:
    """Every desk of the policies, and those that still hold messages."""
    flying: dict[str, list[Entry]] = {}
    for (name, _), held in work.held.items():
        flying.setdefault(name, []).extend(held.values())
    views = []
    for name in sorted(work.desks):
        desk = work.desks[name]
        counts = _counts(desk.depth, desk.counts, flying.get(name, ()))
        if name in work.policies or counts:
            oldest_at = _oldest_of_desk(work, desk.id) if desk.depth else None
            views.append(DeskView(name, counts, desk.mailboxes, oldest_at))
    return views


def _oldest_of_desk(work: WorkingSet, desk_id: int) -> Instant | None:
    """When the desk's oldest message in lane was posted: from a mark that only moves on, so no scan repeats."""
    desk = work.desks_by_id[desk_id]
    while True:
        rows = work.db.execute(
            "SELECT m.number, m.lane_id, m.posted_at, m.state FROM message m WHERE m.number > ?"
            " ORDER BY m.number LIMIT ?",
            (desk.oldest, _PAGE),
        ).fetchall()
        work.lanes_by_id(row[1] for row in rows)
        for number, lane_id, posted_at, state in rows:
            if state == 0 and number not in work.gone and work.lanes[lane_id].box.desk is desk:
                desk.oldest = number - 1
                return int(posted_at)
        if len(rows) < _PAGE:
            return None
        desk.oldest = rows[-1][0]


def mailboxes(
    work: WorkingSet, desk: str | None, contains: str, after: tuple[str, str] | None, limit: int
) -> list[MailboxView]:
    """A page of mailboxes in order of (desk, name)."""
    rows: list[tuple[str, str]] = []
    after_desk, after_name = after or ("", "")
    for name in sorted(work.desks):
        if (desk is not None and name != desk) or name < after_desk or len(rows) >= limit:
            continue
        rows += [
            (name, box)
            for (box,) in work.db.execute(
                "SELECT name FROM mailbox WHERE desk_id = ? AND name > ? AND (? = '' OR instr(name, ?) > 0)"
                " ORDER BY name LIMIT ?",
                (work.desks[name].id, after_name if name == after_desk else "", contains, contains, limit - len(rows)),
            ).fetchall()
        ]
    work.read_boxes([row for row in rows if row not in work.boxes])
    return [mailbox_view(work, work.boxes[row]) for row in rows]


def mailbox_view(work: WorkingSet, box: Box) -> MailboxView:
    """A mailbox as operators see it."""
    flying: list[Entry] = []
    oldest_at: Instant | None = None
    if box.depth:
        oldest_at = _oldest_of_box(work, box)
        numbers = work.db.execute("SELECT number FROM lease WHERE mailbox_id = ?", (box.id,)).fetchall()
        flying = [work.entries[number] for (number,) in numbers]
    counts = _counts(box.depth, box.counts, flying)
    desk = box.desk.name
    return MailboxView(desk, box.name, counts, box.lane_count, box.paused, oldest_at)


def _oldest_of_box(work: WorkingSet, box: Box) -> Instant | None:
    """When the mailbox's oldest message in lane was posted."""
    if box.lane_count == 1:
        (lane,) = box.lanes.values()
        heads = [entry for entry in (next(work.in_lane(lane), None),) if entry is not None]
    else:
        # One statement, however many lanes there are; the young ones are in memory.
        heads = [entry for entry in work.fresh.values() if entry.lane.box is box and in_lane_now(entry)]
        rows = work.db.execute(
            "SELECT min(m.number) FROM lane_state s JOIN queue q ON q.lane_id = s.id JOIN message m"
            " ON m.number = q.number WHERE s.mailbox_id = ? AND s.waiting = 1 AND m.state = 0"
            " AND m.number NOT IN (SELECT number FROM gone)",
            (box.id,),
        ).fetchall()
        heads += work.read_rows([number for (number,) in rows if number is not None])
    return min((entry.number, entry.posted_at) for entry in heads)[1] if heads else None


def lanes(work: WorkingSet, desk: str, mailbox: str, after: str | None, limit: int) -> list[LaneView]:
    """A page of a mailbox's lanes in order of name."""
    box = work.box(desk, mailbox)
    if box is None:
        return []
    names = work.db.execute(
        "SELECT name FROM lane WHERE mailbox_id = ? AND (? IS NULL OR name > ?) ORDER BY name LIMIT ?",
        (box.id, after, after, limit),
    ).fetchall()
    found = [work.lane(box, name) for (name,) in names]
    return [lane_view(work, lane) for lane in found if lane is not None]


def lane_view(work: WorkingSet, lane: Lane) -> LaneView:
    """A lane as operators see it."""
    box = lane.box
    head = next(work.in_lane(lane), None)
    oldest_at = None if head is None else head.posted_at
    return LaneView(
        box.desk.name, box.name, lane.name, lane.last_seq, lane.depth, lane.in_flight, lane.paused, oldest_at
    )


def in_lane(work: WorkingSet, desk: str, mailbox: str, name: str, limit: int) -> list[MessageView]:
    """The messages that hold the lane, head first."""
    box = work.box(desk, mailbox)
    lane = None if box is None else work.lane(box, name)
    if lane is None:
        return []
    found: list[Entry] = []
    for entry in work.in_lane(lane):
        if len(found) >= limit:
            break
        found.append(entry)
    return _views(work, found)


def find(work: WorkingSet, id: str, limit: int) -> list[MessageView]:
    """Messages with this id in any mailbox, and what is remembered of them, by number."""
    low = id_hash(id) << 32
    rows = work.db.execute("SELECT number FROM known WHERE key BETWEEN ? AND ?", (low, low | 0xFFFFFFFF)).fetchall()
    numbers = {row[0] for row in rows} | {number for number, key in work.unknown.items() if key >> 32 == low >> 32}
    found = [entry for entry in work.read_rows(sorted(numbers)) if entry.id == id]
    return _views(work, found[:limit])


def messages(work: WorkingSet, filter: Filter, after: int, limit: int) -> list[MessageView]:
    """A page of kept messages by number."""
    where, values = scan_sql(filter, filter.states or frozenset(State))
    if filter.mailbox is None and filter.desk in work.desks:
        # Of a desk among others, rows of these are passed over before anything is made of them.
        where += (
            " AND EXISTS (SELECT 1 FROM lane l JOIN mailbox b ON b.id = l.mailbox_id"
            " WHERE l.id = m.lane_id AND b.desk_id = ?)"
        )
        values.append(work.desks[filter.desk].id)
    found: list[Entry] = []
    while len(found) < limit:
        rows = work.db.execute(
            f"SELECT m.number FROM {where} AND m.number > ? ORDER BY m.number LIMIT ?", (*values, after, _PAGE)
        ).fetchall()
        for entry in work.read_rows([row[0] for row in rows]):
            if not entry.memory and rules.matches(
                filter, entry.message(b""), entry.state, entry.posted_at, entry.reason, entry.error
            ):
                found.append(entry)
        if len(rows) < _PAGE:
            break
        after = rows[-1][0]
    return _views(work, found[:limit])


def bodies(work: WorkingSet, refs: Sequence[Ref]) -> list[bytes | None]:
    """The bodies of these messages, None where there is none (any more)."""
    found: list[Entry | None] = []
    for ref in refs:
        box = work.box(ref.desk, ref.mailbox)
        entry = None if box is None else work.find(box, ref.sender, ref.id)
        found.append(None if entry is None or entry.memory else entry)
    work.read_bodies([entry for entry in found if entry is not None])
    return [None if entry is None else entry.body for entry in found]


def message_view(work: WorkingSet, entry: Entry) -> MessageView:
    """A message as operators and tests see it."""
    return _views(work, [entry])[0]


def _views(work: WorkingSet, entries: list[Entry]) -> list[MessageView]:
    work.read_bodies([entry for entry in entries if not entry.memory])
    return [
        MessageView(
            entry.message(entry.body or b""), entry.number, entry.seq, entry.state, entry.posted_at, entry.attempts,
            entry.unreceived, entry.life, entry.due_at, entry.expires_at, entry.token, entry.holder, entry.ends_at,
            entry.progress, entry.batch, entry.reason, entry.error, entry.since, entry.memory, entry.quiet,
        )
        for entry in entries
    ]  # fmt: skip
