"""The API's numbers for Prometheus: read from its counters at each scrape."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from .server import Api


class ApiCollector(Collector):
    """Asks a running API at each scrape."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def describe(self) -> Iterable[Metric]:
        """None: their names are fixed."""
        return []

    def collect(self) -> Iterable[Metric]:
        """Everything, freshly asked."""
        answers = CounterMetricFamily(
            "posthouse_gateway_api_requests",
            "Requests to the API that were answered, by the problem they were answered with (ok: none).",
            labels=("outcome",),
        )
        for outcome, count in self._api.answers.copy().items():
            answers.add_metric((outcome,), count)
        yield answers
        yield CounterMetricFamily(
            "posthouse_gateway_api_cut",
            "Connections to the API that were cut: too slow, or one too many.",
            value=self._api.cut,
        )
        yield GaugeMetricFamily(
            "posthouse_gateway_api_connections", "Connections to the API now.", value=self._api.connections
        )
        yield GaugeMetricFamily(
            "posthouse_gateway_api_waiting", "Requests that wait for a message, and streams.", value=self._api.waiting
        )
