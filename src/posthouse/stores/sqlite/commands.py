"""Applying commands to the working set: select by the port's contract, decide by the rules, change.

In: one command. Out: its outcome; records changed and events written in the working set. It neither
reads a clock nor commits. ``mailbox/store.py`` says what each command must do.
"""

from __future__ import annotations

import heapq
import logging
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import orjson

from ...mailbox import event as ev
from ...mailbox import rules
from ...mailbox.command import (
    PURGEABLE,
    REDRIVABLE,
    Cancel,
    Command,
    Filter,
    Lease,
    Note,
    Park,
    Pause,
    Post,
    Purge,
    Redrive,
    Release,
    Renew,
    Resume,
    Settle,
    Shift,
    Start,
    Sweep,
    Together,
    Unpark,
    Verdict,
)
from ...mailbox.event import Event
from ...mailbox.message import FINISHED, SECOND, Instant, Ref, State
from ...mailbox.outcome import (
    FAILURES,
    Delivery,
    Done,
    Duplicate,
    Leased,
    LeaseLost,
    Noted,
    NotFound,
    Outcome,
    Posted,
    Purged,
    Redriven,
    Refusal,
    Refused,
    Released,
    Renewed,
    Settled,
    Shifted,
    Started,
    Swept,
    Switched,
)
from .records import LEASED, READY, RECEIVED, Box, Desk, Entry, Lane
from .working import WorkingSet, scan_sql

log = logging.getLogger("posthouse.store")

UNKNOWN_DESK = Refused(Refusal.UNKNOWN_DESK)
_SWEEP_PAGE = 512


class Applier:
    """Applies commands one after the other, each seeing the effects of those before it."""

    def __init__(self, work: WorkingSet) -> None:
        self.work = work
        self._apply: dict[type[Any], Callable[[Any], Outcome]] = {
            Post: self._post,
            Lease: self._lease,
            Renew: self._renew,
            Settle: self._settle,
            Release: self._release,
            Sweep: self._sweep,
            Note: self._note,
            Start: self._start,
            Shift: self._shift,
            Redrive: self._redrive,
            Cancel: self._cancel,
            Park: self._park,
            Unpark: self._unpark,
            Pause: self._pause,
            Resume: self._resume,
            Purge: self._purge,
            Together: self._together,
        }

    def apply(self, commands: Sequence[Command]) -> list[Outcome]:
        """Apply a batch; the caller flushes and commits."""
        self._prefetch(commands)
        apply = self._apply
        return [apply[type(command)](command) for command in commands]

    def _prefetch(self, commands: Sequence[Command]) -> None:
        """Read with a few statements what the batch will look for one by one."""
        work = self.work
        names: dict[tuple[str, str], None] = {}
        refs: list[tuple[str, str, str, str]] = []
        leases: list[tuple[str, str]] = []
        for command in _singles(commands):
            kind = type(command)
            if kind is Post:
                message = command.message
                names[(message.desk, message.mailbox)] = None
                refs.append((message.desk, message.mailbox, message.sender, message.id))
            elif kind is Settle or kind is Cancel or kind is Park:
                desk, mailbox, sender, id = command.ref
                names[(desk, mailbox)] = None
                refs.append((desk, mailbox, sender, id))
            elif kind is Lease and command.mailbox is not None:
                names[(command.desk, command.mailbox)] = None
                leases.append((command.desk, command.mailbox))
        boxes = work.boxes
        missing = [name for name in names if name not in boxes]
        if missing:
            work.read_boxes(missing)
        wanted = []
        for desk, mailbox, sender, id in refs:
            box = boxes.get((desk, mailbox))
            if box is not None and not box.new:
                box.used = work.tick
                wanted.append((box.id, sender, id))
        if wanted:
            work.probe(wanted)
        if len(leases) > 1:
            lanes: list[Lane] = []
            for name in leases:
                box = boxes.get(name)
                if box is not None and box.lane_count == 1:
                    lanes.extend(box.lanes.values())
            work.read_heads(lanes)

    def _tick(self, at: Instant) -> None:
        """Take note of the time; where it went back, quiet periods are over (see ``rules.is_quiet``)."""
        work = self.work
        if at < work.last_at:
            for box in work.boxes_by_id.values():
                if box.desk.policy.quiet_s and box.rota is not None:
                    for lane in box.lanes.values():
                        if lane.depth:
                            work.wake(lane, 0)
        work.last_at = at

    # ------------------------------------------------------------------ events

    def _write(
        self,
        entry: Entry,
        at: Instant,
        event: str,
        attempt: int,
        holder: str | None = None,
        reason: str | None = None,
        error: str | None = None,
        due_at: Instant | None = None,
        expires_at: Instant | None = None,
        detail: str | None = None,
    ) -> None:
        lane = entry.lane
        box = lane.box
        self.work.events.append(
            Event(
                at, event, box.desk.name, box.name, lane.name, entry.seq, entry.id, entry.kind, entry.sender, attempt,
                holder, entry.size_bytes, reason, error, due_at, expires_at, entry.cause, detail,
            )
        )  # fmt: skip

    # ------------------------------------------------------------------ posting

    def _post(self, command: Post) -> Outcome:
        message, quiet, exempt, reason, at = command
        work = self.work
        self._tick(at)
        desk = work.desks.get(message.desk)
        if desk is None or message.desk not in work.policies:
            return UNKNOWN_DESK
        policy = desk.policy
        box = work.box(message.desk, message.mailbox)
        size_bytes = len(message.body)
        if box is not None:
            known = work.find(box, message.sender, message.id)
            if known is not None and _has_ended(known, desk, at):
                work.forget(known)
                known = None
            if known is not None:
                self._turn_away(command, size_bytes, ev.DUPLICATE, None)
                return Duplicate(
                    known.state, known.seq, known.attempts, known.reason, known.error,
                    known.since if known.state in FINISHED else None,
                )  # fmt: skip
        refusal = rules.admit(policy, message, 0 if box is None else box.depth, exempt, at)
        if refusal is not None:
            self._turn_away(command, size_bytes, ev.REFUSED, str(refusal))
            return Refused(refusal)
        if box is None:
            box = work.make_box(desk, message.mailbox)
        lane = work.lane(box, message.lane)
        if lane is None:
            lane = work.make_lane(box, message.lane)
        work.touch_lane(lane)
        seq = lane.last_seq = lane.last_seq + 1
        entry = Entry(work.next_number, lane, seq, message.id, message.sender, message.kind, at)
        entry.batch_key = message.batch_key
        entry.headers = message.headers
        entry.cause = message.cause
        entry.own_due_at = due_at = message.due_at
        entry.own_expires_at = message.expires_at
        entry.quiet = quiet
        entry.post_commit = work.commit
        entry.size_bytes = size_bytes
        entry.crc = zlib.crc32(message.body)
        entry.due_at = due_at or 0
        entry.expires_at = expires_at = rules.expiry(policy, message, at)
        work.add(entry, message.body)
        work.events.append(
            Event(
                at, ev.POSTED, message.desk, message.mailbox, message.lane, seq, message.id, message.kind,
                message.sender, 0, None, size_bytes, reason, None, due_at or at, expires_at, message.cause, None,
            )
        )  # fmt: skip
        if due_at:
            work.ring_at(lane, due_at)
        elif policy.quiet_s:
            work.ring_at(lane, at + int(policy.quiet_s * SECOND))
            work.ring_at(lane, at + int(policy.quiet_max_s * SECOND))
        work.wake(lane, 0)
        return Posted(seq, expires_at)

    def _turn_away(self, command: Post, size_bytes: int, event: str, reason: str | None) -> None:
        message = command.message
        self.work.events.append(
            Event(
                command.at, event, message.desk, message.mailbox, message.lane, 0, message.id, message.kind,
                message.sender, 0, None, size_bytes, reason, None, None, None, message.cause, None,
            )
        )  # fmt: skip

    # ------------------------------------------------------------------ leasing

    def _lease(self, command: Lease) -> Outcome:
        work = self.work
        self._tick(command.at)
        desk = work.desks.get(command.desk)
        if desk is None or command.desk not in work.policies:
            return UNKNOWN_DESK
        if command.mailbox is None:
            taken = self._lease_by_desk(command, desk)
        else:
            box = work.box(command.desk, command.mailbox)
            taken = [] if box is None or box.paused is not None else self._lease_by_mailbox(command, box)
        return Leased(command.token, self._deliveries(command, taken))

    def _lease_by_mailbox(self, command: Lease, box: Box) -> list[Entry]:
        if box.lane_count == 1 and box.rota is None:
            (lane,) = box.lanes.values()
            taken = self._take(command, lane, command.limit)
            if not taken:
                self._wake_again(lane, command.at)
            return taken
        rota = self.work.lane_rota(box)
        taken = []
        visited: list[Lane] = []
        while len(taken) < command.limit and (turn := rota.turn(command.at)) is not None:
            assert isinstance(turn, Lane)
            taken += self._take(command, turn, command.limit - len(taken))
            visited.append(turn)
        for lane in visited:
            self._wake_again(lane, command.at)
        return taken

    def _lease_by_desk(self, command: Lease, desk: Desk) -> list[Entry]:
        work = self.work
        at = command.at
        rota = work.rota(desk)
        while (box := rota.turn(at)) is not None:
            assert isinstance(box, Box)
            if box.paused is not None:
                continue  # Resume wakes it
            lanes = work.lane_rota(box)
            while (lane := lanes.turn(at)) is not None:
                assert isinstance(lane, Lane)
                taken = self._take(command, lane, command.limit)
                if taken:
                    work.touch_lane(lane)
                    work.touch_box(box)
                    box.served = lane.served = work.next_offset + len(work.events) - 1
                    self._wake_again(lane, at)
                    break
                self._wake_again(lane, at)
            else:
                taken = []
            next_at = lanes.next_at()
            if next_at is not None:
                rota.wake(box, next_at)
            if taken:
                return taken
        return []

    def _wake_again(self, lane: Lane, at: Instant) -> None:
        """After a visit: say when the lane may be leased from next, if time alone brings it about."""
        wake_at = self._leasable_at(lane, at)
        if wake_at is not None:
            self.work.wake(lane, wake_at if wake_at > at else 0)

    def _leasable_at(self, lane: Lane, at: Instant) -> Instant | None:
        """When the lane could be leased from if nothing else happened; 0 is now, None never."""
        policy = lane.box.desk.policy
        if lane.paused is not None or not lane.depth:
            return None
        if policy.window_per_lane is not None and lane.in_flight >= policy.window_per_lane:
            return None
        for entry in self.work.in_lane(lane):
            if entry.state is READY:
                if entry.due_at > at:
                    return entry.due_at
                if policy.quiet_s and entry.batch is None and entry.quiet:
                    quiet_at = self._quiet_at(lane, entry, at)
                    # The walk also finishes a head whose limit has passed.
                    return quiet_at if entry.expires_at is None else min(quiet_at, entry.expires_at)
                return 0
        return None

    def _quiet_at(self, lane: Lane, head: Entry, at: Instant) -> Instant:
        """When the quiet period of the run at the head ends; 0 if it has."""
        policy = lane.box.desk.policy
        last_at = head.posted_at
        for entry in self.work.in_lane(lane):
            if not entry.quiet:
                return 0
            last_at = entry.posted_at
        if rules.is_quiet(policy, head.posted_at, last_at, at):
            return 0
        return rules.quiet_until(policy, head.posted_at, last_at)

    def _take(self, command: Lease, lane: Lane, limit: int) -> list[Entry]:
        """Walk along a lane and lease what the contract allows."""
        if lane.paused is not None or not lane.depth:
            return []
        policy = lane.box.desk.policy
        if policy.quiet_s:
            return self._take_batch(command, lane)
        at = command.at
        window = policy.window_per_lane
        room = limit if window is None else min(limit, window - lane.in_flight)
        taken: list[Entry] = []
        if room <= 0:
            return taken
        passed: list[Entry] = []
        for entry in self.work.in_lane(lane):
            if entry.state is not READY:
                continue
            if len(taken) >= room:
                break
            if entry.due_at > at:
                break
            expires_at = entry.expires_at
            if expires_at is not None and expires_at <= at:
                passed.append(entry)
                continue
            taken.append(entry)
        for entry in passed:
            self._pass(entry, at)
        for entry in taken:
            self._hold(command, entry, None)
        return taken

    def _take_batch(self, command: Lease, lane: Lane) -> list[Entry]:
        at = command.at
        if lane.in_flight:
            return []
        waiting = list(self.work.in_lane(lane))
        while waiting and waiting[0].due_at <= at and rules.has_expired(waiting[0].expires_at, at):
            self._pass(waiting.pop(0), at)
        if not waiting or waiting[0].due_at > at:
            return []
        head = waiting[0]
        run: list[Entry] = []
        if head.batch is not None:
            for entry in waiting:
                if entry.batch == head.batch:
                    if rules.has_expired(entry.expires_at, at):
                        self._pass(entry, at)
                    else:
                        run.append(entry)
        elif not head.quiet:
            run.append(head)
        elif not self._quiet_at(lane, head, at):
            for entry in waiting:
                fits = entry.quiet and entry.batch is None and entry.batch_key == head.batch_key
                if not fits or entry.due_at > at or rules.has_expired(entry.expires_at, at):
                    break
                run.append(entry)
        if not run:
            return run
        batch = head.batch if head.batch is not None else head.id if head.quiet else None
        detail = orjson.dumps({"batch": batch}).decode() if len(run) > 1 else None
        for entry in run:
            self._hold(command, entry, detail)
            if batch is not None and entry.batch is None:
                entry.batch = batch
                entry.row_changed = True
        return run

    def _hold(self, command: Lease, entry: Entry, detail: str | None) -> None:
        work = self.work
        work.touch(entry)
        work.move(entry, LEASED)
        if entry.due_at:
            entry.due_at = 0
            entry.row_changed = True
        entry.token = command.token
        entry.holder = command.holder
        entry.ends_at = rules.lease_end(entry.lane.box.desk.policy, command.at)
        entry.lease_commit = work.commit
        entry.lease_changed = True
        work.hold(entry)
        self._write(entry, command.at, ev.LEASED, entry.attempts + 1, command.holder, detail=detail)

    def _deliveries(self, command: Lease, taken: list[Entry]) -> tuple[Delivery, ...]:
        if command.bodies and taken:
            self.work.read_bodies(taken)
        deliveries = []
        for entry in taken:
            body = entry.body if command.bodies else b""
            if body is None:
                self._set_aside_corrupt(entry, command.at)
                continue
            deliveries.append(
                Delivery(
                    entry.message(body), entry.seq, entry.attempts + 1, entry.posted_at, entry.ends_at, entry.progress,
                    entry.batch,
                )
            )  # fmt: skip
        return tuple(deliveries)

    def _set_aside_corrupt(self, entry: Entry, at: Instant) -> None:
        log.warning("the body of message %r for %r is damaged; it is set aside", entry.id, entry.lane.box.name)
        self.work.corrupt += 1
        fate = rules.Fate(State.PARKED, ev.PARKED, "corrupt")
        self._end(entry, fate, at, reason=fate.reason, error=entry.error)

    def _renew(self, command: Renew) -> Outcome:
        work = self.work
        self._tick(command.at)
        desk = work.desks.get(command.desk)
        if desk is None or command.desk not in work.policies:
            return UNKNOWN_DESK
        held = work.held.get((command.desk, command.token), {})
        if command.ref is None:
            if not held:
                return LeaseLost(None)
        else:
            entry = self._look(command.ref)
            if entry is None or entry.number not in held:
                return LeaseLost(None if entry is None else entry.state)
            if command.progress is not None:
                work.touch(entry)
                entry.progress = command.progress
                entry.lease_changed = True
        ends_at = rules.lease_end(desk.policy, command.at)
        if ends_at is not None:
            for entry in held.values():
                work.touch(entry)
                entry.ends_at = ends_at
                entry.lease_changed = True
                heapq.heappush(work.ends, (ends_at, entry.number))
        return Renewed(len(held), ends_at)

    # ------------------------------------------------------------------ settling

    def _look(self, ref: Ref) -> Entry | None:
        box = self.work.box(ref.desk, ref.mailbox)
        return None if box is None else self.work.find(box, ref.sender, ref.id)

    def _settle(self, command: Settle) -> Outcome:
        ref, token, verdict, due_at, reason, error, holder, at = command
        work = self.work
        self._tick(at)
        if ref.desk not in work.policies:
            return UNKNOWN_DESK
        entry = self._look(ref)
        if entry is None:
            return NotFound()
        policy = entry.lane.box.desk.policy
        state = entry.state
        if not rules.may_settle(policy, state, entry.token, token, verdict):
            return LeaseLost(state)
        in_flight = state is LEASED or state is RECEIVED
        if verdict is Verdict.RECEIVED:
            if state is LEASED:
                work.touch(entry)
                work.move(entry, RECEIVED)
                if entry.unreceived:
                    entry.unreceived = 0
                    entry.row_changed = True
                entry.lease_changed = True
                self._write(entry, at, ev.RECEIVED, entry.attempts + 1, holder or entry.holder, reason, error)
            return Settled(RECEIVED, entry.attempts, None, False)
        # The attempt of an uncertain message was counted when it became uncertain.
        counted = in_flight and verdict is not Verdict.RETURN
        if verdict is Verdict.RETRY:
            parked = entry.lane.box.counts.get(State.PARKED, 0)
            fate = rules.failed(policy, entry.attempts + counted, parked, at, due_at, reason)
        elif verdict is Verdict.RETURN:
            later = due_at if due_at is not None and due_at > at else 0
            fate = rules.Fate(READY, ev.RELEASED, reason or "returned", later)
        else:
            fate = rules.judged(policy, verdict, reason)
        delivered = fate.state is State.DELIVERED
        live = delivered and in_flight and entry.lease_commit == entry.post_commit
        self._end(
            entry, fate, at, counted=counted, holder=holder, text=error,
            reason=entry.reason if delivered else fate.reason, error=entry.error if delivered else error,
            recall=in_flight and fate.event in (ev.RETRIED, ev.RELEASED, ev.DIED, ev.PARKED),
        )  # fmt: skip
        return Settled(entry.state, entry.attempts, (entry.due_at or at) if entry.state is READY else None, live)

    def _end(
        self,
        entry: Entry,
        fate: rules.Fate,
        at: Instant,
        *,
        reason: str | None,
        error: str | None,
        counted: bool = False,
        holder: str | None = None,
        text: str | None = None,
        recall: bool = False,
    ) -> None:
        """A message meets its fate and its lease ends; ``reason`` and ``error`` are what it will show.

        ``text`` is the error that the event carries; ``recall`` brings back its followers.
        """
        work = self.work
        lane = entry.lane
        work.touch(entry)
        state = fate.state
        in_flight = entry.state is LEASED or entry.state is RECEIVED
        attempt = entry.attempts + 1 if in_flight else entry.attempts
        due_at = (fate.due_at or at) if fate.event == ev.RETRIED or fate.event == ev.RELEASED else None
        self._write(entry, at, fate.event, attempt, holder or entry.holder, fate.reason, text, due_at)
        token, batch = entry.token, entry.batch
        if token is not None:
            work.let_go(entry)
        if counted:
            entry.attempts += 1
            entry.row_changed = True
        if reason != entry.reason or error != entry.error or fate.due_at != entry.due_at:
            entry.reason, entry.error, entry.due_at = reason, error, fate.due_at
            entry.row_changed = True
        # A lease taken later in this batch is not the one that was committed with the post.
        entry.post_commit = 0
        if state is not READY:
            entry.since = at
        work.move(entry, state)
        if state in FINISHED:
            kept_until = rules.kept_until(lane.box.desk.policy, state, at)
            if kept_until is not None and kept_until <= at:
                # Nothing is to be kept of it, so it does not wait for a sweep.
                work.make_memory(entry)
        if fate.pause_lane and lane.paused is None:
            self._set_paused(lane.box, lane, "poison", None, at)
        if recall:
            self._recall(lane, entry.seq, token, batch, at)
        if lane.depth:
            work.wake(lane, fate.due_at if state is READY else 0)

    def _recall(self, lane: Lane, seq: int, token: str | None, batch: str | None, at: Instant) -> None:
        """The message with this seq failed: followers that are out and not received come back."""
        if not lane.in_flight:
            return
        for entry in list(self.work.in_lane(lane)):
            together = batch is not None and entry.batch == batch and entry.token == token
            if entry.seq > seq and entry.state is LEASED and not together:
                fate = rules.Fate(READY, ev.RECALLED, "head_failed")
                self._end(entry, fate, at, reason=entry.reason, error=entry.error)

    def _release(self, command: Release) -> Outcome:
        work = self.work
        self._tick(command.at)
        if command.desk not in work.policies:
            return UNKNOWN_DESK
        held = sorted(work.held.get((command.desk, command.token), {}).values(), key=_number_of)
        seen: set[int] = set()
        for entry in held:
            self._leave(entry, seen, command.reason, command.at)
        return Released(len(held))

    def _leave(self, entry: Entry, seen: set[int], reason: str | None, at: Instant) -> None:
        """The holder left; ``seen``: lanes whose first unreceived message was counted already."""
        lane = entry.lane
        policy = lane.box.desk.policy
        parked = lane.box.counts.get(State.PARKED, 0)
        if entry.state is RECEIVED:
            # It arrived and was not confirmed: this attempt counts.
            fate = rules.failed(policy, entry.attempts + 1, parked, at, reason="unconfirmed")
            self._end(entry, fate, at, counted=True, reason=fate.reason, error=None)
            return
        if lane.id not in seen:
            seen.add(lane.id)
            self.work.touch(entry)
            entry.unreceived += 1
            entry.row_changed = True
        fate = rules.left(policy, entry.unreceived, parked, reason)
        self._end(entry, fate, at, reason=entry.reason if fate.state is READY else fate.reason, error=entry.error)

    def _lose(self, entry: Entry, at: Instant, *, recall: bool) -> None:
        """A lease ran out."""
        lane = entry.lane
        parked = lane.box.counts.get(State.PARKED, 0)
        fate = rules.lost(lane.box.desk.policy, entry.attempts + 1, parked, at)
        recall = recall and fate.event != ev.UNCERTAIN
        self._end(entry, fate, at, counted=True, reason=fate.reason, error=None, recall=recall)

    def _pass(self, entry: Entry, at: Instant) -> None:
        """A message's limit has passed. The error stays: it says why it was not delivered in time."""
        fate = rules.passed(entry.lane.box.desk.policy)
        recall = fate.event == ev.DIED and entry.state is not READY
        self._end(entry, fate, at, reason=fate.reason, error=entry.error, recall=recall)

    # ------------------------------------------------------------------ time

    def _sweep(self, command: Sweep) -> Outcome:
        limit, at = command
        work = self.work
        self._tick(at)
        lost = self._sweep_leases(limit, at)
        expired = self._sweep_expired(limit, at)
        aside, stale = self._sweep_kept(limit, at)
        ended = self._sweep_memories(limit, at)
        counts: dict[tuple[str, str], int] = {}
        for entry in expired:
            key = (entry.lane.box.desk.name, entry.lane.box.name)
            counts[key] = counts.get(key, 0) + 1
        return Swept(
            tuple((*key, count) for key, count in sorted(counts.items())),
            lost,
            aside + stale + ended,
            max(lost, len(expired), aside, stale, ended) >= limit,
        )

    def _sweep_leases(self, limit: int, at: Instant) -> int:
        """End the leases that ran out, the earliest first; stale ends are dropped on the way."""
        work = self.work
        lost = 0
        while lost < limit and work.ends and work.ends[0][0] <= at:
            ends_at, number = heapq.heappop(work.ends)
            entry = work.entries.get(number)
            if entry is None or entry.token is None or entry.ends_at != ends_at:
                continue
            if entry.lane.box.desk.name in work.policies:
                self._lose(entry, at, recall=True)
                lost += 1
        return lost

    def _sweep_expired(self, limit: int, at: Instant) -> list[Entry]:
        work = self.work
        # Some rows may not count: held ones, and what this very batch has changed.
        enough = limit + len(work.dirty) + sum(map(len, work.held.values())) + len(work.gone)
        rows = work.db.execute(
            "SELECT number FROM message WHERE expires_at IS NOT NULL AND state = 0 AND expires_at <= ?"
            " ORDER BY expires_at, number LIMIT ?",
            (at, enough),
        ).fetchall()
        numbers = {row[0] for row in rows} - work.gone.keys() | work.dirty.keys()
        due = [entry for entry in work.read_rows(list(numbers)) if rules.has_expired(entry.expires_at, at)]
        done: list[Entry] = []
        for entry in sorted(due, key=lambda entry: (entry.expires_at, entry.number)):
            if entry.lane.box.desk.name not in work.policies:
                continue
            if len(done) < limit and (entry.state is READY or entry.state is RECEIVED):
                self._pass(entry, at)
                done.append(entry)
        return done

    def _sweep_kept(self, limit: int, at: Instant) -> tuple[int, int]:
        """End what was kept long enough: how many set-aside ones, how many finished ones."""
        work = self.work
        enough = 2 * limit + len(work.dirty) + len(work.gone)
        rows = work.db.execute(
            "SELECT number FROM message WHERE keep_until IS NOT NULL AND keep_until <= ?"
            " ORDER BY keep_until, number LIMIT ?",
            (at, enough),
        ).fetchall()
        numbers = {row[0] for row in rows} - work.gone.keys() - set(work.dropped_rows) | work.dirty.keys()
        due: list[tuple[Instant, int, Entry]] = []
        for entry in work.read_rows(list(numbers)):
            if entry.since is not None and not entry.memory and entry.lane.box.desk.name in work.policies:
                kept_until = rules.kept_until(entry.lane.box.desk.policy, entry.state, entry.since)
                if kept_until is not None and kept_until <= at:
                    due.append((kept_until, entry.number, entry))
        due.sort(key=lambda item: item[:2])
        aside = [entry for _, _, entry in due if entry.state not in FINISHED][:limit]
        for entry in aside:
            fate = rules.Fate(State.CANCELLED, ev.CANCELLED, "kept_long_enough")
            self._end(entry, fate, at, reason=fate.reason, error=entry.error)
        stale = [entry for _, _, entry in due if entry.state in FINISHED and entry not in aside][:limit]
        for entry in stale:
            work.touch(entry)
            work.make_memory(entry)
        return len(aside), len(stale)

    def _sweep_memories(self, limit: int, at: Instant) -> int:
        """Forget the ids whose memory has ended."""
        work = self.work
        rows = work.db.execute(
            "SELECT number FROM memory WHERE forget_at IS NOT NULL AND forget_at <= ?"
            " ORDER BY forget_at, number LIMIT ?",
            (at, limit + len(work.dropped_memories)),
        ).fetchall()
        numbers = {row[0] for row in rows} - set(work.dropped_memories) | work.dirty.keys()
        forgotten = 0
        for entry in work.read_rows(sorted(numbers)):
            if forgotten < limit and entry.memory and entry.lane.box.desk.name in work.policies:
                if _has_ended(entry, entry.lane.box.desk, at):
                    work.forget(entry)
                    forgotten += 1
        return forgotten

    def _start(self, command: Start) -> Outcome:
        work = self.work
        at = command.at
        self._tick(at)
        detail: dict[str, Any] = {"policies": {name: policy.as_json() for name, policy in command.policies.items()}}
        if command.restored_from is not None:
            detail["restored_from"] = dict(command.restored_from)
        text = orjson.dumps(detail, option=orjson.OPT_SORT_KEYS).decode()
        work.events.append(Event(at, ev.STARTED, "", detail=text))
        held = [entry for (desk, _), held in work.held.items() if desk in work.policies for entry in held.values()]
        seen: set[int] = set()
        for entry in sorted(held, key=_number_of):
            if entry.lane.box.desk.policy.lease_s is None:
                self._leave(entry, seen, None, at)
            else:
                self._lose(entry, at, recall=False)
        return Started(len(held))

    def _shift(self, command: Shift) -> Outcome:
        by_us, at = command
        work = self.work
        self._tick(at)
        rows = work.db.execute("SELECT number FROM message WHERE due_at > 0 AND state = 0").fetchall()
        numbers = {row[0] for row in rows} | {number for number, entry in work.dirty.items() if entry.due_at}
        for entry in work.read_rows(sorted(numbers)):
            if entry.state is READY and entry.due_at:
                due_at = rules.shifted_due(entry.due_at, entry.own_due_at, entry.attempts, by_us)
                if due_at != entry.due_at:
                    work.touch(entry)
                    entry.due_at = due_at
                    entry.row_changed = True
                work.wake(entry.lane, due_at if due_at > at else 0)
        for held in work.held.values():
            for entry in held.values():
                if entry.ends_at is not None:
                    work.touch(entry)
                    entry.ends_at += by_us
                    entry.lease_changed = True
                    heapq.heappush(work.ends, (entry.ends_at, entry.number))
        return Shifted()

    # ------------------------------------------------------------------ operators

    def _note(self, command: Note) -> Outcome:
        work = self.work
        self._tick(command.at)
        if command.desk not in work.policies:
            return UNKNOWN_DESK
        if command.event not in ev.NOTABLE:
            return Refused(Refusal.NOT_ALLOWED)
        detail = (
            None if command.detail is None else orjson.dumps(dict(command.detail), option=orjson.OPT_SORT_KEYS).decode()
        )
        work.events.append(
            Event(
                command.at, command.event, command.desk, command.mailbox, "", 0, command.message_id, command.kind,
                command.sender, 0, command.holder, command.size_bytes, command.reason, command.error, None, None, None,
                detail,
            )
        )  # fmt: skip
        return Noted()

    def _select(self, filter: Filter, allowed: frozenset[State]) -> Iterator[Entry]:
        """The kept messages that an operator's command selects and can act on, by number."""
        states = (filter.states or allowed) & allowed
        if filter.id is not None and filter.mailbox is not None and filter.sender is not None:
            entry = self._look(Ref(filter.desk, filter.mailbox, filter.sender, filter.id))
            candidates: Iterable[Entry] = [] if entry is None else [entry]
        else:
            candidates = self._scan(filter, states)
        for entry in candidates:
            if not entry.memory and entry.state in states:
                message = entry.message(b"")
                if rules.matches(filter, message, entry.state, entry.posted_at, entry.reason, entry.error):
                    yield entry

    def _scan(self, filter: Filter, states: frozenset[State]) -> Iterable[Entry]:
        """Every kept message that may be in one of these states, by number: table and this batch merged."""
        work = self.work
        where, values = scan_sql(filter, states)
        pending = sorted(number for number, entry in work.dirty.items() if not entry.memory)
        after = 0
        while True:
            rows = work.db.execute(
                f"SELECT m.number FROM {where} AND m.number > ? ORDER BY m.number LIMIT ?",
                (*values, after, _SWEEP_PAGE),
            ).fetchall()
            last = rows[-1][0] if len(rows) == _SWEEP_PAGE else None
            numbers = {row[0] for row in rows} - work.gone.keys() - set(work.dropped_rows)
            numbers.update(n for n in pending if n > after and (last is None or n <= last))
            yield from work.read_rows(sorted(numbers))
            if last is None:
                return
            after = last

    def _redrive(self, command: Redrive) -> Outcome:
        filter, limit, rate_per_s, dry_run, holder, at = command
        if filter.desk not in self.work.policies:
            return UNKNOWN_DESK
        found = self._select(filter, REDRIVABLE)
        return self._revive(found, ev.REDRIVEN, limit, rate_per_s, dry_run, holder, at)

    def _unpark(self, command: Unpark) -> Outcome:
        filter, limit, dry_run, holder, at = command
        if filter.desk not in self.work.policies:
            return UNKNOWN_DESK
        found = self._select(filter, frozenset({State.PARKED}))
        return self._revive(found, ev.UNPARKED, limit, None, dry_run, holder, at)

    def _revive(
        self,
        found: Iterable[Entry],
        event: str,
        limit: int,
        rate_per_s: float | None,
        dry_run: bool,
        holder: str | None,
        at: Instant,
    ) -> Outcome:
        """Return messages to their lanes, paced by their due times, as far as their mailboxes have room."""
        work = self.work
        self._tick(at)
        refs: list[Ref] = []
        depths: dict[int, int] = {}
        skipped = 0
        for entry in found:
            if len(refs) >= limit:
                break
            box = entry.lane.box
            policy = box.desk.policy
            depth = depths.get(box.id, box.depth)
            if not rules.has_room(policy, depth):
                skipped += 1
                continue
            depths[box.id] = depth + 1
            wait_us = int(len(refs) * SECOND / rate_per_s) if rate_per_s else 0
            refs.append(Ref(box.desk.name, box.name, entry.sender, entry.id))
            if dry_run:
                continue
            work.touch(entry)
            entry.attempts = entry.unreceived = entry.progress = 0
            entry.batch = entry.since = None
            entry.row_changed = True
            entry.life += 1
            entry.due_at = at + wait_us if wait_us else 0
            entry.expires_at = rules.renewed_expiry(policy, entry.own_expires_at, entry.posted_at, at)
            work.move(entry, READY)
            due_at = (entry.due_at or at) if event == ev.REDRIVEN else None
            self._write(entry, at, event, 0, holder, due_at=due_at, expires_at=entry.expires_at)
            work.wake(entry.lane, entry.due_at)
        return Redriven(tuple(refs), skipped)

    def _cancel(self, command: Cancel) -> Outcome:
        fate = rules.Fate(State.CANCELLED, ev.CANCELLED, command.reason or "operator")
        return self._set_aside(command, fate)

    def _park(self, command: Park) -> Outcome:
        return self._set_aside(command, rules.Fate(State.PARKED, ev.PARKED, command.reason or "operator"))

    def _set_aside(self, command: Cancel | Park, fate: rules.Fate) -> Outcome:
        """Take a message out of its lane by an operator's word."""
        work = self.work
        self._tick(command.at)
        if command.ref.desk not in work.policies:
            return UNKNOWN_DESK
        entry = self._look(command.ref)
        if entry is None:
            return NotFound()
        if entry.state in FINISHED:
            return Refused(Refusal.FINISHED)
        box = entry.lane.box
        if not rules.is_revocable(box.desk.policy, entry.state):
            return Refused(Refusal.IN_FLIGHT)
        if fate.state is State.PARKED:
            if entry.state is State.PARKED:
                return Refused(Refusal.NOT_ALLOWED)
            allowed = rules.parked_as(box.desk.policy, box.counts.get(State.PARKED, 0), "operator")
            if allowed.state is not State.PARKED:
                return Refused(Refusal.PARKED_FULL)
        self._end(entry, fate, command.at, holder=command.holder, reason=fate.reason, error=entry.error)
        return Settled(entry.state, entry.attempts, None, False)

    def _pause(self, command: Pause) -> Outcome:
        desk, mailbox, lane_name, reason, holder, at = command
        work = self.work
        self._tick(at)
        if desk not in work.policies:
            return UNKNOWN_DESK
        box = work.box(desk, mailbox)
        if box is None:
            box = work.make_box(work.desks[desk], mailbox)
        lane: Lane | None = None
        if lane_name is not None:
            lane = work.lane(box, lane_name)
            if lane is None:
                lane = work.make_lane(box, lane_name)
        place: Box | Lane = box if lane is None else lane
        if place.paused is not None:
            return Switched(False)
        self._set_paused(box, lane, reason, holder, at)
        return Switched(True)

    def _set_paused(self, box: Box, lane: Lane | None, reason: str, holder: str | None, at: Instant) -> None:
        if lane is None:
            self.work.touch_box(box)
            box.paused = reason
        else:
            self.work.touch_lane(lane)
            lane.paused = reason
        self._write_switch(ev.PAUSED, box, lane, reason, holder, at)

    def _write_switch(
        self, event: str, box: Box, lane: Lane | None, reason: str | None, holder: str | None, at: Instant
    ) -> None:
        lane_name = "" if lane is None else lane.name
        self.work.events.append(Event(at, event, box.desk.name, box.name, lane_name, holder=holder, reason=reason))

    def _resume(self, command: Resume) -> Outcome:
        desk, mailbox, lane_name, holder, at = command
        work = self.work
        self._tick(at)
        if desk not in work.policies:
            return UNKNOWN_DESK
        box = work.box(desk, mailbox)
        lane = None if box is None or lane_name is None else work.lane(box, lane_name)
        if box is None or (lane_name is not None and lane is None):
            return Switched(False)
        if lane is None:
            if box.paused is None:
                return Switched(False)
            work.touch_box(box)
            box.paused = None
            if box.desk.rota is not None:
                box.desk.rota.wake(box, 0)
        else:
            if lane.paused is None:
                return Switched(False)
            work.touch_lane(lane)
            lane.paused = None
            work.wake(lane, 0)
        self._write_switch(ev.RESUMED, box, lane, None, holder, at)
        return Switched(True)

    def _purge(self, command: Purge) -> Outcome:
        filter, limit, dry_run, holder, at = command
        work = self.work
        self._tick(at)
        if filter.desk not in work.policies:
            return UNKNOWN_DESK
        cancelled = removed = skipped = 0
        for entry in self._select(filter, PURGEABLE):
            if cancelled + removed >= limit:
                break
            if entry.state in FINISHED:
                removed += 1
                if not dry_run:
                    work.touch(entry)
                    work.make_memory(entry)
            elif not rules.is_revocable(entry.lane.box.desk.policy, entry.state):
                skipped += 1
            else:
                cancelled += 1
                if not dry_run:
                    fate = rules.Fate(State.CANCELLED, ev.CANCELLED, "purged")
                    self._end(entry, fate, at, holder=holder, reason=fate.reason, error=entry.error)
        return Purged(cancelled, removed, skipped)

    # ------------------------------------------------------------------ groups

    def _together(self, command: Together) -> Outcome:
        work = self.work
        assert work.undo is None, "a Together holds no other Together"
        written = len(work.events)
        work.undo = []
        outcomes: list[Outcome] = []
        for single in command.commands:
            outcome = self._apply[type(single)](single)
            if isinstance(outcome, FAILURES):
                undo, work.undo = work.undo, None
                for back in reversed(undo):
                    back()
                del work.events[written:]
                return outcome
            outcomes.append(outcome)
        work.undo = None
        return Done(tuple(outcomes))


def _singles(commands: Sequence[Command]) -> Iterable[Any]:
    for command in commands:
        if type(command) is Together:
            yield from command.commands
        else:
            yield command


def _number_of(entry: Entry) -> int:
    return entry.number


def _has_ended(entry: Entry, desk: Desk, at: Instant) -> bool:
    """Whether a finished message's id is remembered no longer."""
    if entry.state not in FINISHED or entry.since is None:
        return False
    known_until = rules.known_until(desk.policy, entry.state, entry.since)
    return known_until is not None and known_until <= at
