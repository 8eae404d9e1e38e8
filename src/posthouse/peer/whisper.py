"""Private messages by gossip, for nodes that take none on streams: sealed for one, carried by all.

    courier → sealed → topic → whoever it is for → the inbox, as from a stream → an acknowledgement, sealed, → topic

Its author is proven by gossip's own signature, and must be the sender in the envelope and the ``from_peer`` of the
message. Gossip promises nothing: what is not acknowledged is published again by the outbox's waits. A node that says
nothing of acknowledgements gets each message a few times, and then nobody knows (``uncertain``).

In: gossip, a receiver, a courier. Out: published envelopes, and messages for the receiver. How much others may make us
work on at once is bounded.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from ..errors import BadFrame, InvalidInput
from ..libp2p.errors import Libp2pError
from ..libp2p.gossip.message import Message
from ..libp2p.gossip.router import Verdict
from ..libp2p.gossip.service import Gossip
from ..libp2p.peer_id import PeerId
from . import frame, sealed
from .capability import Path
from .frame import Direct
from .node import Peer
from .tasks import Tasks

log = logging.getLogger("posthouse.peer")

TOPIC = "/klingon/swap/encrypted/1.0.0"
WORK_MAX = 256
"""Messages that came by gossip and are worked on at once; what comes beyond is dropped, and published again."""


class Whispers:
    """A peer's part in the gossip of private messages, from ``start`` to ``close``."""

    def __init__(self, peer: Peer, gossip: Gossip) -> None:
        self._peer = peer
        self._gossip = gossip
        self._tasks = Tasks("a message by gossip was not worked on")
        self._end: Callable[[], None] | None = None

    def start(self) -> None:
        """Take part."""
        subscription = self._gossip.subscribe(TOPIC, self._validate)
        self._end = subscription.close

        async def listen() -> None:
            async for message in subscription:
                self._came(message)

        self._tasks.spawn(listen())
        self._peer.session.gossips = True
        self._peer.courier.whispers = self

    async def close(self) -> None:
        """Take part no more. Idempotent."""
        if self._end is None:
            return
        self._end()
        self._end = None
        self._peer.session.gossips = False
        self._peer.courier.whispers = None
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def publish(self, to: PeerId, message: Direct) -> bool:
        """Seal a message for a peer and publish it; False if nobody is there who could carry it."""
        data = sealed.seal(message, to)
        if not self._gossip.peers(TOPIC):
            return False
        self._gossip.publish(TOPIC, data)
        self._peer.stats.whispered += 1
        return True

    def _validate(self, message: Message) -> Verdict:
        """Whether others should have it from us: it need not be for us."""
        try:
            envelope = sealed.parse(message.data)
        except BadFrame:
            return Verdict.REJECT
        return Verdict.ACCEPT if envelope.sender == str(message.author) else Verdict.REJECT

    def _came(self, message: Message) -> None:
        me = self._peer.id
        envelope = sealed.parse(message.data)
        if envelope.recipient != me or envelope.sender == me:
            return
        if len(self._tasks) > WORK_MAX:
            self._peer.stats.refused["full"] += 1
            return
        try:
            direct = sealed.unseal(envelope, self._peer.session.key)
            if direct.from_peer != envelope.sender:
                raise BadFrame("from_peer is not the author")
            if direct.type == frame.ACK:
                self._peer.courier.confirmed(message.author, direct, Path.GOSSIP)
            elif direct.type in frame.PRIVATE_TYPES:
                self._tasks.spawn(self._take(message.author, direct, len(message.data)))
        except BadFrame as error:
            self._peer.stats.refused["malformed"] += 1
            log.info("a sealed message of %s is passed over: %s", message.author, error)

    async def _take(self, peer: PeerId, message: Direct, size: int) -> None:
        answer = await self._peer.receiver.hear(peer, message, size, Path.GOSSIP)
        if answer is not None:
            try:
                self.publish(peer, answer)
            except (InvalidInput, Libp2pError) as error:
                log.warning("%s gets no acknowledgement by gossip: %s", peer, error)
