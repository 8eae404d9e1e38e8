"""From a bare connection to streams: both ends together, in any pieces, and with somebody in between."""

from __future__ import annotations

import random

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from posthouse.libp2p.errors import Libp2pError, NoiseError, NotSupported
from posthouse.libp2p.key import PrivateKey
from posthouse.libp2p.multistream import GREETING, line
from posthouse.libp2p.peer_id import PeerId
from posthouse.libp2p.upgrade import Stage, Upgrade
from posthouse.libp2p.yamux import Bounds, Session

ALICE, BOB = PrivateKey(b"a" * 32), PrivateKey(b"b" * 32)


def upgrade(dialler: bool, key: PrivateKey, expected: PeerId | None = None) -> Upgrade:
    return Upgrade(dialler, key, X25519PrivateKey.generate(), X25519PrivateKey.generate(), expected)


def carry(alice: Upgrade, bob: Upgrade, size: int = 1 << 20) -> None:
    """Bytes both ways until neither has anything to say."""
    moving = True
    while moving:
        moving = False
        for sender, taker in ((alice, bob), (bob, alice)):
            data = sender.take()
            for at in range(0, len(data), size):
                moving = True
                taker.receive(data[at : at + size])


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("size", [1, 50, 1 << 20])
def test_both_ends_come_up_whether_or_not_the_multiplexer_was_named_early(early: bool, size: int) -> None:
    alice, bob = upgrade(True, ALICE, PeerId.of(BOB.public)), upgrade(False, BOB)
    if not early:
        # As a peer that says nothing about multiplexers in its handshake.
        alice._securing._muxers = bob._securing._muxers = []
    carry(alice, bob, size)
    assert alice.stage is bob.stage is Stage.DONE
    assert (alice.peer, bob.peer) == (PeerId.of(BOB.public), PeerId.of(ALICE.public))
    client, server = Session(True, Bounds()), Session(False, Bounds())
    flow = client.open()
    client.write(flow, b"hello")
    for plain in (*bob.early(), *bob.channel.open(alice.channel.seal(client.take()))):
        server.receive(plain)
    assert server.read(server.opened[0], 10) == b"hello"


def test_what_comes_with_the_last_message_is_not_lost() -> None:
    alice, bob = upgrade(True, ALICE), upgrade(False, BOB)
    bob.receive(alice.take())
    alice.receive(bob.take())
    last = alice.take()
    client = Session(True, Bounds())
    client.open()
    assert bob.receive(last + alice.channel.seal(client.take()))
    server = Session(False, Bounds())
    for plain in bob.early():
        server.receive(plain)
    assert len(server.opened) == 1


def test_a_listener_without_noise_is_no_listener() -> None:
    alice = upgrade(True, ALICE)
    with pytest.raises(NotSupported):
        alice.receive(line(GREETING) + line("na"))


def test_the_wrong_peer_is_refused() -> None:
    alice, bob = upgrade(True, ALICE, PeerId.of(ALICE.public)), upgrade(False, BOB)
    with pytest.raises(NoiseError, match="who answers"):
        carry(alice, bob)


@settings(max_examples=60, deadline=None)
@given(st.integers())
def test_nobody_in_between_gets_through(seed: int) -> None:
    rng = random.Random(seed)
    alice, bob = upgrade(True, ALICE), upgrade(False, BOB)
    changed = False
    try:
        for _ in range(6):
            for sender, taker in ((alice, bob), (bob, alice)):
                data = bytearray(sender.take())
                if data and rng.random() < 0.4:
                    place, how = rng.randrange(len(data)), rng.randrange(3)
                    changed = True
                    if how == 0:
                        data[place] ^= 1 << rng.randrange(8)
                    elif how == 1:
                        del data[place]
                    else:
                        data.insert(place, rng.randrange(256))
                taker.receive(bytes(data))
    except Libp2pError:
        assert changed
        return
    if changed:
        assert alice.stage is not Stage.DONE or bob.stage is not Stage.DONE
    else:
        assert alice.stage is bob.stage is Stage.DONE
