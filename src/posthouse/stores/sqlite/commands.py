"""Applying commands to the working set: select by the port's contract, decide by the rules, change.

In: a batch of commands. Out: their outcomes; records changed and events written in the working set. It
neither reads a clock nor commits. ``mailbox/store.py`` says what each command must do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain, islice
from typing import Any

from isal import isal_zlib

from ...mailbox import event as ev
from ...mailbox import rules
from ...mailbox.command import (
    Cancel,
    Command,
    Hasten,
    Keep,
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
)
from ...mailbox.message import FINISHED, SECOND, make
from ...mailbox.outcome import FAILURES, Done, Duplicate, Outcome, Posted, Refusal, Refused
from .changes import UNKNOWN_DESK, has_ended
from .lookup import as_json
from .records import Box, Entry
from .shelves import Keeping
from .working import WorkingSet


class Applier(Keeping):
    """Applies commands one after the other, each seeing the effects of those before it."""

    def __init__(self, work: WorkingSet) -> None:
        super().__init__(work)
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
            Hasten: self._hasten,
            Redrive: self._redrive,
            Cancel: self._cancel,
            Park: self._park,
            Unpark: self._unpark,
            Pause: self._pause,
            Resume: self._resume,
            Purge: self._purge,
            Keep: self._keep,
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
        boxes, refs = work.boxes, work.refs
        tick = work.tick
        later: list[Any] = []  # for mailboxes that are not in memory
        wanted: list[tuple[int, str, str]] = []
        leased: list[Box] = []
        command: Any
        batches: list[Sequence[Command]] = [commands]
        for batch in batches:
            for command in batch:
                kind = type(command)
                if kind is Post:
                    # By place: to look a name up in its class costs as much as all the rest.
                    message: tuple[Any, ...] = command[0]
                    desk, mailbox, id, sender = message[0], message[1], message[2], message[4]
                elif kind is Settle or kind is Cancel or kind is Park:
                    ref: tuple[Any, ...] = command[0]
                    desk, mailbox, sender, id = ref
                elif kind is Lease:
                    if command.mailbox is None:
                        continue
                    box = boxes.get((command.desk, command.mailbox))
                    if box is None:
                        later.append(command)
                    else:
                        box.used = tick
                        leased.append(box)
                    continue
                else:
                    if kind is Together:
                        batches.append(command.commands)
                    continue
                box = boxes.get((desk, mailbox))
                if box is None:
                    later.append(command)
                    continue
                box.used = tick
                key = (box.id, sender, id)
                if key not in refs:
                    wanted.append(key)
        if later:
            names = dict.fromkeys(map(_place_of, later))
            work.read_boxes(list(names))
            for command in later:
                box = boxes.get(_place_of(command))
                if box is None:
                    continue
                if type(command) is Lease:
                    leased.append(box)
                else:
                    named = command.message if type(command) is Post else command.ref
                    wanted.append((box.id, named.sender, named.id))
        if wanted:
            work.probe(wanted)
        if len(leased) > 1:
            work.read_heads([lane for box in leased if box.lane_count == 1 for lane in box.lanes.values()])

    def _post(self, command: Post) -> Outcome:
        message, quiet, exempt, reason, own_posted_at, at = command
        desk_name, mailbox, id, body, sender, lane_name, kind, batch_key, headers, cause, due_at, own_limit = message
        work = self.work
        self._tick(at)
        desk = work.desks.get(desk_name)
        if desk is None or not desk.in_force:
            return UNKNOWN_DESK
        policy = desk.policy
        # The mailbox and the id were looked up with those of the whole batch.
        box = work.boxes.get((desk_name, mailbox))
        size_bytes = len(body)
        known = None if box is None else work.refs.get((box.id, sender, id))
        if known is not None and has_ended(known, desk, at):
            work.forget(known)
            known = None
        if known is not None:
            self._turn_away(command, size_bytes, ev.DUPLICATE, None)
            return Duplicate(
                known.state, known.seq, known.attempts, known.reason, known.error,
                known.since if known.state in FINISHED else None,
            )  # fmt: skip
        refusal = rules.admit(policy, message, 0 if box is None else box.depth, exempt, at)
        if refusal is None and box is not None and rules.may_exceed_share(policy, box.depth, exempt):
            refusal = self._share(box, sender, policy.sender_max or 0)
        if refusal is not None:
            self._turn_away(command, size_bytes, ev.REFUSED, str(refusal))
            return Refused(refusal)
        if box is None:
            box = work.make_box(desk, mailbox)
        lane = work.lane(box, lane_name)
        if lane is None:
            lane = work.make_lane(box, lane_name)
        work.touch_lane(lane)
        seq = lane.last_seq = lane.last_seq + 1
        posted_at, detail = at, ""
        if own_posted_at is not None:
            posted_at = min(own_posted_at, at)
            detail = as_json({"posted_at": posted_at})
        expires_at = rules.expiry(policy, message, posted_at)
        entry = Entry(
            work.next_number, lane, seq, id, sender, kind, posted_at, batch_key, headers, cause, due_at, own_limit,
            quiet, work.commit, body, size_bytes, isal_zlib.crc32(body), expires_at,
        )  # fmt: skip
        work.add(entry)
        work.events.append(
            (
                at, ev.POSTED, desk_name, mailbox, lane_name, seq, id, kind, sender, 0, None, size_bytes, reason, None,
                due_at or at, expires_at, cause, detail or None,
            )
        )  # fmt: skip
        if due_at:
            work.ring_at(lane, due_at)
        elif policy.quiet_s:
            work.ring_at(lane, at + int(policy.quiet_s * SECOND))
            work.ring_at(lane, at + int(policy.quiet_max_s * SECOND))
        work.wake(lane, 0)
        return make(Posted, (seq, expires_at))  # type: ignore[no-any-return]

    def _share(self, box: Box, sender: str, sender_max: int) -> Refusal | None:
        """Whether the mailbox holds as many of this sender as it may. Counted anew: few desks ask for it."""
        self.work.read_lanes(box)
        entries = chain.from_iterable(self.work.in_lane(lane) for lane in list(box.lanes.values()) if lane.depth)
        of_sender = islice((entry for entry in entries if entry.sender == sender), sender_max)
        return Refusal.SHARE if sum(1 for _ in of_sender) >= sender_max else None

    def _turn_away(self, command: Post, size_bytes: int, event: str, reason: str | None) -> None:
        message = command.message
        self.work.events.append(
            (
                command.at, event, message.desk, message.mailbox, message.lane, 0, message.id, message.kind,
                message.sender, 0, None, size_bytes, reason, None, None, None, message.cause, None,
            )
        )  # fmt: skip

    def _together(self, command: Together) -> Outcome:
        work = self.work
        if self._only_first_may_fail(command.commands):
            outcomes: list[Outcome] = []
            for single in command.commands:
                outcome = self._apply[type(single)](single)
                if isinstance(outcome, FAILURES):
                    return outcome
                outcomes.append(outcome)
            return Done(tuple(outcomes))
        written = len(work.events)
        outer, work.undo = work.undo, []
        outcomes = []
        for single in command.commands:
            outcome = self._apply[type(single)](single)
            if isinstance(outcome, FAILURES):
                undo, work.undo = work.undo, None
                for back in reversed(undo):
                    back()
                del work.events[written:]
                work.undo = outer
                return outcome
            outcomes.append(outcome)
        if outer is not None:
            outer += work.undo
        work.undo = outer
        return Done(tuple(outcomes))

    def _only_first_may_fail(self, commands: Sequence[Command]) -> bool:
        """Whether there is nothing to undo: a settle that fails changes nothing, and no post behind it can fail.

        So it is with most groups (a reply, a confirmation), and to be ready to undo costs as much as to do.
        """
        if not commands or type(commands[0]) is not Settle:
            return False
        for command in commands[1:]:
            if type(command) is not Post or not command.exempt:
                return False
            message = command.message
            desk = self.work.desks.get(message.desk)
            if desk is None or not desk.in_force:
                return False
            if rules.admit(desk.policy, message, 0, True, command.at) is not None:
                return False
        return True


def _place_of(command: Any) -> tuple[str, str]:
    """Desk and mailbox of a command that names one message, or that leases by mailbox."""
    kind = type(command)
    named = command.message if kind is Post else command if kind is Lease else command.ref
    return named.desk, named.mailbox
