"""Keep: facts of a role's own, durable beside the messages and without a word in the journal."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest
from tests.conformance.desks import DESKS
from tests.conformance.scene import T0, Scene, message, ref
from tests.old_schema import make_older

from posthouse.errors import StoreCorrupt
from posthouse.mailbox.command import Cancel, Keep, Post, Together
from posthouse.mailbox.outcome import Done, Kept, NotFound, Posted
from posthouse.stores.sqlite import SqliteStore, restore
from posthouse.stores.sqlite import connection as sqlite_connection


def test_what_is_kept_is_found_under_its_shelf_and_key(scene: Scene) -> None:
    assert scene.do(Keep("shelf", "key", b"1")) == Kept(True)
    assert scene.store.kept_value("shelf", "key") == b"1"
    assert scene.store.kept_value("shelf", "other") is None
    assert scene.store.kept_value("other", "key") is None


def test_keeping_again_replaces_and_says_whether_anything_changed(scene: Scene) -> None:
    outcomes = scene.apply(*(Keep("shelf", "key", value) for value in (b"1", b"1", b"2", b"2", None, None, b"")))
    assert outcomes == [Kept(changed) for changed in (True, False, True, False, True, False, True)]
    assert scene.store.kept_value("shelf", "key") == b""
    assert [scene.do(Keep("shelf", "key", value)) for value in (b"", None, None)] == [
        Kept(False),
        Kept(True),
        Kept(False),
    ]
    assert scene.store.kept_value("shelf", "key") is None
    assert scene.store.kept("shelf") == []


def test_a_shelf_is_read_in_order_of_its_keys_a_page_at_a_time(scene: Scene) -> None:
    keys = ["b", "a", "a b", "Z", "ä", "\U0001f600", "\uffff"]
    scene.apply(*(Keep("shelf", key, key.encode()) for key in keys), Keep("shelf2", "c", b""), Keep("a", "c", b""))
    found = scene.store.kept("shelf")
    assert found == [(key, key.encode()) for key in sorted(keys)]
    pages, after = [], ""
    while page := scene.store.kept("shelf", after, limit=2):
        pages += page
        after = page[-1][0]
    assert pages == found


def test_keeping_writes_no_event_and_is_a_commit_all_the_same(scene: Scene, tmp_path: Path) -> None:
    scene.do(Keep("shelf", "key", b"1"))
    assert scene.store.offset() == 0
    if isinstance(scene.store, SqliteStore):
        scene.store.close()
        store = SqliteStore.open(tmp_path / "mail.db", DESKS)
        assert store.kept("shelf") == [("key", b"1")]
        store.close()


def test_an_undone_group_leaves_the_shelf_as_it_was(scene: Scene) -> None:
    scene.apply(Keep("shelf", "old", b"1"), Keep("shelf", "gone", b"1"))
    group = (Keep("shelf", "old", b"2"), Keep("shelf", "new", b"1"), Keep("shelf", "new", b"2"))
    undone = Together((*group, Keep("shelf", "gone", None), Cancel(ref("plain", "z"))))
    outcomes = scene.apply(Keep("shelf", "here", b"1"), undone, Keep("shelf", "here", b"1"))
    assert outcomes == [Kept(True), NotFound(), Kept(False)]
    assert scene.store.kept("shelf") == [("gone", b"1"), ("here", b"1"), ("old", b"1")]
    done = scene.do(Together((*group, Post(message("plain", "a")))))
    assert done == Done((Kept(True), Kept(True), Kept(True), Posted(1, None)))
    assert scene.store.kept("shelf") == [("gone", b"1"), ("here", b"1"), ("new", b"2"), ("old", b"2")]


def test_large_values_are_kept_whole(scene: Scene) -> None:
    value = bytes(range(256)) * 256
    key = "ä" * 512
    scene.apply(Keep("shelf", key, value), Keep("shelf", "k", value))
    assert scene.store.kept("shelf") == [("k", value), (key, value)]


# What only a file can show.


def opened(path: Path) -> SqliteStore:
    return SqliteStore.open(path, DESKS, node="kept")


def test_a_batch_that_changes_nothing_writes_nothing(tmp_path: Path) -> None:
    store = opened(tmp_path / "a.db")
    store.apply([Keep("shelf", "key", b"1", at=T0)])
    size = (tmp_path / "a.db-wal").stat().st_size
    assert store.apply([Keep("shelf", "key", b"1", at=T0), Keep("shelf", "no", None, at=T0)]) == [Kept(False)] * 2
    assert (tmp_path / "a.db-wal").stat().st_size == size
    store.close()


def test_a_store_of_schema_1_opens_and_keeps_its_messages(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    store = opened(path)
    store.apply([Post(message("plain", "a"), at=T0)])
    store.close()
    make_older(path, 1)
    db = apsw.Connection(str(path))
    assert db.execute("PRAGMA user_version").fetchall() == [(1,)]
    assert db.execute("SELECT 1 FROM sqlite_schema WHERE name = 'kept'").fetchall() == []
    db.close()
    store = opened(path)
    assert store.message(ref("plain", "a")) is not None
    assert store.kept("shelf") == []
    assert store.apply([Keep("shelf", "key", b"1", at=T0)]) == [Kept(True)]
    assert store.facts()["user_version"] == sqlite_connection.SCHEMA_VERSION
    assert store.integrity() == []
    store.close()


def test_a_snapshot_holds_what_was_kept(tmp_path: Path) -> None:
    store = opened(tmp_path / "a.db")
    store.apply([Keep("shelf", "key", b"1", at=T0)])
    store.snapshot(tmp_path / "copy.db")
    store.close()
    restore(tmp_path / "copy.db", tmp_path / "b.db", "again")
    store = opened(tmp_path / "b.db")
    assert store.kept("shelf") == [("key", b"1")]
    store.close()


def test_a_damaged_row_is_named_and_can_be_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    store = opened(path)
    store.apply([Keep("shelf", "key", b"12345", at=T0), Keep("shelf", "well", b"1", at=T0)])
    store.close()
    db = apsw.Connection(str(path))
    db.execute("UPDATE kept SET value = x'3132333434' WHERE key = 'key'")
    db.close()
    store = opened(path)
    for look in (lambda: store.kept("shelf"), lambda: store.kept_value("shelf", "key")):
        with pytest.raises(StoreCorrupt, match="shelf 'shelf' keeps under 'key'"):
            look()
    assert store.kept_value("shelf", "well") == b"1"
    assert store.integrity() == ["what shelf 'shelf' keeps under 'key' is not what was written"]
    # It takes what comes, even what the damaged row happens to say.
    assert store.apply([Keep("shelf", "key", b"12344", at=T0)]) == [Kept(True)]
    assert store.kept_value("shelf", "key") == b"12344"
    assert store.integrity() == []
    store.close()
