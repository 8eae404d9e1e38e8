"""Public messages: orders are announced, cancelled and taken by gossip, and those who come late ask for what stands.

    gossip → orderbook.py (does it count?) → the book
    take of an order of ours → a trade with the taker

What does not count is not passed on, and who lies loses standing with us. A peer that connects is asked for its own
orders (/klingon/ordersync/1.0.0); what it says of the orders of others is not believed. Our own orders are kept, and
announced again from time to time until they end.

In: a peer, gossip, a network. Out: orders and takes. Gossip promises nothing: what matters goes by direct messages.
"""

from __future__ import annotations

import asyncio
import datetime
import json
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

from ..control.trade import TRADES
from ..errors import BadFrame, InvalidInput, StoreCorrupt, StoreError
from ..libp2p.errors import Libp2pError
from ..libp2p.gossip.message import Message
from ..libp2p.gossip.router import Verdict
from ..libp2p.gossip.service import Gossip
from ..libp2p.host import Event, Host, Identified
from ..libp2p.peer_id import PeerId
from ..libp2p.stream import Stream
from ..mailbox.command import Keep
from ..mailbox.message import SECOND
from . import frame
from .capability import Path, learned
from .frame import Direct
from .node import Peer
from .orderbook import ANNOUNCE, CANCEL, OPEN, TAKE, BookLimits, Order, Orderbook, Take, Wrong, order_from
from .tasks import Tasks

log = logging.getLogger("posthouse.peer")

TOPIC = "/klingon/swap/1.0.0"
SYNC = "/klingon/ordersync/1.0.0"
SHELF = "peer.orders"
AGAIN_S = 300.0
"""How often our own orders are announced again, and how long a peer is not asked again for its own."""
SYNC_S = 30.0
LINE_BYTES_MAX = 1_048_576
PAGE_MAX = 100
PAGES_MAX = 10
TAKES_MAX = 1_000
"""Takes of our orders that wait for the application."""


class Orders:
    """A peer's part in the market, from ``start`` to ``close``."""

    def __init__(self, peer: Peer, host: Host, gossip: Gossip, limits: BookLimits | None = None) -> None:
        self.book = Orderbook(limits)
        self._peer = peer
        self._host = host
        self._gossip = gossip
        self._asked: dict[PeerId, float] = {}
        self._takes: asyncio.Queue[Take] = asyncio.Queue(TAKES_MAX)
        self._tasks = Tasks("a task of the market failed")
        self._unwatch: Callable[[], None] | None = None

    def start(self) -> None:
        """Take part."""
        for _, value in self._peer.office.store.kept(SHELF):
            order = _kept(value)
            if order.expires_s > self._now_s():
                self.book.orders[order.id] = order
        self._subscription = self._gossip.subscribe(TOPIC, self._validate)
        self._host.handle(SYNC, self._answer)
        self._unwatch = self._host.watch(self._seen)
        self._tasks.spawn(self._listen())
        self._tasks.spawn(self._announce_again())

    async def close(self) -> None:
        """Take part no more. Idempotent."""
        if self._unwatch is None:
            return
        self._unwatch()
        self._unwatch = None
        self._subscription.close()
        self._host.unhandle(SYNC)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # What a program does.

    async def announce(
        self,
        offer_chain: str,
        offer_amount: int,
        request_chain: str,
        request_amount: int,
        methods: tuple[str, ...] = (),
        lasts_s: int = 86_400,
        id: str | None = None,
    ) -> Order:
        """Offer something to everybody, until it is taken, cancelled or ``lasts_s`` have passed."""
        now_s = self._now_s()
        order = Order(
            id or frame.new_id(), self._peer.id, offer_chain, offer_amount, request_chain, request_amount,
            tuple(methods), now_s, now_s + lasts_s,
        )  # fmt: skip
        message = self._message(ANNOUNCE, order.id, order.payload(True))
        judged = self.book.judge(self._peer.id, message, now_s)
        if isinstance(judged, Wrong):
            raise InvalidInput(f"this order cannot be announced: {judged.why}")
        await self._peer.office.do(Keep(SHELF, order.id, json.dumps(order._asdict()).encode()))
        self.book.apply(self._peer.id, message, now_s)
        self._publish(message)
        return order

    async def cancel(self, id: str) -> None:
        """Offer it no more."""
        order = self.book.orders.get(id)
        if order is None or order.maker != self._peer.id:
            raise InvalidInput(f"we have no open order {id!r}")
        await self._peer.office.do(Keep(SHELF, id, None))
        self.book.forget(id)
        self._publish(self._message(CANCEL, id, {"order_id": id, "cancelled": True}))

    async def take(self, id: str, method: str, trade: str | None = None) -> str:
        """Take somebody's order: the trade's id. From then on the maker is its other party."""
        order = self.book.orders.get(id)
        if order is None or order.maker == self._peer.id:
            raise InvalidInput(f"there is no order {id!r} to take")
        trade = trade or frame.new_id()
        payload = {
            "trade_id": trade, "order_id": id, "taker_peer_id": self._peer.id, "method": method,
            "offer_amount": order.offer_amount, "request_amount": order.request_amount,
        }  # fmt: skip
        message = self._message(TAKE, id, payload, trade)._replace(capabilities=self._peer.session.capabilities)
        judged = self.book.judge(self._peer.id, message, self._now_s())
        if isinstance(judged, Wrong):
            raise InvalidInput(f"this order cannot be taken: {judged.why}")
        await self._open(trade, order.maker)
        self.book.apply(self._peer.id, message, self._now_s())
        self._publish(message)
        return trade

    async def takes(self) -> AsyncIterator[Take]:
        """Who takes our orders, as it happens; each is a trade that is open already."""
        while True:
            yield await self._takes.get()

    def open(self) -> list[Order]:
        """What is offered now, by us and by others."""
        return self.book.open(self._now_s())

    # Gossip.

    def _now_s(self) -> int:
        return self._peer.office.now() // SECOND

    def _message(self, type: str, order: str, payload: dict[str, Any], trade: str = "") -> Direct:
        return Direct(type, trade, order, self._peer.id, payload, self._now_s(), frame.new_id())

    def _publish(self, message: Direct) -> None:
        self._gossip.publish(TOPIC, frame.dumps(frame.fields(message)))

    def _validate(self, message: Message) -> Verdict:
        """Whether others should have it from us."""
        try:
            judged = self.book.judge(str(message.author), frame.decode(message.data), self._now_s())
        except BadFrame:
            return Verdict.REJECT
        if not isinstance(judged, Wrong):
            return Verdict.ACCEPT
        self._peer.stats.refused["unmatched"] += 1
        return Verdict.REJECT if judged.offence else Verdict.IGNORE

    async def _listen(self) -> None:
        async for message in self._subscription:
            author = str(message.author)
            if author == self._peer.id:
                continue
            direct = frame.decode(message.data)
            judged = self.book.apply(author, direct, self._now_s())
            if isinstance(judged, Take) and judged.order.maker == self._peer.id:
                try:
                    await self._taken(judged, direct.capabilities)
                except StoreError as error:
                    log.error("the take of order %s is not kept: %s", judged.order.id, error)

    async def _taken(self, take: Take, words: tuple[str, ...]) -> None:
        known = self._peer.session.trades.get(take.trade)
        if known is not None and known.peer != take.taker:
            log.warning("order %s: trade %s is somebody else's", take.order.id, take.trade)
            return
        await self._peer.office.do(Keep(SHELF, take.order.id, None))
        await self._open(take.trade, take.taker, words)
        if self._takes.full():
            log.warning("nobody looks at the takes of our orders: the oldest is dropped")
            self._takes.get_nowait()
        self._takes.put_nowait(take)

    async def _open(self, trade: str, other: str, words: tuple[str, ...] = ()) -> None:
        """From now on messages of this trade come from this peer alone; ``words``: what it says that it can do."""
        session = self._peer.session
        if trade not in session.trades:
            now = self._peer.office.now()
            record = session.opened(other, now, now // SECOND + self._peer.limits.timeout_s)
            record = learned(record, words, Path.RELAY, session.rules.direct)
            session.know(trade, record)
            await self._peer.office.do(Keep(TRADES, trade, record.encode()))

    async def _announce_again(self) -> None:
        while True:
            await asyncio.sleep(AGAIN_S)
            over = [id for id, value in self._peer.office.store.kept(SHELF) if _kept(value).expires_s <= self._now_s()]
            if over:
                await self._peer.office.apply(*(Keep(SHELF, id, None) for id in over))
            for order in self.open():
                if order.maker == self._peer.id:
                    self._publish(self._message(ANNOUNCE, order.id, order.payload(True)))

    # Those who come late.

    def _seen(self, event: Event) -> None:
        if isinstance(event, Identified) and SYNC in event.info.protocols:
            now_s = asyncio.get_running_loop().time()
            if now_s - self._asked.get(event.peer, -AGAIN_S) >= AGAIN_S:
                if len(self._asked) >= 4_096:
                    self._asked.clear()
                self._asked[event.peer] = now_s
                self._tasks.spawn(self._ask(event.peer))

    async def _ask(self, peer: PeerId) -> None:
        """Ask a peer for its orders."""
        since = 0
        try:
            async with asyncio.timeout(SYNC_S):
                for _ in range(PAGES_MAX):
                    async with await self._host.open_stream(peer, SYNC) as stream:
                        await stream.write(frame.dumps({"since": since, "limit": PAGE_MAX}) + b"\n")
                        answer = frame.loads(await stream.read_line(LINE_BYTES_MAX))
                    found = answer.get("orders") if isinstance(answer, dict) else None
                    if not isinstance(found, list):
                        return
                    for plain in found[: 10 * PAGE_MAX]:
                        since = max(since, self._heard(str(peer), plain))
                    if answer.get("has_more") is not True or not found:
                        return
        except (Libp2pError, BadFrame, TimeoutError) as error:
            log.debug("%s does not tell its orders: %s", peer, error)

    def _heard(self, peer: str, plain: Any) -> int:
        """One order of another; when it was made."""
        order = order_from(plain) if isinstance(plain, dict) else Wrong("no order", True)
        if isinstance(order, Wrong):
            return 0
        if order.maker == peer and plain.get("Status", plain.get("status", OPEN)) == OPEN:
            self.book.apply(peer, Direct(ANNOUNCE, "", order.id, peer, order.payload(False)), self._now_s())
        return order.created_s

    async def _answer(self, stream: Stream) -> None:
        """Tell somebody our own orders."""
        async with asyncio.timeout(SYNC_S):
            asked = frame.loads(await stream.read_line(4_096))
            since = asked.get("since", 0) if isinstance(asked, dict) else 0
            limit = asked.get("limit", PAGE_MAX) if isinstance(asked, dict) else PAGE_MAX
            if type(since) is not int or type(limit) is not int:
                raise BadFrame("since and limit are whole numbers")
            found = [o for o in self.open() if o.maker == self._peer.id and o.created_s > since]
            page = found[: max(1, min(limit, PAGE_MAX))]
            # Those of one second go together: the next page begins behind it.
            page += [o for o in found[len(page) :] if o.created_s == page[-1].created_s]
            answer = {
                "orders": [_camel(order) for order in page],
                "has_more": len(found) > len(page),
                "timestamp": self._now_s(),
            }
            await stream.write(frame.dumps(answer) + b"\n")


def _camel(order: Order) -> dict[str, Any]:
    """An order as nodes send it to each other."""
    return {
        "ID": order.id, "PeerID": order.maker, "Status": OPEN, "IsLocal": True, "OfferChain": order.offer_chain,
        "OfferAmount": order.offer_amount, "RequestChain": order.request_chain, "RequestAmount": order.request_amount,
        "PreferredMethods": list(order.methods), "CreatedAt": _date(order.created_s),
        "ExpiresAt": _date(order.expires_s), "UpdatedAt": _date(order.created_s), "Signature": "",
    }  # fmt: skip


def _date(at_s: int) -> str:
    return datetime.datetime.fromtimestamp(at_s, datetime.UTC).isoformat().replace("+00:00", "Z")


def _kept(value: bytes) -> Order:
    try:
        plain = json.loads(value)
        return Order(**{**plain, "methods": tuple(plain["methods"])})
    except (ValueError, TypeError, KeyError) as error:
        raise StoreCorrupt(f"shelf {SHELF} keeps what is no order") from error
