"""Messages, their delivery states, and what is valid input for them.

In: values from callers. Out: immutable messages and references to them.
It never reads a clock and never touches a store.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from ..errors import InvalidInput

# An instant is an integer: microseconds since the Unix epoch, UTC.
Instant = int
SECOND: Final = 1_000_000

NAME_BYTES_MAX: Final = 512
HEADERS_BYTES_MAX: Final = 16_384
INSTANT_MAX: Final = 253_402_300_799 * SECOND  # the end of the year 9999
NO_HEADERS: Final[Mapping[str, str]] = {}
make: Final[Any] = tuple.__new__
"""Makes a named tuple of its class and all its fields, three times as fast as its own constructor."""


class State(enum.StrEnum):
    """Where a message is in its life. docs/ARCHITECTURE.md draws the machine."""

    # A member is looked up several times for each command, and the one that enums have is slow.
    __hash__ = str.__hash__

    READY = "ready"
    LEASED = "leased"
    RECEIVED = "received"
    PARKED = "parked"
    UNCERTAIN = "uncertain"
    DELIVERED = "delivered"
    DEAD = "dead"
    EXPIRED = "expired"
    CANCELLED = "cancelled"


IN_LANE: Final = frozenset({State.READY, State.LEASED, State.RECEIVED})
"""States that count towards capacity and hold their lane."""
IN_FLIGHT: Final = frozenset({State.LEASED, State.RECEIVED})
SET_ASIDE: Final = frozenset({State.PARKED, State.UNCERTAIN})
FINISHED: Final = frozenset({State.DELIVERED, State.DEAD, State.EXPIRED, State.CANCELLED})
UNFINISHED: Final = IN_LANE | SET_ASIDE


class Ref(NamedTuple):
    """Names one message: dedup works on this key, so nobody can spend another sender's id."""

    desk: str
    mailbox: str
    sender: str
    id: str


class Message(NamedTuple):
    """What somebody posted. Immutable; its delivery state lives beside it, in the store."""

    desk: str
    mailbox: str
    id: str
    body: bytes = b""
    sender: str = ""
    lane: str = ""
    kind: str = ""
    batch_key: str = ""
    headers: Mapping[str, str] = NO_HEADERS
    cause: str | None = None
    due_at: Instant | None = None
    expires_at: Instant | None = None

    @property
    def ref(self) -> Ref:
        """The key that names this message."""
        return make(Ref, (self[0], self[1], self[4], self[2]))  # type: ignore[no-any-return]


PLACES_MAX = 4_096
_places: set[str] = set()  # names of mailboxes and senders that were found good; busy ones come again and again


def check_place(field: str, value: object, *, empty: bool = False) -> None:
    """``check_name`` for mailboxes and senders, of which there are few beside the messages."""
    if type(value) is str and value in _places:
        return
    check_name(field, value, empty=empty)
    if value:
        if len(_places) >= PLACES_MAX:
            _places.clear()
        assert isinstance(value, str)
        _places.add(value)


def check_name(field: str, value: object, *, empty: bool = False) -> None:
    """Raise InvalidInput unless ``value`` is usable as an id, a mailbox, a lane, a sender or a kind."""
    if type(value) is not str:
        raise InvalidInput(f"{field} must be a string, not {type(value).__name__}")
    # The common case first: plain printable text of a short length needs one look.
    if value.isprintable() and len(value) <= NAME_BYTES_MAX // 4 and (value or empty):
        return
    if not value:
        if empty:
            return
        raise InvalidInput(f"{field} must not be empty")
    if len(value) > NAME_BYTES_MAX:
        raise InvalidInput(f"{field} is {len(value)} characters long; at most {NAME_BYTES_MAX} bytes are allowed")
    try:
        size_bytes = len(value.encode())
    except UnicodeEncodeError:
        raise InvalidInput(f"{field} holds a lone surrogate, which is not text") from None
    if size_bytes > NAME_BYTES_MAX:
        raise InvalidInput(f"{field} is {size_bytes} bytes long; at most {NAME_BYTES_MAX} are allowed")
    if any(ord(c) < 32 or 127 <= ord(c) < 160 for c in value):
        raise InvalidInput(f"{field} holds a control character: {value[:40]!r}")


def check_instant(field: str, value: object) -> None:
    """Raise InvalidInput unless ``value`` is an instant in microseconds."""
    if type(value) is not int:
        raise InvalidInput(f"{field} must be whole microseconds since 1970, not {type(value).__name__}")
    if not 0 <= value <= INSTANT_MAX:
        raise InvalidInput(f"{field} is out of range: {value}")


def check_message(message: object) -> None:
    """Raise InvalidInput with the first thing that is wrong; a message that passes can be stored."""
    if type(message) is not Message:
        raise InvalidInput(f"expected a Message, not {type(message).__name__}")
    # Nothing is believed of its fields before they were looked at, not even when this is compiled.
    fields: tuple[Any, ...] = message
    desk, mailbox, id, body, sender, lane, kind, batch_key, headers, cause, due_at, expires_at = fields
    check_place("desk", desk)
    check_place("mailbox", mailbox)
    check_name("id", id)
    if type(sender) is not str or sender:
        check_place("sender", sender)
    if type(lane) is not str or lane:
        check_name("lane", lane)
    if kind != "":
        check_name("kind", kind)
    if batch_key != "":
        check_name("batch_key", batch_key)
    if type(body) is not bytes:
        raise InvalidInput(f"body must be bytes, not {type(body).__name__}")
    if headers is not NO_HEADERS:
        check_headers(headers)
    if cause is not None:
        check_name("cause", cause)
    if due_at is not None:
        check_instant("due_at", due_at)
    if expires_at is not None:
        check_instant("expires_at", expires_at)


def check_headers(headers: Any) -> None:
    """Raise InvalidInput unless ``headers`` is a small mapping of text to text."""
    if not isinstance(headers, Mapping):
        raise InvalidInput(f"headers must be a mapping, not {type(headers).__name__}")
    size_bytes = 0
    for name, value in headers.items():
        check_name("header name", name)
        if type(value) is not str:
            raise InvalidInput(f"header {name!r} must be a string, not {type(value).__name__}")
        try:
            size_bytes += len(name.encode()) + len(value.encode())
        except UnicodeEncodeError:
            raise InvalidInput(f"header {name!r} holds a lone surrogate, which is not text") from None
    if size_bytes > HEADERS_BYTES_MAX:
        raise InvalidInput(f"headers take {size_bytes} bytes; at most {HEADERS_BYTES_MAX} are allowed")
