"""Each store against memory over thousands of histories; the seed of a failure and a short history are told."""

from __future__ import annotations

import secrets

import pytest
from hypothesis import HealthCheck, given, settings
from tests.stateful.differential import Difference, run
from tests.stateful.histories import POLICIES, History, histories, history_of, smaller
from tests.stateful.replay import differences
from tests.stateful.stores import STORES, cramped, opened

from posthouse.stores.memory import MemoryStore

HISTORIES = {"memory": 100, "sqlite": 1_000}
HISTORIES_SLOW = 6_000
PARTS = 4
"""A store's histories are told in parts, so that each test stays far below the time limit."""


def part_ways(store: str, history: History) -> str | None:
    """Where the store differs from memory, from its own journal, or fails; None: nowhere."""
    sizes = history.cramped if store == "sqlite" else 0
    with cramped(sizes), opened(store) as (other, reopen):
        try:
            other = run(history, MemoryStore(POLICIES), other, reopen)
        except Difference as difference:
            return str(difference)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return "\n".join(differences(other)) or None


def check_seed(store: str, seed: int) -> None:
    history = history_of(seed)
    if part_ways(store, history) is None:
        return
    short = smaller(history, lambda h: part_ways(store, h) is not None)
    steps = "\n".join(f"    {step!r}," for step in short.steps)
    pytest.fail(
        f"seed {seed}: {part_ways(store, short)}\n\nHistory((\n{steps}\n), cramped={short.cramped})", pytrace=False
    )


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("store", STORES)
def test_outcomes_journal_and_rows_equal_those_of_memory(store: str, part: int) -> None:
    count = HISTORIES[store] // PARTS
    for seed in range(part * count, (part + 1) * count):
        check_seed(store, seed)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("store", STORES)
def test_outcomes_journal_and_rows_equal_those_of_memory_over_new_histories(store: str) -> None:
    first = secrets.randbelow(10**12)
    print(f"seeds from {first}")
    for seed in range(first, first + HISTORIES_SLOW):
        check_seed(store, seed)


@pytest.mark.parametrize("store", STORES)
@settings(
    max_examples=100,
    deadline=None,
    database=None,
    print_blob=True,
    derandomize=False,
    suppress_health_check=list(HealthCheck),
)
@given(history=histories())
def test_histories_of_hypothesis_part_no_store_from_memory(store: str, history: History) -> None:
    assert part_ways(store, history) is None
