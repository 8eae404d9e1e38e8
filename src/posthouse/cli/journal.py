"""posthouse journal: export, verify, tail."""

from __future__ import annotations

import json
import time

import click

from .option import pass_session
from .root import Group
from .session import FOUND, REFUSED, Failure, Json, Session
from .text import inert, short_instant


@click.group(cls=Group)
def journal() -> None:
    """The journal: export it, verify it, watch it."""


@journal.command("export")
@pass_session
def export(session: Session) -> None:
    """Write all that is committed to Parquet segments, and trim it from the store.

    Running it again after a crash gives the same files, byte for byte.
    """
    done = session.call("journal.export")
    if session.json:
        session.emit(done)
        return
    for path in done["segments"]:
        session.say(path)
    session.say(f"{done['events']} events in {len(done['segments'])} segments; {done['left']} left.")


@journal.command("verify")
@pass_session
def verify(session: Session) -> None:
    """Find and name whatever is missing, altered or out of order in the store's journal and its segments.

    Exit code 4 if there is anything.
    """
    found = session.call("journal.verify")
    if session.json:
        session.emit(found)
    else:
        session.table(
            ("KIND", "WHERE", "WHAT"),
            [(each["kind"], each["where"], each["detail"]) for each in found["findings"]],
            "All is as it was written.",
        )
        session.say(
            f"{found['chunks']} chunks, {found['segments']} segments, {found['events']} events of {found['node']}."
        )
    if not found["ok"]:
        click.get_current_context().exit(FOUND)


@journal.command("tail")
@click.option(
    "--last", "-n", type=click.IntRange(0, 1_000), default=20, show_default=True, metavar="N", help="How many."
)
@click.option("--after", type=click.IntRange(0, 2**63 - 1), metavar="OFFSET", help="Those behind this offset instead.")
@click.option(
    "--follow", "-f", is_flag=True, help="Go on as they come (needs a running server); with --json, a line each."
)
@pass_session
def tail(session: Session, last: int, after: int | None, follow: bool) -> None:
    """Show the journal's last events."""
    with session.operator() as operator:
        if follow and operator.through != "server":
            raise Failure(
                "no_server", "no server runs, and while this command holds the store nothing can happen", REFUSED
            )
        page = session.ask(operator, "journal.events", **({"last": last} if after is None else {"after": after}))
        if session.json and not follow:
            session.emit(page)
            return
        while True:
            for row in page["events"]:
                click.echo(json.dumps(row) if session.json else _line(row))
            if not follow:
                return
            if not page["events"]:
                time.sleep(0.5)
            page = session.ask(operator, "journal.events", after=page["next"])


def _line(row: Json) -> str:
    parts = [f"{row['offset']:>8}", short_instant(row["at"]), f"{row['event']:<12}", row["desk"]]
    for name in ("mailbox", "lane", "message_id", "holder", "reason", "error"):
        if row[name]:
            parts.append(f"{name.removesuffix('_id')}={row[name]}")
    return inert(" ".join(parts))
