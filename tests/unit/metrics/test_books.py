"""The numbers of the books' turns: what their keeper says of himself, as Prometheus wants it."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry

from posthouse.mailbox.message import SECOND
from posthouse.metrics.books import FAMILIES, BooksCollector


def test_the_last_turn_that_ended_well_and_those_that_failed_are_told_as_they_stand() -> None:
    standing: dict[str, Any] = {"well_at": 1_700_000_000 * SECOND + SECOND // 2, "failed": 2, "every_s": 300.0}
    registry = CollectorRegistry()
    registry.register(BooksCollector(lambda: standing))
    assert [registry.get_sample_value(family.name) for family in FAMILIES] == [1_700_000_000.5, 2, 300]
    standing |= {"well_at": 1_700_000_600 * SECOND, "failed": 3}
    assert [registry.get_sample_value(family.name) for family in FAMILIES] == [1_700_000_600, 3, 300]
