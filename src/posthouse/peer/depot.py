"""The depot: messages for peers that cannot be reached are left at a relay, sealed, and ours are picked up there.

    outbox ── the peer is away ──→ a sealed copy ──→ relay ──→ the peer's depot ──→ its inbox
       ↑                                                                              │
       └─ settled by id ── courier ── our depot ←── relay ←── its acknowledgement, sealed ┘

The outbox stays the only place that decides what becomes of a message: it goes on trying, the first acknowledgement
that comes settles it, and the receiver knows copies by their ids. Our address at the relay is made of the peer's own
key, and so is the other party's: nothing has to be agreed on but the relay. What is left there is a NaCl box from our
key to theirs, so it proves its sender. The relay learns who writes to whom and when, never what.

In: a peer, an agent (``posthouse.agent``). Out: copies of what waits, the first of each trade, and acknowledgements. A
copy is left again after an hour without an answer. What is too large for a relay waits for a stream.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import uuid
from collections.abc import Iterator
from pathlib import Path

from ..agent.client import Agent, Item, relay_url
from ..agent.identity import Identity
from ..control.trade import OUTBOX_DESK
from ..errors import BadFrame, InvalidInput, OutboxFull, RelayRefused, StoreError, WireError
from ..libp2p.errors import Libp2pError
from ..libp2p.key import ED25519, PublicKey
from ..libp2p.peer_id import PeerId
from ..mailbox.message import SECOND
from ..mailbox.outcome import Delivery
from ..mailbox.store import MessageView
from ..wire.address import address_of, parse_address
from . import frame
from .capability import Path as Way
from .node import Peer
from .tasks import Tasks

log = logging.getLogger("posthouse.peer")

CONTENT_TYPE = "application/vnd.posthouse.direct+json"
CONTENT_BYTES_MAX = 60_000
AGAIN_S = 3_600
PER_TRADE_MAX = 16
"""Messages of one trade that lie at the relay at once: the first that wait."""
PER_ROUND_MAX = 256
"""Messages for one peer that are left in one go; the rest follows with the next try."""
LEFT_MAX = 65_536
"""Copies that are remembered in memory; forgotten ones are left again, under the same id."""
WORK_MAX = 32
"""Messages from the relay that are worked on at once."""
REFUSED_S = 60.0
"""The pause after the relay did not admit us, or its store failed."""


class Depot:
    """A peer's way over a relay, from ``start`` to ``close``."""

    def __init__(self, peer: Peer, folder: Path, url: str, host: str | None = None) -> None:
        """``folder`` keeps what is under way; ``host`` is the name that the relay must have. InvalidInput: no URL."""
        self._peer = peer
        self._folder = folder
        self._url = relay_url(url)
        self._host = host
        self._identity = Identity(peer.session.key.seed())
        self._agent: Agent | None = None
        self._left: dict[tuple[str, str], int] = {}
        self._leaving: set[PeerId] = set()
        self._tasks = Tasks("the way over the relay failed")
        self._free = asyncio.Semaphore(WORK_MAX)

    def start(self) -> None:
        """Connect, now or as soon as the relay is there."""
        self._tasks.spawn(self._live())
        self._peer.courier.shelter = self

    async def close(self) -> None:
        """Leave the relay; what is under way is kept. Idempotent."""
        self._peer.courier.shelter = None
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def address(self) -> str | None:
        """Our address at the relay; None before the first connection."""
        return None if self._agent is None else self._agent.address

    async def _live(self) -> None:
        while True:
            try:
                agent = Agent(self._folder, self._url, host=self._host, identity=self._identity)
                async with agent:
                    self._agent = agent
                    try:
                        async for item in agent.receive():
                            await self._free.acquire()
                            self._tasks.spawn(self._picked_up(agent, item))
                    finally:
                        self._agent = None
            except RelayRefused as error:
                log.warning("nothing is left at the relay for now: %s", error)
            except (StoreError, InvalidInput) as error:
                log.error("the way over the relay is closed for now: %s", error)
            await asyncio.sleep(REFUSED_S)

    # What goes.

    def away(self, peer: PeerId) -> None:
        """A peer was tried in vain: leave what waits for it."""
        if self._agent is not None and peer not in self._leaving:
            self._leaving.add(peer)
            self._tasks.spawn(self._leave(self._agent, peer))

    async def _leave(self, agent: Agent, peer: PeerId) -> None:
        try:
            host, key = agent.book.host, peer.public_key()
            if host is None or key is None:
                return
            to = address_of(key.raw(), host)
            for _, view in zip(range(PER_ROUND_MAX), self._waiting(str(peer)), strict=False):
                await self._leave_one(agent, to, view)
        except (Libp2pError, WireError, OutboxFull, StoreError) as error:
            log.warning("nothing more is left at the relay for %s for now: %s", peer, error)
        finally:
            self._leaving.discard(peer)

    def _waiting(self, peer: str) -> Iterator[MessageView]:
        """What waits for a peer and does not lie at the relay: the first of each trade, in order."""
        store, now, after = self._peer.office.store, self._peer.office.now(), None
        while page := store.lanes(OUTBOX_DESK, peer, after, 500):
            for lane in page:
                for view in store.in_lane(OUTBOX_DESK, peer, lane.lane, PER_TRADE_MAX) if lane.depth else ():
                    if self._left.get((peer, view.message.id)) != _turn(view, now):
                        yield view
            after = page[-1].lane

    async def _leave_one(self, agent: Agent, to: str, view: MessageView) -> None:
        message, turn = view.message, _turn(view, self._peer.office.now())
        delivery = Delivery(message, view.seq, 1, view.posted_at, None, 0, None)
        try:
            content = frame.dumps(frame.fields(self._peer.session.outgoing(delivery)))
            if len(content) <= CONTENT_BYTES_MAX:
                await agent.send(to, content, CONTENT_TYPE, id=_id_of(to, message.id, turn))
                self._peer.stats.left += 1
        except (InvalidInput, BadFrame) as error:
            log.warning("%s cannot be left at the relay: %s", message.id, error)
        if len(self._left) >= LEFT_MAX:
            del self._left[next(iter(self._left))]
        self._left[message.mailbox, message.id] = turn

    # What comes.

    async def _picked_up(self, agent: Agent, item: Item) -> None:
        try:
            if item.kind == "message" and item.plain.get("content_type") == CONTENT_TYPE:
                await self._take(agent, item)
            await item.done()
        except StoreError as error:
            log.error("%r is not worked off, and comes again: %s", item, error)
        finally:
            self._free.release()

    async def _take(self, agent: Agent, item: Item) -> None:
        peer = PeerId.of(PublicKey(ED25519, parse_address(item.peer).public_key))
        data = item.text.encode()
        stats = self._peer.stats
        try:
            message = frame.decode(data)
            if message.from_peer != str(peer):
                raise BadFrame("from_peer is not the sender")
            if message.type == frame.ACK:
                self._peer.courier.confirmed(peer, message, Way.RELAY)
                return
        except BadFrame as error:
            stats.refused["malformed"] += 1
            log.info("what %s left at the relay is passed over: %s", item.peer, error)
            return
        if message.type not in frame.PRIVATE_TYPES:
            stats.refused["forbidden_type"] += 1
        elif 0 < message.swap_timeout <= self._peer.office.now() // SECOND:
            stats.refused["ttl"] += 1
        elif (answer := await self._peer.receiver.hear(peer, message, len(data), Way.RELAY)) is not None:
            try:
                await agent.send(item.peer, frame.dumps(frame.fields(answer)), CONTENT_TYPE)
            except (InvalidInput, OutboxFull) as error:
                log.warning("%s gets no acknowledgement over the relay: %s", item.peer, error)


def _turn(view: MessageView, now: int) -> int:
    """Which copy of a message it is time for."""
    return max(now - view.posted_at, 0) // (AGAIN_S * SECOND)


def _id_of(to: str, id: str, turn: int) -> str:
    """The id of a copy at the relay: a UUID that follows from the message, so that nothing is left there twice."""
    raw = bytearray(hashlib.sha256(f"{to} {turn} {id}".encode()).digest()[:16])
    raw[6] = raw[6] & 0x0F | 0x80
    raw[8] = raw[8] & 0x3F | 0x80
    return str(uuid.UUID(bytes=bytes(raw)))
