"""Measures: what alert rules look at, read from the store and from the books.

In: a rule, a store, the place of a lake. Out: readings, one for each desk that the rule looks at. The books are read
as the last run left them, without starting Java. It changes nothing and costs the same however many messages there are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ..errors import PosthouseError
from ..mailbox.message import IN_LANE, SECOND, Instant, State
from ..mailbox.store import Store
from .rule import Measure, Rule

_SUMMED = ("delivered", "dead", "expired", "cancelled", "uncertain", "open")


class Reading(NamedTuple):
    """What a rule sees of one thing."""

    key: str
    """What tells it apart: rule, and desk where the rule looks at each."""
    desk: str | None
    value: float | None
    """None: it cannot be told."""
    trouble: str = ""
    """Why not."""


def readings(rule: Rule, store: Store, at: Instant, lake: str) -> list[Reading]:
    """What the rule sees now."""
    try:
        if rule.of_the_lake:
            return [Reading(rule.name, rule.desk, _of_the_books(rule, lake))]
        if rule.mailbox is not None:
            return [Reading(rule.name, rule.desk, _of_the_mailbox(rule, store, at))]
        return _of_the_desks(rule, store, at)
    except PosthouseError as error:
        return [Reading(rule.name, rule.desk, None, str(error))]


def _of_the_desks(rule: Rule, store: Store, at: Instant) -> list[Reading]:
    found = []
    for view in store.desks():
        if view.desk in store.policies and rule.desk in (None, view.desk):
            key = rule.name if rule.desk is not None else f"{rule.name}/{view.desk}"
            found.append(Reading(key, view.desk, _value(rule.on, view.counts, view.oldest_at, at)))
    return found


def _of_the_mailbox(rule: Rule, store: Store, at: Instant) -> float:
    assert rule.desk is not None
    assert rule.mailbox is not None
    view = store.mailbox(rule.desk, rule.mailbox)
    return 0.0 if view is None else _value(rule.on, view.counts, view.oldest_at, at)


def _value(on: Measure, counts: Mapping[State, int], oldest_at: Instant | None, at: Instant) -> float:
    if on is Measure.DEPTH:
        return sum(counts.get(state, 0) for state in IN_LANE)
    if on is Measure.DEAD:
        return counts.get(State.DEAD, 0)
    assert on is Measure.AGE
    return 0.0 if oldest_at is None else max(0, at - oldest_at) / SECOND


def _of_the_books(rule: Rule, place: str) -> float:
    from ..pipeline.digest import of_findings
    from ..pipeline.lake import Lake, Selection

    lake = Lake(place)
    only = Selection(equal={} if rule.desk is None else {"desk": rule.desk})
    if rule.on is Measure.FINDINGS:
        # A lake in which nothing was found yet has no such table.
        return float(lake.count("anomalies", of_findings(only))) if "anomalies" in lake.tables() else 0.0
    rows: list[dict[str, Any]] = lake.sums("books", ("desk",), ("posted", *_SUMMED, "remainder"), only)
    return float(sum(abs(row["posted"] - sum(row[name] for name in _SUMMED)) + row["remainder"] for row in rows))
