"""Exporting: whole commits, each once, the same files whatever happens on the way."""

from __future__ import annotations

import os
import pathlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.journal.sources import HOSTILE, NOON, Kept, files, kept, traffic, work

from posthouse.errors import InvalidInput, StoreCorrupt, StoreError, StoreHeld
from posthouse.journal import schema, segment, tail
from posthouse.journal.tail import Exported, export
from posthouse.journal.verify import verify
from posthouse.mailbox.event import Event
from posthouse.mailbox.store import Chunk, Segment
from posthouse.stores.memory import MemoryStore


def rows_of(folder: Path) -> list[schema.Row]:
    return [row for path in sorted(folder.glob("node=*/*.parquet")) for row in segment.read(path)]


def test_what_the_store_journaled_is_what_the_segments_hold(tmp_path: Path) -> None:
    store = traffic(40)
    events = list(store.events())
    done = export(store, tmp_path, segment_events=30, final=True)
    assert done.events == store.offset() == len(events)
    assert done.left == 0
    expected = [schema.row_values("n1", offset, commit, event) for offset, commit, event in events]
    assert [tuple(row) for row in rows_of(tmp_path)] == expected
    assert len(done.paths) > 2
    assert [str(path.relative_to(tmp_path)) for path in done.paths] == list(files(tmp_path))
    assert [(s.first, s.last) for s in store.segments()] == [schema.offsets_of(path.name) for path in done.paths]
    assert list(store.chunks()) == []
    assert verify(store, tmp_path) == []


def test_a_second_run_has_nothing_to_do_and_a_later_one_goes_on(tmp_path: Path) -> None:
    store = traffic(10)
    export(store, tmp_path, final=True)
    before = files(tmp_path)
    assert export(store, tmp_path, final=True) == Exported((), 0, 0)
    work(store, 10, 20)
    export(store, tmp_path, final=True)
    after = files(tmp_path)
    assert before.items() < after.items()
    assert len(after) == 2
    assert verify(store, tmp_path) == []


def test_little_waits_for_more_unless_it_is_final(tmp_path: Path) -> None:
    store = traffic(10)
    pending = store.offset()
    assert export(store, tmp_path, min_events=pending + 1) == Exported((), 0, pending)
    assert store.segments() == []
    assert export(store, tmp_path, min_events=pending).events == pending


def test_only_full_segments_are_written_while_the_rest_is_little(tmp_path: Path) -> None:
    source = kept([[Event(NOON, "posted", "d")] * 10 for _ in range(25)])
    done = export(source, tmp_path, segment_events=100, min_events=60)
    assert [schema.offsets_of(path.name) for path in done.paths] == [(1, 100), (101, 200)]
    assert done.left == 50
    assert [chunk.first for chunk in source.kept] == [201, 211, 221, 231, 241]


def test_a_commit_is_never_cut(tmp_path: Path) -> None:
    source = kept([[Event(NOON, "posted", "d")] * size for size in (3, 4, 5, 50, 2, 1)])
    done = export(source, tmp_path, segment_events=10, final=True)
    assert [schema.offsets_of(path.name) for path in done.paths] == [(1, 7), (8, 12), (13, 62), (63, 65)]
    assert {row.commit for row in rows_of(tmp_path)} == {1, 4, 8, 13, 63, 65}


def test_what_is_committed_during_a_run_waits_for_the_next(tmp_path: Path) -> None:
    store = traffic(5)
    before = store.offset()

    def busy(done: int, total: int) -> None:
        work(store, 5 + done, 6 + done)

    assert export(store, tmp_path, final=True, progress=busy).events == before
    assert store.offset() > before
    assert verify(store, tmp_path) == []


def test_progress_is_told_up_to_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail, "TELL_EVENTS", 20)
    source = kept([[Event(NOON, "posted", "d")] * 7 for _ in range(10)])
    told: list[tuple[int, int]] = []
    export(source, tmp_path, final=True, progress=lambda done, total: told.append((done, total)))
    assert told == [(21, 70), (42, 70), (63, 70), (70, 70)]


def test_hostile_text_arrives_as_it_was(tmp_path: Path) -> None:
    source = kept([[Event(NOON, "died", *[t] * 3, 1, *[t] * 3, 0, t, 1, t, t, 1, 2, t, t)] for t in HOSTILE])
    export(source, tmp_path, final=True)
    assert [row.error for row in rows_of(tmp_path)] == list(HOSTILE)
    assert [row.message_id for row in rows_of(tmp_path)] == list(HOSTILE)
    assert len(files(tmp_path)) == 1
    assert verify(source, tmp_path) == []


@pytest.mark.parametrize("node", ["../up", "a/b", "", "a b"])
def test_a_node_that_would_leave_its_folder_is_refused(tmp_path: Path, node: str) -> None:
    source = kept([[Event(NOON, "posted", "d")]], node)
    with pytest.raises(InvalidInput):
        export(source, tmp_path / "journal", final=True)
    assert list(tmp_path.iterdir()) == []
    assert source.record == []


def test_impossible_sizes_are_refused(tmp_path: Path) -> None:
    for wrong in ({"segment_events": 0}, {"min_events": 0}):
        with pytest.raises(InvalidInput):
            export(traffic(1), tmp_path, **wrong)


# ── Crashes ──────────────────────────────────────────────────────────────────────────────────────


class Crash(BaseException):
    """The process ends here."""


class Bomb:
    """Ends the process at the n-th step: after that nothing else is done, cleaning up least of all."""

    def __init__(self, at: int) -> None:
        self.left = at
        self.dead = False

    def step(self) -> None:
        self.left -= 1
        if self.dead or self.left < 0:
            self.dead = True
            raise Crash

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def both(*args: Any, **kwargs: Any) -> Any:
            self.step()
            result = function(*args, **kwargs)
            self.step()
            return result

        return both


class Mined:
    """A store whose every call may be the last."""

    def __init__(self, store: MemoryStore, bomb: Bomb) -> None:
        self.node = store.node
        self.store = store
        self.bomb = bomb
        self.offset = bomb.around(store.offset)
        self.segments = bomb.around(store.segments)
        self.plan_segment = bomb.around(store.plan_segment)
        self.finish_segment = bomb.around(store.finish_segment)

    def chunks(self, after: int = 0) -> Iterator[Chunk]:
        for number, chunk in enumerate(self.store.chunks(after)):
            if number % 10 == 0:
                self.bomb.step()
            yield chunk


def crashing(bomb: Bomb, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("fsync", "rename", "open"):
        monkeypatch.setattr(os, name, bomb.around(getattr(os, name)))
    monkeypatch.setattr(pathlib.Path, "unlink", bomb.around(pathlib.Path.unlink))
    for name in ("_write_rows", "_seal", "_columns"):
        monkeypatch.setattr(segment, name, bomb.around(getattr(segment, name)))


def test_a_crash_after_any_step_leaves_files_that_the_next_run_completes_byte_for_byte(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    assert len(export(traffic(20), whole, segment_events=25, final=True).paths) == 3
    expected = files(whole)
    strays = crashes = 0
    for steps in range(1_000):
        folder = tmp_path / str(steps)
        store = traffic(20)
        bomb = Bomb(steps)
        with pytest.MonkeyPatch.context() as monkeypatch:
            crashing(bomb, monkeypatch)
            try:
                export(Mined(store, bomb), folder, segment_events=25, final=True)
            except Crash:
                crashes += 1
        left = files(folder)
        # A segment that has its name is complete, and one the store has finished is there.
        assert {name: data for name, data in left.items() if not name.endswith(".tmp")}.items() <= expected.items()
        finished = {f"node=n1/{schema.file_name(s.first, s.last)}" for s in store.segments() if s.chain}
        assert finished <= left.keys()
        strays += any(name.endswith(".tmp") for name in left)
        if not bomb.dead:
            break
        export(store, folder, segment_events=25, final=True)
        assert files(folder) == expected
        assert verify(store, folder) == []
        assert list(store.chunks()) == []
    assert crashes == steps
    assert crashes > 60
    assert strays > 10


def test_boundaries_hold_when_the_next_run_is_asked_for_others(tmp_path: Path) -> None:
    store = traffic(20)
    store.plan_segment(next(iter(store.chunks(8))).last)
    (planned,) = store.segments()
    work(store, 20, 30)
    done = export(store, tmp_path, segment_events=1_000, min_events=1_000)
    assert [schema.offsets_of(path.name) for path in done.paths] == [(1, planned.last)]


def test_strays_of_a_crash_are_removed_and_nothing_else_is(tmp_path: Path) -> None:
    home = tmp_path / "node=n1"
    home.mkdir()
    stray = home / f".{schema.file_name(1, 99)}.tmp"
    others = [home / ".hidden", home / "notes.txt", home / "x.tmp", tmp_path / stray.name]
    for path in (stray, *others):
        path.write_text("x")
    export(traffic(1), tmp_path)
    assert not stray.exists()
    assert all(path.exists() for path in others)


def test_an_identical_file_under_the_planned_name_is_accepted_and_another_is_an_error(tmp_path: Path) -> None:
    (path,) = export(traffic(5), tmp_path, final=True).paths
    data = path.read_bytes()
    store = traffic(5)
    export(store, tmp_path, final=True)
    assert path.read_bytes() == data
    assert verify(store, tmp_path) == []

    store = traffic(5)
    path.write_bytes(data[:-20] + bytes([data[-20] ^ 1]) + data[-19:])
    with pytest.raises(StoreCorrupt, match="in the way"):
        export(store, tmp_path, final=True)
    # Nothing is lost by it: the chunks are kept, and the export goes on when the file is out of the way.
    assert [s.chain for s in store.segments()] == [""]
    path.unlink()
    export(store, tmp_path, final=True)
    assert path.read_bytes() == data


def test_a_run_that_is_stopped_by_its_progress_leaves_no_temporary_file(tmp_path: Path) -> None:
    store = traffic(5)

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export(store, tmp_path, final=True, progress=stop)
    assert files(tmp_path) == {}
    assert export(store, tmp_path, final=True).left == 0


def test_two_exports_into_one_folder_do_not_mix(tmp_path: Path) -> None:
    store = traffic(5)
    refused: list[StoreHeld] = []

    def second(done: int, total: int) -> None:
        def run() -> None:
            try:
                export(store, tmp_path, final=True)
            except StoreHeld as error:
                refused.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()

    export(store, tmp_path, final=True, progress=second)
    assert len(refused) == 1
    assert "another export" in str(refused[0])
    assert verify(store, tmp_path) == []


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    store = traffic(2)
    with pytest.raises(StoreError, match="cannot use"):
        export(store, tmp_path / "file" / "journal", final=True)
    assert store.segments() == []


# ── Broken chunks ────────────────────────────────────────────────────────────────────────────────


def broken(change: Callable[[list[Chunk]], object], segment_events: int, folder: Path) -> tuple[Kept, str]:
    source = kept([[Event(NOON + i, "posted", "d", message_id=f"id-{i}")] * 2 for i in range(10)])
    change(source.kept)
    with pytest.raises(StoreCorrupt) as caught:
        export(source, folder, segment_events=segment_events, final=True)
    return source, str(caught.value)


@pytest.mark.parametrize("segment_events", [4, 1_000])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.__setitem__(5, c[5]._replace(data=c[5].data[:-1] + b"\0")), "chunk 11-12 is altered"),
        (lambda c: c.__setitem__(5, c[5]._replace(prev=bytes(32))), "chunk 11-12 is chain_broken"),
        (lambda c: c.__setitem__(5, c[5]._replace(hash=bytes(32))), "chunk 11-12 is altered"),
        (lambda c: c.pop(5), "chunk 13-14 is missing: the offsets 11 to 12 before it are missing"),
        (lambda c: c.insert(5, c.pop(6)), "chunk 13-14 is missing: the offsets 11 to 12 before it are missing"),
        (lambda c: c.__delitem__(slice(5, None)), "the chunks of the offsets 11 to 20 are missing"),
    ],
)
def test_a_broken_chunk_is_named_and_only_what_comes_before_it_is_exported(
    tmp_path: Path, change: Callable[[list[Chunk]], object], message: str, segment_events: int
) -> None:
    source, said = broken(change, segment_events, tmp_path)
    assert f"node n1{',' if message.startswith('chunk') else ':'} {message}" in said
    assert [row.offset for row in rows_of(tmp_path)] == list(range(1, 11))
    # Not even planned: a boundary behind the broken chunk could never be kept.
    assert all(s.chain for s in source.record)


def test_the_first_chunk_of_a_node_follows_nothing(tmp_path: Path) -> None:
    def forge(chunks: list[Chunk]) -> None:
        first = chunks[0]
        chunks[0] = first._replace(prev=b"x" * 32, hash=tail.feed.chunks.link(b"x" * 32, 1, 2, first.data))

    source, said = broken(forge, 1_000, tmp_path)
    assert "chunk 1-2 is chain_broken" in said
    assert source.record == []


def test_a_chunk_with_another_number_of_events_is_not_exported(tmp_path: Path) -> None:
    source = kept([[Event(NOON, "posted", "d")]])
    (chunk,) = source.kept
    forged = tail.feed.chunks.link(chunk.prev, 1, 2, chunk.data)
    source.kept, source.last = [chunk._replace(last=2, hash=forged)], 2
    with pytest.raises(StoreCorrupt, match=r"chunk 1-2 is invalid: it holds 1 events"):
        export(source, tmp_path, final=True)
    assert files(tmp_path) == {}


def test_a_record_of_segments_that_does_not_add_up_stops_the_export(tmp_path: Path) -> None:
    for record in (
        [Segment(2, 3, schema.GENESIS, "ab" * 32)],
        [Segment(1, 3, "cd" * 32, "ab" * 32)],
        [Segment(1, 3, schema.GENESIS, "ab" * 32), Segment(4, 5, "cd" * 32, "")],
        [Segment(1, 3, schema.GENESIS, ""), Segment(4, 5, "ab" * 32, "")],
    ):
        source = kept([[Event(NOON, "posted", "d")] * 10])
        source.record = record
        with pytest.raises(StoreCorrupt, match="segment"):
            export(source, tmp_path, final=True)
    assert files(tmp_path) == {}
