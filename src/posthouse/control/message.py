"""Operations on single messages: show, history, post, cancel, park, unpark, resolve."""

from __future__ import annotations

import base64
import binascii
from typing import Any

from ..errors import InvalidInput
from ..mailbox import command as cm
from ..mailbox import outcome as oc
from ..mailbox.message import Message, State
from ..mailbox.outcome import Outcome, Refusal
from ..mailbox.store import MessageView
from . import selection, view
from .operation import Answer, Context, Json, Refused, operation

BODY_BYTES_MAX = 65_536
"""How much of a body is shown unless more is asked for."""

POST_BYTES_MAX = 16 * 1_048_576
"""The largest body that may be posted by hand, whatever a desk takes."""

_WHY_NOT = {
    Refusal.FULL: "the mailbox is full",
    Refusal.SHARE: "the mailbox holds as many of this sender as it may",
    Refusal.OVERSIZE: "the body is larger than the desk takes",
    Refusal.TTL: "its expiry has passed already",
    Refusal.UNKNOWN_DESK: "there is no such desk",
    Refusal.IN_FLIGHT: "it is in flight and what became of it would be unknown; wait for its lease to end",
    Refusal.FINISHED: "it is finished",
    Refusal.PARKED_FULL: "the mailbox has as many parked messages as it may have",
    Refusal.NOT_ALLOWED: "it is not in a state in which this can be done",
}


@operation("message.show")
def show(
    context: Context,
    *,
    id: str,
    desk: str | None = None,
    mailbox: str | None = None,
    sender: str | None = None,
    body_bytes_max: int = BODY_BYTES_MAX,
) -> Answer:
    """One message with the beginning of its body, or what is remembered of it."""
    found = selection.message(context, id, desk, mailbox, sender)
    return found if isinstance(found, Refused) else whole(context, found, body_bytes_max)


def whole(context: Context, found: MessageView, body_bytes_max: int) -> Json:
    """A message and its body as JSON."""
    if body_bytes_max < 0:
        raise InvalidInput(f"body_bytes_max must be 0 or more: {body_bytes_max}")
    data = None if found.memory else context.store.bodies([found.message.ref])[0]
    plain = view.message(found)
    if data is not None:
        plain["size_bytes"] = len(data)
    damaged = data is None and not found.memory
    return {**plain, "damaged": damaged, "body": view.body(data, body_bytes_max)}


@operation("message.post")
def post(
    context: Context,
    *,
    desk: str,
    mailbox: str,
    id: str,
    body: str = "",
    sender: str = "",
    lane: str = "",
    kind: str = "",
    batch_key: str = "",
    headers: dict[str, Any] | None = None,
    cause: str | None = None,
    due_at: int | None = None,
    expires_at: int | None = None,
) -> Answer:
    """Post a message; ``body`` is base64. A repeat of a known id is no error and says what became of it."""
    try:
        data = base64.b64decode(body, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidInput(f"body is not base64: {error}") from error
    if len(data) > POST_BYTES_MAX:
        raise InvalidInput(f"body is {len(data)} bytes long; by hand at most {POST_BYTES_MAX} can be posted")
    if desk not in context.store.policies:
        return selection.unknown_desk(context, desk)
    message = Message(desk, mailbox, id, data, sender, lane, kind, batch_key, headers or {}, cause, due_at, expires_at)
    outcome = context.apply(cm.Post(message))
    plain: Json = {"desk": desk, "mailbox": mailbox, "lane": lane, "id": id}
    if isinstance(outcome, oc.Posted):
        expires = view.instant_or_none(outcome.expires_at)
        return {**plain, "outcome": "posted", "seq": outcome.seq, "state": "ready", "expires_at": expires}
    if isinstance(outcome, oc.Duplicate):
        return {
            **plain,
            "outcome": "duplicate",
            "seq": outcome.seq,
            "state": str(outcome.state),
            "expires_at": None,
        }
    assert isinstance(outcome, oc.Refused)
    return _refused(outcome, f"message {id!r} was not posted")


def _target(
    context: Context, id: str, desk: str | None, mailbox: str | None, sender: str | None
) -> MessageView | Refused:
    """The message that a command is about; one of a desk that is not configured can only be looked at."""
    found = selection.message(context, id, desk, mailbox, sender)
    if isinstance(found, MessageView) and found.message.desk not in context.store.policies:
        return selection.unknown_desk(context, found.message.desk)
    return found


@operation("message.cancel")
def cancel(
    context: Context,
    *,
    id: str,
    desk: str | None = None,
    mailbox: str | None = None,
    sender: str | None = None,
) -> Answer:
    """Finish an unfinished message without delivery."""
    found = _target(context, id, desk, mailbox, sender)
    if isinstance(found, Refused):
        return found
    outcome = context.apply(cm.Cancel(found.message.ref, holder=context.by))
    return _settled(found, outcome, "was not cancelled")


@operation("message.park")
def park(
    context: Context,
    *,
    id: str,
    desk: str | None = None,
    mailbox: str | None = None,
    sender: str | None = None,
) -> Answer:
    """Set a message aside, so that its lane goes on."""
    found = _target(context, id, desk, mailbox, sender)
    if isinstance(found, Refused):
        return found
    outcome = context.apply(cm.Park(found.message.ref, holder=context.by))
    return _settled(found, outcome, "was not parked")


@operation("message.unpark")
def unpark(
    context: Context,
    *,
    id: str,
    desk: str | None = None,
    mailbox: str | None = None,
    sender: str | None = None,
) -> Answer:
    """Return a parked message to its lane with a new expiry."""
    found = _target(context, id, desk, mailbox, sender)
    if isinstance(found, Refused):
        return found
    ref = found.message.ref
    if found.state is not State.PARKED:
        return Refused("not_allowed", f"message {id!r} is {found.state}, not parked")
    only = cm.Filter(ref.desk, ref.mailbox, sender=ref.sender, id=ref.id)
    outcome = context.apply(cm.Unpark(only, limit=1, holder=context.by))
    if isinstance(outcome, oc.Refused):
        return _refused(outcome, f"message {id!r} was not unparked")
    assert isinstance(outcome, oc.Redriven)
    if not outcome.refs:
        reason = Refusal.FULL if outcome.skipped else Refusal.NOT_ALLOWED
        return _refused(oc.Refused(reason), f"message {id!r} was not unparked")
    return _plain(found, State.READY)


_VERDICTS = {v.value: v for v in (cm.Verdict.DELIVERED, cm.Verdict.RETRY, cm.Verdict.DEAD, cm.Verdict.REJECTED)}


@operation("message.resolve")
def resolve(
    context: Context,
    *,
    id: str,
    verdict: str,
    desk: str | None = None,
    mailbox: str | None = None,
    sender: str | None = None,
) -> Answer:
    """Say by hand what became of an uncertain message."""
    if verdict not in _VERDICTS:
        raise InvalidInput(f"verdict must be one of {', '.join(_VERDICTS)}: {verdict[:40]!r}")
    found = _target(context, id, desk, mailbox, sender)
    if isinstance(found, Refused):
        return found
    if found.state is not State.UNCERTAIN:
        return Refused("not_allowed", f"message {id!r} is {found.state}, not uncertain")
    outcome = context.apply(cm.Settle(found.message.ref, None, _VERDICTS[verdict], holder=context.by))
    return _settled(found, outcome, "was not resolved")


def _settled(found: MessageView, outcome: Outcome, failed: str) -> Answer:
    id = found.message.id
    if isinstance(outcome, oc.Settled):
        return _plain(found, outcome.state)
    if isinstance(outcome, oc.Refused):
        return _refused(outcome, f"message {id!r} {failed}")
    if isinstance(outcome, oc.LeaseLost):
        return Refused("not_allowed", f"message {id!r} {failed}: it is {outcome.state} now")
    assert isinstance(outcome, oc.NotFound)
    return Refused("not_found", f"there is no message {id!r} (any more)")


def _plain(found: MessageView, state: State) -> Json:
    m = found.message
    return {
        "desk": m.desk,
        "mailbox": m.mailbox,
        "lane": m.lane,
        "id": m.id,
        "sender": m.sender,
        "was": str(found.state),
        "state": str(state),
    }


def _refused(outcome: oc.Refused, what: str) -> Refused:
    return Refused(str(outcome.reason), f"{what}: {outcome.detail or _WHY_NOT[outcome.reason]}")
