"""posthouse import klingon: take over a Klingon node's outbox, inbox and numbers."""

from __future__ import annotations

import base64
import contextlib
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .option import pass_session
from .root import Command
from .session import FOUND, REFUSED, Failure, Session

if TYPE_CHECKING:
    from ..control.operator import Operator
    from ..peer.importing.klingon import Finding, Trade

PAGE_ENTRIES = 500
PAGE_BYTES = 4 << 20
FINDINGS_SHOWN = 100
WORDS = ("ready", "delivered", "failed", "expired", "known")


@click.command("klingon", cls=Command)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--dry-run", is_flag=True, help="Read everything, change nothing, and say what would be done.")
@pass_session
def klingon(session: Session, file: Path, dry_run: bool) -> None:
    """Take over a Klingon node's outbox, inbox and numbers from its SQLite FILE.

    Stop that node first. What waits is sent on, with its old number and until its old deadline; what failed or expired
    there is dead here; what was processed there is known here, so that copies are answered. New messages of a trade
    count on from the node's numbers. Nothing that is in the store already is changed, so it is safe to repeat.

    Exit code 4: something is missing, damaged or has to come again. The report names it.
    """
    from ..control.operator import Operator
    from ..control.socket import is_socket
    from ..peer.importing.klingon import read

    trades, findings = read(file)
    config = session.config()
    if dry_run and not config.path("store.path").exists() and not is_socket(config.path("control.path")):
        operator = Operator.nowhere(config)
    else:
        operator = Operator.connect(config, create=not dry_run)
    totals: Counter[str] = Counter()
    rows = []
    with contextlib.closing(operator), session.progress() as progress:
        for done, trade in enumerate(trades):
            words = _send(operator, trade, dry_run)
            totals.update(words)
            rows.append((trade, words))
            progress(done + 1, len(trades), "reading" if dry_run else "importing")
    if session.json:
        session.emit(_plain(file, dry_run, rows, totals, findings))
    else:
        _print(session, dry_run, rows, totals, findings)
    if findings:
        raise SystemExit(FOUND)


def _send(operator: Operator, trade: Trade, dry_run: bool) -> Counter[str]:
    from ..control.operation import Refused

    words: Counter[str] = Counter()
    for entries in _pages(trade):
        page = {
            "trade": trade.name, "peer": trade.peer, "base": trade.base, "heard": trade.heard,
            "timeout_s": trade.timeout_s, "opened_s": trade.opened_s, "entries": entries,
        }  # fmt: skip
        answer = operator.call("klingon.import", {"page": page, "dry_run": dry_run})
        if isinstance(answer, Refused):
            raise Failure(answer.code, answer.message, REFUSED, answer.detail)
        words.update(answer["entries"])
    return words


def _pages(trade: Trade) -> list[list[dict[str, Any]]]:
    """Pages of a trade's entries, at least one."""
    pages: list[list[dict[str, Any]]] = [[]]
    size_bytes = 0
    for entry in trade.entries:
        if len(pages[-1]) >= PAGE_ENTRIES or size_bytes >= PAGE_BYTES:
            pages.append([])
            size_bytes = 0
        size_bytes += len(entry.body)
        pages[-1].append({**entry._asdict(), "body": base64.b64encode(entry.body).decode()})
    return pages


def _plain(file: Path, dry_run: bool, rows: list[Any], totals: Counter[str], findings: list[Finding]) -> dict[str, Any]:
    return {
        "file": str(file),
        "dry_run": dry_run,
        **{word: totals[word] for word in WORDS},
        "refused": {word: count for word, count in totals.items() if word not in WORDS},
        "trades": [
            {
                "trade": trade.name, "peer": trade.peer, "local_sequence": trade.local, "remote_sequence": trade.heard,
                **{word: words[word] for word in WORDS},
            }
            for trade, words in rows
        ],
        "findings": [finding._asdict() for finding in findings],
    }  # fmt: skip


def _print(session: Session, dry_run: bool, rows: list[Any], totals: Counter[str], findings: list[Finding]) -> None:
    session.table(
        ("TRADE", "PEER", ">SENT", ">HEARD", *(f">{word.upper()}" for word in WORDS)),
        [(t.name, t.peer, t.local, t.heard, *(words[word] for word in WORDS)) for t, words in rows],
        "There are no trades in it.",
    )
    taken = "would be taken over" if dry_run else "taken over"
    session.say(
        f"Messages {taken}: {totals['ready']} to be sent, {totals['delivered']} delivered, {totals['failed']} failed, "
        f"{totals['expired']} expired; {totals['known']} known already."
    )
    for finding in findings[:FINDINGS_SHOWN]:
        session.say(f"{finding.where}: {finding.reason}: {finding.message}")
    if len(findings) > FINDINGS_SHOWN:
        session.say(f"… and {len(findings) - FINDINGS_SHOWN} more.")
