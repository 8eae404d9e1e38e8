"""Stores that an older program wrote: what they hold is found by this one."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import apsw
from tests.conformance.desks import DESKS
from tests.conformance.scene import T0, message, ref
from tests.old_schema import make_older

from posthouse.mailbox.command import Lease, Post, Settle, Verdict
from posthouse.mailbox.outcome import Leased
from posthouse.stores.sqlite import SqliteStore


def lanes(path: Path) -> dict[str, tuple[int, int]]:
    """Depth of each mailbox's lane, and whether the index of waiting lanes has it."""
    with closing(apsw.Connection(str(path))) as db:
        return {
            name: (depth, listed)
            for name, depth, listed in db.execute(
                "SELECT m.name, s.depth, EXISTS (SELECT 1 FROM lane_state w INDEXED BY lane_waiting"
                " WHERE w.mailbox_id = m.id AND w.waiting = 1) FROM lane_state s JOIN mailbox m ON m.id = s.mailbox_id"
            )
        }


def test_a_store_of_schema_4_says_which_lanes_wait(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    store = SqliteStore.open(path, DESKS, "here")
    store.apply([Post(message("plain", id, mailbox=box), at=T0) for id, box in (("1", "a"), ("2", "b"), ("3", "b"))])
    store.apply([Lease("plain", "a", "t", at=T0)])
    store.apply([Settle(ref("plain", "1", mailbox="a"), "t", Verdict.DELIVERED, at=T0)])
    store.close()
    make_older(path, 4)
    with closing(apsw.Connection(str(path))) as db:
        assert "waiting" not in [row[1] for row in db.execute("PRAGMA table_info(lane_state)")]
    store = SqliteStore.open(path, DESKS, "here")
    assert store.integrity() == []
    (leased,) = store.apply([Lease("plain", None, "t", at=T0)])
    assert isinstance(leased, Leased)
    assert [delivery.message.id for delivery in leased.deliveries] == ["2"]
    store.close()
    assert lanes(path) == {"a": (0, 0), "b": (2, 1)}


def test_a_lane_waits_from_its_first_message_to_its_last(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    seen = []
    with closing(SqliteStore.open(path, DESKS, "here")) as store:
        for id in ("1", "2"):
            store.apply([Post(message("plain", id), at=T0)])
            seen.append(lanes(path)["m"])
        for id in ("1", "2"):
            store.apply([Lease("plain", "m", "t", at=T0)])
            store.apply([Settle(ref("plain", id), "t", Verdict.DELIVERED, at=T0)])
            seen.append(lanes(path)["m"])
        store.apply([Post(message("plain", "3"), at=T0)])
        seen.append(lanes(path)["m"])
        assert store.integrity() == []
    assert seen == [(1, 1), (2, 1), (1, 1), (0, 0), (1, 1)]
