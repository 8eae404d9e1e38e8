"""Partials: what the gold tables are summed of, in one long table.

In: message rows, new events, connections. Out: rows that add up, whatever batch they come from: ``n`` by sum,
``first_at`` by minimum, ``last_at`` by maximum. What may still change is in the part `open`.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

PARTIALS = (
    "part", "table", "measure", "window", "node", "desk", "kind", "mailbox", "label", "bucket", "n", "first_at",
    "last_at",
)  # fmt: skip
GAMMA = 1.04
"""Each bucket of a histogram is this much wider than the one before: its middle is at most 2 % off."""

_KEY = ("part", "table", "measure", "window", "node", "desk", "kind", "mailbox", "label", "bucket")
_ITEM = (
    "struct<table:string,measure:string,window:timestamp,kind:string,mailbox:string,label:string,bucket:int,"
    "n:bigint,at:timestamp>"
)


def bucket_of(micros: Column) -> Column:
    """The histogram's bucket of a duration; 0 holds all up to 1 µs."""
    return F.when(micros <= 1, 0).otherwise(F.ceil(F.log(micros.cast("double")) / F.log(F.lit(GAMMA)))).cast("int")


def bucket_value(bucket: Column) -> Column:
    """The duration in µs that stands for a bucket."""
    return F.when(bucket == 0, 1.0).otherwise(F.pow(F.lit(GAMMA), bucket) * (2.0 / (1.0 + GAMMA)))


def cluster(error: Column) -> Column:
    """An error with what varies (UUIDs, hex and decimal numbers) replaced, so that like errors group."""
    variable = (
        r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"
        r"|\b0[xX][0-9a-fA-F]+\b"
        r"|\b(?=[0-9a-fA-F]*[0-9])(?=[0-9a-fA-F]*[a-fA-F])[0-9a-fA-F]{8,}\b"
        r"|\d+(?:\.\d+)?"
    )
    return F.substring(F.regexp_replace(F.trim(F.coalesce(error, F.lit(""))), variable, "#"), 1, 500)


def hour(at: Column) -> Column:
    """The UTC hour that an instant is in."""
    return F.date_trunc("hour", at)


def message_partials(messages: DataFrame) -> DataFrame:
    """What message rows add to the books, latency, depth, dead letters and outages."""
    empty = F.array().cast(f"array<{_ITEM}>")
    posted = hour(F.coalesce("posted_at", "first_at"))
    outcome = F.when(F.col("orphan"), F.lit("orphan")).otherwise(F.col("outcome"))
    in_books = F.when(
        F.col("outcome") != "refused",
        F.array(
            # The remainder is listed by id.
            _item(
                "books",
                outcome,
                posted,
                kind=F.col("kind"),
                n=F.lit(1),
                label=F.when(F.col("orphan"), F.col("message_id")).otherwise(F.lit("")),
            ),
        ),
    ).otherwise(empty)
    in_latency = F.when(
        (F.col("outcome") == "delivered") & ~F.col("orphan"),
        F.array(
            _item(
                "latency",
                F.lit("delivered"),
                posted,
                kind=F.col("kind"),
                label=F.when(F.col("live"), F.lit("live")).otherwise(F.lit("stored")),
                bucket=bucket_of(F.col("latency")),
                n=F.lit(1),
            )
        ),
    ).otherwise(empty)
    box = F.col("mailbox")
    in_depth = F.transform(
        "stays",
        lambda s: _item(
            "depth",
            F.when(s["change"] > 0, F.lit("posted")).otherwise(F.lit("finished")),
            hour(s["at"]),
            mailbox=box,
            n=F.abs(s["change"]),
        ),
    )
    in_outages = F.transform(
        "tries",
        lambda t: _item(
            "outages",
            F.when(t["failed"], F.lit("failed")).otherwise(F.lit("succeeded")),
            hour(t["at"]),
            mailbox=box,
            n=F.lit(1),
        ),
    )
    none = F.lit(None).cast("timestamp")
    in_dead = F.flatten(
        F.transform(
            "deaths",
            lambda d: F.array(
                _item("deadletters", F.lit("died"), none, label=cluster(d["error"]), n=F.lit(1), at=d["at"]),
                _item("deadletters", F.lit("redriven"), none, label=cluster(d["error"]), n=d["redriven"].cast("int")),
                _item(
                    "deadletters",
                    F.lit("redelivered"),
                    none,
                    label=cluster(d["error"]),
                    n=(d["redriven"] & (F.col("outcome") == "delivered")).cast("int"),
                ),
            ),
        )
    )
    items = F.concat(*(each.cast(f"array<{_ITEM}>") for each in (in_books, in_latency, in_depth, in_outages, in_dead)))
    return _summed(messages.select("part", "node", "desk", F.explode(items).alias("i")))


def event_partials(events: DataFrame) -> DataFrame:
    """What new events add by themselves: duplicates, refusals, and the time that the journal covers."""
    refused = F.col("event") == "refused"
    counted = events.where(F.col("event").isin("duplicate", "refused"))
    items = F.array_compact(
        F.array(
            _item("books", F.when(refused, F.lit("refused")).otherwise(F.lit("duplicate")), hour(F.col("at")),
                  kind=F.col("kind"), n=F.lit(1)),
            F.when(
                refused & F.col("reason").isin("full", "share"),
                _item("depth", F.lit("refusals"), hour(F.col("at")), mailbox=F.col("mailbox"), n=F.lit(1)),
            ),
        )
    )  # fmt: skip
    by_date = F.date_format("at", "yyyy-MM-dd").alias("part")
    from_events = _summed(counted.select(by_date, "node", "desk", F.explode(items).alias("i")))
    day = F.date_trunc("day", "at")
    covered = (
        events.groupBy("node", day.alias("window"))
        .agg(F.min("at").alias("first_at"), F.max("at").alias("last_at"))
        .select(
            F.date_format("window", "yyyy-MM-dd").alias("part"),
            F.lit("availability").alias("table"),
            F.lit("covered").alias("measure"),
            "window",
            "node",
            *(F.lit("").alias(name) for name in ("desk", "kind", "mailbox", "label")),
            F.lit(0).alias("bucket"),
            F.lit(0).cast("bigint").alias("n"),
            "first_at",
            "last_at",
        )
    )
    return from_events.unionByName(covered).select(*PARTIALS)


def connection_partials(links: DataFrame, lasts: DataFrame) -> DataFrame:
    """What connections add to availability: once when they end, and in the part `open` while they last.

    ``lasts`` is (node, last_at µs): an open connection is online until there.
    """
    rows = (
        links.where(~F.col("seen"))
        .join(F.broadcast(lasts), on="node", how="left")
        .withColumn("ended", F.col("last").isNotNull())
        .withColumn("until", F.greatest("since", F.coalesce("until", "last_at")))
    )
    first_day = F.date_trunc("day", F.timestamp_micros("since"))
    last_day = F.date_trunc("day", F.timestamp_micros("until"))
    days = rows.withColumn("day", F.explode(F.sequence(first_day, last_day, F.expr("interval 1 day"))))
    day_us = F.unix_micros("day")
    online = F.least(F.col("until"), day_us + 86_400_000_000) - F.greatest(F.col("since"), day_us)
    begins = F.date_trunc("day", F.timestamp_micros("since")) == F.col("day")
    ends = F.col("ended") & (F.date_trunc("day", F.timestamp_micros("until")) == F.col("day"))
    box = F.col("mailbox")
    items = F.array(
        _item("availability", F.lit("online_us"), F.col("day"), mailbox=box, n=online),
        _item("availability", F.lit("connections"), F.col("day"), mailbox=box, n=begins.cast("int")),
        _item(
            "availability",
            F.lit("half_open"),
            F.col("day"),
            mailbox=box,
            n=(ends & F.col("ending").isin("timeout", "replaced", "restart")).cast("int"),
        ),
    )
    part = F.when(F.col("ended"), F.date_format("day", "yyyy-MM-dd")).otherwise(F.lit("open")).alias("part")
    return _summed(days.select(part, "node", "desk", F.explode(items).alias("i")))


def _item(
    table: str,
    measure: Column,
    window: Column,
    *,
    n: Column,
    kind: Column | None = None,
    mailbox: Column | None = None,
    label: Column | None = None,
    bucket: Column | None = None,
    at: Column | None = None,
) -> Column:
    text = F.lit("")
    return F.struct(
        F.lit(table).alias("table"),
        measure.alias("measure"),
        window.cast("timestamp").alias("window"),
        (text if kind is None else kind).alias("kind"),
        (text if mailbox is None else mailbox).alias("mailbox"),
        (text if label is None else label).alias("label"),
        (F.lit(0) if bucket is None else bucket).cast("int").alias("bucket"),
        n.cast("bigint").alias("n"),
        (F.lit(None) if at is None else at).cast("timestamp").alias("at"),
    )


def _summed(items: DataFrame) -> DataFrame:
    flat = items.select(
        "part", "node", "desk",
        *(F.col(f"i.{name}").alias(name) for name in (
            "table", "measure", "window", "kind", "mailbox", "label", "bucket", "n", "at"
        )),
    )  # fmt: skip
    return (
        flat.groupBy(*_KEY)
        .agg(F.sum("n").cast("bigint").alias("n"), F.min("at").alias("first_at"), F.max("at").alias("last_at"))
        .select(*PARTIALS)
    )
