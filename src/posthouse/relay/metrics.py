"""The relay's numbers for Prometheus: read from its counters at each scrape.

Labels are bounded: reasons come from the code, never from a client, and past ``REASONS_MAX`` they are one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from .house import House

REASONS_MAX = 50

_COUNTERS: tuple[tuple[str, str, str], ...] = (
    ("opened", "connections_opened", "WebSocket connections that were opened."),
    ("authenticated", "authentications", "Connections that proved their key and were admitted."),
    ("taken_over", "connections_taken_over", "Half-open connections that gave way to a newer one."),
    ("frames", "frames_in", "Frames of authenticated agents."),
    ("posted", "accepted", "Messages accepted and durable."),
    ("duplicates", "duplicates", "Messages that had been accepted before."),
    ("confirmed", "confirmations", "Confirmations that matched a message."),
    ("delivered_frames", "frames_out", "Messages written to sockets; those that come again count again."),
    ("delivered_bytes", "bytes_out", "Their bytes."),
    ("flushes", "flushes", "Times that queued messages were sent to an agent that had come."),
    ("flushed_frames", "flushed_frames", "Messages sent in these flushes."),
    ("pings", "pings", "Pings sent."),
    ("slow", "slow_readers", "Times that an agent had no room and the rest waited in its mailbox."),
    ("set_aside", "set_aside", "Stored messages that could not be read."),
    ("unparseable", "unparseable_frames", "Frames that were no envelopes."),
    ("store_failures", "store_failures", "Submissions that the store refused."),
)


class RelayCollector(Collector):
    """Asks a house at each scrape."""

    def __init__(self, house: House) -> None:
        self._house = house

    def describe(self) -> Iterable[Metric]:
        """None: their names are fixed."""
        return []

    def collect(self) -> Iterable[Metric]:
        """Everything, freshly read."""
        stats = self._house.stats
        yield GaugeMetricFamily(
            "posthouse_relay_connections", "Authenticated connections.", value=self._house.connections
        )
        for name, metric, help in _COUNTERS:
            yield CounterMetricFamily(f"posthouse_relay_{metric}", help, value=getattr(stats, name))
        yield _by_reason("posthouse_relay_refused", "Frames refused at the door, by reason.", stats.refused)
        yield _by_reason("posthouse_relay_closed", "Connections that the relay ended, by reason.", stats.closed)


def _by_reason(name: str, help: str, counts: Mapping[str, int]) -> CounterMetricFamily:
    family = CounterMetricFamily(name, help, labels=("reason",))
    rest = 0
    # A copy: it grows on the event loop's thread while this one reads.
    for place, (reason, count) in enumerate(sorted(dict(counts).items())):
        if place < REASONS_MAX:
            family.add_metric((reason,), count)
        else:
            rest += count
    if rest:
        family.add_metric(("other",), rest)
    return family
