"""What became of a message, as the HTTP API tells it.

In: messages as the store has them. Out: JSON documents with stable fields. ``state`` is the engine's word, ``status``
one of pending, processing, completed and failed. A message of which only the id is remembered has no more than that.
"""

from __future__ import annotations

import urllib.parse

from ...control.view import instant, instant_or_none
from ...errors import InvalidInput
from ...mailbox.message import FINISHED, SET_ASIDE, Message, State
from ...mailbox.store import MessageView, Store
from ..letter import INBOUND_DESK, Inbound, Json, Outbound, reply_id

REPLIES_MAX = 100
BY = "api"
"""The header of a message that came over the API: the name of the token that posted it."""

STATUS = {
    State.READY: "pending",
    State.PARKED: "pending",
    State.LEASED: "processing",
    State.RECEIVED: "processing",
    State.UNCERTAIN: "processing",
    State.DELIVERED: "completed",
    State.DEAD: "failed",
    State.EXPIRED: "failed",
    State.CANCELLED: "failed",
}
SETTLED = FINISHED | SET_ASIDE
"""States in which there is nothing to wait for: only an operator changes them."""


def place_of(message: Message) -> dict[str, str]:
    """Channel, account and conversation or target of a message, from its names alone."""
    text = message.sender if message.desk == INBOUND_DESK else message.mailbox
    names = [urllib.parse.unquote(part) for part in text.split("/")]
    keys = ("channel", "account", "conversation") if message.desk == INBOUND_DESK else ("channel", "account")
    return dict(zip(keys, names, strict=False)) if len(names) == len(keys) else {}


def tenant_of(view: MessageView) -> str | None:
    """Whose message it is; None: nobody can tell any more."""
    if view.message.desk == INBOUND_DESK:
        return view.message.mailbox
    letter = letter_of(view)
    return letter.tenant if isinstance(letter, Outbound) else None


def letter_of(view: MessageView) -> Inbound | Outbound | None:
    """The letter inside of a message, if it has its body and that is one."""
    if view.memory:
        return None
    try:
        if view.message.desk == INBOUND_DESK:
            return Inbound.from_message(view.message)
        return Outbound.from_message(view.message)
    except InvalidInput:
        return None


def document(store: Store, view: MessageView) -> Json:
    """One message, and (inbound) the replies to it."""
    plain = _plain(view)
    if view.message.desk == INBOUND_DESK:
        plain["replies"] = [_plain(reply) for reply in replies(store, view)]
    return plain


def replies(store: Store, view: MessageView) -> list[MessageView]:
    """What was posted in answer to an inbound message, in order."""
    found: list[MessageView] = []
    while len(found) < REPLIES_MAX:
        reply = store.find(reply_id(view.message.ref, len(found)), limit=1)
        if not reply:
            break
        found += reply
    return found


def _plain(view: MessageView) -> Json:
    message, letter = view.message, letter_of(view)
    plain: Json = {
        "desk": message.desk,
        "id": message.id,
        "state": str(view.state),
        "status": STATUS[view.state],
        **place_of(message),
        "tenant": tenant_of(view),
        "session": message.lane if message.desk == INBOUND_DESK else None,
        "attempts": view.attempts,
        "posted_at": instant(view.posted_at),
        "due_at": instant(view.due_at) if view.due_at else None,
        "expires_at": instant_or_none(view.expires_at),
        "finished_at": instant_or_none(view.since) if view.state in FINISHED else None,
        "reason": view.reason,
        "error": view.error,
        "batch": view.batch,
    }
    if isinstance(letter, Outbound):
        plain |= {
            "to": letter.to,
            "session": letter.session or None,
            "parts": [part.as_json() for part in letter.parts],
            "thread": letter.thread or None,
            "reply_to": letter.reply_to or None,
        }
    if message.desk != INBOUND_DESK:
        plain |= {"parts_sent": view.progress, "origin": message.sender, "cause": message.cause}
    return plain
