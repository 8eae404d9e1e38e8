"""Lanes: what messages of one lane do to each other: numbers missing, order, waiting for those before.

In: folded messages and the last one known of each lane. Out: the same messages with what their lane adds.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from .life import FLIGHT, KEY, READY

LANE = ("node", "desk", "mailbox", "lane")
NEVER = 2**62
"""An instant after all others: when a message that is still in its lane leaves it."""
_BUCKET = 1 << 18
"""Offsets that are compared with each other at one time when looking for overtakers."""


def with_lane(lives: DataFrame, ends: DataFrame, quiet: DataFrame) -> DataFrame:
    """Messages with seq_before, lane_until (µs), quiet_until (µs) and overtaken (offsets or null).

    ``ends`` holds the highest number of each lane in earlier batches (lane_seq, offset), ``quiet`` the
    (node, desk, quiet_us, quiet_max_us) of desks that wait for quiet.
    """
    named = F.col("lane_seq") > 0
    rows = lives.join(F.broadcast(quiet), on=["node", "desk"], how="left")
    marks = ends.select(
        *LANE,
        F.col("lane_seq").alias("lane_seq"),
        F.col("offset").alias("first_offset"),
        F.lit(True).alias("mark"),
    )
    both = rows.withColumn("mark", F.lit(False)).unionByName(marks, allowMissingColumns=True)
    up = Window.partitionBy(*LANE).orderBy("lane_seq", "first_offset")
    earlier = up.rowsBetween(Window.unboundedPreceding, -1)
    down = Window.partitionBy(*LANE).orderBy(F.desc("lane_seq"), F.desc("first_offset"))
    higher = down.rowsBetween(Window.unboundedPreceding, -1)
    so_far = down.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    following = F.lead("posted").over(up)
    ends_run = following.isNull() | (following - F.col("posted") > F.col("quiet_us"))
    holds = F.when(~F.col("mark") & named, F.coalesce("freed", F.lit(NEVER)))
    return (
        both.withColumn("seq_before", F.coalesce(F.lag("lane_seq").over(up), F.lit(0)))
        .withColumn("lane_until", F.max(holds).over(earlier))
        .withColumn("run_end", F.when(ends_run, F.col("posted")))
        .withColumn("overtaker", F.min(F.when(named, F.col("taken_offset"))).over(higher))
        .withColumn("run_end", F.last("run_end", ignorenulls=True).over(so_far))
        .where(~F.col("mark"))
        .withColumn(
            "quiet_until",
            F.least(F.col("run_end") + F.col("quiet_us"), F.col("posted") + F.col("quiet_max_us")),
        )
        .withColumn("overtaken", _first_wait())
        .drop("mark", "run_end", "overtaker", "quiet_us", "quiet_max_us")
    )


def _first_wait() -> Column:
    """Evidence that a message was overtaken before it was first leased. All that follow it were posted later."""
    first = F.coalesce(F.get("spans", F.lit(0)), F.col("open"))
    in_it = (F.col("overtaker") > first["first"]) & (F.col("overtaker") < F.coalesce(first["last"], F.lit(NEVER)))
    return F.when(
        (F.col("lane_seq") > 0) & (first["state"] == READY) & in_it, F.array(first["first"], F.col("overtaker"))
    )


def overtaken_later(rows: DataFrame) -> DataFrame:
    """(key, generation, later): evidence for messages that were overtaken after they came back to their lane."""
    all_spans = F.when(F.col("open").isNotNull(), F.concat("spans", F.array("open"))).otherwise(F.col("spans"))
    returned = F.filter(
        all_spans,
        lambda s, i: (
            (s["state"] == READY)
            & (i > 0)
            # What was parked, uncertain or dead is exempt from there on.
            & (s["first"] < F.coalesce(F.col("exempt_offset"), F.lit(NEVER)))
        ),
    )
    waits = (
        rows.where((F.col("lane_seq") > 0) & (F.size(returned) > 0))
        .select(*KEY, "generation", "lane", "lane_seq", "horizon", F.explode(returned).alias("s"))
        .select(
            *KEY,
            "generation",
            "lane",
            F.col("lane_seq").alias("seq"),
            F.col("s.first").alias("a"),
            F.coalesce(F.col("s.last"), F.col("horizon") + 1).alias("b"),
        )
        .withColumn(
            "bucket",
            F.explode(F.sequence(F.floor(F.col("a") / _BUCKET), F.floor(F.greatest("a", "b") / _BUCKET))),
        )
    )
    taken = F.concat(
        F.transform(F.filter(all_spans, lambda s: s["state"] == FLIGHT), lambda s: s["first"]),
        F.when(F.col("outcome") == "delivered", F.array("finished_offset")).otherwise(F.array().cast("array<bigint>")),
    )
    leases = (
        rows.where(F.col("lane_seq") > 0)
        .select(*LANE, F.col("lane_seq").alias("taken_seq"), F.explode(taken).alias("taken"))
        .withColumn("bucket", F.floor(F.col("taken") / _BUCKET))
    )
    overtakes = (F.col("taken_seq") > F.col("seq")) & (F.col("taken") > F.col("a")) & (F.col("taken") < F.col("b"))
    return (
        waits.join(leases, on=[*LANE, "bucket"], how="inner")
        .where(overtakes)
        .groupBy(*KEY, "generation")
        .agg(F.min(F.struct("taken", "a")).alias("e"))
        .select(*KEY, "generation", F.array("e.a", "e.taken").alias("later"))
    )
