"""Fuzzing that follows the code's branches: atheris in a process of its own, for a bounded number of inputs."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.fuzzing import fuzz

from posthouse.libp2p import identify, multistream, noise, yamux
from posthouse.libp2p.gossip import message as gossip
from posthouse.libp2p.gossip.params import Params
from posthouse.libp2p.key import PrivateKey
from posthouse.libp2p.multiaddr import Multiaddr

KEY = PrivateKey(b"a" * 32)


def seeds(name: str) -> list[bytes]:
    """What an honest peer would send."""
    hello = multistream.line(multistream.GREETING)
    if name in ("multistream", "upgrade", "noise"):
        first = bytes((0, 32)) + random.Random(1).randbytes(32)
        return [hello + multistream.line("/x"), hello + multistream.line(noise.PROTOCOL) + first, first]
    if name == "yamux":
        session = yamux.Session(True, yamux.Bounds())
        flow = session.open()
        session.write(flow, b"hello")
        session.ping()
        session.finish(flow)
        return [session.take()]
    if name == "gossip":
        frame = gossip.Frame(
            subscriptions=[(True, "t")],
            messages=[gossip.write("t", b"x", 1, KEY).encoded],
            ihave=[("t", [b"id"])],
            iwant=[b"id"],
            graft=["t"],
            prune=[("t", 60.0)],
        )
        return list(gossip.encode(frame, Params()))
    address = Multiaddr.parse("/ip4/127.0.0.1/tcp/4001")
    return [
        KEY.to_bytes(),
        KEY.public.encoded,
        address.to_bytes(),
        str(address).encode(),
        identify.encode(KEY.public, "a", ["/x"], [address], address),
    ]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("name", "runs"),
    [
        ("multistream", 150_000),
        ("noise", 60_000),
        ("yamux", 200_000),
        ("upgrade", 50_000),
        ("gossip", 100_000),
        ("values", 150_000),
    ],
)
def test_nothing_escapes_what_atheris_finds(name: str, runs: int, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for number, data in enumerate(seeds(name)):
        for size in (1, 60, 255):
            (corpus / f"{number}-{size}").write_bytes(bytes((size,)) + data)
    fuzz("tests.libp2p.fuzz_target", name, runs, corpus)
