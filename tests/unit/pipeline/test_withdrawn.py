"""Rows that were taken out, told by name: however a table is asked, they are not in the answer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from deltalake import DeltaTable
from tests.unit.pipeline.lakes import at, message, write

from posthouse.pipeline import withdrawn
from posthouse.pipeline.lake import Lake, Selection
from posthouse.pipeline.schema import APP_ID
from posthouse.pipeline.withdrawn import Gone, Reader

FOLDERS = ("lake", "a lake of 100% ü#1?")


def told(lake: Path, gone: Sequence[Gone], batch: int, *, whole: bool = False) -> None:
    withdrawn.record(str(lake / withdrawn.NAME), gone, batch, whole=whole)


@pytest.fixture(params=FOLDERS)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Three batches: the second takes one of six messages out and writes it anew, the third all of a node."""
    folder = tmp_path / str(request.param)
    first = [message(f"m{number}", number, key=number, generation=1, batch=1) for number in range(4)]
    others = [
        message(f"o{number}", 10 + number, key=10 + number, generation=1, batch=1, node="n2") for number in range(2)
    ]
    write(folder, "messages", [*first, *others], batch=1)
    told(folder, [], 1, whole=True)
    again = [
        message("m1", 1, key=1, generation=1, batch=2, outcome="dead", part="2026-03-02"),
        message("m1", 5, key=1, generation=2, batch=2),
    ]
    write(folder, "messages", again, batch=2)
    told(folder, [Gone(key=1, generation=1)], 2)
    write(folder, "messages", [message("o0", 10, key=10, generation=1, batch=3, node="n2")], batch=3)
    told(folder, [Gone(node="n2")], 3)
    return folder


HOLDING = [("m0", 1, 1), ("m1", 1, 2), ("m1", 2, 2), ("m2", 1, 1), ("m3", 1, 1), ("o0", 1, 3)]
"""Names, generations and batches of what is left."""


@pytest.mark.parametrize("few", [withdrawn.FEW, -1])
def test_what_was_taken_out_is_in_no_answer(lake: Path, few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(withdrawn, "FEW", few)
    books = Lake(str(lake))
    rows = list(books.rows("messages"))
    assert sorted((row["message_id"], row["generation"], row["batch"]) for row in rows) == HOLDING
    assert set(rows[0]) == set(books.columns("messages"))
    assert books.count("messages") == len(HOLDING)
    assert books.count("messages", Selection(where="outcome = dead")) == 1
    assert [(row["generation"], row["outcome"]) for row in books.message("m1")] == [(1, "dead"), (2, "delivered")]
    assert books.message("o1") == []
    shown = list(books.rows("messages", Selection(columns=("message_id",))))
    assert sorted(row["message_id"] for row in shown) == [id for id, *_ in HOLDING]
    assert set(shown[0]) == {"message_id"}


@pytest.mark.parametrize("limit", range(8))
def test_a_limit_counts_what_is_left(lake: Path, limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where more of the first rows are gone than were asked for beyond it."""
    monkeypatch.setattr("posthouse.pipeline.lake._SPARE", 0)
    every = list(Lake(str(lake)).rows("messages"))
    every.sort(key=lambda row: (row["part"], row["posted_at"]), reverse=True)
    assert list(Lake(str(lake)).rows("messages", Selection(limit=limit))) == every[:limit]


def test_files_without_such_rows_are_left_out_by_their_bounds(lake: Path) -> None:
    since = int(at(9).timestamp() * 1_000_000)
    assert [row["message_id"] for row in Lake(str(lake)).rows("messages", Selection(since=since))] == ["o0"]


def test_it_counts_for_the_batch_that_it_has_reached_and_no_other(lake: Path) -> None:
    """A batch that is not told of yet is read by what Delta says, which is that nothing was taken out here."""
    write(lake, "messages", [message("m9", 9, key=9, generation=1, batch=4)], batch=4)
    table, gone = (DeltaTable(str(lake / name)) for name in ("messages", withdrawn.NAME))
    assert (table.transaction_version(APP_ID), gone.transaction_version(APP_ID)) == (4, 3)
    reader = Reader("messages", table, gone)
    assert (reader.source, reader.told, reader.spare) == ("t", (), 0)
    assert Lake(str(lake)).count("messages") == 10
    told(lake, [], 4)
    assert Lake(str(lake)).count("messages") == len(HOLDING) + 1


def test_a_batch_is_told_once_and_a_table_that_is_replaced_lacks_nothing(lake: Path) -> None:
    place = lake / withdrawn.NAME
    version = DeltaTable(str(place)).version()
    told(lake, [Gone(node="n1")], 3)
    assert DeltaTable(str(place)).version() == version
    write(lake, "messages", [message("m0", 0, key=0, generation=1, batch=4)], mode="overwrite", batch=4)
    told(lake, [], 4, whole=True)
    assert DeltaTable(str(place)).count() == 0
    assert [row["message_id"] for row in Lake(str(lake)).rows("messages")] == ["m0"]


def test_what_was_not_told_once_is_not_told_any_more_until_the_tables_are_replaced(lake: Path) -> None:
    """As where a program that knows nothing of it wrote the fourth batch."""
    write(lake, "messages", [message("m2", 2, key=2, generation=1, batch=4)], batch=4)
    write(lake, "messages", [message("m9", 9, key=9, generation=1, batch=5)], batch=5)
    told(lake, [], 5)
    table, gone = (DeltaTable(str(lake / name)) for name in ("messages", withdrawn.NAME))
    assert gone.transaction_version(APP_ID) == 3
    assert Reader("messages", table, gone).source == "t"
    told(lake, [], 5, whole=True)
    assert DeltaTable(str(lake / withdrawn.NAME)).transaction_version(APP_ID) == 5


def test_where_it_cannot_be_read_the_table_still_can(lake: Path) -> None:
    for file in (lake / withdrawn.NAME).glob("*.parquet"):
        file.unlink()
    assert Lake(str(lake)).count("messages") == 9


def test_rows_come_as_they_are_read_where_nothing_can_be_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit of millions is not gathered first."""
    write(tmp_path, "messages", [message(f"m{n}", n, key=n, generation=1, batch=1) for n in range(4)], batch=1)
    books, seen = Lake(str(tmp_path)), []
    query = books._query
    monkeypatch.setattr(books, "_query", lambda name, sql: (seen.append(row) or row for row in query(name, sql)))
    rows = books.rows("messages", Selection(limit=3))
    next(rows)
    assert len([row for row in seen if "message_id" in row]) == 1
    assert len(list(rows)) == 2


def test_a_lake_that_does_not_tell_is_read_as_it_is(tmp_path: Path) -> None:
    write(tmp_path, "messages", [message("m0", 0, key=0, generation=1, batch=1)], batch=1)
    assert Lake(str(tmp_path)).count("messages") == 1
