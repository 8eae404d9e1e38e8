"""Gold: the tables that are summed of partials. In: partials of all parts. Out: one table each. No input or output."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from .partials import bucket_value

OUTCOMES = ("delivered", "dead", "expired", "cancelled", "uncertain", "open")
TOP_MAILBOXES = 1_000
"""Mailboxes of a desk for which depth is told one by one: the busiest."""
_RATE_JUMP, _ATTEMPTS_MIN = 0.5, 5
"""A target is out in an hour in which at least this share of at least so many attempts failed."""


def _of(partials: DataFrame, table: str) -> DataFrame:
    return partials.where(F.col("table") == table)


def _sum(measure: str) -> Column:
    return F.coalesce(F.sum(F.when(F.col("measure") == measure, F.col("n"))), F.lit(0)).cast("bigint").alias(measure)


def books(partials: DataFrame) -> DataFrame:
    """One row an hour, desk and kind; orphans are the remainder, listed by id."""
    one = _of(partials, "books").groupBy("window", "desk", "kind", "measure", "label").agg(F.sum("n").alias("n"))
    orphans = F.when((F.col("measure") == "orphan") & (F.col("n") > 0), F.col("label"))
    summed = one.groupBy("window", "desk", "kind").agg(
        *(_sum(name) for name in (*OUTCOMES, "refused", "duplicate", "orphan")),
        F.sort_array(F.collect_list(orphans)).alias("remainder_ids"),
        F.coalesce(
            F.sum(F.when(F.col("measure").isin(*OUTCOMES), F.col("n"))), F.lit(0)
        ).cast("bigint").alias("posted"),
    )  # fmt: skip
    return summed.where(" + ".join(("posted", "refused", "duplicate", "orphan")) + " <> 0").select(
        "window", "desk", "kind", "posted", *OUTCOMES, "refused", "duplicate",
        F.col("orphan").alias("remainder"), "remainder_ids",
    )  # fmt: skip


def check_books(books: DataFrame) -> DataFrame:
    """Rows of the books that do not add up: there must be none."""
    total = sum((F.col(name) for name in OUTCOMES[1:]), F.col(OUTCOMES[0]))
    return books.where((F.col("posted") != total) | (F.size("remainder_ids") != F.col("remainder")))


def latency(partials: DataFrame) -> DataFrame:
    """One row an hour, desk, kind and live or stored."""
    by = ("window", "desk", "kind", "label")
    counts = _of(partials, "latency").groupBy(*by, "bucket").agg(F.sum("n").alias("n")).where("n <> 0")
    rising = Window.partitionBy(*by).orderBy("bucket").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    ranked = counts.withColumn("up_to", F.sum("n").over(rising)).withColumn(
        "all", F.sum("n").over(Window.partitionBy(*by))
    )

    def quantile(share: float, name: str) -> Column:
        # The rank-th smallest, the rank counted from 1.
        reached = F.col("up_to") >= F.greatest(F.ceil(F.col("all") * share), F.lit(1))
        return bucket_value(F.min(F.when(reached, F.col("bucket")))).cast("bigint").alias(name)

    return (
        ranked.groupBy(*by)
        .agg(
            F.sum("n").cast("bigint").alias("count"),
            quantile(0.5, "p50"),
            quantile(0.95, "p95"),
            quantile(0.99, "p99"),
            bucket_value(F.max("bucket")).cast("bigint").alias("max"),
            F.map_from_entries(F.sort_array(F.collect_list(F.struct("bucket", F.col("n").cast("bigint"))))).alias(
                "buckets"
            ),
        )
        .select(
            "window", "desk", "kind", (F.col("label") == "live").alias("live"), "count", "p50", "p95", "p99", "max",
            "buckets",
        )
    )  # fmt: skip


def depth(partials: DataFrame, top: int = TOP_MAILBOXES) -> DataFrame:
    """One row an hour with changes, of each desk (mailbox '') and of its busiest mailboxes."""
    one = _of(partials, "depth").where(F.col("measure").isin("posted", "finished", "refusals"))
    busiest = Window.partitionBy("node", "desk").orderBy(F.desc("total"), "mailbox")
    chosen = (
        one.groupBy("node", "desk", "mailbox")
        .agg(F.sum("n").alias("total"))
        .withColumn("rank", F.row_number().over(busiest))
        .where(F.col("rank") <= top)
        .select("node", "desk", "mailbox")
    )
    boxes = one.where(F.col("mailbox") != "").join(F.broadcast(chosen), on=["node", "desk", "mailbox"], how="left_semi")
    both = boxes.unionByName(one.withColumn("mailbox", F.lit("")))
    by = ("window", "node", "desk", "mailbox")
    hours = both.groupBy(*by).agg(_sum("posted"), _sum("finished"), _sum("refusals"))
    rising = (
        Window.partitionBy("node", "desk", "mailbox")
        .orderBy("window")
        .rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    return (
        hours.where("posted <> 0 OR finished <> 0 OR refusals <> 0")
        .withColumn("depth_end", F.sum(F.col("posted") - F.col("finished")).over(rising))
        .select(*by, "posted", "finished", "depth_end", F.col("refusals").alias("refused"))
    )


def availability(partials: DataFrame) -> DataFrame:
    """One row a mailbox and day on which it had a connection."""
    rows = _of(partials, "availability")
    covers = (
        rows.where(F.col("measure") == "covered")
        .groupBy("node")
        .agg(F.unix_micros(F.min("first_at")).alias("from"), F.unix_micros(F.max("last_at")).alias("to"))
    )
    day = F.unix_micros("window")
    boxes = (
        rows.where(F.col("measure") != "covered")
        .groupBy("window", "node", "desk", "mailbox")
        .agg(_sum("online_us"), _sum("connections"), _sum("half_open"))
        .where("online_us <> 0 OR connections <> 0 OR half_open <> 0")
        .join(F.broadcast(covers), on="node", how="left")
        .withColumn("covered", F.least(F.col("to"), day + 86_400_000_000) - F.greatest(F.col("from"), day))
    )
    return boxes.select(
        F.col("window").cast("date").alias("day"),
        "node",
        "desk",
        "mailbox",
        "covered",
        F.col("online_us").alias("online"),
        F.when(F.col("covered") > 0, F.col("online_us") / F.col("covered")).alias("share"),
        "connections",
        F.when(F.col("covered") > 0, F.col("connections") * 3.6e9 / F.col("covered")).alias("reconnect_rate"),
        "half_open",
    )


def deadletters(partials: DataFrame) -> DataFrame:
    """One row a desk and cluster of errors."""
    return (
        _of(partials, "deadletters")
        .groupBy("desk", F.col("label").alias("error"))
        .agg(
            _sum("died"),
            F.min("first_at").alias("first_at"),
            F.max("last_at").alias("last_at"),
            _sum("redriven"),
            _sum("redelivered"),
        )
        .where("died <> 0")
        .select(
            "desk",
            "error",
            F.col("died").alias("count"),
            "first_at",
            "last_at",
            "redriven",
            F.col("redelivered").alias("redriven_delivered"),
        )
    )


def outages(partials: DataFrame) -> DataFrame:
    """One row an hour and target in which most attempts failed although most of its others did not."""
    hours = (
        _of(partials, "outages")
        .groupBy("window", "desk", "mailbox")
        .agg(_sum("failed"), _sum("succeeded"))
        .withColumn("attempts", F.col("failed") + F.col("succeeded"))
        .where("attempts > 0")
    )
    target = Window.partitionBy("desk", "mailbox")
    others = F.sum("attempts").over(target) - F.col("attempts")
    rated = hours.withColumn("failure_rate", F.col("failed") / F.col("attempts")).withColumn(
        "baseline",
        F.when(others > 0, (F.sum("failed").over(target) - F.col("failed")) / others).otherwise(F.lit(0.0)),
    )
    out = rated.where(
        (F.col("attempts") >= _ATTEMPTS_MIN)
        & (F.col("failure_rate") >= _RATE_JUMP)
        & (F.col("failure_rate") >= 2 * F.col("baseline"))
    )
    changes = (
        _of(partials, "depth")
        .where(F.col("measure").isin("posted", "finished") & (F.col("mailbox") != ""))
        .groupBy("desk", "mailbox", "window")
        .agg(_sum("posted"), _sum("finished"))
    )
    rising = (
        Window.partitionBy("desk", "mailbox")
        .orderBy("window")
        .rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    levels = changes.withColumn("level", F.sum(F.col("posted") - F.col("finished")).over(rising)).select(
        "desk", "mailbox", F.col("window").alias("hour"), "level"
    )
    placed = out.join(levels, on=["desk", "mailbox"], how="left")
    until_then = F.col("hour") <= F.col("window")
    drained = ~until_then & (F.col("level") <= 0)
    by = ("window", "desk", "mailbox", "attempts", "failed", "succeeded", "failure_rate", "baseline")
    end = F.unix_micros("window") + 3_600_000_000
    return (
        placed.groupBy(*by)
        .agg(
            F.coalesce(F.max_by(F.when(until_then, F.col("level")), F.when(until_then, F.col("hour"))), F.lit(0)).alias(
                "backlog"
            ),
            F.min(F.when(drained, F.unix_micros("hour"))).alias("drained"),
        )
        .select(
            "window",
            "desk",
            "mailbox",
            "attempts",
            F.col("failed").alias("failures"),
            "failure_rate",
            "baseline",
            F.col("backlog").cast("bigint").alias("backlog"),
            F.when(F.col("backlog") <= 0, F.lit(0).cast("bigint"))
            .otherwise(F.col("drained") + 3_600_000_000 - end)
            .alias("drain"),
            (F.col("attempts") / F.greatest(F.col("succeeded"), F.lit(1))).alias("retry_storm"),
        )
    )
