"""Replay: what another policy would have made of the recorded posts of a desk.

In: messages and attempts of the lake, a desk, changes of its policy. Out: one row of the table `replays` each.
Exact for a smaller capacity and for a shorter time to live, by itself: what is refused or expires earlier changes
nothing else that was recorded. Everything else is modelled, and the row says so:

- several changes at once are applied one after the other: capacity first, then the time to live, then attempts;
- ``attempts_max`` lets a message die whose recorded attempts are more; nobody knows what more attempts than the
  recorded ones would have brought, so a higher limit changes nothing;
- ``retry`` moves each attempt after the first by the difference of the waits; whether it would have failed too is
  taken from the record.

A larger capacity or a longer time to live brings back nobody: what would have become of those who were refused or
expired is not recorded, so where there were any the row is not exact. Parked messages are counted as if they still
took room.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from ..errors import InvalidInput
from . import local
from .ledger import Ledger
from .schema import IDENTITY, REPLAYS

FIELDS = ("capacity", "ttl_s", "attempts_max", "retry")
RECORDED = "recorded"
_KEY = (*IDENTITY, "generation")
_SECOND = 1_000_000
_PAGE = 1_000
"""So many refused messages of a mailbox are copied when one more is added."""


class Policy(NamedTuple):
    """The changes to try; None leaves a field as it was."""

    capacity: int | None = None
    ttl_s: float | None = None
    attempts_max: int | None = None
    retry: tuple[float, ...] | None = None

    @property
    def exact(self) -> bool:
        """Whether the outcome follows from what happened: one change, of capacity or time to live."""
        changed = [name for name in FIELDS if getattr(self, name) is not None]
        return len(changed) <= 1 and set(changed) <= {"capacity", "ttl_s"}

    @property
    def text(self) -> str:
        """The policy in one line."""
        changes = [f"{name}={_plain(getattr(self, name))}" for name in FIELDS if getattr(self, name) is not None]
        return ", ".join(changes) or RECORDED


def policy_of(text: str) -> Policy:
    """A policy from ``capacity=100, ttl_s=3600, retry=[1, 5]``; InvalidInput names what is wrong."""
    values: dict[str, Any] = {}
    rest = text.strip()
    while rest:
        name, equals, rest = rest.partition("=")
        name = name.strip(" ,")
        if not equals or name not in FIELDS:
            raise InvalidInput(f"a policy is NAME=VALUE with a name of {', '.join(FIELDS)}: {name[:40]!r}")
        if name in values:
            raise InvalidInput(f"{name} is given twice")
        try:
            values[name], end = json.JSONDecoder().raw_decode(rest.lstrip())
        except ValueError:
            raise InvalidInput(f"{name} must be a number or a list of numbers: {rest.strip()[:40]!r}") from None
        rest = rest.lstrip()[end:].strip()
        if rest and not rest.startswith(","):
            raise InvalidInput(f"changes are parted by commas: {rest[:40]!r}")
    return _checked(values)


def _checked(values: Mapping[str, Any]) -> Policy:
    for name in ("capacity", "attempts_max"):
        value = values.get(name)
        if value is not None and (type(value) is not int or not 1 <= value < 2**31):
            raise InvalidInput(f"{name} must be a whole number of at least 1: {value!r}")
    ttl_s = values.get("ttl_s")
    if ttl_s is not None and (not _is_wait(ttl_s) or ttl_s <= 0):
        raise InvalidInput(f"ttl_s must be more than 0 s: {ttl_s!r}")
    retry = values.get("retry")
    if retry is not None and (not isinstance(retry, list) or not retry or not all(map(_is_wait, retry))):
        raise InvalidInput(f"retry must be a list of waits in seconds: {retry!r}")
    return Policy(values.get("capacity"), ttl_s, values.get("attempts_max"), None if retry is None else tuple(retry))


def _is_wait(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1e10


def _plain(value: object) -> str:
    return json.dumps(list(value)) if isinstance(value, tuple) else json.dumps(value)


def replay(messages: DataFrame, attempts: DataFrame, desk: str, policy: Policy) -> DataFrame:
    """One row: the desk's messages under this policy; with no change at all, what happened."""
    ours = messages.where((F.col("desk") == desk) & ~F.col("orphan"))
    tries = attempts.where(F.col("desk") == desk)
    if policy.retry is not None:
        ours = _with_shift(ours, tries, policy.retry)
    else:
        ours = ours.withColumn("shift", F.lit(0).cast("bigint"))
    last = tries.groupBy(*_KEY).agg(F.max(F.unix_micros("started_at")).alias("last_lease"))
    rows = ours.join(last, on=list(_KEY), how="left").withColumn("fate", F.col("outcome"))
    if policy.capacity is not None:
        refused = _refused(ours, policy.capacity)
        rows = rows.join(refused.withColumn("no_room", F.lit(True)), on=list(_KEY), how="left").withColumn(
            "fate", F.when(F.col("no_room"), F.lit("refused")).otherwise(F.col("fate"))
        )
    if policy.ttl_s is not None:
        rows = rows.withColumn("fate", F.when(_passes(policy.ttl_s), F.lit("expired")).otherwise(F.col("fate")))
    if policy.attempts_max is not None:
        fails = (F.col("fate") == "delivered") & (F.col("attempts") > policy.attempts_max)
        rows = rows.withColumn("fate", F.when(fails, F.lit("dead")).otherwise(F.col("fate"))).withColumn(
            "attempts", F.least("attempts", F.lit(policy.attempts_max))
        )
    taken = F.col("fate") != "refused"
    waited = F.greatest(F.col("latency") + F.col("shift"), F.lit(0).cast("bigint"))

    def count(fate: str) -> Column:
        return F.count(F.when(F.col("fate") == fate, 1)).alias(fate)

    return (
        rows.agg(
            F.count(F.lit(1)).alias("posted"),
            *(count(fate) for fate in ("delivered", "expired", "dead", "refused")),
            F.coalesce(F.sum(F.when(taken, F.col("attempts"))), F.lit(0)).cast("bigint").alias("attempts"),
            F.avg(F.when(F.col("fate") == "delivered", waited)).cast("bigint").alias("wait"),
            *(F.count(F.when(F.col("outcome") == fate, 1)).alias(f"{fate}_before") for fate in ("refused", "expired")),
        )
        .withColumn("policy", F.lit(policy.text))
        .withColumn("desk", F.lit(desk))
        .withColumn("exact", F.lit(policy.exact) & _is_tighter(policy))
        .select(*REPLAYS.names)
    )


def run(
    spark: SparkSession,
    ledger: Ledger,
    desk: str,
    policies: Sequence[Policy],
    report: Callable[[int, int | None, str], None] = lambda done, total, doing: None,
) -> list[dict[str, Any]]:
    """Replay a desk of a lake under each policy, keep the rows in the table `replays`, and return them."""
    with ledger.alone("replay"):
        if not ledger.has("books"):
            raise InvalidInput(f"the lake {ledger.place} has no books yet: run them first")
        load = spark.read.format("delta").load
        known = sorted(row["desk"] for row in load(ledger.table("books")).select("desk").distinct().collect())
        if desk not in known:
            raise InvalidInput(f"the books know no message of a desk {desk!r}; they have {', '.join(known) or 'none'}")
        messages, attempts = load(ledger.table("messages")), load(ledger.table("attempts"))
        new = []
        for done, policy in enumerate(policies):
            report(done, len(policies), f"replaying {policy.text}")
            new.append(replay(messages, attempts, desk, policy).collect()[0].asDict())
        names = {row["policy"] for row in new}
        kept: list[dict[str, Any]] = []
        if ledger.has("replays"):
            before = load(ledger.table("replays")).collect()
            kept = [row.asDict() for row in before if row["desk"] != desk or row["policy"] not in names]
        rows = [tuple(row[name] for name in REPLAYS.names) for row in (*kept, *new)]
        table = local.frame(spark, rows, REPLAYS.ddl).coalesce(1)
        writer = table.write.format("delta").mode("overwrite").option("partitionOverwriteMode", "static")
        writer.save(ledger.table("replays"))
        return new


def _is_tighter(policy: Policy) -> Column:
    """Whether the change took from what happened, instead of bringing back what nobody recorded."""
    tighter = F.lit(True)
    for changed, fate in ((policy.capacity, "refused"), (policy.ttl_s, "expired")):
        if changed is not None:
            tighter = tighter & ((F.col(f"{fate}_before") == 0) | (F.col(fate) > F.col(f"{fate}_before")))
    return tighter


def _passes(ttl_s: float) -> Column:
    """Whether a message would have expired: no lease had begun by then that kept it from it."""
    limit = F.unix_micros("posted_at") + int(ttl_s * _SECOND)
    sooner = F.col("expires_at").isNull() | (limit < F.unix_micros("expires_at"))
    finished = F.unix_micros("finished_at")
    # In flight when the limit passes is fine; waiting or leased only later is not.
    waits = (F.col("last_lease").isNull() & (finished > limit)) | (F.col("last_lease") >= limit)
    return F.col("posted_at").isNotNull() & sooner & (F.col("fate") != "refused") & F.coalesce(waits, F.lit(False))


def _refused(messages: DataFrame, capacity: int) -> DataFrame:
    """The keys of messages for which a mailbox of this size has no room.

    Each mailbox is gone through in the order of its posts and ends; what was refused takes no room later.
    """
    posted = messages.where(F.col("posted_at").isNotNull()).withColumn("who", F.xxhash64(*_KEY[3:]))
    inside = F.struct(
        F.unix_micros("posted_at").alias("at"),
        F.col("first_offset").alias("offset"),
        F.lit(True).alias("comes"),
        F.col("who"),
    )
    leaves = F.struct(
        F.greatest(F.unix_micros("finished_at"), F.unix_micros("posted_at")).alias("at"),
        F.col("last_offset").alias("offset"),
        F.lit(False).alias("comes"),
        F.col("who"),
    )
    ended = F.when(F.col("finished_at").isNotNull(), F.array(inside, leaves)).otherwise(F.array(inside))
    mailbox = ["node", "desk", "mailbox"]
    steps = (
        posted.select(*mailbox, F.explode(ended).alias("step"))
        .groupBy(*mailbox)
        .agg(F.sort_array(F.collect_list("step")).alias("steps"))
        # Where fewer ever came than there is room for, nobody was refused.
        .where(F.size("steps") > capacity)
    )
    gone = F.aggregate("steps", _empty(), lambda state, e: _next(state, e, capacity), _all_refused)
    return (
        steps.select(*mailbox, F.explode(gone).alias("who"))
        .join(posted.select(*_KEY, "who"), on=[*mailbox, "who"], how="inner")
        .select(*_KEY)
    )


def _empty() -> Column:
    """A mailbox before its first message: who was refused is kept in pages, since each addition copies one."""
    nobody = F.array().cast("array<bigint>")
    return F.struct(
        F.lit(0).alias("depth"),
        # Refused, and in truth still there.
        nobody.alias("away"),
        nobody.alias("page"),
        F.array().cast("array<array<bigint>>").alias("pages"),
    )


def _next(state: Column, e: Column, capacity: int) -> Column:
    full = e["comes"] & (state["depth"] >= capacity)
    was_refused = ~e["comes"] & F.array_contains(state["away"], e["who"])
    change = F.when(full | was_refused, 0).when(e["comes"], 1).otherwise(-1)
    turns = full & (F.size(state["page"]) >= _PAGE)
    away = (
        F.when(full, F.array_append(state["away"], e["who"]))
        .when(was_refused, F.array_remove(state["away"], e["who"]))
        .otherwise(state["away"])
    )
    page = F.when(turns, F.array(e["who"])).when(full, F.array_append(state["page"], e["who"])).otherwise(state["page"])
    pages = F.when(turns, F.array_append(state["pages"], state["page"])).otherwise(state["pages"])
    return F.struct(
        (state["depth"] + change).alias("depth"),
        away.cast("array<bigint>").alias("away"),
        page.cast("array<bigint>").alias("page"),
        pages.cast("array<array<bigint>>").alias("pages"),
    )


def _all_refused(state: Column) -> Column:
    return F.flatten(F.array_append(state["pages"], state["page"]))


def _with_shift(messages: DataFrame, attempts: DataFrame, ladder: tuple[float, ...]) -> DataFrame:
    """Messages with the µs by which their last attempt moves if failed ones wait by this ladder."""
    steps = F.array(*(F.lit(int(step * _SECOND)).cast("bigint") for step in ladder))
    failed = attempts.where(F.col("ended") == "retried").select(
        *_KEY, "attempt", F.unix_micros("ended_at").alias("ended"), "lease_offset"
    )
    following = attempts.select(*_KEY, F.col("lease_offset").alias("next"), F.unix_micros("started_at").alias("again"))
    waits = (
        failed.join(following, on=list(_KEY), how="inner")
        .where(F.col("next") > F.col("lease_offset"))
        .groupBy(*_KEY, "attempt", "ended", "lease_offset")
        .agg(F.min_by("again", "next").alias("again"))
    )
    wanted = F.get(steps, F.least(F.greatest(F.col("attempt"), F.lit(1)), F.lit(len(ladder))) - 1)
    shifts = waits.groupBy(*_KEY).agg(F.sum(wanted - (F.col("again") - F.col("ended"))).cast("bigint").alias("shift"))
    return messages.join(shifts, on=list(_KEY), how="left").withColumn(
        "shift", F.coalesce("shift", F.lit(0).cast("bigint"))
    )
