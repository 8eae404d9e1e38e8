"""posthouse import: take over what another program kept."""

from __future__ import annotations

import base64
import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .import_klingon import klingon
from .import_openclaw import openclaw
from .option import pass_session
from .root import Group
from .session import FOUND, REFUSED, Failure, Session

if TYPE_CHECKING:
    from ..config import Config
    from ..control.operator import Operator
    from ..relay.importing.pinch import Found

PAGE_ENTRIES = 500
PAGE_BYTES = 4 << 20
"""Of bodies: a page is one commit and one line on the control socket."""
PROBLEMS_SHOWN = 100
ROWS_SHOWN = 50


@click.group(cls=Group, name="import")
def import_() -> None:
    """Take over what another program kept: a Pinch relay's queue, OpenClaw's queues, a Klingon node's trades."""


@import_.command("pinch")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--dry-run", is_flag=True, help="Read everything, change nothing, and say what would be done.")
@pass_session
def pinch(session: Session, file: Path, dry_run: bool) -> None:
    """Take over a Go relay's queue, blocks and keys from its bbolt FILE (PINCH_RELAY_DB).

    Stop that relay first. Order, age and the time that is left to each message are kept; messages beyond a mailbox's
    capacity are taken all the same; what has expired is left out. Nothing that is in the store already
    is changed, so it is safe to repeat. Makes the store if there is none.

    Exit code 4: some entries are damaged or could never be delivered, and were left out. The report names them.
    """
    from ..relay.importing.bbolt import BoltFile
    from ..relay.importing.pinch import read

    config = session.config()
    report = Report(str(file), dry_run, config.text("relay.public_host"))
    with BoltFile(file) as found, session.progress() as progress, contextlib.ExitStack() as stack:
        operator: Operator | None = None
        for page in _pages(read(found), report):
            if operator is None:
                # Only now: a file that cannot be read must not leave an empty store behind.
                operator = stack.enter_context(contextlib.closing(_operator(config, dry_run)))
            _send(operator, report, page)
            progress(report.done, None, "reading" if dry_run else "importing")
    if session.json:
        session.emit(report.plain())
    else:
        _print(session, report)
    if report.problems_total:
        raise SystemExit(FOUND)


import_.add_command(openclaw)
import_.add_command(klingon)


def _operator(config: Config, dry_run: bool) -> Operator:
    from ..control.operator import Operator
    from ..control.socket import is_socket

    if dry_run and not config.path("store.path").exists() and not is_socket(config.path("control.path")):
        return Operator.nowhere(config)
    return Operator.connect(config, create=not dry_run)


@dataclass
class Page:
    """What goes over in one call."""

    messages: list[dict[str, Any]] = field(default_factory=list)
    blocks: list[list[str]] = field(default_factory=list)
    keys: list[dict[str, Any]] = field(default_factory=list)
    body_bytes: int = 0

    def __len__(self) -> int:
        return len(self.messages) + len(self.blocks) + len(self.keys)


@dataclass
class Report:
    """What became of every entry."""

    file: str
    dry_run: bool
    host: str
    recipients: dict[str, Counter[str]] = field(default_factory=dict)
    waiting: dict[str, int] = field(default_factory=dict)
    capacity: int | None = None
    blocks: Counter[str] = field(default_factory=Counter)
    keys: Counter[str] = field(default_factory=Counter)
    problems: list[dict[str, Any]] = field(default_factory=list)
    problems_total: int = 0
    done: int = 0

    def count(self, recipient: str, word: str) -> None:
        self.recipients.setdefault(recipient, Counter())[word] += 1

    def problem(self, where: str, reason: str, message: str) -> None:
        self.problems_total += 1
        if len(self.problems) < PROBLEMS_SHOWN:
            self.problems.append({"where": where, "reason": reason, "message": message})

    def total(self, word: str) -> int:
        return sum(counts[word] for counts in self.recipients.values())

    def over(self) -> list[str]:
        """Recipients with more waiting than the desk takes."""
        return [name for name in self.recipients if self.is_over(name)]

    def is_over(self, recipient: str) -> bool:
        return self.capacity is not None and self.waiting.get(recipient, 0) > self.capacity

    def elsewhere(self) -> list[str]:
        """Recipients that have their address at another relay, so that they could never connect to this one."""
        return [name for name, counts in self.recipients.items() if counts["posted"] and self.is_elsewhere(name)]

    def is_elsewhere(self, recipient: str) -> bool:
        return recipient.rpartition("@")[2].lower() != self.host.lower()

    def plain(self) -> dict[str, Any]:
        """As JSON."""
        words = (("imported", "posted"), ("duplicate", "duplicate"), ("expired", "expired"), ("skipped", "skipped"))
        return {
            "file": self.file,
            "dry_run": self.dry_run,
            **{name: self.total(word) for name, word in words},
            "capacity": self.capacity,
            "blocks": {"added": self.blocks["added"], "known": self.blocks["known"]},
            "keys": {name: self.keys[name] for name in ("approved", "pending", "known")},
            "recipients": [
                {
                    "mailbox": recipient,
                    **{name: counts[word] for name, word in words},
                    "waiting": self.waiting.get(recipient, 0),
                    "over_capacity": self.is_over(recipient),
                    "other_host": self.is_elsewhere(recipient),
                }
                for recipient, counts in self.recipients.items()
            ],
            "problems": self.problems,
            "problems_total": self.problems_total,
        }


def _pages(found: Iterable[Found], report: Report) -> Iterator[Page]:
    """Entries in pages; what cannot be taken over goes into the report, and so do second copies in the file."""
    from ..relay.importing.pinch import Block, Queued, Registered

    page = Page()
    seen: set[tuple[str, str, str]] = set()
    for entry in found:
        if isinstance(entry, Queued):
            key = (entry.recipient, entry.sender, entry.id)
            if key in seen:
                report.count(entry.recipient, "duplicate")
                continue
            seen.add(key)
            page.body_bytes += len(entry.body)
            page.messages.append(
                {
                    "mailbox": entry.recipient,
                    "id": entry.id,
                    "sender": entry.sender,
                    "kind": entry.kind,
                    "body": base64.b64encode(entry.body).decode(),
                    "posted_at": entry.posted_at,
                }
            )
        elif isinstance(entry, Block):
            page.blocks.append([entry.blocker, entry.blocked])
        elif isinstance(entry, Registered):
            page.keys.append({**entry._asdict(), "public_key": entry.public_key.hex()})
        else:
            report.problem(entry.where, entry.reason, entry.message)
            if entry.recipient is not None:
                report.count(entry.recipient, "skipped")
            continue
        if len(page) >= PAGE_ENTRIES or page.body_bytes >= PAGE_BYTES:
            yield page
            page = Page()
    yield page  # even if it is empty: whether there is a desk for it at all is asked with the first one


def _send(operator: Operator, report: Report, page: Page) -> None:
    from ..control.operation import Refused

    plain = {"messages": page.messages, "blocks": page.blocks, "keys": page.keys}
    answer = operator.call("pinch.import", {"page": plain, "dry_run": report.dry_run})
    if isinstance(answer, Refused):
        raise Failure(answer.code, answer.message, REFUSED, answer.detail)
    for message, word in zip(page.messages, answer["messages"], strict=True):
        if word in ("posted", "duplicate", "expired"):
            report.count(message["mailbox"], word)
        else:
            report.count(message["mailbox"], "skipped")
            report.problem(f"queue/{message['mailbox']}/{message['id']}", word, f"the desk refused it: {word}")
    report.blocks.update(answer["blocks"])
    report.keys.update(answer["keys"])
    report.capacity = answer["capacity"]
    report.waiting.update(answer["depths"])
    if report.dry_run:
        # Nothing was posted: what waits there now, and what would come.
        for name in answer["depths"]:
            report.waiting[name] += report.recipients[name]["posted"]
    report.done += len(page)


def _print(session: Session, report: Report) -> None:
    rows = [
        (name, counts["posted"], counts["duplicate"], counts["expired"], counts["skipped"], report.waiting.get(name, 0))
        for name, counts in report.recipients.items()
    ]
    taken = "would import" if report.dry_run else "imported"
    columns = (
        "recipient",
        f">{taken}",
        ">known",
        ">expired",
        ">skipped",
        ">waiting then" if report.dry_run else ">waiting",
    )
    session.table(columns, rows[:ROWS_SHOWN], "There are no queued messages in it.")
    if len(rows) > ROWS_SHOWN:
        session.say(f"… and {len(rows) - ROWS_SHOWN} more recipients; --json lists all.")
    session.say(
        f"Messages: {report.total('posted')} {taken}, {report.total('duplicate')} known already,"
        f" {report.total('expired')} expired, {report.total('skipped')} skipped."
        f" Blocks: {report.blocks['added']} added, {report.blocks['known']} known."
        f" Keys: {report.keys['approved']} approved, {report.keys['pending']} pending, {report.keys['known']} known."
    )
    over = report.over()
    if over:
        session.say(
            f"{len(over)} recipients have more waiting than the {report.capacity} that a mailbox takes."
            " All of it is kept; they are sent nothing new until there is room again."
        )
    elsewhere = report.elsewhere()
    if elsewhere:
        session.say(
            f"{len(elsewhere)} recipients have addresses at another host than relay.public_host ({report.host}):"
            " they can only connect here if that setting is changed to theirs."
        )
    for problem in report.problems:
        session.say(f"Left out: {problem['where']}: {problem['reason']}: {problem['message']}")
    if report.problems_total > len(report.problems):
        session.say(f"… and {report.problems_total - len(report.problems)} more.")
