"""posthouse books show, message, report: reading the books. They start no Java and answer at once."""

from __future__ import annotations

import datetime
import json
import os
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ..pipeline.plot import span
from .option import When, message_options, pass_session
from .root import Command
from .session import REFUSED, Failure, Json, Session
from .text import short_instant, size

if TYPE_CHECKING:
    from ..pipeline.lake import Lake, Row

F = TypeVar("F", bound=Callable[..., Any])
WIDE = 18
"""Columns that fit beside each other."""
ROWS_MAX = 1_000_000_000


def attach(group: click.Group) -> None:
    """Add these commands to the group of the books."""
    for command in (show, message, report):
        group.add_command(command)


def lake_option(function: F) -> F:
    """--lake."""
    return click.option("--lake", metavar="DIR", help="The lake's folder or URL [default: books.lake].")(function)


def _lake(session: Session, place: str | None) -> Lake:
    from ..pipeline.lake import Lake

    return Lake(place if place is not None else session.config().text("books.lake"))


def _time_options(function: F) -> F:
    for name, what in (
        ("--until", "Only before this time (ISO 8601), or longer ago than 2h, 3d …"),
        ("--since", "Only at or after this time (ISO 8601), or in the last 2h, 3d …"),
    ):
        function = click.option(name, type=When(), metavar="TIME", help=what)(function)
    return function


@click.command("show", cls=Command)
@click.argument("table", default="books")
@lake_option
@_time_options
@click.option("--desk", metavar="TEXT", help="Only of this desk.")
@click.option("--kind", metavar="TEXT", help="Only of this kind: the type of messages, or of findings.")
@click.option("--where", metavar="CONDITION", default="", help="Only rows for which this holds; see above.")
@click.option("--columns", metavar="NAMES", default="", help="Which columns, parted by commas; `all` for every one.")
@click.option(
    "--limit",
    type=click.IntRange(1, ROWS_MAX),
    metavar="N",
    help="How many rows at most [default: 50 for people, with --json all].",
)
@pass_session
def show(
    session: Session,
    table: str,
    lake: str | None,
    since: int | None,
    until: int | None,
    desk: str | None,
    kind: str | None,
    where: str,
    columns: str,
    limit: int | None,
) -> None:
    """Show a table of the books, without starting Java.

    TABLE is books (the default), messages, attempts, anomalies, latency, depth, availability, deadletters, outages,
    replays, events, segments or restores. A CONDITION compares columns with values, as in
    "outcome = dead and (attempts > 3 or error ~ timeout)": = != < <= > >=, ~ and !~ (contains), in (a, b),
    not in (a, b), is null, is not null, and, or, not. Lengths of time are microseconds, or written as 250ms, 5s, 2h.
    """
    from ..pipeline.lake import VIEWS, Selection

    books = _lake(session, lake)
    types = books.columns(table)
    chosen = tuple(dict.fromkeys(name.strip() for name in columns.split(",") if name.strip()))
    if not chosen and not session.json:
        view = VIEWS[table]
        # The day by which files are cut says nothing to people where there is a time.
        usual = view.shown or tuple(name for name in types if name != "day" or view.time == "day")
        chosen = tuple(name for name in usual if name in types)
    if chosen == ("all",):
        chosen = ()
    equal = {name: text for name, text in (("desk", desk), ("kind", kind)) if text is not None}
    most = limit if session.json or limit is not None else 50
    # One more than is shown, to know whether there are more.
    asked = most if session.json or most is None else most + 1
    found = books.rows(table, Selection(since, until, equal, where, chosen, asked))
    if session.json:
        _print_rows(table, books.version(table), found)
        return
    assert most is not None
    rows = list(found)
    wanted = list(chosen or types)
    if len(wanted) > WIDE:
        # More columns than any terminal is wide: each row below the other.
        for number, row in enumerate(rows[:most]):
            if number:
                session.say("")
            session.facts([(name, cell(table, name, row[name])) for name in wanted])
    if len(wanted) <= WIDE or not rows:
        session.table(
            [(">" if types[name] in ("whole", "number") else "") + name.upper() for name in wanted],
            [[cell(table, name, row[name]) for name in wanted] for row in rows[:most]],
            f"No row of {table} is like that.",
        )
    if len(rows) > most:
        session.say(f"These are the first {most}; --limit shows more, --json all of them.")


def _print_rows(table: str, version: int, rows: Iterator[Row]) -> None:
    """One JSON document, written as the rows come: there may be millions."""
    # With the first row all that was asked is checked: a mistake is told before the document begins.
    begun = [row for row in (next(rows, None),) if row is not None]
    click.echo(f'{{\n  "table": {json.dumps(table)},\n  "version": {version},\n  "rows": [', nl=False)
    first = True
    buffer: list[str] = []
    for row in chain(begun, rows):
        buffer.append(("\n    " if first else ",\n    ") + json.dumps(row))
        first = False
        if len(buffer) >= 1_000:
            click.echo("".join(buffer), nl=False)
            buffer.clear()
    click.echo("".join(buffer) + ("]\n}" if first else "\n  ]\n}"))


def cell(table: str, name: str, value: Any) -> str:
    """A value as people read it."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name == "window" or name.endswith("_at") or name == "at":
        return short_instant(value)
    if isinstance(value, int):
        if _is_span(table, name):
            return span(value)
        return size(value) if name == "size_bytes" else str(value)
    if isinstance(value, float):
        return f"{value:.3g}"
    if isinstance(value, list):
        shown = ", ".join(str(each) for each in value[:8])
        return shown + (f", … ({len(value)})" if len(value) > 8 else "")
    if isinstance(value, dict):
        return f"{len(value)} buckets"
    return str(value)


def _is_span(table: str, name: str) -> bool:
    from ..pipeline.schema import TABLES

    return any(column.name == name and "µs" in column.meaning for column in TABLES[table].columns)


@click.command("message", cls=Command)
@click.argument("id")
@lake_option
@message_options
@click.option("--node", metavar="NAME", help="Its node, where several messages have that id.")
@pass_session
def message(session: Session, /, id: str, lake: str | None, **named: str | None) -> None:
    """Show what the books know of a message: its life, its waits, its anomalies.

    Exit code 1 if they know nothing of it.
    """
    found = _lake(session, lake).message(id, {name: text for name, text in named.items() if text is not None})
    if not found:
        raise Failure("not_found", f"the books tell nothing of a message {id!r}", REFUSED)
    if session.json:
        session.emit({"id": id, "messages": found})
        return
    for number, row in enumerate(found):
        if number:
            session.say("")
        _tell(session, row)


def _tell(session: Session, row: Json) -> None:
    from ..pipeline.schema import WAITS

    if "outcome" not in row:
        session.say(f"No message {row['message_id']} is known, but findings name it.")
    else:
        about = " ".join(str(row[name]) for name in ("outcome", "reason", "error") if row[name])
        session.facts(
            [
                ("Message", row["message_id"]),
                ("Outcome", about + (" (it was never posted)" if row["orphan"] else "")),
                ("Desk", row["desk"]),
                ("Mailbox", row["mailbox"]),
                ("Lane", f"{row['lane'] or '(unnamed)'}, number {row['lane_seq']}"),
                ("Sender", row["sender"]),
                ("Kind", row["kind"]),
                ("Size", size(row["size_bytes"]) if row["size_bytes"] is not None else None),
                ("Node", f"{row['node']}, offsets {row['first_offset']} to {row['last_offset']}"),
                ("Generation", row["generation"] if row["generation"] != 1 else None),
                ("Answers", row["cause_id"]),
                ("Posted", row["posted_at"]),
                ("First leased", row["first_leased_at"]),
                ("Received", row["received_at"]),
                ("Finished", row["finished_at"]),
                ("Expires", row["expires_at"]),
                ("Attempts", f"{row['attempts']}, {row['lives']} lives" if row["lives"] != 1 else row["attempts"]),
                ("Delivered", _delivered(row)),
            ]
        )
        waits = [(name, row.get(f"wait_{name}") or 0) for name in WAITS]
        total = sum(us for _, us in waits)
        if total:
            session.say("")
            session.table(
                ["WAITED", ">FOR", ">SHARE", ""],
                [
                    (name.replace("_", " "), span(us), f"{us / total:.0%}", "█" * round(30 * us / total))
                    for name, us in waits
                    if us
                ],
                "",
            )
    if row["events"]:
        session.say("")
        # Of a store that was restored, offsets go on; the file that holds one has its node's own.
        moved = any(event["place"] != event["offset"] for event in row["events"])
        whose = ["NODE", ">ITS OFFSET"] if moved else []
        session.table(
            [">OFFSET", *whose, "AT", "EVENT", ">ATTEMPT", "HOLDER", "REASON", "ERROR"],
            [
                (
                    event["place"],
                    *((event["node"], event["offset"]) if moved else ()),
                    event["at"],
                    event["event"],
                    event["attempt"] or "",
                    event["holder"] or "",
                    event["reason"] or "",
                    event["error"] or "",
                )
                for event in row["events"]
            ],
            "",
        )
    session.say("")
    session.table(
        ["FINDING", "OFFSETS", "DETAIL"],
        [
            (each["kind"], cell("anomalies", "offsets", each["offsets"]), each["detail"] or "")
            for each in row["anomalies"]
        ],
        "Nothing was wrong with it.",
    )


def _delivered(row: Mapping[str, Any]) -> str | None:
    if row["latency"] is None:
        return None
    return f"{'live' if row['live'] else 'from the store'}, {span(row['latency'])} after it was posted"


@click.command("report", cls=Command)
@lake_option
@_time_options
@click.option("--desk", metavar="TEXT", help="Only of this desk.")
@click.option("--out", metavar="FILE", default="books.html", show_default=True, help="The file to write.")
@pass_session
def report(
    session: Session, lake: str | None, since: int | None, until: int | None, desk: str | None, out: str
) -> None:
    """Write a report as one HTML file with plots that needs nothing else, light and dark.

    It shows the books by hour, what was not delivered and why, the findings, latency, waits, depth, availability,
    dead letters, outages and the replays that were made.
    """
    from ..pipeline.report import page

    text = page(_lake(session, lake), now=_now(session), since=since, until=until, desk=desk)
    path = Path(out).absolute()
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    if session.json:
        session.emit({"path": str(path), "size_bytes": len(text.encode())})
    else:
        session.say(f"{path}: {size(len(text.encode()))}.")


def _now(session: Session) -> datetime.datetime:
    return session.now.replace(microsecond=0)
