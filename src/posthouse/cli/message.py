"""posthouse message: show, history, post, cancel, park, unpark, resolve."""

from __future__ import annotations

import base64
import sys
import uuid
from pathlib import Path
from typing import Any

import click

from . import option
from .option import When, pass_session
from .root import Group
from .session import USAGE, Failure, Json, Session
from .text import age, inert_lines, short_instant, size


@click.group(cls=Group)
def message() -> None:
    """Single messages: show, history, post, cancel, set aside."""


def _body_option(function: option.F) -> option.F:
    return click.option(
        "--body-bytes",
        type=click.IntRange(0, 16_777_216),
        default=65_536,
        show_default=True,
        metavar="N",
        help="How much of the body to show.",
    )(function)


@message.command("show")
@click.argument("id")
@option.message_options
@_body_option
@pass_session
def show(session: Session, id: str, desk: str | None, mailbox: str | None, sender: str | None, body_bytes: int) -> None:
    """Show a message: its state, its headers and its body."""
    found = session.call("message.show", id=id, desk=desk, mailbox=mailbox, sender=sender, body_bytes_max=body_bytes)
    if session.json:
        session.emit(found)
    else:
        print_message(session, found)


def print_message(session: Session, found: Json) -> None:
    """A message for people."""

    def when(name: str) -> str | None:
        at = found[name]
        return None if at is None else f"{short_instant(at)} ({age(at, session.now)})"

    session.facts(
        [
            ("Message", found["id"]),
            ("State", found["state"] + (" (only its memory is left)" if found["memory"] else "")),
            ("Desk", found["desk"]),
            ("Mailbox", found["mailbox"]),
            ("Lane", f"{found['lane'] or '(unnamed)'}, number {found['seq']}"),
            ("Sender", found["sender"]),
            ("Kind", found["kind"]),
            ("Posted", when("posted_at")),
            ("Due", when("due_at")),
            ("Expires", when("expires_at")),
            ("Attempts", found["attempts"]),
            ("Life", found["life"] if found["life"] > 1 else None),
            ("Held by", found["holder"]),
            ("Lease ends", when("lease_ends_at")),
            ("Progress", found["progress"] or None),
            ("Batch", found["batch"]),
            ("Answers", found["cause"]),
            ("Since", when("since")),
            ("Reason", found["reason"]),
            ("Error", found["error"]),
            *((f"Header {name}", value) for name, value in sorted(found["headers"].items())),
            ("Size", None if found["memory"] or found["damaged"] else size(found["size_bytes"])),
            ("Body", "damaged on disk" if found["damaged"] else None),
        ]
    )
    body = found["body"]
    if body and body["data"]:
        cut = ", cut" if body["truncated"] else ""
        session.say(f"Body ({body['encoding']}{cut}):")
        click.echo(inert_lines(body["data"]))


@message.command("history")
@click.argument("id")
@option.message_options
@pass_session
def history(session: Session, id: str, desk: str | None, mailbox: str | None, sender: str | None) -> None:
    """Show all that the journal tells of a message, from the store and from exported segments."""
    found = session.call("message.history", id=id, desk=desk, mailbox=mailbox, sender=sender)
    if session.json:
        session.emit(found)
    else:
        print_history(session, found)


def print_history(session: Session, found: Json) -> None:
    """A message's events for people."""
    session.table(
        (">OFFSET", "AT", "EVENT", "MAILBOX", "LANE", ">NO.", ">ATTEMPT", "HOLDER", "REASON", "ERROR"),
        [
            (
                row["offset"],
                short_instant(row["at"]),
                row["event"],
                row["mailbox"],
                row["lane"],
                row["lane_seq"] or "",
                row["attempt"] or "",
                row["holder"] or "",
                row["reason"] or "",
                row["error"] or "",
            )
            for row in found["events"]
        ],
        "The journal tells nothing of it.",
    )
    for finding in found["findings"]:
        session.say(f"Passed over: {finding['where']}: {finding['detail']}")


@message.command("post")
@click.argument("mailbox")
@click.option("--desk", required=True, metavar="NAME", help="The desk to post to.")
@click.option("--id", "id", metavar="ID", help="Its id; repeating one is safe [default: a new one].")
@click.option("--body", metavar="TEXT", help="The body as text.")
@click.option("--body-file", metavar="FILE", help="The file to take the body from; - is standard input.")
@click.option("--sender", default="", metavar="NAME", help="Who it is from.")
@click.option("--lane", default="", metavar="LANE", help="The lane, inside which order is kept.")
@click.option("--kind", default="", metavar="KIND", help="What kind of message it is.")
@click.option("--batch-key", default="", metavar="KEY", help="Messages of one key may be leased together.")
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", help="A header; may be repeated.")
@click.option("--cause", metavar="ID", help="The message that this one answers.")
@click.option("--due", type=When(ahead=True), metavar="TIME", help="Not before this time (ISO 8601), or in 5m, 2h …")
@click.option("--expires", type=When(ahead=True), metavar="TIME", help="Not after this time (ISO 8601), or in 5m, 2h …")
@pass_session
def post(
    session: Session,
    /,
    mailbox: str,
    desk: str,
    id: str | None,
    body: str | None,
    body_file: str | None,
    headers: tuple[str, ...],
    due: int | None,
    expires: int | None,
    **names: Any,
) -> None:
    """Post a message to a mailbox."""
    if body is not None and body_file is not None:
        raise Failure("usage", "--body and --body-file exclude each other", USAGE)
    pairs = [header.partition("=") for header in headers]
    if any(not equals or not name for name, equals, _ in pairs):
        raise Failure("usage", "--header takes NAME=VALUE", USAGE)
    if body_file is not None:
        data = sys.stdin.buffer.read() if body_file == "-" else Path(body_file).read_bytes()
    else:
        data = (body or "").encode("utf-8", "surrogateescape")
    result = session.call(
        "message.post",
        desk=desk,
        mailbox=mailbox,
        id=id if id is not None else uuid.uuid4().hex,
        body=base64.b64encode(data).decode(),
        headers={name: value for name, _, value in pairs},
        due_at=due,
        expires_at=expires,
        **names,
    )
    if session.json:
        session.emit(result)
    elif result["outcome"] == "posted":
        session.say(f"Posted {result['id']} as number {result['seq']} of its lane.")
    else:
        session.say(f"{result['id']} was posted before; it is {result['state']}.")


def _act(session: Session, name: str, id: str, did: str, **names: Any) -> None:
    result = session.call(name, id=id, **names)
    if session.json:
        session.emit(result)
    else:
        session.say(f"Message {id} {did}: it was {result['was']}, it is {result['state']}.")


@message.command("cancel")
@click.argument("id")
@option.message_options
@option.yes
@pass_session
def cancel(session: Session, /, id: str, yes: bool, **names: Any) -> None:
    """Finish an unfinished message without delivering it."""
    if session.must_ask(yes):
        session.confirm(f"Cancel message {id}?")
    _act(session, "message.cancel", id, "is cancelled", **names)


@message.command("park")
@click.argument("id")
@option.message_options
@pass_session
def park(session: Session, /, id: str, **names: Any) -> None:
    """Set a message aside, so that its lane goes on without it."""
    _act(session, "message.park", id, "is parked", **names)


@message.command("unpark")
@click.argument("id")
@option.message_options
@pass_session
def unpark(session: Session, /, id: str, **names: Any) -> None:
    """Return a parked message to its place in its lane."""
    _act(session, "message.unpark", id, "is back in its lane", **names)


@message.command("resolve")
@click.argument("id")
@click.argument("verdict", type=click.Choice(["delivered", "retry", "dead", "rejected"]))
@option.message_options
@option.yes
@pass_session
def resolve(session: Session, /, id: str, verdict: str, yes: bool, **names: Any) -> None:
    """Say what became of an uncertain message: one whose sending was begun and whose end is unknown."""
    if session.must_ask(yes):
        session.confirm(f"Settle message {id} as {verdict}?")
    _act(session, "message.resolve", id, "is settled", verdict=verdict, **names)
