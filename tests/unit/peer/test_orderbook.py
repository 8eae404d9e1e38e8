"""Which public messages count."""

from __future__ import annotations

from typing import Any

import pytest

from posthouse.peer.frame import Direct
from posthouse.peer.orderbook import BookLimits, Order, Orderbook, Take, Wrong, order_from

NOW_S = 1_700_000_000
MAKER, TAKER, LIAR = "maker", "taker", "liar"
ORDER = Order("o1", MAKER, "BTC", 100_000, "LTC", 7, ("musig2", "htlc"), NOW_S, NOW_S + 600)


def announce(order: Order = ORDER, **payload: Any) -> Direct:
    return Direct("order_announce", "", order.id, order.maker, {**order.payload(True), **payload})


def cancel(who: str) -> Direct:
    return Direct("order_cancel", "", "o1", who, {"order_id": "o1", "cancelled": True})


def take(who: str = TAKER, **payload: Any) -> Direct:
    plain = {
        "trade_id": "t1", "order_id": "o1", "taker_peer_id": who, "method": "htlc", "offer_amount": 100_000,
        "request_amount": 7,
    }  # fmt: skip
    return Direct("order_take", "t1", "o1", who, {**plain, **payload})


def book(*orders: Order) -> Orderbook:
    found = Orderbook(BookLimits(orders_max=5, per_maker_max=3))
    for order in orders or (ORDER,):
        assert found.apply(order.maker, announce(order), NOW_S) == order
    return found


def test_an_order_stands_until_its_end() -> None:
    found = book()
    assert found.open(NOW_S + 599) == [ORDER]
    assert found.open(NOW_S + 600) == []


def test_an_order_is_the_same_however_it_is_written() -> None:
    camel = {
        "ID": "o1", "PeerID": MAKER, "OfferChain": "BTC", "OfferAmount": 100_000, "RequestChain": "LTC",
        "RequestAmount": 7, "PreferredMethods": ["musig2", "htlc"], "CreatedAt": "2023-11-14T22:13:20Z",
        "ExpiresAt": "2023-11-14T22:23:20+00:00",
    }  # fmt: skip
    assert order_from(camel) == order_from(ORDER.payload(False)) == ORDER


@pytest.mark.parametrize(
    "change",
    [
        {"peer_id": LIAR}, {"id": "o2"}, {"offer_amount": 0}, {"offer_amount": -1}, {"offer_amount": 1.5},
        {"offer_amount": True}, {"request_amount": 2**63}, {"request_amount": "7"}, {"offer_chain": ""},
        {"preferred_methods": "htlc"}, {"preferred_methods": ["x"] * 17}, {"created_at": "yesterday"},
        {"created_at": NOW_S + 301, "expires_at": NOW_S + 900}, {"expires_at": NOW_S}, {"expires_at": None},
        {"expires_at": NOW_S + 91 * 86_400},
    ],
)  # fmt: skip
def test_an_announcement_that_cannot_be_is_an_offence(change: dict[str, Any]) -> None:
    judged = Orderbook().apply(MAKER, announce(**change), NOW_S)
    assert isinstance(judged, Wrong)
    assert judged.offence


def test_nobody_announces_or_cancels_for_another() -> None:
    found = book()
    assert found.apply(LIAR, announce(), NOW_S) == Wrong("from_peer is not the author", True)
    forged = announce()._replace(from_peer=LIAR)
    assert found.apply(LIAR, forged, NOW_S) == Wrong("an order is announced by its maker, under its own id", True)
    assert found.apply(LIAR, cancel(LIAR), NOW_S) == Wrong("an order is its maker's to cancel", True)
    assert found.apply(LIAR, cancel(MAKER), NOW_S) == Wrong("from_peer is not the author", True)
    assert found.open(NOW_S) == [ORDER]
    assert found.apply(MAKER, cancel(MAKER), NOW_S) == ORDER
    assert found.open(NOW_S) == []


def test_what_is_over_does_not_come_back() -> None:
    found = book()
    found.apply(MAKER, cancel(MAKER), NOW_S)
    assert found.apply(MAKER, announce(), NOW_S) == Wrong("an order that is over", False)
    late = Orderbook().apply(MAKER, announce(), NOW_S + 700)
    assert late == Wrong("an order that has ended", False)


def test_an_order_does_not_change_once_it_is_known() -> None:
    found = book()
    assert found.apply(MAKER, announce(), NOW_S) == ORDER
    judged = found.apply(MAKER, announce(offer_amount=1), NOW_S)
    assert judged == Wrong("another order of the same id", True)
    assert found.open(NOW_S) == [ORDER]


def test_the_first_take_with_the_orders_own_amounts_wins() -> None:
    found = book()
    assert found.apply(TAKER, take(), NOW_S) == Take(ORDER, "t1", TAKER, "htlc")
    assert found.apply(LIAR, take(LIAR, trade_id="t1"), NOW_S) == Wrong("no such order", False)


@pytest.mark.parametrize(
    "change",
    [
        {"offer_amount": 1}, {"request_amount": 8}, {"offer_amount": "100000"}, {"method": "trust"}, {"method": None},
        {"trade_id": ""}, {"trade_id": "other"}, {"order_id": "o2"}, {"taker_peer_id": LIAR},
    ],
)  # fmt: skip
def test_a_take_with_other_terms_is_an_offence(change: dict[str, Any]) -> None:
    found = book()
    judged = found.apply(TAKER, take(**change), NOW_S)
    assert isinstance(judged, Wrong)
    assert judged.offence
    assert found.open(NOW_S) == [ORDER]


def test_a_maker_cannot_take_its_own_order() -> None:
    assert book().apply(MAKER, take(MAKER), NOW_S) == Wrong("a take that cannot be", True)


def test_orders_are_bounded_in_all_and_for_each_maker() -> None:
    found = book(*(ORDER._replace(id=f"o{n}") for n in range(3)))
    fourth = ORDER._replace(id="o9")
    assert found.apply(MAKER, announce(fourth), NOW_S) == Wrong("too many orders", False)
    for n in range(2):
        other = ORDER._replace(id=f"x{n}", maker=f"m{n}")
        assert found.apply(other.maker, announce(other), NOW_S) == other
    last = ORDER._replace(id="x9", maker="m9")
    assert found.apply("m9", announce(last), NOW_S) == Wrong("too many orders", False)


@pytest.mark.parametrize("type", ["pubkey_exchange", "ack", "", "order_taken"])
def test_private_types_have_no_place_in_gossip(type: str) -> None:
    judged = Orderbook().apply(MAKER, Direct(type, from_peer=MAKER, payload={}), NOW_S)
    assert judged == Wrong("not a public message", True)
