"""Store and forward, over real sockets: what is kept, how it is announced and sent, and when it is gone.

Confirmations are in test_confirmations.py, slow readers and what reaches the disk in test_durability.py.
docs/correctness.md has the list of rules and their tests.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from typing import Any

import pytest
from tests.relay.conftest import MakeRelay
from tests.relay.harness import PONG, Agent, Relay
from tests.unit.cli.house import House

from posthouse.config import load
from posthouse.mailbox.command import Sweep
from posthouse.mailbox.message import Ref, State
from posthouse.mailbox.store import MessageView
from posthouse.relay.outflow import Stage
from posthouse.wire.envelope import Envelope, MessageType, id_text

DAY_S = 86_400
BATCH = 50


def view(relay: Relay, message: Envelope) -> MessageView | None:
    """What the store knows of a message."""
    ref = Ref("relay", message.to_address, message.from_address, id_text(message.message_id))
    return relay.engine.store.message(ref)


def state(relay: Relay, message: Envelope) -> State | None:
    found = view(relay, message)
    return None if found is None else found.state


def depth(relay: Relay, agent: Agent) -> int:
    found = relay.engine.store.mailbox("relay", agent.address)
    return 0 if found is None else found.depth


def stored(relay: Relay, sender: Agent, recipient: Agent, count: int) -> list[Envelope]:
    """So many messages for somebody who is away."""
    sent = [sender.message(recipient, str(n).encode()) for n in range(count)]
    assert sender.settled() == []
    return sent


def announced(agent: Agent) -> int:
    """The number in the QueueStatus that comes now."""
    return agent.expect(MessageType.QUEUE_STATUS).queue_status.pending_count


def is_at_rest(agent: Agent) -> bool:
    """Whether the relay has sent all that there is, and knows that it arrived."""
    outflow = agent.session.outflow
    return agent.relay.on_loop(lambda: outflow.is_idle)


def nothing_came(agent: Agent) -> bool:
    """Whether no envelope is on its way: the relay is at rest (or waits for a pong), and its pong overtakes nothing."""
    if agent.answers_pings:
        agent.until(lambda: is_at_rest(agent))
    agent.pong()
    return not agent._envelopes


def stall(agent: Agent, count: int) -> list[Envelope]:
    """Receive so many and answer no ping: the relay does not know that they arrived."""
    agent.answers_pings = False
    return agent.receive_all(count)


def resume(agent: Agent) -> None:
    """Answer the ping that waits, and those that come."""
    agent.until(lambda: bool(agent.pings))
    agent.answers_pings = True
    agent.socket.send(PONG, agent.pings.pop())


# The cap


def test_a_full_queue_refuses_over_all_senders_and_names_recipient_cap_and_message(make_relay: MakeRelay) -> None:
    relay = make_relay({"relay.queue_max": "5"})
    alice, carol = relay.online("alice", "carol")
    bob = relay.agent("bob")
    kept = stored(relay, alice, bob, 3) + stored(relay, carol, bob, 2)
    for sender in (alice, carol):
        refused = [sender.message(bob, b"one too many") for _ in range(2)]
        notices = sender.settled()
        assert [n.type for n in notices] == [MessageType.QUEUE_FULL] * 2
        assert [n.message_id for n in notices] == [m.message_id for m in refused]
        for notice in notices:
            assert notice.version == 1
            assert notice.queue_full.recipient_address == bob.address
            assert "full" in notice.queue_full.reason
            assert "5" in notice.queue_full.reason
    assert relay.refusals() == ["full"] * 4
    # Nothing is evicted, and what was refused does not come.
    bob.connect()
    assert announced(bob) == 5
    assert bob.receive_all(5) == kept
    assert nothing_came(bob)
    # What is confirmed makes room again.
    bob.confirm(kept[0])
    alice.receive()
    last = alice.message(bob)
    assert bob.receive() == last


def test_the_cap_is_1000_unless_it_is_set(relay: Relay) -> None:
    (alice,) = relay.online("alice")
    bob = relay.agent("bob")
    sent = [alice.message(bob, str(n).encode()) for n in range(1_001)]
    (notice,) = alice.settled()
    assert notice.message_id == sent[1_000].message_id
    assert "1000" in notice.queue_full.reason
    bob.connect()
    assert announced(bob) == 1_000
    assert bob.receive_all(1_000) == sent[:1_000]


def test_a_queue_that_is_full_is_full_after_a_restart(make_relay: MakeRelay) -> None:
    relay = make_relay({"relay.queue_max": "3"})
    (alice,) = relay.online("alice")
    bob = relay.agent("bob")
    stored(relay, alice, bob, 3)
    relay.restart()
    (carol,) = relay.online("carol")
    carol.message(bob)
    assert [n.type for n in carol.settled()] == [MessageType.QUEUE_FULL]


def test_a_fair_share_keeps_one_sender_from_filling_a_queue(make_relay: MakeRelay) -> None:
    relay = make_relay({"relay.queue_max": "5", "desk.relay.sender_max": "3"})
    alice, carol = relay.online("alice", "carol")
    bob = relay.agent("bob")
    kept = stored(relay, alice, bob, 3)
    refused = alice.message(bob)
    (notice,) = alice.settled()
    assert notice.message_id == refused.message_id
    assert notice.queue_full.recipient_address == bob.address
    assert "full" in notice.queue_full.reason
    assert "3" in notice.queue_full.reason
    assert relay.refusals() == ["share"]
    # There is room for others, until the queue itself is full.
    kept += stored(relay, carol, bob, 2)
    carol.message(bob)
    (notice,) = carol.settled()
    assert "5" in notice.queue_full.reason
    assert relay.refusals() == ["share", "full"]
    bob.connect()
    assert announced(bob) == 5
    assert bob.receive_all(5) == kept
    # What is confirmed makes room in the share.
    bob.confirm(kept[0])
    alice.expect(MessageType.DELIVERY_CONFIRM)
    last = alice.message(bob)
    assert bob.receive() == last


# Time to live


def test_a_message_lives_for_7_days_and_its_sender_is_not_told_of_its_end(
    relay: Relay, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "posthouse.sweeper")
    (alice,) = relay.online("alice")
    bob, carol = relay.agent("bob"), relay.agent("carol")
    early = stored(relay, alice, bob, 3) + stored(relay, alice, carol, 2)
    relay.pass_time(7 * DAY_S - 60)
    late = stored(relay, alice, bob, 2)
    assert [state(relay, m) for m in early] == [State.READY] * 5
    # The sweep runs by itself once 5 minutes have passed, and tells how many it took from whom.
    relay.pass_time(300)
    wanted = {f"Cleaned 3 expired messages for {bob.address}", f"Cleaned 2 expired messages for {carol.address}"}
    relay.until(lambda: wanted <= {r.getMessage() for r in caplog.records}, "the sweep did not tell")
    assert {e.reason for e in relay.events("expired")} == {"ttl"}
    assert alice.settled() == []
    bob.connect()
    assert announced(bob) == 2
    assert bob.receive_all(2) == late
    carol.connect().live()
    assert nothing_came(carol)


def test_what_has_expired_is_neither_announced_nor_sent_though_no_sweep_has_run(make_relay: MakeRelay) -> None:
    relay = make_relay({"relay.queue_ttl_s": "60"})
    (alice,) = relay.online("alice")
    bob = relay.agent("bob")
    stored(relay, alice, bob, 4)
    relay.pass_time(61)
    late = stored(relay, alice, bob, 3)
    assert not relay.events("expired"), "a sweep has run"
    bob.connect()
    assert announced(bob) == 3
    assert bob.receive_all(3) == late
    assert len(relay.events("expired")) == 4


def test_what_is_announced_does_not_expire_before_it_is_sent(relay: Relay) -> None:
    (alice,) = relay.online("alice")
    bob = relay.agent("bob")
    sent = stored(relay, alice, bob, 2 * BATCH + 7)
    bob.connect()
    assert announced(bob) == len(sent)
    came = stall(bob, BATCH)
    relay.pass_time(8 * DAY_S)
    relay.engine.call(Sweep(10_000))
    resume(bob)
    assert came + bob.receive_all(BATCH + 7) == sent


def test_the_periods_are_those_of_the_rules_unless_they_are_set(make_relay: MakeRelay) -> None:
    config = load({}, make_relay().folder)
    assert config.whole("relay.queue_max") == 1_000
    assert config.seconds("relay.queue_ttl_s") == 7 * DAY_S
    assert config.seconds("engine.sweep_s") == 300
    assert config.seconds("relay.start_pause_s") == 0.05
    assert config.whole("relay.batch_size") == BATCH
    assert 0 < config.seconds("relay.batch_pause_s") <= 0.01
    policy = config.policies["relay"]
    assert (policy.attempts_max, policy.unreceived_max) == (5, 5)


# The flush


@pytest.mark.parametrize("count", [1, BATCH - 1, BATCH, BATCH + 1, 3 * BATCH])
def test_queue_status_tells_exactly_how_many_follow_and_they_follow_in_order(relay: Relay, count: int) -> None:
    alice, carol = relay.online("alice", "carol")
    bob = relay.agent("bob")
    sent = []
    for n in range(count):
        sender = (alice, carol)[n % 2]
        sent.append(sender.message(bob, os.urandom(20)))
        assert sender.settled() == []
    bob.connect()
    assert announced(bob) == count
    assert [bob.receive_bytes() for _ in range(count)] == [m.SerializeToString() for m in sent]
    assert nothing_came(bob)


def test_an_empty_queue_is_not_announced(relay: Relay) -> None:
    (bob,) = relay.online("bob")
    assert nothing_came(bob)


def test_the_result_of_authentication_comes_first_and_the_queue_after_a_pause(make_relay: MakeRelay) -> None:
    relay = make_relay({"relay.start_pause_s": "0.3"})
    (alice,) = relay.online("alice")
    bob = relay.agent("bob")
    stored(relay, alice, bob, 1)
    challenge = bob.open().auth_challenge
    answered_at = time.monotonic()
    bob.send(bob.auth_response(challenge))
    assert bob.expect(MessageType.AUTH_RESULT).auth_result.success
    assert announced(bob) == 1
    assert time.monotonic() - answered_at >= 0.3


def test_a_batch_waits_for_the_receipt_of_the_one_before(relay: Relay) -> None:
    (alice,) = relay.online("alice")
    bob = relay.agent("bob")
    sent = stored(relay, alice, bob, 2 * BATCH + 20)
    bob.connect()
    announced(bob)
    came = stall(bob, BATCH)
    for size in (BATCH, 20):
        assert nothing_came(bob), "more than a batch is on its way"
        bob.socket.send(PONG, bob.pings.pop())
        came += stall(bob, size)
    assert came == sent


def test_the_confirmation_of_a_batchs_last_message_is_its_receipt(relay: Relay) -> None:
    (alice,) = relay.online("alice")
    bob = relay.agent("bob")
    sent = stored(relay, alice, bob, 3 * BATCH)
    bob.connect()
    announced(bob)
    came: list[Envelope] = []
    for _ in range(3):
        came += stall(bob, BATCH)
        bob.confirm(came[-1])
    assert came == sent
    alice.receive_all(3)
    assert depth(relay, bob) == 3 * (BATCH - 1), "a receipt removes nothing"


def test_between_two_batches_is_a_pause(make_relay: MakeRelay) -> None:
    relay = make_relay({"relay.batch_size": "10", "relay.batch_pause_s": "0.1"})
    (alice,) = relay.online("alice")
    bob = relay.agent("bob")
    sent = stored(relay, alice, bob, 30)
    bob.connect()
    announced(bob)
    first_at = time.monotonic()
    assert bob.receive_all(30) == sent
    # The first batch may have been on its way for a while when it was looked at; the other pause is whole.
    assert time.monotonic() - first_at >= 0.1


def test_bodies_are_read_page_by_page(relay: Relay, monkeypatch: pytest.MonkeyPatch) -> None:
    (alice,) = relay.online("alice")
    bob = relay.agent("bob")
    sent = stored(relay, alice, bob, 3 * BATCH)
    pages: list[int] = []
    port = relay.house.port
    read_bodies = port.read_bodies

    def counted(refs: Sequence[Ref], read: Any) -> None:
        pages.append(len(refs))
        read_bodies(refs, read)

    monkeypatch.setattr(port, "read_bodies", counted)
    bob.connect()
    announced(bob)
    stall(bob, BATCH)
    assert sum(pages) <= 2 * BATCH, "more was read than one page ahead"
    resume(bob)
    assert bob.receive_all(2 * BATCH) == sent[BATCH:]
    assert pages == [BATCH] * 3


def test_what_arrives_during_a_flush_follows_in_order_and_nothing_live_overtakes_it(relay: Relay) -> None:
    alice, carol = relay.online("alice", "carol")
    bob = relay.agent("bob")
    waited = stored(relay, alice, bob, BATCH + 30)
    bob.connect()
    assert announced(bob) == BATCH + 30
    came = stall(bob, BATCH)
    meanwhile = []
    for n in range(40):
        sender = (alice, carol)[n % 2]
        meanwhile.append(sender.message(bob, b"meanwhile"))
        assert sender.settled() == []
    resume(bob)
    came += bob.receive_all(30)
    live = [alice.message(bob, b"live") for _ in range(10)]
    came += bob.receive_all(50)
    assert came == waited + meanwhile + live
    assert nothing_came(bob), "a second QueueStatus, or something twice"


def test_what_arrives_in_the_pause_before_the_flush_is_announced_with_the_rest(relay: Relay) -> None:
    (alice,) = relay.online("alice")
    bob = relay.agent("bob")
    sent = stored(relay, alice, bob, 2)
    # As long as the test likes.
    relay.change(start_pause_s=3_600.0)
    bob.connect()
    sent += stored(relay, alice, bob, 3)
    assert bob.session.outflow.stage is Stage.WAITING
    bob.begin()
    assert announced(bob) == 5
    assert bob.receive_all(5) == sent


def test_a_flush_goes_on_without_confirmations(relay: Relay) -> None:
    (alice,) = relay.online("alice")
    bob = relay.agent("bob")
    sent = stored(relay, alice, bob, 4 * BATCH)
    bob.connect()
    announced(bob)
    assert bob.receive_all(4 * BATCH) == sent
    bob.until(lambda: state(relay, sent[-1]) is State.RECEIVED)
    assert depth(relay, bob) == 4 * BATCH
    assert not relay.events("delivered")


# When it is gone


def test_a_message_is_removed_by_its_confirmation_only(relay: Relay) -> None:
    alice, bob = relay.online("alice", "bob")
    first, second = alice.message(bob), alice.message(bob)
    bob.receive_all(2)
    # The pong proves that it was received, which is not enough.
    bob.until(lambda: state(relay, second) is State.RECEIVED)
    assert depth(relay, bob) == 2
    bob.confirm(second)
    assert alice.receive().delivery_confirm.message_id == second.message_id
    assert state(relay, first) is State.RECEIVED
    assert state(relay, second) is State.DELIVERED
    assert depth(relay, bob) == 1


@pytest.mark.parametrize(
    "kind",
    [
        MessageType.HANDSHAKE,
        MessageType.CONNECTION_REQUEST,
        MessageType.CONNECTION_RESPONSE,
        MessageType.HEARTBEAT,
        MessageType.CONNECTION_REVOKE,
        99,
    ],
)
def test_what_is_never_confirmed_is_removed_when_a_pong_proves_its_receipt(relay: Relay, kind: int) -> None:
    (alice,) = relay.online("alice")
    bob = relay.agent("bob")
    bob.connect().live()
    bob.answers_pings = False
    sent = alice.envelope(bob, kind)
    alice.send(sent.SerializeToString())
    assert bob.receive() == sent
    # Without the pong it was not received, and comes again.
    assert state(relay, sent) is State.LEASED
    bob.cut()
    bob.connect()
    assert announced(bob) == 1
    assert bob.receive() == sent
    resume(bob)
    relay.until(lambda: state(relay, sent) is State.DELIVERED)
    bob.cut()
    bob.connect().live()
    assert nothing_came(bob)


def test_an_unconfirmed_message_comes_at_5_connections_and_is_parked_where_the_operator_sees_it(
    relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    (alice,) = relay.online("alice")
    bob = relay.agent("bob")
    (sent,) = stored(relay, alice, bob, 1)
    for attempt in range(1, 6):
        bob.connect()
        assert announced(bob) == 1
        assert bob.receive() == sent
        bob.until(lambda: state(relay, sent) is State.RECEIVED)
        bob.cut()
        relay.until(lambda: state(relay, sent) is not State.RECEIVED)
        found = view(relay, sent)
        assert found is not None
        assert found.attempts == attempt
    assert (found.state, found.reason) == (State.PARKED, "attempts")
    # It holds up nobody.
    (bob,) = relay.online("bob")
    other = alice.message(bob)
    assert bob.receive() == other
    bob.confirm(other)
    alice.receive()
    relay.stop()
    monkeypatch.chdir(relay.folder)
    house = House(relay.folder)
    assert "1 parked" in house.run("mailbox", "show", bob.address).stdout
    assert house.json("mailbox", "show", bob.address)["counts"] == {"parked": 1}
    shown = house.json("message", "show", sent.message_id.decode())
    assert (shown["state"], shown["reason"], shown["attempts"]) == ("parked", "attempts", 5)


def test_a_message_at_whose_first_frame_5_connections_ended_is_parked_and_the_rest_comes(relay: Relay) -> None:
    (alice,) = relay.online("alice")
    bob = relay.agent("bob")
    poison, *others = stored(relay, alice, bob, 3)
    for _ in range(5):
        assert state(relay, poison) is State.READY
        bob.connect()
        assert announced(bob) == 3
        assert stall(bob, 1) == [poison]
        bob.cut()
        relay.until(lambda: state(relay, poison) is not State.LEASED)
    found = view(relay, poison)
    assert found is not None
    assert (found.state, found.reason) == (State.PARKED, "unreceived")
    bob.answers_pings = True
    bob.connect()
    assert announced(bob) == 2
    assert bob.receive_all(2) == others


def test_only_connections_in_a_row_count_against_the_first_message(relay: Relay) -> None:
    (alice,) = relay.online("alice")
    bob = relay.agent("bob")
    (sent,) = stored(relay, alice, bob, 1)

    def connect(answer: bool) -> None:
        bob.connect()
        assert announced(bob) == 1
        assert stall(bob, 1) == [sent]
        if answer:
            resume(bob)
            relay.until(lambda: state(relay, sent) is State.RECEIVED)
        bob.cut()
        relay.until(lambda: state(relay, sent) is State.READY, "it was parked")

    for _ in range(2):
        for _ in range(4):
            connect(answer=False)
        connect(answer=True)


def test_a_parked_message_is_settled_by_a_late_confirmation(relay: Relay) -> None:
    (alice,) = relay.online("alice")
    bob = relay.agent("bob")
    (sent,) = stored(relay, alice, bob, 1)
    for _ in range(5):
        bob.connect()
        stall(bob, 2)
        bob.cut()
    relay.until(lambda: state(relay, sent) is State.PARKED)
    bob.answers_pings = True
    bob.connect().live()
    bob.confirm(sent)
    assert alice.receive().delivery_confirm.message_id == sent.message_id
    assert state(relay, sent) is State.DELIVERED


@pytest.mark.parametrize(("received", "confirmed"), [(0, 0), (1, 0), (2, 0), (1, 30), (2, 60)])
def test_a_disconnect_in_mid_flush_leaves_the_rest_queued_in_order(relay: Relay, received: int, confirmed: int) -> None:
    (alice,) = relay.online("alice")
    bob = relay.agent("bob")
    sent = stored(relay, alice, bob, 4 * BATCH)
    bob.connect()
    announced(bob)
    came: list[Envelope] = []
    for _ in range(received):
        came += stall(bob, BATCH)
        bob.until(lambda: bool(bob.pings))
        bob.socket.send(PONG, bob.pings.pop())
    came += stall(bob, BATCH)
    assert came == sent[: len(came)]
    for message in came[:confirmed]:
        bob.confirm(message)
    assert len([alice.receive() for _ in range(confirmed)]) == confirmed
    bob.cut()
    meanwhile = stored(relay, alice, bob, 10)
    bob.answers_pings = True
    bob.connect()
    rest = sent[confirmed:] + meanwhile
    assert announced(bob) == len(rest)
    assert bob.receive_all(len(rest)) == rest
    assert nothing_came(bob)


def test_a_relay_that_stops_in_mid_flush_keeps_the_rest_in_order(relay: Relay) -> None:
    (alice,) = relay.online("alice")
    bob = relay.agent("bob")
    sent = stored(relay, alice, bob, 3 * BATCH)
    bob.connect()
    announced(bob)
    came = stall(bob, BATCH)
    for message in came[:20]:
        bob.confirm(message)
    alice.receive_all(20)
    relay.restart()
    assert bob.closed() == (1001, "relay is shutting down")
    bob.answers_pings = True
    bob.connect()
    assert announced(bob) == 3 * BATCH - 20
    assert bob.receive_all(3 * BATCH - 20) == sent[20:]


# Envelopes without an id


@pytest.mark.parametrize("kind", [MessageType.MESSAGE, MessageType.CONNECTION_REQUEST])
def test_envelopes_without_an_id_are_kept_apart_and_their_bytes_stay_as_they_are(relay: Relay, kind: int) -> None:
    (alice,) = relay.online("alice")
    bob = relay.agent("bob")
    sent = [alice.envelope(bob, kind, message_id=b"").SerializeToString() for _ in range(3)]
    assert len(set(sent)) == 1, "they are alike"
    for data in sent:
        alice.send(data)
    alice.settled()
    bob.connect()
    assert announced(bob) == 3
    assert [bob.receive_bytes() for _ in range(3)] == sent
    live = alice.envelope(bob, kind, message_id=b"").SerializeToString()
    alice.send(live)
    assert bob.receive_bytes() == live
    # Nobody can confirm them: their receipt finishes them.
    bob.until(lambda: depth(relay, bob) == 0)
    assert len({e.message_id for e in relay.events("posted") if e.mailbox == bob.address}) == 4


def test_the_same_id_again_is_taken_once_and_another_senders_is_another_message(relay: Relay) -> None:
    alice, carol = relay.online("alice", "carol")
    bob = relay.agent("bob")
    first = alice.message(bob, message_id=b"one")
    alice.message(bob, b"changed", message_id=b"one")
    alice.settled()
    other = carol.message(bob, message_id=b"one")
    carol.settled()
    bob.connect()
    assert announced(bob) == 2
    assert bob.receive_all(2) == [first, other]


# Damage


def damage(relay: Relay, parts: list[bytes]) -> None:
    """Flip a bit in these parts of the store's file, wherever they stand in it."""
    path = relay.config.path("store.path")
    data = path.read_bytes()
    for part in parts:
        assert part in data
        data = data.replace(part, bytes([part[0] ^ 1]) + part[1:])
    path.write_bytes(data)


def test_a_corrupt_stored_entry_is_skipped_with_a_warning_and_set_aside(
    relay: Relay, caplog: pytest.LogCaptureFixture
) -> None:
    (alice,) = relay.online("alice")
    bob = relay.agent("bob")
    marks = [os.urandom(32) for _ in range(2 * BATCH)]
    sent = [alice.message(bob, mark) for mark in marks]
    alice.settled()
    relay.stop()
    damaged = [0, 17, BATCH]
    damage(relay, [marks[n] for n in damaged])
    relay.start()
    bob.connect()
    # It is found when its page is read, which is after the announcement.
    assert announced(bob) == len(sent)
    whole = [m for n, m in enumerate(sent) if n not in damaged]
    assert bob.receive_all(len(whole)) == whole
    for n in damaged:
        relay.until(lambda n=n: state(relay, sent[n]) is State.PARKED)  # type: ignore[misc]
        found = view(relay, sent[n])
        assert found is not None
        assert found.reason == "corrupt"
        text = f"the stored message {id_text(sent[n].message_id)!r} for {bob.address} cannot be read: it is set aside"
        # It is told when the commit is answered, which is after the store shows it.
        relay.until(lambda text=text: text in caplog.messages, "nothing tells of it")  # type: ignore[misc]
    bob.live()
    bob.cut()
    bob.connect()
    assert announced(bob) == len(whole)


def test_a_batch_in_which_everything_is_corrupt_holds_nothing_up(relay: Relay) -> None:
    (alice,) = relay.online("alice")
    bob = relay.agent("bob")
    marks = [os.urandom(32) for _ in range(BATCH + 1)]
    sent = [alice.message(bob, mark) for mark in marks]
    alice.settled()
    relay.stop()
    damage(relay, marks[:BATCH])
    relay.start()
    bob.connect()
    announced(bob)
    assert bob.receive() == sent[-1]
    (carol,) = relay.online("carol")
    last = carol.message(bob)
    assert bob.receive() == last
