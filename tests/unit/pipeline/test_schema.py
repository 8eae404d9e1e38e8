"""The tables of a lake and their page in the reference."""

from __future__ import annotations

from pathlib import Path

from posthouse.journal.schema import NAMES
from posthouse.pipeline import reference
from posthouse.pipeline.schema import TABLES, VOLATILE, WAITS

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "books.md"


def test_the_data_dictionary_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == reference.page(), "run `python -m posthouse.pipeline.reference`"


def test_keys_and_partitions_are_columns_and_names_are_not_repeated() -> None:
    for table in TABLES.values():
        assert len(set(table.names)) == len(table.names)
        assert set(table.key) <= set(table.stable)
        assert set(table.partitions) <= set(table.names)
        assert set(table.names) - set(table.stable) <= VOLATILE


def test_events_are_the_contracts_and_waits_have_their_columns() -> None:
    assert TABLES["events"].names[: len(NAMES)] == NAMES
    assert {f"wait_{name}" for name in WAITS} <= set(TABLES["messages"].names)
