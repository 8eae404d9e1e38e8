"""Reading what a real run wrote, without Spark: every table, every message, also behind rows that were withdrawn."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from posthouse.pipeline import generate
from posthouse.pipeline.job import GOLD, Job
from posthouse.pipeline.lake import VIEWS, Lake, Selection
from posthouse.pipeline.report import page
from posthouse.pipeline.schema import TABLES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def house(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reading")
    generate.generate(folder / "journal", events=6_000, seed=11)
    Job(str(folder / "lake"), lambda: spark).run(str(folder / "journal"))
    return folder


def test_every_table_is_read_as_spark_reads_it(spark: SparkSession, house: Path) -> None:
    lake = Lake(str(house / "lake"))
    for name in VIEWS:
        if name in ("replays", "restores"):
            # Nothing was tried, and no store was restored.
            assert name not in lake.tables()
            continue
        frame = spark.read.format("delta").load(str(house / "lake" / name))
        rows = list(lake.rows(name))
        assert len(rows) == frame.count(), name
        assert set(lake.columns(name)) == set(frame.columns), name
        assert set(lake.columns(name)) <= set(TABLES[name].names), name
    assert lake.tables()[0] == "books"
    assert {*GOLD, "messages"} <= set(lake.tables())


def test_each_planted_finding_is_told_with_its_message(house: Path) -> None:
    lake = Lake(str(house / "lake"))
    planted = json.loads((house / "journal" / "_answers.json").read_text())["findings"]
    assert planted
    for answer in planted:
        if answer["message_id"]:
            told = lake.message(answer["message_id"])
            kinds = {finding["kind"] for row in told for finding in row["anomalies"]}
            assert answer["kind"] in kinds, answer


def test_the_life_of_a_message_is_whole(house: Path) -> None:
    lake = Lake(str(house / "lake"))
    rows = list(lake.rows("messages", Selection(where="outcome = delivered and orphan = false", limit=5)))
    assert rows
    for row in rows:
        (told,) = lake.message(row["message_id"], {"node": row["node"], "mailbox": row["mailbox"]})
        offsets = [event["offset"] for event in told["events"]]
        assert offsets[0] == row["first_offset"]
        assert offsets[-1] == row["last_offset"]
        assert len(told["attempts_made"]) == sum(event["event"] == "leased" for event in told["events"])
        waited = sum(row[name] for name in row if name.startswith("wait_"))
        assert waited == row["latency"]


def test_the_report_of_a_real_run_is_whole(house: Path) -> None:
    text = page(Lake(str(house / "lake")), now=datetime.datetime(2026, 4, 1, tzinfo=datetime.UTC))
    for heading in ("What became of messages", "Findings", "Latency", "Depth", "Availability", "Dead letters"):
        assert f"<h2>{heading}</h2>" in text


def test_files_are_laid_out_so_that_little_is_read(house: Path) -> None:
    """Ids of messages have filters, rows lie by time, and the tables' logs have bounds of numbers and times only."""
    files = {name: sorted((house / "lake" / name).glob("*/*.parquet")) for name in ("messages", "attempts")}
    assert all(files.values())
    for name, paths in files.items():
        for path in paths:
            with pq.ParquetFile(path) as file:
                ids = file.schema_arrow.names.index("message_id")
                filters = [file.metadata.row_group(n).column(ids) for n in range(file.num_row_groups)]
                assert name != "messages" or all(group.bloom_filter_offset is not None for group in filters), path
                by = "posted_at" if name == "messages" else "lease_offset"
                found = file.read(columns=[by]).column(by).drop_null().to_pylist()
                assert found == sorted(found), path
    mailbox = next(iter(Lake(str(house / "lake")).rows("messages", Selection(limit=1))))["mailbox"]
    assert not [path for path in house.glob("lake/*/_delta_log/*.json") if mailbox in path.read_text()]


def test_rows_that_were_withdrawn_are_not_read(spark: SparkSession, house: Path) -> None:
    """Late data takes rows out by deletion vectors, which not every reader knows."""
    place = house / "lake" / "messages"
    before = Lake(str(house / "lake"))
    victim = next(iter(before.rows("messages", Selection(where="outcome = delivered and orphan = false", limit=1))))[
        "message_id"
    ]
    count = before.count("messages")
    spark.sql(f"DELETE FROM delta.`{place}` WHERE message_id = '{victim}'")
    after = Lake(str(house / "lake"))
    assert after.count("messages") == count - 1
    assert after.message(victim) == [] or "outcome" not in after.message(victim)[0]
    assert len(list(after.rows("messages"))) == count - 1
    assert "deletionVectors" in (DeltaTable(place).protocol().reader_features or [])
