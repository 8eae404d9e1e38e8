"""Stores that go on from a snapshot of another: one line in the books, whatever else was restored from it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from posthouse.journal import schema as contract
from posthouse.journal import segment as segments
from posthouse.pipeline import bronze, cutting
from posthouse.pipeline.bronze import Journal, Segment
from posthouse.pipeline.finding import findings
from posthouse.pipeline.lineage import ALONE, Lineage, Place, Restore, restored_from
from posthouse.pipeline.offsets import count, merged

SECOND = 1_000_000
BEGIN = 1_772_323_200 * SECOND


def restore(node: str, origin: str, offset: int, at: int = 0) -> Restore:
    return Restore(node, 1, origin, offset, at)


def test_a_line_has_the_name_of_its_first_node_and_offsets_go_on() -> None:
    line = Lineage([restore("c", "b", 5), restore("b", "a", 100)])
    assert [line.place(node) for node in "abcz"] == [
        Place("a", 0, 100), Place("a", 100, 5), Place("a", 105, None), Place("z"),
    ]  # fmt: skip
    assert line.within("a", [(1, 80), (90, 120), (130, 140)]) == [(1, 80), (90, 100)]
    assert line.within("b", [(1, 3)]) == [(101, 103)]
    assert line.known({"a": [(1, 120)], "b": [(1, 9)], "c": [(1, 2)], "z": [(4, 5)]}) == {
        "a": [(1, 107)],
        "z": [(4, 5)],
    }
    assert [line.heir(node) and line.heir(node).node for node in "abc"] == ["b", "c", None]  # type: ignore[union-attr]


def test_where_several_go_on_the_newest_line_is_followed_and_the_others_are_abandoned() -> None:
    trial = restore("trial", "a", 50, at=1)
    line = Lineage([trial, restore("b", "a", 40, at=2), restore("old", "trial", 7, at=1)])
    assert line.place("a") == Place("a", 0, 40)
    assert line.place("trial") == Place("trial", 0, 0)
    assert line.place("old") == Place("old", 0, 0)
    assert line.heir("old") == restore("b", "a", 40, at=2)
    # A newer restore of the trial makes that the line.
    line = Lineage([trial, restore("b", "a", 40, at=2), restore("new", "trial", 7, at=3)])
    assert [line.place(node) for node in ("a", "trial", "new", "b")] == [
        Place("a", 0, 50), Place("a", 50, 7), Place("a", 57), Place("b", 0, 0),
    ]  # fmt: skip


def test_nodes_that_go_on_from_each_other_stand_alone() -> None:
    line = Lineage([restore("a", "b", 5), restore("b", "a", 5), restore("c", "a", 5)])
    assert [line.place(node) for node in "abc"] == [Place("a"), Place("b"), Place("c")]


def test_a_snapshot_of_nothing_and_the_first_word_of_a_node_count() -> None:
    line = Lineage([restore("b", "a", 0), restore("c", "b", 0), Restore("c", 9, "z", 7, 0)])
    assert [line.place(node) for node in "abc"] == [Place("a", 0, 0), Place("a", 0, 0), Place("a")]
    assert line.heir("a") == restore("b", "a", 0)


def test_what_moves_is_made_anew_and_what_stays_is_not() -> None:
    line = Lineage([restore("b", "a", 10)])
    assert line.moved(ALONE, {"a": [(1, 10)], "z": [(1, 2)]}) == set()
    assert line.moved(ALONE, {"a": [(1, 11)]}) == {"a"}
    assert line.moved(ALONE, {"a": [(1, 9)], "b": [(1, 1)]}) == {"a", "b"}


@pytest.mark.parametrize(
    ("detail", "wanted"),
    [
        (None, None),
        ('{"policies": {}}', None),
        ("restored_from", None),
        ('["restored_from"]', None),
        ('["restored_from"' + "[" * 100_000, None),
        ('{"restored_from": null}', None),
        ('{"restored_from": {"node": "a", "offset": 7}}', ("a", 7)),
    ],
)
def test_what_a_start_says_of_a_snapshot(detail: str | None, wanted: tuple[str, int] | None) -> None:
    assert restored_from(detail) == wanted


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("a", "node"),
        ({"offset": 7}, "node"),
        ({"node": "a/b", "offset": 7}, "node"),
        ({"node": "a", "offset": True}, "offset"),
        ({"node": "a", "offset": -1}, "offset"),
        ({"node": "a", "offset": 1 << 60}, "offset"),
    ],
)
def test_what_is_odd_about_a_snapshot_is_named(said: Any, why: str) -> None:
    with pytest.raises(ValueError, match=f"its {why} is no"):
        restored_from(json.dumps({"restored_from": said}))


# ── Files ────────────────────────────────────────────────────────────────────────────────────────


def write(folder: Path, node: str, first: int, last: int, prev: str, starts: dict[int, Any], later_s: int = 0) -> str:
    """A segment of posts, and of starts at these offsets; its chain."""
    rows = []
    for offset in range(first, last + 1):
        found: dict[str, Any] = dict.fromkeys(contract.NAMES)
        found |= dict.fromkeys(("desk", "mailbox", "lane", "message_id", "kind", "sender"), "")
        at = BEGIN + SECOND * (offset + later_s)
        found |= {"node": node, "offset": offset, "at": at, "commit": offset, "event": "posted"}
        found |= {"message_id": f"m{offset}", "lane_seq": 0, "attempt": 0, "size_bytes": 0}
        if offset in starts:
            found |= {"event": "started", "detail": json.dumps({"restored_from": starts[offset]})}
        rows.append(tuple(found[name] for name in contract.NAMES))
    home = folder / contract.folder_name(node)
    home.mkdir(parents=True, exist_ok=True)
    return segments.write(home, segments.Stamp(node, first, last, prev, ""), rows).chain


def look(folder: Path) -> list[Segment]:
    journal = Journal(str(folder))
    return [bronze.examine(journal, file) for file in journal.listing().files]


def test_findings_name_what_was_abandoned_and_what_the_snapshot_had_and_no_file_has(tmp_path: Path) -> None:
    chain = write(tmp_path, "a", 1, 9, contract.GENESIS, {})
    write(tmp_path, "a", 10, 19, chain, {})
    write(tmp_path, "b", 1, 5, contract.GENESIS, {1: {"node": "a", "offset": 12}, 4: {"node": "z", "offset": 1}})
    write(tmp_path, "c", 1, 3, contract.GENESIS, {1: {"node": "gone", "offset": 4}, 3: {"node": "c", "offset": 1}})
    looked = look(tmp_path)
    restores = [each.restored for each in looked if each.restored]
    assert restores == [Restore("b", 1, "a", 12, BEGIN + SECOND), Restore("c", 1, "gone", 4, BEGIN + SECOND)]
    found = findings(looked, [], Lineage(restores))
    assert [(each.kind, each.node, each.offsets) for each in found] == [
        ("abandoned", "a", (13, 19)), ("bad_segment", "c", (1, 3)), ("journal_gap", "gone", (1, 4)),
    ]  # fmt: skip
    assert found[0].detail == "7 events are in no book: node b goes on from offset 12 of a"
    assert "restored_from at offset 3 counts for nothing: it is of the same node" in found[1].detail
    (found_again,) = [each for each in looked if each.node == "b"]
    assert Segment.from_plain(json.loads(json.dumps(found_again.plain()))) == found_again


def test_batches_follow_the_line(tmp_path: Path) -> None:
    prev = contract.GENESIS
    for first in range(1, 40, 10):
        prev = write(tmp_path, "a", first, first + 9, prev, {})
    prev = write(tmp_path, "b", 1, 10, contract.GENESIS, {1: {"node": "a", "offset": 25}}, later_s=28)
    write(tmp_path, "b", 11, 20, prev, {}, later_s=28)
    looked = look(tmp_path)
    line = Lineage(each.restored for each in looked if each.restored)
    pieces = cutting.cut(looked, [], line, 10)
    # What is abandoned as a whole comes first, since it concerns nothing.
    assert [(row.node, row.first) for piece in pieces for row in piece] == [
        ("a", 31), ("a", 1), ("a", 11), ("a", 21), ("b", 1), ("b", 11),
    ]  # fmt: skip
    by = {(row.node, row.first): row for row in looked}
    there = [by["a", 1], by["a", 11], by["a", 21]]
    assert not cutting.is_late([by["a", 31]], there, line)
    # The last segment of its first node is dated later than the first of the restored one.
    assert cutting.is_late([by["b", 1]], there, line)
    assert not cutting.is_late([by["b", 1]], there[:2], line)
    assert not cutting.is_late([by["b", 11]], [*there, by["b", 1]], line)
    assert cutting.is_late([by["a", 11]], [by["b", 1]], line)


def test_of_what_is_abandoned_no_offset_is_twice_in_a_batch_either(tmp_path: Path) -> None:
    for first, last in ((1, 30), (22, 40), (35, 50)):
        write(tmp_path, "a", first, last, contract.GENESIS, {})
    write(tmp_path, "b", 1, 10, contract.GENESIS, {1: {"node": "a", "offset": 21}}, later_s=21)
    looked = look(tmp_path)
    line = Lineage(each.restored for each in looked if each.restored)
    pieces = cutting.cut(looked, [], line, 1_000)
    assert sorted((row.node, row.first) for piece in pieces for row in piece) == [
        ("a", 1), ("a", 22), ("a", 35), ("b", 1),
    ]  # fmt: skip
    for piece in pieces:
        held = [place for row in piece if row.node == "a" for place in row.ranges]
        assert count(held) == count(merged(held))
