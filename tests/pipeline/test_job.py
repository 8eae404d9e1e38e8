"""The job on a real Spark session: exactly once, whatever is killed, repeated, late or wrong.

The transforms have their own tests; here they are replaced by small ones with the same shape, so that a batch is
quick and every stage can be interrupted.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from posthouse.errors import InvalidInput, StoreCorrupt, StoreHeld
from posthouse.journal import schema as contract
from posthouse.pipeline import generate, held, job, transforms
from posthouse.pipeline.job import Job
from posthouse.pipeline.schema import OPEN
from posthouse.pipeline.tables import Tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(600)

KEY = ("node", "desk", "mailbox", "sender", "message_id")


class Killed(BaseException):
    """Stands for SIGKILL: nothing of the job runs behind it."""


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
            events = events.unionByName(more)
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
    still = about.join(messages.where(F.col("part") == OPEN).select(*KEY), on=list(KEY), how="left_semi")
    return SimpleNamespace(
        messages=messages, attempts=attempts, anomalies=anomalies, partials=sums,
        carried=still.select(*contract.NAMES),
    )  # fmt: skip


def find(
    spark: SparkSession, messages: DataFrame, events: DataFrame, new: DataFrame, carried: DataFrame, *more: Any
) -> held.Held:
    """Every finished message that is told of again lives again."""
    from pyspark.sql import functions as F

    closed = messages.where(F.col("part") != OPEN)
    names = new.where("message_id <> ''").select(*KEY).distinct()
    rows = tuple(closed.join(names, on=list(KEY), how="left_semi").select(*closed.columns).collect())
    if not rows:
        return held.Held()
    before = spark.createDataFrame(list(rows), closed.schema)
    recalled = events.join(before.select(*KEY), on=list(KEY), how="left_semi").select(*contract.NAMES)
    return held.Held(before, recalled, None, rows, rows)


def books(partials: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    zero = F.lit(0).cast("bigint")
    total = F.sum("n").cast("bigint")
    return partials.groupBy(F.lit("w").alias("window"), F.lit("d").alias("desk"), F.lit("").alias("kind")).agg(
        total.alias("posted"),
        F.sum(F.when(F.col("part") != OPEN, F.col("n"))).cast("bigint").alias("delivered"),
        *(zero.alias(name) for name in ("dead", "expired", "cancelled", "uncertain")),
        F.coalesce(F.sum(F.when(F.col("part") == OPEN, F.col("n"))), zero).cast("bigint").alias("open"),
    )


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    make_small(monkeypatch)


def make_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put small transforms in place of the real ones."""
    monkeypatch.setattr(transforms, "advance", advance)
    monkeypatch.setattr(held, "find", find)
    monkeypatch.setattr(transforms, "changed", lambda new, before: ["*"])
    monkeypatch.setattr(transforms, "books", books)
    monkeypatch.setattr(job, "GOLD", ("books",))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("made") / "j"
    generate.generate(out, events=2_000, seed=5, nodes=2, segment_events=250)
    return out


def tables(spark: SparkSession, lake: Path, names: tuple[str, ...] = ("events", "messages", "books")) -> Any:
    """Every row of some tables, without what depends on the cut into batches."""
    found = {}
    for name in names:
        rows = spark.read.format("delta").load(str(lake / name)).drop("batch", "revision")
        found[name] = sorted(map(repr, rows.collect()))
    return found


def killer(at: str) -> Callable[[str], None]:
    def stage(reached: str) -> None:
        if reached == at:
            raise Killed(at)

    return stage


@pytest.fixture(scope="module")
def kept(spark: SparkSession, made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake that was made without any disturbance; whoever changes it changes a copy."""
    lake = tmp_path_factory.mktemp("kept") / "lake"
    with pytest.MonkeyPatch.context() as patch:
        make_small(patch)
        Job(str(lake), lambda: spark).run(str(made))
    return lake


@pytest.fixture
def copy(kept: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(kept, tmp_path / "copy"))


@pytest.mark.usefixtures("small")
def test_a_run_that_was_killed_is_finished_by_the_next(
    spark: SparkSession, made: Path, kept: Path, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    with pytest.raises(Killed):
        Job(str(lake), lambda: spark, stage=killer("carried")).run(str(made))
    with pytest.raises(InvalidInput, match="was interrupted"):
        Job(str(lake), lambda: spark).compact()
    result = Job(str(lake), lambda: spark).run(str(made))
    assert (result.batches, result.segments) == (1, len(list(made.glob("node=*/*.parquet"))))
    assert tables(spark, lake) == tables(spark, kept)


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_a_naive_append_fails_the_same_test(
    spark: SparkSession, made: Path, kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def naive(self: Tables, name: str, rows: DataFrame, batch: int, **named: Any) -> None:
        from pyspark.sql import functions as F

        rows = rows.withColumn("batch", F.lit(batch).cast("bigint")) if named.get("stamped", True) else rows
        mode = "append" if name in ("events", "messages") else "overwrite"
        rows.write.format("delta").mode(mode).save(self._ledger.table(name))

    monkeypatch.setattr(Tables, "write", naive)
    with pytest.raises(Killed):
        Job(str(tmp_path), lambda: spark, stage=killer("messages")).run(str(made))
    Job(str(tmp_path), lambda: spark).run(str(made))
    names = ("events", "messages")
    assert tables(spark, tmp_path, names) != tables(spark, kept, names)


def test_nothing_new_needs_no_spark_and_changes_nothing(made: Path, kept: Path) -> None:
    def never() -> SparkSession:
        raise AssertionError("Spark was started")

    result = Job(str(kept), never).run(str(made))
    assert (result.batches, result.events) == (0, 0)
    assert {finding.kind for finding in result.findings} == {"journal_gap", "clock_back", "chain_broken"}


def test_two_at_once_are_refused(made: Path, tmp_path: Path) -> None:
    def never() -> SparkSession:
        raise AssertionError("Spark was started")

    first = Job(str(tmp_path), never)
    with first.ledger.alone("run"), pytest.raises(StoreHeld, match=rf"books run \(process {os.getpid()} on"):
        Job(str(tmp_path), never).run(str(made))


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_segments_in_any_order_give_the_same_tables(
    spark: SparkSession, made: Path, kept: Path, tmp_path: Path
) -> None:
    """The first and the last, then all between them but one, then that one; half-written files in between."""
    folder = tmp_path / "j"
    files = sorted(made.glob("node=*/*.parquet"))
    late = [files[0], files[-1], *files[2:-1], files[1]]
    for group in (late[:2], late[2:-1], late[-1:]):
        for path in group:
            target = folder / path.parent.name / path.name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
        (folder / files[0].parent.name / ".half.parquet.tmp").write_bytes(b"PAR1")
        result = Job(str(tmp_path / "lake"), lambda: spark).run(str(folder))
    assert result.late
    assert tables(spark, tmp_path / "lake") == tables(spark, kept)


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_bad_files_are_named_and_the_rest_is_processed(
    spark: SparkSession, made: Path, kept: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "j"
    shutil.copytree(made, folder)
    *_, last = sorted((folder / "node=node-1").glob("*.parquet"))
    content = last.read_bytes()
    last.write_bytes(content[: len(content) // 2])
    shutil.copyfile(made / "_answers.json", folder / "node=node-1" / "stray.json")
    result = Job(str(tmp_path / "lake"), lambda: spark).run(str(folder))
    assert [name for name, _ in result.rejected] == [f"node=node-1/{last.name}"]
    said = [finding.detail for finding in result.findings if finding.kind == "bad_segment"]
    assert any(last.name in text for text in said)
    assert any("stray.json" in text for text in said)
    shown = spark.read.format("delta").load(str(tmp_path / "lake" / "anomalies")).where("kind = 'bad_segment'")
    assert shown.count() == 2
    # Whole again, it is taken in, and nothing is held against it.
    last.write_bytes(content)
    (folder / "node=node-1" / "stray.json").unlink()
    result = Job(str(tmp_path / "lake"), lambda: spark).run(str(folder))
    assert result.rejected == []
    assert result.segments == 1
    assert tables(spark, tmp_path / "lake") == tables(spark, kept)


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_a_mailbox_stays_forgotten(spark: SparkSession, made: Path, copy: Path) -> None:
    lake = copy
    books_job = Job(str(lake), lambda: spark)
    events = spark.read.format("delta").load(str(lake / "events"))
    mailbox = events.where("event = 'posted'").first()["mailbox"]
    count = events.where(events["mailbox"] == mailbox).count()
    done = books_job.forget(mailbox, str(made))
    assert done["events_erased"] == count
    assert sum(each["events"] for each in done["segments"]) == count
    kept = tables(spark, lake)
    assert not any(f"mailbox={mailbox!r}" in row for rows in kept.values() for row in rows)
    for name in ("events", "messages", "attempts"):
        assert not _rows_in_files(lake / name, mailbox)
    # The logs of the tables outlive it, and hold no names.
    assert not [path for path in lake.glob("*/_delta_log/*.json") if mailbox in path.read_text()]
    books_job.run(str(made), rebuild=True)
    assert tables(spark, lake) == kept


def _rows_in_files(table: Path, mailbox: str) -> int:
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    total = 0
    for path in table.glob("**/*.parquet"):
        if "_delta_log" not in path.parts:
            column = pq.ParquetFile(path).read(columns=["mailbox"]).column("mailbox")
            total += pc.sum(pc.equal(column, mailbox)).as_py() or 0
    return total


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_compacting_changes_nothing_and_a_lake_without_its_record_is_rebuilt(
    spark: SparkSession, made: Path, kept: Path, copy: Path
) -> None:
    job_of_it = Job(str(copy), lambda: spark)
    assert job_of_it.compact(retain_h=1_000)
    assert tables(spark, copy) == tables(spark, kept)
    shutil.rmtree(copy / "_posthouse")
    with pytest.raises(StoreCorrupt, match="no record"):
        job_of_it.run(str(made))
    job_of_it.run(str(made), rebuild=True)
    assert tables(spark, copy) == tables(spark, kept)


# ── Processes that are killed ────────────────────────────────────────────────────────────────────

THROUGH_CONNECT = """\
import os, signal, sys
from posthouse.pipeline import session
from posthouse.pipeline.job import Job
remote, lake, journal, at = sys.argv[1:]
def stage(reached):
    if reached == at:
        os.kill(os.getpid(), signal.SIGKILL)
with session.start(session.Settings(remote=remote)) as spark:
    Job(lake, lambda: spark, batch_events=1_200, stage=stage).run(journal)
"""
WITH_JAVA = """\
import os, sys
from posthouse.pipeline import session
from posthouse.pipeline.job import Job
lake, journal = sys.argv[1:]
conf = {"spark.sql.shuffle.partitions": "2"}
settings = session.Settings(master="local[2]", memory_mb=2048, conf=conf, environment=dict(os.environ))
with session.start(settings) as spark:
    Job(lake, lambda: spark, stage=lambda reached: print(reached, flush=True)).run(journal)
"""
ALL = ("events", "messages", "attempts", "anomalies", *job.GOLD)


@pytest.fixture(scope="module")
def calm(spark: SparkSession, made: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The tables of an undisturbed run."""
    lake = tmp_path_factory.mktemp("calm")
    Job(str(lake), lambda: spark).run(str(made))
    return tables(spark, lake, ALL)


@pytest.mark.slow
@pytest.mark.timeout(1_200)
def test_a_driver_killed_at_every_stage_changes_nothing(
    spark: SparkSession, connect: str, made: Path, calm: Any, tmp_path: Path
) -> None:
    """Processes of their own, a real SIGKILL for each, one lake: each gets one stage further than the one before."""
    lake = tmp_path / "lake"
    for stage in job.STAGES:
        words = [sys.executable, "-c", THROUGH_CONNECT, connect, str(lake), str(made), stage]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode == -signal.SIGKILL, (stage, done.stderr[-2_000:])
    Job(str(lake), lambda: spark).run(str(made))
    assert tables(spark, lake, ALL) == calm


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_driver_killed_with_its_java_in_the_middle_of_a_write_changes_nothing(
    spark: SparkSession, made: Path, calm: Any, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    words = [sys.executable, "-c", WITH_JAVA, str(lake), str(made)]
    child = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert child.stdout is not None
    reached = [line.strip() for line in iter(child.stdout.readline, "events\n")]
    os.killpg(child.pid, signal.SIGKILL)
    reached += child.stdout.read().split()
    child.wait()
    assert reached == ["planned"]
    assert not (lake / "_posthouse" / "state.json").exists()
    Job(str(lake), lambda: spark).run(str(made))
    assert tables(spark, lake, ALL) == calm
