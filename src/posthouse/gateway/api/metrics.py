"""The API's numbers for Prometheus: read from its counters at each scrape."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import Metric

from ...metrics.family import COUNTER, GAUGE, Asked, Family, bounded
from .server import Api

OUTCOMES_MAX = 50

REQUESTS = Family(
    "posthouse_gateway_api_requests_total",
    COUNTER,
    "Requests to the API that were answered, by the problem they were answered with (ok: none).",
    ("outcome",),
)
CUT = Family(
    "posthouse_gateway_api_cut_total", COUNTER, "Connections to the API that were cut: too slow, or one too many."
)
CONNECTIONS = Family("posthouse_gateway_api_connections", GAUGE, "Connections to the API now.")
WAITING = Family("posthouse_gateway_api_waiting", GAUGE, "Requests that wait for a message, and streams.")
FAMILIES = (REQUESTS, CUT, CONNECTIONS, WAITING)


class ApiCollector(Asked):
    """Asks a running API at each scrape."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def collect(self) -> Iterable[Metric]:
        """Everything, freshly asked."""
        yield REQUESTS.by(bounded(self._api.answers, OUTCOMES_MAX, "other"))
        yield CUT.of(self._api.cut)
        yield CONNECTIONS.of(self._api.connections)
        yield WAITING.of(self._api.waiting)
