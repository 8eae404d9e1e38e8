"""The relay's core under random agents, crashes, cuts, slow readers and clocks that jump.

A seed that fails prints itself; ``Story(seed).run()`` repeats it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.simulation.story import Broken, Story

from posthouse.mailbox.command import Settle, Verdict
from posthouse.mailbox.policy import RELAY
from posthouse.relay import outflow
from posthouse.relay.house import House
from posthouse.relay.outflow import Outflow, Stage
from posthouse.relay.receipts import Receipts, Sent
from posthouse.stores.sqlite import SqliteStore

BLOCK = 25
FAST_SEEDS = 150
SLOW_SEEDS = 4_000
PLANTED_SEEDS = 60
POLICY = {"capacity": 40, "ttl_s": 90.0}


@pytest.mark.parametrize("first", range(0, FAST_SEEDS, BLOCK))
def test_every_accepted_message_is_delivered_expired_or_parked_in_order(first: int) -> None:
    for seed in range(first, first + BLOCK):
        Story(seed).run()


def run_on_sqlite(seed: int, folder: Path) -> None:
    policies = {"relay": RELAY.replace(**POLICY)}
    # Unsynced: what is tested here is not the disk.
    store = SqliteStore.open(folder / f"{seed}.db", policies, node="sim", synchronous="OFF")
    try:
        Story(seed, store, POLICY).run()
    finally:
        store.close()


def test_the_same_holds_on_the_embedded_store(tmp_path: Path) -> None:
    for seed in range(20):
        run_on_sqlite(seed, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(10_000, 10_000 + SLOW_SEEDS, 500))
def test_thousands_of_seeds(first: int) -> None:
    for seed in range(first, first + 500):
        Story(seed).run()


@pytest.mark.slow
def test_hundreds_of_seeds_on_the_embedded_store(tmp_path: Path) -> None:
    for seed in range(1_000, 1_400):
        run_on_sqlite(seed, tmp_path)


# Faults planted on purpose: the simulation must find each of them.


def live_goes_ahead_of_what_is_queued(self: Outflow, size_bytes: int) -> None:
    if self.stage is Stage.FLUSHING and self._flush is not None:
        self._posts += 1
        self._reserved += 1
        self._house.submissions.want_lease(self)
    else:
        EXPECT(self, size_bytes)


def messages_are_removed_when_received(self: Outflow, received: list[Sent]) -> None:
    for sent in received:
        self._house.submissions.add(Settle(sent.ref, self._session.token, Verdict.DELIVERED), self._settled)


def everything_was_live(self: Receipts, ref: Any) -> Any:
    known = CONFIRMED(self, ref)
    return None if known is None else (True, known[1])


def nothing_is_given_back(self: House, address: str, release: Any) -> None:
    pass


def a_lease_of_who_has_left(self: Outflow) -> None:
    """It stays wanted, and is submitted behind the release."""
    self.stage = Stage.ENDED
    self._leasing = True
    self._house.submissions.want_lease(self)


def one_too_many_is_announced(pending_count: int) -> bytes:
    return STATUS(pending_count + 1)


EXPECT, CONFIRMED, STATUS = Outflow.expect, Receipts.confirmed, outflow.queue_status


@pytest.mark.parametrize(
    ("where", "name", "fault"),
    [
        (Outflow, "expect", live_goes_ahead_of_what_is_queued),
        (Outflow, "_receive", messages_are_removed_when_received),
        (Outflow, "end", a_lease_of_who_has_left),
        (outflow, "queue_status", one_too_many_is_announced),
        (Receipts, "confirmed", everything_was_live),
        (House, "_release", nothing_is_given_back),
    ],
)
def test_a_planted_fault_is_found(where: Any, name: str, fault: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(where, name, fault)
    with pytest.raises(Broken, match="seed"):
        run_seeds(PLANTED_SEEDS)


def run_seeds(n: int) -> None:
    for seed in range(n):
        Story(seed).run()
