"""Partials: what the gold tables are summed of, in one long table.

In: message rows, steps, attempts, connections. Out: rows that add up, whatever batch they come from: numbers by sum,
``first_at`` by minimum, ``last_at`` by maximum. What an event adds is added once, with the event; what a message adds
while it is unfinished is in the part `open`, which each batch replaces; so is a connection while it stands, whose days
are added when it ends. All others are in the part of their day.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from ..schema import DAY_US, OPEN, SPAN_MAX_US
from .fullness import full_hours, hour
from .silver import closed, outcome
from .told import BOX, CODE, DONE, FLIGHT, above, is_

HOURLY = ("posted", "finished", "refused", "failed", "succeeded", "full")
"""Numbers of a mailbox's hour."""
PARTIALS = (
    "part", "table", "measure", "window", "node", "desk", "kind", "mailbox", "label", "bucket", "n", *HOURLY,
    "first_at", "last_at", "peak", "since",
)  # fmt: skip
TYPES = {
    "window": "timestamp", "bucket": "int", "n": "bigint", **dict.fromkeys(HOURLY, "bigint"), "first_at": "timestamp",
    "last_at": "timestamp", "peak": "bigint", "since": "bigint",
}  # fmt: skip
DEAD, NODES = "dead", "nodes"
"""Parts of what belongs to no day."""
SETTLED = "settled"
"""Label of what is told in another way than before and comes to the same."""
FAILED = ("retried", "died", "uncertain", "parked")
"""What ends an attempt that failed."""
FULL = ("full", "share")
"""Reasons of refusals for want of room."""
GAMMA = 1.04
"""Each bucket of a histogram is this much wider than the one before: its middle is at most 2 % off."""


def bucket_of(micros: Column) -> Column:
    """The histogram's bucket of a duration; 0 holds all up to 1 µs."""
    return F.when(micros <= 1, 0).otherwise(F.ceil(F.log(micros.cast("double")) / F.log(F.lit(GAMMA)))).cast("int")


def bucket_value(bucket: Column) -> Column:
    """The duration in µs that stands for a bucket."""
    return F.when(bucket == 0, 1.0).otherwise(F.pow(F.lit(GAMMA), bucket) * (2.0 / (1.0 + GAMMA)))


def cluster(error: Column) -> Column:
    """An error with what varies (UUIDs, hex and decimal numbers) replaced, so that like errors group."""
    variable = (
        r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"
        r"|\b0[xX][0-9a-fA-F]+\b"
        r"|\b(?=[0-9a-fA-F]*[0-9])(?=[0-9a-fA-F]*[a-fA-F])[0-9a-fA-F]{8,}\b"
        r"|\d+(?:\.\d+)?"
    )
    return F.substring(F.regexp_replace(F.trim(F.coalesce(error, F.lit(""))), variable, "#"), 1, 500)


def of_messages(rows: DataFrame, put: Callable[[DataFrame], DataFrame]) -> DataFrame:
    """What messages are in the books, and how long the delivered ones took. ``put`` keeps what both are summed of."""
    orphan = F.col("posted").isNull()
    took = F.greatest(F.col("finished") - F.col("posted"), F.lit(0))
    timed = closed() & (F.col("outcome") == "delivered")
    by = ("closed", "w", "node", "desk", "kind", "measure", "label")
    counted = put(
        rows.select(
            closed().alias("closed"), hour(F.coalesce("posted", "first_at")).alias("w"), "node", "desk", "kind",
            F.when(orphan, F.lit("orphan")).otherwise(outcome()).alias("measure"),
            # The remainder is listed by id.
            F.when(orphan, F.col("message_id")).otherwise(F.lit("")).alias("label"),
            F.when(timed, F.col("live")).alias("live"), F.when(timed, bucket_of(took)).alias("bucket"),
        )
        .groupBy(*by, "live", "bucket")
        .agg(F.count(F.lit(1)).alias("n"))
    )  # fmt: skip
    books = counted.groupBy(*by).agg(F.sum("n").alias("n"))
    latency = counted.where(F.col("bucket").isNotNull())
    return _partials(
        books,
        "books",
        part=F.when(F.col("closed"), _day()).otherwise(F.lit(OPEN)),
        **{name: F.col(name) for name in ("measure", "kind", "label", "n")},
    ).unionByName(
        _partials(
            latency,
            "latency",
            measure=F.lit("delivered"),
            label=F.when(F.col("live"), F.lit("live")).otherwise(F.lit("stored")),
            **{name: F.col(name) for name in ("kind", "bucket", "n")},
        )
    )


def taken_off(before: DataFrame) -> DataFrame:
    """What finished messages added that are unfinished again. ``before`` are rows of messages."""
    return of_table(before, DONE).withColumn("n", -F.col("n"))


def of_table(messages: DataFrame, state: int) -> DataFrame:
    """What messages are in the books, by their rows in the lake; they were posted, and all are in one state."""
    posted = F.unix_micros("posted_at")
    rows = messages.select(
        posted.alias("posted"), F.unix_micros("finished_at").alias("finished"), posted.alias("first_at"), "node",
        "desk", "kind", "message_id", "outcome", "live", F.lit(state).alias("state"), F.lit(-1).alias("last_code"),
    )  # fmt: skip
    return of_messages(rows, lambda frame: frame)


def of_events(
    rows: DataFrame, steps: DataFrame, silent: DataFrame, edges: DataFrame | None, boxes: DataFrame
) -> DataFrame:
    """What each hour of a mailbox saw: into its depth and out of it, attempts that ended, refusals; and the silent.

    ``boxes`` are the names of mailboxes by their number. Where there are no ``edges``, all is news.
    """
    rows, steps, silent = (above(frame, edges) for frame in (rows, steps, silent))
    silent = silent.where("offset > edge")
    none = F.lit(0)

    def item(at: Column, **counts: Column) -> Column:
        return F.struct(hour(at).alias("w"), *(counts.get(name, none).cast("int").alias(name) for name in HOURLY))

    posted_new, over = F.col("posted_offset") > F.col("edge"), F.col("finished_offset") > F.col("edge")
    tried = F.col("lease_offset").isNotNull()
    failed = tried & (F.col("last_code") == CODE["died"])
    tries = {"failed": failed, "succeeded": tried & ~failed}
    both = posted_new & over & (hour(F.col("posted")) == hour(F.col("finished")))
    items = F.when(both, F.array(item(F.col("posted"), posted=F.lit(1), finished=F.lit(1), **tries))).otherwise(
        F.array_compact(
            F.array(
                F.when(posted_new, item(F.col("posted"), posted=F.lit(1))),
                F.when(over, item(F.col("finished"), finished=F.lit(1), **tries)),
            )
        )
    )
    plain = rows.where("plain").select("box", F.explode(items).alias("i"))
    moved = steps.where("change <> 0 AND offset > edge").select(
        "box",
        item(F.col("ts"), posted=(F.col("change") > 0).cast("int"), finished=(F.col("change") < 0).cast("int")).alias(
            "i"
        ),
    )
    fails = F.col("lease_end.code").isin([CODE[name] for name in FAILED])
    ended = steps.where(is_("leased") & F.col("counts") & (F.col("lease_end.offset") > F.col("edge"))).select(
        "box", item(F.col("lease_end.ts"), failed=fails, succeeded=~fails).alias("i")
    )
    full = silent.where(is_("refused") & F.col("reason").isin(*FULL)).select(
        "box", item(F.col("ts"), refused=F.lit(1)).alias("i")
    )
    hours = (
        reduce(DataFrame.unionByName, (plain, moved, ended, full))
        .select("box", "i.*")
        .groupBy("w", "box")
        .agg(*(F.sum(name).alias(name) for name in HOURLY))
        .join(boxes, on="box", how="inner")
    )
    counted = silent.groupBy(
        hour(F.col("ts")).alias("w"), "node", "desk", "kind",
        F.when(is_("refused"), F.lit("refused")).otherwise(F.lit("duplicate")).alias("measure"),
    ).agg(F.count(F.lit(1)).alias("n"))  # fmt: skip
    return (
        _partials(hours, "hours", mailbox=F.col("mailbox"), **{name: F.col(name) for name in HOURLY})
        .unionByName(_partials(counted, "books", **{name: F.col(name) for name in ("measure", "kind", "n")}))
        .unionByName(_deaths(rows, steps))
    )


def of_depth(risen: DataFrame, line: DataFrame | None, boxes: DataFrame) -> DataFrame:
    """How far depths rose, of mailboxes and of desks (measure `desk`), and how long mailboxes were full.

    ``risen`` and ``line`` come of ``fullness``; there is no line where nothing is said of what is allowed. ``boxes``
    are the names of mailboxes by their number.
    """
    of = {name: F.col(name) for name in ("n", "peak", "since")}
    named = risen.join(boxes, on="box", how="inner")
    desks = named.groupBy("node", "desk", "w").agg(
        F.sum("n").alias("n"), F.max("desk_peak").alias("peak"), F.min("since").alias("since")
    )
    found = _partials(named, "peaks", mailbox=F.col("mailbox"), **of).unionByName(
        _partials(desks, "peaks", measure=F.lit("desk"), **of)
    )
    if line is None:
        return found
    zeros = {name: F.lit(0) for name in HOURLY}
    full = full_hours(line).join(boxes, on="box", how="inner")
    return found.unionByName(_partials(full, "hours", mailbox=F.col("mailbox"), **(zeros | {"full": F.col("full")})))


def _deaths(rows: DataFrame, steps: DataFrame) -> DataFrame:
    edge = F.col("edge")
    dead = F.col("plain") & (F.col("last_code") == CODE["died"])
    plain = rows.where(dead & (F.col("finished_offset") > edge)).select(
        "node", "desk", cluster(F.col("error")).alias("label"), F.lit(1).alias("died"), F.lit(0).alias("redriven"),
        F.lit(0).alias("redelivered"), F.col("finished").alias("ts"),
    )  # fmt: skip
    revived = F.coalesce(F.col("next_code") == CODE["redriven"], F.lit(False))
    again = F.coalesce(
        revived
        & (F.col("next_end.life") == F.col("life") + 1)
        & (F.col("next_end.code") == CODE["delivered"])
        & (F.col("next_end.offset") > edge),
        F.lit(False),
    )
    other = steps.where(is_("died") & F.col("counts")).select(
        "node", "desk", cluster(F.col("error")).alias("label"),
        (F.col("offset") > edge).cast("int").alias("died"),
        (revived & (F.col("next_offset") > edge)).cast("int").alias("redriven"),
        again.cast("int").alias("redelivered"), "ts",
    )  # fmt: skip
    summed = (
        plain.unionByName(other)
        .groupBy("node", "desk", "label")
        .agg(
            *(F.sum(name).alias(name) for name in ("died", "redriven", "redelivered")),
            F.min(F.when(F.col("died") > 0, F.col("ts"))).alias("a"),
            F.max(F.when(F.col("died") > 0, F.col("ts"))).alias("b"),
        )
        .where("died + redriven + redelivered > 0")
    )
    return _partials(
        summed.withColumn("w", F.lit(None).cast("bigint")),
        "deadletters",
        part=F.lit(DEAD),
        label=F.col("label"),
        n=F.col("died"),
        posted=F.col("redriven"),
        finished=F.col("redelivered"),
        first_at=F.timestamp_micros("a"),
        last_at=F.timestamp_micros("b"),
    )


def levels(rows: DataFrame) -> DataFrame:
    """How many messages are in each mailbox now."""
    inside = rows.where((F.col("state") <= FLIGHT) & F.col("posted").isNotNull())
    counts = inside.groupBy(*BOX).agg(F.count(F.lit(1)).alias("n"), F.lit(None).cast("bigint").alias("w"))
    return _partials(counts, "levels", part=F.lit(OPEN), mailbox=F.col("mailbox"), n=F.col("n"))


def of_connections(links: DataFrame, nodes: DataFrame) -> DataFrame:
    """What connections add to availability since the batch before, which ones stand, and how far the journal reaches.

    ``nodes`` are (node, edge, reached_before, first_at, reached, …): µs of the highest instant then and now. Whoever
    is connected is online until there, and is no more than one row of the part `open`; the days of a connection are
    added when it ends. Those that were told while it stood are none that changed: they are labelled `settled`.
    """
    known = links.join(F.broadcast(nodes), on="node", how="inner").where(
        F.col("last").isNull() | (F.col("last") > F.col("edge"))
    )
    begun, over = F.col("first") > F.col("edge"), F.col("last").isNotNull()
    day, zero, one = F.col("d") * DAY_US, F.lit(0), F.lit(1)

    def days(frame: DataFrame, d: Column, n: Column, posted: Column, finished: Column, label: Column) -> DataFrame:
        placed = frame.withColumn("d", d)
        return placed.select(
            *BOX, day.alias("w"), n.alias("n"), posted.alias("posted"), finished.alias("finished"), label.alias("label")
        )

    to = until_told(F.col("since"), F.col("until"))
    changed = F.col("d") >= F.when(begun, F.col("d")).otherwise(day_of(F.least(to, F.col("reached_before"))))
    online = F.least(to, day + DAY_US) - F.greatest(F.col("since"), day)
    every = F.explode(F.sequence(day_of(F.col("since")), day_of(to)))
    half = over & F.col("ending").isin("timeout", "replaced", "restart")
    new = F.lit("")
    rows = (
        days(known.where(over), every, online, zero, zero, F.when(changed, new).otherwise(F.lit(SETTLED)))
        .unionByName(days(known.where(begun), day_of(F.col("since")), zero, one, zero, new))
        .unionByName(days(known.where(half), day_of(F.col("until")), zero, zero, one, new))
        .groupBy("w", *BOX, "label")
        .agg(*(F.sum(name).alias(name) for name in ("n", "posted", "finished")))
        .where("n <> 0 OR posted <> 0 OR finished <> 0")
    )
    never = F.lit(None).cast("bigint")
    longer = F.when(F.col("reached") > F.col("reached_before"), day_of(F.col("reached_before")) * DAY_US)
    covered = nodes.select("node", F.lit("").alias("desk"), longer.alias("w"), "first_at", "reached")
    return (
        _partials(
            rows,
            "availability",
            mailbox=F.col("mailbox"),
            **{name: F.col(name) for name in ("n", "posted", "finished", "label")},
        )
        .unionByName(
            _partials(
                known.where(~over).withColumn("w", never),
                "standing",
                part=F.lit(OPEN),
                mailbox=F.col("mailbox"),
                first_at=F.timestamp_micros("since"),
            )
        )
        .unionByName(
            _partials(
                covered,
                "covered",
                part=F.lit(NODES),
                first_at=F.timestamp_micros("first_at"),
                last_at=F.timestamp_micros("reached"),
            )
        )
    )


def until_told(since: Column, until: Column) -> Column:
    """The end of a connection, as far as its days are told."""
    return F.least(F.greatest(since, until), since + SPAN_MAX_US)


def day_of(micros: Column) -> Column:
    """The number of a day."""
    return F.floor(micros / DAY_US)


def _day() -> Column:
    return F.date_format(F.timestamp_micros("w"), "yyyy-MM-dd")


def _partials(frame: DataFrame, table: str, **columns: Column) -> DataFrame:
    """Rows of the long table from what was summed by window (``w``, µs), node and desk."""
    values: dict[str, Column] = {
        "part": _day(),
        "table": F.lit(table),
        "window": F.timestamp_micros("w"),
        "node": F.col("node"),
        "desk": F.col("desk"),
        **{name: F.lit("") for name in ("measure", "kind", "mailbox", "label")},
        "bucket": F.lit(0),
        **columns,
    }
    return frame.select(
        *(values.get(name, F.lit(None)).cast(TYPES.get(name, "string")).alias(name) for name in PARTIALS)
    )
