"""Effects: what a commit means to those who wait, and what it counts for.

In: the commands of a commit with their outcomes. Out: the mailboxes to ring for, the earliest instant
at which something ends, and counts. One pass per group, a fraction of a microsecond per command;
it never reads the store.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from ..mailbox.command import (
    Cancel,
    Command,
    Hasten,
    Keep,
    Lease,
    Note,
    Park,
    Pause,
    Post,
    Purge,
    Redrive,
    Release,
    Renew,
    Resume,
    Settle,
    Shift,
    Start,
    Sweep,
    Together,
    Unpark,
    Verdict,
)
from ..mailbox.message import SECOND, Instant, State
from ..mailbox.outcome import (
    Done,
    Duplicate,
    Hastened,
    Leased,
    LeaseLost,
    NotFound,
    Outcome,
    Posted,
    Purged,
    Redriven,
    Refused,
    Released,
    Renewed,
    Settled,
    Swept,
)
from ..mailbox.policy import Policy
from .bell import Key
from .stats import Counts

FAR: Instant = 2**63 - 1
TOKENS_MAX = 200_000
"""Holders whose mailbox is remembered; with more of them a whole desk is rung when one leaves."""
_READY: Final = State.READY
_RECEIVED: Final = State.RECEIVED
_PASSING: Final = (State.DELIVERED, State.CANCELLED)
_WORDS: Final[dict[State, str]] = {state: state.value for state in State}


class Effects:
    """Gathers what a group did; cleared for the next one by ``begin``."""

    def __init__(self, policies: Mapping[str, Policy], counts: Counts) -> None:
        self.counts = counts
        self.keys: set[Key] = set()
        self.desks: set[str] = set()
        self.everyone = False
        self.soonest: Instant = FAR
        """The earliest end of a wait or lease that the group is known to have begun."""
        self.unsure = False
        """Something else may end sooner: only the store knows."""
        self.shifted_us = 0
        self.leases_until: Instant = 0
        """The latest end of any lease so far: after it no lease is out."""
        self._quiet_us = {name: int(p.quiet_s * SECOND) for name, p in policies.items() if p.quiet_s}
        self._unlimited = frozenset(name for name, p in policies.items() if p.window_per_lane is None)
        self._leased_for_a_time = [name for name, p in policies.items() if p.lease_s is not None]
        self._waits_to_retry = frozenset(name for name, p in policies.items() if p.retry.delay_us(1))
        # Which mailbox a holder leased from, where only its leaving ends the lease: with thousands of
        # them (a relay's connections) one that leaves must not wake all others. None: from several.
        self._held_for_good = frozenset(policies) - frozenset(self._leased_for_a_time)
        self._mailboxes: dict[str, str | None] | None = {}

    def begin(self) -> None:
        """Forget the group before."""
        self.keys = set()
        self.desks = set()
        self.everyone = False
        self.soonest = FAR
        self.unsure = False
        self.shifted_us = 0

    def gather(self, commands: Sequence[Command], outcomes: Sequence[Outcome]) -> None:
        """Add what these commands did."""
        keys, quiet_us = self.keys, self._quiet_us
        posted: dict[str, int] = {}
        command: Any  # its type is asked once
        outcome: Any
        for command, outcome in zip(commands, outcomes, strict=True):
            # What a busy engine does most comes first: posts in place, leases and settlements without a detour.
            kind = type(command)
            if kind is Post and type(outcome) is Posted:
                message = command.message
                desk = message.desk
                posted[desk] = posted.get(desk, 0) + 1
                due_at = message.due_at
                if due_at is not None and due_at > command.at:
                    if due_at < self.soonest:
                        self.soonest = due_at
                elif desk in quiet_us and command.quiet:
                    # Not leasable yet; a lane that is quiet already waits no longer than this.
                    ends_at = command.at + quiet_us[desk]
                    if ends_at < self.soonest:
                        self.soonest = ends_at
                else:
                    keys.add((desk, message.mailbox))
            elif kind is Lease:
                self._lease(command, outcome)
            elif kind is Settle:
                self._settle(command, outcome)
            else:
                _GATHER[kind](self, command, outcome)
        for desk, count in posted.items():
            self._count(desk, "posted", count)

    def _count(self, desk: str, word: str, by: int = 1) -> None:
        try:
            self.counts[desk, word] += by
        except KeyError:
            self.counts[desk, word] = by

    def _until(self, instant: Instant) -> None:
        if instant < self.soonest:
            self.soonest = instant

    def _post(self, command: Post, outcome: Duplicate | Refused) -> None:
        if type(outcome) is Duplicate:
            self._count(command.message.desk, "duplicate")
        else:
            self._failed(command.message.desk, outcome)

    def _failed(self, desk: str, outcome: Any) -> None:
        if type(outcome) is Refused:
            self._count(desk, f"refused_{outcome.reason}")
        elif type(outcome) is LeaseLost:
            self._count(desk, "lease_lost")
        elif type(outcome) is NotFound:
            self._count(desk, "not_found")

    def _lease(self, command: Lease, outcome: Leased) -> None:
        if type(outcome) is not Leased:
            self._failed(command.desk, outcome)
            return
        deliveries = outcome.deliveries
        if not deliveries:
            self._count(command.desk, "nothing_due")
            if command.desk in self._quiet_us:
                # The walk found when a quiet period ends, which no post of this process may have told.
                self.unsure = True
            return
        self._count(command.desk, "leased", len(deliveries))
        ends_at = deliveries[0].lease_ends_at
        if ends_at is not None:
            self._until(ends_at)
            if ends_at > self.leases_until:
                self.leases_until = ends_at
        if command.desk in self._held_for_good:
            self._remember(command.token, deliveries[0].message.mailbox)

    def _remember(self, token: str, mailbox: str) -> None:
        tokens = self._mailboxes
        if tokens is None:
            return
        if tokens.setdefault(token, mailbox) != mailbox:
            tokens[token] = None
        if len(tokens) > TOKENS_MAX:
            # To forget only some would be wrong: a forgotten one that leases elsewhere looks like a new one.
            self._mailboxes = None

    def _renew(self, command: Renew, outcome: Renewed | LeaseLost) -> None:
        if type(outcome) is not Renewed:
            self._failed(command.desk, outcome)
        elif outcome.lease_ends_at is not None and outcome.lease_ends_at > self.leases_until:
            # It ends later than before; the timer finds that out when it looks.
            self.leases_until = outcome.lease_ends_at

    def _settle(self, command: Settle | Cancel | Park, outcome: Settled | LeaseLost | NotFound | Refused) -> None:
        ref = command.ref
        if type(outcome) is not Settled:
            self._failed(ref.desk, outcome)
            return
        state, due_at = outcome.state, outcome.due_at
        if state is not _READY:
            self._count(ref.desk, _WORDS[state])
        else:
            counted = type(command) is Settle and command.verdict is not Verdict.RETURN
            self._count(ref.desk, "retried" if counted else "released")
        if state is _READY and due_at is not None and due_at > command.at:
            # It holds its lane until then.
            self._until(due_at)
        elif state is _RECEIVED or (ref.desk in self._unlimited and state in _PASSING):
            # It held nobody up, so nothing becomes leasable by its going.
            pass
        else:
            self.keys.add((ref.desk, ref.mailbox))

    def _release(self, command: Release, outcome: Released) -> None:
        if type(outcome) is not Released:
            self._failed(command.desk, outcome)
            return
        mailbox = self._mailboxes.pop(command.token, None) if self._mailboxes else None
        if not outcome.count:
            return
        self._count(command.desk, "released", outcome.count)
        if command.desk in self._waits_to_retry:
            # What had been received comes back as a failed attempt, with a wait of its own.
            self.unsure = True
        if mailbox is None:
            self.desks.add(command.desk)
        else:
            self.keys.add((command.desk, mailbox))

    def _sweep(self, command: Sweep, outcome: Swept) -> None:
        for desk, mailbox, count in outcome.expired:
            self._count(desk, "expired", count)
            # It may have held up what comes behind it.
            self.keys.add((desk, mailbox))
        if outcome.lost:
            # Whose leases they were, nobody says. It is rare: a holder died without a word.
            self.desks.update(self._leased_for_a_time)
            self.unsure = True

    def _all(self, command: Start | Shift, outcome: Outcome) -> None:
        self.everyone = True
        self.unsure = True
        if type(command) is Shift:
            self.shifted_us += command.by_us
            self.leases_until += command.by_us

    def _hasten(self, command: Hasten, outcome: Hastened | Refused) -> None:
        if type(outcome) is not Hastened:
            self._failed(command.desk, outcome)
        elif outcome.count:
            self._count(command.desk, "hastened", outcome.count)
            self.keys.add((command.desk, command.mailbox))

    def _redrive(self, command: Redrive | Unpark, outcome: Redriven) -> None:
        if type(outcome) is not Redriven:
            self._failed(command.filter.desk, outcome)
        elif not command.dry_run:
            word = "redriven" if type(command) is Redrive else "unparked"
            for ref in outcome.refs:
                self._count(ref.desk, word)
                self.keys.add((ref.desk, ref.mailbox))
            # With a rate they are due one after another.
            self.unsure = True

    def _purge(self, command: Purge, outcome: Purged) -> None:
        if type(outcome) is not Purged:
            self._failed(command.filter.desk, outcome)
        elif not command.dry_run and outcome.cancelled:
            self._count(command.filter.desk, "cancelled", outcome.cancelled)
            if command.filter.mailbox is None:
                self.desks.add(command.filter.desk)
            else:
                self.keys.add((command.filter.desk, command.filter.mailbox))

    def _resume(self, command: Resume, outcome: Outcome) -> None:
        self.keys.add((command.desk, command.mailbox))
        self.unsure = True

    def _together(self, command: Together, outcome: Outcome) -> None:
        if type(outcome) is Done:
            self.gather(command.commands, outcome.outcomes)
        elif command.commands:
            self._count(_desk_of(command.commands[0]), "undone")

    def _nothing(self, command: Note | Pause | Keep, outcome: Outcome) -> None:
        pass


# Keyed by exact type, so each method is called with the command that it is written for.
_GATHER: dict[type, Any] = {
    Post: Effects._post,
    Lease: Effects._lease,
    Renew: Effects._renew,
    Settle: Effects._settle,
    Cancel: Effects._settle,
    Park: Effects._settle,
    Release: Effects._release,
    Sweep: Effects._sweep,
    Start: Effects._all,
    Shift: Effects._all,
    Hasten: Effects._hasten,
    Redrive: Effects._redrive,
    Unpark: Effects._redrive,
    Purge: Effects._purge,
    Resume: Effects._resume,
    Together: Effects._together,
    Note: Effects._nothing,
    Pause: Effects._nothing,
    Keep: Effects._nothing,
}


def _desk_of(command: Any) -> str:
    """The desk that a command is for, '' where it is for all."""
    for field in ("desk", "ref", "filter", "message"):
        value = getattr(command, field, None)
        if value is not None:
            return value if isinstance(value, str) else str(value.desk)
    return ""
