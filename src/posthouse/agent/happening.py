"""What happens to an agent that is no message: for whoever watches it."""

from __future__ import annotations

from typing import NamedTuple


class Connected(NamedTuple):
    """The relay admitted us."""

    address: str
    host: str


class Disconnected(NamedTuple):
    """The connection ended, or could not be made; it is tried again after ``retry_s``."""

    reason: str
    retry_s: float


class Denied(NamedTuple):
    """The relay does not admit us, or is not the one that it should be."""

    reason: str


class Pending(NamedTuple):
    """The relay kept this many for us; they follow."""

    count: int  # type: ignore[assignment]  # a tuple's own count() is of no use here


class HandedOver(NamedTuple):
    """The relay has everything that was waiting."""


class Delivered(NamedTuple):
    """The recipient confirmed a message, and the signature is his."""

    recipient: str
    id: str
    was_stored: bool
    """It waited at the relay."""


class QueueFull(NamedTuple):
    """The recipient's queue at the relay is full; the message stays in the outbox and is tried later."""

    recipient: str
    id: str | None
    reason: str


class RateLimited(NamedTuple):
    """The relay wants us to be slower; we wait so long."""

    retry_after_s: float
    reason: str


class Ignored(NamedTuple):
    """Something came that is not taken: it could not be decrypted, was forged, or was from somebody blocked."""

    sender: str
    kind: str
    reason: str


Happening = Connected | Disconnected | Denied | Pending | HandedOver | Delivered | QueueFull | RateLimited | Ignored
