"""The lake's tables held against the oracle's, and findings against an answer sheet.

In: rows of both, as dictionaries with instants in whole microseconds. Out: nothing, or an AssertionError that shows the
first rows that differ. Columns that only say how a row came to be are left out.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from tests.pipeline.oracle import Oracle

from posthouse.pipeline import withdrawn

Row = Mapping[str, Any]

KEY = ("node", "desk", "mailbox", "sender", "message_id", "generation")
WAITS = ("in_flight", "parked", "paused", "offline", "backoff", "quiet", "lane", "idle")
MESSAGE = (
    "lane", "kind", "lane_seq", "size_bytes", "posted_at", "first_leased_at", "received_at", "finished_at", "outcome",
    "reason", "error", "attempts", "live", "expires_at", "cause_id", "orphan", "first_offset", "last_offset",
    "delivered_offset", "duplicates", "latency",
)  # fmt: skip
ATTEMPT = (
    *KEY, "lane", "kind", "life", "attempt", "holder", "started_at", "received_at", "ended_at", "ended", "reason",
    "error", "end_offset",
)  # fmt: skip
BOOK = (
    "posted", "delivered", "dead", "expired", "cancelled", "uncertain", "open", "refused", "duplicate", "remainder",
    "remainder_ids",
)  # fmt: skip


def plain(table: pa.Table) -> list[dict[str, Any]]:
    """Rows with instants as µs and dates as days since 1970."""
    columns: dict[str, list[Any]] = {}
    for field in table.schema:
        column = table.column(field.name)
        if pa.types.is_timestamp(field.type):
            column = column.cast(pa.timestamp("us", tz=field.type.tz)).cast(pa.int64())
        elif pa.types.is_date(field.type):
            column = column.cast(pa.int32())
        columns[field.name] = column.to_pylist()
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def read(lake: Path, name: str) -> list[dict[str, Any]]:
    """All rows of one of the lake's tables; they are the same for one who leaves out by name what was withdrawn."""
    rows = plain(_all(QueryBuilder().register("t", DeltaTable(str(lake / name))), "t"))
    if name in withdrawn.TOLD and (lake / withdrawn.NAME).exists():
        reader = by_name(lake, name)
        wanted = sorted(map(repr, rows))
        assert sorted(map(repr, plain(_all(reader, "t")))) == wanted, f"{name}: others hold by name"
        found = [row for row in plain(_all(reader, reader.source)) if not reader.is_gone(row)]
        assert sorted(map(repr, found)) == wanted, f"{name}: others are left of what was found"
    return rows


def by_name(lake: Path, name: str) -> withdrawn.Reader:
    """The reader of a table that knows by name what was taken out of it, if something was: then its source is not t."""
    return withdrawn.Reader(name, *(DeltaTable(str(lake / each)) for each in (name, withdrawn.NAME)))


def _all(reader: QueryBuilder | withdrawn.Reader, source: str) -> pa.Table:
    return pa.RecordBatchReader.from_stream(reader.execute(f"select * from {source}")).read_all()


def same(name: str, ours: Iterable[Row], theirs: Iterable[Row], key: Sequence[str], columns: Sequence[str]) -> None:
    """The same keys, each once, and the same values in these columns; numbers that are not whole nearly so."""
    left, right = _by_key(f"{name} of the lake", ours, key), _by_key(f"{name} of the oracle", theirs, key)
    assert not (more := sorted(map(str, left.keys() - right.keys()))), f"{name}: {len(more)} invented: {more[:3]}"
    assert not (less := sorted(map(str, right.keys() - left.keys()))), f"{name}: {len(less)} missing: {less[:3]}"
    differing: Counter[str] = Counter()
    shown: dict[str, str] = {}
    for each, row in left.items():
        for column in columns:
            if not _alike(row[column], right[each][column]):
                differing[column] += 1
                shown.setdefault(column, f"{each}: {row[column]!r} instead of {right[each][column]!r}")
    assert not differing, f"{name}: " + "; ".join(f"{c} ({n}×, {shown[c]})" for c, n in differing.items())


def _by_key(name: str, rows: Iterable[Row], key: Sequence[str]) -> dict[tuple[Any, ...], Row]:
    found: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        each = tuple(row[column] for column in key)
        assert each not in found, f"{name} has {each} twice"
        found[each] = row
    return found


def _alike(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, (int, float)):
        return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-12)
    return bool(one == other)


# ── Table by table ───────────────────────────────────────────────────────────────────────────────


def messages(ours: list[dict[str, Any]], oracle: Oracle) -> None:
    theirs = oracle.table("messages")
    same("messages", ours, theirs, KEY, MESSAGE)
    posted = [row for row in ours if row["outcome"] != "refused"]
    same("messages", posted, [row for row in theirs if row["outcome"] != "refused"], KEY, ("lives",))
    final = [row for row in ours if row["finished_at"] is not None and row["posted_at"] is not None]
    same("waits", final, oracle.table("waits"), KEY, [f"wait_{name}" for name in WAITS])
    for row in final:
        spent = sum(row[f"wait_{name}"] for name in WAITS)
        assert spent == max(row["finished_at"] - row["posted_at"], 0), row


def attempts(ours: list[dict[str, Any]], oracle: Oracle) -> None:
    same("attempts", ours, oracle.table("attempts"), ("node", "lease_offset"), ATTEMPT)


def books(ours: list[dict[str, Any]], oracle: Oracle) -> None:
    same("books", ours, oracle.table("books"), ("window", "desk", "kind"), BOOK)


FINDING = ("kind", "node", "desk", "mailbox", "sender", "message_id")
FOUND_BY_PLACE = ("journal_gap", "clock_back", "abandoned", "chain_broken")


def findings(ours: list[dict[str, Any]], oracle: Oracle) -> None:
    """Those about files and offsets are known by their place, all others by whom they name."""
    theirs = oracle.table("findings")
    one, other = ([row for row in rows if row["kind"] not in FOUND_BY_PLACE] for rows in (ours, theirs))
    same("findings", one, other, FINDING, ())
    evidence = {tuple(row[name] for name in FINDING): set(row["offsets"]) for row in other}
    for row in one:
        # A message's own end may be shown besides what came after it.
        shown = evidence[tuple(row[name] for name in FINDING)]
        assert shown & set(row["offsets"]), (row, shown)
    placed = [
        {(row["kind"], row["node"], *_place(row)) for row in rows if row["kind"] in FOUND_BY_PLACE[:3]}
        for rows in (ours, theirs)
    ]
    assert not placed[0] ^ placed[1], f"invented {placed[0] - placed[1]}, missing {placed[1] - placed[0]}"


def _place(finding: Row) -> tuple[int, ...]:
    """Of a clock that went back the offset where it did, of a gap both ends."""
    offsets = tuple(finding["offsets"])
    return offsets[-1:] if finding["kind"] == "clock_back" else offsets


def latency(ours: list[dict[str, Any]], oracle: Oracle) -> None:
    """Counts are exact, quantiles within 2 %."""
    key = ("window", "desk", "kind", "live")
    theirs = _by_key("latency", oracle.table("latency"), key)
    assert not (other := {tuple(row[c] for c in key) for row in ours} ^ theirs.keys()), other
    for row in ours:
        all_of = theirs[tuple(row[column] for column in key)]["all_of"]
        assert row["count"] == len(all_of), row
        assert sum(dict(row["buckets"]).values()) == len(all_of), row
        assert abs(row["max"] - all_of[-1]) <= 0.02 * all_of[-1] + 1, (row, all_of[-1])
        for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
            exact = all_of[max(math.ceil(len(all_of) * share), 1) - 1]
            assert abs(row[name] - exact) <= 0.02 * exact + 1, (name, row, exact)


def depth(ours: list[dict[str, Any]], oracle: Oracle) -> None:
    columns = ("posted", "finished", "refused", "depth_max", "depth_end", "at_cap")
    same("depth", ours, oracle.table("depth"), ("window", "node", "desk", "mailbox"), columns)


def availability(ours: list[dict[str, Any]], oracle: Oracle) -> None:
    columns = ("covered", "online", "share", "connections", "reconnect_rate", "half_open")
    same("availability", ours, oracle.table("availability"), ("day", "node", "desk", "mailbox"), columns)


def deadletters(ours: list[dict[str, Any]], oracle: Oracle) -> None:
    columns = ("count", "first_at", "last_at", "redriven", "redriven_delivered")
    same("deadletters", ours, oracle.table("deadletters"), ("desk", "error"), columns)


def outages(ours: list[dict[str, Any]], oracle: Oracle) -> None:
    columns = ("attempts", "failures", "failure_rate", "baseline", "backlog", "drain", "retry_storm")
    same("outages", ours, oracle.table("outages"), ("window", "desk", "mailbox"), columns)


def answers(ours: list[dict[str, Any]], sheet: dict[str, Any]) -> None:
    """Each planted anomaly is found with its evidence, and none is invented."""
    found = {_identity(row): row for row in ours}
    wanted = {_identity(row): row for row in sheet["findings"]}
    assert not found.keys() - wanted.keys(), f"invented: {sorted(found.keys() - wanted.keys(), key=str)}"
    assert not wanted.keys() - found.keys(), f"missed: {sorted(wanted.keys() - found.keys(), key=str)}"
    for each, row in wanted.items():
        # A chain is shown by any offset of its segment; an answer given twice by its first two.
        if each[0] != "chain_broken":
            assert set(row["offsets"]) <= set(found[each]["offsets"]), each


def _identity(finding: Row) -> tuple[Any, ...]:
    kind = finding["kind"]
    if kind == "chain_broken":
        return kind, finding["node"], min(finding["offsets"])
    return kind, finding["node"], finding["message_id"] if kind not in FOUND_BY_PLACE else _place(finding)


def closes(sheet: dict[str, Any], ours: list[dict[str, Any]]) -> None:
    """The books are as they were planned."""
    columns = ("posted", "delivered", "dead", "expired", "cancelled", "uncertain", "open")
    wanted = [{**row, "window": row["hour"] * 1_000_000} for row in sheet["books"]]
    same("books", [row for row in ours if row["posted"]], wanted, ("window", "desk", "kind"), columns)


TABLES = {
    "messages": messages, "attempts": attempts, "books": books, "anomalies": findings, "latency": latency,
    "depth": depth, "availability": availability, "deadletters": deadletters, "outages": outages,
}  # fmt: skip
"""The comparison of each table."""
