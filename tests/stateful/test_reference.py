"""Memory is what others are compared with, so it is compared with plain sense: what must hold after any step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from tests.stateful.differential import run
from tests.stateful.histories import POLICIES, history_of

from posthouse.mailbox.command import Command, Lease, Together
from posthouse.mailbox.message import FINISHED, IN_FLIGHT, IN_LANE, SET_ASIDE, State
from posthouse.mailbox.outcome import Outcome
from posthouse.mailbox.policy import Policy
from posthouse.stores.memory import MemoryStore


class WatchedStore(MemoryStore):
    """Memory that looks at itself after each batch."""

    def __init__(self, policies: Mapping[str, Policy]) -> None:
        super().__init__(policies)
        self.ahead: set[tuple[str, str | None, str]] = set()
        """Lanes that were leased from by name, for which no window was asked."""

    def apply(self, commands: Sequence[Command]) -> list[Outcome]:
        for command in commands:
            for single in command.commands if isinstance(command, Together) else (command,):
                if isinstance(single, Lease) and single.lane is not None:
                    self.ahead.add((single.desk, single.mailbox, single.lane))
        outcomes = super().apply(commands)
        self.look_at_indexes()
        self.look_at_entries()
        return outcomes

    def look_at_indexes(self) -> None:
        """What follows from the entries does so, also after something was undone."""
        entries = [entry for entry in self._entries.values() if not entry.memory]
        counts = Counter((e.message.desk, e.message.mailbox, e.state) for e in entries)
        assert counts == {(*box, state): n for box, states in self._counts.items() for state, n in states.items()}
        in_lane: dict[tuple[str, str, str], list[int]] = {}
        for e in sorted(entries, key=lambda e: e.number):
            if e.state in IN_LANE:
                in_lane.setdefault((e.message.desk, e.message.mailbox, e.message.lane), []).append(e.seq)
        assert in_lane == {
            (desk, mailbox, lane): [seq for seq, _ in members]
            for desk, mailboxes in self._in_lane.items()
            for mailbox, lanes in mailboxes.items()
            for lane, members in lanes.items()
        }
        held = {(e.message.desk, e.token, e.message.ref) for e in entries if e.state in IN_FLIGHT}
        assert held == {(*key, ref) for key, refs in self._held.items() for ref in refs}
        assert self._ends == sorted(e.due_at or e.lease_ends_at or 0 for e in entries if e.due_at or e.lease_ends_at)

    def look_at_entries(self) -> None:
        """No message is in a state that cannot be, and no bound is passed."""
        for e in self._entries.values():
            policy = POLICIES[e.message.desk]
            assert (e.token is not None) == (e.state in IN_FLIGHT)
            assert (e.since is not None) == (e.state in FINISHED | SET_ASIDE)
            assert e.state is State.READY or not e.due_at
            assert not e.memory or e.state in FINISHED
            if e.state is State.READY and policy.attempts_max is not None:
                assert e.attempts < policy.attempts_max
            assert e.seq <= self._lanes[e.message.desk, e.message.mailbox, e.message.lane].last_seq
        for key, flying in self._flying.items():
            policy = POLICIES[key[0]]
            if policy.window_per_lane is not None and not policy.quiet_s and key not in self.ahead:
                assert flying <= policy.window_per_lane
        for (desk, _), states in self._counts.items():
            parked_max = POLICIES[desk].parked_max
            assert parked_max is None or states.get(State.PARKED, 0) <= parked_max


def test_nothing_impossible_is_in_memory_after_any_step() -> None:
    for seed in range(700_000, 700_300):
        run(history_of(seed), WatchedStore(POLICIES), MemoryStore(POLICIES))
