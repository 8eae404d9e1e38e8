"""Settings of Spark: who has the last word about which. And a session after one whose Java was killed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from posthouse.errors import InvalidInput
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
    wanted = session.NEEDED[name]
    with pytest.raises(InvalidInput, match=f"the books need {name}={wanted}, and cannot do with '{value}'"):
        with session.start(session.Settings(remote=remote, conf={name: value})):
            pass


def test_what_the_tables_need_is_nothing_that_a_caller_may_choose() -> None:
    assert not session.NEEDED.keys() & session.PLANS.keys()
    found = session.defaults(session.Settings(master="local[1]", memory_mb=1_024))
    assert found.items() >= {**session.NEEDED, **session.PLANS}.items()


LOST = """\
import os, signal
from pyspark import SparkContext
from posthouse.errors import StoreUnavailable
from posthouse.pipeline import failure, session
settings = session.Settings(master="local[1]", memory_mb=1_024, environment=dict(os.environ))
for number in range(2):
    try:
        with failure.told(), session.start(settings) as spark:
            if number == 0:
                SparkContext._gateway.proc.kill()
            print(spark.range(3).count())
    except StoreUnavailable as error:
        print(error)
"""


def test_where_java_was_killed_the_next_session_has_another() -> None:
    done = subprocess.run([sys.executable, "-c", LOST], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    lost, count = done.stdout.splitlines()
    assert lost.startswith("Spark could not do it")
    assert count == "3"
