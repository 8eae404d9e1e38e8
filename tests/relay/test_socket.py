"""Frames on a real socket: what is read, what is put together, and what ends the connection, with code and reason."""

from __future__ import annotations

import os
import struct

import pytest
from tests.relay.conftest import MakeRelay
from tests.relay.harness import BINARY, CLOSE, CONTINUATION, PING, PONG, TEXT, Agent, Relay, Socket, frame

from posthouse.errors import StoreFailed
from posthouse.relay.connection import FRAGMENTS_MAX
from posthouse.relay.inflow import Inflow
from posthouse.wire.envelope import FRAME_BYTES_MAX, MessageType


def test_an_envelope_goes_from_agent_to_agent_byte_for_byte(relay: Relay) -> None:
    alice, bob = relay.online("alice", "bob")
    for size in (1, 100, 200, 60_000):
        sent = alice.message(bob, os.urandom(size))
        assert bob.receive_bytes() == sent.SerializeToString()


def test_an_envelope_in_a_text_frame_is_routed_and_comes_out_binary(relay: Relay) -> None:
    alice, bob = relay.online("alice", "bob")
    sent = alice.envelope(bob).SerializeToString()
    alice.socket.send(TEXT, sent)
    assert bob.receive_bytes() == sent


@pytest.mark.parametrize("opcode", [TEXT, BINARY])
def test_a_message_in_fragments_is_put_together_with_control_frames_between(relay: Relay, opcode: int) -> None:
    alice, bob = relay.online("alice", "bob")
    sent = alice.message(bob, b"x" * 1_000).SerializeToString()
    assert bob.receive_bytes() == sent
    again = alice.envelope(bob).SerializeToString()
    alice.socket.send(opcode, again[:10], fin=False)
    alice.socket.send(CONTINUATION, b"", fin=False)
    alice.socket.send(PING, b"still here")
    alice.socket.send(CONTINUATION, again[10:], fin=True)
    assert bob.receive_bytes() == again
    alice.pong(b"another")
    assert b"still here" in alice.pongs


def test_bytes_that_come_one_at_a_time_make_the_same_frames(relay: Relay) -> None:
    alice, bob = relay.online("alice", "bob")
    sent = alice.envelope(bob).SerializeToString()
    for byte in frame(BINARY, sent):
        alice.socket.sock.sendall(bytes([byte]))
    assert bob.receive_bytes() == sent


def ends(agent: Agent, code: int, reason: str) -> None:
    assert agent.closed() == (code, reason)
    agent.relay.until(lambda: agent.address not in agent.relay.house.online)


@pytest.mark.parametrize("bit", [1, 2, 4])
def test_a_reserved_bit_ends_the_connection_since_nothing_was_negotiated(relay: Relay, bit: int) -> None:
    (alice,) = relay.online("alice")
    alice.socket.send(BINARY, alice.envelope(alice).SerializeToString(), rsv=bit)
    ends(alice, 1002, "reserved bits")


def test_an_unmasked_frame_ends_the_connection(relay: Relay) -> None:
    (alice,) = relay.online("alice")
    alice.socket.send(BINARY, b"x", masked=False)
    ends(alice, 1002, "protocol error")


def test_an_unknown_opcode_ends_the_connection_and_what_came_before_it_is_kept(relay: Relay) -> None:
    alice, bob = relay.online("alice", "bob")
    sent = alice.envelope(bob).SerializeToString()
    alice.socket.sock.sendall(frame(BINARY, sent) + frame(3, b"x"))
    ends(alice, 1002, "protocol error")
    assert bob.receive_bytes() == sent


def test_a_continuation_of_nothing_ends_the_connection(relay: Relay) -> None:
    (alice,) = relay.online("alice")
    alice.socket.send(CONTINUATION, b"x")
    ends(alice, 1002, "unexpected continuation")


def test_a_message_inside_a_message_ends_the_connection(relay: Relay) -> None:
    (alice,) = relay.online("alice")
    alice.socket.send(BINARY, b"x", fin=False)
    alice.socket.send(BINARY, b"x")
    ends(alice, 1002, "unfinished message")


def test_endless_fragments_end_the_connection(relay: Relay) -> None:
    (alice,) = relay.online("alice")
    alice.socket.sock.sendall(frame(BINARY, b"", fin=False) + frame(CONTINUATION, b"", fin=False) * FRAGMENTS_MAX)
    ends(alice, 1002, "too many fragments")


@pytest.mark.parametrize("payload", [b"x", struct.pack(">H", 999), struct.pack(">H", 1000) + b"\xff"])
def test_a_malformed_close_is_answered_with_a_close(relay: Relay, payload: bytes) -> None:
    (alice,) = relay.online("alice")
    alice.socket.send(CLOSE, payload)
    code, _ = alice.closed()
    assert code in (1002, 1007)


@pytest.mark.parametrize("code", [1000, 1001, 3000, 4999])
def test_a_close_is_answered_with_the_same_code(relay: Relay, code: int) -> None:
    (alice,) = relay.online("alice")
    alice.socket.send(CLOSE, struct.pack(">H", code) + b"bye")
    assert alice.closed() == (code, "")
    relay.until(lambda: [event.reason for event in relay.events("disconnected")] == ["closed"])


def test_a_cut_connection_is_noticed_and_noted(relay: Relay) -> None:
    (alice,) = relay.online("alice")
    alice.cut()
    relay.until(lambda: [event.reason for event in relay.events("disconnected")] == ["cut"])


def test_a_frame_over_the_limit_is_refused_before_it_is_read(relay: Relay) -> None:
    (alice,) = relay.online("alice")
    # Announced, never sent.
    alice.socket.sock.sendall(bytes([0x82, 0xFF]) + struct.pack(">Q", 1 << 32) + bytes(4))
    ends(alice, 1009, "envelope exceeds 65536 bytes")
    relay.until(lambda: relay.refusals() == ["oversize"])


def test_a_sender_that_goes_on_sending_still_reads_why_it_was_closed(relay: Relay) -> None:
    alice, bob = relay.online("alice", "bob")
    before = alice.envelope(bob).SerializeToString()
    # Far more than fits into the socket's buffers: closing at once would answer it with a reset.
    alice.socket.sock.sendall(frame(BINARY, before) + frame(BINARY, bytes(2_000_000)))
    ends(alice, 1009, "envelope exceeds 65536 bytes")
    assert bob.receive_bytes() == before


def test_fragments_over_the_limit_together_are_refused(relay: Relay) -> None:
    (alice,) = relay.online("alice")
    part = bytes(FRAME_BYTES_MAX // 2)
    alice.socket.send(BINARY, part, fin=False)
    alice.socket.send(CONTINUATION, part, fin=False)
    alice.socket.send(CONTINUATION, b"x")
    code, _ = alice.closed()
    assert code == 1009


def test_a_stranger_has_a_smaller_limit(relay: Relay) -> None:
    stranger = relay.agent("stranger")
    stranger.open()
    stranger.socket.sock.sendall(bytes([0x82, 0xFF]) + struct.pack(">Q", 1 << 32) + bytes(4))
    assert stranger.closed() == (1009, "frame exceeds 32768 bytes before authentication")


def test_junk_that_is_no_envelope_is_ignored_and_the_connection_stays(relay: Relay) -> None:
    alice, bob = relay.online("alice", "bob")
    for junk in (b"", b"\xff" * 50, os.urandom(300)):
        alice.send(junk)
    sent = alice.message(bob)
    assert bob.receive() == sent


def test_an_agent_that_left_finds_what_came_meanwhile(relay: Relay) -> None:
    alice, bob = relay.online("alice", "bob")
    bob.leave()
    sent = [alice.message(bob, str(n).encode()) for n in range(120)]
    assert alice.settled() == []
    bob.connect()
    assert bob.expect(MessageType.QUEUE_STATUS).queue_status.pending_count == 120
    came = bob.receive_all(120)
    assert came == sent
    for message in came:
        bob.confirm(message)
    assert bob.settled() == []
    confirms = alice.receive_all(120)
    assert all(c.delivery_confirm.was_stored for c in confirms)
    assert [c.delivery_confirm.message_id for c in confirms] == [m.message_id for m in sent]


def test_a_reader_that_stalls_holds_up_nobody_and_loses_nothing(make_relay: MakeRelay) -> None:
    relay = make_relay()
    alice, carol = relay.online("alice", "carol")
    bob = relay.agent("bob", receive_bytes=4_096).connect().live()
    sent = [alice.message(bob, bytes(20_000)).message_id for _ in range(400)]
    # Bob reads nothing now. Others are served all the same, and bob's part of the memory is bounded.
    assert carol.settled() == []
    alice.settled()
    line = bob.session.line
    assert relay.on_loop(line.buffered) < 4_000_000
    assert [bob.expect(MessageType.MESSAGE).message_id for _ in range(400)] == sent


def test_a_flood_of_pings_that_nobody_reads_is_ended(relay: Relay) -> None:
    (alice,) = relay.online("alice")
    alice.socket.sock.sendall(frame(PING, b"x" * 125) * 2_000)
    assert alice.closed() == (1008, "too many pings")


def test_pings_are_answered_with_their_payload(relay: Relay) -> None:
    (alice,) = relay.online("alice")
    for payload in (b"", b"x", b"y" * 125):
        alice.pong(payload)


def test_data_in_the_same_packet_as_the_upgrade_is_not_lost(relay: Relay) -> None:
    early = frame(PING, b"early") + frame(PING, b"e" * 125) * 20
    client = Socket(relay.port, early=early)
    assert client.receive()[0] == BINARY, "the challenge"
    assert client.receive() == (PONG, b"early")


def test_a_session_that_fails_ends_its_connection_and_no_other(
    relay: Relay, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    alice, bob = relay.online("alice", "bob")

    def fail(*given: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Inflow, "frame", fail)
    alice.message(bob)
    assert alice.closed() == (1011, "internal error")
    assert "a session failed" in caplog.text
    monkeypatch.undo()
    assert bob.settled() == []


def test_a_store_that_fails_ends_the_connections_that_rely_on_it(relay: Relay, monkeypatch: pytest.MonkeyPatch) -> None:
    alice, bob = relay.online("alice", "bob")

    def fail(*given: object) -> None:
        raise StoreFailed("the disk is gone")

    monkeypatch.setattr(type(relay.engine.store), "apply", fail)
    alice.message(bob)
    assert alice.closed() == (1013, "store unavailable")
    assert relay.http("/health")[0] == 503
    relay.stop()
    assert bob.closed()[0] in (1001, 1013)
