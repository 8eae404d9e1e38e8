"""Messages as plain JSON objects: what ``webhook`` and ``websocket`` have in common.

In: objects from outside. Out: checked messages, or InvalidInput that names the field; and parts as objects to send.
"""

from __future__ import annotations

from typing import Any

from ...errors import InvalidInput
from ..channel import Sending
from ..letter import Inbound, media_from_json
from .account import Account

_TEXTS = ("id", "conversation", "from", "text", "session", "thread", "reply_to")
FIELDS = (*_TEXTS, "media", "control", "metadata")


def inbound_from(account: Account, value: Any, id: str = "") -> Inbound:
    """The message in an object; ``id`` is for one that has none of its own."""
    if not isinstance(value, dict):
        raise InvalidInput("a message must be a JSON object")
    for name in value:
        if name not in FIELDS:
            raise InvalidInput(f"unknown field {name[:60]!r}; known are {', '.join(FIELDS)}")
    texts: dict[str, str] = {}
    for name in _TEXTS:
        text = value.get(name, "")
        if not isinstance(text, str):
            raise InvalidInput(f"{name} must be text")
        texts[name] = text
    if not texts["conversation"]:
        raise InvalidInput("conversation is needed: an answer goes there")
    if not (texts["id"] or id):
        raise InvalidInput("id is needed: by it a repeated message is known")
    metadata, control = value.get("metadata", {}), value.get("control", False)
    if not isinstance(metadata, dict):
        raise InvalidInput("metadata must be an object")
    if not isinstance(control, bool):
        raise InvalidInput("control must be true or false")
    return Inbound(
        id=texts["id"] or id,
        channel=account.kind,
        conversation=texts["conversation"],
        sender=texts["from"],
        text=texts["text"],
        account=account.account,
        session=texts["session"],
        thread=texts["thread"],
        reply_to=texts["reply_to"],
        media=media_from_json(value.get("media", [])),
        control=control,
        metadata=metadata,
        tenant=account.tenant,
    )


def outbound_as_json(sending: Sending) -> dict[str, Any]:
    """A part, and where it belongs; empty fields are left out."""
    outbound = sending.outbound
    value = {
        "message": outbound.id,
        "part": sending.index,
        "parts": len(outbound.parts),
        "account": outbound.account,
        "to": outbound.to,
        "thread": outbound.thread,
        "reply_to": outbound.reply_to,
        "session": outbound.session,
        **sending.part.as_json(),
        "metadata": dict(outbound.metadata),
    }
    return {name: v for name, v in value.items() if v not in ("", {})}
