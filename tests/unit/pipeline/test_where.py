"""The language of --where: what it means, and that nothing in it can be more than a comparison."""

from __future__ import annotations

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from hypothesis import given
from hypothesis import strategies as st

from posthouse.errors import InvalidInput
from posthouse.pipeline import where

TYPES = {"id": "text", "n": "whole", "share": "number", "live": "switch", "at": "instant", "day": "date", "ids": "list"}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> DeltaTable:
    place = tmp_path_factory.mktemp("where") / "t"
    data = pa.table(
        {
            "id": ["a", "B's", None, "and"],
            "n": pa.array([1, 5_000_000, None, -3], pa.int64()),
            "share": [0.5, None, 1.0, 0.25],
            "live": [True, False, None, True],
            "at": pa.array([0, 1_772_323_200_000_000, None, 86_400_000_000], pa.timestamp("us", "UTC")),
            "day": pa.array([0, 20_000, None, 1], pa.date32()),
            "ids": [["x"], [], None, ["y"]],
        }
    )
    write_deltalake(place, data)
    return DeltaTable(place)


def chosen(table: DeltaTable, text: str) -> list[str | None]:
    sql = f"SELECT id FROM t WHERE {where.condition(text, TYPES)}"
    found = pa.RecordBatchReader.from_stream(QueryBuilder().register("t", table).execute(sql)).read_all()
    return sorted(found["id"].to_pylist(), key=str)


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("id = a", ["a"]),
        ("id='a'", ["a"]),
        ('id == "B\'s"', ["B's"]),
        ("id = 'B''s'", ["B's"]),
        ("id = 'and'", ["and"]),
        ("id != a", ["B's", None, "and"]),
        ("not id = a", ["B's", None, "and"]),
        ("id ~ b", ["B's"]),
        ("id !~ b", [None, "a", "and"]),
        ("id in (a, 'and')", ["a", "and"]),
        ("id not in (a, 'and')", ["B's", None]),
        ("id is null", [None]),
        ("ids is not null and n < 0", ["and"]),
        ("n >= 1 AND n <= 1", ["a"]),
        ("n = 5s", ["B's"]),
        ("n > -4 and (share = 0.5 or share = .25e0)", None),
        ("n > -4 and (share = 0.5 or share < 3e-1)", ["a", "and"]),
        ("live = true", ["a", "and"]),
        ("live <> yes or n = 1", ["B's", None, "a"]),
        ("at >= 2026-03-01", ["B's"]),
        ("at < 1970-01-01T00:00:01Z", ["a"]),
        ("at = '1970-01-02 01:00:00+01:00'", ["and"]),
        ("day > 1970-01-01", ["B's", "and"]),
        ("id = a or id = 'and' and live = false", ["a"]),
        ("(id = a or id = 'and') and live = false", []),
    ],
)
def test_a_condition_selects_what_it_says(table: DeltaTable, text: str, ids: list[str | None] | None) -> None:
    if ids is None:
        with pytest.raises(InvalidInput):
            chosen(table, text)
    else:
        assert chosen(table, text) == sorted(ids, key=str)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "--where ends where a column is expected"),
        ("id", "--where ends where a comparison"),
        ("id =", "--where ends where a value is expected"),
        ("id = a id = b", "--where: and, or, or the end is expected at 'id'"),
        ("id = 'a", "a quote has no end"),
        ("idd = a", "no column 'idd'; did you mean id?"),
        ("1 = 1", "no column '1'"),
        ("id = and", "a value (in quotes"),
        ("(id = a", "--where ends where )"),
        ("n = many", "n is a whole number"),
        ("n = 1; drop", "n is a whole number"),
        ("n ~ 1", "~ looks into texts"),
        ("share = nan", "share is a number"),
        ("at = yesterday", "at is an instant"),
        ("day = 2026-13-01", "day is a date"),
        ("live = perhaps", "live is true or false"),
        ("ids = x", "ids is a list"),
        ("id in ()", "a value is expected"),
        ("id not = a", "in is expected"),
        ("id = 'a\0b'", "no zero byte"),
        ("(" * 100 + "id = a" + ")" * 100, "deep at most"),
        ("not " * 100 + "id = a", "deep at most"),
        ("id = " + "a" * 5_000, "at most 4000 characters"),
    ],
)
def test_what_cannot_be_understood_is_named(text: str, said: str) -> None:
    with pytest.raises(InvalidInput) as error:
        where.condition(text, TYPES)
    assert said in str(error.value)


@given(st.text(max_size=40), st.sampled_from(["=", "!=", "~", "<", "in"]))
def test_no_text_is_more_than_a_value(value: str, sign: str) -> None:
    quoted = "'" + value.replace("'", "''") + "'"
    text = f"id in ({quoted})" if sign == "in" else f"id {sign} {quoted}"
    if "\0" in value:
        with pytest.raises(InvalidInput):
            where.condition(text, TYPES)
        return
    # Without its literals nothing of the value is left.
    assert quoted in where.condition(text, TYPES)
    assert where.condition(text, TYPES).replace(quoted, "?") == where.condition(
        text.replace(quoted, "'q'"), TYPES
    ).replace("'q'", "?")


@given(st.text(max_size=60))
def test_any_text_is_a_condition_or_a_clear_error(text: str) -> None:
    try:
        where.condition(text, TYPES)
    except InvalidInput:
        pass
