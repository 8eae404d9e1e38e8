"""One batch of the books: what is new and what was open in, rows and the next open set out. No input or output."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import NamedTuple

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from ...journal.schema import NAMES
from ..schema import ATTEMPTS, MESSAGES, VOLATILE
from . import anomalies, silver
from .context import BOX, CONTEXT_EVENTS, connections, timelines
from .lane import LANE, overtaken_later, with_lane
from .life import KEY, LIFE_EVENTS, TOLD, key_of, lives
from .partials import PARTIALS, connection_partials, event_partials, message_partials

CARRIED = (*NAMES, "role", "generation", "memo_freed", "memo_overtaken")
"""Columns of the open set: events, and what is known of them from batches that are gone."""
_POLICIES = "struct<policies:map<string,struct<quiet_s:double,quiet_max_s:double,capacity:bigint>>>"


class Batch(NamedTuple):
    """What a batch of events comes to; see the package's text for what replaces and what is appended."""

    messages: DataFrame
    attempts: DataFrame
    anomalies: DataFrame
    partials: DataFrame
    carried: DataFrame


def _same(frame: DataFrame) -> DataFrame:
    return frame


def advance(
    events: DataFrame,
    carried: DataFrame | None = None,
    recalled: DataFrame | None = None,
    before: DataFrame | None = None,
    answered: DataFrame | None = None,
    keep: Callable[[DataFrame], DataFrame] = _same,
) -> Batch:
    """The rows that these events make or change, and what the next batch needs of them.

    ``keep`` is called with the frames from which the others are made: a job persists them there.
    """
    every = _gathered(events, carried, recalled, before)
    own = every.where(F.col("role").isNull() | F.col("role").isin("message", "recalled"))
    context = every.where(
        F.col("event").isin(*CONTEXT_EVENTS) & (F.col("role").isNull() | F.col("role").isin("context", "opening"))
    )
    lasts = (
        every.where(F.col("role").isNull() | (F.col("role") == "last"))
        .groupBy("node")
        .agg(F.max(F.struct("offset", F.unix_micros("at").alias("at"))).alias("last"))
        .select("node", F.col("last.offset").alias("horizon"), F.col("last.at").alias("last_at"))
    )
    ends = every.where(F.col("role") == "lane").select(*LANE, "lane_seq", "offset")

    folded = lives(own).join(F.broadcast(lasts), on="node", how="left")
    laned = with_lane(folded, ends, _quiet(context))
    later = overtaken_later(laned)
    first_of = F.array_sort(
        F.array_compact(F.array("memo_overtaken", "overtaken", "later")),
        lambda a, b: F.when(a[1] < b[1], -1).when(a[1] > b[1], 1).otherwise(0),
    )
    rows = keep(
        laned.join(later, on=[*KEY, "generation"], how="left")
        .withColumn("overtaken", F.get(first_of, F.lit(0)))
        .drop("later")
    )
    places = rows.select(*BOX).distinct()
    lines = timelines(context, places)
    full = keep(silver.messages(rows, lines, before).unionByName(silver.refusals(own, rows)))
    links = connections(context)
    pieces = [
        message_partials(full),
        event_partials(events),
        connection_partials(links, lasts.select("node", "last_at")),
    ]
    if recalled is not None:
        # The rows that these come in place of have been counted.
        old = lives(_gathered(recalled, None, None, before)).join(F.broadcast(lasts), on="node", how="left")
        gone = old.withColumn("lane_until", F.lit(None).cast("bigint")).withColumn(
            "quiet_until", F.lit(None).cast("bigint")
        )
        counted = message_partials(silver.messages(gone, lines, None).where(F.col("part") != "open"))
        pieces.append(counted.withColumn("n", -F.col("n")))
    found = anomalies.together(anomalies.of_messages(rows, before), anomalies.answered_twice(rows, answered))
    return Batch(
        full.select(*(name for name in MESSAGES.names if name not in VOLATILE)),
        silver.attempts(rows).select(*(name for name in ATTEMPTS.names if name not in VOLATILE)),
        found,
        reduce(DataFrame.unionByName, pieces).select(*PARTIALS),
        _carry(every, own, rows, context, links),
    )


def strays(events: DataFrame, carried: DataFrame | None = None) -> DataFrame:
    """(node, desk, mailbox, sender, message_id) of events whose `posted` is neither new nor carried."""
    every = _gathered(events, carried, None, None).where(
        (F.col("role").isNull() | (F.col("role") == "message"))
        & F.col("event").isin(*TOLD)
        & (F.col("message_id") != "")
    )
    return (
        every.withColumn("key", key_of())
        .groupBy("key", "message_id")
        .agg(
            F.max(F.col("event") == "posted").alias("known"),
            F.max(F.col("role").isNull()).alias("new"),
            *(F.first(name).alias(name) for name in KEY if name != "message_id"),
        )
        .where(F.col("new") & ~F.col("known"))
        .select(*KEY)
    )


def causes(events: DataFrame) -> DataFrame:
    """(node, desk, cause_id) of the new posts that answer something."""
    return (
        events.where((F.col("event") == "posted") & F.col("cause_id").isNotNull())
        .select("node", "desk", "cause_id")
        .distinct()
    )


def _gathered(
    events: DataFrame, carried: DataFrame | None, recalled: DataFrame | None, before: DataFrame | None
) -> DataFrame:
    """New, carried and recalled events with the columns of the open set; new ones have no role."""

    def plain(frame: DataFrame, role: str | None) -> DataFrame:
        return frame.select(
            *NAMES,
            F.lit(role).cast("string").alias("role"),
            F.lit(None).cast("int").alias("generation"),
            F.lit(None).cast("bigint").alias("memo_freed"),
            F.lit(None).cast("array<bigint>").alias("memo_overtaken"),
        )

    every = plain(events, None)
    if carried is not None:
        every = every.unionByName(carried.select(*CARRIED))
    if recalled is not None:
        again = plain(recalled.where(F.col("event").isin(*TOLD)), "recalled")
        every = every.unionByName(again)
    return every


def _quiet(context: DataFrame) -> DataFrame:
    """(node, desk, quiet_us, quiet_max_us) of desks that wait for quiet, by the node's last `started`."""
    started = context.where(F.col("event") == "started").groupBy("node").agg(F.max_by("detail", "offset").alias("d"))
    return (
        started.select("node", F.explode(F.from_json("d", _POLICIES)["policies"]).alias("desk", "policy"))
        .where(F.col("policy.quiet_s") > 0)
        .select(
            "node",
            "desk",
            (F.col("policy.quiet_s") * 1e6).cast("bigint").alias("quiet_us"),
            (F.col("policy.quiet_max_s") * 1e6).cast("bigint").alias("quiet_max_us"),
        )
    )


def _carry(every: DataFrame, own: DataFrame, rows: DataFrame, context: DataFrame, links: DataFrame) -> DataFrame:
    """What the next batch needs."""
    is_open = ~silver.closed()
    gone = F.when(silver.closed(), F.col("freed"))
    # What closed messages before it in its lane did is known only now.
    lower = Window.partitionBy(*LANE).orderBy("lane_seq", "first_offset").rowsBetween(Window.unboundedPreceding, -1)
    kept = (
        rows.select(
            *KEY, "generation", "lane", "lane_seq", "first_offset", "last_offset", "overtaken", "memo_freed",
            is_open.alias("is_open"),
            F.max(gone).over(lower).alias("freed_before"),
        )
        .where("is_open")
        .select(
            *KEY,
            F.col("generation").alias("g"),
            F.col("first_offset").alias("from"),
            F.col("last_offset").alias("to"),
            F.greatest("memo_freed", "freed_before").alias("freed"),
            F.col("overtaken").alias("over"),
        )
    )  # fmt: skip
    life = own.where(F.col("event").isin(*TOLD) & (F.col("message_id") != ""))
    held = (
        life.join(kept, on=list(KEY), how="inner")
        .where(F.col("offset").between(F.col("from"), F.col("to")))
        .select(
            *NAMES,
            F.lit("message").alias("role"),
            F.col("g").alias("generation"),
            F.col("freed").alias("memo_freed"),
            F.col("over").alias("memo_overtaken"),
        )
    )
    refused = own.where((F.col("event") == "refused") & (F.col("message_id") != "")).join(
        rows.select(*KEY).distinct(), on=list(KEY), how="left_anti"
    )
    in_lane = F.col("event").isin(*LIFE_EVENTS) & (F.col("lane_seq") > 0)
    is_end = (in_lane & F.col("role").isNull()) | (F.col("role") == "lane")
    ends = _latest(every.where(is_end), LANE, ["lane_seq", "offset"], "lane")
    last = _latest(every.where(F.col("role").isNull() | (F.col("role") == "last")), ("node",), ["offset"], "last")
    opening = context.where(F.col("event") == "connected")
    first = _latest(opening, ("node", "desk"), ["offset"], "opening", lowest=True)

    busy = rows.where(is_open).groupBy(*BOX).agg(F.min("first_offset").alias("from"))
    standing = (
        links.join(busy, on=list(BOX), how="left")
        .where(F.col("last").isNull() | (F.col("last") > F.col("from")))
        .select("node", F.explode(F.array_compact(F.array("first", "last"))).alias("offset"))
        .distinct()
    )
    line = context.where(F.col("role").isNull() | (F.col("role") == "context"))
    lines = line.where(F.col("event").isin("connected", "disconnected")).join(
        standing, on=["node", "offset"], how="left_semi"
    )
    starts = line.where(F.col("event") == "started")
    newest = starts.groupBy("node").agg(F.max("offset").alias("offset"))
    stops = starts.join(standing.unionByName(newest).distinct(), on=["node", "offset"], how="left_semi")
    switches = line.where(F.col("event").isin("paused", "resumed"))
    place = [*BOX, "lane"]
    latest = Window.partitionBy(*place).orderBy(F.desc("offset"))
    held_back = (
        switches.withColumn("rank", F.row_number().over(latest))
        .join(busy, on=list(BOX), how="left")
        .where(F.col("from").isNotNull() | ((F.col("rank") == 1) & (F.col("event") == "paused")))
    )
    surroundings = [
        frame.select(*NAMES, F.lit("context").alias("role"), "generation", "memo_freed", "memo_overtaken")
        for frame in (lines, stops, held_back)
    ]
    messages = [
        frame.select(*NAMES, F.lit("message").alias("role"), "generation", "memo_freed", "memo_overtaken")
        for frame in (refused,)
    ]
    return reduce(DataFrame.unionByName, [held, *messages, ends, last, first, *surroundings]).select(*CARRIED)


def _latest(frame: DataFrame, by: tuple[str, ...], order: list[str], role: str, *, lowest: bool = False) -> DataFrame:
    """The one event of each group that is last (or first) in this order, carried under a role."""
    rest = [name for name in NAMES if name not in (*by, *order)]
    pick = (F.min if lowest else F.max)(F.struct(*order, F.struct(*rest).alias("rest")))
    return (
        frame.groupBy(*by)
        .agg(pick.alias("one"))
        .select(*by, *(F.col(f"one.{name}").alias(name) for name in order), "one.rest.*")
        .select(
            *NAMES,
            F.lit(role).alias("role"),
            F.lit(None).cast("int").alias("generation"),
            F.lit(None).cast("bigint").alias("memo_freed"),
            F.lit(None).cast("array<bigint>").alias("memo_overtaken"),
        )
    )
