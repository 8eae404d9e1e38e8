"""Settings of Spark: who has the last word about which. And a session after one whose Java was killed."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

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


def test_the_folder_that_spark_makes_for_nothing_is_named_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hadoop does not decode names."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "of mine, 100%"))
    found = session.defaults(session.Settings(master="local[1]", memory_mb=1_024))
    assert found["spark.sql.warehouse.dir"] == f"file://{tmp_path}/of mine, 100%"


def test_what_the_caller_gives_is_added_to_the_lists_by_which_delta_is_there() -> None:
    """Behind ours, each once; any other setting of the caller's takes the place of ours."""
    here = session.Settings(master="local[1]", memory_mb=1_024)
    ours = session.defaults(here)
    jars = ours["spark.jars"].split(",")
    assert len(jars) > 1
    given = {
        "spark.jars": f"/opt/hadoop-aws.jar, {jars[1]},,/opt/bundle.jar,/opt/hadoop-aws.jar",
        "spark.sql.extensions": "com.example.Extension,io.delta.sql.DeltaSparkSessionExtension",
        "spark.ui.enabled": "true",
    }
    assert session.merged(here._replace(conf=given)) == {
        **ours,
        "spark.jars": ",".join([*jars, "/opt/hadoop-aws.jar", "/opt/bundle.jar"]),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension,com.example.Extension",
        "spark.ui.enabled": "true",
    }
    assert session.merged(here._replace(conf={"spark.jars": ""})) == ours


def test_a_connect_server_is_told_nothing_of_our_jars() -> None:
    remote = session.Settings(remote="sc://127.0.0.1:1")
    assert session.merged(remote) == {**session.PLANS, **session.NEEDED}
    given = {"spark.jars": "/opt/hadoop-aws.jar", "spark.sql.adaptive.enabled": "true"}
    found = session.merged(remote._replace(conf=given))
    assert found == {**session.PLANS, **session.NEEDED, **given}


@pytest.mark.parametrize("master", ["spark://spark:7077", "k8s://https://kubernetes.default.svc"])
def test_a_driver_that_executors_come_to_from_elsewhere_does_not_listen_to_this_machine_alone(master: str) -> None:
    found = session.merged(session.Settings(master=master, conf={"spark.driver.bindAddress": "0.0.0.0"}))
    assert "spark.driver.host" not in found
    assert found["spark.driver.bindAddress"] == "0.0.0.0"
    assert not [value for value in found.values() if "127.0.0.1" in value or "localhost" in value]
    here = session.merged(session.Settings(master="local[1]"))
    assert here["spark.driver.host"] == here["spark.driver.bindAddress"] == "127.0.0.1"


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
