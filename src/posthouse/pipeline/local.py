"""Rows of this process as DataFrames: they go to Java as Arrow, so that no Python ever runs on executors.

In: tuples and the names and types of their columns, as Spark writes them. Out: a DataFrame.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def frame(spark: SparkSession, rows: Iterable[tuple[Any, ...]], ddl: str) -> DataFrame:
    """These rows; ``ddl`` is like ``name string, offsets array<bigint>``."""
    import pyarrow as pa

    types = {
        "string": pa.string(),
        "bigint": pa.int64(),
        "int": pa.int32(),
        "boolean": pa.bool_(),
        "array<bigint>": pa.list_(pa.int64()),
        "array<string>": pa.list_(pa.string()),
    }
    columns = [column.replace("`", "").split() for column in ddl.split(",")]
    schema = pa.schema([(name, types[type_]) for name, type_ in columns])
    values = [dict(zip(schema.names, row, strict=True)) for row in rows]
    return spark.createDataFrame(pa.Table.from_pylist(values, schema))
