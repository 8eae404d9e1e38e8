"""Tiny journals by hand: events of the contract as rows, for tests of single definitions."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from posthouse.journal import schema, segment
from posthouse.journal.schema import NAMES

START = dt.datetime(2026, 3, 1, 10, tzinfo=dt.UTC)
DDL = (
    "node string, offset bigint, at timestamp, commit bigint, event string, desk string, mailbox string, lane string, "
    "lane_seq bigint, message_id string, kind string, sender string, attempt int, holder string, size_bytes bigint, "
    "reason string, error string, due_at timestamp, expires_at timestamp, cause_id string, detail string"
)


def instant(second: float) -> dt.datetime:
    """So many seconds after the journal's beginning."""
    return START + dt.timedelta(seconds=second)


class Journal:
    """Events in order; ``at`` is seconds since the beginning, the offset counts itself."""

    def __init__(self, node: str = "n1", desk: str = "relay", mailbox: str = "m") -> None:
        self.node, self.desk, self.mailbox = node, desk, mailbox
        self.rows: list[dict[str, Any]] = []
        self._seqs: dict[str, int] = {}
        self._numbers: dict[str, int] = {}

    def add(self, at: float, event: str, id: str = "", **other: Any) -> int:
        """One more event; its offset. A post takes its lane's next number."""
        offset = len(self.rows) + 1
        lane = other.get("lane", "")
        if event == "posted" and "lane_seq" not in other:
            self._seqs[lane] = self._seqs.get(lane, 0) + 1
            self._numbers[id] = self._seqs[lane]
        for name in ("due_at", "expires_at"):
            if other.get(name) is not None:
                other[name] = instant(other[name])
        aloof = event in ("duplicate", "refused") or not id
        row = {
            "node": self.node, "offset": offset, "at": instant(at), "commit": offset, "event": event,
            "desk": "" if event == "started" else self.desk,
            "mailbox": "" if event == "started" else self.mailbox, "lane": "",
            "lane_seq": 0 if aloof else self._numbers.get(id, 0), "message_id": id, "kind": "text" if id else "",
            "sender": "s" if id else "", "attempt": 1 if event == "leased" else 0, "holder": None, "size_bytes": 1,
            "reason": None, "error": None, "due_at": None, "expires_at": None, "cause_id": None, "detail": None,
            **other,
        }  # fmt: skip
        if event == "posted":
            self._numbers[id] = row["lane_seq"]
        self.rows.append(row)
        return offset

    def frame(self, spark: SparkSession, first: int = 1, last: int | None = None) -> DataFrame:
        """These offsets as a DataFrame."""
        return frame(spark, self.rows[first - 1 : last])

    def written(self, journal: Path, cuts: Sequence[int]) -> Iterator[Path]:
        """Segments that end behind so many events each: one more is there with each step."""
        folder, prev = journal / schema.folder_name(self.node), schema.GENESIS
        folder.mkdir(parents=True)
        for first, last in pairwise([0, *cuts]):
            rows = [tuple(_plain(row[name]) for name in NAMES) for row in self.rows[first:last]]
            done = segment.write(folder, segment.Stamp(self.node, first + 1, last, prev, ""), rows)
            prev = done.chain
            yield done.path


def _plain(value: Any) -> Any:
    """Instants as µs, as segments have them."""
    return int(value.timestamp() * 1e6) if isinstance(value, dt.datetime) else value


def frame(spark: SparkSession, rows: list[dict[str, Any]]) -> DataFrame:
    """Rows as a DataFrame of the contract."""
    return spark.createDataFrame([tuple(row[name] for name in NAMES) for row in rows], DDL)
