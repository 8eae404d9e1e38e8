"""Spark's servers from the pip package, as processes of their own: masters, workers, Spark Connect."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.pipeline.conftest import SMALL
from tests.pipeline.heard import Heard

from posthouse.pipeline import java, session


class Daemon:
    """One of Spark's servers, from the pip package. What it logs is heard, so nobody asks."""

    def __init__(self, *words: str) -> None:
        import pyspark

        home = Path(pyspark.__path__[0])
        found = java.find(os.environ, Path(sys.prefix, "share", "posthouse"))
        settings = {"SPARK_HOME": str(home), "JAVA_HOME": str(found.home), "SPARK_LOCAL_IP": "127.0.0.1"}
        self.process = subprocess.Popen(
            [str(home / "bin" / "spark-class"), *words],
            env={**os.environ, **settings, "PYSPARK_PYTHON": sys.executable},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.said = Heard(self.process.stderr)

    def kill(self) -> None:
        """It and all that it started: executors die with their worker."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@contextlib.contextmanager
def connect_server() -> Iterator[str]:
    """A Spark Connect server; its URL."""
    conf = {
        **session.defaults(session.Settings(master="local[2]", memory_mb=2_048)),
        "spark.connect.grpc.binding.port": "0",
        **SMALL,
    }
    words = [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
    server = Daemon(
        "org.apache.spark.deploy.SparkSubmit",
        "--class",
        "org.apache.spark.sql.connect.service.SparkConnectServer",
        *words,
        "spark-internal",
    )
    try:
        yield f"sc://127.0.0.1:{server.said.wait_for(r'Spark Connect server started at: .*:([0-9]+)')[1]}"
    finally:
        server.kill()
