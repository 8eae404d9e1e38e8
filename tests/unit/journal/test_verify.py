"""Verifying: whatever is missing, altered or out of order is found and named, and nothing else is."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.journal.sources import NOON, Kept, kept, traffic, work

from posthouse.errors import InvalidInput
from posthouse.journal import chunk as chunks
from posthouse.journal import schema, verify
from posthouse.journal.finding import Finding, Kind
from posthouse.journal.tail import export
from posthouse.mailbox.event import Event
from posthouse.mailbox.store import Chunk, Segment


def source_of(count: int = 10, size: int = 2) -> Kept:
    return kept([[Event(NOON + i, "posted", "d", message_id=f"id-{i}")] * size for i in range(count)])


def brief(findings: list[Finding]) -> list[tuple[str, str]]:
    return [(finding.kind.value, finding.where) for finding in findings]


# ── Chunks ───────────────────────────────────────────────────────────────────────────────────────


def test_a_sound_store_has_no_findings_before_between_and_after_exports(tmp_path: Path) -> None:
    store = traffic(20)
    found = verify.verify_store(store)
    assert found == []
    assert found.events == store.offset()
    assert found.chunks == len(list(store.chunks()))
    export(store, tmp_path, final=True)
    assert verify.verify_store(store) == []
    work(store, 20, 25)
    store.plan_segment(next(iter(store.chunks())).last)
    found = verify.verify_store(store)
    assert found == []
    assert found.chunks == len(list(store.chunks()))


def test_a_flipped_bit_in_any_byte_of_a_chunk_is_found_and_the_chunk_named() -> None:
    draw = random.Random(3)
    source = source_of(5)
    sound = source.kept[2]
    tried = 0
    for field in ("prev", "hash", "data"):
        value: bytes = getattr(sound, field)
        for place in range(len(value)):
            damaged = bytearray(value)
            damaged[place] ^= 1 << draw.randrange(8)
            source.kept[2] = sound._replace(**{field: bytes(damaged)})
            found = verify.verify_store(source)
            assert ("altered", "node n1, chunk 5-6") in brief(found)
            # The sound chunk behind it follows the hash that was changed, no longer.
            others = {where for _, where in brief(found)} - {"node n1, chunk 5-6"}
            assert others == ({"node n1, chunk 7-8"} if field == "hash" else set())
            tried += 1
    assert tried > 100
    for first, last in ((4, 6), (5, 7), (7, 6), (5, 5), (5 + 2**40, 6 + 2**40)):
        source.kept[2] = sound._replace(first=first, last=last)
        assert any(finding.kind is Kind.ALTERED for finding in verify.verify_store(source))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda c: c.pop(0), [("missing", "node n1, chunk 3-4")]),
        (lambda c: c.pop(5), [("missing", "node n1, chunk 13-14")]),
        (lambda c: c.pop(), [("missing", "node n1")]),
        (lambda c: c.clear(), [("missing", "node n1")]),
        (lambda c: c.insert(5, c[4]), [("reordered", "node n1, chunk 9-10")]),
        (lambda c: c.insert(4, c.pop(5)), [("missing", "node n1, chunk 11-12"), ("reordered", "node n1, chunk 9-10"),
                                           ("chain_broken", "node n1, chunk 13-14")]),
    ],
)  # fmt: skip
def test_missing_and_reordered_chunks_are_named(
    change: Callable[[list[Chunk]], object], expected: list[tuple[str, str]]
) -> None:
    source = source_of()
    change(source.kept)
    assert brief(verify.verify_store(source)) == expected


def test_a_chunk_that_was_forged_with_a_right_hash_breaks_the_chain_behind_it() -> None:
    source = source_of()
    old = source.kept[4]
    data = chunks.encode([Event(NOON, "delivered", "d")] * 2)
    source.kept[4] = old._replace(data=data, hash=chunks.link(old.prev, old.first, old.last, data))
    assert brief(verify.verify_store(source)) == [("chain_broken", "node n1, chunk 11-12")]


def test_a_chunk_that_cannot_be_read_or_breaks_the_contract_is_named() -> None:
    for data, kind, detail in (
        (b"", Kind.UNREADABLE, "cannot be read"),
        (b"\x78\x9c\xff", Kind.UNREADABLE, "cannot be read"),
        (chunks.encode([Event(NOON, "posted", "d")] * 3), Kind.INVALID, "it holds 3 events"),
        (chunks.encode([Event(NOON, "posted", "d", lane=None)] * 2), Kind.INVALID, "lane at offset 1 must be"),  # type: ignore[arg-type]
        (chunks.encode([Event(NOON, "posted", "d", lane_seq=2**63)] * 2), Kind.INVALID, "lane_seq at offset 1"),
    ):
        source = source_of(1)
        source.kept = [Chunk(1, 2, chunks.GENESIS, chunks.link(chunks.GENESIS, 1, 2, data), data)]
        (found,) = verify.verify_store(source)
        assert (found.kind, found.where) == (kind, "node n1, chunk 1-2")
        assert detail in found.detail


def test_chunks_must_begin_where_the_exported_segments_end(tmp_path: Path) -> None:
    source = source_of()
    export(source, tmp_path, segment_events=12, min_events=12)
    assert [s.last for s in source.record] == [12]
    assert verify.verify_store(source) == []
    gone = source.kept.pop(0)
    (found,) = verify.verify_store(source)
    assert (found.kind, found.where) == (Kind.MISSING, "node n1, chunk 15-16")
    assert "13 to 14" in found.detail
    source.kept.insert(0, gone)
    source.record[0] = source.record[0]._replace(last=13)
    assert brief(verify.verify_store(source)) == [("overlap", "node n1, chunk 13-14")]


def test_a_record_of_segments_that_does_not_add_up_is_named() -> None:
    source = source_of(10)
    a, b = "ab" * 32, "cd" * 32
    source.kept = source.kept[5:]
    for record, expected in (
        ([Segment(1, 4, schema.GENESIS, a), Segment(7, 10, a, b)], "missing"),
        ([Segment(3, 10, schema.GENESIS, a)], "missing"),
        ([Segment(1, 4, schema.GENESIS, a), Segment(4, 10, a, b)], "overlap"),
        ([Segment(1, 4, schema.GENESIS, a), Segment(5, 10, b, b)], "chain_broken"),
        ([Segment(1, 4, schema.GENESIS, ""), Segment(1, 10, schema.GENESIS, a)], "invalid"),
        ([Segment(1, 10, schema.GENESIS, "x")], "invalid"),
        ([Segment(1, 10, schema.GENESIS, a), Segment(11, 13, a, "")], "invalid"),
    ):
        source.record = record
        assert [finding.kind for finding in verify.verify_store(source)][:1] == [expected], record


def test_an_export_that_finishes_meanwhile_is_no_finding(tmp_path: Path) -> None:
    source = source_of()

    class Late(Kept):
        """Its first list of segments is from before the export."""

        asked = 0

        def segments(self) -> list[Segment]:
            self.asked += 1
            return [] if self.asked == 1 else super().segments()

    export(source, tmp_path, segment_events=12, min_events=12)
    late = Late("n1", source.kept, source.last)
    late.record = source.record
    assert verify.verify_store(late) == []


def test_progress_of_both_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "TELL_EVENTS", 8)
    source = source_of()
    told: list[tuple[int, int]] = []
    verify.verify_store(source, progress=lambda done, total: told.append((done, total)))
    assert told == [(8, 20), (16, 20), (20, 20)]
    export(source, tmp_path, segment_events=10, final=True)
    told.clear()
    verify.verify_folder(tmp_path, progress=lambda done, total: told.append((done, total)))
    assert told == [(10, 20), (20, 20)]


# ── Segments ─────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def journal(tmp_path: Path) -> list[Path]:
    """Five segments of four events."""
    return list(export(source_of(), tmp_path, segment_events=4, final=True).paths)


def found_in(paths: list[Path]) -> list[tuple[str, str, str]]:
    home = paths[0].parents[1]
    found = verify.verify_folder(home)
    assert found == verify.verify_folder(home, "n1")
    return [(f.kind.value, f.where.removeprefix(f"{home}/"), f.detail) for f in found]


def name(first: int, last: int) -> str:
    return f"node=n1/{schema.file_name(first, last)}"


def test_a_sound_folder_has_no_findings_and_counts_what_it_holds(journal: list[Path]) -> None:
    assert found_in(journal) == []
    found = verify.verify_folder(journal[0].parents[1])
    assert (found.segments, found.events) == (5, 20)


def test_missing_segments_are_named_by_their_offsets(journal: list[Path]) -> None:
    journal[2].unlink()
    assert found_in(journal) == [("missing", "node=n1", "no segment holds the offsets 9 to 12")]
    journal[0].unlink()
    assert found_in(journal) == [
        ("missing", "node=n1", "no segment holds the offsets 1 to 4"),
        ("missing", "node=n1", "no segment holds the offsets 9 to 12"),
    ]


def test_swapped_segments_are_named(journal: list[Path]) -> None:
    one, other = journal[1], journal[3]
    data = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(data)
    found = found_in(journal)
    assert ("misplaced", name(5, 8), "its metadata says that it holds the offsets 13 to 16") in found
    assert ("misplaced", name(13, 16), "its metadata says that it holds the offsets 5 to 8") in found
    assert ("chain_broken", name(5, 8), f"its prev is not the chain of {schema.file_name(1, 4)}") in found


def test_overlapping_segments_are_named(tmp_path: Path, journal: list[Path]) -> None:
    other = export(source_of(), tmp_path / "other", segment_events=6, final=True).paths
    copy = journal[0].with_name(other[1].name)
    copy.write_bytes(other[1].read_bytes())
    found = verify.verify_folder(tmp_path, "n1")
    assert [(f.kind, f.where) for f in found] == [
        (Kind.OVERLAP, str(copy)),
        (Kind.OVERLAP, str(journal[2])),
    ]


def test_a_segment_of_another_history_breaks_the_chain(tmp_path: Path, journal: list[Path]) -> None:
    source = kept([[Event(NOON, "delivered", "d", message_id=f"other-{i}")] * 2 for i in range(10)])
    other = export(source, tmp_path / "other", segment_events=4, final=True).paths
    journal[2].write_bytes(other[2].read_bytes())
    assert [(f.kind, f.where) for f in verify.verify_folder(tmp_path, "n1")] == [
        (Kind.CHAIN_BROKEN, str(journal[2])),
        (Kind.CHAIN_BROKEN, str(journal[3])),
    ]


def test_a_segment_of_another_node_is_named(tmp_path: Path, journal: list[Path]) -> None:
    source = kept([[Event(NOON, "posted", "d")] * 4], "n2")
    (other,) = export(source, tmp_path, final=True).paths
    journal[0].write_bytes(other.read_bytes())
    found = verify.verify_folder(tmp_path)
    assert (Kind.MISPLACED, str(journal[0])) in [(f.kind, f.where) for f in found]
    assert "it is of node 'n2'" in found[0].detail
    assert verify.verify_folder(tmp_path, "n2") == []


def test_damage_to_one_segment_is_named_and_the_others_are_still_verified(journal: list[Path]) -> None:
    for path in (journal[1], journal[3]):
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 4
        path.write_bytes(data)
    found = found_in(journal)
    assert [where for _, where, _ in found] == [name(5, 8), name(13, 16)]
    assert {kind for kind, _, _ in found} <= {"altered", "unreadable"}


def test_what_is_no_segment_is_named_and_hidden_files_are_passed_over(tmp_path: Path, journal: list[Path]) -> None:
    home = journal[0].parent
    for path in (home / "_SUCCESS", home / ".x.crc", tmp_path / "_x", home / "copy.parquet", tmp_path / "other"):
        path.write_text("x")
    assert [(kind, where) for kind, where, _ in brief3(verify.verify_folder(tmp_path))] == [
        ("foreign", str(home / "copy.parquet")),
        ("foreign", str(tmp_path / "other")),
    ]


def brief3(findings: list[Finding]) -> list[tuple[str, str, str]]:
    return [(f.kind.value, f.where, f.detail) for f in findings]


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="is no folder"):
        verify.verify_folder(tmp_path / "nowhere")
    with pytest.raises(InvalidInput, match="name it"):
        verify.verify_folder(tmp_path, recorded=[Segment(1, 1, "", "")])


# ── Both ─────────────────────────────────────────────────────────────────────────────────────────


def test_the_store_knows_which_segments_must_be_there(tmp_path: Path) -> None:
    source = source_of()
    assert verify.verify(source, tmp_path / "not yet") == []
    paths = export(source, tmp_path, segment_events=4, final=True).paths
    found = verify.verify(source, tmp_path)
    assert found == []
    assert (found.segments, found.events) == (5, 20)
    assert brief(verify.verify(source, None)) == []
    # The last files of a folder: only the store can tell that they are missing.
    paths[4].unlink()
    assert verify.verify_folder(tmp_path) == []
    assert brief(verify.verify(source, tmp_path)) == [("missing", str(paths[4]))]
    assert brief(verify.verify_folder(tmp_path, "n1", recorded=source.record)) == [("missing", str(paths[4]))]
    for path in paths[:4]:
        path.unlink()
    assert brief(verify.verify(source, tmp_path)) == [("missing", str(path)) for path in paths]


def test_segments_that_the_store_did_not_write_are_named(tmp_path: Path) -> None:
    source, longer = source_of(), source_of(12)
    export(source, tmp_path / "a", segment_events=4, final=True)
    paths = export(longer, tmp_path / "b", segment_events=4, final=True).paths
    (found,) = verify.verify(source, tmp_path / "b")
    assert (found.kind, found.where) == (Kind.FOREIGN, str(paths[5]))
    assert "the store, which stands at 20, knows of no segment 21 to 24" in found.detail


def test_a_sound_folder_of_another_history_is_not_the_stores(tmp_path: Path) -> None:
    source = source_of()
    other = kept([[Event(NOON, "delivered", "d", message_id=f"other-{i}")] * 2 for i in range(10)])
    export(source, tmp_path / "a", segment_events=10, final=True)
    paths = export(other, tmp_path / "b", segment_events=10, final=True).paths
    found = verify.verify(source, tmp_path / "b")
    assert brief(found) == [("altered", str(path)) for path in paths]
    assert "not the one that the store recorded" in found[0].detail


def test_a_finding_reads_as_one_line() -> None:
    assert str(Finding(Kind.MISSING, "node n1", "gone")) == "missing: node n1: gone"
