"""Lease and Renew: walking along lanes in their turn."""

from __future__ import annotations

import heapq
import logging

import orjson

from ...mailbox import event as ev
from ...mailbox import rules
from ...mailbox.command import Lease, Renew
from ...mailbox.message import Instant, State, make
from ...mailbox.outcome import Delivery, Leased, LeaseLost, Outcome, Renewed
from .changes import UNKNOWN_DESK, Changes
from .records import READY, Box, Desk, Entry, Lane
from .turns import leasable_at, quiet_at

log = logging.getLogger("posthouse.store")


class Leasing(Changes):
    """Takes messages for holders."""

    def _lease(self, command: Lease) -> Outcome:
        work = self.work
        self._tick(command.at)
        desk = work.desks.get(command.desk)
        if desk is None or not desk.in_force:
            return UNKNOWN_DESK
        if command.limit < 1:
            taken: list[Entry] = []
        elif command.mailbox is None:
            taken = self._lease_by_desk(command, desk)
        else:
            box = work.boxes.get((command.desk, command.mailbox))  # looked up with those of the whole batch
            taken = [] if box is None or box.paused is not None else self._lease_by_mailbox(command, box)
        return make(Leased, (command.token, self._deliveries(command, taken)))  # type: ignore[no-any-return]

    def _lease_by_mailbox(self, command: Lease, box: Box) -> list[Entry]:
        if command.lane is not None:
            return self._lease_lane(command, box, command.lane)
        if box.lane_count == 1 and box.rota is None:
            (lane,) = box.lanes.values()
            taken = self._take(command, lane, command.limit)
            if not taken:
                self._wake_again(lane, command.at)
            return taken
        work = self.work
        rota = work.lane_rota(box)
        taken = []
        visited: list[Lane] = []
        while len(taken) < command.limit and (turn := rota.turn(command.at)) is not None:
            assert isinstance(turn, Lane)
            found = self._take(command, turn, command.limit - len(taken))
            if found and box.lane_count > 1:
                work.touch_lane(turn)
                turn.served = work.next_offset + len(work.events) - 1
            taken += found
            visited.append(turn)
        for lane in visited:
            self._wake_again(lane, command.at)
        return taken

    def _lease_lane(self, command: Lease, box: Box, name: str) -> list[Entry]:
        """More of a lane, for a holder that takes ahead."""
        lane = self.work.lane(box, name)
        if lane is None:
            return []
        taken = self._take(command, lane, command.limit)
        if taken and box.lane_count > 1:
            self.work.touch_lane(lane)
            lane.served = self.work.next_offset + len(self.work.events) - 1
        self._wake_again(lane, command.at)
        return taken

    def _lease_by_desk(self, command: Lease, desk: Desk) -> list[Entry]:
        work = self.work
        at = command.at
        rota = work.rota(desk)
        besides = command.besides
        passed: list[Box] = []
        taken: list[Entry] = []
        while not taken and (box := rota.turn(at)) is not None:
            assert isinstance(box, Box)
            if besides and box.name in besides:
                passed.append(box)
                continue
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
            next_at = lanes.next_at()
            if next_at is not None:
                rota.wake(box, next_at)
        for box in passed:
            rota.wake(box, 0)
        return taken

    def _wake_again(self, lane: Lane, at: Instant) -> None:
        """After a visit: say when the lane may be leased from next, if time alone brings it about."""
        wake_at = leasable_at(self.work, lane, at)
        if wake_at is not None:
            self.work.wake(lane, wake_at)

    def _take(self, command: Lease, lane: Lane, limit: int) -> list[Entry]:
        """Walk along a lane and lease what the contract allows."""
        if lane.paused is not None or not lane.depth:
            return []
        policy = lane.box.desk.policy
        if policy.quiet_s:
            return self._take_batch(command, lane)
        at = command.at
        window = policy.window_per_lane
        room = limit if window is None or command.lane is not None else min(limit, window - lane.in_flight)
        taken: list[Entry] = []
        if room <= 0:
            return taken
        passed: list[Entry] = []
        corrupt: list[Entry] = []
        # Where all of the lane is young, its list is walked as it is.
        waiting = lane.fresh if lane.old_read and not lane.old else self.work.in_lane(lane)
        for entry in waiting:
            if entry.state is not READY:
                continue
            if entry.corrupt:
                corrupt.append(entry)
                continue
            if entry.due_at > at:
                break
            expires_at = entry.expires_at
            if expires_at is not None and expires_at <= at:
                passed.append(entry)
                continue
            taken.append(entry)
            # At once, not at the next one: to look at that may mean to read it.
            if len(taken) >= room:
                break
        for entry in corrupt:
            self._set_aside_corrupt(entry, at)
        for entry in passed:
            self._pass(entry, at)
        for entry in taken:
            self._hold(command, entry, None)
        return taken

    def _take_batch(self, command: Lease, lane: Lane) -> list[Entry]:
        at = command.at
        if lane.in_flight:
            return []
        waiting = []
        for entry in list(self.work.in_lane(lane)):
            if entry.corrupt:
                self._set_aside_corrupt(entry, at)
            else:
                waiting.append(entry)
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
        elif not quiet_at(self.work, lane, head, at):
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
        _, _, token, holder, _, _, _, _, at = command
        work = self.work
        work.touch(entry)
        work.fly(entry)
        if entry.due_at:
            entry.due_at = 0
            entry.row_changed = True
        entry.token = token
        entry.holder = holder
        entry.ends_at = rules.lease_end(entry.lane.box.desk.policy, at)
        entry.lease_commit = work.commit
        entry.lease_changed = True
        work.hold(entry)
        self._write(entry, at, ev.LEASED, entry.attempts + 1, holder, None, None, None, None, detail)

    def _deliveries(self, command: Lease, taken: list[Entry]) -> tuple[Delivery, ...]:
        if command.bodies and any(entry.body is None for entry in taken):
            self.work.read_bodies(taken)
        deliveries = []
        for entry in taken:
            body = entry.body if command.bodies else b""
            if body is None:
                log.warning("the body of message %r for %r is damaged: it is set aside", entry.id, entry.lane.box.name)
                self.work.corrupt += 1
                self._set_aside_corrupt(entry, command.at)
                continue
            deliveries.append(
                make(
                    Delivery,
                    (
                        entry.message(body), entry.seq, entry.attempts + 1, entry.posted_at, entry.ends_at,
                        entry.progress, entry.batch, entry.lease_commit == entry.post_commit,
                    ),
                )
            )  # fmt: skip
        return tuple(deliveries)

    def _set_aside_corrupt(self, entry: Entry, at: Instant) -> None:
        """A message whose bytes are not those that were posted: its lane goes on without it."""
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
                entry.row_changed = True
        ends_at = rules.lease_end(desk.policy, command.at)
        if ends_at is not None:
            for entry in held.values():
                work.touch(entry)
                entry.ends_at = ends_at
                entry.lease_changed = True
                heapq.heappush(work.ends, (ends_at, entry.number))
        return Renewed(len(held), ends_at)
