"""Depth: how many messages a mailbox held, how far that rose in an hour, and how long it was as full as it may be.

In: message rows and steps, what policies allow, and which mailboxes were full when the batch before ended. Out: rises
and times by hour, and the mailboxes that are full now. A message is in its mailbox from its post on, while it waits or
is in flight; the order is that of offsets.
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from .told import BOX, NEVER

HOUR_US = 3_600_000_000
LINE = ("box", *BOX, "offset", "ts", "change")
CAPS_DDL = "node string, desk string, cap bigint, since bigint, till bigint"
"""What a desk of a node allows, from one offset up to another."""


def hour(us: Column) -> Column:
    """The beginning of the UTC hour that an instant in µs is in, in µs."""
    return us - F.pmod(us, F.lit(HOUR_US))


def moves(rows: DataFrame, steps: DataFrame) -> DataFrame:
    """(box, node, desk, mailbox, offset, ts, change): into a mailbox (1) and out of it (-1)."""

    def move(offset: str, at: str, change: int) -> Column:
        value = F.struct(
            F.col(offset).alias("offset"), F.col(at).alias("ts"), F.lit(change).cast("bigint").alias("change")
        )
        return F.when(F.col(offset).isNotNull(), value)

    both = F.array_compact(F.array(move("posted_offset", "posted", 1), move("finished_offset", "finished", -1)))
    plain = rows.where("plain").select("box", *BOX, F.explode(both).alias("m")).select("box", *BOX, "m.*")
    other = steps.where("change <> 0").select("box", *BOX, "offset", "ts", F.col("change").cast("bigint"))
    return plain.select(*LINE).unionByName(other.select(*LINE))


def rises(moved: DataFrame, edges: DataFrame) -> DataFrame:
    """(node, desk, mailbox, w, n, since, peak, desk_peak): what each hour made of the depth of a mailbox.

    By how much it changed from an offset on, how far it rose meanwhile, and how far that of its desk did at its moves.
    Only what is above the edge counts; what several batches tell of an hour follows on.
    """
    desk = Window.partitionBy("node", "desk", "w").orderBy("offset")
    box = Window.partitionBy(*BOX, "w").orderBy("offset")
    so_far = (Window.unboundedPreceding, Window.currentRow)
    return (
        _new(moved, edges)
        .select(*BOX, hour(F.col("ts")).alias("w"), "offset", "change")
        # Moved once: what is together by desk and hour is so by mailbox, too.
        .repartition("node", "desk", "w")
        .withColumn("in_desk", F.sum("change").over(desk.rowsBetween(*so_far)))
        .withColumn("in_box", F.sum("change").over(box.rowsBetween(*so_far)))
        .groupBy(*BOX, "w")
        .agg(
            F.sum("change").alias("n"),
            F.min("offset").alias("since"),
            F.greatest(F.max("in_box"), F.lit(0)).alias("peak"),
            F.greatest(F.max("in_desk"), F.lit(0)).alias("desk_peak"),
        )
    )


def levels(
    moved: DataFrame, edges: DataFrame, caps: DataFrame, stood: DataFrame, keep: Callable[[DataFrame], DataFrame]
) -> DataFrame:
    """(box, node, desk, mailbox, offset, ts, depth, cap, next): the moves of mailboxes that may be full.

    ``caps`` are as ``CAPS_DDL`` says, ``stood`` the mailboxes that were full (node, desk, mailbox, offset, ts), each
    since a move. The first row of each is what was before; its instant is known only where it was full then. ``keep``
    is called with what is little and made of much.
    """
    known = moved.join(F.broadcast(edges), on="node", how="left").withColumn("edge", F.coalesce("edge", F.lit(0)))
    is_new = F.col("offset") > F.col("edge")
    totals = known.groupBy("box", *BOX).agg(
        F.sum(F.when(~is_new, F.col("change")).otherwise(0)).alias("level"),
        F.sum(F.when(is_new & (F.col("change") > 0), F.col("change")).otherwise(0)).alias("more"),
    )
    least = F.broadcast(caps.groupBy("node", "desk").agg(F.min("cap").alias("least")))
    before = stood.select(*BOX, F.col("offset").alias("place"), F.col("ts").alias("instant"))
    chosen = keep(
        totals.join(least, on=["node", "desk"], how="inner")
        .join(F.broadcast(before), on=list(BOX), how="left")
        .where((F.col("level") + F.col("more") >= F.col("least")) | F.col("place").isNotNull())
    )
    begin = chosen.select(
        "box", *BOX, F.coalesce("place", F.lit(0).cast("bigint")).alias("offset"), F.col("instant").alias("ts"),
        F.col("level").alias("change"), F.col("instant").isNotNull().alias("stands"),
    )  # fmt: skip
    own = (
        known.where(is_new)
        .select(*LINE, F.lit(False).alias("stands"))
        .join(F.broadcast(chosen.select("box")), on="box", how="left_semi")
    )
    order = Window.partitionBy("box").orderBy("offset")
    so_far = order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    allowed = F.broadcast(caps.select(F.col("node").alias("n"), F.col("desk").alias("d"), "cap", "since", "till"))
    holds = (F.col("node") == F.col("n")) & (F.col("desk") == F.col("d"))
    holds = holds & (F.col("offset") >= F.col("since")) & (F.col("offset") < F.col("till"))
    return keep(
        own.unionByName(begin)
        .withColumn("depth", F.sum("change").over(so_far))
        .withColumn("next", F.lead("ts").over(order))
        .join(allowed, on=holds, how="left")
        # Who was full was so by what was allowed then.
        .withColumn("cap", F.when(F.col("stands"), F.col("depth")).otherwise(F.coalesce("cap", F.lit(NEVER))))
        .select("box", *BOX, "offset", "ts", "depth", "cap", "next")
    )


def full_hours(line: DataFrame) -> DataFrame:
    """(w, node, desk, mailbox, full): µs of each hour for which a mailbox was full; told with the move that ends it."""
    first = hour(F.col("ts"))
    last = F.greatest(first, hour(F.col("next") - 1))
    spent = F.least("next", F.col("w") + HOUR_US) - F.greatest("ts", "w")
    return (
        line.where((F.col("depth") >= F.col("cap")) & (F.col("next") > F.col("ts")))
        .withColumn("w", F.explode(F.sequence(first, last, F.lit(HOUR_US).cast("bigint"))))
        .groupBy("w", *BOX)
        .agg(F.sum(spent).alias("full"))
    )


def standing(line: DataFrame) -> DataFrame:
    """(node, desk, mailbox, offset, ts) of the mailboxes that are full at the end, with the move since which."""
    last = F.max(F.struct("offset", "ts", "depth", "cap")).alias("l")
    return (
        line.groupBy("box", *BOX)
        .agg(last)
        .where((F.col("l.depth") >= F.col("l.cap")) & F.col("l.ts").isNotNull())
        .select(*BOX, "l.offset", "l.ts")
    )


def _new(moved: DataFrame, edges: DataFrame) -> DataFrame:
    return moved.join(F.broadcast(edges), on="node", how="left").where(F.col("offset") > F.coalesce("edge", F.lit(0)))
