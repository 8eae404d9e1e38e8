"""The order book: which public messages count, and what is offered now. Pure: no network, no clock, no store.

In: public messages with the author that gossip has proven, and the time. Out: verdicts, and the orders that stand.

- An announcement counts from its own maker, with whole positive amounts, dates that can be, and an end to come.
- A cancellation counts from the order's maker only.
- A take counts from the taker that it names, for an open order, with the order's own amounts. The first one wins.

What was cancelled, taken or has ended does not come back by an old announcement. Numbers of orders are bounded.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from .frame import ID_CHARS_MAX, INSTANT_S_MAX, NUMBER_MAX, Direct

ANNOUNCE, CANCEL, TAKE = "order_announce", "order_cancel", "order_take"
OPEN, CANCELLED, TAKEN = "open", "cancelled", "taken"
METHODS_MAX = 16


@dataclass(frozen=True, slots=True)
class BookLimits:
    """What others may make us keep."""

    orders_max: int = 10_000
    per_maker_max: int = 200
    gone_max: int = 20_000
    """Orders that are over and whose ids are remembered."""
    ahead_s: int = 300
    """How far another's clock may be ahead of ours."""
    lasts_s_max: int = 90 * 86_400


class Order(NamedTuple):
    """What somebody offers."""

    id: str
    maker: str
    offer_chain: str
    offer_amount: int
    request_chain: str
    request_amount: int
    methods: tuple[str, ...]
    created_s: int
    expires_s: int

    def payload(self, ours: bool) -> dict[str, Any]:
        """As it is announced."""
        return {
            "id": self.id, "peer_id": self.maker, "status": OPEN, "is_local": ours, "offer_chain": self.offer_chain,
            "offer_amount": self.offer_amount, "request_chain": self.request_chain,
            "request_amount": self.request_amount, "preferred_methods": list(self.methods),
            "created_at": self.created_s, "expires_at": self.expires_s,
        }  # fmt: skip


class Take(NamedTuple):
    """Somebody takes an order."""

    order: Order
    trade: str
    taker: str
    method: str


class Wrong(NamedTuple):
    """A message that does not count: a lie or nonsense (``offence``), or only late or unknown."""

    why: str
    offence: bool


class Orderbook:
    """The orders that stand."""

    def __init__(self, limits: BookLimits | None = None) -> None:
        self._limits = limits or BookLimits()
        self.orders: dict[str, Order] = {}
        self._gone: dict[str, str] = {}

    def open(self, now_s: int) -> list[Order]:
        """What is offered now, oldest first."""
        self._sweep(now_s)
        return sorted(self.orders.values(), key=lambda order: (order.created_s, order.id))

    def judge(self, author: str, message: Direct, now_s: int) -> Order | Take | Wrong:
        """Whether a public message counts, and what it is; nothing is changed."""
        if message.from_peer != author:
            return Wrong("from_peer is not the author", True)
        if not isinstance(message.payload, dict):
            return Wrong("a payload is an object", True)
        if message.type == ANNOUNCE:
            return self._announced(author, message, now_s)
        order = self.orders.get(message.order_id)
        if message.type == CANCEL:
            if order is None:
                return Wrong("no such order", False)
            return order if order.maker == author else Wrong("an order is its maker's to cancel", True)
        if message.type == TAKE:
            return self._taken(author, message, order, now_s)
        return Wrong("not a public message", True)

    def apply(self, author: str, message: Direct, now_s: int) -> Order | Take | Wrong:
        """Judge a message and, if it counts, note it."""
        judged = self.judge(author, message, now_s)
        if isinstance(judged, Take):
            self._end(judged.order.id, TAKEN)
        elif isinstance(judged, Order):
            if message.type == CANCEL:
                self._end(judged.id, CANCELLED)
            else:
                self.orders[judged.id] = judged
        return judged

    def forget(self, id: str) -> None:
        """An order of ours is over."""
        self._end(id, CANCELLED)

    def _announced(self, author: str, message: Direct, now_s: int) -> Order | Wrong:
        limits = self._limits
        order = order_from(message.payload)
        if isinstance(order, Wrong):
            return order
        if order.maker != author or order.id != message.order_id:
            return Wrong("an order is announced by its maker, under its own id", True)
        if not order.created_s < order.expires_s <= order.created_s + limits.lasts_s_max:
            return Wrong("an order's dates cannot be", True)
        if order.created_s > now_s + limits.ahead_s:
            return Wrong("an order of the future", True)
        if order.expires_s <= now_s:
            return Wrong("an order that has ended", False)
        if order.id in self._gone:
            return Wrong("an order that is over", False)
        known = self.orders.get(order.id)
        if known is not None:
            # What somebody may have taken at its word does not change.
            return known if known == order else Wrong("another order of the same id", known.maker == author)
        self._sweep(now_s)
        mine = sum(one.maker == author for one in self.orders.values())
        if len(self.orders) >= limits.orders_max or mine >= limits.per_maker_max:
            return Wrong("too many orders", False)
        return order

    def _taken(self, author: str, message: Direct, order: Order | None, now_s: int) -> Take | Wrong:
        payload = message.payload
        if payload.get("taker_peer_id") != author:
            return Wrong("a take is its taker's to send", True)
        if order is None or order.expires_s <= now_s:
            return Wrong("no such order", False)
        if payload.get("order_id") != order.id or order.maker == author:
            return Wrong("a take that cannot be", True)
        trade = payload.get("trade_id")
        if not isinstance(trade, str) or not 0 < len(trade) <= ID_CHARS_MAX or trade != message.trade_id:
            return Wrong("a take needs a trade", True)
        if (payload.get("offer_amount"), payload.get("request_amount")) != (order.offer_amount, order.request_amount):
            return Wrong("the amounts are not those of the order", True)
        method = payload.get("method")
        if not isinstance(method, str) or len(method) > ID_CHARS_MAX or (order.methods and method not in order.methods):
            return Wrong("a method that the order does not offer", True)
        return Take(order, trade, author, method)

    def _end(self, id: str, how: str) -> None:
        self.orders.pop(id, None)
        self._gone[id] = how
        while len(self._gone) > self._limits.gone_max:
            del self._gone[next(iter(self._gone))]

    def _sweep(self, now_s: int) -> None:
        for id in [id for id, order in self.orders.items() if order.expires_s <= now_s]:
            del self.orders[id]


def order_from(payload: Mapping[str, Any]) -> Order | Wrong:
    """An order from plain values: as it is announced, or (CamelCase) as nodes send it to each other."""
    if "ID" in payload:
        names = ("ID", "PeerID", "OfferChain", "OfferAmount", "RequestChain", "RequestAmount", "PreferredMethods")
        dates = ("CreatedAt", "ExpiresAt")
    else:
        names = ("id", "peer_id", "offer_chain", "offer_amount", "request_chain", "request_amount", "preferred_methods")
        dates = ("created_at", "expires_at")
    id, maker, offer_chain, offer, request_chain, request, methods = (payload.get(name) for name in names)
    for text in (id, maker, offer_chain, request_chain):
        if not isinstance(text, str) or not 0 < len(text) <= ID_CHARS_MAX or not text.isprintable():
            return Wrong("an order without its names", True)
    for amount in (offer, request):
        if type(amount) is not int or not 0 < amount <= NUMBER_MAX:
            return Wrong("an amount is a whole number above 0", True)
    methods = methods or []
    if not isinstance(methods, list) or len(methods) > METHODS_MAX or not all(isinstance(m, str) for m in methods):
        return Wrong("methods are a short list of texts", True)
    created_s, expires_s = (_instant(payload.get(name)) for name in dates)
    if created_s is None or expires_s is None:
        return Wrong("an order without its dates", True)
    assert isinstance(id, str)
    assert isinstance(maker, str)
    assert isinstance(offer_chain, str)
    assert isinstance(request_chain, str)
    assert isinstance(offer, int)
    assert isinstance(request, int)
    return Order(
        id, maker, offer_chain, offer, request_chain, request, tuple(m[:ID_CHARS_MAX] for m in methods), created_s,
        expires_s,
    )  # fmt: skip


def _instant(value: Any) -> int | None:
    """Seconds since 1970, from such a number or from a date in RFC 3339."""
    if type(value) is int and 0 < value <= INSTANT_S_MAX:
        return value
    if isinstance(value, str) and len(value) <= 40:
        try:
            moment = datetime.datetime.fromisoformat(value)
        except ValueError:
            return None
        return int(moment.timestamp()) if moment.tzinfo is not None and moment.year >= 1970 else None
    return None
