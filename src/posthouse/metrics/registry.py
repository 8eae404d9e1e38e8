"""The registry of metrics: what every server tells, and where each role adds its own.

In: at each scrape the engine's own counters, the store's counts, and the journal's chunks since the last.
Out: one page in Prometheus' text format, and whether the process should get work.
Labels are bounded: desks that are not configured count as "other", reasons that are not on the
journal's list too, and no mailbox, lane, sender or id is ever a label here. Nothing can be changed from here.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter as Tally
from collections.abc import Iterable, Sequence

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.gc_collector import GCCollector
from prometheus_client.process_collector import ProcessCollector

from ..engine.engine import Engine
from ..errors import StoreCorrupt, StoreError
from ..journal.chunk import decode
from ..mailbox.event import EVENTS, REASONS, Event
from ..mailbox.message import Instant, Ref
from . import flow, standing
from .family import COUNTER, Asked, Family
from .flow import OTHER, Flow
from .standing import Standing

EVENTS_TOLD = Family(
    "posthouse_events_total",
    COUNTER,
    "State changes as the journal has them, by desk, event and reason.",
    ("desk", "event", "reason"),
)
FAMILIES = (*standing.FAMILIES, EVENTS_TOLD, *flow.FAMILIES)
"""What every server tells; roles have tables of their own."""

_log = logging.getLogger("posthouse.metrics")


class Metrics:
    """The registry. A role adds its own: ``registry=metrics.registry``, ``metrics.desk(…)`` as label."""

    def __init__(self, engine: Engine) -> None:
        self.registry = CollectorRegistry()
        self.stopping = False
        """Set when the server has been told to stop: it finishes what is under way and should get nothing new."""
        self._engine = engine
        self._desks = frozenset(engine.store.policies)
        self.events: Tally[tuple[str, str, str]] = Tally()
        """Events by desk, event and reason, as labels."""
        self.flow = Flow(self.desk, self._posted_at)
        # Counted from now on: what an earlier process did, it counted.
        self._counted = engine.store.offset()
        self._counting = threading.Lock()
        self.registry.register(Standing(engine, self.desk))
        self.registry.register(_Journal(self))
        ProcessCollector(registry=self.registry)
        GCCollector(registry=self.registry)

    def desk(self, name: str) -> str:
        """The desk as a label: its name if it is configured, else "other"."""
        return name if name in self._desks else OTHER

    def catch_up(self) -> None:
        """Count the journal's events since the last time; also to be called before chunks are trimmed."""
        with self._counting:
            self.flow.turn()
            for chunk in self._engine.store.chunks(self._counted):
                try:
                    events = decode(chunk.data)
                except StoreCorrupt:
                    _log.warning("journal chunk %d-%d cannot be read and is not counted", chunk.first, chunk.last)
                    events = []
                # A chunk may begin before the place at which counting began.
                fresh = events[max(0, self._counted + 1 - chunk.first) :]
                self._tally(fresh)
                self.flow.take(fresh)
                self._counted = chunk.last

    def _tally(self, events: Sequence[Event]) -> None:
        # By what is in them first, as few kinds stand for many events.
        kinds = Tally((event.desk, event.event, event.reason) for event in events)
        for (desk, event, reason), count in kinds.items():
            known = reason is None or reason in REASONS.get(event, ())
            label = (reason or "") if known else OTHER
            self.events[self.desk(desk), event if event in EVENTS else OTHER, label] += count

    def _posted_at(self, ref: Ref) -> Instant | None:
        found = self._engine.store.message(ref)
        return None if found is None else found.posted_at

    def page(self) -> bytes:
        """Everything in Prometheus' text format."""
        self.catch_up()
        return generate_latest(self.registry)

    def trouble(self) -> str | None:
        """Why this process should get no work, or None."""
        if self.stopping:
            return "the server is stopping"
        failure = self._engine.failure()
        if failure is not None:
            return f"the engine stopped: {failure}"
        try:
            self._engine.store.offset()
        except StoreError as error:
            return f"the store cannot be read: {error}"
        return None


class _Journal(Asked):
    """What was counted from the journal."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        """Everything up to the last time that the journal was read."""
        yield EVENTS_TOLD.by(dict(sorted(self._metrics.events.items())))
        yield from self._metrics.flow.collect()
