"""What a batch does not concern stays where it is: the open set in two parts is the one that is stored whole."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
from tests.pipeline import compare
from tests.pipeline.journal import Journal
from tests.pipeline.oracle import Oracle
from tests.pipeline.quiet import TURNS, Size, carried, quiet
from tests.pipeline.test_books_against_oracle import check

from posthouse.pipeline import job
from posthouse.pipeline.job import Job
from posthouse.pipeline.transforms import asleep

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(1_200)

AWAKE, ASLEEP = job.ASLEEP_MIN, -1
"""From how many open rows on a batch leaves others alone: more than these journals have, and fewer."""
HOUR = 3_600


class Turn(NamedTuple):
    """What is stored of the open set after a run, what it comes to, and what it is where it is stored whole."""

    size: Size
    rows: list[str]
    whole: list[str]


@pytest.fixture(scope="module")
def turns(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> list[Turn]:
    """Runs over a store that is mostly quiet, with all asleep that may be, and beside it with all awake.

    After each of them the tables are the oracle's.
    """
    folder = tmp_path_factory.mktemp("turns")
    journal, parts, whole = (folder / name for name in ("journal", "parts", "whole"))
    story, cuts = quiet()
    found = []
    with pytest.MonkeyPatch.context() as patch:
        for _ in story.written(journal, cuts):
            for lake, least in ((parts, ASLEEP), (whole, AWAKE)):
                patch.setattr(job, "ASLEEP_MIN", least)
                assert not Job(str(lake), lambda: spark).run(str(journal)).late
            check(journal, parts)
            assert compare.by_name(parts, "messages").source == ("kept" if found else "t")
            wanted = carried(spark, whole)
            assert (wanted.size.marks, wanted.size.rows) == (0, len(wanted.rows))
            found.append(Turn(*carried(spark, parts), wanted.rows))
    return found


def test_an_open_set_in_two_parts_is_the_one_that_is_stored_whole(turns: list[Turn]) -> None:
    for turn in turns:
        assert turn.rows == turn.whole
    size = turns[1].size
    # The base has rows that are gone, and rows that are not.
    assert size.rows - size.marks > len(turns[1].rows) > size.more - size.marks


def test_the_base_is_written_anew_when_the_second_part_has_grown(turns: list[Turn]) -> None:
    sizes = [turn.size for turn in turns]
    assert len(sizes) == TURNS + 1
    assert [size.more > size.rows * asleep.MORE_SHARE for size in sizes] == [False, True, False], sizes
    assert [size.marks > 0 for size in sizes] == [False, True, False]
    # What belongs to no mailbox is in the second part, and nothing else.
    assert sizes[2].more == sizes[0].more
    assert sizes[2].rows == len(turns[2].rows)


def test_a_connection_that_stands_for_days_and_ends_is_the_oracles_after_every_run(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only others have events while it stands, one day has none at all, and another node is silent for days."""
    monkeypatch.setattr(job, "ASLEEP_MIN", ASLEEP)
    monkeypatch.setattr(asleep, "MORE_SHARE", 1)
    journal, lake, day = tmp_path / "journal", tmp_path / "lake", 24 * HOUR
    story, other = Journal("n1"), Journal("n2")
    for each in (story, other):
        each.add(0, "started")
        each.add(10, "connected", mailbox="stands", holder="h")
        each.add(20, "posted", "first", mailbox="waits")
    cuts, others = [len(story.rows)], [len(other.rows)]
    for number, at in enumerate((day, 3 * day)):
        story.add(at, "connected", mailbox="comes", holder=f"c{number}")
        story.add(at + 60, "disconnected", mailbox="comes", holder=f"c{number}", reason="timeout")
        cuts.append(len(story.rows))
    other.add(3 * day + HOUR, "cancelled", "first", mailbox="waits")
    others.append(len(other.rows))
    story.add(4 * day, "disconnected", mailbox="stands", holder="h", reason="goodbye")
    story.add(5 * day, "connected", mailbox="stands", holder="h")
    story.add(5 * day + HOUR, "posted", "second", mailbox="waits")
    cuts.append(len(story.rows))
    other.add(5 * day, "started")
    others.append(len(other.rows))
    rest, standing = other.written(journal, others), []
    for turn, _ in enumerate(story.written(journal, cuts)):
        if turn != 1:
            next(rest)
        assert not Job(str(lake), lambda: spark).run(str(journal)).late
        compare.availability(compare.read(lake, "availability"), Oracle(journal))
        sums = [row for row in compare.read(lake, "partials") if row["mailbox"] == "stands"]
        standing.append(sorted(row["node"] for row in sums if row["table"] == "standing"))
        # While it stands it is one row, however long; its days are added when it ends.
        assert (turn == 3) == any(row["n"] for row in sums if row["table"] == "availability")
    assert standing == [["n1", "n2"], ["n1", "n2"], ["n1", "n2"], ["n1"]]
    check(journal, lake)
