"""posthouse lane: why it is not moving, and unblocking it."""

from __future__ import annotations

import click

from . import option
from .option import pass_session
from .root import Group
from .session import Json, Session
from .text import age, short_instant


@click.group(cls=Group)
def lane() -> None:
    """Lanes: why one is not moving, and unblocking it."""


@lane.command("why")
@click.argument("mailbox")
@click.argument("lane", required=False)
@option.desk
@pass_session
def why(session: Session, mailbox: str, lane: str | None, desk: str | None) -> None:
    """Say why a lane is not moving.

    LANE may be left out where the mailbox has only one; "" is the unnamed lane.
    """
    found = session.call("lane.why", mailbox=mailbox, lane=lane, desk=desk)
    if session.json:
        session.emit(found)
        return
    session.say(found["sentence"])
    session.say("")
    head = found["head"] or {}
    session.facts(
        [
            ("Code", found["code"]),
            ("Lane", found["lane"] or "(unnamed)"),
            ("Depth", f"{found['depth']}, {found['in_flight']} in flight"),
            ("Head", head.get("id")),
            ("Head state", head.get("state")),
            ("Posted", f"{age(head['posted_at'], session.now)} ago" if head else None),
            ("Attempts", head.get("attempts")),
            ("Held by", found["holder"]),
            ("Since", short_instant(found["since"]) if found["since"] else None),
            ("Until", short_instant(found["until"]) if found["until"] else None),
            ("Message", found["message_id"] if found["message_id"] != head.get("id") else None),
            ("Last error", found["error"]),
            *(("Left it", _left(message)) for message in found["aside"]),
        ]
    )


def _left(message: Json) -> str:
    why = ": ".join(part for part in (message["reason"], message["error"]) if part)
    return f"{message['id']}, {message['state']} after {message['attempts']} attempts ({why})"


@lane.command("unblock")
@click.argument("mailbox")
@click.argument("lane", required=False)
@option.desk
@pass_session
def unblock(session: Session, mailbox: str, lane: str | None, desk: str | None) -> None:
    """Let a lane go on that was paused by a poisonous message or by hand.

    The message stays dead; `posthouse dead redrive --id ID` gives it a new life in its old place.
    """
    result = session.call("lane.unblock", mailbox=mailbox, lane=lane, desk=desk)
    if session.json:
        session.emit(result)
        return
    name = f"Lane {result['lane'] or '(unnamed)'} of mailbox {mailbox}"
    if result["changed"]:
        session.say(f"{name} goes on (it was paused: {result['was']}).")
    else:
        session.say(f"{name} was not paused.")
