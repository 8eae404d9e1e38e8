"""The handshake over real sockets: what the relay asks, and that every wrong answer ends alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import nacl.signing
import pytest
from tests.relay.conftest import MakeRelay
from tests.relay.harness import BINARY, HOST, TEXT, Agent, Relay

from posthouse.relay import house
from posthouse.wire import envelope as wire
from posthouse.wire.auth import challenge_bytes
from posthouse.wire.envelope import AUTH_BYTES_MAX, Envelope, MessageType


def test_the_relay_speaks_first_with_a_challenge_of_10_s(relay: Relay) -> None:
    alice = relay.agent("alice")
    asked = alice.open()
    assert (asked.version, asked.type) == (1, MessageType.AUTH_CHALLENGE)
    assert (asked.from_address, asked.to_address, asked.message_id) == ("", "", b"")
    challenge = asked.auth_challenge
    assert (challenge.version, len(challenge.nonce), challenge.relay_host) == (1, 32, HOST)
    assert challenge.expires_at_ms == challenge.issued_at_ms + 10_000
    assert asked.timestamp == challenge.issued_at_ms
    assert alice.open().auth_challenge.nonce != challenge.nonce


def test_the_result_is_the_first_frame_behind_the_answer_and_assigns_the_address(relay: Relay) -> None:
    alice = relay.agent("alice")
    alice.send_answer()
    result = alice.expect(MessageType.AUTH_RESULT)
    assert result.version == 1
    assert (result.auth_result.success, result.auth_result.assigned_address) == (True, alice.address)
    assert result.auth_result.error_message == ""


Answer = Callable[[Agent, Any], bytes]


def answer(agent: Agent, challenge: Any, **fields: Any) -> Envelope:
    made = wire.parse(agent.auth_response(challenge))
    for name, value in fields.items():
        setattr(made.auth_response, name, value)
    return made


def changed(**fields: Any) -> Answer:
    """The right answer but for these fields."""
    return lambda agent, challenge: answer(agent, challenge, **fields).SerializeToString()


def signed(host: str | None = None, nonce: bytes | None = None) -> Answer:
    """A signature of something else."""

    def make(agent: Agent, challenge: Any) -> bytes:
        said = challenge_bytes(host or challenge.relay_host, nonce or challenge.nonce)
        return answer(agent, challenge, signature=agent.key.sign(said).signature).SerializeToString()

    return make


def replayed(agent: Agent, challenge: Any) -> bytes:
    """What answered the challenge of another connection, and was right there."""
    other = relay_of(agent).agent("alice")
    return other.auth_response(other.open().auth_challenge)


def relay_of(agent: Agent) -> Relay:
    return agent.relay


def of_type(kind: int) -> Answer:
    def make(agent: Agent, challenge: Any) -> bytes:
        made = answer(agent, challenge)
        made.type = kind  # type: ignore[assignment]
        return made.SerializeToString()

    return make


def by_another(agent: Agent, challenge: Any) -> bytes:
    """Somebody else's key with a signature of one's own."""
    return answer(agent, challenge, public_key=bytes(nacl.signing.SigningKey.generate().verify_key)).SerializeToString()


def padded(agent: Agent, challenge: Any) -> bytes:
    made = answer(agent, challenge).SerializeToString()
    # A field that nobody knows, to make it long.
    return made + bytes([0xFA, 0x07, 0x80, 0x80, 0x02]) + bytes(AUTH_BYTES_MAX)


def without(agent: Agent, challenge: Any) -> bytes:
    return Envelope(version=1, type=MessageType.AUTH_RESPONSE).SerializeToString()  # type: ignore[arg-type]


def in_another_payload(agent: Agent, challenge: Any) -> bytes:
    made = Envelope(version=1, type=MessageType.AUTH_RESPONSE)  # type: ignore[arg-type]
    made.auth_challenge.CopyFrom(challenge)
    return made.SerializeToString()


SMALL_ORDER = [
    "0100000000000000000000000000000000000000000000000000000000000000",
    "0000000000000000000000000000000000000000000000000000000000000000",
    "0000000000000000000000000000000000000000000000000000000000000080",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
]


def of_small_order(key: str) -> Answer:
    """Signatures that hold for a key of small order whatever is signed, where nobody checks the key."""

    def make(agent: Agent, challenge: Any) -> bytes:
        public_key = bytes.fromhex(key)
        neutral = bytes([1]) + bytes(31)
        return answer(agent, challenge, public_key=public_key, signature=neutral + bytes(32)).SerializeToString()

    return make


WRONG: dict[str, Answer] = {
    "nothing": lambda agent, challenge: b"",
    "no envelope": lambda agent, challenge: b"\xff" * 40,
    "another type": of_type(MessageType.MESSAGE),
    "an unknown type": of_type(99),
    "no response": without,
    "another payload": in_another_payload,
    "version 0": changed(version=0),
    "version 2": changed(version=2),
    "no key": changed(public_key=b""),
    "a short key": changed(public_key=bytes(31)),
    "a long key": changed(public_key=bytes(33)),
    "a short signature": changed(signature=bytes(63)),
    "a long signature": changed(signature=bytes(65)),
    "a wrong signature": changed(signature=bytes(64)),
    "a short nonce": changed(nonce=bytes(31)),
    "another nonce": changed(nonce=bytes(32)),
    "a replayed answer": replayed,
    "another host": signed(host="evil.test"),
    "another nonce signed": signed(nonce=bytes(32)),
    "somebody else's key": by_another,
    "too long": padded,
    **{f"small order {n}": of_small_order(key) for n, key in enumerate(SMALL_ORDER)},
}


def is_refused(agent: Agent) -> None:
    """It is told, and the connection closed, in the same words whatever was wrong."""
    result = agent.expect(MessageType.AUTH_RESULT).auth_result
    assert (result.success, result.error_message, result.assigned_address) == (False, "authentication failed", "")
    assert agent.closed() == (1008, "authentication failed")


def test_every_wrong_answer_is_refused_with_1008_and_the_same_words(make_relay: MakeRelay) -> None:
    relay = make_relay(refusals_noted_per_s=1_000.0)
    for name, wrong in WRONG.items():
        mallory = relay.agent("alice")
        mallory.send(wrong(mallory, mallory.open().auth_challenge))
        try:
            is_refused(mallory)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from error
    relay.until(lambda: relay.refusals() == ["auth"] * len(WRONG))
    assert relay.house.connections == 0
    # Whoever is who it says gets in all the same.
    relay.agent("alice").connect()


def test_a_right_answer_in_a_text_frame_is_refused(relay: Relay) -> None:
    alice = relay.agent("alice")
    data = alice.auth_response(alice.open().auth_challenge)
    alice.socket.send(TEXT, data)
    is_refused(alice)


def test_a_challenge_that_has_expired_is_refused(relay: Relay, monkeypatch: pytest.MonkeyPatch) -> None:
    alice = relay.agent("alice")
    challenge = alice.open().auth_challenge
    monkeypatch.setattr(relay.house.port, "now_ms", lambda: challenge.expires_at_ms)
    alice.send(alice.auth_response(challenge))
    is_refused(alice)


def test_a_nonce_is_good_for_one_answer(relay: Relay) -> None:
    mallory = relay.agent("alice")
    challenge = mallory.open().auth_challenge
    right = mallory.auth_response(challenge)
    mallory.send(changed(signature=bytes(64))(mallory, challenge))
    mallory.send(right)
    is_refused(mallory)
    assert relay.house.connections == 0


def test_who_does_not_answer_in_time_is_closed_and_makes_room(
    make_relay: MakeRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(house, "TICK_S", 0.02)
    relay = make_relay({"relay.unauthenticated_max": "2"}, auth_s=0.3)
    silent, dribbling = relay.agent("silent"), relay.agent("dribbling")
    silent.open()
    data = dribbling.auth_response(dribbling.open().auth_challenge)
    # The head of a frame and a part of it; pings do not lengthen the time.
    dribbling.socket.send(9, b"still here")
    dribbling.socket.sock.sendall(bytes([0x80 | BINARY, 0x80 | 126, 0, 200, 0, 0, 0, 0]) + data[:20])
    assert silent.closed() == (1008, "authentication timeout")
    assert dribbling.closed() == (1008, "authentication timeout")
    # Who answers is not to be late on a machine that is slow.
    relay.change(auth_s=10.0)
    relay.agent("alice").connect()


def test_a_connection_has_10_s_to_authenticate(relay: Relay) -> None:
    assert relay.house.settings.auth_s == 10
    assert relay.house.settings.unauthenticated_max == 1_000


def test_what_is_sent_before_authentication_is_not_routed(relay: Relay) -> None:
    (bob,) = relay.online("bob")
    mallory = relay.agent("mallory")
    mallory.open()
    mallory.send(mallory.envelope(bob).SerializeToString())
    is_refused(mallory)
    assert bob.settled() == []
    assert [e.mailbox for e in relay.events("posted")] == [bob.address], "only bob's own mark"
