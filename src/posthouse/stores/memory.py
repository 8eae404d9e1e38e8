"""The reference store: everything in dictionaries, nothing on disk.

In: batches of commands. Out: outcomes, views and journal chunks, exactly as ``mailbox.store`` says.
Other stores are compared with this one, so it is written to be obviously right: rows are immutable
values, every change goes through ``_put_entry`` or ``_put``, and what was put can be undone in reverse
order. It decides nothing itself (``mailbox.rules`` does) and shares no code with another store.
It never promises durability: what it holds is gone when the process ends.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from ..errors import InvalidInput
from ..journal.chunk import GENESIS, decode, seal
from ..mailbox import command as cm
from ..mailbox import event as ev
from ..mailbox import outcome as oc
from ..mailbox import rules
from ..mailbox.event import Event
from ..mailbox.message import FINISHED, IN_FLIGHT, IN_LANE, SECOND, Instant, Message, Ref, State
from ..mailbox.outcome import Outcome, Refusal
from ..mailbox.policy import Policy
from ..mailbox.rules import Fate
from ..mailbox.store import Chunk, DeskView, LaneView, MailboxView, MessageView, Segment

NO_CHAIN = "0" * 64
"""What the first segment of a node follows."""


class Entry(NamedTuple):
    """A message with its delivery state; replaced, never changed."""

    message: Message
    number: int
    seq: int
    state: State
    posted_at: Instant
    quiet: bool
    expires_at: Instant | None
    due_at: Instant = 0
    """0: may be leased at once, or is not ready."""
    attempts: int = 0
    unreceived: int = 0
    life: int = 1
    token: str | None = None
    holder: str | None = None
    lease_ends_at: Instant | None = None
    progress: int = 0
    batch: str | None = None
    reason: str | None = None
    error: str | None = None
    since: Instant | None = None
    memory: bool = False
    posted_in: int = 0
    """The apply() that posted it; 0 once it was returned, or is settled."""
    live: bool = False
    """Its lease was taken in the apply() that posted it."""


class LaneRow(NamedTuple):
    created: int
    last_seq: int = 0
    paused: str | None = None
    served: int = 0


class MailboxRow(NamedTuple):
    created: int
    lanes: int = 0
    paused: str | None = None
    served: int = 0


LaneKey = tuple[str, str, str]
MailboxKey = tuple[str, str]


class MemoryStore:
    """Messages in dictionaries; the reference that every store is compared with."""

    durable = False

    def __init__(self, policies: Mapping[str, Policy], node: str = "memory") -> None:
        self.node = node
        self.policies: Mapping[str, Policy] = dict(policies)
        # Readers in other threads wait for the end of an apply(), so they see only what is committed.
        self._lock = threading.RLock()
        # The rows.
        self._entries: dict[Ref, Entry] = {}
        self._lanes: dict[LaneKey, LaneRow] = {}
        self._mailboxes: dict[MailboxKey, MailboxRow] = {}
        self._kept: dict[tuple[str, str], bytes] = {}
        self._counters: dict[str, int] = {"number": 0, "created": 0}
        # What follows from the entries; ``_put_entry`` alone keeps it so.
        self._in_lane: dict[str, dict[str, dict[str, list[tuple[int, Ref]]]]] = {}
        self._flying: dict[LaneKey, int] = {}
        self._held: dict[tuple[str, str], set[Ref]] = {}
        self._counts: dict[MailboxKey, dict[State, int]] = {}
        self._ends: list[Instant] = []
        # The journal.
        self._chunks: list[Chunk] = []
        self._segments: list[Segment] = []
        self._offset = 0
        self._hash = GENESIS
        # The apply() under way.
        self._serial = 0
        self._events: list[Event] = []
        self._undo: list[Callable[[], None]] = []

    # ---- commands ----

    def apply(self, commands: Sequence[cm.Command]) -> list[Outcome]:
        """Apply a batch; if anything is raised, nothing has changed."""
        with self._lock:
            self._serial += 1
            self._events, self._undo = [], []
            try:
                outcomes = [self._do(command) for command in commands]
                if self._events:
                    chunk = seal(self._hash, self._offset + 1, self._events)
                    self._chunks.append(chunk)
                    self._offset, self._hash = chunk.last, chunk.hash
            except BaseException:
                self._undo_to(0, 0)
                raise
            return outcomes

    def _do(self, command: cm.Command) -> Outcome:
        if isinstance(command, cm.Together):
            return self._together(command)
        if isinstance(command, cm.Sweep):
            return self._sweep(command)
        if isinstance(command, cm.Start):
            return self._start(command)
        if isinstance(command, cm.Shift):
            return self._shift(command)
        if isinstance(command, cm.Keep):
            return self._keep(command)
        desk = _desk_of(command)
        policy = self.policies.get(desk)
        if policy is None:
            return oc.Refused(Refusal.UNKNOWN_DESK)
        match command:
            case cm.Post():
                return self._post(policy, command)
            case cm.Lease():
                return self._lease(policy, command)
            case cm.Renew():
                return self._renew(policy, command)
            case cm.Settle():
                return self._settle(policy, command)
            case cm.Release():
                return self._release(policy, command)
            case cm.Note():
                return self._note(command)
            case cm.Hasten():
                return self._hasten(command)
            case cm.Redrive():
                return self._redrive(policy, command)
            case cm.Cancel():
                return self._cancel(policy, command)
            case cm.Park():
                return self._park(policy, command)
            case cm.Unpark():
                return self._unpark(policy, command)
            case cm.Pause():
                return self._pause(command)
            case cm.Resume():
                return self._resume(command)
            case cm.Purge():
                return self._purge(policy, command)

    def _together(self, c: cm.Together) -> Outcome:
        undo, events = len(self._undo), len(self._events)
        outcomes = []
        for command in c.commands:
            outcome = self._do(command)
            if isinstance(outcome, oc.FAILURES):
                self._undo_to(undo, events)
                return outcome
            outcomes.append(outcome)
        return oc.Done(tuple(outcomes))

    def _keep(self, c: cm.Keep) -> Outcome:
        if self._kept.get((c.shelf, c.key)) == c.value:
            return oc.Kept(False)
        if c.value is None:
            gone = self._kept.pop((c.shelf, c.key))
            self._undo.append(lambda: self._kept.update({(c.shelf, c.key): gone}))
        else:
            self._put(self._kept, (c.shelf, c.key), c.value)
        return oc.Kept(True)

    def _post(self, policy: Policy, c: cm.Post) -> Outcome:
        message, at = c.message, c.at
        first = self._entries.get(message.ref)
        if first is not None and _is_forgettable(policy, first, at):
            self._put_entry(message.ref, None)
            first = None
        if first is not None:
            self._record_door(c, ev.DUPLICATE, None)
            finished_at = first.since if first.state in FINISHED else None
            return oc.Duplicate(first.state, first.seq, first.attempts, first.reason, first.error, finished_at)
        depth = self._depth(message.desk, message.mailbox)
        refusal = rules.admit(policy, message, depth, c.exempt, at)
        if refusal is None and rules.may_exceed_share(policy, depth, c.exempt):
            lanes = self._in_lane[message.desk][message.mailbox].values()
            of_sender = [ref for members in lanes for _, ref in members if ref.sender == message.sender]
            if len(of_sender) >= (policy.sender_max or 0):
                refusal = Refusal.SHARE
        if refusal is not None:
            self._record_door(c, ev.REFUSED, str(refusal))
            return oc.Refused(refusal)
        posted_at = at if c.posted_at is None else min(c.posted_at, at)
        lane = self._lane_row(_lane_key(message))
        self._put(self._lanes, _lane_key(message), lane._replace(last_seq=lane.last_seq + 1))
        entry = Entry(
            message,
            number=self._next("number"),
            seq=lane.last_seq + 1,
            state=State.READY,
            posted_at=posted_at,
            quiet=c.quiet,
            expires_at=rules.expiry(policy, message, posted_at),
            due_at=message.due_at or 0,
            posted_in=self._serial,
        )
        self._put_entry(message.ref, entry)
        detail = None if c.posted_at is None else _json({"posted_at": posted_at})
        self._record(
            entry,
            ev.POSTED,
            at,
            reason=c.reason,
            due_at=message.due_at or at,
            expires_at=entry.expires_at,
            detail=detail,
        )
        return oc.Posted(entry.seq, entry.expires_at)

    def _lease(self, policy: Policy, c: cm.Lease) -> Outcome:
        deliveries: list[oc.Delivery] = []
        if c.mailbox is not None:
            for lane in self._lanes_to_visit(c.desk, c.mailbox):
                if len(deliveries) < c.limit and c.lane in (None, lane[2]):
                    taken = self._lease_lane(policy, lane, c, c.limit - len(deliveries))
                    if taken and self._mailboxes[lane[:2]].lanes > 1:
                        served = self._offset + len(self._events)
                        self._put(self._lanes, lane, self._lanes[lane]._replace(served=served))
                    deliveries += taken
            return oc.Leased(c.token, tuple(deliveries))
        for mailbox in sorted(self._in_lane.get(c.desk, {}), key=lambda m: _served(self._mailboxes[c.desk, m])):
            if mailbox in c.besides:
                continue
            for lane in self._lanes_to_visit(c.desk, mailbox):
                deliveries = self._lease_lane(policy, lane, c, c.limit)
                if deliveries:
                    served = self._offset + len(self._events)
                    self._put(self._lanes, lane, self._lanes[lane]._replace(served=served))
                    row = self._mailboxes[c.desk, mailbox]
                    self._put(self._mailboxes, (c.desk, mailbox), row._replace(served=served))
                    return oc.Leased(c.token, tuple(deliveries))
        return oc.Leased(c.token, ())

    def _lanes_to_visit(self, desk: str, mailbox: str) -> list[LaneKey]:
        """The mailbox's lanes that hold messages and are not paused, the least recently served first."""
        row = self._mailboxes.get((desk, mailbox))
        if row is None or row.paused is not None:
            return []
        keys = [(desk, mailbox, lane) for lane in self._in_lane.get(desk, {}).get(mailbox, {})]
        keys.sort(key=lambda key: _served(self._lanes[key]))
        return [key for key in keys if self._lanes[key].paused is None]

    def _lease_lane(self, policy: Policy, lane: LaneKey, c: cm.Lease, limit: int) -> list[oc.Delivery]:
        if policy.quiet_s:
            taken = self._walk_quiet(policy, lane, c.at) if limit > 0 else []
        else:
            taken = self._walk(policy, lane, limit, c.at, ahead=c.lane is not None)
        ends_at = rules.lease_end(policy, c.at)
        batch = taken[0].batch if len(taken) > 1 else None
        deliveries = []
        for entry in taken:
            entry = entry._replace(
                state=State.LEASED,
                due_at=0,
                token=c.token,
                holder=c.holder,
                lease_ends_at=ends_at,
                live=entry.posted_in == self._serial,
            )
            self._put_entry(entry.message.ref, entry)
            detail = None if batch is None else _json({"batch": batch})
            self._record(entry, ev.LEASED, c.at, holder=c.holder, detail=detail)
            message = entry.message if c.bodies else entry.message._replace(body=b"")
            deliveries.append(
                oc.Delivery(
                    message,
                    entry.seq,
                    entry.attempts + 1,
                    entry.posted_at,
                    ends_at,
                    entry.progress,
                    entry.batch,
                    entry.live,
                )
            )
        return deliveries

    def _walk(self, policy: Policy, lane: LaneKey, limit: int, at: Instant, ahead: bool) -> list[Entry]:
        """What a lease may take from the head of a lane; finishes what has expired on the way."""
        room = limit
        if policy.window_per_lane is not None and not ahead:
            room = min(limit, policy.window_per_lane - self._flying.get(lane, 0))
        taken: list[Entry] = []
        for entry in self._entries_in(lane):
            if len(taken) >= room:
                break
            if entry.state in IN_FLIGHT:
                continue
            if entry.due_at > at:
                break
            if rules.has_expired(entry.expires_at, at):
                self._pass(policy, entry, at)
                continue
            taken.append(entry)
        return taken

    def _walk_quiet(self, policy: Policy, lane: LaneKey, at: Instant) -> list[Entry]:
        """The batch at the head of a lane, if it may be taken now; its members are fixed by that."""
        if self._flying.get(lane, 0):
            # A quiet period goes with a window of one.
            return []
        waiting = list(self._entries_in(lane))
        while waiting and waiting[0].due_at <= at and rules.has_expired(waiting[0].expires_at, at):
            self._pass(policy, waiting.pop(0), at)
        if not waiting or waiting[0].due_at > at:
            return []
        head = waiting[0]
        if head.batch is not None:
            members = []
            for entry in waiting:
                if entry.batch != head.batch:
                    continue
                if rules.has_expired(entry.expires_at, at):
                    self._pass(policy, entry, at)
                else:
                    members.append(entry)
            return members
        if not head.quiet:
            return [head]
        hurried = any(not entry.quiet for entry in waiting)
        if not hurried and not rules.is_quiet(policy, head.posted_at, waiting[-1].posted_at, at):
            return []
        run = []
        for entry in waiting:
            if (
                entry.message.batch_key != head.message.batch_key
                or not entry.quiet
                or entry.batch is not None
                or entry.due_at > at
                or rules.has_expired(entry.expires_at, at)
            ):
                break
            run.append(entry._replace(batch=head.message.id))
        return run

    def _renew(self, policy: Policy, c: cm.Renew) -> Outcome:
        # A copy: putting an entry back takes it out of the index for a moment.
        held = set(self._held.get((c.desk, c.token), ()))
        if c.ref is not None and c.ref not in held:
            entry = self._entries.get(c.ref)
            return oc.LeaseLost(None if entry is None else entry.state)
        if not held:
            return oc.LeaseLost(None)
        ends_at = rules.lease_end(policy, c.at)
        for ref in sorted(held):
            entry = self._entries[ref]._replace(lease_ends_at=ends_at)
            if ref == c.ref and c.progress is not None:
                entry = entry._replace(progress=c.progress)
            self._put_entry(ref, entry)
        return oc.Renewed(len(held), ends_at)

    def _settle(self, policy: Policy, c: cm.Settle) -> Outcome:
        entry = self._entries.get(c.ref)
        if entry is None:
            return oc.NotFound()
        if not rules.may_settle(policy, entry.state, entry.token, c.token, c.verdict):
            return oc.LeaseLost(entry.state)
        held = entry.state in IN_FLIGHT
        if c.verdict is cm.Verdict.RECEIVED:
            if entry.state is State.LEASED:
                fate = rules.judged(policy, c.verdict, c.reason)
                # Holders that leave "in a row" are counted: one that received it ends the row.
                entry = entry._replace(state=fate.state, unreceived=0)
                self._put_entry(c.ref, entry)
                self._record(
                    entry,
                    fate.event,
                    c.at,
                    holder=c.holder or entry.holder,
                    reason=fate.reason,
                    error=c.error,
                )
            return oc.Settled(State.RECEIVED, entry.attempts, None, False)
        if c.verdict is cm.Verdict.RETURN:
            due_at = c.due_at if c.due_at is not None and c.due_at > c.at else 0
            fate = Fate(State.READY, ev.RELEASED, c.reason or "returned", due_at)
        elif c.verdict is cm.Verdict.RETRY:
            # The attempt of an uncertain message was counted when it became uncertain.
            attempts = entry.attempts + 1 if held else entry.attempts
            fate = rules.failed(policy, attempts, self._parked(entry), c.at, c.due_at, c.reason)
        else:
            fate = rules.judged(policy, c.verdict, c.reason)
        live = fate.state is State.DELIVERED and entry.live
        if fate.state is State.DELIVERED:
            reason, error = entry.reason, entry.error
        else:
            reason, error = fate.reason, c.error
        counted = held and c.verdict is not cm.Verdict.RETURN
        after = self._end(
            policy,
            entry,
            fate,
            c.at,
            counted=counted,
            holder=c.holder,
            reason=reason,
            error=error,
            text=c.error,
        )
        if held and fate.event in (ev.RETRIED, ev.RELEASED, ev.DIED, ev.PARKED):
            self._recall(entry, c.at)
        return _settled(after, c.at, live)

    def _release(self, policy: Policy, c: cm.Release) -> Outcome:
        held = self._by_number(self._held.get((c.desk, c.token), ()))
        seen: set[LaneKey] = set()
        for entry in held:
            self._leave(policy, entry, seen, c.reason, c.at)
        return oc.Released(len(held))

    def _leave(self, policy: Policy, entry: Entry, seen: set[LaneKey], reason: str | None, at: Instant) -> None:
        """The holder left; ``seen``: lanes whose first unreceived message was counted already."""
        if entry.state is State.RECEIVED:
            # It arrived and was not confirmed: this attempt counts.
            fate = rules.failed(policy, entry.attempts + 1, self._parked(entry), at, reason="unconfirmed")
            self._end(policy, entry, fate, at, counted=True, reason=fate.reason, error=None)
            return
        lane = _lane_key(entry.message)
        if lane not in seen:
            seen.add(lane)
            entry = entry._replace(unreceived=entry.unreceived + 1)
        fate = rules.left(policy, entry.unreceived, self._parked(entry), reason)
        kept = entry.reason if fate.state is State.READY else fate.reason
        # What dies in flight counts, so that the journal alone tells how many attempts there were.
        counted = fate.state is State.DEAD
        self._end(policy, entry, fate, at, counted=counted, reason=kept, error=entry.error)

    def _lose(self, policy: Policy, entry: Entry, at: Instant) -> Fate:
        fate = rules.lost(policy, entry.attempts + 1, self._parked(entry), at)
        self._end(policy, entry, fate, at, counted=True, reason=fate.reason, error=None)
        return fate

    def _pass(self, policy: Policy, entry: Entry, at: Instant) -> None:
        """The message's limit has passed. The error stays: it says why it was not delivered in time."""
        fate = rules.passed(policy)
        self._end(policy, entry, fate, at, counted=False, reason=fate.reason, error=entry.error)
        if entry.state in IN_FLIGHT and fate.event == ev.DIED:
            self._recall(entry, at)

    def _sweep(self, c: cm.Sweep) -> Outcome:
        lost = 0
        for entry in self._due(c.at, lambda p, e: e.lease_ends_at if e.state in IN_FLIGHT else None):
            if lost >= c.limit:
                break
            if self._entries[entry.message.ref] != entry:
                # Recalled since: its lease has ended already.
                continue
            policy = self.policies[entry.message.desk]
            if self._lose(policy, entry, c.at).event != ev.UNCERTAIN:
                self._recall(entry, c.at)
            lost += 1

        expired: dict[MailboxKey, int] = {}
        for entry in self._due(c.at, lambda p, e: e.expires_at if e.state in IN_LANE else None):
            # A received head that dies recalls its followers, so the state now is what counts.
            entry = self._entries[entry.message.ref]
            if entry.state is not State.LEASED and sum(expired.values()) < c.limit:
                self._pass(self.policies[entry.message.desk], entry, c.at)
                key = (entry.message.desk, entry.message.mailbox)
                expired[key] = expired.get(key, 0) + 1

        aside = (State.PARKED, State.UNCERTAIN)
        old = self._due(c.at, lambda p, e: _kept_until(p, e) if e.state in aside else None)[: c.limit]
        for entry in old:
            fate = Fate(State.CANCELLED, ev.CANCELLED, "kept_long_enough")
            policy = self.policies[entry.message.desk]
            self._end(policy, entry, fate, c.at, counted=False, reason=fate.reason, error=entry.error)
        stale = self._due(c.at, lambda p, e: _kept_until(p, e) if e.state in FINISHED and not e.memory else None)
        stale = stale[: c.limit]
        for entry in stale:
            self._put_entry(entry.message.ref, _as_memory(entry))
        ended = self._due(c.at, lambda p, e: _known_until(p, e) if e.memory else None)[: c.limit]
        for entry in ended:
            self._put_entry(entry.message.ref, None)

        done = (lost, sum(expired.values()), len(old), len(stale), len(ended))
        return oc.Swept(
            tuple((desk, mailbox, count) for (desk, mailbox), count in sorted(expired.items())),
            lost,
            len(old) + len(stale) + len(ended),
            any(count >= c.limit for count in done),
        )

    def _due(self, at: Instant, ends_at: Callable[[Policy, Entry], Instant | None]) -> list[Entry]:
        """The entries whose instant has come, in order of (instant, number)."""
        due = []
        for entry in self._entries.values():
            # A desk without a policy is left alone until it has one again.
            policy = self.policies.get(entry.message.desk)
            instant = None if policy is None else ends_at(policy, entry)
            if instant is not None and instant <= at:
                due.append((instant, entry.number, entry))
        return [entry for _, _, entry in sorted(due, key=lambda d: d[:2])]

    def _note(self, c: cm.Note) -> Outcome:
        if c.event not in ev.NOTABLE:
            return oc.Refused(Refusal.NOT_ALLOWED)
        detail = None if c.detail is None else _json(c.detail)
        self._events.append(
            Event(
                c.at, c.event, c.desk, c.mailbox, message_id=c.message_id, kind=c.kind, sender=c.sender,
                holder=c.holder, size_bytes=c.size_bytes, reason=c.reason, error=c.error, detail=detail,
            )
        )  # fmt: skip
        return oc.Noted()

    def _start(self, c: cm.Start) -> Outcome:
        detail: dict[str, Any] = {"policies": {name: policy.as_json() for name, policy in c.policies.items()}}
        if c.restored_from is not None:
            detail["restored_from"] = dict(c.restored_from)
        self._events.append(Event(c.at, ev.STARTED, "", detail=_json(detail)))
        seen: set[LaneKey] = set()
        held = self._by_number(ref for (desk, _), refs in self._held.items() if desk in self.policies for ref in refs)
        for entry in held:
            policy = self.policies[entry.message.desk]
            if policy.lease_s is None:
                self._leave(policy, entry, seen, None, c.at)
            else:
                self._lose(policy, entry, c.at)
        return oc.Started(len(held))

    def _shift(self, c: cm.Shift) -> Outcome:
        for ref, entry in list(self._entries.items()):
            if entry.state is State.READY:
                due_at = rules.shifted_due(entry.due_at, entry.message.due_at, entry.attempts, c.by_us)
                self._put_entry(ref, entry._replace(due_at=due_at))
            elif entry.state in IN_FLIGHT and entry.lease_ends_at is not None:
                self._put_entry(ref, entry._replace(lease_ends_at=entry.lease_ends_at + c.by_us))
        return oc.Shifted()

    def _hasten(self, c: cm.Hasten) -> Outcome:
        count = 0
        lanes = self._in_lane.get(c.desk, {}).get(c.mailbox, {})
        # A copy: putting an entry back takes it out of the index for a moment.
        for ref in [ref for members in lanes.values() for _, ref in members]:
            entry = self._entries[ref]
            due_at = rules.hastened_due(entry.due_at, entry.attempts, c.at)
            if entry.state is State.READY and due_at != entry.due_at:
                self._put_entry(ref, entry._replace(due_at=due_at))
                count += 1
        return oc.Hastened(count)

    def _redrive(self, policy: Policy, c: cm.Redrive) -> Outcome:
        undo, events = len(self._undo), len(self._events)
        refs: list[Ref] = []
        skipped = 0
        for entry in self._selected(c.filter, cm.REDRIVABLE):
            if len(refs) >= c.limit:
                break
            if not rules.has_room(policy, self._depth(entry.message.desk, entry.message.mailbox)):
                skipped += 1
                continue
            wait_us = int(len(refs) * SECOND / c.rate_per_s) if c.rate_per_s else 0
            self._revive(policy, entry, ev.REDRIVEN, c.at, c.holder, c.at + wait_us if wait_us else 0)
            refs.append(entry.message.ref)
        if c.dry_run:
            self._undo_to(undo, events)
        return oc.Redriven(tuple(refs), skipped)

    def _unpark(self, policy: Policy, c: cm.Unpark) -> Outcome:
        undo, events = len(self._undo), len(self._events)
        refs: list[Ref] = []
        skipped = 0
        for entry in self._selected(c.filter, frozenset({State.PARKED})):
            if len(refs) >= c.limit:
                break
            if not rules.has_room(policy, self._depth(entry.message.desk, entry.message.mailbox)):
                skipped += 1
                continue
            self._revive(policy, entry, ev.UNPARKED, c.at, c.holder, 0)
            refs.append(entry.message.ref)
        if c.dry_run:
            self._undo_to(undo, events)
        return oc.Redriven(tuple(refs), skipped)

    def _revive(
        self, policy: Policy, entry: Entry, event: str, at: Instant, holder: str | None, due_at: Instant
    ) -> None:
        """A new life in the old place: attempts begin again, so that they are told apart by their life."""
        entry = entry._replace(
            state=State.READY,
            due_at=due_at,
            expires_at=rules.renewed_expiry(policy, entry.message.expires_at, entry.posted_at, at),
            attempts=0,
            unreceived=0,
            progress=0,
            batch=None,
            life=entry.life + 1,
            since=None,
        )
        self._put_entry(entry.message.ref, entry)
        self._record(
            entry,
            event,
            at,
            holder=holder,
            due_at=(due_at or at) if event == ev.REDRIVEN else None,
            expires_at=entry.expires_at,
        )

    def _cancel(self, policy: Policy, c: cm.Cancel) -> Outcome:
        entry = self._entries.get(c.ref)
        if entry is None:
            return oc.NotFound()
        if entry.state in FINISHED:
            return oc.Refused(Refusal.FINISHED)
        if not rules.is_revocable(policy, entry.state):
            return oc.Refused(Refusal.IN_FLIGHT)
        fate = Fate(State.CANCELLED, ev.CANCELLED, c.reason or "operator")
        after = self._end(
            policy, entry, fate, c.at, counted=False, holder=c.holder, reason=fate.reason, error=entry.error
        )
        return _settled(after, c.at)

    def _park(self, policy: Policy, c: cm.Park) -> Outcome:
        entry = self._entries.get(c.ref)
        if entry is None:
            return oc.NotFound()
        if entry.state in FINISHED:
            return oc.Refused(Refusal.FINISHED)
        if entry.state is State.PARKED:
            return oc.Refused(Refusal.NOT_ALLOWED)
        if not rules.is_revocable(policy, entry.state):
            return oc.Refused(Refusal.IN_FLIGHT)
        fate = rules.parked_as(policy, self._parked(entry), c.reason or "operator")
        if fate.state is not State.PARKED:
            # The rule would let it die; an operator who asked for something else is told instead.
            return oc.Refused(Refusal.PARKED_FULL)
        after = self._end(
            policy, entry, fate, c.at, counted=False, holder=c.holder, reason=fate.reason, error=entry.error
        )
        return _settled(after, c.at)

    def _pause(self, c: cm.Pause) -> Outcome:
        if c.lane is None:
            mailbox = self._mailbox_row((c.desk, c.mailbox))
            if mailbox.paused is not None:
                return oc.Switched(False)
            self._put(self._mailboxes, (c.desk, c.mailbox), mailbox._replace(paused=c.reason))
        else:
            lane = self._lane_row((c.desk, c.mailbox, c.lane))
            if lane.paused is not None:
                return oc.Switched(False)
            self._put(self._lanes, (c.desk, c.mailbox, c.lane), lane._replace(paused=c.reason))
        self._record_switch(ev.PAUSED, (c.desk, c.mailbox, c.lane or ""), c.holder, c.reason, c.at)
        return oc.Switched(True)

    def _resume(self, c: cm.Resume) -> Outcome:
        if c.lane is None:
            mailbox = self._mailboxes.get((c.desk, c.mailbox))
            if mailbox is None or mailbox.paused is None:
                return oc.Switched(False)
            self._put(self._mailboxes, (c.desk, c.mailbox), mailbox._replace(paused=None))
        else:
            lane = self._lanes.get((c.desk, c.mailbox, c.lane))
            if lane is None or lane.paused is None:
                return oc.Switched(False)
            self._put(self._lanes, (c.desk, c.mailbox, c.lane), lane._replace(paused=None))
        self._record_switch(ev.RESUMED, (c.desk, c.mailbox, c.lane or ""), c.holder, None, c.at)
        return oc.Switched(True)

    def _purge(self, policy: Policy, c: cm.Purge) -> Outcome:
        undo, events = len(self._undo), len(self._events)
        cancelled = removed = skipped = 0
        for entry in self._selected(c.filter, cm.PURGEABLE):
            if cancelled + removed >= c.limit:
                break
            if entry.state in FINISHED:
                self._put_entry(entry.message.ref, _as_memory(entry))
                removed += 1
            elif not rules.is_revocable(policy, entry.state):
                skipped += 1
            else:
                fate = Fate(State.CANCELLED, ev.CANCELLED, "purged")
                self._end(
                    policy,
                    entry,
                    fate,
                    c.at,
                    counted=False,
                    holder=c.holder,
                    reason="purged",
                    error=entry.error,
                )
                cancelled += 1
        if c.dry_run:
            self._undo_to(undo, events)
        return oc.Purged(cancelled, removed, skipped)

    # ---- changes ----

    def _end(
        self,
        policy: Policy,
        entry: Entry,
        fate: Fate,
        at: Instant,
        *,
        counted: bool,
        reason: str | None,
        error: str | None,
        holder: str | None = None,
        text: str | None = None,
    ) -> Entry:
        """A message meets its fate and its lease ends; ``reason`` and ``error`` are what it will show.

        ``text`` is the error that the event carries.
        """
        attempt = entry.attempts + 1 if entry.state in IN_FLIGHT else entry.attempts
        due_at = (fate.due_at or at) if fate.event in (ev.RETRIED, ev.RELEASED) else None
        self._record(
            entry,
            fate.event,
            at,
            attempt=attempt,
            holder=holder or entry.holder,
            reason=fate.reason,
            error=text,
            due_at=due_at,
        )
        after = entry._replace(
            state=fate.state,
            due_at=fate.due_at,
            attempts=entry.attempts + 1 if counted else entry.attempts,
            token=None,
            holder=None,
            lease_ends_at=None,
            reason=reason,
            error=error,
            since=None if fate.state in IN_LANE else at,
            posted_in=0,
            live=False,
        )
        if after.state in FINISHED and _is_over(_kept_until(policy, after), at):
            # Nothing is to be kept of it, so it does not wait for a sweep.
            after = _as_memory(after)
        self._put_entry(entry.message.ref, after)
        if fate.pause_lane:
            key = _lane_key(entry.message)
            lane = self._lanes[key]
            if lane.paused is None:
                self._put(self._lanes, key, lane._replace(paused="poison"))
                self._record_switch(ev.PAUSED, key, None, "poison", at)
        return after

    def _recall(self, failed: Entry, at: Instant) -> None:
        """The head failed: followers that are out and not received come back, so that order holds."""
        for entry in self._entries_in(_lane_key(failed.message)):
            together = failed.batch is not None and (entry.batch, entry.token) == (failed.batch, failed.token)
            if entry.seq > failed.seq and entry.state is State.LEASED and not together:
                fate = Fate(State.READY, ev.RECALLED, "head_failed")
                policy = self.policies[entry.message.desk]
                self._end(policy, entry, fate, at, counted=False, reason=entry.reason, error=entry.error)

    def _put_entry(self, ref: Ref, entry: Entry | None) -> None:
        """Replace an entry (None: remove it) and all that follows from it."""
        old = self._entries.get(ref)
        self._swap(ref, old, entry)
        self._undo.append(lambda: self._swap(ref, entry, old))

    def _swap(self, ref: Ref, old: Entry | None, new: Entry | None) -> None:
        if old is not None:
            self._index(ref, old, -1)
            del self._entries[ref]
        if new is not None:
            self._entries[ref] = new
            self._index(ref, new, +1)

    def _index(self, ref: Ref, entry: Entry, sign: int) -> None:
        """Add an entry to what follows from the entries, or take it out."""
        if entry.memory:
            return
        desk, mailbox, lane = key = _lane_key(entry.message)
        counts = self._counts.setdefault((desk, mailbox), {})
        counts[entry.state] = counts.get(entry.state, 0) + sign
        if not counts[entry.state]:
            del counts[entry.state]
        if entry.state in IN_LANE:
            lanes = self._in_lane.setdefault(desk, {}).setdefault(mailbox, {})
            members = lanes.setdefault(lane, [])
            if sign > 0:
                insort(members, (entry.seq, ref))
            else:
                del members[bisect_left(members, (entry.seq, ref))]
                if not members:
                    del lanes[lane]
                if not lanes:
                    del self._in_lane[desk][mailbox]
        if entry.state in IN_FLIGHT:
            assert entry.token is not None
            self._flying[key] = self._flying.get(key, 0) + sign
            held = self._held.setdefault((desk, entry.token), set())
            if sign > 0:
                held.add(ref)
            else:
                held.remove(ref)
                if not held:
                    del self._held[desk, entry.token]
        ends_at = entry.due_at or entry.lease_ends_at
        if ends_at:
            if sign > 0:
                insort(self._ends, ends_at)
            else:
                del self._ends[bisect_left(self._ends, ends_at)]

    def _put(self, rows: dict[Any, Any], key: Any, row: Any) -> None:
        """Replace a row of lanes, mailboxes or counters."""
        missing = key not in rows
        old = rows.get(key)

        def undo() -> None:
            if missing:
                del rows[key]
            else:
                rows[key] = old

        rows[key] = row
        self._undo.append(undo)

    def _undo_to(self, changes: int, events: int) -> None:
        while len(self._undo) > changes:
            self._undo.pop()()
        del self._events[events:]

    def _next(self, counter: str) -> int:
        self._put(self._counters, counter, self._counters[counter] + 1)
        return self._counters[counter]

    def _mailbox_row(self, key: MailboxKey) -> MailboxRow:
        if key not in self._mailboxes:
            self._put(self._mailboxes, key, MailboxRow(self._next("created")))
        return self._mailboxes[key]

    def _lane_row(self, key: LaneKey) -> LaneRow:
        mailbox = self._mailbox_row(key[:2])
        if key not in self._lanes:
            self._put(self._mailboxes, key[:2], mailbox._replace(lanes=mailbox.lanes + 1))
            self._put(self._lanes, key, LaneRow(self._next("created")))
        return self._lanes[key]

    # ---- events ----

    def _record(
        self,
        entry: Entry,
        event: str,
        at: Instant,
        *,
        attempt: int | None = None,
        holder: str | None = None,
        reason: str | None = None,
        error: str | None = None,
        due_at: Instant | None = None,
        expires_at: Instant | None = None,
        detail: str | None = None,
    ) -> None:
        """Write an event of a message; the attempt under way is the one after those counted."""
        if attempt is None:
            attempt = entry.attempts + 1 if entry.state in IN_FLIGHT else entry.attempts
        m = entry.message
        self._events.append(
            Event(
                at, event, m.desk, m.mailbox, m.lane, entry.seq, m.id, m.kind, m.sender, attempt, holder,
                len(m.body), reason, error, due_at, expires_at, m.cause, detail,
            )
        )  # fmt: skip

    def _record_door(self, c: cm.Post, event: str, reason: str | None) -> None:
        """Write that a message did not come in; it takes no number."""
        m = c.message
        self._events.append(
            Event(
                c.at, event, m.desk, m.mailbox, m.lane, message_id=m.id, kind=m.kind, sender=m.sender,
                size_bytes=len(m.body), reason=reason, cause_id=m.cause,
            )
        )  # fmt: skip

    def _record_switch(self, event: str, key: LaneKey, holder: str | None, reason: str | None, at: Instant) -> None:
        desk, mailbox, lane = key
        self._events.append(Event(at, event, desk, mailbox, lane, holder=holder, reason=reason))

    # ---- selections ----

    def _entries_in(self, lane: LaneKey) -> Iterator[Entry]:
        """The lane's messages in order, as they are when each is reached."""
        desk, mailbox, name = lane
        for _, ref in list(self._in_lane.get(desk, {}).get(mailbox, {}).get(name, ())):
            yield self._entries[ref]

    def _by_number(self, refs: Iterable[Ref]) -> list[Entry]:
        return sorted((self._entries[ref] for ref in refs), key=lambda e: e.number)

    def _selected(self, filter: cm.Filter, allowed: frozenset[State]) -> list[Entry]:
        """The kept messages that an operator's command selects and can act on, by number."""
        return [
            e
            for e in self._by_number(self._entries)
            if not e.memory
            and e.state in allowed
            and rules.matches(filter, e.message, e.state, e.posted_at, e.reason, e.error)
        ]

    def _depth(self, desk: str, mailbox: str) -> int:
        counts = self._counts.get((desk, mailbox), {})
        return sum(counts.get(state, 0) for state in IN_LANE)

    def _parked(self, entry: Entry) -> int:
        return self._counts.get((entry.message.desk, entry.message.mailbox), {}).get(State.PARKED, 0)

    # ---- views ----

    def next_at(self, at: Instant) -> Instant | None:
        """The earliest instant after ``at`` at which a wait, a lease or a quiet period ends."""
        with self._lock:
            after = bisect_right(self._ends, at)
            instants = self._ends[after : after + 1]
            for desk, mailboxes in self._in_lane.items():
                policy = self.policies.get(desk)
                if policy is None or not policy.quiet_s:
                    continue
                for mailbox, lanes in mailboxes.items():
                    for lane, members in lanes.items():
                        if self._flying.get((desk, mailbox, lane), 0):
                            continue
                        head, last = self._entries[members[0][1]], self._entries[members[-1][1]]
                        instants.append(rules.quiet_until(policy, head.posted_at, last.posted_at))
            return min((instant for instant in instants if instant > at), default=None)

    def desks(self) -> list[DeskView]:
        """Every desk of the policies, and those that still hold messages."""
        with self._lock:
            names = set(self.policies) | {desk for (desk, _), counts in self._counts.items() if counts}
            return [self._desk_view(name) for name in sorted(names)]

    def _desk_view(self, name: str) -> DeskView:
        counts: dict[State, int] = {}
        for (desk, _), of_mailbox in self._counts.items():
            if desk == name:
                for state, count in of_mailbox.items():
                    counts[state] = counts.get(state, 0) + count
        mailboxes = sum(1 for desk, _ in self._mailboxes if desk == name)
        members = [m for lanes in self._in_lane.get(name, {}).values() for m in lanes.values()]
        return DeskView(name, counts, mailboxes, self._oldest_at(members))

    def _oldest_at(self, lanes: Iterable[Sequence[tuple[int, Ref]]]) -> Instant | None:
        heads = self._by_number(members[0][1] for members in lanes)
        return heads[0].posted_at if heads else None

    def mailboxes(
        self,
        desk: str | None = None,
        contains: str = "",
        after: tuple[str, str] | None = None,
        limit: int = 50,
    ) -> list[MailboxView]:
        """A page of mailboxes in order of (desk, name)."""
        with self._lock:
            keys = [
                key
                for key in sorted(self._mailboxes)
                if desk in (None, key[0]) and contains in key[1] and (after is None or key > tuple(after))
            ]
            return [self._mailbox_view(key) for key in keys[:limit]]

    def mailbox(self, desk: str, name: str) -> MailboxView | None:
        """One mailbox, if anything was ever posted to it or it was paused."""
        with self._lock:
            return self._mailbox_view((desk, name)) if (desk, name) in self._mailboxes else None

    def _mailbox_view(self, key: MailboxKey) -> MailboxView:
        desk, name = key
        row = self._mailboxes[key]
        oldest_at = self._oldest_at(self._in_lane.get(desk, {}).get(name, {}).values())
        return MailboxView(desk, name, dict(self._counts.get(key, {})), row.lanes, row.paused, oldest_at)

    def lanes(self, desk: str, mailbox: str, after: str | None = None, limit: int = 50) -> list[LaneView]:
        """A page of a mailbox's lanes in order of name."""
        with self._lock:
            keys = [
                key for key in sorted(self._lanes) if key[:2] == (desk, mailbox) and (after is None or key[2] > after)
            ]
            return [self._lane_view(key) for key in keys[:limit]]

    def lane(self, desk: str, mailbox: str, name: str) -> LaneView | None:
        """One lane."""
        with self._lock:
            return self._lane_view((desk, mailbox, name)) if (desk, mailbox, name) in self._lanes else None

    def _lane_view(self, key: LaneKey) -> LaneView:
        desk, mailbox, name = key
        row = self._lanes[key]
        members = self._in_lane.get(desk, {}).get(mailbox, {}).get(name, [])
        oldest_at = self._oldest_at([members] if members else [])
        return LaneView(
            desk, mailbox, name, row.last_seq, len(members), self._flying.get(key, 0), row.paused, oldest_at
        )

    def in_lane(self, desk: str, mailbox: str, lane: str, limit: int = 50) -> list[MessageView]:
        """The messages that hold the lane, head first."""
        with self._lock:
            return [_view(entry) for entry in self._entries_in((desk, mailbox, lane))][:limit]

    def message(self, ref: Ref) -> MessageView | None:
        """One message or what is remembered of it."""
        with self._lock:
            entry = self._entries.get(ref)
            return None if entry is None else _view(entry)

    def find(self, id: str, limit: int = 50) -> list[MessageView]:
        """Messages with this id in any mailbox, and what is remembered of them, by number."""
        with self._lock:
            refs = [ref for ref in self._entries if ref.id == id]
            return [_view(entry) for entry in self._by_number(refs)[:limit]]

    def messages(self, filter: cm.Filter, after: int = 0, limit: int = 50) -> list[MessageView]:
        """A page of kept messages by number; the filter's states, or all."""
        with self._lock:
            selected = self._selected(filter, frozenset(State))
            return [_view(entry) for entry in selected if entry.number > after][:limit]

    def bodies(self, refs: Sequence[Ref]) -> list[bytes | None]:
        """The bodies of these messages, None where there is none (any more)."""
        with self._lock:
            entries = [self._entries.get(ref) for ref in refs]
            return [None if e is None or e.memory else e.message.body for e in entries]

    # ---- shelves ----

    def kept(self, shelf: str, after: str = "", limit: int = 1_000) -> list[tuple[str, bytes]]:
        """A page of what a shelf holds: keys above ``after`` with their values, in order."""
        with self._lock:
            found = sorted((key, value) for (of, key), value in self._kept.items() if of == shelf and key > after)
            return found[:limit]

    def kept_value(self, shelf: str, key: str) -> bytes | None:
        """What a shelf holds under this key, None if nothing."""
        with self._lock:
            return self._kept.get((shelf, key))

    # ---- journal ----

    def offset(self) -> int:
        """The journal's last offset."""
        with self._lock:
            return self._offset

    def chunks(self, after: int = 0) -> Iterator[Chunk]:
        """Journal chunks whose last offset is above ``after``, in order."""
        with self._lock:
            return iter([chunk for chunk in self._chunks if chunk.last > after])

    def events(self, after: int = 0) -> Iterator[tuple[int, int, Event]]:
        """(offset, commit, event) above ``after``, in order, as far as the store still has them."""
        for chunk in self.chunks(after):
            for offset, event in enumerate(decode(chunk.data), chunk.first):
                if offset > after:
                    yield offset, chunk.first, event

    def segments(self) -> list[Segment]:
        """Every exported segment and at most one planned, in order."""
        with self._lock:
            return list(self._segments)

    def plan_segment(self, last: int) -> Segment:
        """Commit the boundary of the next segment; one that is planned already is the answer."""
        with self._lock:
            if self._segments and not self._segments[-1].chain:
                return self._segments[-1]
            first, prev = 1, NO_CHAIN
            if self._segments:
                first, prev = self._segments[-1].last + 1, self._segments[-1].chain
            if last < first or all(chunk.last != last for chunk in self._chunks):
                raise InvalidInput(f"a segment from {first} cannot end at {last}: no chunk ends there")
            segment = Segment(first, last, prev, "")
            self._segments.append(segment)
            return segment

    def finish_segment(self, segment: Segment) -> None:
        """Record that the planned segment is on disk with its chain, and trim its chunks."""
        with self._lock:
            if segment in self._segments and segment.chain:
                return
            if not segment.chain or self._segments[-1:] != [segment._replace(chain="")]:
                raise InvalidInput(f"segment {segment.first}-{segment.last} is not the planned one")
            self._segments[-1] = segment
            self._chunks = [chunk for chunk in self._chunks if chunk.last > segment.last]

    def close(self) -> None:
        """Nothing to let go of."""


def _desk_of(command: cm.Command) -> str:
    match command:
        case cm.Post():
            return command.message.desk
        case cm.Settle() | cm.Cancel() | cm.Park():
            return command.ref.desk
        case cm.Redrive() | cm.Unpark() | cm.Purge():
            return command.filter.desk
        case cm.Lease() | cm.Renew() | cm.Release() | cm.Note() | cm.Pause() | cm.Resume() | cm.Hasten():
            return command.desk
    raise InvalidInput(f"no command: {command!r}")


def _lane_key(message: Message) -> LaneKey:
    return (message.desk, message.mailbox, message.lane)


def _served(row: LaneRow | MailboxRow) -> tuple[int, int]:
    """Never served first, then the least recently served; among equals the older row."""
    return (row.served, row.created)


def _json(value: Mapping[str, Any]) -> str:
    return orjson.dumps(dict(value), option=orjson.OPT_SORT_KEYS).decode()


def _is_over(until: Instant | None, at: Instant) -> bool:
    return until is not None and until <= at


def _kept_until(policy: Policy, entry: Entry) -> Instant | None:
    assert entry.since is not None
    return rules.kept_until(policy, entry.state, entry.since)


def _known_until(policy: Policy, entry: Entry) -> Instant | None:
    assert entry.since is not None
    return rules.known_until(policy, entry.state, entry.since)


def _is_forgettable(policy: Policy, entry: Entry, at: Instant) -> bool:
    return entry.state in FINISHED and _is_over(_known_until(policy, entry), at)


def _as_memory(entry: Entry) -> Entry:
    """What is left of a finished message when it is not kept any more: its id and what became of it."""
    m = entry.message
    return Entry(
        Message(m.desk, m.mailbox, m.id, sender=m.sender, lane=m.lane, kind=m.kind),
        entry.number,
        entry.seq,
        entry.state,
        entry.posted_at,
        quiet=True,
        expires_at=None,
        attempts=entry.attempts,
        life=entry.life,
        reason=entry.reason,
        error=entry.error,
        since=entry.since,
        memory=True,
    )


def _settled(entry: Entry, at: Instant, live: bool = False) -> oc.Settled:
    due_at = (entry.due_at or at) if entry.state is State.READY else None
    return oc.Settled(entry.state, entry.attempts, due_at, live)


def _view(e: Entry) -> MessageView:
    return MessageView(
        e.message, e.number, e.seq, e.state, e.posted_at, e.attempts, e.unreceived, e.life, e.due_at,
        e.expires_at, e.token, e.holder, e.lease_ends_at, e.progress, e.batch, e.reason, e.error, e.since,
        e.memory, e.quiet,
    )  # fmt: skip
