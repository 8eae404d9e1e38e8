"""What a batch leaves to the next: the events of what is unfinished, and what surrounds it.

In: what the batch was made of. Out: events of the contract with a role, and memos of what is gone by then.

    message   events of unfinished messages
    refused   events of messages that were only refused
    context   connections and pauses that stand, or that fall into the life of an unfinished message; the last start
    opening   the first connection of each desk
    lane      the highest number of each lane, and until when (memo_freed) its finished messages had held it
    node      the last offset and instant of each node; due_at and expires_at hold its highest and lowest instant,
              detail what it said when it last started, attempt whether any of its desks ever waited for quiet, and
              size_bytes whether any ever was allowed only so much
    full      mailboxes that are as full as they may be, with the move since which they are
    post      posts of lanes that are waited for to be quiet, from that of the first unfinished message on; commit and
              size_bytes hold what was asked for, in µs
"""

from __future__ import annotations

from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from ...journal.schema import NAMES
from . import quiet, silver
from .lane import MESSAGE
from .told import BOX, ENDS, ID, LANE, NEVER, PLACE, name_of

MEMO = ("generation", "memo_freed", "memo_overtaken", "memo_waits", "memo_offset")
CARRIED = (*NAMES, "role", *MEMO)
"""Columns of the open set: events, and what is known of them from batches that are gone."""
_TYPES = {
    "offset": "bigint", "at": "timestamp", "commit": "bigint", "lane_seq": "bigint", "attempt": "int",
    "size_bytes": "bigint", "due_at": "timestamp", "expires_at": "timestamp", "generation": "int",
    "memo_freed": "bigint", "memo_overtaken": "array<bigint>", "memo_waits": "array<bigint>", "memo_offset": "bigint",
}  # fmt: skip
REFUSED = "refused"
_EMPTY = ("event", "desk", "mailbox", "lane", "message_id", "kind", "sender")
_ZERO = ("commit", "lane_seq", "attempt", "size_bytes")


def carry(
    rows: DataFrame,
    some: DataFrame,
    context: DataFrame,
    links: DataFrame,
    stops: DataFrame,
    opened: DataFrame,
    nodes: DataFrame,
    over: DataFrame,
    memo: DataFrame | None,
    marks: DataFrame,
    full: DataFrame | None,
    posted: DataFrame | None,
    steps: DataFrame,
) -> DataFrame:
    """What the next batch needs. ``some`` holds all told events of messages that are unfinished."""
    unfinished = rows.where(~silver.closed())
    pieces = [
        _messages(rows, unfinished, some, over, memo),
        _refused(some),
        _surroundings(context, links, stops, unfinished),
        _lanes(rows, steps, marks),
        shaped(opened, "opening", {name: F.col(name) for name in ("node", "desk", "offset", "at")}),
        shaped(
            nodes,
            "node",
            {
                "node": F.col("node"),
                "offset": F.col("horizon"),
                "at": F.timestamp_micros("last_at"),
                "due_at": F.timestamp_micros("reached"),
                "expires_at": F.timestamp_micros("first_at"),
                "detail": F.col("policies"),
                "attempt": F.col("was_quiet"),
                "size_bytes": F.col("was_capped"),
            },
        ),
    ]
    if posted is not None:
        own = {name: F.col(name) for name in (*LANE, "lane_seq", "offset")}
        own |= {"at": F.timestamp_micros("posted"), "commit": F.col("quiet_us"), "size_bytes": F.col("quiet_max_us")}
        pieces.append(shaped(quiet.needed(posted, unfinished), quiet.ROLE, own))
    if full is not None:
        own = {name: F.col(name) for name in (*BOX, "offset")}
        pieces.append(shaped(full, "full", {**own, "at": F.timestamp_micros("ts")}))
    return reduce(DataFrame.unionByName, pieces).select(*CARRIED)


def _messages(
    rows: DataFrame, unfinished: DataFrame, some: DataFrame, over: DataFrame, memo: DataFrame | None
) -> DataFrame:
    """The events of unfinished messages; with when finished ones before them in their lane had let go."""
    lower = Window.partitionBy(*PLACE).orderBy("lane_seq", "first_offset")
    lower = lower.rowsBetween(Window.unboundedPreceding, -1)
    lanes = unfinished.where("lane_seq > 0").select(*PLACE).distinct()
    gone = F.max(F.when(silver.closed(), F.col("freed"))).over(lower)
    freed = (
        rows.where("lane_seq > 0")
        .join(F.broadcast(lanes), on=list(PLACE), how="left_semi")
        .select(*MESSAGE, gone.alias("freed_before"), silver.closed().alias("is_closed"))
        .where(~F.col("is_closed"))
        .drop("is_closed")
    )
    kept = (
        unfinished.select(*MESSAGE, F.col("first_offset").alias("from"), F.col("last_offset").alias("to"))
        .join(freed, on=list(MESSAGE), how="left")
        .join(over, on=list(MESSAGE), how="left")
    )
    none = {name: F.lit(None).cast(_TYPES[name]).alias(name) for name in MEMO[1:]}
    if memo is None:
        kept = kept.select("*", *none.values())
    else:
        kept = kept.join(memo, on=list(MESSAGE), how="left")
    held = some.join(kept, on=list(ID), how="inner").where(F.col("offset").between(F.col("from"), F.col("to")))
    return shaped(
        held,
        "message",
        {
            **_told(),
            "generation": F.col("generation"),
            "memo_freed": F.greatest("memo_freed", "freed_before"),
            "memo_overtaken": F.col("overtaken"),
            "memo_waits": F.col("memo_waits"),
            "memo_offset": F.col("memo_offset"),
        },
    )


def _refused(some: DataFrame) -> DataFrame:
    """What is told of messages of which nothing was said: their post may still come."""
    said = some.where(F.col("code") <= ENDS).select(*ID).distinct()
    refused = some.where(F.col("code") > ENDS).join(said, on=list(ID), how="left_anti")
    return shaped(refused, REFUSED, _told())


def _told() -> dict[str, Column]:
    own = ("node", "offset", "commit", "desk", "mailbox", "lane", "lane_seq", "message_id", "kind", "sender", "attempt",
           "holder", "size_bytes", "reason", "error", "cause_id")  # fmt: skip
    return {
        **{name: F.col(name) for name in own},
        "at": F.timestamp_micros("ts"),
        "event": name_of(F.col("code")),
        "due_at": F.timestamp_micros("due"),
        "expires_at": F.timestamp_micros("expires"),
    }


def _surroundings(context: DataFrame, links: DataFrame, stops: DataFrame, unfinished: DataFrame) -> DataFrame:
    busy = unfinished.groupBy(*BOX).agg(
        F.min("first_offset").alias("from"), F.min(F.least("first_at", "posted")).alias("begin")
    )
    # Where the clock went back, what ended before a message may reach into its life.
    stands = F.col("last").isNull() | (F.col("last") > F.col("from")) | (F.col("until") > F.col("begin"))

    def standing(lines: DataFrame) -> DataFrame:
        own = lines.select(*BOX, "first", "last", "until").join(busy, on=list(BOX), how="left")
        return own.withColumn("stands", F.coalesce(stands, F.lit(False)))

    # A connection may have been ended by the next one, whose own end is needed then, and so on.
    so_far = Window.partitionBy(*BOX).orderBy("first").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    needed = (
        standing(links)
        .withColumn("stands", F.max("stands").over(so_far))
        .unionByName(standing(stops))
        .where("stands")
        .select("node", F.explode(F.array_compact(F.array("first", "last"))).alias("offset"))
    )
    starts = context.where(F.col("event") == "started").groupBy("node").agg(F.max("offset").alias("offset"))
    kept = needed.unionByName(starts).distinct()
    own = ("node", "offset", "at", "event", "desk", "mailbox", "lane", "holder", "reason", "detail")
    return shaped(
        context.join(kept, on=["node", "offset"], how="left_semi"), "context", {name: F.col(name) for name in own}
    )


def _lanes(rows: DataFrame, steps: DataFrame, marks: DataFrame) -> DataFrame:
    """The highest number of each lane, and when the last of its finished messages had let it go."""
    gone = F.when(silver.closed() & (F.col("freed") < NEVER), F.col("freed"))
    own = rows.where("lane_seq > 0").select(
        *PLACE, *LANE, "lane_seq", F.col("first_offset").alias("offset"), gone.alias("freed")
    )
    # Numbers under which messages are told besides their own are not missing either.
    told = steps.where("said AND lane_seq > 0").select(*PLACE, *LANE, "lane_seq", "offset")
    return shaped(
        own.unionByName(told, allowMissingColumns=True)
        .unionByName(marks.select(*PLACE, *LANE, "lane_seq", "offset", "freed"))
        .groupBy(*PLACE, *LANE)
        .agg(F.max(F.struct("lane_seq", "offset")).alias("top"), F.max("freed").alias("freed")),
        "lane",
        {
            **{name: F.col(name) for name in LANE},
            "lane_seq": F.col("top.lane_seq"),
            "offset": F.col("top.offset"),
            "memo_freed": F.col("freed"),
        },
    )


def shaped(frame: DataFrame, role: str, columns: dict[str, Column]) -> DataFrame:
    """Rows of the open set; where a column is not given, it is empty."""
    values: dict[str, Column] = {
        **{name: F.lit("") for name in _EMPTY},
        **{name: F.lit(0) for name in _ZERO},
        "at": F.timestamp_micros(F.lit(0)),
        "role": F.lit(role),
        **columns,
    }
    return frame.select(
        *(values.get(name, F.lit(None)).cast(_TYPES.get(name, "string")).alias(name) for name in CARRIED)
    )
