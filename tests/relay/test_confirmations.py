"""Confirmations, over real sockets: what they settle, what they tell the sender, and which are refused."""

from __future__ import annotations

import threading

import pytest
from tests.relay.conftest import MakeRelay
from tests.relay.harness import BINARY, DEADLINE_S, Agent, Relay, frame
from tests.relay.test_store_and_forward import (
    BATCH,
    announced,
    depth,
    is_at_rest,
    nothing_came,
    resume,
    stall,
    state,
    stored,
)

from posthouse.mailbox.message import State
from posthouse.relay.inflow import STRANGE_CONFIRMS_MAX
from posthouse.wire.auth import confirm_bytes
from posthouse.wire.envelope import Envelope, MessageType, delivery_confirm


def flags(agent: Agent, count: int) -> list[bool]:
    """``was_stored`` of the confirmations that come."""
    return [agent.expect(MessageType.DELIVERY_CONFIRM).delivery_confirm.was_stored for _ in range(count)]


def confirm_claiming(agent: Agent, message: Envelope, was_stored: bool) -> None:
    """Confirm a message, with a claim about what only the relay knows."""
    made = agent.envelope(message.from_address, MessageType.DELIVERY_CONFIRM, message_id=b"")
    made.delivery_confirm.message_id = message.message_id
    made.delivery_confirm.was_stored = was_stored
    agent.send(made.SerializeToString())


# was_stored


def test_was_stored_is_false_for_what_came_live_and_true_for_what_waited(relay: Relay) -> None:
    (alice,) = relay.online("alice")
    bob = relay.agent("bob")
    waited = stored(relay, alice, bob, 3)
    bob.connect()
    announced(bob)
    assert bob.receive_all(3) == waited
    bob.until(lambda: is_at_rest(bob))
    live = [alice.message(bob) for _ in range(3)]
    assert bob.receive_all(3) == live
    for message in [*waited, *live]:
        bob.confirm(message)
    assert flags(alice, 6) == [True] * 3 + [False] * 3


def test_was_stored_is_true_for_what_arrived_during_a_flush(relay: Relay) -> None:
    (alice,) = relay.online("alice")
    bob = relay.agent("bob")
    stored(relay, alice, bob, BATCH + 1)
    bob.connect()
    announced(bob)
    stall(bob, BATCH)
    (meanwhile,) = stored(relay, alice, bob, 1)
    resume(bob)
    assert bob.receive_all(2)[1] == meanwhile
    bob.confirm(meanwhile)
    assert flags(alice, 1) == [True]


def test_was_stored_is_true_for_what_came_live_and_came_again(relay: Relay) -> None:
    alice, bob = relay.online("alice", "bob")
    sent = alice.message(bob)
    assert bob.receive() == sent
    bob.cut()
    bob.connect()
    assert announced(bob) == 1
    assert bob.receive() == sent
    bob.confirm(sent)
    assert flags(alice, 1) == [True]


def test_was_stored_is_true_for_what_a_slow_reader_could_not_take_at_once(relay: Relay) -> None:
    alice, bob = relay.online("alice", "bob")
    room = relay.house.settings.unreceived_frames_max
    bob.answers_pings = False
    sent = [alice.message(bob) for _ in range(room + 50)]
    assert stall(bob, room) == sent[:room]
    assert alice.settled() == []
    assert nothing_came(bob), "more is on its way than may be"
    resume(bob)
    assert bob.receive_all(50) == sent[room:]
    for message in sent:
        bob.confirm(message)
    assert flags(alice, room + 50) == [False] * room + [True] * 50


@pytest.mark.parametrize("claim", [True, False])
def test_what_the_recipient_claims_about_was_stored_is_corrected(relay: Relay, claim: bool) -> None:
    (alice,) = relay.online("alice")
    bob = relay.agent("bob")
    (waited,) = stored(relay, alice, bob, 1)
    bob.connect()
    announced(bob)
    assert bob.receive() == waited
    bob.until(lambda: is_at_rest(bob))
    live = alice.message(bob)
    assert bob.receive() == live
    for message in (waited, live):
        confirm_claiming(bob, message, claim)
    assert flags(alice, 2) == [True, False]


def test_a_confirmation_is_passed_on_with_its_signature_intact(relay: Relay) -> None:
    (alice,) = relay.online("alice")
    bob = relay.agent("bob")
    (sent,) = stored(relay, alice, bob, 1)
    bob.connect()
    announced(bob)
    made = bob.confirm(bob.receive())
    came = alice.receive()
    assert came.delivery_confirm.was_stored
    signed = confirm_bytes(came.delivery_confirm.message_id, came.delivery_confirm.timestamp)
    bob.key.verify_key.verify(signed, came.delivery_confirm.signature)
    came.delivery_confirm.was_stored = False
    assert came == made
    assert state(relay, sent) is State.DELIVERED


def test_a_confirmation_of_a_live_message_comes_byte_for_byte(relay: Relay) -> None:
    alice, bob = relay.online("alice", "bob")
    sent = alice.message(bob)
    assert bob.receive() == sent
    made = bob.confirm(sent)
    assert alice.receive_bytes() == made.SerializeToString()


# What a confirmation settles


def test_a_confirmation_on_a_later_connection_settles_before_the_message_is_sent_again(relay: Relay) -> None:
    (alice,) = relay.online("alice")
    bob = relay.agent("bob")
    sent = stored(relay, alice, bob, 5)
    bob.connect()
    announced(bob)
    assert bob.receive_all(5) == sent
    bob.cut()
    # As long as the test likes.
    relay.change(start_pause_s=3_600.0)
    bob.connect()
    for message in sent[:3]:
        bob.confirm(message)
    assert flags(alice, 3) == [True] * 3
    bob.begin()
    assert announced(bob) == 2
    assert bob.receive_all(2) == sent[3:]
    assert nothing_came(bob)


def test_a_confirmation_in_mid_flush_of_what_was_not_sent_again_yet_spares_the_repeat(relay: Relay) -> None:
    (alice,) = relay.online("alice")
    bob = relay.agent("bob")
    sent = stored(relay, alice, bob, 2 * BATCH)
    bob.connect()
    announced(bob)
    bob.receive_all(2 * BATCH)
    bob.cut()
    bob.connect()
    assert announced(bob) == 2 * BATCH
    stall(bob, BATCH)
    for message in sent[BATCH:]:
        bob.confirm(message)
    alice.receive_all(BATCH)
    resume(bob)
    assert nothing_came(bob), "what the agent had confirmed came again"
    assert depth(relay, bob) == BATCH


def test_each_confirmation_is_its_own_and_nothing_acknowledges_the_queueing(relay: Relay) -> None:
    (alice,) = relay.online("alice")
    bob = relay.agent("bob")
    sent = stored(relay, alice, bob, 20)
    assert nothing_came(alice), "the queueing was acknowledged"
    bob.connect()
    announced(bob)
    came = bob.receive_all(20)
    for message in reversed(came):
        bob.confirm(message)
    confirms = [c.delivery_confirm.message_id for c in alice.receive_all(20)]
    assert confirms == [m.message_id for m in reversed(sent)]
    assert nothing_came(alice)


def test_the_same_id_of_two_senders_is_confirmed_to_each_of_them(relay: Relay) -> None:
    alice, carol, bob = relay.online("alice", "carol", "bob")
    one, other = alice.message(bob, message_id=b"one"), carol.message(bob, message_id=b"one")
    assert {m.from_address for m in bob.receive_all(2)} == {alice.address, carol.address}
    bob.confirm(one)
    alice.expect(MessageType.DELIVERY_CONFIRM)
    assert nothing_came(carol)
    assert depth(relay, bob) == 1
    bob.confirm(other)
    carol.expect(MessageType.DELIVERY_CONFIRM)


# A sender that is away


def test_a_confirmation_for_a_sender_that_is_away_is_queued_like_any_message(relay: Relay) -> None:
    alice, bob, carol = relay.online("alice", "bob", "carol")
    sent = alice.message(bob)
    assert bob.receive() == sent
    alice.leave()
    before = carol.message(alice)
    carol.settled()
    made = bob.confirm(sent)
    bob.settled()
    after = carol.message(alice)
    carol.settled()
    relay.restart()
    alice.connect()
    assert announced(alice) == 3
    assert alice.receive_all(3) == [before, made, after]
    alice.until(lambda: depth(relay, alice) == 2, "what is never confirmed is removed when it is received")


def test_a_confirmation_that_matches_is_exempt_from_the_cap(make_relay: MakeRelay) -> None:
    relay = make_relay({"relay.queue_max": "3"})
    alice, bob, carol = relay.online("alice", "bob", "carol")
    sent = [alice.message(bob) for _ in range(3)]
    assert bob.receive_all(3) == sent
    alice.leave()
    full = stored(relay, carol, alice, 3)
    carol.message(alice)
    carol.expect(MessageType.QUEUE_FULL)
    made = [bob.confirm(message) for message in sent]
    assert bob.settled() == [], "the confirmations were refused"
    alice.connect()
    assert announced(alice) == 6
    assert alice.receive_all(6) == full + made


# Which are refused


def refused_as_unmatched(relay: Relay, count: int) -> None:
    """Wait for so many refusals in the journal: each is noted once its submission is answered."""
    relay.until(lambda: relay.refusals() == ["unmatched"] * count, "it was not refused")


def test_a_confirmation_that_matches_nothing_is_refused_and_not_passed_on(relay: Relay) -> None:
    alice, bob = relay.online("alice", "bob")
    bob.confirm(alice.envelope(bob))
    assert bob.settled() == []
    refused_as_unmatched(relay, 1)
    assert nothing_came(alice)
    (refusal,) = relay.events("refused")
    assert (refusal.sender, refusal.mailbox, refusal.kind) == (bob.address, alice.address, "delivery_confirm")


def test_a_second_confirmation_of_the_same_message_is_refused(relay: Relay) -> None:
    alice, bob = relay.online("alice", "bob")
    sent = alice.message(bob)
    assert bob.receive() == sent
    bob.confirm(sent)
    bob.confirm(sent)
    assert bob.settled() == []
    alice.expect(MessageType.DELIVERY_CONFIRM)
    assert nothing_came(alice)
    refused_as_unmatched(relay, 1)


def test_nobody_confirms_what_was_sent_to_another(relay: Relay) -> None:
    alice, bob, carol = relay.online("alice", "bob", "carol")
    sent = alice.message(bob)
    assert bob.receive() == sent
    carol.confirm(sent)
    assert carol.settled() == []
    refused_as_unmatched(relay, 1)
    assert nothing_came(alice)
    # Not even the recipient, to somebody who did not send it.
    misled = bob.envelope(carol, MessageType.DELIVERY_CONFIRM, message_id=b"")
    misled.delivery_confirm.message_id = sent.message_id
    bob.send(misled.SerializeToString())
    assert bob.settled() == []
    refused_as_unmatched(relay, 2)
    assert nothing_came(carol)
    assert state(relay, sent) in (State.LEASED, State.RECEIVED)


@pytest.mark.parametrize("to", ["", "junk", "pinch:junk@relay.test"])
def test_a_confirmation_to_no_address_is_refused(relay: Relay, to: str) -> None:
    alice, bob = relay.online("alice", "bob")
    sent = alice.message(bob)
    assert bob.receive() == sent
    made = bob.envelope(to, MessageType.DELIVERY_CONFIRM, message_id=b"")
    made.delivery_confirm.message_id = sent.message_id
    bob.send(made.SerializeToString())
    assert bob.settled() == []
    assert relay.refusals() == ["bad_address"]


def test_a_confirmation_without_an_id_or_without_its_content_is_refused(relay: Relay) -> None:
    alice, bob = relay.online("alice", "bob")
    empty = bob.envelope(alice, MessageType.DELIVERY_CONFIRM)
    bob.send(empty.SerializeToString())
    empty.delivery_confirm.state = "delivered"
    bob.send(empty.SerializeToString())
    assert bob.settled() == []
    refused_as_unmatched(relay, 2)
    assert nothing_came(alice)


# Limits


LIMITED = {"relay.rate_limit": "0.01", "relay.rate_burst": "10"}


def test_confirmations_of_relayed_messages_are_not_rate_limited(relay: Relay) -> None:
    (alice,) = relay.online("alice")
    bob = relay.agent("bob")
    sent = stored(relay, alice, bob, 150)
    alice.leave()
    relay.settings |= LIMITED
    relay.restart()
    alice.connect().live()
    alice._envelopes.clear()
    bob.connect()
    assert announced(bob) == 150
    assert bob.receive_all(150) == sent
    for message in sent:
        bob.confirm(message)
    alice.until(lambda: depth(relay, bob) == 0, "confirmations were thrown away")
    assert not relay.house.stats.refused
    # Everything else is limited.
    for _ in range(12):
        bob.message(alice)
    while (notice := bob.receive()).type != MessageType.RATE_LIMITED:
        assert notice.type == MessageType.QUEUE_STATUS
    assert 0 < notice.rate_limited.retry_after_ms <= 100_000
    assert "rate limit" in notice.rate_limited.reason


def test_a_burst_of_confirmations_on_a_later_connection_is_not_rate_limited(relay: Relay) -> None:
    (alice,) = relay.online("alice")
    bob = relay.agent("bob")
    count = 3 * STRANGE_CONFIRMS_MAX
    sent = stored(relay, alice, bob, count)
    alice.leave()
    bob.connect()
    announced(bob)
    assert bob.receive_all(count) == sent
    bob.cut()
    relay.settings |= LIMITED
    relay.restart()
    # As long as the test likes.
    relay.change(start_pause_s=3_600.0)
    bob.connect()
    # The disk is slow: as many are under way as may be.
    disk = threading.Event()
    relay.engine.on_commit.append(lambda *_: disk.wait(DEADLINE_S))
    burst = [delivery_confirm(bob.address, alice.address, m.message_id, 2, bytes(64)) for m in sent]
    bob.socket.sock.sendall(b"".join(frame(BINARY, data) for data in burst))
    relay.until(lambda: bool(relay.house.paused))
    disk.set()
    bob.until(lambda: depth(relay, bob) == 0, "confirmations were thrown away")
    assert not relay.house.stats.refused
    assert not bob._envelopes


def test_confirmations_that_match_nothing_are_rate_limited(make_relay: MakeRelay) -> None:
    relay = make_relay(LIMITED)
    alice, bob = relay.online("alice", "bob")
    for n in range(4 * STRANGE_CONFIRMS_MAX):
        bob.confirm(alice.envelope(bob, message_id=str(n).encode()))
    bob.expect(MessageType.RATE_LIMITED)
    # Some more than the first may be under way before it is known that none matches.
    bob.until(lambda: relay.house.stats.refused["rate_limited"] >= STRANGE_CONFIRMS_MAX // 2)
    assert nothing_came(alice)
