"""Lanes: what messages of one lane do to each other: numbers missing, order, waiting for those before.

In: message rows, steps, and the last number known of each lane. Out: findings by message, and until when a message
waited for others. A lane is small or in order: what is out of order is looked for only where something must be.
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from .told import DONE, ID, NEVER, PLACE, is_, spot_of

MESSAGE = (*ID, "generation")
BROADCAST_MAX = 2_000_000
"""Waits that are compared with all that was taken in memory."""
_LEVELS = (10, 16, 22, 40)
"""Offsets are compared inside of buckets of 2^n; a wait goes into the smallest that is longer than it."""


def entries(rows: DataFrame, steps: DataFrame, marks: DataFrame, numbers: DataFrame | None = None) -> DataFrame:
    """What each message is in its lane, where that says anything.

    A number is missing before it (``seq_before``), it was taken before a lower one had stopped waiting (``early``), or
    all before it had let go at an instant (``lane_until``, µs). A message has one place in its lane as its ``own``.
    Of other numbers under which it is told nothing more is known, and they held up nobody.

    Plain messages that waited have the stretch of it (``since``, ``until``, ``due``). ``marks`` are the highest number
    of each lane in earlier batches (box, lane, lane_seq, freed, offset), ``numbers`` those that only strays tell of.
    """
    stretch = (F.col("state") == DONE) & (F.coalesce("leased", "finished") > F.col("posted"))
    plain = rows.where("plain AND lane_seq > 0").select(
        *PLACE,
        "lane_seq",
        *MESSAGE,
        spot_of().alias("spot"),
        F.col("posted_offset").alias("offset"),
        "freed",
        F.coalesce(
            "lease_offset", F.when(F.col("outcome") == "delivered", F.col("finished_offset")), F.lit(NEVER)
        ).alias("taken"),
        F.coalesce("lease_offset", "finished_offset", F.lit(NEVER)).alias("waits"),
        F.when(stretch, F.col("posted")).alias("since"),
        F.when(stretch, F.coalesce("leased", "finished")).alias("until"),
        "due",
        F.lit(False).alias("mark"),
        "plain",
        F.lit(True).alias("own"),
    )
    waits = F.when(_waiting(), F.coalesce("next_said", F.lit(NEVER)))
    own = F.struct("track", "lane_seq") == F.col("place")
    let_go = F.when(F.col("counts"), F.col("let_go.clock"))
    none = F.lit(None).cast("bigint")
    other = (
        steps.where("said AND lane_seq > 0")
        .groupBy(*PLACE, "lane_seq", *MESSAGE, spot_of().alias("spot"))
        .agg(
            F.min("offset").alias("offset"),
            F.bool_or(own).alias("own"),
            F.max(let_go).alias("let_go"),
            F.min(F.when(is_("leased", "delivered"), F.col("offset"))).alias("taken"),
            F.max(waits).alias("waits"),
        )
        .select(
            *PLACE,
            "lane_seq",
            *MESSAGE,
            "spot",
            "offset",
            F.when(F.col("own"), F.coalesce("let_go", F.lit(NEVER))).otherwise(-1).alias("freed"),
            F.coalesce("taken", F.lit(NEVER)).alias("taken"),
            F.coalesce("waits", F.lit(-1)).alias("waits"),
            *(none.alias(name) for name in ("since", "until", "due")),
            F.lit(False).alias("mark"),
            F.lit(False).alias("plain"),
            "own",
        )
    )
    known = marks.select(
        *PLACE,
        "lane_seq",
        F.lit(0).cast("bigint").alias("key"),
        F.lit(0).cast("bigint").alias("twin"),
        F.lit(0).alias("generation"),
        F.lit(0).cast("bigint").alias("spot"),
        "offset",
        F.coalesce("freed", F.lit(-1)).alias("freed"),
        F.lit(NEVER).alias("taken"),
        F.lit(-1).cast("bigint").alias("waits"),
        *(none.alias(name) for name in ("since", "until", "due")),
        F.lit(True).alias("mark"),
        F.lit(False).alias("plain"),
        F.lit(False).alias("own"),
    )
    up = Window.partitionBy(*PLACE).orderBy("lane_seq", "offset")
    lower = up.rowsBetween(Window.unboundedPreceding, -1)
    all_of_it = plain.unionByName(other).unionByName(known)
    if numbers is not None:
        stray = numbers.select(
            *PLACE, "lane_seq", *MESSAGE, spot_of().alias("spot"), "offset", F.lit(-1).cast("bigint").alias("freed"),
            F.lit(NEVER).alias("taken"), F.lit(-1).cast("bigint").alias("waits"),
            *(none.alias(name) for name in ("since", "until", "due")), F.lit(False).alias("mark"),
            F.lit(False).alias("plain"), F.lit(False).alias("own"),
        )  # fmt: skip
        all_of_it = all_of_it.unionByName(stray)
    windowed = all_of_it.repartition("box").select(
        "*",
        F.lag("lane_seq", 1, 0).over(up).alias("seq_before"),
        F.max("freed").over(lower).alias("lane_until"),
        F.max("waits").over(lower).alias("waited_before"),
    )
    gap = F.col("lane_seq") > F.col("seq_before") + 1
    return (
        windowed.withColumn("early", F.coalesce(F.col("taken") < F.col("waited_before"), F.lit(False)))
        .where(~F.col("mark") & (gap | F.col("early") | ~F.col("plain") | F.col("since").isNotNull()))
        .select(
            *PLACE, "lane_seq", *MESSAGE, "spot", "offset", "since", "until", "due", "plain", "own", "seq_before",
            "lane_until", "early",
        )
    )  # fmt: skip


def _waiting() -> Column:
    """Whether a step begins a wait in which nobody may overtake."""
    return F.col("counts") & is_("posted", "retried", "released", "recalled") & F.col("exempt").isNull()


def overtaken(
    entries: DataFrame,
    rows: DataFrame,
    steps: DataFrame,
    more: DataFrame | None,
    keep: Callable[[DataFrame], DataFrame] | None = None,
) -> DataFrame:
    """(key, twin, generation, overtaken): the wait's begin and the first that overtook it.

    ``more`` are steps of messages that were finished before: (box, lane, lane_seq, taken). ``keep`` is
    called with what is little and made of much, where a batch is large.
    """
    # Whoever was taken before a lower one stopped waiting has overtaken it, or may have in a later wait.
    lanes = entries.where("early").select(*PLACE).distinct()
    if more is not None:
        lanes = lanes.unionByName(more.select(*PLACE)).distinct()
    lanes = F.broadcast(lanes)

    def there(frame: DataFrame) -> DataFrame:
        return frame.join(lanes, on=list(PLACE), how="left_semi")

    plain = there(rows.where("plain AND lane_seq > 0"))
    some = there(steps.where("said AND lane_seq > 0"))
    waits = plain.select(
        *PLACE, "lane_seq", *MESSAGE, F.col("posted_offset").alias("a"),
        F.coalesce("lease_offset", "finished_offset", F.lit(NEVER)).alias("b"),
    ).unionByName(
        some.where(_waiting()).select(
            *PLACE, "lane_seq", *MESSAGE, F.col("offset").alias("a"), F.coalesce("next_said", F.lit(NEVER)).alias("b")
        )
    )  # fmt: skip
    done = F.when(F.col("outcome") == "delivered", F.col("finished_offset"))
    taken = [
        plain.select(*PLACE, "lane_seq", F.explode(F.array_compact(F.array("lease_offset", done))).alias("taken")),
        some.where(is_("leased", "delivered")).select(*PLACE, "lane_seq", F.col("offset").alias("taken")),
    ]
    if more is not None:
        taken.append(there(more).select(*PLACE, "lane_seq", "taken"))
    takes = taken[0]
    for each in taken[1:]:
        takes = takes.unionByName(each)
    # Of these, waits in which a higher one was taken at all.
    first = takes.groupBy(*PLACE, "lane_seq").agg(F.min("taken").alias("lo"), F.max("taken").alias("hi"))
    down = Window.partitionBy(*PLACE).orderBy(F.desc("lane_seq")).rangeBetween(Window.unboundedPreceding, -1)
    numbers = waits.select(*PLACE, "lane_seq").unionByName(first.select(*PLACE, "lane_seq")).distinct()
    higher = numbers.join(first, on=[*PLACE, "lane_seq"], how="left").select(
        *PLACE, "lane_seq", F.min("lo").over(down).alias("lo"), F.max("hi").over(down).alias("hi")
    )
    length = F.least("b", "hi") - F.col("a")
    level = F.when(length < 1 << _LEVELS[0], _LEVELS[0])
    for bits in _LEVELS[1:-1]:
        level = level.when(length < 1 << bits, bits)
    bucketed = (
        waits.join(higher, on=[*PLACE, "lane_seq"], how="inner")
        .where((F.col("lo") < F.col("b")) & (F.col("hi") > F.col("a")))
        .withColumn("level", level.otherwise(_LEVELS[-1]))
        .withColumn("from", F.expr("shiftright(a, level)"))
        .withColumn("to", F.expr("shiftright(least(b, hi), level)"))
        .withColumn("bucket", F.explode(F.sequence("from", F.greatest("from", "to"))))
        .select(*PLACE, F.col("lane_seq").alias("seq"), *MESSAGE, "a", "b", "level", "bucket")
    )
    if keep is not None:
        bucketed = keep(bucketed)
        if bucketed.count() <= BROADCAST_MAX:
            bucketed = F.broadcast(bucketed)
    spread = takes.withColumn("level", F.explode(F.array(*map(F.lit, _LEVELS)))).withColumn(
        "bucket", F.expr("shiftright(taken, level)")
    )
    inside = (F.col("lane_seq") > F.col("seq")) & (F.col("taken") > F.col("a")) & (F.col("taken") < F.col("b"))
    return (
        bucketed.join(spread, on=[*PLACE, "level", "bucket"], how="inner")
        .where(inside)
        .groupBy(*MESSAGE)
        .agg(F.min(F.struct("taken", "a")).alias("e"))
        .select(*MESSAGE, F.array("e.a", "e.taken").alias("overtaken"))
    )
