"""What Spark's own failures come out as."""

from __future__ import annotations

import errno
import os

import pytest
from deltalake.exceptions import DeltaError
from py4j import protocol  # type: ignore[import-untyped]
from pyspark import errors

from posthouse.errors import StoreError, StoreFull, StoreUnavailable
from posthouse.pipeline import failure

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
    assert failure.reason(text) == line


def test_what_fails_in_spark_is_a_store_error_and_a_mistake_of_ours_is_not() -> None:
    wanted: list[tuple[Exception, type[StoreError], str]] = [
        (
            protocol.Py4JError(FULL),
            StoreFull,
            "the disk of the lake or of temporary files is full: No space left on device",
        ),
        (protocol.Py4JError(": java.lang.X: why"), StoreUnavailable, "Spark could not do it: X: why"),
        (protocol.Py4JNetworkError("gone"), StoreUnavailable, "Spark could not do it: Java ended and said nothing"),
        (errors.PySparkRuntimeError("odd"), StoreUnavailable, "Spark could not do it: odd"),
        (DeltaError("No space left on device (os error 28)"), StoreFull, "(os error 28)"),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/lake/x"), StoreFull, "No space left on device: /lake/x"),
        # As deltalake and pyarrow tell what they meet in a file system.
        (
            OSError("\x1b[31mGeneric error\x1b[0m\n  ↳ No space left on device (os error 28)"),
            StoreFull,
            "is full: No space left on device (os error 28)",
        ),
        (OSError("When listing:\n AWS Error NETWORK_CONNECTION"), StoreUnavailable, "listing: AWS Error NETWORK_"),
    ]
    for error, kind, line in wanted:
        with pytest.raises(kind) as caught, failure.told():
            raise error
        assert line in str(caught.value)
        assert str(caught.value).isprintable()
    for ours in (TypeError("no"), errors.PySparkTypeError("no"), OSError(errno.EACCES, "no"), BrokenPipeError()):
        with pytest.raises(type(ours)) as same, failure.told():
            raise ours
        assert same.value is ours
