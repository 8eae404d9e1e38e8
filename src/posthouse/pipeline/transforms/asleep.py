"""Asleep: the part of the open set that a batch does not concern. It stays as it is, and mostly where it is.

In: the events of a batch and the open set. Out: the mailboxes that are awake, and what belongs to the others. All that
is computed stays inside of one mailbox, but for this: a start of a node ends its connections, time passes for what has
expired, and an answer is compared with others of its desk. Whoever may be concerned by that is awake, too; a mailbox
with orphans always is, since its rows do not tell all that the books count of them. A message that was only refused
concerns nobody but itself: it is awake if the batch tells of it, whatever becomes of its mailbox.

The open set is stored in two parts: the base, and what was put in the place of some of it by batches since, with marks
of what that is; what belongs to no mailbox is always there. So a batch writes what it concerns, and now and then one
writes all of it as the base.
"""

from __future__ import annotations

from functools import reduce
from typing import NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from ..schema import BASE, MORE, OPEN
from . import partials, quiet
from .anomalies import GRACE_US
from .batch import causes
from .carry import REFUSED, shaped
from .told import READY, box_of, key_of, told

_OWN = ("message", "lane", "full", "context", quiet.ROLE)
"""Roles of the open set that belong to a mailbox, unless there is none in the row."""
_WOKEN = "woken"
"""The role of a mark: what the base has of a mailbox (``offset``) or of a message (``commit``) is there no more."""
MORE_SHARE = 1 / 4
"""Of all rows: when the second part has more of them, it is time for another base."""


class Split(NamedTuple):
    """The open set in three."""

    awake: DataFrame
    asleep: DataFrame
    """What stays as it is in the second part."""
    deep: DataFrame
    """What stays as it is in the base."""


def marked(stored: DataFrame) -> bool:
    """Whether something of the base is there no more."""
    return not _marks(stored).isEmpty()


def whole(rows: DataFrame) -> DataFrame:
    """The open set as it is stored where all of it is."""
    return rows.withColumn("part", F.when(_owned(), F.lit(BASE)).otherwise(F.lit(MORE)))


def current(stored: DataFrame) -> DataFrame:
    """The open set, of what is stored."""
    nobody = _marks(stored.limit(0))
    return _placed(stored, nobody).select(*_columns(stored))


def added(rows: DataFrame, stored: DataFrame, awake: DataFrame, concerned: DataFrame) -> DataFrame:
    """The second part as it is stored next: ``rows`` of the open set, and marks of what they take the place of.

    ``awake`` is what went into the batch of ``stored``, and ``concerned`` the mailboxes.
    """
    none = F.lit(None).cast("bigint")
    marks = (
        concerned.where(F.col("box").isNotNull())
        .unionByName(awake.where(F.col("role") == REFUSED).select(none.alias("box"), key_of().alias("key")))
        .unionByName(_marks(stored))
        .distinct()
    )
    own = shaped(marks, _WOKEN, {"offset": F.col("box"), "commit": F.col("key")})
    return rows.unionByName(own).withColumn("part", F.lit(MORE))


def awake(events: DataFrame, stored: DataFrame, messages: DataFrame) -> DataFrame:
    """(box, key): mailboxes that a batch may concern, and messages that it tells of; each row is one or the other.

    ``messages`` are the rows that are there. What a mark says is gone may wake its mailbox, which changes nothing.
    """
    box = box_of().alias("box")
    orphans = messages.where((F.col("part") == OPEN) & F.col("orphan"))
    started = events.where(F.col("event") == "started").select("node").distinct()
    answers = causes(events).select("node", "desk", "cause_id", F.lit(True).alias("is_answered"))
    now = events.groupBy("node").agg(F.max_by(F.unix_micros("at"), "offset").alias("now"))
    nodes = stored.where((F.col("part") == MORE) & (F.col("role") == "node"))
    then = nodes.select("node", F.unix_micros("at").alias("then"))
    passes = F.unix_micros("expires_at") + GRACE_US
    passed = (F.col("now") >= passes) != (F.col("then") >= passes)
    begun = stored.select("node", box).join(F.broadcast(started), on="node", how="left_semi")
    # Of most rows no more than that is read: they lie by their roles.
    roused = (
        stored.where(F.col("role") == "message")
        .select("node", "desk", "cause_id", "expires_at", box)
        .join(F.broadcast(now.join(then, on="node", how="inner")), on="node", how="left")
        .join(F.broadcast(answers), on=["node", "desk", "cause_id"], how="left")
        .where(F.col("is_answered") | passed)
    )
    named = (events.select(box), orphans.select(box), begun.select("box"), roused.select("box"))
    boxes = reduce(DataFrame.unionByName, named)
    none = F.lit(None).cast("bigint")
    keys = told(events).select(none.alias("box"), "key")
    return boxes.select("box", none.alias("key")).unionByName(keys).distinct()


def split(stored: DataFrame, concerned: DataFrame) -> Split:
    """The open set as it goes into a batch, and the rest of it. ``concerned`` is what ``awake`` found."""
    placed, sleeps, more = _placed(stored, concerned), F.col("sleeps"), F.col("part") == MORE
    which = (~sleeps, sleeps & more, sleeps & ~more)
    return Split(*(placed.where(each).select(*_columns(stored)) for each in which))


def left(rows: DataFrame, concerned: DataFrame) -> DataFrame:
    """Of the rows of a table that may still change, those of mailboxes that are asleep."""
    boxes = F.broadcast(concerned.where(F.col("box").isNotNull()).select("box"))
    still = rows.where((F.col("part") == OPEN) & (F.col("mailbox") != "")).withColumn("box", box_of())
    return still.join(boxes, on="box", how="left_anti").select(*rows.columns)


def _placed(stored: DataFrame, concerned: DataFrame) -> DataFrame:
    """What is there of the open set, with whether it ``sleeps``: with its mailbox, or by itself if it was refused."""
    refused, no = F.col("role") == REFUSED, F.lit(False)
    marks = (
        concerned.select("box", "key", F.lit(True).alias("wakes"), no.alias("gone"))
        .unionByName(_marks(stored).select("box", "key", no.alias("wakes"), F.lit(True).alias("gone")))
        .groupBy("box", "key")
        .agg(F.struct(F.max("wakes").alias("wakes"), F.max("gone").alias("gone")).alias("mark"))
    )
    boxes = marks.where(F.col("box").isNotNull()).select("box", F.col("mark").alias("of_box"))
    keys = marks.where(F.col("key").isNotNull()).select(F.col("key").alias("told"), F.col("mark").alias("of_key"))
    mark = F.when(refused, F.col("of_key")).otherwise(F.col("of_box"))
    gone = (F.col("role") == _WOKEN) | (F.col("part") == BASE) & F.coalesce(mark["gone"], no)
    return (
        stored.withColumn("box", box_of())
        .withColumn("told", F.when(refused, key_of()))
        .join(F.broadcast(boxes), on="box", how="left")
        .join(F.broadcast(keys), on="told", how="left")
        .where(~gone)
        .withColumn("sleeps", _owned() & ~F.coalesce(mark["wakes"], no))
    )


def _owned() -> Column:
    """Whether a row is of a mailbox, or of one message."""
    return (F.col("role") == REFUSED) | F.col("role").isin(*_OWN) & (F.col("mailbox") != "")


def _marks(stored: DataFrame) -> DataFrame:
    """(box, key): of whom the base has nothing any more."""
    marks = stored.where((F.col("part") == MORE) & (F.col("role") == _WOKEN))
    return marks.select(F.col("offset").alias("box"), F.col("commit").alias("key"))


def _columns(stored: DataFrame) -> list[str]:
    return [name for name in stored.columns if name != "part"]


def counted(messages: DataFrame, before: DataFrame, concerned: DataFrame) -> DataFrame:
    """The open part of the partials for mailboxes that are asleep. ``before`` are the partials that are there."""
    books = partials.of_table(left(messages.where(F.col("posted_at").isNotNull()), concerned), READY)
    boxes = left(before.where(F.col("table").isin("levels", "standing")), concerned)
    return books.unionByName(boxes.select(*partials.PARTIALS))
