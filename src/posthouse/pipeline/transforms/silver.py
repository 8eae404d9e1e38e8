"""Silver: messages with their waits, and attempts.

In: folded messages with what lanes and mailboxes add. Out: the rows of both tables. No input or output.
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from ..schema import OPEN, WAITS
from .context import BOX, spent
from .life import DONE, FLIGHT, KEY, READY

_INSTANTS = ("begin", "due", "quiet", "lane", "end")
"""What divides a stretch of waiting, in order."""


def closed() -> Column:
    """Whether a folded message is final: its last life ended, and its post is known."""
    return (F.col("state") == DONE) & F.col("posted").isNotNull()


def part() -> Column:
    """The part of its table that a folded message belongs to."""
    return F.when(closed(), F.date_format(F.timestamp_micros("first_at"), "yyyy-MM-dd")).otherwise(F.lit(OPEN))


def messages(rows: DataFrame, timelines: DataFrame, before: DataFrame | None) -> DataFrame:
    """One row a message."""
    finished = rows.withColumn("cap", F.greatest("posted", "finished")).withColumn(
        "lane_until", F.greatest("lane_until", "memo_freed")
    )
    shared = timelines.where(F.col("lane") == "").select(*BOX, F.col("points").alias("shared"))
    alone = timelines.where(F.col("lane") != "").select(*BOX, "lane", F.col("points").alias("alone"))
    timed = (
        finished.join(shared, on=list(BOX), how="left")
        .join(alone, on=[*BOX, "lane"], how="left")
        .withColumn("points", F.coalesce("alone", "shared"))
    )
    if before is not None:
        # What a life that ended earlier waited for is known, and its surroundings are gone.
        old = before.select(
            *KEY,
            "generation",
            F.col("last_offset").alias("old_offset"),
            *(F.col(f"wait_{name}").alias(f"old_{name}") for name in WAITS),
        )
        known = timed.join(old, on=[*KEY, "generation"], how="left")
    else:
        known = timed.withColumn("old_offset", F.lit(None).cast("bigint"))
    new_spans = F.filter("spans", lambda s: s["last"] > F.coalesce(F.col("old_offset"), F.lit(0)))
    split = known.withColumn("spent", F.when(closed(), _spent(new_spans)))

    def wait(name: str) -> Column:
        total = F.aggregate("spent", F.lit(0).cast("bigint"), lambda sum_, each: sum_ + each[name])
        if before is not None:
            total = total + F.coalesce(F.col(f"old_{name}"), F.lit(0))
        return F.when(closed(), total).alias(f"wait_{name}")

    orphan = F.col("posted").isNull()
    outcome = F.when(F.col("outcome").isNotNull(), F.col("outcome")).when(
        F.col("last_event") == "uncertain", F.lit("uncertain")
    )
    return split.select(
        part().alias("part"),
        "node",
        "desk",
        "mailbox",
        "lane",
        "sender",
        "message_id",
        "generation",
        "kind",
        "lane_seq",
        "size_bytes",
        F.timestamp_micros("posted").alias("posted_at"),
        F.timestamp_micros("first_leased").alias("first_leased_at"),
        F.timestamp_micros("received").alias("received_at"),
        F.timestamp_micros("finished").alias("finished_at"),
        F.coalesce(outcome, F.lit("open")).alias("outcome"),
        "reason",
        "error",
        (F.col("leases") - F.col("given_back")).alias("attempts"),
        "lives",
        F.coalesce((F.col("outcome") == "delivered") & F.col("live"), F.lit(False)).alias("live"),
        F.timestamp_micros("expires").alias("expires_at"),
        "cause_id",
        orphan.alias("orphan"),
        "first_offset",
        "last_offset",
        "duplicates",
        F.when(
            (F.col("outcome") == "delivered") & ~orphan,
            F.greatest(F.col("finished") - F.col("posted"), F.lit(0).cast("bigint")),
        ).alias("latency"),
        F.timestamp_micros("first_at").alias("first_at"),
        *(wait(name) for name in WAITS),
        _deaths().alias("deaths"),
        _tries().alias("tries"),
        _stays().alias("stays"),
    )


def refusals(events: DataFrame, lives: DataFrame) -> DataFrame:
    """Rows of messages that were refused and never posted."""
    first = F.struct("offset", "at", "lane", "kind", "size_bytes", "reason", "error", "cause_id", "commit")
    only = (
        events.where((F.col("event") == "refused") & (F.col("message_id") != ""))
        .groupBy(*KEY)
        .agg(F.min(first).alias("f"), F.max("offset").alias("last_offset"))
        .join(lives.select(*KEY), on=list(KEY), how="left_anti")
    )
    nothing = F.lit(None)
    return only.select(
        F.lit("open").alias("part"),
        "node",
        "desk",
        "mailbox",
        "f.lane",
        "sender",
        "message_id",
        F.lit(1).alias("generation"),
        "f.kind",
        F.lit(0).cast("bigint").alias("lane_seq"),
        "f.size_bytes",
        *(nothing.cast("timestamp").alias(f"{n}_at") for n in ("posted", "first_leased", "received")),
        F.col("f.at").alias("finished_at"),
        F.lit("refused").alias("outcome"),
        "f.reason",
        "f.error",
        F.lit(0).alias("attempts"),
        F.lit(0).alias("lives"),
        F.lit(False).alias("live"),
        nothing.cast("timestamp").alias("expires_at"),
        "f.cause_id",
        F.lit(False).alias("orphan"),
        F.col("f.offset").alias("first_offset"),
        "last_offset",
        F.lit(0).alias("duplicates"),
        nothing.cast("bigint").alias("latency"),
        F.col("f.at").alias("first_at"),
        *(nothing.cast("bigint").alias(f"wait_{name}") for name in WAITS),
        F.array().cast("array<struct<at:timestamp,error:string,redriven:boolean>>").alias("deaths"),
        F.array().cast("array<struct<at:timestamp,failed:boolean>>").alias("tries"),
        F.array().cast("array<struct<at:timestamp,change:int>>").alias("stays"),
    )


def attempts(rows: DataFrame) -> DataFrame:
    """One row a lease; without an end while it lasts."""
    every = F.when(F.col("open.state") == FLIGHT, F.concat("spans", F.array("open"))).otherwise(F.col("spans"))
    return (
        rows.withColumn("part", part())
        .withColumn("a", F.explode(F.filter(every, lambda s: s["state"] == FLIGHT)))
        .select(
            "part",
            "node",
            "desk",
            "mailbox",
            "lane",
            "sender",
            "message_id",
            "generation",
            "kind",
            "a.life",
            "a.attempt",
            "a.holder",
            F.timestamp_micros("a.began").alias("started_at"),
            F.timestamp_micros("a.received").alias("received_at"),
            F.timestamp_micros("a.ended").alias("ended_at"),
            F.coalesce("a.how", F.lit("open")).alias("ended"),
            "a.reason",
            "a.error",
            F.col("a.first").alias("lease_offset"),
            F.col("a.last").alias("end_offset"),
        )
    )


def _spent(spans: Column) -> Column:
    """What each stretch of a message's time went to, in µs.

    In steps, each a transform of the one before: what is used twice is then computed once.
    """
    cap, points, zero = F.col("cap"), F.col("points"), F.lit(0).cast("bigint")

    def bounds(s: Column) -> Column:
        return F.struct(
            s["state"].alias("state"),
            F.least(s["since"], cap).alias("begin"),
            F.least(s["until"], cap).alias("end"),
            s["due"].alias("due"),
        )

    def later(name: str, value: Column, after: str) -> Callable[[Column], Column]:
        """The step that puts an instant between the one before and the end."""
        return lambda s: s.withField(name, F.greatest(s[after], F.least(F.coalesce(value, s[after]), s["end"])))

    def evaluated(s: Column) -> Column:
        ready = (s["state"] == READY) & (s["end"] > s["begin"])
        nothing = F.struct(zero.alias("paused"), zero.alias("offline"))
        return F.struct(
            *(s[name].alias(name) for name in ("state", *_INSTANTS)),
            *(
                F.when(ready & points.isNotNull(), spent(points, s[name])).otherwise(nothing).alias(f"at_{name}")
                for name in _INSTANTS
            ),
        )

    def divided(s: Column) -> Column:
        ready = s["state"] == READY
        length = s["end"] - s["begin"]

        def between(name: str, one: str, other: str) -> Column:
            return s[f"at_{other}"][name] - s[f"at_{one}"][name]

        def free(one: str, other: str) -> Column:
            """The part of a stretch in which nothing of the mailbox stood in the way."""
            blocked = between("paused", one, other) + between("offline", one, other)
            return F.when(ready, s[other] - s[one] - blocked).otherwise(zero)

        parts = {
            "in_flight": F.when(s["state"] == FLIGHT, length).otherwise(zero),
            "parked": F.when(s["state"] > FLIGHT, length).otherwise(zero),
            "paused": F.when(ready, between("paused", "begin", "end")).otherwise(zero),
            "offline": F.when(ready, between("offline", "begin", "end")).otherwise(zero),
            "backoff": free("begin", "due"),
            "quiet": free("due", "quiet"),
            "lane": free("quiet", "lane"),
            "idle": free("lane", "end"),
        }
        return F.struct(*(parts[name].alias(name) for name in WAITS))

    bound = F.transform(spans, bounds)
    due = F.transform(
        bound,
        lambda s: s.withField("due", F.greatest(s["begin"], F.least(F.coalesce(s["due"], s["begin"]), s["end"]))),
    )
    quiet = F.transform(due, later("quiet", F.col("quiet_until"), "due"))
    lane = F.transform(quiet, later("lane", F.col("lane_until"), "quiet"))
    return F.transform(F.transform(lane, evaluated), divided)


def _deaths() -> Column:
    return F.transform(
        "deaths",
        lambda d: F.struct(
            F.timestamp_micros(d["at"]).alias("at"), d["error"].alias("error"), d["redriven"].alias("redriven")
        ),
    )


def _tries() -> Column:
    """Ended leases: when, and whether they failed."""
    ended = F.filter("spans", lambda s: s["state"] == FLIGHT)
    return F.transform(
        ended,
        lambda s: F.struct(
            F.timestamp_micros(s["ended"]).alias("at"),
            s["how"].isin("retried", "died", "uncertain", "parked").alias("failed"),
        ),
    )


def _stays() -> Column:
    """When it came into its mailbox's depth (+1) and left it (-1)."""
    every = F.concat("spans", F.array("open"))
    inside = F.lit(FLIGHT)
    changes = F.transform(
        every,
        lambda s, i: F.struct(
            F.timestamp_micros(s["began"]).alias("at"),
            (
                F.when(s["state"] <= inside, 1).otherwise(0)
                - F.when((i > 0) & (F.get(every, i - 1)["state"] <= inside), 1).otherwise(0)
            ).alias("change"),
        ),
    )
    known = F.when(F.col("posted").isNotNull(), F.filter(changes, lambda c: c["change"] != 0))
    return F.coalesce(known, F.array().cast("array<struct<at:timestamp,change:int>>"))
