"""What operators do reaches those who are connected, at once."""

from __future__ import annotations

from tests.relay.harness import Relay

from posthouse.mailbox.command import Filter, Park, Pause, Resume, Unpark
from posthouse.mailbox.message import Ref
from posthouse.wire.envelope import id_text


def test_an_unparked_message_comes_to_its_connected_recipient(relay: Relay) -> None:
    (alice,) = relay.online("alice")
    bob = relay.agent("bob")
    sent = alice.message(bob)
    alice.settled()
    relay.engine.call(Park(Ref("relay", bob.address, alice.address, id_text(sent.message_id)), holder="operator:me"))
    bob.connect().live()
    relay.engine.call(Unpark(Filter("relay", bob.address)))
    assert bob.receive() == sent


def test_a_mailbox_that_is_resumed_goes_on(relay: Relay) -> None:
    alice, bob = relay.online("alice", "bob")
    relay.engine.call(Pause("relay", bob.address, holder="operator:me"))
    sent = [alice.message(bob) for _ in range(3)]
    alice.settled()
    relay.engine.call(Resume("relay", bob.address, holder="operator:me"))
    assert bob.receive_all(3) == sent
