"""What the SQLite store keeps in memory of desks, mailboxes, lanes and messages.

Plain records with slots: they hold state, and what the rules say of a desk once and for all; nothing about SQL.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Mapping
from typing import Any, Final

from ...mailbox import rules
from ...mailbox.message import NO_HEADERS, Instant, Message, State, make
from ...mailbox.policy import Policy

READY: Final = State.READY
LEASED: Final = State.LEASED
RECEIVED: Final = State.RECEIVED
CODES: Final[dict[State, int]] = {
    State.READY: 0,
    State.LEASED: 0,
    State.RECEIVED: 0,
    State.PARKED: 1,
    State.UNCERTAIN: 2,
    State.DELIVERED: 3,
    State.DEAD: 4,
    State.EXPIRED: 5,
    State.CANCELLED: 6,
}
STATES: Final[tuple[State, ...]] = (
    State.READY,
    State.PARKED,
    State.UNCERTAIN,
    State.DELIVERED,
    State.DEAD,
    State.EXPIRED,
    State.CANCELLED,
)


class Rota:
    """Whose turn it is: the least recently served first, never earlier than a hint says.

    A member's ``hint`` is None (nothing to lease), 0 (perhaps now) or an instant; it is never later
    than the truth, so that a visit may be in vain but is never missed.
    """

    __slots__ = ("_count", "ready", "sleeping")

    def __init__(self) -> None:
        # (served or instant, id, count, member); the count spares members from being compared.
        self.ready: list[tuple[int, int, int, Any]] = []
        self.sleeping: list[tuple[int, int, int, Any]] = []
        self._count = itertools.count()

    def _push(self, heap: list[tuple[int, int, int, Any]], rank: int, member: Lane | Box) -> None:
        heapq.heappush(heap, (rank, member.id, next(self._count), member))

    def wake(self, member: Lane | Box, at: Instant) -> None:
        """Visit the member at this instant (0: at the next turn), unless it is due earlier."""
        hint = member.hint
        if hint is not None and hint <= at:
            return
        member.hint = at
        if at == 0:
            self._push(self.ready, member.served, member)
        else:
            self._push(self.sleeping, at, member)

    def turn(self, at: Instant) -> Lane | Box | None:
        """Take the next member to visit; the visitor says when to come again."""
        while self.sleeping and self.sleeping[0][0] <= at:
            wake_at, _, _, member = heapq.heappop(self.sleeping)
            if member.hint == wake_at:
                member.hint = 0
                self._push(self.ready, member.served, member)
        while self.ready:
            served, _, _, member = heapq.heappop(self.ready)
            if member.hint == 0:
                if served == member.served:
                    member.hint = None
                    return member  # type: ignore[no-any-return]
                self._push(self.ready, member.served, member)
        return None

    def next_at(self) -> Instant | None:
        """The earliest hint: 0, an instant, or None."""
        while self.ready and self.ready[0][3].hint != 0:
            heapq.heappop(self.ready)
        if self.ready:
            return 0
        while self.sleeping and self.sleeping[0][3].hint != self.sleeping[0][0]:
            heapq.heappop(self.sleeping)
        return self.sleeping[0][0] if self.sleeping else None


class Desk:
    """A policy in force, and the mailboxes under it that may have something to lease."""

    __slots__ = (
        "counts", "depth", "id", "in_force", "keep_us", "know_us", "mailboxes", "name", "oldest", "policy", "rota",
        "stored",
    )  # fmt: skip

    def __init__(self, id: int, name: str, policy: Policy | None) -> None:
        self.id = id
        self.name = name
        # A desk that is no longer configured keeps its messages; commands for it are refused.
        self.in_force = policy is not None
        self.policy = policy or Policy(name)
        # How long after its end a message is kept whole, and its id remembered, by the state it ended in.
        self.keep_us = {state: rules.kept_until(self.policy, state, 0) for state in State}
        self.know_us = {state: rules.known_until(self.policy, state, 0) for state in State}
        self.rota: Rota | None = None  # read when the desk is first leased from
        self.mailboxes = 0
        self.stored: tuple[int, int, str | None, int] = (0, 0, None, 0)  # mailboxes, depth, counts, oldest: its row
        self.oldest = 0  # no message up to this number is in lane
        self.depth = 0
        self.counts: dict[State, int] = {}  # of what is not in lane


class Box:
    """A mailbox."""

    __slots__ = (
        "counts", "depth", "desk", "hint", "id", "lane_count", "lanes", "name", "new", "paused", "rota", "served",
        "used",
    )  # fmt: skip

    def __init__(self, id: int, desk: Desk, name: str, new: bool) -> None:
        self.id = id
        self.desk = desk
        self.name = name
        self.new = new  # not in the database yet
        self.paused: str | None = None
        self.served = 0
        self.depth = 0
        self.counts: dict[State, int] = {}  # of what is not in lane
        self.lane_count = 0
        self.lanes: dict[str, Lane] = {}  # those that were looked at
        self.rota: Rota | None = None
        self.hint: int | None = None
        self.used = 0


class Lane:
    """A lane: its numbers, and as much of its queue as was read.

    The messages in lane are ``old`` (a prefix of what the queue index has, read so far) and ``fresh``
    (what the index does not have yet); both in order of seq.
    """

    __slots__ = (
        "box", "counts", "depth", "fresh", "hint", "holes", "id", "in_flight", "last_seq", "name", "new", "old",
        "old_next", "old_read", "paused", "served", "waiting",
    )  # fmt: skip

    def __init__(self, id: int, box: Box, name: str, new: bool) -> None:
        self.id = id
        self.box = box
        self.name = name
        self.new = new
        self.last_seq = 0
        self.depth = 0
        self.in_flight = 0
        self.paused: str | None = None
        self.served = 0
        self.counts: dict[State, int] = {}
        self.hint: int | None = None
        self.old: list[Entry] = []
        self.old_next = 0  # the queue index was read up to here
        self.old_read = new  # all of it was
        self.fresh: list[Entry] = []
        self.holes = 0
        self.waiting: bool | None = None  # what its row says: whether it holds messages; None: not known


class Entry:
    """A message with its delivery state, and what of it is in the database."""

    __slots__ = (
        "attempts", "batch", "batch_key", "body", "cause", "corrupt", "crc", "due_at", "ends_at", "error",
        "expires_at", "headers", "holder", "id", "in_old", "kind", "lane", "lease_changed", "lease_commit",
        "lease_stored", "life", "memory", "number", "own_due_at", "own_expires_at", "post_commit", "posted_at",
        "progress", "quiet", "reason", "remembered", "row_changed", "sender", "seq", "since", "size_bytes", "state",
        "stored", "token", "unindexed", "unknown", "unreceived",
    )  # fmt: skip

    def __init__(
        self,
        number: int,
        lane: Lane,
        seq: int,
        id: str,
        sender: str,
        kind: str,
        posted_at: Instant,
        batch_key: str = "",
        headers: Mapping[str, str] = NO_HEADERS,
        cause: str | None = None,
        own_due_at: Instant | None = None,
        own_expires_at: Instant | None = None,
        quiet: bool = True,
        post_commit: int = 0,
        body: bytes | None = None,
        size_bytes: int = 0,
        crc: int = 0,
        expires_at: Instant | None = None,
    ) -> None:
        self.number = number
        self.lane = lane
        self.seq = seq
        self.id = id
        self.sender = sender
        self.kind = kind
        self.posted_at = posted_at
        self.batch_key = batch_key
        self.headers = headers
        self.cause = cause
        self.own_due_at = own_due_at
        self.own_expires_at = own_expires_at
        self.quiet = quiet
        self.post_commit = post_commit
        self.size_bytes = size_bytes
        self.crc = crc
        self.body = body
        self.due_at = own_due_at or 0
        self.expires_at = expires_at
        self.state = READY
        self.attempts = 0
        self.unreceived = 0
        self.life = 1
        self.token: str | None = None
        self.holder: str | None = None
        self.ends_at: Instant | None = None
        self.progress = 0
        self.lease_commit = 0
        self.batch: str | None = None
        self.reason: str | None = None
        self.error: str | None = None
        self.since: Instant | None = None
        self.memory = False
        self.corrupt = False  # its row is not what was written
        self.stored = False  # its row is in the database
        self.remembered = False  # its memory is
        self.lease_stored = False
        self.row_changed = False
        self.lease_changed = False
        self.unknown = False  # not in the index of known ids yet
        self.unindexed = False  # in its lane's fresh list
        self.in_old = False  # in its lane's old list

    def message(self, body: bytes) -> Message:
        """What was posted."""
        lane = self.lane
        box = lane.box
        fields = (
            box.desk.name, box.name, self.id, body, self.sender, lane.name, self.kind, self.batch_key, self.headers,
            self.cause, self.own_due_at, self.own_expires_at,
        )  # fmt: skip
        return make(Message, fields)  # type: ignore[no-any-return]


def in_lane_now(entry: Entry) -> bool:
    """Whether a message counts towards capacity and holds its lane."""
    state = entry.state
    return state is READY or state is LEASED or state is RECEIVED


# What a change can be taken back of. The other fields say where a record stands in memory and in the
# database; that is true whether or not a group of commands is undone.
_UNDOABLE: dict[type[Any], tuple[str, ...]] = {
    Entry: (
        "attempts", "batch", "batch_key", "cause", "due_at", "ends_at", "error", "expires_at", "headers", "holder",
        "lease_changed", "lease_commit", "life", "memory", "own_due_at", "own_expires_at", "post_commit", "progress",
        "quiet", "reason", "row_changed", "since", "state", "token", "unreceived",
    ),
    Lane: ("depth", "holes", "in_flight", "last_seq", "paused", "served"),
    Box: ("depth", "lane_count", "paused", "served"),
    Desk: ("depth", "oldest"),
}  # fmt: skip


def state_of(record: Entry | Lane | Box | Desk) -> tuple[Any, ...]:
    """A copy of what a command may change of a record, to be put back by ``restore``."""
    return tuple(getattr(record, slot) for slot in _UNDOABLE[type(record)])


def restore(record: Entry | Lane | Box | Desk, values: tuple[Any, ...]) -> None:
    """Put back what ``state_of`` copied."""
    for slot, value in zip(_UNDOABLE[type(record)], values, strict=True):
        setattr(record, slot, value)
