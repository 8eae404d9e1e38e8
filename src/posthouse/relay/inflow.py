"""The way in: what one authenticated agent sends.

In: its frames. Out: posts, confirmations and blocks for the engine, notices to the agent where one is due, and
a note in the journal of everything refused at the door. It never forwards: what is posted reaches its
recipient through the recipient's own lease.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from ..errors import BadAddress, BadEnvelope
from ..mailbox.command import Note, Post, Settle, Together, Verdict
from ..mailbox.event import REFUSED
from ..mailbox.message import Message, Ref
from ..mailbox.outcome import Done, Duplicate, Posted, Refused, Settled
from ..wire.address import parse_address
from ..wire.envelope import (
    ENVELOPE_BYTES_MAX,
    RELAY_ONLY,
    Envelope,
    MessageType,
    id_text,
    is_disguised,
    kind_of,
    parse,
    queue_full,
    rate_limited,
)
from .limits import Bucket

if TYPE_CHECKING:
    from .house import House
    from .session import Session

# Plain numbers: they are compared once or more for each frame.
_CONFIRM = int(MessageType.DELIVERY_CONFIRM)
_BLOCK = int(MessageType.BLOCK_NOTIFICATION)
_UNBLOCK = int(MessageType.UNBLOCK_NOTIFICATION)
_BLOCKS = (_BLOCK, _UNBLOCK)
_RELAY_ONLY = frozenset(int(member) for member in RELAY_ONLY)
_DELIVERED: Final = Verdict.DELIVERED

STRANGE_CONFIRMS_MAX = 256
"""Confirmations that match nothing, at once; then they are limited, until the rate has made up for them."""
NOTED_EVERY_S = 1.0
"""A connection's rate-limited frames are noted in the journal so often; all are counted."""

Waiting = tuple[str, bytes, int]
"""Of a post without an answer: its recipient, its id as it came, its size."""


class Inflow:
    """One session's way in."""

    __slots__ = (
        "_address", "_bucket", "_desk", "_house", "_limited_noted_at", "_paused", "_session", "_strange",
        "_unanswered", "_unanswered_bytes",
    )  # fmt: skip

    def __init__(self, session: Session, house: House, bucket: Bucket | None) -> None:
        self._session = session
        self._house = house
        self._address = session.address
        self._desk = house.settings.desk
        self._bucket = bucket
        self._strange: Bucket | None = None
        self._limited_noted_at = -math.inf
        self._unanswered = 0
        self._unanswered_bytes = 0
        self._paused = False

    def frame(self, data: bytes, now: float) -> None:
        """A frame came."""
        house = self._house
        house.stats.frames += 1
        size_bytes = len(data)
        if size_bytes > ENVELOPE_BYTES_MAX:
            self._session.oversize(size_bytes)
            return
        try:
            envelope = parse(data)
        except BadEnvelope:
            if self._may_pass(now, size_bytes):
                house.stats.unparseable += 1
            return
        type = envelope.type
        if type == _CONFIRM:
            self._confirm(envelope, data, now)
            return
        if self._bucket is not None and not self._may_pass(now, size_bytes):
            return
        to = envelope.to_address
        if envelope.from_address != self._address:
            self._refuse("spoofed", envelope, size_bytes)
            return
        if type in _BLOCKS:
            self._block(envelope, size_bytes)
            return
        if type in _RELAY_ONLY:
            self._refuse("forbidden_type", envelope, size_bytes)
            return
        if is_disguised(envelope):
            self._refuse("malformed", envelope, size_bytes)
            return
        recipient = house.online.get(to)
        if recipient is None and not self._is_ours(to):
            self._refuse("bad_address", envelope, size_bytes)
            return
        if house.blocks.has(to, self._address):
            self._refuse("blocked", envelope, size_bytes)
            return
        message_id = envelope.message_id
        id = id_text(message_id) if message_id else house.new_id()
        message = Message(self._desk, to, id, data, self._address, "", kind_of(type))
        self._wait_for(size_bytes)
        house.submissions.add(Post(message), self._posted, (to, message_id, size_bytes))
        if recipient is not None:
            recipient.outflow.expect(size_bytes)

    # Posts.

    def _posted(self, outcome: Any, waiting: Waiting) -> None:
        self._answered(waiting[2])
        kind = type(outcome)
        if kind is Posted:
            self._house.stats.posted += 1
        elif kind is Duplicate:
            self._house.stats.duplicates += 1
        elif kind is Refused:
            self._house.stats.refused[outcome.reason] += 1
            told = self._house.full_reasons.get(outcome.reason)
            if told is not None:
                self._notify(queue_full(waiting[0], told, waiting[1]))
        else:
            self._session.store_failed()

    # Confirmations.

    def _confirm(self, envelope: Envelope, data: bytes, now: float) -> None:
        """The agent confirms a message: it is finished, and whoever sent it is told, in one step or not at all."""
        house, address = self._house, self._address
        to = envelope.to_address
        size_bytes = len(data)
        confirm = envelope.delivery_confirm
        ref = Ref(self._desk, address, to, id_text(confirm.message_id))
        honest = envelope.from_address == address
        known = honest and self._session.outflow.receipts.is_unconfirmed(ref)
        if not known and not self._may_pass_strange(now, size_bytes):
            return
        if not honest:
            self._count_strange(now)
            self._refuse("spoofed", envelope, size_bytes)
            return
        recipient = house.online.get(to)
        if recipient is None and not self._is_ours(to):
            self._count_strange(now)
            self._refuse("bad_address", envelope, size_bytes)
            return
        if not ref.id:
            self._count_strange(now)
            self._refuse("unmatched", envelope, size_bytes)
            return
        live = self._session.outflow.confirmed(ref)
        settle = Settle(ref, None, _DELIVERED, holder=self._session.holder)
        self._wait_for(size_bytes)
        if house.blocks.has(to, address):
            # The message has arrived all the same; only its sender does not want to hear from this agent.
            self._refuse("blocked", envelope, size_bytes)
            house.submissions.add(settle, self._confirmed, (ref, size_bytes))
            return
        # Outside what the agent signed: the relay alone knows whether the message waited.
        if confirm.was_stored != (not live):
            confirm.was_stored = not live
            data = envelope.SerializeToString()
        message = Message(self._desk, to, f"confirm:{ref.id}", data, address, "", "delivery_confirm")
        house.submissions.add(Together((settle, Post(message, exempt=True))), self._confirmed, (ref, size_bytes))
        if recipient is not None:
            recipient.outflow.expect(len(data))

    def _confirmed(self, outcome: Any, waiting: tuple[Ref, int]) -> None:
        ref, size_bytes = waiting
        self._answered(size_bytes)
        kind = type(outcome)
        if kind is Done or kind is Settled:
            self._house.stats.confirmed += 1
        elif isinstance(outcome, BaseException):
            self._session.store_failed()
        else:
            self._count_strange(self._house.port.monotonic())
            self._note("unmatched", ref.sender, ref.id, "delivery_confirm", size_bytes)

    # Blocks.

    def _block(self, envelope: Envelope, size_bytes: int) -> None:
        """The agent wants nothing from another any more, or again."""
        house = self._house
        block = envelope.type == _BLOCK
        other = (
            envelope.block_notification.blocked_address if block else envelope.unblock_notification.unblocked_address
        )
        if not self._is_ours(other):
            self._refuse("bad_address", envelope, size_bytes)
            return
        command = house.blocks.add(self._address, other) if block else house.blocks.remove(self._address, other)
        if command is None:
            self._refuse("full", envelope, size_bytes)
            return
        self._wait_for(size_bytes)
        house.submissions.add(command, self._kept, size_bytes)

    def _kept(self, outcome: Any, size_bytes: int) -> None:
        self._answered(size_bytes)
        if isinstance(outcome, BaseException):
            self._session.store_failed()

    # At the door.

    def _is_ours(self, address: str) -> bool:
        """Whether it is a well-formed address of this relay."""
        try:
            return parse_address(address).host == self._house.settings.host
        except BadAddress:
            return False

    def _may_pass(self, now: float, size_bytes: int) -> bool:
        bucket = self._bucket
        wait_s = 0.0 if bucket is None else bucket.take(now)
        if wait_s:
            self._limit(wait_s, now, size_bytes)
        return not wait_s

    def _may_pass_strange(self, now: float, size_bytes: int) -> bool:
        """A confirmation of something that was not sent on this connection: whether it matches is known later.

        So none is limited for being one of many; only what follows too many that did not match.
        """
        wait_s = 0.0 if self._strange is None else self._strange.wait_s(now)
        if wait_s:
            self._limit(wait_s, now, size_bytes)
        return not wait_s

    def _count_strange(self, now: float) -> None:
        """A confirmation did not match."""
        if self._bucket is not None:
            if self._strange is None:
                settings = self._house.settings
                self._strange = Bucket(settings.rate_per_s, max(STRANGE_CONFIRMS_MAX, settings.rate_burst), now)
            self._strange.spend(now)

    def _limit(self, wait_s: float, now: float, size_bytes: int) -> None:
        settings = self._house.settings
        if now - self._limited_noted_at >= NOTED_EVERY_S:
            self._limited_noted_at = now
            self._note("rate_limited", "", "", "", size_bytes)
        else:
            self._house.stats.refused["rate_limited"] += 1
        reason = f"rate limit exceeded: {settings.rate_per_s:g} frames a second, {settings.rate_burst} at once"
        self._notify(rate_limited(max(math.ceil(wait_s * 1000), 1), reason))

    def _refuse(self, reason: str, envelope: Envelope, size_bytes: int) -> None:
        """Note a refusal in the journal; what the agent claims in it was not checked, so it is cut to size."""
        to = envelope.to_address
        recipient = to if len(to) <= _NAME_MAX and to.isprintable() and self._is_ours(to) else ""
        message_id = envelope.message_id
        self._note(reason, recipient, id_text(message_id) if message_id else "", kind_of(envelope.type), size_bytes)

    def _note(self, reason: str, mailbox: str, id: str, kind: str, size_bytes: int) -> None:
        house = self._house
        house.stats.refused[reason] += 1
        house.note(
            Note(
                REFUSED, self._desk, mailbox, self._session.holder, reason,
                message_id=id, kind=kind, sender=self._address, size_bytes=size_bytes,
            )
        )  # fmt: skip

    # Back-pressure.

    def _notify(self, frame: bytes) -> None:
        """Tell the agent; one that does not read what it is told is not read from."""
        if self._session.is_open:
            line = self._session.line
            line.send(frame)
            if not self._paused and line.buffered() >= self._house.settings.buffered_bytes_max:
                self._pause()

    def _wait_for(self, size_bytes: int) -> None:
        """One more frame is on its way to the disk."""
        house = self._house
        settings = house.settings
        self._unanswered = unanswered = self._unanswered + 1
        self._unanswered_bytes = bytes_ = self._unanswered_bytes + size_bytes
        house.unanswered_bytes += size_bytes
        if (
            unanswered >= settings.unanswered_max
            or bytes_ >= settings.unanswered_bytes_max
            or house.unanswered_bytes >= settings.unanswered_bytes_total_max
        ) and not self._paused:
            self._pause()

    def _answered(self, size_bytes: int) -> None:
        self._unanswered -= 1
        self._unanswered_bytes -= size_bytes
        self._house.unanswered_bytes -= size_bytes
        if self._paused:
            self.resume()

    def _pause(self) -> None:
        self._paused = True
        self._house.paused[self] = None
        self._session.line.pause_reading()

    def resume(self) -> None:
        """Read again, if there is room again."""
        house = self._house
        settings = house.settings
        if (
            self._paused
            and self._session.is_open
            and self._unanswered <= settings.unanswered_max // 2
            and self._unanswered_bytes <= settings.unanswered_bytes_max // 2
            and house.unanswered_bytes <= settings.unanswered_bytes_total_max // 2
            and self._session.line.buffered() < settings.buffered_bytes_max
        ):
            self._paused = False
            house.paused.pop(self, None)
            self._session.line.resume_reading()

    def end(self) -> None:
        """The session has left."""
        self._house.paused.pop(self, None)


_NAME_MAX = 512
