"""Finished messages of which a batch tells more: found by number, without reading the history.

In: the tables as they were when the batch was planned, and its events. Out: the rows concerned, and the events of those
that live again. Of a long history three columns of numbers are read, and of the rows that are found only their pages.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from . import local, schema, where

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

HELD_MAX = 50_000
"""Finished messages that one batch may concern one by one; beyond that their nodes are computed anew."""
BROADCAST_EVENTS_MAX = 2_000_000
"""Batches up to this size are compared with the history in memory."""
TOGETHER = 500
"""Rows that are asked for in one condition."""
_NEAR = 20
"""Values of a list that a reader holds against the bounds of a page; for a longer one it reads every page."""

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)

Row = Mapping[str, Any]
Read = Callable[[Sequence[str]], "pa.Table"]
"""The messages for which one of some conditions holds, as they were when the batch was planned."""


class Held(NamedTuple):
    """What a batch finds of what was finished before."""

    before: DataFrame | None = None
    """The last generation of each message concerned, as it is; and ``next_post`` and ``revived``, for ``advance``."""
    recalled: DataFrame | None = None
    """All events of the last generation of those that are redriven."""
    answered: DataFrame | None = None
    """Rows that answer what the batch answers too."""
    again: tuple[Any, ...] = ()
    """Of ``before``, the rows that come again in another form; and those of what was refused and is told of again."""


def look(messages: DataFrame, new: DataFrame, size: int) -> list[Row]:
    """The finished rows of which a batch of this many events may tell, or that answer what it answers too.

    These are their numbers, their parts and instants, and for which of the two they were found; of more than
    ``HELD_MAX`` it is one more than that.
    """
    from pyspark.sql import functions as F

    from . import transforms

    closed = messages.where(F.col("part") != schema.OPEN)
    near = F.broadcast if size <= BROADCAST_EVENTS_MAX else _same
    told_of = transforms.told(new).select("key", F.lit(True).alias("is_told")).distinct()
    answered = transforms.causes(new).select("cause_key", F.lit(True).alias("is_answered"))
    found = (
        closed.select("key", "cause_key", "part", "posted_at")
        .join(near(told_of), on="key", how="left")
        .join(near(answered), on="cause_key", how="left")
        .where("is_told OR is_answered")
        .limit(HELD_MAX + 1)
    )
    return list(found.toArrow().to_pylist())


def find(
    spark: SparkSession,
    seen: Sequence[Row],
    events: DataFrame,
    new: DataFrame,
    carried: DataFrame,
    keep: Callable[[DataFrame], DataFrame],
    read: Read,
) -> Held | None:
    """What of the finished rows that were ``seen`` a batch concerns; None if it cannot be told one by one.

    That is so if they are too many, or if one lives again whose clock had gone back before it was finished: what is
    known of its waits ends when it was finished, and they are longer than that now. It is so, too, if a number of a
    lane is told first behind higher ones: it was missing, or others that are finished had waited for nobody.
    """
    import pyarrow as pa

    if len(seen) > HELD_MAX:
        return None
    passed = _passed_over(new, carried)
    if passed and not {key for key, _ in passed} <= {row["key"] for row in seen if row["posted_at"] is not None}:
        return None
    opened = _opened(spark, seen, carried)
    # Only what was refused is there without a post; what is told of it is in the open set.
    refused = tuple(
        {**row, "generation": 1}
        for row in seen
        if row["posted_at"] is None and row["is_told"] and row["key"] not in opened
    )
    found = [row for row in seen if row["posted_at"] is not None]
    if not found:
        return Held(again=refused)
    rows = _rows(found, read)
    keys = {row["key"] for row in found if row["is_told"]}
    causes = {row["cause_key"] for row in found if row["is_answered"]}
    names = rows.select(["key", "message_id", "generation", "cause_key", "lane_seq"]).to_pylist()
    if not passed <= {(row["key"], row["lane_seq"]) for row in names}:
        return None
    answers = [place for place, row in enumerate(names) if row["cause_key"] in causes]
    latest: dict[tuple[int, str], int] = {}
    for place, row in enumerate(names):
        one = (row["key"], row["message_id"])
        if row["key"] in keys and (one not in latest or names[latest[one]]["generation"] < row["generation"]):
            latest[one] = place
    # Where a later one is open, what is told is told of that one.
    latest = {one: place for one, place in latest.items() if names[place]["generation"] > opened.get(one[0], 0)}
    told = _told(spark, new, sorted({key for key, _ in latest}))
    again, revived, posts, back = [], [], [], []
    last = rows.take(pa.array(sorted(latest.values()), pa.int64()))
    shown = [
        *schema.IDENTITY, "key", "generation", "part", "posted_at", "first_offset", "last_offset", "finished_offset",
        "finished_at",
    ]  # fmt: skip
    for row in last.select(shown).to_pylist():
        said = told.get(row["key"], [])
        post = next((offset for offset, event in said if event == "posted"), None)
        own = [event for offset, event in said if post is None or offset < post]
        posts.append(post)
        back.append("redriven" in own)
        if own:
            again.append(row)
        if back[-1]:
            revived.append(row)
    before = None
    if latest:
        last = last.append_column("next_post", pa.array(posts, pa.int64()))
        before = spark.createDataFrame(last.append_column("revived", pa.array(back, pa.bool_())))
    recalled = keep(_recalled(spark, events, revived)) if revived else None
    if recalled is not None and _went_back(recalled, revived):
        return None
    return Held(
        before,
        recalled,
        spark.createDataFrame(rows.take(answers)) if answers else None,
        (*refused, *again),
    )


def condition(rows: Sequence[Row], instant: Callable[[int], str] = "timestamp_micros({})".format) -> str:
    """SQL for rows by their number; by their part and instant only the pages that hold them are read."""

    def which(own: Sequence[Row], posted: str) -> str:
        parts = ", ".join(sorted({f"'{row['part']}'" for row in own}))
        keys = ", ".join(str(key) for key in sorted({row["key"] for row in own}))
        return f"(part IN ({parts}) AND ({posted}) AND key IN ({keys}))"

    posted = [row for row in rows if row["posted_at"] is not None]
    instants = [instant(at) for at in sorted({_micros(row["posted_at"]) for row in posted})]
    groups = (instants[first : first + _NEAR] for first in range(0, len(instants), _NEAR))
    at_one = " OR ".join(f"posted_at IN ({', '.join(group)})" for group in groups)
    refused = [row for row in rows if row["posted_at"] is None]
    pieces = [(posted, at_one), (refused, "posted_at IS NULL")]
    return " OR ".join(which(own, when) for own, when in pieces if own)


def _micros(instant: dt.datetime) -> int:
    return (instant.astimezone(dt.UTC) - _EPOCH) // dt.timedelta(microseconds=1)


def _rows(found: Sequence[Row], read: Read) -> pa.Table:
    """The rows that were found, whole."""
    pieces = (found[first : first + TOGETHER] for first in range(0, len(found), TOGETHER))
    return read([condition(piece, where.instant) for piece in pieces])


def _passed_over(new: DataFrame, carried: DataFrame) -> set[tuple[int, int]]:
    """Numbers that are told of messages which are not open, behind higher ones of their lane: by message's number.

    Where nothing is missing, these are finished messages: of all others the posts come first, and in order. Of more
    than ``HELD_MAX`` it is one more than that.
    """
    from pyspark.sql import functions as F

    from . import transforms
    from .transforms.told import PLACE, box_of, key_of, track_of

    lanes = carried.where(F.col("role") == "lane").select(
        box_of().alias("box"), track_of().alias("track"), F.col("lane_seq").alias("top")
    )
    opened = carried.where("role = 'message' AND lane_seq > 0").select(key_of().alias("key"), "lane_seq")
    found = (
        transforms.told(new.where("lane_seq > 0 AND event NOT IN ('duplicate', 'refused')"))
        .select(*PLACE, "key", "lane_seq")
        .join(lanes, on=list(PLACE), how="inner")
        .where("lane_seq <= top")
        .join(opened, on=["key", "lane_seq"], how="left_anti")
        .select("key", "lane_seq")
        .distinct()
        .limit(HELD_MAX + 1)
        .toArrow()
    )
    return {(row["key"], row["lane_seq"]) for row in found.to_pylist()}


def _opened(spark: SparkSession, seen: Sequence[Row], carried: DataFrame) -> dict[int, int]:
    """Of the messages that were seen and are open, too: the last generation that is."""
    from . import transforms

    keys = sorted({row["key"] for row in seen if row["is_told"]})
    opened: dict[int, int] = {}
    if keys:
        for row in _with_keys(spark, transforms.carried_keys(carried), keys).toArrow().to_pylist():
            opened[row["key"]] = max(row["generation"], opened.get(row["key"], 0))
    return opened


def _told(spark: SparkSession, new: DataFrame, keys: Sequence[int]) -> dict[int, list[tuple[int, str]]]:
    """What the batch tells of these messages, by offset."""
    from . import transforms

    told: dict[int, list[tuple[int, str]]] = {}
    if keys:
        own = _with_keys(spark, transforms.told(new), keys).select("key", "offset", "code")
        for row in own.toArrow().sort_by("offset").to_pylist():
            told.setdefault(row["key"], []).append((row["offset"], transforms.EVENTS[row["code"]]))
    return told


def _with_keys(spark: SparkSession, frame: DataFrame, keys: Sequence[int]) -> DataFrame:
    """The rows with one of these numbers."""
    from pyspark.sql import functions as F

    wanted = local.frame(spark, ((key,) for key in keys), "key bigint")
    return frame.join(F.broadcast(wanted), on="key", how="left_semi")


def _recalled(spark: SparkSession, events: DataFrame, revived: Sequence[Row]) -> DataFrame:
    """All events of these messages in their last generation."""
    from pyspark.sql import functions as F

    wanted = _bounds(spark, revived, {"from": "first_offset", "to": "last_offset"})
    inside = F.col("offset").between(
        min(row["first_offset"] for row in revived), max(row["last_offset"] for row in revived)
    )
    ids = F.col("message_id").isin(sorted({row["message_id"] for row in revived}))
    return (
        events.where(inside & ids)
        .join(wanted, on=list(schema.IDENTITY), how="inner")
        .where(F.col("offset").between(F.col("from"), F.col("to")))
        .drop("from", "to", "day")
    )


def _went_back(recalled: DataFrame, revived: Sequence[Row]) -> bool:
    """Whether an event of one of these is dated behind the one that finished it, and came before that."""
    from pyspark.sql import functions as F

    ends = [{**row, "finished": _micros(row["finished_at"])} for row in revived]
    wanted = _bounds(recalled.sparkSession, ends, {"to": "finished_offset", "until": "finished"})
    later = (F.col("offset") < F.col("to")) & (F.unix_micros("at") > F.col("until"))
    return bool(recalled.join(wanted, on=list(schema.IDENTITY), how="inner").where(later).limit(1).count())


def _bounds(spark: SparkSession, rows: Sequence[Row], numbers: Mapping[str, str]) -> DataFrame:
    """Names of messages with some numbers of theirs under other names."""
    from pyspark.sql import functions as F

    names = schema.IDENTITY
    values = [(*(row[name] for name in names), *(row[name] for name in numbers.values())) for row in rows]
    columns = [*(f"{name} string" for name in names), *(f"{name} bigint" for name in numbers)]
    return F.broadcast(local.frame(spark, values, ", ".join(columns)))


def _same(frame: DataFrame) -> DataFrame:
    return frame
