"""Rules that the Go relay lacks, over real sockets: at the door, about size, two of one address, signs of life."""

from __future__ import annotations

import select
import time
from collections.abc import Callable

import pytest
from tests.relay.conftest import MakeRelay
from tests.relay.harness import Agent, Relay
from tests.relay.test_store_and_forward import announced, depth, nothing_came, stall, stored

from posthouse.relay import house
from posthouse.wire.address import address_of
from posthouse.wire.envelope import ENVELOPE_BYTES_MAX, FRAME_BYTES_MAX, RELAY_ONLY, Envelope, MessageType

# At the door


def test_from_address_must_be_the_authenticated_one(relay: Relay) -> None:
    alice, bob, carol = relay.online("alice", "bob", "carol")
    for claimed in (bob.address, carol.address, "", "junk", alice.address.upper(), alice.address + " "):
        alice.message(bob, from_address=claimed)
    assert alice.settled() == []
    assert relay.refusals() == ["spoofed"] * 6
    # The journal names who did it, not whom it claimed to be.
    assert {e.sender for e in relay.events("refused")} == {alice.address}
    assert nothing_came(bob)
    assert depth(relay, bob) == 0
    sent = alice.message(bob)
    assert bob.receive() == sent, "the connection stays"


def test_a_spoofed_confirmation_or_block_is_refused(relay: Relay) -> None:
    alice, bob, carol = relay.online("alice", "bob", "carol")
    sent = alice.message(bob)
    assert bob.receive() == sent
    confirm = carol.envelope(alice, MessageType.DELIVERY_CONFIRM, from_address=bob.address)
    confirm.delivery_confirm.message_id = sent.message_id
    carol.send(confirm.SerializeToString())
    block = carol.envelope("", MessageType.BLOCK_NOTIFICATION, from_address=bob.address)
    block.block_notification.blocker_address = bob.address
    block.block_notification.blocked_address = alice.address
    carol.send(block.SerializeToString())
    assert carol.settled() == []
    assert relay.refusals() == ["spoofed"] * 2
    assert nothing_came(alice)
    again = alice.message(bob)
    assert bob.receive() == again


@pytest.mark.parametrize("kind", sorted(RELAY_ONLY))
def test_types_that_only_a_relay_may_send_are_not_routed(relay: Relay, kind: MessageType) -> None:
    alice, bob = relay.online("alice", "bob")
    forged = alice.envelope(bob, kind)
    getattr(forged, kind.name.lower()).SetInParent()
    alice.send(forged.SerializeToString())
    away = relay.agent("away")
    alice.send(alice.envelope(away, kind).SerializeToString())
    assert alice.settled() == []
    assert relay.refusals() == ["forbidden_type"] * 2
    assert nothing_came(bob)
    assert depth(relay, away) == 0


RESERVED = [
    "auth_challenge", "auth_response", "auth_result", "queue_status", "queue_full", "rate_limited",
    "delivery_confirm", "block_notification", "unblock_notification",
]  # fmt: skip


def test_what_the_relay_speaks_or_acts_upon_does_not_pass_under_another_type(relay: Relay) -> None:
    alice, bob = relay.online("alice", "bob")
    for payload in RESERVED:
        for kind in (MessageType.MESSAGE, MessageType.HEARTBEAT, 0, 99):
            forged = alice.envelope(bob, kind)
            getattr(forged, payload).SetInParent()
            alice.send(forged.SerializeToString())
    assert alice.settled() == []
    assert relay.refusals() == ["malformed"] * 36
    assert nothing_came(bob)


def other_host(agent: Agent) -> str:
    return address_of(agent.public_key, "elsewhere.test")


def wrong_checksum(agent: Agent) -> str:
    address = agent.address
    return address[:8] + ("2" if address[8] != "2" else "3") + address[9:]


JUNK: list[Callable[[Agent], str]] = [
    lambda agent: "",
    lambda agent: "bob",
    other_host,
    wrong_checksum,
    lambda agent: agent.address[6:],
    lambda agent: agent.address.partition("@")[0],
    lambda agent: agent.address + "@relay.test",
    lambda agent: agent.address + " ",
    lambda agent: agent.address + "\n",
    lambda agent: agent.address.replace("@", "\0@"),
    lambda agent: agent.address.replace("pinch:", "pinch:1"),
    lambda agent: agent.address.replace("pinch:", "PINCH:"),
    lambda agent: "pinch:../../etc/passwd@relay.test",
    lambda agent: "pinch:<script>@relay.test",
    lambda agent: "pinch:" + "z" * 50_000 + "@relay.test",
]


def test_to_address_must_be_a_well_formed_address_of_this_relay(relay: Relay) -> None:
    alice, bob = relay.online("alice", "bob")
    for junk in JUNK:
        alice.message(junk(bob))
    assert alice.settled() == []
    assert relay.refusals() == ["bad_address"] * len(JUNK)
    assert nothing_came(bob)
    # No mailbox came into being but alice's own.
    assert [m.mailbox for m in relay.engine.store.mailboxes("relay")] == [alice.address]
    sent = alice.message(bob)
    assert bob.receive() == sent


def test_other_types_are_routed_byte_for_byte_unknown_ones_too(relay: Relay) -> None:
    alice, bob = relay.online("alice", "bob")
    away = relay.agent("away")
    # A field that nobody knows yet.
    unknown = bytes([0xF8, 0x07, 0x2A])
    waits = []
    for kind in (0, 1, 6, 7, 8, 10, 16, 99, 2**31 - 1, -1):
        live = alice.envelope(bob, kind).SerializeToString() + unknown
        alice.send(live)
        assert bob.receive_bytes() == live
        waits.append(alice.envelope(away, kind).SerializeToString() + unknown)
        alice.send(waits[-1])
    assert alice.settled() == []
    away.connect()
    assert announced(away) == len(waits)
    assert [away.receive_bytes() for _ in waits] == waits


# Size


def sized(agent: Agent, to: Agent, size_bytes: int) -> bytes:
    """A message of exactly this size."""
    made = agent.envelope(to)
    made.encrypted.ciphertext = b""
    made.encrypted.ciphertext = bytes(size_bytes - made.ByteSize() - 20)
    made.encrypted.ciphertext += bytes(size_bytes - made.ByteSize())
    data = made.SerializeToString()
    assert len(data) == size_bytes
    return data


def test_an_envelope_of_65536_bytes_is_routed(relay: Relay) -> None:
    alice, bob = relay.online("alice", "bob")
    data = sized(alice, bob, ENVELOPE_BYTES_MAX)
    alice.send(data)
    assert bob.receive_bytes() == data
    away = relay.agent("away")
    data = sized(alice, away, ENVELOPE_BYTES_MAX)
    alice.send(data)
    alice.settled()
    away.connect()
    assert announced(away) == 1
    assert away.receive_bytes() == data


@pytest.mark.parametrize("size_bytes", [ENVELOPE_BYTES_MAX + 1, FRAME_BYTES_MAX, FRAME_BYTES_MAX + 1])
def test_an_oversize_frame_is_closed_with_its_reason_and_journaled_as_refused(relay: Relay, size_bytes: int) -> None:
    alice, bob = relay.online("alice", "bob")
    before = alice.message(bob)
    alice.send(sized(alice, bob, size_bytes))
    assert alice.closed() == (1009, "envelope exceeds 65536 bytes")
    assert bob.receive() == before
    relay.until(lambda: relay.refusals() == ["oversize"])
    (refusal,) = relay.events("refused")
    assert (refusal.sender, refusal.size_bytes) == (alice.address, size_bytes)
    assert nothing_came(bob)
    alice.connect().live()
    again = alice.message(bob)
    assert bob.receive() == again


# Two connections of one address


def test_a_half_open_connection_is_taken_over_within_3_s_and_what_it_held_comes_again(relay: Relay) -> None:
    (alice,) = relay.online("alice")
    dead, bob = relay.agent("bob"), relay.agent("bob")
    sent = stored(relay, alice, dead, 3)
    dead.connect()
    assert announced(dead) == 3
    stall(dead, 3)
    assert relay.house.settings.probe_s < 3
    started = time.monotonic()
    bob.connect()
    # A busy machine may stand still for some seconds; without the probe it would be 32.
    assert time.monotonic() - started < 9
    assert announced(bob) == 3
    assert bob.receive_all(3) == sent
    assert dead.closed() == (1008, "replaced by a newer connection")
    live = alice.message(bob)
    assert bob.receive() == live
    assert [e.reason for e in relay.events("disconnected")] == ["replaced"]


def test_a_live_connection_is_kept_and_the_newcomer_refused_within_3_s(make_relay: MakeRelay) -> None:
    # However late the pong is noticed on a busy machine: it is the pong that refuses the newcomer, not the end of 3 s.
    relay = make_relay(probe_s=3_600.0)
    alice, bob = relay.online("alice", "bob")
    newcomer = relay.agent("bob")
    newcomer.send_answer()
    bob.until(lambda: bool(bob.pings))
    result = newcomer.expect(MessageType.AUTH_RESULT).auth_result
    assert (result.success, result.error_message) == (False, "address already connected")
    assert newcomer.closed() == (1008, "address already connected")
    sent = alice.message(bob)
    while (came := bob.receive()) != sent:
        pass
    assert came == sent


def test_a_newcomer_is_admitted_at_once_when_the_other_leaves_meanwhile(relay: Relay) -> None:
    (old,) = relay.online("bob")
    bob = relay.agent("bob")
    old.answers_pings = False
    bob.send_answer()
    old.until(lambda: bool(old.pings))
    old.socket.close()
    assert bob.expect(MessageType.AUTH_RESULT).auth_result.success


# Signs of life


@pytest.fixture
def beating(make_relay: MakeRelay, monkeypatch: pytest.MonkeyPatch) -> Relay:
    """A relay that pings after 0.4 s of silence and gives up 0.4 s later."""
    monkeypatch.setattr(house, "TICK_S", 0.02)
    return make_relay(heartbeat_s=0.4, heartbeat_wait_s=0.4)


@pytest.fixture
def patient(make_relay: MakeRelay, monkeypatch: pytest.MonkeyPatch) -> Relay:
    """A relay that pings after 0.2 s of silence and gives up 2 s later: who lives is not too late on a busy machine."""
    monkeypatch.setattr(house, "TICK_S", 0.02)
    return make_relay(heartbeat_s=0.2, heartbeat_wait_s=2.0)


def test_an_agent_that_only_answers_pings_lives(patient: Relay) -> None:
    (alice,) = patient.online("alice")
    # The second comes when who is silent is closed.
    alice.until(lambda: len(alice.pings) >= 2)
    assert alice.session is not None


def test_an_agent_that_only_pings_lives(patient: Relay) -> None:
    (alice,) = patient.online("alice")
    alice.answers_pings = False
    until = time.monotonic() + 2.5
    while time.monotonic() < until:
        alice.pong()
        select.select([alice.socket.sock], [], [], 0.15)
    assert alice.session is not None


def test_an_agent_that_is_silent_is_pinged_and_then_closed(beating: Relay) -> None:
    (alice,) = beating.online("alice")
    alice.answers_pings = False
    assert alice.closed() == (1008, "heartbeat timeout")
    assert len(alice.pings) == 1
    beating.until(lambda: [e.reason for e in beating.events("disconnected")] == ["timeout"])


def test_the_bytes_of_a_frame_that_never_ends_are_no_sign_of_life(beating: Relay) -> None:
    (alice,) = beating.online("alice")
    whole = bytes([0x82, 0xFE, 0x04, 0x00, 0, 0, 0, 0]) + bytes(1_024)
    alice.answers_pings = False
    for n in range(len(whole)):
        if alice.session is None:
            break
        alice.socket.sock.sendall(whole[n : n + 1])
        select.select([alice.socket.sock], [], [], 0.05)
    assert alice.closed() == (1008, "heartbeat timeout")


def test_heartbeats_are_every_25_s_and_wait_for_7_s(relay: Relay) -> None:
    settings = relay.house.settings
    assert (settings.heartbeat_s, settings.heartbeat_wait_s) == (25, 7)
    assert settings.probe_s < 3


# Blocks


def test_a_blocked_sender_is_dropped_silently_and_does_not_come_after_an_unblock(relay: Relay) -> None:
    alice, bob = relay.online("alice", "bob")
    bob.block(alice)
    assert bob.settled() == [], "a block is not answered"
    alice.message(bob)
    assert alice.settled() == [], "the sender is not told"
    assert relay.refusals() == ["blocked"]
    assert nothing_came(bob)
    bob.leave()
    relay.restart()
    alice.connect().live()
    alice._envelopes.clear()
    alice.message(bob)
    alice.settled()
    assert relay.refusals() == ["blocked"] * 2
    bob.connect()
    while not nothing_came(bob):
        assert {Envelope.FromString(data).type for data in bob._envelopes} <= {
            MessageType.QUEUE_STATUS,
            MessageType.HEARTBEAT,
        }
        bob._envelopes.clear()
    bob.unblock(alice)
    assert bob.settled() == []
    assert nothing_came(bob), "what was dropped came after the unblock"
    sent = alice.message(bob)
    assert bob.receive() == sent
