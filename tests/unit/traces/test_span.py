"""Spans are what the journal says: on a real engine, with retries, answers, refusals and redrives."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from posthouse.engine.engine import Engine
from posthouse.mailbox.command import Filter, Lease, Park, Post, Redrive, Settle, Together, Unpark, Verdict
from posthouse.mailbox.event import Event
from posthouse.mailbox.message import Message, Ref
from posthouse.mailbox.policy import PRESETS, ladder
from posthouse.stores.memory import MemoryStore
from posthouse.traces import span as module
from posthouse.traces.span import Known, Span, Spans, trace_of

POLICIES = {
    **PRESETS,
    "inbound": PRESETS["inbound"].replace(retry=ladder(0.0), attempts_max=2, capacity=3),
}


@pytest.fixture
def engine() -> Iterator[Engine]:
    with Engine(MemoryStore(POLICIES, node="n1")) as engine:
        yield engine


class Listener:
    """Tells spans of what an engine does."""

    def __init__(self, engine: Engine, sample: float = 1.0) -> None:
        self._engine = engine
        self._after = engine.store.offset()
        self.spans = Spans("n1", self._known, sample)

    def _known(self, ref: Ref) -> Known | None:
        found = self._engine.store.message(ref)
        return None if found is None else Known(found.posted_at, found.message.cause)

    def events(self) -> list[Event]:
        found = [event for _, _, event in self._engine.store.events(self._after)]
        self._after = self._engine.store.offset()
        return found

    def take(self) -> list[Span]:
        self.spans.turn()
        return self.spans.take(self.events())


def post(id: str, desk: str = "inbound", cause: str | None = None, kind: str = "talk") -> Post:
    return Post(
        Message(desk, "ann", id, b"secret words", sender="bob", kind=kind, cause=cause, headers={"h": "hidden"})
    )


def settle(id: str, verdict: Verdict, desk: str = "inbound", error: str | None = None) -> Settle:
    return Settle(Ref(desk, "ann", "bob", id), "t", verdict, error=error)


def lease(desk: str = "inbound") -> Lease:
    return Lease(desk, "ann", "t", "worker-1", limit=1)


def test_a_message_is_a_span_with_its_attempts_below_it(engine: Engine) -> None:
    listener = Listener(engine)
    engine.call(post("m1"))
    assert listener.take() == [], "it has not ended"
    engine.call(lease(), settle("m1", Verdict.RETRY, error="no answer"))
    engine.call(lease(), settle("m1", Verdict.DELIVERED))
    first, second, whole = listener.take()
    assert {first.trace, second.trace, whole.trace} == {trace_of("m1")}
    assert (first.parent, second.parent, whole.parent) == (whole.id, whole.id, None)
    assert len({first.id, second.id, whole.id}) == 3
    assert (whole.name, first.name) == ("inbound talk", "inbound talk attempt")
    assert (first.error, second.error, whole.error) == ("no answer", None, None)
    assert whole.begun <= first.begun <= first.ended <= second.begun <= second.ended == whole.ended
    assert whole.attributes == {
        "messaging.system": "posthouse",
        "messaging.message.id": "m1",
        "messaging.destination.name": "ann",
        "posthouse.node": "n1",
        "posthouse.desk": "inbound",
        "posthouse.lane_seq": 1,
        "posthouse.kind": "talk",
        "posthouse.outcome": "delivered",
        "posthouse.attempts": 2,
    }
    assert first.attributes["posthouse.holder"] == "worker-1"
    assert (first.attributes["posthouse.attempt"], first.attributes["posthouse.ended"]) == (1, "retried")
    assert [(point.name, point.attributes["posthouse.reason"]) for point in whole.points] == [("retried", "failed")]
    assert "secret" not in repr((first, second, whole))
    assert "hidden" not in repr((first, second, whole))


def test_an_answer_is_in_the_trace_of_what_it_answers_and_so_is_its_own(engine: Engine) -> None:
    listener = Listener(engine)
    engine.call(post("m1"), lease())
    engine.call(Together((post("r1", "outbound", cause="m1"), settle("m1", Verdict.DELIVERED))))
    engine.call(lease("outbound"), settle("r1", Verdict.DELIVERED, "outbound"))
    engine.call(post("r2", "outbox", cause="r1"), lease("outbox"), settle("r2", Verdict.DELIVERED, "outbox"))
    found = {span.attributes["messaging.message.id"]: span for span in listener.take() if "attempt" not in span.name}
    assert {span.trace for span in found.values()} == {trace_of("m1")}
    assert [found[id].parent for id in ("m1", "r1", "r2")] == [None, found["m1"].id, found["r1"].id]


def test_the_same_id_in_another_process_is_the_same_trace(engine: Engine) -> None:
    with Engine(MemoryStore(POLICIES, node="n2")) as other:
        here, there = Listener(engine), Listener(other)
        for each in (engine, other):
            each.call(post("m1", "relay"), lease("relay"), settle("m1", Verdict.DELIVERED, "relay"))
        one, two = here.take(), there.take()
    assert {span.trace for span in one} == {span.trace for span in two} == {trace_of("m1")}


def test_what_is_refused_or_known_is_a_span_without_length(engine: Engine) -> None:
    listener = Listener(engine)
    engine.call(*(post(f"m{n}") for n in range(4)), post("m0"))
    refused, known = listener.take()
    assert (refused.name, refused.error, refused.begun) == ("inbound talk refused", "full", refused.ended)
    assert (refused.trace, refused.attributes["posthouse.reason"]) == (trace_of("m3"), "full")
    assert (known.name, known.error, known.trace) == ("inbound talk duplicate", None, trace_of("m0"))


def test_deaths_and_new_lives_are_told(engine: Engine) -> None:
    listener = Listener(engine)
    engine.call(post("m1"), lease(), settle("m1", Verdict.REJECTED, error="never"))
    engine.call(Redrive(Filter("inbound")))
    engine.call(Park(Ref("inbound", "ann", "bob", "m1")))
    engine.call(Unpark(Filter("inbound")), lease(), settle("m1", Verdict.DELIVERED))
    _, dead, _, delivered = listener.take()
    assert (dead.error, dead.attributes["posthouse.outcome"]) == ("never", "died")
    assert dead.trace == delivered.trace
    assert dead.id != delivered.id
    assert [point.name for point in delivered.points] == ["redriven", "parked", "unparked"]
    assert delivered.begun >= dead.ended


def test_what_was_posted_before_it_listened_begins_with_its_post(engine: Engine) -> None:
    engine.call(post("m1", cause="m0"))
    listener = Listener(engine)
    engine.call(lease(), settle("m1", Verdict.DELIVERED))
    _, whole = listener.take()
    (view,) = engine.store.find("m1")
    assert (whole.begun, whole.trace) == (view.posted_at, trace_of("m0"))


def test_a_share_of_traces_is_told_whole(engine: Engine) -> None:
    listener = Listener(engine, sample=0.5)
    for n in range(100):
        engine.call(post(f"m{n}"), lease())
        engine.call(Together((post(f"r{n}", "outbound", cause=f"m{n}"), settle(f"m{n}", Verdict.DELIVERED))))
        engine.call(lease("outbound"), settle(f"r{n}", Verdict.DELIVERED, "outbound"))
    found = listener.take()
    traces = {span.trace for span in found}
    assert 25 < len(traces) < 75
    assert len(found) == 4 * len(traces), "two messages with an attempt each"
    assert Listener(engine, sample=0.0).spans.take([Event(1, "refused", "relay", message_id="x")]) == []


@pytest.mark.parametrize("limit", ["OPEN_MAX", "LOOKUPS_MAX"])
def test_what_is_remembered_is_bounded(engine: Engine, monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    monkeypatch.setattr(module, limit, 2)
    listener = Listener(engine)
    for n in range(10):
        engine.call(post(f"m{n}", "outbox"))
    listener.take()
    assert len(listener.spans._open) == (2 if limit == "OPEN_MAX" else 10)
    assert len(listener.spans._causes) == len(listener.spans._open)
    for n in range(10):
        engine.call(Lease("outbox", "ann", "t", limit=1), settle(f"m{n}", Verdict.DELIVERED, "outbox"))
    assert len(listener.take()) == 20
    assert not listener.spans._open


def test_points_and_texts_are_bounded(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "POINTS_MAX", 3)

    def told(at: int, name: str) -> Event:
        return Event(at, name, "relay", "ann", "", 1, "m1", error="e" * 10_000)

    spans = Spans("n1", lambda ref: None)
    events = [told(1, "posted"), *(told(n, "retried") for n in range(2, 20)), told(20, "died")]
    (whole,) = spans.take(events)
    assert len(whole.points) == 3
    assert len(str(whole.attributes["posthouse.error"])) == len(whole.error or "") == module.TEXT_MAX
