"""The definitions of the books, each on a few events written by hand; and that batches do not matter."""

from __future__ import annotations

import datetime as dt
import json
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType
from tests.pipeline import compare
from tests.pipeline.journal import Journal, frame
from tests.pipeline.journals import hostile, write_journal
from tests.pipeline.oracle import Oracle

from posthouse.pipeline import bronze, transforms
from posthouse.pipeline.job import GOLD
from posthouse.pipeline.transforms import Batch

pytestmark = pytest.mark.timeout(600)

Rows = list[dict[str, Any]]
SECOND = 1_000_000
STORY = "n1"
"""The story's node."""


def story() -> Journal:
    """One mailbox and lane per definition."""
    j = Journal(STORY)

    def at(box: str, desk: str = "relay") -> None:
        j.mailbox, j.desk = box, desk
        j._seqs.clear()

    endless = {"capacity": 2**64 - 1, "quiet_s": 1e300, "quiet_max_s": 1e308}
    j.add(0, "started", detail=json.dumps({"policies": {"endless": endless}}))
    at("live")
    j.add(1, "connected", holder="h1")
    offset = j.add(2, "posted", "live-1")
    j.add(2, "leased", "live-1", commit=offset, holder="h1")
    j.add(3, "received", "live-1")
    j.add(4, "delivered", "live-1")
    j.add(5, "duplicate", "live-1")
    j.add(6, "duplicate", "nobody")
    at("stored")
    j.add(10, "connected", holder="h2")
    j.add(12, "disconnected", holder="h2", reason="timeout")
    j.add(15, "posted", "stored-1")
    j.add(15, "posted", "stored-2")
    j.add(20, "connected", holder="h3")
    j.add(21, "leased", "stored-1", holder="h3")
    j.add(23, "delivered", "stored-1")
    j.add(24, "leased", "stored-2", holder="h3")
    j.add(25, "retried", "stored-2", reason="failed", error="no route", due_at=30)
    j.add(32, "leased", "stored-2", attempt=2)
    j.add(33, "delivered", "stored-2")
    at("paused", "inbound")
    j.add(40, "posted", "paused-1")
    j.add(41, "paused", reason="operator")
    j.add(45, "resumed")
    j.add(46, "parked", "paused-1", reason="operator")
    j.add(50, "unparked", "paused-1")
    j.add(51, "leased", "paused-1")
    j.add(52, "uncertain", "paused-1", reason="unknown")
    at("dead", "inbound")
    j.add(60, "posted", "dead-1")
    j.add(61, "leased", "dead-1")
    j.add(62, "died", "dead-1", reason="attempts", error="timeout after 30 s of 0xff")
    j.add(70, "redriven", "dead-1")
    j.add(71, "leased", "dead-1")
    j.add(72, "delivered", "dead-1")
    j.add(73, "delivered", "dead-1")
    j.add(74, "released", "dead-1")
    at("refused")
    j.add(80, "refused", "refused-1", reason="full")
    j.add(80, "refused", "refused-2", reason="full")
    j.add(81, "posted", "refused-2", expires_at=90)
    j.add(91, "expired", "refused-2", reason="ttl")
    at("orphan")
    j.add(92, "delivered", "orphan-1", lane_seq=1)
    at("order", "inbound")
    j.add(100, "posted", "order-1")
    j.add(100, "posted", "order-2")
    j.add(101, "leased", "order-2")
    j.add(102, "leased", "order-1")
    j.add(103, "delivered", "order-1")
    j.add(104, "delivered", "order-2")
    at("again", "inbound")
    j.add(110, "posted", "again-1")
    j.add(110, "posted", "again-2")
    j.add(111, "leased", "again-1")
    j.add(111, "leased", "again-2")
    j.add(112, "released", "again-1")
    j.add(112, "recalled", "again-2")
    j.add(113, "leased", "again-2")
    j.add(114, "leased", "again-1")
    j.add(115, "delivered", "again-1")
    j.add(115, "delivered", "again-2")
    at("gap")
    j.add(120, "posted", "gap-1", lane_seq=1)
    j.add(120, "posted", "gap-4", lane_seq=4)
    at("late")
    j.add(130, "posted", "late-1", expires_at=131)
    j.add(131, "leased", "late-1")
    j.add(132, "delivered", "late-1")
    j.add(133, "posted", "late-2", expires_at=135)
    j.add(134, "leased", "late-2")
    j.add(136, "delivered", "late-2")
    at("answers", "outbound")
    j.add(140, "posted", "answer-1", cause_id="question")
    j.add(141, "posted", "answer-2", cause_id="question")
    same = j.add(142, "posted", "answer-3", cause_id="other")
    j.add(142, "posted", "answer-4", cause_id="other", commit=same)
    at("twice")
    j.add(150, "posted", "twice-1")
    j.add(151, "cancelled", "twice-1", reason="operator")
    j.add(152, "posted", "twice-1")
    at("lost")
    j.add(160, "posted", "lost-1", expires_at=170)
    j.add(5_000, "posted", "lost-2", expires_at=9_000)
    return j


def rows_of(found: DataFrame) -> Rows:
    return [row.asDict(recursive=True) for row in found.collect()]


def kept(frame_: DataFrame, beside: DataFrame | None = None) -> DataFrame:
    """Cut off from how it came about: plans stay small."""
    return frame_.localCheckpoint() if beside is None else frame_.unionByName(beside)


@pytest.fixture(scope="session")
def mixed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Batch, Path]:
    """The story and a few hostile journals, and the folder of those: one batch takes no longer for both."""
    journal = tmp_path_factory.mktemp("few")
    write_journal(journal, hostile(20))
    few = spark.read.schema(bronze.ddl()).parquet(*map(str, journal.glob("node=*/*.parquet")))
    batch = transforms.advance(story().frame(spark).unionByName(few), keep=kept)
    return Batch(*map(kept, batch)), journal


@pytest.fixture(scope="session")
def whole(mixed: tuple[Batch, Path]) -> Batch:
    """What comes of the story."""
    return Batch(*(each.where(F.col("node") == STORY) for each in mixed[0]))


@pytest.fixture(scope="session")
def messages(whole: Batch) -> dict[tuple[str, int], dict[str, Any]]:
    return {(row["message_id"], row["generation"]): row for row in rows_of(whole.messages)}


@pytest.fixture(scope="session")
def anomalies(whole: Batch) -> set[tuple[str, str]]:
    found = [(row["kind"], row["message_id"]) for row in rows_of(whole.anomalies)]
    assert len(found) == len(set(found))
    return set(found)


def test_each_message_has_its_outcome(messages: dict[tuple[str, int], dict[str, Any]]) -> None:
    assert {key: row["outcome"] for key, row in messages.items()} == {
        ("live-1", 1): "delivered",
        ("stored-1", 1): "delivered",
        ("stored-2", 1): "delivered",
        ("paused-1", 1): "uncertain",
        ("dead-1", 1): "delivered",
        ("refused-1", 1): "refused",
        ("refused-2", 1): "expired",
        ("orphan-1", 1): "delivered",
        ("order-1", 1): "delivered",
        ("order-2", 1): "delivered",
        ("again-1", 1): "delivered",
        ("again-2", 1): "delivered",
        ("gap-1", 1): "open",
        ("gap-4", 1): "open",
        ("late-1", 1): "delivered",
        ("late-2", 1): "delivered",
        ("answer-1", 1): "open",
        ("answer-2", 1): "open",
        ("answer-3", 1): "open",
        ("answer-4", 1): "open",
        ("twice-1", 1): "cancelled",
        ("twice-1", 2): "open",
        ("lost-1", 1): "open",
        ("lost-2", 1): "open",
    }


def test_a_message_is_live_if_the_lease_of_its_commit_delivered_it(
    messages: dict[tuple[str, int], dict[str, Any]],
) -> None:
    assert messages["live-1", 1]["live"]
    assert messages["live-1", 1]["duplicates"] == 1
    assert not messages["stored-1", 1]["live"]


def test_lives_are_separated_by_redriven(messages: dict[tuple[str, int], dict[str, Any]]) -> None:
    row = messages["dead-1", 1]
    assert (row["lives"], row["attempts"], row["latency"]) == (2, 2, 12 * SECOND)


def test_waits_go_to_the_first_cause_that_applies_and_add_up(
    messages: dict[tuple[str, int], dict[str, Any]],
) -> None:
    def waits(id: str) -> dict[str, float]:
        row = messages[id, 1]
        found = {name[5:]: row[name] / SECOND for name in row if name.startswith("wait_") and row[name]}
        assert sum(found.values()) == (row["finished_at"] - row["posted_at"]).total_seconds()
        return found

    assert waits("live-1") == {"in_flight": 2}
    assert waits("stored-1") == {"offline": 5, "idle": 1, "in_flight": 2}
    assert waits("stored-2") == {"offline": 5, "lane": 3, "idle": 1 + 2, "in_flight": 2, "backoff": 5}
    assert waits("dead-1") == {"idle": 2, "in_flight": 2, "parked": 8}
    assert messages["paused-1", 1]["wait_idle"] is None


def test_every_anomaly_is_found_and_none_is_invented(anomalies: set[tuple[str, str]]) -> None:
    assert anomalies == {
        ("lost", "orphan-1"),
        ("lost", "lost-1"),
        ("lane_gap", "gap-4"),
        ("out_of_order", "order-1"),
        ("out_of_order", "again-1"),
        ("delivered_twice", "dead-1"),
        ("settled_after_finished", "dead-1"),
        ("delivered_after_expiry", "late-1"),
        ("answered_twice", "question"),
    }


def test_attempts_say_how_they_ended(whole: Batch) -> None:
    found = [(row["message_id"], row["ended"]) for row in rows_of(whole.attempts.orderBy("lease_offset"))]
    assert [ended for id, ended in found if id == "stored-2"] == ["retried", "delivered"]
    assert [ended for id, ended in found if id == "again-1"] == ["released", "delivered"]
    assert ("paused-1", "uncertain") in found


def test_the_books_add_up(whole: Batch) -> None:
    books = transforms.books(whole.partials)
    assert not transforms.check_books(books).collect()
    total = books.agg(*(F.sum(n).alias(n) for n in ("posted", "delivered", "refused", "duplicate", "remainder")))
    assert rows_of(total) == [{"posted": 22, "delivered": 10, "refused": 2, "duplicate": 2, "remainder": 1}]
    ids = [row["remainder_ids"] for row in rows_of(books) if row["remainder_ids"]]
    assert ids == [["orphan-1"]]


def test_percentiles_are_within_two_percent(whole: Batch) -> None:
    rows = rows_of(transforms.latency(whole.partials))
    live = next(row for row in rows if row["live"])
    assert live["count"] == 1
    assert abs(live["p50"] / (2 * SECOND) - 1) <= 0.02


def test_availability_is_a_share_of_what_the_journal_covers(whole: Batch) -> None:
    rows = {row["mailbox"]: row for row in rows_of(transforms.availability(whole.partials))}
    stored = rows["stored"]
    assert (stored["connections"], stored["half_open"]) == (2, 1)
    assert stored["online"] == (2 + 5_000 - 20) * SECOND
    assert stored["covered"] == 5_000 * SECOND


def test_dead_letters_group_by_error(whole: Batch) -> None:
    (row,) = rows_of(transforms.deadletters(whole.partials))
    assert (row["error"], row["count"], row["redriven"], row["redriven_delivered"]) == (
        "timeout after # s of #", 1, 1, 1,
    )  # fmt: skip


def test_days_of_availability_and_outages_come_out_alike_from_some_days_and_from_all(
    spark: SparkSession, whole: Batch
) -> None:
    """A mailbox is out on one day and its backlog gone on the next, and a connection stands from then on.

    Others are out, too, and nothing is told of them afterwards; one is that of a desk without mailboxes.
    """
    day = dt.datetime(2026, 3, 2, tzinfo=dt.UTC)
    schema_of = whole.partials.schema

    def row(table: str, hours: int | None, **values: Any) -> dict[str, Any]:
        at = None if hours is None else day + dt.timedelta(hours=hours)
        found = {field.name: None for field in schema_of.fields} | {
            "part": "open" if at is None else at.date().isoformat(), "table": table, "measure": "", "window": at,
            "node": "n1", "desk": "relay", "kind": "", "mailbox": "ann", "label": "", "bucket": 0,
            **dict.fromkeys(("posted", "finished", "refused", "failed", "succeeded", "full"), 0),
        }  # fmt: skip
        return found | values

    def of(rows: Rows) -> DataFrame:
        return spark.createDataFrame(rows, schema_of)

    def reach(hours: int) -> dict[str, Any]:
        end = day + dt.timedelta(hours=hours)
        return row("covered", None, part="nodes", mailbox="", first_at=day - dt.timedelta(days=1), last_at=end)

    first = [
        row("hours", -20, succeeded=9, posted=20, finished=9),
        row("hours", 3, failed=8, succeeded=1, finished=1),
        row("hours", 4, mailbox="bob", failed=2, succeeded=40),
        row("hours", 5, mailbox="cid", failed=7, posted=2),
        row("hours", 5, mailbox="", failed=7, posted=3),
        row("standing", None, first_at=day + dt.timedelta(hours=2)),
        reach(10),
    ]
    more = [row("hours", 26, finished=10), row("hours", 27, mailbox="bob", failed=30), reach(30)]
    left = row("levels", None, n=10)
    stay = [row("levels", None, mailbox="cid", n=2), row("levels", None, mailbox="", n=3)]
    known = transforms.outages(of([*first, left, *stay]))
    out = {row["mailbox"]: (row["backlog"], row["drain"]) for row in rows_of(known)}
    assert out == {"ann": (10, None), "cid": (2, None), "": (3, None)}
    both, changed = of([*first, *more, *stay]), (day + dt.timedelta(days=1)).date()
    found = rows_of(transforms.outages(both, (day - dt.timedelta(days=2)).date(), known, changed, of(more)))
    assert {row["mailbox"]: row["drain"] for row in found} == {
        "ann": 23 * 3_600 * SECOND, "bob": 0, "cid": None, "": None,
    }  # fmt: skip
    assert sorted(map(str, found)) == sorted(map(str, rows_of(transforms.outages(both))))
    every = sorted(rows_of(transforms.availability(both)), key=lambda row: row["day"])
    assert [(row["day"].day, row["online"] / (3_600 * SECOND)) for row in every] == [(2, 22.0), (3, 6.0)]
    assert rows_of(transforms.availability(both, changed)) == every[1:]


def test_a_few_hostile_journals_are_the_oracles(mixed: tuple[Batch, Path]) -> None:
    batch, journal = mixed
    oracle = Oracle(journal)
    few = Batch(*(each.where(F.col("node") != STORY) for each in batch))
    found = {"messages": few.messages, "attempts": few.attempts, "anomalies": few.anomalies}
    found |= {name: getattr(transforms, name)(few.partials) for name in GOLD}
    for name, comparison in compare.TABLES.items():
        rows = compare.plain(found[name].toArrow())
        if name == "anomalies":
            # What concerns files is found where they are read.
            rows += [row for row in oracle.table("findings") if row["kind"] in compare.FOUND_BY_PLACE]
        comparison(rows, oracle)


def told_before_a_post(rows: Rows, id: str) -> list[str]:
    """What these say of a message that was finished before, until it is posted again."""
    events = [row["event"] for row in rows if row["message_id"] == id]
    return events[: events.index("posted")] if "posted" in events else events


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1])
def test_the_same_rows_come_of_any_batches(spark: SparkSession, whole: Batch, seed: int) -> None:
    rows = story().rows
    dice = random.Random(seed)
    cuts = [0, *sorted(dice.sample(range(1, len(rows)), 2)), len(rows)]
    journal = story()
    carried: DataFrame | None = None
    final: dict[str, Rows] = {"messages": [], "attempts": [], "anomalies": [], "partials": []}
    still: dict[str, Rows] = {}
    for first, last in pairwise(cuts):
        new = journal.frame(spark, first + 1, last)
        latest = {row["message_id"]: row for row in sorted(final["messages"], key=lambda row: row["generation"])}
        mentioned = transforms.told(new).select("key", "message_id").distinct()
        if carried is not None:
            mentioned = mentioned.join(transforms.carried_keys(carried), on="key", how="left_anti")
        found = [latest[row["message_id"]] for row in rows_of(mentioned) if row["message_id"] in latest]
        own = {row["message_id"]: told_before_a_post(journal.rows[first:last], row["message_id"]) for row in found}
        again = {row["message_id"]: row["generation"] for row in found if own[row["message_id"]]}
        revived = sorted(id for id in again if "redriven" in own[id])
        recalled = before = None
        if revived:
            recalled = frame(spark, [row for row in journal.rows[:first] if row["message_id"] in revived])
        if found:
            posts = {r["message_id"]: r["offset"] for r in reversed(journal.rows[first:last]) if r["event"] == "posted"}
            told = [{**row, "next_post": posts.get(row["message_id"]), "revived": row["message_id"] in revived}
                    for row in found]  # fmt: skip
            before = spark.createDataFrame(
                told, StructType(whole.messages.schema.fields).add("next_post", "bigint").add("revived", "boolean")
            )
        batch = Batch(*map(kept, transforms.advance(new, carried, recalled, before, keep=kept)))
        # What comes again takes the place of what was there.
        final["messages"] = [row for row in final["messages"] if again.get(row["message_id"]) != row["generation"]]
        known = {(row["kind"], row["message_id"]) for row in final["anomalies"]}
        for name in final:
            every = rows_of(getattr(batch, name))
            if name == "anomalies":
                every = [row for row in every if (row["kind"], row["message_id"]) not in known]
            final[name] += [row for row in every if row["part"] != "open"]
            still[name] = [row for row in every if row["part"] == "open"]
        carried = batch.carried

    def text(found: Rows) -> list[str]:
        return sorted(map(str, found))

    for name in ("messages", "attempts", "anomalies"):
        assert text(final[name] + still[name]) == text(rows_of(getattr(whole, name))), name
    partials = spark.createDataFrame(final["partials"] + still["partials"], whole.partials.schema)
    for gold in ("books", "latency", "depth", "availability", "deadletters", "outages"):
        table = getattr(transforms, gold)
        assert text(rows_of(table(partials))) == text(rows_of(table(whole.partials))), gold
