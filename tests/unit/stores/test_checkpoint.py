"""The log is moved into the file beside the writer, and begins anew while it is busy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from posthouse.mailbox.command import Post
from posthouse.mailbox.message import SECOND, Message
from posthouse.mailbox.policy import Policy
from posthouse.stores.sqlite import SqliteStore, checkpoint

T0 = 1_790_000_000 * SECOND
PAGE_BYTES = 4_096
DESKS = {"mail": Policy("mail")}


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SqliteStore]:
    monkeypatch.setattr(checkpoint, "START_PAGES", 64)
    with closing(SqliteStore.open(tmp_path / "a.db", DESKS, "here")) as store:
        yield store


def write(store: SqliteStore, commits: int, first: int = 0) -> None:
    """Commit without a pause."""
    for n in range(first, first + commits):
        store.apply([Post(Message("mail", "m", str(n), bytes(1_000)), at=T0)])


def log_pages(store: SqliteStore) -> int:
    return int(Path(store.path + "-wal").stat().st_size) // PAGE_BYTES


def test_the_log_of_a_writer_without_a_pause_begins_anew(store: SqliteStore) -> None:
    write(store, 400)
    # Each commit writes five pages or more; what the log has ever held shows in its length.
    assert log_pages(store) < 400


def test_a_reader_that_keeps_the_log_holds_nobody_up(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "REST_WAIT_S", 3_600.0)
    write(store, 10)
    with closing(apsw.Connection(store.path)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM message").fetchall()
        write(store, 200, first=10)
        kept = log_pages(store)
        assert kept > 600
    write(store, 200, first=210)
    assert log_pages(store) < kept + 600
    assert store.integrity() == []
