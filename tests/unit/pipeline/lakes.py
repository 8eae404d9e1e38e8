"""Small lakes without Spark: tables as ``pipeline.schema`` says, written by the deltalake package."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake
from deltalake.transaction import CommitProperties, Transaction

from posthouse.pipeline.bronze import REJECTED, Journal, Segment, examine
from posthouse.pipeline.ledger import Ledger, State
from posthouse.pipeline.schema import APP_ID, FILE_ANOMALIES, TABLES, WAITS
from posthouse.pipeline.tables import FILES

START = datetime.datetime(2026, 3, 1, tzinfo=datetime.UTC)
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_TYPES = {
    "string": pa.string(),
    "bigint": pa.int64(),
    "int": pa.int32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "timestamp": pa.timestamp("us", "UTC"),
    "date": pa.date32(),
}


def at(minutes: float) -> datetime.datetime:
    """An instant some minutes behind the beginning."""
    return START + datetime.timedelta(minutes=minutes)


def arrow_type(text: str) -> pa.DataType:
    if array := re.fullmatch(r"array<(.+)>", text):
        return pa.list_(arrow_type(array[1]))
    if both := re.fullmatch(r"map<(\w+),(\w+)>", text):
        return pa.map_(arrow_type(both[1]), arrow_type(both[2]))
    return _TYPES[text]


def schema(name: str) -> pa.Schema:
    return pa.schema([(column.name, arrow_type(column.type)) for column in TABLES[name].columns])


def write(
    lake: Path, name: str, rows: Iterable[Mapping[str, Any]], mode: str = "append", batch: int | None = None
) -> None:
    """Add rows to a table, as a batch if it is given; what a row leaves out is null."""
    names = TABLES[name].names
    data = pa.Table.from_pylist([{column: row.get(column) for column in names} for row in rows], schema(name))
    once = None if batch is None else CommitProperties(app_transactions=[Transaction(APP_ID, batch)])
    write_deltalake(  # type: ignore[call-overload]
        lake / name, data, partition_by=list(TABLES[name].partitions), mode=mode, commit_properties=once
    )


def message(id: str, minute: float = 0, **values: Any) -> dict[str, Any]:
    """A row of messages: delivered after two minutes, one of them in flight, unless it says otherwise."""
    row: dict[str, Any] = {
        "part": at(minute).date().isoformat(),
        "node": "n1",
        "desk": "inbound",
        "mailbox": "billing",
        "lane": "",
        "sender": "shop",
        "message_id": id,
        "generation": 1,
        "kind": "invoice",
        "lane_seq": 1,
        "size_bytes": 12,
        "posted_at": at(minute),
        "first_leased_at": at(minute + 1),
        "finished_at": at(minute + 2),
        "outcome": "delivered",
        "attempts": 1,
        "lives": 1,
        "live": False,
        "orphan": False,
        "first_offset": 1,
        "last_offset": 3,
        "duplicates": 0,
        "latency": 120_000_000,
        **{f"wait_{name}": 0 for name in WAITS},
        "wait_in_flight": 60_000_000,
        "wait_idle": 60_000_000,
        "revision": 1,
        "batch": 1,
    }
    return row | values


def lease(id: str, offset: int, **values: Any) -> dict[str, Any]:
    """A row of attempts: one that delivered, a minute after its beginning, unless it says otherwise."""
    row: dict[str, Any] = {
        **{name: message(id)[name] for name in ("part", "node", "desk", "mailbox", "sender", "message_id")},
        "generation": 1,
        "life": 1,
        "attempt": 1,
        "holder": "worker-1",
        "started_at": at(1),
        "ended_at": at(2),
        "ended": "delivered",
        "lease_offset": offset,
        "end_offset": offset + 1,
        "batch": 1,
    }
    return row | values


def event(offset: int, name: str, id: str, minute: float, **values: Any) -> dict[str, Any]:
    row: dict[str, Any] = {
        "node": "n1",
        "offset": offset,
        "at": at(minute),
        "commit": offset,
        "event": name,
        "desk": "inbound",
        "mailbox": "billing",
        "lane": "",
        "lane_seq": 1,
        "message_id": id,
        "kind": "invoice",
        "sender": "shop",
        "attempt": 0,
        "size_bytes": 12,
        "day": at(minute).date(),
    }
    return row | values


def finding(kind: str, id: str = "", offsets: Iterable[int] = (), **values: Any) -> dict[str, Any]:
    """A row of anomalies; about files it names no message, and what is not there has no time."""
    of_files = kind in FILE_ANOMALIES
    row: dict[str, Any] = {
        "part": FILES if of_files else "2026-03-01",
        "kind": kind,
        "node": "n1",
        "desk": "" if of_files else "inbound",
        "mailbox": "" if of_files else "billing",
        "sender": "" if of_files else "shop",
        "message_id": id,
        "at": None if kind in ("journal_gap", "bad_segment") else at(3),
        "offsets": list(offsets),
        "detail": None,
        "batch": 1,
    }
    return row | values


def window(hour: int, **values: Any) -> dict[str, Any]:
    """A row of books; what it does not say is 0."""
    counts = ("posted", "delivered", "dead", "expired", "cancelled", "uncertain", "open")
    row: dict[str, Any] = dict.fromkeys((*counts, "refused", "duplicate", "remainder"), 0)
    row |= {"window": at(60 * hour), "desk": "inbound", "kind": "invoice", "remainder_ids": [], "revision": 1}
    return row | values


def recorded(lake: Path, journal: Journal) -> list[Segment]:
    """The record of a lake that took in a journal, and its table of segments; the other tables are not there."""
    looked = [examine(journal, file) for file in journal.listing().files]
    taken = [segment for segment in looked if segment.state != REJECTED]
    rows = []
    for segment in taken:
        first, last = (EPOCH + datetime.timedelta(microseconds=us or 0) for us in (segment.first_at, segment.last_at))
        row = segment._asdict() | {"events": segment.events, "first_at": first, "last_at": last, "batch": 1}
        row |= {"ranges": [offset for pair in segment.ranges for offset in pair], "faults": list(segment.faults)}
        rows.append(row)
    write(lake, "segments", rows, batch=1)
    Ledger(str(lake)).commit(State(batch=1, gold=1, segments=tuple(taken)))
    return taken


def small(folder: Path) -> Path:
    """A lake with a few rows in every table."""
    lake = folder / "lake"
    write(
        lake,
        "messages",
        [
            message("a"),
            message("b", 10, outcome="dead", reason="rejected", error="no customer 4711", attempts=3, latency=None),
            message("c", 60 * 24, desk="relay", kind="text", live=True, latency=900, wait_idle=900, wait_in_flight=0),
            message("d", 60 * 30, part="open", outcome="open", finished_at=None, latency=None, last_offset=9),
        ],
    )
    write(
        lake,
        "events",
        [
            event(1, "posted", "a", 0),
            event(2, "leased", "a", 1, attempt=1, holder="worker-1"),
            event(3, "delivered", "a", 2, attempt=1, holder="worker-1"),
            event(4, "delivered", "a", 3, attempt=1, holder="worker-2"),
            event(5, "posted", "b", 10),
        ],
    )
    write(
        lake,
        "attempts",
        [
            lease("a", 2),
        ],
    )
    write(
        lake,
        "anomalies",
        [
            finding("delivered_twice", "a", [3, 4]),
            finding("journal_gap", offsets=[7, 8]),
            finding("answered_twice", "question", [11, 12]),
        ],
    )
    write(
        lake,
        "books",
        [
            window(0, posted=2, delivered=1, dead=1, refused=4),
            window(24, desk="relay", kind="text", posted=1, delivered=1),
            window(30, posted=1, open=1),
        ],
    )
    write(
        lake,
        "latency",
        [
            {"window": at(0), "desk": "inbound", "kind": "invoice", "live": False, "count": 1, "p50": 120_000_000,
             "p95": 120_000_000, "p99": 120_000_000, "max": 121_000_000, "buckets": {900: 1}},
            {"window": at(60 * 24), "desk": "relay", "kind": "text", "live": True, "count": 1, "p50": 900, "p95": 900,
             "p99": 900, "max": 910, "buckets": {300: 1}},
        ],
    )  # fmt: skip
    write(
        lake,
        "depth",
        [
            {"window": at(0), "node": "n1", "desk": "inbound", "mailbox": box, "posted": 2, "finished": 2,
             "depth_max": 2, "depth_end": 0, "at_cap": 0, "refused": 0}
            for box in ("", "billing")
        ],
    )  # fmt: skip
    write(
        lake,
        "availability",
        [
            {"day": at(0).date(), "node": "n1", "desk": "relay", "mailbox": "bob", "covered": 86_400_000_000,
             "online": 43_200_000_000, "share": 0.5, "connections": 4, "reconnect_rate": 0.2, "half_open": 1},
        ],
    )  # fmt: skip
    write(
        lake,
        "deadletters",
        [
            {"desk": "inbound", "error": "no customer #", "count": 1, "first_at": at(12), "last_at": at(12),
             "redriven": 0, "redriven_delivered": 0},
        ],
    )  # fmt: skip
    write(
        lake,
        "outages",
        [
            {"window": at(0), "desk": "inbound", "mailbox": "billing", "attempts": 4, "failures": 3,
             "failure_rate": 0.75, "baseline": 0.0, "backlog": 1, "drain": None, "retry_storm": 2.0},
        ],
    )  # fmt: skip
    write(
        lake,
        "replays",
        [
            {"policy": "ttl_s=60", "desk": "inbound", "exact": True, "posted": 2, "delivered": 0, "expired": 2,
             "dead": 0, "refused": 0, "attempts": 1, "wait": None},
        ],
    )  # fmt: skip
    return lake


def two_days(lake: Path) -> None:
    """The lake of the guide."""
    write(
        lake,
        "messages",
        [
            message("invoice-7"),
            message(
                "invoice-8", 10, outcome="dead", reason="rejected", error="no customer 4711", attempts=3, latency=None
            ),
            message("hello-1", 60 * 24, desk="relay", mailbox="bob", kind="text", live=True, latency=900),
            message("invoice-9", 60 * 30, part="open", outcome="open", finished_at=None, latency=None),
        ],
    )
    write(
        lake,
        "events",
        [
            event(1, "posted", "invoice-7", 0),
            event(2, "leased", "invoice-7", 1, attempt=1, holder="worker-1"),
            event(3, "delivered", "invoice-7", 2, attempt=1, holder="worker-1"),
            event(4, "delivered", "invoice-7", 3, attempt=1, holder="worker-2"),
        ],
    )
    write(lake, "anomalies", [finding("delivered_twice", "invoice-7", [3, 4])])
    write(
        lake,
        "books",
        [
            window(0, posted=2, delivered=1, dead=1, refused=4),
            window(24, desk="relay", kind="text", posted=1, delivered=1),
            window(30, posted=1, open=1),
        ],
    )
