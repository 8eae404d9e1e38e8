"""What atheris fuzzes, as a program: ``python -m tests.libp2p.fuzz_target NAME -runs=N [corpus …]``.

NAME is ``multistream``, ``noise`` (the handshake and the frames behind it), ``yamux``, ``upgrade`` (all three, one on
the other), ``gossip`` or ``values`` (keys, addresses, identify). Whatever escapes ends the process with a trace.
"""

from __future__ import annotations

import random
import sys

import atheris

with atheris.instrument_imports(include=["posthouse.libp2p"]):
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    from posthouse.libp2p import identify, mdns, multistream, noise, yamux
    from posthouse.libp2p.errors import BadInput, GossipError, LimitReached, NotSupported, StreamReset, WireError
    from posthouse.libp2p.gossip.params import Params
    from posthouse.libp2p.gossip.router import Router
    from posthouse.libp2p.key import PrivateKey, PublicKey
    from posthouse.libp2p.multiaddr import Multiaddr
    from posthouse.libp2p.peer_id import PeerId
    from posthouse.libp2p.settings import Settings
    from posthouse.libp2p.upgrade import Upgrade

KEY, OTHER = PrivateKey(b"k" * 32), PrivateKey(b"o" * 32)
PEER = PeerId.of(OTHER.public)
BOUNDS = yamux.Bounds(streams_in_max=8, unread_bytes_max=1 << 20)
STATIC, EPHEMERAL = X25519PrivateKey.from_private_bytes(b"s" * 32), X25519PrivateKey.from_private_bytes(b"e" * 32)
SETTINGS, PARAMS = Settings(), Params()


def pieces(data: bytes) -> list[bytes]:
    """Some of it at a time, as its first byte says."""
    size = data[0] + 1 if data else 1
    return [data[at : at + size] for at in range(1, len(data), size)]


def of_multistream(data: bytes) -> None:
    for end in (multistream.Dialler(["/x", "/y"]), multistream.Listener("/x".__eq__)):
        try:
            for piece in pieces(data):
                if end.receive(piece):
                    break
                end.take()
                assert len(end.rest) <= multistream.LINE_BYTES_MAX + 2
        except (WireError, NotSupported):
            pass


def of_noise(data: bytes) -> None:
    for initiator in (True, False):
        end = noise.Securing(initiator, KEY, ["/yamux/1.0.0"], STATIC, EPHEMERAL)
        try:
            for piece in pieces(data):
                assert not end.receive(piece), "a stranger got through"
                assert len(end._buffer) <= noise.PAYLOAD_BYTES_MAX + 2
        except WireError:
            pass
    channel = noise.Channel(noise._Cipher(bytes(32)), noise._Cipher(bytes(32)), b"")
    try:
        for piece in pieces(data):
            assert channel.open(piece) == []
    except WireError:
        pass


def of_yamux(data: bytes) -> None:
    session = yamux.Session(False, BOUNDS)
    ours = session.open()
    said = 0
    try:
        for number, piece in enumerate(pieces(data)):
            for flow in session.receive(piece):
                if number % 3 == 0:
                    session.read(flow, 10)
                elif number % 7 == 0:
                    session.reset(flow)
            session.opened.clear()
            said += len(session.take())
            assert len(session.flows) <= 9
            assert session.unread_bytes == sum(flow.unread_bytes for flow in session.flows.values())
            if not ours.ended_out:
                session.write(ours, b"x")
    except (WireError, StreamReset):
        pass
    assert said <= 4_096 + 4 * len(data) + 13 * len(data)
    session.end()
    assert not session.flows


def of_upgrade(data: bytes) -> None:
    for dialler in (True, False):
        end = Upgrade(dialler, KEY, STATIC, EPHEMERAL)
        try:
            for piece in pieces(data):
                assert not end.receive(piece), "a stranger got through"
                end.take()
        except (WireError, NotSupported):
            pass


def of_gossip(data: bytes) -> None:
    router = Router(KEY, PARAMS, random.Random(1), 1)
    router.subscribe("t", 1.0)
    router.came(PEER, True, False)
    for number, piece in enumerate(pieces(data)):
        try:
            router.receive(PEER, piece, 1.0 + number)
        except GossipError:
            pass
    router.heartbeat(1_000.0)
    router.take()
    # Signatures cannot be guessed: at most what the corpus holds comes through, once.
    assert {message.topic for message in router.delivered} <= {"t"}
    assert len({message.id for message in router.delivered}) == len(router.delivered) <= 1


def of_values(data: bytes) -> None:
    for read in (PublicKey.from_bytes, PrivateKey.from_bytes, PeerId, Multiaddr.from_bytes):
        try:
            read(data)
        except BadInput:
            pass
    text = data.decode("latin-1")
    for parse in (PeerId.parse, Multiaddr.parse):
        try:
            assert parse(str(parse(text))) == parse(text)
        except BadInput:
            pass
    try:
        identify.decode(data, SETTINGS)
    except (WireError, LimitReached):
        pass
    assert len(mdns.announced(data)) <= mdns.ADDRESSES_MAX


TARGETS = {
    "multistream": of_multistream,
    "noise": of_noise,
    "yamux": of_yamux,
    "upgrade": of_upgrade,
    "gossip": of_gossip,
    "values": of_values,
}

if __name__ == "__main__":
    target = TARGETS[sys.argv.pop(1)]
    atheris.Setup(sys.argv, target)
    atheris.Fuzz()
