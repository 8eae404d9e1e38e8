"""The table of events against the segments: whatever is altered, missing or there twice is named."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from tests.unit.pipeline import lakes

from posthouse.journal import schema as contract
from posthouse.pipeline import bronze, check, intake, proof
from posthouse.pipeline.bronze import Journal, Segment
from posthouse.pipeline.generate import generate
from posthouse.pipeline.ledger import APPEND, Ledger, Plan, State
from posthouse.pipeline.proof import Proof
from posthouse.pipeline.tables import Tables

NODE = "node-1"


class Lake(NamedTuple):
    """A table of events, made without Spark."""

    folder: Path
    journal: Journal
    taken: list[Segment]
    state: State

    @property
    def events(self) -> DeltaTable:
        return DeltaTable(str(self.folder / "events"))

    def verify(self, *, alone: bool = False) -> tuple[list[check.Discrepancy], list[str]]:
        """With the segments at hand, or with the table alone."""
        listing = self.journal.listing()
        looked = [bronze.examine(self.journal, file) for file in listing.files]
        files = {} if alone else check.as_taken(self.taken, listing.files, looked)
        proven = Proof(Ledger(str(self.folder)), self.state, None if alone else self.journal, files)
        return list(proven.verify(self.taken)), proven.untold

    def rows(self, node: str = NODE) -> pa.Table:
        return self.events.to_pyarrow_table(filters=[("node", "=", node)]).sort_by("offset")


def make(folder: Path, source: Path, forgotten: tuple[str, ...] = ()) -> Lake:
    """The first half of the segments as one batch, the rest as another."""
    journal, ledger = Journal(str(source)), Ledger(str(folder))
    tables = Tables(ledger, lambda: pytest.fail("Spark was started"))
    taken = [bronze.examine(journal, file) for file in journal.listing().files]
    assert all(segment.ranges for segment in taken)
    known: dict[str, list[tuple[int, int]]] = {}
    half = len(taken) // 2
    for batch, new in enumerate((taken[:half], taken[half:]), 1):
        after = State(batch=batch, segments=(*taken[: half * batch],), forgotten=forgotten)
        pieces = intake.take_in(journal, ledger, Plan(batch, APPEND, tuple(new), after, known=known))
        tables.add_events(pieces, batch, whole=batch == 1)
        rows = [
            {**segment._asdict(), "events": segment.events, "ranges": [], "first_at": None, "last_at": None,
             "faults": list(segment.faults), "batch": batch}
            for segment in new
        ]  # fmt: skip
        lakes.write(folder, "segments", rows)
        for segment in new:
            known.setdefault(segment.node, []).extend(segment.ranges)
    return Lake(folder, journal, taken, State(batch=2, gold=2, segments=tuple(taken), forgotten=forgotten))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("made") / "j"
    generate(out, events=4_000, seed=7, nodes=2, planted=0, segment_events=400)
    return out


@pytest.fixture
def journal(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "j"))


@pytest.fixture
def lake(journal: Path, tmp_path: Path) -> Lake:
    return make(tmp_path / "lake", journal)


def places(found: list[check.Discrepancy]) -> list[tuple[str, str]]:
    return [(kind, place) for kind, place, _ in found]


def place(lake: Lake, offset: int, node: str = NODE) -> str:
    """As the segment is named that holds an offset."""
    name = next(each.name for each in lake.taken if each.node == node and each.first <= offset <= each.last)
    return f"events of node={node}/{name}"


def test_a_table_that_holds_the_segments_is_as_it_should_be(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    assert lake.verify() == ([], [])
    assert lake.verify(alone=True) == ([], [])
    # Whether its files are the segments' own or not, and however many are looked at together.
    lake.events.optimize.compact()
    for size in (1, 1_000, 1_000_000):
        monkeypatch.setattr(proof, "SPAN_EVENTS", size)
        assert lake.verify() == ([], [])
        assert lake.verify(alone=True) == ([], [])


def test_files_that_are_segments_are_not_read_row_by_row(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []
    span = Proof._span

    def told(self: Proof, shares: list[proof.Share]) -> object:
        asked.append([share.segment.name for share in shares])
        return span(self, shares)

    monkeypatch.setattr(Proof, "_span", told)
    copies = {path.stat().st_size for path in (lake.folder / "events").glob("*/*.parquet")}
    rest = sorted(each.name for each in lake.taken if each.size_bytes not in copies)
    assert len(rest) < len(lake.taken)
    assert lake.verify() == ([], [])
    assert sorted(name for names in asked for name in names) == rest


@pytest.mark.parametrize("offset", [17, 1_203])
def test_an_altered_value_is_found_and_where_it_is(lake: Lake, offset: int) -> None:
    lake.events.update({"size_bytes": "size_bytes + 1"}, predicate=f"node = '{NODE}' AND \"offset\" = {offset}")
    found, untold = lake.verify()
    assert places(found) == [("altered", place(lake, offset))]
    assert f"the first that differs from the segment is offset {offset}" in found[0][2]
    found, untold = lake.verify(alone=True)
    assert places(found) == [("altered", place(lake, offset))]
    assert untold == []


def test_what_is_missing_twice_or_of_nobody_is_found(lake: Lake) -> None:
    again = lake.rows().slice(1_500, 1)
    lake.events.delete(f"node = '{NODE}' AND \"offset\" IN (40, 41)")
    write_deltalake(lake.events, again, mode="append")
    column = again.schema.get_field_index("node")
    write_deltalake(lake.events, again.set_column(column, "node", pa.array(["nobody"])), mode="append")
    found, _ = lake.verify(alone=True)
    assert sorted(places(found)) == sorted(
        [("missing", place(lake, 40)), ("twice", place(lake, 1_501)), ("foreign", "events of nobody")]
    )
    (detail,) = (detail for kind, _, detail in found if kind == "missing")
    assert detail == "2 of its events are not there, the first at offset 40"
    # Where the segment's own file is there, what is there besides is of nobody.
    found, _ = lake.verify()
    assert sorted(places(found)) == sorted(
        [("missing", place(lake, 40)), ("foreign", f"events of {NODE}"), ("foreign", "events of nobody")]
    )


def test_a_segment_that_is_there_twice_is_found(lake: Lake) -> None:
    ledger = Ledger(str(lake.folder))
    tables = Tables(ledger, lambda: pytest.fail("Spark was started"))
    segment = lake.taken[0]
    tables.add_events(intake.take_in(lake.journal, ledger, Plan(3, APPEND, (segment,), lake.state)), 3, whole=False)
    found, _ = lake.verify()
    assert places(found) == [("foreign", f"events of {segment.node}")]
    assert found[0][2].startswith(f"{segment.events} of its rows")
    found, _ = lake.verify(alone=True)
    assert ("twice", place(lake, segment.first, segment.node)) in places(found)


def test_a_file_of_the_table_that_cannot_be_read_is_named(lake: Lake) -> None:
    first = max((lake.folder / "events").glob("*/00000001-*.parquet"), key=lambda path: path.stat().st_size)
    first.write_bytes(first.read_bytes()[:-100])
    found, _ = lake.verify()
    assert found
    assert {kind for kind, _, _ in found} == {"unreadable"}


def test_a_table_of_segments_that_lacks_one_is_found(lake: Lake) -> None:
    lost = lake.taken.pop()
    found, _ = lake.verify()
    assert ("mismatch", "segments") in places(found)
    assert ("foreign", f"events of {lost.node}") in places(found)


def test_after_a_forget_it_is_told_what_the_segments_can_tell(journal: Path, tmp_path: Path) -> None:
    rows = [row for path in sorted(journal.glob("*/*.parquet")) for row in pq.read_table(path).to_pylist()]
    counts: dict[str, int] = {}
    for row in rows:
        counts[row["mailbox"]] = counts.get(row["mailbox"], 0) + 1
    counts.pop("", None)
    rare = min(counts, key=lambda name: counts[name])
    lake = make(tmp_path / "lake", journal, (rare,))
    assert lake.verify() == ([], [])
    holding = {
        f"node={each.node}/{each.name}"
        for each in lake.taken
        if any(r["mailbox"] == rare and r["node"] == each.node and each.first <= r["offset"] <= each.last for r in rows)
    }
    found, untold = lake.verify(alone=True)
    assert found == []
    (said,) = untold
    assert any(name in said for name in holding)
    assert "forgotten" in said
    # What was altered elsewhere is found all the same, and with the segments also what is missing.
    whole = next(each for each in lake.taken if f"node={each.node}/{each.name}" not in holding)
    other = next(
        r for r in rows
        if r["mailbox"] != rare and f"events of node={whole.node}/{whole.name}" != place(lake, r["offset"], r["node"])
    )  # fmt: skip
    events = lake.events
    events.update({"error": "'another'"}, predicate=f"node = '{whole.node}' AND \"offset\" = {whole.first}")
    events.delete(f"node = '{other['node']}' AND \"offset\" = {other['offset']}")
    altered = ("altered", place(lake, whole.first, whole.node))
    assert places(lake.verify(alone=True)[0]) == [altered]
    assert sorted(places(lake.verify()[0])) == sorted(
        [altered, ("missing", place(lake, other["offset"], other["node"]))]
    )


def test_a_segment_without_a_chain_is_compared_with_its_file(journal: Path, tmp_path: Path) -> None:
    path = max((journal / f"node={NODE}").glob("*.parquet"))
    pq.write_table(pq.read_table(path).replace_schema_metadata(None), path, store_schema=False)
    lake = make(tmp_path / "lake", journal)
    (segment,) = (each for each in lake.taken if each.chain is None)
    assert lake.verify() == ([], [])
    found, untold = lake.verify(alone=True)
    assert found == []
    assert f"node={NODE}/{segment.name}" in untold[0]
    lake.events.update({"attempt": "attempt + 1"}, predicate=f"node = '{NODE}' AND \"offset\" = {segment.last}")
    found, _ = lake.verify()
    assert found == [
        (
            "altered",
            place(lake, segment.last),
            f"its event at offset {segment.last} is not that of the segment",
        )
    ]


def test_what_is_held_twice_belongs_to_the_segment_that_came_first() -> None:
    def segment(name: str, *ranges: tuple[int, int]) -> Segment:
        return Segment("n", name, ranges[0][0], ranges[-1][1], 1, bronze.TAKEN, ranges, chain="c", prev="p")

    first, second, third, fourth = (
        segment("b", (11, 20)),
        segment("a", (1, 30)),
        segment("c", (5, 25)),
        segment("d", (31, 40)),
    )
    shares = proof.shares_of([first, second, third, fourth])
    assert [(share.segment.name, [*share.ranges], share.has_chain) for share in shares] == [
        ("b", [(11, 20)], True),
        ("a", [(1, 10), (21, 30)], False),
        ("d", [(31, 40)], True),
    ]


def test_segments_that_overlap_are_as_they_were_taken_in(journal: Path, tmp_path: Path) -> None:
    """One that holds offsets again, with other rows, comes with a later batch: its rows are not taken."""
    folder = journal / contract.folder_name(NODE)
    one, two, *_ = sorted(folder.glob("*.parquet"))
    begin, end = contract.offsets_of(one.name), contract.offsets_of(two.name)
    assert begin is not None
    assert end is not None
    rows = pa.concat_tables([pq.read_table(one), pq.read_table(two)]).replace_schema_metadata(None)
    lake = make(tmp_path / "lake", journal)
    column = rows.schema.get_field_index("error")
    other = rows.set_column(column, rows.field(column), pa.array(["another"] * len(rows)))
    name = contract.file_name(begin[0], end[1])
    pq.write_table(other, folder / name, store_schema=False)
    (file,) = (each for each in lake.journal.listing().files if each.name == name)
    late = bronze.examine(lake.journal, file)
    lakes.write(lake.folder, "segments", [{"node": NODE, "name": name, "batch": 3, "state": late.state}])
    assert lake._replace(taken=[late, *lake.taken]).verify() == ([], [])
