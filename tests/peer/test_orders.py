"""Orders by gossip between real hosts: announced, cancelled, taken; late comers; liars."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.libp2p.loop import coroutine, until
from tests.peer.nodes import ALICE, BOB, MALLORY, Node, node

from posthouse.errors import InvalidInput
from posthouse.libp2p.gossip.params import Params
from posthouse.libp2p.gossip.service import Gossip
from posthouse.libp2p.key import PrivateKey
from posthouse.peer import frame
from posthouse.peer.frame import Direct
from posthouse.peer.orders import TOPIC, Orders

PARAMS = Params(heartbeat_s=0.1)


@dataclasses.dataclass
class Trader:
    """A peer in the market."""

    node: Node
    orders: Orders
    gossip: Gossip

    def ids(self) -> list[str]:
        return [order.id for order in self.orders.open()]

    def lie(self, message: Direct) -> None:
        """Say something without looking whether it is true."""
        self.gossip.router._topics[TOPIC] = None
        self.gossip.publish(TOPIC, frame.dumps(frame.fields(message)))


@contextlib.asynccontextmanager
async def trader(folder: Path, key: PrivateKey) -> AsyncIterator[Trader]:
    async with node(folder, key) as found, Gossip(found.host, key, PARAMS) as gossip:
        orders = Orders(found.peer, found.host, gossip)
        orders.start()
        try:
            yield Trader(found, orders, gossip)
        finally:
            await orders.close()


async def in_a_row(*traders: Trader) -> None:
    for one, other in itertools.pairwise(traders):
        await one.node.meet(other.node)
    for one in traders:
        await until(lambda g=one.gossip: g.router.mesh(TOPIC))  # type: ignore[misc]


@coroutine
async def test_orders_travel_are_cancelled_and_taken(tmp_path: Path) -> None:
    async with trader(tmp_path, ALICE) as alice, trader(tmp_path, BOB) as bob, trader(tmp_path, MALLORY) as carol:
        await in_a_row(alice, bob, carol)
        one = await alice.orders.announce("BTC", 100_000, "LTC", 7, ("htlc",))
        two = await alice.orders.announce("BTC", 5, "LTC", 6)
        await until(lambda: len(carol.ids()) == 2)
        assert carol.orders.book.orders[one.id] == one
        await alice.orders.cancel(two.id)
        await until(lambda: carol.ids() == [one.id])
        trade = await carol.orders.take(one.id, "htlc")
        taken = await anext(alice.orders.takes())
        assert (taken.order, taken.trade, taken.taker, taken.method) == (one, trade, carol.node.id, "htlc")
        await until(lambda: not alice.ids() and not bob.ids() and not carol.ids())
        # The trade has its parties now; its messages go directly.
        assert alice.node.peer.session.trades[trade].peer == carol.node.id
        assert carol.node.peer.session.trades[trade].peer == alice.node.id
        await carol.node.meet(alice.node)
        await alice.node.peer.send(carol.node.id, trade, "pubkey_exchange", {"pubkey": "02"})
        await until(lambda: carol.node.came)


@coroutine
async def test_who_comes_late_learns_what_stands_and_a_restart_forgets_nothing(tmp_path: Path) -> None:
    async with trader(tmp_path, ALICE) as alice:
        order = await alice.orders.announce("BTC", 1, "LTC", 2, lasts_s=600)
    async with trader(tmp_path, ALICE) as alice, trader(tmp_path, BOB) as bob:
        assert alice.ids() == [order.id]
        await bob.node.meet(alice.node)
        await until(lambda: bob.ids() == [order.id])


@coroutine
async def test_nobody_is_believed_about_the_orders_of_others(tmp_path: Path) -> None:
    async with trader(tmp_path, ALICE) as alice, trader(tmp_path, BOB) as bob, trader(tmp_path, MALLORY) as liar:
        await in_a_row(liar, alice, bob)
        order = await alice.orders.announce("BTC", 100_000, "LTC", 7)
        await until(lambda: bob.ids() == liar.ids() == [order.id])
        me, victim = liar.node.id, alice.node.id
        take = {"trade_id": "t", "order_id": order.id, "taker_peer_id": me, "method": "htlc", "offer_amount": 1,
                "request_amount": 7}  # fmt: skip
        for lie in (
            Direct("order_cancel", "", order.id, victim, {"order_id": order.id, "cancelled": True}),
            Direct("order_cancel", "", order.id, me, {"order_id": order.id, "cancelled": True}),
            Direct("order_take", "t", order.id, me, take),
        ):
            before = alice.gossip.router.rejected
            liar.lie(lie)
            await until(lambda b=before: alice.gossip.router.rejected > b)  # type: ignore[misc]
        assert alice.ids() == bob.ids() == [order.id]
        assert "t" not in alice.node.peer.session.trades


@coroutine
async def test_what_cannot_be_offered_or_taken_is_said(tmp_path: Path) -> None:
    async with trader(tmp_path, ALICE) as alice:
        for amount, lasts_s in ((0, 60), (1, 0), (1, 10**9)):
            with pytest.raises(InvalidInput, match="cannot be announced"):
                await alice.orders.announce("BTC", amount, "LTC", 1, lasts_s=lasts_s)
        order = await alice.orders.announce("BTC", 1, "LTC", 1)
        with pytest.raises(InvalidInput, match="no order"):
            await alice.orders.take(order.id, "htlc")
        with pytest.raises(InvalidInput, match="no open order"):
            await alice.orders.cancel("another")
