"""Anomalies: what should not have happened, each with the offsets that show it.

In: folded messages with what their lane adds, and new events. Out: one row a finding. A finding is made once, in the
batch that holds its last evidence; those that may still be withdrawn are in the part `open`, made again each time.
"""

from __future__ import annotations

from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from .life import KEY, READY
from .silver import part

ANOMALIES = ("part", "kind", "node", "desk", "mailbox", "sender", "message_id", "at", "offsets", "detail")
GRACE_US = 3_600_000_000
"""A message that waits this long past its end is lost, not late."""


def of_messages(rows: DataFrame, before: DataFrame | None) -> DataFrame:
    """Findings about single messages. ``rows`` also have last_at (µs): the node's last instant."""
    if before is not None:
        old = before.select(*KEY, "generation", F.col("last_offset").alias("old_offset"))
        rows = rows.join(old, on=[*KEY, "generation"], how="left")
    else:
        rows = rows.withColumn("old_offset", F.lit(None).cast("bigint"))
    waiting = (F.col("state") == READY) & (F.col("last_at") >= F.col("expires") + GRACE_US)
    orphan = F.col("posted").isNull()
    gap = F.col("begun") & (F.col("lane_seq") > F.col("seq_before") + 1)
    span = F.concat(
        F.lit("lane_seq "),
        F.when(F.col("lane_seq") - F.col("seq_before") > 2, F.concat(F.col("seq_before") + 1, F.lit(" to "))).otherwise(
            F.lit("")
        ),
        F.col("lane_seq") - 1,
        F.lit(" missing"),
    )
    none = F.lit(None).cast("string")
    found = F.array(
        _finding(
            "lost",
            F.when(orphan, F.array("first_offset")).when(waiting, F.array("posted_offset")),
            F.when(orphan, F.lit("no post")).otherwise(F.lit("still waiting long after it should have expired")),
            F.lit("open"),
        ),
        _finding(
            "lane_gap",
            F.when(gap, F.array("begun_offset")),
            span,
            F.date_format(F.timestamp_micros("first_at"), "yyyy-MM-dd"),
        ),
        _finding("out_of_order", F.col("overtaken"), none, part()),
        _finding("delivered_twice", F.col("twice"), none, part()),
        _finding("settled_after_finished", F.col("settled"), F.concat(F.lit("finished as "), F.col("outcome")), part()),
        _finding("delivered_after_expiry", F.col("late"), none, part()),
    )
    known = F.coalesce(F.array_max("a.offsets") <= F.col("old_offset"), F.lit(False))
    return (
        rows.select(*KEY, "old_offset", F.explode(F.filter(found, lambda f: f["offsets"].isNotNull())).alias("a"))
        .where(~known)
        .select(
            F.col("a.part").alias("part"),
            F.col("a.kind").alias("kind"),
            "node",
            "desk",
            "mailbox",
            "sender",
            "message_id",
            F.lit(None).cast("timestamp").alias("at"),
            F.col("a.offsets").alias("offsets"),
            F.col("a.detail").alias("detail"),
        )
    )


def answered_twice(rows: DataFrame, answered: DataFrame | None) -> DataFrame:
    """Causes that posts of one desk answered in more than one commit; found with the second of them."""
    posts = rows.where(F.col("cause_id").isNotNull() & F.col("posted").isNotNull()).select(
        "node",
        "desk",
        "cause_id",
        "commit",
        F.col("posted_offset").alias("offset"),
        F.col("posted").alias("at"),
        "begun",
    )
    if answered is not None:
        posts = posts.unionByName(
            answered.where(F.col("cause_id").isNotNull() & F.col("posted_at").isNotNull()).select(
                "node",
                "desk",
                "cause_id",
                # Commits do not overlap: what was closed before is another commit than what is new.
                F.col("first_offset").alias("commit"),
                F.col("first_offset").alias("offset"),
                F.unix_micros("posted_at").alias("at"),
                F.lit(False).alias("begun"),
            )
        )
    commits = posts.groupBy("node", "desk", "cause_id", "commit").agg(
        F.min("offset").alias("offset"), F.min("at").alias("at"), F.max("begun").alias("begun")
    )
    # The second commit is news only if the batch holds it.
    return (
        commits.groupBy("node", "desk", "cause_id")
        .agg(F.sort_array(F.collect_list(F.struct("commit", "offset", "at", "begun"))).alias("all"))
        .where((F.size("all") > 1) & F.get("all", F.lit(1))["begun"])
        .select(
            F.date_format(F.timestamp_micros(F.get("all", F.lit(1))["at"]), "yyyy-MM-dd").alias("part"),
            F.lit("answered_twice").alias("kind"),
            "node",
            "desk",
            F.lit("").alias("mailbox"),
            F.lit("").alias("sender"),
            F.col("cause_id").alias("message_id"),
            F.timestamp_micros(F.get("all", F.lit(1))["at"]).alias("at"),
            F.array(F.get("all", F.lit(0))["offset"], F.get("all", F.lit(1))["offset"]).alias("offsets"),
            F.lit(None).cast("string").alias("detail"),
        )
    )


def together(*findings: DataFrame) -> DataFrame:
    """Findings of all kinds as one table."""
    return reduce(DataFrame.unionByName, findings).select(*ANOMALIES)


def _finding(kind: str, offsets: Column, detail: Column, in_part: Column) -> Column:
    return F.struct(
        in_part.alias("part"), F.lit(kind).alias("kind"), offsets.cast("array<bigint>").alias("offsets"),
        detail.cast("string").alias("detail"),
    )  # fmt: skip
