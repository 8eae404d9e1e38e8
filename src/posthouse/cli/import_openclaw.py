"""posthouse import openclaw: take over the queues of an OpenClaw gateway, and undo that."""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .option import When, pass_session
from .root import Command
from .session import FOUND, REFUSED, USAGE, Failure, Json, Session

if TYPE_CHECKING:
    from ..config import Config
    from ..control.operator import Operator
    from ..gateway.importing.entry import Entry

PAGE_ENTRIES = 200
PAGE_BYTES = 4 << 20
ROWS_SHOWN = 200
TAKEN = ("pending", "review", "uncertain", "dead", "delivered")


@click.command("openclaw", cls=Command)
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--dry-run", is_flag=True, help="Read everything, change nothing, and say what would be done.")
@click.option("--rollback", is_flag=True, help="Take back what was imported from DIR and has not been touched since.")
@click.option("--now", type=When(), metavar="TIME", help="Judge ages as of this time instead of now; for tests.")
@pass_session
def openclaw(session: Session, folder: Path, dry_run: bool, rollback: bool, now: int | None) -> None:
    """Take over the queues in OpenClaw's state folder DIR (~/.openclaw), of any version from 2026.2 to 2026.9.

    Stop OpenClaw first. What waits there waits here; what it may have sent becomes uncertain; what it gave up becomes a
    dead letter; what has waited for 72 hours, or for longer than the desk lets it, or is of an age that cannot be
    believed, is set aside for review and not sent. DIR itself is not changed. Each entry leaves a receipt, so that it
    is safe to repeat. Makes the store if there is none.

    Exit code 4: some files or rows could not be taken over; they stay where they are, and the report names them.
    """
    if rollback and now is not None:
        raise Failure("usage", "--now judges ages, and --rollback looks at none", USAGE)
    config = session.config()
    root = os.path.realpath(folder)
    if rollback:
        _roll_back(session, root, dry_run)
        return
    report = _import(session, config, folder, root, time.time_ns() // 1_000 if now is None else now, dry_run)
    if session.json:
        session.emit(report.plain())
    else:
        _print(session, report)
    if report.problems:
        raise SystemExit(FOUND)


@dataclass
class Report:
    """What became of every file and row."""

    folder: str
    dry_run: bool
    rows: list[Json] = field(default_factory=list)

    def add(self, source: str, result: str, became: str, **more: Any) -> None:
        kept = {name: value for name, value in more.items() if value not in (None, "")}
        self.rows.append({"source": source, "result": result, "became": became, **kept})

    @property
    def imported(self) -> Counter[str]:
        """Of what was taken over now, how much of each kind."""
        return Counter(row["result"] for row in self.rows if row["became"] == "imported")

    @property
    def known(self) -> int:
        return sum(row["became"] in ("known", "duplicate") for row in self.rows)

    @property
    def ignored(self) -> int:
        return sum(row["result"] == "ignored" for row in self.rows)

    @property
    def problems(self) -> int:
        return sum(row["became"] == "left" and row["result"] != "ignored" for row in self.rows)

    def plain(self) -> Json:
        """As JSON."""
        return {
            "folder": self.folder,
            "dry_run": self.dry_run,
            "imported": {name: self.imported[name] for name in TAKEN},
            "known": self.known,
            "ignored": self.ignored,
            "problems": self.problems,
            "entries": self.rows,
        }


def _import(session: Session, config: Config, folder: Path, root: str, now: int, dry_run: bool) -> Report:
    from ..gateway.importing.entry import Left
    from ..gateway.importing.openclaw import read

    report = Report(root, dry_run)
    with session.progress() as progress, contextlib.ExitStack() as stack:
        found = stack.enter_context(contextlib.closing(read(folder, now, config.policies)))
        operator: Operator | None = None

        def prepared() -> Iterator[tuple[Entry, Json]]:
            for one in found:
                if isinstance(one, Left):
                    report.add(one.source, str(one.result), "left", reason=one.reason, message=one.message)
                    continue
                plain = _plain(one, config, now, report)
                if plain is not None:
                    yield one, plain

        page: list[tuple[Entry, Json]] = []
        size = 0
        for one, plain in prepared():
            page.append((one, plain))
            size += len(plain["message"]["body"]) if plain["message"] else 0
            if len(page) >= PAGE_ENTRIES or size >= PAGE_BYTES:
                operator = operator or stack.enter_context(contextlib.closing(_operator(config, dry_run)))
                _send(operator, report, page, now)
                progress(len(report.rows), None, "reading" if dry_run else "importing")
                page, size = [], 0
        if page:
            operator = operator or stack.enter_context(contextlib.closing(_operator(config, dry_run)))
            _send(operator, report, page, now)
    return report


def _operator(config: Config, dry_run: bool) -> Operator:
    from ..control.operator import Operator
    from ..control.socket import is_socket

    if dry_run and not config.path("store.path").exists() and not is_socket(config.path("control.path")):
        return Operator.nowhere(config)
    return Operator.connect(config, create=not dry_run)


def _plain(entry: Entry, config: Config, now: int, report: Report) -> Json | None:
    """The entry as the operation takes it; None if it cannot become a message: then the report says so."""
    from ..gateway.importing import page
    from ..gateway.importing.entry import Unfit

    try:
        return page.plain(entry, now, config.policies)
    except Unfit as unfit:
        report.add(entry.source, "quarantined", "left", reason=unfit.reason, message=str(unfit))
        return None


def _send(operator: Operator, report: Report, page: list[tuple[Entry, Json]], now: int) -> None:
    entries = {"entries": [plain for _, plain in page]}
    answer = _answer(
        operator,
        "openclaw.import",
        {"root": report.folder, "now": now, "entries": entries, "dry_run": report.dry_run},
    )
    for (entry, plain), became in zip(page, answer["entries"], strict=True):
        more = {
            "queue": str(entry.queue),
            "id": entry.id,
            "retries": entry.retries or None,
            "reason": plain["reason"],
            "note": entry.verdict.note,
        }
        if became in ("imported", "known", "duplicate"):
            report.add(entry.source, plain["result"], became, **more)
            continue
        why = (
            "an entry with this id was imported before, and this one differs from it"
            if became == "conflict"
            else f"the desk refused it: {became}"
        )
        report.add(entry.source, "quarantined", "left", **{**more, "reason": became, "message": why})


def _answer(operator: Operator, name: str, parameters: Json) -> Json:
    from ..control.operation import Refused

    answer = operator.call(name, parameters)
    if isinstance(answer, Refused):
        raise Failure(answer.code, answer.message, REFUSED, answer.detail)
    return answer


def _print(session: Session, report: Report) -> None:
    rows = [
        (
            row["source"],
            row["result"],
            row["became"],
            row.get("message") or row.get("note") or row.get("reason") or "",
        )
        for row in report.rows
    ]
    session.table(("source", "result", "became", "why"), rows[:ROWS_SHOWN], "There is nothing in these queues.")
    if len(rows) > ROWS_SHOWN:
        session.say(f"… and {len(rows) - ROWS_SHOWN} more; --json lists all.")
    taken = ", ".join(f"{report.imported[name]} {name}" for name in TAKEN)
    session.say(
        f"{'Would import' if report.dry_run else 'Imported'}: {taken}."
        f" Known already: {report.known}. Ignored: {report.ignored}. Left where they are: {report.problems}."
    )
    if report.imported["review"]:
        session.say(
            "What is for review is parked: `posthouse message unpark` sends it, `posthouse message cancel` drops it."
        )
    if report.imported["uncertain"]:
        session.say("What is uncertain waits for a word: `posthouse message resolve` says what became of it.")


def _roll_back(session: Session, root: str, dry_run: bool) -> None:
    undone: list[Json] = []
    kept: list[Json] = []
    with session.operator() as operator:
        after = ""
        while True:
            answer = _answer(operator, "openclaw.rollback", {"root": root, "after": after, "dry_run": dry_run})
            undone += answer["undone"]
            kept += answer["kept"]
            if answer["next"] is None:
                break
            after = answer["next"]
    if session.json:
        session.emit({"folder": root, "dry_run": dry_run, "undone": undone, "kept": kept})
        return
    rows = [(row["source"], row["result"], row["why"]) for row in kept]
    if rows:
        session.table(("kept", "result", "why"), rows[:ROWS_SHOWN], "")
    verb = "Would take back" if dry_run else "Took back"
    session.say(f"{verb} {len(undone)} of {len(undone) + len(kept)} imported entries; the others stay as they are.")
