"""What becomes of an entry: every decision of the import as a pure function.

In: an entry's fields, where it stood, and the instant that counts as now. Out: a verdict. The order of the rules: what
was delivered is never sent again; what may have been sent is uncertain; what was given up is dead; what is too old,
or of an age that cannot be believed, is for a person to look at; the rest goes on waiting.
"""

from __future__ import annotations

import re
from typing import Any

from ...mailbox.message import INSTANT_MAX, SECOND, Instant
from ...mailbox.policy import Retry
from .entry import Json, Result, Unfit, Verdict

REVIEW_AFTER_S = 72 * 3_600.0
"""Pending longer than this is not sent without somebody having looked at it."""
AHEAD_S = 300.0
"""How far in the future a time may lie: clocks differ."""
RETRIES_MAX = 1_000_000

SEND_BEGUN = ("send_attempt_started", "unknown_after_send")
COMPLETED = ("completed_permanent", "completed_bounded")

# Errors after which a further attempt is of no use, as the program itself told them apart.
_PERMANENT = re.compile(
    r"no conversation reference found|chat not found|user not found|bot.*not.*member|bot was blocked by the user"
    r"|forbidden: bot was kicked|chat_id is empty|recipient is not a valid|ambiguous.*recipient|user.*not in room"
    r"|outbound not configured for channel",
    re.IGNORECASE,
)
# It counted retries whenever its time at start-up ran out, without having tried.
_NOT_TRIED = "recovery time budget exceeded"


def instant(value: Any, now: Instant) -> Instant | None:
    """A time in milliseconds as ours; None if it cannot be believed: no number, before 2010, in the future."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    at = int(value * 1_000)
    return at if 1_262_304_000 * SECOND <= at <= min(now + int(AHEAD_S * SECOND), INSTANT_MAX) else None


def retries(fields: Json) -> int:
    """How often it was tried, as it says; what is missing or no count is 0."""
    value = fields.get("retryCount", fields.get("attemptCount"))
    return min(value, RETRIES_MAX) if type(value) is int and value > 0 else 0


def due_at(fields: Json, enqueued_at: Instant | None, retry: Retry, now: Instant) -> Instant | None:
    """When its next attempt is due by the new desk's ladder; None: at once."""
    count = retries(fields)
    later = instant(fields.get("availableAt"), INSTANT_MAX - 1)
    if count == 0 or _NOT_TRIED in str(fields.get("lastError")):
        return later
    tried_at = instant(fields.get("lastAttemptAt"), now) or enqueued_at
    if tried_at is None:
        return later
    return max(tried_at + retry.delay_us(count), later or 0)


def death(error: str | None, retries: int) -> str:
    """The reason of a dead letter."""
    return "permanent" if error and _PERMANENT.search(error) else "attempts"


def outbound(
    fields: Json, status: str, enqueued_at: Instant | None, now: Instant, *, review_after_s: float, beside: bool = False
) -> Verdict:
    """An entry that was to be sent. ``status``: pending, failed or completed. ``beside``: its queue has moved away."""
    recovery = fields.get("recoveryState")
    if status == "completed" or recovery in COMPLETED:
        return Verdict(Result.DELIVERED)
    error = fields.get("lastError")
    if status == "failed":
        return Verdict(Result.DEAD, reason=death(error if isinstance(error, str) else None, retries(fields)))
    if status != "pending":
        raise Unfit("unsupported", f"a status that is not known: {status[:40]!r}")
    if recovery in SEND_BEGUN or fields.get("platformSendStartedAt") is not None:
        return Verdict(Result.UNCERTAIN, "a send was begun and its outcome is unknown")
    if fields.get("deliveryStartedAt") is not None:
        return Verdict(Result.UNCERTAIN, "its delivery was begun and the outcome is unknown")
    if beside:
        return Verdict(Result.REVIEW, "a left-over of a queue that has moved to the database: it may have been sent")
    return waiting(enqueued_at, now, review_after_s)


def ingress(status: str, received_at: Instant | None, now: Instant, review_after_s: float) -> Verdict:
    """An entry that came from a channel."""
    if status == "completed":
        return Verdict(Result.DELIVERED)
    if status == "failed":
        return Verdict(Result.DEAD, reason="attempts")
    if status == "claimed":
        return Verdict(Result.UNCERTAIN, "it was being worked on, and whether it was answered is unknown")
    if status != "pending":
        raise Unfit("unsupported", f"a status that is not known: {status[:40]!r}")
    return waiting(received_at, now, review_after_s)


def waiting(since: Instant | None, now: Instant, review_after_s: float) -> Verdict:
    """What nothing else was said of."""
    if since is None:
        return Verdict(Result.REVIEW, "the time at which it was queued is missing or cannot be believed")
    age_s = (now - since) / SECOND
    if age_s >= review_after_s:
        return Verdict(Result.REVIEW, f"it has waited for {age_s / 3_600:.0f} hours")
    return Verdict(Result.PENDING)
