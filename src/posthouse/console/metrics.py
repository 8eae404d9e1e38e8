"""The console's numbers for Prometheus: read from its counters at each scrape."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import Metric

from ..metrics.family import COUNTER, GAUGE, Asked, Family, bounded
from .server import Console

OUTCOMES_MAX = 50

REQUESTS = Family(
    "posthouse_console_requests_total",
    COUNTER,
    "Requests to the console that were answered, by the problem they were answered with (ok: none).",
    ("outcome",),
)
CONNECTIONS = Family("posthouse_console_connections", GAUGE, "Connections to the console now.")
VIEWERS = Family("posthouse_console_viewers", GAUGE, "Visitors who follow live numbers.")
FAMILIES = (REQUESTS, CONNECTIONS, VIEWERS)


class ConsoleCollector(Asked):
    """Asks a running console at each scrape."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def collect(self) -> Iterable[Metric]:
        """Everything, freshly read."""
        yield REQUESTS.by(bounded(self._console.answers, OUTCOMES_MAX, "other"))
        yield CONNECTIONS.of(self._console.connections)
        yield VIEWERS.of(self._console.live.viewers)
