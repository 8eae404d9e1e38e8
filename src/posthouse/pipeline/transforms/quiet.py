"""Quiet: until when a message waited for its lane to be quiet, on desks that wait for that.

In: message rows, what desks ask for, and the posts that batches before knew. Out: an instant by message, and the posts
that the next batch needs. From its post on a message waits until so long no other was posted behind it, and no longer
than its desk allows; what comes after its first lease is no such wait. A post goes by what its desk asked for then.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from .lane import MESSAGE
from .told import LANE, PLACE, above, box_of, track_of

ASKED_DDL = "node string, desk string, quiet_us bigint, quiet_max_us bigint, since bigint, till bigint"
"""What a desk of a node asks for, from one offset up to another."""
ROLE = "post"
"""The role of such posts in the open set."""
_POST = (*PLACE, *LANE, "lane_seq", "offset", "posted", "quiet_us", "quiet_max_us")


def posts(rows: DataFrame, asked: DataFrame, edges: DataFrame | None, carried: DataFrame | None) -> DataFrame:
    """The posts of lanes that are waited for: those above the ``edges``, and those that are ``carried``."""
    by = F.broadcast(asked.withColumnRenamed("node", "n").withColumnRenamed("desk", "d"))
    own = above(rows.where("lane_seq > 0 AND posted_offset IS NOT NULL"), edges).where("posted_offset > edge")
    since, at = F.col("since"), F.col("posted_offset")
    inside = (F.col("node") == F.col("n")) & (F.col("desk") == F.col("d")) & (at >= since) & (at < F.col("till"))
    new = own.withColumn("offset", at).select(*_POST[:-2], "posted_offset").join(by, on=inside, how="inner")
    if carried is None:
        return new.select(*_POST)
    known = carried.where(F.col("role") == ROLE).select(
        box_of().alias("box"), track_of().alias("track"), *LANE, "lane_seq", "offset",
        F.unix_micros("at").alias("posted"), F.col("commit").alias("quiet_us"),
        F.col("size_bytes").alias("quiet_max_us"),
    )  # fmt: skip
    return new.select(*_POST).unionByName(known)


def until(rows: DataFrame, posted: DataFrame) -> DataFrame:
    """(key, twin, generation, quiet_until) of the messages whose ``posts`` are given."""
    up = Window.partitionBy(*PLACE).orderBy("lane_seq", "offset")
    following = F.lead("posted").over(up)
    ends_run = following.isNull() | (following - F.col("posted") > F.col("quiet_us"))
    on = up.rowsBetween(Window.currentRow, Window.unboundedFollowing)
    end = F.least(F.col("run_end") + F.col("quiet_us"), F.col("posted") + F.col("quiet_max_us"))
    ends = (
        posted.withColumn("last", F.when(ends_run, F.col("posted")))
        .withColumn("run_end", F.first("last", ignorenulls=True).over(on))
        .select(*PLACE, "lane_seq", "offset", end.alias("quiet_until"))
    )
    own = rows.select(*PLACE, "lane_seq", F.col("posted_offset").alias("offset"), *MESSAGE)
    return own.join(ends, on=[*PLACE, "lane_seq", "offset"], how="inner").select(*MESSAGE, "quiet_until")


def needed(posted: DataFrame, unfinished: DataFrame) -> DataFrame:
    """Of the posts, those that come behind an unfinished one in its lane, and that one's own."""
    lanes = unfinished.where("lane_seq > 0").groupBy(*PLACE).agg(F.min("lane_seq").alias("low"))
    return posted.join(F.broadcast(lanes), on=list(PLACE), how="inner").where("lane_seq >= low").drop("low")
