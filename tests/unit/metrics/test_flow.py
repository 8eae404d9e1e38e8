"""The flow's numbers: waits, times live and stored, attempts, ends, by desk and kind, with bounded labels."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from posthouse.engine.clock import Clock
from posthouse.engine.engine import Engine
from posthouse.mailbox.command import Cancel, Lease, Park, Post, Release, Settle, Together, Verdict
from posthouse.mailbox.message import SECOND, Message, Ref
from posthouse.mailbox.policy import PRESETS, ladder
from posthouse.metrics import Metrics, flow
from posthouse.stores.memory import MemoryStore

Found = dict[tuple[str, tuple[str, ...]], float]
POLICIES = {**PRESETS, "inbound": PRESETS["inbound"].replace(retry=ladder(0.0), attempts_max=3)}


class HandClock(Clock):
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.wall_us = 1_700_000_000 * SECOND
        self.run_us = 0
        super().__init__(lambda: self.wall_us * 1_000, lambda: self.run_us * 1_000)


@pytest.fixture
def engine() -> Iterator[Engine]:
    with Engine(MemoryStore(POLICIES), clock=HandClock()) as engine:
        yield engine


@pytest.fixture
def metrics(engine: Engine) -> Metrics:
    return Metrics(engine)


def values(metrics: Metrics) -> Found:
    """Every sample by its name and its labels' values."""
    return {
        (sample.name, tuple(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(metrics.page().decode())
        for sample in family.samples
    }


def post(id: str, kind: str = "talk", desk: str = "inbound", mailbox: str = "ann") -> Post:
    return Post(Message(desk, mailbox, id, b"x", kind=kind))


def wait_s(engine: Engine, seconds: float) -> None:
    clock = engine.clock
    assert isinstance(clock, HandClock)
    clock.wall_us += int(seconds * SECOND)
    clock.run_us += int(seconds * SECOND)


def settle(id: str, verdict: Verdict = Verdict.DELIVERED, token: str = "t", desk: str = "inbound") -> Settle:
    return Settle(Ref(desk, "ann", "", id), token, verdict)


def test_wait_and_delivery_are_measured_from_the_post(engine: Engine, metrics: Metrics) -> None:
    engine.call(post("m1"))
    wait_s(engine, 20)
    engine.call(Lease("inbound", "ann", "t"))
    wait_s(engine, 25)
    engine.call(settle("m1"))
    found = values(metrics)
    assert found["posthouse_wait_seconds_sum", ("inbound", "talk")] == 20
    assert found["posthouse_wait_seconds_bucket", ("inbound", "talk", "10.0")] == 0
    assert found["posthouse_wait_seconds_bucket", ("inbound", "talk", "30.0")] == 1
    assert found["posthouse_delivery_seconds_sum", ("inbound", "talk", "stored")] == 45
    assert found["posthouse_delivery_seconds_count", ("inbound", "talk", "stored")] == 1
    assert ("posthouse_delivery_seconds_count", ("inbound", "talk", "live")) not in found
    assert found["posthouse_ended_total", ("inbound", "talk", "delivered")] == 1
    assert found["posthouse_attempts_sum", ("inbound", "talk")] == 1
    assert found["posthouse_untimed_total", ()] == 0
    assert values(metrics)["posthouse_wait_seconds_count", ("inbound", "talk")] == 1, "counted once"


def test_what_is_leased_with_its_post_is_delivered_live(engine: Engine, metrics: Metrics) -> None:
    engine.call(post("m1"), Lease("inbound", "ann", "t"))
    wait_s(engine, 2)
    engine.call(settle("m1"))
    found = values(metrics)
    assert found["posthouse_delivery_seconds_sum", ("inbound", "talk", "live")] == 2
    assert found["posthouse_wait_seconds_sum", ("inbound", "talk")] == 0


def test_a_live_lease_that_came_to_nothing_makes_it_stored(engine: Engine, metrics: Metrics) -> None:
    engine.call(post("m1", desk="relay"), Lease("relay", "ann", "t"))
    engine.call(Release("relay", "t"))
    wait_s(engine, 3)
    engine.call(Lease("relay", "ann", "u"), settle("m1", token="u", desk="relay"))
    found = values(metrics)
    assert found["posthouse_delivery_seconds_sum", ("relay", "talk", "stored")] == 3
    assert found["posthouse_wait_seconds_count", ("relay", "talk")] == 1, "the first lease counts"
    assert found["posthouse_acknowledgements_total", ("relay", "talk", "ok")] == 1
    assert found["posthouse_acknowledgements_total", ("relay", "talk", "failed")] == 0, "leaving is no failure"


def test_failures_retries_and_ends_are_told_by_kind(engine: Engine, metrics: Metrics) -> None:
    engine.call(post("m1"), post("m2", kind="bill", mailbox="bob"), post("m3"), post("m4"))
    for _ in range(3):
        engine.call(Lease("inbound", "ann", "t", limit=1), settle("m1", Verdict.RETRY))
    engine.call(Lease("inbound", "ann", "t", limit=1), settle("m3", Verdict.REJECTED))
    engine.call(Park(Ref("inbound", "ann", "", "m4")), Cancel(Ref("inbound", "bob", "", "m2")))
    found = values(metrics)
    assert found["posthouse_ended_total", ("inbound", "talk", "died")] == 2
    assert found["posthouse_ended_total", ("inbound", "talk", "parked")] == 1
    assert found["posthouse_ended_total", ("inbound", "bill", "cancelled")] == 1
    assert found["posthouse_acknowledgements_total", ("inbound", "talk", "failed")] == 4
    assert found["posthouse_acknowledgements_total", ("inbound", "talk", "ok")] == 0
    assert found["posthouse_attempts_bucket", ("inbound", "talk", "1.0")] == 1
    assert found["posthouse_attempts_bucket", ("inbound", "talk", "3.0")] == 2
    assert found["posthouse_attempts_sum", ("inbound", "bill")] == 0


def test_what_was_posted_before_the_start_is_asked_of_the_store(engine: Engine) -> None:
    engine.call(post("m1"))
    wait_s(engine, 100)
    metrics = Metrics(engine)
    engine.call(Lease("inbound", "ann", "t"))
    wait_s(engine, 20)
    engine.call(settle("m1"))
    found = values(metrics)
    assert found["posthouse_wait_seconds_sum", ("inbound", "talk")] == 100
    assert found["posthouse_delivery_seconds_sum", ("inbound", "talk", "stored")] == 120


def test_what_nobody_remembers_is_counted_as_untimed(
    engine: Engine, metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flow, "OPEN_MAX", 1)
    monkeypatch.setattr(flow, "LOOKUPS_MAX", 1)
    engine.call(post("m1"), post("m2"), post("m3"), post("m4"))
    metrics.catch_up()
    engine.call(
        *(Together((Lease("inbound", "ann", f"t{n}", limit=1), settle(f"m{n}", token=f"t{n}"))) for n in range(1, 5))
    )
    found = values(metrics)
    assert found["posthouse_ended_total", ("inbound", "talk", "delivered")] == 4
    # One was remembered, one asked for.
    assert found["posthouse_delivery_seconds_count", ("inbound", "talk", "stored")] == 2
    assert found["posthouse_untimed_total", ()] == 2


def test_kinds_past_the_limit_and_long_ones_are_one(engine: Engine, metrics: Metrics) -> None:
    kinds = [f"kind-{n}" for n in range(100)] + ["k" * 100, "other"]
    engine.call(*(post(f"m{n}", kind=kind, mailbox=f"box{n}") for n, kind in enumerate(kinds)))
    engine.call(*(Cancel(Ref("inbound", f"box{n}", "", f"m{n}")) for n in range(len(kinds))))
    found = {labels: value for (name, labels), value in values(metrics).items() if name == "posthouse_ended_total"}
    assert sum(found.values()) == 102
    assert len(found) == flow.KINDS_MAX + 1
    assert found["inbound", "other", "cancelled"] == 102 - flow.KINDS_MAX
    assert found["inbound", "kind-0", "cancelled"] == 1


def test_desks_that_are_not_configured_are_one(engine: Engine) -> None:
    store = engine.store
    assert isinstance(store, MemoryStore)
    metrics = Metrics(engine)
    metrics._desks = frozenset({"relay"})
    engine.call(post("m1"), post("m2", desk="outbox"))
    engine.call(Cancel(Ref("inbound", "ann", "", "m1")), Cancel(Ref("outbox", "ann", "", "m2")))
    assert values(metrics)["posthouse_ended_total", ("other", "talk", "cancelled")] == 2


def test_a_clock_that_went_back_makes_no_negative_time(engine: Engine, metrics: Metrics) -> None:
    engine.call(post("m1"))
    clock = engine.clock
    assert isinstance(clock, HandClock)
    clock.wall_us -= 50 * SECOND
    engine.call(Lease("inbound", "ann", "t"), settle("m1"))
    assert values(metrics)["posthouse_delivery_seconds_sum", ("inbound", "talk", "stored")] == 0


def test_the_journals_lag_is_told_in_seconds_too(engine: Engine, metrics: Metrics) -> None:
    wait_s(engine, 30)
    assert values(metrics)["posthouse_journal_lag_seconds", ()] == 30
    segment = engine.maintain(lambda store: store.plan_segment(store.offset()))
    engine.maintain(lambda store: store.finish_segment(segment._replace(chain="c" * 64)))
    assert values(metrics)["posthouse_journal_lag_seconds", ()] == 0
