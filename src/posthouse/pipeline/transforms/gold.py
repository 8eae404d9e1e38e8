"""Gold: the tables that are summed of partials. In: partials. Out: one table each. No input or output.

Every table can be made from all partials, or anew for some days (books, latency), from an hour on (depth) or from a day
on (the others): then from the partials of those days, of ``REACH_DAYS`` before, and of the parts that belong to no day.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from ..schema import DAY_US, OPEN
from .batch import Keep, same
from .partials import DEAD, NODES, SETTLED, bucket_value, day_of, until_told

OUTCOMES = ("delivered", "dead", "expired", "cancelled", "uncertain", "open")
TOP_MAILBOXES = 200
"""Mailboxes of a desk and an hour for which depth is told one by one: the busiest."""
_RATE_JUMP, _ATTEMPTS_MIN = 0.5, 5
"""A target is out in an hour in which at least this share of at least so many attempts failed."""
AROUND_H = 72
"""Hours before an outage that it is compared with, and hours after it in which its backlog may be gone."""
MADE_OF = {"books": "books", "latency": "books", "availability": "days", "depth": "hours", "outages": "hours"}
"""By what is told which rows of a table are behind; see ``changed``."""
REACH_DAYS = {"outages": 2 * AROUND_H // 24}
"""Days before the first that is made anew whose partials a table needs."""
AGAIN_DAYS = {"outages": AROUND_H // 24}
"""Days before the first with new partials that are made anew too."""


_PARTS = {"levels": OPEN, "standing": OPEN, "covered": NODES, "deadletters": DEAD}
"""The only part of some tables' partials. Books are in `open` too, and all others in the parts of their days."""
_LEVELS = ("part", "table", "window", "desk", "mailbox", "n", "posted", "finished")
"""What the levels of mailboxes by hour are made of."""
_FULL = ("refused", "full")
_TRIED = ("failed", "succeeded")


def _of(partials: DataFrame, *tables: str) -> DataFrame:
    """The partials of some tables; of those that have one part, only that is read."""

    def own(table: str) -> Column:
        named = F.col("table") == table
        return named & (F.col("part") == _PARTS[table]) if table in _PARTS else named

    return partials.where(reduce(Column.__or__, map(own, tables)))


def _sum(name: str) -> Column:
    return F.coalesce(F.sum(name), F.lit(0)).cast("bigint").alias(name)


def _of_measure(measure: str) -> Column:
    return F.coalesce(F.sum(F.when(F.col("measure") == measure, F.col("n"))), F.lit(0)).cast("bigint").alias(measure)


def _from(frame: DataFrame, since: dt.date | None) -> DataFrame:
    return frame if since is None else frame.where(F.col("window") >= F.lit(since).cast("timestamp"))


def _on(frame: DataFrame, days: Sequence[dt.date] | None) -> DataFrame:
    return frame if days is None else frame.where(F.to_date("window").isin(list(days)))


def changed(new: DataFrame, before: DataFrame | None) -> list[str]:
    """What a batch changes in the derived tables: ``books/<day>``, ``days/<day>`` and ``hours/<day>T<hour>``.

    ``new`` are its partials, ``before`` those of the part `open` that they replace.
    """
    whose = (
        F.when(F.col("table").isin("books", "latency"), F.lit("books"))
        .when(F.col("table").isin("availability", "covered"), F.lit("days"))
        .otherwise(F.lit("hours"))
    )
    day, hour = (F.date_format("window", form) for form in ("yyyy-MM-dd", "yyyy-MM-dd'T'HH"))
    timed = new.where(F.col("window").isNotNull())
    settled = (F.col("table") == "availability") & (F.col("label") == SETTLED)
    when = F.when(whose == "hours", hour).otherwise(day)
    added = timed.where((F.col("part") != OPEN) & ~settled).select(whose.alias("of"), when.alias("when"))
    of = ("window", "node", "desk", "kind", "measure", "label")
    still = timed.where(F.col("part") == OPEN).select(*of, "n")
    if before is not None:
        gone = before.where((F.col("part") == OPEN) & F.col("window").isNotNull())
        still = still.unionByName(gone.select(*of, (-F.col("n")).alias("n")))
    moved = still.groupBy(*of).agg(F.sum("n").alias("n")).where("n <> 0")
    moved = moved.select(F.lit("books").alias("of"), day.alias("when"))
    return sorted(f"{row['of']}/{row['when']}" for row in added.unionByName(moved).distinct().collect())


def books(partials: DataFrame, days: Sequence[dt.date] | None = None) -> DataFrame:
    """One row an hour, desk and kind; orphans are the remainder, listed by id."""
    one = (
        _on(_of(partials, "books"), days)
        .groupBy("window", "desk", "kind", "measure", "label")
        .agg(F.sum("n").alias("n"))
    )
    # An id is listed as often as it was orphaned: on several nodes, or by several senders.
    orphans = F.when((F.col("measure") == "orphan") & (F.col("n") > 0), F.array_repeat("label", F.col("n").cast("int")))
    summed = one.groupBy("window", "desk", "kind").agg(
        *(_of_measure(name) for name in (*OUTCOMES, "refused", "duplicate", "orphan")),
        F.sort_array(F.flatten(F.collect_list(orphans))).alias("remainder_ids"),
        F.coalesce(F.sum(F.when(F.col("measure").isin(*OUTCOMES), F.col("n"))), F.lit(0))
        .cast("bigint")
        .alias("posted"),
    )
    return summed.where(" + ".join(("posted", "refused", "duplicate", "orphan")) + " <> 0").select(
        _day(), "window", "desk", "kind", "posted", *OUTCOMES, "refused", "duplicate",
        F.col("orphan").alias("remainder"), "remainder_ids",
    )  # fmt: skip


def check_books(books: DataFrame) -> DataFrame:
    """Rows of the books that do not add up: there must be none."""
    total = sum((F.col(name) for name in OUTCOMES[1:]), F.col(OUTCOMES[0]))
    return books.where((F.col("posted") != total) | (F.size("remainder_ids") != F.col("remainder")))


def latency(partials: DataFrame, days: Sequence[dt.date] | None = None) -> DataFrame:
    """One row an hour, desk, kind and live or stored."""
    by = ("window", "desk", "kind", "label")
    counts = (
        _on(_of(partials, "latency"), days).groupBy(*by, "bucket").agg(F.sum("n").alias("n")).where("n <> 0")
    )  # fmt: skip
    rising = Window.partitionBy(*by).orderBy("bucket").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    ranked = counts.withColumn("up_to", F.sum("n").over(rising)).withColumn(
        "all", F.sum("n").over(Window.partitionBy(*by))
    )

    def quantile(share: float, name: str) -> Column:
        # The rank-th smallest, the rank counted from 1.
        reached = F.col("up_to") >= F.greatest(F.ceil(F.col("all") * share), F.lit(1))
        return bucket_value(F.min(F.when(reached, F.col("bucket")))).cast("bigint").alias(name)

    histogram = F.map_from_entries(F.sort_array(F.collect_list(F.struct("bucket", F.col("n").cast("bigint")))))
    return (
        ranked.groupBy(*by)
        .agg(
            F.sum("n").cast("bigint").alias("count"),
            quantile(0.5, "p50"),
            quantile(0.95, "p95"),
            quantile(0.99, "p99"),
            bucket_value(F.max("bucket")).cast("bigint").alias("max"),
            histogram.alias("buckets"),
        )
        .select(
            _day(), "window", "desk", "kind", (F.col("label") == "live").alias("live"), "count", "p50", "p95", "p99",
            "max", "buckets",
        )
    )  # fmt: skip


def _hours(partials: DataFrame, by: tuple[str, ...], more: tuple[str, ...] = ()) -> DataFrame:
    """Each mailbox's hours with the messages in it at their end: those of now without what came after.

    ``more`` are other numbers of an hour.
    """
    sums = ("posted", "finished", *more)
    hours = _of(partials, "hours").groupBy("window", *by).agg(*map(_sum, sums))
    now = _of(partials, "levels").groupBy(*by).agg(F.sum("n").alias("now"))
    later = Window.partitionBy(*by).orderBy(F.desc("window")).rowsBetween(Window.unboundedPreceding, -1)
    moved = F.coalesce(F.sum(F.col("posted") - F.col("finished")).over(later), F.lit(0))
    return (
        hours.withColumn("moved", moved)
        .join(now, on=list(by), how="left")
        .withColumn("level", (F.coalesce("now", F.lit(0)) - F.col("moved")).cast("bigint"))
        .drop("moved", "now")
    )


def _peaks(partials: DataFrame) -> DataFrame:
    """(window, node, desk, mailbox, rise): how far the depth rose in an hour above what it was at its beginning."""
    by = ("window", "node", "desk", "mailbox")
    before = Window.partitionBy(*by, "measure").orderBy("since").rowsBetween(Window.unboundedPreceding, -1)
    reached = F.col("peak") + F.coalesce(F.sum("n").over(before), F.lit(0))
    return (
        _of(partials, "peaks")
        .where((F.col("mailbox") != "") | (F.col("measure") == "desk"))
        .withColumn("reached", reached)
        .groupBy(*by)
        .agg(F.max("reached").alias("rise"))
    )


def depth(
    partials: DataFrame, since: dt.datetime | None = None, top: int = TOP_MAILBOXES, keep: Keep = same
) -> DataFrame:
    """One row an hour with changes, of each desk (mailbox '') and of its busiest mailboxes.

    ``keep`` is called with what it needs of the partials, where that is little.
    """
    by = ("node", "desk", "mailbox")
    if since is not None:
        now = F.col("window").isNull() | (F.col("window") >= F.lit(since))
        partials = keep(
            _of(partials, "hours", "peaks", "levels")
            .where(now)
            .select(*_LEVELS, "node", *_FULL, "measure", "peak", "since")
        )
    changed = "posted <> 0 OR finished <> 0 OR refused <> 0 OR full <> 0"
    begun = F.col("level") - F.col("posted") + F.col("finished")
    boxes = _hours(partials.where(F.col("mailbox") != ""), by, _FULL).where(changed)
    busiest = Window.partitionBy("window", "node", "desk").orderBy(
        F.desc(F.col("posted") + F.col("finished") + F.col("refused")), "mailbox"
    )
    chosen = boxes.withColumn("rank", F.row_number().over(busiest)).where(F.col("rank") <= top).drop("rank")
    desks = _hours(partials, ("node", "desk"), _FULL).where(changed).withColumn("mailbox", F.lit(""))
    return (
        chosen.unionByName(desks)
        .join(_peaks(partials), on=["window", *by], how="left")
        .select(
            _day(), "window", *by, "posted", "finished",
            (begun + F.coalesce("rise", F.lit(0))).cast("bigint").alias("depth_max"),
            F.col("level").alias("depth_end"), F.col("full").alias("at_cap"), "refused",
        )
    )  # fmt: skip


def availability(partials: DataFrame, since: dt.date | None = None) -> DataFrame:
    """One row a mailbox and day on which it had a connection."""
    covers = F.broadcast(
        _of(partials, "covered")
        .groupBy("node")
        .agg(F.unix_micros(F.min("first_at")).alias("from"), F.unix_micros(F.max("last_at")).alias("to"))
    )
    day, sums = F.unix_micros("window"), ("n", "posted", "finished")
    box = ("node", "desk", "mailbox")
    boxes = (
        _from(_of(partials, "availability").select("window", *box, *sums), since)
        .unionByName(_online(_of(partials, "standing").join(covers, on="node", how="inner"), since))
        .groupBy("window", *box)
        .agg(*map(_sum, sums))
        .where("n <> 0 OR posted <> 0 OR finished <> 0")
        .join(covers, on="node", how="left")
        .withColumn("covered", F.least(F.col("to"), day + DAY_US) - F.greatest(F.col("from"), day))
    )
    return boxes.select(
        F.col("window").cast("date").alias("day"),
        *box,
        "covered",
        F.col("n").alias("online"),
        F.when(F.col("covered") > 0, F.col("n") / F.col("covered")).alias("share"),
        F.col("posted").alias("connections"),
        F.when(F.col("covered") > 0, F.col("posted") * 3.6e9 / F.col("covered")).alias("reconnect_rate"),
        F.col("finished").alias("half_open"),
    )


def _online(standing: DataFrame, since: dt.date | None) -> DataFrame:
    """The days of connections that stand, up to where the journal of their node reaches (``to``)."""
    begin, day = F.unix_micros("first_at"), F.col("d") * DAY_US
    end, zero = until_told(begin, F.col("to")), F.lit(0).cast("bigint")
    first, last = day_of(begin), day_of(end)
    if since is not None:
        first = F.greatest(first, F.lit((since - dt.date(1970, 1, 1)).days).cast("bigint"))
    return (
        standing.where(first <= last)
        .withColumn("d", F.explode(F.sequence(first, last)))
        .select(
            F.timestamp_micros(day).alias("window"), "node", "desk", "mailbox",
            (F.least(end, day + DAY_US) - F.greatest(begin, day)).alias("n"), zero.alias("posted"),
            zero.alias("finished"),
        )
    )  # fmt: skip


def deadletters(partials: DataFrame, since: dt.date | None = None) -> DataFrame:
    """One row a desk and cluster of errors; they belong to no day and are all made anew."""
    return (
        _of(partials, "deadletters")
        .groupBy("desk", F.col("label").alias("error"))
        .agg(
            _sum("n"), F.min("first_at").alias("first_at"), F.max("last_at").alias("last_at"), _sum("posted"),
            _sum("finished"),
        )
        .where("n <> 0")
        .select(
            "desk", "error", F.col("n").alias("count"), "first_at", "last_at", F.col("posted").alias("redriven"),
            F.col("finished").alias("redriven_delivered"),
        )
    )  # fmt: skip


def _tries(partials: DataFrame, by: tuple[str, ...]) -> DataFrame:
    """Hours with attempts, and how many of them failed."""
    return (
        _of(partials, "hours")
        .groupBy("window", *by)
        .agg(*map(_sum, _TRIED))
        .withColumn("attempts", F.col("failed") + F.col("succeeded"))
        .where("attempts > 0")
        .withColumn("failure_rate", F.col("failed") / F.col("attempts"))
    )


def outages(
    partials: DataFrame,
    since: dt.date | None = None,
    known: DataFrame | None = None,
    changed: dt.date | None = None,
    news: DataFrame | None = None,
    keep: Keep = same,
) -> DataFrame:
    """One row an hour and target in which most attempts failed although most before it did not.

    ``known`` are the rows that are there, and ``news`` the partials that came since, of which ``changed`` is the first
    day. Of days before that they are all that there are, and only when their backlog was gone may be told otherwise
    now; of targets without news they stay. ``keep`` is called with what is needed of the partials then.
    """
    target = ("desk", "mailbox")
    who = F.xxhash64(*target).alias("who")
    failing = (F.col("attempts") >= _ATTEMPTS_MIN) & (F.col("failure_rate") >= _RATE_JUMP)
    # Few are ever out: all else is made of the rows of those in one of whose hours enough has failed.
    enough = F.sum("failed") >= math.ceil(_ATTEMPTS_MIN * _RATE_JUMP)
    failures = _of(partials, "hours").where("failed <> 0").select("part", "window", "failed", who)
    if changed is not None:
        failures = failures.where(F.col("part") >= str(changed))
    known_before = stay = None
    if known is not None and news is not None:
        # A mailbox has another level only where an hour of it has more.
        told = F.broadcast(_of(news, "hours").select(who).distinct())
        failures = failures.join(told, on="who", how="left_semi")
        there = _from(known, since).withColumn("who", who)
        known_before = there.join(told, on="who", how="left_semi").select("who")
        stay = there.join(told, on="who", how="left_anti").select(*known.columns)
    suspects = failures.groupBy("window", "who").agg(enough.alias("enough")).where("enough").select("who")
    if known_before is not None:
        suspects = suspects.unionByName(known_before)
    own = _of(partials, "hours", "levels").select(*_LEVELS, *_TRIED, who)
    partials = keep(own.join(F.broadcast(suspects.distinct()), on="who", how="left_semi").drop("who"))
    number = (F.unix_micros("window") / 3_600_000_000).cast("bigint")
    before = Window.partitionBy(*target).orderBy("h").rangeBetween(-AROUND_H, -1)
    tried = F.sum("attempts").over(before)
    rated = (
        _tries(partials, target)
        .withColumn("h", number)
        .withColumn("baseline", F.coalesce(F.sum("failed").over(before) / tried, F.lit(0.0)))
    )
    out = _from(rated.where(failing & (F.col("failure_rate") >= 2 * F.col("baseline"))), since)
    levels = _hours(partials, target).select(*target, number.alias("hour"), "level")
    placed = out.join(levels, on=list(target), how="left")
    then = F.col("hour") <= F.col("h")
    drained = ~then & (F.col("level") <= 0) & (F.col("hour") <= F.col("h") + AROUND_H)
    by = ("window", *target, "h", "attempts", "failed", "succeeded", "failure_rate", "baseline")
    backlog = F.coalesce(F.max_by(F.when(then, F.col("level")), F.when(then, F.col("hour"))), F.lit(0))
    made = (
        placed.groupBy(*by)
        .agg(backlog.alias("backlog"), F.min(F.when(drained, F.col("hour"))).alias("drained"))
        .select(
            _day(),
            "window",
            *target,
            "attempts",
            F.col("failed").alias("failures"),
            "failure_rate",
            "baseline",
            F.col("backlog").cast("bigint").alias("backlog"),
            F.when(F.col("backlog") <= 0, F.lit(0).cast("bigint"))
            .otherwise((F.col("drained") - F.col("h")) * 3_600_000_000)
            .alias("drain"),
            (F.col("attempts") / F.greatest(F.col("succeeded"), F.lit(1))).alias("retry_storm"),
        )
    )
    return made if stay is None else made.unionByName(stay)


def _day() -> Column:
    return F.to_date("window").alias("day")
