"""Anomalies: what should not have happened, each with the offsets that show it.

In: message rows, steps, what lanes tell, and posts that answer something. Out: one row a finding. A finding about a
closed message is made once; those that may still be withdrawn are in the part `open`, made again each time.
"""

from __future__ import annotations

from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from .lane import MESSAGE
from .silver import closed, part
from .told import DONE, ID, KEY, WAITS, above, is_, outcome_of

ANOMALIES = ("part", "kind", *KEY, "at", "offsets", "detail")
GRACE_US = 3_600_000_000
"""A message that waits this long past its end is lost, not late."""


def of_messages(rows: DataFrame, nodes: DataFrame) -> DataFrame:
    """What message rows show by themselves: lost, and delivered after expiry. ``nodes`` are (node, last_at)."""
    orphan = F.col("posted").isNull()
    waiting = (F.col("state") != DONE) & (F.col("last_code") <= WAITS)
    lost = orphan | (waiting & (F.col("last_at") >= F.col("expires") + GRACE_US))
    found = F.array_compact(
        F.array(
            F.when(
                lost,
                _finding(
                    "lost",
                    F.array(F.when(orphan, F.col("first_offset")).otherwise(F.col("posted_offset"))),
                    F.when(orphan, F.col("first_at")).otherwise(F.col("posted")),
                    F.when(orphan, "no post").otherwise("still waiting long after it should have expired"),
                ),
            ),
            F.when(
                F.col("late").isNotNull(),
                _finding("delivered_after_expiry", F.slice("late", 1, 2), F.get("late", F.lit(2)), F.lit(None)),
            ),
        )
    )
    suspect = orphan | F.col("late").isNotNull() | ~closed()
    return (
        rows.where(suspect)
        .join(F.broadcast(nodes), on="node", how="left")
        .withColumn("part", part())
        .select("part", *KEY, F.explode(found).alias("a"))
        .select("part", "a.kind", *KEY, "a.at", "a.offsets", "a.detail")
    )


def of_steps(steps: DataFrame, rows: DataFrame) -> DataFrame:
    """Events that came after a message was finished; one finding for each sort."""
    after = F.col("said") & ~F.col("counts")
    twice = is_("delivered") & F.col("delivered_before").isNotNull()
    kind = F.when(twice, F.lit("delivered_twice")).otherwise(F.lit("settled_after_finished"))
    first = F.struct("offset", "ts", "end_before", "end_code")
    parts = rows.where("NOT plain").select(*MESSAGE, part().alias("part"))
    return (
        steps.where(after)
        .groupBy(*MESSAGE, *KEY, kind.alias("kind"))
        .agg(F.min(first).alias("f"))
        .join(parts, on=list(MESSAGE), how="inner")
        .select(
            "part",
            "kind",
            *KEY,
            F.timestamp_micros("f.ts").alias("at"),
            F.array("f.end_before", "f.offset").alias("offsets"),
            _how_finished(F.col("kind"), outcome_of(F.col("f.end_code"))).alias("detail"),
        )
    )


def of_finished(late: DataFrame, before: DataFrame) -> DataFrame:
    """The same for messages that were finished in an earlier batch. ``before`` are rows of messages, ``late`` told."""
    held = before.select("key", *KEY, "part", "outcome", "finished_offset", "delivered_offset", "generation")
    # Finished otherwise, it may have been delivered since: in an earlier batch, or in this one.
    now = F.min(F.when(is_("delivered"), F.col("offset"))).over(Window.partitionBy(*ID))
    twice = is_("delivered") & (F.col("offset") > F.coalesce("delivered_offset", "delivered_now"))
    kind = F.when(twice, F.lit("delivered_twice")).otherwise(F.lit("settled_after_finished"))
    return (
        late.drop("generation")
        .withColumn("delivered_now", now)
        .join(held, on=["key", *KEY], how="inner")
        .groupBy("part", *KEY, "outcome", "finished_offset", kind.alias("kind"))
        .agg(F.min(F.struct("offset", "ts")).alias("f"))
        .select(
            "part",
            "kind",
            *KEY,
            F.timestamp_micros("f.ts").alias("at"),
            F.array("finished_offset", "f.offset").alias("offsets"),
            _how_finished(F.col("kind"), F.col("outcome")).alias("detail"),
        )
    )


def _how_finished(kind: Column, outcome: Column) -> Column:
    return F.when(kind == "settled_after_finished", F.concat(F.lit("finished as "), outcome))


def of_lanes(
    entries: DataFrame, overtaken: DataFrame, rows: DataFrame, edges: DataFrame | None, before: DataFrame | None
) -> DataFrame:
    """Numbers that are missing, and messages that were overtaken.

    ``edges`` are (node, edge): what is above is news, and all where there are none. ``before`` are the rows of finished
    messages of which numbers may be told, too.
    """
    gaps = entries.where(F.col("lane_seq") > F.col("seq_before") + 1)
    missing = F.concat(
        F.lit("lane_seq "),
        F.when(F.col("s") - F.col("seq_before") > 2, F.concat(F.col("seq_before") + 1, F.lit(" to "))).otherwise(""),
        F.col("s") - 1,
        F.lit(" missing"),
    )
    named = rows.select(*MESSAGE, *KEY, part().alias("part"), "posted_offset", "posted", "first_at")
    if before is not None:
        posted = F.unix_micros("posted_at")
        named = named.unionByName(
            before.where("NOT revived").select(
                *MESSAGE, *KEY, "part", "posted_offset", posted.alias("posted"), posted.alias("first_at"),
            )
        )  # fmt: skip
    gap = (
        above(
            gaps.select(*MESSAGE, F.col("lane_seq").alias("s"), "seq_before", "offset").join(
                named, on=list(MESSAGE), how="inner"
            ),
            edges,
        )
        .where("offset > edge")
        .select(
            F.date_format(F.timestamp_micros("first_at"), "yyyy-MM-dd").alias("part"),
            F.lit("lane_gap").alias("kind"),
            *KEY,
            F.timestamp_micros(
                F.when(F.col("offset") == F.col("posted_offset"), F.col("posted")).otherwise(F.col("first_at"))
            ).alias("at"),
            F.array("offset").alias("offsets"),
            missing.alias("detail"),
        )
    )
    order = overtaken.join(named, on=list(MESSAGE), how="inner").select(
        "part",
        F.lit("out_of_order").alias("kind"),
        *KEY,
        F.timestamp_micros("posted").alias("at"),
        F.col("overtaken").alias("offsets"),
        F.lit(None).cast("string").alias("detail"),
    )
    return gap.unionByName(order)


def answered_twice(posts: DataFrame) -> DataFrame:
    """Causes that posts of one desk answered in more than one commit; told with the second of them.

    ``posts`` are (node, desk, cause_id, commit, offset, ts, begun): the finding is news only if the second commit is.
    """
    cause = ["node", "desk", "cause_id"]
    # Nearly all causes are answered in one commit: those are seen at a glance.
    suspect = posts.groupBy(*cause).agg(F.min("commit").alias("a"), F.max("commit").alias("b")).where("a <> b")
    posts = posts.join(suspect.select(*cause), on=cause, how="left_semi")
    commits = posts.groupBy("node", "desk", "cause_id", "commit").agg(
        F.min(F.struct("offset", "ts")).alias("p"), F.max("begun").alias("begun")
    )
    second = F.get("all", F.lit(1))
    return (
        commits.groupBy("node", "desk", "cause_id")
        .agg(
            F.count(F.lit(1)).alias("n"),
            F.slice(
                F.sort_array(F.collect_list(F.struct("commit", "p.offset", "p.ts", "begun"))), 1, 2
            ).alias("all"),
        )
        .where((F.col("n") > 1) & second["begun"])
        .select(
            F.date_format(F.timestamp_micros(second["ts"]), "yyyy-MM-dd").alias("part"),
            F.lit("answered_twice").alias("kind"),
            "node",
            "desk",
            F.lit("").alias("mailbox"),
            F.lit("").alias("sender"),
            F.col("cause_id").alias("message_id"),
            F.timestamp_micros(second["ts"]).alias("at"),
            F.array(F.get("all", F.lit(0))["offset"], second["offset"]).alias("offsets"),
            F.lit(None).cast("string").alias("detail"),
        )
    )  # fmt: skip


def together(*findings: DataFrame) -> DataFrame:
    """Findings of all kinds as one table, for each message one of a kind: the first."""
    every = reduce(DataFrame.unionByName, (frame.select(*ANOMALIES) for frame in findings))
    value = F.struct("offsets", "part", "at", "detail")
    return (
        every.groupBy("kind", *KEY).agg(F.min(value).alias("f")).select("kind", *KEY, "f.*").select(*ANOMALIES)
    )  # fmt: skip


def _finding(kind: str, offsets: Column, at: Column, detail: Column) -> Column:
    return F.struct(
        F.lit(kind).alias("kind"), F.timestamp_micros(at).alias("at"), offsets.cast("array<bigint>").alias("offsets"),
        detail.cast("string").alias("detail"),
    )  # fmt: skip
