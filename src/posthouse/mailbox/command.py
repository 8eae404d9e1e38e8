"""Commands: what a caller asks of the engine. Values only; each is applied by a store in order.

Every command carries ``at``, the instant at which the engine took it (the engine fills it in).
Commands of a batch apply in order, each seeing the effects of those before it.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any, NamedTuple

from .message import FINISHED, Instant, Message, Ref, State
from .policy import Policy


class Verdict(enum.StrEnum):
    """How a holder settles what it leased."""

    RECEIVED = "received"  # it arrived (a pong behind it); finishes nothing
    DELIVERED = "delivered"
    RETRY = "retry"  # failed for the moment: the attempt counts
    RETURN = "return"  # not tried (the target is away): the attempt does not count
    DEAD = "dead"  # can never succeed
    REJECTED = "rejected"  # the other side refused it for good
    UNCERTAIN = "uncertain"  # a send was started and its outcome is unknown


class Filter(NamedTuple):
    """Selects messages for operators' commands; None matches all. Times bound ``posted_at``."""

    desk: str
    mailbox: str | None = None
    lane: str | None = None
    kind: str | None = None
    sender: str | None = None
    id: str | None = None
    reason: str | None = None
    error: str | None = None
    """The normalised error text (see ``rules.normalise_error``)."""
    since: Instant | None = None
    until: Instant | None = None
    states: frozenset[State] = frozenset()
    """Empty: the states that the command can act on."""


class Post(NamedTuple):
    """Store a message. Outcome: Posted, Duplicate or Refused."""

    message: Message
    quiet: bool = True
    """False ends the quiet period of what waits before it; the message is leased alone."""
    exempt: bool = False
    """True: not refused as FULL (a confirmation of something that was relayed)."""
    reason: str | None = None
    """For the journal: where it came from, e.g. ``import``."""
    posted_at: Instant | None = None
    """When it was posted where it was imported from: its age and the desk's ttl_s count from then, and the
    event says so in ``detail``. The event's own ``at`` stays the instant of the import."""
    at: Instant = 0


class Lease(NamedTuple):
    """Take messages from a mailbox, or (mailbox None) from the next due lane of the desk. Outcome: Leased."""

    desk: str
    mailbox: str | None
    token: str
    holder: str | None = None
    limit: int = 1
    bodies: bool = True
    besides: tuple[str, ...] = ()
    """Mailboxes that a lease by desk passes over, as if they were paused; their turn stays theirs."""
    lane: str | None = None
    """Only from this lane of the mailbox, whatever is in flight of it: for a holder that keeps the order itself and
    takes ahead what it will come to."""
    at: Instant = 0


class Renew(NamedTuple):
    """Keep the leases of a token; record parts done of one message. Outcome: Renewed or LeaseLost."""

    desk: str
    token: str
    ref: Ref | None = None
    progress: int | None = None
    at: Instant = 0


class Settle(NamedTuple):
    """Say what became of a leased message. Outcome: Settled, LeaseLost or NotFound.

    ``token`` None is for policies that settle by id, for resolving an uncertain message by hand, and for an import
    that brings what is dead or uncertain already.
    """

    ref: Ref
    token: str | None
    verdict: Verdict
    due_at: Instant | None = None
    reason: str | None = None
    error: str | None = None
    holder: str | None = None
    at: Instant = 0


class Release(NamedTuple):
    """The holder left: what it held returns, uncounted unless it was received. Outcome: Released."""

    desk: str
    token: str
    reason: str | None = None
    at: Instant = 0


class Sweep(NamedTuple):
    """End lost leases, expire, forget; at most ``limit`` of each kind in one go. Outcome: Swept."""

    limit: int = 200
    at: Instant = 0


class Note(NamedTuple):
    """A fact for the journal that changes no message: connected, disconnected, refused. Outcome: Noted."""

    event: str
    desk: str
    mailbox: str = ""
    holder: str | None = None
    reason: str | None = None
    error: str | None = None
    message_id: str = ""
    kind: str = ""
    sender: str = ""
    size_bytes: int = 0
    detail: Mapping[str, Any] | None = None
    at: Instant = 0


class Start(NamedTuple):
    """A process took the store: journal the policies, end the leases of the process before. Outcome: Started."""

    policies: Mapping[str, Policy]
    restored_from: Mapping[str, Any] | None = None
    at: Instant = 0


class Shift(NamedTuple):
    """The clock was set by ``by_us``: waits and leases keep their length. Outcome: Shifted."""

    by_us: int
    at: Instant = 0


class Hasten(NamedTuple):
    """Whoever a mailbox is for is there: what waits in it after a failed attempt is due now. Outcome: Hastened."""

    desk: str
    mailbox: str
    at: Instant = 0


class Redrive(NamedTuple):
    """Give dead (or expired, cancelled, uncertain) messages a new life, in order. Outcome: Redriven."""

    filter: Filter
    limit: int = 1_000
    rate_per_s: float | None = None
    dry_run: bool = False
    holder: str | None = None
    at: Instant = 0


class Cancel(NamedTuple):
    """Finish an unfinished message without delivery. Outcome: Settled, Refused or NotFound."""

    ref: Ref
    reason: str | None = None
    holder: str | None = None
    at: Instant = 0


class Park(NamedTuple):
    """Set a message aside; its lane goes on. Outcome: Settled, Refused or NotFound."""

    ref: Ref
    reason: str | None = None
    holder: str | None = None
    at: Instant = 0


class Unpark(NamedTuple):
    """Return parked messages to their lanes with a new expiry. Outcome: Redriven."""

    filter: Filter
    limit: int = 1_000
    dry_run: bool = False
    holder: str | None = None
    at: Instant = 0


class Pause(NamedTuple):
    """Stop leasing from a mailbox, or from one lane of it. Outcome: Switched."""

    desk: str
    mailbox: str
    lane: str | None = None
    reason: str = "operator"
    holder: str | None = None
    at: Instant = 0


class Resume(NamedTuple):
    """Undo Pause, or unblock a lane that poison paused. Outcome: Switched."""

    desk: str
    mailbox: str
    lane: str | None = None
    holder: str | None = None
    at: Instant = 0


class Purge(NamedTuple):
    """Cancel unfinished messages, and remove finished ones from sight. Outcome: Purged."""

    filter: Filter
    limit: int = 1_000
    dry_run: bool = False
    holder: str | None = None
    at: Instant = 0


class Keep(NamedTuple):
    """Keep a fact of a role's own (a block, a registered key) under a shelf and a key. Outcome: Kept.

    It is no message and no message's state, so the journal has no word of it.
    """

    shelf: str
    key: str
    value: bytes | None
    """None: keep it no longer."""
    at: Instant = 0


class Together(NamedTuple):
    """All or nothing: the first outcome that is not success undoes the group and is its outcome."""

    commands: tuple[Command, ...]
    at: Instant = 0


Single = (
    Post
    | Lease
    | Renew
    | Settle
    | Release
    | Sweep
    | Note
    | Start
    | Shift
    | Hasten
    | Redrive
    | Cancel
    | Park
    | Unpark
    | Pause
    | Resume
    | Purge
    | Keep
)
Command = Single | Together

REDRIVABLE = frozenset({State.DEAD, State.EXPIRED, State.CANCELLED, State.UNCERTAIN})
PURGEABLE = frozenset(State) - {State.DELIVERED}
assert FINISHED - {State.DELIVERED} <= PURGEABLE
