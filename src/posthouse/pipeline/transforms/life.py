"""Lives: the events of each message as one row.

In: told events, each once. Out: one row a message and generation. Nearly all messages live the same way: posted,
leased once, perhaps received, finished; one aggregate makes their rows. Whatever else happens to a message, in whatever
order, is put together step by step (``step``). Which of the two it is the aggregate says, exactly.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from .told import CODE, DONE, ENDS, FLIGHT, ID, KEY, NEVER, READY, ends, is_, outcome_of

ROW = (
    "box", *ID, *KEY, "generation", "lane", "track", "lane_seq", "kind", "size_bytes", "cause_id", "commit", "posted",
    "posted_offset", "first_leased", "received", "finished", "finished_offset", "delivered_offset", "outcome",
    "state", "last_code", "reason", "error", "attempts", "lives", "live", "expires", "first_offset", "last_offset",
    "first_at", "duplicates", "freed", "freed_offset", "late", "flight_us", "aside_us", "plain", "due", "lease_offset",
    "leased", "attempt", "holder",
)  # fmt: skip
"""Of a message; the last four only where it is plain: then it had one wait and at most one lease."""
_ONE = 1 << 8
_POST, _LEASE, _GOT, _END, _ODD = (_ONE**n for n in range(5))
_PLAIN_MAX = 4


def grouped(told: DataFrame) -> DataFrame:
    """One row a message: what a plain one is made of, and the shape that says whether it is one."""
    posts, leases, got, silent = is_("posted"), is_("leased"), is_("received"), F.col("code") > ENDS
    said = ~silent
    carries = (F.col("reason").isNotNull() | F.col("error").isNotNull()) & ~ends()
    shape = (
        F.when(silent, 0)
        .when(carries, _ODD)
        .when(posts, _POST)
        .when(leases, _LEASE)
        .when(got, _GOT)
        .when(ends(), _END)
        .otherwise(_ODD)
    )
    post = (*KEY, "lane", "kind", "size_bytes", "cause_id", "due", "expires")
    # Only what is looked at further on is moved: of most events that is little.
    moved = told.select(
        "box", *ID, "offset", "ts", "commit", "code", "lane_seq", shape.cast("bigint").alias("shape"),
        *(F.when(posts, F.col(name)).alias(name) for name in post),
        *(F.when(leases, F.col(name)).alias(name) for name in ("attempt", "holder")),
        *(F.when(ends(), F.col(name)).alias(name) for name in ("reason", "error")),
    )  # fmt: skip
    return (
        moved.repartition("box")
        .groupBy(*ID, "box")
        .agg(
            F.min(F.when(posts, F.struct("offset", "ts", "commit", *post))).alias("post"),
            F.min(F.when(leases, F.struct("offset", "ts", "commit", "attempt", "holder"))).alias("lease"),
            F.min(F.when(got, F.struct("offset", "ts"))).alias("got"),
            F.min(F.when(ends(), F.struct("offset", "ts", "code", "reason", "error"))).alias("end"),
            F.sum("shape").alias("shape"),
            F.sum(said.cast("int")).alias("says"),
            F.count(F.lit(1)).alias("tells"),
            F.min("offset").alias("first_offset"),
            F.max("offset").alias("last_offset"),
            F.min(F.when(said, F.col("lane_seq"))).alias("seq_low"),
            F.max(F.when(said, F.col("lane_seq"))).alias("lane_seq"),
        )
        .withColumn("plain", _plain())
    )


def _plain() -> Column:
    """Whether it is: one post first, at most one lease, one arrival and one end, in this order and times with it."""

    def follows(one: str, other: str) -> Column:
        """Not there, or behind the other in offset and time."""
        behind = (F.col(f"{one}.offset") > F.col(f"{other}.offset")) & (F.col(f"{one}.ts") >= F.col(f"{other}.ts"))
        return F.col(one).isNull() | behind

    few = F.col("says") <= _PLAIN_MAX
    # So few events cannot carry from one digit of the shape into the next.
    lease, got, end = (F.shiftright("shape", bits).bitwiseAND(255) for bits in (8, 16, 24))
    shaped = (
        (F.col("shape").bitwiseAND(255) == 1) & (lease <= 1) & (got <= lease) & (end <= 1) & (F.col("shape") < _ODD)
    )
    ordered = follows("lease", "post") & follows("got", "lease") & follows("end", "post")
    last = (F.col("lease").isNull() | follows("end", "lease")) & (F.col("got").isNull() | follows("end", "got"))
    quiet = (F.col("says") == F.col("tells")) & (F.col("seq_low") == F.col("lane_seq"))
    return F.coalesce(few & shaped & ordered & last & quiet, F.lit(False))


def plain_rows(groups: DataFrame) -> DataFrame:
    """Rows of the plain ones; of the others, which have no ``generation``, only ``plain`` and the name count."""
    leased, over = F.col("lease").isNotNull(), F.col("end").isNotNull()
    state = F.when(over, DONE).when(leased, FLIGHT).otherwise(READY)
    delivered = F.coalesce(F.col("end.code") == CODE["delivered"], F.lit(False))
    last = (
        F.when(over, F.col("end.code"))
        .when(F.col("got").isNotNull(), CODE["received"])
        .when(leased, CODE["leased"])
        .otherwise(CODE["posted"])
    )
    made = groups.withColumn("by_lease", leased & over)
    columns = {
        **{name: F.col(f"post.{name}") for name in KEY},
        "track": F.xxhash64("post.lane"),
        **{name: F.col(f"post.{name}") for name in ("lane", "kind", "size_bytes", "cause_id", "commit", "expires")},
        "generation": F.when(F.col("plain"), 1),
        "posted": F.col("post.ts"),
        "posted_offset": F.col("post.offset"),
        "first_leased": F.col("lease.ts"),
        "received": F.col("got.ts"),
        "finished": F.col("end.ts"),
        "finished_offset": F.col("end.offset"),
        "delivered_offset": F.when(delivered, F.col("end.offset")),
        "outcome": outcome_of(F.col("end.code")),
        "state": state.cast("int"),
        "last_code": last.cast("int"),
        "reason": F.col("end.reason"),
        "error": F.col("end.error"),
        "attempts": leased.cast("int"),
        "lives": F.lit(1),
        "live": delivered & leased & (F.col("lease.commit") == F.col("post.commit")),
        "first_at": F.col("post.ts"),
        "duplicates": F.lit(0),
        "freed": F.coalesce("end.ts", F.lit(NEVER)),
        "freed_offset": F.coalesce("end.offset", F.lit(NEVER)),
        "late": F.when(
            delivered & (F.col("lease.ts") >= F.col("post.expires")), F.array("lease.offset", "end.offset", "end.ts")
        ),
        "flight_us": F.when(F.col("by_lease"), F.col("end.ts") - F.col("lease.ts")).otherwise(0).cast("bigint"),
        "aside_us": F.lit(0).cast("bigint"),
        "due": F.col("post.due"),
        "lease_offset": F.col("lease.offset"),
        "leased": F.col("lease.ts"),
        "attempt": F.col("lease.attempt"),
        "holder": F.col("lease.holder"),
    }
    return made.select(*(columns[name].alias(name) if name in columns else F.col(name) for name in ROW))
