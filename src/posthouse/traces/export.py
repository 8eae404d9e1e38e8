"""The export: spans to an OpenTelemetry collector, in batches, by a thread of its own.

In: spans, from any thread, without waiting. Out: OTLP over HTTP (protobuf). What the collector does not take in time
is dropped and counted: nobody ever waits for it.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from .span import Span

log = logging.getLogger("posthouse.traces")

BATCH_MAX = 512
EVERY_S = 1.0
"""How long a span waits for others."""
TIMEOUT_S = 5.0
"""How long a batch may take, with what is tried again of it."""
CLOSE_S = 3.0
"""How long the last batches may take when the server stops."""

_SAMPLED = TraceFlags(TraceFlags.SAMPLED)


class Export:
    """Sends what it is given, from ``start`` to ``close``."""

    def __init__(
        self,
        endpoint: str,
        headers: Mapping[str, str],
        about: Mapping[str, str],
        queue_max: int,
        every_s: float = EVERY_S,
    ) -> None:
        """``about`` is what is said of this process: its name, version, node."""
        self.sent = self.failed = self.dropped = 0
        self._endpoint = endpoint
        self._queue_max = queue_max
        self._every_s = every_s
        self._queue: deque[Span] = deque()
        self._lock = threading.Lock()
        self._woken = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="posthouse-traces", daemon=True)
        self._words = _LastWords()
        self._failing = False
        self._resource = Resource(dict(about))
        self._scope = InstrumentationScope("posthouse", about.get("service.version", ""))
        self._exporter = OTLPSpanExporter(
            endpoint=endpoint, headers=dict(headers), timeout=TIMEOUT_S, compression=Compression.Gzip
        )

    def start(self) -> None:
        """Begin."""
        # It would tell of every failure by itself; here it is told when it begins and when it is over.
        speaker = logging.getLogger("opentelemetry.exporter")
        speaker.propagate = False
        speaker.addHandler(self._words)
        self._thread.start()

    def add(self, spans: Sequence[Span]) -> None:
        """Send these when it is their turn; what there is no room for is dropped."""
        if not spans:
            return
        with self._lock:
            room = max(0, self._queue_max - len(self._queue))
            self._queue.extend(spans[:room])
            self.dropped += max(0, len(spans) - room)
            enough = len(self._queue) >= BATCH_MAX
        if enough:
            self._woken.set()

    def close(self) -> None:
        """Send what there is, for ``CLOSE_S`` at most; blocking. Idempotent."""
        if self._closing or not self._thread.is_alive():
            return
        self._closing = True
        self._woken.set()
        self._thread.join(CLOSE_S)
        # What is still being tried ends with this.
        self._exporter.shutdown()  # type: ignore[no-untyped-call]
        self._thread.join(TIMEOUT_S)
        logging.getLogger("opentelemetry.exporter").removeHandler(self._words)

    def _run(self) -> None:
        while True:
            self._woken.wait(self._every_s)
            self._woken.clear()
            # Looked at before the queue: what came before closing is sent.
            closing = self._closing
            while batch := self._batch():
                self._send(batch)
            if closing:
                return

    def _batch(self) -> list[Span]:
        with self._lock:
            return [self._queue.popleft() for _ in range(min(BATCH_MAX, len(self._queue)))]

    def _send(self, batch: Sequence[Span]) -> None:
        try:
            taken = self._exporter.export([self._readable(span) for span in batch]) is SpanExportResult.SUCCESS
            reason = self._words.text
        # Whatever it is: traces must not end the process, nor be silent.
        except Exception as error:
            taken, reason = False, f"{type(error).__name__}: {error}"
        if taken:
            self.sent += len(batch)
        else:
            self.failed += len(batch)
        if taken == self._failing:
            self._failing = not taken
            if taken:
                log.info("traces are taken again by %s", self._endpoint)
            else:
                log.warning("traces are not taken by %s and are dropped: %s", self._endpoint, reason or "no answer")

    def _readable(self, span: Span) -> ReadableSpan:
        def context(id: int) -> SpanContext:
            return SpanContext(span.trace, id, is_remote=False, trace_flags=_SAMPLED)

        return ReadableSpan(
            span.name,
            context(span.id),
            None if span.parent is None else context(span.parent),
            self._resource,
            span.attributes,
            [Event(point.name, point.attributes, point.at * 1_000) for point in span.points],
            kind=SpanKind.INTERNAL,
            status=Status(StatusCode.UNSET) if span.error is None else Status(StatusCode.ERROR, span.error),
            start_time=span.begun * 1_000,
            end_time=span.ended * 1_000,
            instrumentation_scope=self._scope,
        )


class _LastWords(logging.Handler):
    """Remembers what was said last."""

    def __init__(self) -> None:
        super().__init__()
        self.text = ""

    def emit(self, record: Any) -> None:
        self.text = " ".join(record.getMessage().split())[:300]
