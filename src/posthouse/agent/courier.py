"""The courier: what was taken from the outbox and is not confirmed yet. It outlives connections.

    leased, waiting ── written, a ping behind it ──→ leased, written ── pong ──→ received ── confirmation ──→ delivered
         ↑ ↑                                              │                        │
         │ └────── rate limited, connection lost ─────────┘                        │
         └──────── refused as full: later, in its old place ───────────────────────┤
         └──────── not confirmed for an hour, then two, four …: once more ─────────┘

The relay acknowledges nothing. A pong proves that it read what was written before the ping; only the recipient's
confirmation finishes a message. So after a pong a message is not sent again at each reconnect (the relay has it, and
so has its store), but only when no confirmation came for long: the instant of the pong is kept as its progress, so a
restart does not forget it. Sending again is safe: the id is the same, and relay and recipient know it.

At most one message for each recipient is written and unproven, since a relay that discards a frame (rate limit) does
not say which: so order holds.

In: leases, pongs, refusals, confirmations and the time. Out: what to write, and commands for the engine.
It touches no socket and no store.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..mailbox.command import Command, Renew, Settle, Verdict
from ..mailbox.message import Ref
from ..mailbox.outcome import Delivery
from .desk import OUTBOX

RESEND_MS = 3_600_000
"""How long to wait for a confirmation before a message is sent again; each time as long as it has waited already."""
SETTLED_MS = 2_000
"""How long after its pong a relay may still refuse what nobody confirms (requests, blocks); then it is done."""
FULL_FIRST_S = 30.0
FULL_CAP_S = 900.0
CONFIRMED_KINDS = frozenset({"message"})


@dataclass(slots=True)
class Parcel:
    """One message of the outbox in our hands."""

    ref: Ref
    kind: str
    posted_at_ms: int
    handed_at_ms: int
    """When the relay had it for certain; 0: not yet."""
    attempt: int
    data: bytes | None
    """The envelope; not kept in memory while the relay has it."""
    mark: int | None = None
    """The number of the ping behind it."""

    def due_again_ms(self) -> int:
        """When to send it again."""
        return self.handed_at_ms + max(RESEND_MS, self.handed_at_ms - self.posted_at_ms)


class Courier:
    """Everything leased from the outbox under one token."""

    def __init__(self, token: str) -> None:
        self.token = token
        self._waiting: dict[str, deque[Parcel]] = {}
        self._written: dict[str, Parcel] = {}
        self._with_relay: dict[Ref, Parcel] = {}
        self._unanswered: dict[Ref, Parcel] = {}
        """Those with the relay that nobody will confirm: few, and for a moment only."""
        self._paused_until_s = 0.0

    @property
    def idle(self) -> bool:
        """Whether nothing waits to be written or proven."""
        return not self._waiting and not self._written

    @property
    def waiting(self) -> int:
        """How many wait in memory to be written."""
        return sum(map(len, self._waiting.values()))

    @property
    def unconfirmed(self) -> int:
        """How many the relay has that nobody confirmed yet."""
        return len(self._with_relay)

    def taken(self, deliveries: Iterable[Delivery], now_ms: int) -> list[Command]:
        """Take what was leased. What the relay has already is not written again before its time."""
        commands: list[Command] = []
        for delivery in deliveries:
            message = delivery.message
            parcel = Parcel(
                message.ref,
                message.kind,
                delivery.posted_at // 1_000,
                delivery.progress,
                delivery.attempt,
                message.body,
            )
            if parcel.handed_at_ms and now_ms < parcel.due_again_ms():
                self._hand_over(parcel)
                commands.append(Settle(parcel.ref, self.token, Verdict.RECEIVED))
            else:
                self._waiting.setdefault(message.mailbox, deque()).append(parcel)
        return commands

    def to_write(self, now_s: float) -> list[tuple[Ref, bytes]]:
        """What may be written now: the first for each recipient that has none unproven."""
        if now_s < self._paused_until_s:
            return []
        found: list[tuple[Ref, bytes]] = []
        for recipient in [r for r in self._waiting if r not in self._written]:
            parcel = self._waiting[recipient].popleft()
            if not self._waiting[recipient]:
                del self._waiting[recipient]
            assert parcel.data is not None
            parcel.mark = None
            self._written[recipient] = parcel
            found.append((parcel.ref, parcel.data))
        return found

    def marked(self, mark: int) -> bool:
        """A ping of this number goes behind what is written; False if there is nothing to prove."""
        unmarked = [parcel for parcel in self._written.values() if parcel.mark is None]
        for parcel in unmarked:
            parcel.mark = mark
        return bool(unmarked)

    def proven(self, mark: int, now_ms: int) -> list[Command]:
        """The pong of that ping came: the relay has read all before it."""
        commands: list[Command] = []
        for recipient, parcel in list(self._written.items()):
            if parcel.mark is not None and parcel.mark <= mark:
                del self._written[recipient]
                parcel.handed_at_ms = now_ms
                self._hand_over(parcel)
                commands.append(Settle(parcel.ref, self.token, Verdict.RECEIVED))
                commands.append(Renew(OUTBOX.name, self.token, parcel.ref, now_ms))
        return commands

    def settled(self, now_ms: int) -> list[Command]:
        """What nobody confirms and the relay had time to refuse is done."""
        done = [p.ref for p in self._unanswered.values() if now_ms >= p.handed_at_ms + SETTLED_MS]
        for ref in done:
            del self._unanswered[ref]
        return [Settle(ref, self.token, Verdict.DELIVERED) for ref in done]

    def overdue(self, now_ms: int) -> list[Ref]:
        """What waited too long for its confirmation."""
        return [parcel.ref for parcel in self._with_relay.values() if now_ms >= parcel.due_again_ms()]

    def again(self, refs: Sequence[Ref], bodies: Sequence[bytes | None]) -> None:
        """Write these once more; what has no body any more is let go."""
        for ref, body in zip(refs, bodies, strict=True):
            parcel = self._with_relay.pop(ref, None)
            if parcel is not None and body is not None:
                parcel.data = body
                self._waiting.setdefault(ref.mailbox, deque()).append(parcel)

    def limited(self, until_s: float) -> None:
        """The relay discarded a frame and does not say which: all unproven ones are written again, later."""
        self._paused_until_s = max(self._paused_until_s, until_s)
        self.lost()

    def full(self, recipient: str, id: str | None, now_us: int, error: str, jitter: float) -> list[Command]:
        """The recipient's queue refused a message (None: the relay does not say which; the last one is meant).

        It goes back to its old place and is tried later; those behind it wait. ``jitter`` is between 0 and 1.
        """
        hands = (self._with_relay, self._unanswered, self._written)
        held = [parcel for hand in hands for parcel in hand.values() if parcel.ref.mailbox == recipient]
        if id is None:
            held.sort(key=lambda parcel: (parcel.data is not None, parcel.handed_at_ms))
            parcel = held[-1] if held else None
        else:
            parcel = next((p for p in held if p.ref.id == id), None)
        if parcel is None:
            return []
        self._with_relay.pop(parcel.ref, None)
        self._unanswered.pop(parcel.ref, None)
        # The engine recalls what is leased behind it; it will be leased again when this one is due. What the relay
        # had before is not recalled.
        written = self._written.pop(recipient, None)
        for other in (*([written] if written else []), *self._waiting.pop(recipient, ())):
            if other.handed_at_ms and other is not parcel:
                self._hand_over(other)
        wait_s = min(FULL_FIRST_S * 2 ** min(parcel.attempt - 1, 10), FULL_CAP_S) * (0.75 + jitter / 2)
        due_at = now_us + int(wait_s * 1e6)
        forget = Renew(OUTBOX.name, self.token, parcel.ref, 0)
        return [forget, Settle(parcel.ref, self.token, Verdict.RETRY, due_at, "failed", error)]

    def confirmed(self, ref: Ref) -> None:
        """Its recipient has it."""
        self._with_relay.pop(ref, None)
        written = self._written.get(ref.mailbox)
        if written is not None and written.ref == ref:
            del self._written[ref.mailbox]
        waiting = self._waiting.get(ref.mailbox)
        if waiting is not None:
            left = deque(parcel for parcel in waiting if parcel.ref != ref)
            if left:
                self._waiting[ref.mailbox] = left
            else:
                del self._waiting[ref.mailbox]

    def _hand_over(self, parcel: Parcel) -> None:
        parcel.data = None
        hand = self._with_relay if parcel.kind in CONFIRMED_KINDS else self._unanswered
        hand[parcel.ref] = parcel

    def lost(self) -> None:
        """The connection ended: whether the relay has what is unproven is unknown, so it is written again, first."""
        for recipient, parcel in self._written.items():
            parcel.mark = None
            self._waiting.setdefault(recipient, deque()).appendleft(parcel)
        self._written.clear()
