"""Power cuts on the real store, its checkpoints and its journal: nothing acknowledged may be lost."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.faults.cuts import Report, run


def cut(folder: Path, seeds: range, lives: int, synchronous: str = "FULL") -> Report:
    report = Report()
    for seed in seeds:
        run(folder / str(seed), seed, lives, report, synchronous)
    print(f"\n{synchronous}: {report}")
    return report


def test_hundreds_of_power_cuts_lose_nothing_that_was_acknowledged(quick_folder: Path) -> None:
    report = cut(quick_folder, range(25), 8)
    assert not report.faults, "\n".join([*report.faults[:20], f"the files are in {quick_folder}"])
    assert report.cuts >= 400
    assert report.posts > 1_000
    assert report.checkpointed > 40, "the cuts must reach into checkpoints"


def test_without_a_sync_before_the_answer_power_cuts_lose_messages(quick_folder: Path) -> None:
    """The control: were this to pass unharmed, the test above would prove nothing."""
    report = cut(quick_folder, range(16), 8, "NORMAL")
    assert report.stores_harmed >= 4


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_thousands_of_power_cuts_lose_nothing_that_was_acknowledged(quick_folder: Path) -> None:
    report = cut(quick_folder, range(1_000, 1_250), 10)
    assert not report.faults, "\n".join([*report.faults[:20], f"the files are in {quick_folder}"])
    assert report.cuts >= 5_000
    assert report.posts > 20_000
