"""Segments as files of the table of events: as they are where they can be, and without what is not wanted."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder
from tests.unit.pipeline import odd

from posthouse.errors import StoreUnavailable
from posthouse.journal import schema, segment
from posthouse.pipeline import bronze, intake
from posthouse.pipeline.ledger import APPEND, REBUILD, Ledger, Plan, State
from posthouse.pipeline.tables import Tables

DAY = 86_400_000_000
NOON = 20_000 * DAY + DAY // 2
NODE = "n1"


def row(offset: int, at: int, mailbox: str) -> tuple[Any, ...]:
    values: dict[str, Any] = {
        "node": NODE, "offset": offset, "at": at, "commit": offset, "event": "posted", "desk": "relay",
        "mailbox": mailbox, "lane": "", "lane_seq": 0, "message_id": f"m{offset}", "kind": "", "sender": "",
        "attempt": 0, "size_bytes": 1,
    }  # fmt: skip
    return tuple(values.get(name) for name in schema.NAMES)


def write(journal: Path, first: int, instants: list[int], prev: str = schema.GENESIS) -> str:
    folder = journal / schema.folder_name(NODE)
    folder.mkdir(parents=True, exist_ok=True)
    rows = [row(first + n, at, "ann" if n % 2 else "bob") for n, at in enumerate(instants)]
    return segment.write(folder, segment.Stamp(NODE, first, first + len(rows) - 1, prev, ""), rows).chain


class Lake:
    """A lake's table of events, without Spark."""

    def __init__(self, folder: Path) -> None:
        self.journal = bronze.Journal(str(folder / "j"))
        self.ledger = Ledger(str(folder / "lake"))
        self.tables = Tables(self.ledger, lambda: pytest.fail("Spark was started"))

    def take_in(
        self,
        batch: int,
        *,
        whole: bool = True,
        known: Mapping[str, list[tuple[int, int]]] | None = None,
        forgotten: tuple[str, ...] = (),
    ) -> list[intake.Piece]:
        found = tuple(bronze.examine(self.journal, file) for file in self.journal.listing().files)
        state = State(batch=batch, forgotten=forgotten)
        plan = Plan(batch, REBUILD if whole else APPEND, found, state, known=known or {})
        pieces = intake.take_in(self.journal, self.ledger, plan)
        self.tables.add_events(pieces, batch, whole=whole)
        return pieces

    def offsets(self) -> dict[str, list[int]]:
        """What the table holds, by day."""
        found: dict[str, list[int]] = {}
        for each in DeltaTable(self.ledger.table("events")).to_pyarrow_table().to_pylist():
            assert each["at"].date() == each["day"]
            found.setdefault(each["day"].isoformat(), []).append(each["offset"])
        return {day: sorted(offsets) for day, offsets in found.items()}


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    (tmp_path / "j").mkdir()
    return Lake(tmp_path)


def test_a_segment_of_one_day_goes_in_byte_for_byte(lake: Lake, tmp_path: Path) -> None:
    write(tmp_path / "j", 1, [NOON, NOON + 1_500, NOON + 2_001])
    (piece,) = lake.take_in(1)
    (source,) = (tmp_path / "j").rglob("*.parquet")
    copied = Path(lake.ledger.table("events"), piece.path)
    assert copied.read_bytes() == source.read_bytes()
    assert not copied.samefile(source)
    assert (piece.day, piece.rows, piece.offsets) == ("2024-10-04", 3, (1, 3))
    assert lake.offsets() == {"2024-10-04": [1, 2, 3]}
    assert lake.tables.transaction("events") == 1
    # No instant lies outside of the bounds, which are told in ms.
    (bounds,) = pa.table(DeltaTable(lake.ledger.table("events")).get_add_actions(flatten=True)).to_pylist()
    assert (bounds["num_records"], bounds["min.offset"], bounds["max.offset"]) == (3, 1, 3)
    at = dt.datetime.fromtimestamp(NOON / 1e6, dt.UTC)
    assert (bounds["min.at"], bounds["max.at"]) == (at, at + dt.timedelta(milliseconds=3))


def test_a_segment_over_midnight_becomes_a_file_a_day(lake: Lake, tmp_path: Path) -> None:
    midnight = 20_001 * DAY
    write(tmp_path / "j", 1, [midnight - 2, midnight - 1, midnight, midnight + DAY])
    assert [piece.rows for piece in lake.take_in(1)] == [2, 1, 1]
    assert lake.offsets() == {"2024-10-04": [1, 2], "2024-10-05": [3], "2024-10-06": [4]}


def test_what_is_known_or_forgotten_stays_out(lake: Lake, tmp_path: Path) -> None:
    write(tmp_path / "j", 1, [NOON + n for n in range(6)])
    lake.take_in(1, known={NODE: [(2, 3), (6, 9)]})
    assert lake.offsets() == {"2024-10-04": [1, 4, 5]}
    lake.take_in(2, forgotten=("ann",))
    assert lake.offsets() == {"2024-10-04": [1, 3, 5]}
    assert lake.take_in(3, forgotten=("ann", "bob")) == []
    assert lake.offsets() == {}
    assert lake.tables.transaction("events") == 3


def test_batches_add_and_a_rebuild_replaces(lake: Lake, tmp_path: Path) -> None:
    chain = write(tmp_path / "j", 1, [NOON, NOON + 1])
    lake.take_in(1)
    write(tmp_path / "j", 3, [NOON + 2], prev=chain)
    lake.take_in(2, whole=False, known={NODE: [(1, 2)]})
    assert lake.offsets() == {"2024-10-04": [1, 2, 3]}
    # One who was killed when he had told the table, or before, does it again: the same files, and told once.
    assert lake.take_in(3) == lake.take_in(3)
    assert lake.offsets() == {"2024-10-04": [1, 2, 3]}
    assert lake.tables.version("events") == 2


def test_a_segment_that_was_exchanged_is_refused(lake: Lake, tmp_path: Path) -> None:
    write(tmp_path / "j", 1, [NOON, NOON + 1])
    (file,) = lake.journal.listing().files
    plan = Plan(1, REBUILD, (bronze.examine(lake.journal, file),), State(batch=1))
    Path(file.path).write_bytes(Path(file.path).read_bytes() + b" ")
    with pytest.raises(StoreUnavailable, match=rf"node={NODE}/.* is another one"):
        intake.take_in(lake.journal, lake.ledger, plan)


def test_a_faulty_segment_is_written_in_the_shape_of_the_contract(lake: Lake, tmp_path: Path) -> None:
    write(tmp_path / "j", 1, [NOON, NOON + 1])
    (source,) = (tmp_path / "j").rglob("*.parquet")
    table = pq.read_table(source)
    odd = table.append_column("more", pc.add(table.column("offset"), 1)).take([1, 0])
    pq.write_table(odd.replace_schema_metadata(pq.read_schema(source).metadata), source)
    (piece,) = lake.take_in(1)
    written = pq.read_schema(Path(lake.ledger.table("events"), piece.path))
    assert written.names == list(schema.NAMES)
    assert (piece.offsets, piece.instants) == ((1, 2), (NOON, NOON + 1))


@pytest.mark.parametrize("how", odd.ALL, ids=lambda how: how.name)
def test_what_others_write_is_taken_whole_or_named(lake: Lake, tmp_path: Path, how: odd.Odd) -> None:
    path = odd.write(tmp_path / "j", 1, how)
    (found,) = (bronze.examine(lake.journal, file) for file in lake.journal.listing().files)
    if how.reason is not None:
        assert found.state == "rejected"
        assert found.reason.startswith(how.reason)
        return
    assert (found.state, found.ranges) == ("taken", ((1, odd.ROWS),))
    assert found.faults == (() if how.named is None else (how.named,))
    (piece,) = lake.take_in(1)
    copied = Path(lake.ledger.table("events"), piece.path).read_bytes() == path.read_bytes()
    # Whatever stands beside the rows does not come along.
    assert copied is (how in (*odd.LAYOUTS, *odd.WORDS))
    table = DeltaTable(lake.ledger.table("events"))
    rows = pa.table(QueryBuilder().register("t", table).execute("SELECT * FROM t ORDER BY 2")).to_pylist()
    assert rows == DeltaTable(lake.ledger.table("events")).to_pyarrow_table().sort_by("offset").to_pylist()
    wanted = list(odd.life(1))
    if how not in odd.WORDS:
        assert [[row[name] for name in odd.TEXTS] for row in rows] == [[row[n] for n in odd.TEXTS] for row in wanted]
    assert [row["offset"] for row in rows] == [row["offset"] for row in wanted]
    assert [row["at"].timestamp() * odd.SECOND for row in rows] == [row["at"] for row in wanted]


def test_a_segment_that_is_gone_is_named(lake: Lake, tmp_path: Path) -> None:
    write(tmp_path / "j", 1, [NOON])
    (file,) = lake.journal.listing().files
    plan = Plan(1, REBUILD, (bronze.examine(lake.journal, file),), State(batch=1))
    Path(file.path).unlink()
    with pytest.raises(StoreUnavailable, match=rf"node={NODE}/.* is gone"):
        intake.take_in(lake.journal, lake.ledger, plan)
