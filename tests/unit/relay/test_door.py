"""What an agent may send, what is refused at the door, and who is told of it: the session without a socket."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from tests.simulation.world import FAST, HOST, Agent, World, online

from posthouse.mailbox.event import Event
from posthouse.relay.settings import Settings
from posthouse.wire import envelope
from posthouse.wire.envelope import ENVELOPE_BYTES_MAX, RELAY_ONLY, Envelope, MessageType

LIMITED = dataclasses.replace(FAST, rate_per_s=1.0, rate_burst=10)


def refusals(world: World) -> list[Event]:
    return [event for _, _, event in world.store.events() if event.event == "refused"]


def spoofed(data: bytes, **changes: Any) -> bytes:
    made = Envelope.FromString(data)
    for name, value in changes.items():
        setattr(made, name, value)
    return made.SerializeToString()


def test_from_address_must_be_the_authenticated_one(world: World, a: Agent, b: Agent) -> None:
    client, other = online(world, a), online(world, b)
    for claimed in (b.address, ""):
        client.send(spoofed(a.make(b, b"1"), from_address=claimed))
    world.run(1)
    assert not other.received
    assert [(e.reason, e.sender, e.message_id) for e in refusals(world)] == [("spoofed", a.address, "1")] * 2
    assert client.is_open


@pytest.mark.parametrize("type", sorted(RELAY_ONLY))
def test_types_that_only_a_relay_may_send_are_not_routed(world: World, a: Agent, b: Agent, type: int) -> None:
    client, other = online(world, a), online(world, b)
    client.send(a.make(b, b"1", type=type))
    world.run(1)
    assert not other.received
    assert not other.notices
    assert [e.reason for e in refusals(world)] == ["forbidden_type"]


@pytest.mark.parametrize("type", [MessageType.HEARTBEAT, MessageType.HANDSHAKE, MessageType.UNSPECIFIED, 99])
def test_all_other_types_are_routed_unknown_ones_too(world: World, a: Agent, b: Agent, type: int) -> None:
    client, other = online(world, a), online(world, b)
    data = a.make(b, b"1", type=type)
    client.send(data)
    world.run(1)
    assert other.received == [data]


@pytest.mark.parametrize(
    "to",
    [
        "", "nobody", "pinch:", "pinch:abc@relay.test", "../../etc/passwd", "\x1b[2J", "<b>", "x" * 10_000,
        "pinch:anSpcKpdMpR5GgdWktTxJHrow4AapjhmPGBfj3F1qr3HEbMcn@other.test",
        "pinch:anSpcKpdMpR5GgdWktTxJHrow4AapjhmPGBfj3F1qr3HEbMco@" + HOST,
    ],
)  # fmt: skip
def test_to_address_must_be_a_well_formed_address_of_this_relay(world: World, a: Agent, to: str) -> None:
    client = online(world, a)
    client.send(a.make(to, b"1"))
    world.run(1)
    assert [(e.reason, e.mailbox) for e in refusals(world)] == [("bad_address", "")]
    assert world.store.mailboxes("relay") == [], "it has no mailbox"
    assert client.is_open


def test_an_envelope_in_a_text_frame_is_routed(world: World, a: Agent, b: Agent) -> None:
    client, other = online(world, a), online(world, b)
    data = a.make(b, b"1")
    client.up(lambda: client.line.session.frame(data, False))
    world.run(1)
    assert other.received == [data]


@pytest.mark.parametrize("data", [b"", b"\xff\xff\xff", b"\x0a", b"\x12\x02\xc3\x28"])
def test_what_is_no_envelope_is_ignored_and_counted(world: World, a: Agent, data: bytes) -> None:
    client = online(world, a)
    client.send(data)
    world.run(1)
    assert client.is_open
    assert not refusals(world)
    assert world.house.stats.unparseable == 1


def test_an_oversize_envelope_closes_the_connection_with_1009_and_is_journaled(
    world: World, a: Agent, b: Agent
) -> None:
    client, other = online(world, a), online(world, b)
    largest = a.make(b, b"1", size=65_000)
    largest = a.make(b, b"1", size=65_000 + ENVELOPE_BYTES_MAX - len(largest))
    assert len(largest) == ENVELOPE_BYTES_MAX
    client.send(largest)
    client.send(largest + b"\xf0\x3e\x01")
    world.run(1)
    assert other.received == [largest]
    assert client.close == (1009, "envelope exceeds 65536 bytes")
    assert [(e.reason, e.sender, e.size_bytes) for e in refusals(world)] == [
        ("oversize", a.address, ENVELOPE_BYTES_MAX + 3)
    ]


@pytest.mark.parametrize(
    "id", [b"<script>", b"'; DROP TABLE message; --", b"../../x", b"\n\r", b"\x1b[31m", bytes(500)]
)
def test_ids_of_any_bytes_are_delivered_confirmed_and_inert(world: World, a: Agent, b: Agent, id: bytes) -> None:
    online(world, a)
    online(world, b)
    a.send(b, id=id)
    world.run(1)
    assert a.confirmations == {id: False}
    posted = [e for _, _, e in world.store.events() if e.event == "posted"]
    assert all(e.message_id.isprintable() for e in posted)


# Full.


def test_the_sender_of_a_refused_message_is_told_which_one_and_why() -> None:
    world = World(1, capacity=5)
    a, b = world.agent(1), world.agent(2)
    client = online(world, a)
    sent = [a.send(b) for _ in range(7)]
    world.run(1)
    assert [notice.message_id for notice in client.notices] == sent[5:]
    told = client.notices[0].queue_full
    assert told.recipient_address == b.address
    assert "full" in told.reason
    assert "5" in told.reason
    other = online(world, b)
    assert other.announced == 5, "nothing was evicted"
    assert [envelope.parse(data).message_id for data in other.received] == sent[:5]


def test_the_cap_holds_over_all_senders() -> None:
    world = World(1, capacity=4)
    agents = [world.agent(n) for n in range(1, 6)]
    for agent in agents[1:]:
        online(world, agent)
        agent.send(agents[0])
        agent.send(agents[0])
    world.run(1)
    assert sum(len(agent.clients[0].notices) for agent in agents[1:]) == 4


def test_one_sender_cannot_fill_a_mailbox_where_each_has_a_share() -> None:
    world = World(1, capacity=5, sender_max=3)
    a, b, c = (world.agent(n) for n in (1, 2, 3))
    greedy, modest = online(world, a), online(world, c)
    sent = [a.send(b) for _ in range(5)]
    world.run(0.5)
    assert [notice.message_id for notice in greedy.notices] == sent[3:]
    told = greedy.notices[0].queue_full.reason
    assert "full" in told
    assert "3 of 5" in told
    c.send(b)
    world.run(0.5)
    assert not modest.notices


# Blocks.


def test_a_blocked_sender_is_dropped_silently_and_not_delivered_after_an_unblock(
    world: World, a: Agent, b: Agent
) -> None:
    client, other = online(world, a), online(world, b)
    b.block(a)
    world.run(0.1)
    a.send(b)
    world.run(1)
    assert not client.notices
    assert not other.received
    assert [(e.reason, e.sender) for e in refusals(world)] == [("blocked", a.address)]
    b.block(a, block=False)
    world.run(0.1)
    late = a.send(b)
    world.run(1)
    assert [envelope.parse(data).message_id for data in other.received] == [late]


def test_a_block_is_durable(world: World, a: Agent, b: Agent) -> None:
    online(world, b)
    b.block(a)
    world.run(1)
    world.crash()
    online(world, a)
    a.send(b)
    world.run(0.5)
    assert [e.reason for e in refusals(world)] == ["blocked"]


def test_a_confirmation_to_one_who_blocks_settles_the_message_and_is_not_forwarded(
    world: World, a: Agent, b: Agent
) -> None:
    client = online(world, a)
    b.confirms = 0.0
    other = online(world, b)
    id = a.send(b)
    world.run(0.5)
    a.block(b)
    world.run(0.1)
    b.confirm(other, a.address, id)
    world.run(0.5)
    assert not client.received
    box = world.store.mailbox("relay", b.address)
    assert box is not None
    assert box.depth == 0


def test_nobody_blocks_for_another(world: World, a: Agent, b: Agent) -> None:
    client = online(world, a)
    client.send(envelope.block_notification(b.address, a.address, 1))
    world.run(0.5)
    assert [e.reason for e in refusals(world)] == ["spoofed"]
    assert len(world.house.blocks) == 0


@pytest.mark.parametrize("other", ["", "nonsense", "pinch:x@y"])
def test_only_addresses_can_be_blocked(world: World, a: Agent, other: str) -> None:
    client = online(world, a)
    client.send(envelope.block_notification(a.address, other, 1))
    client.send(envelope.unblock_notification(a.address, other, 1))
    world.run(0.5)
    assert [e.reason for e in refusals(world)] == ["bad_address"] * 2


# Rates.


def test_frames_past_the_rate_are_discarded_and_the_sender_is_told_when_to_try_again() -> None:
    world = World(1, LIMITED)
    a, b = world.agent(1), world.agent(2)
    client, other = online(world, a), online(world, b)
    for _ in range(15):
        a.send(b)
    world.run(0.5)
    assert len(other.received) == 10
    assert len(client.notices) == 5
    limited = client.notices[0].rate_limited
    assert 0 < limited.retry_after_ms <= 1_000
    assert limited.reason
    world.run(limited.retry_after_ms / 1_000)
    a.send(b)
    world.run(0.5)
    assert len(other.received) == 11
    assert [e.reason for e in refusals(world)] == ["rate_limited"], "one note, however many there were"
    assert world.house.stats.refused["rate_limited"] == 5


def test_reconnecting_does_not_fill_the_bucket() -> None:
    world = World(1, LIMITED)
    a, b = world.agent(1), world.agent(2)
    client = online(world, a)
    for _ in range(10):
        a.send(b)
    world.run(0.01)
    client.cut()
    world.run(0.01)
    client = online(world, a)
    for _ in range(5):
        a.send(b)
    world.run(0.5)
    assert len(client.notices) >= 4


def test_confirmations_of_relayed_messages_are_never_limited() -> None:
    world = World(1, LIMITED)
    senders = [world.agent(n) for n in range(10, 20)]
    b = world.agent(2)
    for sender in senders:
        online(world, sender)
        for _ in range(10):
            sender.send(b)
    world.run(0.5)
    client = online(world, b)
    world.run(3)
    assert len(client.received) == 100
    assert not client.notices
    assert sum(len(sender.confirmations) for sender in senders) == 100


def test_confirmations_of_what_came_on_an_earlier_connection_are_not_limited() -> None:
    world = World(1, LIMITED)
    senders = [world.agent(n) for n in range(10, 16)]
    b = world.agent(2)
    b.confirms = 0.0
    client = online(world, b)
    for sender in senders:
        online(world, sender)
        for _ in range(10):
            sender.send(b)
    world.run(1)
    client.cut()
    world.run(0.1)
    client = b.connect()
    world.run(0.02)
    for sender, id in list(b.unconfirmed):
        b.confirm(client, sender, id)
    world.run(1)
    assert not client.notices
    assert sum(len(sender.confirmations) for sender in senders) == 60


def test_confirmations_that_match_nothing_are_limited_in_the_end() -> None:
    world = World(1, LIMITED)
    a, b = world.agent(1), world.agent(2)
    client = online(world, b)
    for n in range(1_000):
        b.confirm(client, a.address, b"%d" % n)
        world.run(0.002)
    world.run(1)
    assert len(client.notices) > 500
    assert world.house.stats.refused["unmatched"] < 500


def test_an_agent_that_does_not_read_its_notices_is_not_read_from() -> None:
    settings: Settings = dataclasses.replace(LIMITED, buffered_bytes_max=10_000)
    world = World(1, settings)
    a, b = world.agent(1), world.agent(2)
    client = online(world, a)
    client.stall()
    for _ in range(2_000):
        a.send(b)
    world.run(1)
    assert not client.line.reading
    assert client.line.buffered() < 11_000
    client.go_on()
    world.run(5)
    assert client.line.reading
    assert len(client.notices) + world.house.stats.posted == 2_000


def test_a_sender_is_read_from_only_as_fast_as_the_disk_takes_it() -> None:
    world = World(1, dataclasses.replace(FAST, unanswered_max=20), commit_s=(0.5, 0.5))
    a, b = world.agent(1), world.agent(2)
    client = a.connect()
    world.run(3)
    for _ in range(100):
        a.send(b)
    world.run(0.1)
    assert not client.line.reading
    assert world.house.stats.frames <= 25
    world.run(30)
    assert client.line.reading
    assert world.house.stats.posted == 100
