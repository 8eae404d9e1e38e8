"""The relay's numbers for Prometheus: read from its counters at each scrape.

Labels are bounded: reasons come from the code, never from a client, and past ``REASONS_MAX`` they are one.
"""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import Metric

from ..metrics.family import COUNTER, GAUGE, Asked, Family, bounded
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
CONNECTIONS = Family("posthouse_relay_connections", GAUGE, "Authenticated connections: agents that are online.")
COUNTED = {name: Family(f"posthouse_relay_{metric}_total", COUNTER, help) for name, metric, help in _COUNTERS}
REFUSED = Family("posthouse_relay_refused_total", COUNTER, "Frames refused at the door, by reason.", ("reason",))
CLOSED = Family("posthouse_relay_closed_total", COUNTER, "Connections that the relay ended, by reason.", ("reason",))
FAMILIES = (CONNECTIONS, *COUNTED.values(), REFUSED, CLOSED)


class RelayCollector(Asked):
    """Asks a house at each scrape."""

    def __init__(self, house: House) -> None:
        self._house = house

    def collect(self) -> Iterable[Metric]:
        """Everything, freshly read."""
        stats = self._house.stats
        yield CONNECTIONS.of(self._house.connections)
        for name, family in COUNTED.items():
            yield family.of(getattr(stats, name))
        yield REFUSED.by(bounded(stats.refused, REASONS_MAX, "other"))
        yield CLOSED.by(bounded(stats.closed, REASONS_MAX, "other"))
