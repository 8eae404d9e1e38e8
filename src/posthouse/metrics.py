"""Metrics: a registry that every role adds to, and the HTTP endpoint that shows it.

In: at each scrape the engine's own counters, the store's counts, and the journal's chunks since the last.
Out: /metrics in Prometheus' text format, /health/live and /health/ready.
Labels are bounded: desks that are not configured count as "other", reasons that are not on the
journal's list too, and no mailbox, lane, sender or id is ever a label. Nothing can be changed from here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import threading
from collections import Counter as Tally
from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.gc_collector import GCCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from .engine.engine import Engine
from .engine.stats import Histogram
from .errors import ConfigError, StoreCorrupt, StoreError
from .journal.chunk import decode
from .mailbox.event import EVENTS, REASONS
from .mailbox.message import SECOND, State
from .mailbox.store import Chunk

OTHER = "other"

_log = logging.getLogger("posthouse.metrics")


class Metrics:
    """The registry. A role adds its own: ``registry=metrics.registry``, ``metrics.desk(…)`` as label."""

    def __init__(self, engine: Engine) -> None:
        self.registry = CollectorRegistry()
        self._engine = engine
        self._desks = frozenset(engine.store.policies)
        self._events = Counter(
            "posthouse_events",
            "State changes as the journal has them, by desk, event and reason.",
            ("desk", "event", "reason"),
            registry=self.registry,
        )
        # Counted from now on: what an earlier process did, it counted.
        self._counted = engine.store.offset()
        self._counting = threading.Lock()
        self.registry.register(_Standing(engine, self.desk))
        ProcessCollector(registry=self.registry)
        GCCollector(registry=self.registry)

    def desk(self, name: str) -> str:
        """The desk as a label: its name if it is configured, else "other"."""
        return name if name in self._desks else OTHER

    def catch_up(self) -> None:
        """Count the journal's events since the last time; also to be called before chunks are trimmed."""
        with self._counting:
            tally: Tally[tuple[str, str, str]] = Tally()
            for chunk in self._engine.store.chunks(self._counted):
                self._tally(chunk, tally)
                self._counted = chunk.last
            for labels, count in tally.items():
                self._events.labels(*labels).inc(count)

    def _tally(self, chunk: Chunk, tally: Tally[tuple[str, str, str]]) -> None:
        try:
            events = decode(chunk.data)
        except StoreCorrupt:
            _log.warning("journal chunk %d-%d cannot be read and is not counted", chunk.first, chunk.last)
            return
        # By what is in them first, as few kinds stand for many events.
        kinds = Tally((event.desk, event.event, event.reason) for event in events)
        for (desk, event, reason), count in kinds.items():
            known = reason is None or reason in REASONS.get(event, ())
            label = (reason or "") if known else OTHER
            tally[self.desk(desk), event if event in EVENTS else OTHER, label] += count

    def page(self) -> bytes:
        """Everything in Prometheus' text format."""
        self.catch_up()
        return generate_latest(self.registry)

    def trouble(self) -> str | None:
        """Why this process should get no work, or None."""
        failure = self._engine.failure()
        if failure is not None:
            return f"the engine stopped: {failure}"
        try:
            self._engine.store.offset()
        except StoreError as error:
            return f"the store cannot be read: {error}"
        return None


class _Standing(Collector):
    """What the store and the engine can tell at any moment, asked at each scrape."""

    def __init__(self, engine: Engine, desk: Callable[[str], str]) -> None:
        self._engine = engine
        self._desk = desk

    def describe(self) -> Iterable[Metric]:
        """None: naming them must not read the store."""
        return []

    def collect(self) -> Iterable[Metric]:
        """Everything, freshly asked."""
        yield from self._desks()
        yield from self._journal()
        yield from self._commits()

    def _desks(self) -> Iterable[Metric]:
        messages = GaugeMetricFamily("posthouse_messages", "Kept messages by desk and state.", labels=("desk", "state"))
        oldest = GaugeMetricFamily(
            "posthouse_oldest_age_seconds",
            "Age of the oldest message that is ready, leased or received; 0 if there is none.",
            labels=("desk",),
        )
        mailboxes = GaugeMetricFamily("posthouse_mailboxes", "Mailboxes by desk.", labels=("desk",))
        counts: Tally[tuple[str, State]] = Tally()
        boxes: Tally[str] = Tally()
        ages_s: dict[str, float] = {}
        now = self._engine.now()
        for view in self._engine.store.desks():
            desk = self._desk(view.desk)
            boxes[desk] += view.mailboxes
            for state in State:
                counts[desk, state] += view.counts.get(state, 0)
            age_s = 0.0 if view.oldest_at is None else max(0, now - view.oldest_at) / SECOND
            ages_s[desk] = max(age_s, ages_s.get(desk, 0.0))
        for (desk, state), count in counts.items():
            messages.add_metric((desk, str(state)), count)
        for desk, count in boxes.items():
            mailboxes.add_metric((desk,), count)
            oldest.add_metric((desk,), ages_s[desk])
        yield messages
        yield oldest
        yield mailboxes

    def _journal(self) -> Iterable[Metric]:
        store = self._engine.store
        exported = max((s.last for s in store.segments() if s.chain), default=0)
        offset = store.offset()
        yield GaugeMetricFamily("posthouse_journal_offset", "The journal's last offset.", value=offset)
        yield GaugeMetricFamily(
            "posthouse_journal_lag_events", "Events that are in no segment yet.", value=offset - exported
        )

    def _commits(self) -> Iterable[Metric]:
        engine, stats = self._engine, self._engine.stats
        outcomes = CounterMetricFamily(
            "posthouse_outcomes",
            "Outcomes of commands by desk: posted, duplicate, refused_full, delivered, retried, dead …",
            labels=("desk", "outcome"),
        )
        counts: Tally[tuple[str, str]] = Tally()
        for (desk, outcome), count in list(stats.outcomes.items()):
            counts[self._desk(desk), outcome] += count
        for labels, count in counts.items():
            outcomes.add_metric(labels, count)
        yield outcomes
        yield _histogram("posthouse_commit_commands", "Commands made durable by one commit.", stats.group_size)
        yield _histogram("posthouse_commit_seconds", "Time of one commit with its sync.", stats.commit_seconds)
        yield CounterMetricFamily(
            "posthouse_failed_groups", "Commits that the store refused.", value=stats.failed_groups
        )
        yield GaugeMetricFamily("posthouse_queue_commands", "Commands that wait for the writer.", value=engine.queued())
        yield GaugeMetricFamily(
            "posthouse_queue_callers", "Callers that wait for room in the queue.", value=engine.waiting()
        )
        yield GaugeMetricFamily("posthouse_up", "1 while the engine takes commands.", value=int(not engine.closed))


def _histogram(name: str, help: str, source: Histogram) -> HistogramMetricFamily:
    total, buckets = 0, []
    for bound, count in zip((*source.bounds, math.inf), list(source.counts), strict=True):
        total += count
        buckets.append(("+Inf" if bound == math.inf else str(float(bound)), float(total)))
    return HistogramMetricFamily(name, help, buckets=buckets, sum_value=source.sum)


REQUEST_BYTES_MAX = 8_192
REQUEST_S = 5.0
CONNECTIONS_MAX = 32

_REASON_PHRASES = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
}
_TEXT = "text/plain; charset=utf-8"


class MetricsServer:
    """A small HTTP server for scrapers: one request a connection, bounded in size, time and number."""

    def __init__(self, metrics: Metrics, host: str, port: int) -> None:
        self._metrics = metrics
        self._host = host
        self._port = port
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._scraping = asyncio.Lock()

    @property
    def address(self) -> str:
        """Where it listens, as a URL."""
        assert self._server is not None
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    async def start(self) -> None:
        """Listen. ConfigError if the place cannot be had."""
        try:
            self._server = await asyncio.start_server(self._accept, self._host, self._port, limit=REQUEST_BYTES_MAX)
        except OSError as error:
            place = f"{self._host} port {self._port}"
            reason = "it is taken" if "in use" in str(error) else error.strerror or str(error)
            raise ConfigError(f"cannot listen for metrics on {place}: {reason} (metrics.host, metrics.port)") from error

    async def close(self) -> None:
        """Stop listening and cut what is still open."""
        if self._server is None:
            return
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        full = len(self._tasks) >= CONNECTIONS_MAX
        self._tasks.add(task)
        try:
            async with asyncio.timeout(2 * REQUEST_S):
                status, kind, body = (503, _TEXT, b"too many connections\n") if full else await self._answer(reader)
                head = (
                    f"HTTP/1.1 {status} {_REASON_PHRASES[status]}\r\n"
                    f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
                    "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
                )
                writer.write(head.encode() + body)
                await writer.drain()
        except (OSError, TimeoutError):
            pass  # It left, or does not read what it asked for.
        finally:
            self._tasks.discard(task)
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader) -> tuple[int, str, bytes]:
        try:
            # One deadline for the whole head: a byte now and then does not keep the connection.
            async with asyncio.timeout(REQUEST_S):
                head = await reader.readuntil(b"\r\n\r\n")
        except TimeoutError:
            return 408, _TEXT, b"the request took too long\n"
        except asyncio.LimitOverrunError:
            return 431, _TEXT, b"the request is too large\n"
        except asyncio.IncompleteReadError:
            return 400, _TEXT, b"no request\n"
        words = head.split(b"\r\n", 1)[0].split(b" ")
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            return 400, _TEXT, b"no HTTP request\n"
        if words[0] not in (b"GET", b"HEAD"):
            return 405, _TEXT, b"only GET\n"
        status, kind, body = await self._resource(words[1].split(b"?", 1)[0])
        return status, kind, b"" if words[0] == b"HEAD" else body

    async def _resource(self, path: bytes) -> tuple[int, str, bytes]:
        if path == b"/health/live":
            return 200, _TEXT, b"ok\n"
        if path == b"/health/ready":
            trouble = await asyncio.to_thread(self._metrics.trouble)
            return (200, _TEXT, b"ok\n") if trouble is None else (503, _TEXT, f"{trouble}\n".encode())
        if path != b"/metrics":
            return 404, _TEXT, b"there are /metrics, /health/live and /health/ready\n"
        # One at a time: a scrape reads the store, and impatient scrapers must not pile up.
        async with self._scraping:
            try:
                return 200, CONTENT_TYPE_LATEST, await asyncio.to_thread(self._metrics.page)
            except StoreError as error:
                _log.warning("metrics cannot be read: %s", error)
                return 500, _TEXT, b"the store cannot be read\n"
