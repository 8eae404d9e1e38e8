"""A Klingon node's database is taken over, and the store's own tables look like it to whoever reads with SQL."""

from __future__ import annotations

import asyncio
import base64
import json
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.libp2p.loop import coroutine, until
from tests.peer.nodes import ALICE, BOB, id_of, node
from tests.unit.cli.house import House

from posthouse.control.klingon import take
from posthouse.control.operation import Context
from posthouse.mailbox.message import State
from posthouse.peer.importing.klingon import read

NOW_S = int(time.time())
LATER_S = NOW_S + 86_400
TABLES = """
CREATE TABLE message_outbox(
    id INTEGER PRIMARY KEY AUTOINCREMENT, message_id TEXT UNIQUE NOT NULL, trade_id TEXT NOT NULL,
    peer_id TEXT NOT NULL, message_type TEXT NOT NULL, payload BLOB NOT NULL, sequence_num INTEGER NOT NULL,
    swap_timeout INTEGER NOT NULL, created_at INTEGER NOT NULL, retry_count INTEGER DEFAULT 0, last_attempt_at INTEGER,
    next_retry_at INTEGER NOT NULL, acked_at INTEGER, status TEXT DEFAULT 'pending', error_message TEXT);
CREATE TABLE message_inbox(
    id INTEGER PRIMARY KEY AUTOINCREMENT, message_id TEXT UNIQUE NOT NULL, trade_id TEXT NOT NULL,
    peer_id TEXT NOT NULL, message_type TEXT NOT NULL, sequence_num INTEGER NOT NULL, received_at INTEGER NOT NULL,
    processed_at INTEGER, ack_sent INTEGER DEFAULT 0);
CREATE TABLE message_sequences(
    trade_id TEXT PRIMARY KEY, local_seq INTEGER DEFAULT 0, remote_seq INTEGER DEFAULT 0, updated_at INTEGER NOT NULL);
"""


def klingon(path: Path, peer: str) -> Path:
    """A node's file: a trade in the middle, with something of everything."""
    with closing(sqlite3.connect(path)) as db:
        db.executescript(TABLES)
        for number, status, error, timeout_s in (
            (4, "acked", None, LATER_S),
            (5, "failed", "peer rejected", LATER_S),
            (7, "sent", None, LATER_S),
            (8, "pending", None, LATER_S),
            (9, "expired", None, NOW_S - 5_000),
        ):
            whole = {"type": "nonce_exchange", "trade_id": "t1", "order_id": "o1", "payload": {"n": number}}
            payload = json.dumps(whole if number % 2 else whole["payload"]).encode()
            db.execute(
                "INSERT INTO message_outbox (message_id, trade_id, peer_id, message_type, payload, sequence_num,"
                " swap_timeout, created_at, next_retry_at, status, error_message) VALUES (?,?,?,?,?,?,?,?,?,?,?)",
                (f"m{number}", "t1", peer, "nonce_exchange", payload, number, timeout_s, NOW_S - 600, 0, status, error),
            )
        for number, processed in ((3, True), (4, True), (6, False)):
            db.execute(
                "INSERT INTO message_inbox (message_id, trade_id, peer_id, message_type, sequence_num, received_at,"
                " processed_at) VALUES (?,?,?,?,?,?,?)",
                (f"r{number}", "t1", peer, "abort", number, NOW_S - 500, NOW_S - 499 if processed else None),
            )
        db.execute("INSERT INTO message_sequences VALUES ('t1', 9, 6, ?)", (NOW_S,))
        db.execute("INSERT INTO message_sequences VALUES ('alone', 2, 2, ?)", (NOW_S,))
        db.commit()
    return path


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> House:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "posthouse.toml").write_text("", encoding="utf-8")
    return House(tmp_path)


def test_everything_of_a_node_is_taken_over_once(house: House, tmp_path: Path) -> None:
    file = klingon(tmp_path / "klingon.db", id_of(BOB))
    before = file.read_bytes()
    tried = house.json("import", "klingon", str(file), "--dry-run", code=4)
    assert not (tmp_path / ".posthouse").exists()
    done = house.json("import", "klingon", str(file), code=4)
    assert {k: v for k, v in tried.items() if k != "dry_run"} == {k: v for k, v in done.items() if k != "dry_run"}
    assert (done["ready"], done["delivered"], done["failed"], done["expired"]) == (2, 3, 1, 1)
    assert [(f["where"], f["reason"]) for f in done["findings"]] == [
        ("message_inbox/r6", "unprocessed"),
        ("message_sequences/alone", "no_peer"),
        ("trade/t1", "gap"),
        ("trade/t1", "gap"),
    ]
    assert [f["message"] for f in done["findings"][2:]] == [
        "number 6 of ours is not in the outbox",
        "number 5 of the other party never came",
    ]
    rows = house.json("peer", "outbox")["messages"]
    assert [(m["sequence"], m["status"], m["error"]) for m in rows] == [
        (4, "acked", None),
        (5, "failed", "peer rejected"),
        (7, "pending", None),
        (8, "pending", None),
        (9, "expired", "deadline"),
    ]
    (trade,) = house.json("peer", "trades")["trades"]
    assert (trade["local_sequence"], trade["remote_sequence"]) == (9, 4)
    assert house.json("import", "klingon", str(file), code=4)["known"] == 7
    assert file.read_bytes() == before
    # What comes next counts on.
    house.run("peer", "send", id_of(BOB), "t1", "abort", "--id", "next")
    assert house.json("peer", "outbox")["messages"][-1]["sequence"] == 10


@coroutine
async def test_what_was_taken_over_is_sent_on_with_its_old_numbers(tmp_path: Path) -> None:
    trades, _ = read(klingon(tmp_path / "klingon.db", id_of(BOB)))
    async with node(tmp_path, ALICE) as alice, node(tmp_path, BOB) as bob:
        (trade,) = trades
        entries = [{**e._asdict(), "body": base64.b64encode(e.body).decode()} for e in trade.entries]
        page: dict[str, Any] = {
            "trade": "t1", "peer": bob.id, "base": trade.base, "heard": trade.heard, "timeout_s": trade.timeout_s,
            "opened_s": trade.opened_s, "entries": entries,
        }  # fmt: skip
        context: Any = Context(alice.engine, None, "test", lambda *_: None)  # type: ignore[arg-type]
        await asyncio.to_thread(take, context, page=page)
        await bob.meet(alice)
        await alice.peer.send(bob.id, "t1", "abort", "new")
        # The other side has nothing: what was delivered once comes again, what is gone is told to be so.
        await until(lambda: len(bob.came) == 4)
        assert [(m.sequence, m.id[:2]) for m in bob.came][:3] == [(4, "m4"), (7, "m7"), (8, "m8")]
        assert (bob.came[3].sequence, bob.came[3].payload) == (10, "new")
        assert bob.came[1].order == "o1"
        assert bob.came[1].payload == {"n": 7}
        await until(lambda: len(alice.sent(State.DELIVERED)) == 4)


@pytest.mark.parametrize("kind", ["missing", "text", "other", "folder"])
def test_a_file_that_is_none_of_a_node_is_refused_and_leaves_no_store(house: House, tmp_path: Path, kind: str) -> None:
    file = tmp_path / "file.db"
    if kind == "text":
        file.write_text("hello, this is no database at all", encoding="utf-8")
    elif kind == "folder":
        file.mkdir()
    elif kind == "other":
        with closing(sqlite3.connect(file)) as db:
            db.execute("CREATE TABLE t (a)")
    assert house.json("import", "klingon", str(file), code=2)["error"]["code"] == "bad_file"
    assert not (tmp_path / ".posthouse").exists()


def test_damaged_rows_are_left_out_and_named(house: House, tmp_path: Path) -> None:
    file = klingon(tmp_path / "klingon.db", id_of(BOB))
    with closing(sqlite3.connect(file)) as db:
        db.execute("UPDATE message_outbox SET payload = x'ff00' WHERE message_id = 'm4'")
        db.execute("UPDATE message_outbox SET status = 'odd' WHERE message_id = 'm5'")
        db.execute("UPDATE message_outbox SET peer_id = 'somebody else' WHERE message_id = 'm7'")
        db.execute("UPDATE message_inbox SET sequence_num = -1 WHERE message_id = 'r3'")
        db.commit()
    done = house.json("import", "klingon", str(file), code=4)
    found = {f["where"]: f["reason"] for f in done["findings"]}
    assert found["message_outbox/m4"] == found["message_outbox/m5"] == found["message_inbox/r3"] == "damaged"
    assert done["trades"][0]["peer"] == id_of(BOB) or found["message_outbox/m8"] == "counterparty"


# Views.


def rows(path: Path, sql: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
        return db.execute(sql).fetchall()


@coroutine
async def test_the_views_show_outbox_inbox_and_numbers(tmp_path: Path) -> None:
    async with node(tmp_path, ALICE) as alice, node(tmp_path, BOB) as bob:
        await alice.meet(bob)
        await alice.peer.send(bob.id, "t1", "abort", {"why": "x"}, id="m1")
        await until(lambda: alice.sent(State.DELIVERED))
        await bob.peer.send(alice.id, "t1", "complete", None, id="b1")
        await until(lambda: alice.came)
        await bob.peer.close()
        await bob.host.close()
        await until(lambda: alice.host.peers == [])
        await alice.peer.send(bob.id, "t1", "complete", 2, id="m2")
        await until(lambda: alice.stats.away)
        path = tmp_path / f"{alice.id[-8:]}.db"
        out = rows(
            path,
            "SELECT message_id, trade_id, peer_id, message_type, payload, sequence_num, retry_count > 0,"
            " acked_at IS NULL, status FROM message_outbox ORDER BY number",
        )
        assert out[0] == ("m1", "t1", bob.id, "abort", '{"why":"x"}', 1, 1, 0, "acked")
        assert out[1][:6] == ("m2", "t1", bob.id, "complete", "2", 2)
        assert out[1][8] in ("pending", "sent")
        inbox = (
            "SELECT message_id, trade_id, peer_id, message_type, sequence_num, processed_at IS NULL FROM message_inbox"
        )
        assert rows(path, inbox) == [("b1", "t1", bob.id, "complete", 1, 0)]
        assert rows(path, "SELECT * FROM message_sequences") == [("t1", 2, 1)]


def test_the_views_of_a_store_that_was_taken_over_are_those_of_the_node(house: House, tmp_path: Path) -> None:
    file = klingon(tmp_path / "klingon.db", id_of(BOB))
    house.run("import", "klingon", str(file), code=4)
    columns = "message_id, trade_id, peer_id, message_type, sequence_num, created_at, status"
    ours, theirs = (
        rows(path, f"SELECT {columns} FROM message_outbox ORDER BY sequence_num")
        for path in (tmp_path / ".posthouse/posthouse.db", file)
    )
    # Sent and not acknowledged is, after a restart, to be sent.
    assert ours == [(*row[:-1], "pending") if row[-1] == "sent" else row for row in theirs]
    assert rows(tmp_path / ".posthouse/posthouse.db", "SELECT * FROM message_sequences") == [("t1", 9, 4)]
