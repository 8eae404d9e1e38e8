"""Families: what each metric is called, what it is, what it means and by what it is told apart.

In: rows of a table and, at each scrape, numbers. Out: metrics for a registry, and the rows for whoever documents or
checks them. A row holds no number and reads nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeVar

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector

from ..engine.stats import Histogram

COUNTER, GAUGE, HISTOGRAM, SUMMARY = "counter", "gauge", "histogram", "summary"

Labels = tuple[str, ...]
K = TypeVar("K", bound=Labels)


class Family(NamedTuple):
    """One row of the table of metrics."""

    name: str
    """As it stands on the page; counters end in _total."""
    type: str
    help: str
    labels: Labels = ()

    def of(self, value: float) -> Metric:
        """The metric with its only value."""
        return self.by({(): value})

    def by(self, values: Mapping[K, float]) -> Metric:
        """A counter or gauge with a value for each combination of its labels."""
        found: CounterMetricFamily | GaugeMetricFamily
        if self.type == COUNTER:
            found = CounterMetricFamily(self.name.removesuffix("_total"), self.help, labels=self.labels)
        else:
            assert self.type == GAUGE
            found = GaugeMetricFamily(self.name, self.help, labels=self.labels)
        for labels, value in values.items():
            found.add_metric(labels, value)
        return found

    def distributed(self, sources: Mapping[K, Histogram]) -> Metric:
        """A histogram for each combination of its labels."""
        assert self.type == HISTOGRAM
        found = HistogramMetricFamily(self.name, self.help, labels=self.labels)
        for labels, source in sources.items():
            total, buckets = 0, []
            # A copy: another thread may be counting.
            for bound, count in zip((*source.bounds, math.inf), list(source.counts), strict=True):
                total += count
                buckets.append(("+Inf" if bound == math.inf else str(float(bound)), float(total)))
            found.add_metric(labels, buckets, source.sum)
        return found

    def summed(self, count: int, total: float) -> Metric:
        """A summary without quantiles."""
        assert self.type == SUMMARY
        return SummaryMetricFamily(self.name, self.help, count_value=count, sum_value=total)


class Asked(Collector):
    """A collector that is asked at each scrape and says nothing before."""

    def describe(self) -> Iterable[Metric]:
        """None: naming them must not read anything."""
        return []

    def collect(self) -> Iterable[Metric]:
        """Everything, freshly asked."""
        raise NotImplementedError


def bounded(counts: Mapping[str, int], most: int, rest: str) -> dict[Labels, float]:
    """Counts by one label, of which at most so many values are told apart; all others are one."""
    found: dict[Labels, float] = {}
    # A copy: it may grow on another thread while this one reads.
    for place, (value, count) in enumerate(sorted(dict(counts).items())):
        key = (value if place < most else rest,)
        found[key] = found.get(key, 0) + count
    return found
