"""books watch with a real Spark: what came meanwhile is taken in by the same process, and SIGTERM ends it at once."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from tests.pipeline.heard import Heard
from tests.pipeline.small import make_small, tables

from posthouse.pipeline import generate
from posthouse.pipeline.job import Job

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
# The command line, with small transforms, saying how far it is.
WATCH = """\
import sys
from tests.pipeline.small import make_small
from posthouse.pipeline import job
make_small(setattr)
real = job.Job.__init__
def told(self, *arguments, **named):
    real(self, *arguments, **{**named, "stage": lambda reached: print("reached", reached, file=sys.stderr, flush=True)})
job.Job.__init__ = told
from posthouse.cli import main
main(sys.argv[1:])
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_watch_takes_in_what_comes_and_ends_in_the_middle_of_a_turn(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generate.generate(tmp_path / "made", events=800, seed=4, nodes=1, segment_events=200)
    files = sorted((tmp_path / "made").glob("node=*/*.parquet"))
    journal, lake = tmp_path / "journal", tmp_path / "lake"
    (journal / files[0].parent.name).mkdir(parents=True)

    def give(path: Path) -> None:
        draft = journal / path.parent.name / f".{path.name}"
        shutil.copyfile(path, draft)
        draft.rename(draft.with_name(path.name))

    give(files[0])
    words = ["books", "watch", "--every", "1", "--journal", str(journal), "--lake", str(lake), "--master", "local[1]"]
    watch = subprocess.Popen(
        [sys.executable, "-c", WATCH, *words], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        said, told = Heard(watch.stdout), Heard(watch.stderr)
        said.wait_for("^200 events in 1 segments", deadline_s=300)
        give(files[1])
        said.wait_for("^200 events in 1 segments", after=1, deadline_s=300)
        (java,) = [child for child in psutil.Process(watch.pid).children(recursive=True) if "java" in child.name()]
        before = len(told)
        for path in files[2:]:
            give(path)
        told.wait_for("reached events", after=before, deadline_s=300)
        watch.send_signal(signal.SIGTERM)
        assert watch.wait(30) == 0
        assert not psutil.wait_procs([java], timeout=30)[1]
        assert {line.split()[0] for line in told.text().splitlines()} == {"reached"}, told.text()
    finally:
        watch.kill()
        watch.wait()

    make_small(monkeypatch.setattr)
    result = Job(str(lake), lambda: spark).run(str(journal))
    assert result.batches >= 1
    Job(str(tmp_path / "calm"), lambda: spark).run(str(journal))
    assert tables(lake) == tables(tmp_path / "calm")
