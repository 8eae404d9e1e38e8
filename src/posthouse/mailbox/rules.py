"""Rules: every decision of the engine as a pure function. Stores select rows and make the change.

In: a policy, the facts of a message, the instant. Out: a decision. No clock, no state, no I/O.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from . import event as ev
from .command import Filter, Verdict
from .message import FINISHED, IN_FLIGHT, SECOND, Instant, Message, State
from .outcome import Refusal
from .policy import LostLease, OnExpiry, Poison, Policy, SettleBy


class Fate(NamedTuple):
    """What becomes of one message: its next state, the event that says so, and when it is due again.

    ``due_at`` is 0 where the message may be leased at once (and where it is not ready).
    """

    state: State
    event: str
    reason: str | None
    due_at: Instant = 0
    pause_lane: bool = False


def expiry(policy: Policy, message: Message, at: Instant) -> Instant | None:
    """When a message posted now passes: its own limit, else the desk's."""
    if message.expires_at is not None:
        return message.expires_at
    return None if policy.ttl_s is None else at + int(policy.ttl_s * SECOND)


def renewed_expiry(policy: Policy, own: Instant | None, posted_at: Instant, at: Instant) -> Instant | None:
    """The new limit of a message that is redriven or unparked; ``own`` is the one it was posted with."""
    if own is not None:
        return at + max(own - posted_at, SECOND)
    return None if policy.ttl_s is None else at + int(policy.ttl_s * SECOND)


def admit(policy: Policy, message: Message, depth: int, exempt: bool, at: Instant) -> Refusal | None:
    """Why a message that is no duplicate must be refused, or None."""
    if len(message.body) > policy.size_bytes_max:
        return Refusal.OVERSIZE
    if message.expires_at is not None and message.expires_at <= at:
        return Refusal.TTL
    if has_room(policy, depth) or exempt:
        return None
    return Refusal.FULL


def may_exceed_share(policy: Policy, depth: int, exempt: bool) -> bool:
    """Whether the sender's messages in the mailbox must be counted before one more is admitted."""
    return policy.sender_max is not None and depth >= policy.sender_max and not exempt


def has_room(policy: Policy, depth: int) -> bool:
    """Whether a mailbox with ``depth`` messages ready, leased or received takes one more."""
    return policy.capacity is None or depth < policy.capacity


def has_expired(expires_at: Instant | None, at: Instant) -> bool:
    """Whether the limit has passed."""
    return expires_at is not None and expires_at <= at


def lease_end(policy: Policy, at: Instant) -> Instant | None:
    """When a lease taken or renewed now ends; None: with its holder."""
    return None if policy.lease_s is None else at + int(policy.lease_s * SECOND)


def quiet_until(policy: Policy, first_at: Instant, last_at: Instant) -> Instant:
    """When a run that began at ``first_at`` may be leased, its lane's newest post being at ``last_at``."""
    return min(last_at + int(policy.quiet_s * SECOND), first_at + int(policy.quiet_max_s * SECOND))


def is_quiet(policy: Policy, first_at: Instant, last_at: Instant, at: Instant) -> bool:
    """Whether the wait is over. A clock that was set back ends it: nobody waits a day for a debounce."""
    return at >= quiet_until(policy, first_at, last_at) or at < last_at


def may_settle(policy: Policy, state: State, held_by: str | None, token: str | None, verdict: Verdict) -> bool:
    """Whether this caller may say this of a message; if not, the answer is LeaseLost."""
    if state in FINISHED:
        return False
    if state in IN_FLIGHT and token is not None and token == held_by:
        return True
    if verdict is Verdict.DELIVERED and policy.settle_by is SettleBy.ID:
        return True
    if token is not None:
        return False
    if state is State.UNCERTAIN:
        return verdict in (Verdict.DELIVERED, Verdict.RETRY, Verdict.DEAD, Verdict.REJECTED)
    # What an import brings may be dead already, or uncertain: nobody has to lease it for that to be said.
    return state is State.READY and verdict in (Verdict.DEAD, Verdict.REJECTED, Verdict.UNCERTAIN)


def is_revocable(policy: Policy, state: State) -> bool:
    """Whether an operator may take the message from its holder; if not, the answer is IN_FLIGHT."""
    return state not in IN_FLIGHT or policy.lost_lease is LostLease.RETRY


def exhausted(policy: Policy, parked: int, reason: str = "attempts") -> Fate:
    """The poison policy: what becomes of a message that must not be tried again."""
    if policy.poison is Poison.PARK:
        return parked_as(policy, parked, reason)
    return Fate(State.DEAD, ev.DIED, reason, pause_lane=policy.poison is Poison.BLOCK)


def parked_as(policy: Policy, parked: int, reason: str) -> Fate:
    """Set aside, or dead where the mailbox has as many parked messages as it may have."""
    if policy.parked_max is not None and parked >= policy.parked_max:
        return Fate(State.DEAD, ev.DIED, "parked_full")
    return Fate(State.PARKED, ev.PARKED, reason)


def failed(
    policy: Policy, attempts: int, parked: int, at: Instant, due_at: Instant | None = None, reason: str | None = None
) -> Fate:
    """After a counted attempt failed (``attempts`` includes it): when to try again, or poison."""
    if policy.attempts_max is not None and attempts >= policy.attempts_max:
        return exhausted(policy, parked)
    if due_at is None:
        due_at = at + policy.retry.delay_us(attempts)
    return Fate(State.READY, ev.RETRIED, reason or "failed", due_at if due_at > at else 0)


def lost(policy: Policy, attempts: int, parked: int, at: Instant) -> Fate:
    """A lease ran out (``attempts`` includes the lost one)."""
    if policy.lost_lease is LostLease.UNCERTAIN:
        return Fate(State.UNCERTAIN, ev.UNCERTAIN, "lease_lost")
    return failed(policy, attempts, parked, at, reason="lease_lost")


def left(policy: Policy, unreceived: int, parked: int, reason: str | None) -> Fate:
    """The holder left before the message was received; ``unreceived`` counts this time where it came first."""
    if policy.unreceived_max is not None and unreceived >= policy.unreceived_max:
        return parked_as(policy, parked, "unreceived")
    return Fate(State.READY, ev.RELEASED, reason or "left")


_DELIVERED: Final = Fate(State.DELIVERED, ev.DELIVERED, None)
"""What nearly every message comes to."""


def judged(policy: Policy, verdict: Verdict, reason: str | None) -> Fate:
    """What DELIVERED, RECEIVED, DEAD, REJECTED and UNCERTAIN lead to; the others depend on more."""
    if verdict is Verdict.DELIVERED:
        return _DELIVERED if reason is None else Fate(State.DELIVERED, ev.DELIVERED, reason)
    if verdict is Verdict.RECEIVED:
        return Fate(State.RECEIVED, ev.RECEIVED, reason)
    if verdict is Verdict.DEAD:
        return Fate(State.DEAD, ev.DIED, reason or "permanent", pause_lane=policy.poison is Poison.BLOCK)
    if verdict is Verdict.REJECTED:
        return Fate(State.DEAD, ev.DIED, reason or "rejected")
    assert verdict is Verdict.UNCERTAIN
    return Fate(State.UNCERTAIN, ev.UNCERTAIN, reason or "unknown")


def passed(policy: Policy) -> Fate:
    """What passing expires_at means at this desk."""
    if policy.on_expiry is OnExpiry.DIE:
        return Fate(State.DEAD, ev.DIED, "deadline")
    return Fate(State.EXPIRED, ev.EXPIRED, "ttl")


def kept_until(policy: Policy, state: State, since: Instant) -> Instant | None:
    """Until when a finished or set-aside message is kept whole; None: for ever."""
    if state in (State.DEAD, State.PARKED, State.UNCERTAIN):
        return None if policy.aside_s is None else since + int(policy.aside_s * SECOND)
    return since + int(policy.history_s * SECOND)


def known_until(policy: Policy, state: State, finished_at: Instant) -> Instant | None:
    """Until when a finished message's id is remembered: dedup_s, and as long as it is kept; None: for ever."""
    kept = kept_until(policy, state, finished_at)
    return None if kept is None else max(finished_at + int(policy.dedup_s * SECOND), kept)


def shifted_due(due_at: Instant, own: Instant | None, attempts: int, by_us: int) -> Instant:
    """The due time after the clock was set: a wait keeps its length, a date that the poster chose stays."""
    if due_at == 0 or (attempts == 0 and due_at == own):
        return due_at
    return max(due_at + by_us, 1)


def hastened_due(due_at: Instant, attempts: int, at: Instant) -> Instant:
    """The due time once the other side is there: a retry waits no longer; what was put off before it was tried does."""
    return 0 if attempts and due_at > at else due_at


def matches(
    filter: Filter, message: Message, state: State, posted_at: Instant, reason: str | None, error: str | None
) -> bool:
    """Whether an operator's filter selects this message (its ``states`` are the caller's to check)."""
    return (
        filter.desk == message.desk
        and filter.mailbox in (None, message.mailbox)
        and filter.lane in (None, message.lane)
        and filter.kind in (None, message.kind)
        and filter.sender in (None, message.sender)
        and filter.id in (None, message.id)
        and filter.reason in (None, reason)
        and (filter.error is None or filter.error == normalise_error(error))
        and (filter.since is None or posted_at >= filter.since)
        and (filter.until is None or posted_at < filter.until)
        and (not filter.states or state in filter.states)
    )


_VARIABLE = re.compile(
    r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"  # UUID
    r"|\b0[xX][0-9a-fA-F]+\b"
    r"|\b(?=[0-9a-fA-F]*[0-9])(?=[0-9a-fA-F]*[a-fA-F])[0-9a-fA-F]{8,}\b"  # a hash or key
    r"|\d+(?:\.\d+)?"
)


def normalise_error(error: str | None) -> str:
    """The error with what varies (UUIDs, hex and decimal numbers) replaced, so that like errors group."""
    return "" if not error else _VARIABLE.sub("#", error.strip())[:500]
