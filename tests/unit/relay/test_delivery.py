"""What a recipient is sent, when, in which order, and when it is finished: the session without a socket."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from tests.simulation.world import FAST, Agent, World, online

from posthouse.mailbox.command import Filter as Select
from posthouse.mailbox.command import Unpark
from posthouse.mailbox.message import Ref, State
from posthouse.mailbox.store import MessageView
from posthouse.wire import envelope
from posthouse.wire.envelope import MessageType, id_text

DAY_S = 86_400.0


def view(world: World, to: Agent, sender: Agent, id: bytes) -> MessageView | None:
    return world.store.message(Ref("relay", to.address, sender.address, id_text(id)))


def state(world: World, to: Agent, sender: Agent, id: bytes) -> State:
    seen = view(world, to, sender, id)
    assert seen is not None
    return seen.state


def depth(world: World, agent: Agent) -> int:
    box = world.store.mailbox("relay", agent.address)
    return 0 if box is None else box.depth


# A flush.


def test_what_waited_is_announced_exactly_and_comes_oldest_first_byte_for_byte(
    world: World, a: Agent, b: Agent
) -> None:
    online(world, a)
    sent = [a.send(b) for _ in range(23)]
    world.run(0.5)
    client = online(world, b)
    world.run(1)
    assert client.announced == 23
    assert [envelope.parse(data).message_id for data in client.received] == sent
    assert all(data in a.carried for data in client.received), "not one byte differs"


def test_an_empty_mailbox_is_not_announced(world: World, b: Agent) -> None:
    assert online(world, b).announced is None


def test_a_pause_lies_between_auth_result_and_the_first_queued_frame(world: World, a: Agent, b: Agent) -> None:
    online(world, a)
    a.send(b)
    world.run(0.5)
    client = b.connect()
    while client.authenticated is None:
        world.run(0.001)
    world.run(FAST.start_pause_s - 0.01)
    assert client.announced is None
    world.run(0.1)
    assert client.announced == 1


def test_expired_messages_are_neither_announced_nor_sent(a: Agent, b: Agent) -> None:
    world = World(1, ttl_s=60.0)
    a, b = world.agent(1), world.agent(2)
    online(world, a)
    a.send(b)
    world.run(30)
    late = [a.send(b), a.send(b)]
    world.run(40)
    client = online(world, b)
    assert client.announced == 2
    assert [envelope.parse(data).message_id for data in client.received] == late


def test_what_was_announced_does_not_expire_before_it_is_sent() -> None:
    world = World(1, ttl_s=60.0)
    a, b = world.agent(1), world.agent(2)
    online(world, a)
    for _ in range(20):
        a.send(b)
    world.run(59.5)
    client = b.connect()
    world.run(0.1)
    assert client.announced == 20
    client.stall()
    world.run(2)
    world.sweep()
    client.go_on()
    world.run(2)
    assert len(client.received) == 20


def test_never_more_than_a_batch_is_unreceived_in_a_flush(world: World, a: Agent, b: Agent) -> None:
    online(world, a)
    for _ in range(30):
        a.send(b)
    world.run(0.5)
    b.confirms = 0.0
    client = b.connect()
    while client.announced is None:
        world.run(0.0005)
        if client.line.sent:
            client.stall()
    session = client.line.session
    most = 0
    while len(client.received) < 30:
        world.run(0.0005)
        most = max(most, len(session.outflow.receipts.frames))
    assert most == FAST.batch


def test_batches_keep_a_pause(a: Agent, b: Agent) -> None:
    world = World(1, dataclasses.replace(FAST, batch_pause_s=0.2))
    a, b = world.agent(1), world.agent(2)
    online(world, a)
    for _ in range(15):
        a.send(b)
    world.run(0.5)
    client = b.connect()
    seen = []
    while len(client.received) < 15:
        world.run(0.01)
        seen.append(len(client.received))
    assert seen.count(5) >= 15
    assert seen.count(10) >= 15


def test_what_arrives_during_a_flush_comes_behind_it_in_order(world: World, a: Agent, b: Agent) -> None:
    online(world, a)
    before = [a.send(b) for _ in range(20)]
    world.run(0.5)
    client = b.connect()
    while not client.received:
        world.run(0.001)
    during = [a.send(b) for _ in range(10)]
    world.run(2)
    assert [envelope.parse(data).message_id for data in client.received] == before + during
    assert client.announced == 20


def test_the_rest_stays_in_order_when_the_connection_ends_in_mid_flush(world: World, a: Agent, b: Agent) -> None:
    online(world, a)
    sent = [a.send(b) for _ in range(30)]
    world.run(0.5)
    b.confirm_s = (0.0, 0.0)
    first = b.connect()
    while len(first.received) < 12:
        world.run(0.001)
    first.cut()
    world.run(0.5)
    left = depth(world, b)
    assert 0 < left < 30
    second = online(world, b)
    world.run(1)
    assert second.announced == left
    assert [envelope.parse(data).message_id for data in second.received] == sent[-left:]


def test_a_flush_survives_a_crash_of_the_relay(world: World, a: Agent, b: Agent) -> None:
    online(world, a)
    sent = {a.send(b) for _ in range(30)}
    world.run(0.5)
    first = b.connect()
    while len(first.received) < 12:
        world.run(0.001)
    world.crash()
    second = online(world, b)
    world.run(1)
    got = {envelope.parse(data).message_id for data in first.received + second.received}
    assert got == sent
    assert depth(world, b) == 0


def test_a_corrupt_entry_is_skipped_and_set_aside(
    world: World, a: Agent, b: Agent, caplog: pytest.LogCaptureFixture
) -> None:
    online(world, a)
    sent = [a.send(b) for _ in range(12)]
    world.run(0.5)
    world.damaged.add(Ref("relay", b.address, a.address, id_text(sent[3])))
    client = online(world, b)
    world.run(1)
    got = [envelope.parse(data).message_id for data in client.received]
    assert got == sent[:3] + sent[4:]
    assert state(world, b, a, sent[3]) is State.PARKED
    assert world.house.stats.set_aside == 1
    assert "set aside" in caplog.text


# Finished: by confirmation, or by receipt.


def test_a_message_is_removed_only_by_its_confirmation(world: World, a: Agent, b: Agent) -> None:
    online(world, a)
    b.confirms = 0.0
    client = online(world, b)
    id = a.send(b)
    world.run(1)
    assert len(client.received) == 1
    assert state(world, b, a, id) is State.RECEIVED
    b.confirm(client, a.address, id)
    world.run(1)
    assert state(world, b, a, id) is State.DELIVERED


def test_types_that_are_never_confirmed_are_removed_by_the_pong(world: World, a: Agent, b: Agent) -> None:
    online(world, a)
    client = online(world, b)
    b.loses_pongs = 1.0
    id = a.send(b, type=MessageType.CONNECTION_REQUEST)
    world.run(1)
    assert len(client.received) == 1
    assert state(world, b, a, id) is State.LEASED, "written is not received"
    client.cut()
    b.loses_pongs = 0.0
    again = online(world, b)
    assert again.announced == 1
    world.run(1)
    assert state(world, b, a, id) is State.DELIVERED


def test_an_unconfirmed_message_comes_again_at_most_five_times_and_is_parked(world: World, a: Agent, b: Agent) -> None:
    online(world, a)
    b.confirms = 0.0
    id = a.send(b)
    for _ in range(5):
        client = online(world, b)
        world.run(0.5)
        assert len(client.received) == 1
        client.cut()
        world.run(0.1)
    assert state(world, b, a, id) is State.PARKED
    assert online(world, b).announced is None


def test_a_message_that_five_connections_in_a_row_ended_at_is_parked(world: World, a: Agent, b: Agent) -> None:
    online(world, a)
    poison, behind = a.send(b), a.send(b)
    world.run(0.5)
    for _ in range(5):
        client = b.connect()
        while not client.line.sent:
            world.run(0.0001)
        client.cut()
        world.run(0.1)
    assert state(world, b, a, poison) is State.PARKED
    client = online(world, b)
    world.run(0.5)
    assert [envelope.parse(data).message_id for data in client.received] == [behind]


def test_a_confirmation_counts_on_a_later_connection_before_the_message_is_sent_again(
    world: World, a: Agent, b: Agent
) -> None:
    sender = online(world, a)
    b.confirms = 0.0
    client = online(world, b)
    ids = [a.send(b) for _ in range(3)]
    world.run(0.5)
    client.cut()
    world.run(0.1)
    again = b.connect()
    while again.authenticated is None:
        world.run(0.001)
    b.confirm(again, a.address, ids[1])
    world.run(1)
    assert [envelope.parse(data).message_id for data in again.received] == [ids[0], ids[2]]
    assert again.announced == 2
    assert state(world, b, a, ids[1]) is State.DELIVERED
    assert a.confirmations == {ids[1]: True}
    assert sender.is_open


def test_an_envelope_without_an_id_is_delivered_as_it_came_and_finished_by_its_receipt(
    world: World, a: Agent, b: Agent
) -> None:
    sender = online(world, a)
    client = online(world, b)
    first, second = a.make(b, b"", size=1), a.make(b, b"", size=2)
    sender.send(first)
    sender.send(second)
    world.run(1)
    assert client.received == [first, second]
    assert depth(world, b) == 0


# Confirmations.


def test_was_stored_is_false_for_live_and_true_for_what_waited(world: World, a: Agent, b: Agent) -> None:
    online(world, a)
    waited = a.send(b)
    world.run(0.5)
    online(world, b)
    live = a.send(b)
    world.run(1)
    assert a.confirmations == {waited: True, live: False}


def test_a_live_confirmation_is_forwarded_byte_for_byte(world: World, a: Agent, b: Agent) -> None:
    client = online(world, a)
    b.confirms = 0.0
    other = online(world, b)
    id = a.send(b)
    world.run(0.5)
    data = envelope.delivery_confirm(b.address, a.address, id, 5, b"s" * 64)
    other.send(data)
    world.run(0.5)
    assert client.received == [data]


def test_an_agent_cannot_claim_that_a_live_message_was_stored(world: World, a: Agent, b: Agent) -> None:
    online(world, a)
    b.confirms = 0.0
    other = online(world, b)
    id = a.send(b)
    world.run(0.5)
    other.send(envelope.with_was_stored(envelope.delivery_confirm(b.address, a.address, id, 5, b"s" * 64)))
    world.run(0.5)
    assert a.confirmations == {id: False}


def test_confirmations_for_a_sender_that_is_away_wait_for_it(world: World, a: Agent, b: Agent) -> None:
    client = online(world, a)
    id = a.send(b)
    world.run(0.5)
    client.cut()
    online(world, b)
    world.run(0.5)
    again = online(world, a)
    assert again.announced == 1
    assert a.confirmations == {id: True}
    world.run(0.5)
    assert depth(world, a) == 0


def test_a_matching_confirmation_is_exempt_from_the_cap() -> None:
    world = World(1, capacity=5)
    a, b, c = (world.agent(n) for n in (1, 2, 3))
    client = online(world, a)
    id = a.send(b)
    world.run(0.5)
    client.cut()
    online(world, c)
    for _ in range(7):
        c.send(a)
    world.run(0.5)
    assert depth(world, a) == 5
    online(world, b)
    world.run(0.5)
    assert depth(world, a) == 6
    online(world, a)
    world.run(1)
    assert a.confirmations == {id: True}


@pytest.mark.parametrize("id", [b"never sent", b""])
def test_a_confirmation_of_nothing_is_refused(world: World, a: Agent, b: Agent, id: bytes) -> None:
    sender = online(world, a)
    client = online(world, b)
    b.confirm(client, a.address, id)
    world.run(0.5)
    assert not sender.received
    refused = [e for _, _, e in world.store.events() if e.event == "refused"]
    assert [(e.reason, e.sender, e.mailbox) for e in refused] == [("unmatched", b.address, a.address)]


def test_a_second_confirmation_of_the_same_message_is_refused(world: World, a: Agent, b: Agent) -> None:
    sender = online(world, a)
    client = online(world, b)
    id = a.send(b)
    world.run(0.5)
    b.confirm(client, a.address, id)
    world.run(0.5)
    assert len(sender.received) == 1


def test_nobody_confirms_for_another(world: World, a: Agent, b: Agent) -> None:
    online(world, a)
    thief = world.agent(3)
    client = online(world, thief)
    id = a.send(b)
    world.run(0.5)
    thief.confirm(client, a.address, id)
    world.run(0.5)
    assert state(world, b, a, id) is State.READY
    assert not a.confirmations


# Live, and slow readers.


def test_live_messages_cost_few_pings(world: World, a: Agent, b: Agent) -> None:
    online(world, a)
    online(world, b)
    before = world.house.stats.pings
    for _ in range(100):
        a.send(b)
        world.run(0.02)
    world.run(1)
    assert len(a.confirmations) == 100
    # One after each receipt_delay_s at most, for the confirmations that go to the sender.
    assert world.house.stats.pings - before <= 60


def test_a_slow_reader_holds_up_nobody_and_loses_nothing(world: World, a: Agent, b: Agent) -> None:
    online(world, a)
    client = online(world, b)
    client.stall()
    sent = [a.send(b, size=500) for _ in range(100)]
    world.run(2)
    assert depth(world, b) == 100
    assert len(client.line.sent) <= FAST.unreceived_frames_max
    assert client.line.unread_bytes <= FAST.unreceived_bytes_max + 1_000
    other = world.agent(3)
    online(world, other)
    a.send(other)
    world.run(0.5)
    assert len(other.seen) == 1, "its sender is not slowed"
    client.go_on()
    world.run(5)
    assert [envelope.parse(data).message_id for data in client.received] == sent
    assert depth(world, b) == 0


def test_one_large_message_passes_though_it_is_larger_than_the_bound(world: World, a: Agent, b: Agent) -> None:
    online(world, a)
    client = online(world, b)
    a.send(b, size=FAST.unreceived_bytes_max * 2)
    world.run(1)
    assert len(client.received) == 1


def test_what_an_operator_gives_back_is_sent_to_who_is_online(world: World, a: Agent, b: Agent) -> None:
    online(world, a)
    b.confirms = 0.0
    id = a.send(b)
    for _ in range(5):
        online(world, b).cut()
        world.run(0.5)
    assert state(world, b, a, id) is State.PARKED
    b.confirms = 1.0
    client = online(world, b)
    unpark: Any = Unpark(Select("relay", b.address), at=world.now_us())
    world.store.apply([unpark])
    world.house.ring(b.address)
    world.run(1)
    assert len(client.received) == 1
    assert state(world, b, a, id) is State.DELIVERED
