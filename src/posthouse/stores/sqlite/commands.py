"""Applying commands to the working set: select by the port's contract, decide by the rules, change.

In: a batch of commands. Out: their outcomes; records changed and events written in the working set. It
neither reads a clock nor commits. ``mailbox/store.py`` says what each command must do.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ...mailbox import event as ev
from ...mailbox import rules
from ...mailbox.command import (
    Cancel,
    Command,
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
from ...mailbox.message import FINISHED, SECOND
from ...mailbox.outcome import FAILURES, Done, Duplicate, Outcome, Posted, Refused
from .changes import UNKNOWN_DESK, has_ended
from .leasing import Leasing
from .operating import Operating
from .records import Entry, Lane
from .settling import Settling
from .sweeping import Sweeping
from .working import WorkingSet


class Applier(Leasing, Settling, Sweeping, Operating):
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

    def _post(self, command: Post) -> Outcome:
        message, quiet, exempt, reason, at = command
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
        expires_at = rules.expiry(policy, message, at)
        entry = Entry(
            work.next_number, lane, seq, id, sender, kind, at, batch_key, headers, cause, due_at, own_limit, quiet,
            work.commit, body, size_bytes, zlib.crc32(body), expires_at,
        )  # fmt: skip
        work.add(entry)
        work.events.append(
            (
                at, ev.POSTED, desk_name, mailbox, lane_name, seq, id, kind, sender, 0, None, size_bytes, reason, None,
                due_at or at, expires_at, cause, None,
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
            (
                command.at, event, message.desk, message.mailbox, message.lane, 0, message.id, message.kind,
                message.sender, 0, None, size_bytes, reason, None, None, None, message.cause, None,
            )
        )  # fmt: skip

    def _together(self, command: Together) -> Outcome:
        work = self.work
        written = len(work.events)
        outer, work.undo = work.undo, []
        outcomes: list[Outcome] = []
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


def _singles(commands: Sequence[Command]) -> Iterable[Any]:
    for command in commands:
        if type(command) is Together:
            yield from _singles(command.commands)
        else:
            yield command
