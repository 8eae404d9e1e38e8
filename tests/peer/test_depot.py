"""Over a relay: what cannot be sent is left there, sealed; the first acknowledgement counts, whichever way it comes."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.libp2p.loop import coroutine, until
from tests.peer.nodes import ALICE, BOB, MALLORY, QUICK, Node, id_of, node
from tests.relay.harness import HOST, Relay

from posthouse.agent.client import Agent
from posthouse.agent.identity import Identity
from posthouse.libp2p.key import PrivateKey
from posthouse.mailbox.message import State
from posthouse.mailbox.policy import INBOX, OUTBOX
from posthouse.peer import depot as module
from posthouse.peer import frame
from posthouse.peer.depot import CONTENT_TYPE, Depot
from posthouse.peer.frame import Direct
from posthouse.peer.inbox import Incoming, Reject
from posthouse.wire.address import address_of


@pytest.fixture
def relay(tmp_path: Path) -> Iterator[Relay]:
    (tmp_path / "relay").mkdir()
    made = Relay(tmp_path / "relay").start()
    yield made
    made.stop()


@contextlib.asynccontextmanager
async def sheltered(folder: Path, key: PrivateKey, relay: Relay, **more: object) -> AsyncIterator[Node]:
    async with node(folder, key, **more) as found:  # type: ignore[arg-type]
        depot = Depot(found.peer, folder / f"depot-{id_of(key)[-8:]}", f"ws://127.0.0.1:{relay.server.port}", HOST)
        depot.start()
        try:
            await until(lambda: depot.address is not None)
            assert depot.address == address_of(key.public.raw(), HOST)
            yield found
        finally:
            await depot.close()


@coroutine
async def test_who_never_meet_trade_over_a_relay_in_order_and_both_know(tmp_path: Path, relay: Relay) -> None:
    async with sheltered(tmp_path, ALICE, relay) as alice:
        for number in range(4):
            for trade in ("t1", "t2"):
                await alice.peer.send(id_of(BOB), trade, "partial_sig", number)
        # All of it lies at the relay before anybody comes for it.
        await until(lambda: alice.stats.left >= 8)
        async with sheltered(tmp_path, BOB, relay) as bob:
            await until(lambda: len(alice.sent(State.DELIVERED)) == 8)
            for trade in ("t1", "t2"):
                assert [m.payload for m in bob.came if m.trade == trade] == list(range(4))
            assert all(m.signed for m in bob.came)
            await bob.peer.send(alice.id, "t1", "abort", "back")
            await until(lambda: bob.sent(State.DELIVERED))
            assert [m.payload for m in alice.came] == ["back"]
            assert not alice.host.peers
            assert not bob.host.peers


@coroutine
async def test_what_was_left_and_what_was_sent_are_one_message(tmp_path: Path, relay: Relay) -> None:
    async with sheltered(tmp_path, ALICE, relay, policies=(OUTBOX, INBOX)) as alice:
        await alice.peer.send(id_of(BOB), "t1", "abort", 1)
        await until(lambda: alice.stats.left)
        async with node(tmp_path, BOB) as bob:
            # It comes, and is sent the message before it has looked at the relay.
            await bob.meet(alice)
            await until(lambda: alice.sent(State.DELIVERED))
        async with sheltered(tmp_path, BOB, relay) as bob:
            await until(lambda: bob.stats.duplicates)
            assert bob.came == []
        assert len(alice.sent()) == 1


@coroutine
async def test_a_rejection_over_the_relay_is_final(tmp_path: Path, relay: Relay) -> None:
    def refuse(message: Incoming) -> None:
        raise Reject("not agreed on")

    async with (
        sheltered(tmp_path, ALICE, relay, policies=(OUTBOX, INBOX)) as alice,
        sheltered(tmp_path, BOB, relay) as bob,
    ):
        bob.then = refuse
        await alice.peer.send(bob.id, "t1", "funding_info", 1)
        await until(lambda: alice.sent(State.DEAD))
        dead = alice.sent(State.DEAD)[0]
        assert (dead.reason, dead.error) == ("rejected", "not agreed on")


@coroutine
async def test_a_copy_without_an_answer_is_left_again_after_an_hour(
    tmp_path: Path, relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "AGAIN_S", 1)
    async with sheltered(tmp_path, ALICE, relay, policies=QUICK) as alice:
        await alice.peer.send(id_of(BOB), "t1", "abort", 1)
        await until(lambda: alice.stats.left >= 3)
        # Not with each try.
        await until(lambda: alice.stats.away > alice.stats.left)


@coroutine
async def test_whoever_writes_to_us_at_the_relay_is_who_it_says(tmp_path: Path, relay: Relay) -> None:
    async with sheltered(tmp_path, ALICE, relay, policies=(OUTBOX, INBOX)) as alice:
        mine = await alice.peer.send(id_of(BOB), "t1", "abort", 1)
        await until(lambda: alice.stats.away)
        url = f"ws://127.0.0.1:{relay.server.port}"
        async with Agent(tmp_path / "mallory", url, host=HOST, identity=Identity(MALLORY.seed())) as mallory:
            to = address_of(ALICE.public.raw(), HOST)

            async def say(message: Direct | bytes) -> None:
                data = message if isinstance(message, bytes) else frame.dumps(frame.fields(message))
                await mallory.send(to, data, CONTENT_TYPE)

            lie = Direct("abort", "t1", "", id_of(BOB), 1, 1, "m1", 1, True, 2**31)
            own = lie._replace(from_peer=id_of(MALLORY))
            await say(lie)
            await say(b"{]")
            await say(b"\xff\xfe")
            await until(lambda: alice.stats.refused["malformed"] == 3)
            await say(frame.acknowledge(own._replace(message_id=mine), id_of(MALLORY), True, "", 1, "x"))
            await say(own._replace(type="sync_request"))
            await until(lambda: alice.stats.refused["forbidden_type"] == 1)
            await say(own._replace(swap_timeout=1))
            await until(lambda: alice.stats.refused["ttl"] == 1)
            await say(own)
            await until(lambda: alice.stats.refused["spoofed"] == 1)
            assert alice.came == []
            assert not alice.sent(State.DELIVERED)


@coroutine
async def test_what_is_too_large_for_a_relay_waits_for_a_stream(tmp_path: Path, relay: Relay) -> None:
    async with sheltered(tmp_path, ALICE, relay, policies=(OUTBOX, INBOX)) as alice:
        await alice.peer.send(id_of(BOB), "t1", "abort", "x" * 70_000)
        await alice.peer.send(id_of(BOB), "t2", "abort", 2)
        await until(lambda: alice.stats.left == 1)
        async with node(tmp_path, BOB) as bob:
            await bob.meet(alice)
            await until(lambda: len(bob.came) == 2)
