"""What the record knows of files, as rows of the lake's tables.

In: segments that were examined, findings about them, and which stores go on from which. Out: frames of the tables
`segments`, `anomalies` and `restores`. Nothing is read or written.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from . import local, schema
from .bronze import Segment
from .finding import Finding
from .lineage import Lineage
from .tables import FILES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


def segments(spark: SparkSession, examined: Iterable[Segment]) -> DataFrame:
    """A row a file, taken in or not."""
    rows = [
        (
            s.node,
            s.name,
            s.first,
            s.last,
            s.events,
            [offset for pair in s.ranges for offset in pair],
            s.prev,
            s.chain,
            s.first_at,
            s.last_at,
            s.state,
            [*s.faults, *([s.broken] if s.broken else [])],
            s.size_bytes,
        )
        for s in examined
    ]
    ddl = (
        "node string, name string, first bigint, last bigint, events bigint, ranges array<bigint>, prev string,"
        " chain string, first_at bigint, last_at bigint, state string, faults array<string>, size_bytes bigint"
    )
    return local.frame(spark, rows, ddl).selectExpr(
        *(
            f"timestamp_micros({name}) AS {name}" if name.endswith("_at") else name
            for name in schema.SEGMENTS.names
            if name != "batch"
        )
    )


def findings(spark: SparkSession, found: Iterable[Finding], like: StructType) -> DataFrame:
    """A row a finding, with the columns of ``like``."""
    from pyspark.sql import functions as F

    rows = [(FILES, f.kind, f.node, "", "", "", "", f.at, list(f.offsets), f.detail) for f in found]
    ddl = (
        "part string, kind string, node string, desk string, mailbox string, sender string, message_id string,"
        " at bigint, offsets array<bigint>, detail string"
    )
    frame = local.frame(spark, rows, ddl).withColumn("at", F.timestamp_micros("at"))
    for column in like.fields:
        if column.name not in frame.columns:
            frame = frame.withColumn(column.name, F.lit(None).cast(column.dataType))
    return frame


def restores(spark: SparkSession, lineage: Lineage) -> DataFrame:
    """A row a store that goes on from a snapshot of another."""
    from pyspark.sql import functions as F

    rows = [
        (r.node, r.start, r.origin, r.offset, r.at, place.node, place.shift, place.last)
        for r in lineage.restores
        for place in (lineage.place(r.node),)
    ]
    ddl = (
        "node string, start bigint, from_node string, from_offset bigint, at bigint, known_as string,"
        " shift bigint, last bigint"
    )
    return local.frame(spark, rows, ddl).withColumn("at", F.timestamp_micros("at"))
