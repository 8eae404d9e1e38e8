"""Mistakes of the relay itself, planted: one connection pays for them, and no other."""

from __future__ import annotations

import pytest
from tests.relay.harness import Relay

from posthouse.relay import inflow
from posthouse.relay.session import Session


def test_a_mistake_of_the_relay_in_one_command_costs_nobody_else_theirs(
    relay: Relay, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    alice, bob, carol = relay.online("alice", "bob", "carol")
    kind_of = inflow.kind_of
    monkeypatch.setattr(inflow, "kind_of", lambda type: "\n" if type == 99 else kind_of(type))
    first, wrong, last = bob.envelope(carol), alice.envelope(carol, 99), bob.envelope(carol)
    sessions = relay.house.online

    def send() -> None:
        for agent, one in ((bob, first), (alice, wrong), (bob, last)):
            sessions[agent.address].frame(one.SerializeToString())

    # In one iteration of the event loop, so that they are one submission.
    relay.on_loop(send)
    assert carol.receive_all(2) == [first, last]
    assert bob.settled() == []
    assert alice.closed() == (1013, "store unavailable")
    assert "a command is not valid" in caplog.text


def test_a_session_that_raises_ends_its_connection_and_no_other(
    relay: Relay, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    alice, bob, carol = relay.online("alice", "bob", "carol")
    frame = Session.frame

    def broken(self: Session, data: bytes, binary: bool = True) -> None:
        if self.address == alice.address:
            raise ZeroDivisionError
        frame(self, data, binary)

    monkeypatch.setattr(Session, "frame", broken)
    alice.message(carol)
    sent = bob.message(carol)
    assert carol.receive() == sent
    assert alice.closed() == (1011, "internal error")
    relay.until(lambda: relay.house.connections == 2)
    assert "a session failed" in caplog.text
    monkeypatch.undo()
    alice.connect()
    assert carol.settled() == []
