"""The peer's numbers for Prometheus: read from its counters at each scrape.

Labels are bounded: types and reasons come from the code, never from another peer.
"""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import Metric

from ..control.trade import OUTBOX_DESK
from ..mailbox.message import IN_LANE
from ..metrics.family import COUNTER, GAUGE, SUMMARY, Asked, Family, bounded
from .node import Peer

WORDS_MAX = 50

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
    ("whispered", "whispered", "Messages and acknowledgements published by gossip."),
    ("left", "left", "Messages left at a relay for peers that were away."),
)
ONLINE = Family("posthouse_peer_online", GAUGE, "Peers that are connected.")
COUNTED = {name: Family(f"posthouse_peer_{metric}_total", COUNTER, help) for name, metric, help in _COUNTERS}
SENT = Family("posthouse_peer_sent_total", COUNTER, "Attempts to send, by type of message.", ("type",))
RECEIVED = Family("posthouse_peer_received_total", COUNTER, "Messages recorded, by type.", ("type",))
REFUSED = Family("posthouse_peer_refused_total", COUNTER, "Messages refused at the door, by reason.", ("reason",))
DELIVERY = Family("posthouse_peer_delivery_seconds", SUMMARY, "From posting to acknowledgement.")
DEPTH = Family("posthouse_peer_outbox_depth", GAUGE, "Messages that wait or are being sent.")
FAMILIES = (ONLINE, *COUNTED.values(), SENT, RECEIVED, REFUSED, DELIVERY, DEPTH)


class PeerCollector(Asked):
    """Asks a peer at each scrape."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer

    def collect(self) -> Iterable[Metric]:
        """Everything, freshly read."""
        peer, stats = self._peer, self._peer.stats
        yield ONLINE.of(len(peer.network.peers))
        for name, family in COUNTED.items():
            yield family.of(getattr(stats, name))
        yield SENT.by(bounded(stats.sent, WORDS_MAX, "other"))
        yield RECEIVED.by(bounded(stats.received, WORDS_MAX, "other"))
        yield REFUSED.by(bounded(stats.refused, WORDS_MAX, "other"))
        yield DELIVERY.summed(stats.acked, stats.latency_s)
        outbox = [view for view in peer.office.store.desks() if view.desk == OUTBOX_DESK]
        yield DEPTH.of(sum(view.counts.get(state, 0) for view in outbox for state in IN_LANE))
