"""Depth: how many messages a mailbox held, how far that rose in an hour, and how long it was as full as it may be.

In: message rows and steps, what policies allow, and which mailboxes were full when the batch before ended. Out: rises
and times by hour, and the mailboxes that are full now. A message is in its mailbox from its post on, while it waits or
is in flight; the order is that of offsets.
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from ..schema import SPAN_MAX_US
from .told import NEVER, above, spot_of

HOUR_US = 3_600_000_000
MOVES = ("box", "spot", "offset", "ts", "change", "fresh")
CAPS_DDL = "node string, desk string, cap bigint, since bigint, till bigint"
"""What a desk of a node allows, from one offset up to another."""


def hour(us: Column) -> Column:
    """The beginning of the UTC hour that an instant in µs is in, in µs."""
    return us - F.pmod(us, F.lit(HOUR_US))


def moves(rows: DataFrame, steps: DataFrame, edges: DataFrame | None) -> DataFrame:
    """(box, spot, offset, ts, change, fresh): into a mailbox (1) and out of it (-1); whether that is news.

    A desk of a node is a number, too: ``spot``. Where there are no ``edges``, all is news.
    """

    def move(offset: str, at: str, change: int) -> Column:
        value = F.struct(
            F.col(offset).alias("offset"), F.col(at).alias("ts"), F.lit(change).cast("bigint").alias("change")
        )
        return F.when(F.col(offset).isNotNull(), value)

    both = F.array_compact(F.array(move("posted_offset", "posted", 1), move("finished_offset", "finished", -1)))
    plain = above(rows.where("plain"), edges).select("box", spot_of().alias("spot"), "edge", F.explode(both).alias("m"))
    other = above(steps.where("change <> 0"), edges)
    fresh = (F.col("offset") > F.col("edge")).alias("fresh")
    return (
        plain.select("box", "spot", "edge", "m.*")
        .select(*MOVES[:-1], fresh)
        .unionByName(
            other.select("box", spot_of().alias("spot"), "offset", "ts", F.col("change").cast("bigint"), fresh)
        )
    )


def rises(moved: DataFrame) -> DataFrame:
    """(box, spot, w, n, since, last, more, peak, desk_peak): what each hour made of the depth of a mailbox.

    By how much it changed from an offset on and up to another, how many came in, how far it rose meanwhile, and how
    far that of its desk did at its moves. Only what is news counts; what several batches tell of an hour follows on.
    """
    desk = Window.partitionBy("spot", "w").orderBy("offset")
    box = Window.partitionBy("box", "w").orderBy("offset")
    so_far = (Window.unboundedPreceding, Window.currentRow)
    return (
        moved.where("fresh")
        .select("box", "spot", hour(F.col("ts")).alias("w"), "offset", "change")
        # Moved once: what is together by desk and hour is so by mailbox, too.
        .repartition("spot", "w")
        .withColumn("in_desk", F.sum("change").over(desk.rowsBetween(*so_far)))
        .withColumn("in_box", F.sum("change").over(box.rowsBetween(*so_far)))
        .groupBy("box", "w", "spot")
        .agg(
            F.sum("change").alias("n"),
            F.min("offset").alias("since"),
            F.max("offset").alias("last"),
            F.sum(F.greatest("change", F.lit(0))).alias("more"),
            F.greatest(F.max("in_box"), F.lit(0)).alias("peak"),
            F.greatest(F.max("in_desk"), F.lit(0)).alias("desk_peak"),
        )
    )


def levels(
    moved: DataFrame,
    risen: DataFrame,
    caps: DataFrame,
    stood: DataFrame | None,
    keep: Callable[[DataFrame], DataFrame],
) -> DataFrame:
    """(box, offset, ts, depth, cap, next): the moves of mailboxes that are full at one time.

    ``caps`` are as ``CAPS_DDL`` says, ``risen`` comes of ``rises``, ``stood`` are the mailboxes that were full (box,
    offset, ts), each since a move; None where there was nothing before. The first row of each is what was before; its
    instant is known only where it was full then. ``keep`` is called with what is little and made of much.
    """
    zero, none = F.lit(0).cast("bigint"), F.lit(None).cast("bigint")
    allowed = caps.select(spot_of().alias("spot"), "cap", "since", "till")
    least = F.broadcast(allowed.groupBy("spot").agg(F.min("cap").alias("least")))
    hours = Window.partitionBy("box").orderBy("since")
    begun = F.coalesce(F.sum("n").over(hours.rowsBetween(Window.unboundedPreceding, -1)), zero)
    # Hours follow each other, or the clock went back: then all that came in may have been there at one time.
    follows = F.coalesce(F.lead("since").over(hours) > F.col("last"), F.lit(True))
    most = (
        risen.select("box", "spot", "more", follows.alias("follows"), (begun + F.col("peak")).alias("high"))
        .groupBy("box", "spot")
        .agg(F.max("high").alias("high"), F.sum("more").alias("more"), F.min("follows").alias("follows"))
        .join(least, on="spot", how="inner")
        .select("box", F.when(F.col("follows"), F.col("high")).otherwise(F.col("more")).alias("added"), "least")
    )
    if stood is None:
        chosen = most.where("added >= least").select(
            "box", zero.alias("level"), none.alias("place"), none.alias("instant")
        )
    else:
        held = moved.where("NOT fresh").groupBy("box").agg(F.sum("change").alias("level"))
        before = stood.select("box", F.col("offset").alias("place"), F.col("ts").alias("instant"))
        chosen = (
            most.join(held, on="box", how="full")
            .join(before, on="box", how="full")
            .withColumn("level", F.coalesce("level", zero))
            .where((F.col("level") + F.col("added") >= F.col("least")) | F.col("place").isNotNull())
            .select("box", "level", "place", "instant")
        )
    chosen = keep(chosen)
    begin = chosen.select(
        "box", none.alias("spot"), F.coalesce("place", zero).alias("offset"), F.col("instant").alias("ts"),
        F.col("level").alias("change"), F.col("instant").isNotNull().alias("stands"),
    )  # fmt: skip
    own = (
        moved.where("fresh")
        .select("box", "spot", "offset", "ts", "change", F.lit(False).alias("stands"))
        .join(F.broadcast(chosen.select("box")), on="box", how="left_semi")
    )
    order = Window.partitionBy("box").orderBy("offset")
    so_far = order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    holds = F.broadcast(allowed.withColumnRenamed("spot", "s").withColumnRenamed("since", "from"))
    inside = (F.col("spot") == F.col("s")) & (F.col("offset") >= F.col("from")) & (F.col("offset") < F.col("till"))
    return keep(
        own.unionByName(begin)
        .withColumn("depth", F.sum("change").over(so_far))
        .withColumn("next", F.lead("ts").over(order))
        .join(holds, on=inside, how="left")
        # Who was full was so by what was allowed then.
        .withColumn("cap", F.when(F.col("stands"), F.col("depth")).otherwise(F.coalesce("cap", F.lit(NEVER))))
        .select("box", "offset", "ts", "depth", "cap", "next")
    )


def full_hours(line: DataFrame) -> DataFrame:
    """(w, box, full): µs of each hour for which a mailbox was full; told with the move that ends it."""
    first, until = hour(F.col("ts")), F.least(F.col("next"), F.col("ts") + SPAN_MAX_US)
    last = F.greatest(first, hour(until - 1))
    spent = F.least(until, F.col("w") + HOUR_US) - F.greatest("ts", "w")
    return (
        line.where((F.col("depth") >= F.col("cap")) & (F.col("next") > F.col("ts")))
        .withColumn("w", F.explode(F.sequence(first, last, F.lit(HOUR_US).cast("bigint"))))
        .groupBy("w", "box")
        .agg(F.sum(spent).alias("full"))
    )


def standing(line: DataFrame) -> DataFrame:
    """(box, offset, ts) of the mailboxes that are full at the end, with the move since which."""
    last = F.max(F.struct("offset", "ts", "depth", "cap")).alias("l")
    return (
        line.groupBy("box")
        .agg(last)
        .where((F.col("l.depth") >= F.col("l.cap")) & F.col("l.ts").isNotNull())
        .select("box", "l.offset", "l.ts")
    )
