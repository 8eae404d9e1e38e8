"""The store port: what the engine asks of a store, in intentions, never in SQL.

``apply`` takes a batch of commands and makes their changes and events durable in one transaction;
when it returns, they are. It is called from one thread at a time. Read queries may be called from
any thread and see only what is committed.

How the commands behave, beyond their own docstrings; a store is right when it agrees with
``stores.memory`` in rows, outcomes and journal:

- Order among messages is by ``number``, one counter for the whole store; in a lane it is by ``seq``.
- Post looks for a duplicate first (a known id whose memory has ended at ``at`` is forgotten then),
  then asks ``rules.admit``. Refusals and duplicates write their event and take no number. An imported message's
  own ``posted_at`` (``at`` at the latest) takes the place of ``at`` in its row and for ``rules.expiry``, and stands
  in ``detail`` of its event.
- A lane can be leased when neither it nor its mailbox is paused and the walk along its messages in
  lane (ready, leased, received; in order) takes at least one: in flight ones are passed over; it ends
  when limit or window is reached (counting all in flight of the lane), or at one that is not due;
  one whose limit has passed is finished on the way (``rules.passed``), counted as it would be by Sweep.
- With a quiet period the first due message decides: a fixed batch is taken whole; one posted with
  quiet=False alone; else the run of consecutive ready messages with its batch_key, posted quiet, in no
  batch yet, due and not expired, once the lane was quiet (``rules.is_quiet`` from the head's posted_at
  and that of the lane's last message in lane) or a later message in the lane was posted quiet=False.
  The run's members get ``batch`` = the first id. A limit does not cut a batch. The ``leased`` events of
  a batch of two or more carry its first id.
- Lease by desk picks among mailboxes that have a lane to lease the least recently served one, in it the
  least recently served lane (never served first, then by creation), and takes from that lane only; mailboxes
  that it names in ``besides`` are passed over;
  served = the journal offset of its last ``leased`` event by such a lease. Lease by mailbox visits its
  lanes in that order, too, and those it takes from are served by it (the only lane of a mailbox needs no
  turn, so nothing is noted of it); the mailbox's own turn in its desk stays what it was. Where it names a
  lane it visits that one only, and the window is not asked (a quiet period is).
- A lease counts no attempt. ``attempt`` in events is the number of the attempt under way (counted + 1)
  on leased, received, and on what ends a lease; on other events, those counted so far.
- Recall: when a leased or received message fails (retried, returned, died, parked), those of its lane
  with a higher seq that are leased (not received) come back to ready, uncounted, unless they are of its
  batch and token. Not when it is delivered, uncertain, cancelled or parked by an operator, nor on Release.
- Release takes what the token holds in order of number. Received ones have failed (``unconfirmed``);
  of the others, the first of each lane adds to its ``unreceived`` (``rules.left``).
- Sweep: lost leases in order of (lease_ends_at, number), then expiry of ready and received messages, then
  what is kept long enough: a parked or uncertain one is cancelled, a finished one becomes a bare memory
  of its id, a memory past its time is forgotten. Order between lanes is the store's own.
- Start ends every lease in order of number: as Release does where lease_s is None, else as lost. No recall.
- A message that is set aside or finished leaves its lane; redriven and unparked, it returns to its place,
  with attempts, unreceived, progress and batch cleared.
- Hasten looks at the ready messages of one mailbox (``rules.hastened_due``); it counts nothing and writes no event.
- Keep compares bytes with what the shelf holds, commands before it in the batch included; it names no desk,
  writes no event and is undone with its group. A batch of nothing but such changes is a commit all the same.
- Together: an undone group leaves no event, number or row.

Where more than one reading was possible, this one holds:

- A store takes its input as checked (the engine checks it). A command that names a desk without a policy
  is Refused(UNKNOWN_DESK) and leaves no event; Sweep and Start leave the messages of such a desk alone.
  ``Refused.detail`` is the engine's to fill in. A Note of an event that is not NOTABLE is NOT_ALLOWED.
- ``due_at`` of a message is what its poster chose (0: none), then what the last retry, return or redrive
  set; it is 0 whenever the message is not ready. In the walk "not due" is looked at before "expired". In a
  lane the events of what expired on the way stand before those of what was leased. A lease by desk visits
  one lane after another, in order, until one gives something; what expired in those before is finished too.
- Of a fixed batch all ready members are taken, due or not, consecutive or not; expired ones are finished.
  A run of one is a batch too (its members are fixed), but only two or more taken are told in ``detail``.
- ``next_at`` looks at due_at of ready messages, lease_ends_at of those in flight, and, where the desk has
  a quiet period and nothing of the lane is in flight, at ``rules.quiet_until`` of its first and last. It may
  name an instant at which nothing can be leased, never miss one.
- Attempts: what is settled in flight (all verdicts but received and return), lost, or received and left
  counts one, and so does one left unreceived that dies (parked_full); an uncertain message was counted when
  it became so. Expiry, deadlines, operators, recall, release and parking the unreceived count none, though
  the event of a lease that ends carries the number under way. So the journal alone tells the attempts.
- Received again: Settled, no event. Received sets ``unreceived`` to 0 (holders are counted in a row).
- ``reason`` and ``error`` of a message are those of its last failed attempt (retried, returned, died,
  uncertain, lost, unconfirmed: error None where there is none). What ends it otherwise (expired, deadline,
  cancelled, parked, unreceived) sets the reason and keeps the error; delivered, released, recalled and a
  new life keep both. ``progress`` stays from lease to lease.
- Renew with a ref that the token does not hold renews nothing.
- ``Settled.due_at`` and the event's are ``at`` where the message is due at once. ``live`` is for delivered,
  by token or by id, while that first lease holds it. ``Duplicate.finished_at`` is None until it is finished.
- Finished where nothing is kept (history_s or aside_s 0), a message becomes a bare memory at once. A memory
  keeps number, ref, lane, kind, seq, state, posted_at, attempts, life, reason, error and since; the rest of
  its view is empty. It is in no count; ``message`` and ``find`` show it, ``messages`` does not, operators'
  commands act on it no more (Cancel and Park: FINISHED). Only Post and Sweep forget.
- Sweep looks at each kind in order of (the instant it became due, number); state is judged when it is its
  turn, so a recalled message has no lease to lose. Its limit holds for each of five kinds: lost, expired
  (deadlines too), set aside too long, kept long enough, known long enough; ``forgotten`` is the sum of the
  last three. A received message that dies at its deadline recalls its followers.
- In Start "the first of each lane" is over all leases together.
- Redrive, Unpark and Purge look at kept messages by number; the limit counts those changed, not those
  skipped. With a rate the n-th is due n / rate_per_s after ``at``, from 0. Unpark too begins a new life.
- A mailbox or lane that is paused comes into being, if it was not there. What is paused already stays as
  it is, without an event, also when poison would block it. An uncertain message can be parked.
- The oldest message is that with the lowest number. ``contains`` heeds case. A segment that is planned
  already is the answer of plan_segment; finishing one twice does nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from .command import Command, Filter
from .event import Event
from .message import Instant, Message, Ref, State
from .outcome import Outcome
from .policy import Policy


class MessageView(NamedTuple):
    """A message with its delivery state, as operators and tests see it. A bare memory has no body."""

    message: Message
    number: int
    seq: int
    state: State
    posted_at: Instant
    attempts: int
    unreceived: int
    life: int
    due_at: Instant
    expires_at: Instant | None
    token: str | None
    holder: str | None
    lease_ends_at: Instant | None
    progress: int
    batch: str | None
    reason: str | None
    error: str | None
    since: Instant | None
    """When it finished or was set aside."""
    memory: bool
    """Only its id and outcome are remembered."""
    quiet: bool = True
    """False: it was posted to end the wait of what is before it."""


class LaneView(NamedTuple):
    desk: str
    mailbox: str
    lane: str
    last_seq: int
    depth: int
    in_flight: int
    paused: str | None
    oldest_at: Instant | None


class MailboxView(NamedTuple):
    desk: str
    mailbox: str
    counts: Mapping[State, int]
    """Kept messages by state; states with none are absent."""
    lanes: int
    paused: str | None
    oldest_at: Instant | None
    """When its oldest message in lane was posted."""

    @property
    def depth(self) -> int:
        """What counts towards capacity."""
        c = self.counts
        return c.get(State.READY, 0) + c.get(State.LEASED, 0) + c.get(State.RECEIVED, 0)


class DeskView(NamedTuple):
    desk: str
    counts: Mapping[State, int]
    mailboxes: int
    oldest_at: Instant | None


class Chunk(NamedTuple):
    """The events of one commit as they were stored, chained by hash."""

    first: int
    last: int
    prev: bytes
    hash: bytes
    data: bytes


class Segment(NamedTuple):
    """One exported (or planned) range of the journal; boundaries are committed before a file is written."""

    first: int
    last: int
    prev: str
    chain: str
    """Hex; '' while only planned."""


class Store(Protocol):
    """Where messages live."""

    @property
    def node(self) -> str:
        """This store's name in the journal."""

    @property
    def policies(self) -> Mapping[str, Policy]:
        """The policies in force, by desk."""

    @property
    def durable(self) -> bool:
        """False: what it holds is gone when the process ends, and it says so."""

    def apply(self, commands: Sequence[Command]) -> list[Outcome]:
        """Apply a batch in one transaction with its events; return when it is durable."""

    def next_at(self, at: Instant) -> Instant | None:
        """The earliest instant after ``at`` at which a wait or a lease ends."""

    def desks(self) -> list[DeskView]:
        """Every desk of the policies, and those that still hold messages."""

    def mailboxes(
        self, desk: str | None = None, contains: str = "", after: tuple[str, str] | None = None, limit: int = 50
    ) -> list[MailboxView]:
        """A page of mailboxes in order of (desk, name)."""

    def mailbox(self, desk: str, name: str) -> MailboxView | None:
        """One mailbox, if anything was ever posted to it or it was paused."""

    def lanes(self, desk: str, mailbox: str, after: str | None = None, limit: int = 50) -> list[LaneView]:
        """A page of a mailbox's lanes in order of name."""

    def lane(self, desk: str, mailbox: str, name: str) -> LaneView | None:
        """One lane."""

    def in_lane(self, desk: str, mailbox: str, lane: str, limit: int = 50) -> list[MessageView]:
        """The messages that hold the lane, head first."""

    def message(self, ref: Ref) -> MessageView | None:
        """One message or what is remembered of it."""

    def find(self, id: str, limit: int = 50) -> list[MessageView]:
        """Messages with this id in any mailbox, by number."""

    def messages(self, filter: Filter, after: int = 0, limit: int = 50) -> list[MessageView]:
        """A page of kept messages by number; the filter's states, or all."""

    def bodies(self, refs: Sequence[Ref]) -> list[bytes | None]:
        """The bodies of these messages, None where there is none (any more)."""

    def kept(self, shelf: str, after: str = "", limit: int = 1_000) -> list[tuple[str, bytes]]:
        """A page of what a shelf holds: keys above ``after`` with their values, in order of the keys' code points."""

    def kept_value(self, shelf: str, key: str) -> bytes | None:
        """What a shelf holds under this key, None if nothing."""

    def offset(self) -> int:
        """The journal's last offset."""

    def chunks(self, after: int = 0) -> Iterator[Chunk]:
        """Journal chunks whose last offset is above ``after``, in order."""

    def events(self, after: int = 0) -> Iterator[tuple[int, int, Event]]:
        """(offset, commit, event) above ``after``, in order, as far as the store still has them."""

    def segments(self) -> list[Segment]:
        """Every exported segment and at most one planned, in order."""

    def plan_segment(self, last: int) -> Segment:
        """Commit the boundary of the next segment: from after the one before to ``last``, the end of a chunk."""

    def finish_segment(self, segment: Segment) -> None:
        """Record that the planned segment is on disk with its chain, and trim its chunks."""

    def close(self) -> None:
        """Let go of the store; what was applied stays."""
