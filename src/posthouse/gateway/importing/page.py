"""Pages of entries, as the operation ``openclaw.import`` takes them.

In: an entry that was judged. Out: plain values; ``Unfit`` where it cannot become a message.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping

from ...mailbox.message import Instant
from ...mailbox.policy import Policy
from . import letters
from .entry import Entry, Json, Unfit
from .openclaw import DESKS


def plain(entry: Entry, now: Instant, policies: Mapping[str, Policy]) -> Json:
    """One entry with its message."""
    message = letters.message_of(entry)
    limit = policies[DESKS[entry.queue]].size_bytes_max
    if message is not None and len(message.body) > limit:
        raise Unfit("oversize", f"as a message it has {len(message.body)} bytes; the desk takes {limit}")
    return {
        "key": letters.key_of(entry),
        "digest": entry.digest,
        "source": entry.source,
        "result": str(entry.verdict.result),
        "reason": entry.verdict.reason,
        "error": entry.error,
        "due_at": entry.due_at,
        "stands_for": letters.marked(entry.fields),
        "posted_at": now if entry.enqueued_at is None else min(entry.enqueued_at, now),
        "message": None
        if message is None
        else {
            "desk": message.desk,
            "mailbox": message.mailbox,
            "id": message.id,
            "body": base64.b64encode(message.body).decode(),
            "sender": message.sender,
            "lane": message.lane,
            "kind": message.kind,
            "batch_key": message.batch_key,
            # Each is worked on alone: what waited elsewhere was quiet for long enough.
            "quiet": False,
        },
    }
