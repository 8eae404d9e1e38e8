"""Context: when a mailbox was online, and when it or one of its lanes was paused.

In: connected, disconnected, started, paused and resumed events. Out: timelines as arrays of breakpoints with the
time spent paused and offline up to each, so that any stretch is a difference of two; and connections as rows.
It never looks at messages.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

BOX = ("node", "desk", "mailbox")
CONTEXT_EVENTS = ("connected", "disconnected", "started", "paused", "resumed")
POINT = "struct<at:bigint,paused:boolean,offline:boolean,paused_us:bigint,offline_us:bigint>"


def connections(context: DataFrame) -> DataFrame:
    """One row a connection: (node, desk, mailbox, holder, since, until, first, last, ending, followed, seen).

    A new `connected` of the mailbox ends the one before, `started` ends all of its node; ``until`` is null while it
    lasts. ``seen`` says that its end was known in an earlier batch.
    """
    is_line = F.col("role").isNull() | (F.col("role") == "context")
    own = context.where(F.col("event").isin("connected", "disconnected") & is_line).select(
        *BOX, "offset", F.unix_micros("at").alias("at"), "event", "holder", "reason", "role"
    )
    boxes = own.select(*BOX).distinct()
    starts = (
        context.where((F.col("event") == "started") & is_line)
        .select("node", "offset", F.unix_micros("at").alias("at"), "event", "role")
        .join(boxes, on="node", how="inner")
        .select(*BOX, "offset", "at", "event", F.lit(None).alias("holder"), F.lit(None).alias("reason"), "role")
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
    following = F.lead(F.struct("at", "offset", "event", "reason", "role")).over(order)
    return (
        lines.where(~other)
        .withColumn("next", following)
        .where(connects)
        .select(
            *BOX,
            "holder",
            F.col("at").alias("since"),
            F.when(F.col("next").isNotNull(), F.greatest(F.col("next.at"), F.col("at"))).alias("until"),
            F.col("offset").alias("first"),
            F.when(F.col("next").isNotNull(), F.col("next.offset")).alias("last"),
            F.when(F.col("next.event") == "disconnected", F.coalesce("next.reason", F.lit("closed")))
            .when(F.col("next.event") == "connected", F.lit("replaced"))
            .when(F.col("next.event") == "started", F.lit("restart"))
            .alias("ending"),
            F.coalesce(F.col("next.event") == "connected", F.lit(False)).alias("followed"),
            F.coalesce(F.col("next.role") == "context", F.lit(False)).alias("seen"),
        )
    )


def timelines(context: DataFrame, places: DataFrame) -> DataFrame:
    """(node, desk, mailbox, lane, points): a lane of its own only where it was paused alone, '' for the others.

    ``places`` are the (node, desk, mailbox) for which timelines are wanted.
    """
    links = connections(context)
    ups = links.select(*BOX, F.col("first").alias("offset"), F.col("since").alias("at"), F.lit(True).alias("online"))
    # Where a newer connection took its place the mailbox stays online.
    downs = links.where(F.col("last").isNotNull() & ~F.col("followed")).select(
        *BOX, F.col("last").alias("offset"), F.col("until").alias("at"), F.lit(False).alias("online")
    )
    # From the desk's first connection on, a mailbox without one is offline.
    opening = (
        context.where((F.col("event") == "connected") | (F.col("role") == "opening"))
        .groupBy("node", "desk")
        .agg(F.min(F.struct("offset", F.unix_micros("at").alias("at"))).alias("first"))
        .join(places, on=["node", "desk"], how="inner")
        .select(*BOX, (F.col("first.offset") - 1).alias("offset"), "first.at", F.lit(False).alias("online"))
    )
    switches = context.where(F.col("event").isin("paused", "resumed")).select(
        *BOX, "lane", "offset", F.unix_micros("at").alias("at"), (F.col("event") == "paused").alias("stopped")
    )
    none = F.lit(None).cast("boolean")
    shared = (
        ups.unionByName(downs)
        .unionByName(opening)
        .select(*BOX, "offset", "at", "online", none.alias("stopped"))
        .unionByName(switches.where(F.col("lane") == "").select(*BOX, "offset", "at", none.alias("online"), "stopped"))
    )
    alone = switches.where(F.col("lane") != "")
    lanes = places.select(*BOX, F.lit("").alias("lane")).unionByName(alone.select(*BOX, "lane").distinct())
    lines = lanes.join(shared, on=list(BOX), how="inner").select(
        *BOX, "lane", "offset", "at", "online", "stopped", none.alias("lane_stopped")
    )
    lines = lines.unionByName(
        alone.select(
            *BOX, "lane", "offset", "at", none.alias("online"), none.alias("stopped"),
            F.col("stopped").alias("lane_stopped"),
        )
    )  # fmt: skip
    order = Window.partitionBy(*BOX, "lane").orderBy("offset", "at")
    so_far = order.rowsBetween(Window.unboundedPreceding, Window.currentRow)

    def held(name: str) -> Column:
        return F.last(name, ignorenulls=True).over(so_far)

    states = lines.select(
        *BOX,
        "lane",
        "offset",
        F.max("at").over(so_far).alias("at"),
        (F.coalesce(held("stopped"), F.lit(False)) | F.coalesce(held("lane_stopped"), F.lit(False))).alias("paused"),
        (~F.coalesce(held("online"), F.lit(True))).alias("down"),
    )
    lasted = F.coalesce(F.col("at") - F.lag("at").over(order), F.lit(0))
    was_paused = F.coalesce(F.lag("paused").over(order), F.lit(False))
    was_down = F.coalesce(F.lag("down").over(order), F.lit(False))
    summed = (
        states.withColumn("dp", F.when(was_paused, lasted).otherwise(0))
        .withColumn("do", F.when(was_down & ~was_paused, lasted).otherwise(0))
        .withColumn("paused_us", F.sum("dp").over(so_far))
        .withColumn("offline_us", F.sum("do").over(so_far))
        .withColumn("n", F.row_number().over(order))
    )
    point = F.struct(
        "n",
        "at",
        "paused",
        (F.col("down") & ~F.col("paused")).alias("offline"),
        "paused_us",
        "offline_us",
    )
    return (
        summed.groupBy(*BOX, "lane")
        .agg(F.sort_array(F.collect_list(point)).alias("points"))
        .select(
            *BOX,
            "lane",
            F.transform(
                "points",
                lambda p: F.struct(
                    *(p[name].alias(name) for name in ("at", "paused", "offline", "paused_us", "offline_us"))
                ),
            ).alias("points"),
        )
    )


def spent(points: Column, at: Column) -> Column:
    """struct<paused, offline>: µs that a timeline spent in each up to an instant."""
    zero = F.lit(0).cast("bigint")

    def up_to(p: Column) -> Column:
        return F.struct(
            (p["paused_us"] + F.when(p["paused"], at - p["at"]).otherwise(zero)).alias("paused"),
            (p["offline_us"] + F.when(p["offline"], at - p["at"]).otherwise(zero)).alias("offline"),
        )

    last = F.slice(F.reverse(F.filter(points, lambda p: p["at"] <= at)), 1, 1)
    nothing = F.struct(zero.alias("paused"), zero.alias("offline"))
    return F.coalesce(F.get(F.transform(last, up_to), F.lit(0)), nothing)
