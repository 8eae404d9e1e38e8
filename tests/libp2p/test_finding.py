"""How hosts find each other: kept peers, bootstrap peers, mDNS."""

from __future__ import annotations

import contextlib
import random
import secrets

import pytest
from tests.libp2p.hosts import Watched, hosts
from tests.libp2p.loop import DEADLINE_S, coroutine, until

from posthouse.libp2p.errors import BadInput
from posthouse.libp2p.host import Disconnected
from posthouse.libp2p.keeper import Keeper, pause_s
from posthouse.libp2p.key import PrivateKey
from posthouse.libp2p.mdns import Mdns, announced
from posthouse.libp2p.multiaddr import Multiaddr
from posthouse.libp2p.peer_id import PeerId
from posthouse.libp2p.settings import Settings

SOMEBODY = PeerId.of(PrivateKey.generate().public)


@coroutine
async def test_a_kept_peer_is_dialled_again_when_it_is_lost() -> None:
    async with hosts(2, keep_first_s=0.01, keep_most_s=0.05) as (alice, bob):
        keeper = Keeper(alice)
        assert keeper.keep(str(bob.address)) == bob.peer_id
        assert keeper.keep(bob.address) == bob.peer_id
        for number in range(1, 5):
            await until(lambda: alice.is_connected(bob.peer_id) and bob.is_connected(alice.peer_id))
            bob.connections(alice.peer_id)[0].abort()
            await until(lambda n=number: alice.saw(Disconnected) >= n)
        await until(lambda: alice.is_connected(bob.peer_id) and bob.is_connected(alice.peer_id))
        keeper.release(bob.peer_id)
        await bob.disconnect(alice.peer_id)
        await until(lambda: not alice.peers)
        keeper.close()
        assert keeper.peers == []


def test_a_peer_that_is_away_is_tried_with_growing_waits() -> None:
    settings, rng = Settings(keep_first_s=1.0, keep_most_s=60.0), random.Random(1)
    for failures, most_s in enumerate([1, 2, 4, 8, 16, 32, 60, 60]):
        waits = [pause_s(failures, settings, rng) for _ in range(100)]
        assert most_s / 2 <= min(waits) < max(waits) <= most_s
    assert pause_s(10_000, settings, rng) <= 60


@coroutine
async def test_a_peer_that_comes_back_is_connected_again() -> None:
    async with hosts(2, keep_first_s=0.01, keep_most_s=0.05) as (alice, bob):
        (address,) = bob.addresses
        keeper = Keeper(alice)
        keeper.keep(address)
        await until(lambda: alice.is_connected(bob.peer_id))
        await bob.close()
        await until(lambda: not alice.peers)
        async with Watched(PrivateKey(bytes([2]) * 32), Settings()) as again:
            await again.listen(address.bare())
            assert again.peer_id == bob.peer_id
            await until(lambda: alice.is_connected(bob.peer_id))
        keeper.close()


@coroutine
async def test_bootstrap_peers_are_dialled_only_while_there_are_too_few_others() -> None:
    async with hosts(3, keep_first_s=0.01) as (alice, bob, carol):
        await alice.dial(bob.address)
        keeper = Keeper(alice, enough=1)
        keeper.keep(carol.address, bootstrap=True)
        # When the ping is back, both sides know each other.
        assert await alice.ping(bob.peer_id) < DEADLINE_S
        assert not alice.is_connected(carol.peer_id)
        await bob.disconnect(alice.peer_id)
        await until(lambda: alice.is_connected(carol.peer_id))
        keeper.close()


@coroutine
async def test_what_cannot_be_kept_is_refused_at_once() -> None:
    async with hosts(1) as (alice,):
        keeper = Keeper(alice)
        for text in ("/ip4/127.0.0.1/tcp/1", f"/ip4/127.0.0.1/udp/1/quic-v1/p2p/{SOMEBODY}"):
            with pytest.raises(BadInput):
                keeper.keep(text)
        keeper.keep(alice.address)
        assert keeper.peers == []


@coroutine
async def test_hosts_on_one_network_find_each_other() -> None:
    async with hosts(3) as (alice, bob, carol):
        found: list[PeerId] = []
        # A name of its own: whoever else tests on this machine is heard, too.
        name = f"test-{secrets.token_hex(8)}"
        services = [
            Mdns(alice, name, ["127.0.0.1"], found=found.append),
            Mdns(bob, name, ["127.0.0.1"], connect=False),
            Mdns(carol, "other-net", ["127.0.0.1"]),
        ]
        async with contextlib.AsyncExitStack() as stack:
            for service in services:
                stack.push_async_callback(service.close)
                await service.start()
            await until(lambda: alice.is_connected(bob.peer_id))
            assert set(found) == {bob.peer_id}
            assert not carol.peers
            assert alice.saw(Disconnected) == 0


def test_announcements_are_read_as_far_as_they_make_sense() -> None:
    good = [Multiaddr.parse(f"/ip4/192.0.2.{n}/tcp/4001/p2p/{SOMEBODY}") for n in range(20)]
    entries = [b"dnsaddr=" + str(address).encode() for address in good]
    entries[1:1] = [b"", b"x=y", b"dnsaddr=/ip4/", b"dnsaddr=\xff", b"dnsaddr=/ip4/1.2.3.4/udp/1/quic-v1"]
    text = b"".join(bytes((len(entry),)) + entry for entry in entries)
    assert announced(text) == good[:16]
    assert announced(text[:30]) == []
    assert announced(b"\xff") == []


@coroutine
async def test_a_service_needs_a_name_that_can_be_announced() -> None:
    async with hosts(1) as (alice,):
        for name in ("", "a b", "x" * 41, "a/b"):
            with pytest.raises(BadInput):
                Mdns(alice, name)
