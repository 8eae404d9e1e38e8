"""Edges of the relay's core where time, takeovers and a failing store meet; the world is the simulation's."""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import Any

import pytest
from tests.simulation.world import FAST, Agent, Client, World

from posthouse.mailbox.command import Release
from posthouse.relay import receipts as receipts_module
from posthouse.relay.limits import Bucket
from posthouse.relay.receipts import Receipts
from posthouse.relay.session import Session
from posthouse.wire import auth, envelope
from posthouse.wire.envelope import MessageType


def online(agent: Agent) -> Client:
    client = agent.connect()
    agent.world.run(0.2)
    assert client.is_open
    return client


# Takeovers.


def test_a_probe_that_was_answered_does_not_end_the_one_behind_it() -> None:
    world = World()
    alice = world.agent(1)
    there = online(alice)
    first = alice.connect()
    world.run(0.1)
    assert first.error == "address already connected"
    # The first probe's time would be up now, in the middle of the second, which is not answered yet.
    world.run(world.settings.probe_s - 0.2)
    alice.loses_pongs = 1.0
    second = alice.connect()
    world.run(0.3 + world.settings.probe_s / 2)
    assert there.close is None
    assert second.authenticated is None
    there.send(alice.make(alice, b"a sign of life", MessageType.HEARTBEAT))
    world.run(0.1)
    assert second.error == "address already connected"
    assert there.close is None


def test_a_revoked_key_is_not_replaced_by_its_own_second_connection() -> None:
    world = World()
    alice = world.agent(1)
    there = online(alice)
    alice.loses_pongs = 1.0
    second = alice.connect()
    world.run(0.1)
    assert world.house.revoke(alice.address)
    world.run(0.1)
    assert there.close == (1008, "key not registered")
    assert second.close == (1008, "key not registered")
    assert world.house.connections == 0


# Silence.


def test_nobody_is_ended_for_silence_while_the_relay_itself_stood_still() -> None:
    world = World()
    alice, bob = world.agent(1), world.agent(2)
    there, half_open = online(alice), online(bob)
    half_open.vanish()
    world.now_s += 300
    world.run(1)
    assert there.close is None
    assert bob.address in world.house.online, "it was not asked yet"
    world.run(world.settings.heartbeat_wait_s + 1)
    assert there.close is None
    assert bob.address not in world.house.online
    world.run(100)
    assert there.is_open


def test_who_answers_late_but_in_time_stays() -> None:
    world = World(settings=replace(FAST, heartbeat_s=10.0, heartbeat_wait_s=5.0))
    client = online(world.agent(1))
    for _ in range(5):
        client.stall()
        world.run(12)
        client.go_on()
        world.run(1)
        assert client.is_open
    client.stall()
    world.run(16)
    assert not client.line.session.is_open
    assert client.line.closed_with == (1008, "heartbeat timeout")


# A store that is away.


def test_reconnecting_while_the_store_is_away_does_not_multiply_releases(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    alice = world.agent(1)
    online(alice)
    releases: list[Any] = []
    submit = world.house.port.submit

    def watched(commands: Any, answered: Any) -> None:
        releases.extend(command for command in commands if isinstance(command, Release))
        submit(commands, answered)

    monkeypatch.setattr(world.house.port, "submit", watched)
    world.fail_next = 1_000_000
    alice.client.cut()  # type: ignore[union-attr]
    for _ in range(40):
        alice.connect()
        world.run(1)
    # Only the first held anything. It is tried once a second, and once more by each that comes.
    assert len({release.token for release in releases}) == 1
    assert 60 <= len(releases) <= 90
    world.fail_next = 0
    world.run(2)
    releases.clear()
    world.run(10)
    assert releases == []
    assert online(alice).is_open


# Confirmations.


def test_a_thousand_confirmations_of_an_earlier_connection_are_not_limited() -> None:
    limited = replace(FAST, rate_per_s=1.0, rate_burst=10, unanswered_max=10_000)
    world = World(settings=limited, capacity=2_000)
    alice, bob = world.agent(1), world.agent(2)
    online(bob)
    bob.confirms = 0.0
    online(alice)
    ids = []
    bucket = world.house.online[alice.address]._inflow
    bucket._bucket = None
    for n in range(1_000):
        ids.append(alice.send(bob, id=f"m{n}".encode()))
    world.run(30)
    assert len(bob.seen) == 1_000
    bob.client.cut()  # type: ignore[union-attr]
    world.run(0.1)
    again = bob.connect()
    world.run(0.02)
    assert again.is_open
    # All in one go, before any of them is written again.
    for id in ids:
        bob.confirm(again, alice.address, id)
    world.run(30)
    assert again.notices == []
    assert len(alice.confirmations) == 1_000


def test_confirmations_that_match_nothing_are_limited_whatever_they_claim() -> None:
    limited = replace(FAST, rate_per_s=1.0, rate_burst=10)
    world = World(settings=limited)
    alice, bob = world.agent(1), world.agent(2)
    client = online(bob)
    bob.confirms = 0.0
    online(alice)
    id = alice.send(bob)
    world.run(1)
    assert len(bob.seen) == 1
    # It was sent here and is not confirmed, but not in the name of another.
    signature = bob.key.sign(auth.confirm_bytes(id, 1)).signature
    forged = envelope.delivery_confirm(alice.address, alice.address, id, 1, signature)
    for n in range(2_000):
        client.send(forged)
        if n % 50 == 0:
            world.run(0.01)
    world.run(1)
    refused = world.house.stats.refused
    assert refused["spoofed"] < 600
    assert refused["rate_limited"] == 2_000 - refused["spoofed"]
    # The true one still passes.
    bob.confirm(client, alice.address, id)
    world.run(1)
    assert id in alice.confirmations


def test_what_waits_for_a_confirmation_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receipts_module, "UNCONFIRMED_MAX", 100)
    receipts = Receipts()
    refs = [Agent(World(), 1).address + str(n) for n in range(1_000)]
    for n, name in enumerate(refs):
        receipts.sent(receipts_module.Ref("relay", "b", "a", name), True, 1, False)
        assert len(receipts._unconfirmed) <= 101, n
    assert receipts.is_unconfirmed(receipts_module.Ref("relay", "b", "a", refs[-1]))
    assert not receipts.is_unconfirmed(receipts_module.Ref("relay", "b", "a", refs[0]))


def test_what_a_bucket_is_owed_is_bounded() -> None:
    bucket = Bucket(1.0, 10, at=0.0)
    for _ in range(1_000):
        bucket.spend(0.0)
    assert bucket.wait_s(0.0) == 11.0
    assert bucket.wait_s(11.0) == 0.0
    assert bucket.take(11.0) == 0.0


# What stays of a connection.


class NoLine:
    """A line to nobody."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def send(self, data: bytes) -> None:
        self.sent.append(data)

    def ping(self, payload: bytes) -> None:
        pass

    def close(self, code: int, reason: str) -> None:
        pass

    def buffered(self) -> int:
        return 0

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


def test_nothing_holds_a_connection_that_has_left() -> None:
    world = World()
    alice = world.agent(1)
    for _ in range(200):
        line = NoLine()
        session = world.house.open(line)
        session.opened()
        challenge = envelope.parse(line.sent[0]).auth_challenge
        signature = alice.key.sign(auth.challenge_bytes(challenge.relay_host, challenge.nonce)).signature
        session.frame(envelope.auth_response(alice.public_key, signature, challenge.nonce))
        world.run(0.06)
        assert world.house.online[alice.address] is session
        session.lost()
    del session, line
    # Much less than the time between two heartbeats.
    world.run(1)
    gc.collect()
    assert [found for found in gc.get_objects() if type(found) is Session and found._house is world.house] == []
