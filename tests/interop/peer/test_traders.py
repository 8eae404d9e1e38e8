"""Direct messages with traders on go-libp2p, js-libp2p and py-libp2p, and orders by gossip with such peers.

The traders are built in the test run, with the packages of the libp2p tests.
"""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.interop.libp2p.foreign import (
    GO_SOURCE,
    NODE_SOURCE,
    Failed,
    Foreign,
    foreign,
    go_peer,
    node_peer,
    python_peer,
)
from tests.interop.toolchain import go_build, kept, node_program
from tests.libp2p.loop import until, within
from tests.peer.nodes import ALICE, Node, limits, node
from tests.peer.test_orders import trader

from posthouse.libp2p.multiaddr import Multiaddr
from posthouse.mailbox.message import State
from posthouse.peer.orders import TOPIC

HERE = Path(__file__).parent
GO_TRADER = HERE.parent / "go" / "direct" / "main.go"
NODE_TRADER = HERE / "trader.mjs"


def go_trader() -> list[str]:
    sources = [GO_TRADER, GO_SOURCE / "go.mod", GO_SOURCE / "go.sum"]

    def build(draft: Path) -> None:
        for path in sources:
            shutil.copy(path, draft)
        go_build(draft, "trader")

    return [str(kept("libp2p-go-trader", sources, build) / "trader")]


def node_trader() -> list[str]:
    sources = [NODE_TRADER, NODE_SOURCE / "package.json", NODE_SOURCE / "package-lock.json"]

    def build(draft: Path) -> None:
        for path in sources:
            shutil.copy(path, draft)
        # The same packages as those of the peer on js-libp2p.
        (draft / "node_modules").symlink_to(Path(node_peer()[1]).parent / "node_modules")

    return [node_program(), str(kept("libp2p-node-trader", sources, build) / NODE_TRADER.name)]


def python_trader() -> list[str]:
    # The words that start the peer on py-libp2p, with another program at their end.
    return [*python_peer()[:-1], str(HERE / "trader.py")]


SLOW = [pytest.mark.slow, pytest.mark.timeout(1_500)]


@pytest.fixture(
    params=[
        pytest.param(node_trader, id="js", marks=pytest.mark.timeout(600)),
        pytest.param(go_trader, id="go", marks=SLOW),
        pytest.param(python_trader, id="py", marks=SLOW),
    ]
)
def words(request: pytest.FixtureRequest) -> list[str]:
    build: Callable[[], list[str]] = request.param
    return build()


@pytest.fixture(
    params=[
        pytest.param(node_peer, id="js", marks=pytest.mark.timeout(600)),
        pytest.param(go_peer, id="go", marks=SLOW),
    ]
)
def gossiper(request: pytest.FixtureRequest) -> list[str]:
    build: Callable[[], list[str]] = request.param
    return build()


def direct(other: Foreign, number: int, **fields: Any) -> str:
    """A message as a plain node writes it."""
    return json.dumps(
        {
            "type": "pubkey_exchange", "trade_id": "t1", "order_id": "", "from_peer": other.peer,
            "payload": {"pubkey": "02", "n": number}, "timestamp": 1_700_000_000, "message_id": f"m{number}",
            "sequence_num": number, "requires_ack": True, "swap_timeout": 4_000_000_000, **fields,
        }
    )  # fmt: skip


async def asked(other: Foreign, us: Node, data: str) -> dict[str, Any]:
    """Have it send a message; the payload of the acknowledgement."""
    answer = json.loads((await other.do("send", peer=us.id, data=data))["answer"])
    assert answer["type"] == "ack"
    payload: dict[str, Any] = answer["payload"]
    return payload


@within(60)
async def test_messages_go_both_ways(words: list[str], tmp_path: Path) -> None:
    async with node(tmp_path, ALICE) as alice, foreign(words) as other:
        await alice.host.dial(Multiaddr.parse(other.address))
        await other.wait("connected", peer=alice.id)
        for number in range(20):
            await alice.peer.send(other.peer, "t1", "nonce_exchange", {"n": number})
        await until(lambda: alice.stats.acked == 20)
        frames = [e for e in other.events if e["event"] == "frame"]
        assert [f["number"] for f in frames] == list(range(1, 21))
        for number in range(1, 21):
            assert await asked(other, alice, direct(other, number)) == {
                "message_id": f"m{number}", "sequence_num": number, "success": True,
            }  # fmt: skip
        assert [m.sequence for m in alice.came] == list(range(1, 21))
        # A copy is answered as the first was, and not processed.
        assert (await asked(other, alice, direct(other, 7)))["success"]
        assert len(alice.came) == 20
        refused = await asked(other, alice, direct(other, 21, from_peer=alice.id))
        assert refused["error"] == "from_peer is not the peer of this stream"


@within(60)
async def test_a_megabyte_goes_both_ways(words: list[str], tmp_path: Path) -> None:
    async with node(tmp_path, ALICE) as alice, foreign(words) as other:
        await alice.host.dial(Multiaddr.parse(other.address))
        body = "x" * 1_047_000
        await alice.peer.send(other.peer, "t1", "funding_info", body)
        await until(lambda: alice.stats.acked == 1)
        assert [e["size"] > 1_047_000 for e in other.events if e["event"] == "frame"] == [True]
        assert (await asked(other, alice, direct(other, 1, payload=body)))["success"]
        assert alice.came[0].payload == body
        with pytest.raises(Failed):
            await other.do("send", peer=alice.id, data=direct(other, 2, payload="x" * 1_048_576))


@within(90)
async def test_only_a_true_acknowledgement_ends_a_message(words: list[str], tmp_path: Path) -> None:
    async with node(tmp_path, ALICE, limits(send={"ack_s": 1.0})) as alice, foreign(words) as other:
        await alice.host.dial(Multiaddr.parse(other.address))
        await other.do("mode", mode="wrong")
        await alice.peer.send(other.peer, "t1", "abort", 1, id="one")
        for mode in ("garbage", "reset", "silent", "yes"):
            seen = sum(e["event"] == "frame" for e in other.events)
            await other.wait("frame", seen + 1)
            assert not alice.sent(State.DELIVERED)
            await other.do("mode", mode=mode)
        await until(lambda: alice.sent(State.DELIVERED))
        assert {e["id"] for e in other.events if e["event"] == "frame"} == {"one"}
        await other.do("mode", mode="no")
        await alice.peer.send(other.peer, "t1", "abort", 2)
        await until(lambda: alice.sent(State.DEAD))
        assert alice.sent(State.DEAD)[0].error == "as it was told"


@within(90)
async def test_what_a_killed_peer_did_not_acknowledge_waits_for_it(words: list[str], tmp_path: Path) -> None:
    async with node(tmp_path, ALICE) as alice:
        async with foreign(words) as other:
            await alice.host.dial(Multiaddr.parse(other.address))
            await other.do("mode", mode="silent")
            for number in range(5):
                await alice.peer.send(other.peer, "t1", "abort", number)
            await other.wait("frame")
            other.signal(signal.SIGKILL)
            await until(lambda: not alice.host.peers)
            await until(lambda: alice.stats.away)
        assert not alice.sent(State.DELIVERED, State.DEAD)
        assert len(alice.sent()) == 5


@within(90)
async def test_many_reconnects_leave_nothing_behind(words: list[str], tmp_path: Path) -> None:
    async with node(tmp_path, ALICE) as alice, foreign(words) as other:
        for number in range(40):
            await other.do("dial", addr=str(alice.host.addresses[0]))
            await alice.peer.send(other.peer, "t1", "abort", number)
            await until(lambda n=number: alice.stats.acked == n + 1)  # type: ignore[misc]
            await other.do("hangup", peer=alice.id)
            await until(lambda: not alice.host.peers)
        assert alice.stats.connected == alice.stats.disconnected == 40
        assert alice.host.counts.streams == 0
        assert not alice.peer.receiver._waiting
        frames = [e["number"] for e in other.events if e["event"] == "frame"]
        assert sorted(set(frames)) == list(range(1, 41))


@within(90)
async def test_orders_go_both_ways_by_gossip(gossiper: list[str], tmp_path: Path) -> None:
    async with trader(tmp_path, ALICE) as alice, foreign(gossiper) as other:
        await other.do("join", topic=TOPIC)
        await alice.node.host.dial(Multiaddr.parse(other.address))
        await until(lambda: alice.gossip.router.mesh(TOPIC))
        order = await alice.orders.announce("BTC", 100_000, "LTC", 7)
        await other.wait("message", topic=TOPIC)
        heard = json.loads(other.messages(TOPIC)[0])
        assert (heard["type"], heard["order_id"], heard["payload"]["offer_amount"]) == (
            "order_announce", order.id, 100_000,
        )  # fmt: skip
        theirs = {**order.payload(True), "id": "theirs", "peer_id": other.peer}
        told = {"type": "order_announce", "order_id": "theirs", "from_peer": other.peer, "payload": theirs}
        await other.do("publish", topic=TOPIC, data=json.dumps(told))
        await until(lambda: "theirs" in alice.ids())
        forged = {"type": "order_cancel", "order_id": order.id, "from_peer": alice.node.id, "payload": {}}
        before = alice.gossip.router.rejected
        await other.do("publish", topic=TOPIC, data=json.dumps(forged))
        await until(lambda: alice.gossip.router.rejected > before)
        assert order.id in alice.ids()


@pytest.mark.slow
@within(120)
async def test_a_frozen_peer_is_noticed_and_served_when_it_goes_on(words: list[str], tmp_path: Path) -> None:
    async with node(tmp_path, ALICE) as alice, foreign(words) as other:
        await other.do("dial", addr=str(alice.host.addresses[0]))
        await until(lambda: alice.host.peers)
        other.signal(signal.SIGSTOP)
        for number in range(5):
            await alice.peer.send(other.peer, "t1", "abort", number)
        await until(lambda: not alice.host.peers, "it is noticed within half a minute")
        assert not alice.sent(State.DELIVERED)
        other.signal(signal.SIGCONT)
        await alice.host.dial(Multiaddr.parse(other.address))
        await until(lambda: alice.stats.acked == 5)
        frames = [e["number"] for e in other.events if e["event"] == "frame"]
        assert sorted(set(frames)) == [1, 2, 3, 4, 5]
