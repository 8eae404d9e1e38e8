"""The job on a real Spark session: exactly once, whatever is killed, repeated, late or wrong.

The transforms have their own tests; here they are replaced by small ones with the same shape, so that a batch is
quick and every stage can be interrupted.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.pipeline.small import Killed, killer, make_small, tables

from posthouse.errors import InvalidInput, SchemaMismatch, StoreCorrupt, StoreHeld
from posthouse.pipeline import bronze, generate, job, record, session, sign, withdrawn
from posthouse.pipeline.job import Job
from posthouse.pipeline.lake import Lake
from posthouse.pipeline.schema import SCHEMA_VERSION

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    make_small(monkeypatch.setattr)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("made") / "j"
    generate.generate(out, events=2_000, seed=5, nodes=2, segment_events=250)
    return out


@pytest.fixture(scope="module")
def kept(spark: SparkSession, made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake that was made without any disturbance; whoever changes it changes a copy."""
    lake = tmp_path_factory.mktemp("kept") / "lake"
    with pytest.MonkeyPatch.context() as patch:
        make_small(patch.setattr)
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
    assert tables(lake) == tables(kept)
    # It was killed before this was made, and all other tables had the batch.
    assert Job(str(lake), lambda: spark).tables.transaction(withdrawn.NAME) == 1


@pytest.mark.usefixtures("small")
def test_a_run_that_was_killed_goes_on_with_the_same_files_only(
    spark: SparkSession, made: Path, tmp_path: Path
) -> None:
    journal = Path(shutil.copytree(made, tmp_path / "j"))
    job_of_it = Job(str(tmp_path / "lake"), lambda: spark)
    with pytest.raises(Killed):
        Job(str(tmp_path / "lake"), lambda: spark, stage=killer("events")).run(str(journal))
    segment = sorted(journal.glob("node=*/*.parquet"))[0]
    sound = segment.read_bytes()
    segment.write_bytes(sound + b"?")
    with pytest.raises(InvalidInput, match=f"{segment.name} is another one since: put it back as it was, or rebuild"):
        job_of_it.run(str(journal))
    segment.unlink()
    with pytest.raises(InvalidInput, match=f"{segment.name} is gone since: put it back as it was, or rebuild"):
        job_of_it.run(str(journal))
    segment.write_bytes(sound)
    assert job_of_it.run(str(journal)).batches == 1


@pytest.mark.usefixtures("small")
def test_a_run_of_which_only_the_record_is_lacking_goes_on_without_its_files(
    spark: SparkSession, made: Path, kept: Path, tmp_path: Path
) -> None:
    journal, lake = Path(shutil.copytree(made, tmp_path / "j")), tmp_path / "lake"
    with pytest.raises(Killed):
        Job(str(lake), lambda: spark, stage=killer("segments")).run(str(journal))
    segments = sorted(journal.glob("node=*/*.parquet"))
    segments[0].unlink()
    result = Job(str(lake), lambda: spark).run(str(journal))
    assert (result.batches, result.segments) == (1, len(segments))
    assert tables(lake) == tables(kept)


@pytest.mark.usefixtures("small")
def test_a_rebuild_keeps_out_whom_an_interrupted_command_was_to_forget(
    spark: SparkSession, made: Path, copy: Path
) -> None:
    mailbox = next(row["mailbox"] for row in Lake(str(copy)).rows("messages"))
    with pytest.raises(Killed):
        Job(str(copy), lambda: spark, stage=killer("planned")).forget(mailbox, str(made))
    assert mailbox in {row["mailbox"] for row in Lake(str(copy)).rows("messages")}
    job_of_it = Job(str(copy), lambda: spark)
    job_of_it.run(str(made), rebuild=True)
    assert mailbox not in {row["mailbox"] for row in Lake(str(copy)).rows("messages")}
    assert job_of_it.ledger.state().forgotten == (mailbox,)


@pytest.mark.usefixtures("small")
def test_nothing_takes_the_place_of_a_lake_where_no_segment_can_be_read(
    spark: SparkSession, made: Path, kept: Path, copy: Path, tmp_path: Path
) -> None:
    journal = Path(shutil.copytree(made, tmp_path / "j"))
    segments = sorted(journal.glob("node=*/*.parquet"))
    for path in segments:
        path.write_bytes(b"torn")
    with pytest.raises(
        InvalidInput, match=rf"no segment in \S+ can be taken in, and the lake has {len(segments)}: node="
    ):
        Job(str(copy), lambda: spark).run(str(journal), rebuild=True)
    assert tables(copy) == tables(kept)
    # Where there was none before either, there is nothing to lose.
    assert len(Job(str(tmp_path / "new"), lambda: spark).run(str(journal), rebuild=True).rejected) == len(segments)


@pytest.mark.usefixtures("small")
def test_a_batch_that_no_table_has_is_planned_anew_where_a_segment_is_another_one_since(
    spark: SparkSession, made: Path, kept: Path, tmp_path: Path
) -> None:
    """Such as one that was being copied while it was looked at."""
    journal, lake = Path(shutil.copytree(made, tmp_path / "j")), tmp_path / "lake"
    last = sorted(journal.glob("node=*/*.parquet"))[-1]
    sound = last.read_bytes()
    last.unlink()
    job_of_it = Job(str(lake), lambda: spark)
    assert job_of_it.run(str(journal)).batches == 1
    last.write_bytes(sound)
    with pytest.raises(Killed):
        Job(str(lake), lambda: spark, stage=killer("planned")).run(str(journal))
    last.write_bytes(sound[:-1])
    # That one may be killed as well.
    with pytest.raises(Killed):
        Job(str(lake), lambda: spark, stage=killer("planned")).run(str(journal))
    result = job_of_it.run(str(journal))
    assert [name for name, _ in result.rejected] == [f"{last.parent.name}/{last.name}"]
    last.write_bytes(sound)
    assert job_of_it.run(str(journal)).segments == 1
    assert tables(lake) == tables(kept)
    # What was taken out of tables goes on being told, whatever numbers were given up.
    assert job_of_it.tables.transaction(withdrawn.NAME) == job_of_it.tables.transaction("messages")


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("stage", "name", "rebuild"),
    [("committed", "books", False), ("planned", "messages", True), ("planned", "events", False)],
)
def test_a_table_whose_first_write_was_cut_short_is_made_by_the_next_run(
    spark: SparkSession, made: Path, kept: Path, tmp_path: Path, stage: str, name: str, rebuild: bool
) -> None:
    """Delta makes the folder of its log before it writes anything."""
    lake = tmp_path / "lake"
    with pytest.raises(Killed):
        Job(str(lake), lambda: spark, stage=killer(stage)).run(str(made))
    (lake / name / "_delta_log").mkdir(parents=True)
    Job(str(lake), lambda: spark).run(str(made), rebuild=rebuild)
    assert tables(lake) == tables(kept)


@pytest.mark.usefixtures("small")
def test_a_record_of_another_batch_than_the_tables_is_refused(
    spark: SparkSession, made: Path, copy: Path, tmp_path: Path
) -> None:
    """An older one that was put back would have the next batch left out, and behind a newer one rows would lack."""
    journal = Path(shutil.copytree(made, tmp_path / "j"))
    torn = journal / "node=node-1" / "torn.parquet"
    torn.write_bytes(b"torn")
    state = copy / "_posthouse" / "state.json"
    older, job_of_it = state.read_bytes(), Job(str(copy), lambda: spark)
    assert job_of_it.run(str(journal)).batches == 1
    newer = state.read_bytes()
    state.write_bytes(older)
    with pytest.raises(StoreCorrupt, match="has batch 2 as its last, and the lake's record 1: rebuild it"):
        job_of_it.run(str(journal))
    assert state.read_bytes() == older
    state.write_bytes(orjson.dumps({**orjson.loads(newer), "batch": 3}))
    torn.unlink()
    with pytest.raises(StoreCorrupt, match="has batch 2 as its last, and the lake's record 3: rebuild it"):
        job_of_it.run(str(journal))
    state.write_bytes(newer)
    assert job_of_it.run(str(journal)).batches == 1


def test_nothing_new_needs_no_spark_and_changes_nothing(made: Path, kept: Path) -> None:
    def never() -> SparkSession:
        raise AssertionError("Spark was started")

    result = Job(str(kept), never).run(str(made))
    assert (result.batches, result.events) == (0, 0)
    assert {finding.kind for finding in result.findings} == {"journal_gap", "clock_back", "chain_broken"}


def shared(lake: Path, session: Callable[[], SparkSession], **named: Any) -> Job:
    """A job as in an object store: what is special about one is its record, and that can be had on a disk."""
    found = Job(str(lake), session, **named)
    found.ledger._record = record.TableRecord(found.ledger.place)
    return found


@pytest.mark.parametrize("kind", [Job, shared])
def test_two_at_once_are_refused(made: Path, tmp_path: Path, kind: Callable[..., Job]) -> None:
    def never() -> SparkSession:
        raise AssertionError("Spark was started")

    first = kind(str(tmp_path), never)
    with first.ledger.alone("run"), pytest.raises(StoreHeld, match=rf"books run \(process {os.getpid()} on"):
        kind(str(tmp_path), never).run(str(made))


def halved(made: Path, journal: Path) -> Callable[[], None]:
    """Put the first half of each node's segments into a journal; the second half when it is asked for."""

    def give(wanted: slice) -> None:
        for node in made.glob("node=*"):
            (journal / node.name).mkdir(parents=True, exist_ok=True)
            for path in sorted(node.glob("*.parquet"))[wanted]:
                shutil.copyfile(path, journal / node.name / path.name)

    give(slice(2))
    return lambda: give(slice(2, None))


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_in_an_object_store_one_who_is_overtaken_is_refused_and_loses_nothing(
    spark: SparkSession, made: Path, kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It finds the first plan of another, starts Spark for long, and goes on when that is two batches further."""
    # As if clocks differed: nobody takes another for alive.
    monkeypatch.setattr(sign, "SILENT_S", 0.0)
    lake, journal = tmp_path / "lake", tmp_path / "j"
    give_rest = halved(made, journal)
    begun, ended = threading.Event(), threading.Event()

    def slowly() -> SparkSession:
        begun.set()
        assert ended.wait(300)
        return spark

    with ThreadPoolExecutor(max_workers=1) as pool:
        coming: list[Future[Any]] = []

        def stage(reached: str) -> None:
            if not coming:
                assert reached == "planned"
                coming.append(pool.submit(shared(lake, slowly).run, str(journal)))
                assert begun.wait(300)

        try:
            result = shared(lake, lambda: spark, stage=stage, batch_events=500).run(str(journal))
        finally:
            ended.set()
        assert result.batches > 1
        with pytest.raises(StoreHeld, match="another process is at work on the lake"):
            coming[0].result()
    last = shared(lake, lambda: spark)
    assert (last.ledger.state().batch, last.ledger.plan()) == (result.batches, None)
    give_rest()
    last.run(str(journal))
    assert tables(lake) == tables(kept)


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_in_an_object_store_another_may_do_the_same_batch_at_the_same_time(
    spark: SparkSession, made: Path, kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of it, while the first has made its rows and is about to write them: then it has nothing left to write."""
    monkeypatch.setattr(sign, "SILENT_S", 0.0)
    lake, journal = tmp_path / "lake", tmp_path / "j"
    give_rest = halved(made, journal)
    shared(lake, lambda: spark).run(str(journal))
    give_rest()
    withdrew: list[Job] = []
    usual = Job._withdraw

    def withdraw(self: Job, *given: Any) -> None:
        withdrew.append(self)
        usual(self, *given)

    monkeypatch.setattr(Job, "_withdraw", withdraw)
    second = shared(lake, lambda: spark)

    def stage(reached: str) -> None:
        if reached == "events":
            second.run(str(journal))

    with pytest.raises(StoreHeld, match="another process is at work on the lake"):
        shared(lake, lambda: spark, stage=stage).run(str(journal))
    # What the first had found to take out may be wrong by then.
    assert withdrew == [second]
    last = shared(lake, lambda: spark)
    assert (last.ledger.state().batch, last.ledger.state().gold) == (2, 2)
    assert last.run(str(journal)).batches == 0
    assert tables(lake) == tables(kept)


def test_files_of_any_names_are_read_once(spark: SparkSession, tmp_path: Path) -> None:
    home = tmp_path / "x [1] {a,b} ?*\\ %20#"
    home.mkdir()
    paths = [home / f"{number}.parquet" for number in range(3)]
    for number, path in enumerate(paths):
        pq.write_table(pa.table({"number": [number]}), path)
    for some in (paths, paths[:1]):
        rows = bronze.read(spark, "number bigint", *map(str, some)).collect()
        assert sorted(row["number"] for row in rows) == [*range(len(some))]


def test_a_setting_that_the_caller_gave_stays_and_what_the_tables_need_is_set(spark: SparkSession) -> None:
    theirs = spark.newSession()
    theirs.conf.set("spark.sql.adaptive.enabled", "true")
    theirs.conf.unset("spark.sql.maxPlanStringLength")
    theirs.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    job._prepared(theirs)
    assert theirs.conf.get("spark.sql.adaptive.enabled") == "true"
    assert theirs.conf.get("spark.sql.maxPlanStringLength") == session.PLANS["spark.sql.maxPlanStringLength"]
    assert theirs.conf.get("spark.sql.session.timeZone") == "UTC"
    # Those that a caller gives are there before a job looks, also such that are not Spark's own.
    assert spark.conf.getAll.keys() >= {*session.PLANS, *session.NEEDED}


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
    assert tables(tmp_path / "lake") == tables(kept)


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
    assert tables(tmp_path / "lake") == tables(kept)


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_a_mailbox_stays_forgotten(spark: SparkSession, made: Path, copy: Path) -> None:
    lake = copy
    books_job = Job(str(lake), lambda: spark)
    events = spark.read.format("delta").load(str(lake / "events"))
    mailbox = events.where("event = 'posted'").select("mailbox").head(1)[0][0]
    count = events.where(events["mailbox"] == mailbox).count()
    done = books_job.forget(mailbox, str(made))
    assert done["events_erased"] == count
    assert sum(each["events"] for each in done["segments"]) == count
    assert (done["taken"], done["missing"]) == (len(list(made.glob("node=*/*.parquet"))), 0)
    kept = tables(lake)
    assert not any(f"mailbox={mailbox!r}" in row for rows in kept.values() for row in rows)
    for name in ("events", "messages", "attempts"):
        assert not _rows_in_files(lake / name, mailbox)
    # The logs of the tables outlive it, and hold no names.
    assert not [path for path in lake.glob("*/_delta_log/*.json") if mailbox in path.read_text()]
    books_job.run(str(made), rebuild=True)
    assert tables(lake) == kept


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_a_lake_of_schema_version_1_is_refused_in_one_line_and_rebuilt_without_what_it_had_forgotten(
    spark: SparkSession, made: Path, tmp_path: Path
) -> None:
    """Its tables have other columns and partitions, some of its rows are lost, and what comes later is added to it."""
    from pyspark.sql import functions as F

    lake, fresh, journal = tmp_path / "lake", tmp_path / "fresh", tmp_path / "j"
    shutil.copytree(made, journal)
    last = max((journal / "node=node-1").glob("*.parquet"))
    late = last.rename(tmp_path / last.name)
    job_of_it = Job(str(lake), lambda: spark)
    job_of_it.run(str(journal))
    mailbox = spark.read.format("delta").load(str(lake / "messages")).select(F.max("mailbox")).head(1)[0][0]
    # A mailbox may be forgotten before anything of it is known.
    assert Job(str(fresh), lambda: spark).forget(mailbox, None)["events_erased"] == 0
    Job(str(fresh), lambda: spark).run(str(journal))
    _make_older(spark, lake, mailbox)
    with pytest.raises(
        SchemaMismatch, match=rf"schema version 1, and this program {SCHEMA_VERSION}: .*rebuild"
    ) as refused:
        job_of_it.run(str(journal))
    assert "\n" not in str(refused.value)
    assert tables(lake) != tables(fresh)
    result = job_of_it.run(str(journal), rebuild=True)
    assert (result.batches, result.late) == (1, False)
    names = ("events", "messages", "books", "attempts", "segments", "anomalies")
    assert tables(lake, names) == tables(fresh, names)
    assert not any(mailbox in row for rows in tables(lake, ("events", "messages")).values() for row in rows)
    for name in ("events", "carried"):
        ours, theirs = (spark.sql(f"DESCRIBE DETAIL delta.`{each / name}`").head(1)[0] for each in (lake, fresh))
        assert ours["partitionColumns"] == theirs["partitionColumns"] == ["day" if name == "events" else "part"]
        columns = [spark.read.format("delta").load(str(each / name)).dtypes for each in (lake, fresh)]
        assert columns[0] == columns[1]
    # It is one of this version now, and goes on.
    assert job_of_it.run(str(journal)).batches == 0
    late.rename(last)
    for each in (lake, fresh):
        result = Job(str(each), lambda: spark).run(str(journal))
        assert (result.batches, result.segments) == (1, 1)
    assert tables(lake, names) == tables(fresh, names)


def _make_older(spark: SparkSession, lake: Path, forgotten: str) -> None:
    """Give a lake the shape that version 1 had, with half of its events and without some messages."""
    from pyspark.sql import functions as F

    events, carried = (spark.read.format("delta").load(str(lake / name)) for name in ("events", "carried"))
    whole = {"format": "delta", "mode": "overwrite", "overwriteSchema": "true"}
    events = events.where("offset % 2 = 0").withColumn("batch", F.lit(1).cast("bigint"))
    events.write.save(str(lake / "events"), partitionBy="day", **whole)
    carried.drop("part").write.save(str(lake / "carried"), **whole)
    spark.sql(f"DELETE FROM delta.`{lake / 'messages'}` WHERE last_offset % 3 = 0").collect()
    state = lake / record.FOLDER / "state.json"
    said = orjson.loads(state.read_bytes()) | {"schema_version": 1, "forgotten": [forgotten]}
    state.write_bytes(orjson.dumps({name: said[name] for name in said if name not in ("dirty", "restores")}))


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
    assert tables(copy) == tables(kept)
    assert not job_of_it.is_unrecorded()
    shutil.rmtree(copy / "_posthouse")
    assert job_of_it.is_unrecorded()
    with pytest.raises(StoreCorrupt, match="no record"):
        job_of_it.run(str(made))
    job_of_it.run(str(made), rebuild=True)
    assert tables(copy) == tables(kept)
