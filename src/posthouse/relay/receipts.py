"""Receipts: what was written to one socket, and what of it is proved to have arrived.

In: frames as they are written, pings behind them, pongs and confirmations. Out: the frames that are
received now, in order. Frames arrive in the order in which they were written, so a pong behind a frame,
or the confirmation of it, proves all before it too.
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import NamedTuple

from ..mailbox.message import Ref

UNCONFIRMED_MAX = 100_000
"""Frames whose confirmation a connection waits for: more than a mailbox holds. Past it the older half is forgotten."""


class Sent(NamedTuple):
    """One frame on its way."""

    serial: int
    ref: Ref
    confirmable: bool
    """Its recipient confirms this kind; others are finished by their receipt."""
    size_bytes: int


class Receipts:
    """One connection's frames, pings and confirmations."""

    __slots__ = ("_covered", "_serial", "_unconfirmed", "bytes", "frames", "pings")

    def __init__(self) -> None:
        self.frames: deque[Sent] = deque()
        """Unreceived, in order."""
        self.bytes = 0
        self._serial = 0
        self.pings = 0
        """How many pings were written; each carries its number."""
        self._covered: int | None = None  # the last frame before the ping under way
        self._unconfirmed: dict[Ref, tuple[int, bool]] = {}

    def sent(self, ref: Ref, confirmable: bool, size_bytes: int, live: bool) -> None:
        """A frame was written."""
        self._serial = serial = self._serial + 1
        self.frames.append(Sent(serial, ref, confirmable, size_bytes))
        self.bytes += size_bytes
        if confirmable:
            self._unconfirmed[ref] = (serial, live)
            if len(self._unconfirmed) > UNCONFIRMED_MAX:
                # They expired or were set aside, and nobody tells their connection.
                for old in list(islice(self._unconfirmed, UNCONFIRMED_MAX // 2)):
                    del self._unconfirmed[old]

    def is_unconfirmed(self, ref: Ref) -> bool:
        """Whether it was written on this connection and not confirmed yet."""
        return ref in self._unconfirmed

    @property
    def pinging(self) -> bool:
        """Whether a ping is under way."""
        return self._covered is not None

    def ping(self) -> bytes:
        """The payload of a ping that is written now."""
        assert self._covered is None
        self.pings += 1
        self._covered = self._serial
        return self.pings.to_bytes(8, "big")

    def ponged(self, payload: bytes) -> list[Sent] | None:
        """What the pong proves; None if it answers no ping of ours."""
        if self._covered is None or payload != self.pings.to_bytes(8, "big"):
            return None
        covered, self._covered = self._covered, None
        return self._received(covered)

    def confirmed(self, ref: Ref) -> tuple[bool, list[Sent]] | None:
        """Whether it was delivered live, and what its confirmation proves; None if it was not written here."""
        known = self._unconfirmed.pop(ref, None)
        if known is None:
            return None
        serial, live = known
        return live, self._received(serial)

    def _received(self, serial: int) -> list[Sent]:
        frames = self.frames
        received = []
        while frames and frames[0].serial <= serial:
            sent = frames.popleft()
            self.bytes -= sent.size_bytes
            received.append(sent)
        return received
