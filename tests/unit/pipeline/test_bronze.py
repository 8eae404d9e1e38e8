"""Segments on their way into the lake: what is taken, what is named, and the record of it."""

from __future__ import annotations

import multiprocessing
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from hypothesis import given
from hypothesis import strategies as st

from posthouse.errors import InvalidInput, SchemaMismatch, StoreCorrupt, StoreHeld
from posthouse.journal import schema as contract
from posthouse.journal import segment as segments
from posthouse.mailbox import event as ev
from posthouse.pipeline import bronze, cutting, record
from posthouse.pipeline import offsets as ranges_of
from posthouse.pipeline.bronze import Journal, Segment
from posthouse.pipeline.finding import Finding, findings
from posthouse.pipeline.ledger import APPEND, Ledger, Plan, State
from posthouse.pipeline.lineage import Lineage

NODE = "relay-1"
SECOND = 1_000_000
YEAR = 365 * 86_400 * SECOND
BEGIN = 1_772_323_200 * SECOND
Change = Callable[[pa.Table], pa.Table]


def row(offset: int, **values: Any) -> tuple[Any, ...]:
    found: dict[str, Any] = dict.fromkeys(contract.NAMES)
    found |= {"node": NODE, "offset": offset, "at": BEGIN + SECOND * offset, "commit": offset, "event": "posted"}
    found |= {"desk": "relay", "mailbox": "ann", "lane": "", "lane_seq": offset, "message_id": f"m{offset}"}
    found |= {"kind": "", "sender": "bob", "attempt": 0, "size_bytes": 3}
    return tuple({**found, **values}[name] for name in contract.NAMES)


def write(
    folder: Path,
    first: int,
    last: int,
    *,
    prev: str = contract.GENESIS,
    change: Change | None = None,
    keys: dict[str, str | None] | None = None,
    rows: list[tuple[Any, ...]] | None = None,
) -> str:
    """A segment with these offsets, changed on purpose where asked; its chain."""
    rows = rows if rows is not None else [row(offset) for offset in range(first, last + 1)]
    chain = contract.chain(prev, rows)
    columns = list(zip(*rows, strict=True))
    table = pa.Table.from_arrays(
        [pa.array(v, f.type) for v, f in zip(columns, segments.arrow_schema(), strict=True)],
        schema=segments.arrow_schema(),
    )
    if change is not None:
        table = change(table)
    said: dict[str, str | None] = {
        contract.KEY_VERSION: "1",
        contract.KEY_NODE: NODE,
        contract.KEY_FIRST: str(first),
        contract.KEY_LAST: str(last),
        contract.KEY_PREV: prev,
        contract.KEY_CHAIN: chain,
    } | (keys or {})
    home = folder / f"node={NODE}"
    home.mkdir(parents=True, exist_ok=True)
    kept = {key: value for key, value in said.items() if value is not None}
    pq.write_table(table.replace_schema_metadata(kept), home / contract.file_name(first, last), compression="zstd")
    return chain


def look(folder: Path) -> list[Segment]:
    journal = Journal(str(folder))
    return [bronze.examine(journal, file) for file in journal.listing().files]


def test_the_events_are_those_of_the_contract() -> None:
    assert set(bronze.EVENTS) == set(ev.EVENTS)


def test_a_sound_segment_is_taken(tmp_path: Path) -> None:
    chain = write(tmp_path, 1, 9)
    write(tmp_path, 10, 12, prev=chain)
    first, second = look(tmp_path)
    assert (first.state, first.ranges, first.chain, first.faults) == ("taken", ((1, 9),), chain, ())
    assert (first.first_at, first.last_at) == (BEGIN + SECOND, BEGIN + 9 * SECOND)
    assert first.edges == ((first.first_at, first.last_at),)
    assert findings([first, second], []) == []


def test_what_posthouse_writes_is_taken(tmp_path: Path) -> None:
    home = tmp_path / f"node={NODE}"
    home.mkdir()
    write(tmp_path, 1, 3)
    (path,) = home.iterdir()
    rows = list(segments.read(path))
    path.unlink()
    stamp = segments.Stamp(NODE, 1, 3, contract.GENESIS, contract.chain(contract.GENESIS, rows))
    assert stamp.chain == look_at_rows(rows)


def look_at_rows(rows: list[Any]) -> str:
    import hashlib

    columns = list(zip(*rows, strict=True))
    batch = pa.record_batch(
        [pa.array(v, f.type) for v, f in zip(columns, segments.arrow_schema(), strict=True)],
        schema=segments.arrow_schema(),
    )
    digest = hashlib.sha256(f"{contract.GENESIS}\n".encode())
    digest.update(bronze.lines(batch))
    return digest.hexdigest()


texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=8)


maybe = st.none() | texts


@given(texts, st.lists(st.tuples(texts, maybe, st.none() | st.integers(0, 2**50), maybe), min_size=1, max_size=5))
def test_the_chain_over_columns_is_the_contracts(
    node: str, values: list[tuple[str, str | None, int | None, str | None]]
) -> None:
    rows = [row(n, node=node, message_id=a, error=b, due_at=c, detail=d) for n, (a, b, c, d) in enumerate(values, 1)]
    assert look_at_rows(rows) == contract.chain(contract.GENESIS, rows)


def _without(name: str) -> Change:
    return lambda table: table.drop_columns([name])


def _as(name: str, kind: pa.DataType) -> Change:
    def change(table: pa.Table) -> pa.Table:
        index = table.column_names.index(name)
        return table.set_column(index, name, table.column(name).cast(kind))

    return change


def _null(name: str) -> Change:
    def change(table: pa.Table) -> pa.Table:
        index = table.column_names.index(name)
        values = [None, *table.column(name).to_pylist()[1:]]
        return table.set_column(index, pa.field(name, table.column(name).type), [values])

    return change


def _node(table: pa.Table) -> pa.Table:
    return table.set_column(0, "node", pa.array(["other"] * table.num_rows))


def _set(name: str, at: int) -> Change:
    def change(table: pa.Table) -> pa.Table:
        kind = table.schema.field(name).type
        return table.set_column(table.column_names.index(name), name, pa.array([at] * table.num_rows, kind))

    return change


def _shifted(name: str, by: int) -> Change:
    def change(table: pa.Table) -> pa.Table:
        column = table.column(name)
        moved = pa.array([value + by for value in column.cast(pa.int64()).to_pylist()], column.type)
        return table.set_column(table.column_names.index(name), name, moved)

    return change


def _repeat(table: pa.Table) -> pa.Table:
    return pa.concat_tables([table, table.slice(0, 1)])


@pytest.mark.parametrize(
    ("change", "keys", "said"),
    [
        (_without("reason"), None, "it lacks the columns reason"),
        (_as("attempt", pa.int64()), None, "its column attempt is int64, and should be int32"),
        (_as("at", pa.int64()), None, "its column at is int64, and should be timestamp"),
        (_null("desk"), None, "its column desk has rows without a value"),
        (_node, None, "it holds rows of node 'other'"),
        (_repeat, None, "it holds offset 6 twice"),
        (_shifted("at", -2 * BEGIN), None, "its at at offset 6 is no instant between 1970 and 9999"),
        (_shifted("at", 9_000 * YEAR), None, "its at at offset 6 is no instant between 1970 and 9999"),
        (_set("expires_at", 9_000 * YEAR), None, "its expires_at at offset 6 is no instant between 1970 and 9999"),
        (lambda table: table.slice(0, 0), None, "it has no rows"),
        (None, {contract.KEY_VERSION: "2"}, "its schema version is '2', and this program knows 1: update Posthouse"),
    ],
)
def test_what_cannot_be_taken_in_is_rejected_by_name(
    tmp_path: Path, change: Change | None, keys: dict[str, str | None] | None, said: str
) -> None:
    chain = write(tmp_path, 1, 5)
    write(tmp_path, 6, 9, prev=chain, change=change, keys=keys)
    good, bad = look(tmp_path)
    assert good.state == "taken"
    assert (bad.state, bad.ranges, bad.faults[-1]) == ("rejected", (), said)
    (finding,) = findings([good, bad], [])
    assert (finding.kind, finding.offsets) == ("bad_segment", (6, 9))
    assert finding.detail == f"{bad.name}: {said}"


def test_the_reason_for_a_rejection_is_what_forbids_to_take_it_in(tmp_path: Path) -> None:
    def change(table: pa.Table) -> pa.Table:
        return _repeat(table.append_column("more", table.column("offset")))

    write(tmp_path, 1, 5, change=change)
    (found,) = look(tmp_path)
    assert found.reason == "it holds offset 1 twice"
    assert found.faults == ("it has columns that are not in the contract: more", found.reason)


@pytest.mark.parametrize("size", [0, 3, 100, -1, -200])
def test_a_truncated_file_is_rejected_by_name(tmp_path: Path, size: int) -> None:
    write(tmp_path, 1, 50)
    (path,) = (tmp_path / f"node={NODE}").iterdir()
    content = path.read_bytes()
    path.write_bytes(content[:size])
    (bad,) = look(tmp_path)
    assert bad.state == "rejected"
    assert bad.faults[0].startswith("it cannot be read")


def test_every_damaged_byte_of_a_small_file_is_noticed_or_harmless(tmp_path: Path) -> None:
    write(tmp_path, 1, 5)
    (path,) = (tmp_path / f"node={NODE}").iterdir()
    content = path.read_bytes()
    for place in range(0, len(content), 37):
        path.write_bytes(content[:place] + bytes([content[place] ^ 0x5A]) + content[place + 1 :])
        (found,) = look(tmp_path)  # whatever it is, it does not raise
        assert found.state in ("taken", "unverified", "rejected")


def test_what_is_strange_is_taken_and_named(tmp_path: Path) -> None:
    write(tmp_path, 1, 3, rows=[row(1), row(2, event="teleported"), row(3)])
    write(tmp_path, 4, 9, rows=[row(4), row(5), row(8), row(9)])
    write(tmp_path, 10, 11, keys={contract.KEY_CHAIN: None})
    odd, holed, bare = look(tmp_path)
    assert odd.faults == ("it holds the unknown event 'teleported', first at offset 2",)
    assert holed.ranges == ((4, 5), (8, 9))
    assert holed.faults == ("its rows hold the offsets 4 to 5, 8 to 9",)
    assert (bare.state, bare.ranges) == ("unverified", ((10, 11),))
    kinds = [(finding.kind, finding.offsets) for finding in findings([odd, holed, bare], [])]
    assert ("journal_gap", (6, 7)) in kinds


def test_rows_beyond_the_name_of_their_file_are_left_out(tmp_path: Path) -> None:
    """They would take the place of those of the file that has them."""
    write(tmp_path, 1, 3, rows=[row(11), row(12), row(13)])
    write(tmp_path, 4, 6, rows=[row(3), row(4), row(5), row(6)])
    write(tmp_path, 11, 13)
    ahead, behind, sound = look(tmp_path)
    assert (ahead.state, ahead.reason) == ("rejected", "its rows hold the offsets 11 to 13, which are beyond its name")
    assert (behind.state, behind.reason) == ("rejected", "its rows hold the offsets 3 to 6, which are beyond its name")
    assert (sound.state, sound.faults) == ("taken", ())


def test_an_event_of_a_message_that_names_none_is_told(tmp_path: Path) -> None:
    silent = [row(1, event="refused", message_id=""), row(2, event="connected", message_id="")]
    write(tmp_path, 1, 3, rows=[*silent, row(3, event="started", message_id="")])
    write(tmp_path, 4, 6, rows=[row(4), row(5, event="teleported", message_id=""), row(6, message_id="")])
    sound, odd = look(tmp_path)
    assert (sound.state, sound.faults) == ("taken", ())
    assert odd.state == "taken"
    assert odd.faults[1:] == ("it tells of messages and not of which, first at offset 6",)


def test_chains_that_do_not_hold_are_found(tmp_path: Path) -> None:
    write(tmp_path, 1, 5)
    write(tmp_path, 6, 9, prev="1" * 64)
    altered = [row(n, mailbox="eve") for n in range(10, 12)]
    write(tmp_path, 10, 11, rows=altered, keys={contract.KEY_CHAIN: "2" * 64, contract.KEY_PREV: contract.GENESIS})
    found = [f for f in findings(look(tmp_path), []) if f.kind == "chain_broken"]
    assert [f.offsets for f in found] == [(6, 9), (10, 11)]
    assert found[0].detail.endswith("its prev is not the chain of the segment before")
    assert found[1].detail.endswith("its rows do not give the chain in its metadata")


def clocks(found: list[Finding]) -> list[tuple[int, ...]]:
    return [finding.offsets for finding in found if finding.kind == "clock_back"]


def test_a_clock_that_goes_back_is_named_with_both_offsets(tmp_path: Path) -> None:
    """In a file, from file to file, over a gap, and not where a file that comes late lies between."""

    def at(offset: int, second: int) -> tuple[Any, ...]:
        return row(offset, at=BEGIN + second * SECOND)

    write(tmp_path, 1, 4, rows=[at(1, 10), at(2, 9), at(3, 9), at(4, 20)])
    write(tmp_path, 5, 6, rows=[at(5, 15), at(6, 30)])
    write(tmp_path, 9, 10, rows=[at(9, 25), at(10, 40)])
    found = findings(look(tmp_path), [])
    assert clocks(found) == [(1, 2), (4, 5), (6, 9)]
    first = next(finding for finding in found if finding.kind == "clock_back")
    assert (first.detail, first.at) == ("the clock went back by 0:00:01", BEGIN + 9 * SECOND)
    write(tmp_path, 7, 8, rows=[at(7, 31), at(8, 32)])
    assert clocks(findings(look(tmp_path), [])) == [(1, 2), (4, 5), (8, 9)]
    # The same offsets in two files are one place.
    write(tmp_path, 1, 3, rows=[at(1, 10), at(2, 9), at(3, 9)])
    assert clocks(findings(look(tmp_path), [])) == [(1, 2), (4, 5), (8, 9)]


def test_a_clock_that_keeps_going_back_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bronze, "BACKS_MAX", 2)
    write(tmp_path, 1, 9, rows=[row(offset, at=BEGIN - offset) for offset in range(1, 10)])
    found = findings(look(tmp_path), [])
    assert clocks(found) == [(1, 2), (2, 3), (4, 9)]
    assert found[-1].detail.endswith("the clock goes back 6 more times")


def test_what_follows_a_clock_that_kept_going_back_comes_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bronze, "BACKS_MAX", 1)
    write(tmp_path, 1, 9, rows=[row(offset, at=BEGIN + offset % 3) for offset in range(1, 10)])
    write(tmp_path, 10, 12)
    write(tmp_path, 13, 14, rows=[row(offset, at=BEGIN) for offset in (13, 14)])
    first, second, third = look(tmp_path)
    assert (first.lowest, first.highest) == (BEGIN, BEGIN + 2)
    assert Segment.from_plain(orjson.loads(orjson.dumps(first.plain()))) == first
    assert not cutting.is_late((second,), (first,), Lineage())
    assert cutting.is_late((third,), (first, second), Lineage())


def test_a_clock_far_off_is_taken_in_and_named(tmp_path: Path) -> None:
    write(tmp_path, 1, 3, rows=[row(1), row(2, at=7 * SECOND), row(3, at=BEGIN + 200 * YEAR)])
    (found,) = look(tmp_path)
    assert (found.state, found.ranges) == ("taken", ((1, 3),))
    assert found.faults == ("its clock is far off: offset 2 says 1970-01-01T00:00:07Z",)
    kinds = [(finding.kind, finding.offsets) for finding in findings([found], [])]
    assert kinds == [("bad_segment", (1, 3)), ("clock_back", (1, 2))]


def test_a_file_of_crumbs_is_rejected_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bronze, "RANGES_MAX", 2)
    write(tmp_path, 1, 5, rows=[row(1), row(3), row(5)])
    (found,) = look(tmp_path)
    assert (found.state, found.faults) == ("rejected", ("its offsets lie in 3 separate ranges, and may in 2",))


def test_a_foreign_parquet_file_under_a_segments_name_is_rejected_by_name(tmp_path: Path) -> None:
    home = tmp_path / f"node={NODE}"
    home.mkdir()
    pq.write_table(pa.table({"city": ["Bern"], "offset": [1]}), home / contract.file_name(1, 1))
    (found,) = look(tmp_path)
    assert found.state == "rejected"
    assert found.faults[0].startswith("it lacks the columns node, at, commit, event, ")


def test_gaps_and_overlaps_are_named_and_the_order_of_arrival_does_not_matter(tmp_path: Path) -> None:
    write(tmp_path, 4, 9)
    write(tmp_path, 8, 12)
    write(tmp_path, 20, 21)
    looked = look(tmp_path)
    found = findings(looked, ["notes.txt"])
    assert findings(reversed(looked), ["notes.txt"]) == found
    kinds = [(f.kind, f.offsets) for f in found]
    assert ("journal_gap", (1, 3)) in kinds
    assert ("journal_gap", (13, 19)) in kinds
    assert ("bad_segment", (8, 12)) in kinds
    assert found[0].detail == "notes.txt: it is no segment"


def test_half_written_files_are_not_there_and_foreign_ones_are_named(tmp_path: Path) -> None:
    write(tmp_path, 1, 5)
    home = tmp_path / f"node={NODE}"
    for name in (".00000000000000000006-00000000000000000009.parquet.tmp", "_SUCCESS"):
        (home / name).write_bytes(b"PAR1")
    (home / "other.parquet").write_bytes(b"PAR1")
    (tmp_path / "readme.txt").write_text("x")
    (tmp_path / "_late").mkdir()
    (home / "more").mkdir()
    listing = Journal(str(tmp_path)).listing()
    assert [file.name for file in listing.files] == [contract.file_name(1, 5)]
    assert listing.foreign == [f"node={NODE}/more", f"node={NODE}/other.parquet", "readme.txt"]


def test_an_entry_of_others_that_cannot_be_read_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, 1, 5)
    (tmp_path / "lost+found").mkdir()
    for folder in (tmp_path, tmp_path / f"node={NODE}"):
        os.close(os.open(os.fsencode(folder) + b"/caf\xe9.parquet", os.O_CREAT))
    journal = Journal(str(tmp_path))
    system = journal.system

    class Guarded:
        """Lets nobody look into a folder that is somebody else's."""

        def get_file_info(self, asked: Any) -> Any:
            if getattr(asked, "base_dir", "").endswith("lost+found") or getattr(asked, "recursive", False):
                raise PermissionError(13, "Permission denied")
            return system.get_file_info(asked)

    monkeypatch.setattr(journal, "system", Guarded())
    listing = journal.listing()
    assert [file.name for file in listing.files] == [contract.file_name(1, 5)]
    assert listing.foreign == ["caf\\xe9.parquet", "lost+found", f"node={NODE}/caf\\xe9.parquet"]


def test_a_segment_that_grew_since_it_was_listed_is_what_it_is_now(tmp_path: Path) -> None:
    write(tmp_path, 1, 5)
    journal = Journal(str(tmp_path))
    (file,) = journal.listing().files
    found = bronze.examine(journal, file._replace(size_bytes=file.size_bytes - 1))
    assert (found.state, found.size_bytes) == ("taken", file.size_bytes)


def test_spark_is_told_a_path_that_holds_wherever_it_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = contract.file_name(1, 5)
    (tmp_path / "j").mkdir()
    monkeypatch.chdir(tmp_path)
    for typed in ("j", "./j/", f"{tmp_path}/j", f"/{tmp_path}//j/", "../" + tmp_path.name + "/j"):
        assert Journal(typed).url(NODE, name) == f"{tmp_path}/j/node={NODE}/{name}"
    assert Journal(f"file://{tmp_path}/j/").url(NODE, name) == f"file://{tmp_path}/j/node={NODE}/{name}"


@pytest.mark.parametrize("name", ["a%20b", "a#b", "a?b", "a b", "a[b"])
def test_a_url_that_means_more_than_one_folder_is_refused(tmp_path: Path, name: str) -> None:
    """pyarrow takes the first three for `a b`, `a` and `a`, and Spark for what stands there."""
    for folder in (name, "a b", "a"):
        (tmp_path / folder).mkdir(exist_ok=True)
    for opens in (Journal, Ledger):
        with pytest.raises(InvalidInput, match=rf"^file://{re.escape(str(tmp_path / name))} "):
            opens(f"file://{tmp_path / name}")
    assert Journal(str(tmp_path / name)).listing() == ([], [])


@pytest.mark.parametrize("part", ["[", "]", "^", "|", "\\", "%20", "\n"])
def test_a_lake_where_no_table_can_be_opened_is_refused(tmp_path: Path, part: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(f"where {part!r} is in the path")):
        Ledger(str(tmp_path / f"a{part}b" / "lake"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("part", ["{x}", "*", "?", "#", "100%", " ", ":", "ü"])
def test_a_lake_may_be_in_a_folder_of_any_other_name(tmp_path: Path, part: str) -> None:
    place = Ledger(str(tmp_path / f"a{part}b" / "lake")).table("x")
    for _ in range(2):
        write_deltalake(place, pa.table({"n": [1]}), mode="append")
    table = DeltaTable(place)
    assert pa.table(QueryBuilder().register("t", table).execute("SELECT * FROM t")).num_rows == 2
    assert [path.name for path in tmp_path.iterdir()] == [f"a{part}b"]


def test_a_journal_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no folder with a journal"):
        Journal(str(tmp_path / "nowhere")).listing()


ranges = st.lists(st.tuples(st.integers(1, 40), st.integers(0, 6)).map(lambda p: (p[0], p[0] + p[1])), max_size=6)


@given(ranges, ranges)
def test_ranges_are_sets_of_offsets(one: list[tuple[int, int]], other: list[tuple[int, int]]) -> None:
    def offsets(found: list[tuple[int, int]]) -> set[int]:
        return {n for first, last in found for n in range(first, last + 1)}

    assert offsets(ranges_of.merged(one)) == offsets(one)
    assert ranges_of.count(ranges_of.merged(one)) == len(offsets(one))
    assert offsets(ranges_of.common(ranges_of.merged(one), ranges_of.merged(other))) == offsets(one) & offsets(other)
    assert offsets(ranges_of.gaps(one)) == set(range(1, max(offsets(one), default=0) + 1)) - offsets(one)


# ── The record ───────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(params=["on a disk", "in an object store"])
def book(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Ledger]:
    """Opens the record of one lake, each time anew."""

    def opened() -> Ledger:
        found = Ledger(str(tmp_path / "lake"))
        if request.param == "in an object store":
            # What is special about one is how its record is written, and that can be had on a disk.
            found._record = record.TableRecord(found.place)
        return found

    return opened


def test_state_and_plan_come_back_as_they_were(tmp_path: Path, book: Callable[[], Ledger]) -> None:
    write(tmp_path / "j", 1, 5)
    ours = book()
    assert ours.state() == State()
    assert ours.plan() is None
    (segment,) = look(tmp_path / "j")
    after = State(batch=1, segments=(segment,), foreign=("x",), forgotten=("ann",))
    plan = Plan(1, APPEND, (segment,), after, {"events": 3})
    ours.begin(plan)
    assert (book().plan(), book().state()) == (plan, State())
    ours.commit(after)
    assert (book().plan(), book().state()) == (None, after)
    assert after.known() == {NODE: [(1, 5)]}


def test_in_an_object_store_the_second_to_write_is_refused(tmp_path: Path) -> None:
    def opened() -> record.TableRecord:
        return record.TableRecord(str(tmp_path))

    first, second = opened(), opened()
    assert first.read("plan") is second.read("plan") is None
    first.write({"plan": {"batch": 1}})
    with pytest.raises(StoreHeld, match="another process is at work on the lake"):
        second.write({"plan": {"batch": 7}})
    assert opened().read("plan") == {"batch": 1}
    # He who finds a batch that was begun may do it again; what the first writes behind that is refused.
    assert second.read("plan") == {"batch": 1}
    second.write({"state": {"batch": 1}, "plan": None})
    second.write({"plan": {"batch": 2}})
    with pytest.raises(StoreHeld):
        first.write({"state": {"batch": 1}, "plan": None})
    second.tidy()
    assert (opened().read("state"), opened().read("plan")) == ({"batch": 1}, {"batch": 2})


def test_a_record_of_a_newer_program_or_a_damaged_one_is_refused(tmp_path: Path) -> None:
    ours = Ledger(str(tmp_path))
    (tmp_path / record.FOLDER).mkdir()
    (tmp_path / record.FOLDER / "state.json").write_text('{"schema_version": 99}')
    for rebuilding in (False, True):
        with pytest.raises(SchemaMismatch, match=r"schema version 99, and this program .*: use the newer Posthouse"):
            ours.state(rebuilding=rebuilding)
    (tmp_path / record.FOLDER / "state.json").write_text("{")
    with pytest.raises(StoreCorrupt, match="damaged"):
        ours.state()


def test_of_a_record_of_an_older_program_a_rebuild_takes_what_it_needs(tmp_path: Path) -> None:
    ours = Ledger(str(tmp_path))
    (tmp_path / record.FOLDER).mkdir()
    old = {"schema_version": 1, "batch": 7, "forgotten": ["ann"], "segments": "of another shape"}
    (tmp_path / record.FOLDER / "state.json").write_bytes(orjson.dumps(old))
    plan = {"batch": 8, "new": "of another shape", "after": {"schema_version": 1}}
    (tmp_path / record.FOLDER / "plan.json").write_bytes(orjson.dumps(plan))
    for read in (ours.state, ours.plan):
        with pytest.raises(SchemaMismatch, match=r"schema version 1, and this program .*: rebuild it"):
            read()
    assert ours.state(rebuilding=True) == State(batch=7, forgotten=("ann",))
    assert ours.begun() == 8
    ours.commit(State(batch=9))
    assert (ours.state(), ours.begun()) == (State(batch=9), 0)


def _hold(lake: str, ready: Any, end: Any) -> None:
    with Ledger(lake).alone("run"):
        ready.set()
        end.wait(30)


def test_the_second_at_the_same_time_is_refused_and_told_who_the_first_is(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    ready, end = context.Event(), context.Event()
    first = context.Process(target=_hold, args=(str(tmp_path), ready, end))
    first.start()
    try:
        assert ready.wait(30)
        with pytest.raises(StoreHeld, match=rf"books run \(process {first.pid} on "):
            with Ledger(str(tmp_path)).alone("run"):
                pass
    finally:
        end.set()
        first.join()
    with Ledger(str(tmp_path)).alone("run"):
        pass
