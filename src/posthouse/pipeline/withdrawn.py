"""Rows that batches took out of tables, told by name, for whoever reads without Spark.

In: what a batch took out. Out: a small table of it, and a reader of a table that leaves such rows out. Delta marks them
by their places in the files; the deltalake package can only heed that by reading such a table whole, row by row: a
message would be looked for in every row of a long history. By name they are left out of whatever was found.

A row of this table takes out rows of earlier batches: all of a ``node``, or one of the messages by its number and
generation. It is written last in each batch, and counts for a table that has reached the same batch.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote, urlsplit

from . import where
from .schema import APP_ID

if TYPE_CHECKING:
    from deltalake import DeltaTable

NAME = "withdrawn"
KEYED = "messages"
"""The table of which single rows are taken out."""
TOLD = (KEYED, "attempts")
"""Tables that are long, and of which rows are taken out."""
READING = {"datafusion.execution.parquet.pushdown_filters": "true"}
"""Columns of rows that a condition leaves out are not read."""
FEW = 5_000
"""Single rows that are left out of what was found; more of them are left out by a join, behind which more is read."""


class Gone(NamedTuple):
    """What was taken out: all of a node, or one row."""

    node: str | None = None
    key: int | None = None
    generation: int | None = None


def record(place: str, gone: Sequence[Gone], batch: int, *, whole: bool) -> None:
    """Tell what a batch took out, once; ``whole`` if the tables were replaced, and nothing is left of those before.

    Where the batch before was not told, this one is not either: then the table is of no use until they are replaced.
    """
    import pyarrow as pa
    from deltalake import DeltaTable, write_deltalake
    from deltalake.transaction import CommitProperties, Transaction

    reached = DeltaTable(place).transaction_version(APP_ID) or 0 if DeltaTable.is_deltatable(place) else 0
    if reached >= batch or not (whole or reached == batch - 1):
        return
    types = {"node": pa.string(), "key": pa.int64(), "generation": pa.int32()}
    columns = {name: pa.array([getattr(each, name) for each in gone], kind) for name, kind in types.items()}
    rows = pa.table({**columns, "batch": pa.array([batch] * len(gone), pa.int64())})
    once = CommitProperties(app_transactions=[Transaction(APP_ID, batch)])
    write_deltalake(place, rows, mode="overwrite" if whole else "append", commit_properties=once)


class Reader:
    """Questions to a table in SQL. As ``t`` it is without the rows that were taken out."""

    def __init__(self, name: str, table: DeltaTable, gone: DeltaTable | None) -> None:
        """``gone`` is the table of what was taken out, where there is one."""
        from deltalake import QueryBuilder

        self.source = "t"
        """The name under which rows are found soonest: those for which ``is_gone`` holds are there, too."""
        self.told: tuple[str, ...] = ()
        """The columns by which that is known."""
        self.spare = 0
        """How many such rows there may be."""
        self._until: dict[tuple[int, int], int] = {}
        self._builder = QueryBuilder(READING)
        if gone is not None and _helps(table, gone):
            try:
                self._builder.register(NAME, gone)
                if self._leave_out(table, name == KEYED):
                    return
            # The package has no exception of its own. The table itself may be sound.
            except Exception:
                self.source, self.told, self.spare, self._until = "t", (), 0, {}
                self._builder = QueryBuilder(READING)
        self._builder.register("t", table)

    def execute(self, sql: str) -> Any:
        """The answer, piece by piece."""
        return self._builder.execute(sql)

    def is_gone(self, row: Mapping[str, Any]) -> bool:
        """Whether a row of ``source`` was taken out."""
        return bool(self._until) and row["batch"] < self._until.get((row["key"], row["generation"]), 0)

    def _leave_out(self, table: DeltaTable, keyed: bool) -> bool:
        """Whether something of this table was taken out; then there is a ``t`` without it."""
        nodes: dict[str, int] = {}
        asked = f"SELECT node, key, generation, max(batch), count(*) FROM {NAME} GROUP BY node, key, generation"
        for batch in self.execute(asked):
            for node, key, generation, until, times in zip(
                *(batch.column(n).to_pylist() for n in range(5)), strict=True
            ):
                if node is not None:
                    nodes[where.literal(node)] = until
                elif keyed:
                    self._until[key, generation] = until
                    self.spare += times
        if not nodes and not self._until:
            return False
        self._builder.register("every", _as_written(table))
        told = " ".join(f"WHEN {node} THEN {until}" for node, until in nodes.items())
        of_nodes = f"batch >= CASE node {told} ELSE 0 END" if nodes else "TRUE"
        if self.spare <= FEW:
            self.execute(f"CREATE VIEW kept AS SELECT * FROM every WHERE {of_nodes}")
            self.source, self.told = "kept", ("key", "generation", "batch") if self._until else ()
        else:
            self._until, self.spare = {}, 0
        # What is gone is on the left: that side is held in memory.
        without = (
            f"{NAME} gone RIGHT ANTI JOIN every ON every.key = gone.key AND every.generation = gone.generation"
            " AND every.batch < gone.batch"
        )
        self.execute(f"CREATE VIEW t AS SELECT every.* FROM {without if keyed else 'every'} WHERE {of_nodes}")
        return True


def _helps(table: DeltaTable, gone: DeltaTable) -> bool:
    """Whether something was taken out, all of it is told, and files may be named by their full paths."""
    if urlsplit(table.table_uri).scheme not in ("", "file"):
        return False
    reached = table.transaction_version(APP_ID)
    if reached is None or reached != gone.transaction_version(APP_ID):
        return False
    return any(gone.get_add_actions(flatten=True).column("num_records").to_pylist())


def _as_written(table: DeltaTable) -> DeltaTable:
    """The same files as a table that nothing was taken out of."""
    from deltalake import DeltaTable
    from deltalake.transaction import AddAction, create_table_with_add_actions

    files = table.get_add_actions(flatten=True)
    names = files.schema.names
    root, by = _folder(table), table.metadata().partition_columns
    added = [
        AddAction(
            f"{root}/{row['path']}",
            row["size_bytes"],
            {column: row[f"partition.{column}"] for column in by},
            row["modification_time"],
            data_change=True,
            stats=_stats(row),
        )
        for values in zip(*(files.column(each).to_pylist() for each in names), strict=True)
        for row in [dict(zip(names, values, strict=True))]
    ]
    with tempfile.TemporaryDirectory(prefix="posthouse-") as folder:
        create_table_with_add_actions(folder, table.schema(), added, partition_by=by)
        return DeltaTable(folder)


def _folder(table: DeltaTable) -> Path:
    found = urlsplit(table.table_uri)
    return Path(unquote(found.path) if found.scheme else table.table_uri).absolute()


def _stats(row: dict[str, Any]) -> str:
    """What a table's log tells of a file, as it told it."""
    found: dict[str, Any] = {"numRecords": row["num_records"]}
    for inside, told in (("min.", "minValues"), ("max.", "maxValues"), ("null_count.", "nullCount")):
        values = {name.removeprefix(inside): value for name, value in row.items() if name.startswith(inside)}
        found[told] = {name: _plain(value) for name, value in values.items() if value is not None}
    return json.dumps(found)


def _plain(value: Any) -> Any:
    return value.isoformat(timespec="microseconds").replace("+00:00", "Z") if isinstance(value, datetime) else value
