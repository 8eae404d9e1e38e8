"""An agent's two desks, what its messages look like there, and its shelves.

Outbox: mailbox = the recipient's address, sender = '', id = the message id, body = the envelope as it is sent.
Inbox: mailbox = sender = the peer's address, id = the message id (a confirmation's: ``confirm:`` and that of the
message it confirms), body = the envelope as it came. So both keep what was on the wire, encrypted; whoever shows a
message opens it with the agent's key.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..mailbox.message import Message, Ref
from ..mailbox.policy import AT_ONCE, DAY_S, Policy, SettleBy
from ..mailbox.policy import INBOX as INBOX_PRESET
from ..mailbox.policy import OUTBOX as OUTBOX_PRESET

STORE_NAME = "agent.db"
SHELF = "agent"
"""What the agent itself remembers: the host of its relay."""
HOST_KEY = "relay_host"

OUTBOX = OUTBOX_PRESET.replace(
    name="agent.outbox",
    capacity=100_000,
    size_bytes_max=65_536,
    # What a relay keeps no longer is not sent again either.
    ttl_s=7 * DAY_S,
    # Leased: written to the relay, or about to be. Received: the relay has it. Both until it is confirmed, so the
    # lease lasts as long as the process, and what is unconfirmed does not hold up what comes behind it.
    window_per_lane=None,
    lease_s=None,
    settle_by=SettleBy.ID,
    retry=AT_ONCE,
    dedup_s=30 * DAY_S,
    history_s=90 * DAY_S,
)
INBOX = INBOX_PRESET.replace(
    name="agent.inbox",
    capacity=100_000,
    size_bytes_max=131_072,
    window_per_lane=1,
    lease_s=None,
    settle_by=SettleBy.ID,
    retry=AT_ONCE,
    dedup_s=30 * DAY_S,
    history_s=90 * DAY_S,
)
POLICIES: Mapping[str, Policy] = {OUTBOX.name: OUTBOX, INBOX.name: INBOX}


def node_of(public_key: bytes) -> str:
    """The name of an agent's store in its journal."""
    return f"agent-{public_key.hex()[:16]}"


def outbound(recipient: str, id: str, kind: str, envelope: bytes) -> Message:
    """A message for the outbox."""
    return Message(OUTBOX.name, recipient, id, envelope, kind=kind)


def outbound_ref(recipient: str, id: str) -> Ref:
    """What names it there."""
    return Ref(OUTBOX.name, recipient, "", id)


def inbound(peer: str, id: str, kind: str, envelope: bytes, cause: str | None = None) -> Message:
    """A message for the inbox."""
    return Message(INBOX.name, peer, id, envelope, sender=peer, kind=kind, cause=cause)


def inbound_ref(peer: str, id: str) -> Ref:
    """What names it there."""
    return Ref(INBOX.name, peer, peer, id)


def confirmation_id(id: str) -> str:
    """The inbox's id for the confirmation of a message."""
    return f"confirm:{id}"
