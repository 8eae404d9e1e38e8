"""Fuzzing that follows the code's branches: atheris in a process of its own, for a bounded number of inputs."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fuzzing import fuzz

from posthouse.libp2p.key import PrivateKey
from posthouse.libp2p.peer_id import PeerId
from posthouse.peer import frame, sealed
from posthouse.peer.frame import Direct
from posthouse.peer.orderbook import Order
from posthouse.peer.signature import sign

# Those of the target.
KEY, OTHER = PrivateKey(b"k" * 32), PrivateKey(b"o" * 32)
PEER = str(PeerId.of(OTHER.public))
NOW_S = 1_700_000_000
MESSAGE = Direct(
    "pubkey_exchange", "t1", "o1", PEER, {"pubkey": "02ä\n", "n": [1, None, True]}, NOW_S, "m1", 1, True, NOW_S + 9,
    capabilities=("direct", "gossip"),
)  # fmt: skip


def seeds(name: str) -> list[bytes]:
    """What an honest peer would send."""
    if name == "frame":
        return [frame.encode(MESSAGE), frame.encode(sign(MESSAGE, OTHER)), frame.encode(Direct("sync_request"))]
    if name == "ack":
        return [frame.encode(frame.acknowledge(MESSAGE, PEER, yes, "no", NOW_S, "a"))[4:] for yes in (True, False)]
    if name == "sealed":
        return [sealed.seal(MESSAGE, PeerId.of(KEY.public)), sealed.seal(MESSAGE, PeerId.of(OTHER.public))]
    order = Order("o1", PEER, "BTC", 100, "LTC", 7, ("htlc",), NOW_S - 9, NOW_S + 9)
    announced = Direct("order_announce", "", "o1", PEER, order.payload(True))
    return [frame.dumps(frame.fields(m)) for m in (announced, announced._replace(type="order_cancel"), MESSAGE)]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("name", "runs"), [("frame", 100_000), ("ack", 60_000), ("public", 60_000), ("sealed", 40_000)]
)
def test_nothing_escapes_what_atheris_finds(name: str, runs: int, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for number, data in enumerate(seeds(name)):
        (corpus / str(number)).write_bytes(data)
    fuzz("tests.peer.fuzz_target", name, runs, corpus)
