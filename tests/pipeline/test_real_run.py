"""The books of real runs: whatever was killed, they close, and nothing is found but what the faults caused."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.faults.books import Books
from tests.pipeline.runs import RUNS, Run

from posthouse.cli import main
from posthouse.journal import segment
from posthouse.journal.verify import verify_folder
from posthouse.pipeline.job import Job
from posthouse.pipeline.lake import Lake, Selection

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(600)

ROLES = ("relay", "peer", "gateway")
OUTCOMES = {"delivered": "delivered", "expired": "expired", "dead": "dead", "cancelled": "cancelled"}


@pytest.mark.parametrize("name", ROLES)
def test_each_role_that_can_be_started_has_a_run(name: str) -> None:
    assert name in main.list_commands(None)  # type: ignore[arg-type]
    assert name in RUNS, f"the books of a {name} are not looked at: register a run of it in tests/pipeline/runs.py"


def test_the_books_of_real_runs_close_and_nothing_is_found_but_what_the_faults_caused(
    spark: SparkSession, tmp_path: Path
) -> None:
    judge(spark, tmp_path, seconds=5)


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_the_books_of_long_runs_close(spark: SparkSession, tmp_path: Path) -> None:
    judge(spark, tmp_path, seconds=60)


def judge(spark: SparkSession, folder: Path, seconds: float) -> None:
    """Every role's run into one journal, one run of the books over all of them."""
    journal = folder / "journal"
    nodes: dict[str, tuple[Run, int]] = {}
    for name, run in RUNS.items():
        (folder / name).mkdir()
        before = set(journal.glob("node=*"))
        starts = run.make(folder / name, journal, seconds)
        (made,) = set(journal.glob("node=*")) - before
        nodes[made.name.removeprefix("node=")] = run, starts
    assert list(verify_folder(journal)) == []

    result = Job(str(folder / "lake"), lambda: spark).run(str(journal))
    assert result.findings == []
    lake = Lake(str(folder / "lake"))
    closing = list(lake.rows("books"))
    assert sum(row["remainder"] for row in closing) == 0
    ends: Counter[str] = Counter()
    for node, (run, starts) in nodes.items():
        found = lake.rows("anomalies", Selection(equal={"node": node}))
        strange = [row for row in found if row["kind"] not in run.causes]
        assert strange == [], node
        # It was worth it: it was killed, and messages had been posted before each time.
        assert lake.count("events", Selection(equal={"node": node, "event": "started"})) == starts
        assert lake.count("messages", Selection(equal={"node": node, "outcome": "delivered"})) > 100, node
        told = Books(row for path in sorted((journal / f"node={node}").iterdir()) for row in segment.read(path))
        for end, count in told.ends().items():
            ends[OUTCOMES.get(end, "open")] += count
    for outcome in (*OUTCOMES.values(), "open"):
        assert sum(row[outcome] for row in closing) == ends[outcome], outcome
    assert sum(row["posted"] for row in closing) == ends.total()
