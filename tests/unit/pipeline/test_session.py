"""Settings of Spark: who has the last word about which. And what Spark's own failures come out as."""

from __future__ import annotations

import errno
import os
import subprocess
import sys

import pytest

from posthouse.errors import InvalidInput, StoreError, StoreFull, StoreUnavailable
from posthouse.pipeline import session


@pytest.mark.parametrize("remote", [None, "sc://127.0.0.1:1"])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("spark.sql.session.timeZone", "Europe/Berlin"),
        ("spark.sql.parquet.outputTimestampType", "INT96"),
        ("spark.databricks.delta.replaceWhere.constraintCheck.enabled", "true"),
    ],
)
def test_a_setting_that_the_tables_would_be_wrong_by_is_refused(name: str, value: str, remote: str | None) -> None:
    pytest.importorskip("pyspark")
    wanted = session.NEEDED[name]
    with pytest.raises(InvalidInput, match=f"the books need {name}={wanted}, and cannot do with '{value}'"):
        with session.start(session.Settings(remote=remote, conf={name: value})):
            pass


def test_what_the_tables_need_is_nothing_that_a_caller_may_choose() -> None:
    assert not session.NEEDED.keys() & session.PLANS.keys()
    found = session.defaults(session.Settings(master="local[1]", memory_mb=1_024))
    assert found.items() >= {**session.NEEDED, **session.PLANS}.items()


FULL = """\
An error occurred while calling o93.save.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 4.0 failed 1 times
\tat org.apache.spark.scheduler.DAGScheduler.abortStage(DAGScheduler.scala:2935)
Caused by: org.apache.spark.SparkException: [TASK_WRITE_FAILED] Task failed while writing rows to file:/lake/events.
\t... 17 more
Caused by: java.io.IOException: No space left on device
\tat java.base/java.io.FileOutputStream.writeBytes(Native Method)
"""
REFUSED = """\
Warning: Ignoring non-Spark config property: parquet.size.statistics.enabled
Exception in thread "main" org.apache.spark.SparkException: Master must either be yarn or start with spark or local
\tat org.apache.spark.deploy.SparkSubmit.error(SparkSubmit.scala:1069)
"""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (REFUSED, "SparkException: Master must either be yarn or start with spark or local"),
        (
            "Invalid maximum heap size: -Xmxx\nError: Could not create the Java Virtual Machine.\n",
            "Invalid maximum heap size: -Xmxx",
        ),
        ("Error occurred during initialization of VM\nToo small maximum heap\n", "Too small maximum heap"),
        (
            "[PATH_NOT_FOUND] Path does not exist: file:/x. SQLSTATE: 42K03\n\nJVM stacktrace:\n"
            "org.apache.spark.sql.AnalysisException: [PATH_NOT_FOUND] Path does not exist: file:/x. SQLSTATE: 42K03\n"
            "\tat org.apache.spark.sql.errors.X(X.scala:1)",
            "[PATH_NOT_FOUND] Path does not exist: file:/x. SQLSTATE: 42K03",
        ),
        (
            ": org.apache.spark.SparkException: Job aborted.\nCaused by: java.lang.OutOfMemoryError: Java heap space\n",
            "SparkException: Job aborted. (OutOfMemoryError: Java heap space)",
        ),
        ("", "Java ended and said nothing"),
    ],
)
def test_of_a_trace_the_line_is_told_that_says_why(text: str, line: str) -> None:
    assert session.reason(text) == line


def test_what_fails_in_spark_is_a_store_error_and_a_mistake_of_ours_is_not() -> None:
    py4j, errors = pytest.importorskip("py4j.protocol"), pytest.importorskip("pyspark.errors")
    deltalake = pytest.importorskip("deltalake.exceptions")
    wanted: list[tuple[Exception, type[StoreError], str]] = [
        (
            py4j.Py4JError(FULL),
            StoreFull,
            "the disk of the lake or of temporary files is full: No space left on device",
        ),
        (py4j.Py4JError(": java.lang.X: why"), StoreUnavailable, "Spark could not do it: X: why"),
        (py4j.Py4JNetworkError("gone"), StoreUnavailable, "Spark could not do it: Java ended and said nothing"),
        (errors.PySparkRuntimeError("odd"), StoreUnavailable, "Spark could not do it: odd"),
        (deltalake.DeltaError("No space left on device (os error 28)"), StoreFull, "(os error 28)"),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/lake/x"), StoreFull, "No space left on device: /lake/x"),
    ]
    for error, kind, line in wanted:
        with pytest.raises(kind) as caught, session.failures():
            raise error
        assert line in str(caught.value)
        assert "\n" not in str(caught.value)
    for ours in (TypeError("no"), errors.PySparkTypeError("no"), OSError(errno.EACCES, "no"), BrokenPipeError()):
        with pytest.raises(type(ours)) as same, session.failures():
            raise ours
        assert same.value is ours


LOST = """\
import os, signal
from pyspark import SparkContext
from posthouse.errors import StoreUnavailable
from posthouse.pipeline import session
settings = session.Settings(master="local[1]", memory_mb=1_024, environment=dict(os.environ))
for number in range(2):
    try:
        with session.failures(), session.start(settings) as spark:
            if number == 0:
                SparkContext._gateway.proc.kill()
            print(spark.range(3).count())
    except StoreUnavailable as error:
        print(error)
"""


def test_where_java_was_killed_the_next_session_has_another() -> None:
    pytest.importorskip("pyspark")
    done = subprocess.run([sys.executable, "-c", LOST], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    lost, count = done.stdout.splitlines()
    assert lost.startswith("Spark could not do it")
    assert count == "3"
