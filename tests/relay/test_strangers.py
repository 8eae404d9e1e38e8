"""Who has not authenticated: what it can make the relay hold, and that nothing of it stays."""

from __future__ import annotations

import contextlib
import socket

import pytest
from tests.relay.conftest import MakeRelay
from tests.relay.harness import BINARY, CONTINUATION, DEADLINE_S, PING, Relay, frame

from posthouse.relay.connection import STRANGE_BYTES_MAX
from posthouse.relay.session import AUTH_FRAME_TOO_LARGE

UPGRADE = (
    b"GET /ws HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: %s\r\n\r\n"
)


@pytest.mark.parametrize("key", [b"\xe9" * 22 + b"==", b"A" * 23 + b"=", b"A" * 24, b"A" * 21 + b" ==", b""])
def test_what_is_no_key_of_a_websocket_is_refused_and_its_connection_ends(relay: Relay, key: bytes) -> None:
    with socket.create_connection(("127.0.0.1", relay.port), timeout=DEADLINE_S) as sock:
        sock.sendall(UPGRADE % key)
        answer = b""
        while data := sock.recv(4_096):
            answer += data
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert relay.house.unauthenticated == 0


@pytest.mark.parametrize("fragments", [1, 20])
def test_no_more_is_read_of_a_stranger_than_an_answer_takes(relay: Relay, fragments: int) -> None:
    stranger = relay.agent("stranger")
    stranger.open()
    part = bytes(131_072 // fragments)
    with contextlib.suppress(OSError):
        for n in range(fragments):
            # The last one stays unfinished.
            data = frame(CONTINUATION if n else BINARY, part, fin=False)
            stranger.socket.sock.sendall(data if n + 1 < fragments else data[:-1])
    assert stranger.closed() == (1009, AUTH_FRAME_TOO_LARGE)
    relay.until(lambda: relay.house.unauthenticated == 0)


def test_a_strangers_pings_are_bounded_in_bytes_too(relay: Relay) -> None:
    stranger = relay.agent("stranger")
    stranger.open()
    with contextlib.suppress(OSError):
        stranger.socket.sock.sendall(frame(PING, bytes(125)) * (2 * STRANGE_BYTES_MAX // 131))
    assert stranger.closed()[0] == 1008


def test_what_an_agent_sends_behind_its_answer_is_not_counted_against_it(relay: Relay) -> None:
    alice, bob = relay.agent("alice"), relay.agent("bob")
    challenge = alice.open().auth_challenge
    sent = [alice.envelope(bob).SerializeToString() for _ in range(1_000)]
    # In one go: it does not wait to be admitted.
    data = frame(BINARY, alice.auth_response(challenge)) + b"".join(frame(BINARY, one) for one in sent)
    assert len(data) > 2 * STRANGE_BYTES_MAX
    alice.socket.sock.sendall(data)
    assert alice.receive().auth_result.success
    alice.settled()
    bob.connect()
    assert bob.receive().queue_status.pending_count == len(sent)
    assert [bob.receive_bytes() for _ in sent] == sent


def test_early_bytes_that_are_no_frames_end_a_connection_once(relay: Relay) -> None:
    stranger = relay.agent("stranger", early=b"\x03" * 8_000)
    stranger.open()
    assert stranger.closed() == (1002, "protocol error")
    relay.until(lambda: relay.house.unauthenticated == 0)


def test_a_claim_whose_secret_is_no_text_is_refused(make_relay: MakeRelay) -> None:
    relay = make_relay({"relay.locked": "true", "relay.secret": "open sesame"})
    body = rb'{"claim_code": "\ud800", "turnstile_token": "\udfff"}'
    status, _, answer = relay.http("/agents/claim", body, {"Content-Type": "application/json"})
    assert (status, answer) == (403, b'{"error": "challenge not passed"}\n')
