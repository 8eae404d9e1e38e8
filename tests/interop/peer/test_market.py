"""The market and sealed messages in a mesh of seven mixed peers: ours, go-libp2p, js-libp2p and py-libp2p."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from tests.interop.libp2p.foreign import Foreign, foreign, go_peer, node_peer, python_peer
from tests.libp2p.loop import until, within
from tests.peer.nodes import ALICE, BOB, MALLORY, Node, limits, node

from posthouse.libp2p.gossip.service import Gossip
from posthouse.libp2p.host import Host
from posthouse.libp2p.key import PrivateKey
from posthouse.libp2p.multiaddr import Multiaddr
from posthouse.mailbox.message import State
from posthouse.peer import whisper
from posthouse.peer.capability import Mode
from posthouse.peer.orders import TOPIC, Orders
from posthouse.peer.whisper import Whispers


class Trader:
    """One of ours in the market, who also takes sealed messages."""

    def __init__(self, of: Node, gossip: Gossip) -> None:
        self.node = of
        self.gossip = gossip
        self.orders = Orders(of.peer, of.host, gossip)
        self.whispers = Whispers(of.peer, gossip)

    def ids(self) -> set[str]:
        return {order.id for order in self.orders.open()}


@contextlib.asynccontextmanager
async def trading(folder: Path, key: PrivateKey) -> Any:
    given = limits(rules={"direct": Mode.OFF})
    async with node(folder, key, given) as found, Gossip(found.host, key) as gossip:
        trader = Trader(found, gossip)
        trader.orders.start()
        trader.whispers.start()
        try:
            yield trader
        finally:
            await trader.whispers.close()
            await trader.orders.close()


def announced(by: Foreign, like: dict[str, Any]) -> str:
    """An order of theirs, as plain nodes announce it."""
    order = {**like, "id": f"of-{by.peer}", "peer_id": by.peer}
    return json.dumps({"type": "order_announce", "order_id": order["id"], "from_peer": by.peer, "payload": order})


async def ring(ours: list[Trader], theirs: list[Foreign]) -> None:
    """Ours stand between theirs, so that nobody hears everything from its author."""
    hosts: list[Host] = [trader.node.host for trader in ours]
    first, js, py, last = theirs
    await hosts[0].dial(Multiaddr.parse(first.address))
    await first.do("dial", addr=str(hosts[1].addresses[0]))
    await hosts[1].dial(Multiaddr.parse(js.address))
    await js.do("dial", addr=str(hosts[2].addresses[0]))
    await hosts[2].dial(Multiaddr.parse(py.address))
    await py.do("dial", addr=str(last.address))
    await last.do("dial", addr=str(hosts[0].addresses[0]))


@pytest.mark.slow
@pytest.mark.timeout(1_500)
@within(300)
async def test_orders_and_sealed_messages_reach_everybody_in_a_mesh_of_mixed_peers(tmp_path: Path) -> None:
    kinds = [go_peer(), node_peer(), python_peer(), go_peer()]
    async with contextlib.AsyncExitStack() as stack:
        ours: list[Trader] = [await stack.enter_async_context(trading(tmp_path, key)) for key in (ALICE, BOB, MALLORY)]
        theirs = [await stack.enter_async_context(foreign(words)) for words in kinds]
        for other in theirs:
            for topic in (TOPIC, whisper.TOPIC):
                await other.do("join", topic=topic)
        await ring(ours, theirs)
        for trader in ours:
            for topic in (TOPIC, whisper.TOPIC):
                await until(lambda t=trader, x=topic: len(t.gossip.router.mesh(x)) == 2, "our mesh is whole")
        made = [await trader.orders.announce("BTC", 100_000 + n, "LTC", 7) for n, trader in enumerate(ours)]
        for other in theirs:
            await other.do("publish", topic=TOPIC, data=announced(other, made[0].payload(True)))
        everything = {order.id for order in made} | {f"of-{other.peer}" for other in theirs}
        for trader in ours:
            await until(lambda t=trader: t.ids() == everything, "every order is in every book")
        for other in theirs:
            await until(lambda o=other: len(set(o.messages(TOPIC))) >= len(everything) - 1, "they have heard them all")
        # A cancellation counts from the maker only, whoever carries it.
        alice, bob, carol = ours
        forged = {"type": "order_cancel", "order_id": made[2].id, "from_peer": carol.node.id, "payload": {}}
        await theirs[0].do("publish", topic=TOPIC, data=json.dumps(forged))
        await alice.orders.cancel(made[0].id)
        for trader in ours:
            await until(lambda t=trader: made[0].id not in t.ids())
            assert made[2].id in trader.ids()
        # A take travels to the maker, and the trade's messages go sealed over peers that cannot read them.
        trade = await alice.orders.take(made[2].id, "htlc")
        taken = await anext(carol.orders.takes())
        assert (taken.trade, taken.taker) == (trade, alice.node.id)
        for number in range(5):
            await alice.node.peer.send(carol.node.id, trade, "nonce_exchange", {"secret": f"hidden-{number}"})
        await until(lambda: len(alice.node.sent(State.DELIVERED)) == 5)
        assert [m.payload["secret"] for m in carol.node.came] == [f"hidden-{n}" for n in range(5)]
        assert bob.node.came == []
        for other in theirs:
            heard = other.messages(whisper.TOPIC)
            assert heard
            assert not any("hidden" in text for text in heard)
