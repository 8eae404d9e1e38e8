"""Traffic made up from random numbers: the messages of one node and what happens to them.

In: a generator of random numbers and sizes. Out: subjects (messages, and whatever else events speak of) and
events as columns of numbers. It writes no file, and plants nothing.

Posts come by day and night to mailboxes of very different size; recipients of the relay and of the
outbound desk are away for periods, during which their messages wait; handlers fail, retry and give up;
answers are posted with the delivery of what they answer. There is no anomaly in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .writing import Array, Texts

SECOND = 1_000_000
HOUR = 3_600 * SECOND
BEGIN = 1_772_323_200 * SECOND  # 2026-03-01
LANES = 1_024
"""Lane names of a node; traffic takes the first eight of each mailbox."""
NONE = np.iinfo(np.int64).min

# Events in the order in which they stand where their time is the same: what ends comes before what begins.
EVENTS = (
    "started", "disconnected", "released", "retried", "recalled", "parked", "uncertain", "delivered", "died",
    "expired", "cancelled", "connected", "paused", "resumed", "posted", "refused", "duplicate", "unparked",
    "redriven", "leased", "received",
)  # fmt: skip
CODE = {name: code for code, name in enumerate(EVENTS)}
STATES = ("open", "delivered", "dead", "expired", "cancelled", "uncertain")
STATE_OF = {"delivered": 1, "died": 2, "expired": 3, "cancelled": 4, "uncertain": 5, "redriven": 0, "posted": 0}
NO_STATE = 99


@dataclass(frozen=True)
class Desk:
    """How the messages of a desk live."""

    name: str
    window: int | None
    connected: bool
    ttl_s: int | None
    dies: bool
    capacity: int
    ladder_s: tuple[float, ...]
    attempts_max: int
    fails: float
    kinds: tuple[str, ...]

    def policy(self) -> dict[str, Any]:
        """What ``started`` says of it."""
        return {
            "name": self.name,
            "capacity": self.capacity,
            "ttl_s": self.ttl_s,
            "window_per_lane": self.window,
            "retry": list(self.ladder_s),
            "attempts_max": self.attempts_max,
            "on_expiry": "die" if self.dies else "expire",
            "quiet_s": 0.0,
            "quiet_max_s": 0.0,
            "dedup_s": 3_600.0,
        }


_LADDER = (1.0, 5.0, 25.0, 120.0, 600.0)
DESKS = (
    Desk("relay", None, True, 4 * 3600, False, 1_000, (0.0,), 5, 0.0, ("text", "offer", "accept", "receipt")),
    Desk("inbound", 1, False, None, False, 100_000, _LADDER, 6, 0.05, ("text", "photo")),
    Desk("outbound", 1, True, 6 * 3600, False, 100_000, _LADDER, 6, 0.08, ("text", "status")),
    Desk("outbox", 1, False, 2 * 3600, True, 100_000, (10.0, 20.0, 40.0, 80.0), 1_000, 0.10, ("offer", "accept")),
    Desk("inbox", 1, False, None, False, 100_000, _LADDER, 6, 0.03, ("offer", "accept", "status")),
)
KINDS = ("", *sorted({kind for desk in DESKS for kind in desk.kinds}))
REASONS = (
    "left", "failed", "rate_limited", "attempts", "permanent", "rejected", "deadline", "ttl", "operator", "review",
    "lease_lost", "unknown", "full", "oversize", "blocked", "malformed", "closed", "cut", "timeout", "replaced",
)  # fmt: skip
REASON = {name: code for code, name in enumerate(REASONS)}


class Node:
    """One node while it is made: subjects (messages and what else events speak of) and events on them."""

    def __init__(self, name: str, rng: np.random.Generator, mailboxes: int, span: int) -> None:
        self.name = name
        self.rng = rng
        self.span = span
        self.mailboxes = Texts([""] + [f"{name}/box-{n:05d}" for n in range(mailboxes)])
        self.lanes = Texts([""] + [f"lane-{n}" for n in range(LANES)])
        self.senders = Texts(["", "operator", *(f"sender-{n:04d}" for n in range(max(8, mailboxes // 2)))])
        self.holders = Texts(["operator", *(f"worker-{n}" for n in range(8)), *(f"conn-{n:04d}" for n in range(4_096))])
        self.errors = Texts(_errors(rng))
        self.details = Texts([])
        self._subjects: list[dict[str, Array]] = []
        self.count = 0
        self._events: list[dict[str, Array]] = []
        self.emitted = 0
        self._ids: list[Array] = []

    def subjects(self, n: int, *, named: bool = True, **columns: Any) -> Array:
        """Add subjects; ``named`` ones have an id. Their numbers."""
        block = {
            name: np.broadcast_to(np.asarray(columns.get(name, default), dtype=np.int64), (n,)).copy()
            for name, default in (
                ("desk", -1), ("mailbox", 0), ("lane", 0), ("seq", 0), ("kind", 0), ("sender", 0), ("size", 0),
                ("cause", -1), ("same_id", -1),
            )
        }  # fmt: skip
        numbers = np.arange(self.count, self.count + n)
        block["named"] = np.full(n, int(named))
        self.count += n
        self._subjects.append(block)
        self._ids.append(self.rng.integers(0, 256, (n, 16), dtype=np.uint8) if named else np.zeros((n, 16), np.uint8))
        return numbers

    def emit(self, event: str, at: Any, subject: Any, *, state: bool = True, **columns: Any) -> int:
        """Add events; ``state`` is False where they change no message's outcome. The number of the first one."""
        n = len(np.atleast_1d(subject))
        number = self.emitted
        self.emitted += n
        block = {
            name: np.broadcast_to(np.asarray(columns.get(name, default), dtype=np.int64), (n,))
            for name, default in (
                ("attempt", 0), ("holder", -1), ("reason", -1), ("error", -1), ("due", NONE), ("expires", NONE),
                ("detail", -1),
            )
        }  # fmt: skip
        block["at"] = np.broadcast_to(np.asarray(at, dtype=np.int64), (n,))
        block["subject"] = np.broadcast_to(np.asarray(subject, dtype=np.int64), (n,))
        block["code"] = np.full(n, CODE[event], np.int8)
        block["state"] = np.full(n, STATE_OF.get(event, NO_STATE) if state else NO_STATE, np.int8)
        self._events.append(block)
        return number

    def mailboxes_of(self, subjects: Array) -> Array:
        """The mailboxes of subjects that were added last."""
        block: Array = self._subjects[-1]["mailbox"]
        found: Array = block[subjects - (self.count - len(block))]
        return found

    def settle(self) -> tuple[dict[str, Array], dict[str, Array]]:
        """All subjects and all events as columns, in the order in which they were added."""
        subjects = {name: np.concatenate([b[name] for b in self._subjects]) for name in self._subjects[0]}
        events = {name: np.concatenate([b[name] for b in self._events]) for name in self._events[0]}
        self._subjects, self._events = [], []
        return subjects, events

    def ids(self) -> Array:
        """UUIDs of all subjects as text, 36 bytes each."""
        return uuids(np.concatenate(self._ids))


def uuids(raw: Array) -> Array:
    raw[:, 6] = (raw[:, 6] & 0x0F) | 0x70
    raw[:, 8] = (raw[:, 8] & 0x3F) | 0x80
    digits = np.frombuffer(b"0123456789abcdef", np.uint8)
    text = np.full((len(raw), 36), ord("-"), np.uint8)
    places = [n for n in range(36) if n not in (8, 13, 18, 23)]
    text[:, places[0::2]] = digits[raw >> 4]
    text[:, places[1::2]] = digits[raw & 15]
    return text


def _errors(rng: np.random.Generator) -> list[str]:
    found = []
    for _ in range(64):
        a, b, c = (int(v) for v in rng.integers(1, 250, 3))
        found += [
            f"connection to 10.0.{a}.{b}:{8000 + c} refused",
            f"handler raised TimeoutError after {a}.{b} s",
            f"HTTP 503 from upstream, request 0x{a:02x}{b:02x}{c:02x}ff",
            f"no such session {a:08x}-{b:04x}-4{c:03x}-8{a:03x}-{b:06x}{c:06x}",
        ]
    return found


# ── Availability ─────────────────────────────────────────────────────────────────────────────────


class _Periods:
    """When each of some mailboxes is online: ``size`` periods each, in one row after another."""

    def __init__(self, node: Node, mailboxes: int, restarts: Sequence[int]) -> None:
        rng, span = node.rng, node.span
        self.size = int(span / (2.0 * HOUR)) + 4
        shape = (mailboxes, self.size)
        on = np.maximum(rng.lognormal(np.log(1.5 * HOUR), 0.8, shape), 120 * SECOND)
        off = np.maximum(rng.lognormal(np.log(0.3 * HOUR), 1.2, shape), 2 * SECOND)
        off[:, 0] = rng.uniform(1, 600, mailboxes) * SECOND
        edges = np.empty((mailboxes, 2 * self.size))
        edges[:, 0::2], edges[:, 1::2] = off, on
        edges = np.cumsum(edges, axis=1).astype(np.int64)
        connect, leave = edges[:, 0::2].copy(), edges[:, 1::2].copy()
        leave[:, -1] += 4 * span  # nobody is away for ever
        self.cut = np.zeros(shape, bool)
        for restart in restarts:
            hit = (connect < restart) & (leave > restart)
            leave[hit] = restart
            self.cut |= hit
        self.connect, self.leave = connect.ravel(), leave.ravel()
        self.before = np.concatenate(
            [np.zeros((mailboxes, 1), np.int64), np.cumsum(leave - connect, axis=1)[:, :-1]], axis=1
        ).ravel()
        self.mailboxes = mailboxes
        self.far = int(leave.max()) + 8 * span
        rows = np.repeat(np.arange(mailboxes), self.size) * self.far
        self._connect_key, self._before_key = rows + self.connect, rows + self.before

    def at(self, mailbox: Array, at: Array) -> tuple[Array, Array]:
        """The period in which or before which an instant lies, and whether it is in it."""
        last = np.searchsorted(self._connect_key, mailbox * self.far + at, side="right") - 1
        known = last >= mailbox * self.size
        inside = known & (at < self.leave[np.maximum(last, 0)])
        return np.where(inside, last, last + 1), inside

    def clock(self, mailbox: Array, at: Array) -> Array:
        """How long the mailbox was online up to an instant."""
        last = np.searchsorted(self._connect_key, mailbox * self.far + at, side="right") - 1
        known = last >= mailbox * self.size
        last = np.maximum(last, 0)
        return np.where(known, self.before[last] + np.minimum(at, self.leave[last]) - self.connect[last], 0)

    def wall(self, mailbox: Array, clock: Array, side: Any) -> tuple[Array, Array]:
        """The instant at which the mailbox had been online so long, and its period; on an edge, which side."""
        found = np.searchsorted(self._before_key, mailbox * self.far + clock, side=side) - 1
        found = np.maximum(found, mailbox * self.size)
        return self.connect[found] + clock - self.before[found], found


def _emit_periods(node: Node, desk: int, periods: _Periods, first: int) -> None:
    """Connections, and pauses inside of some absences, where they change nothing."""
    rng = node.rng
    who = np.repeat(np.arange(periods.mailboxes), periods.size)
    subject = node.subjects(periods.mailboxes, named=False, desk=desk, mailbox=first + np.arange(periods.mailboxes))
    holder = 9 + np.arange(len(who)) % 4_096
    node.emit("connected", BEGIN + periods.connect, subject[who], holder=holder)
    left = ~periods.cut.ravel()
    reasons = np.array([REASON[r] for r in ("closed", "cut", "timeout", "replaced")])
    why = reasons[rng.choice(4, len(who), p=(0.6, 0.25, 0.1, 0.05))]
    node.emit("disconnected", BEGIN + periods.leave[left], subject[who[left]], holder=holder[left], reason=why[left])
    away = (np.arange(len(who)) + 1) % periods.size != 0
    gap = np.zeros(len(who), np.int64)
    gap[:-1] = periods.connect[1:] - periods.leave[:-1]
    paused = np.nonzero(away & (gap > 600 * SECOND) & (rng.random(len(who)) < 0.03))[0]
    begun = BEGIN + periods.leave[paused] + gap[paused] // 4
    node.emit("paused", begun, subject[who[paused]], holder=0, reason=REASON["operator"])
    node.emit("resumed", begun + gap[paused] // 3, subject[who[paused]], holder=0)


# ── Posts ────────────────────────────────────────────────────────────────────────────────────────


def _zipf(rng: np.random.Generator, choices: int, n: int) -> Array:
    weight = 1.0 / np.arange(1, choices + 1) ** 1.1
    return np.searchsorted(np.cumsum(weight / weight.sum()), rng.random(n)).clip(0, choices - 1)


def post_times(rng: np.random.Generator, n: int, span: int) -> Array:
    """Instants of posts, fewer by night."""
    at = rng.random(2 * n + 8) * span
    keep = rng.random(len(at)) < 0.65 + 0.35 * np.sin(at / (24 * HOUR) * 2 * np.pi - 1)
    at = at[keep][:n]
    more = rng.random(n - len(at)) * span
    return np.sort(np.concatenate([at, more])).astype(np.int64) + SECOND


def _ranks(group: Array) -> Array:
    """The number of each element in its group, from 0, in the order in which they stand."""
    order = np.argsort(group, kind="stable")
    ordered = group[order]
    new = np.concatenate([[True], ordered[1:] != ordered[:-1]]) if len(group) else np.zeros(0, bool)
    starts = np.maximum.accumulate(np.where(new, np.arange(len(group)), 0)) if len(group) else new
    ranks = np.empty(len(group), np.int64)
    ranks[order] = np.arange(len(group)) - starts
    return ranks


def _attributes(node: Node, desk: Desk, n: int) -> dict[str, Any]:
    rng = node.rng
    kinds = np.array([KINDS.index(kind) for kind in desk.kinds])
    return {
        "kind": kinds[_zipf(rng, len(kinds), n)],
        "sender": 2 + _zipf(rng, len(node.senders) - 2, n),
        "size": np.minimum(rng.lognormal(6.5, 1.2, n), 100_000).astype(np.int64) + 16,
    }


def _emit_noise(node: Node, desk: int, subject: Array, at: Array) -> None:
    """Repeats of posts, and refusals at the door."""
    rng = node.rng
    again = rng.random(len(subject)) < 0.005
    later = BEGIN + at[again] + (rng.uniform(1, 600, int(again.sum())) * SECOND).astype(np.int64)
    node.emit("duplicate", later, subject[again])
    doors = np.nonzero(rng.random(len(subject)) < 0.003)[0]
    stranger = node.subjects(
        len(doors), desk=desk, mailbox=node.mailboxes_of(subject[doors]), **_attributes(node, DESKS[desk], len(doors))
    )
    reasons = np.array([REASON[r] for r in ("oversize", "blocked", "rate_limited", "malformed")])
    node.emit("refused", BEGIN + at[doors] + 7, stranger, reason=rng.choice(reasons, len(doors)))


# ── A desk whose window is open: everything is leased when its recipient comes ───────────────────


def open_desk(node: Node, desk: int, first: int, mailboxes: int, posts: Array, restarts: Sequence[int]) -> None:
    model, rng = DESKS[desk], node.rng
    periods = _Periods(node, mailboxes, restarts)
    _emit_periods(node, desk, periods, first)
    mailbox = _zipf(rng, mailboxes, len(posts))
    period, online = periods.at(mailbox, posts)
    # Into an absence goes what the mailbox takes; the rest is refused.
    full = np.zeros(len(posts), bool)
    away = np.nonzero(~online)[0]
    full[away] = _ranks(period[away]) >= model.capacity
    refused = np.nonzero(full)[0]
    stranger = node.subjects(
        len(refused), desk=desk, mailbox=first + mailbox[refused], **_attributes(node, model, len(refused))
    )
    node.emit("refused", BEGIN + posts[refused], stranger, reason=REASON["full"])

    taken = ~full
    posts, mailbox, period, online = posts[taken], mailbox[taken], period[taken], online[taken]
    n = len(posts)
    seq = _ranks(mailbox) + 1
    message = node.subjects(n, desk=desk, mailbox=first + mailbox, seq=seq, **_attributes(node, model, n))
    assert model.ttl_s is not None
    expires = posts + model.ttl_s * SECOND
    node.emit("posted", BEGIN + posts, message, due=BEGIN + posts, expires=BEGIN + expires)
    _emit_noise(node, desk, message, posts)
    lease = np.where(online, posts, periods.connect[period])
    which = np.arange(n)
    while len(which):
        late = lease >= expires[which]
        gone = which[late]
        node.emit("expired", BEGIN + expires[gone], message[gone], reason=REASON["ttl"])
        which, lease, period = which[~late], lease[~late], period[~late]
        holder = 9 + period % 4_096
        node.emit("leased", BEGIN + lease, message[which], attempt=1, holder=holder)
        delay = (rng.lognormal(np.log(0.08), 1.0, len(which)) * SECOND).astype(np.int64) + 1_000
        slow = rng.random(len(which)) < 0.03
        delay[slow] *= 3_000
        done = lease + delay < periods.leave[period]
        seen = done & (rng.random(len(which)) < 0.3)
        node.emit("received", BEGIN + (lease + delay // 2)[seen], message[which[seen]], attempt=1, holder=holder[seen])
        node.emit("delivered", BEGIN + (lease + delay)[done], message[which[done]], attempt=1, holder=holder[done])
        which, period, holder = which[~done], period[~done], holder[~done]
        back = periods.leave[period]
        node.emit(
            "released", BEGIN + back, message[which], attempt=1, holder=holder, reason=REASON["left"], due=BEGIN + back
        )
        # What passes on the way waits for nobody: it expires before its recipient comes again.
        period = period + 1
        lease = periods.connect[np.minimum(period, len(periods.connect) - 1)]
        over = (expires[which] <= back) & (expires[which] < lease)
        node.emit("expired", BEGIN + back[over] + 1, message[which[over]], reason=REASON["ttl"])
        which, period, lease = which[~over], period[~over], lease[~over]


# ── A desk with a window of one: the head of a lane holds it ─────────────────────────────────────


def ordered_desk(
    node: Node, desk: int, first: int, mailboxes: int, posts: Array, restarts: Sequence[int], answers: Any = None
) -> tuple[Array, Array]:
    """``answers`` are (instant, cause) of posts made with a delivery. Out: what was delivered and when."""
    model, rng = DESKS[desk], node.rng
    cause = np.full(len(posts), -1)
    if answers is not None:
        posts, cause = np.concatenate([posts, answers[0]]), np.concatenate([cause, answers[1]])
    mailbox = _zipf(rng, mailboxes, len(posts))
    lane = np.where(rng.random(len(posts)) < 0.3, 0, rng.integers(0, 8, len(posts)))
    order = np.lexsort((posts, mailbox * 16 + lane))
    posts, cause, mailbox, lane = posts[order], cause[order], mailbox[order], lane[order]
    n = len(posts)
    group = mailbox * 16 + lane
    message = node.subjects(
        n, desk=desk, mailbox=first + mailbox, lane=1 + lane, seq=_ranks(group) + 1, cause=cause,
        **_attributes(node, model, n),
    )  # fmt: skip
    expires = np.full(n, NONE) if model.ttl_s is None else posts + model.ttl_s * SECOND
    limit = np.where(expires == NONE, np.iinfo(np.int64).max // 2, expires)
    shown = np.where(expires == NONE, NONE, BEGIN + expires)
    node.emit("posted", BEGIN + posts, message, due=BEGIN + posts, expires=shown)
    _emit_noise(node, desk, message, posts)
    if not n:
        return message, posts

    # An outage: for a while nearly everything fails.
    outage = rng.uniform(0.2, 0.5) * node.span
    bad = (posts > outage) & (posts < outage + min(HOUR / 2, node.span / 20))
    fails = np.minimum(rng.geometric(np.where(bad, 0.35, 1 - model.fails)) - 1, model.attempts_max)
    fate = np.where(fails >= model.attempts_max, "died", "delivered").astype("U9")
    luck = rng.random(n)
    fate[(fails == 0) & (luck < 0.004)] = "permanent"
    if desk == 2:
        fate[(fails == 0) & (luck > 0.995)] = "uncertain"
    fate[(fails == 1) & (luck > 0.90)] = "parked"
    attempts = np.where(fate == "died", model.attempts_max, fails + 1)
    attempts[fate == "parked"] = 2

    of = np.repeat(np.arange(n), attempts)
    number = np.arange(len(of)) - np.repeat(np.cumsum(attempts) - attempts, attempts)
    last = number == attempts[of] - 1
    took = (rng.lognormal(np.log(0.25), 0.8, len(of)) * SECOND).astype(np.int64) + 1_000
    ladder = np.array(model.ladder_s) * SECOND
    backoff = np.where(last, 0, ladder[np.minimum(number, len(ladder) - 1)]).astype(np.int64)
    inside = np.cumsum(took + backoff) - (took + backoff)
    inside -= np.repeat(inside[np.cumsum(attempts) - attempts], attempts)
    whole = np.bincount(of, took + backoff, n).astype(np.int64)

    # A queue with one server a lane, in the time in which its mailbox is online.
    periods = _Periods(node, mailboxes, restarts) if model.connected else None
    if periods is not None:
        _emit_periods(node, desk, periods, first)
        arrive = periods.clock(mailbox, posts)
    else:
        arrive = posts
    far = int(arrive.max() + whole.sum()) + 1
    rank = np.concatenate([[0], np.cumsum(group[1:] != group[:-1])])
    begun = np.cumsum(whole) - whole
    start = np.maximum.accumulate(arrive + rank * far - begun) + begun - rank * far
    begin, end = start[of] + inside, start[of] + inside + took
    cuts: Array = np.zeros(0, np.int64)
    if periods is not None:
        lease, opened = periods.wall(mailbox[of], begin, "right")
        finish, closed = periods.wall(mailbox[of], end, "left")
        closed = np.maximum(closed, opened)
        crossed = closed - opened
        cuts = np.repeat(np.arange(len(of)), crossed)
        step = np.arange(len(cuts)) - np.repeat(np.cumsum(crossed) - crossed, crossed)
        cut_at, cut_again = periods.leave[opened[cuts] + step], periods.connect[opened[cuts] + step + 1]
        worker = 9 + opened % 4_096
    else:
        lease, finish = begin, end
        worker = 1 + of % 8

    # Nothing is leased once it has passed: from that lease on its life is another.
    passed = np.full(n, np.iinfo(np.int64).max)
    over = lease >= limit[of]
    np.minimum.at(passed, of[over], lease[over])
    if len(cuts):
        over = cut_again >= limit[of[cuts]]
        np.minimum.at(passed, of[cuts][over], cut_again[over])
    # An operator cancels a few while they wait for the first time.
    head = np.cumsum(attempts) - attempts
    bored = (lease[head] - posts > SECOND) & (rng.random(n) < 0.02) & (np.minimum(lease[head], limit) > posts + 2)
    stop = posts + ((np.minimum(lease[head], limit) - posts) * rng.uniform(0.2, 0.8, n)).astype(np.int64)
    passed[bored] = posts[bored]

    live = lease < passed[of]
    error = rng.integers(0, len(node.errors), len(of))
    node.emit("leased", BEGIN + lease[live], message[of[live]], attempt=1 + number[live], holder=worker[live])
    if len(cuts):
        ok = live[cuts] & (cut_at < passed[of[cuts]])
        again = ok & (cut_again < passed[of[cuts]])
        node.emit(
            "released", BEGIN + cut_at[ok], message[of[cuts[ok]]], attempt=1 + number[cuts[ok]],
            holder=worker[cuts[ok]], reason=REASON["left"], due=BEGIN + cut_at[ok],
        )  # fmt: skip
        node.emit(
            "leased", BEGIN + cut_again[again], message[of[cuts[again]]], attempt=1 + number[cuts[again]],
            holder=worker[cuts[again]],
        )  # fmt: skip
    ends = live & (finish < passed[of])
    failed = ends & ~last
    slow = np.where(rng.random(len(of)) < 0.1, REASON["rate_limited"], REASON["failed"])
    node.emit(
        "retried", BEGIN + finish[failed], message[of[failed]], attempt=1 + number[failed], holder=worker[failed],
        reason=slow[failed], error=error[failed], due=BEGIN + (finish + backoff)[failed],
    )  # fmt: skip
    tail = ends & last
    # The passing comes behind whatever the message did last.
    quiet = posts.copy()
    np.maximum.at(quiet, of[ends], finish[ends])
    if len(cuts):
        np.maximum.at(quiet, of[cuts[ok]], cut_at[ok])
    left = (passed < np.iinfo(np.int64).max) & ~bored
    moment = np.maximum(limit, quiet + 1)[left]
    if model.dies:
        node.emit("died", BEGIN + moment, message[left], attempt=fails[left].clip(0, 9), reason=REASON["deadline"],
                  error=error[head[left]])  # fmt: skip
    else:
        node.emit("expired", BEGIN + moment, message[left], reason=REASON["ttl"])
    node.emit("cancelled", BEGIN + stop[bored], message[bored], holder=0, reason=REASON["operator"])

    def ending(name: str) -> tuple[Array, dict[str, Any]]:
        found = tail & (fate[of] == name)
        return found, {"attempt": 1 + number[found], "holder": worker[found]}

    found, columns = ending("delivered")
    node.emit("delivered", BEGIN + finish[found], message[of[found]], **columns)
    done, done_at = message[of[found]], finish[found]
    for name, reasons in (("died", ("attempts",)), ("permanent", ("permanent", "rejected"))):
        found, columns = ending(name)
        why = rng.choice([REASON[r] for r in reasons], int(found.sum()))
        node.emit("died", BEGIN + finish[found], message[of[found]], reason=why, error=error[found], **columns)
        _redrive(node, model, message[of[found]], finish[found], found=error[found])
    found, columns = ending("uncertain")
    which, when = message[of[found]], finish[found]
    why = rng.choice([REASON["lease_lost"], REASON["unknown"]], len(which))
    node.emit("uncertain", BEGIN + when, which, reason=why, **columns)
    later = when + (rng.uniform(60, 1_800, len(which)) * SECOND).astype(np.int64)
    luck = rng.random(len(which))
    node.emit("delivered", BEGIN + later[luck < 0.5], which[luck < 0.5], attempt=1, holder=0)
    given = luck > 0.8
    node.emit("cancelled", BEGIN + later[given], which[given], holder=0, reason=REASON["operator"])
    found, columns = ending("parked")
    which, when = message[of[found]], finish[found]
    node.emit("parked", BEGIN + when, which, reason=REASON["review"], error=error[found], **columns)
    later = when + (rng.uniform(600, 3_600, len(which)) * SECOND).astype(np.int64)
    back = rng.random(len(which)) < 0.6
    which, later = which[back], later[back]
    again_at = NONE if model.ttl_s is None else BEGIN + later + model.ttl_s * SECOND
    node.emit("unparked", BEGIN + later, which, holder=0, expires=again_at)
    node.emit("leased", BEGIN + later + SECOND, which, attempt=1, holder=1)
    node.emit("delivered", BEGIN + later + 2 * SECOND, which, attempt=1, holder=1)
    return done, done_at


def _redrive(node: Node, model: Desk, which: Array, when: Array, found: Array) -> None:
    """An operator gives some of the dead another life; not each of them uses it."""
    rng = node.rng
    again = rng.random(len(which)) < 0.4
    which, error = which[again], found[again]
    later = when[again] + (rng.uniform(600, 7_200, len(which)) * SECOND).astype(np.int64)
    expires = NONE if model.ttl_s is None else BEGIN + later + model.ttl_s * SECOND
    node.emit("redriven", BEGIN + later, which, holder=0, due=BEGIN + later, expires=expires)
    node.emit("leased", BEGIN + later + SECOND, which, attempt=1, holder=2)
    good = rng.random(len(which)) < 0.8
    node.emit("delivered", BEGIN + (later + 3 * SECOND)[good], which[good], attempt=1, holder=2)
    node.emit(
        "died", BEGIN + (later + 3 * SECOND)[~good], which[~good], attempt=1, holder=2, reason=REASON["rejected"],
        error=error[~good],
    )  # fmt: skip
