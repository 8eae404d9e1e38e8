"""One batch of the books: what is new and what was open in, rows and the next open set out. No input or output."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from . import anomalies, lane, life, partials, silver, step, wait
from .carry import carry
from .context import CONTEXT_EVENTS, changes, connections, openings, pauses
from .lane import MESSAGE
from .told import KEY, LANE, box_of, is_, key_of, told

_POLICIES = "struct<policies:map<string,struct<quiet_s:double,quiet_max_s:double,capacity:bigint>>>"
_CONTEXT = ("node", "offset", "at", "event", "desk", "mailbox", "lane", "holder", "reason", "detail")


BROADCAST_MAX = 2_000_000
"""Messages whose keys are held in memory at one time."""


class Batch(NamedTuple):
    """What a batch of events comes to; see the package's text for what replaces and what is appended."""

    messages: DataFrame
    attempts: DataFrame
    anomalies: DataFrame
    partials: DataFrame
    carried: DataFrame


class _Sources(NamedTuple):
    """The events of a batch: of messages that go on, and of those that were finished before."""

    going: DataFrame
    late: DataFrame | None
    memo: DataFrame | None


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

    ``keep`` is called with the frames from which several others are made: a job persists them there.
    """
    nodes = keep(_nodes(events, carried))
    edges = nodes.select("node", "edge")
    context = keep(_context(events, carried))
    going, late, memo = _sources(events, carried, recalled, before)

    made = keep(life.plain_rows(life.grouped(going)))
    if memo is not None:
        made = _with_memo(made, memo)
    # What is not plain is gone through step by step; what is unfinished is carried on.
    wanted = made.where("NOT plain OR state <> 3").select("key", "message_id", "plain")
    near = F.broadcast(wanted) if wanted.count() <= BROADCAST_MAX else wanted
    some = keep(going.join(near, on=["key", "message_id"], how="inner"))
    odd = some.where("NOT plain").drop("plain")
    odd = odd.withColumn("base", F.lit(0)) if memo is None else _based(odd, memo)
    steps = keep(step.steps(odd))
    others = keep(step.rows(steps))
    plain = made.where("plain").select(*life.ROW)
    rows = plain.unionByName(others)

    marks = _marks(events, carried)
    entries = keep(lane.entries(rows, steps, marks))
    links, stops = connections(context), pauses(context)
    asked, quiet = wait.stretches(rows, steps, entries), _quiet(context)
    if quiet.isEmpty():
        asked = asked.withColumn("quiet_until", F.lit(None).cast("bigint"))
    else:
        asked = asked.join(lane.quiet_until(rows, quiet), on=list(MESSAGE), how="left")
    if memo is not None:
        asked = _remembered(asked, memo)
    opened = openings(context, None if carried is None else carried.where(F.col("role") == "opening"))
    waits = wait.spent(asked, changes(links, stops), opened.select("node", "desk", F.unix_micros("at").alias("opened")))
    if memo is not None:
        waits = _add_memo(waits, memo)
    waits = keep(waits)

    again = None if recalled is None else recalled.select(key_of().alias("key")).distinct()
    silent = some.where(is_("duplicate", "refused"))
    over = lane.overtaken(entries, rows, steps, None if late is None else _takes(late))
    if memo is not None:
        over = _first_of(over, memo)
    over = keep(over)
    found = [
        anomalies.of_messages(rows, nodes.select("node", "last_at")),
        anomalies.of_steps(steps, others),
        anomalies.of_lanes(entries, over, rows, edges),
        anomalies.answered_twice(_answers(rows, answered, edges)),
    ]
    full = [silver.messages(rows, waits), silver.refusals(some, others)]
    pieces = [partials.of_messages(rows), partials.levels(rows), partials.of_connections(links, nodes)]
    if late is not None and before is not None:
        amended = _latest_of(before)
        if again is not None:
            revived = amended.join(F.broadcast(again), on="key", how="left_semi")
            pieces.append(partials.taken_off(revived))
            amended = amended.join(F.broadcast(again), on="key", how="left_anti")
        full.append(_amended(amended, late))
        found.append(anomalies.of_finished(late.where(~is_("duplicate", "refused")), amended))
        silent = silent.select(*late.columns).unionByName(late.where(is_("duplicate", "refused")))
    pieces.append(partials.of_events(rows, steps, silent, edges))
    return Batch(
        reduce(DataFrame.unionByName, full),
        silver.attempts(rows, steps),
        anomalies.together(*found),
        reduce(DataFrame.unionByName, pieces).select(*partials.PARTIALS),
        carry(rows, some, context, links, stops, opened, nodes, over, memo, marks),
    )


def strays(events: DataFrame, carried: DataFrame | None = None) -> DataFrame:
    """(node, desk, mailbox, sender, message_id, key) of messages that finished rows may be there of.

    These are all new ones and those whose `posted` is neither new nor carried: whatever is not carried.
    """
    new = told(events).select("key", *KEY).distinct()
    if carried is None:
        return new
    known = carried.where((F.col("role") == "message") & (F.col("event") == "posted")).select(key_of().alias("key"))
    return new.join(F.broadcast(known.distinct()), on="key", how="left_anti")


def revived(events: DataFrame) -> DataFrame:
    """(key) of messages that are redriven in these events."""
    return events.where(F.col("event") == "redriven").select(key_of().alias("key")).distinct()


def causes(events: DataFrame) -> DataFrame:
    """(node, desk, cause_id, cause_key) of the new posts that answer something."""
    return (
        events.where((F.col("event") == "posted") & F.col("cause_id").isNotNull())
        .select("node", "desk", "cause_id")
        .distinct()
        .withColumn("cause_key", F.xxhash64("node", "desk", "cause_id"))
    )


# What goes in


def _sources(
    events: DataFrame, carried: DataFrame | None, recalled: DataFrame | None, before: DataFrame | None
) -> _Sources:
    new = told(events)
    memos: list[DataFrame] = []
    parts: list[DataFrame] = []
    late = None
    if before is not None:
        last = _latest_of(before).select("key", "message_id", F.col("generation").alias("had"))
        firsts = (
            new.where(is_("posted")).groupBy("key", "message_id").agg(F.min("offset").alias("from")).alias("firsts")
        )
        known = last.join(F.broadcast(firsts), on=["key", "message_id"], how="left")
        if recalled is not None:
            back = recalled.select(key_of().alias("key"), F.lit(True).alias("back")).distinct()
            known = known.join(F.broadcast(back), on="key", how="left")
        else:
            known = known.withColumn("back", F.lit(False))
        placed = new.join(F.broadcast(known), on=["key", "message_id"], how="left")
        is_late = F.col("had").isNotNull() & ~F.coalesce("back", F.lit(False))
        is_late = is_late & (F.col("offset") < F.coalesce("from", F.col("offset") + 1))
        late = placed.where(is_late).select(*new.columns)
        new = placed.where(~is_late).select(*new.columns)
        memos.append(_memos_of(before, known))
    parts.append(new)
    if carried is not None:
        own = carried.where(F.col("role") == "message")
        parts.append(told(own))
        memos.append(_carried_memos(own))
    if recalled is not None:
        parts.append(told(recalled))
    memo = reduce(DataFrame.unionByName, memos) if memos else None
    return _Sources(reduce(DataFrame.unionByName, parts), late, memo)


_MEMO = ("key", "message_id", "base", "memo_freed", "memo_overtaken", "memo_waits", "memo_offset")


def _memos_of(before: DataFrame, known: DataFrame) -> DataFrame:
    """What finished rows leave to their successors; to those that go on themselves, what they waited for so far."""
    back = F.coalesce("back", F.lit(False))
    own = _latest_of(before).drop("generation").join(known, on=["key", "message_id"], how="inner")
    spent = F.array(*(F.col(f"wait_{name}").cast("bigint") for name in wait.CAUSES))
    return own.select(
        "key",
        "message_id",
        (F.col("had") - back.cast("int")).alias("base"),
        F.lit(None).cast("bigint").alias("memo_freed"),
        F.lit(None).cast("array<bigint>").alias("memo_overtaken"),
        F.when(back, spent).alias("memo_waits"),
        F.when(back, F.col("last_offset")).alias("memo_offset"),
    )


def _carried_memos(own: DataFrame) -> DataFrame:
    first = F.struct("generation", "memo_freed", "memo_overtaken", "memo_waits", "memo_offset")
    return (
        own.groupBy(key_of().alias("key"), "message_id")
        .agg(F.min(F.when(F.col("generation").isNotNull(), first)).alias("m"))
        .where(F.col("m").isNotNull())
        .select("key", "message_id", (F.col("m.generation") - 1).alias("base"), "m.*")
        .select(*_MEMO)
    )


def _with_memo(made: DataFrame, memo: DataFrame) -> DataFrame:
    own = F.broadcast(memo.select("key", "message_id", "base"))
    joined = made.join(own, on=["key", "message_id"], how="left")
    return joined.withColumn("generation", F.col("generation") + F.coalesce("base", F.lit(0))).drop("base")


def _based(odd: DataFrame, memo: DataFrame) -> DataFrame:
    own = F.broadcast(memo.select("key", "message_id", "base"))
    return odd.join(own, on=["key", "message_id"], how="left").withColumn("base", F.coalesce("base", F.lit(0)))


def _first_generation(memo: DataFrame) -> DataFrame:
    """Memos concern the first generation that goes on."""
    return memo.withColumn("generation", F.col("base") + 1)


def _remembered(asked: DataFrame, memo: DataFrame) -> DataFrame:
    """Stretches with what was known of the lane before, without those whose waits are known."""
    own = F.broadcast(_first_generation(memo).select(*MESSAGE, "memo_freed", "memo_offset"))
    return (
        asked.join(own, on=list(MESSAGE), how="left")
        .where(F.col("memo_offset").isNull() | F.col("last").isNull() | (F.col("last") > F.col("memo_offset")))
        .withColumn("lane_until", F.greatest("lane_until", "memo_freed"))
        .drop("memo_freed", "memo_offset")
    )


def _add_memo(waits: DataFrame, memo: DataFrame) -> DataFrame:
    own = _first_generation(memo).where(F.col("memo_waits").isNotNull())
    known = own.select(*MESSAGE, *(F.col("memo_waits")[n].alias(f"wait_{name}") for n, name in enumerate(wait.CAUSES)))
    sums = (F.sum(f"wait_{name}").alias(f"wait_{name}") for name in wait.CAUSES)
    return waits.unionByName(known).groupBy(*MESSAGE).agg(*sums)


def _first_of(over: DataFrame, memo: DataFrame) -> DataFrame:
    """Whoever was overtaken before, was so first."""
    known = _first_generation(memo).where(F.col("memo_overtaken").isNotNull())
    return (
        over.unionByName(known.select(*MESSAGE, F.col("memo_overtaken").alias("overtaken")))
        .groupBy(*MESSAGE)
        .agg(F.min(F.struct(F.col("overtaken")[1].alias("by"), "overtaken")).alias("o"))
        .select(*MESSAGE, "o.overtaken")
    )


def _nodes(events: DataFrame, carried: DataFrame | None) -> DataFrame:
    """(node, edge, horizon, last_at, first_at, reached_before, reached): offsets and instants (µs), then and now."""
    at = F.unix_micros("at")
    now = events.groupBy("node").agg(
        F.max(F.struct("offset", at.alias("at"))).alias("last"), F.min(at).alias("first_at"), F.max(at).alias("reached")
    )
    nothing = F.lit(0).cast("bigint")
    if carried is None:
        return now.select(
            "node", nothing.alias("edge"), F.col("last.offset").alias("horizon"), F.col("last.at").alias("last_at"),
            "first_at", F.col("first_at").alias("reached_before"), "reached",
        )  # fmt: skip
    then = carried.where(F.col("role") == "node").select(
        "node", F.col("offset").alias("edge"), at.alias("old_at"), F.unix_micros("due_at").alias("reached_before"),
        F.unix_micros("expires_at").alias("old_first"),
    )  # fmt: skip
    return now.join(then, on="node", how="full").select(
        "node",
        F.coalesce("edge", nothing).alias("edge"),
        F.coalesce("last.offset", "edge").alias("horizon"),
        F.coalesce("last.at", "old_at").alias("last_at"),
        F.least("first_at", "old_first").alias("first_at"),
        F.coalesce("reached_before", "first_at").alias("reached_before"),
        F.greatest("reached", "reached_before").alias("reached"),
    )


def _context(events: DataFrame, carried: DataFrame | None) -> DataFrame:
    new = events.where(F.col("event").isin(*CONTEXT_EVENTS)).select(*_CONTEXT)
    if carried is None:
        return new
    return new.unionByName(carried.where(F.col("role") == "context").select(*_CONTEXT))


def _marks(events: DataFrame, carried: DataFrame | None) -> DataFrame:
    """(node, desk, mailbox, lane, box, lane_seq, freed, offset) of the lanes that are known."""
    known = events.limit(0) if carried is None else carried.where(F.col("role") == "lane")
    freed = F.lit(None).cast("bigint") if carried is None else F.col("memo_freed")
    return known.select(*LANE, box_of().alias("box"), "lane_seq", freed.alias("freed"), "offset")


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


# Messages that were finished before


def _latest_of(before: DataFrame) -> DataFrame:
    """Of several generations the last."""
    order = Window.partitionBy("key", "message_id").orderBy(F.desc("generation"))
    return before.withColumn("rank", F.row_number().over(order)).where("rank = 1").drop("rank")


def _amended(before: DataFrame, late: DataFrame) -> DataFrame:
    """Finished rows of which more was told; their outcome stays."""
    more = late.groupBy("key", "message_id").agg(
        F.max("offset").alias("more_offset"),
        F.sum(is_("duplicate").cast("int")).alias("more"),
        F.min(F.when(is_("leased"), F.struct("offset", "ts"))).alias("lease"),
        F.min(F.when(is_("received"), F.struct("offset", "ts"))).alias("got"),
    )
    columns: dict[str, Column] = {
        "duplicates": (F.col("duplicates") + F.col("more")).cast("int"),
        "last_offset": F.greatest("last_offset", "more_offset"),
        "first_leased_at": F.coalesce("first_leased_at", F.timestamp_micros("lease.ts")),
        "received_at": F.coalesce("received_at", F.timestamp_micros("got.ts")),
    }
    names = [name for name in silver.COLUMNS if name in before.columns]
    return before.join(more, on=["key", "message_id"], how="inner").select(
        *(columns[name].alias(name) if name in columns else F.col(name) for name in names)
    )


def _takes(late: DataFrame) -> DataFrame:
    return late.where(is_("leased", "delivered") & (F.col("lane_seq") > 0)).select(
        "box", "lane", "lane_seq", F.col("offset").alias("taken")
    )


def _answers(rows: DataFrame, answered: DataFrame | None, edges: DataFrame) -> DataFrame:
    new = (
        rows.where(F.col("cause_id").isNotNull() & F.col("posted").isNotNull())
        .join(F.broadcast(edges), on="node", how="left")
        .select(
            "node", "desk", "cause_id", "commit", F.col("posted_offset").alias("offset"), F.col("posted").alias("ts"),
            (F.col("posted_offset") > F.coalesce("edge", F.lit(0))).alias("begun"),
        )
    )  # fmt: skip
    if answered is None:
        return new
    old = answered.where(F.col("cause_id").isNotNull() & F.col("posted_at").isNotNull()).select(
        "node",
        "desk",
        "cause_id",
        "commit",
        F.col("first_offset").alias("offset"),
        F.unix_micros("posted_at").alias("ts"),
        F.lit(False).alias("begun"),
    )
    return new.unionByName(old)
