"""Damaged and hostile state folders: reported, left where they are, and harmless to what is beside them."""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.gateway.importing.conftest import Sample
from tests.gateway.importing.test_openclaw import AT, by_source, fingerprint, kept, taken, write
from tests.unit.cli.house import House

from posthouse.mailbox.message import State

GOOD = "33333333-0000-4000-8000-000000000001"
ENTRY = {"enqueuedAt": 1_773_360_000_000, "channel": "telegram", "to": "1", "payloads": [{"text": "x"}]}


def entry(**fields: Any) -> bytes:
    return json.dumps({"id": "bad", **ENTRY, **fields}).encode()


DAMAGED = {
    "empty": b"",
    "torn": entry()[:40],
    "binary": bytes(range(256)),
    "utf-16": entry().decode().encode("utf-16"),
    "latin-1": '{"id": "bad", "to": "Größe"}'.encode("latin-1"),
    "byte order mark": b"\xef\xbb\xbf" + entry(),
    "a list": b"[1, 2]",
    "another id": entry(id="other"),
    "no id": json.dumps(ENTRY).encode(),
    "key twice": b'{"id": "bad", "id": "bad"}',
    "not a number": b'{"id": "bad", "enqueuedAt": NaN}',
    "huge number": b'{"id": "bad", "enqueuedAt": ' + b"9" * 5_000 + b"}",
    "infinite": b'{"id": "bad", "enqueuedAt": 1e999}',
    "deep": b'{"id": "bad", "x": ' + b"[" * 10_000 + b"]" * 10_000 + b"}",
    "half a pair": b'{"id": "bad", "to": "\\ud800"}',
    "no channel": entry(channel=None),
    "no target": entry(to=""),
    "channel is a list": entry(channel=[]),
    "no payloads": entry(payloads=None),
    "empty payloads": entry(payloads=[]),
    "payload is text": entry(payloads=["hello"]),
    "too many payloads": entry(payloads=[{"text": "x"}] * 101),
    "control characters": entry(to="a\nb\x1b[31m"),
    "long target": entry(to="x" * 600),
}


@pytest.mark.parametrize("data", list(DAMAGED.values()), ids=list(DAMAGED))
def test_a_damaged_file_stays_where_it_is(house: House, sample: Sample, data: bytes) -> None:
    folder = sample("2026.3.13")
    (folder / "delivery-queue" / "bad.json").write_bytes(data)
    before = fingerprint(folder)
    document = taken(house, folder, code=4)
    row = by_source(document)["delivery-queue/bad.json"]
    assert (row["result"], row["became"], row["reason"]) == ("quarantined", "left", "malformed")
    assert row["message"]
    assert fingerprint(folder) == before
    views = kept(house)
    assert "bad" not in views
    assert views[GOOD].state is State.READY


def test_a_file_that_is_too_large_is_not_read(house: House, sample: Sample) -> None:
    folder = sample("2026.3.13")
    with (folder / "delivery-queue" / "huge.json").open("wb") as file:
        file.truncate(17 * 1_048_576)
    row = by_source(taken(house, folder, code=4))["delivery-queue/huge.json"]
    assert row["reason"] == "oversize"
    assert kept(house)[GOOD].state is State.READY


def test_an_entry_larger_than_the_desk_takes_is_left(house: House, sample: Sample) -> None:
    folder = sample("2026.3.13")
    write(folder / "delivery-queue", "large", payloads=[{"text": "x" * 1_100_000}])
    row = by_source(taken(house, folder, code=4))["delivery-queue/large.json"]
    assert (row["reason"], row["result"]) == ("oversize", "quarantined")


def test_links_and_pipes_are_not_followed(house: House, sample: Sample, tmp_path: Path) -> None:
    folder = sample("2026.3.13")
    queue = folder / "delivery-queue"
    secret = write(tmp_path, "link")
    (queue / "link.json").symlink_to(secret)
    (queue / "broken.json").symlink_to(tmp_path / "nowhere")
    os.mkfifo(queue / "pipe.json")
    (queue / "folder.json").mkdir()
    rows = by_source(taken(house, folder, code=4))
    reasons = {name: rows[f"delivery-queue/{name}.json"]["reason"] for name in ("link", "broken", "pipe", "folder")}
    assert reasons == {"link": "symlink", "broken": "symlink", "pipe": "not_a_file", "folder": "not_a_file"}
    assert "link" not in kept(house)


def test_a_queue_that_is_a_link_is_not_followed(house: House, sample: Sample, tmp_path: Path) -> None:
    folder = sample("2026.5.18")
    (folder / "delivery-queue").rename(tmp_path / "elsewhere")
    (folder / "delivery-queue").symlink_to(tmp_path / "elsewhere")
    rows = by_source(taken(house, folder, code=4))
    assert rows["delivery-queue"]["reason"] == "symlink"
    assert kept(house) == {}
    assert len(kept(house, "inbound")) == 1


def test_the_same_id_twice_is_taken_once_and_not_sent_where_it_failed(house: House, sample: Sample) -> None:
    folder = sample("2026.3.13")
    queue = folder / "delivery-queue"
    same, other = write(queue, "same"), write(queue, "other")
    (queue / "failed" / "same.json").write_bytes(same.read_bytes())
    (queue / "failed" / "other.json").write_bytes(other.read_bytes().replace(b"hello", b"goodbye"))
    rows = by_source(taken(house, folder, code=4))
    assert rows["delivery-queue/same.json"]["reason"] == "known"
    assert rows["delivery-queue/other.json"]["reason"] == "conflict"
    views = kept(house)
    assert (views["same"].state, views["other"].state) == (State.DEAD, State.DEAD)


@pytest.mark.parametrize("version", list(AT))
def test_a_folder_that_cannot_be_written_is_enough(house: House, sample: Sample, version: str) -> None:
    folder = sample(version)
    places = [folder, *(path for path in folder.rglob("*"))]
    for path in places:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        document = taken(house, folder, code=4 if version == "2026.2.17" else 0)
    finally:
        for path in places:
            path.chmod(0o755 if path.is_dir() else 0o644)
    assert sum(document["imported"].values()) > 0


def test_a_mark_of_delivery_counts_even_when_it_is_torn(house: House, sample: Sample) -> None:
    folder = sample("2026.3.13")
    write(folder / "delivery-queue", "sent")
    (folder / "delivery-queue" / "sent.delivered").write_bytes(b'{"id": "se')
    rows = by_source(taken(house, folder))
    assert rows["delivery-queue/sent.delivered"]["result"] == "delivered"
    assert rows["delivery-queue/sent.json"]["result"] == "ignored"
    assert "sent" not in kept(house)


def test_names_that_do_something_to_a_terminal_are_inert(house: House, sample: Sample) -> None:
    folder = sample("2026.3.13")
    (folder / "delivery-queue" / "\x1b[31mred\n.json").write_text("{}")
    (folder / "delivery-queue" / os.fsdecode(b"\xff\xfe.json")).write_text("{}")
    result = house.run("import", "openclaw", str(folder), "--now", AT["2026.3.13"], code=4)
    assert "\x1b" not in result.stdout
    assert "\\x1b[31mred\\n.json" in result.stdout


def test_a_torn_database_is_reported_and_the_files_beside_it_are_set_aside(house: House, sample: Sample) -> None:
    folder = sample("2026.6.11")
    path = folder / "state" / "openclaw.sqlite"
    path.write_bytes(path.read_bytes()[:5_000])
    (folder / "delivery-queue").mkdir()
    write(folder / "delivery-queue", "left-over", enqueuedAt=1_781_136_000_000)
    rows = by_source(taken(house, folder, code=4))
    assert any(row["reason"] == "unreadable" for row in rows.values() if row["became"] == "left")
    assert kept(house)["left-over"].state is State.PARKED


def test_what_is_no_database_at_all_is_reported(house: House, sample: Sample) -> None:
    folder = sample("2026.6.11")
    (folder / "state" / "openclaw.sqlite").write_text("not a database, but a text of some length\n" * 50)
    (row,) = taken(house, folder, code=4)["entries"]
    assert (row["source"], row["reason"]) == ("state/openclaw.sqlite", "unreadable")


def test_another_programs_database_is_left_alone(house: House, sample: Sample) -> None:
    folder = sample("2026.6.11")
    path = folder / "state" / "openclaw.sqlite"
    path.unlink()
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE other (x)")
    (row,) = taken(house, folder, code=4)["entries"]
    assert "no database of OpenClaw" in row["message"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("UPDATE delivery_queue_entries SET entry_json = '{'", "malformed"),
        ("UPDATE delivery_queue_entries SET entry_json = CAST(X'7B22FF227D' AS TEXT)", "malformed"),
        ("UPDATE delivery_queue_entries SET status = 'flying'", "unsupported"),
        ("UPDATE delivery_queue_entries SET queue_name = 'unheard-of' WHERE rowid = 1", "unsupported"),
        ("UPDATE delivery_queue_entries SET id = 'another' WHERE rowid = 1", "malformed"),
        ("ALTER TABLE delivery_queue_entries DROP COLUMN entry_json", "unsupported"),
    ],
)
def test_a_damaged_row_is_left_and_the_others_are_taken(house: House, sample: Sample, change: str, reason: str) -> None:
    folder = sample("2026.6.11")
    with closing(sqlite3.connect(folder / "state/openclaw.sqlite")) as database:
        database.execute(change)
        database.commit()
    document = taken(house, folder, code=4)
    assert {row["reason"] for row in document["entries"] if row["became"] == "left"} == {reason}
    assert len(kept(house, "inbound")) == 4


def test_a_folder_without_a_queue_is_refused(house: House, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "no queue of OpenClaw" in house.json("import", "openclaw", str(empty), code=2)["error"]["message"]
    assert "is no folder" in house.json("import", "openclaw", str(tmp_path / "no"), code=2)["error"]["message"]
    queue = tmp_path / "delivery-queue"
    queue.mkdir()
    message = house.json("import", "openclaw", str(queue), code=2)["error"]["message"]
    assert "name the folder around it" in message
    assert not house.config().path("store.path").exists()
