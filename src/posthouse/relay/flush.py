"""A flush: messages that are leased and wait to be written, batch by batch.

In: what a lease took, without bodies; receipts. Out: frames on the line, a ping behind each batch. Bodies come in
pages, the next one while the batch before is on its way. A batch is written when all before it is
received and the pause is over, so no more than one is ever unreceived.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from ..mailbox.command import Park
from ..mailbox.message import Message, Ref
from ..mailbox.outcome import Delivery, Settled

if TYPE_CHECKING:
    from .house import House
    from .receipts import Receipts
    from .session import Session

log = logging.getLogger("posthouse.relay")

NO_ID = "relay:"
"""Begins the ids that the relay gives to envelopes without one."""


class Queued(NamedTuple):
    """One message that is leased and not written yet."""

    ref: Ref
    confirmable: bool
    live: bool


def is_confirmable(message: Message) -> bool:
    """Whether its recipient confirms it (by its id, so one without never is); else the receipt finishes it."""
    return message.kind == "message" and not message.id.startswith(NO_ID)


class Flush:
    """What one lease took, on its way out."""

    __slots__ = (
        "_advance", "_ahead", "_held_bytes", "_house", "_next_at", "_over", "_page", "_ping", "_queue", "_reading",
        "_reads_ahead", "_receipts", "_session",
    )  # fmt: skip

    def __init__(
        self,
        house: House,
        session: Session,
        receipts: Receipts,
        deliveries: Sequence[Delivery],
        advance: Callable[[], None],
        ping: Callable[[], None],
    ) -> None:
        """``advance`` is called when a pause is over or a page was read: then ``step`` may do something."""
        self._house = house
        self._session = session
        self._receipts = receipts
        self._advance = advance
        self._ping = ping
        self._queue = deque([Queued(d.message.ref, is_confirmable(d.message), d.live) for d in deliveries])
        self._ahead = {queued.ref for queued in self._queue}  # those that are still to be written
        self._page: Sequence[bytes | None] | None = None  # the bodies of the first of the queue
        self._held_bytes = 0
        self._reading = False
        self._reads_ahead = True
        self._next_at = 0.0
        self._over = False

    def skip(self, ref: Ref) -> None:
        """The agent has it from an earlier connection: it must not come again."""
        self._ahead.discard(ref)

    def step(self) -> bool:
        """Do what can be done now; True when all is written."""
        if self._reading or self._over:
            return False
        while self._queue and self._queue[0].ref not in self._ahead:
            self._drop_first()
        if not self._queue:
            return True
        waits = bool(self._receipts.frames)
        if self._page is None:
            if not waits or self._reads_ahead:
                self._reading = True
                refs = [queued.ref for queued in islice(self._queue, self._house.settings.batch)]
                self._house.pages.read(refs, self._page_read)
        elif not waits and self._house.port.monotonic() >= self._next_at:
            self._write()
        return False

    def end(self) -> None:
        """Nothing more goes out."""
        self._over = True
        self._queue.clear()
        self._drop_page()

    def _drop_first(self) -> None:
        self._queue.popleft()
        if self._page is not None:
            self._page = self._page[1:]
            if not self._page:
                self._drop_page()

    def _drop_page(self) -> None:
        self._page = None
        self._house.pages.let_go(self._held_bytes)
        self._held_bytes = 0

    def _page_read(self, bodies: Sequence[bytes | None] | BaseException) -> None:
        self._reading = False
        if self._over:
            return
        if isinstance(bodies, BaseException):
            log.warning("a page for %s cannot be read: %s", self._session.address, bodies)
            self._session.store_failed()
            return
        size_bytes = sum([len(body) for body in bodies if body is not None])
        if not self._house.pages.hold(size_bytes):
            if self._receipts.frames:
                # Too much is held for others: it is read again when it can be written at once.
                self._reads_ahead = False
                return
            size_bytes = 0
        self._page = bodies
        self._held_bytes = size_bytes
        self._advance()

    def _write(self) -> None:
        house, receipts, line = self._house, self._receipts, self._session.line
        settings, stats, port = house.settings, house.stats, house.port
        page = self._page
        assert page is not None
        self._drop_page()
        self._reads_ahead = True
        frames = 0
        for body in page:
            ref, confirmable, live = self._queue.popleft()
            if ref not in self._ahead:
                continue
            if body is None:
                self._set_aside(ref)
                continue
            line.send(body)
            receipts.sent(ref, confirmable, len(body), live)
            frames += 1
            if receipts.bytes >= settings.unreceived_bytes_max or line.buffered() >= settings.buffered_bytes_max:
                # The rest of the page is read again when these have arrived.
                break
        if frames:
            stats.delivered_frames += frames
            stats.flushed_frames += frames
            stats.delivered_bytes += receipts.bytes
            self._ping()
            self._next_at = port.monotonic() + settings.batch_pause_s
            port.later(settings.batch_pause_s, self._advance)
        port.soon(self._advance)

    def _set_aside(self, ref: Ref) -> None:
        # Either somebody finished it since it was leased (then this is refused), or its bytes are damaged.
        self._house.submissions.add(Park(ref, "corrupt", self._session.holder), self._was_set_aside, ref)

    def _was_set_aside(self, outcome: Any, ref: Ref) -> None:
        if type(outcome) is Settled:
            self._house.stats.set_aside += 1
            log.warning("the stored message %r for %s cannot be read: it is set aside", ref.id, ref.mailbox)
