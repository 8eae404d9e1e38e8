"""The way out: what one agent is sent, in order, at the pace at which it proves to receive it.

In: posts for this agent, outcomes of its leases, pongs and confirmations. Out: frames on its line, leases,
and settlements of what it received. Nothing is sent that is not leased, and nothing leased overtakes.

    waiting ──start──▶ flushing ──all written──▶ live
                          ▲                       │ no room, or more there than was asked for
                          └──── it has room ◀── behind

- flushing: what is stored is leased without bodies, announced (the first time), and written batch by batch:
  a page of bodies, a ping behind it, the next when the pong is there and the pause is over. What is posted
  meanwhile stays in the mailbox, behind.
- live: each submission with a post for this agent carries its lease. Whoever is written to may confirm at
  once; a ping is sent only for what was not confirmed after a while.
- behind: too much is unreceived. Nothing is leased until receipts have made room; then it is flushed.
"""

from __future__ import annotations

import enum
import logging
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ..mailbox.command import Lease, Park, Settle, Verdict
from ..mailbox.message import Message, Ref
from ..mailbox.outcome import Leased, Settled
from ..wire.envelope import queue_status
from .receipts import Receipts, Sent

if TYPE_CHECKING:
    from .house import House
    from .session import Session

log = logging.getLogger("posthouse.relay")

FIRST_MAX = 100_000
"""What the first lease of a connection takes at most: more than a mailbox holds."""
NEXT_MAX = 1_000
"""What later leases of a flush take."""
NO_ID = "relay:"
"""Begins the ids that the relay gives to envelopes without one."""
SLACK = 16
"""A live lease asks for so many more than were posted with it: if they come, there is more in the mailbox."""

RECEIVED = Verdict.RECEIVED
DELIVERED = Verdict.DELIVERED


class Stage(enum.Enum):
    """Where the way out stands."""

    WAITING = "waiting"
    FLUSHING = "flushing"
    LIVE = "live"
    BEHIND = "behind"
    ENDED = "ended"


class Queued(NamedTuple):
    """One message of a flush that is leased and not written yet."""

    ref: Ref
    confirmable: bool
    live: bool


class Asked(NamedTuple):
    """What a lease was asked for with."""

    flush: bool
    limit: int
    posts: int
    posts_bytes: int


class Outflow:
    """One session's way out."""

    __slots__ = (
        "_ahead", "_announced", "_asked", "_house", "_leasing", "_next_at", "_page", "_planned", "_posts",
        "_posts_bytes", "_queue", "_reading", "_reserved", "_reserved_bytes", "_session", "receipts", "stage",
    )  # fmt: skip

    def __init__(self, session: Session, house: House) -> None:
        self._session = session
        self._house = house
        self.receipts = Receipts()
        self.stage = Stage.WAITING
        self._announced = False
        # Posts for this agent in the submission that gathers, and in those that are not answered yet.
        self._posts = 0
        self._posts_bytes = 0
        self._reserved = 0
        self._reserved_bytes = 0
        self._asked = 0  # leases without an answer
        self._leasing = False  # a lease for a flush is wanted or under way
        # A flush: what is leased and not written, which of it is still to be written, the page that was read.
        self._queue: deque[Queued] = deque()
        self._ahead: set[Ref] = set()
        self._page: Sequence[bytes | None] | None = None
        self._reading = False
        self._next_at = 0.0
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
            self._ahead.discard(ref)
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

    def end(self) -> None:
        """The session has left: nothing goes out any more, and nothing is leased."""
        self.stage = Stage.ENDED
        self._house.submissions.unwant_lease(self)
        self._queue.clear()
        self._ahead.clear()
        self._page = None

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
        if asked.flush:
            self._begin_flush(outcome)
        else:
            self._send_live(outcome)
            if len(outcome.deliveries) >= asked.limit and self.stage is Stage.LIVE:
                self._fall_behind()
        self.advance()

    def _send_live(self, outcome: Leased) -> None:
        send, sent = self._session.line.send, self.receipts.sent
        size_total = 0
        for delivery in outcome.deliveries:
            message = delivery.message
            body = message.body
            send(body)
            size = len(body)
            size_total += size
            sent(Ref(message.desk, message.mailbox, message.sender, message.id), _is_confirmed(message), size,
                 delivery.live)  # fmt: skip
        if outcome.deliveries:
            stats = self._house.stats
            stats.delivered_frames += len(outcome.deliveries)
            stats.delivered_bytes += size_total
            self._ask_receipt()

    # A flush.

    def _lease_to_flush(self) -> None:
        self.stage = Stage.FLUSHING
        self._leasing = True
        self._house.submissions.want_lease(self)

    def _begin_flush(self, outcome: Leased) -> None:
        self._leasing = False
        deliveries = outcome.deliveries
        if not self._announced:
            self._announced = True
            if deliveries:
                self._session.line.send(queue_status(len(deliveries)))
        if deliveries:
            self._house.stats.flushes += 1
        for delivery in deliveries:
            message = delivery.message
            ref = message.ref
            self._queue.append(Queued(ref, _is_confirmed(message), delivery.live))
            self._ahead.add(ref)

    def advance(self) -> None:
        """Take the next step, if there is one to take now."""
        house = self._house
        if self.stage is Stage.BEHIND:
            # What was posted with a lease of its own is before what waits: its outcome comes first.
            if not self._asked and not self._posts and len(self.receipts.frames) < house.settings.batch:
                self._lease_to_flush()
            return
        if self.stage is not Stage.FLUSHING or self._leasing or self._reading:
            return
        while self._queue and self._queue[0].ref not in self._ahead:
            self._drop_first()
        if not self._queue:
            # All is written. What was posted meanwhile comes with this lease, what is posted now with its own.
            self.stage = Stage.LIVE
            house.submissions.want_lease(self)
            return
        if self.receipts.frames:
            return
        if self._page is None:
            self._reading = True
            refs = [queued.ref for queued in _first(self._queue, house.settings.batch)]
            house.pages.read(refs, self._page_read)
        elif house.port.monotonic() >= self._next_at:
            self._write_page()

    def _drop_first(self) -> None:
        """A message that was confirmed before it was written again."""
        self._queue.popleft()
        if self._page is not None:
            self._page = self._page[1:] or None

    def _page_read(self, bodies: Sequence[bytes | None] | BaseException) -> None:
        self._reading = False
        if self.stage is Stage.ENDED:
            return
        if isinstance(bodies, BaseException):
            log.warning("a page for %s cannot be read: %s", self._session.address, bodies)
            self._session.store_failed()
            return
        self._page = bodies
        self.advance()

    def _write_page(self) -> None:
        house, session, receipts = self._house, self._session, self.receipts
        settings, line = house.settings, session.line
        page, self._page = self._page, None
        assert page is not None
        frames = size_total = 0
        for body in page:
            queued = self._queue.popleft()
            if queued.ref not in self._ahead:
                continue
            self._ahead.discard(queued.ref)
            if body is None:
                self._set_aside(queued.ref)
                continue
            line.send(body)
            receipts.sent(queued.ref, queued.confirmable, len(body), queued.live)
            frames += 1
            size_total += len(body)
            if receipts.bytes >= settings.unreceived_bytes_max or line.buffered() >= settings.buffered_bytes_max:
                # The rest of the page is read again when these have arrived.
                break
        house.stats.delivered_frames += frames
        house.stats.flushed_frames += frames
        house.stats.delivered_bytes += size_total
        if frames:
            self.ping()
            self._next_at = house.port.monotonic() + settings.batch_pause_s
            house.port.later(settings.batch_pause_s, self.advance)
        else:
            self.advance()

    def _set_aside(self, ref: Ref) -> None:
        # Either somebody finished it since it was leased (then this is refused), or its bytes are damaged.
        self._house.submissions.add(Park(ref, "corrupt", self._session.holder), self._was_set_aside, ref)

    def _was_set_aside(self, outcome: Any, ref: Ref) -> None:
        if type(outcome) is Settled:
            self._house.stats.set_aside += 1
            log.warning("the stored message %r for %s cannot be read: it is set aside", ref.id, ref.mailbox)

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


def _is_confirmed(message: Message) -> bool:
    """Whether its recipient will confirm it (by its id, so one without never is); else the receipt finishes it."""
    return message.kind == "message" and not message.id.startswith(NO_ID)


def _first(queue: deque[Queued], n: int) -> list[Queued]:
    return [queue[i] for i in range(min(n, len(queue)))]
