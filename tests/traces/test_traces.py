"""Traces reach a real collector over HTTP, and one that is slow, broken or away holds up nobody."""

from __future__ import annotations

import asyncio
import logging
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.gateway.conftest import House as Gateways
from tests.gateway.test_courier import Script
from tests.traces.collector import Collector, attributes
from tests.unit.cli.house import House

from posthouse.engine.engine import Engine
from posthouse.errors import ConfigError
from posthouse.gateway.handlers.function import echo
from posthouse.gateway.letter import Inbound
from posthouse.mailbox.command import Lease, Post, Settle, Verdict
from posthouse.mailbox.message import Message, Ref
from posthouse.mailbox.policy import PRESETS
from posthouse.stores.memory import MemoryStore
from posthouse.traces import export as module
from posthouse.traces.export import Export
from posthouse.traces.service import Traces, headers_of
from posthouse.traces.span import Span, trace_of

ABOUT = {"service.name": "posthouse", "service.version": "1", "service.instance.id": "n1"}


@pytest.fixture
def engine() -> Iterator[Engine]:
    with Engine(MemoryStore(PRESETS, node="n1")) as engine:
        yield engine


async def deliver(engine: Engine, *ids: str) -> None:
    for id in ids:
        await engine.do(Post(Message("outbound", "net/default", id, b"x", kind="message")))
        await engine.do(Lease("outbound", "net/default", id, "courier"))
        await engine.do(Settle(Ref("outbound", "net/default", "", id), id, Verdict.DELIVERED))


def test_a_collector_is_told_of_messages_in_its_own_format(engine: Engine) -> None:
    async def case() -> None:
        async with Collector() as collector:
            traces = Traces(engine, Export(collector.url, {"x-key": "k1"}, ABOUT, 1_000, 0.02), 1.0, every_s=0.02)
            traces.start()
            await deliver(engine, "m1")
            await collector.until(lambda c: len(c.spans) == 2)
            attempt, whole = collector.spans
            assert whole.trace_id == attempt.trace_id == trace_of("m1").to_bytes(16, "big")
            assert attempt.parent_span_id == whole.span_id
            assert (whole.name, attempt.name) == ("outbound message", "outbound message attempt")
            assert attributes(whole)["messaging.message.id"] == "m1"
            assert attributes(whole)["posthouse.outcome"] == "delivered"
            (view,) = engine.store.find("m1")
            assert whole.start_time_unix_nano == view.posted_at * 1_000
            assert view.since is not None
            assert whole.end_time_unix_nano == view.since * 1_000
            assert collector.resources[0] == ABOUT
            (request,) = collector.requests[:1]
            assert request["x-key"] == "k1"
            assert request["Content-Encoding"] == "gzip"
            await traces.close()
            await traces.close()
            assert (traces.export.sent, traces.export.failed, traces.export.dropped) == (2, 0, 0)

    asyncio.run(case())


def test_what_happened_before_the_end_is_told_at_the_end(engine: Engine) -> None:
    async def case() -> None:
        async with Collector() as collector:
            traces = Traces(engine, Export(collector.url, {}, ABOUT, 1_000, 600.0), 1.0, every_s=600.0)
            traces.start()
            await deliver(engine, *(f"m{n}" for n in range(10)))
            await traces.close()
            assert len(collector.spans) == 20

    asyncio.run(case())


def test_a_collector_that_hangs_holds_up_neither_messages_nor_the_end(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "TIMEOUT_S", 0.5)
    monkeypatch.setattr(module, "CLOSE_S", 0.2)

    async def case() -> None:
        async with Collector() as collector:
            collector.stuck = asyncio.Event()
            traces = Traces(engine, Export(collector.url, {}, ABOUT, 10, 0.01), 1.0, every_s=0.01)
            traces.start()
            await deliver(engine, "first")
            await collector.until(lambda c: len(c.requests) == 1)
            begun = time.monotonic()
            await deliver(engine, *(f"m{n}" for n in range(100)))
            # Far less than as many time-outs as there are requests.
            assert time.monotonic() - begun < 20
            await traces.close()
            assert time.monotonic() - begun < 30
            export = traces.export
            # What it was at ends with its time-out.
            await asyncio.to_thread(export._thread.join, 30)
            collector.stuck.set()
            assert export.dropped + export.failed + len(export._queue) == 2 * 101
            assert export.dropped > 100, "ten may wait"

    asyncio.run(case())


def test_failures_are_said_once_and_so_is_their_end(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def case() -> None:
        async with Collector(400, 400) as collector:
            export = Export(collector.url, {}, ABOUT, 1_000, 0.01)
            export.start()
            for number in range(3):
                export.add([Span(1, number + 1, None, "x", 1, 2, {})])
                await collector.until(lambda c, n=number: len(c.requests) == n + 1)  # type: ignore[misc]
            await collector.until(lambda c: len(c.spans) == 1)
            await asyncio.to_thread(export.close)
            assert (export.sent, export.failed) == (1, 2)

    asyncio.run(case())
    said = [record.getMessage() for record in caplog.records if record.name == "posthouse.traces"]
    assert len(said) == 2
    assert "are not taken by http://127.0.0.1:" in said[0]
    assert "400" in said[0]
    assert "taken again" in said[1]
    assert not logging.getLogger("opentelemetry.exporter").propagate, "the library's own words go no further"


def test_headers_that_are_none_are_refused_without_showing_them() -> None:
    assert headers_of("") == {}
    assert headers_of("a=b, authorization=Bearer x=y,") == {"a": "b", "authorization": "Bearer x=y"}
    for wrong in ("secret", "=secret", "naïve=x", "a=sec\x00ret"):
        with pytest.raises(ConfigError) as caught:
            headers_of(wrong)
        assert "sec" not in str(caught.value)


def test_an_answer_is_followed_from_what_came_to_what_was_sent(tmp_path: Path) -> None:
    async def case() -> None:
        async with Collector() as collector, Gateways(tmp_path / "g.db").gateway(Script(), handler=echo) as gateway:
            traces = Traces(gateway.engine, Export(collector.url, {}, ABOUT, 1_000, 0.02), 1.0, every_s=0.02)
            traces.start()
            await gateway.engine.do(Inbound("m1", "net", "chat", "ann", "hello").post())
            await collector.until(lambda c: len(c.spans) == 4)
            await traces.close()
            wholes = [span for span in collector.spans if not span.name.endswith("attempt")]
            came, sent = sorted(wholes, key=lambda span: span.start_time_unix_nano)
            assert (came.name, sent.name) == ("inbound message", "outbound message")
            assert {span.trace_id for span in collector.spans} == {trace_of("m1").to_bytes(16, "big")}
            assert sent.parent_span_id == came.span_id
            assert attributes(sent)["messaging.destination.name"] == "net/default"

    asyncio.run(case())


def test_a_server_tells_a_collector_where_one_is_configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    house = House(tmp_path)
    monkeypatch.chdir(tmp_path)

    async def case() -> None:
        async with Collector() as collector:
            loop = asyncio.get_running_loop()

            def talk() -> None:
                words = ("--set", f"traces.endpoint={collector.url}", "--set", "traces.headers=x-key=k1", "--no-relay")
                with house.up(*words) as (_, summary):
                    house.run("message", "post", "ann", "--desk", "outbox", "--id", "m1", "--body", "x")
                    house.run("message", "cancel", "m1", "--yes")
                    told = collector.until(lambda c: bool(c.spans))
                    asyncio.run_coroutine_threadsafe(told, loop).result(60)
                    with urllib.request.urlopen(summary["metrics"], timeout=30) as page:
                        assert b'posthouse_traces_spans_total{result="failed"} 0.0' in page.read()

            await asyncio.to_thread(talk)
            (span,) = collector.spans
            assert attributes(span)["posthouse.outcome"] == "cancelled"
            assert attributes(span)["posthouse.reason"] == "operator"
            assert collector.requests[0]["x-key"] == "k1"
            assert collector.resources[0]["service.name"] == "posthouse"

    asyncio.run(case())
