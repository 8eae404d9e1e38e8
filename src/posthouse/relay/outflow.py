"""The way out: what one agent is sent, in order, at the pace at which it proves to receive it.

In: posts for this agent, outcomes of its leases, pongs and confirmations. Out: frames on its line, leases,
and settlements of what it received. Nothing is sent that is not leased, and nothing leased overtakes.

    waiting ──start──▶ flushing ──all written──▶ live
                          ▲                       │ no room, or more there than was asked for
                          └──── it has room ◀── behind

- flushing: what is stored is leased without bodies, announced (the first time), and written batch by batch
  (flush.py). What is posted meanwhile stays in the mailbox, behind.
- live: each submission with a post for this agent carries its lease. Whoever is written to may confirm at
  once; a ping is sent only for what was not confirmed after a while.
- behind: too much is unreceived. Nothing is leased until receipts have made room; then it is flushed.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ..mailbox.command import Lease, Settle, Verdict
from ..mailbox.message import Ref
from ..mailbox.outcome import Delivery, Leased
from ..wire.envelope import queue_status
from .flush import Flush, is_confirmable
from .receipts import Receipts, Sent

if TYPE_CHECKING:
    from .house import House
    from .session import Session

FIRST_MAX = 100_000
"""What the first lease of a connection takes at most: more than a mailbox holds."""
NEXT_MAX = 1_000
"""What later leases of a flush take."""
SLACK = 16
"""A live lease asks for so many more than were posted with it: if they come, there is more in the mailbox."""

RECEIVED: Final = Verdict.RECEIVED
DELIVERED: Final = Verdict.DELIVERED


class Stage(enum.Enum):
    """Where the way out stands."""

    WAITING = "waiting"
    FLUSHING = "flushing"
    LIVE = "live"
    BEHIND = "behind"
    ENDED = "ended"


class Asked(NamedTuple):
    """What a lease was asked for with."""

    flush: bool
    limit: int
    posts: int
    posts_bytes: int


class Outflow:
    """One session's way out."""

    __slots__ = (
        "_announced", "_asked", "_early", "_flush", "_house", "_leasing", "_planned", "_posts", "_posts_bytes",
        "_reserved", "_reserved_bytes", "_session", "has_leased", "receipts", "stage",
    )  # fmt: skip

    def __init__(self, session: Session, house: House) -> None:
        self._session = session
        self._house = house
        self.receipts = Receipts()
        self.stage = Stage.WAITING
        self.has_leased = False
        """Whether there may be something to give back."""
        self._announced = False
        # Posts for this agent in the submission that gathers, and in those that are not answered yet.
        self._posts = 0
        self._posts_bytes = 0
        self._reserved = 0
        self._reserved_bytes = 0
        self._asked = 0  # leases without an answer
        self._leasing = False  # a lease for a flush is wanted or under way
        self._flush: Flush | None = None
        self._early: set[Ref] = set()  # confirmed while a lease is under way that may take them
        self._planned = False  # a ping for a receipt

    @property
    def is_idle(self) -> bool:
        """Live, all that was written is received, and nothing is under way."""
        return self.stage is Stage.LIVE and not self.receipts.frames and not self._asked and not self._reserved

    # What others tell.

    def start(self) -> None:
        """The pause after authentication is over."""
        if self.stage is Stage.WAITING:
            self._lease_to_flush()

    def expect(self, size_bytes: int) -> None:
        """A post for this agent was just added to the submission that gathers."""
        if self.stage is not Stage.LIVE:
            return
        settings, receipts = self._house.settings, self.receipts
        frames = len(receipts.frames) + self._reserved
        bytes_out = receipts.bytes + self._reserved_bytes + size_bytes
        if frames >= settings.unreceived_frames_max or (frames and bytes_out > settings.unreceived_bytes_max):
            self._fall_behind()
            return
        self._posts += 1
        self._posts_bytes += size_bytes
        self._reserved += 1
        self._reserved_bytes += size_bytes
        if self._posts == 1:
            self._house.submissions.want_lease(self)

    def ring(self) -> None:
        """Something may have become leasable by another's hand."""
        if self.stage is Stage.LIVE:
            self._house.submissions.want_lease(self)

    def confirmed(self, ref: Ref) -> bool | None:
        """The agent confirms a message: whether it was delivered live, None if not on this connection."""
        known = self.receipts.confirmed(ref)
        if known is None:
            # It knows the message from an earlier connection: it must not come again.
            if self._flush is not None:
                self._flush.skip(ref)
            if self._asked or self._leasing:
                self._early.add(ref)
            return None
        live, received = known
        if received:
            self._receive(received)
            self.advance()
        return live

    def ponged(self, payload: bytes) -> bool:
        """A pong came: whether it was asked for."""
        received = self.receipts.ponged(payload)
        if received is None:
            return False
        self._receive(received)
        self.advance()
        if self.receipts.frames and self.stage is not Stage.ENDED:
            self._ask_receipt()
        return True

    def ping(self) -> None:
        """Ask for a sign of life and a receipt, unless that is under way."""
        if not self.receipts.pinging:
            self._house.stats.pings += 1
            self._session.line.ping(self.receipts.ping())

    def leave(self) -> None:
        """Nothing goes out any more but a last ping, behind what was written."""
        if self.receipts.frames:
            self.ping()
        self.end()

    def end(self) -> None:
        """The session has left: nothing goes out any more, and nothing is leased."""
        self.stage = Stage.ENDED
        self._house.submissions.unwant_lease(self)
        if self._flush is not None:
            self._flush.end()
            self._flush = None

    # Leases.

    def lease(self) -> tuple[Lease, Asked] | None:
        """The lease that stands behind the posts of the submission that is handed over now."""
        session = self._session
        flush = self._leasing
        if flush:
            assert not self._posts
            limit = NEXT_MAX if self._announced else FIRST_MAX
        elif self.stage is Stage.LIVE:
            limit = self._posts + SLACK
        elif self._posts:
            limit = self._posts
        else:
            return None
        asked = Asked(flush, limit, self._posts, self._posts_bytes)
        self._posts = 0
        self._posts_bytes = 0
        self._asked += 1
        self.has_leased = True
        return Lease(self._house.settings.desk, session.address, session.token, session.holder, limit, not flush), asked

    def leased(self, outcome: Any, asked: Asked) -> None:
        """What a lease took; if the session has left, its release is behind it and gives all back."""
        self._asked -= 1
        self._reserved -= asked.posts
        self._reserved_bytes -= asked.posts_bytes
        if self.stage is Stage.ENDED:
            return
        if type(outcome) is not Leased:
            self._session.store_failed()
            return
        deliveries = outcome.deliveries
        if self._early:
            deliveries = tuple([d for d in deliveries if d.message.ref not in self._early])
            if not self._asked:
                self._early.clear()
        if asked.flush:
            self._begin_flush(deliveries)
        else:
            self._send_live(deliveries)
            if len(outcome.deliveries) >= asked.limit and self.stage is Stage.LIVE:
                self._fall_behind()
        self.advance()

    def _send_live(self, deliveries: tuple[Delivery, ...]) -> None:
        send, sent = self._session.line.send, self.receipts.sent
        size_total = 0
        for delivery in deliveries:
            message = delivery.message
            body = message.body
            send(body)
            size = len(body)
            size_total += size
            sent(Ref(message.desk, message.mailbox, message.sender, message.id), is_confirmable(message), size,
                 delivery.live)  # fmt: skip
        if deliveries:
            stats = self._house.stats
            stats.delivered_frames += len(deliveries)
            stats.delivered_bytes += size_total
            self._ask_receipt()

    # A flush.

    def _lease_to_flush(self) -> None:
        self.stage = Stage.FLUSHING
        self._leasing = True
        self._house.submissions.want_lease(self)

    def _begin_flush(self, deliveries: tuple[Delivery, ...]) -> None:
        self._leasing = False
        if deliveries:
            self._house.stats.flushes += 1
            if not self._announced:
                self._session.line.send(queue_status(len(deliveries)))
        self._announced = True
        self._flush = Flush(self._house, self._session, self.receipts, deliveries, self.advance, self.ping)

    def advance(self) -> None:
        """Take the next step, if there is one to take now."""
        if self.stage is Stage.FLUSHING:
            if self._flush is not None and self._flush.step():
                # All is written. What was posted meanwhile comes with this lease, what is posted now with its own.
                self._flush = None
                self.stage = Stage.LIVE
                self._house.submissions.want_lease(self)
        elif self.stage is Stage.BEHIND:
            # What was posted with a lease of its own is before what waits: its outcome comes first.
            has_room = len(self.receipts.frames) < self._house.settings.batch
            if has_room and not self._asked and not self._posts:
                self._lease_to_flush()

    # Receipts.

    def _fall_behind(self) -> None:
        self.stage = Stage.BEHIND
        self._house.stats.slow += 1

    def _ask_receipt(self) -> None:
        """A ping behind what was written: at once in a flush, after a while where a confirmation may come."""
        if self.receipts.pinging:
            return
        if self.stage is Stage.FLUSHING or self.stage is Stage.BEHIND:
            self.ping()
        elif not self._planned:
            self._planned = True
            self._house.plan_receipt(self)

    def receipt_due(self) -> None:
        """The while is over."""
        self._planned = False
        if self.stage is not Stage.ENDED and self.receipts.frames:
            self.ping()

    def _receive(self, received: list[Sent]) -> None:
        """Settle what is proved to have arrived."""
        add, token, receipts = self._house.submissions.add, self._session.token, self.receipts
        for sent in received:
            if not sent.confirmable:
                add(Settle(sent.ref, token, DELIVERED), self._settled)
            elif receipts.is_unconfirmed(sent.ref):
                add(Settle(sent.ref, token, RECEIVED), self._settled)

    def _settled(self, outcome: Any, _: None) -> None:
        if isinstance(outcome, BaseException):
            self._session.store_failed()
