"""Views as JSON: the stable keys that operators' commands print. Instants are ISO 8601 texts in UTC.

A lease's token is its holder's alone and is never shown.
"""

from __future__ import annotations

import base64
import datetime
from collections.abc import Mapping

from ..mailbox.message import Instant, State
from ..mailbox.store import LaneView, MailboxView, MessageView
from .operation import Json

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def instant(at: Instant) -> str:
    """An instant as text, always with microseconds, so that texts sort as instants do."""
    moment = _EPOCH + datetime.timedelta(microseconds=at)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond:06}Z"


def instant_or_none(at: Instant | None) -> str | None:
    """The same where there may be none."""
    return None if at is None else instant(at)


def counts(by_state: Mapping[State, int]) -> dict[str, int]:
    """Counts per state in the order of a message's life; states with none are left out."""
    return {str(state): by_state[state] for state in State if by_state.get(state)}


def mailbox(view: MailboxView) -> Json:
    """One mailbox."""
    return {
        "desk": view.desk,
        "mailbox": view.mailbox,
        "depth": view.depth,
        "counts": counts(view.counts),
        "lanes": view.lanes,
        "paused": view.paused,
        "oldest_at": instant_or_none(view.oldest_at),
    }


def lane(view: LaneView) -> Json:
    """One lane of a mailbox."""
    return {
        "lane": view.lane,
        "last_seq": view.last_seq,
        "depth": view.depth,
        "in_flight": view.in_flight,
        "paused": view.paused,
        "oldest_at": instant_or_none(view.oldest_at),
    }


def message(view: MessageView) -> Json:
    """One message without its body."""
    m = view.message
    return {
        "desk": m.desk,
        "mailbox": m.mailbox,
        "lane": m.lane,
        "seq": view.seq,
        "number": view.number,
        "id": m.id,
        "sender": m.sender,
        "kind": m.kind,
        "state": str(view.state),
        "posted_at": instant(view.posted_at),
        # A due time of 0 means "at once", which is no date.
        "due_at": instant(view.due_at) if view.due_at else None,
        "expires_at": instant_or_none(view.expires_at),
        "attempts": view.attempts,
        "unreceived": view.unreceived,
        "life": view.life,
        "holder": view.holder,
        "lease_ends_at": instant_or_none(view.lease_ends_at),
        "progress": view.progress,
        "batch_key": m.batch_key,
        "batch": view.batch,
        "cause": m.cause,
        "reason": view.reason,
        "error": view.error,
        "since": instant_or_none(view.since),
        "memory": view.memory,
        "size_bytes": len(m.body),
        "headers": dict(m.headers),
    }


def body(data: bytes | None, bytes_max: int) -> Json | None:
    """The beginning of a body: as text where it is text, else in base64."""
    if data is None:
        return None
    part = data[:bytes_max]
    cut = len(part) < len(data)
    try:
        # A character may have been cut in two: up to three bytes at the end do not count then.
        text = part.decode("utf-8", errors="strict" if not cut else "ignore")
        if not cut or len(text.encode()) >= len(part) - 3:
            return {"encoding": "utf-8", "data": text, "truncated": cut}
    except UnicodeDecodeError:
        pass
    return {"encoding": "base64", "data": base64.b64encode(part).decode(), "truncated": cut}
