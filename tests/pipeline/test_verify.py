"""Whatever is altered in one table of a lake is found and named; where nothing is, nothing is found.

Two lakes are made once, by the real transforms: a calm one, whose first run was killed behind its commit, and to which
data came late; and one of a journal with a fault of every kind. Each test alters a copy.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
from deltalake import DeltaTable
from tests.pipeline.small import Killed, killer

from posthouse.pipeline.check import Discrepancy, Verified
from posthouse.pipeline.generate import generate
from posthouse.pipeline.job import Job
from posthouse.pipeline.schema import IDENTITY

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row, SparkSession

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]


class Made(NamedTuple):
    """A journal and its lake."""

    journal: Path
    lake: Path
    said: list[Verified]
    """What was found on the way."""


@pytest.fixture(scope="module")
def calm(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("calm")
    journal, lake = folder / "j", folder / "lake"
    generate(journal, events=3_000, seed=8, nodes=2, desks=3, planted=0, segment_events=300)
    files = sorted((journal / "node=node-1").glob("*.parquet"))
    aside = [path.rename(folder / path.name) for path in (files[1], files[-1])]
    said = []
    for path in (*reversed(aside), None):
        with pytest.raises(Killed):
            Job(str(lake), lambda: spark, stage=killer("committed")).run(str(journal))
        said.append(Job(str(lake), lambda: spark).verify(None))
        Job(str(lake), lambda: spark).run(str(journal))
        if path is not None:
            path.rename(journal / "node=node-1" / path.name)
    return Made(journal, lake, said)


@pytest.fixture(scope="module")
def faulty(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("faulty")
    generate(folder / "j", events=6_000, seed=2, nodes=3, desks=4, planted=6, segment_events=600)
    Job(str(folder / "lake"), lambda: spark).run(str(folder / "j"))
    return Made(folder / "j", folder / "lake", [])


class Altered:
    """A copy of a lake that is altered."""

    def __init__(self, spark: SparkSession, made: Made, folder: Path) -> None:
        self.spark, self.journal = spark, made.journal
        self.lake = Path(shutil.copytree(made.lake, folder / "lake"))

    def rows(self, name: str) -> DataFrame:
        return self.spark.read.format("delta").load(str(self.lake / name))

    def change(self, name: str, make: Callable[[DataFrame], DataFrame]) -> None:
        """Replace a table by what is made of it."""
        rows = self.rows(name)
        make(rows).select(*rows.columns).write.format("delta").mode("overwrite").save(str(self.lake / name))

    def set(self, name: str, where: str, **values: str) -> None:
        """Other values in one row for which a condition holds: the first, by its columns."""
        from pyspark.sql import functions as F

        def made(rows: DataFrame) -> DataFrame:
            keys = [each for each, kind in rows.dtypes if not kind.startswith(("map", "array"))]
            chosen = rows.where(where).select(*keys).orderBy(*keys).head(1)
            assert chosen, f"{name} has no row where {where}"
            same = F.lit(True)
            for key in keys:
                same = same & F.col(key).eqNullSafe(F.lit(chosen[0][key]))
            return rows.withColumns(
                {each: F.when(same, F.expr(to)).otherwise(F.col(each)) for each, to in values.items()}
            )

        self.change(name, made)

    def drop(self, name: str, where: str) -> None:
        count = self.rows(name).where(where).count()
        assert count, f"{name} has no row where {where}"
        self.change(name, lambda rows: rows.where(f"NOT coalesce({where}, false)"))

    def verify(self, journal: Path | None = None) -> list[Discrepancy]:
        return Job(str(self.lake), lambda: self.spark).verify(str(journal) if journal else None).found


@pytest.fixture
def altered(spark: SparkSession, faulty: Made, tmp_path: Path) -> Altered:
    return Altered(spark, faulty, tmp_path)


def places(found: list[Discrepancy]) -> list[tuple[str, str]]:
    return [(kind, place) for kind, place, _ in found]


def test_in_a_healthy_lake_nothing_is_found_nor_where_data_came_late(spark: SparkSession, calm: Made) -> None:
    job = Job(str(calm.lake), lambda: spark)
    assert job.verify(str(calm.journal)) == ([], [])
    assert job.verify(None) == ([], [])


def test_what_was_killed_behind_its_commit_is_unfinished_and_no_more(calm: Made) -> None:
    for found, untold in calm.said:
        assert places(found) == [("unfinished", "lake")]
        assert "the derived tables are behind" in found[0][2]
        assert untold == []
    assert len(calm.said) == 3


def test_faults_of_the_journal_are_none_of_the_tables(spark: SparkSession, faulty: Made) -> None:
    job = Job(str(faulty.lake), lambda: spark)
    assert job.verify(None).found == []
    found = job.verify(str(faulty.journal)).found
    assert {kind for kind, _, _ in found} == {"journal_gap", "clock_back", "chain_broken"}


def test_after_a_forget_nothing_is_found_and_what_is_left_of_it_is(
    spark: SparkSession, calm: Made, tmp_path: Path
) -> None:
    lake = Altered(spark, calm, tmp_path)
    job = Job(str(lake.lake), lambda: spark)
    mailbox = lake.rows("messages").groupBy("mailbox").count().orderBy("count", "mailbox").head(1)[0][0]
    assert job.forget(mailbox, str(calm.journal))["events_erased"]
    found, (told,) = job.verify(str(calm.journal))
    assert found == []
    assert told.startswith(f"The mailbox {mailbox} is forgotten: ")
    found, (untold, again) = job.verify(None)
    assert (found, again) == ([], told)
    assert "what is missing there may be what was forgotten" in untold
    lake.set("messages", "outcome = 'delivered'", mailbox=f"'{mailbox}'")
    lost = lake.rows("events").orderBy("node", "offset").head(1)[0]
    lake.drop("events", f"node = '{lost['node']}' AND offset = {lost['offset']}")
    found = lake.verify(calm.journal)
    assert ("forgotten", "messages") in places(found)
    assert any(kind == "missing" and f"offset {lost['offset']}" in detail for kind, _, detail in found)


def test_an_altered_outcome_is_found(altered: Altered) -> None:
    altered.set("messages", "outcome = 'delivered'", outcome="'dead'")
    found = altered.verify()
    assert set(places(found)) == {("mismatch", "messages")}
    assert any(" is dead by offset " in detail for _, _, detail in found)
    # Both where it is missing and where it is too many: the hour is named.
    assert any("sums for books say: 20" in detail for _, _, detail in found)
    assert any("sums for latency say: 20" in detail for _, _, detail in found)


def test_a_message_that_is_not_as_it_was_posted_is_found(altered: Altered) -> None:
    altered.set("messages", "outcome = 'delivered'", size_bytes="size_bytes + 1")
    (found,) = altered.verify()
    assert found[:2] == ("mismatch", "messages")
    assert "messages posted is not as its post says" in found[2]


def test_a_message_that_is_there_twice_or_not_is_found(altered: Altered) -> None:
    delivered = altered.rows("messages").where("outcome = 'delivered'")
    # Of different nodes: in one hour of one node there would be as many as were posted.
    (first,) = delivered.orderBy("node", "first_offset").head(1)
    (last,) = delivered.orderBy("node", "first_offset", ascending=False).head(1)
    altered.change("messages", lambda rows: rows.unionByName(rows.where(rows["message_id"] == first["message_id"])))
    altered.drop("messages", f"message_id = '{last['message_id']}'")
    found = altered.verify()
    assert ("twice", "messages", f"{first['message_id']} is there 2 times") in found
    assert any("messages posted, and" in detail for _, _, detail in found)


def test_altered_attempts_are_found(altered: Altered) -> None:
    attempts = altered.rows("attempts").where("ended = 'delivered'").orderBy("node", "lease_offset")
    one, two, three, four = attempts.head(4)

    def where(row: Row) -> str:
        return f"node = '{row['node']}' AND lease_offset = {row['lease_offset']}"

    altered.set("attempts", where(one), ended="'died'")
    altered.set("attempts", where(two), holder="'another'")
    altered.drop("attempts", where(three))
    altered.change("attempts", lambda rows: rows.unionByName(rows.where(where(four))))
    found = altered.verify()
    assert set(places(found)) == {("mismatch", "attempts"), ("twice", "attempts")}
    said = "; ".join(detail for _, _, detail in found)
    assert f"the lease {one['lease_offset']} of {one['node']} is died by offset {one['end_offset']}" in said
    assert f"there is no such lease as that at offset {two['lease_offset']} of" in said
    assert f"the lease {four['lease_offset']} of {four['node']} is there more than once" in said
    # Of leases that are no attempts the first is named.
    assert f"the lease {min(two['lease_offset'], three['lease_offset'])} of" in said


def test_every_derived_table_is_held_against_its_sums(altered: Altered) -> None:
    altered.set("books", "delivered > 0 AND dead <> delivered", delivered="dead", dead="delivered")
    altered.set("latency", "count > 0", p50="p50 + 1")
    altered.set("depth", "posted > 0", depth_max="depth_max + 1")
    altered.set("availability", "online > 0", online="online - 1")
    altered.set("deadletters", "count > 0", count="count + 1")
    altered.change("outages", lambda rows: rows.where("false") if rows.count() else _invented(altered, rows))
    found = altered.verify()
    assert places(found) == [
        ("mismatch", name) for name in ("books", "latency", "depth", "availability", "deadletters", "outages")
    ]
    assert all(" and should be " in detail or "no such row" in detail or "too many" in detail for _, _, detail in found)
    assert found[0][2].startswith("20"), "the hour comes first"


def _invented(altered: Altered, rows: DataFrame) -> DataFrame:
    """A row of outages where there is none."""
    return altered.rows("books").selectExpr(
        "day", "window", "desk", "'m' mailbox", "9L attempts", "9L failures", "1D failure_rate", "0D baseline",
        "0L backlog", "0L drain", "1D retry_storm",
    ).limit(1)  # fmt: skip


def test_altered_sums_are_found(altered: Altered) -> None:
    altered.set("partials", "table = 'books' AND measure = 'delivered' AND n > 0", n="n + 1")
    found = altered.verify()
    assert set(places(found)) == {("mismatch", "messages"), ("mismatch", "books")}


def test_findings_that_were_taken_away_or_made_up_are_found(altered: Altered) -> None:
    gone = {}
    for kind in ("answered_twice", "delivered_twice", "journal_gap"):
        gone[kind] = altered.rows("anomalies").where(f"kind = '{kind}'").orderBy("node", "message_id").head(1)[0]
        altered.drop("anomalies", f"kind = '{kind}' AND offsets[0] = {gone[kind]['offsets'][0]}")
    orphan = altered.rows("anomalies").where("kind = 'lost' AND detail = 'no post'").head(1)[0]
    altered.drop("anomalies", f"kind = 'lost' AND message_id = '{orphan['message_id']}'")
    altered.set("anomalies", "kind = 'out_of_order'", message_id="'nobody'")
    altered.set("anomalies", "kind = 'lane_gap'", offsets="array(999999999L)")
    found = altered.verify()
    assert set(places(found)) == {("mismatch", "anomalies")}
    said = "; ".join(detail for _, _, detail in found)
    for part in (
        f"answered_twice of {gone['answered_twice']['message_id']} is not there",
        f"{gone['delivered_twice']['message_id']} has an event after its end",
        f"journal_gap of node {gone['journal_gap']['node']} is not there",
        f"lost of {orphan['message_id']} is not there",
        "names offset 999999999, where there is no event",
        "which is no event of it",
    ):
        assert part in said


def test_findings_that_are_there_twice_or_not_so_are_found(altered: Altered) -> None:
    altered.set("anomalies", "kind = 'clock_back'", detail="'another'")
    message = altered.rows("messages").where("outcome = 'delivered' AND NOT orphan").orderBy("key").head(1)[0]
    names = ", ".join(f"'{message[name]}' AS {name}" for name in IDENTITY)

    def more(rows: DataFrame) -> DataFrame:
        twice = rows.where("kind = 'lane_gap'").limit(1)
        wrong = rows.where("kind = 'lost' AND detail = 'no post'").limit(1).drop(*IDENTITY)
        invented = wrong.selectExpr("*", *names.split(", ")).withColumn("offsets", _offsets(message["first_offset"]))
        return rows.unionByName(twice).unionByName(invented.select(*rows.columns))

    altered.change("anomalies", more)
    found = altered.verify()
    assert set(places(found)) == {("mismatch", "anomalies"), ("twice", "anomalies")}
    said = "; ".join(detail for _, _, detail in found)
    assert "is not so: another" in said
    assert f"lost of {message['message_id']} is not so" in said
    assert "lane_gap of" in said


def _offsets(*values: int) -> Column:
    from pyspark.sql import functions as F

    return F.array(*(F.lit(value).cast("bigint") for value in values))


def test_altered_events_are_found(altered: Altered) -> None:
    events = DeltaTable(str(altered.lake / "events"))
    row = altered.rows("events").where("event = 'delivered'").orderBy("node", "offset").head(1)[0]
    place = f"node = '{row['node']}' AND \"offset\" = {row['offset']}"
    events.update({"error": "'another'"}, predicate=place)
    found = altered.verify(altered.journal)
    ours = [each for each in found if each[1].startswith("events")]
    assert [kind for kind, _, _ in ours] == ["altered"]
    assert f"offset {row['offset']}" in ours[0][2]
    events = DeltaTable(str(altered.lake / "events"))
    events.update({"day": "day + 1"}, predicate=place)
    assert ("mismatch", "events") in places(altered.verify())


def test_tables_that_are_gone_or_cannot_be_read_are_named(altered: Altered) -> None:
    shutil.rmtree(altered.lake / "books")
    for path in (altered.lake / "latency").glob("*/*.parquet"):
        path.write_bytes(b"")
        (path.parent / f".{path.name}.crc").unlink(missing_ok=True)
    found = altered.verify()
    assert places(found) == [("missing", "books"), ("unreadable", "latency")]
    shutil.rmtree(altered.lake / "carried")
    assert ("missing", "carried") in places(altered.verify())
