"""Settings of Spark: who has the last word about which."""

from __future__ import annotations

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
    pytest.importorskip("pyspark")
    wanted = session.NEEDED[name]
    with pytest.raises(InvalidInput, match=f"the books need {name}={wanted}, and cannot do with '{value}'"):
        with session.start(session.Settings(remote=remote, conf={name: value})):
            pass


def test_what_the_tables_need_is_nothing_that_a_caller_may_choose() -> None:
    assert not session.NEEDED.keys() & session.PLANS.keys()
    found = session.defaults(session.Settings(master="local[1]", memory_mb=1_024))
    assert found.items() >= {**session.NEEDED, **session.PLANS}.items()
