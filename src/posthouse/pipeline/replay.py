"""Replay: what another policy would have made of the recorded posts of a desk.

In: messages, attempts and events of the lake, a desk, changes of its policy. Out: one row of the table `replays` each.
A smaller capacity or a shorter time to live, by itself, is exact: it is counted step by step, by the engine's rules,
with all else as it was recorded. Nobody acts otherwise because of it, and a lane that would have been free sooner is
not.

- A message passes its limit while it waits, or has arrived and is not confirmed; not while it is leased, and not while
  it is set aside. Its limit counts from its post, and anew from a redrive and from being unparked; one that it was
  posted with stands. What ends it is not waited for: the engine's sweep comes a little later.
- A mailbox has room for what waits or is in flight; what is set aside or finished takes none until it comes back.

Everything else is modelled, and the row says so:

- several changes at once are applied one after the other: capacity first, then the time to live, then attempts;
- ``attempts_max`` lets a message die whose recorded attempts are more; nobody knows what more attempts than the
  recorded ones would have brought, so a higher limit changes nothing;
- ``retry`` moves each attempt after the first by the difference of the waits; whether it would have failed too is
  taken from the record;
- whatever the record does not tell: what would have become of those who were refused or expired and would not have
  been (nobody is brought back), or whether a message would have come back that finds no room or has passed before, or
  what would have become of its repeat: a refusal leaves no memory, and what passes sooner is forgotten sooner.

What the journal does not mark, no row can say: posts that were let in without asking for room, other than confirmations
and answers, are counted as if they had asked.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, TypeGuard

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from ..errors import InvalidInput
from . import local
from .ledger import Ledger
from .schema import IDENTITY, REPLAYS
from .transforms import told
from .transforms.step import steps
from .transforms.told import CODE, NEVER, READY, is_, twin_of

FIELDS = ("capacity", "ttl_s", "attempts_max", "retry")
RECORDED = "recorded"
_KEY = (*IDENTITY, "generation")
_MAILBOX = ("node", "desk", "mailbox")
_NUMBERS = ("key", "twin")
"""What names a message in short."""
_SECOND = 1_000_000
_ODD = ("parked", "unparked", "uncertain", "redriven", "refused", "duplicate")
"""What the tables do not tell of a message in full: it comes and goes more than once, or is told of before its post."""
_CONFIRMATION = "delivery_confirm"
"""The kind of what a relay takes whether there is room or not."""
_ASKS, _UNASKED, _AGAIN, _RESTS, _LEAVES, _TURNED, _SHARED = range(7)
"""What is done at a mailbox: posts that ask for room and such that do not, what comes back, what goes and may come
back, what goes for good; and posts that found no room, or none for their sender."""
_FULL, _SHARE = "full", "share"
"""Why a post found none."""
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


def _is_wait(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1e10


def _plain(value: object) -> str:
    return json.dumps(list(value)) if isinstance(value, tuple) else json.dumps(value)


def replay(messages: DataFrame, attempts: DataFrame, events: DataFrame, desk: str, policy: Policy) -> DataFrame:
    """One row: the desk's messages under this policy; with no change at all, what happened."""
    taken = F.col("fate") != "refused"
    waited = F.greatest(F.col("latency") + F.col("shift"), F.lit(0).cast("bigint"))

    def count(fate: str) -> Column:
        return F.count(F.when(F.col("fate") == fate, 1)).alias(fate)

    return (
        fates(messages, attempts, events, desk, policy)
        .agg(
            F.count("fate").alias("posted"),
            *(count(fate) for fate in ("delivered", "expired", "dead", "refused")),
            F.coalesce(F.sum(F.when(taken, F.col("attempts"))), F.lit(0)).cast("bigint").alias("attempts"),
            F.avg(F.when(F.col("fate") == "delivered", waited)).cast("bigint").alias("wait"),
            F.coalesce(F.max("unsure"), F.lit(False)).alias("unsure"),
        )
        .withColumn("policy", F.lit(policy.text))
        .withColumn("desk", F.lit(desk))
        .withColumn("exact", F.lit(policy.exact) & ~F.col("unsure"))
        .select(*REPLAYS.names)
    )


def fates(messages: DataFrame, attempts: DataFrame, events: DataFrame, desk: str, policy: Policy) -> DataFrame:
    """The desk's messages, each with its ``fate`` under this policy, its ``attempts`` and the ``shift`` of its end.

    ``events`` are all there are, as the books count them. ``unsure`` says that the record does not tell; a row without
    a fate says so of a mailbox.
    """
    rows = messages.where((F.col("desk") == desk) & ~F.col("orphan"))
    ours = events.where(F.col("desk") == desk)
    if policy.retry is not None:
        rows = _with_shift(rows, attempts.where(F.col("desk") == desk), policy.retry)
    else:
        rows = rows.withColumn("shift", F.lit(0).cast("bigint"))
    rows = rows.withColumn("fate", F.col("outcome")).withColumn("unsure", F.lit(False))
    if policy.capacity is not None:
        rows = _with_room(rows, ours, policy.capacity)
    if policy.ttl_s is not None:
        now = events.groupBy("node").agg(F.max_by(F.unix_micros("at"), "offset").alias("now"))
        rows = _with_limit(rows, ours, now, _terms(events, desk), int(policy.ttl_s * _SECOND))
    if policy.attempts_max is not None:
        fails = (F.col("fate") == "delivered") & (F.col("attempts") > policy.attempts_max)
        rows = rows.withColumn("fate", F.when(fails, F.lit("dead")).otherwise(F.col("fate"))).withColumn(
            "attempts", F.least("attempts", F.lit(policy.attempts_max))
        )
    return rows.select(*_KEY, "fate", "attempts", "latency", "shift", "unsure")


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
        state = ledger.state()
        if ledger.begun() > state.batch:
            # Some tables have what others lack.
            raise InvalidInput(f"a run of the lake {ledger.place} was interrupted: run it before you replay")
        load = spark.read.format("delta").load
        known = sorted(row["desk"] for row in load(ledger.table("books")).select("desk").distinct().collect())
        if desk not in known:
            raise InvalidInput(f"the books know no message of a desk {desk!r}; they have {', '.join(known) or 'none'}")
        messages, attempts = load(ledger.table("messages")), load(ledger.table("attempts"))
        events = state.lineage.counted(load(ledger.table("events")))
        new = []
        for done, policy in enumerate(policies):
            report(done, len(policies), f"replaying {policy.text}")
            new.append(replay(messages, attempts, events, desk, policy).collect()[0].asDict())
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


def _steps(events: DataFrame, names: DataFrame) -> DataFrame:
    """What counts of all that happened to some messages, step by step."""
    mine = told(events).join(names, on=list(_NUMBERS), how="left_semi")
    return steps(mine.withColumn("base", F.lit(0))).where("counts")


# A time to live


def _terms(events: DataFrame, desk: str) -> DataFrame:
    """(of, since, till, known, given, dies): what each node's policy said of the desk's limits, between two offsets.

    ``given`` is the time to live in µs, null if there was none; ``known`` whether that was said at all.
    """
    starts: dict[str, list[tuple[int, str]]] = {}
    for row in events.where(F.col("event") == "started").select("node", "offset", "detail").collect():
        starts.setdefault(row["node"], []).append((row["offset"], row["detail"] or ""))
    found: list[tuple[Any, ...]] = []
    for node, said in starts.items():
        for (since, detail), (till, _) in pairwise([*sorted(said), (NEVER, "")]):
            policy = _policy_in(detail, desk)
            ttl_s, dies = policy.get("ttl_s"), policy.get("on_expiry") == "die"
            given = int(ttl_s * _SECOND) if _is_wait(ttl_s) else None
            found.append((node, since, till, "ttl_s" in policy, given, dies))
    ddl = "of string, since bigint, till bigint, known boolean, given bigint, dies boolean"
    return F.broadcast(local.frame(events.sparkSession, found, ddl))


def _policy_in(detail: str, desk: str) -> Mapping[str, Any]:
    try:
        found = json.loads(detail)["policies"][desk]
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _with_limit(rows: DataFrame, events: DataFrame, now: DataFrame, terms: DataFrame, ttl: int) -> DataFrame:
    """Messages with what becomes of them if none lives longer than this many µs without an end."""
    # Where no span of time begins again behind a later one, an instant lies less than a span behind one before it: so
    # far a message's clock may be ahead of its end, and a limit that was set anew behind the one of its post.
    span = max(ttl // 4, 1)
    lasts = F.unix_micros("finished_at") - F.unix_micros("posted_at") >= ttl - 2 * span
    passed = (F.col("outcome") == "expired") | (F.col("reason") == "deadline")
    may = F.coalesce(lasts, F.lit(True)) | passed | (F.col("lives") > 1) | F.col("back").isNotNull()
    placed = rows.join(F.broadcast(_backs(events, span)), on="node", how="left")
    # Of all others the steps would tell nothing new.
    old = placed.where(F.col("posted_at").isNotNull() & may)
    found = _passed(_steps(events, old.select("key", twin_of().alias("twin"))), now, terms, ttl)
    turned = _refusals(events, _FULL, _SHARE).select(*_MAILBOX, F.lit(True).alias("turned")).distinct()
    passes = F.coalesce(F.col("passes") & (F.col("fate") != "refused"), F.lit(False))
    # Where one passes sooner, another may have found room; and it is forgotten sooner, so its repeat may be a new post.
    others = F.coalesce("turned", F.lit(False)) | _is_repeated()
    unsure = F.coalesce("is_loose", F.lit(False)) | (passes & others)
    return (
        rows.join(found, on=list(_KEY), how="left")
        .join(turned, on=list(_MAILBOX), how="left")
        .withColumns(
            {
                "fate": F.when(passes, F.when(F.col("dies"), F.lit("dead")).otherwise(F.lit("expired"))).otherwise(
                    F.col("fate")
                ),
                "attempts": F.coalesce("tries", "attempts"),
                "unsure": F.col("unsure") | unsure,
            }
        )
    )


def _backs(events: DataFrame, span: int) -> DataFrame:
    """(node, back): nodes whose clock went back from one span of so many µs to an earlier one."""
    at = F.unix_micros("at")
    spans = events.groupBy("node", (at - at % span).alias("since")).agg(
        F.min("offset").alias("first"), F.max("offset").alias("last")
    )
    before = F.lag("last").over(Window.partitionBy("node").orderBy("since"))
    backs = spans.withColumn("before", before).where(F.col("before") > F.col("first"))
    return backs.select("node", F.lit(True).alias("back")).distinct()


def _passed(steps: DataFrame, now: DataFrame, terms: DataFrame, ttl: int) -> DataFrame:
    """(message, passes, dies, tries, is_loose): whether its last life passes its limit, and its attempts up to then."""
    in_force = (F.col("of") == F.col("node")) & (F.col("offset") > F.col("since")) & (F.col("offset") < F.col("till"))
    placed = steps.join(F.broadcast(now), on="node", how="left").join(terms, on=in_force, how="left")
    told_so = F.col("known") & F.col("expires").isNotNull()
    # Another limit than the desk gives is one that the message was posted with.
    own = F.coalesce(told_so & ~F.col("expires").eqNullSafe(F.col("ts") + F.col("given")), F.lit(False))
    limits = F.struct(F.when(~own, F.col("ts") + ttl).alias("new"), F.col("expires").alias("old"))
    message = Window.partitionBy(*_NUMBERS, "generation")
    so_far = message.orderBy("offset").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    set_anew = is_("posted", "unparked", "redriven")
    placed = placed.withColumn("by", F.last(F.when(set_anew, limits), ignorenulls=True).over(so_far))
    new, old = F.col("by.new"), F.col("by.old")
    limit = F.when(old.isNull() | (new < old), new)
    can = (F.col("state") == READY) | is_("received")
    # In this state until the next step, or as far as its node tells.
    until = F.coalesce("until", "now")
    late = (until > F.greatest(limit, F.col("clock"))) | ((F.col("next_code") == CODE["leased"]) & (until >= limit))
    cut = F.min(F.when(can & limit.isNotNull() & late, F.col("offset")))
    lived = placed.withColumn("cut", cut.over(Window.partitionBy(*_NUMBERS, "generation", "life")))
    in_time = F.col("cut").isNull() | (F.col("offset") < F.col("cut"))
    given_back = F.col("lease_end.code").isin(CODE["released"], CODE["recalled"])
    # What would have been given back later ended with the limit.
    counts = F.coalesce(~given_back, F.lit(True)) | F.coalesce(F.col("lease_end.offset") > F.col("cut"), F.lit(False))
    ended = is_("expired") | (is_("died") & (F.col("reason") == "deadline"))
    # It ended by a limit that would not have been there; or a life ended sooner that another followed.
    loose = F.coalesce(ended & in_time & new.isNotNull() & ~new.eqNullSafe(old), F.lit(False))
    first_cut = F.min(F.when(F.col("cut").isNotNull(), F.col("life")))
    return lived.groupBy(*_KEY).agg(
        F.max_by("cut", "offset").isNotNull().alias("passes"),
        F.coalesce(F.max_by("dies", "offset"), F.lit(False)).alias("dies"),
        F.sum((is_("leased") & in_time & counts).cast("int")).cast("int").alias("tries"),
        (F.max(loose) | F.coalesce(first_cut < F.max("life"), F.lit(False))).alias("is_loose"),
    )


# A capacity


def _with_room(rows: DataFrame, events: DataFrame, capacity: int) -> DataFrame:
    """Messages with what becomes of them in mailboxes of this size.

    Each mailbox is gone through in the order of what came and went; what was refused takes no room later.
    """
    rows = rows.withColumn("who", _who())
    boxes = (
        _moves(rows, events)
        .groupBy(*_MAILBOX)
        .agg(
            F.sort_array(F.collect_list("step")).alias("steps"),
            F.max(F.col("step.does") == _TURNED).alias("turned"),
        )
        # Where fewer ever came than there is room for, nobody was refused.
        .where((F.size("steps") > capacity) | F.col("turned"))
    )
    gone = F.aggregate("steps", _empty(), lambda state, e: _next(state, e, capacity), _all_refused)
    refused = boxes.select(*_MAILBOX, F.explode(gone).alias("who")).withColumn("no_room", F.lit(True))
    # Nobody is meant where it is a mailbox of which the record does not tell.
    is_message = F.col("fate").isNotNull()
    turned = is_message & F.coalesce("no_room", F.lit(False))
    return rows.join(refused, on=[*_MAILBOX, "who"], how="full").withColumns(
        {
            "fate": F.when(turned, F.lit("refused")).otherwise(F.col("fate")),
            # A refusal leaves no memory: a repeat is a new post, and may find room.
            "unsure": F.coalesce("unsure", F.lit(True)) | (turned & _is_repeated()),
        }
    )


def _who() -> Column:
    """A number for a message among those of its mailbox."""
    return F.xxhash64(*_KEY[len(_MAILBOX) :])


def _is_repeated() -> Column:
    """Whether a message was posted again while it was known."""
    return F.coalesce(F.col("duplicates") > 0, F.lit(False))


def _refusals(events: DataFrame, *reasons: str) -> DataFrame:
    """Posts that were refused for one of these reasons."""
    return events.where((F.col("event") == "refused") & F.col("reason").isin(*reasons))


def _moves(rows: DataFrame, events: DataFrame) -> DataFrame:
    """(mailbox, step): what came, went and was refused, each at its offset."""

    def step(offset: str, does: Column, who: Column) -> Column:
        return F.struct(F.col(offset).alias("offset"), does.cast("int").alias("does"), who.alias("who"))

    # An answer may have been let in by the right of what it answers.
    unasked = (F.col("kind") == _CONFIRMATION) | F.col("cause_id").isNotNull()
    comes = F.when(F.coalesce(unasked, F.lit(False)), _UNASKED).otherwise(_ASKS)
    posted = rows.where(F.col("posted_at").isNotNull()).withColumn("twin", twin_of())
    early = posted.where(F.col("first_offset") < F.col("commit")).select(*_NUMBERS)
    odd = told(events.where(F.col("event").isin(*_ODD))).select(*_NUMBERS).unionByName(early).distinct()
    leaves = F.when(F.col("finished_offset").isNotNull(), step("finished_offset", F.lit(_LEAVES), F.col("who")))
    both = F.array_compact(F.array(step("first_offset", comes, F.col("who")), leaves))
    plain = posted.join(odd, on=list(_NUMBERS), how="left_anti").select(*_MAILBOX, F.explode(both).alias("step"))
    last = F.lead("offset").over(Window.partitionBy(*_NUMBERS, "generation").orderBy("offset")).isNull()
    does = F.when(is_("posted"), comes).when(F.col("change") > 0, _AGAIN).when(F.col("last"), _LEAVES).otherwise(_RESTS)
    others = _steps(events, odd).where("change <> 0").withColumn("last", last)
    why = F.when(F.col("reason") == _SHARE, _SHARED).otherwise(_TURNED)
    turned = _refusals(events, _FULL, _SHARE).select(
        *_MAILBOX, step("offset", why, F.lit(0).cast("bigint")).alias("step")
    )
    return plain.unionByName(others.select(*_MAILBOX, step("offset", does, _who()).alias("step"))).unionByName(turned)


def _empty() -> Column:
    """A mailbox before its first message: who was refused is kept in pages, since each addition copies one."""
    nobody = F.array().cast("array<bigint>")
    return F.struct(
        F.lit(0).alias("depth"),
        # Refused, and in truth not gone for good; and how many of them wait or are in flight in truth.
        nobody.alias("away"),
        F.lit(0).alias("missing"),
        nobody.alias("page"),
        F.array().cast("array<array<bigint>>").alias("pages"),
        F.lit(False).alias("unsure"),
    )


def _next(state: Column, e: Column, capacity: int) -> Column:
    does, room = e["does"], state["depth"] < capacity
    away = F.array_contains(state["away"], e["who"])
    full = (does == _ASKS) & ~room
    comes = does.isin(_ASKS, _UNASKED) | ((does == _AGAIN) & ~away)
    goes = does.isin(_RESTS, _LEAVES) & ~away
    change = F.when(full, 0).when(comes, 1).when(goes, -1).otherwise(0)
    lacks = F.when(full | ((does == _AGAIN) & away), 1).when(does.isin(_RESTS, _LEAVES) & away, -1).otherwise(0)
    turns = full & (F.size(state["page"]) >= _PAGE)
    gone = (
        F.when(full, F.array_append(state["away"], e["who"]))
        .when((does == _LEAVES) & away, F.array_remove(state["away"], e["who"]))
        .otherwise(state["away"])
    )
    page = F.when(turns, F.array(e["who"])).when(full, F.array_append(state["page"], e["who"])).otherwise(state["page"])
    pages = F.when(turns, F.array_append(state["pages"], state["page"])).otherwise(state["pages"])
    # Room for one who was refused, or for one whose sender may have had fewer there; or none for one who asked for none
    # or came back.
    free = (does == _TURNED) | ((does == _SHARED) & (state["missing"] > 0))
    unsure = (free & room) | (does.isin(_UNASKED, _AGAIN) & ~away & ~room)
    return F.struct(
        (state["depth"] + change).alias("depth"),
        gone.cast("array<bigint>").alias("away"),
        (state["missing"] + lacks).alias("missing"),
        page.cast("array<bigint>").alias("page"),
        pages.cast("array<array<bigint>>").alias("pages"),
        (state["unsure"] | unsure).alias("unsure"),
    )


def _all_refused(state: Column) -> Column:
    """Who was refused; and null where the record does not tell."""
    refused = F.flatten(F.array_append(state["pages"], state["page"]))
    return F.when(state["unsure"], F.array_append(refused, F.lit(None).cast("bigint"))).otherwise(refused)


# A ladder of retries


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
