"""Asleep: the part of the open set that a batch does not concern. It stays as it is, and is copied.

In: the events of a batch and the open set. Out: the mailboxes that are awake, and what belongs to the others. All that
is computed stays inside of one mailbox, but for this: a start of a node ends its connections, time passes for what has
expired, and an answer is compared with others of its desk. Whoever may be concerned by that is awake, too; a mailbox
with orphans always is, since its rows do not tell all that the books count of them. A message that was only refused
concerns nobody but itself: it is awake if the batch tells of it, whatever becomes of its mailbox.
"""

from __future__ import annotations

from functools import reduce
from typing import NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from ..schema import OPEN
from . import partials
from .anomalies import GRACE_US
from .batch import causes
from .carry import REFUSED
from .told import READY, box_of, key_of, told

_OWN = ("message", "lane", "full", "context")
"""Roles of the open set that belong to a mailbox, unless there is none in the row."""


class Split(NamedTuple):
    """The open set in two."""

    awake: DataFrame
    asleep: DataFrame


def awake(events: DataFrame, carried: DataFrame, messages: DataFrame) -> DataFrame:
    """(box, key): mailboxes that a batch may concern, and messages that it tells of; each row is one or the other.

    ``messages`` are the rows that are there.
    """
    box = box_of().alias("box")
    orphans = messages.where((F.col("part") == OPEN) & F.col("orphan"))
    started = events.where(F.col("event") == "started").select("node", F.lit(True).alias("is_started")).distinct()
    answers = causes(events).select("node", "desk", "cause_id", F.lit(True).alias("is_answered"))
    now = events.groupBy("node").agg(F.max_by(F.unix_micros("at"), "offset").alias("now"))
    then = carried.where(F.col("role") == "node").select("node", F.unix_micros("at").alias("then"))
    passes = F.unix_micros("expires_at") + GRACE_US
    passed = (F.col("now") >= passes) != (F.col("then") >= passes)
    # All of the open set is read once for this.
    roused = (
        carried.select("role", "node", "desk", "cause_id", "expires_at", box)
        .join(F.broadcast(started), on="node", how="left")
        .join(F.broadcast(now.join(then, on="node", how="inner")), on="node", how="left")
        .join(F.broadcast(answers), on=["node", "desk", "cause_id"], how="left")
        .where(F.col("is_started") | (F.col("role") == "message") & (F.col("is_answered") | passed))
    )
    boxes = reduce(DataFrame.unionByName, (events.select(box), orphans.select(box), roused.select("box")))
    none = F.lit(None).cast("bigint")
    keys = told(events).select(none.alias("box"), "key")
    return boxes.select("box", none.alias("key")).unionByName(keys).distinct()


def split(carried: DataFrame, concerned: DataFrame) -> Split:
    """The open set as it goes into a batch, and the rest of it. ``concerned`` is what ``awake`` found."""
    refused = F.col("role") == REFUSED
    owned = refused | F.col("role").isin(*_OWN) & (F.col("mailbox") != "")
    placed = _placed(carried, concerned, refused, key_of()).withColumn("sleeps", owned & F.col("sleeps"))
    return Split(*(placed.where(which).select(*carried.columns) for which in ("NOT sleeps", "sleeps")))


def left_messages(messages: DataFrame, concerned: DataFrame) -> DataFrame:
    """Of the rows of messages that may still change, those that are asleep."""
    refused = F.col("outcome").eqNullSafe("refused")
    return _open(messages, concerned, refused, F.col("key"))


def left(rows: DataFrame, concerned: DataFrame) -> DataFrame:
    """The same for another table."""
    return _open(rows, concerned, F.lit(False), F.lit(None).cast("bigint"))


def _open(rows: DataFrame, concerned: DataFrame, refused: Column, key: Column) -> DataFrame:
    placed = _placed(rows.where(F.col("part") == OPEN), concerned, refused, key)
    return placed.where("sleeps").select(*rows.columns)


def _placed(rows: DataFrame, concerned: DataFrame, refused: Column, key: Column) -> DataFrame:
    """Rows with whether they sleep: with their mailbox, or by themselves where they are of what was only refused."""
    boxes = concerned.where(F.col("box").isNotNull()).select("box", F.lit(True).alias("is_awake"))
    keys = concerned.where(F.col("key").isNotNull()).select(F.col("key").alias("told"), F.lit(True).alias("is_told"))
    return (
        rows.withColumn("box", box_of())
        .withColumn("told", F.when(refused, key))
        .join(F.broadcast(boxes), on="box", how="left")
        .join(F.broadcast(keys), on="told", how="left")
        .withColumn("sleeps", F.when(refused, F.col("is_told").isNull()).otherwise(F.col("is_awake").isNull()))
    )


def counted(messages: DataFrame, before: DataFrame, concerned: DataFrame) -> DataFrame:
    """The open part of the partials for mailboxes that are asleep. ``before`` are the partials that are there."""
    books = partials.of_table(left_messages(messages.where(F.col("posted_at").isNotNull()), concerned), READY)
    levels = left(before.where(F.col("table") == "levels"), concerned)
    return books.unionByName(levels.select(*partials.PARTIALS))
