"""The peer's numbers for Prometheus: read from its counters at each scrape.

Labels are bounded: types and reasons come from the code, never from another peer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector

from ..control.peer import OUTBOX_DESK
from .node import Peer

_COUNTERS: tuple[tuple[str, str, str], ...] = (
    ("acked", "acknowledged", "Messages that the other side processed and acknowledged."),
    ("rejected", "rejected", "Messages that the other side refused for good."),
    ("unconfirmed", "unconfirmed", "Attempts for which no acknowledgement came."),
    ("away", "away", "Attempts that did not reach the peer."),
    ("died", "unsendable", "Messages that could never be sent."),
    ("duplicates", "duplicates", "Copies of messages that had been recorded."),
    ("held", "held", "Messages that came before their turn."),
    ("skipped", "skipped", "Numbers that were not waited for any longer."),
    ("processed", "processed", "Messages that a handler processed."),
    ("failed", "handler_failures", "Times that a handler failed for the moment."),
    ("refused_by_handler", "handler_rejections", "Messages that a handler refused for good."),
    ("connected", "connections", "Times that a peer came."),
    ("disconnected", "disconnections", "Times that a peer went."),
    ("syncs", "syncs", "Trades that were compared with their other party."),
    ("resent", "resent", "Messages sent again from the history."),
)


class PeerCollector(Collector):
    """Asks a peer at each scrape."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer

    def describe(self) -> Iterable[Metric]:
        """None: their names are fixed."""
        return []

    def collect(self) -> Iterable[Metric]:
        """Everything, freshly read."""
        peer, stats = self._peer, self._peer.stats
        yield GaugeMetricFamily("posthouse_peer_online", "Peers that are connected.", value=len(peer.network.peers))
        for name, metric, help in _COUNTERS:
            yield CounterMetricFamily(f"posthouse_peer_{metric}", help, value=getattr(stats, name))
        yield _by("posthouse_peer_sent", "Attempts to send, by type of message.", "type", stats.sent)
        yield _by("posthouse_peer_received", "Messages recorded, by type.", "type", stats.received)
        yield _by("posthouse_peer_refused", "Messages refused at the door, by reason.", "reason", stats.refused)
        yield SummaryMetricFamily(
            "posthouse_peer_delivery_seconds",
            "From posting to acknowledgement.",
            count_value=stats.acked,
            sum_value=stats.latency_s,
        )
        depth = sum(view.counts.get(state, 0) for view in _outbox(peer) for state in ("ready", "leased", "received"))
        yield GaugeMetricFamily("posthouse_peer_outbox_depth", "Messages that wait or are being sent.", value=depth)


def _outbox(peer: Peer) -> list[Any]:
    return [view for view in peer.office.store.desks() if view.desk == OUTBOX_DESK]


def _by(name: str, help: str, label: str, counts: Mapping[str, int]) -> CounterMetricFamily:
    family = CounterMetricFamily(name, help, labels=(label,))
    # A copy: it grows on the event loop's thread while this one reads.
    for value, count in sorted(dict(counts).items()):
        family.add_metric((value,), count)
    return family
