"""The traces of one server: its journal is followed, and what it tells goes to a collector.

In: an engine and the settings. Out: a running whole, and a clean end. It begins with what happens from now on, holds no
lease and writes nothing: a server without it does the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from prometheus_client.core import Metric

from ..config import Config
from ..engine.engine import Engine
from ..engine.tail import EVERY_S, Tail
from ..errors import ConfigError
from ..mailbox.event import Event
from ..mailbox.message import Ref
from ..metrics.family import COUNTER, Asked, Family
from .export import Export
from .span import Known, Spans

SPANS = Family(
    "posthouse_traces_spans_total",
    COUNTER,
    "Spans by what became of them: sent; failed (the collector did not take them); dropped (too many waited).",
    ("result",),
)
FAMILIES = (SPANS,)


class Traces:
    """Runs from ``start`` to ``close``."""

    def __init__(self, engine: Engine, export: Export, sample: float, every_s: float = EVERY_S) -> None:
        self._engine = engine
        self.export = export
        self._spans = Spans(engine.store.node, self._known, sample)
        self._tail = Tail(engine, engine.store.offset(), every_s)
        self._tail.listen(self._told)

    def start(self) -> None:
        """Begin; on a running event loop."""
        self.export.start()
        self._tail.start()

    async def close(self) -> None:
        """Tell of what has happened by now, and stop. Idempotent."""
        await self._tail.close()
        await asyncio.to_thread(self.export.close)

    def _told(self, events: Sequence[Event], last: int, gap: bool) -> None:
        self._spans.turn()
        self.export.add(self._spans.take(events))

    def _known(self, ref: Ref) -> Known | None:
        found = self._engine.store.message(ref)
        return None if found is None else Known(found.posted_at, found.message.cause)


class TracesCollector(Asked):
    """Asks the export at each scrape."""

    def __init__(self, traces: Traces) -> None:
        self._export = traces.export

    def collect(self) -> Iterable[Metric]:
        """Everything, freshly read."""
        yield SPANS.by({(name,): getattr(self._export, name) for name in ("sent", "failed", "dropped")})


def make(config: Config, engine: Engine, version: str) -> Traces:
    """The traces that the configuration describes."""
    about = {
        "service.name": "posthouse",
        "service.version": version,
        "service.instance.id": engine.store.node,
    }
    headers = headers_of(config.text_or_none("traces.headers") or "")
    export = Export(config.text("traces.endpoint"), headers, about, config.whole("traces.queue_max"))
    return Traces(engine, export, config.number("traces.sample"))


def headers_of(text: str) -> dict[str, str]:
    """Headers from NAME=VALUE, parted by commas; ConfigError without what was written, since it may be a secret."""
    found: dict[str, str] = {}
    for pair in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = pair.partition("=")
        if not equals or not name.strip().isascii() or not name.strip() or not value.strip().isprintable():
            raise ConfigError("traces.headers must be NAME=VALUE, parted by commas")
        found[name.strip()] = value.strip()
    return found
