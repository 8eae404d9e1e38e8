"""Entries of OpenClaw as letters of ours.

In: an entry. Out: the engine's message and the name of its receipt; ``Unfit`` where it lacks what a letter needs. What
has no place in a letter is kept in its metadata, under ``openclaw``, as it was.
"""

from __future__ import annotations

import hashlib
from typing import Any

from ...errors import InvalidInput
from ...mailbox.check import KEY_BYTES_MAX
from ...mailbox.message import Message, Ref
from ..letter import DEFAULT_ACCOUNT, OUTBOUND_DESK, Inbound, Media, Outbound, Part, parts_from_json, tidy
from .entry import Entry, Json, Queue, Result, Unfit

ORIGIN = "import"
"""Who asked for what is imported, as the engine's sender."""
NAME = "openclaw"
MARK = "posthouse"
"""The field of a file that stands for a message of ours: {"mailbox", "origin", "id"}."""
_SENT_AS = ("id", "enqueuedAt", "channel", "to", "accountId", "payloads", "threadId", "replyToId", "preparedBatch")
"""Fields of an outbound entry that the letter itself carries."""
_TEXTS = ("text", "body", "content", "caption", "message")
"""Where a channel's payload may have its text."""


def key_of(entry: Entry) -> str:
    """The name of its receipt: the same whichever file or table holds the entry."""
    parts: tuple[str, ...] = (entry.id,)
    if entry.queue is Queue.INGRESS:
        parts = (str(entry.fields.get("channel")), str(entry.fields.get("accountId")), entry.id)
    key = "/".join((entry.queue, *parts))
    if len(key.encode(errors="replace")) > KEY_BYTES_MAX or key != tidy(key):
        return f"{entry.queue}/sha256-{hashlib.sha256(key.encode(errors='replace')).hexdigest()}"
    return key


def marked(fields: Json) -> Ref | None:
    """The outbound message of ours that a file stands for; None if it is another program's."""
    mark = fields.get(MARK)
    if not isinstance(mark, dict):
        return None
    names = [mark.get(name) for name in ("mailbox", "origin", "id")]
    if not all(isinstance(name, str) for name in names):
        return None
    mailbox, origin, id = names
    return Ref(OUTBOUND_DESK, str(mailbox), str(origin), str(id))


def message_of(entry: Entry) -> Message | None:
    """The message to post; None where the receipt alone is enough: nothing of ours would ever post the same id."""
    try:
        if entry.queue is Queue.INGRESS:
            return _ingress(entry).message()
        if entry.verdict.result is Result.DELIVERED:
            return None
        return (_outbound(entry) if entry.queue is Queue.OUTBOUND else _session(entry)).message()
    except InvalidInput as error:
        raise Unfit("malformed", str(error)) from None


def _outbound(entry: Entry) -> Outbound:
    fields = entry.fields
    reply = fields.get("reply")
    return Outbound(
        id=entry.id,
        channel=_needed(fields, "channel"),
        to=_needed(fields, "to"),
        parts=tuple(parts_from_json([part.as_json() for part in _parts(fields)])),
        account=_optional(fields, "accountId") or DEFAULT_ACCOUNT,
        thread=_optional(fields, "threadId"),
        reply_to=_optional(fields, "replyToId") or (_optional(reply, "replyToId") if isinstance(reply, dict) else ""),
        origin=ORIGIN,
        session=_session_key(fields),
        metadata=_metadata(entry, {name: fields[name] for name in fields if name not in _SENT_AS}),
    )


def _session_key(fields: Json) -> str:
    for place in (fields.get("session"), fields.get("mirror")):
        if isinstance(place, dict):
            key = place.get("key", place.get("sessionKey"))
            if isinstance(key, str) and key:
                return key
    return _optional(fields, "sessionKey")


def _parts(fields: Json) -> list[Part]:
    payloads = fields.get("payloads")
    if payloads is None and isinstance(fields.get("preparedBatch"), dict):
        prepared = fields["preparedBatch"].get("entries")
        if not isinstance(prepared, list):
            raise Unfit("malformed", "its preparedBatch has no entries")
        # Those that its own rules had refused are kept in the batch as well.
        payloads = [one.get("payload") for one in prepared if isinstance(one, dict) and one.get("status") == "accepted"]
    if not isinstance(payloads, list):
        raise Unfit("malformed", "it has no payloads")
    parts = [_part(payload) for payload in payloads if payload]
    if not parts:
        raise Unfit("malformed", "there is nothing in it to be sent")
    return parts


def _part(payload: Any) -> Part:
    if not isinstance(payload, dict):
        raise Unfit("malformed", "a payload is not a JSON object")
    text = payload.get("text")
    urls = payload.get("mediaUrls") if isinstance(payload.get("mediaUrls"), list) else []
    assert isinstance(urls, list)
    one = payload.get("mediaUrl")
    media = dict.fromkeys(url for url in ([one] if one else []) + urls if isinstance(url, str) and url)
    extra = {
        name: value
        for name, value in payload.items()
        if name not in ("text", "mediaUrl", "mediaUrls") and value not in (None, "", [], {})
    }
    return Part(text if isinstance(text, str) else "", tuple(Media(url) for url in media), extra)


def _session(entry: Entry) -> Inbound:
    """A turn or an event for the program's own agent: a message of that session."""
    fields = entry.fields
    kind = fields.get("kind")
    if kind not in ("agentTurn", "systemEvent"):
        raise Unfit("unsupported", f"a kind that is not known: {str(kind)[:40]!r}")
    idempotency = fields.get("idempotencyKey")
    if isinstance(idempotency, str) and hashlib.sha256(idempotency.encode()).hexdigest() != entry.id:
        raise Unfit("malformed", "its id is not the hash of its idempotencyKey")
    routes = [fields[name] for name in ("route", "deliveryContext") if isinstance(fields.get(name), dict)]
    route: Json = routes[0] if routes else {}
    key = _needed(fields, "sessionKey")
    carried = ("id", "enqueuedAt", "sessionKey", "text", "message")
    return Inbound(
        id=entry.id,
        channel=_optional(route, "channel") or NAME,
        conversation=_optional(route, "to") or key,
        sender=NAME,
        text=_needed(fields, "message" if kind == "agentTurn" else "text"),
        account=_optional(route, "accountId") or DEFAULT_ACCOUNT,
        session=key,
        thread=_optional(route, "threadId"),
        control=kind == "systemEvent",
        metadata=_metadata(entry, {name: fields[name] for name in fields if name not in carried}),
    )


def _ingress(entry: Entry) -> Inbound:
    fields = entry.fields
    payload = fields.get("payload")
    lane = _optional(fields, "laneKey")
    chat = _found(payload, "chat", "id") or _found(payload, "conversation") or _found(payload, "chatId")
    number = _found(payload, "message_id")
    return Inbound(
        # An answer names what it replies to by the last part of its id.
        id=f"{entry.id}:{number}" if number else entry.id,
        channel=_needed(fields, "channel"),
        # A completed one has no payload any more; its lane still says where it came from.
        conversation=chat or lane.rpartition(":")[2] or lane or "unknown",
        sender=_found(payload, "from", "id") or _found(payload, "from") or _found(payload, "sender"),
        text=next((text for text in (_found(payload, name) for name in _TEXTS) if text), ""),
        account=_needed(fields, "accountId"),
        thread=_found(payload, "message_thread_id") or _found(payload, "threadId"),
        metadata=_metadata(entry, {name: fields[name] for name in fields if name not in ("channel", "accountId")}),
    )


def _metadata(entry: Entry, rest: Json) -> Json:
    kept = {name: value for name, value in rest.items() if value is not None}
    return {NAME: {**kept, "source": entry.source, "retries": entry.retries}}


def _found(payload: Any, *names: str) -> str:
    """What stands under these names in the payload, or in the message inside of it."""
    for place in (payload, payload.get("message") if isinstance(payload, dict) else None):
        value = place
        for name in names:
            value = value.get(name) if isinstance(value, dict) else None
        if isinstance(value, str | int) and not isinstance(value, bool) and value != "":
            return str(value)
    return ""


def _needed(fields: Json, name: str) -> str:
    value = _optional(fields, name)
    if not value:
        raise Unfit("malformed", f"it has no {name}")
    return value


def _optional(fields: Json, name: str) -> str:
    """A text, or a number as text; '' where there is none."""
    value = fields.get(name)
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise Unfit("malformed", f"{name} is no text: {str(value)[:40]!r}")
    return str(value)
