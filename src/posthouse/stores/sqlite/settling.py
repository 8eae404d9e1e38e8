"""Settle and Release: how a lease ends."""

from __future__ import annotations

from typing import Final

from ...mailbox import event as ev
from ...mailbox import rules
from ...mailbox.command import Release, Settle, Verdict
from ...mailbox.message import State, make
from ...mailbox.outcome import LeaseLost, NotFound, Outcome, Released, Settled
from .changes import UNKNOWN_DESK, number_of
from .leasing import Leasing
from .records import LEASED, READY, RECEIVED

_RECEIVED: Final = Verdict.RECEIVED
_RETRY: Final = Verdict.RETRY
_RETURN: Final = Verdict.RETURN


class Settling(Leasing):
    """Ends leases by the holder's word or its leaving."""

    def _settle(self, command: Settle) -> Outcome:
        ref, token, verdict, due_at, reason, error, holder, at = command
        work = self.work
        self._tick(at)
        if ref.desk not in work.policies:
            return UNKNOWN_DESK
        # Looked up with those of the whole batch.
        box = work.boxes.get((ref.desk, ref.mailbox))
        entry = None if box is None else work.refs.get((box.id, ref.sender, ref.id))
        if entry is None:
            return NotFound()
        policy = entry.lane.box.desk.policy
        state = entry.state
        if not rules.may_settle(policy, state, entry.token, token, verdict):
            return LeaseLost(state)
        in_flight = state is LEASED or state is RECEIVED
        if verdict is _RECEIVED:
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
        counted = in_flight and verdict is not _RETURN
        if verdict is _RETRY:
            parked = entry.lane.box.counts.get(State.PARKED, 0)
            fate = rules.failed(policy, entry.attempts + counted, parked, at, due_at, reason)
        elif verdict is _RETURN:
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
        state = entry.state
        due_at = (entry.due_at or at) if state is READY else None
        return make(Settled, (state, entry.attempts, due_at, live))  # type: ignore[no-any-return]

    def _release(self, command: Release) -> Outcome:
        work = self.work
        self._tick(command.at)
        if command.desk not in work.policies:
            return UNKNOWN_DESK
        held = sorted(work.held.get((command.desk, command.token), {}).values(), key=number_of)
        seen: set[int] = set()
        for entry in held:
            self._leave(entry, seen, command.reason, command.at)
        return Released(len(held))
