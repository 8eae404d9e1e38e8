"""Asleep: the part of the open set that a batch does not concern. It stays as it is, and is copied.

In: the events of a batch and the open set. Out: the mailboxes that are awake, and what belongs to the others. All that
is computed stays inside of one mailbox, but for this: a start of a node ends its connections, time passes for what has
expired, and an answer is compared with others of its desk. Whoever may be concerned by that is awake, too; a mailbox
with orphans always is, since its rows do not tell all that the books count of them.
"""

from __future__ import annotations

from functools import reduce
from typing import NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ..schema import OPEN
from . import partials
from .anomalies import GRACE_US
from .batch import causes
from .told import READY, box_of

_OWN = ("message", "lane", "full", "context")
"""Roles of the open set that belong to a mailbox, unless there is none in the row."""


class Split(NamedTuple):
    """The open set in two."""

    awake: DataFrame
    asleep: DataFrame
    boxes: DataFrame
    """(box) of the mailboxes that are awake."""


def awake(events: DataFrame, carried: DataFrame, messages: DataFrame) -> DataFrame:
    """(box) of the mailboxes that a batch may concern. ``messages`` are the rows that are there."""
    box = box_of().alias("box")
    open_now = carried.where(F.col("role") == "message")
    orphans = messages.where((F.col("part") == OPEN) & F.col("orphan"))
    started = F.broadcast(events.where(F.col("event") == "started").select("node").distinct())
    cause = ["node", "desk", "cause_id"]
    passes = F.unix_micros("expires_at") + GRACE_US
    now = events.groupBy("node").agg(F.max_by(F.unix_micros("at"), "offset").alias("now"))
    then = carried.where(F.col("role") == "node").select("node", F.unix_micros("at").alias("then"))
    clocks = F.broadcast(now.join(then, on="node", how="inner"))
    due = open_now.where(F.col("expires_at").isNotNull()).join(clocks, on="node", how="inner")
    concerned = (
        events.select(box),
        orphans.select(box),
        carried.join(started, on="node", how="left_semi").select(box),
        open_now.join(F.broadcast(causes(events)), on=cause, how="left_semi").select(box),
        due.where((F.col("now") >= passes) != (F.col("then") >= passes)).select(box),
    )
    return reduce(DataFrame.unionByName, concerned).distinct()


def split(carried: DataFrame, boxes: DataFrame) -> Split:
    """The open set as it goes into a batch, and the rest of it."""
    known = boxes.select("box", F.lit(True).alias("is_awake"))
    placed = carried.withColumn("box", box_of()).join(F.broadcast(known), on="box", how="left")
    sleeps = F.col("role").isin(*_OWN) & (F.col("mailbox") != "") & F.col("is_awake").isNull()
    return Split(placed.where(~sleeps).select(*carried.columns), placed.where(sleeps).select(*carried.columns), boxes)


def left(rows: DataFrame, boxes: DataFrame) -> DataFrame:
    """Of the rows of a table that may still change, those of mailboxes that are asleep."""
    still = rows.where(F.col("part") == OPEN).withColumn("box", box_of())
    return still.join(F.broadcast(boxes), on="box", how="left_anti").drop("box")


def counted(messages: DataFrame, before: DataFrame, boxes: DataFrame) -> DataFrame:
    """The open part of the partials for mailboxes that are asleep. ``before`` are the partials that are there."""
    books = partials.of_table(left(messages.where(F.col("posted_at").isNotNull()), boxes), READY)
    levels = left(before.where(F.col("table") == "levels"), boxes)
    return books.unionByName(levels.select(*partials.PARTIALS))
