"""Attacks and bad input, over real sockets: each is refused with a stable word, and others notice nothing.

docs/correctness.md has the whole list; where another file of this folder has the test, it is named there.
"""

from __future__ import annotations

import logging
import os
import socket
from pathlib import Path

import pytest
from tests.relay.conftest import MakeRelay
from tests.relay.harness import BINARY, DEADLINE_S, HOST, PING, PONG, Agent, Relay, Socket, frame
from tests.relay.test_store_and_forward import announced, depth, nothing_came, stall
from tests.unit.cli.house import House

from posthouse.relay import server
from posthouse.wire.envelope import ENVELOPE_BYTES_MAX, MessageType, id_text

BUDGET = 20


def others_are_served(relay: Relay) -> None:
    """Somebody else sends and receives."""
    carol, dave = relay.online("carol", "dave")
    sent = carol.message(dave)
    assert dave.receive() == sent
    carol.leave()
    dave.leave()


# Before authentication


def test_connections_that_say_nothing_are_bounded_and_agents_that_are_in_notice_nothing(make_relay: MakeRelay) -> None:
    relay = make_relay({"relay.unauthenticated_max": str(BUDGET)})
    alice, bob = relay.online("alice", "bob")
    silent = [socket.create_connection(("127.0.0.1", relay.port), timeout=DEADLINE_S) for _ in range(5 * BUDGET)]
    relay.until(lambda: len(relay.server._fronts) == BUDGET)
    # Those past the budget are cut without a word.
    cut = 0
    for client in silent:
        client.setblocking(False)
        try:
            cut += client.recv(1) == b""
        except BlockingIOError:
            pass
        except ConnectionResetError:
            cut += 1
    assert cut <= 4 * BUDGET
    sent = alice.message(bob)
    assert bob.receive() == sent
    for client in silent:
        client.close()
    relay.until(lambda: not relay.server._fronts)
    others_are_served(relay)


def test_upgrades_that_never_authenticate_are_bounded_and_told(make_relay: MakeRelay) -> None:
    relay = make_relay({"relay.unauthenticated_max": str(BUDGET)})
    alice, bob = relay.online("alice", "bob")
    strangers = [Socket(relay.port) for _ in range(BUDGET)]
    assert [s.status for s in strangers] == [101] * BUDGET
    assert [Socket(relay.port).status for _ in range(5)] == [503] * 5
    sent = alice.message(bob)
    assert bob.receive() == sent
    for stranger in strangers:
        stranger.close()
    relay.until(lambda: relay.house.unauthenticated == 0)
    others_are_served(relay)


def test_a_malformed_upgrade_does_not_hold_its_socket(make_relay: MakeRelay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "LINGER_S", 0.2)
    monkeypatch.setattr(server, "TICK_S", 0.05)
    relay = make_relay()
    held = [Socket(relay.port, headers={"Sec-WebSocket-Key": "short"}) for _ in range(BUDGET)]
    assert [client.status for client in held] == [400] * BUDGET
    # They stay open on their side, and say nothing more.
    relay.until(lambda: not relay.server._fronts and not relay.server._lingering, "the sockets are held")
    others_are_served(relay)


def test_a_slow_loris_is_answered_408_and_its_place_is_free(
    make_relay: MakeRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "LINGER_S", DEADLINE_S)
    monkeypatch.setattr(server, "TICK_S", 0.05)
    relay = make_relay({"relay.unauthenticated_max": str(BUDGET)})
    with monkeypatch.context() as hurry:
        hurry.setattr(server, "REQUEST_S", 0.3)
        slow = [socket.create_connection(("127.0.0.1", relay.port), timeout=DEADLINE_S) for _ in range(BUDGET)]
        relay.until(lambda: len(relay.server._fronts) + len(relay.server._lingering) == BUDGET)
    for client in slow:
        client.sendall(b"GET /ws HTTP/1.1\r\nX: ")
    for client in slow:
        # A byte now and then does not lengthen the time.
        client.sendall(b"y")
        assert client.recv(100).startswith(b"HTTP/1.1 408 ")
    others_are_served(relay)
    for client in slow:
        client.close()


def test_a_server_address_in_a_query_string_is_ignored(relay: Relay) -> None:
    query = "/ws?relay_host=evil.test&host=evil.test&gatewayUrl=ws://evil.test&address=pinch:x@evil.test"
    alice = relay.agent("alice", path=query)
    assert alice.open().auth_challenge.relay_host == HOST
    alice.connect()


def test_a_host_header_of_another_name_changes_nothing(relay: Relay) -> None:
    alice = relay.agent("alice", headers={"Host": "evil.test", "X-Forwarded-Host": "evil.test"})
    assert alice.open().auth_challenge.relay_host == HOST
    alice.connect()


# Frames


def varint(number: int) -> bytes:
    out = b""
    while number > 0x7F:
        out += bytes([number & 0x7F | 0x80])
        number >>= 7
    return out + bytes([number])


def nested(levels: int) -> bytes:
    """Lengths in lengths, each a field that nobody knows inside the one before."""
    data = b""
    for _ in range(levels):
        data = b"\xfa\x07" + varint(len(data)) + data
    return data


UNPARSEABLE = {
    "invalid UTF-8 in from_address": b"\x12\x02\xff\xfe",
    "invalid UTF-8 in to_address": b"\x1a\x02\xc3\x28",
    "invalid UTF-8 in a payload": b"\xba\x01\x04\x0a\x02\xff\xfe",
    "groups 10 000 deep": b"\x7b" * 10_000 + b"\x7c" * 10_000,
    "groups that never end": b"\x7b" * 60_000,
    "a length past the end": b"\x12\xff\xff\xff\xff\x0f",
    "a varint without an end": b"\x08" + b"\xff" * 20,
    "field 0": b"\x00\x00",
    "a wire type that is none": b"\x0f",
}


def test_what_cannot_be_parsed_is_counted_and_ignored(relay: Relay) -> None:
    alice, bob = relay.online("alice", "bob")
    whole = alice.envelope(bob).SerializeToString()
    for n, junk in enumerate(UNPARSEABLE.values(), 1):
        alice.send(whole + junk)
        assert alice.settled() == []
        assert relay.house.stats.unparseable == n, list(UNPARSEABLE)[n - 1]
    assert nothing_came(bob)
    sent = alice.message(bob)
    assert bob.receive() == sent, "the connection stays"


def test_deep_nesting_in_what_nobody_looks_at_is_passed_on_unread(relay: Relay) -> None:
    alice, bob = relay.online("alice", "bob")
    data = alice.envelope(bob).SerializeToString() + nested(10_000)
    assert len(data) < ENVELOPE_BYTES_MAX
    alice.send(data)
    assert bob.receive_bytes() == data


def test_a_compressed_bomb_is_not_inflated(relay: Relay) -> None:
    """RSV1 without negotiation is in test_socket.py; here the client insists that it was negotiated."""
    alice = relay.agent("alice", headers={"Sec-WebSocket-Extensions": "permessage-deflate; client_max_window_bits"})
    alice.connect().live()
    assert "extensions" not in alice.socket.answer.lower()
    alice.socket.send(BINARY, bytes(1_000), rsv=4)
    assert alice.closed() == (1002, "reserved bits")
    others_are_served(relay)


def test_a_wrong_oneof_has_a_stable_reason_and_the_connection_stays(relay: Relay) -> None:
    alice, bob = relay.online("alice", "bob")
    # Each type that the relay acts upon, with another's payload; the other way round is in test_rules_go_lacks.py.
    for kind in (MessageType.DELIVERY_CONFIRM, MessageType.BLOCK_NOTIFICATION, MessageType.UNBLOCK_NOTIFICATION):
        made = alice.envelope(bob, kind)
        made.encrypted.ciphertext = b"x"
        alice.send(made.SerializeToString())
    assert alice.settled() == []
    assert relay.refusals() == ["unmatched", "bad_address", "bad_address"]
    assert nothing_came(bob)
    # Payloads that are between agents are theirs to judge.
    made = alice.envelope(bob, MessageType.MESSAGE)
    made.heartbeat.timestamp = 1
    alice.send(made.SerializeToString())
    assert bob.receive() == made


# Floods


def test_frames_past_the_rate_are_discarded_and_a_new_connection_does_not_help(make_relay: MakeRelay) -> None:
    relay = make_relay({"relay.rate_limit": "0.01", "relay.rate_burst": "10"})
    alice, bob = relay.online("alice", "bob")
    sent = [alice.message(bob) for _ in range(15)]
    notices = [alice.expect(MessageType.RATE_LIMITED) for _ in range(5)]
    for notice in notices:
        assert 0 < notice.rate_limited.retry_after_ms <= 100_000
        assert notice.rate_limited.reason
    assert bob.receive_all(10) == sent[:10]
    alice.leave()
    alice.connect().live()
    alice.message(bob)
    alice.expect(MessageType.RATE_LIMITED)
    assert nothing_came(bob)
    # One event tells of all that came within a second; each is counted.
    assert relay.house.stats.refused == {"rate_limited": 6}
    assert "rate_limited" in relay.refusals()


@pytest.mark.parametrize("opcode", [PING, PONG])
def test_a_flood_of_pings_or_pongs_is_ended_and_others_notice_nothing(relay: Relay, opcode: int) -> None:
    (alice,) = relay.online("alice")
    alice.socket.sock.sendall(frame(opcode, b"x" * 125) * 500)
    assert alice.closed() == (1008, "too many pings")
    assert relay.house.stats.closed == {"too many pings": 1}
    others_are_served(relay)


def test_an_agent_that_provokes_notices_and_does_not_read_them_is_not_read_from(make_relay: MakeRelay) -> None:
    relay = make_relay({"relay.rate_limit": "1", "relay.rate_burst": "1"})
    mallory = relay.agent("mallory", receive_bytes=4_096).connect().live()
    line = mallory.session.line
    relay.on_loop(lambda: line._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1))
    # Each frame is answered with a notice.
    burst = frame(BINARY, mallory.envelope(mallory).SerializeToString()) * 200
    mallory.socket.sock.settimeout(1)
    try:
        for _ in range(500):
            mallory.socket.sock.sendall(burst)
    except TimeoutError:
        pass
    else:
        raise AssertionError("the relay reads on and on")
    assert relay.on_loop(line.buffered) < 2 * relay.house.settings.buffered_bytes_max
    others_are_served(relay)


# Ids

HOSTILE = [
    b"<script>alert(1)</script>",
    b"'; DROP TABLE message; --",
    b"../../../../etc/passwd",
    b"..",
    b"/",
    b"C:\\windows\\system32",
    b"a\nforged: line",
    b"\r\n\r\nHTTP/1.1 200 OK",
    b"\x1b[2J\x1b]0;pwned\x07",
    b"\x00",
    b"\xff\xfe",
    "\u202etxt.exe".encode(),
    b"%s%n{0}",
    b"=cmd|'/c calc'!A0",
    b"hex:00",
    b"confirm:one",
    b"relay:1",
    b" ",
    b"-rf",
    b"x" * 5_000,
    bytes(range(256)),
]
"""Ids with markup, statements, paths, lines, escapes, and such as the relay itself gives."""


def is_inert(text: str) -> bool:
    return all(c.isprintable() or c == "\n" for c in text)


def test_hostile_ids_are_delivered_and_confirmed_and_inert_wherever_they_are_shown(
    relay: Relay, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    caplog.set_level(logging.DEBUG)
    (alice,) = relay.online("alice")
    bob = relay.agent("bob")
    sent = [alice.message(bob, message_id=id) for id in HOSTILE]
    assert alice.settled() == []
    bob.connect()
    assert announced(bob) == len(HOSTILE)
    assert bob.receive_all(len(HOSTILE)) == sent
    for message in sent[::2]:
        bob.confirm(message)
    told = [c.delivery_confirm.message_id for c in alice.receive_all(len(sent[::2]))]
    assert told == HOSTILE[::2]
    assert depth(relay, bob) == len(sent[1::2])
    # What bob did not confirm goes aside, so that operators come to see it.
    for _ in range(5):
        bob.cut()
        bob.answers_pings = False
        bob.connect()
        stall(bob, 1)
    bob.cut()
    # Refused, with a hostile id.
    for id in HOSTILE:
        alice.message("junk", message_id=id)
    alice.settled()
    relay.stop()
    assert all(is_inert(message) for message in caplog.messages)
    monkeypatch.chdir(relay.folder)
    house = House(relay.folder)
    for id in HOSTILE:
        for words in (["message", "show", "--", id_text(id)], ["message", "history", "--", id_text(id)]):
            shown = house.run(*words)
            assert is_inert(shown.stdout + shown.stderr)
    for words in (["mailbox", "show", bob.address], ["journal", "tail"], ["dead", "ls"]):
        shown = house.run(*words)
        assert is_inert(shown.stdout + shown.stderr)
    before = set(tmp_path.rglob("*"))
    house.run("journal", "export")
    made = set(tmp_path.rglob("*")) - before
    assert made
    assert all(is_inert(str(path)) and "passwd" not in str(path) for path in made)
    assert not os.path.exists(relay.folder.parent / "etc")


def test_hostile_text_in_other_fields_is_carried_and_inert(relay: Relay, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    alice, bob = relay.online("alice", "bob")
    made = alice.envelope(bob, MessageType.CONNECTION_REQUEST)
    made.connection_request.message = "\x1b[2J<script>\n"
    alice.send(made.SerializeToString())
    assert bob.receive() == made
    for hostile in ("\x1b[2J", "<b>", "a\nb", "\0"):
        alice.message(hostile, from_address=hostile)
        alice.message(hostile)
    alice.settled()
    for event in relay.events():
        assert is_inert("".join(str(value) for value in event if value is not None))
    assert all(is_inert(message) for message in caplog.messages)


# A credential that is revoked while its socket is open: tests/relay/test_process.py.


def test_a_block_holds_for_what_is_already_on_its_way(relay: Relay) -> None:
    alice, bob = relay.online("alice", "bob")
    bob.answers_pings = False
    bob.block(alice)
    bob.settled()
    alice.message(bob)
    alice.settled()
    assert relay.refusals() == ["blocked"]


def test_one_agents_faults_do_not_reach_anothers_connection(relay: Relay) -> None:
    alice, bob = relay.online("alice", "bob")

    def mallory(n: int) -> Agent:
        return relay.agent(f"mallory {n}").connect().live()

    mallory(1).socket.send(BINARY, bytes(200_000))
    mallory(2).socket.send(BINARY, b"x", rsv=4)
    mallory(3).socket.sock.sendall(frame(PING, b"") * 500)
    mallory(4).socket.sock.sendall(b"\x83\x00")
    for n in range(50):
        sent = alice.message(bob, str(n).encode())
        assert bob.receive() == sent
    relay.until(lambda: relay.house.connections == 2, "the faulty connections are still there")
