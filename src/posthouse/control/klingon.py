"""Taking over what a Klingon node kept: one trade, or a part of one, at a time.

In: entries as they were found in its file. Out: for each one, what became of it. Messages keep their ids, numbers and
ages; what is finished is finished here, too, and what waits is sent on. Nothing that is here already is changed, so
that a page can be sent again.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any

from ..errors import InvalidInput
from ..mailbox import outcome as oc
from ..mailbox.command import Command, Keep, Post, Settle, Verdict
from ..mailbox.message import SECOND, Message
from . import selection
from .operation import Answer, Context, operation
from .trade import HEARD, INBOX_DESK, OUTBOX_DESK, STOP_S, TRADES, Trade, check_names

PAGE_MAX = 1_000
BECAME = ("ready", "delivered", "failed", "expired")


@operation("klingon.import")
def take(context: Context, *, page: dict[str, Any], dry_run: bool = False) -> Answer:
    """Take over one page: {"trade", "peer", "base", "heard", "timeout_s", "opened_s", "entries": […]}."""
    for desk in (OUTBOX_DESK, INBOX_DESK):
        if desk not in context.store.policies:
            return selection.unknown_desk(context, desk)
    name, peer = _text(page, "trade"), _text(page, "peer")
    check_names(peer, name, "-")
    entries = page.get("entries", [])
    if not isinstance(entries, list) or len(entries) > PAGE_MAX:
        raise InvalidInput(f"klingon.import: entries must be a list of at most {PAGE_MAX}")
    commands: list[Command] = []
    words: list[str] = []
    posts: list[int] = []
    now = context.access.now()
    for entry in entries:
        made, word = _commands(context, name, peer, entry, now)
        words.append(word)
        posts.append(len(commands))
        commands += made
    known = context.store.kept_value(TRADES, name) is not None
    if not known:
        record = Trade(
            peer, _whole(page, "opened_s") * SECOND, _whole(page, "base", -(10**9)), timeout_s=_whole(page, "timeout_s")
        )
        heard = _whole(page, "heard")
        commands += [Keep(TRADES, name, record.encode()), Keep(HEARD, name, str(heard).encode())]
    if not dry_run and commands:
        outcomes = context.call(*commands)
        for place, (start, word) in enumerate(zip(posts, words, strict=True)):
            if word != "known" and isinstance(outcome := outcomes[start], oc.Refused):
                words[place] = str(outcome.reason)
    return {"trade": "known" if known else "added", "entries": words}


def _commands(context: Context, trade: str, peer: str, entry: Any, now: int) -> tuple[list[Command], str]:
    """What brings one message over, and what becomes of it: ready, delivered, failed, expired, or known already."""
    if not isinstance(entry, dict) or entry.get("became") not in BECAME or entry.get("desk") not in ("outbox", "inbox"):
        raise InvalidInput("klingon.import: an entry is {desk, id, kind, number, at_s, became, body, …}")
    id, became = _text(entry, "id"), str(entry["became"])
    check_names(peer, trade, id)
    inbound = entry["desk"] == "inbox"
    try:
        body = base64.b64decode(_text(entry, "body"), validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidInput(f"klingon.import: a body is not base64: {error}") from error
    timeout_s, at_s = _whole(entry, "timeout_s"), _whole(entry, "at_s")
    headers = {"sequence_num": str(_whole(entry, "number")), "timestamp": str(at_s)}
    if timeout_s:
        headers["swap_timeout"] = str(timeout_s)
    if order := _text(entry, "order"):
        headers["order_id"] = order
    expires_at = (timeout_s - STOP_S) * SECOND if timeout_s > STOP_S and became == "ready" else None
    if expires_at is not None and expires_at <= now:
        expires_at, became = None, "expired"
    message = Message(
        INBOX_DESK if inbound else OUTBOX_DESK, peer, id, body, sender=peer if inbound else "", lane=trade,
        kind=_text(entry, "kind"), headers=headers, expires_at=expires_at,
    )  # fmt: skip
    if context.store.message(message.ref) is not None:
        return [], "known"
    commands: list[Command] = [Post(message, exempt=True, reason="import", posted_at=min(at_s * SECOND, now))]
    why = _text(entry, "error") or None
    if became == "delivered":
        # Only what was begun can be said to have been delivered.
        commands.append(Settle(message.ref, None, Verdict.UNCERTAIN, holder="import"))
        commands.append(Settle(message.ref, None, Verdict.DELIVERED, holder="import"))
    elif became != "ready":
        reason = "deadline" if became == "expired" else "attempts"
        commands.append(Settle(message.ref, None, Verdict.DEAD, reason=reason, error=why, holder="import"))
    return commands, became


def _text(plain: dict[str, Any], name: str) -> str:
    value = plain.get(name, "")
    if not isinstance(value, str):
        raise InvalidInput(f"klingon.import: {name} must be a text")
    return value


def _whole(plain: dict[str, Any], name: str, least: int = 0) -> int:
    value = plain.get(name, 0)
    if type(value) is not int or not least <= value <= 253_402_300_799:
        raise InvalidInput(f"klingon.import: {name} must be a whole number")
    return value
