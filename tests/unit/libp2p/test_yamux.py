"""yamux: streams, windows, bounds; and frames that break the rules."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posthouse.libp2p import yamux
from posthouse.libp2p.errors import ConnectionLost, LimitReached, StreamReset, YamuxError
from posthouse.libp2p.yamux import (
    ACK,
    DATA,
    FIN,
    GO_AWAY,
    PING,
    RST,
    SYN,
    WINDOW,
    WINDOW_BYTES,
    Bounds,
    Flow,
    Memory,
    Session,
)

BOUNDS = Bounds(streams_in_max=4, streams_out_max=4, unread_bytes_max=4 * WINDOW_BYTES, discard_bytes_max=1_000)


def frame(kind: int, flags: int, id: int, size: int) -> bytes:
    return bytes((0, kind)) + flags.to_bytes(2, "big") + id.to_bytes(4, "big") + size.to_bytes(4, "big")


class Pair:
    """Two sessions, and a way to carry what they send."""

    def __init__(self, bounds: Bounds = BOUNDS) -> None:
        self.client, self.server = Session(True, bounds), Session(False, bounds)

    def carry(self, size: int = 1 << 30) -> None:
        """Until neither has anything to say."""
        while self.client.outgoing or self.server.outgoing:
            for sender, taker in ((self.client, self.server), (self.server, self.client)):
                data = sender.take()
                for at in range(0, len(data), size):
                    taker.receive(data[at : at + size])

    def open(self) -> tuple[Flow, Flow]:
        ours = self.client.open()
        self.carry()
        (theirs,) = self.server.opened
        self.server.opened.clear()
        return ours, theirs


@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_bytes_go_both_ways_and_streams_end_when_both_have_finished(size: int) -> None:
    pair = Pair()
    ours, theirs = pair.open()
    assert pair.client.write(ours, b"hello") == 5
    pair.client.finish(ours)
    pair.carry(size)
    assert pair.server.read(theirs, 100) == b"hello"
    assert theirs.ended_in
    assert not theirs.is_gone
    assert pair.server.write(theirs, b"bye") == 3
    pair.server.finish(theirs)
    pair.carry(size)
    assert pair.client.read(ours, 2) == b"by"
    assert pair.client.read(ours, 2) == b"e"
    assert ours.is_gone
    assert theirs.is_gone
    assert not pair.client.flows
    assert not pair.server.flows


def test_the_frames_are_those_of_the_protocol() -> None:
    session = Session(True, Bounds())
    flow = session.open()
    session.write(flow, b"x")
    session.finish(flow)
    session.go_away()
    assert session.take() == (
        frame(WINDOW, SYN, 1, 0) + frame(DATA, 0, 1, 1) + b"x" + frame(WINDOW, FIN, 1, 0) + frame(GO_AWAY, 0, 0, 0)
    )
    assert Session(False, Bounds()).open().id == 2


def test_nobody_sends_more_than_the_window_until_it_is_read() -> None:
    pair = Pair()
    ours, theirs = pair.open()
    data = random.Random(1).randbytes(WINDOW_BYTES * 3)
    sent = pair.client.write(ours, data)
    assert sent == WINDOW_BYTES
    assert pair.client.write(ours, b"more") == 0
    pair.carry()
    assert theirs.unread_bytes == WINDOW_BYTES
    got = b""
    while len(got) < len(data):
        got += pair.server.read(theirs, 50_000)
        pair.carry()
        sent += pair.client.write(ours, data[sent:])
        pair.carry()
        assert theirs.unread_bytes <= WINDOW_BYTES
    assert got == data
    assert pair.server.unread_bytes == 0


def test_a_larger_window_is_told_when_the_stream_opens() -> None:
    pair = Pair(Bounds(window_bytes=1 << 20))
    ours, theirs = pair.open()
    assert ours.window_out == theirs.window_out == 1 << 20
    assert pair.server.write(theirs, bytes(1 << 20)) == 1 << 20
    pair.carry()
    assert ours.unread_bytes == 1 << 20


def test_a_frame_beyond_the_window_ends_the_connection_before_its_body_comes() -> None:
    pair = Pair()
    ours, _ = pair.open()
    with pytest.raises(YamuxError, match="4294967295 bytes where"):
        pair.server.receive(frame(DATA, 0, ours.id, 0xFFFF_FFFF))


def test_a_window_that_overflows_ends_the_connection() -> None:
    pair = Pair()
    ours, _ = pair.open()
    pair.server.receive(frame(WINDOW, 0, ours.id, 0xFFFF_FFFF - WINDOW_BYTES))
    with pytest.raises(YamuxError, match="window"):
        pair.server.receive(frame(WINDOW, 0, ours.id, 1))


def test_streams_beyond_the_bound_are_reset_and_others_live() -> None:
    server = Session(False, BOUNDS)
    for number in range(6):
        server.receive(frame(WINDOW, SYN, 2 * number + 1, 0))
    assert len(server.opened) == len(server.flows) == 4
    assert server.refused == 2
    assert server.take().endswith(frame(WINDOW, RST, 9, 0) + frame(WINDOW, RST, 11, 0))
    server.reset(server.opened[0])
    server.receive(frame(WINDOW, SYN, 21, 0))
    assert len(server.opened) == 5


def test_our_own_streams_are_bounded_too() -> None:
    client = Session(True, BOUNDS)
    flows = [client.open() for _ in range(4)]
    with pytest.raises(LimitReached):
        client.open()
    client.reset(flows[0])
    client.open()


def test_what_nobody_reads_is_bounded_over_all_streams() -> None:
    bounds = Bounds(unread_bytes_max=WINDOW_BYTES)
    pair = Pair(bounds)
    one, there = pair.open()
    two, other = pair.open()
    pair.client.write(one, bytes(WINDOW_BYTES))
    pair.client.write(two, b"too much")
    pair.carry()
    assert not there.reset
    assert two.reset
    assert other.reset
    assert pair.server.unread_bytes == WINDOW_BYTES
    pair.server.read(there, WINDOW_BYTES)
    assert pair.server.unread_bytes == 0


def test_what_nobody_reads_is_bounded_over_all_connections() -> None:
    memory = Memory(3_000)
    servers = [Session(False, BOUNDS, memory) for _ in range(2)]
    for server in servers:
        server.receive(frame(DATA, SYN, 1, 1_500) + bytes(1_500))
    assert memory.used == 3_000
    servers[0].receive(frame(DATA, SYN, 3, 1) + b"x")
    assert servers[0].opened[1].reset
    assert not servers[0].opened[0].reset
    servers[1].read(servers[1].opened[0], 500)
    servers[0].receive(frame(DATA, SYN, 5, 1) + b"x")
    assert not servers[0].opened[2].reset
    for server in servers:
        server.end()
    assert memory.used == 0


def test_what_is_read_in_any_pieces_or_given_back_comes_in_order() -> None:
    pair = Pair()
    ours, theirs = pair.open()
    data = random.Random(2).randbytes(1_000)
    for at in range(0, 1_000, 100):
        pair.client.write(ours, data[at : at + 100])
        pair.carry()
    got, rng = b"", random.Random(3)
    while len(got) < 1_000:
        part = pair.server.read(theirs, rng.choice((1, 7, 99, 100, 101, 350)))
        keep = rng.randrange(len(part) + 1)
        pair.server.give_back(theirs, part[keep:])
        got += part[:keep]
        assert theirs.unread_bytes == pair.server.unread_bytes == 1_000 - len(got)
    assert got == data
    assert theirs.credit == 1_000


def test_a_reset_is_seen_by_both_and_frees_what_was_unread() -> None:
    pair = Pair()
    ours, theirs = pair.open()
    pair.client.write(ours, b"unread")
    pair.carry()
    pair.client.reset(ours)
    pair.carry()
    assert theirs.reset
    assert pair.server.unread_bytes == 0
    assert pair.server.read(theirs, 10) == b""
    with pytest.raises(StreamReset):
        pair.server.write(theirs, b"x")
    # Late frames for a stream that is gone are dropped.
    pair.client.receive(frame(DATA, 0, ours.id, 5) + b"later" + frame(WINDOW, FIN, ours.id, 9))
    with pytest.raises(YamuxError, match="not there"):
        pair.client.receive(frame(DATA, 0, ours.id, 1_001))


def test_what_comes_for_a_stream_that_is_not_read_any_more_is_dropped_and_not_invited() -> None:
    pair = Pair()
    ours, theirs = pair.open()
    pair.client.stop_reading(ours)
    pair.server.write(theirs, bytes(WINDOW_BYTES))
    pair.carry()
    assert ours.unread_bytes == pair.client.unread_bytes == 0
    assert pair.server.write(theirs, b"x") == 0


def test_pings_are_answered_and_only_the_right_answer_counts() -> None:
    pair = Pair()
    number = pair.client.ping()
    pair.client.receive(frame(PING, ACK, 0, 77))
    assert pair.client.pong == 0
    pair.carry()
    assert pair.client.pong == number


def test_who_goes_away_takes_no_new_streams_and_finishes_the_old() -> None:
    pair = Pair()
    ours, theirs = pair.open()
    pair.server.go_away()
    pair.carry()
    assert pair.client.gone_away == yamux.NORMAL
    with pytest.raises(ConnectionLost):
        pair.client.open()
    with pytest.raises(ConnectionLost):
        pair.server.open()
    pair.client.write(ours, b"still")
    pair.carry()
    assert pair.server.read(theirs, 10) == b"still"


def test_when_the_connection_ends_what_was_finished_can_still_be_read() -> None:
    pair = Pair()
    ours, theirs = pair.open()
    other, there = pair.open()
    pair.client.write(ours, b"whole")
    pair.client.finish(ours)
    pair.client.write(other, b"half")
    pair.carry()
    assert set(pair.server.end()) == {theirs, there}
    assert pair.server.read(theirs, 10) == b"whole"
    assert pair.server.read(there, 10) == b""


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\x01" + bytes(11), "version"),
        (frame(9, 0, 0, 0), "kind 9"),
        (frame(WINDOW, SYN, 0, 0), "cannot open"),
        (frame(WINDOW, SYN, 2, 0), "cannot open"),
        (frame(WINDOW, SYN, 1, 0) * 2, "twice"),
        (frame(WINDOW, SYN | FIN, 1, 0) + frame(DATA, 0, 1, 1), "behind the end"),
        (frame(DATA, SYN, 1, WINDOW_BYTES + 1), "bytes where"),
    ],
)
def test_frames_that_break_the_rules_end_the_connection(data: bytes, why: str) -> None:
    with pytest.raises(YamuxError, match=why):
        Session(False, BOUNDS).receive(data)


frames = st.builds(
    frame,
    st.integers(min_value=0, max_value=4),
    st.integers(min_value=0, max_value=15),
    st.integers(min_value=0, max_value=14),
    st.sampled_from([0, 1, 5, 900, WINDOW_BYTES, WINDOW_BYTES + 1, 0xFFFF_FFFF]),
)


@settings(max_examples=500, deadline=None)
@given(st.lists(frames | st.binary(max_size=40), max_size=60), st.integers())
def test_any_frames_keep_the_bounds_or_end_in_a_named_error(pieces: list[bytes], seed: int) -> None:
    rng = random.Random(seed)
    server = Session(False, BOUNDS)
    said, seen = 0, list[Flow]()
    for piece in pieces:
        try:
            server.receive(piece)
        except YamuxError:
            break
        for flow in server.opened:
            rng.choice([server.finish, server.reset, server.stop_reading, lambda flow: server.read(flow, 3)])(flow)
        # What came on a stream that has ended can still be read, and counts until then.
        seen += server.opened
        server.opened.clear()
        own = sum(flow.ours for flow in server.flows.values())
        if rng.random() < 0.2 and own < BOUNDS.streams_out_max and server.gone_away is None:
            seen.append(server.open())
            server.write(seen[-1], b"hello")
        said += len(server.take())
        assert sum(not flow.ours for flow in server.flows.values()) <= 4
        assert server.unread_bytes == sum(flow.unread_bytes for flow in seen)
    assert said <= 40 * sum(map(len, pieces)) + 2_000
    server.end()
    assert not server.flows


@settings(max_examples=50, deadline=None)
@given(st.integers())
def test_any_traffic_between_two_arrives_whole(seed: int) -> None:
    rng = random.Random(seed)
    pair = Pair()
    ends = [(flow, pair.open()) for flow in range(3)]
    links = [(pair.client, ours, pair.server, theirs) for _, (ours, theirs) in ends]
    links += [(pair.server, theirs, pair.client, ours) for _, (ours, theirs) in ends]
    sent = [rng.randbytes(rng.randrange(600_000)) for _ in links]
    done, got = [0] * len(links), [bytearray() for _ in links]
    for _ in range(2_000):
        if all(len(got[n]) == len(sent[n]) for n in range(len(links))):
            break
        n = rng.randrange(len(links))
        writer, out, reader, into = links[n]
        done[n] += writer.write(out, sent[n][done[n] : done[n] + rng.randrange(1, 300_000)])
        if rng.random() < 0.7:
            pair.carry(rng.choice([1 << 12, 1 << 30]))
        got[n] += reader.read(into, rng.randrange(1, 300_000))
    assert [bytes(each) for each in got] == sent
