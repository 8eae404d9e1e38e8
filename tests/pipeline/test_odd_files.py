"""Files and folders as others make them, on a real Spark session: one file never stops the books, nor does a name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.unit.pipeline import odd

from posthouse.journal import schema as contract
from posthouse.pipeline.job import Job
from posthouse.pipeline.lake import Lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(900)

SOUND = odd.LAYOUTS[0]


def test_files_of_all_sorts_are_taken_whole_or_named(spark: SparkSession, tmp_path: Path) -> None:
    """One of each, and a sound one, in one journal."""
    firsts = {1 + 10 * n: how for n, how in enumerate((*odd.ALL, SOUND))}
    for first, how in firsts.items():
        odd.write(tmp_path / "j", first, how)
    job = Job(str(tmp_path / "lake"), lambda: spark)
    result = job.run(str(tmp_path / "j"))
    taken = [first for first, how in firsts.items() if how.reason is None]
    assert (result.segments, result.events) == (len(taken), odd.ROWS * len(taken))

    reasons = dict(result.rejected)
    for first, how in firsts.items():
        name = contract.file_name(first, first + odd.ROWS - 1)
        if how.reason is not None:
            assert reasons.pop(f"node={odd.NODE}/{name}").startswith(how.reason), how.name
        if how.named is not None:
            assert f"{name}: {how.named}" in [finding.detail for finding in result.findings], how.name
    assert reasons == {}

    offsets = [first + n for first in taken for n in range(odd.ROWS)]
    shown = Lake(str(tmp_path / "lake"))
    assert sorted(row["offset"] for row in shown.rows("events")) == offsets
    assert sorted(row["offset"] for row in job.tables.load("events").select("offset").collect()) == offsets
    ends = {row["message_id"]: row["outcome"] for row in shown.rows("messages")}
    assert ends == {f"m{first}": "delivered" for first in taken}
    assert job.verify(None).found == []
    # Another run finds nothing to do, and says the same of what it left out.
    again = Job(str(tmp_path / "lake"), lambda: pytest.fail("Spark was started")).run(str(tmp_path / "j"))
    assert (again.batches, again.rejected) == (0, result.rejected)


def test_folders_may_have_any_name(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing in a name stands for other names, and a path that is relative is so to where we are."""
    journal, lake = tmp_path / "j[1] {a} x? *.%20#", tmp_path / "l {a} x? *.#" / "lake"
    odd.write(journal, 1, SOUND)
    odd.write(journal, 4, SOUND)
    # What it would stand for.
    odd.write(tmp_path / "j1 a x1 1.%20#", 11, SOUND)
    odd.write(tmp_path / "j[1] {a} xy z.%20#", 21, SOUND)
    monkeypatch.chdir(tmp_path)
    job = Job(str(lake.relative_to(tmp_path)), lambda: spark)
    assert job.run(journal.name).events == 2 * odd.ROWS
    odd.write(journal, 7, SOUND)
    assert job.run(journal.name).events == odd.ROWS
    job.compact(retain_h=1)
    # Each of these segments begins a chain.
    assert [kind for kind, _, _ in job.verify(journal.name).found] == ["chain_broken"] * 2
    assert sorted(row["offset"] for row in Lake(str(lake)).rows("events")) == [*range(1, 10)]
    assert sorted(row["message_id"] for row in Lake(str(lake)).rows("messages")) == ["m1", "m4", "m7"]
    assert [path.name for path in lake.parent.iterdir()] == ["lake"]
