"""The journal's files against what was taken in; what is erased only once the journal was found."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from tests.unit.pipeline import lakes

from posthouse.errors import InvalidInput, StoreCorrupt
from posthouse.pipeline import bronze, check
from posthouse.pipeline.bronze import Journal, Segment
from posthouse.pipeline.generate import generate
from posthouse.pipeline.job import Job
from posthouse.pipeline.ledger import Ledger, Plan, State
from posthouse.pipeline.lineage import ALONE
from posthouse.pipeline.tables import Tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    generate(tmp_path / "j", events=800, seed=4, nodes=1, planted=0, segment_events=200)
    return Journal(str(tmp_path / "j"))


def never() -> SparkSession:
    raise AssertionError("Spark was started")


def examined(journal: Journal) -> list[Segment]:
    return [bronze.examine(journal, file) for file in journal.listing().files]


def paths(journal: Journal) -> list[Path]:
    return [Path(file.path) for file in journal.listing().files]


def verified(journal: Journal, taken: list[Segment]) -> list[check.Discrepancy]:
    return list(check.verify_files(journal, taken, ALONE, journal.listing(), examined(journal)))


def at_hand(journal: Journal, taken: list[Segment]) -> set[str]:
    return {name for _, name in check.as_taken(taken, journal.listing().files, examined(journal))}


def rewrite(path: Path, rows: pa.Table | None = None, *, metadata: bool = True) -> None:
    """A file with other rows, or without what it says of itself."""
    found = pq.read_table(path)
    rows = found if rows is None else rows
    pq.write_table(
        rows.replace_schema_metadata(found.schema.metadata if metadata else None), path, store_schema=metadata
    )


def test_files_that_are_as_they_were_are_none(journal: Journal) -> None:
    taken = examined(journal)
    assert verified(journal, taken) == []
    assert at_hand(journal, taken) == {segment.name for segment in taken}


def test_a_file_that_is_gone_or_another_is_named(journal: Journal) -> None:
    taken = examined(journal)
    first, second, *_ = paths(journal)
    first.unlink()
    second.write_bytes(second.read_bytes()[:-20])
    found = {(kind, place) for kind, place, _ in verified(journal, taken)}
    assert ("missing", f"node=node-1/{first.name}") in found
    assert ("altered", f"node=node-1/{second.name}") in found
    assert at_hand(journal, taken) == {segment.name for segment in taken[2:]}


def test_rows_that_no_longer_give_the_chain_are_another_file_even_of_the_same_size(journal: Journal) -> None:
    taken = examined(journal)
    path = paths(journal)[1]
    rows = pq.read_table(path)
    place = rows.schema.get_field_index("size_bytes")
    rewrite(path, rows.set_column(place, rows.field(place), pc.add(rows.column(place), 1)))
    size = path.stat().st_size
    taken[1] = taken[1]._replace(size_bytes=size)
    found = verified(journal, taken)
    assert [(kind, place) for kind, place, _ in found] == [
        ("chain_broken", "node node-1"),
        ("altered", f"node=node-1/{path.name}"),
    ]
    # If that was so when it was taken in, it is the same file.
    taken[1] = taken[1]._replace(faults=("its rows do not give the chain in its metadata",))
    assert [kind for kind, _, _ in verified(journal, taken)] == ["chain_broken"]
    assert path.name in at_hand(journal, taken)


def test_a_file_without_a_chain_is_known_by_its_size(journal: Journal) -> None:
    path = paths(journal)[-1]
    rewrite(path, metadata=False)
    taken = examined(journal)
    assert taken[-1].chain is None
    assert path.name in at_hand(journal, taken)
    rows = pq.read_table(path)
    place = rows.schema.get_field_index("detail")
    texts = pa.array([f"another {n}" for n in range(len(rows))])
    rewrite(path, rows.set_column(place, rows.field(place), texts), metadata=False)
    found = [each for each in verified(journal, taken) if each[0] == "altered"]
    assert [place for _, place, _ in found] == [f"node=node-1/{path.name}"]
    assert f"it had {taken[-1].size_bytes} bytes, and has {path.stat().st_size}" in found[0][2]
    assert path.name not in at_hand(journal, taken)


def test_of_a_segment_whose_mailboxes_are_no_texts_nobody_can_tell(journal: Journal) -> None:
    first, second, *_ = paths(journal)
    mailbox = next(name for name in pq.read_table(second).column("mailbox").to_pylist() if name)
    rows = pq.read_table(first)
    place = rows.schema.get_field_index("mailbox")
    pq.write_table(rows.set_column(place, "mailbox", pa.array(range(len(rows)), pa.int64())), first)
    held, unread = check.held_by_segments(journal, journal.listing().files, mailbox)
    assert unread == [f"node=node-1/{first.name}"]
    assert f"node=node-1/{second.name}" in {each["segment"] for each in held}


def test_nothing_is_forgotten_when_there_is_no_such_journal(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    with pytest.raises(InvalidInput, match="is no folder with a journal"):
        Job(str(lake), never).forget("bob", str(tmp_path / "typo"))
    assert Ledger(str(lake)).state().forgotten == ()
    assert Job(str(lake), never).forget("bob", None)["events_erased"] == 0
    assert Ledger(str(lake)).state().forgotten == ("bob",)


ACTS: dict[str, Callable[[Job, str], object]] = {
    "forget": lambda job, place: job.forget("bob", place),
    "rebuild": lambda job, place: job.run(place, rebuild=True),
    "missing": lambda job, place: job.missing(place),
}


@pytest.mark.parametrize("act", ACTS)
def test_a_folder_without_any_segment_is_not_taken_for_the_journal(journal: Journal, tmp_path: Path, act: str) -> None:
    """As where its disk is not mounted: nothing is erased, and no table is emptied."""
    lake, empty = tmp_path / "lake", tmp_path / "empty"
    empty.mkdir()
    taken = lakes.recorded(lake, journal)
    before = Ledger(str(lake)).state()
    said = re.escape(f"there is no segment in {empty}, and the lake has taken in {len(taken)}: is that the journal")
    with pytest.raises(InvalidInput, match=said):
        ACTS[act](Job(str(lake), never), str(empty))
    ledger = Ledger(str(lake))
    assert (ledger.state(), ledger.plan()) == (before, None)


def test_a_lake_that_does_not_tell_its_segments_is_not_emptied_either(journal: Journal, tmp_path: Path) -> None:
    lake, empty = tmp_path / "lake", tmp_path / "empty"
    empty.mkdir()
    lakes.write(lake, "events", [lakes.event(1, "posted", "a", 0)])
    job = Job(str(lake), never)
    with pytest.raises(InvalidInput, match="the lake has taken in some: is that the journal"):
        job.run(str(empty), rebuild=True)
    # A rebuild is what such a lake needs.
    assert job.missing(journal.place) == (0, 0)


def test_segments_that_are_gone_are_counted(journal: Journal, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    assert Job(str(lake), never).missing(journal.place) == (0, 0)
    assert not lake.exists()
    taken = lakes.recorded(lake, journal)
    assert Job(str(lake), never).missing(journal.place) == (0, len(taken))
    for path in paths(journal)[:2]:
        path.unlink()
    assert Job(str(lake), never).missing(journal.place) == (2, len(taken))


def test_a_forget_counts_the_segments_that_are_gone_beside_those_that_hold_rows(
    journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What it writes is not looked at here.
    for owner, name in ((Job, "_carry_out"), (Job, "_derive"), (Tables, "vacuum")):
        monkeypatch.setattr(owner, name, lambda *given: None)
    lake = tmp_path / "lake"
    taken = lakes.recorded(lake, journal)
    first, second, *_ = paths(journal)
    mailbox = next(name for name in pq.read_table(second).column("mailbox").to_pylist() if name)
    first.unlink()
    done = Job(str(lake), never).forget(mailbox, journal.place)
    assert (done["taken"], done["missing"], done["unread"]) == (len(taken), 1, [])
    assert f"node=node-1/{second.name}" in {each["segment"] for each in done["segments"]}


def test_who_is_forgotten_is_told(tmp_path: Path) -> None:
    ledger = Ledger(str(tmp_path / "lake"))
    ledger.commit(State(forgotten=("bob",)))
    ledger.begin(Plan(1, "append", (), State(batch=1, forgotten=("bob",))))
    told = Job(str(tmp_path / "lake"), never).verify(None).untold
    assert told == ["The mailbox bob is forgotten: the books leave out its rows, also those to come."]
    (some,) = check.forgotten(State(forgotten=("ann", "bob")))
    assert some.startswith("The mailboxes ann, bob are forgotten: ")
    (many,) = check.forgotten(State(forgotten=tuple(f"box-{n}" for n in range(11))))
    assert many.startswith("11 mailboxes are forgotten: ")
    assert "box-" not in many


def test_a_run_of_a_journal_that_is_not_there_makes_no_lake(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="is no folder with a journal"):
        Job(str(tmp_path / "lake"), never).run(str(tmp_path / "typo"))
    assert not (tmp_path / "lake").exists()


def test_a_first_batch_that_was_not_committed_is_unfinished(tmp_path: Path) -> None:
    ledger = Ledger(str(tmp_path / "lake"))
    ledger.begin(Plan(1, "append", (), State(batch=1)))
    found, untold = Job(str(tmp_path / "lake"), never).verify(None)
    assert [(kind, place) for kind, place, _ in found] == [("unfinished", "lake")]
    assert untold == []


def test_where_there_are_no_books_nothing_is_said_to_agree(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="there are no books at"):
        Job(str(tmp_path / "lake"), never).verify(None)
    assert not (tmp_path / "lake").exists()
    log = tmp_path / "lake" / "events" / "_delta_log"
    log.mkdir(parents=True)
    with pytest.raises(InvalidInput, match="there are no books at"):
        Job(str(tmp_path / "lake"), never).verify(None)
    (log / f"{0:020}.json").write_text("{}")
    with pytest.raises(StoreCorrupt, match="has tables and no record of them: rebuild it"):
        Job(str(tmp_path / "lake"), never).verify(None)
