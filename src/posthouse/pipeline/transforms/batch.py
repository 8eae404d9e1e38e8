"""One batch of the books: what is new and what was open in, rows and the next open set out. No input or output."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from .. import local
from . import anomalies, fullness, lane, life, partials, quiet, silver, step, wait
from .carry import MEMO, REFUSED, carry
from .context import CONTEXT_EVENTS, changes, connections, openings, pauses
from .lane import MESSAGE
from .told import (
    BOX,
    CODE,
    ID,
    LANE,
    NEVER,
    PLACE,
    above,
    box_of,
    is_,
    key_of,
    limits,
    spot_of,
    told,
    track_of,
    twin_of,
)

_CONTEXT = ("node", "offset", "at", "event", "desk", "mailbox", "lane", "kind", "holder", "reason", "detail")
_SILENT = ("box", *BOX, "kind", "offset", "ts", "code", "reason")
"""Of what was refused or known: what is counted of it."""


BROADCAST_MAX = 2_000_000
"""Messages whose keys are held in memory at one time."""
SECONDS_MAX = 1e10


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
    earlier: DataFrame | None
    """The generations that messages had before, as ``_placed`` has them."""
    untold: DataFrame | None
    """Of the open set, what was only refused, and is not told of now: its rows are there, and it is carried on."""


class Keep(Protocol):
    """Computes rows once, where several other frames are made of them."""

    def __call__(self, frame: DataFrame, beside: DataFrame | None = None) -> DataFrame:
        """The same rows; with those of another frame of the same columns, where both were kept before."""


def same(frame: DataFrame, beside: DataFrame | None = None) -> DataFrame:
    """For small frames: nothing is kept, and all is computed where it is needed."""
    return frame if beside is None else frame.unionByName(beside)


def advance(
    events: DataFrame,
    carried: DataFrame | None = None,
    recalled: DataFrame | None = None,
    before: DataFrame | None = None,
    answered: DataFrame | None = None,
    keep: Keep = same,
) -> Batch:
    """The rows that these events make or change, and what the next batch needs of them.

    ``keep`` is called with the frames from which several others are made: a job persists them there.
    """
    if before is not None:
        before = before.withColumn("twin", twin_of())
    going, late, earlier, untold = _sources(events, carried, recalled, before)
    with ThreadPoolExecutor(max_workers=2) as pool:
        # These do not wait for each other.
        known = pool.submit(lambda: _known(_nodes(events, carried)))
        around = pool.submit(lambda: keep(_context(events, carried)))
        placed = None if earlier is None else keep(earlier)
        lives = life.plain_rows(life.grouped(going))
        made = keep(lives if placed is None else _with_memo(lives, placed))
        (nodes, asked, caps), context = known.result(), around.result()
    edges = None if carried is None else nodes.select("node", "edge")
    # What is not plain is gone through step by step; what is unfinished is carried on.
    wanted = made.where("NOT plain OR state <> 3").select(*ID, "plain")
    near, nearly = wanted, wanted.select("key").distinct()
    if wanted.count() <= BROADCAST_MAX:
        near, nearly = F.broadcast(near), F.broadcast(nearly)
    # By the number first: most are none of these, and a number alone is looked up fast.
    some = keep(going.join(nearly, on="key", how="left_semi").join(near, on=list(ID), how="inner"))
    odd = some.where("NOT plain").drop("plain")
    odd = odd.withColumn("base", F.lit(0)) if placed is None else _based(odd, placed, F.col("offset"))
    memo = None if placed is None else _memos(placed)
    steps = keep(step.steps(odd))
    others = keep(step.rows(steps))
    rows = keep(made, others).where("generation IS NOT NULL")

    marks, links, stops = _marks(events, carried), connections(context), pauses(context)
    numbers = None if late is None or before is None else _numbers(late, before, marks)
    opened = openings(context, None if carried is None else carried.where(F.col("role") == "opening"))

    moved = fullness.moves(rows, steps, edges)
    silent = some.where(is_("duplicate", "refused")).select(*_SILENT).unionByName(_nameless(context))
    if late is not None:
        silent = silent.unionByName(late.where(is_("duplicate", "refused")).select(*_SILENT))
    # Of a small batch all of it is made anew sooner than it is written and read back.
    anew = keep if carried is None else None
    put = anew or same

    def sums() -> DataFrame:
        pieces = [partials.of_messages(rows, put), partials.levels(rows), partials.of_connections(links, nodes)]
        if before is not None and recalled is not None:
            pieces.append(partials.taken_off(before.where("revived")))
        pieces += [partials.of_events(rows, steps, silent, edges, boxes), partials.of_depth(risen, line, boxes)]
        return keep(reduce(DataFrame.unionByName, pieces).select(*partials.PARTIALS))

    def messages(waits: DataFrame) -> DataFrame:
        full = [silver.messages(rows, waits), silver.refusals(some, others)]
        if late is not None and before is not None:
            full.append(_amended(before.where("NOT revived"), late))
        return reduce(DataFrame.unionByName, full)

    def findings(over: DataFrame) -> DataFrame:
        found = [
            anomalies.of_messages(rows, nodes.select("node", "last_at")),
            anomalies.of_steps(steps, others),
            anomalies.of_lanes(entries, over, rows, edges, None if numbers is None else before),
            anomalies.answered_twice(_answers(rows, answered, edges)),
        ]
        if late is not None and before is not None:
            said = late.where(~is_("duplicate", "refused"))
            found.append(anomalies.of_finished(said, before.where("NOT revived")))
        return anomalies.together(*found)

    with ThreadPoolExecutor(max_workers=2) as pool:
        # Making a plan takes as long as a small batch does: plans are made side by side, too.
        risen = put(fullness.rises(moved))
        line = None if caps is None else fullness.levels(moved, risen, caps, _stood(carried), put)
        boxes = put(_boxes(rows, silent))
        summed = pool.submit(sums)
        entries = keep(lane.entries(rows, steps, marks, numbers))
        overtaken = pool.submit(lambda: keep(_overtaken(entries, rows, steps, late, memo, anew)))
        posted = None if asked is None else put(quiet.posts(rows, asked, edges, carried))
        waits = keep(_waits(rows, steps, entries, posted, memo, changes(links, stops), opened))
        over = overtaken.result()
        found = pool.submit(findings, over)
        full = None if line is None else fullness.standing(line).join(boxes, on="box", how="inner")
        known_marks = marks if numbers is None else marks.unionByName(_as_marks(numbers))
        next_open = pool.submit(
            carry, rows, some, context, links, stops, opened, nodes, over, memo, known_marks, full, posted, steps
        )
        return Batch(
            messages(waits),
            silver.attempts(rows, steps if memo is None else _not_told(steps, memo)),
            found.result(),
            summed.result(),
            next_open.result() if untold is None else next_open.result().unionByName(untold),
        )


def _waits(
    rows: DataFrame,
    steps: DataFrame,
    entries: DataFrame,
    posted: DataFrame | None,
    memo: DataFrame | None,
    moments: DataFrame,
    opened: DataFrame,
) -> DataFrame:
    """What the messages that are closed waited for.

    ``moments`` are those at which mailboxes change, ``posted`` the posts of lanes that are waited for to be quiet.
    """
    asked = wait.stretches(rows, steps, entries)
    if posted is None:
        asked = asked.withColumn("quiet_until", F.lit(None).cast("bigint"))
    else:
        asked = asked.join(quiet.until(rows, posted), on=list(MESSAGE), how="left")
        asked = asked.withColumn("quiet_until", F.when(F.col("first"), F.col("quiet_until")))
    if memo is not None:
        asked = _remembered(asked, memo)
    found = wait.spent(asked, moments, opened.select(spot_of().alias("spot"), F.unix_micros("at").alias("opened")))
    return found if memo is None else _add_memo(found, memo)


def _overtaken(
    entries: DataFrame,
    rows: DataFrame,
    steps: DataFrame,
    late: DataFrame | None,
    memo: DataFrame | None,
    keep: Keep | None,
) -> DataFrame:
    """Who was overtaken, in this batch or before."""
    found = lane.overtaken(entries, rows, steps, None if late is None else _takes(late), keep)
    return found if memo is None else _first_of(found, memo)


def carried_keys(carried: DataFrame) -> DataFrame:
    """(key, generation) of the messages whose `posted` is carried: what is told is of the last, if that is open."""
    posts = carried.where((F.col("role") == "message") & (F.col("event") == "posted"))
    return posts.select(key_of().alias("key"), "generation")


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
    events: DataFrame,
    carried: DataFrame | None,
    recalled: DataFrame | None,
    before: DataFrame | None,
) -> _Sources:
    new = told(events)
    earlier: list[DataFrame] = []
    parts: list[DataFrame] = []
    late = None
    if before is not None:
        known = F.broadcast(before.where("NOT revived").select(*ID, "next_post", F.lit(1).alias("had")))
        placed = new.join(known, on=list(ID), how="left")
        is_late = F.col("had").isNotNull() & (F.col("offset") < F.coalesce("next_post", F.col("offset") + 1))
        late = placed.where(is_late).select(*new.columns)
        new = placed.where(~is_late).select(*new.columns)
        earlier.append(_finished(before))
    parts.append(new)
    untold = None
    if carried is not None:
        own = carried.where(F.col("role") == "message")
        refused = carried.where(F.col("role") == REFUSED).withColumn("key", key_of())
        now = told(events).select("key").distinct()
        parts += [told(own), told(refused.join(now, on="key", how="left_semi"))]
        untold = refused.join(now, on="key", how="left_anti").select(*carried.columns)
        earlier.append(_unfinished(own))
    if recalled is not None:
        parts.append(told(recalled))
    before_these = _placed(reduce(DataFrame.unionByName, earlier)) if earlier else None
    return _Sources(reduce(DataFrame.unionByName, parts), late, before_these, untold)


def _finished(before: DataFrame) -> DataFrame:
    """Finished generations, each with where it began; of those that go on, with what they waited for so far."""
    back = F.col("revived")
    spent = F.array(*(F.col(f"wait_{name}").cast("bigint") for name in wait.CAUSES))
    return before.select(
        *ID,
        F.col("first_offset").alias("since"),
        "generation",
        back.alias("goes"),
        F.lit(None).cast("bigint").alias("memo_freed"),
        F.lit(None).cast("array<bigint>").alias("memo_overtaken"),
        F.when(back, spent).alias("memo_waits"),
        F.when(back, F.col("last_offset")).alias("memo_offset"),
    )


def _unfinished(own: DataFrame) -> DataFrame:
    """The carried generations: a row for each of their events."""
    return own.select(
        key_of().alias("key"), twin_of().alias("twin"), F.col("offset").alias("since"), "generation",
        F.lit(True).alias("goes"), *MEMO[1:],
    )  # fmt: skip


def _placed(earlier: DataFrame) -> DataFrame:
    """(key, twin, known): the generations that a message had before, in order, with what is known of each.

    ``since`` is where it begins, ``goes`` whether its events are here, and ``base`` how many there were before it that
    are not: generations are numbered by what is here, and go on behind what is finished.
    """
    each = F.struct("since", "generation", "goes", *MEMO[1:])
    every = earlier.groupBy(*ID).agg(F.sort_array(F.collect_list(each)).alias("all"))
    # A generation has an entry for each of its events: the first says where it begins.
    first = every.withColumn(
        "all",
        F.filter("all", lambda each, n: (n == 0) | (each["generation"] != F.get("all", n - 1)["generation"])),
    )

    def base(each: Column, n: Column) -> Column:
        here = F.size(F.filter(F.slice("all", 1, n + 1), lambda other: other["goes"]))
        return each.withField("base", each["generation"] - here)

    return first.select(*ID, F.transform("all", base).alias("known"))


def _with_memo(made: DataFrame, placed: DataFrame) -> DataFrame:
    based = _based(made, placed, F.col("posted_offset"))
    return based.withColumn("generation", F.col("generation") + F.col("base")).drop("base")


def _based(frame: DataFrame, placed: DataFrame, offset: Column) -> DataFrame:
    """With the ``base`` of the generation that an offset is of, or comes after."""
    # Of nearly all there is nothing before what is here.
    behind = placed.where(F.exists("known", lambda each: each["base"] != 0))
    joined = frame.join(F.broadcast(behind), on=list(ID), how="left")
    found = F.aggregate(
        "known",
        F.get("known", F.lit(0))["base"],
        lambda so_far, each: F.when(each["since"] <= offset, each["base"]).otherwise(so_far),
    )
    return joined.withColumn("base", F.coalesce(found, F.lit(0))).drop("known")


def _memos(placed: DataFrame) -> DataFrame:
    """(key, twin, generation, …): what is known of each generation that goes on."""
    each = placed.select(*ID, F.explode(F.filter("known", lambda each: each["goes"])).alias("m"))
    return each.select(*ID, *(F.col("m")[name].alias(name) for name in MEMO))


def _remembered(asked: DataFrame, memo: DataFrame) -> DataFrame:
    """Stretches with what was known of the lane before, without those whose waits are known."""
    own = F.broadcast(memo.select(*MESSAGE, "memo_freed", "memo_offset"))
    return (
        asked.join(own, on=list(MESSAGE), how="left")
        .where(F.col("memo_offset").isNull() | F.col("last").isNull() | (F.col("last") > F.col("memo_offset")))
        .withColumn("lane_until", F.greatest("lane_until", "memo_freed"))
        .drop("memo_freed", "memo_offset")
    )


def _add_memo(waits: DataFrame, memo: DataFrame) -> DataFrame:
    own = memo.where(F.col("memo_waits").isNotNull())
    known = own.select(*MESSAGE, *(F.col("memo_waits")[n].alias(f"wait_{name}") for n, name in enumerate(wait.CAUSES)))
    sums = (F.sum(f"wait_{name}").alias(f"wait_{name}") for name in wait.CAUSES)
    return waits.unionByName(known).groupBy(*MESSAGE).agg(*sums)


def _not_told(steps: DataFrame, memo: DataFrame) -> DataFrame:
    """Steps without those of messages that live again, up to where they were finished before: those are in the lake."""
    own = memo.where(F.col("memo_offset").isNotNull()).select(*MESSAGE, "memo_offset")
    joined = steps.join(F.broadcast(own), on=list(MESSAGE), how="left")
    return joined.where(F.col("memo_offset").isNull() | (F.col("offset") > F.col("memo_offset"))).drop("memo_offset")


def _first_of(over: DataFrame, memo: DataFrame) -> DataFrame:
    """Whoever was overtaken before, was so first."""
    known = memo.where(F.col("memo_overtaken").isNotNull())
    return (
        over.unionByName(known.select(*MESSAGE, F.col("memo_overtaken").alias("overtaken")))
        .groupBy(*MESSAGE)
        .agg(F.min(F.struct(F.col("overtaken")[1].alias("by"), "overtaken")).alias("o"))
        .select(*MESSAGE, "o.overtaken")
    )


def _nodes(events: DataFrame, carried: DataFrame | None) -> DataFrame:
    """(node, edge, horizon, last_at, first_at, reached_before, reached, policies, was_quiet, was_capped,
    starts): offsets and µs.

    ``starts`` are the offsets at which the node started, with what it said then; ``policies`` is what it said last,
    empty if that was nothing. ``was_quiet`` and ``was_capped`` (0 or 1) are whether a desk had waited for quiet, or had
    been allowed only so much, before these events.
    """
    at = F.unix_micros("at")
    # Who says nothing of policies has none from then on.
    said = F.coalesce("detail", F.lit("")).alias("detail")
    started = F.when(F.col("event") == "started", F.struct("offset", said))
    now = events.groupBy("node").agg(
        F.max(F.struct("offset", at.alias("at"))).alias("last"),
        F.min(at).alias("first_at"),
        F.max(at).alias("reached"),
        F.max(started)["detail"].alias("policies"),
        F.collect_list(started).alias("starts"),
    )
    nothing = F.lit(0).cast("bigint")
    if carried is None:
        return now.select(
            "node", nothing.alias("edge"), F.col("last.offset").alias("horizon"), F.col("last.at").alias("last_at"),
            "first_at", F.col("first_at").alias("reached_before"), "reached", "policies",
            F.lit(0).alias("was_quiet"), F.lit(0).alias("was_capped"), "starts",
        )  # fmt: skip
    then = carried.where(F.col("role") == "node").select(
        "node", F.col("offset").alias("edge"), at.alias("old_at"), F.unix_micros("due_at").alias("reached_before"),
        F.unix_micros("expires_at").alias("old_first"), F.col("detail").alias("old_policies"),
        F.col("attempt").alias("old_quiet"), F.col("size_bytes").cast("int").alias("old_capped"),
    )  # fmt: skip
    return now.join(then, on="node", how="full").select(
        "node",
        F.coalesce("edge", nothing).alias("edge"),
        F.coalesce("last.offset", "edge").alias("horizon"),
        F.coalesce("last.at", "old_at").alias("last_at"),
        F.least("first_at", "old_first").alias("first_at"),
        F.coalesce("reached_before", "first_at").alias("reached_before"),
        F.greatest("reached", "reached_before").alias("reached"),
        F.coalesce("policies", "old_policies").alias("policies"),
        F.coalesce("old_quiet", F.lit(0)).alias("was_quiet"),
        F.coalesce("old_capped", F.lit(0)).alias("was_capped"),
        # What held before these events, and what since.
        F.concat(
            F.array(F.struct(F.lit(0).cast("bigint").alias("offset"), F.col("old_policies").alias("detail"))),
            F.coalesce("starts", F.array().cast("array<struct<offset:bigint,detail:string>>")),
        ).alias("starts"),
    )


def _context(events: DataFrame, carried: DataFrame | None) -> DataFrame:
    """What surrounds messages. With it what was refused and names none: both are found in one go."""
    refused = (F.col("message_id") == "") & F.col("event").isin("duplicate", "refused")
    new = events.where(F.col("event").isin(*CONTEXT_EVENTS) | refused).select(*_CONTEXT)
    if carried is None:
        return new
    return new.unionByName(carried.where(F.col("role") == "context").select(*_CONTEXT))


def _nameless(context: DataFrame) -> DataFrame:
    """What was refused at the door, before there was a message: it is counted, and makes no row."""
    return (
        context.where(F.col("event").isin("duplicate", "refused"))
        .withColumn("box", box_of())
        .withColumn("ts", F.unix_micros("at"))
        .withColumn("code", F.when(F.col("event") == "refused", CODE["refused"]).otherwise(CODE["duplicate"]))
        .select(*_SILENT)
    )


def _marks(events: DataFrame, carried: DataFrame | None) -> DataFrame:
    """(box, track, node, desk, mailbox, lane, lane_seq, freed, offset) of the lanes that are known."""
    known = events.limit(0) if carried is None else carried.where(F.col("role") == "lane")
    freed = F.lit(None).cast("bigint") if carried is None else F.col("memo_freed")
    return known.select(
        box_of().alias("box"), track_of().alias("track"), *LANE, "lane_seq", freed.alias("freed"), "offset"
    )


class _Known(NamedTuple):
    """What is known by value, since nearly every plan needs it."""

    nodes: DataFrame
    asked: DataFrame | None
    """What desks that wait for quiet ask for, as ``quiet`` has it; None where none ever did."""
    caps: DataFrame | None
    """What desks allow, as ``fullness`` has it: each `started` holds until the next; None where none ever did."""


def _known(nodes: DataFrame) -> _Known:
    spark, found = nodes.sparkSession, nodes.toArrow()
    asked: list[tuple[Any, ...]] = []
    caps: list[tuple[Any, ...]] = []
    was_quiet: list[int] = []
    # A mailbox that is full may be so by what is not said any more.
    was_capped: list[int] = []
    for row in found.select(["node", "was_quiet", "was_capped", "starts"]).to_pylist():
        asked_before, caps_before = len(asked), len(caps)
        starts = sorted((each["offset"], each["detail"] or "") for each in row["starts"])
        for (since, detail), (till, _) in pairwise([*starts, (NEVER, "")]):
            for desk, policy in _policies(detail).items():
                # Nobody's mailbox holds more than that.
                if type(cap := policy.get("capacity")) is int and 0 < cap < NEVER:
                    caps.append((row["node"], desk, cap, since, till))
                still, most = (_us(policy.get(name)) for name in ("quiet_s", "quiet_max_s"))
                if still is not None and still > 0 and most is not None:
                    asked.append((row["node"], desk, still, most, since, till))
        was_quiet.append(max(row["was_quiet"], int(len(asked) > asked_before)))
        was_capped.append(max(row["was_capped"], int(len(caps) > caps_before)))
    plain = found.drop_columns(["starts", "was_quiet", "was_capped"])
    return _Known(
        spark.createDataFrame(plain.append_column("was_quiet", [was_quiet]).append_column("was_capped", [was_capped])),
        local.frame(spark, asked, quiet.ASKED_DDL) if any(was_quiet) else None,
        local.frame(spark, caps, fullness.CAPS_DDL) if any(was_capped) else None,
    )


def _stood(carried: DataFrame | None) -> DataFrame | None:
    """(box, offset, ts) of the mailboxes that were full when the batch before ended."""
    if carried is None:
        return None
    return carried.where(F.col("role") == "full").select(
        box_of().alias("box"), "offset", F.unix_micros("at").alias("ts")
    )


def _boxes(rows: DataFrame, silent: DataFrame) -> DataFrame:
    """(box, node, desk, mailbox): the names of mailboxes by their number."""
    return rows.select("box", *BOX).unionByName(silent.select("box", *BOX)).distinct()


def _policies(detail: str | None) -> dict[str, dict[str, Any]]:
    """The policies by desk that a `started` carries; none where it is no such text."""
    try:
        found = json.loads(detail or "{}")["policies"]
        return {desk: policy for desk, policy in found.items() if isinstance(policy, dict) and _is_text(desk)}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}


def _is_text(name: str) -> bool:
    """Whether a name can be written down; JSON has a way to tell of halves of characters."""
    return not any("\ud800" <= each <= "\udfff" for each in name)


def _us(seconds: object) -> int | None:
    """A time that a policy names, in µs, at most some centuries; None where it is no time."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or seconds != seconds:
        return None
    return int(max(-SECONDS_MAX, min(seconds, SECONDS_MAX)) * 1e6)


# Messages that were finished before


def _amended(before: DataFrame, late: DataFrame) -> DataFrame:
    """Finished rows of which more was told; their outcome stays."""
    more = late.groupBy(*ID).agg(
        F.max("offset").alias("more_offset"),
        F.sum(is_("duplicate").cast("int")).alias("more"),
        F.min(F.when(is_("leased"), F.struct("offset", "ts"))).alias("lease"),
        F.min(F.when(is_("received"), F.struct("offset", "ts"))).alias("got"),
        F.max(F.when(limits(), F.struct("offset", "expires"))).alias("lasts"),
        F.min(F.when(is_("delivered"), F.col("offset"))).alias("gave"),
    )
    columns: dict[str, Column] = {
        "duplicates": (F.col("duplicates") + F.col("more")).cast("int"),
        "last_offset": F.greatest("last_offset", "more_offset"),
        "first_leased_at": F.coalesce("first_leased_at", F.timestamp_micros("lease.ts")),
        "received_at": F.coalesce("received_at", F.timestamp_micros("got.ts")),
        "expires_at": F.when(F.col("lasts").isNull(), F.col("expires_at")).otherwise(
            F.timestamp_micros("lasts.expires")
        ),
        "delivered_offset": F.coalesce("delivered_offset", "gave"),
    }
    names = [name for name in silver.COLUMNS if name in before.columns]
    return before.join(more, on=list(ID), how="inner").select(
        *(columns[name].alias(name) if name in columns else F.col(name) for name in names)
    )


def _numbers(late: DataFrame, before: DataFrame, marks: DataFrame) -> DataFrame:
    """Numbers of lanes that are told first of messages that were finished; the post that took them is lost."""
    own = before.select(*MESSAGE)
    top = marks.select(*PLACE, F.col("lane_seq").alias("top"))
    return (
        late.where((F.col("lane_seq") > 0) & ~is_("duplicate", "refused"))
        .join(top, on=list(PLACE), how="left")
        .where(F.col("lane_seq") > F.coalesce("top", F.lit(0)))
        .groupBy(*PLACE, *LANE, "lane_seq", *ID)
        .agg(F.min("offset").alias("offset"))
        .join(own, on=list(ID), how="inner")
    )


def _as_marks(numbers: DataFrame) -> DataFrame:
    return numbers.select(*PLACE, *LANE, "lane_seq", F.lit(None).cast("bigint").alias("freed"), "offset")


def _takes(late: DataFrame) -> DataFrame:
    return late.where(is_("leased", "delivered") & (F.col("lane_seq") > 0)).select(
        *PLACE, "lane_seq", F.col("offset").alias("taken")
    )


def _answers(rows: DataFrame, answered: DataFrame | None, edges: DataFrame | None) -> DataFrame:
    new = (
        above(rows.where(F.col("cause_id").isNotNull() & F.col("posted").isNotNull()), edges)
        .select(
            "node", "desk", "cause_id", "commit", F.col("posted_offset").alias("offset"), F.col("posted").alias("ts"),
            (F.col("posted_offset") > F.col("edge")).alias("begun"),
        )
    )  # fmt: skip
    if answered is None:
        return new
    old = answered.where(F.col("cause_id").isNotNull() & F.col("posted_at").isNotNull()).select(
        "node",
        "desk",
        "cause_id",
        "commit",
        F.col("posted_offset").alias("offset"),
        F.unix_micros("posted_at").alias("ts"),
        F.lit(False).alias("begun"),
    )
    return new.unionByName(old)
