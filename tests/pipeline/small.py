"""Small transforms with the shape of the real ones: a batch is quick, so that every stage of a job can be interrupted.

In: what the real ones take. Out: tables with the columns that the job itself needs. The real transforms have their own
tests; what is held to here is that each batch is written once, whatever happens.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from posthouse.journal import schema as contract
from posthouse.pipeline import held, job, transforms
from posthouse.pipeline.lake import Lake
from posthouse.pipeline.schema import OPEN

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KEY = ("node", "desk", "mailbox", "sender", "message_id")
GOLD = ("books",)
STAGES = tuple(stage for stage in job.STAGES if stage in GOLD or stage not in job.GOLD)
"""What such a job goes through."""


def advance(
    events: DataFrame,
    carried: DataFrame | None = None,
    recalled: DataFrame | None = None,
    before: DataFrame | None = None,
    answered: DataFrame | None = None,
    keep: Callable[[DataFrame], DataFrame] = lambda frame: frame,
) -> Any:
    """A message is closed when it was delivered; what is open is carried as events."""
    from pyspark.sql import functions as F

    for more in (carried, recalled):
        if more is not None:
            events = events.unionByName(more.select(*events.columns))
    about = events.where("message_id <> ''")
    done = F.max(F.when(F.col("event") == "delivered", F.col("at")))
    rows = about.groupBy(*KEY).agg(
        done.alias("finished_at"),
        F.min(F.when(F.col("event") == "posted", F.col("at"))).alias("posted_at"),
        F.max("offset").alias("last_offset"),
        F.count("*").alias("events"),
        F.lit(1).alias("generation"),
        F.xxhash64(*KEY).alias("key"),
    )
    part = F.when(F.col("finished_at").isNull(), OPEN).otherwise(F.date_format("finished_at", "yyyy-MM-dd"))
    messages = rows.select(part.alias("part"), *rows.columns)
    names = [name for name in messages.columns if name != "part"]
    attempts = about.where("event = 'leased'").select(
        F.lit(OPEN).alias("part"), *KEY, F.lit(1).alias("generation"), F.col("offset").alias("lease_offset")
    )
    if before is not None:
        assert set(names) <= set(before.columns)
    ddl = "part string, kind string, node string, desk string, mailbox string, sender string, message_id string,"
    anomalies = events.sparkSession.createDataFrame([], ddl + " offsets array<bigint>, detail string")
    sums = messages.groupBy("part", "node").agg(F.count("*").cast("bigint").alias("n"))
    if before is not None:
        minus = before.groupBy("part", "node").agg((-F.count("*")).cast("bigint").alias("n"))
        sums = sums.unionByName(minus)
    sums = sums.withColumns({"table": F.lit("books"), "window": F.lit(None).cast("timestamp")})
    still = about.join(messages.where(F.col("part") == OPEN).select(*KEY), on=list(KEY), how="left_semi")
    return SimpleNamespace(
        messages=messages, attempts=attempts, anomalies=anomalies, partials=sums,
        carried=still.select(*contract.NAMES, F.lit("message").alias("role")),
    )  # fmt: skip


def look(messages: DataFrame, new: DataFrame, size: int) -> tuple[list[Any], Any]:
    """The finished messages that are told of again, and what their columns are."""
    from pyspark.sql import functions as F

    closed = messages.where(F.col("part") != OPEN)
    names = new.where("message_id <> ''").select(*KEY).distinct()
    return closed.join(names, on=list(KEY), how="left_semi").select(*closed.columns).collect(), closed.schema


def find(
    spark: SparkSession, seen: tuple[list[Any], Any], events: DataFrame, new: DataFrame, carried: DataFrame, *more: Any
) -> held.Held:
    """Every finished message that is told of again lives again."""
    rows, columns = seen
    if not rows:
        return held.Held()
    before = spark.createDataFrame(rows, columns)
    recalled = events.join(before.select(*KEY), on=list(KEY), how="left_semi").select(*contract.NAMES)
    return held.Held(before, recalled, None, tuple(rows))


def books(partials: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    zero = F.lit(0).cast("bigint")
    total = F.sum("n").cast("bigint")
    return partials.groupBy(F.lit("w").alias("window"), F.lit("d").alias("desk"), F.lit("").alias("kind")).agg(
        total.alias("posted"),
        F.sum(F.when(F.col("part") != OPEN, F.col("n"))).cast("bigint").alias("delivered"),
        *(zero.alias(name) for name in ("dead", "expired", "cancelled", "uncertain")),
        F.coalesce(F.sum(F.when(F.col("part") == OPEN, F.col("n"))), zero).cast("bigint").alias("open"),
        *(zero.alias(name) for name in ("refused", "duplicate", "remainder")),
        F.array().cast("array<string>").alias("remainder_ids"),
    )


def make_small(put: Callable[[Any, str, Any], None]) -> None:
    """Put small transforms in place of the real ones, by ``setattr`` or by one that is taken back."""
    put(transforms, "advance", advance)
    put(held, "look", look)
    put(held, "find", find)
    put(transforms, "changed", lambda new, before: ["*"])
    put(transforms, "books", books)
    put(job, "GOLD", GOLD)


class Killed(BaseException):
    """Stands for SIGKILL: nothing of the job runs behind it."""


def tables(lake: Path, names: tuple[str, ...] = ("events", "messages", "books")) -> dict[str, list[str]]:
    """Every row of some tables, without what depends on the cut into batches."""
    read, found = Lake(str(lake)), {}
    for name in names:
        plain = ({k: v for k, v in row.items() if k not in ("batch", "revision")} for row in read.rows(name))
        found[name] = sorted(map(repr, plain))
    return found


def killer(at: str) -> Callable[[str], None]:
    def stage(reached: str) -> None:
        if reached == at:
            raise Killed(at)

    return stage
