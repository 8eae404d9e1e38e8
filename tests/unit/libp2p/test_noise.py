"""Noise: published vectors, libp2p's payload, and whoever tries to stand between."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from posthouse.libp2p import protobuf
from posthouse.libp2p.errors import NoiseError
from posthouse.libp2p.key import PrivateKey
from posthouse.libp2p.noise import PAYLOAD_BYTES_MAX, PLAIN_BYTES_MAX, Handshake, Securing
from posthouse.libp2p.peer_id import PeerId

ALICE, BOB = PrivateKey(b"a" * 32), PrivateKey(b"b" * 32)


def x25519(hexed: str) -> X25519PrivateKey:
    return X25519PrivateKey.from_private_bytes(bytes.fromhex(hexed))


# Noise_XX_25519_ChaChaPoly_SHA256 of the vectors that the Go implementation publishes.
INIT_STATIC = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"
RESP_STATIC = "0102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f20"
INIT_EPHEMERAL = "202122232425262728292a2b2c2d2e2f303132333435363738393a3b3c3d3e3f"
RESP_EPHEMERAL = "4142434445464748494a4b4c4d4e4f505152535455565758595a5b5c5d5e5f60"
PLAIN = [
    "358072d6365880d1aeea329adf9121383851ed21a28e3b75e965d0d2cd166254",
    "64b101b1d0be5a8704bd078f9895001fc03e8e9f9522f188dd128d9846d48466"
    "3414af878d3e46a2f58911a816d6e8346d4ea17a6f2a0bb4ef4ed56c133cff45"
    "60a34e36ea82109f26cf2e5a5caf992b608d55c747f615e5a3425a7a19eefb8f",
    "87f864c11ba449f46a0a4f4e2eacbb7b0457784f4fca1937f572c93603e9c4d9"
    "7e5ea11b16f3968710b23a3be3202dc1b5e1ce3c963347491e74f5c0768a9b42",
]
AFTER = [
    ("79656c6c6f777375626d6172696e65", "a52ef02ba60e12696d1d6b9ef4245c88fca757b6134ad6e76b56e310a6adf6"),
    ("7375626d6172696e6579656c6c6f77", "2445aa438ebd649281c636cc7269ca82f1d9023d72520943aeabf909cdf521"),
]
HASH = "9542b10ef534ed52859a8be801ecec0a152d0e03d25fda532218079628357622"


def test_the_handshake_is_that_of_the_published_vectors() -> None:
    initiator = Handshake(True, x25519(INIT_STATIC), x25519(INIT_EPHEMERAL))
    responder = Handshake(False, x25519(RESP_STATIC), x25519(RESP_EPHEMERAL))
    for number, expected in enumerate(PLAIN):
        writer, reader = (initiator, responder) if number % 2 == 0 else (responder, initiator)
        message = writer.write()
        assert message.hex() == expected
        assert reader.read(message) == b""
    assert initiator.hash.hex() == responder.hash.hex() == HASH
    ours, theirs = initiator.split(), responder.split()
    (first, first_sealed), (second, second_sealed) = AFTER
    assert ours[0].seal(bytes.fromhex(first)).hex() == first_sealed
    assert theirs[1].open(bytes.fromhex(first_sealed)).hex() == first
    assert theirs[0].seal(bytes.fromhex(second)).hex() == second_sealed
    assert ours[1].open(bytes.fromhex(second_sealed)).hex() == second


def securing(initiator: bool, key: PrivateKey, expected: PeerId | None = None) -> Securing:
    return Securing(
        initiator, key, ["/yamux/1.0.0"], X25519PrivateKey.generate(), X25519PrivateKey.generate(), expected
    )


def secured(size: int = 100_000) -> tuple[Securing, Securing]:
    """Two who have shaken hands, with bytes in pieces of a size."""
    alice, bob = securing(True, ALICE, PeerId.of(BOB.public)), securing(False, BOB)
    while alice.channel is None or bob.channel is None:
        for sender, taker in ((alice, bob), (bob, alice)):
            data = sender.take()
            for at in range(0, len(data), size):
                taker.receive(data[at : at + size])
    return alice, bob


@pytest.mark.parametrize("size", [1, 100_000])
def test_both_sides_know_who_the_other_is_and_what_it_speaks(size: int) -> None:
    alice, bob = secured(size)
    assert (alice.peer, bob.peer) == (PeerId.of(BOB.public), PeerId.of(ALICE.public))
    assert alice.public_key == BOB.public
    assert alice.their_muxers == bob.their_muxers == ["/yamux/1.0.0"]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(min_value=0, max_value=200_000), max_size=4), st.integers(min_value=7, max_value=100_000))
def test_bytes_of_any_size_arrive_whole_and_in_order(sizes: list[int], piece: int) -> None:
    alice, bob = secured()
    assert alice.channel is not None
    assert bob.channel is not None
    sent = [bytes([number % 256]) * size for number, size in enumerate(sizes)]
    sealed = b"".join(map(alice.channel.seal, sent))
    got = b""
    for at in range(0, len(sealed), piece):
        got += b"".join(bob.channel.open(sealed[at : at + piece]))
    assert got == b"".join(sent)


def test_frames_are_as_long_as_they_may_be() -> None:
    alice, _ = secured()
    assert alice.channel is not None
    sealed = alice.channel.seal(bytes(PLAIN_BYTES_MAX + 1))
    assert sealed[:2] == b"\xff\xff"
    assert sealed[2 + 0xFFFF :][:2] == b"\x00\x11"


def test_somebody_else_is_not_taken_for_the_one_that_is_expected() -> None:
    alice, mallory = securing(True, ALICE, PeerId.of(BOB.public)), securing(False, PrivateKey.generate())
    mallory.receive(alice.take())
    with pytest.raises(NoiseError, match="who answers"):
        alice.receive(mallory.take())


class Liar(Securing):
    """Says that it is somebody else."""

    def _payload(self) -> bytes:
        return protobuf.bytes_field(1, BOB.public.encoded) + protobuf.bytes_field(2, bytes(64))


def test_an_identity_that_is_not_proven_is_refused() -> None:
    alice = securing(True, ALICE)
    liar = Liar(False, ALICE, [], X25519PrivateKey.generate(), X25519PrivateKey.generate())
    liar.receive(alice.take())
    with pytest.raises(NoiseError, match="not who it says"):
        alice.receive(liar.take())


def test_a_payload_without_a_key_is_refused() -> None:
    class Mute(Securing):
        def _payload(self) -> bytes:
            return b""

    alice = securing(True, ALICE)
    mute = Mute(False, BOB, [], X25519PrivateKey.generate(), X25519PrivateKey.generate())
    mute.receive(alice.take())
    with pytest.raises(NoiseError, match="does not say who it is"):
        alice.receive(mute.take())


def test_a_key_of_small_order_is_refused() -> None:
    bob = securing(False, BOB)
    with pytest.raises(NoiseError, match="nobody can own"):
        bob.receive(b"\x00\x20" + bytes(32))


def test_a_handshake_message_that_is_too_long_is_refused_before_it_comes() -> None:
    with pytest.raises(NoiseError, match="at most"):
        securing(False, BOB).receive((PAYLOAD_BYTES_MAX + 1).to_bytes(2, "big"))


def test_frames_that_were_changed_repeated_or_left_out_are_refused() -> None:
    alice, bob = secured()
    assert alice.channel is not None
    assert bob.channel is not None
    frames = [alice.channel.seal(b"one"), alice.channel.seal(b"two")]
    with pytest.raises(NoiseError):
        bob.channel.open(frames[1])
    alice, bob = secured()
    assert alice.channel is not None
    assert bob.channel is not None
    frame = alice.channel.seal(b"one")
    assert bob.channel.open(frame) == [b"one"]
    with pytest.raises(NoiseError):
        bob.channel.open(frame)
    with pytest.raises(NoiseError, match="too short"):
        alice.channel.open(b"\x00\x0f")


@given(st.booleans(), st.integers(min_value=0, max_value=400), st.integers(min_value=1, max_value=255), st.binary())
def test_any_change_of_a_handshake_is_refused(initiator: bool, place: int, change: int, more: bytes) -> None:
    alice, bob = securing(True, ALICE), securing(False, BOB)
    first = bytearray(alice.take())
    if initiator:
        bob.receive(bytes(first))
        data, taker = bytearray(bob.take()), alice
    else:
        data, taker = first, bob
    data[place % len(data)] ^= change
    try:
        taker.receive(bytes(data) + more)
        # A changed first message cannot be noticed at once; the second then does not fit.
        alice.receive(bob.take())
    except NoiseError:
        return
    assert alice.channel is None
    assert bob.channel is None


@given(st.lists(st.binary(max_size=100), max_size=20), st.booleans())
def test_any_bytes_end_in_a_named_error_or_nothing(pieces: list[bytes], initiator: bool) -> None:
    end = securing(initiator, ALICE)
    for piece in pieces:
        try:
            assert not end.receive(piece)
        except NoiseError:
            return
