"""Faults planted on purpose in a copy of memory: the comparison must find each of them, and soon."""

from __future__ import annotations

from typing import Any

import pytest
from tests.stateful.differential import Difference, run
from tests.stateful.histories import POLICIES, History, history_of, smaller

from posthouse.mailbox import command as cm
from posthouse.mailbox.message import FINISHED, Instant, State
from posthouse.mailbox.outcome import Outcome, Refused
from posthouse.mailbox.policy import Policy
from posthouse.stores.memory import Entry, LaneKey, MemoryStore

HISTORIES_MAX = 300
"""A fault that this many histories do not show has survived."""


class DedupForgetsTheFinished(MemoryStore):
    """A finished message's id may be spent again at once."""

    def _post(self, policy: Policy, c: cm.Post) -> Outcome:
        first = self._entries.get(c.message.ref)
        if first is not None and first.state in FINISHED:
            self._put_entry(c.message.ref, None)
        return super()._post(policy, c)


class RecallIsMissing(MemoryStore):
    """Followers of a failed head stay out, so the order of the lane is lost."""

    def _recall(self, failed: Entry, at: Instant) -> None:
        pass


class FencingIsMissing(MemoryStore):
    """Whoever held the message once may settle it."""

    def _settle(self, policy: Policy, c: cm.Settle) -> Outcome:
        entry = self._entries.get(c.ref)
        if entry is not None and c.token is not None:
            c = c._replace(token=entry.token)
        return super()._settle(policy, c)


class CapIsOffByOne(MemoryStore):
    """A mailbox takes one message more than it may hold."""

    def _depth(self, desk: str, mailbox: str) -> int:
        return super()._depth(desk, mailbox) - 1


class RefusalTakesANumber(MemoryStore):
    """The lane's numbers have a gap where a message was refused."""

    def _post(self, policy: Policy, c: cm.Post) -> Outcome:
        outcome = super()._post(policy, c)
        key = (c.message.desk, c.message.mailbox, c.message.lane)
        if isinstance(outcome, Refused) and key in self._lanes:
            lane = self._lanes[key]
            self._put(self._lanes, key, lane._replace(last_seq=lane.last_seq + 1))
        return outcome


class RecallTakesTheReceived(MemoryStore):
    """Messages that had arrived come back too."""

    def _recall(self, failed: Entry, at: Instant) -> None:
        for entry in list(self._entries_in((failed.message.desk, failed.message.mailbox, failed.message.lane))):
            if entry.seq > failed.seq and entry.state == "received":
                self._put_entry(entry.message.ref, entry._replace(state=type(entry.state).LEASED))
        super()._recall(failed, at)


class WindowIsOffByOne(MemoryStore):
    """One message more of a lane is in flight than may be."""

    def _walk(self, policy: Policy, lane: LaneKey, limit: int, at: Instant, ahead: bool) -> list[Entry]:
        if policy.window_per_lane is not None:
            policy = policy.replace(window_per_lane=policy.window_per_lane + 1)
        return super()._walk(policy, lane, limit, at, ahead)


class TogetherKeepsWhatWasDone(MemoryStore):
    """A group that fails in the middle is not undone."""

    def _undo_to(self, changes: int, events: int) -> None:
        pass


class TurnsAreNotTaken(MemoryStore):
    """The oldest mailbox is always served first."""

    def _lease(self, policy: Policy, c: cm.Lease) -> Outcome:
        outcome = super()._lease(policy, c)
        for key, row in list(self._mailboxes.items()):
            self._put(self._mailboxes, key, row._replace(served=0))
        return outcome


class RedriveForgetsOrder(MemoryStore):
    """Operators' commands take the newest first."""

    def _selected(self, filter: cm.Filter, allowed: Any) -> list[Entry]:
        return super()._selected(filter, allowed)[::-1]


class ReleaseCounts(MemoryStore):
    """A holder that left costs the message an attempt."""

    def _leave(self, policy: Policy, entry: Entry, seen: Any, reason: str | None, at: Instant) -> None:
        super()._leave(policy, entry, seen, reason, at)
        after = self._entries[entry.message.ref]
        self._put_entry(entry.message.ref, after._replace(attempts=after.attempts + 1))


class ClockSetsNothing(MemoryStore):
    """A clock that is set makes waits and leases longer or shorter."""

    def _shift(self, c: cm.Shift) -> Outcome:
        return super()._shift(c._replace(by_us=0))


class ArrivalHastensWhatWasPutOff(MemoryStore):
    """Whoever comes gets what its poster meant for later."""

    def _hasten(self, c: cm.Hasten) -> Outcome:
        outcome = super()._hasten(c)
        for entry in list(self._entries.values()):
            message = entry.message
            if entry.state is State.READY and (message.desk, message.mailbox) == (c.desk, c.mailbox):
                self._put_entry(message.ref, entry._replace(due_at=0))
        return outcome


FAULTS = [
    DedupForgetsTheFinished,
    RecallIsMissing,
    FencingIsMissing,
    CapIsOffByOne,
    RefusalTakesANumber,
    RecallTakesTheReceived,
    WindowIsOffByOne,
    TogetherKeepsWhatWasDone,
    TurnsAreNotTaken,
    RedriveForgetsOrder,
    ReleaseCounts,
    ClockSetsNothing,
    ArrivalHastensWhatWasPutOff,
]


def shows(fault: type[MemoryStore], history: History) -> bool:
    try:
        run(history, MemoryStore(POLICIES), fault(POLICIES))
    except Difference:
        return True
    return False


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found_and_told_by_a_short_history(fault: type[MemoryStore]) -> None:
    for seed in range(HISTORIES_MAX):
        history = history_of(seed)
        if shows(fault, history):
            break
    else:
        pytest.fail(f"{fault.__name__} survived {HISTORIES_MAX} histories: {fault.__doc__}")
    short = smaller(history, lambda h: shows(fault, h))
    print(f"{fault.__name__} is shown by seed {seed}, in {len(short.steps)} steps: {short}")
    assert sum(len(step.commands) for step in short.steps) <= 8


def test_the_comparison_finds_nothing_where_nothing_was_planted() -> None:
    for seed in range(50):
        assert not shows(MemoryStore, history_of(seed))
