"""Context: when a mailbox was online, and when it or one of its lanes was paused.

In: connected, disconnected, started, paused and resumed events. Out: connections as rows, and the instants at which a
mailbox's standing changes. It never looks at messages.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from .told import BOX, box_of, spot_of, track_of

CONTEXT_EVENTS = ("connected", "disconnected", "started", "paused", "resumed")


def connections(context: DataFrame) -> DataFrame:
    """One row a connection: (node, desk, mailbox, holder, since, until, first, last, ending).

    A new `connected` of the mailbox ends the one before, `started` ends all of its node; ``until`` is null while it
    lasts, and may lie before ``since`` where the clock went back.
    """
    line = ("offset", F.unix_micros("at").alias("at"), "event")
    own = context.where(F.col("event").isin("connected", "disconnected")).select(*BOX, *line, "holder", "reason")
    boxes = own.select(*BOX).distinct()
    none = F.lit(None).cast("string")
    starts = (
        context.where(F.col("event") == "started")
        .select("node", *line)
        .join(boxes, on="node", how="inner")
        .select(*BOX, "offset", "at", "event", none.alias("holder"), none.alias("reason"))
    )
    order = Window.partitionBy(*BOX).orderBy("offset")
    back = order.rowsBetween(Window.unboundedPreceding, -1)
    connects = F.col("event") == "connected"
    lines = own.unionByName(starts).withColumn(
        "held", F.last(F.when(connects, F.struct("holder")), ignorenulls=True).over(back)
    )
    # The end of a connection that was replaced comes after the new one's begin: it is not the new one's end.
    other = (
        (F.col("event") == "disconnected")
        & F.col("held").isNotNull()
        & ~F.col("held.holder").eqNullSafe(F.col("holder"))
    )
    following = F.lead(F.struct("at", "offset", "event", "reason")).over(order)
    return (
        lines.where(~other)
        .withColumn("next", following)
        .where(connects)
        .select(
            *BOX,
            "holder",
            F.col("at").alias("since"),
            F.col("next.at").alias("until"),
            F.col("offset").alias("first"),
            F.col("next.offset").alias("last"),
            F.when(F.col("next.event") == "disconnected", F.coalesce("next.reason", F.lit("closed")))
            .when(F.col("next.event") == "connected", F.lit("replaced"))
            .when(F.col("next.event") == "started", F.lit("restart"))
            .alias("ending"),
        )
    )


def pauses(context: DataFrame) -> DataFrame:
    """One row a pause: (node, desk, mailbox, lane, since, until, first, last); ``until`` is null while it lasts."""
    order = Window.partitionBy(*BOX, "lane").orderBy("offset").rowsBetween(1, Window.unboundedFollowing)
    resumes = F.when(F.col("event") == "resumed", F.struct("offset", F.unix_micros("at").alias("at")))
    return (
        context.where(F.col("event").isin("paused", "resumed"))
        .withColumn("end", F.first(resumes, ignorenulls=True).over(order))
        .where(F.col("event") == "paused")
        .select(
            *BOX,
            "lane",
            F.unix_micros("at").alias("since"),
            F.col("end.at").alias("until"),
            F.col("offset").alias("first"),
            F.col("end.offset").alias("last"),
        )
    )


def openings(context: DataFrame, known: DataFrame | None) -> DataFrame:
    """(node, desk, offset, at): each desk's first connection; from there on a mailbox without one is offline.

    ``known`` are those of earlier batches.
    """
    lines = context.where(F.col("event") == "connected").select("node", "desk", "offset", "at")
    if known is not None:
        lines = lines.unionByName(known.select("node", "desk", "offset", "at"))
    return (
        lines.groupBy("node", "desk")
        .agg(F.min(F.struct("offset", "at")).alias("first"))
        .select("node", "desk", "first.offset", "first.at")
    )


def changes(links: DataFrame, stops: DataFrame) -> DataFrame:
    """(box, spot, place, t, online, paused): what an instant adds to the connections and pauses that stand.

    ``place`` is the number of a lane where that was paused by itself, and 0 elsewhere; all that concerns its mailbox
    is there too.
    """
    alone = stops.where(F.col("lane") != "").select(*BOX, track_of().alias("place")).distinct()
    zero = F.lit(0)

    def edges(frame: DataFrame, name: str) -> DataFrame:
        # An interval that ends before it begins is none.
        real = frame.where(F.col("until").isNull() | (F.col("until") > F.col("since")))
        edge = F.array_compact(
            F.array(
                F.struct(F.col("since").alias("t"), F.lit(1).alias("d")),
                F.when(F.col("until").isNotNull(), F.struct(F.col("until").alias("t"), F.lit(-1).alias("d"))),
            )
        )
        return real.withColumn("e", F.explode(edge)).withColumn("t", F.col("e.t")).withColumn(name, F.col("e.d"))

    shared = (
        edges(links, "online")
        .select(*BOX, "t", "online", zero.alias("paused"))
        .unionByName(
            edges(stops.where(F.col("lane") == ""), "paused").select(*BOX, "t", zero.alias("online"), "paused")
        )
    )
    everywhere = shared.withColumn("place", F.lit(0).cast("bigint")).unionByName(
        shared.join(alone, on=list(BOX), how="inner")
    )
    own = edges(stops.where(F.col("lane") != ""), "paused").select(
        *BOX, "t", zero.alias("online"), "paused", track_of().alias("place")
    )
    return everywhere.unionByName(own).select(
        box_of().alias("box"), spot_of().alias("spot"), "place", "t", "online", "paused"
    )
