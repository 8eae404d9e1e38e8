"""What the file of an outbound message looks like, in the layout of OpenClaw 2026.5.

In: a message as the store has it. Out: where its file stands, and what is in it; the same for the same message. It
opens no file.

    <stem>.json           waits, is being sent, or was perhaps sent (recoveryState)
    failed/<stem>.json    is dead
    review/<stem>.json    is parked: OpenClaw does not look there
    (none)                is finished otherwise

The field ``posthouse`` says which message a file stands for; a file without it is another program's.
"""

from __future__ import annotations

import hashlib
import uuid
from typing import NamedTuple

from ...errors import InvalidInput
from ...mailbox.message import Ref, State
from ...mailbox.store import MessageView
from ..importing.letters import MARK, NAME, ORIGIN
from ..letter import Json, Outbound, Part

OURS = frozenset({"alert", "result"})
"""Channels of the gateway's own, which no other program could send over."""
WAITING, FAILED, REVIEW = "", "failed", "review"
PLACES = (WAITING, FAILED, REVIEW)
_PLACE = {
    State.READY: WAITING,
    State.LEASED: WAITING,
    State.RECEIVED: WAITING,
    State.UNCERTAIN: WAITING,
    State.DEAD: FAILED,
    State.PARKED: REVIEW,
}
_RECOVERY = {
    State.LEASED: "send_attempt_started",
    State.RECEIVED: "send_attempt_started",
    State.UNCERTAIN: "unknown_after_send",
}


class Image(NamedTuple):
    """A message's file."""

    stem: str
    place: str | None
    """None: there is to be no file."""
    sent: bool
    """Whether the file is to be marked as delivered before it goes."""
    fields: Json


def stem_of(ref: Ref) -> str:
    """The name of a message's file: its own id where that came from a file, else a UUID made from what names it."""
    if ref.sender == ORIGIN:
        return ref.id
    digest = hashlib.sha256("\0".join(ref).encode()).digest()
    return str(uuid.UUID(bytes=digest[:16], version=4))


def image(view: MessageView) -> Image | None:
    """The file of a message; None for one that has none in any state."""
    ref = view.message.ref
    if ref.mailbox.partition("/")[0] in OURS:
        return None
    place = None if view.memory else _PLACE.get(view.state)
    if place is None:
        return Image(stem_of(ref), None, view.state is State.DELIVERED, {})
    try:
        letter = Outbound.from_message(view.message)
    except InvalidInput:
        return None
    return Image(stem_of(ref), place, False, _fields(view, letter))


def _fields(view: MessageView, letter: Outbound) -> Json:
    kept = letter.metadata.get(NAME)
    before: Json = dict(kept) if isinstance(kept, dict) else {}
    retries = before.pop("retries", 0)
    for name in ("source", "failedAt", "recoveryState", "platformSendStartedAt", MARK):
        before.pop(name, None)
    fields: Json = {
        **before,
        "id": stem_of(view.message.ref),
        "enqueuedAt": view.posted_at // 1_000,
        "channel": letter.channel,
        "to": letter.to,
        "accountId": letter.account,
        "payloads": [_payload(part) for part in letter.parts],
        "retryCount": view.attempts + (retries if isinstance(retries, int) else 0),
        MARK: {"mailbox": view.message.mailbox, "origin": view.message.sender, "id": view.message.id},
    }
    if letter.thread:
        fields["threadId"] = letter.thread
    if letter.reply_to:
        fields["replyToId"] = letter.reply_to
    if letter.session:
        fields["session"] = {"key": letter.session, **_mapping(before.get("session"))}
    if view.error or view.reason:
        fields["lastError"] = view.error or view.reason
    recovery = _RECOVERY.get(view.state)
    if recovery is not None:
        fields["recoveryState"] = recovery
        # When it began is not kept; that it did is what counts.
        fields["platformSendStartedAt"] = view.posted_at // 1_000
    return fields


def _payload(part: Part) -> Json:
    urls = [media.url for media in part.media]
    payload: Json = {**part.extra}
    if part.text:
        payload["text"] = part.text
    if len(urls) == 1:
        payload["mediaUrl"] = urls[0]
    elif urls:
        payload["mediaUrls"] = urls
    return payload


def _mapping(value: object) -> Json:
    return value if isinstance(value, dict) else {}
