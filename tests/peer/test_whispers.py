"""Private messages by gossip: for those who take no streams, never for a trade that asked for streams only."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.libp2p.loop import coroutine, until
from tests.peer.nodes import ALICE, BOB, HERE, MALLORY, Node, id_of, limits, node

from posthouse.errors import BadFrame, InvalidInput
from posthouse.libp2p.gossip.params import Params
from posthouse.libp2p.gossip.service import Gossip
from posthouse.libp2p.host import Host
from posthouse.libp2p.key import PrivateKey
from posthouse.libp2p.peer_id import PeerId
from posthouse.mailbox.message import State
from posthouse.peer import capability, frame, sealed
from posthouse.peer.capability import Mode
from posthouse.peer.frame import Direct
from posthouse.peer.whisper import TOPIC, Whispers

PARAMS = Params(heartbeat_s=0.1)
OFF, PREFER, REQUIRE = (limits(rules={"direct": mode}) for mode in (Mode.OFF, Mode.PREFER, Mode.REQUIRE))


@contextlib.asynccontextmanager
async def whispering(folder: Path, key: PrivateKey, given: object, **more: object) -> AsyncIterator[Node]:
    async with node(folder, key, given, **more) as found, Gossip(found.host, key, PARAMS) as gossip:  # type: ignore[arg-type]
        whispers = Whispers(found.peer, gossip)
        whispers.start()
        try:
            yield found
        finally:
            await whispers.close()


class Old(Host):
    """A node from before there were streams: it knows the topic of sealed messages, and acknowledges nothing."""

    def __init__(self, key: PrivateKey) -> None:
        super().__init__(key)
        self.key = key
        self.heard: list[Direct] = []

    async def listen_to_gossip(self, gossip: Gossip) -> None:
        self.gossip = gossip
        async for message in gossip.subscribe(TOPIC):
            envelope = sealed.parse(message.data)
            if envelope.recipient == str(self.peer_id):
                self.heard.append(sealed.unseal(envelope, self.key))

    def whisper(self, to: str, number: int, **fields: object) -> None:
        message = Direct("funding_info", "t1", "", str(self.peer_id), {"n": number}, 1, f"o{number}", number, True)
        self.gossip.publish(TOPIC, sealed.seal(message._replace(**fields), PeerId.parse(to)))


@contextlib.asynccontextmanager
async def old(key: PrivateKey) -> AsyncIterator[Old]:
    async with Old(key) as host, Gossip(host, key, PARAMS) as gossip:
        await host.listen(HERE)
        task = asyncio.create_task(host.listen_to_gossip(gossip))
        try:
            yield host
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def on_topic(*nodes: Node) -> None:
    """Wait until each knows of all whom it is connected with that they are on the topic."""
    for one in nodes:
        carrier = one.peer.courier.whispers
        assert isinstance(carrier, Whispers)
        await until(lambda g=carrier._gossip, h=one.host: h.peers and set(h.peers) <= set(g.peers(TOPIC)))  # type: ignore[misc]


@coroutine
async def test_with_streams_off_messages_go_by_gossip_over_others_in_order_and_are_acknowledged(tmp_path: Path) -> None:
    async with (
        whispering(tmp_path, ALICE, OFF) as alice,
        whispering(tmp_path, BOB, PREFER) as bob,
        whispering(tmp_path, MALLORY, PREFER) as between,
    ):
        # The two are not connected with each other.
        await between.meet(alice)
        await between.meet(bob)
        await on_topic(alice, bob, between)
        for number in range(5):
            await alice.peer.send(bob.id, "t1", "nonce_exchange", number)
        await until(lambda: len(alice.sent(State.DELIVERED)) == 5)
        assert [m.payload for m in bob.came] == list(range(5))
        assert all(m.signed for m in bob.came)
        # It was said how the other one wants it, so the answer goes the same way.
        await bob.peer.send(alice.id, "t1", "partial_sig", "back")
        await until(lambda: bob.sent(State.DELIVERED))
        assert [m.payload for m in alice.came] == ["back"]
        assert between.came == []
        assert not alice.host.is_connected(bob.host.peer_id)


@coroutine
async def test_who_can_do_both_uses_streams(tmp_path: Path) -> None:
    async with whispering(tmp_path, ALICE, PREFER) as alice, whispering(tmp_path, BOB, PREFER) as bob:
        await alice.meet(bob)
        await on_topic(alice, bob)
        await alice.peer.send(bob.id, "t1", "abort", 1)
        await until(lambda: alice.sent(State.DELIVERED))
        assert alice.stats.whispered == bob.stats.whispered == 0
        theirs = alice.peer.session.trades["t1"].theirs
        assert theirs == bob.peer.session.trades["t1"].theirs == "direct gossip"


@coroutine
async def test_a_trade_that_asked_for_streams_is_never_downgraded(tmp_path: Path) -> None:
    async with whispering(tmp_path, BOB, OFF) as bob:
        async with whispering(tmp_path, ALICE, REQUIRE) as alice:
            await alice.meet(bob)
            await on_topic(alice, bob)
            await alice.peer.send(bob.id, "t1", "abort", 1)
            await until(lambda: alice.stats.unconfirmed >= 2)
            assert alice.stats.whispered == 0
            # What the other one sends by gossip is refused, and it is told so.
            await bob.peer.send(alice.id, "t1", "abort", 2)
            await until(lambda: bob.sent(State.DEAD))
            assert bob.sent(State.DEAD)[0].error == "this trade takes messages on direct streams only"
            assert alice.came == []
        # Nor is it when somebody changes the setting.
        async with whispering(tmp_path, ALICE, PREFER) as alice:
            await alice.meet(bob)
            await on_topic(alice)
            await until(lambda: alice.stats.unconfirmed >= 2)
            await alice.peer.send(bob.id, "t2", "abort", 3)
            await until(lambda: alice.sent(State.DELIVERED))
            assert [m.trade for m in bob.came] == ["t2"]
            assert [view.message.lane for view in alice.sent(State.READY, State.LEASED)] == ["t1"]


@coroutine
async def test_a_trade_of_streams_goes_on_where_they_are_switched_off_later(tmp_path: Path) -> None:
    async with node(tmp_path, BOB, REQUIRE) as bob:
        async with node(tmp_path, ALICE, PREFER) as alice:
            await alice.meet(bob)
            await alice.peer.send(bob.id, "t1", "abort", 1)
            await until(lambda: alice.sent(State.DELIVERED))
        async with node(tmp_path, ALICE, OFF) as alice:
            await alice.meet(bob)
            await bob.peer.send(alice.id, "t1", "abort", 2)
            await until(lambda: alice.came)
            await alice.peer.send(bob.id, "t1", "abort", 3)
            await until(lambda: len(bob.came) == 2)


@coroutine
async def test_an_old_node_gets_every_message_and_nobody_claims_that_it_confirmed(tmp_path: Path) -> None:
    short = limits(send={"ack_s": 0.3})
    async with whispering(tmp_path, ALICE, short) as alice, old(BOB) as bob:
        await bob.dial(alice.host.addresses[0])
        await on_topic(alice)
        for number in range(3):
            await alice.peer.send(id_of(BOB), "t1", "nonce_exchange", number)
        await until(lambda: len(alice.sent(State.UNCERTAIN)) == 3)
        found = list(dict.fromkeys((m.payload, m.sequence_num) for m in bob.heard))
        assert found == [(0, 1), (1, 2), (2, 3)]
        # What it sends is taken; nothing of it was said about acknowledgements, so one publication is all it gets.
        bob.whisper(alice.id, 1)
        await until(lambda: bob.heard[-1].type == frame.ACK)
        assert [m.payload for m in alice.came] == [{"n": 1}]
        await alice.peer.send(id_of(BOB), "t1", "abort", 3)
        await until(lambda: len(alice.sent(State.UNCERTAIN)) == 4)
        assert alice.sent(State.UNCERTAIN)[-1].attempts == 1
        # Should it acknowledge after all, that counts.
        late = alice.sent(State.UNCERTAIN)[0].message
        said = Direct(late.kind, late.lane, message_id=late.id, sequence_num=1)
        ack = frame.acknowledge(said, str(bob.peer_id), True, "", 1, "x")
        bob.gossip.publish(TOPIC, sealed.seal(ack, alice.host.peer_id))
        await until(lambda: [view.message.id for view in alice.sent(State.DELIVERED)] == [late.id])


@coroutine
async def test_who_speaks_for_another_is_not_heard(tmp_path: Path) -> None:
    async with whispering(tmp_path, ALICE, PREFER) as alice, old(MALLORY) as liar:
        await liar.dial(alice.host.addresses[0])
        await on_topic(alice)
        liar.whisper(alice.id, 1, from_peer=id_of(BOB))
        carrier = alice.peer.courier.whispers
        assert isinstance(carrier, Whispers)
        await until(lambda: carrier._gossip.router.rejected)
        inner = Direct("abort", "t1", "", id_of(BOB), 1, 1, "m1", 1, True)
        envelope = frame.loads(sealed.seal(inner, alice.host.peer_id))
        envelope["sender"] = str(liar.peer_id)
        liar.gossip.publish(TOPIC, frame.dumps(envelope))
        await until(lambda: alice.stats.refused["malformed"])
        liar.whisper(alice.id, 1, type="ack", payload={"message_id": "m", "success": True})
        liar.whisper(alice.id, 1)
        await until(lambda: alice.came)
        assert [m.peer for m in alice.came] == [str(liar.peer_id)]


def test_only_its_recipient_opens_an_envelope_and_a_strange_one_is_refused() -> None:
    to = PeerId.of(BOB.public)
    message = Direct("abort", "t1", "", id_of(ALICE), {"x": "ä"}, 1, "m1", 1, True, capabilities=("direct",))
    data = sealed.seal(message, to)
    assert sealed.unseal(sealed.parse(data), BOB) == message
    with pytest.raises(BadFrame, match="not sealed for us"):
        sealed.unseal(sealed.parse(data), ALICE)
    plain = frame.loads(data)
    for name, value in (
        ("nonce", "AAAA"),
        ("ephemeral_key", 1),
        ("ciphertext", "%"),
        ("sender", 5),
        ("recipient", "\n"),
    ):
        with pytest.raises(BadFrame):
            sealed.parse(frame.dumps({**plain, name: value}))
    with pytest.raises(BadFrame):
        sealed.parse(b"[]")
    with pytest.raises(InvalidInput, match="gossip carries"):
        sealed.seal(message._replace(payload="x" * 900_000), to)


@pytest.mark.parametrize(
    ("mode", "theirs", "only", "serves", "gossip"),
    [
        ("prefer", "", False, None, False),
        ("prefer", "", False, True, False),
        ("prefer", "", False, False, True),
        ("prefer", "direct gossip", False, None, False),
        ("prefer", "gossip", False, None, True),
        ("prefer", "none", False, None, True),
        ("prefer", "gossip", False, True, False),
        ("prefer", "gossip", True, False, False),
        ("off", "direct", False, True, True),
        ("off", "direct", True, True, False),
        ("require", "gossip", False, False, False),
    ],
)
def test_which_way_the_next_message_goes(mode: str, theirs: str, only: bool, serves: bool | None, gossip: bool) -> None:
    trade = capability.Trade("peer", 1, theirs=theirs, direct_only=only)
    assert capability.goes_by_gossip(trade, Mode(mode), serves) is gossip
