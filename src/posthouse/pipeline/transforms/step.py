"""Steps: the lives that are not plain, event by event.

In: all told events of such messages, each with the number of generations before it that are not among them
(``base``). Out: the same events, each with what it did to its message, and one row a message and generation made of
them. The definitions of lives, generations and outcomes stand here; ``life`` has a shorter way for what needs none of
this.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from .life import ROW
from .told import CODE, DONE, ENDS, FLIES, FLIGHT, ID, KEY, NEVER, ends, is_, limits, outcome_of, state_of

_LATER = (1, Window.unboundedFollowing)
_SO_FAR = (Window.unboundedPreceding, Window.currentRow)
_BEFORE = (Window.unboundedPreceding, -1)
_ALL = (Window.unboundedPreceding, Window.unboundedFollowing)


def steps(told: DataFrame) -> DataFrame:
    """Each event with its generation and life, whether it counts, and what came before and after it.

    Nothing counts after the end of a life but its redrive. ``clock`` is the message's time, which never runs back;
    ``until`` the clock at the next event that counts; ``lease_end`` what ended a lease, ``lease_got`` its arrival.
    ``place`` is the lane and the number of a message: those that are said first. Should it be told under others too,
    their posts are lost. ``let_go`` is its clock when it first left its lane.
    """
    whole = Window.partitionBy(*ID).orderBy("offset").rowsBetween(*_SO_FAR)
    posts = F.count(F.when(is_("posted"), 1)).over(whole)
    said = F.col("code") <= ENDS
    # What was said before a post is not of that message: its own post was never told.
    strange = F.coalesce(~F.first(F.when(said, is_("posted")), ignorenulls=True).over(whole), F.lit(False))
    count = F.greatest(F.lit(1), posts + strange.cast("int"))
    numbered = told.withColumn("generation", (count + F.col("base")).cast("int"))
    mine = Window.partitionBy(*ID, "generation").orderBy("offset")
    so_far = mine.rowsBetween(*_SO_FAR)
    lived = numbered.withColumn("life", (F.count(F.when(is_("redriven"), 1)).over(so_far) + 1).cast("int"))
    before = Window.partitionBy(*ID, "generation", "life").orderBy("offset").rowsBetween(*_BEFORE)
    exempts = is_("parked", "uncertain", "died", "redriven")
    placed = lived.select(
        "*",
        said.alias("said"),
        F.min(F.when(ends(), F.col("offset"))).over(before).alias("end_before"),
        F.first(F.when(ends(), F.col("code")), ignorenulls=True).over(before).alias("end_code"),
        F.max(F.when(is_("delivered"), F.col("offset"))).over(before).alias("delivered_before"),
        F.last(F.when(limits(), F.struct("expires")), ignorenulls=True).over(so_far)["expires"].alias("expires_now"),
        F.max(F.when(exempts, 1)).over(so_far).alias("exempt"),
        F.max(F.when(is_("posted"), F.col("ts"))).over(mine.rowsBetween(*_ALL)).alias("posted"),
        F.max(F.when(is_("posted"), F.col("offset"))).over(mine.rowsBetween(*_ALL)).alias("post"),
        F.first(F.when(said, F.struct("track", "lane_seq")), ignorenulls=True)
        .over(mine.rowsBetween(*_ALL))
        .alias("place"),
    ).withColumn("counts", F.col("said") & F.col("end_before").isNull())
    # Among what is said, and among what counts: each sort of rows is a window of its own.
    by_said = Window.partitionBy(*ID, "generation", "said").orderBy("offset")
    by_count = Window.partitionBy(*ID, "generation", "counts").orderBy("offset")
    later = by_count.rowsBetween(*_LATER)
    arrives = is_("received")
    told_of = F.struct("offset", "ts", "code", "reason", "error")
    counted = placed.withColumn("next_said", F.lead("offset").over(by_said)).select(
        "*",
        state_of(F.col("code")).alias("state"),
        F.max("ts").over(by_count.rowsBetween(*_SO_FAR)).alias("clock"),
        F.lead("code").over(by_count).alias("next_code"),
        F.lead("offset").over(by_count).alias("next_offset"),
        F.lag(F.struct("code", "offset")).over(by_count).alias("step_before"),
        F.first(F.when(~arrives, told_of), ignorenulls=True).over(later).alias("lease_end"),
        F.first(F.when(arrives, F.struct("offset", "ts")), ignorenulls=True).over(later).alias("lease_got"),
        F.first(F.when(ends(), F.struct("life", "code", "offset")), ignorenulls=True).over(later).alias("next_end"),
        F.last(F.struct("code", "ts", "offset")).over(by_count.rowsBetween(*_ALL)).alias("last"),
    )
    finished = F.when(state_of(F.col("last.code")) == DONE, F.col("last.ts"))
    frees = F.when(F.col("code") > FLIES, F.struct("offset", "clock"))
    return (
        counted.withColumn("until", F.lead("clock").over(by_count))
        .withColumn("let_go", F.min(frees).over(by_count.rowsBetween(*_ALL)))
        .withColumn("closed", F.col("counts") & finished.isNotNull() & F.col("posted").isNotNull())
        .withColumn("cap", F.when(F.col("closed"), F.greatest("posted", finished)))
        .withColumn("change", F.when(F.col("counts"), _inside("code", "offset") - _inside("step_before")))
        .drop("last", "step_before")
    )


def _inside(step: str, offset: str | None = None) -> Column:
    """1 if a message is in the depth of its mailbox after a step, 0 otherwise: from its post on, in wait or flight."""
    code, place = (F.col(step), F.col(offset)) if offset else (F.col(f"{step}.code"), F.col(f"{step}.offset"))
    return F.coalesce(((code <= FLIES) & (place >= F.col("post"))).cast("int"), F.lit(0))


def clipped(instant: Column) -> Column:
    """An instant of a closed message, not before its post and not past its end."""
    return F.greatest(F.col("posted"), F.least(instant, F.col("cap")))


def rows(steps: DataFrame) -> DataFrame:
    """One row a message and generation of which anything was said but that it was refused or a duplicate."""
    said, counts, leases = F.col("said"), F.col("counts"), is_("leased") & F.col("counts")
    of = F.struct("offset", "ts", *KEY, "lane", "track", "kind", "size_bytes", "cause_id", "commit")
    given_back = F.col("lease_end.code").isin(CODE["released"], CODE["recalled"])
    delivers = leases & (F.col("lease_end.code") == CODE["delivered"])
    length = F.when(counts & F.col("closed"), clipped(F.col("until")) - clipped(F.col("clock")))
    made = (
        steps.groupBy(*ID, "box", "generation")
        .agg(
            F.min(of).alias("first"),
            F.min(F.when(is_("posted"), of)).alias("post"),
            F.min(F.when(is_("leased"), F.struct("offset", "ts"))).alias("lease"),
            F.min(F.when(is_("received"), F.struct("offset", "ts"))).alias("got"),
            F.max(F.when(counts, F.struct("offset", "ts", "code", "reason"))).alias("last"),
            F.max(F.when(said, F.struct("offset", "code", "reason"))).alias("last_said"),
            F.max(F.when(limits(), F.struct("offset", "expires"))).alias("lasts"),
            F.max(F.when(counts & F.col("error").isNotNull(), F.struct("offset", "error"))).alias("fault"),
            F.sum((leases & F.coalesce(~given_back, F.lit(True))).cast("int")).alias("attempts"),
            F.max("life").alias("lives"),
            F.max(F.when(delivers, F.struct("lease_end.offset", "commit"))).alias("delivering"),
            # The first of the last life that has one.
            F.max(F.when(is_("delivered"), F.struct("life", (-F.col("offset")).alias("back")))).alias("gave"),
            F.min(
                F.when(
                    delivers & (F.col("ts") >= F.col("expires_now")),
                    F.struct("offset", F.col("lease_end.offset").alias("by"), F.col("lease_end.ts").alias("then")),
                )
            ).alias("late"),
            F.min("offset").alias("first_offset"),
            F.max("offset").alias("last_offset"),
            F.max("place.lane_seq").alias("lane_seq"),
            F.sum(is_("duplicate").cast("int")).alias("duplicates"),
            F.max(F.when(counts, F.col("let_go"))).alias("free"),
            F.sum(F.when(F.col("state") == FLIGHT, length)).alias("flight"),
            F.sum(F.when(F.col("state") > FLIGHT, length)).alias("aside"),
        )
        .where(F.col("last").isNotNull())
        .withColumn("of", F.coalesce("post", "first"))
        .withColumn("outcome", outcome_of(F.col("last.code")))
    )
    over = F.col("outcome").isNotNull()
    columns = {
        **{name: F.col(f"of.{name}") for name in KEY},
        **{name: F.col(f"of.{name}") for name in ("lane", "track", "kind", "size_bytes", "cause_id")},
        "commit": F.col("post.commit"),
        "posted": F.col("post.ts"),
        "posted_offset": F.col("post.offset"),
        "first_leased": F.col("lease.ts"),
        "received": F.col("got.ts"),
        "finished": F.when(over, F.col("last.ts")),
        "finished_offset": F.when(over, F.col("last.offset")),
        "delivered_offset": F.when(F.col("gave.life") == F.col("lives"), -F.col("gave.back")),
        "state": state_of(F.col("last.code")),
        "last_code": F.col("last_said.code"),
        "reason": F.when(over, F.col("last.reason")).otherwise(F.col("last_said.reason")),
        "error": F.col("fault.error"),
        "live": F.coalesce(
            (F.col("outcome") == "delivered")
            & (F.col("delivering.offset") == F.col("last.offset"))
            & (F.col("delivering.commit") == F.col("post.commit")),
            F.lit(False),
        ),
        "expires": F.col("lasts.expires"),
        "first_at": F.col("first.ts"),
        "freed": F.coalesce("free.clock", F.lit(NEVER)),
        "freed_offset": F.coalesce("free.offset", F.lit(NEVER)),
        "late": F.when(F.col("late").isNotNull(), F.array("late.offset", "late.by", "late.then")),
        "flight_us": F.coalesce("flight", F.lit(0)).cast("bigint"),
        "aside_us": F.coalesce("aside", F.lit(0)).cast("bigint"),
        "plain": F.lit(False),
        "attempts": F.col("attempts").cast("int"),
        "duplicates": F.col("duplicates").cast("int"),
        **{name: F.lit(None).cast("bigint") for name in ("due", "lease_offset", "leased")},
        "attempt": F.lit(None).cast("int"),
        "holder": F.lit(None).cast("string"),
    }
    return made.select(*(columns[name].alias(name) if name in columns else F.col(name) for name in ROW))
