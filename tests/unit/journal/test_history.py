"""Histories: all rows of a message, from chunks and segments together, each once and in order."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.journal.sources import HOSTILE, NOON, kept, traffic, work

from posthouse.errors import StoreCorrupt
from posthouse.journal import segment
from posthouse.journal.finding import Finding, Kind
from posthouse.journal.history import HistoryRow, history
from posthouse.journal.tail import export
from posthouse.mailbox.command import Filter, Lease, Post, Redrive, Settle, Verdict
from posthouse.mailbox.event import Event
from posthouse.mailbox.message import Message
from posthouse.mailbox.policy import PRESETS
from posthouse.stores.memory import MemoryStore


def told(rows: list[HistoryRow]) -> list[tuple[int, str]]:
    return [(row.offset, row.event) for row in rows]


def test_the_history_is_the_same_from_chunks_from_segments_and_from_both(tmp_path: Path) -> None:
    store = traffic(20)
    for i in (0, 3, 19):
        expected = [(o, e.event) for o, _, e in store.events() if e.message_id == f"id-{i}"]
        assert len(expected) == 3
        assert told(history(store, None, f"id-{i}")) == expected
    before = history(store, None, "id-3")
    export(store, tmp_path, segment_events=20, final=True)
    assert history(store, None, "id-3") == []
    assert history(None, tmp_path, "id-3") == before
    assert history(store, tmp_path, "id-3") == before
    assert before[-1].error == HOSTILE[3]
    assert before[0].node == "n1"
    assert before[0].at == NOON + 3_000


def test_a_history_that_is_partly_exported_is_put_together(tmp_path: Path) -> None:
    store = MemoryStore(PRESETS, node="n1")
    message = Message("inbound", "box", "m", sender="s")
    store.apply([Post(message, at=NOON), Lease("inbound", "box", "t", at=NOON)])
    store.apply([Settle(message.ref, "t", Verdict.DEAD, error="no", at=NOON + 1)])
    export(store, tmp_path, final=True)
    store.apply([Redrive(Filter("inbound"), at=NOON + 2)])
    work(store, 0, 5)
    rows = history(store, tmp_path, "m")
    assert [row.event for row in rows] == ["posted", "leased", "died", "redriven"]
    assert [row.offset for row in rows] == [1, 2, 3, 4]
    assert rows[0].commit == rows[1].commit == 1


def test_rows_that_are_in_a_segment_and_still_in_chunks_are_told_once(tmp_path: Path) -> None:
    export(traffic(20), tmp_path, segment_events=20, final=True)
    store = traffic(20)
    assert history(store, tmp_path, "id-7") == history(store, None, "id-7")


def test_what_is_exported_while_it_is_read_is_not_missed(tmp_path: Path) -> None:
    store = traffic(20)
    expected = history(store, None, "id-1")

    class Busy:
        """Its chunks are exported and trimmed before the first of them is read."""

        node = "n1"

        def chunks(self, after: int = 0):  # type: ignore[no-untyped-def]
            export(store, tmp_path, final=True)
            yield from store.chunks(after)

    assert history(Busy(), tmp_path, "id-1") == expected


def test_messages_of_one_id_are_told_apart_by_desk_mailbox_and_sender(tmp_path: Path) -> None:
    keys = [("a", "m1", "s1"), ("a", "m1", "s2"), ("a", "m2", "s1"), ("b", "m1", "s1"), ("a", "m1", "")]
    source = kept([[Event(NOON, "posted", d, m, message_id="x", sender=s) for d, m, s in keys]])
    for _ in range(2):
        assert len(history(source, tmp_path, "x")) == 5
        assert told(history(source, tmp_path, "x", "b")) == [(4, "posted")]
        assert told(history(source, tmp_path, "x", mailbox="m2")) == [(3, "posted")]
        assert told(history(source, tmp_path, "x", "a", "m1", "s2")) == [(2, "posted")]
        assert told(history(source, tmp_path, "x", sender="")) == [(5, "posted")]
        export(source, tmp_path, final=True)


@pytest.mark.parametrize("id", HOSTILE)
def test_a_hostile_id_is_found_and_only_it(tmp_path: Path, id: str) -> None:
    events = [Event(NOON, "posted", "d", message_id=each, error=id, detail=f'["{id}"]') for each in (*HOSTILE, "", "x")]
    source = kept([events])
    assert [row.message_id for row in history(source, None, id)] == [id]
    export(source, tmp_path, final=True)
    assert [row.message_id for row in history(source, tmp_path, id)] == [id]


def test_an_unknown_id_or_folder_gives_nothing(tmp_path: Path) -> None:
    assert history(traffic(2), tmp_path / "nowhere", "nobody") == []
    assert history(None, None, "id-1") == []
    export(traffic(2), tmp_path, final=True)
    assert history(None, tmp_path, "nobody") == []
    assert history(None, tmp_path, "id-") == []


def test_a_restored_store_goes_on_under_its_new_name(tmp_path: Path) -> None:
    old = kept([[Event(NOON, "posted", "d", message_id="x")]], "z-old")
    export(old, tmp_path, final=True)
    new = kept([[Event(NOON + 5, "started", "", detail="{}"), Event(NOON + 6, "leased", "d", message_id="x")]], "a-new")
    expected = [("z-old", 1, "posted"), ("a-new", 2, "leased")]
    assert [(r.node, r.offset, r.event) for r in history(new, tmp_path, "x")] == expected
    export(new, tmp_path, final=True)
    assert [(r.node, r.offset, r.event) for r in history(None, tmp_path, "x")] == expected


def test_what_a_message_caused_is_told_from_chunks_and_from_segments(tmp_path: Path) -> None:
    store = MemoryStore(PRESETS, node="n1")
    store.apply([Post(Message("inbound", "box", "m"), at=NOON)])
    store.apply([Post(Message("outbound", "web/main", "r1", cause="m"), at=NOON + 1)])
    export(store, tmp_path, final=True)
    store.apply([Post(Message("outbound", "web/main", "r2", cause="m"), at=NOON + 2)])
    store.apply([Lease("outbound", "web/main", "t", at=NOON + 3)])
    effects: list[HistoryRow] = []
    assert [row.event for row in history(store, tmp_path, "m", effects=effects)] == ["posted"]
    assert [(row.message_id, row.event) for row in effects] == [("r1", "posted"), ("r2", "posted")]
    assert [row.message_id for row in history(store, tmp_path, "m")] == ["m"]


def test_segments_that_end_before_the_post_are_not_searched_and_a_clock_that_went_back_hides_nothing(
    tmp_path: Path,
) -> None:
    hour_us = 3_600_000_000
    events = [
        Event(NOON, "posted", "inbound", "box", message_id="old"),
        Event(NOON + 2 * hour_us, "posted", "inbound", "box", message_id="m"),
        # The clock was set back by two hours.
        Event(NOON, "leased", "inbound", "box", message_id="m"),
        Event(NOON + 1, "delivered", "inbound", "box", message_id="m"),
    ]
    export(kept([[event] for event in events]), tmp_path, segment_events=1, final=True)
    rows = history(None, tmp_path, "m", since=NOON + hour_us)
    assert [row.event for row in rows] == ["posted", "leased", "delivered"]
    # What is dated before is searched for no first row.
    assert history(None, tmp_path, "old", since=NOON + hour_us) == []
    assert len(history(None, tmp_path, "old")) == 1


def test_only_row_groups_that_may_hold_the_id_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment, "BATCH_ROWS", 100)
    monkeypatch.setattr(segment, "GROUP_ROWS", 100)
    source = kept([[Event(NOON + i, "posted", "d", message_id=f"{i:06d}") for i in range(1_000)]])
    export(source, tmp_path, final=True)
    read: list[tuple[int, int]] = []

    class Watched:
        def __init__(self, file: object) -> None:
            self.file = file

        def __getattr__(self, name: str) -> object:
            return getattr(self.file, name)

        def __enter__(self) -> Watched:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def read_row_group(self, group: int, columns: list[str]) -> object:
            read.append((group, len(columns)))
            return self.file.read_row_group(group, columns=columns)  # type: ignore[attr-defined]

    open_file = segment.open_file
    monkeypatch.setattr(segment, "open_file", lambda path: Watched(open_file(path)))
    assert [row.offset for row in history(None, tmp_path, "000512")] == [513]
    assert read == [(5, 1), (5, 21)]
    read.clear()
    assert history(None, tmp_path, "000512x") == []
    assert read == [(5, 1)]


def test_damage_is_named_or_noted_and_the_rest_is_told(tmp_path: Path) -> None:
    commits = [[Event(NOON + i, "retried", "d", message_id="x", error=f"{i}")] for i in range(8)]
    source = kept(commits)
    paths = export(source, tmp_path, segment_events=2, min_events=4).paths
    assert len(paths) == 4
    paths[1].write_bytes(paths[1].read_bytes()[:-30])
    source.kept = kept(commits).kept
    source.kept[6] = source.kept[6]._replace(data=b"damaged")

    with pytest.raises(StoreCorrupt, match="chunk 7-7 cannot be read"):
        history(source, tmp_path, "x")
    with pytest.raises(StoreCorrupt, match=paths[1].name):
        history(None, tmp_path, "x")
    noted: list[Finding] = []
    assert [row.error for row in history(None, tmp_path, "x", findings=noted)] == ["0", "1", "4", "5", "6", "7"]
    assert [(f.kind, f.where) for f in noted] == [(Kind.UNREADABLE, str(paths[1]))]
    noted.clear()
    assert len(history(source, tmp_path, "x", findings=noted)) == 8
    assert [f.where for f in noted] == ["node n1, chunk 7-7", str(paths[1])]


def test_chunk_and_segment_that_contradict_each_other_are_named(tmp_path: Path) -> None:
    (path,) = export(kept([[Event(NOON, "posted", "d", message_id="x")]]), tmp_path, final=True).paths
    other = kept([[Event(NOON, "died", "d", message_id="x")]])
    with pytest.raises(StoreCorrupt, match="differs from another place in offset 1"):
        history(other, tmp_path, "x")
    noted: list[Finding] = []
    assert told(history(other, tmp_path, "x", findings=noted)) == [(1, "died")]
    assert [f.where for f in noted] == [str(path)]
