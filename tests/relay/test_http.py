"""What the relay's port says to plain HTTP: health, registration, claims, and how it refuses the rest."""

from __future__ import annotations

import base64
import json
import socket

import pytest
from tests.relay.conftest import MakeRelay
from tests.relay.harness import DEADLINE_S, Relay, Socket

from posthouse.relay import connection, server
from posthouse.relay.http import HEAD_BYTES_MAX, Answer, Request, parse_head
from posthouse.relay.registration import Buckets

KEY = bytes(range(32))
BODY = json.dumps({"public_key": base64.b64encode(KEY).decode()}).encode()


def health(relay: Relay) -> dict[str, object]:
    status, headers, body = relay.http("/health")
    assert status == 200
    assert headers["content-type"] == "application/json"
    found: dict[str, object] = json.loads(body)
    return found


def test_health_counts_authenticated_connections_only_and_drops_promptly(relay: Relay) -> None:
    stranger = relay.agent("stranger")
    stranger.open()
    assert health(relay)["connections"] == 0
    alice, bob = relay.online("alice", "bob")
    assert health(relay)["connections"] == 2
    assert isinstance(health(relay)["goroutines"], int)
    alice.leave()
    assert health(relay)["connections"] == 1
    bob.cut()
    assert health(relay)["connections"] == 0


def test_a_plain_get_of_the_websocket_is_told_to_upgrade(relay: Relay) -> None:
    status, headers, _ = relay.http("/ws")
    assert status == 426
    assert headers["upgrade"] == "websocket"


@pytest.mark.parametrize("path", ["/", "/nope", "/claim", "/ws/", "/health/../x"])
def test_an_unknown_path_is_not_found(relay: Relay, path: str) -> None:
    assert relay.http(path)[0] == 404


@pytest.mark.parametrize(("method", "path"), [("POST", "/health"), ("DELETE", "/agents/claim"), ("PUT", "/ws")])
def test_another_method_is_not_allowed(relay: Relay, method: str, path: str) -> None:
    status, headers, _ = relay.http(path, method=method)
    assert status == 405
    assert headers["allow"] in ("GET", "POST")


def test_an_absent_origin_is_allowed_and_a_foreign_one_refused(make_relay: MakeRelay) -> None:
    relay = make_relay({"relay.allowed_origins": "https://a.example, https://b.example"})
    relay.agent("alice").connect()
    relay.agent("bob", headers={"Origin": "https://b.example"}).connect()
    assert Socket(relay.port, headers={"Origin": "https://evil.example"}).status == 403
    assert relay.http("/agents/register", BODY, {"Origin": "https://evil.example"})[0] == 403


def test_without_a_list_every_origin_is_foreign_and_a_star_allows_all(make_relay: MakeRelay) -> None:
    assert Socket(make_relay().port, headers={"Origin": "https://a.example"}).status == 403
    everyone = make_relay({"relay.allowed_origins": "*"}, "everyone")
    assert Socket(everyone.port, headers={"Origin": "https://a.example"}).status == 101


def test_a_browsers_connection_header_is_understood_and_no_extension_is_granted(relay: Relay) -> None:
    found = Socket(
        relay.port,
        headers={"Connection": "keep-alive, Upgrade", "Sec-WebSocket-Extensions": "permessage-deflate"},
    )
    assert found.status == 101
    assert "extensions" not in found.answer.lower()


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Sec-WebSocket-Key": "short"}, 400),
        ({"Sec-WebSocket-Version": "8"}, 426),
        ({"Upgrade": "h2c"}, 426),
        ({"Content-Length": "5"}, 400),
        ({"Transfer-Encoding": "chunked"}, 411),
        ({"X": "a" * HEAD_BYTES_MAX}, 431),
    ],
)
def test_a_malformed_upgrade_is_refused(relay: Relay, headers: dict[str, str], status: int) -> None:
    assert Socket(relay.port, headers=headers).status == status


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"GET / HTTP/2",
        b"GET  / HTTP/1.1",
        b"GET x HTTP/1.1",
        b"GET /\xff HTTP/1.1",
        b"G\0T / HTTP/1.1",
        b"GET / HTTP/1.1\r\nno colon",
        b"GET / HTTP/1.1\r\nna me: x",
        b"GET / HTTP/1.1\r\n folded: x",
        b"GET / HTTP/1.1\r\na: b\0",
        b"GET / HTTP/1.1\r\nContent-Length: +5",
        b"GET / HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 5",
        b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 200 + b"a: b",
    ],
)
def test_what_is_no_request_is_answered_and_not_understood(head: bytes) -> None:
    answer = parse_head(head)
    assert isinstance(answer, Answer)
    assert answer.status in (400, 431)


def test_a_request_is_read_with_its_query_left_out() -> None:
    request = parse_head(b"GET /ws?host=evil HTTP/1.1\r\nHost: a\r\nX: 1\r\nx: 2")
    assert request == Request("GET", "/ws", {"host": "a", "x": "1, 2"}, 0)


def test_a_request_that_takes_too_long_is_ended_and_others_are_served(
    make_relay: MakeRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "LINGER_S", DEADLINE_S)
    monkeypatch.setattr(server, "TICK_S", 0.05)
    relay = make_relay()
    with monkeypatch.context() as hurry:
        hurry.setattr(server, "REQUEST_S", 0.3)
        slow = socket.create_connection(("127.0.0.1", relay.port), timeout=DEADLINE_S)
        relay.until(lambda: bool(relay.server._fronts or relay.server._lingering))
    with slow:
        slow.sendall(b"GET /health HT")
        assert health(relay)["connections"] == 0
        assert slow.recv(100).startswith(b"HTTP/1.1 408 ")


def test_connections_without_a_request_have_a_budget(make_relay: MakeRelay) -> None:
    relay = make_relay({"relay.unauthenticated_max": "3"})
    waiting = [socket.create_connection(("127.0.0.1", relay.port), timeout=DEADLINE_S) for _ in range(3)]
    relay.until(lambda: len(relay.server._fronts) == 3)
    with socket.create_connection(("127.0.0.1", relay.port), timeout=DEADLINE_S) as fourth:
        try:
            assert fourth.recv(1) == b""
        except ConnectionResetError:
            pass
    for one in waiting:
        one.close()
    relay.until(lambda: not relay.server._fronts)
    assert health(relay)["connections"] == 0


def test_strangers_have_a_budget_and_are_told(make_relay: MakeRelay) -> None:
    relay = make_relay({"relay.unauthenticated_max": "2"})
    first, second = relay.agent("first"), relay.agent("second")
    first.open()
    second.open()
    refused = Socket(relay.port)
    assert refused.status == 503
    assert "retry-after: 5" in refused.answer.lower()
    first.cut()
    relay.until(lambda: relay.house.has_room())
    relay.agent("third").connect()


def test_a_body_over_the_limit_is_refused_before_it_is_read(relay: Relay) -> None:
    with socket.create_connection(("127.0.0.1", relay.port), timeout=DEADLINE_S) as client:
        client.sendall(b"POST /agents/register HTTP/1.1\r\nContent-Length: 4294967296\r\n\r\n")
        assert client.recv(100).startswith(b"HTTP/1.1 413 ")


def test_what_is_sent_behind_a_request_does_not_cost_the_answer(relay: Relay) -> None:
    with socket.create_connection(("127.0.0.1", relay.port), timeout=DEADLINE_S) as client:
        client.sendall(b"GET /health HTTP/1.1\r\n\r\n" + bytes(connection.READ_BYTES * 8))
        data = b""
        while part := client.recv(1 << 16):
            data += part
        assert data.startswith(b"HTTP/1.1 200 ")
        assert b'"connections": 0' in data


# Registration


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"public_key": 5}',
        b'{"public_key": "%%%"}',
        b'{"public_key": "AAAA"}',
        b"[" * 4_000,
        b'{"public_key": NaN}',
    ],
)
def test_a_bad_registration_is_refused_with_a_reason(relay: Relay, body: bytes) -> None:
    status, _, answer = relay.http("/agents/register", body)
    assert status == 400
    assert json.loads(answer)["error"]


def test_an_open_relay_registers_and_has_nothing_to_claim(relay: Relay) -> None:
    agent = relay.agent("alice")
    body = json.dumps({"public_key": base64.b64encode(agent.public_key).decode()}).encode()
    status, _, answer = relay.http("/agents/register", body)
    assert status == 200
    found = json.loads(answer)
    assert found["address"] == agent.address
    assert len(bytes.fromhex(found["claim_code"])) == 4
    assert relay.http("/agents/claim", json.dumps({"claim_code": found["claim_code"]}).encode())[0] == 404
    assert relay.http("/claim")[0] == 404
    agent.connect()


def test_registrations_are_limited(relay: Relay) -> None:
    # So slowly that none is made up for meanwhile.
    relay.server.registration._buckets = Buckets(per_s=0.01)
    answers = [relay.http("/agents/register", b"{}") for _ in range(7)]
    assert [status for status, _, _ in answers[:5]] == [400] * 5
    status, headers, _ = answers[-1]
    assert status == 429
    assert int(headers["retry-after"]) >= 1


LOCKED = {"relay.locked": "true", "relay.secret": "open sesame"}


def register(relay: Relay, name: str) -> str:
    agent = relay.agent(name)
    body = json.dumps({"public_key": base64.b64encode(agent.public_key).decode()}).encode()
    status, _, answer = relay.http("/agents/register", body)
    assert status == 200
    return str(json.loads(answer)["claim_code"])


def claim(relay: Relay, code: str, token: str) -> tuple[int, dict[str, str]]:
    body = json.dumps({"claim_code": code, "turnstile_token": token}).encode()
    status, _, answer = relay.http("/agents/claim", body)
    return status, json.loads(answer)


def test_a_locked_relay_admits_a_key_once_it_is_claimed(make_relay: MakeRelay) -> None:
    relay = make_relay(LOCKED)
    alice = relay.agent("alice")
    result = alice.authenticate()
    assert (result.success, result.error_message) == (False, "key not registered")
    assert alice.closed() == (1008, "key not registered")
    code = register(relay, "alice")
    assert register(relay, "alice") == code, "whoever knows the key cannot take the code away"
    assert not alice.authenticate().success
    assert claim(relay, code, "wrong")[0] == 403
    relay.restart()
    assert claim(relay, "00000000", "open sesame")[0] == 404
    assert claim(relay, code, "open sesame") == (200, {"address": alice.address, "status": "approved"})
    alice.connect()


def test_the_claim_page_is_a_form_that_works(make_relay: MakeRelay) -> None:
    relay = make_relay(LOCKED)
    status, headers, page = relay.http("/claim")
    assert status == 200
    assert headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in headers["content-security-policy"]
    assert b'action="/agents/claim"' in page
    kind = {"Content-Type": "application/x-www-form-urlencoded", "Origin": f"http://127.0.0.1:{relay.port}"}
    code = register(relay, "alice")
    status, _, page = relay.http("/agents/claim", f"claim_code={code}&turnstile_token=no".encode(), kind)
    assert status == 403
    assert b"challenge not passed" in page
    status, _, page = relay.http("/agents/claim", f"claim_code={code}&turnstile_token=open+sesame".encode(), kind)
    assert status == 200
    assert relay.agent("alice").address.encode() in page


def test_without_a_secret_only_an_operator_approves(make_relay: MakeRelay) -> None:
    relay = make_relay({"relay.locked": "true"})
    assert claim(relay, register(relay, "alice"), "")[0] == 403
