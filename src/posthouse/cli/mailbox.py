"""posthouse mailbox: list, show, pause, resume, purge."""

from __future__ import annotations

from typing import Any

import click

from ..mailbox.command import PURGEABLE
from ..mailbox.message import State
from . import option
from .option import pass_session
from .root import Group
from .session import Json, Session
from .text import age, short_instant


@click.group(cls=Group)
def mailbox() -> None:
    """Mailboxes: how full, how old, pause, resume, purge."""


@mailbox.command("ls")
@click.option("--desk", metavar="NAME", help="Only of this desk.")
@click.option("--contains", metavar="TEXT", default="", help="Only those whose name contains this.")
@click.option(
    "--after", nargs=2, metavar="DESK MAILBOX", help="Begin behind this one: the next page after a long list."
)
@option.limit(50, "Mailboxes to show at most.")
@pass_session
def ls(session: Session, desk: str | None, contains: str, after: tuple[str, str] | None, limit: int) -> None:
    """List mailboxes with their depth, states and oldest message."""
    page = session.call("mailbox.ls", desk=desk, contains=contains, after=list(after) if after else None, limit=limit)
    if session.json:
        session.emit(page)
        return
    now = session.now
    session.table(
        ("DESK", "MAILBOX", ">DEPTH", ">LANES", "STATES", "OLDEST", "PAUSED"),
        [
            (
                row["desk"],
                row["mailbox"],
                row["depth"],
                row["lanes"],
                _counts(row["counts"]),
                age(row["oldest_at"], now),
                row["paused"] or "",
            )
            for row in page["mailboxes"]
        ],
        "There are no mailboxes.",
    )
    if page["next"]:
        session.say(f"There are more: --after {page['next'][0]} {page['next'][1]}")


@mailbox.command("show")
@click.argument("mailbox")
@option.desk
@click.option("--after", metavar="LANE", help="Begin behind this lane: the next page after a long list.")
@option.limit(50, "Lanes to show at most.")
@pass_session
def show(session: Session, mailbox: str, desk: str | None, after: str | None, limit: int) -> None:
    """Show one mailbox and its lanes."""
    found = session.call("mailbox.show", mailbox=mailbox, desk=desk, after=after, limit=limit)
    if session.json:
        session.emit(found)
        return
    capacity = found["capacity"]
    session.facts(
        [
            ("Mailbox", found["mailbox"]),
            ("Desk", found["desk"]),
            ("Depth", f"{found['depth']} of {capacity}" if capacity else found["depth"]),
            ("States", _counts(found["counts"]) or "none"),
            ("Oldest", _with_age(session, found["oldest_at"])),
            ("Paused", found["paused"]),
            ("Lanes", found["lanes"]),
        ]
    )
    session.say("")
    session.table(
        ("LANE", ">DEPTH", ">IN FLIGHT", ">LAST", "OLDEST", "PAUSED"),
        [
            (
                row["lane"] or "(unnamed)",
                row["depth"],
                row["in_flight"],
                row["last_seq"],
                age(row["oldest_at"], session.now),
                row["paused"] or "",
            )
            for row in found["lane_list"]
        ],
        "It has no lanes.",
    )
    if found["next"] is not None:
        session.say(f"There are more: --after {found['next']}")


@mailbox.command("pause")
@click.argument("mailbox")
@click.option("--desk", metavar="NAME", help="Its desk; needed for a mailbox that does not exist yet.")
@click.option("--lane", metavar="LANE", help="Only this lane of it.")
@pass_session
def pause(session: Session, mailbox: str, desk: str | None, lane: str | None) -> None:
    """Stop leasing from a mailbox, or from one of its lanes; posting goes on."""
    _switch(session, "mailbox.pause", mailbox, desk, lane)


@mailbox.command("resume")
@click.argument("mailbox")
@option.desk
@click.option("--lane", metavar="LANE", help="Only this lane of it.")
@pass_session
def resume(session: Session, mailbox: str, desk: str | None, lane: str | None) -> None:
    """Undo a pause."""
    _switch(session, "mailbox.resume", mailbox, desk, lane)


def _switch(session: Session, name: str, mailbox: str, desk: str | None, lane: str | None) -> None:
    result = session.call(name, mailbox=mailbox, desk=desk, lane=lane)
    if session.json:
        session.emit(result)
        return
    what = f"Mailbox {mailbox}" if lane is None else f"Lane {lane or '(unnamed)'} of mailbox {mailbox}"
    state = "paused" if result["paused"] else "not paused"
    session.say(f"{what} is {state}." if result["changed"] else f"{what} was {state} already.")


@mailbox.command("purge")
@click.argument("mailbox")
@option.filter_options(tuple(s for s in State if s in PURGEABLE), without=("--mailbox", "--desk"))
@option.desk
@click.option("--limit", type=click.IntRange(1), metavar="N", help="Messages to purge at most.")
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@option.yes
@pass_session
def purge(
    session: Session,
    /,
    mailbox: str,
    desk: str | None,
    limit: int | None,
    dry_run: bool,
    yes: bool,
    **filters: Any,
) -> None:
    """Cancel what is unfinished in a mailbox, and remove from sight what is finished.

    What was delivered stays. Ids stay remembered, so that a repeat is still known as one.
    """
    parameters: Json = {"mailbox": mailbox, "desk": desk, "where": option.where(filters)}
    if limit is not None:
        parameters["limit"] = limit
    purge_with(session, "mailbox.purge", parameters, f"mailbox {mailbox}", dry_run, yes)


def purge_with(session: Session, name: str, parameters: Json, of: str, dry_run: bool, yes: bool) -> None:
    """Look, ask, purge, tell."""
    asks = not dry_run and session.must_ask(yes)
    with session.operator() as operator:
        if asks:
            would = session.ask(operator, name, **parameters, dry_run=True)
            session.confirm(f"Purge {of}: {_purged(would)}?")
        result = session.ask(operator, name, **parameters, dry_run=dry_run)
    if session.json:
        session.emit(result)
        return
    session.say(f"{'Would be' if dry_run else 'Done'}: {_purged(result)}.")


def _purged(result: Json) -> str:
    more = " or more" if result["more"] else ""
    text = f"{result['cancelled']} cancelled, {result['removed']} removed{more}"
    return text + (f", {result['skipped']} left (in flight)" if result["skipped"] else "")


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {state}" for state, count in counts.items())


def _with_age(session: Session, at: str | None) -> str | None:
    return None if at is None else f"{short_instant(at)} ({age(at, session.now)})"
