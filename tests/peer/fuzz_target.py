"""What atheris fuzzes of the peer, as a program: ``python -m tests.peer.fuzz_target NAME -runs=N [corpus …]``.

NAME is ``frame`` (a message on a stream, judged by a session), ``ack`` (the answer to one of ours), ``public`` (a
message on the market's topic, judged by the order book) or ``sealed`` (an envelope by gossip). Whatever escapes ends
the process with a trace.
"""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports(include=["posthouse.peer"]):
    from posthouse.errors import BadFrame
    from posthouse.libp2p.key import PrivateKey
    from posthouse.libp2p.peer_id import PeerId
    from posthouse.peer import frame, sealed
    from posthouse.peer.frame import Direct
    from posthouse.peer.orderbook import Orderbook
    from posthouse.peer.session import Early, Old, Refused, Session, Take

KEY, OTHER = PrivateKey(b"k" * 32), PrivateKey(b"o" * 32)
PEER = str(PeerId.of(OTHER.public))
NOW_S = 1_700_000_000


def of_frame(data: bytes) -> None:
    try:
        size = frame.body_bytes(data[:4].ljust(4, b"\0"))
        assert 0 < size <= frame.BODY_BYTES_MAX
    except BadFrame:
        pass
    try:
        message = frame.decode(data[4:])
    except BadFrame:
        return
    # What was taken can be written, and is the same when it is read again.
    again = frame.encode(message)
    assert frame.decode(again[4:]) == message
    judged = Session(KEY).judge(PEER, message, NOW_S * 1_000_000)
    assert isinstance(judged, Take | Old | Early | Refused)


def of_ack(data: bytes) -> None:
    session = Session(KEY)
    try:
        session.verdict(PEER, Direct("abort", "t", message_id="m1"), frame.decode(data))
    except BadFrame:
        pass


def of_public(data: bytes) -> None:
    book = Orderbook()
    try:
        message = frame.decode(data)
    except BadFrame:
        return
    for _ in range(2):
        book.apply(PEER, message, NOW_S)
    assert len(book.open(NOW_S)) <= 1


def of_sealed(data: bytes) -> None:
    try:
        envelope = sealed.parse(data)
        sealed.unseal(envelope, KEY)
    except BadFrame:
        pass


TARGETS = {"frame": of_frame, "ack": of_ack, "public": of_public, "sealed": of_sealed}

if __name__ == "__main__":
    target = TARGETS[sys.argv.pop(1)]
    atheris.Setup(sys.argv, target)
    atheris.Fuzz()
