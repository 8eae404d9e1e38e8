"""Segments: the file is the contract's, the same every time, durable, and no damage to it goes unseen."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.unit.journal.sources import HOSTILE, NOON, files

from posthouse.errors import StoreCorrupt, StoreError, StoreFull
from posthouse.journal import schema, segment
from posthouse.journal.finding import Kind
from posthouse.journal.segment import Stamp
from posthouse.mailbox.event import Event

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def rows_of(count: int, first: int = 1, node: str = "n1") -> list[schema.RowValues]:
    """Rows in commits of three, with hostile text wherever text may be."""
    rows = []
    for offset in range(first, first + count):
        text = HOSTILE[offset % len(HOSTILE)]
        event = Event(NOON + offset, "died", text, text, text, offset, f"id-{offset}", text, text, offset % 7)
        if offset % 2:
            event = event._replace(holder=text, reason=text, error=text, cause_id=text, detail=text)
            event = event._replace(due_at=NOON - offset, expires_at=-offset)
        rows.append(schema.row_values(node, offset, offset - (offset - first) % 3, event))
    return rows


def written(home: Path, count: int = 40, first: int = 1, prev: str = schema.GENESIS, node: str = "n1") -> Path:
    folder = home / schema.folder_name(node)
    folder.mkdir(parents=True, exist_ok=True)
    stamp = Stamp(node, first, first + count - 1, prev, "")
    return segment.write(folder, stamp, rows_of(count, first, node)).path


def micros(value: datetime | None) -> int | None:
    return None if value is None else (value - EPOCH) // timedelta(microseconds=1)


def test_the_file_has_the_columns_of_the_contract_and_no_others(tmp_path: Path) -> None:
    file = pq.ParquetFile(written(tmp_path))
    types = {"string": "string", "int32": "int32", "int64": "int64", "timestamp": "timestamp[us, tz=UTC]"}
    expected = [(c.name, types[c.type], c.nullable) for c in schema.COLUMNS]
    assert [(f.name, str(f.type), f.nullable) for f in file.schema_arrow] == expected
    at = file.schema.column(schema.NAMES.index("at"))
    assert at.physical_type == "INT64"
    assert at.converted_type == "TIMESTAMP_MICROS"
    assert json.loads(at.logical_type.to_json())["isAdjustedToUTC"] is True
    group = file.metadata.row_group(0)
    assert {group.column(i).compression for i in range(file.metadata.num_columns)} == {"ZSTD"}


def test_the_metadata_is_that_of_the_contract_and_the_chain_can_be_computed_again(tmp_path: Path) -> None:
    path = written(tmp_path, 40, 7, "ab" * 32)
    assert path == tmp_path / "node=n1" / "00000000000000000007-00000000000000000046.parquet"
    # Read and computed by other code than that under test.
    table = pq.ParquetFile(path).read()
    digest = hashlib.sha256(("ab" * 32 + "\n").encode())
    for row in table.to_pylist():
        values = [micros(v) if isinstance(v, datetime) else v for v in (row[name] for name in schema.NAMES)]
        digest.update((json.dumps(values, ensure_ascii=False, separators=(",", ":")) + "\n").encode())
    found = pq.read_metadata(path).metadata
    seal = found.pop(b"posthouse.seal")
    assert found == {
        b"posthouse.schema_version": b"1",
        b"posthouse.node": b"n1",
        b"posthouse.first": b"7",
        b"posthouse.last": b"46",
        b"posthouse.prev": b"ab" * 32,
        b"posthouse.chain": digest.hexdigest().encode(),
    }
    blank = path.read_bytes().replace(seal, b"sha256=" + b"0" * 64)
    assert seal == b"sha256=" + hashlib.sha256(blank).hexdigest().encode()


def test_rows_come_back_as_they_were_whatever_text_they_hold(tmp_path: Path) -> None:
    path = written(tmp_path)
    assert [tuple(row) for row in segment.read(path)] == rows_of(40)
    assert segment.check(path).findings == []
    assert segment.check(path).events == 40


def test_the_same_rows_give_the_same_bytes_however_they_arrive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment, "BATCH_ROWS", 50)
    monkeypatch.setattr(segment, "GROUP_ROWS", 200)
    one, other = tmp_path / "1" / "node=n1", tmp_path / "2" / "node=n1"
    for folder, rows in ((one, rows_of(1_003)), (other, iter(rows_of(1_003)))):
        folder.mkdir(parents=True)
        segment.write(folder, Stamp("n1", 1, 1_003, schema.GENESIS, ""), rows)
    assert files(tmp_path / "1") == files(tmp_path / "2")
    (path,) = one.iterdir()
    assert pq.read_metadata(path).num_row_groups == 6
    assert [tuple(row) for row in segment.read(path)] == rows_of(1_003)


def test_what_cannot_be_a_row_is_refused_and_leaves_no_file(tmp_path: Path) -> None:
    stamp = Stamp("n1", 1, 3, schema.GENESIS, "")
    good = rows_of(3)

    def refused(rows: list[schema.RowValues], match: str) -> None:
        with pytest.raises(StoreCorrupt, match=match):
            segment.write(tmp_path, stamp, rows)
        assert list(tmp_path.iterdir()) == []

    for name, value in (
        ("lane_seq", 1.0),
        ("attempt", 2**31),
        ("attempt", True),
        ("sender", None),
        ("detail", b""),
    ):
        index = schema.NAMES.index(name)
        wrong = (*good[1][:index], value, *good[1][index + 1 :])
        refused([good[0], wrong, good[2]], f"{name} at offset 2")
    refused(good[:2], "end at offset 2 instead of 3")
    refused([*good, *rows_of(1, 4)], "end at offset 4 instead of 3")
    refused([good[1], good[0], good[2]], "not in order")
    refused([], "end at offset 0 instead of 3")


def test_the_file_is_synced_before_it_has_its_name_and_its_folder_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    fsync, rename = os.fsync, os.rename

    def note_sync(handle: int) -> None:
        steps.append("sync " + os.path.basename(os.readlink(f"/proc/self/fd/{handle}")))
        fsync(handle)

    def note_rename(old: Path, new: Path) -> None:
        steps.append(f"rename {old.name} {new.name}")
        rename(old, new)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(os, "rename", note_rename)
    name = written(tmp_path).name
    assert steps == [f"sync .{name}.tmp", f"rename .{name}.tmp {name}", "sync node=n1"]


@pytest.mark.parametrize(
    ("number", "kind"), [(errno.ENOSPC, StoreFull), (errno.EDQUOT, StoreFull), (errno.EIO, StoreError)]
)
def test_a_disk_that_fails_is_told_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[StoreError]
) -> None:
    def fail(handle: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(kind, match=r"cannot write .*parquet"):
        written(tmp_path)
    assert files(tmp_path) == {}


def test_an_identical_file_in_its_place_is_accepted(tmp_path: Path) -> None:
    path = written(tmp_path)
    before = path.stat()
    again = segment.write(path.parent, Stamp("n1", 1, 40, schema.GENESIS, ""), rows_of(40))
    assert not again.new
    assert path.stat().st_ino == before.st_ino
    assert list(files(tmp_path)) == [f"node=n1/{path.name}"]


def test_the_same_segment_from_another_release_of_pyarrow_is_accepted(tmp_path: Path) -> None:
    path = written(tmp_path)
    rewrite(path)
    assert segment.check(path).findings == []
    assert not segment.write(path.parent, Stamp("n1", 1, 40, schema.GENESIS, ""), rows_of(40)).new


@pytest.mark.parametrize("content", [b"", b"PAR1", b"something else", None])
def test_another_file_in_its_place_is_an_error_and_stays(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "node=n1" / schema.file_name(1, 40)
    if content is None:
        # A sound segment, of other events.
        written(tmp_path, prev="cd" * 32)
        content = path.read_bytes()
    else:
        path.parent.mkdir()
        path.write_bytes(content)
    with pytest.raises(StoreCorrupt, match="in the way"):
        written(tmp_path)
    assert files(tmp_path) == {f"node=n1/{path.name}": content}


def flips(data: bytes, places: Iterator[int]) -> Iterator[bytes]:
    for place in places:
        damaged = bytearray(data)
        damaged[place // 8] ^= 1 << place % 8
        yield bytes(damaged)


def find_flips(folder: Path, choose: Callable[[int], list[int]]) -> None:
    """Flip one bit after the other in a small segment; ``choose`` which, by the size of the file."""
    stamp = Stamp("n1", 1, 3, schema.GENESIS, "")
    rows = [schema.row_values("n1", i, 1, Event(NOON + i, "posted", "relay", "box", message_id="m")) for i in (1, 2, 3)]
    home = folder / "node=n1"
    home.mkdir()
    path = segment.write(home, stamp, rows).path
    data = path.read_bytes()
    places = choose(len(data))
    kinds: Counter[Kind] = Counter()
    for damaged in flips(data, iter(places)):
        path.write_bytes(damaged)
        found = segment.check(path).findings
        assert found
        assert found[0].where == str(path)
        assert found[0].detail
        kinds[found[0].kind] += 1
    assert set(kinds) <= {Kind.ALTERED, Kind.UNREADABLE, Kind.UNVERIFIED}
    assert kinds[Kind.ALTERED] > len(places) / 2
    path.write_bytes(data)
    assert segment.check(path).findings == []


def test_flipped_bits_all_over_a_segment_are_found(tmp_path: Path) -> None:
    draw = random.Random(7)

    def choose(size: int) -> list[int]:
        # One bit of every other byte, and of every byte of the footer's end, where the metadata is.
        return [8 * i + draw.randrange(8) for i in (*range(0, size, 2), *range(size - 600, size))]

    find_flips(tmp_path, choose)


@pytest.mark.slow
def test_every_flipped_bit_of_a_segment_is_found(tmp_path: Path) -> None:
    find_flips(tmp_path, lambda size: list(range(8 * size)))


def test_a_flipped_bit_in_the_pages_of_a_large_segment_is_found(tmp_path: Path) -> None:
    path = written(tmp_path, 5_000)
    data = path.read_bytes()
    draw = random.Random(11)
    for damaged in flips(data, iter([draw.randrange(8 * len(data)) for _ in range(150)])):
        path.write_bytes(damaged)
        assert segment.check(path).findings


def test_a_segment_that_is_cut_short_or_grew_is_found(tmp_path: Path) -> None:
    path = written(tmp_path)
    data = path.read_bytes()
    for other in (b"", data[:3], data[:-1], data[:-9], data[: len(data) // 2], data + b"\0", data + data):
        path.write_bytes(other)
        assert segment.check(path).findings[0].kind in (Kind.UNREADABLE, Kind.ALTERED)
    path.unlink()
    assert segment.check(path).findings[0].kind is Kind.UNREADABLE


def rewrite(
    path: Path,
    change: Callable[[pa.Table], pa.Table] | None = None,
    keys: Callable[[dict[bytes, bytes]], None] | None = None,
) -> None:
    """Write a segment again as another program would: other encodings, no seal, and something changed."""
    file = pq.ParquetFile(path)
    table, found = file.read(), dict(file.metadata.metadata)
    found.pop(b"posthouse.seal", None)
    if change is not None:
        table = change(table)
    if keys is not None:
        keys(found)
    pq.write_table(table.replace_schema_metadata(found or None), path, compression="snappy")


def kinds_of(path: Path) -> list[tuple[Kind, str]]:
    return [(finding.kind, finding.detail) for finding in segment.check(path).findings]


def test_a_segment_by_another_program_is_verified_by_its_chain(tmp_path: Path) -> None:
    path = written(tmp_path)

    def loosen(table: pa.Table) -> pa.Table:
        """As Spark writes it: every column may be null; and text in another of arrow's forms."""
        fields = [pa.field(f.name, pa.large_string() if f.type == pa.string() else f.type) for f in table.schema]
        return table.cast(pa.schema(fields))

    rewrite(path, loosen)
    assert segment.check(path) == (
        segment.Stamp("n1", 1, 40, schema.GENESIS, schema.chain(schema.GENESIS, rows_of(40))),
        40,
        [],
    )


def put(name: str, row: int, value: object) -> Callable[[pa.Table], pa.Table]:
    def change(table: pa.Table) -> pa.Table:
        index = schema.NAMES.index(name)
        values = table.column(name).to_pylist()
        values[row] = value
        field = table.schema.field(name).with_nullable(True)
        return table.set_column(index, field, pa.array(values, field.type))

    return change


@pytest.mark.parametrize(
    ("change", "kind", "detail"),
    [
        (put("error", 3, "another"), Kind.ALTERED, "its rows do not give the chain in its metadata"),
        (put("offset", 3, 9), Kind.MISSING, "offset 9 stands where 4 should"),
        (put("offset", 3, 3), Kind.REORDERED, "offset 3 stands where 4 should"),
        (put("offset", 3, None), Kind.INVALID, "offset is null in the row of offset 4"),
        (put("sender", 39, None), Kind.INVALID, "sender is null in the row of offset 40"),
        (put("commit", 3, 5), Kind.INVALID, "offset 4 says that its commit began at 5"),
        (put("commit", 4, 1), Kind.INVALID, "offset 5 says that its commit began at 1"),
        (put("commit", 0, 0), Kind.INVALID, "offset 1 says that its commit began at 0"),
        (put("node", 5, "n2"), Kind.MISPLACED, "it holds rows of node 'n2', not 'n1'"),
        (lambda t: t.take([*range(4), 5, 4, *range(6, 40)]), Kind.MISSING, "offset 6 stands where 5 should"),
        (lambda t: t.slice(0, 39), Kind.MISSING, "its rows end at offset 39 instead of 40"),
        (lambda t: t.slice(1), Kind.MISSING, "offset 2 stands where 1 should"),
        (lambda t: pa.concat_tables([t, t]), Kind.REORDERED, "offset 1 stands where 41 should"),
        (lambda t: t.drop_columns(["lane", "kind"]), Kind.INVALID, "it lacks the columns lane, kind"),
        (
            lambda t: t.append_column("more", t["at"]),
            Kind.INVALID,
            "it has columns that are not in the contract: more",
        ),
        (
            lambda t: t.set_column(12, "attempt", t["attempt"].cast(pa.int64())),
            Kind.INVALID,
            "its column attempt is int64, and should be int32",
        ),
        (
            lambda t: t.set_column(2, "at", t["at"].cast(pa.timestamp("us"))),
            Kind.INVALID,
            "its column at is timestamp[us], and should be timestamp[us, tz=UTC]",
        ),
    ],
)  # fmt: skip
def test_rows_that_are_not_those_of_the_chain_are_named(
    tmp_path: Path, change: Callable[[pa.Table], pa.Table], kind: Kind, detail: str
) -> None:
    path = written(tmp_path)
    rewrite(path, change)
    assert (kind, detail) in kinds_of(path)


@pytest.mark.parametrize(
    ("key", "value", "kind", "detail"),
    [
        ("prev", None, Kind.UNVERIFIED, "its metadata lacks posthouse.prev"),
        ("schema_version", b"2", Kind.UNVERIFIED, "its schema version is '2'"),
        ("first", b"x", Kind.UNVERIFIED, "posthouse.first is no offset: 'x'"),
        ("chain", b"x", Kind.UNVERIFIED, "posthouse.chain is no SHA-256"),
        ("prev", b"ab" * 32, Kind.ALTERED, "its rows do not give the chain"),
        ("last", b"41", Kind.MISPLACED, "its metadata says that it holds the offsets 1 to 41"),
        ("node", b"n2", Kind.MISPLACED, "its metadata says that it is of node 'n2'"),
        ("seal", b"sha256=" + b"0" * 64, Kind.ALTERED, "its bytes are not those that were sealed"),
        ("seal", b"x", Kind.ALTERED, "its seal is damaged"),
        ("sea1", b"sha256=" + b"0" * 64, Kind.ALTERED, "its seal is damaged"),
    ],
)
def test_metadata_that_is_missing_or_wrong_is_named(
    tmp_path: Path, key: str, value: bytes | None, kind: Kind, detail: str
) -> None:
    path = written(tmp_path)
    name = f"posthouse.{key}".encode()

    def change(keys: dict[bytes, bytes]) -> None:
        if value is None:
            del keys[name]
        else:
            keys[name] = value

    rewrite(path, keys=change)
    assert any(k is kind and d.startswith(detail) for k, d in kinds_of(path)), kinds_of(path)


def test_an_unverified_segment_can_still_be_read_and_its_rows_are_looked_at(tmp_path: Path) -> None:
    path = written(tmp_path)
    rewrite(path, put("offset", 3, 9), lambda keys: keys.clear())
    assert [kind for kind, _ in kinds_of(path)] == [Kind.UNVERIFIED, Kind.MISSING]
    assert len(list(segment.read(path))) == 40


def test_a_segment_under_another_name_or_in_another_folder_is_named(tmp_path: Path) -> None:
    path = written(tmp_path)
    renamed = path.rename(path.with_name(schema.file_name(2, 41)))
    assert kinds_of(renamed) == [(Kind.MISPLACED, "its metadata says that it holds the offsets 1 to 40")]
    odd = renamed.rename(path.with_name("copy.parquet"))
    assert kinds_of(odd) == [(Kind.MISPLACED, "its name is not <first>-<last>.parquet with 20 digits each")]
    (tmp_path / "node=n2").mkdir()
    moved = odd.rename(tmp_path / "node=n2" / path.name)
    assert kinds_of(moved) == [(Kind.MISPLACED, "its metadata says that it is of node 'n1'")]
    away = moved.rename(tmp_path / path.name)
    assert kinds_of(away) == [(Kind.MISPLACED, "its folder is not node=<node>")]


def test_a_segment_that_begins_inside_a_commit_is_within_the_contract(tmp_path: Path) -> None:
    folder = tmp_path / "node=n1"
    folder.mkdir()
    rows = [(*row[:3], 5, *row[4:]) for row in rows_of(4, 7)]
    path = segment.write(folder, Stamp("n1", 7, 10, schema.GENESIS, ""), rows).path
    assert segment.check(path).findings == []


def test_times_in_other_units_are_read_as_microseconds(tmp_path: Path) -> None:
    path = written(tmp_path)
    rewrite(path, lambda t: t.set_column(2, "at", t["at"].cast(pa.timestamp("ns", tz="UTC"))))
    assert [row.at for row in segment.read(path)] == [row[2] for row in rows_of(40)]
