"""What was imported reaches agents as if they had been with this relay all along, also while it runs."""

from __future__ import annotations

import base64
import time
from typing import Any

from tests.relay.harness import Agent, Relay

from posthouse.control.catalogue import run
from posthouse.control.operation import Context
from posthouse.wire.envelope import Envelope, MessageType, connection_request, encrypted_message, parse


def take(relay: Relay, **page: Any) -> Any:
    """Import a page as ``posthouse import pinch`` does through a running server."""
    context = Context(relay.engine, relay.config, "operator:test", lambda done, total, doing: None)
    return run(context, "pinch.import", {"page": page})


def queued(envelope: Envelope, number: int) -> dict[str, Any]:
    body = envelope.SerializeToString()
    return {
        "mailbox": envelope.to_address,
        "id": envelope.message_id.decode() or f"relay:import:{number}",
        "sender": envelope.from_address,
        "kind": "message" if envelope.message_id else "connection_request",
        "body": base64.b64encode(body).decode(),
        "posted_at": time.time_ns() // 1_000 - 3_600_000_000 + number,
    }


def three(alice: Agent, bob: Agent) -> list[Envelope]:
    """What alice once sent to bob through another relay; the second has no id."""
    pair = alice.address, bob.address
    return [
        parse(encrypted_message(*pair, b"m1", 1, bytes(24), b"one", alice.public_key)),
        parse(connection_request(*pair, b"", 1, "hello", alice.public_key, 2)),
        parse(encrypted_message(*pair, b"m2", 1, bytes(24), b"two", alice.public_key)),
    ]


def test_imported_messages_are_flushed_in_order_and_settled_by_their_confirmations(relay: Relay) -> None:
    alice, bob = relay.agent("alice"), relay.agent("bob")
    sent = three(alice, bob)
    assert take(relay, messages=[queued(m, n) for n, m in enumerate(sent)])["messages"] == ["posted"] * 3
    bob.connect()
    assert bob.expect(MessageType.QUEUE_STATUS).queue_status.pending_count == 3
    assert bob.receive_all(3) == sent
    bob.pong()
    for message in (sent[0], sent[2]):
        bob.confirm(message)
    relay.until(lambda: depth(relay, bob) == 0, "the imported messages are not settled")
    _, *confirmed = alice.connect().receive_all(3)
    assert [m.delivery_confirm.message_id for m in confirmed] == [b"m1", b"m2"]
    assert [m.delivery_confirm.was_stored for m in confirmed] == [True, True]


def depth(relay: Relay, agent: Agent) -> int:
    mailbox = relay.engine.store.mailbox("relay", agent.address)
    return 0 if mailbox is None else mailbox.depth


def test_an_import_reaches_whoever_is_connected(relay: Relay) -> None:
    alice, bob = relay.online("alice", "bob")
    sent = three(alice, bob)
    take(relay, messages=[queued(m, n) for n, m in enumerate(sent)])
    assert bob.receive_all(3) == sent


def test_an_imported_block_holds_at_once(relay: Relay) -> None:
    alice, bob = relay.online("alice", "bob")
    take(relay, blocks=[[bob.address, alice.address]])
    relay.until(lambda: relay.house.blocks.has(bob.address, alice.address), "the relay was not told")
    alice.message(bob)
    alice.settled()
    assert relay.refusals() == ["blocked"]
    relay.restart()
    assert relay.house.blocks.has(bob.address, alice.address)
