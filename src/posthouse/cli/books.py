"""posthouse books: delivery accounts on Spark. These commands write them; ``books_read`` shows them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from . import books_read, books_replay, books_watch
from .books_place import (
    FOUND_MAX,
    Finite,
    Place,
    journal_option,
    journal_place,
    open_job,
    place_options,
    progress,
    summary,
)
from .option import pass_session, yes
from .root import Group
from .session import FOUND, Failure, Session

if TYPE_CHECKING:
    from ..pipeline.job import Result

RETAIN_H_MAX = 87_600
"""Ten years."""


@click.group(cls=Group)
def books() -> None:
    """The books: was every message delivered, and if not, why; computed on Spark from the journal."""


@books.command("run")
@journal_option
@place_options
@pass_session
def run(
    session: Session,
    journal: str | None,
    at: Place,
) -> None:
    """Take in all segments that are new, bring every table up to date, and stop.

    Each segment counts once, however often it is run or killed. A second run at the same time is refused.
    Exit code 4: some files could not be taken in, or something is wrong with the journal; they are named.
    """
    with progress(session) as report, open_job(session, at, report) as job:
        result = job.run(journal_place(session, journal))
    _tell(session, result)


@books.command("rebuild")
@journal_option
@place_options
@yes
@pass_session
def rebuild(
    session: Session,
    journal: str | None,
    at: Place,
    yes: bool,
) -> None:
    """Make every table anew from the segments. What was forgotten stays forgotten.

    It says how many of the segments that were taken in are not there any more. Refused where the lake has some, and
    the journal none, or none that can be taken in.
    """
    asks, place = session.must_ask(yes), journal_place(session, journal)
    with open_job(session, at) as job:
        missing, taken = job.missing(place)
        unrecorded = job.is_unrecorded()
        told = [f"{missing} of {taken} segments that were taken in are not there."] if missing else []
        if unrecorded:
            told.append("The lake's record is lost: whoever was forgotten comes back, and has to be forgotten again.")
    if asks:
        told.append("Segments that are not there any more will be missing in the books. Go on?")
        session.confirm(" ".join(told))
    elif told and not session.json:
        session.say(" ".join(told))
    with progress(session) as report, open_job(session, at, report) as job:
        result = job.run(place, rebuild=True)
    _tell(session, result, missing=missing, unrecorded=unrecorded)


def _tell(session: Session, result: Result, **more: int) -> None:
    if session.json:
        session.emit(result.plain() | more)
    else:
        if result.findings:
            session.table(
                ("FINDING", "NODE", "WHAT"),
                [(each.kind, each.node, each.detail) for each in result.findings[:FOUND_MAX]],
                "",
            )
        if len(result.findings) > FOUND_MAX:
            session.say(f"… and {len(result.findings) - FOUND_MAX} more; `books show anomalies` has all.")
        session.say(summary(result))
    if result.findings:
        raise SystemExit(FOUND)


@books.command("compact")
@place_options
@click.option(
    "--retain-h",
    type=Finite(0, RETAIN_H_MAX),
    metavar="H",
    help="Also remove files that no version of the last H hours needs.",
)
@pass_session
def compact(
    session: Session,
    at: Place,
    retain_h: float | None,
) -> None:
    """Join the small files of every table into large ones."""
    with progress(session) as report, open_job(session, at, report) as job:
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
@journal_option
@place_options
@yes
@pass_session
def forget(
    session: Session,
    mailbox: str,
    journal: str | None,
    at: Place,
    yes: bool,
) -> None:
    """Erase a mailbox's rows from every table and from the lake's files, and keep its rows out for good.

    What comes of it later is left out, too, by every run and every rebuild; nothing takes that back. `books verify`
    says who is forgotten.

    The segments are not touched: it says which of them still hold rows of the mailbox, and how many of those that were
    taken in are not there to be looked at. Nothing is erased where there is no journal, or no segment at all in it.
    """
    if session.must_ask(yes):
        session.confirm(
            f"Erase all rows of the mailbox {mailbox} from the books, and the history of every table, and keep out all"
            " that comes of it later, for good?"
        )
    place = journal_place(session, journal)
    with progress(session) as report, open_job(session, at, report) as job:
        job.need_books()
        done = job.forget(mailbox, place)
    if session.json:
        session.emit(done)
        return
    session.say(f"{done['events_erased']} events of {mailbox} were erased from the books.")
    whole = not done["unread"] and not done["missing"]
    session.table(
        ("SEGMENT", ">EVENTS"),
        [(each["segment"], each["events"]) for each in done["segments"]],
        "No segment of the journal holds any." if whole else "No segment that could be read holds any.",
    )
    if done["segments"]:
        session.say("These segments still hold them.")
    for name in done["unread"]:
        session.say(f"{name} cannot be read: nobody can tell whether it holds any.")
    if done["missing"]:
        many = f"{done['missing']} of {done['taken']} segments that were taken in"
        session.say(f"{many} are not there: nobody can tell whether they hold any.")
    session.say("What comes of it later is left out of the books, too.")
    session.say("Messages that it sent are in the mailboxes of others.")


@books.command("verify")
@journal_option
@place_options
@pass_session
def verify(
    session: Session,
    journal: str | None,
    at: Place,
) -> None:
    """Check segments against what was taken in, and the tables against that and each other.

    It also says what it cannot tell, such as what is missing where a mailbox was forgotten and the segments are gone,
    and which mailboxes are forgotten. Exit code 4 if there is anything that does not agree.
    """
    place = journal_place(session, journal)
    with progress(session) as report, open_job(session, at, report) as job:
        found, untold = job.verify(place)
    if session.json:
        findings = [{"kind": kind, "where": where, "detail": detail} for kind, where, detail in found]
        session.emit({"findings": findings, "untold": untold})
    else:
        session.table(("KIND", "WHERE", "WHAT"), found, "The books agree with the journal and with each other.")
        for sentence in untold:
            session.say(sentence)
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

    with progress(session) as report:
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
books_replay.attach(books)
books_watch.attach(books)
