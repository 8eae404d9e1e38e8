"""posthouse dead: dead letters, grouped by like errors, shown, given a new life, set aside, purged."""

from __future__ import annotations

from typing import Any

import click

from ..mailbox.command import REDRIVABLE
from ..mailbox.message import FINISHED, SET_ASIDE, State
from . import option
from .mailbox import purge_with
from .message import print_history, print_message
from .option import pass_session
from .root import Group
from .session import Json, Session
from .text import age

_ASIDE = tuple(s for s in State if s in (FINISHED | SET_ASIDE) and s is not State.DELIVERED)
_REDRIVABLE = tuple(s for s in State if s in REDRIVABLE)


@click.group(cls=Group)
def dead() -> None:
    """Dead letters: grouped by error, shown, redriven, set aside, purged."""


@dead.command("ls")
@option.filter_options(_ASIDE)
@click.option("--each", is_flag=True, help="List the messages instead of groups of like errors.")
@click.option(
    "--after",
    type=click.IntRange(0, 2**63 - 1),
    default=0,
    metavar="NUMBER",
    help="With --each: begin behind this one.",
)
@option.limit(50, "Groups or messages to show at most.")
@pass_session
def ls(session: Session, /, each: bool, after: int, limit: int, **filters: Any) -> None:
    """List dead letters, like errors together: how many, when first and last.

    Numbers, UUIDs and hashes in errors are shown as # and do not tell errors apart.
    """
    selection = option.where(filters)
    if each:
        _ls_each(session, session.call("dead.messages", where=selection, after=after, limit=limit))
        return
    found = session.call("dead.ls", where=selection, limit=limit)
    if session.json:
        session.emit(found)
        return
    now = session.now
    session.table(
        (">COUNT", "DESK", "REASON", "ERROR", ">MAILBOXES", "FIRST", "LAST", "EXAMPLE"),
        [
            (
                row["count"],
                row["desk"],
                row["reason"] or "",
                row["error"] or "(none)",
                row["mailboxes"],
                age(row["first_at"], now),
                age(row["last_at"], now),
                row["example"],
            )
            for row in found["groups"]
        ],
        "There are no dead letters.",
    )
    if found["more"]:
        session.say("There are more; filters show fewer at a time.")


def _ls_each(session: Session, found: Json) -> None:
    if session.json:
        session.emit(found)
        return
    session.table(
        (">NUMBER", "DESK", "MAILBOX", "LANE", "ID", "STATE", ">ATTEMPTS", "SINCE", "REASON", "ERROR"),
        [
            (
                row["number"],
                row["desk"],
                row["mailbox"],
                row["lane"],
                row["id"],
                row["state"],
                row["attempts"],
                age(row["since"], session.now),
                row["reason"] or "",
                row["error"] or "",
            )
            for row in found["messages"]
        ],
        "There are no dead letters.",
    )
    if found["next"] is not None:
        session.say(f"There are more: --after {found['next']}")


@dead.command("show")
@click.argument("id")
@option.message_options
@pass_session
def show(session: Session, /, id: str, **names: Any) -> None:
    """Show a dead letter with its body and its history."""
    with session.operator() as operator:
        found = session.ask(operator, "dead.show", id=id, **names)
        told = session.ask(
            operator,
            "message.history",
            id=id,
            desk=found["desk"],
            mailbox=found["mailbox"],
            sender=found["sender"],
        )
    if session.json:
        session.emit({**found, "history": told["events"]})
        return
    print_message(session, found)
    session.say("")
    print_history(session, told)


@dead.command("redrive")
@option.filter_options(_REDRIVABLE)
@click.option("--limit", type=click.IntRange(1), metavar="N", help="Messages to redrive at most.")
@click.option(
    "--rate",
    type=click.FloatRange(0, 1e6, min_open=True),
    metavar="PER_SECOND",
    help="Let so many fall due each second.",
)
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@option.yes
@pass_session
def redrive(
    session: Session, /, limit: int | None, rate: float | None, dry_run: bool, yes: bool, **filters: Any
) -> None:
    """Give dead letters a new life: each returns to its place in its lane, attempts begin again.

    Without a filter, all of them. The history keeps both lives.
    """
    parameters: Json = {"where": option.where(filters), "rate_per_s": rate}
    if limit is not None:
        parameters["limit"] = limit
    # A filter is a choice; only "all of them" is asked about.
    asks = not dry_run and not parameters["where"] and session.must_ask(yes)
    with session.operator() as operator:
        if asks:
            would = session.ask(operator, "dead.redrive", **parameters, dry_run=True)
            session.confirm(f"Redrive {_redriven(would)}?")
        result = session.ask(operator, "dead.redrive", **parameters, dry_run=dry_run)
    if session.json:
        session.emit(result)
        return
    session.say(f"{'Would redrive' if dry_run else 'Redrove'} {_redriven(result)}.")
    if result["more"] and not dry_run:
        session.say("There are more: repeat the command when these are through.")


def _redriven(result: Json) -> str:
    more = " or more" if result["more"] and result["dry_run"] else ""
    count = result["redriven"]
    text = f"{count}{more} {'message' if count == 1 and not more else 'messages'}"
    return text + (f" ({result['skipped']} have no room in their mailbox)" if result["skipped"] else "")


def _moving(name: str, states: tuple[State, ...], word: str, past: str, help: str) -> None:
    """A command that moves letters aside, or back."""

    @dead.command(name, help=help)
    @option.filter_options(states)
    @click.option("--limit", type=click.IntRange(1), metavar="N", help=f"Messages to {name} at most.")
    @click.option("--dry-run", is_flag=True, help="Only say what would be done.")
    @option.yes
    @pass_session
    def move(session: Session, /, limit: int | None, dry_run: bool, yes: bool, **filters: Any) -> None:
        parameters: Json = {"where": option.where(filters)}
        if limit is not None:
            parameters["limit"] = limit
        # A filter is a choice; only "all of them" is asked about.
        asks = not dry_run and not parameters["where"] and session.must_ask(yes)

        def told(result: Json) -> str:
            more = " or more" if result["more"] else ""
            kept = f" ({result['skipped']} have no room there)" if result["skipped"] else ""
            return f"{result[past]}{more} {'message' if result[past] == 1 and not more else 'messages'}{kept}"

        with session.operator() as operator:
            if asks:
                session.confirm(f"{word} {told(session.ask(operator, f'dead.{name}', **parameters, dry_run=True))}?")
            result = session.ask(operator, f"dead.{name}", **parameters, dry_run=dry_run)
        if session.json:
            session.emit(result)
        else:
            session.say(f"{'Would be' if dry_run else 'Done'}: {past} {told(result)}.")


_moving(
    "park",
    _REDRIVABLE,
    "Park",
    "parked",
    "Set dead letters aside: they are dead no longer, and wait until somebody unparks, cancels or purges them.",
)
_moving(
    "unpark",
    (State.PARKED,),
    "Unpark",
    "unparked",
    "Return what was set aside to its lanes, each with a new life. Without a filter, all of it.",
)


@dead.command("purge")
@option.filter_options(_ASIDE)
@click.option("--limit", type=click.IntRange(1), metavar="N", help="Messages to purge at most.")
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@option.yes
@pass_session
def purge(session: Session, /, limit: int | None, dry_run: bool, yes: bool, **filters: Any) -> None:
    """Remove dead letters from sight. Their ids stay remembered."""
    parameters: Json = {"where": option.where(filters)}
    if limit is not None:
        parameters["limit"] = limit
    purge_with(session, "dead.purge", parameters, "dead letters", dry_run, yes)
