"""Every table of a real run on Spark against an independent computation, and against what was planted."""

from __future__ import annotations

import json
import tempfile
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.pipeline import compare
from tests.pipeline.journal import Journal as Story
from tests.pipeline.journals import hostile, write_journal
from tests.pipeline.oracle import Oracle

from posthouse.pipeline.generate import fill, generate
from posthouse.pipeline.job import Job
from posthouse.pipeline.transforms import asleep

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SPLIT = asleep.split
Run = tuple[Path, Path, dict[str, Any], Oracle]

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def run(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """One run over a journal of several nodes; each node has random numbers of its own."""
    folder = tmp_path_factory.mktemp("books")
    journal, lake = folder / "journal", folder / "lake"
    sheet = generate(journal, events=12_000, seed=2, nodes=6, desks=5, planted=12, segment_events=900)
    Job(str(lake), lambda: spark).run(str(journal))
    return journal, lake, sheet, Oracle(journal)


@pytest.mark.parametrize("table", compare.TABLES)
def test_the_table_is_the_oracles(table: str, run: Run) -> None:
    _, lake, _, oracle = run
    compare.TABLES[table](compare.read(lake, table), oracle)


def test_all_that_was_planted_is_found_and_nothing_else(run: Run) -> None:
    _, lake, sheet, _ = run
    compare.answers(compare.read(lake, "anomalies"), sheet)


def test_the_books_close_as_planned(run: Run) -> None:
    _, lake, sheet, _ = run
    compare.closes(sheet, compare.read(lake, "books"))


def test_late_segments_close_the_gaps_and_the_tables_are_the_oracles(spark: SparkSession, tmp_path: Path) -> None:
    journal, lake = tmp_path / "journal", tmp_path / "lake"
    generate(journal, events=3_000, seed=21, nodes=2, desks=3, planted=4, segment_events=300)
    job = Job(str(lake), lambda: spark)
    job.run(str(journal))
    assert fill(journal)
    assert job.run(str(journal)).late
    check(journal, lake)
    assert not [row for row in compare.read(lake, "anomalies") if row["kind"] == "journal_gap"]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(40, 46))
def test_bigger_journals_in_several_batches_are_the_oracles(seed: int, spark: SparkSession, tmp_path: Path) -> None:
    journal, lake = tmp_path / "journal", tmp_path / "lake"
    sheet = generate(journal, events=60_000, seed=seed, nodes=4, desks=1 + seed % 5, planted=20, segment_events=2_500)
    Job(str(lake), lambda: spark, batch_events=20_000).run(str(journal))
    check(journal, lake)
    compare.answers(compare.read(lake, "anomalies"), sheet)
    compare.closes(sheet, compare.read(lake, "books"))


def check(journal: Path, lake: Path, besides: str = "") -> None:
    """Every table is the oracle's; ``besides`` is a kind of finding that it knows nothing of."""
    oracle = Oracle(journal)
    for name, comparison in compare.TABLES.items():
        rows = compare.read(lake, name)
        comparison([row for row in rows if not besides or row.get("kind") != besides], oracle)


def judge(spark: SparkSession, nodes: list[list[dict[str, Any]]]) -> None:
    """One run over hostile journals, one a node; of every fifth a segment is missing, and comes later."""
    with tempfile.TemporaryDirectory() as folder:
        journal, lake = Path(folder, "journal"), Path(folder, "lake")
        write_journal(journal, nodes, cut=25, lose=5)
        job = Job(str(lake), lambda: spark)
        job.run(str(journal))
        check(journal, lake)
        fill(journal)
        assert job.run(str(journal)).late
        check(journal, lake)
        assert compare.by_name(lake, "attempts").source == "kept"


def judge_in_turns(
    spark: SparkSession, nodes: list[list[dict[str, Any]]], cut: int, lose: int | None = None
) -> list[bool]:
    """The first segments of nodes in one run, of so many events, then the second, and so on; where it was late.

    Of nodes that ``lose`` divides, the second never comes.
    """
    with tempfile.TemporaryDirectory() as folder:
        journal, lake = Path(folder, "journal"), Path(folder, "lake")
        write_journal(journal, nodes, cut=cut, lose=lose)
        job = Job(str(lake), lambda: spark)
        late = in_turns(job, journal, Path(folder, "aside"))
        check(journal, lake)
        assert job.verify(None) == ([], [])
        return late


def in_turns(job: Job, journal: Path, aside: Path) -> list[bool]:
    """Give the first segments of nodes to a run, then the second, and so on; which of them were late."""
    late = []
    journal.rename(aside)
    # Every third node begins one turn later, and every third one more.
    nodes = enumerate(sorted(aside.glob("node=*")))
    turns = list(zip_longest(*([*[None] * (place % 3), *sorted(node.iterdir())] for place, node in nodes)))
    for turn in turns:
        for path in filter(None, turn):
            target = journal / path.parent.name / path.name
            target.parent.mkdir(parents=True, exist_ok=True)
            path.rename(target)
        late.append(job.run(str(journal)).late)
    return late


@pytest.mark.timeout(600)
def test_hostile_journals_are_the_oracles(spark: SparkSession) -> None:
    judge(spark, hostile(150))


@pytest.mark.timeout(900)
def test_hostile_journals_in_many_batches_are_the_oracles(spark: SparkSession) -> None:
    assert not any(judge_in_turns(spark, hostile(150, back=False), cut=16))


@pytest.mark.timeout(900)
def test_hostile_journals_of_which_segments_never_come_are_the_oracles_in_many_batches(spark: SparkSession) -> None:
    """What is told of messages whose posts are lost changes what was final in their lanes."""
    assert not any(judge_in_turns(spark, hostile(150, back=False), cut=12, lose=2))


@pytest.mark.timeout(900)
def test_hostile_journals_of_which_batches_leave_alone_what_they_do_not_concern_are_the_oracles(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("posthouse.pipeline.job.ASLEEP_MIN", -1)
    assert not any(judge_in_turns(spark, hostile(150, back=False), cut=16))


def test_a_batch_concerns_mailboxes_that_it_does_not_name(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Time passes for what is open, a start ends connections, and answers meet across mailboxes; and what was refused
    sleeps in a mailbox that does not."""
    slept: list[set[str]] = []
    slept_in_busy: list[list[str]] = []

    def split(stored: DataFrame, concerned: DataFrame) -> asleep.Split:
        found = SPLIT(stored, concerned)
        sleeping = found.asleep.unionByName(found.deep)
        slept.append({row["role"] for row in sleeping.select("role").distinct().collect()})
        refused = sleeping.where("role = 'refused' AND mailbox = 'busy'")
        slept_in_busy.append(sorted(row["message_id"] for row in refused.collect()))
        return found

    monkeypatch.setattr("posthouse.pipeline.job.ASLEEP_MIN", -1)
    monkeypatch.setattr(asleep, "MORE_SHARE", 1)
    monkeypatch.setattr(asleep, "split", split)
    story, hour = Story(), 3_600
    story.add(0, "started", detail=json.dumps({"policies": {"relay": {"capacity": 1}}}))
    for name in ("stays", "ends"):
        story.add(1, "connected", mailbox=name, holder=name)
    story.add(2, "posted", "passes", mailbox="waits", expires_at=hour)
    story.add(2, "posted", "lives", mailbox="quiet", lane_seq=1)
    story.add(3, "posted", "kept", mailbox="ends", lane_seq=1)
    story.add(3, "refused", "never", mailbox="full", reason="full")
    for id in ("again", "later"):
        story.add(3, "refused", id, mailbox="busy", reason="full")
    story.add(4, "leased", "orphan", mailbox="lost")
    story.add(5, "posted", "answer", mailbox="one", cause_id="question", lane_seq=1)
    cuts = [len(story.rows)]
    for at in (10, 3 * hour, 30 * hour):
        story.add(at, "posted", f"busy-{at}", mailbox="busy", cause_id="question" if at > 10 else None)
        story.add(at + 1, "delivered", f"busy-{at}", mailbox="busy")
        if at == 3 * hour:
            story.add(at + 2, "refused", "again", mailbox="busy", reason="full")
        cuts.append(len(story.rows))
    story.add(31 * hour, "started")
    cuts.append(len(story.rows))
    for id, name in (("lives", "quiet"), ("kept", "ends"), ("never", "full"), ("answer", "one"), ("later", "busy")):
        story.add(32 * hour, "posted" if id in ("never", "later") else "delivered", id, mailbox=name)
    cuts.append(len(story.rows))
    journal, lake = tmp_path / "journal", tmp_path / "lake"
    job = Job(str(lake), lambda: spark)
    for _ in story.written(journal, cuts):
        assert not job.run(str(journal)).late
        check(journal, lake)
    assert all(roles >= {"message", "refused"} for roles in slept[:2])
    assert slept_in_busy[:3] == [["again", "later"], ["later"], ["again", "again", "later"]]
    assert {row["kind"] for row in compare.read(lake, "anomalies")} >= {"lost", "answered_twice"}


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_a_clock_that_was_far_off_is_named_and_fills_no_centuries(spark: SparkSession, tmp_path: Path) -> None:
    """A machine starts in 1970, is set right, and is in the year 9980 for one event."""
    boot, far = -1_772_000_000, 251_000_000_000
    story = Story()
    story.add(boot, "started", detail=json.dumps({"policies": {"relay": {"capacity": 1}}}))
    story.add(boot + 1, "connected", mailbox="old", holder="old")
    story.add(boot + 2, "posted", "first", mailbox="old")
    story.add(0, "delivered", "first", mailbox="old")
    story.add(1, "disconnected", mailbox="old", holder="old", reason="cut")
    story.add(2, "connected", mailbox="stands", holder="stands")
    story.add(3, "posted", "second", mailbox="stands")
    cuts = [len(story.rows)]
    story.add(far, "posted", "third", mailbox="else")
    story.add(5, "delivered", "second", mailbox="stands")
    cuts.append(len(story.rows))
    story.add(6, "delivered", "third", mailbox="else")
    cuts.append(len(story.rows))
    journal, lake = tmp_path / "journal", tmp_path / "lake"
    job = Job(str(lake), lambda: spark)
    for _ in story.written(journal, cuts):
        assert not job.run(str(journal)).rejected
        check(journal, lake, besides="bad_segment")
    said = sorted(fault for row in compare.read(lake, "segments") for fault in row["faults"])
    assert ["far off: offset 1 says 1970" in said[0], "far off: offset 8 says 9980" in said[1]] == [True, True], said
    days = {(row["mailbox"], row["day"]) for row in compare.read(lake, "availability")}
    assert 2_000 <= len(days) <= 2_003


@pytest.mark.slow
def test_an_hour_that_was_closed_has_another_revision_when_it_changes(spark: SparkSession, tmp_path: Path) -> None:
    """An hour that is not over, and what becomes of what was open, change nothing of that."""
    journal, lake = tmp_path / "journal", tmp_path / "lake"
    job, hour = Job(str(lake), lambda: spark), 3_600
    one, other = Story(), Story("n2")
    turns = [
        [(one, 1, "posted", "a"), (one, 2, "delivered", "a")],
        [(one, 3, "posted", "b"), (one, 4, "delivered", "b"), (one, 5, "posted", "c")],
        [(one, hour, "posted", "d"), (one, hour + 1, "delivered", "c")],
        [(other, 6, "posted", "e")],
        [(other, hour + 7, "delivered", "e")],
        [(other, 2 * hour, "redriven", "e"), (other, 2 * hour + 1, "posted", "f")],
    ]
    cuts: dict[str, list[int]] = {"n1": [], "n2": []}
    for turn in turns:
        for node, at, event, id in turn:
            node.add(at, event, id)
        cuts[node.node].append(len(node.rows))
    steps = {"n1": one.written(journal, cuts["n1"]), "n2": other.written(journal, cuts["n2"])}
    found = []
    for turn in turns:
        next(steps[turn[0][0].node])
        job.run(str(journal))
        check(journal, lake)
        rows = sorted(compare.read(lake, "books"), key=lambda row: row["window"])
        found.append((rows[0]["posted"], rows[0]["open"], rows[0]["revision"]))
    assert found == [(1, 0, 1), (3, 1, 1), (3, 0, 1), (4, 1, 2), (4, 0, 2), (4, 1, 3)]


@pytest.mark.timeout(900)
def test_hostile_journals_whose_clocks_go_back_in_many_batches_are_the_oracles(spark: SparkSession) -> None:
    """What is dated before what is known of its node has that made anew."""
    assert any(judge_in_turns(spark, hostile(60), cut=20))


@pytest.mark.slow
@pytest.mark.timeout(3_600)
def test_many_hostile_journals_are_the_oracles(spark: SparkSession) -> None:
    judge(spark, hostile(1_500))
