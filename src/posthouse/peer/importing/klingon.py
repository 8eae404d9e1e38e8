"""A Klingon node's database: its outbox, its inbox, and how far its trades are.

In: the node's SQLite file; stop the node first. It is copied before it is read, so the original is not touched. Out:
each trade with what it holds, in the order of its numbers, and what had to be left out or is missing, as findings.
Nothing here writes to a store.

    message_outbox      pending, sent → sent on; acked → delivered; failed → dead; expired → dead by its deadline
    message_inbox       processed → known, so that copies are answered; not processed → it has to come again
    message_sequences   the numbers go on from there
"""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ...control.trade import NAME_CHARS_MAX
from ...errors import BadFile, BadFrame, InvalidInput
from ...libp2p.errors import BadInput
from ...libp2p.peer_id import PeerId
from .. import frame

OUTBOX, INBOX, SEQUENCES = "message_outbox", "message_inbox", "message_sequences"
_NEEDS = {
    OUTBOX: {"message_id", "trade_id", "peer_id", "message_type", "payload", "sequence_num", "created_at", "status"},
    INBOX: {"message_id", "trade_id", "peer_id", "message_type", "sequence_num", "received_at", "processed_at"},
    SEQUENCES: {"trade_id", "local_seq", "remote_seq"},
}
_BECAME = {"pending": "ready", "sent": "ready", "acked": "delivered", "failed": "failed", "expired": "expired"}


class Entry(NamedTuple):
    """One message as it is to be kept here."""

    desk: str
    id: str
    kind: str
    number: int
    at_s: int
    became: str
    """ready, delivered, failed or expired."""
    body: bytes = b"null"
    order: str = ""
    timeout_s: int = 0
    error: str = ""


class Finding(NamedTuple):
    """Something that was left out or is missing."""

    where: str
    reason: str
    message: str


@dataclass(slots=True)
class Trade:
    """One trade with all that is kept of it."""

    name: str
    peer: str = ""
    local: int = 0
    """The last number that was given."""
    heard: int = 0
    """The highest number behind which nothing is missing."""
    timeout_s: int = 0
    opened_s: int = 0
    entries: list[Entry] = field(default_factory=list)

    @property
    def base(self) -> int:
        """What new messages' places in their lane are counted from."""
        return self.local - sum(entry.desk == "outbox" for entry in self.entries)


def read(path: Path) -> tuple[list[Trade], list[Finding]]:
    """All that is in a file; BadFile if it is none of a Klingon node."""
    findings: list[Finding] = []
    trades: dict[str, Trade] = {}
    parties: defaultdict[str, set[str]] = defaultdict(set)
    recorded: defaultdict[str, dict[int, bool]] = defaultdict(dict)
    with _copy(path) as rows:
        for row in rows(OUTBOX, "sequence_num, id"):
            _take(_outbound, OUTBOX, row, trades, parties, findings)
        for row in rows(INBOX, "sequence_num, id"):
            if not _take(_inbound, INBOX, row, trades, parties, findings):
                continue
            recorded[row["trade_id"]][row["sequence_num"]] = row["processed_at"] is not None
        sequences = {str(row["trade_id"]): row for row in rows(SEQUENCES, "trade_id")}
    for name in sequences:
        if name not in trades:
            findings.append(Finding(f"{SEQUENCES}/{name[:80]}", "no_peer", "nothing says who its other party is"))
    for name, trade in trades.items():
        _finish(trade, sequences.get(name), parties[name], recorded[name], findings)
    return list(trades.values()), findings


def _take(
    read: Any, table: str, row: Any, trades: dict[str, Trade], parties: dict[str, set[str]], findings: list[Finding]
) -> bool:
    where = f"{table}/{str(row['message_id'])[:80]}"
    try:
        name, peer = _name(row, "trade_id"), _name(row, "peer_id")
        entry: Entry | None = read(row)
    except (InvalidInput, BadFrame) as error:
        findings.append(Finding(where, "damaged", str(error)))
        return False
    trade = trades.setdefault(name, Trade(name, peer))
    parties[name].add(peer)
    if peer != trade.peer:
        findings.append(Finding(where, "counterparty", f"the trade's other party is {trade.peer}, not {peer}"))
        return False
    if entry is None:
        findings.append(
            Finding(
                where,
                "unprocessed",
                "it was received and never processed, and its content was not kept: it has to come again",
            )
        )
        return True
    trade.entries.append(entry)
    trade.timeout_s = max(trade.timeout_s, entry.timeout_s)
    trade.opened_s = min(trade.opened_s or entry.at_s, entry.at_s)
    return True


def _outbound(row: Any) -> Entry:
    became = _BECAME.get(str(row["status"]))
    if became is None:
        raise InvalidInput(f"its status is {str(row['status'])[:40]!r}")
    body, order = _payload(row["payload"])
    keys = row.keys()
    return Entry(
        "outbox", _name(row, "message_id"), _name(row, "message_type"), _whole(row, "sequence_num"),
        _whole(row, "created_at"), became, body, order,
        _whole(row, "swap_timeout") if "swap_timeout" in keys else 0,
        str(row["error_message"] or "")[:500] if "error_message" in keys else "",
    )  # fmt: skip


def _inbound(row: Any) -> Entry | None:
    id, kind, number, at_s = (
        _name(row, "message_id"), _name(row, "message_type"), _whole(row, "sequence_num"), _whole(row, "received_at"),
    )  # fmt: skip
    return None if row["processed_at"] is None else Entry("inbox", id, kind, number, at_s, "delivered")


def _payload(raw: Any) -> tuple[bytes, str]:
    """The payload itself; the node keeps it alone, or inside the whole message."""
    data = raw if isinstance(raw, bytes) else str(raw).encode(errors="replace")
    value, order = frame.loads(data), ""
    if isinstance(value, dict) and {"type", "trade_id", "payload"} <= value.keys():
        order = str(value.get("order_id") or "")
        value = value["payload"]
    return frame.dumps(value), order[:NAME_CHARS_MAX]


def _finish(trade: Trade, row: Any, parties: set[str], recorded: dict[int, bool], findings: list[Finding]) -> None:
    """How far the trade is, and what is missing in it."""
    where = f"trade/{trade.name}"
    try:
        PeerId.parse(trade.peer).public_key()
    except BadInput:
        findings.append(Finding(where, "bad_peer", f"{trade.peer!r} is no peer id: what is for it cannot be sent"))
    given = [entry.number for entry in trade.entries if entry.desk == "outbox"]
    trade.local = max([0 if row is None else _number(row["local_seq"]), *given])
    last = max([0 if row is None else _number(row["remote_seq"]), *recorded])
    if given:
        lost = sorted(set(range(min(given), trade.local + 1)) - set(given))
        for number in lost[:100]:
            findings.append(Finding(where, "gap", f"number {number} of ours is not in the outbox"))
    missing = sorted(
        set(range(min(recorded, default=last + 1), last + 1)) - {n for n, done in recorded.items() if done}
    )
    for number in missing[:100]:
        if number not in recorded:
            findings.append(Finding(where, "gap", f"number {number} of the other party never came"))
    trade.heard = missing[0] - 1 if missing else last


def _name(row: Any, column: str) -> str:
    value = row[column]
    if not isinstance(value, str) or not 0 < len(value) <= NAME_CHARS_MAX or not value.isprintable():
        raise InvalidInput(f"{column} is no name: {str(value)[:40]!r}")
    return value


def _whole(row: Any, column: str) -> int:
    value = row[column]
    if type(value) is not int or not 0 <= value <= frame.INSTANT_S_MAX:
        raise InvalidInput(f"{column} is no usable number: {str(value)[:40]!r}")
    return value


def _number(value: Any) -> int:
    return value if type(value) is int and 0 <= value <= 10**9 else 0


@contextlib.contextmanager
def _copy(path: Path) -> Iterator[Any]:
    """A function that reads the rows of a table, on a copy of the file and its log."""
    with tempfile.TemporaryDirectory(prefix="posthouse-import-") as folder, contextlib.ExitStack() as stack:
        copy = Path(folder) / "copy.db"
        try:
            for ending in ("", "-wal"):
                source = path.with_name(path.name + ending)
                if not ending or source.exists():
                    shutil.copyfile(source, copy.with_name(copy.name + ending))
            db = stack.enter_context(contextlib.closing(sqlite3.connect(copy)))
            db.row_factory = sqlite3.Row
            for table, needs in _NEEDS.items():
                lacks = needs - {str(row["name"]) for row in db.execute(f"PRAGMA table_info({table})")}
                if lacks:
                    raise BadFile(f"{path} is no database of a Klingon node: {table} lacks {', '.join(sorted(lacks))}")

            def rows(table: str, order: str) -> list[Any]:
                return db.execute(f"SELECT * FROM {table} ORDER BY {order}").fetchall()

            yield rows
        except OSError as error:
            raise BadFile(f"{path} cannot be read: {error.strerror or error}") from error
        except sqlite3.Error as error:
            raise BadFile(f"{path} cannot be read: {error}") from error
