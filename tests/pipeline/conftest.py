"""One Spark session for all tests of the pipeline."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SMALL = {
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    # What runs once is not worth being compiled well.
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m",
}
"""Settings of Spark for little data."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What needs Spark runs with the slow tests, but for one batch of few events that every table is held to."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()) and "mixed" not in item.fixturenames:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A small local session; where Spark, Java or Delta is missing, its one line says so."""
    from posthouse.pipeline import session

    settings = session.Settings(
        master="local[2]",
        memory_mb=2_048,
        conf=SMALL,
        environment=dict(os.environ),
    )
    with session.start(settings) as started:
        yield started


@pytest.fixture(scope="session")
def connect() -> Iterator[str]:
    """The URL of a Spark Connect server."""
    from tests.pipeline.daemon import connect_server

    with connect_server() as url:
        yield url
