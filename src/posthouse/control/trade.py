"""Trades: what is kept of them, and the messages that are sent for them.

In: names of peers and trades. Out: records, and messages for the desk ``outbox``. What a trade is, is kept on two
shelves: ``peer.trades`` has one JSON record for each trade, ``peer.heard`` the highest number that was taken from the
other side. No operation and no connection is known here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from ..errors import InvalidInput, StoreCorrupt
from ..mailbox.command import Post
from ..mailbox.message import SECOND, Instant, Message, check_name
from ..mailbox.policy import INBOX, OUTBOX
from ..mailbox.store import Store
from .operation import PAGE_MAX

OUTBOX_DESK, INBOX_DESK = OUTBOX.name, INBOX.name
TRADES = "peer.trades"
HEARD = "peer.heard"
NAME_CHARS_MAX = 128
TIMEOUT_S = 86_400
STOP_S = 3_600
"""Before a trade's time is over: what is not delivered by then is given up, so that both sides can act in time."""


class Trade(NamedTuple):
    """What is kept of a trade."""

    peer: str
    """The other party: the only one whose messages count."""
    opened_at: Instant
    base: int = 0
    """What is added to a message's number in its lane: trades that began elsewhere go on counting."""
    signed: bool = False
    """The other party has signed a message, so all that follow must be signed."""
    timeout_s: int = 0
    """When it ends, in seconds since 1970; 0: not known."""
    theirs: str = ""
    """What the other party says that it can do, in words; '' while nothing is known."""
    direct_only: bool = False
    """One side asked for streams only when it began: it never goes any other way."""

    def encode(self) -> bytes:
        """As it is kept."""
        return json.dumps(self._asdict(), separators=(",", ":")).encode()


def decode(value: bytes) -> Trade:
    """A kept record; StoreCorrupt if it is none."""
    try:
        return Trade(**json.loads(value))
    except (ValueError, TypeError) as error:
        raise StoreCorrupt(f"shelf {TRADES} keeps what is no record of a trade") from error


def each(store: Store) -> Iterator[tuple[str, Trade]]:
    """Every trade that is kept."""
    after = ""
    while page := store.kept(TRADES, after, PAGE_MAX):
        for name, value in page:
            yield name, decode(value)
        after = page[-1][0]


def heard(store: Store, trade: str) -> int:
    """The highest number that was taken from the other side."""
    kept = store.kept_value(HEARD, trade)
    try:
        return 0 if kept is None else int(kept)
    except ValueError as error:
        raise StoreCorrupt(f"shelf {HEARD} keeps what is no number") from error


def check_names(peer: Any, trade: Any, id: Any) -> None:
    """InvalidInput unless a message can be sent under these names."""
    for field, value in (("the peer", peer), ("the trade", trade), ("the id", id)):
        check_name(field, value)
        if len(value) > NAME_CHARS_MAX or not value.isprintable():
            raise InvalidInput(f"{field} must have 1 to {NAME_CHARS_MAX} printable characters: {value[:40]!r}")


def outgoing(
    peer: Any, trade: Any, kind: Any, payload: bytes, id: Any, order: Any, timeout_s: int, now: Instant, stop_s: int
) -> Post:
    """A message for the outbox; it is tried until ``stop_s`` before the trade's end."""
    check_names(peer, trade, id)
    expires_at = (timeout_s - stop_s) * SECOND
    if expires_at <= now:
        raise InvalidInput(f"the trade ends in less than {stop_s} s: it is too late to send anything")
    headers = {"swap_timeout": str(timeout_s), "timestamp": str(now // SECOND)}
    if order:
        headers["order_id"] = order
    return Post(Message(OUTBOX_DESK, peer, id, payload, lane=trade, kind=kind, headers=headers, expires_at=expires_at))


def number_of(trade: Trade | None, seq: int, headers: Any) -> int:
    """A message's number in its trade: the one that it had where it came from, or its place in its lane."""
    own = headers.get("sequence_num", "")
    return int(own) if own.isdecimal() else (0 if trade is None else trade.base) + seq
