"""Finished messages of which a batch tells more: found by number, without reading the history.

In: the tables as they were when the batch was planned, and its events. Out: the rows concerned, and the events of those
that live again. Of a long history one column of numbers is read, and of the rows that are found only their pages.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from . import schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HELD_MAX = 50_000
"""Finished messages that one batch may concern one by one; beyond that their nodes are computed anew."""
BROADCAST_EVENTS_MAX = 2_000_000
"""Batches up to this size are compared with the history in memory."""
TOGETHER = 500
"""Rows that are asked for in one condition."""


class Held(NamedTuple):
    """What a batch finds of what was finished before."""

    before: DataFrame | None = None
    """The last generation of each message concerned, as it is."""
    recalled: DataFrame | None = None
    """All events of the last generation of those that are redriven."""
    answered: DataFrame | None = None
    """Rows that answer what the batch answers too."""
    again: tuple[Any, ...] = ()
    """Of ``before``, the rows that come again in another form."""
    revived: tuple[Any, ...] = ()
    """Of these, the ones that live again."""


def find(
    spark: SparkSession,
    messages: DataFrame,
    events: DataFrame,
    new: DataFrame,
    carried: DataFrame,
    size: int,
    keep: Callable[[DataFrame], DataFrame],
) -> Held | None:
    """What of the finished rows a batch of this many events concerns; None if that is too much to go by one."""
    from pyspark.sql import functions as F

    from . import transforms

    closed = messages.where(F.col("part") != schema.OPEN)
    near = F.broadcast if size <= BROADCAST_EVENTS_MAX else _same
    causes = transforms.causes(new)
    answers = closed.where(F.col("cause_key").isNotNull()).select("cause_key", "part", "posted_at")
    answering = answers.join(near(causes.select("cause_key")), on="cause_key", how="left_semi")
    answered = _rows(spark, closed, answering.limit(HELD_MAX + 1).collect(), "cause_key")
    wanted = keep(transforms.strays(new, carried))
    known = closed.select("key", "part", "posted_at").join(near(wanted.select("key")), on="key", how="left_semi")
    found = known.limit(HELD_MAX + 1).collect()
    if len(found) > HELD_MAX:
        return None
    if not found:
        return Held(answered=answered)
    keys = spark.createDataFrame([(row["key"],) for row in found], "key bigint").distinct()
    told: dict[int, list[tuple[int, str]]] = {}
    for row in (
        transforms.told(new)
        .join(F.broadcast(keys), on="key", how="left_semi")
        .select("key", "offset", "code")
        .collect()
    ):
        told.setdefault(row["key"], []).append((row["offset"], transforms.EVENTS[row["code"]]))
    rows = _rows(spark, closed, found, "key")
    assert rows is not None
    latest: dict[tuple[int, str], Any] = {}
    for row in rows.collect():
        one = (row["key"], row["message_id"])
        if one not in latest or latest[one]["generation"] < row["generation"]:
            latest[one] = row
    again, revived = [], []
    for row in latest.values():
        said = sorted(told.get(row["key"], ()))
        posts = [place for place, (_, event) in enumerate(said) if event == "posted"]
        own = [event for _, event in (said[: posts[0]] if posts else said)]
        if own:
            again.append(row)
        if "redriven" in own:
            revived.append(row)
    before = keep(spark.createDataFrame(list(latest.values()), closed.schema))
    return Held(before, _recalled(spark, events, revived), answered, tuple(again), tuple(revived))


def _rows(spark: SparkSession, closed: DataFrame, found: list[Any], by: str) -> DataFrame | None:
    """The rows of these numbers; by their part and instant only the pages that hold them are read."""
    from functools import reduce

    from pyspark.sql import DataFrame as Frame
    from pyspark.sql import functions as F

    pieces = []
    for first in range(0, len(found), TOGETHER):
        some = found[first : first + TOGETHER]
        pieces.append(
            closed.where(
                F.col("part").isin(sorted({row["part"] for row in some}))
                & F.col("posted_at").isin(sorted({row["posted_at"] for row in some}))
                & F.col(by).isin(sorted({row[by] for row in some}))
            )
        )
    return reduce(Frame.unionByName, pieces) if pieces else None


def _recalled(spark: SparkSession, events: DataFrame, revived: list[Any]) -> DataFrame | None:
    """All events of these messages in their last generation."""
    from pyspark.sql import functions as F

    if not revived:
        return None
    names = schema.IDENTITY
    bounds = [(*(row[name] for name in names), row["first_offset"], row["last_offset"]) for row in revived]
    ddl = ", ".join(f"{name} string" for name in names) + ", from bigint, to bigint"
    wanted = F.broadcast(spark.createDataFrame(bounds, ddl))
    inside = F.col("offset").between(
        min(row["first_offset"] for row in revived), max(row["last_offset"] for row in revived)
    )
    ids = F.col("message_id").isin(sorted({row["message_id"] for row in revived}))
    return (
        events.where(inside & ids)
        .join(wanted, on=list(names), how="inner")
        .where(F.col("offset").between(F.col("from"), F.col("to")))
        .drop("from", "to", "day", "batch")
    )


def _same(frame: DataFrame) -> DataFrame:
    return frame
