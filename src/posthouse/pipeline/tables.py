"""The lake's tables on Spark: how each is laid out, read, written and looked after.

In: DataFrames and the number of a batch. Out: Delta tables. A write carries its batch's number (Delta's txnAppId and
txnVersion), so a table takes each batch once. What the rows mean is not known here.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import StoreCorrupt
from . import schema, where, withdrawn
from .bronze import INSTANT_MAX, REJECTED, Segment
from .intake import Piece
from .ledger import Ledger, Plan
from .schema import APP_ID
from .scratch import together

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, DataFrameWriter, SparkSession

FILES = "files"
"""The part of the anomalies that speaks of files; each batch replaces it."""

SILVER = ("messages", "attempts", "anomalies", "partials", "carried")
GOLD = ("books", "latency", "depth", "availability", "deadletters", "outages")
STATE_TABLES = ("events", *SILVER, withdrawn.NAME, "segments")
SORTED = {
    "messages": ("posted_at",),
    "attempts": ("lease_offset",),
    "partials": ("table", "window"),
    "carried": ("role",),
}
"""Inside a file by these columns, so that a reader who asks for the newest, for an offset, for what some hours of a
table are summed of or for one role skips most pages. A number alone, which the long ones have, is sorted by its bits;
the parts, which are files of their own, are written side by side."""
JOINED = {"messages": 5, "anomalies": 10, "partials": 10, "carried": 10}
"""Of a large batch, how many pieces of a shuffle become one file of each part: of what every batch goes through, or
looks for rows in, few files are opened. All other tables are written as they come."""
STATISTICS = {
    "events": ("offset", "at"),
    "messages": ("posted_at", "first_offset", "last_offset"),
    "attempts": ("started_at", "lease_offset"),
}
"""Columns whose bounds Delta writes into a table's log for each file. No names: the log outlives what is forgotten."""
_BOUNDED = {"delta.dataSkippingStatsColumns": ",".join(STATISTICS["events"])}
_SEGMENT = (
    "node", "name", "first", "last", "ranges", "prev", "chain", "first_at", "last_at", "state", "faults", "size_bytes",
)  # fmt: skip
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_LAST_MS = INSTANT_MAX // 1_000
FINE = {
    "parquet.page.row.count.limit": "2000",
    "parquet.bloom.filter.enabled#message_id": "true",
    "parquet.bloom.filter.adaptive.enabled": "true",
    "parquet.bloom.filter.candidates.number#message_id": "8",
    "parquet.bloom.filter.fpp#message_id": "0.01",
}
"""How messages are written. One is found by its id without reading the ids of all others: the filter is as large as its
file needs. And a row is read without many beside it: a page is read as a whole, and usually has 20,000 rows."""


class Tables:
    """The tables of one lake. ``spark`` is called when a session is needed, and only then."""

    def __init__(self, ledger: Ledger, spark: Callable[[], SparkSession]) -> None:
        self._ledger = ledger
        self._spark = spark

    def named(self, name: str) -> str:
        """A table as SQL names it."""
        return f"delta.`{self._ledger.table(name)}`"

    def load(self, name: str, plan: Plan | None = None) -> DataFrame:
        """A table as it is, or as it was when a batch was planned."""
        reader = self._spark().read.format("delta")
        if plan is not None:
            reader = reader.option("versionAsOf", plan.versions[name])
        return reader.load(self._ledger.table(name))

    def rows(self, name: str, plan: Plan, conditions: Iterable[str]) -> pa.Table:
        """The rows for which one of these holds, of a table as it was when a batch was planned.

        Few rows of many are found much sooner without Spark.
        """
        import pyarrow as pa

        reader = self._reader(name, plan.versions)
        asked = f"SELECT {', '.join(map(where.name, schema.TABLES[name].names))} FROM t WHERE "
        found = pa.concat_tables([pa.table(reader.execute(asked + condition)) for condition in conditions])
        # Texts come in a form that Spark does not take.
        plain = [each.with_type(pa.string()) if each.type == pa.string_view() else each for each in found.schema]
        return found.cast(pa.schema(plain))

    def count(self, name: str) -> int:
        """How many rows a table has for one who reads it without Spark."""
        (batch,) = self._reader(name).execute("SELECT count(*) FROM t")
        return int(batch.column(0).to_pylist()[0])

    def _reader(self, name: str, versions: Mapping[str, int] | None = None) -> withdrawn.Reader:
        from deltalake import DeltaTable

        def opened(each: str) -> DeltaTable:
            return DeltaTable(self._ledger.table(each), version=None if versions is None else versions[each])

        tells = self._ledger.has(withdrawn.NAME) if versions is None else withdrawn.NAME in versions
        return withdrawn.Reader(name, opened(name), opened(withdrawn.NAME) if tells else None)

    def write(
        self,
        name: str,
        rows: DataFrame,
        batch: int,
        *,
        whole: bool,
        append: bool = False,
        stamped: bool = True,
        instead: str | None = None,
    ) -> None:
        """Write a table's share of a batch, once: a batch that the table has is skipped by Delta.

        ``instead`` is a condition: the rows take the place of those for which it holds, and of the open part where
        it is not given.
        """
        from pyspark.sql import functions as F

        rows = together(rows, JOINED.get(name, 1))
        if name in SORTED:
            rows = rows.sortWithinPartitions(*SORTED[name])
        if stamped:
            # Last, so that the code that Spark makes of the rest is the same for every batch.
            rows = rows.withColumn("batch", F.lit(batch).cast("bigint"))
        writer = (
            rows.write.format("delta")
            .mode("append" if append else "overwrite")
            .option("txnAppId", APP_ID)
            .option("txnVersion", batch)
            .option("partitionOverwriteMode", "static")
        )
        parted = "part" if "part" in rows.columns else "day" if "day" in rows.columns else None
        if parted:
            writer = writer.partitionBy(parted)
        if whole:
            writer = writer.option("overwriteSchema", "true").option("delta.dataSkippingNumIndexedCols", 0)
            if bounds := [column for column in STATISTICS.get(name, ()) if column in rows.columns]:
                writer = writer.option("delta.dataSkippingStatsColumns", ",".join(bounds))
            if name in ("messages", "attempts", "anomalies"):
                writer = writer.option("delta.enableDeletionVectors", "true")
        elif not append:
            parts = f"part IN ('{schema.OPEN}', '{FILES}')" if name == "anomalies" else f"part = '{schema.OPEN}'"
            writer = writer.option("replaceWhere", instead or parts)
        with self._indexed(name):
            self._save(writer, name, batch)

    def add_events(self, pieces: Sequence[Piece], batch: int, *, whole: bool) -> None:
        """Make files that lie in the folder of the events part of that table, once."""
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError
        from deltalake.schema import Field, PrimitiveType, Schema
        from deltalake.transaction import AddAction, CommitProperties, Transaction, create_table_with_add_actions

        now = time.time_ns() // 1_000_000
        added = [
            AddAction(each.path, each.size_bytes, {"day": each.day}, now, data_change=True, stats=_stats(each))
            for each in pieces
        ]
        types = {"bigint": "long", "int": "integer"}
        columns = [Field(c.name, PrimitiveType(types.get(c.type, c.type))) for c in schema.EVENTS.columns]
        # On another's commit it is not tried again: whether that was the same batch is asked first.
        once = CommitProperties(max_commit_retries=0, app_transactions=[Transaction(APP_ID, batch)])
        place, by = self._ledger.table("events"), list(schema.EVENTS.partitions)
        try:
            if not self._ledger.has("events"):
                create_table_with_add_actions(
                    place, Schema(columns), added, partition_by=by, configuration=_BOUNDED, commit_properties=once
                )
                return
            table, mode = DeltaTable(place), "overwrite" if whole else "append"
            if (table.transaction_version(APP_ID) or 0) < batch:
                table.create_write_transaction([*added], mode, Schema(columns), by, commit_properties=once)
        except DeltaError:
            if self.transaction("events") < batch:
                raise

    def _save(self, writer: DataFrameWriter, name: str, batch: int) -> None:
        """Write, unless another came first: what a killed process left at work on a server may end after it."""
        from pyspark.errors import PySparkException

        try:
            writer.save(self._ledger.table(name))
        except PySparkException:
            if self.transaction(name) < batch:
                raise

    def delete(self, name: str, condition: str) -> None:
        """Take rows out of a table. What a killed process left at work on a server may do the same, and come first."""
        from pyspark.errors import PySparkException

        asked = f"DELETE FROM {self.named(name)} WHERE {condition}"
        try:
            self._spark().sql(asked).collect()
        except PySparkException:
            # Then nothing is left to take out; whatever else it was comes again.
            self._spark().sql(asked).collect()

    def tell_withdrawn(self, gone: Sequence[withdrawn.Gone], batch: int, *, whole: bool) -> None:
        """Tell what a batch took out of the tables, once it has written them all.

        A lake that was written before this was told goes without until its tables are replaced.
        """
        if whole or self._ledger.has(withdrawn.NAME):
            withdrawn.record(self._ledger.table(withdrawn.NAME), gone, batch, whole=whole)

    @contextlib.contextmanager
    def _indexed(self, name: str) -> Iterator[None]:
        """What is written of messages meanwhile is easy to find one by one: Delta hands no such option on, a session
        does. No other long table is written at that time."""
        options = FINE if name == "messages" else {}
        for option, value in options.items():
            self._spark().conf.set(option, value)
        try:
            yield
        finally:
            for option in options:
                self._spark().conf.unset(option)

    def names(self) -> list[str]:
        """The tables that are there."""
        return [name for name in (*STATE_TABLES, "restores", *GOLD, "replays") if self._ledger.has(name)]

    def segments(self) -> list[Segment]:
        """The files that were taken in, as far as the table tells of them; StoreCorrupt where there is none."""
        from deltalake import DeltaTable, QueryBuilder

        if not self._ledger.has("segments"):
            raise StoreCorrupt(f"the lake {self._ledger.place} has no table of its segments: rebuild it")
        table = DeltaTable(self._ledger.table("segments"))
        asked = f"SELECT {', '.join(map(where.name, _SEGMENT))} FROM t WHERE state <> '{REJECTED}'"
        return [
            _segment(dict(zip(_SEGMENT, values, strict=True)))
            for batch in QueryBuilder().register("t", table).execute(asked)
            for values in zip(*(batch.column(name).to_pylist() for name in _SEGMENT), strict=True)
        ]

    def version(self, name: str) -> int:
        """A table's version: it grows with every change."""
        from deltalake import DeltaTable

        return int(DeltaTable(self._ledger.table(name)).version())

    def transaction(self, name: str) -> int:
        """The last batch that a table has."""
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        if not self._ledger.has(name):
            return 0
        try:
            return int(DeltaTable(self._ledger.table(name)).transaction_version(APP_ID) or 0)
        except TableNotFoundError:
            # Its first write was killed before it was done.
            return 0

    def counts(self, name: str, plan: Plan) -> dict[str, int]:
        """About how many rows each part of a table had when a batch was planned: what its log tells, if it does."""
        from deltalake import DeltaTable

        files = DeltaTable(self._ledger.table(name), version=plan.versions[name]).get_add_actions(flatten=True)
        found: dict[str, int] = {}
        for part, rows in zip(
            *(files.column(each).to_pylist() for each in ("partition.part", "num_records")), strict=True
        ):
            found[part] = found.get(part, 0) + (rows or 0)
        return found

    def optimize(self, name: str) -> dict[str, int]:
        """Join a table's small files; how many became how many."""
        with self._indexed(name):
            row = self._spark().sql(f"OPTIMIZE {self.named(name)}").collect()[0]
        metrics = row["metrics"]
        return {"files_added": metrics["numFilesAdded"], "files_removed": metrics["numFilesRemoved"]}

    def vacuum(self, name: str, retain_h: float) -> None:
        """Remove files that no version of the last hours needs."""
        self._spark().conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
        self._spark().sql(f"VACUUM {self.named(name)} RETAIN {retain_h:g} HOURS").collect()


def _stats(piece: Piece) -> str:
    """What a table's log tells of a file; instants are told in ms, and none lies outside."""
    (first, last), (begin, end) = piece.offsets, piece.instants
    low, high = (_EPOCH + dt.timedelta(milliseconds=ms) for ms in (begin // 1_000, min(-(-end // 1_000), _LAST_MS)))
    return json.dumps(
        {
            "numRecords": piece.rows,
            "minValues": {"offset": first, "at": low.isoformat(timespec="milliseconds").replace("+00:00", "Z")},
            "maxValues": {"offset": last, "at": high.isoformat(timespec="milliseconds").replace("+00:00", "Z")},
            "nullCount": {"offset": 0, "at": 0},
        }
    )


def _segment(row: Mapping[str, Any]) -> Segment:
    ends = row["ranges"]
    first_at, last_at = ((row[name] - _EPOCH) // dt.timedelta(microseconds=1) for name in ("first_at", "last_at"))
    ranges = tuple(zip(ends[::2], ends[1::2], strict=True))
    return Segment(
        node=row["node"],
        name=row["name"],
        first=row["first"],
        last=row["last"],
        size_bytes=row["size_bytes"],
        state=row["state"],
        ranges=ranges,
        edges=((first_at, last_at),) if len(ranges) == 1 else (),
        prev=row["prev"],
        chain=row["chain"],
        first_at=first_at,
        last_at=last_at,
        faults=tuple(row["faults"]),
    )
