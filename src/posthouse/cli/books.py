"""posthouse books: delivery accounts on Spark. These commands write them; ``books_read`` shows them."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from . import books_read, books_replay
from .option import pass_session, yes
from .root import Group
from .session import FOUND, Failure, Session

if TYPE_CHECKING:
    from ..control.operator import Report
    from ..pipeline.job import Job, Result

F = TypeVar("F", bound=Callable[..., Any])


@click.group(cls=Group)
def books() -> None:
    """The books: was every message delivered, and if not, why; computed on Spark from the journal."""


def _spark_options(function: F) -> F:
    for option in (
        click.option("--conf", metavar="NAME=VALUE", multiple=True, help="A setting of Spark; may be repeated."),
        click.option("--remote", metavar="URL", help="A Spark Connect server, such as sc://host:15002."),
        click.option("--master", metavar="URL", help="A cluster's master, or local[N] [default: books.master]."),
        click.option("--lake", metavar="DIR", help="The lake's folder or URL [default: books.lake]."),
    ):
        function = option(function)
    return function


def _journal_option(function: F) -> F:
    return click.option(
        "--journal", metavar="DIR", help="The folder or URL of the journal's segments [default: journal.dir]."
    )(function)


def _journal(session: Session, place: str | None) -> str:
    return place if place is not None else str(session.config().path("journal.dir"))


@contextlib.contextmanager
def _job(
    session: Session,
    lake: str | None,
    master: str | None,
    remote: str | None,
    conf: tuple[str, ...],
    report: Report,
) -> Iterator[Job]:
    """The books of a lake, with a session that starts when it is needed and ends with the command."""
    from ..pipeline import session as spark
    from ..pipeline.job import Job

    given = {}
    for text in conf:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise click.UsageError(f"--conf takes NAME=VALUE, not {text[:80]!r}")
        given[name.strip()] = value
    config = session.config()
    usual = config.text_or_none("books.master")
    if not master and not remote and usual and usual.startswith("sc://"):
        remote = usual
    settings = spark.Settings(
        master=None if remote else (master or usual),
        remote=remote,
        conf=given,
        environment=dict(os.environ),
    )
    if master and remote:
        raise click.UsageError("--master and --remote exclude each other")
    with contextlib.ExitStack() as stack:

        def start() -> Any:
            report(0, None, "starting Spark")
            return stack.enter_context(spark.start(settings))

        yield Job(lake if lake is not None else config.text("books.lake"), start, report=report)


@contextlib.contextmanager
def _progress(session: Session) -> Iterator[Report]:
    """A bar with events done, their rate and the time that is left, on a terminal only."""
    if session.json or not sys.stderr.isatty():
        yield lambda done, total, doing: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(), TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None, rate="")
        begun = {"": time.monotonic()}

        def report(done: int, total: int | None, doing: str) -> None:
            since = begun.setdefault(doing, time.monotonic())
            took = time.monotonic() - since
            rate = f"{done / took:,.0f}/s" if done and took > 0.1 else ""
            bar.update(task, completed=done, total=total, description=doing, rate=rate)

        yield report


@books.command("run")
@_journal_option
@_spark_options
@pass_session
def run(
    session: Session,
    journal: str | None,
    lake: str | None,
    master: str | None,
    remote: str | None,
    conf: tuple[str, ...],
) -> None:
    """Take in all segments that are new, bring every table up to date, and stop.

    Each segment counts once, however often it is run or killed. A second run at the same time is refused.
    Exit code 4: some files could not be taken in, or something is wrong with the journal; they are named.
    """
    with _progress(session) as report, _job(session, lake, master, remote, conf, report) as job:
        result = job.run(_journal(session, journal))
    _tell(session, result)


@books.command("watch")
@_journal_option
@_spark_options
@click.option(
    "--every", type=click.FloatRange(1), default=60.0, show_default=True, metavar="S", help="Seconds between."
)
@pass_session
def watch(
    session: Session,
    journal: str | None,
    lake: str | None,
    master: str | None,
    remote: str | None,
    conf: tuple[str, ...],
    every: float,
) -> None:
    """Keep taking in what is new, with one warm Spark session, until it is interrupted."""
    place = _journal(session, journal)
    with _progress(session) as report, _job(session, lake, master, remote, conf, report) as job:
        while True:
            result = job.run(place)
            if result.batches:
                session.say(_summary(result))
            time.sleep(every)


@books.command("rebuild")
@_journal_option
@_spark_options
@yes
@pass_session
def rebuild(
    session: Session,
    journal: str | None,
    lake: str | None,
    master: str | None,
    remote: str | None,
    conf: tuple[str, ...],
    yes: bool,
) -> None:
    """Make every table anew from the segments. What was forgotten stays forgotten."""
    if session.must_ask(yes):
        session.confirm("Segments that are not there any more will be missing in the books. Go on?")
    with _progress(session) as report, _job(session, lake, master, remote, conf, report) as job:
        result = job.run(_journal(session, journal), rebuild=True)
    _tell(session, result)


def _summary(result: Result) -> str:
    if not result.batches:
        return "Nothing is new."
    late = "; late segments came, and what they touch was computed anew" if result.late else ""
    return f"{result.events} events in {result.segments} segments, in {result.batches} batches{late}."


def _tell(session: Session, result: Result) -> None:
    if session.json:
        session.emit(result.plain())
    else:
        if result.findings:
            session.table(
                ("FINDING", "NODE", "WHAT"),
                [(each.kind, each.node, each.detail) for each in result.findings[:50]],
                "",
            )
        if len(result.findings) > 50:
            session.say(f"… and {len(result.findings) - 50} more; `books show anomalies` has all.")
        session.say(_summary(result))
    if result.findings:
        raise SystemExit(FOUND)


@books.command("compact")
@_spark_options
@click.option(
    "--retain-h",
    type=click.FloatRange(0),
    metavar="H",
    help="Also remove files that no version of the last H hours needs.",
)
@pass_session
def compact(
    session: Session,
    lake: str | None,
    master: str | None,
    remote: str | None,
    conf: tuple[str, ...],
    retain_h: float | None,
) -> None:
    """Join the small files of every table into large ones."""
    with _progress(session) as report, _job(session, lake, master, remote, conf, report) as job:
        done = job.compact(retain_h=retain_h)
    if session.json:
        session.emit({"tables": done})
        return
    session.table(
        ("TABLE", ">FILES BEFORE", ">FILES AFTER"),
        [(name, each["files_removed"], each["files_added"]) for name, each in done.items() if each["files_removed"]],
        "There was nothing to join.",
    )


@books.command("forget")
@click.option("--mailbox", required=True, metavar="NAME", help="Whose rows to erase.")
@_journal_option
@_spark_options
@yes
@pass_session
def forget(
    session: Session,
    mailbox: str,
    journal: str | None,
    lake: str | None,
    master: str | None,
    remote: str | None,
    conf: tuple[str, ...],
    yes: bool,
) -> None:
    """Erase a mailbox's rows from every table and from the lake's files, for now and after every rebuild.

    The segments are not touched: it says which of them still hold rows of the mailbox.
    """
    if session.must_ask(yes):
        session.confirm(f"Erase all rows of the mailbox {mailbox} from the books, and the history of every table?")
    place = _journal(session, journal)
    with _progress(session) as report, _job(session, lake, master, remote, conf, report) as job:
        done = job.forget(mailbox, place if journal is not None or Path(place).is_dir() else None)
    if session.json:
        session.emit(done)
        return
    session.say(f"{done['events_erased']} events of {mailbox} were erased from the books.")
    session.table(
        ("SEGMENT", ">EVENTS"),
        [(each["segment"], each["events"]) for each in done["segments"]],
        "No segment of the journal holds any.",
    )
    if done["segments"]:
        session.say("These segments still hold them. Messages that it sent are in the mailboxes of others.")


@books.command("verify")
@_journal_option
@_spark_options
@pass_session
def verify(
    session: Session,
    journal: str | None,
    lake: str | None,
    master: str | None,
    remote: str | None,
    conf: tuple[str, ...],
) -> None:
    """Check segments against what was taken in, and the tables against that and each other.

    Exit code 4 if there is anything.
    """
    place = _journal(session, journal)
    with _progress(session) as report, _job(session, lake, master, remote, conf, report) as job:
        found = job.verify(place)
    if session.json:
        session.emit({"findings": [{"kind": k, "where": w, "detail": d} for k, w, d in found]})
    else:
        session.table(("KIND", "WHERE", "WHAT"), found, "The books agree with the journal and with each other.")
    if found:
        raise SystemExit(FOUND)


@books.command("generate")
@click.option("--events", type=click.IntRange(1), required=True, metavar="N", help="About how many events.")
@click.option("--seed", type=click.IntRange(0), required=True, metavar="S", help="The same seed gives the same files.")
@click.option("--out", type=click.Path(path_type=Path), required=True, metavar="DIR", help="The journal's folder.")
@click.option("--nodes", type=click.IntRange(1, 99), default=2, show_default=True, metavar="N", help="How many nodes.")
@click.option("--desks", type=click.IntRange(1), default=3, show_default=True, metavar="N", help="How many desks.")
@click.option("--mailboxes", type=click.IntRange(1), metavar="N", help="How many mailboxes a desk has.")
@click.option(
    "--planted", type=click.IntRange(0), default=2, show_default=True, metavar="N", help="Faults of each kind."
)
@pass_session
def generate(
    session: Session,
    events: int,
    seed: int,
    out: Path,
    nodes: int,
    desks: int,
    mailboxes: int | None,
    planted: int,
) -> None:
    """Make up a realistic journal with planted faults, and an answer sheet that names them (_answers.json)."""
    try:
        from ..pipeline.generate import generate as make
    except ImportError as error:
        raise Failure("missing_extra", "this needs numpy and pyarrow: pip install posthouse[pipeline]", 2) from error

    with _progress(session) as report:
        answers = make(
            out,
            events=events,
            seed=seed,
            nodes=nodes,
            desks=desks,
            mailboxes=mailboxes,
            planted=planted,
            progress=lambda done, total: report(done, total, "making up"),
        )
    found = {"out": str(out), "events": answers["events"], "findings": len(answers["findings"])}
    if session.json:
        session.emit(found)
    else:
        session.say(f"{answers['events']} events in {out}; {len(answers['findings'])} faults are planted in them.")


books_read.attach(books)
books_replay.attach(
    books,
    _spark_options,
    lambda session, lake, master, remote, conf: _job(
        session, lake, master, remote, conf, lambda done, total, doing: None
    ),
)
