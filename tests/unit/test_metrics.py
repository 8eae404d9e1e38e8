"""The registry and its endpoint: right numbers, bounded labels, bounded requests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

import pytest
from prometheus_client import Counter
from prometheus_client.parser import text_string_to_metric_families

from posthouse.engine.engine import Engine
from posthouse.errors import ConfigError, StoreUnavailable
from posthouse.mailbox.command import Filter, Lease, Note, Post, Redrive, Settle, Verdict
from posthouse.mailbox.message import Message, Ref
from posthouse.mailbox.policy import PRESETS
from posthouse.metrics import Metrics, MetricsServer, endpoint
from posthouse.stores.memory import MemoryStore

T = TypeVar("T")


@pytest.fixture
def engine() -> Iterator[Engine]:
    small = PRESETS["relay"].replace(capacity=2)
    with Engine(MemoryStore({**PRESETS, "relay": small})) as engine:
        yield engine


@pytest.fixture
def metrics(engine: Engine) -> Metrics:
    return Metrics(engine)


def values(metrics: Metrics) -> dict[tuple[str, tuple[str, ...]], float]:
    """Every sample by its name and its label's values."""
    page = metrics.page().decode()
    return {
        (sample.name, tuple(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def test_depth_age_and_mailboxes_are_told_per_desk(engine: Engine, metrics: Metrics) -> None:
    engine.call(*(Post(Message("inbound", f"box{i % 2}", f"m{i}")) for i in range(3)))
    found = values(metrics)
    assert found["posthouse_messages", ("inbound", "ready")] == 3
    assert found["posthouse_messages", ("relay", "ready")] == 0
    assert found["posthouse_mailboxes", ("inbound",)] == 2
    assert found["posthouse_oldest_age_seconds", ("inbound",)] >= 0
    assert found["posthouse_oldest_age_seconds", ("relay",)] == 0
    assert found["posthouse_up", ()] == 1


def test_outcomes_and_events_are_counted_with_their_reasons(engine: Engine, metrics: Metrics) -> None:
    engine.call(*(Post(Message("relay", "a", id)) for id in ("m1", "m2", "m3", "m1")))
    engine.call(*(Post(Message("inbound", "a", id)) for id in ("d1", "d2")))
    for id, verdict in (("d1", Verdict.DELIVERED), ("d2", Verdict.REJECTED)):
        engine.call(Lease("inbound", "a", id), Settle(Ref("inbound", "a", "", id), id, verdict))
    engine.call(Redrive(Filter("inbound")))
    found = values(metrics)
    assert found["posthouse_outcomes_total", ("relay", "posted")] == 2
    assert found["posthouse_outcomes_total", ("relay", "duplicate")] == 1
    assert found["posthouse_outcomes_total", ("relay", "refused_full")] == 1
    assert found["posthouse_outcomes_total", ("inbound", "delivered")] == 1
    assert found["posthouse_events_total", ("relay", "refused", "full")] == 1
    assert found["posthouse_events_total", ("inbound", "died", "rejected")] == 1
    assert found["posthouse_events_total", ("inbound", "delivered", "")] == 1
    assert found["posthouse_events_total", ("inbound", "redriven", "")] == 1
    assert values(metrics)["posthouse_events_total", ("relay", "posted", "")] == 2, "counted once"


def test_commits_are_told_as_histograms(engine: Engine, metrics: Metrics) -> None:
    before = values(metrics)["posthouse_commit_commands_count", ()]
    engine.call(*(Post(Message("inbound", "a", f"m{i}")) for i in range(7)))
    found = values(metrics)
    # The sweeper may have committed meanwhile, too.
    assert found["posthouse_commit_commands_count", ()] >= before + 1
    assert found["posthouse_commit_commands_bucket", ("10.0",)] >= 1
    assert found["posthouse_commit_commands_bucket", ("+Inf",)] == found["posthouse_commit_commands_count", ()]
    assert found["posthouse_commit_seconds_sum", ()] > 0


def test_the_journals_lag_is_what_no_segment_holds(engine: Engine, metrics: Metrics) -> None:
    engine.call(Post(Message("inbound", "a", "m1")))
    found = values(metrics)
    assert found["posthouse_journal_lag_events", ()] == found["posthouse_journal_offset", ()] == 2
    segment = engine.maintain(lambda store: store.plan_segment(2))
    engine.maintain(lambda store: store.finish_segment(segment._replace(chain="c" * 64)))
    assert values(metrics)["posthouse_journal_lag_events", ()] == 0


def test_events_that_are_trimmed_after_catching_up_stay_counted(engine: Engine, metrics: Metrics) -> None:
    engine.call(Post(Message("inbound", "a", "m1")))
    metrics.catch_up()
    segment = engine.maintain(lambda store: store.plan_segment(2))
    engine.maintain(lambda store: store.finish_segment(segment._replace(chain="c" * 64)))
    engine.call(Post(Message("inbound", "a", "m2")))
    assert values(metrics)["posthouse_events_total", ("inbound", "posted", "")] == 2


def test_labels_are_bounded_whatever_is_posted(engine: Engine) -> None:
    store = engine.store
    assert isinstance(store, MemoryStore)
    engine.call(*(Post(Message("outbox", f"box{i}", f"m{i}", kind=f"k{i}", sender=f"s{i}")) for i in range(50)))
    metrics = Metrics(engine)
    before = len(values(metrics))
    engine.call(*(Post(Message("outbox", f"other{i}", f"m{i}", kind=f"k{i}")) for i in range(50)))
    engine.call(*(Note("refused", "outbox", mailbox=f"x{i}", reason="spoofed", sender=f"s{i}") for i in range(50)))
    page = metrics.page().decode()
    assert not any(word in page for word in ("box1", "other1", 'k1"', 's1"', 'm1"'))
    # One series for each of the two events, and one for the outcome.
    assert len(values(metrics)) <= before + 8
    store.policies = {name: p for name, p in store.policies.items() if name != "outbox"}
    assert values(Metrics(engine))["posthouse_messages", ("other", "ready")] == 100


def test_desk_names_with_quotes_and_backslashes_are_read_right(engine: Engine) -> None:
    name = 'a"b\\c'
    policies = {**PRESETS, name: PRESETS["inbound"].replace(name=name)}
    with Engine(MemoryStore(policies)) as odd:
        metrics = Metrics(odd)
        odd.call(Post(Message(name, "a", "m1")), Post(Message("inbound", 'x","y', "m1")))
        found = values(metrics)
    assert found["posthouse_events_total", ("inbound", "posted", "")] == 1
    assert sum(v for (n, labels), v in found.items() if n == "posthouse_events_total" and "posted" in labels) == 2


def test_a_role_adds_its_own(metrics: Metrics) -> None:
    counter = Counter("relay_frames", "Frames.", ("desk",), registry=metrics.registry)
    counter.labels(metrics.desk("relay")).inc()
    counter.labels(metrics.desk("nobody's")).inc()
    found = values(metrics)
    assert found["relay_frames_total", ("relay",)] == found["relay_frames_total", ("other",)] == 1


def test_a_stopped_engine_is_not_ready(engine: Engine, metrics: Metrics, monkeypatch: pytest.MonkeyPatch) -> None:
    assert metrics.trouble() is None
    monkeypatch.setattr(engine, "failure", lambda: StoreUnavailable("gone"))
    assert metrics.trouble() == "the engine stopped: gone"


# ---- the endpoint


Exchange = Callable[[MetricsServer, str, int], Awaitable[T]]


def serve(metrics: Metrics, exchange: Exchange[T]) -> T:
    async def work() -> T:
        server = MetricsServer(metrics, "127.0.0.1", 0)
        await server.start()
        host, port = server.address.removeprefix("http://").split(":")
        try:
            async with asyncio.timeout(30):
                return await exchange(server, host, int(port))
        finally:
            await server.close()

    return asyncio.run(work())


def request(metrics: Metrics, data: bytes) -> tuple[int, bytes]:
    async def exchange(server: MetricsServer, host: str, port: int) -> bytes:
        reader, writer = await asyncio.open_connection(host, port)
        try:
            writer.write(data)
            await writer.drain()
            return await reader.read()
        finally:
            writer.close()

    answer = serve(metrics, exchange)
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), body


@pytest.mark.parametrize(
    ("data", "status", "expected"),
    [
        (b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", 200, b"posthouse_messages{"),
        (b"GET /metrics?x=1 HTTP/1.0\r\n\r\n", 200, b"posthouse_up 1.0"),
        (b"HEAD /metrics HTTP/1.1\r\n\r\n", 200, b""),
        (b"GET /health/live HTTP/1.1\r\n\r\n", 200, b"ok\n"),
        (b"GET /health/ready HTTP/1.1\r\n\r\n", 200, b"ok\n"),
        (b"GET / HTTP/1.1\r\n\r\n", 404, b"/metrics"),
        (b"GET /../../etc/passwd HTTP/1.1\r\n\r\n", 404, b"/metrics"),
        (b"POST /metrics HTTP/1.1\r\n\r\n", 405, b"only GET"),
        (b"nonsense\r\n\r\n", 400, b"no HTTP request"),
        (b"GET /metrics SMTP/1.1\r\n\r\n", 400, b"no HTTP request"),
        (b"\x16\x03\x01\x00\r\n\r\n", 400, b"no HTTP request"),
        (b"GET /metrics HTTP/1.1\r\n" + b"X: y\r\n" * 5_000 + b"\r\n", 431, b"too large"),
    ],
)
def test_requests_are_answered_or_refused(metrics: Metrics, data: bytes, status: int, expected: bytes) -> None:
    found, body = request(metrics, data)
    assert found == status
    assert expected in body


def test_not_ready_is_503_with_the_reason(engine: Engine, metrics: Metrics, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "failure", lambda: StoreUnavailable("gone"))
    assert request(metrics, b"GET /health/ready HTTP/1.1\r\n\r\n") == (503, b"the engine stopped: gone\n")
    assert request(metrics, b"GET /health/live HTTP/1.1\r\n\r\n") == (200, b"ok\n")


def test_a_store_that_cannot_be_read_is_500_and_no_traceback(
    engine: Engine, metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise StoreUnavailable("gone")

    monkeypatch.setattr(engine.store, "desks", fail)
    status, body = request(metrics, b"GET /metrics HTTP/1.1\r\n\r\n")
    assert (status, body) == (500, b"the store cannot be read\n")


def test_a_request_that_drips_is_cut_off(metrics: Metrics, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "REQUEST_S", 0.1)
    assert request(metrics, b"GET /metrics HT")[0] == 408


def test_more_connections_than_allowed_are_turned_away(metrics: Metrics, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "CONNECTIONS_MAX", 2)

    async def exchange(server: MetricsServer, host: str, port: int) -> bytes:
        held = [await asyncio.open_connection(host, port) for _ in range(2)]
        # The third is accepted behind the two, since a listener serves in order.
        reader, writer = await asyncio.open_connection(host, port)
        answer = await reader.read()
        for _, each in [*held, (reader, writer)]:
            each.close()
        return answer

    assert serve(metrics, exchange).startswith(b"HTTP/1.1 503 ")


def test_a_server_closes_while_a_client_holds_on(metrics: Metrics) -> None:
    async def exchange(server: MetricsServer, host: str, port: int) -> bytes:
        reader, writer = await asyncio.open_connection(host, port)
        # An answer to a second one shows that the first, which came before it, is being served.
        second_reader, second_writer = await asyncio.open_connection(host, port)
        second_writer.write(b"GET /health/live HTTP/1.1\r\n\r\n")
        assert await second_reader.read()
        second_writer.close()
        await server.close()
        rest = await reader.read()
        writer.close()
        return rest

    assert serve(metrics, exchange) == b""


def test_a_place_that_cannot_be_had_is_a_clear_error(metrics: Metrics) -> None:
    async def exchange(server: MetricsServer, host: str, port: int) -> str:
        try:
            await MetricsServer(metrics, host, port).start()
        except ConfigError as error:
            return str(error)
        return ""

    assert "it is taken (metrics.host, metrics.port)" in serve(metrics, exchange)
