"""Agreement: the tables of a lake held against each other, on Spark.

In: the tables, and the lake's record. Out: what does not agree, as kind, place and sentence, one of a sort at most.
Nothing is changed. Rows that must be the same in two tables are compared as numbers that are made of their values, so
that little is moved: of whole hours as one number, or row by row where one table has more than the other. What cannot
be found in this way, unless all is computed anew: findings that were taken away about lanes and expiry, and the waits
of messages.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

from . import failure
from .check import Discrepancy
from .ledger import State
from .schema import CLOSED, IDENTITY, TABLES
from .tables import FILES, GOLD, SILVER, Tables
from .withdrawn import TOLD

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

BROADCAST_MAX = 2_000_000
"""Places of events that are held in memory at one time."""
_ENDS = {"delivered": "delivered", "dead": "died", "expired": "expired", "cancelled": "cancelled", "refused": "refused"}
"""The event that makes an outcome."""
_AFTER = ("delivered_twice", "settled_after_finished")
"""What is found of a message to which something happened after its end."""
_NO_POST = "no post"
_SUM = ("table", "window", "desk", "kind", "measure", "label", "bucket", "n")
"""Of partials, what books and latency are summed of."""

Check = Callable[[], Iterator[Discrepancy]]


def verify_tables(
    tables: Tables, state: State, report: Callable[[int, int | None, str], None] = lambda done, total, doing: None
) -> Iterator[Discrepancy]:
    """What does not agree between the tables of a lake whose last batch is committed."""
    behind = state.gold < state.batch
    if behind:
        yield "unfinished", "lake", f"the derived tables are behind batch {state.batch}: run the books"
    there = tables.names()
    derived = () if behind else GOLD
    lacking = [name for name in ("events", *SILVER, "segments", *derived) if name not in there]
    for name in lacking:
        yield "missing", name, "there is no such table: rebuild the books"
    if {"events", *SILVER} & {*lacking}:
        return
    with contextlib.ExitStack() as stack:
        held = _Held(tables, state, stack)
        checks: list[tuple[str, Check]] = [
            ("events", held.days),
            ("lake", held.forgotten),
            ("messages", held.messages_once),
            ("messages", held.posts),
            ("messages", held.ends),
            ("attempts", held.leases),
            ("messages", held.without_spark),
            ("anomalies", held.file_findings),
            ("anomalies", held.findings),
            ("partials", held.sums),
            *((name, functools.partial(held.derived, name)) for name in derived if name in there),
        ]
        for number, (name, check) in enumerate(checks):
            report(number, len(checks), "comparing tables")
            yield from _read(name, check)


def _read(name: str, check: Check) -> Iterator[Discrepancy]:
    """A check; if its tables cannot be read, that is what it found."""
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    try:
        yield from check()
    except (PySparkException, Py4JJavaError) as error:
        yield "unreadable", name, f"it cannot be read: {failure.reason(failure.text_of(error))}"


class _Differing(NamedTuple):
    """A row that is not the same in two tables: its key, and its values in each, None where it is in one alone."""

    key: dict[str, str]
    made: dict[str, Any] | None
    there: dict[str, Any] | None

    @property
    def name(self) -> str:
        """The row by its key."""
        return " ".join(value for value in self.key.values() if value)

    def columns(self) -> list[str]:
        """The columns that are not the same."""
        made, there = self.made or {}, self.there or {}
        return sorted(name for name in made.keys() | there.keys() if made.get(name) != there.get(name))

    def __str__(self) -> str:
        if self.made is None:
            return f"{self.name}: there is a row too many"
        if self.there is None:
            return f"{self.name}: there is no such row"
        name = self.columns()[0]
        return f"{self.name}: {name} is {self.there.get(name)}, and should be {self.made.get(name)}"


class _Held:
    """The tables while they are compared."""

    def __init__(self, tables: Tables, state: State, stack: contextlib.ExitStack) -> None:
        self._tables = tables
        self._state = state
        self._stack = stack

    # What they are compared by

    def _load(self, name: str) -> DataFrame:
        return self._tables.load(name)

    @property
    def _counted(self) -> DataFrame:
        """The events as the books count them."""
        return self._state.lineage.counted(self._load("events"))

    @property
    def _events(self) -> DataFrame:
        """Those of messages."""
        return self._counted.where("message_id <> ''")

    @property
    def _partials(self) -> DataFrame:
        return self._load("partials").drop("batch")

    def _keep(self, frame: DataFrame) -> DataFrame:
        """Computed once, for several questions."""
        kept = frame.persist()
        self._stack.callback(kept.unpersist)
        return kept

    @functools.cached_property
    def _hours(self) -> DataFrame:
        """What each hour of a node had: posts, and what was refused or known, by desk and kind.

        What is refused at the door may name no message.
        """
        from pyspark.sql import functions as F

        event = F.col("event")
        post = (event == "posted") & (F.col("message_id") != "")
        return self._keep(
            self._counted.where(post | event.isin("refused", "duplicate"))
            .withColumn("window", F.date_trunc("hour", "at"))
            .groupBy("window", "node", "desk", "kind")
            .agg(
                *(F.count(F.when(event == name, 1)).alias(name) for name in ("posted", "refused", "duplicate")),
                F.bit_xor(F.when(event == "posted", _post("at", F.xxhash64(*IDENTITY)))).alias("all"),
            )
        )

    @functools.cached_property
    def _odd(self) -> DataFrame:
        """Messages that were never posted, and those to which something happened after their end."""
        from pyspark.sql import functions as F

        after = (F.col("finished_offset") < F.col("last_offset")) & (F.col("outcome") != "refused")
        chosen = self._load("messages").where(F.col("orphan") | after)
        return self._keep(
            chosen.select(*IDENTITY, "kind", "orphan", "first_offset", "last_offset", after.alias("after"))
        )

    @functools.cached_property
    def _evidence(self) -> DataFrame:
        """The events that findings and odd messages name."""
        from pyspark.sql import functions as F

        named = [
            self._findings().select("node", F.explode("offsets").alias("offset")),
            self._odd.where("orphan").select("node", F.col("first_offset").alias("offset")),
            self._odd.where("after").select("node", F.col("last_offset").alias("offset")),
        ]
        places = self._keep(_together(*named).distinct())
        near = F.broadcast(places) if places.count() <= BROADCAST_MAX else places
        found = self._events.join(near, on=["node", "offset"], how="left_semi")
        return self._keep(found.select(*IDENTITY, "offset", "event", "at", "cause_id"))

    def _findings(self) -> DataFrame:
        """Those about messages."""
        from pyspark.sql import functions as F

        return self._load("anomalies").where(F.col("part") != FILES)

    # Events

    def days(self) -> Iterator[Discrepancy]:
        """Each event is in the part of its day."""
        from pyspark.sql import functions as F

        for row in self._load("events").where(F.to_date("at") != F.col("day")).limit(1).collect():
            yield "mismatch", "events", f"offset {row['offset']} of {row['node']} is not of the day {row['day']}"

    def forgotten(self) -> Iterator[Discrepancy]:
        """Nothing is there of a mailbox that was forgotten."""
        from pyspark.sql import functions as F

        if not self._state.forgotten:
            return
        for name in ("events", "messages", "attempts", "anomalies"):
            left = self._load(name).where(F.col("mailbox").isin(list(self._state.forgotten)))
            for row in left.limit(1).collect():
                yield "forgotten", name, f"there are rows of the mailbox {row['mailbox']}, which was forgotten"

    # Messages and attempts

    def messages_once(self) -> Iterator[Discrepancy]:
        """No message is there twice."""
        from pyspark.sql import functions as F

        messages = self._load("messages")
        # By its number first: no two messages have the same but by chance.
        numbers = messages.groupBy("key", "generation").count().where("count > 1").limit(100).collect()
        if not numbers:
            return
        suspects = messages.where(F.col("key").isin([row["key"] for row in numbers]))
        for row in suspects.groupBy(*IDENTITY, "generation").count().where("count > 1").limit(1).collect():
            yield "twice", "messages", f"{row['message_id']} is there {row['count']} times"

    def posts(self) -> Iterator[Discrepancy]:
        """Each post is a message, with all that it said."""
        from pyspark.sql import functions as F

        by = ("window", "node")
        made = self._hours.where("posted > 0").groupBy(*by)
        there = (
            self._load("messages").where("posted_at IS NOT NULL").withColumn("all", _post("posted_at", F.col("key")))
        )
        other = _differing(
            made.agg(F.sum("posted").alias("posted"), F.bit_xor("all").alias("all")),
            there.withColumn("window", F.date_trunc("hour", "posted_at"))
            .groupBy(*by)
            .agg(F.count("*").alias("posted"), F.bit_xor("all").alias("all")),
            by,
        )
        if other is None:
            return
        posts, messages = ((values or {}).get("posted", 0) for values in (other.made, other.there))
        detail = (
            f"{other.name}: there are {messages} messages posted, and {posts} posts"
            if posts != messages
            else f"{other.name}: one of the {posts} messages posted is not as its post says"
        )
        yield "mismatch", "messages", detail

    def ends(self) -> Iterator[Discrepancy]:
        """What ended a message or an attempt is an event of it, at that offset and that time."""
        from pyspark.sql import functions as F

        outcome = F.create_map(*(F.lit(each) for pair in _ENDS.items() for each in pair))[F.col("outcome")]
        over = F.col("finished_offset").isNotNull() | F.col("outcome").isin(*CLOSED)
        messages = self._load("messages").where(over)
        attempts = self._load("attempts").where("end_offset IS NOT NULL OR ended <> 'open'")
        claims = {
            "messages": messages.select(
                "*",
                _end("finished_offset", outcome, "finished_at").alias("h"),
                F.col("finished_offset").alias("at_offset"),
            ),
            "attempts": attempts.select(
                "*", _end("end_offset", F.col("ended"), "ended_at").alias("h"), F.col("end_offset").alias("at_offset")
            ),
        }
        # Nothing ends with an arrival.
        there = self._events.where("event <> 'received'").select(_end("offset", F.col("event"), "at").alias("h"))
        named = (frame.select(F.lit(name).alias("name"), "at_offset", "h") for name, frame in claims.items())
        wrong = _together(*named).join(there, on="h", how="left_anti")
        first = wrong.groupBy("name").agg(F.count("*").alias("n"), F.min(F.struct("at_offset", "h")).alias("f"))
        for row in first.orderBy(F.desc("name")).collect():
            for one in claims[row["name"]].where(F.col("h") == row["f"]["h"]).limit(1).collect():
                is_message = row["name"] == "messages"
                said = one["outcome"] if is_message else one["ended"]
                subject = one["message_id"] if is_message else f"the lease {one['lease_offset']} of {one['node']}"
                more = f"; so it is with {row['n'] - 1} more" if row["n"] > 1 else ""
                detail = (
                    f"{subject} is {said} by offset {one['at_offset']} of {one['node']}, which does not say so{more}"
                )
                yield "mismatch", row["name"], detail

    def leases(self) -> Iterator[Discrepancy]:
        """Each lease is one attempt, but for those of messages that were finished: these are findings."""
        from pyspark.sql import functions as F

        leases = self._events.where("event = 'leased'").select(
            "*", _lease("offset", "at").alias("h"), F.xxhash64(*IDENTITY).alias("number")
        )
        attempts = self._load("attempts").select(
            "*", _lease("lease_offset", "started_at").alias("h"), F.xxhash64(*IDENTITY).alias("number")
        )
        one, none = F.lit(1), F.lit(0)
        both = attempts.select("h", "number", F.col("lease_offset").alias("place"), one.alias("a"), none.alias("l"))
        both = both.unionByName(
            leases.select("h", "number", F.col("offset").alias("place"), none.alias("a"), one.alias("l"))
        )
        other = (
            both.groupBy("h", "number", "place").agg(F.sum("a").alias("a"), F.sum("l").alias("l")).where("a <> l")
        )  # fmt: skip
        late = self._findings().where(F.col("kind") == "settled_after_finished")
        late = late.select(F.xxhash64(*IDENTITY).alias("number"), F.lit(True).alias("late")).distinct()
        first = F.struct("place", "h")
        sorts = {"twice": "a > l AND l > 0", "invented": "l = 0", "lacking": "a < l AND late IS NULL"}
        (found,) = (
            other.join(late, on="number", how="left")
            .agg(*(F.min(F.when(F.expr(sort), first)).alias(name) for name, sort in sorts.items()))
            .collect()
        )
        sentences = {
            "twice": "the lease {} of {} is there more than once",
            "invented": "there is no such lease as that at offset {} of {}",
            "lacking": "the lease {} of {} is none",
        }
        for sort, sentence in sentences.items():
            if found[sort] is None:
                continue
            of = leases if sort == "lacking" else attempts
            for row in of.where(F.col("h") == found[sort]["h"]).limit(1).collect():
                kind = "twice" if sort == "twice" else "mismatch"
                yield kind, "attempts", sentence.format(found[sort]["place"], row["node"])

    def without_spark(self) -> Iterator[Discrepancy]:
        """Whoever reads without Spark finds as many rows."""
        for name in TOLD:
            rows, read = self._load(name).count(), self._tables.count(name)
            if rows != read:
                yield "mismatch", name, f"there are {rows} rows, and {read} for one who reads them without Spark"

    # Findings

    def file_findings(self) -> Iterator[Discrepancy]:
        """What is said of files is what the record knows of them."""
        from pyspark.sql import functions as F

        rows = self._load("anomalies").where(F.col("part") == FILES)
        rows = rows.select("kind", "node", "offsets", "detail", F.unix_micros("at").alias("at"))
        there = Counter((r["kind"], r["node"], tuple(r["offsets"]), r["detail"], r["at"] or 0) for r in rows.collect())
        made = Counter((f.kind, f.node, f.offsets, f.detail, f.at or 0) for f in self._state.findings())
        for sort, more in (("is not there", made - there), ("is not so", there - made)):
            for kind, node, _, detail, _ in sorted(more)[:1]:
                yield "mismatch", "anomalies", f"{kind} of node {node} {sort}: {detail}"

    def findings(self) -> Iterator[Discrepancy]:
        """Findings are there once and can be shown, and what is seen in the tables is among them."""
        from pyspark.sql import functions as F

        found, key = self._findings(), list(IDENTITY)
        for row in found.groupBy("kind", *key).count().where("count > 1").limit(1).collect():
            yield "twice", "anomalies", f"{row['kind']} of {row['message_id']} is there {row['count']} times"
        evidence = self._evidence
        # What was answered is named in place of the answers.
        answers = evidence.where("cause_id IS NOT NULL").select(
            "node", "desk", F.lit("").alias("mailbox"), F.lit("").alias("sender"),
            F.col("cause_id").alias("message_id"), "offset", F.lit(True).alias("answer"),
        )  # fmt: skip
        shown = evidence.select(*key, "offset", F.lit(False).alias("answer")).unionByName(answers)
        said = found.select("kind", *key, F.get("offsets", F.lit(0)).alias("offset"))
        said = said.withColumn("answer", F.col("kind") == "answered_twice")
        for row in said.join(shown, on=[*key, "offset", "answer"], how="left_anti").limit(1).collect():
            detail = f"{row['kind']} of {row['message_id']} names offset {row['offset']}, which is no event of it"
            yield "mismatch", "anomalies", detail
        each = found.select("kind", "message_id", "node", F.explode("offsets").alias("offset"))
        for row in each.join(evidence, on=["node", "offset"], how="left_anti").limit(1).collect():
            detail = f"{row['kind']} of {row['message_id']} names offset {row['offset']}, where there is no event"
            yield "mismatch", "anomalies", detail

        def both(kind: str, made: DataFrame, there: DataFrame, by: Sequence[str]) -> Iterator[Discrepancy]:
            for sort, ours, theirs in (("is not there", made, there), ("is not so", there, made)):
                for row in ours.join(theirs, on=list(by), how="left_anti").limit(1).collect():
                    yield "mismatch", "anomalies", f"{kind} of {row['message_id']} {sort}"

        lost = found.where((F.col("kind") == "lost") & (F.col("detail") == _NO_POST)).select(*key)
        yield from both("lost", self._odd.where("orphan").select(*key), lost, key)
        posts = self._load("messages").where("cause_id IS NOT NULL AND posted_at IS NOT NULL")
        commits = posts.groupBy("node", "desk", F.col("cause_id").alias("message_id")).agg(
            F.min("commit").alias("a"), F.max("commit").alias("b")
        )
        by = ("node", "desk", "message_id")
        twice = found.where(F.col("kind") == "answered_twice").select(*by)
        yield from both("answered_twice", commits.where("a <> b").select(*by), twice, by)
        silent = F.col("event").isin("duplicate", "refused")
        after = self._odd.where("after").withColumnRenamed("last_offset", "offset")
        after = after.join(evidence.where(~silent).select(*key, "offset"), on=[*key, "offset"], how="left_semi")
        told = found.where(F.col("kind").isin(*_AFTER)).select(*key)
        for row in after.join(told, on=key, how="left_anti").limit(1).collect():
            detail = (
                f"{row['message_id']} has an event after its end at offset {row['offset']}, and nothing is said of it"
            )
            yield "mismatch", "anomalies", detail

    # Sums

    def sums(self) -> Iterator[Discrepancy]:
        """The sums that the derived tables are made of are those of the messages, of what was refused and known."""
        from pyspark.sql import functions as F

        from . import transforms
        from .transforms.partials import of_table
        from .transforms.told import DONE

        def counted(frame: DataFrame, **columns: Column) -> DataFrame:
            values = {"table": F.lit("books"), "label": F.lit(""), "bucket": F.lit(0), **columns}
            return frame.select(*(values.get(name, F.col(name)).alias(name) for name in _SUM))

        orphans = self._odd.where("orphan").withColumnRenamed("first_offset", "offset")
        placed = orphans.join(self._evidence.select(*IDENTITY, "offset", "at"), on=[*IDENTITY, "offset"], how="inner")
        placed = placed.withColumn("window", F.date_trunc("hour", "at"))
        pieces = [
            of_table(self._load("messages").where("posted_at IS NOT NULL"), DONE).select(*_SUM),
            counted(placed, measure=F.lit("orphan"), label=F.col("message_id"), n=F.lit(1).cast("bigint")),
            *(
                counted(self._hours.where(F.col(name) > 0), measure=F.lit(name), n=F.col(name))
                for name in ("refused", "duplicate")
            ),
        ]
        made = _together(*pieces)
        for name in ("books", "latency"):
            make: Callable[[DataFrame], DataFrame] = getattr(transforms, name)
            other = _differing(make(made), make(self._partials), TABLES[name].key)
            if other is not None:
                yield "mismatch", "messages", f"they do not come to what the sums for {name} say: {other}"

    def derived(self, name: str) -> Iterator[Discrepancy]:
        """A derived table is what its sums come to."""
        from . import transforms

        table = TABLES[name]
        columns = table.stable
        made = getattr(transforms, name)(self._partials).select(*columns)
        other = _differing(made, self._load(name).select(*columns), table.key)
        if other is not None:
            yield "mismatch", name, str(other)


def _differing(made: DataFrame, there: DataFrame, key: Sequence[str]) -> _Differing | None:
    """The first row, by its key, that is not as often in the one as in the other, with the same values."""
    from pyspark.sql import functions as F

    names = [name for name in made.columns if name not in key]
    by = [F.col(name).cast("string").alias(name) for name in key]

    def rows(frame: DataFrame, times: int) -> DataFrame:
        return frame.select(*by, F.to_json(F.struct(*names)).alias("values"), F.lit(times).alias("times"))

    both = rows(made, 1).unionByName(rows(there, -1))
    other = both.groupBy(*key, "values").agg(F.sum("times").alias("times")).where("times <> 0")
    found = other.orderBy(*key, "times").limit(2).collect()
    if not found:
        return None
    of = {name: found[0][name] for name in key}
    same = [row for row in found if all(row[name] == of[name] for name in key)]
    values = {row["times"] > 0: json.loads(row["values"]) for row in same}
    return _Differing(of, values.get(True), values.get(False))


def _together(*frames: DataFrame) -> DataFrame:
    return reduce(lambda one, other: one.unionByName(other), frames)


def _post(at: str, number: Column) -> Column:
    """A number made of what a post says."""
    from pyspark.sql import functions as F

    return F.xxhash64(*IDENTITY, "kind", "lane", "size_bytes", "commit", at, number)


def _end(offset: str, event: Column, at: str) -> Column:
    """A number made of an event that ended something."""
    from pyspark.sql import functions as F

    return F.xxhash64(*IDENTITY, offset, event, at, "reason")


def _lease(offset: str, at: str) -> Column:
    """A number made of a lease."""
    from pyspark.sql import functions as F

    return F.xxhash64(*IDENTITY, offset, at, "holder", "attempt")
