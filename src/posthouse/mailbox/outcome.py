"""Outcomes: what became of a command. Values, not exceptions: one refusal must not abort its batch."""

from __future__ import annotations

import enum
from typing import Final, NamedTuple

from .message import Instant, Message, Ref, State


class Refusal(enum.StrEnum):
    """Why a command was refused; these words are stable and stand in the journal."""

    FULL = "full"
    SHARE = "share"  # the mailbox has room, but not for more of this sender
    OVERSIZE = "oversize"
    TTL = "ttl"  # its expires_at has passed already
    UNKNOWN_DESK = "unknown_desk"
    IN_FLIGHT = "in_flight"
    FINISHED = "finished"
    PARKED_FULL = "parked_full"
    NOT_ALLOWED = "not_allowed"  # the message is not in a state in which this can be done


class Posted(NamedTuple):
    """Stored, with its number in its lane."""

    seq: int
    expires_at: Instant | None


class Duplicate(NamedTuple):
    """This (mailbox, sender, id) is known; what became of the first copy."""

    state: State
    seq: int
    attempts: int
    reason: str | None
    error: str | None
    finished_at: Instant | None


class Refused(NamedTuple):
    """Not done, nothing changed."""

    reason: Refusal
    detail: str = ""


class Delivery(NamedTuple):
    """One leased message as its holder sees it."""

    message: Message
    seq: int
    attempt: int
    posted_at: Instant
    lease_ends_at: Instant | None
    progress: int
    batch: str | None
    """The id of the first message of its batch."""
    live: bool = False
    """This lease was committed with the message's post, so it never waited in the store."""


class Leased(NamedTuple):
    """What was taken, in order; empty when nothing is due."""

    token: str
    deliveries: tuple[Delivery, ...]


class Renewed(NamedTuple):
    """How many leases of the token were kept, and until when."""

    count: int  # type: ignore[assignment]  # a tuple's own count() is of no use here
    lease_ends_at: Instant | None


class Settled(NamedTuple):
    """The state the message is in now."""

    state: State
    attempts: int
    due_at: Instant | None
    """When it is tried again, where it is ready."""
    live: bool
    """Delivered by the lease that was committed with its post, so it never waited in the store."""


class LeaseLost(NamedTuple):
    """The token no longer holds the message; its state now."""

    state: State | None


class NotFound(NamedTuple):
    """No such message (any more)."""


class Released(NamedTuple):
    """How many messages came back."""

    count: int  # type: ignore[assignment]  # a tuple's own count() is of no use here


class Swept(NamedTuple):
    """Counts; ``expired`` by (desk, mailbox). ``more``: a limit was reached, sweep again."""

    expired: tuple[tuple[str, str, int], ...]
    lost: int
    forgotten: int
    more: bool


class Noted(NamedTuple):
    pass


class Started(NamedTuple):
    """How many leases of the former process were ended."""

    ended: int


class Shifted(NamedTuple):
    pass


class Hastened(NamedTuple):
    """How many messages wait no longer."""

    count: int  # type: ignore[assignment]  # a tuple's own count() is of no use here


class Redriven(NamedTuple):
    """The messages given a new life (or that would be), and how many their mailbox had no room for."""

    refs: tuple[Ref, ...]
    skipped: int


class Switched(NamedTuple):
    """Paused or resumed; ``changed`` False when it was so already."""

    changed: bool


class Purged(NamedTuple):
    """Cancelled (unfinished ones), removed (finished ones), skipped (in flight, outcome would be unknown)."""

    cancelled: int
    removed: int
    skipped: int


class Kept(NamedTuple):
    """The shelf holds it now, or no longer; ``changed`` False when it was so already."""

    changed: bool


class Done(NamedTuple):
    """The outcomes of a Together that took effect."""

    outcomes: tuple[Outcome, ...]


Outcome = (
    Posted
    | Duplicate
    | Refused
    | Leased
    | Renewed
    | Settled
    | LeaseLost
    | NotFound
    | Released
    | Swept
    | Noted
    | Started
    | Shifted
    | Hastened
    | Redriven
    | Switched
    | Purged
    | Kept
    | Done
)

FAILURES: Final = (Refused, LeaseLost, NotFound)
"""Outcomes that undo a Together."""
