"""Silver: messages with their waits, and attempts.

In: message rows, steps, and what lanes and mailboxes add. Out: the rows of both tables. No input or output.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from ..schema import ATTEMPTS, MESSAGES, OPEN, VOLATILE, WAITS
from .lane import MESSAGE
from .told import CODE, DONE, ID, KEY, is_, name_of
from .wait import CAUSES

COLUMNS = tuple(name for name in MESSAGES.names if name not in VOLATILE)
"""Of a message's row, without what the job adds."""
_ATTEMPTS = tuple(name for name in ATTEMPTS.names if name not in VOLATILE)
_OWN = {"in_flight": "flight_us", "parked": "aside_us"}


def closed() -> Column:
    """Whether a message is final: its last life ended, and its post is known."""
    return (F.col("state") == DONE) & F.col("posted").isNotNull()


def part() -> Column:
    """The part of its table that a message belongs to."""
    return F.when(closed(), part_of(F.col("first_at"))).otherwise(F.lit(OPEN))


def part_of(micros: Column) -> Column:
    """The part of what is final, by its first instant."""
    return F.date_format(F.timestamp_micros(micros), "yyyy-MM-dd")


def outcome() -> Column:
    """A message's outcome, of those that are told."""
    uncertain = F.when(F.col("last_code") == CODE["uncertain"], F.lit("uncertain"))
    return F.coalesce("outcome", uncertain, F.lit("open"))


def messages(rows: DataFrame, waits: DataFrame) -> DataFrame:
    """One row a message that was posted, or of which something happened."""
    # Most were leased at once: they are not moved for this join.
    waited = F.coalesce(
        closed() & (~F.col("plain") | (F.coalesce("leased", "finished") > F.col("posted"))), F.lit(False)
    )
    spent = waits.select(*MESSAGE, *(f"wait_{name}" for name in CAUSES))
    whole = (
        rows.where(waited)
        .join(spent.hint("shuffle_hash"), on=list(MESSAGE), how="left")
        .unionByName(rows.where(~waited), allowMissingColumns=True)
    )
    orphan = F.col("posted").isNull()
    delivered = F.coalesce(F.col("outcome") == "delivered", F.lit(False))
    zero = F.lit(0).cast("bigint")

    def wait(name: str) -> Column:
        spent = F.col(_OWN[name]) if name in _OWN else F.coalesce(f"wait_{name}", zero)
        return F.when(closed(), spent)

    columns = {
        "part": part(),
        "cause_key": F.when(F.col("cause_id").isNotNull(), F.xxhash64("node", "desk", "cause_id")),
        "posted_at": F.timestamp_micros("posted"),
        "first_leased_at": F.timestamp_micros("first_leased"),
        "received_at": F.timestamp_micros("received"),
        "finished_at": F.timestamp_micros("finished"),
        "outcome": outcome(),
        "expires_at": F.timestamp_micros("expires"),
        "orphan": orphan,
        "latency": F.when(delivered & ~orphan, F.greatest(F.col("finished") - F.col("posted"), zero)),
        **{f"wait_{name}": wait(name) for name in WAITS},
    }
    return whole.select(*(columns[name].alias(name) if name in columns else F.col(name) for name in COLUMNS))


def refusals(told: DataFrame, rows: DataFrame) -> DataFrame:
    """Rows of messages that were refused and never posted. ``told`` holds all events of those that were refused.

    They are final like those that were finished: should one be told of again, another row takes its place.
    """
    first = F.struct("offset", "ts", "lane", "kind", "size_bytes", "reason", "error", "cause_id")
    only = (
        told.groupBy(*ID, *KEY)
        .agg(
            F.min(F.when(is_("refused"), first)).alias("f"),
            F.min(F.struct("offset", "ts")).alias("begin"),
            F.max("offset").alias("last_offset"),
            F.sum(is_("duplicate").cast("int")).cast("int").alias("duplicates"),
        )
        .where(F.col("f").isNotNull())
        .join(rows.select(*ID), on=list(ID), how="left_anti")
    )
    values = {
        "part": part_of(F.col("begin.ts")),
        "first_offset": F.col("begin.offset"),
        "generation": F.lit(1),
        "lane_seq": F.lit(0),
        **{name: F.col(f"f.{name}") for name in ("lane", "kind", "size_bytes", "reason", "error", "cause_id")},
        "cause_key": F.when(F.col("f.cause_id").isNotNull(), F.xxhash64("node", "desk", "f.cause_id")),
        "finished_at": F.timestamp_micros("f.ts"),
        "finished_offset": F.col("f.offset"),
        "outcome": F.lit("refused"),
        **{name: F.lit(0) for name in ("attempts", "lives")},
        **{name: F.lit(False) for name in ("live", "orphan")},
    }
    types = {column.name: column.type for column in MESSAGES.columns}
    own = ("key", *KEY, "last_offset", "duplicates")
    return only.select(
        *(
            F.col(name) if name in own else values.get(name, F.lit(None)).cast(types[name]).alias(name)
            for name in COLUMNS
        )
    )


def attempts(rows: DataFrame, steps: DataFrame) -> DataFrame:
    """One row a lease; without an end while it lasts."""
    over = F.col("state") == DONE
    plain = rows.where("plain AND lease_offset IS NOT NULL").select(
        *_attempt(
            {
                "part": part(),
                "life": F.lit(1),
                "started_at": F.timestamp_micros("leased"),
                "received_at": F.timestamp_micros("received"),
                "ended_at": F.timestamp_micros("finished"),
                "ended": F.when(over, name_of(F.col("last_code"))).otherwise(F.lit("open")),
                "end_offset": F.col("finished_offset"),
            }
        )
    )
    parts = rows.where("NOT plain").select(*MESSAGE, part().alias("part"))
    in_time = F.col("lease_end").isNull() | (F.col("lease_got.offset") < F.col("lease_end.offset"))
    other = (
        steps.where(is_("leased") & F.col("counts"))
        .join(parts, on=list(MESSAGE), how="inner")
        .select(
            *_attempt(
                {
                    "started_at": F.timestamp_micros("ts"),
                    "received_at": F.when(in_time, F.timestamp_micros("lease_got.ts")),
                    "ended_at": F.timestamp_micros("lease_end.ts"),
                    "ended": F.coalesce(name_of(F.col("lease_end.code")), F.lit("open")),
                    "reason": F.col("lease_end.reason"),
                    "error": F.col("lease_end.error"),
                    "lease_offset": F.col("offset"),
                    "end_offset": F.col("lease_end.offset"),
                }
            )
        )
    )
    return plain.unionByName(other)


def _attempt(columns: dict[str, Column]) -> list[Column]:
    return [columns[name].alias(name) if name in columns else F.col(name) for name in _ATTEMPTS]
