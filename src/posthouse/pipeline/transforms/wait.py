"""Waits: what each instant went to in which a message waited for a lease.

In: stretches of waiting, the instants at which mailboxes change, and what bounds a wait. Out: µs by cause and message.
Each cause is a sum of values at the stretch's instants, of the time that its mailbox had been paused and offline until
then; so all stretches of a mailbox and its changes are put in one order and gone through once.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from .lane import MESSAGE
from .step import clipped
from .told import PLACE, READY, is_, spot_of

CAUSES = ("paused", "offline", "backoff", "quiet", "lane", "idle")
"""What a waiting message waited for; in flight and set aside are told by its own events."""
_INSTANT = "struct<t:bigint,whole:int,backoff:int,quiet:int,lane:int,idle:int>"


def stretches(rows: DataFrame, steps: DataFrame, entries: DataFrame) -> DataFrame:
    """(box, track, spot, key, twin, generation, since, until, due, lane_until, first, last) of closed messages.

    ``first`` says whether it begins with the post.
    """
    of = (*PLACE, "spot", *MESSAGE, "since", "until", "due", "lane_until", "first")
    in_lane = entries.where(F.col("plain") & F.col("since").isNotNull()).withColumn("first", F.lit(True)).select(*of)
    none = F.lit(None).cast("bigint")
    loose = (
        rows.where("plain AND lane_seq <= 0 AND state = 3")
        .withColumn("since", F.col("posted"))
        .withColumn("until", F.coalesce("leased", "finished"))
        .withColumn("lane_until", none)
        .withColumn("spot", spot_of())
        .withColumn("first", F.lit(True))
        .select(*of)
    )
    before = entries.where("NOT plain AND own").groupBy(*MESSAGE).agg(F.max("lane_until").alias("lane_until"))
    other = (
        steps.where(F.col("closed") & (F.col("state") == READY) & F.col("until").isNotNull())
        .withColumn("since", clipped(F.col("clock")))
        .withColumn("until", clipped(F.col("until")))
        .join(before, on=list(MESSAGE), how="left")
        .withColumn("spot", spot_of())
        .withColumn("first", is_("posted"))
        .select(*of, F.col("next_offset").alias("last"))
    )
    return in_lane.unionByName(loose).unionByName(other, allowMissingColumns=True).where("until > since")


def spent(stretches: DataFrame, changes: DataFrame, opened: DataFrame) -> DataFrame:
    """(key, twin, generation, wait_…): what the stretches of each message went to.

    Stretches have lane_until and quiet_until besides; ``changes`` and ``opened`` come of ``context``.
    """
    alone = F.broadcast(changes.where("place <> 0").select("box", "place").distinct())
    placed = stretches.join(
        alone, on=[stretches["box"] == alone["box"], stretches["track"] == alone["place"]], how="left"
    )
    asked = placed.select(
        stretches["box"],
        "spot",
        F.coalesce("place", F.lit(0)).alias("place"),
        *MESSAGE,
        F.explode(_instants()).alias("i"),
    ).select(
        "box", "spot", "place", *MESSAGE, F.col("i.t").alias("t"), F.lit(0).alias("online"),
        F.lit(0).alias("paused"), *(F.col(f"i.{name}").alias(f"c_{name}") for name in ("whole", *CAUSES[2:])),
    )  # fmt: skip
    line = (
        asked.unionByName(changes, allowMissingColumns=True)
        .join(F.broadcast(opened), on="spot", how="left")
        .repartition("box")
    )
    order = Window.partitionBy("box", "place").orderBy("t")
    so_far = order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    before = order.rowsBetween(Window.unboundedPreceding, -1)
    standing = line.select(
        "*",
        (F.sum("paused").over(so_far) > 0).alias("is_paused"),
        (F.sum("online").over(so_far) <= 0).alias("is_off"),
        F.lead("t").over(order).alias("next"),
    )
    zero = F.lit(0).cast("bigint")
    lasting = F.coalesce(F.col("next") - F.col("t"), zero)
    off = F.greatest(F.col("next") - F.greatest("t", "opened"), zero)
    counted = standing.withColumn("d_paused", F.when(F.col("is_paused"), lasting).otherwise(zero)).withColumn(
        "d_off",
        F.when(F.col("is_off") & ~F.col("is_paused") & F.col("opened").isNotNull() & F.col("next").isNotNull(), off)
        .otherwise(zero),
    )  # fmt: skip
    valued = counted.select(
        "box", "place", *MESSAGE, "t", *(f"c_{name}" for name in ("whole", *CAUSES[2:])),
        F.coalesce(F.sum("d_paused").over(before), zero).alias("p"),
        F.coalesce(F.sum("d_off").over(before), zero).alias("o"),
    ).where(F.col("key").isNotNull())  # fmt: skip
    free = F.col("t") - F.col("p") - F.col("o")
    return (
        valued.groupBy("box", "place", *MESSAGE)
        .agg(
            F.sum(F.col("c_whole") * F.col("p")).alias("wait_paused"),
            F.sum(F.col("c_whole") * F.col("o")).alias("wait_offline"),
            *(F.sum(F.col(f"c_{name}") * free).alias(f"wait_{name}") for name in CAUSES[2:]),
        )
        .select(*MESSAGE, *(F.col(f"wait_{name}").cast("bigint").alias(f"wait_{name}") for name in CAUSES))
    )


def _instants() -> Column:
    """The instants that divide a stretch, each with the share that its value has in every cause."""
    begin, end = F.col("since"), F.col("until")
    due = F.greatest(begin, F.least(F.coalesce("due", begin), end))
    quiet = F.greatest(due, F.least(F.coalesce("quiet_until", due), end))
    lane = F.greatest(quiet, F.least(F.coalesce("lane_until", quiet), end))

    def at(t: Column, **shares: int) -> Column:
        return F.struct(
            t.alias("t"), *(F.lit(shares.get(name, 0)).alias(name) for name in ("whole", *CAUSES[2:]))
        )  # fmt: skip

    free = F.array(at(begin, whole=-1, idle=-1), at(end, whole=1, idle=1))
    divided = F.array(
        at(begin, whole=-1, backoff=-1),
        at(due, backoff=1, quiet=-1),
        at(quiet, quiet=1, lane=-1),
        at(lane, lane=1, idle=-1),
        at(end, whole=1, idle=1),
    )
    return F.when(lane > begin, divided).otherwise(free)
