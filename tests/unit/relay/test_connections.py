"""The life of a connection: authentication, takeover, heartbeats, ends. The session without a socket."""

from __future__ import annotations

import dataclasses

import pytest
from tests.simulation.world import FAST, Agent, World, online

from posthouse.mailbox.event import Event
from posthouse.wire import envelope
from posthouse.wire.envelope import MessageType


def events(world: World, *names: str) -> list[Event]:
    return [event for _, _, event in world.store.events() if event.event in names]


def test_an_agent_that_proves_its_key_is_given_its_address(world: World, a: Agent) -> None:
    client = a.connect()
    seen: list[bytes] = []
    client.line.send = lambda data, send=client.line.send: (seen.append(data), send(data))[1]  # type: ignore[method-assign]
    world.run(0.5)
    result = envelope.parse(seen[0]).auth_result
    assert result.success
    assert result.assigned_address == a.address
    assert world.house.connections == 1
    assert [(e.event, e.mailbox) for e in events(world, "connected")] == [("connected", a.address)]


def test_a_failed_answer_is_told_and_closed_with_1008(world: World, a: Agent) -> None:
    client = a.connect()
    a.key = world.agent(9).key
    world.run(0.5)
    assert client.authenticated is False
    assert client.error == "authentication failed"
    assert client.close == (1008, "authentication failed")
    assert world.house.connections == 0
    assert world.house.unauthenticated == 0
    assert [e.reason for e in events(world, "refused")] == ["auth"]


def test_a_challenge_is_answered_once(world: World, a: Agent) -> None:
    client = a.connect()
    client.send(b"nonsense")
    world.run(0.5)
    assert client.close == (1008, "authentication failed")


def test_a_key_that_is_not_registered_is_told_so(world: World, a: Agent) -> None:
    world.house.admits = lambda key: None if key == a.public_key else "key not registered"
    online(world, a)
    other = world.agent(2).connect()
    world.run(0.5)
    assert other.error == "key not registered"
    assert other.close == (1008, "key not registered")


def test_a_key_that_is_revoked_loses_its_connection_at_once(world: World, a: Agent) -> None:
    client = online(world, a)
    assert world.house.revoke(a.address)
    world.run(0.1)
    assert client.close == (1008, "key not registered")
    assert not world.house.revoke(a.address)


def test_who_does_not_answer_the_challenge_in_time_is_closed(world: World, a: Agent) -> None:
    client = a.connect()
    client.stall()
    world.run(9)
    assert client.line.closed_with is None
    world.run(2)
    assert client.line.closed_with == (1008, "authentication timeout")
    assert world.house.unauthenticated == 0


def test_connections_that_are_not_authenticated_have_a_budget() -> None:
    world = World(1, dataclasses.replace(FAST, unauthenticated_max=3))
    strangers = [world.agent(n).connect() for n in range(1, 4)]
    for client in strangers:
        client.stall()
    assert not world.house.has_room()
    world.run(12)
    assert world.house.has_room()


def test_failed_authentications_do_not_flood_the_journal(world: World) -> None:
    for n in range(1, 101):
        agent = world.agent(n)
        agent.connect()
        agent.key = world.agent(500).key
    world.run(0.5)
    assert world.house.stats.refused["auth"] == 100
    assert len(events(world, "refused")) <= 20


def test_a_frame_that_is_too_large_before_authentication_closes_with_1009(world: World, a: Agent) -> None:
    client = a.connect()
    client.line.session.oversize(200_000)
    world.run(0.1)
    assert client.close is not None
    assert client.close[0] == 1009


# One address, one connection.


def test_a_live_connection_is_kept_and_the_newcomer_refused_within_three_seconds(world: World, a: Agent) -> None:
    first = online(world, a)
    second = a.connect()
    world.run(3)
    assert first.is_open
    assert second.error == "address already connected"
    assert second.close == (1008, "address already connected")


def test_a_half_open_connection_is_taken_over_within_three_seconds(world: World, a: Agent, b: Agent) -> None:
    online(world, b)
    first = online(world, a)
    first.vanish()
    b.send(a)
    world.run(0.5)
    second = a.connect()
    world.run(1)
    assert second.authenticated is None
    world.run(2)
    assert second.is_open
    assert len(second.received) == 1, "what the dead one was sent comes again"
    assert first.line.closed_with == (1008, "replaced by a newer connection")
    assert world.house.stats.taken_over == 1
    assert [e.reason for e in events(world, "disconnected")] == ["replaced"]


@pytest.mark.parametrize("what", ["frame", "ping", "pong"])
def test_what_was_under_way_when_a_connection_was_lost_is_no_sign_of_life(world: World, a: Agent, what: str) -> None:
    first = online(world, a)
    world.run(30)
    session = first.line.session
    if what == "pong":
        # A ping is under way already; its answer was sent before the connection was lost.
        session.outflow.ping()
    first.vanish()
    second = a.connect()
    world.run(0.1)
    if what == "frame":
        session.frame(a.make(a, b"from before", MessageType.HEARTBEAT))
    elif what == "ping":
        session.ping_seen()
    else:
        session.pong(session.outflow.receipts.pings.to_bytes(8, "big"))
    world.run(1)
    assert second.close is None
    world.run(2)
    assert second.is_open
    assert first.line.closed_with == (1008, "replaced by a newer connection")


def test_the_answer_to_an_older_ping_leads_to_another_ping(world: World, a: Agent) -> None:
    first = online(world, a)
    first.line.session.outflow.ping()
    second = a.connect()
    world.run(0.2)
    assert first.is_open
    assert second.error == "address already connected"


@pytest.mark.parametrize("what", ["frame", "ping", "pong"])
def test_who_sends_but_does_not_answer_stays(world: World, a: Agent, what: str) -> None:
    first = online(world, a)
    a.loses_pongs = 1.0
    second = a.connect()
    world.run(2)
    assert second.authenticated is None
    session = first.line.session
    if what == "frame":
        first.send(a.make(a, b"busy", MessageType.HEARTBEAT))
    else:
        first.up(session.ping_seen if what == "ping" else lambda: session.pong(b"busy"))
    world.run(0.1)
    assert first.is_open
    assert second.error == "address already connected"


def test_the_newcomer_is_admitted_at_once_when_the_other_leaves(world: World, a: Agent) -> None:
    first = online(world, a)
    first.stall()
    second = a.connect()
    world.run(0.1)
    first.cut()
    world.run(0.1)
    assert second.is_open


def test_of_two_newcomers_one_is_admitted(world: World, a: Agent) -> None:
    online(world, a).vanish()
    second, third = a.connect(), a.connect()
    world.run(4)
    assert [second.is_open, third.is_open] == [True, False]
    assert third.close == (1008, "address already connected")


def test_a_newcomer_that_gives_up_disturbs_nobody(world: World, a: Agent) -> None:
    first = online(world, a)
    first.stall()
    second = a.connect()
    world.run(0.1)
    second.cut()
    world.run(3)
    first.go_on()
    world.run(1)
    assert first.is_open


# Heartbeats.


def test_a_silent_connection_is_pinged_and_closed_when_it_stays_silent(world: World, a: Agent) -> None:
    client = online(world, a)
    client.vanish()
    world.run(31)
    assert client.line.closed_with is None
    world.run(3)
    assert client.line.closed_with == (1008, "heartbeat timeout")
    assert [e.reason for e in events(world, "disconnected")] == ["timeout"]


def test_pongs_count_as_life(world: World, a: Agent) -> None:
    client = online(world, a)
    world.run(300)
    assert client.is_open
    assert 8 <= world.house.stats.pings <= 14


def test_an_agents_own_pings_count_as_life(world: World, a: Agent) -> None:
    client = online(world, a)
    a.loses_pongs = 1.0
    for _ in range(10):
        world.run(25)
        client.up(client.line.session.ping_seen)
    world.run(1)
    assert client.is_open


def test_too_many_pings_close_the_connection(world: World, a: Agent) -> None:
    client = online(world, a)
    for _ in range(500):
        client.up(client.line.session.ping_seen)
    world.run(1)
    assert client.close == (1008, "too many pings")


def test_pongs_that_nobody_asked_for_are_pings_too(world: World, a: Agent) -> None:
    client = online(world, a)
    for _ in range(500):
        client.up(lambda: client.line.session.pong(b""))
    world.run(1)
    assert client.close == (1008, "too many pings")


# Ends.


def test_a_shutdown_closes_all_with_1001_and_keeps_everything(world: World, a: Agent, b: Agent) -> None:
    clients = [online(world, a), online(world, b)]
    b.confirms = 0.0
    for _ in range(5):
        a.send(b)
    world.run(0.5)
    a.send(b)
    world.run(0.001)
    closed: list[bool] = []
    world.house.close(lambda: closed.append(True))
    assert not world.house.has_room()
    world.run(1)
    assert closed == [True]
    assert [client.close for client in clients] == [(1001, "relay is shutting down")] * 2
    assert {e.reason for e in events(world, "disconnected")} == {"shutdown"}
    box = world.store.mailbox("relay", b.address)
    assert box is not None
    assert [view.state for view in world.store.in_lane("relay", b.address, "")] == ["ready"] * box.depth
    assert box.depth >= 5


def test_what_an_agent_sent_before_it_heard_of_the_shutdown_is_taken(world: World, a: Agent, b: Agent) -> None:
    sender, recipient = online(world, a), online(world, b)
    b.confirms = 0.0
    id = a.send(b)
    world.run(0.5)
    world.house.leave()
    sender.line.session.frame(a.make(b, b"late"))
    recipient.line.session.frame(envelope.delivery_confirm(b.address, a.address, id, 1, bytes(64)))
    recipient.line.session.lost("closed")
    closed: list[bool] = []
    world.house.close(lambda: closed.append(True))
    world.run(1)
    assert closed == [True]
    assert [client.close for client in (sender, recipient)] == [(1001, "relay is shutting down")] * 2
    assert {e.reason for e in events(world, "disconnected")} == {"shutdown"}
    assert [view.message.id for view in world.store.in_lane("relay", b.address, "")] == ["late"]
    assert [view.message.id for view in world.store.in_lane("relay", a.address, "")] == [f"confirm:{id.decode()}"]
    assert world.house.stats.closed["relay is shutting down"] == 2


def test_a_shutdown_without_connections_is_said_too(world: World) -> None:
    closed: list[bool] = []
    world.house.close(lambda: closed.append(True))
    world.run(0.1)
    assert closed == [True]


def test_who_sent_what_the_store_did_not_take_must_try_again(world: World, a: Agent, b: Agent) -> None:
    client = online(world, a)
    world.fail_next = 1
    a.send(b)
    world.run(0.5)
    assert client.close == (1013, "store unavailable")
    again = online(world, a)
    assert again.is_open


def test_what_a_lost_connection_held_comes_back_though_the_store_was_away(world: World, a: Agent, b: Agent) -> None:
    online(world, a)
    client = online(world, b)
    client.stall()
    a.send(b)
    world.run(0.5)
    world.fail_next = 3
    client.cut()
    world.run(5)
    again = online(world, b)
    assert again.announced == 1


def test_each_end_of_a_connection_is_in_the_journal(world: World, a: Agent) -> None:
    online(world, a).cut()
    world.run(0.1)
    client = online(world, a)
    client.up(lambda: client.line.session.lost("closed"))
    world.run(0.1)
    told = [(e.event, e.reason) for e in events(world, "connected", "disconnected")]
    assert told == [("connected", None), ("disconnected", "cut"), ("connected", None), ("disconnected", "closed")]
    holders = [e.holder for e in events(world, "connected", "disconnected")]
    assert holders[0] == holders[1] != holders[2] == holders[3]
