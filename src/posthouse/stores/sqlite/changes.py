"""What every command does alike: events, and what it means for a message to meet its fate.

In: a record and a fate that the rules decided. Out: the record changed, the event written. It selects nothing.
"""

from __future__ import annotations

from typing import Final

from ...mailbox import event as ev
from ...mailbox import rules
from ...mailbox.event import Event
from ...mailbox.message import FINISHED, Instant, Ref, State
from ...mailbox.outcome import Refusal, Refused
from .records import LEASED, READY, RECEIVED, Box, Desk, Entry, Lane
from .working import WorkingSet

UNKNOWN_DESK: Final = Refused(Refusal.UNKNOWN_DESK)


class Changes:
    """The first of the appliers: changes to records, each with its event.

    Each applier builds on the one before, in one line (the compiler of the hot path takes one base class):
    Changes, Leasing, Settling, Sweeping, Operating, Keeping, Applier.
    """

    def __init__(self, work: WorkingSet) -> None:
        self.work = work

    def _tick(self, at: Instant) -> None:
        """Take note of the time; where it went back, quiet periods are over (see ``rules.is_quiet``)."""
        work = self.work
        if at >= work.last_at:
            work.last_at = at
        else:
            for box in work.boxes_by_id.values():
                if box.desk.policy.quiet_s and box.rota is not None:
                    for lane in box.lanes.values():
                        if lane.depth:
                            work.wake(lane, 0)
            work.last_at = at

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
            (
                at, event, box.desk.name, box.name, lane.name, entry.seq, entry.id, entry.kind, entry.sender, attempt,
                holder, entry.size_bytes, reason, error, due_at, expires_at, entry.cause, detail,
            )
        )  # fmt: skip

    def _look(self, ref: Ref) -> Entry | None:
        box = self.work.box(ref.desk, ref.mailbox)
        return None if box is None else self.work.find(box, ref.sender, ref.id)

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
        if work.undo is None:
            work.dirty[entry.number] = entry
        else:
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
        entry.since = None if state is READY else at
        if state in FINISHED:
            keep_us = lane.box.desk.keep_us[state]
            # Where nothing is to be kept of it, it does not wait for a sweep.
            work.move(entry, state, keep=keep_us is None or keep_us > 0)
        else:
            work.move(entry, state)
        if fate.pause_lane and lane.paused is None:
            self._set_paused(lane.box, lane, "poison", None, at)
        if recall:
            self._recall(lane, entry.seq, token, batch, at)
        if lane.depth:
            # Another may be leased now, whenever this one is due: its going has made room.
            work.wake(lane, 0)
            if fate.due_at:
                work.ring_at(lane, fate.due_at)

    def _recall(self, lane: Lane, seq: int, token: str | None, batch: str | None, at: Instant) -> None:
        """The message with this seq failed: followers that are out and not received come back."""
        if not lane.in_flight:
            return
        for entry in list(self.work.in_lane(lane)):
            together = batch is not None and entry.batch == batch and entry.token == token
            if entry.seq > seq and entry.state is LEASED and not together:
                fate = rules.Fate(READY, ev.RECALLED, "head_failed")
                self._end(entry, fate, at, reason=entry.reason, error=entry.error)

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
        # What dies in flight counts, so that the journal alone tells how many attempts there were.
        counted = fate.state is State.DEAD
        reason = entry.reason if fate.state is READY else fate.reason
        self._end(entry, fate, at, counted=counted, reason=reason, error=entry.error)

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
        self.work.events.append(
            tuple(Event(at, event, box.desk.name, box.name, lane_name, holder=holder, reason=reason))
        )


def number_of(entry: Entry) -> int:
    return entry.number


def has_ended(entry: Entry, desk: Desk, at: Instant) -> bool:
    """Whether a finished message's id is remembered no longer."""
    if entry.state not in FINISHED or entry.since is None:
        return False
    know_us = desk.know_us[entry.state]
    return know_us is not None and entry.since + know_us <= at
