"""Whoever is killed, wherever: the next run goes on, and the tables are those of an undisturbed one, row for row.

Small transforms stand for the real ones where every stage of every kind of batch is tried; the real ones are killed at
every stage, too, and with their Java in the middle of a write. A naive append fails the same test.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.pipeline.journals import hostile, write_restored
from tests.pipeline.quiet import carried, every_row, quiet
from tests.pipeline.small import STAGES, Killed, killer, make_small, tables
from tests.pipeline.test_books_against_oracle import check

from posthouse.pipeline import generate, job
from posthouse.pipeline.job import Job
from posthouse.pipeline.lake import Lake
from posthouse.pipeline.tables import SILVER, Tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(1_200)

ROOT = Path(__file__).parents[2]
ALL = ("events", "messages", "attempts", "anomalies", *job.GOLD)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    make_small(monkeypatch.setattr)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("made") / "j"
    generate.generate(out, events=2_000, seed=5, nodes=2, segment_events=250)
    return out


class Kept:
    """A lake of the journal's first half, the same of all of it, and what is in that."""

    def __init__(self, spark: SparkSession, made: Path, folder: Path) -> None:
        self.half, self.lake = folder / "half", folder / "lake"
        self.journal = folder / "j"
        with pytest.MonkeyPatch.context() as patch:
            make_small(patch.setattr)
            give(made, self.journal, lambda place: place < 2)
            Job(str(self.half), lambda: spark).run(str(self.journal))
            shutil.copytree(self.half, self.lake)
            Job(str(self.lake), lambda: spark).run(str(made))
        self.tables = tables(self.lake)


def give(made: Path, journal: Path, wanted: Callable[[int], bool]) -> None:
    """Put those segments of each node into a journal whose places are wanted."""
    for node in made.glob("node=*"):
        for place, path in enumerate(sorted(node.glob("*.parquet"))):
            target = journal / node.name / path.name
            if wanted(place) and not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, target)


@pytest.fixture(scope="module")
def kept(spark: SparkSession, made: Path, tmp_path_factory: pytest.TempPathFactory) -> Kept:
    return Kept(spark, made, tmp_path_factory.mktemp("kept"))


# ── Small transforms ─────────────────────────────────────────────────────────────────────────────

SMALL_THROUGH_CONNECT = """\
import os, signal, sys
from tests.pipeline.small import make_small
from posthouse.pipeline import session
from posthouse.pipeline.job import Job
make_small(setattr)
remote, lake, journal, at = sys.argv[1:]
def stage(reached):
    if reached == at:
        os.kill(os.getpid(), signal.SIGKILL)
with session.start(session.Settings(remote=remote)) as spark:
    Job(lake, lambda: spark, stage=stage).run(journal)
"""


@pytest.mark.slow
@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("stage", STAGES)
def test_a_driver_killed_at_any_stage_changes_nothing(
    spark: SparkSession, connect: str, made: Path, kept: Kept, tmp_path: Path, stage: str
) -> None:
    """A process of its own and a real SIGKILL. What it left at work in the server may go on meanwhile."""
    lake = Path(shutil.copytree(kept.half, tmp_path / "lake"))
    words = [sys.executable, "-c", SMALL_THROUGH_CONNECT, connect, str(lake), str(made), stage]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr[-2_000:]
    Job(str(lake), lambda: spark).run(str(made))
    assert tables(lake) == kept.tables


@pytest.mark.slow
@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("kind", ["late", "rebuild", "forget"])
def test_a_batch_of_each_kind_may_end_at_every_stage(
    spark: SparkSession, made: Path, kept: Kept, tmp_path: Path, kind: str
) -> None:
    before, journal = tmp_path / "before", tmp_path / "j"
    wanted = kept.tables
    if kind == "late":
        # The first segments of each node come behind its last ones.
        give(made, journal, lambda place: place >= 2)
        Job(str(before), lambda: spark).run(str(journal))
        give(made, journal, lambda place: True)
    else:
        shutil.copytree(kept.lake, before)
        shutil.copytree(made, journal)
    mailbox = ""
    if kind == "forget":
        calm = Path(shutil.copytree(kept.lake, tmp_path / "calm"))
        mailbox = spark.read.format("delta").load(str(calm / "messages")).select("mailbox").head(1)[0][0]
        Job(str(calm), lambda: spark).forget(mailbox, None)
        wanted = tables(calm)
    begin: dict[str, Callable[[Job], object]] = {
        "forget": lambda job: job.forget(mailbox, None),
        "rebuild": lambda job: job.run(str(journal), rebuild=True),
        "late": lambda job: job.run(str(journal)),
    }
    for stage in STAGES:
        lake = Path(shutil.copytree(before, tmp_path / stage))
        with pytest.raises(Killed):
            begin[kind](Job(str(lake), lambda: spark, stage=killer(stage)))
        Job(str(lake), lambda: spark).run(str(journal))
        assert tables(lake) == wanted, stage


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_a_batch_in_which_a_store_goes_on_under_another_name_may_end_at_every_stage(
    spark: SparkSession, tmp_path: Path
) -> None:
    """What the old node wrote later was taken in before, and is withdrawn."""
    journal, before, calm = tmp_path / "j", tmp_path / "before", tmp_path / "calm"
    rows = max(hostile(40, back=False), key=len)
    write_restored(journal, "a", rows, [len(rows) // 2], cut=10)
    restored = journal / "node=a-again-1"
    restored.rename(tmp_path / "aside")
    Job(str(before), lambda: spark).run(str(journal))
    (tmp_path / "aside").rename(restored)
    Job(str(calm), lambda: spark).run(str(journal))
    assert {row["node"] for row in Lake(str(calm)).rows("messages")} == {"a"}
    names = ("events", "messages", "books", "segments", "restores")
    wanted = tables(calm, names)
    for stage in STAGES:
        lake = Path(shutil.copytree(before, tmp_path / stage))
        with pytest.raises(Killed):
            Job(str(lake), lambda: spark, stage=killer(stage)).run(str(journal))
        Job(str(lake), lambda: spark).run(str(journal))
        assert tables(lake, names) == wanted, stage


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_a_naive_append_fails_the_same_test(
    spark: SparkSession, made: Path, kept: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def naive(self: Tables, name: str, rows: DataFrame, batch: int, **named: Any) -> None:
        from pyspark.sql import functions as F

        rows = rows.withColumn("batch", F.lit(batch).cast("bigint")) if named.get("stamped", True) else rows
        mode = "append" if name == "messages" else "overwrite"
        rows.write.format("delta").mode(mode).save(self._ledger.table(name))

    wanted, calm, killed = {"messages": kept.tables["messages"]}, tmp_path / "calm", tmp_path / "killed"
    monkeypatch.setattr(Tables, "write", naive)
    Job(str(calm), lambda: spark).run(str(made))
    assert tables(calm, ("messages",)) == wanted
    with pytest.raises(Killed):
        Job(str(killed), lambda: spark, stage=killer("messages")).run(str(made))
    Job(str(killed), lambda: spark).run(str(made))
    assert tables(killed, ("messages",)) != wanted


# ── The real ones ────────────────────────────────────────────────────────────────────────────────

THROUGH_CONNECT = """\
import os, signal, sys
from posthouse.pipeline import session
from posthouse.pipeline.job import Job
remote, lake, journal, *before = sys.argv[1:]
def stage(reached):
    if reached not in before:
        print(reached, flush=True)
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


@pytest.fixture(scope="module")
def calm(spark: SparkSession, made: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The tables of an undisturbed run."""
    lake = tmp_path_factory.mktemp("calm")
    Job(str(lake), lambda: spark).run(str(made))
    return tables(lake, ALL)


@pytest.mark.slow
@pytest.mark.timeout(1_200)
def test_drivers_of_the_real_transforms_killed_one_after_the_other_change_nothing(
    connect: str, made: Path, calm: Any, tmp_path: Path
) -> None:
    """Each is killed at the first stage at which none before it was, until one comes to the end."""
    lake = tmp_path / "lake"
    at: list[str] = []
    while True:
        words = [sys.executable, "-c", THROUGH_CONNECT, connect, str(lake), str(made), *at]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL, (at, done.stderr[-2_000:])
        at += done.stdout.split()
    assert {"planned", "events", "messages", "committed", *job.GOLD, "done"} <= set(at)
    assert tables(lake, ALL) == calm


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
    assert tables(lake, ALL) == calm


def only(*written: str) -> Callable[..., None]:
    """In place of ``Tables.write``: whoever writes another of the batch's tables is killed before it is."""
    write = Tables.write

    def killed(self: Tables, name: str, *rows: Any, **named: Any) -> None:
        if name not in written:
            raise Killed(name)
        write(self, name, *rows, **named)

    return killed


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_a_batch_that_leaves_most_alone_may_end_at_every_stage(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes the place of rows of the open set, and withdraws final rows of what was refused and what was finished.

    The same batch is killed at one stage after the other, with more of its tables written each time.
    """
    monkeypatch.setattr(job, "ASLEEP_MIN", -1)
    journal, lake, calm = tmp_path / "j", tmp_path / "lake", tmp_path / "calm"
    story, cuts = quiet()
    segments = story.written(journal, cuts[:2])
    next(segments)
    Job(str(lake), lambda: spark).run(str(journal))
    shutil.copytree(lake, calm)
    next(segments)
    Job(str(calm), lambda: spark).run(str(journal))
    check(journal, calm)
    assert carried(spark, calm).size.marks
    rows = {row["message_id"]: row for row in Lake(str(calm)).rows("messages")}
    assert (rows["q00-done"]["duplicates"], rows["q00-done"]["revision"]) == (1, 2)
    assert (rows["q01-dead"]["lives"], rows["q01-dead"]["outcome"]) == (2, "open")

    def refused() -> list[int]:
        found = [row for row in Lake(str(lake)).rows("messages") if row["message_id"] == "q00-again"]
        return [row["last_offset"] - row["first_offset"] for row in found]

    assert refused() == [0]
    for stage in ("planned", "events"):
        with pytest.raises(Killed):
            Job(str(lake), lambda: spark, stage=killer(stage)).run(str(journal))
    for place in range(3):
        with monkeypatch.context() as patch:
            patch.setattr(Tables, "write", only(*("carried", "messages")[:place]))
            with pytest.raises(Killed):
                Job(str(lake), lambda: spark).run(str(journal))
        # Withdrawn and not made again, until the messages are written.
        assert (refused() == []) == (place < 2)
    for stage in (SILVER[-1], "segments", "committed", "books"):
        with pytest.raises(Killed):
            Job(str(lake), lambda: spark, stage=killer(stage)).run(str(journal))
    Job(str(lake), lambda: spark).run(str(journal))
    # Even the numbers of batches and revisions are the same.
    names = (*ALL, "partials", "carried", "segments")
    assert every_row(lake, names) == every_row(calm, names)
