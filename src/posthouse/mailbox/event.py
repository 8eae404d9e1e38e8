"""Events: the journal's rows as the store makes them, in the order of the contract's columns.

Each state change is one event, written in the transaction that makes the change. The columns
``node``, ``offset`` and ``commit`` are the store's to add: they follow from where the event stands.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from .message import Instant


class Event(NamedTuple):
    """One row of the journal without node, offset and commit."""

    at: Instant
    event: str
    desk: str
    mailbox: str = ""
    lane: str = ""
    lane_seq: int = 0
    message_id: str = ""
    kind: str = ""
    sender: str = ""
    attempt: int = 0
    holder: str | None = None
    size_bytes: int = 0
    reason: str | None = None
    error: str | None = None
    due_at: Instant | None = None
    expires_at: Instant | None = None
    cause_id: str | None = None
    detail: str | None = None


POSTED: Final = "posted"
DUPLICATE: Final = "duplicate"
REFUSED: Final = "refused"
LEASED: Final = "leased"
RECEIVED: Final = "received"
DELIVERED: Final = "delivered"
RETRIED: Final = "retried"
RELEASED: Final = "released"
RECALLED: Final = "recalled"
UNCERTAIN: Final = "uncertain"
DIED: Final = "died"
EXPIRED: Final = "expired"
CANCELLED: Final = "cancelled"
PARKED: Final = "parked"
UNPARKED: Final = "unparked"
REDRIVEN: Final = "redriven"
CONNECTED: Final = "connected"
DISCONNECTED: Final = "disconnected"
PAUSED: Final = "paused"
RESUMED: Final = "resumed"
STARTED: Final = "started"

EVENTS = (
    POSTED, DUPLICATE, REFUSED, LEASED, RECEIVED, DELIVERED, RETRIED, RELEASED, RECALLED, UNCERTAIN, DIED,
    EXPIRED, CANCELLED, PARKED, UNPARKED, REDRIVEN, CONNECTED, DISCONNECTED, PAUSED, RESUMED, STARTED,
)  # fmt: skip
NOTABLE = frozenset({CONNECTED, DISCONNECTED, REFUSED})
"""Events that a Note may write."""

REASONS: dict[str, tuple[str, ...]] = {
    POSTED: ("import",),
    REFUSED: (
        "full", "share", "oversize", "ttl", "unknown_desk", "blocked", "spoofed", "forbidden_type", "bad_address",
        "rate_limited", "malformed", "unmatched", "auth",
    ),
    RETRIED: ("failed", "unconfirmed", "lease_lost", "rate_limited", "not_sent"),
    RELEASED: ("left", "offline", "returned"),
    RECALLED: ("head_failed",),
    UNCERTAIN: ("lease_lost", "unknown"),
    DIED: ("attempts", "deadline", "rejected", "permanent", "parked_full"),
    EXPIRED: ("ttl",),
    CANCELLED: ("operator", "purged", "kept_long_enough"),
    PARKED: ("operator", "attempts", "unreceived", "corrupt", "review"),
    PAUSED: ("operator", "poison"),
    DISCONNECTED: ("closed", "cut", "timeout", "replaced", "shutdown"),
}  # fmt: skip
"""The closed list of reason codes per event; an event that is not here carries none.
A caller may give reasons of its own only where the command takes one, and then only from this list."""
