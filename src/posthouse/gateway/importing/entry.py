"""What an import finds: entries that can be taken over, and files that cannot.

Values only. ``Entry`` says what the other program kept and what becomes of it here, before it is a letter of ours.
"""

from __future__ import annotations

import enum
from typing import Any, NamedTuple

from ...mailbox.message import Instant

Json = dict[str, Any]


class Queue(enum.StrEnum):
    """The other program's queues."""

    OUTBOUND = "outbound"
    SESSION = "session"  # turns and events that it queued for its own agent
    INGRESS = "ingress"


class Result(enum.StrEnum):
    """What becomes of an entry or a file; these words stand in the report and on the receipts."""

    PENDING = "pending"  # it waits here as it waited there
    REVIEW = "review"  # set aside (parked): too old, or its age cannot be believed
    UNCERTAIN = "uncertain"  # a send was begun there, and its end is unknown
    DEAD = "dead"
    DELIVERED = "delivered"  # it is remembered, so that it is never sent again
    IGNORED = "ignored"  # not an entry at all
    QUARANTINED = "quarantined"  # cannot be read as an entry: it stays where it is


class Verdict(NamedTuple):
    """What becomes of an entry, and why."""

    result: Result
    note: str = ""
    """For people: why it was judged so, where that is not plain."""
    reason: str | None = None
    """The engine's word for a dead one: permanent or attempts."""


class Entry(NamedTuple):
    """One entry as it was found."""

    queue: Queue
    source: str
    """Where: a path from the state folder on, or the database with table and key."""
    id: str
    digest: str
    """SHA-256 of what was read, in hex: the receipt knows it again."""
    verdict: Verdict
    enqueued_at: Instant | None
    """None: the time that stands there cannot be believed."""
    retries: int
    due_at: Instant | None
    error: str | None
    fields: Json
    """What the program wrote, unchanged."""


class Left(NamedTuple):
    """A file or row that is not taken over; it stays where it is."""

    source: str
    result: Result
    """IGNORED or QUARANTINED."""
    reason: str
    """A stable word: temporary, not_an_entry, unreadable, symlink, not_a_file, oversize, malformed, conflict, changed,
    unsupported."""
    message: str


Found = Entry | Left


class Unfit(Exception):
    """Why an entry cannot be taken over: a stable word and a sentence."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
