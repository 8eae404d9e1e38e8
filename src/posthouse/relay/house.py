"""The house: all that sessions share.

In: connections from the server, and through its port the engine's answers and time. Out: sessions. It knows who
is online, gathers their commands into submissions, and ends connections that have fallen silent. Timers are
few: one for all heartbeats, one for all receipts.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from ..errors import EngineClosed
from ..mailbox.command import Note, Release
from ..mailbox.event import CONNECTED, DISCONNECTED, REFUSED
from ..mailbox.outcome import Refusal
from .blocks import SHELF as BLOCKS
from .blocks import Blocks
from .flush import NO_ID
from .inflow import Inflow
from .limits import Bucket, Buckets
from .outflow import Outflow
from .page import Pages
from .port import Line, Port
from .session import (
    AUTH_TIMEOUT,
    GOING_AWAY,
    HEARTBEAT_TIMEOUT,
    POLICY_VIOLATION,
    SHUTTING_DOWN,
    Life,
    Session,
)
from .settings import Settings
from .stats import Stats
from .submission import Submissions
from .takeover import Takeovers

__all__ = ["BLOCKS", "Admits", "House"]

TICK_S = 0.5
LATE_S = 2.0
"""A tick that is later than this says nothing about the silence of others."""
FORGET_S = 30.0
RETRY_S = 1.0
"""After which a release that came to nothing is tried again."""

Admits = Callable[[bytes], str | None]
"""Given a public key: None, or the reason for which it is not admitted (``key not registered``)."""


class House:
    """Who is online, and what all connections share."""

    def __init__(
        self,
        settings: Settings,
        port: Port,
        *,
        capacity: int | None = 1_000,
        sender_max: int | None = None,
        admits: Admits | None = None,
    ) -> None:
        """``capacity`` and ``sender_max`` are those of the desk's policy: whoever finds no room is told them."""
        self.settings = settings
        self.port = port
        self.admits = admits
        self.stats = Stats()
        self.full_reasons = {
            Refusal.FULL: f"queue full: it holds {capacity} messages",
            Refusal.SHARE: f"queue full for this sender: it holds {sender_max} of {capacity} messages",
        }
        """What the sender of a message for which there is no room is told."""
        self.submissions = Submissions(port, self.stats, settings.submission_max)
        self.pages = Pages(port, settings.pages_max)
        self.blocks = Blocks(settings.blocks_max)
        self.buckets = Buckets(settings.rate_per_s, settings.rate_burst)
        self.takeovers = Takeovers(self)
        self.online: dict[str, Session] = {}
        """The admitted connection of each address."""
        self.unanswered_bytes = 0
        """Of frames that are not durable yet."""
        self.paused: dict[Inflow, None] = {}
        """Connections that are not read from."""
        self._sessions: set[Session] = set()
        self._strangers: dict[Session, float] = {}  # not authenticated yet, by age; until when they may be
        self._run = port.random_bytes(6).hex()
        self._opened = 0
        self._ids = 0
        # When to look at whom (token and address: what has left is not held); when it was seen before it was pinged.
        self._beats: list[tuple[float, str, str, float | None]] = []
        self._receipts: deque[tuple[float, Outflow]] = deque()
        self._receipts_planned = False
        self._unreleased: dict[str, list[Release]] = {}  # not known to be durable, by address
        self._noted: Bucket | None = None
        self._forget_at = 0.0
        self._tick_at = 0.0
        self._closing = False

    # What the server tells.

    def start(self, blocks: Iterable[tuple[str, bytes]] = ()) -> None:
        """Begin: ``blocks`` are the entries of the shelf ``blocks.SHELF``; heartbeats run from now on."""
        self.blocks.load(blocks)
        self._tick_at = self.port.monotonic() + TICK_S
        self.port.later(TICK_S, self._tick)

    def has_room(self) -> bool:
        """Whether one more connection may be upgraded; if not, the server answers 503."""
        return (
            not self._closing
            and len(self._strangers) < self.settings.unauthenticated_max
            and len(self._sessions) < self.settings.connections_max
        )

    def open(self, line: Line, peer: str = "") -> Session:
        """A new connection; call ``opened`` on it once its line can be written to."""
        self._opened += 1
        self.stats.opened += 1
        now = self.port.monotonic()
        name = f"{self._run}-{self._opened}"
        session = Session(self, line, name, f"{peer or 'connection'}#{self._opened}", now)
        self._sessions.add(session)
        self._strangers[session] = now + self.settings.auth_s
        return session

    @property
    def connections(self) -> int:
        """Authenticated connections."""
        return len(self.online)

    @property
    def unauthenticated(self) -> int:
        """Connections that have not authenticated yet."""
        return len(self._strangers)

    def ring(self, mailbox: str | None = None) -> None:
        """Something may have become leasable by another's hand (an operator's): in this mailbox, or anywhere."""
        if mailbox is None:
            for session in self.online.values():
                session.outflow.ring()
        elif mailbox in self.online:
            self.online[mailbox].outflow.ring()

    def revoke(self, address: str, reason: str = "key not registered") -> bool:
        """Close the connection of an address at once, and whoever waits to replace it; False if it has none."""
        # First, or one of them would be admitted in its place.
        self.takeovers.refuse(address, reason)
        session = self.online.get(address)
        if session is None:
            return False
        session.close(POLICY_VIOLATION, reason)
        return True

    def leave(self) -> None:
        """Say goodbye to all with 1001; what they sent before they heard of it is taken until ``close``."""
        self._closing = True
        for session in list(self._sessions):
            session.leave(GOING_AWAY, SHUTTING_DOWN)

    def close(self, closed: Callable[[], None]) -> None:
        """Close all connections with 1001, give back what they held, and say when that is durable."""
        self._closing = True
        for session in list(self._sessions):
            session.close(GOING_AWAY, SHUTTING_DOWN, "shutdown")
        self.submissions.drain(closed)

    # What sessions tell.

    def new_id(self) -> str:
        """An id for an envelope that has none."""
        self._ids += 1
        return f"{NO_ID}{self._run}-{self._ids}"

    def admit(self, session: Session) -> None:
        """Its address is free: it is online."""
        self._strangers.pop(session, None)
        self.online[session.address] = session
        self.stats.authenticated += 1
        # A release that came to nothing is tried again now, before this connection leases.
        for release in self._unreleased.get(session.address, ()):
            self.submissions.add(release, self._released, (session.address, release, False))
        self.note(Note(CONNECTED, self.settings.desk, session.address, session.holder))
        session.admit()
        ping_at = session.seen_at + self.settings.heartbeat_s
        heapq.heappush(self._beats, (ping_at, session.token, session.address, None))

    def ended(self, session: Session, life: Life, because: str) -> None:
        """A connection is over."""
        self._sessions.discard(session)
        self._strangers.pop(session, None)
        if life is Life.ADMITTED:
            del self.online[session.address]
            if session.outflow.has_leased:
                self._release(session.address, Release(self.settings.desk, session.token))
            self.note(Note(DISCONNECTED, self.settings.desk, session.address, session.holder, because))
        self.takeovers.left(session)

    def note(self, note: Note) -> None:
        """Write a fact into the journal."""
        self.submissions.add(note, _ignore)

    def note_refusal(self, reason: str, session: Session, size_bytes: int = 0) -> None:
        """Something that an authenticated agent sent was refused."""
        self.stats.refused[reason] += 1
        self.note(
            Note(REFUSED, self.settings.desk, "", session.holder, reason, sender=session.address, size_bytes=size_bytes)
        )

    def note_auth_refusal(self, session: Session, size_bytes: int = 0) -> None:
        """A connection was not admitted. Anybody can cause this, so not every one is journaled."""
        self.stats.refused["auth"] += 1
        now = self.port.monotonic()
        if self._noted is None:
            rate_per_s = self.settings.refusals_noted_per_s
            self._noted = Bucket(rate_per_s, max(rate_per_s, 1), now)
        if not self._noted.take(now):
            self.note(
                Note(
                    REFUSED, self.settings.desk, "", session.holder, "auth", sender=session.address,
                    size_bytes=size_bytes,
                )
            )  # fmt: skip

    def plan_receipt(self, outflow: Outflow) -> None:
        """Ask this one for a receipt after a while."""
        self._receipts.append((self.port.monotonic() + self.settings.receipt_delay_s, outflow))
        if not self._receipts_planned:
            self._receipts_planned = True
            self.port.later(self.settings.receipt_delay_s, self._ask_receipts)

    # Its own.

    def _release(self, address: str, release: Release) -> None:
        self._unreleased.setdefault(address, []).append(release)
        self.submissions.add(release, self._released, (address, release, True))

    def _released(self, outcome: Any, arg: tuple[str, Release, bool]) -> None:
        address, release, insists = arg
        unreleased = self._unreleased.get(address)
        if unreleased is None or release not in unreleased:
            return
        if isinstance(outcome, BaseException):
            # What it held must come back, or it would be stuck until the next start. One of those who try goes on
            # trying: each connection adds one, and a store may be away for long.
            if insists and not isinstance(outcome, EngineClosed):
                self.port.later(RETRY_S, lambda: self.submissions.add(release, self._released, arg))
            # Until then nobody else may lease there: what is behind would overtake it.
            session = self.online.get(address)
            if session is not None:
                session.store_failed()
            return
        unreleased.remove(release)
        if not unreleased:
            del self._unreleased[address]

    def _ask_receipts(self) -> None:
        self._receipts_planned = False
        now = self.port.monotonic()
        receipts = self._receipts
        while receipts and receipts[0][0] <= now:
            receipts.popleft()[1].receipt_due()
        if receipts and not self._receipts_planned:
            self._receipts_planned = True
            self.port.later(max(receipts[0][0] - now, 0.001), self._ask_receipts)

    def _tick(self) -> None:
        if self._closing:
            return
        now = self.port.monotonic()
        late_s, self._tick_at = now - self._tick_at, now + TICK_S
        # First, so that nothing that goes wrong below stops the heart for all.
        self.port.later(TICK_S, self._tick)
        if late_s < LATE_S:
            self._end_strangers(now)
            self._beat(now)
        # Else this process stood still, and what was said meanwhile is not read yet: nobody was silent.
        for inflow in list(self.paused):
            inflow.resume()
        if now >= self._forget_at:
            self._forget_at = now + FORGET_S
            self.buckets.forget(now, self.online)

    def _end_strangers(self, now: float) -> None:
        late = []
        for session, until in self._strangers.items():
            if until > now:
                break
            late.append(session)
        for session in late:
            if session.life is not Life.PROBING:
                self.note_auth_refusal(session)
                session.close(POLICY_VIOLATION, AUTH_TIMEOUT)

    def _beat(self, now: float) -> None:
        """Ping who has been silent for long; end who stays silent."""
        settings, beats = self.settings, self._beats
        while beats and beats[0][0] <= now:
            _, token, address, pinged = heapq.heappop(beats)
            session = self.online.get(address)
            if session is None or session.token != token:
                continue
            seen_at = session.seen_at
            if pinged == seen_at:
                session.close(POLICY_VIOLATION, HEARTBEAT_TIMEOUT, "timeout")
                continue
            at, pinged = seen_at + settings.heartbeat_s, None
            if at <= now:
                session.outflow.ping()
                at, pinged = now + settings.heartbeat_wait_s, seen_at
            heapq.heappush(beats, (at, token, address, pinged))


def _ignore(outcome: Any, arg: Any) -> None:
    """A note that came to nothing changes nothing."""
