"""The views for people who look with SQL: read here with nothing but Python's own sqlite3."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.old_schema import make_older

from posthouse.engine.clock import Clock
from posthouse.engine.engine import Engine
from posthouse.gateway.letter import Inbound, Media, Outbound, Part
from posthouse.mailbox.command import Command, Lease, Park, Post, Renew, Settle, Verdict
from posthouse.mailbox.message import SECOND, Message
from posthouse.mailbox.outcome import Leased, Outcome
from posthouse.mailbox.policy import INBOUND, OUTBOUND
from posthouse.stores.sqlite import SqliteStore

T0 = 1_790_000_000 * SECOND
T0_TEXT = "2026-09-21T14:13:20.000Z"
INBOUND_COLUMNS = [
    "id",
    "session_id",
    "channel",
    "from_address",
    "body",
    "media_url",
    "thread_id",
    "reply_to_id",
    "metadata",
    "status",
    "created_at",
    "processing_started_at",
    "completed_at",
    "retry_count",
    "max_retries",
    "next_retry_at",
    "error",
]
OUTBOUND_COLUMNS = [
    "id",
    "session_id",
    "channel",
    "to_address",
    "payloads",
    "media_url",
    "thread_id",
    "reply_to_id",
    "metadata",
    "status",
    "created_at",
    "processing_started_at",
    "sent_at",
    "retry_count",
    "max_retries",
    "next_retry_at",
    "error",
]


class Desk:
    """A store whose clock stands still, and what plain SQL sees of it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.at = T0
        self.store = SqliteStore.open(path, {p.name: p for p in (INBOUND, OUTBOUND)}, "here")
        self.engine = Engine(self.store, clock=Clock(lambda: self.at * 1_000, lambda: self.at * 1_000))
        self.engine.start()

    def do(self, command: Command) -> Outcome:
        return self.engine.call(command)[0]

    def lease(self, desk: str, mailbox: str, token: str = "t") -> Message:
        leased = self.do(Lease(desk, mailbox, token))
        assert isinstance(leased, Leased)
        (delivery,) = leased.deliveries
        return delivery.message

    def rows(self, query: str) -> list[dict[str, Any]]:
        with closing(sqlite3.connect(f"file:{self.path}?mode=ro", uri=True)) as database:
            database.row_factory = sqlite3.Row
            return [dict(row) for row in database.execute(query)]

    def row(self, view: str, id: str) -> dict[str, Any]:
        (row,) = [row for row in self.rows(f"SELECT * FROM {view}") if row["id"] == id]
        return row


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path / "a.db")
    yield made
    made.engine.close()


def asked(id: str, **more: Any) -> Inbound:
    return Inbound(id, "telegram", "chat-1", sender="ann", text=f"text of {id}", **more)


def answer(id: str, **more: Any) -> Outbound:
    return Outbound(id, "telegram", "chat-1", (Part(f"text of {id}"),), origin="handler", **more)


def test_the_columns_are_those_that_such_queues_have(desk: Desk) -> None:
    with closing(sqlite3.connect(desk.path)) as database:
        for view, columns in (
            ("inbound_message_queue", INBOUND_COLUMNS),
            ("outbound_message_queue", OUTBOUND_COLUMNS),
            ("inbound_dead_letter", ["id", "original_message", "error", "failed_at"]),
            ("outbound_dead_letter", ["id", "original_message", "error", "failed_at"]),
        ):
            found = [column[0] for column in database.execute(f"SELECT * FROM {view}").description]
            assert set(columns) <= set(found), view


def test_a_waiting_inbound_message_has_all_its_fields(desk: Desk) -> None:
    media = (Media("https://example.org/a.png", "image/png"),)
    desk.do(asked("1", session="s", thread="7", reply_to="0", media=media, metadata={"a": [1, "ü"]}).post())
    row = desk.row("inbound_message_queue", "1")
    assert {name: row[name] for name in INBOUND_COLUMNS} == {
        "id": "1",
        "session_id": "s",
        "channel": "telegram",
        "from_address": "ann",
        "body": "text of 1",
        "media_url": "https://example.org/a.png",
        "thread_id": "7",
        "reply_to_id": "0",
        "metadata": '{"a":[1,"ü"]}',
        "status": "pending",
        "created_at": T0_TEXT,
        "processing_started_at": None,
        "completed_at": None,
        "retry_count": 0,
        "max_retries": 5,
        "next_retry_at": None,
        "error": None,
    }
    assert (row["state"], row["tenant"]) == ("ready", "default")


def test_a_message_goes_through_all_statuses(desk: Desk) -> None:
    desk.do(asked("1").post())
    message = desk.lease("inbound", "default")
    row = desk.row("inbound_message_queue", "1")
    assert (row["status"], row["processing_started_at"]) == ("processing", T0_TEXT)
    desk.do(Settle(message.ref, "t", Verdict.RETRY, error="the model is busy"))
    row = desk.row("inbound_message_queue", "1")
    assert (row["status"], row["retry_count"], row["error"]) == ("pending", 1, "the model is busy")
    assert row["next_retry_at"] == "2026-09-21T14:13:21.000Z"
    desk.at += 2 * SECOND
    desk.lease("inbound", "default")
    desk.do(Settle(message.ref, "t", Verdict.DELIVERED))
    row = desk.row("inbound_message_queue", "1")
    assert (row["status"], row["completed_at"]) == ("completed", "2026-09-21T14:13:22.000Z")
    assert (row["retry_count"], row["next_retry_at"]) == (1, None)


def test_an_outbound_message_shows_its_parts_and_how_many_are_sent(desk: Desk) -> None:
    parts = (Part("one"), Part("two", (Media("https://example.org/b.png"),)))
    desk.do(
        Outbound("1", "telegram", "chat-1", parts, thread="7", reply_to="5", session="s", cause="q1").post(),
    )
    message = desk.lease("outbound", "telegram/default")
    desk.do(Renew("outbound", "t", message.ref, 1))
    row = desk.row("outbound_message_queue", "1")
    assert json.loads(row["payloads"]) == [
        {"text": "one"},
        {"text": "two", "media": [{"url": "https://example.org/b.png"}]},
    ]
    assert (row["to_address"], row["session_id"], row["thread_id"], row["reply_to_id"]) == ("chat-1", "s", "7", "5")
    assert (row["media_url"], row["cause_id"], row["parts_sent"]) == ("https://example.org/b.png", "q1", 1)
    desk.do(Settle(message.ref, "t", Verdict.DELIVERED))
    row = desk.row("outbound_message_queue", "1")
    assert (row["status"], row["sent_at"]) == ("completed", T0_TEXT)


def test_dead_letters_hold_the_original_and_why(desk: Desk) -> None:
    desk.do(asked("1").post())
    desk.do(Settle(desk.lease("inbound", "default").ref, "t", Verdict.DEAD, error="it broke"))
    desk.do(answer("2").post())
    desk.do(Settle(desk.lease("outbound", "telegram/default").ref, "t", Verdict.REJECTED))
    (dead,) = desk.rows("SELECT * FROM inbound_dead_letter")
    assert (dead["id"], dead["error"], dead["failed_at"], dead["reason"]) == ("1", "it broke", T0_TEXT, "permanent")
    assert json.loads(dead["original_message"])["body"] == "text of 1"
    (dead,) = desk.rows("SELECT * FROM outbound_dead_letter")
    assert (dead["id"], dead["error"]) == ("2", "rejected")
    original = json.loads(dead["original_message"])
    assert (original["payloads"], original["to_address"]) == ([{"text": "text of 2"}], "chat-1")
    assert desk.row("inbound_message_queue", "1")["status"] == "failed"


def test_what_is_set_aside_is_told_apart_by_its_state(desk: Desk) -> None:
    desk.do(answer("1").post())
    desk.do(answer("2", thread="other").post())
    message = desk.lease("outbound", "telegram/default")
    desk.do(Settle(message.ref, "t", Verdict.UNCERTAIN, error="socket hang up"))
    desk.do(Park(answer("2", thread="other").ref))
    row = desk.row("outbound_message_queue", "1")
    assert (row["status"], row["state"], row["error"]) == ("processing", "uncertain", "socket hang up")
    row = desk.row("outbound_message_queue", "2")
    assert (row["status"], row["state"], row["error"]) == ("pending", "parked", "operator")


def test_a_body_that_is_no_letter_breaks_nothing(desk: Desk) -> None:
    desk.do(Post(Message("inbound", "default", "raw", b"\xff\x00 not JSON", lane="s")))
    desk.do(Post(Message("outbound", "telegram/default", "raw", b"plain", lane="chat-1")))
    desk.do(Post(Message("outbound", "telegram/default", "list", b"[1]", lane="chat-2")))
    desk.do(asked("1").post())
    assert {row["id"] for row in desk.rows("SELECT * FROM inbound_message_queue")} == {"raw", "1"}
    assert desk.row("outbound_message_queue", "raw")["payloads"] is None
    assert desk.row("outbound_message_queue", "list")["to_address"] == "chat-2"
    assert desk.rows("SELECT * FROM outbound_dead_letter") == []


def test_the_views_are_read_only(desk: Desk) -> None:
    with closing(sqlite3.connect(desk.path)) as database:
        for change in (
            "INSERT INTO inbound_message_queue (id) VALUES ('x')",
            "UPDATE outbound_message_queue SET status = 'completed'",
            "DELETE FROM inbound_dead_letter",
        ):
            with pytest.raises(sqlite3.OperationalError, match="it is a view"):
                database.execute(change)


def test_a_store_of_schema_2_gets_the_views(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    store = SqliteStore.open(path, {"inbound": INBOUND}, "here")
    store.apply([asked("1").post()._replace(at=T0)])
    store.close()
    make_older(path, 2)
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("SELECT 1 FROM sqlite_schema WHERE type = 'view'").fetchall() == []
    SqliteStore.open(path, {"inbound": INBOUND}, "here").close()
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("SELECT id, status FROM inbound_message_queue").fetchall() == [("1", "pending")]
