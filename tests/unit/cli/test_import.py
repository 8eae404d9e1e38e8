"""posthouse import pinch: a Go relay's file becomes a store, with order, age and time left as they were."""

from __future__ import annotations

import fcntl
import json
import time
from pathlib import Path
from typing import Any

import pytest
from tests.interop.bolt import ALICE, BOB, CAROL, DAVE, DAY_NS, HOST, MINUTE_NS, T0_NS, kept_file
from tests.unit.cli.house import House

from posthouse.control import relay
from posthouse.control.operator import open_store
from posthouse.mailbox.command import Filter, Keep, Lease, Post
from posthouse.mailbox.message import SECOND, Message, State
from posthouse.mailbox.outcome import Leased
from posthouse.mailbox.store import MessageView
from posthouse.stores.sqlite import SqliteStore

T0 = T0_NS // 1_000
MINUTE = MINUTE_NS // 1_000
DAY_S = 86_400
BOBS = ["m1", "m2", "m3", "relay:import:", "relay:import:", "confirm:m9", "m4"]
LONG_S = 100 * 365 * DAY_S


def configure(house: House, ttl_s: float = LONG_S, **more: Any) -> None:
    lines = [f"{name} = {json.dumps(value)}" for name, value in more.items()]
    text = f"[relay]\nport = 0\npublic_host = {json.dumps(HOST)}\nqueue_ttl_s = {ttl_s}\n" + "\n".join(lines) + "\n"
    (house.folder / "posthouse.toml").write_text(text)


@pytest.fixture
def file(house: House) -> Path:
    configure(house)
    return kept_file(house.folder)


def opened(house: House) -> SqliteStore:
    store = open_store(house.config())
    assert isinstance(store, SqliteStore)
    return store


def kept(house: House, mailbox: str) -> list[MessageView]:
    store = opened(house)
    try:
        return store.messages(Filter("relay", mailbox=mailbox), limit=1_000)
    finally:
        store.close()


def by_mailbox(document: Any) -> dict[str, Any]:
    return {row["mailbox"]: row for row in document["recipients"]}


def test_the_queue_is_taken_over_in_order_with_its_age(house: House, file: Path) -> None:
    house.json("import", "pinch", str(file), code=4)
    views = kept(house, BOB)
    assert [view.message.id[: len(id)] for view, id in zip(views, BOBS, strict=True)] == BOBS
    assert [view.seq for view in views] == list(range(1, 8))
    assert [view.posted_at for view in views] == [T0 + n * MINUTE for n in (1, 2, 3, 4, 5, 6, 8)]
    assert [view.message.sender for view in views[:4]] == [ALICE, ALICE, views[2].message.sender, DAVE]
    assert [view.message.kind for view in views[2:6]] == [
        "message",
        "connection_request",
        "connection_request",
        "delivery_confirm",
    ]
    assert {view.expires_at - view.posted_at for view in views if view.expires_at} == {LONG_S * SECOND}
    assert [view.message.id for view in kept(house, CAROL)] == [f"c{n}" for n in range(1, 120)]


def test_an_envelope_keeps_every_byte(house: House, file: Path) -> None:
    house.json("import", "pinch", str(file), code=4)
    (leased,) = house.apply(Lease("relay", BOB, "t", limit=100))
    assert isinstance(leased, Leased)
    sizes = [len(delivery.message.body) for delivery in leased.deliveries]
    assert sizes[1] > 48_000
    assert leased.deliveries[0].posted_at == T0 + MINUTE


def test_the_journal_says_that_it_was_an_import_and_how_old(house: House, file: Path) -> None:
    before = time.time_ns() // 1_000
    house.json("import", "pinch", str(file), code=4)
    store = opened(house)
    posted = [event for _, _, event in store.events() if event.event == "posted"]
    store.close()
    assert len(posted) == 7 + 119 + 3
    assert {event.reason for event in posted} == {"import"}
    assert all(event.at >= before for event in posted)
    ages = {event.message_id: json.loads(event.detail or "{}")["posted_at"] for event in posted}
    assert ages["m1"] == T0 + MINUTE


def test_the_report_counts_everything_for_each_recipient(house: House, file: Path) -> None:
    document = house.json("import", "pinch", str(file), code=4)
    rows = by_mailbox(document)
    assert {name: rows[BOB][name] for name in ("imported", "duplicate", "expired", "skipped", "waiting")} == {
        "imported": 7,
        "duplicate": 1,
        "expired": 0,
        "skipped": 5,
        "waiting": 7,
    }
    assert rows[CAROL]["imported"] == 119
    assert rows["nobody"]["skipped"] == 1
    assert (document["imported"], document["duplicate"], document["skipped"]) == (129, 1, 6)
    reasons = sorted(problem["reason"] for problem in document["problems"])
    assert reasons == sorted(["malformed"] * 6 + ["spoofed", "forbidden_type", "bad_address"])
    assert document["problems_total"] == 9
    assert all(problem["where"] and problem["message"] for problem in document["problems"])
    assert document["blocks"] == {"added": 2, "known": 0}
    assert document["keys"] == {"approved": 1, "pending": 1, "known": 0}


def test_a_second_import_changes_nothing(house: House, file: Path) -> None:
    house.json("import", "pinch", str(file), code=4)
    views = kept(house, BOB)
    document = house.json("import", "pinch", str(file), code=4)
    assert (document["imported"], document["duplicate"]) == (0, 130)
    assert document["blocks"] == {"added": 0, "known": 2}
    assert document["keys"] == {"approved": 0, "pending": 0, "known": 2}
    assert kept(house, BOB) == views


def test_an_interrupted_import_is_completed_by_the_next(house: House, file: Path, monkeypatch: Any) -> None:
    from posthouse.cli import import_
    from posthouse.control.operator import Operator

    monkeypatch.setattr(import_, "PAGE_ENTRIES", 10)
    call, calls = Operator.call, []

    def failing(self: Operator, *given: Any) -> Any:
        calls.append(given)
        if len(calls) == 6:
            raise KeyboardInterrupt
        return call(self, *given)

    monkeypatch.setattr(Operator, "call", failing)
    house.run("import", "pinch", str(file), code=130)
    document = house.json("import", "pinch", str(file), code=4)
    assert 0 < document["imported"] < 129
    assert [view.message.id for view in kept(house, CAROL)] == [f"c{n}" for n in range(1, 120)]
    assert [view.message.id[: len(id)] for view, id in zip(kept(house, BOB), BOBS, strict=True)] == BOBS


def test_a_dry_run_says_the_same_and_makes_nothing(house: House, file: Path) -> None:
    foreseen = house.json("import", "pinch", str(file), "--dry-run", code=4)
    assert not house.config().path("store.path").exists()
    document = house.json("import", "pinch", str(file), code=4)
    assert foreseen == {**document, "dry_run": True}


def test_a_dry_run_on_a_store_changes_nothing(house: House, file: Path) -> None:
    house.apply(Post(Message("relay", BOB, "m1", b"x", ALICE)))
    foreseen = house.json("import", "pinch", str(file), "--dry-run", code=4)
    assert by_mailbox(foreseen)[BOB]["duplicate"] == 2
    assert by_mailbox(foreseen)[BOB]["waiting"] == 7
    assert [view.message.id for view in kept(house, BOB)] == ["m1"]
    document = house.json("import", "pinch", str(file), code=4)
    assert foreseen == {**document, "dry_run": True}


def test_what_has_expired_is_told_and_left_out(house: House, file: Path) -> None:
    # Long enough for those of T0, not for those of the day before.
    configure(house, ttl_s=(time.time_ns() - T0_NS) / 10**9 + DAY_S / 2)
    rows = by_mailbox(house.json("import", "pinch", str(file), code=4))
    assert (rows[DAVE]["expired"], rows[DAVE]["imported"]) == (3, 0)
    assert rows[BOB]["expired"] == 0
    assert kept(house, DAVE) == []


def test_what_is_left_of_its_time_is_kept(house: House, file: Path) -> None:
    ttl_s = int((time.time_ns() - T0_NS + DAY_NS) / 10**9 + 3_600)
    configure(house, ttl_s=ttl_s)
    house.json("import", "pinch", str(file), code=4)
    (first, *_) = kept(house, DAVE)
    assert first.expires_at is not None
    assert first.expires_at == first.posted_at + ttl_s * SECOND
    left_s = (first.expires_at - time.time_ns() // 1_000) / SECOND
    assert 3_000 < left_s <= 3_600


def test_more_than_a_mailbox_takes_is_imported_and_said(house: House, file: Path) -> None:
    configure(house, queue_max=50)
    document = house.json("import", "pinch", str(file), code=4)
    row = by_mailbox(document)[CAROL]
    assert (row["imported"], row["waiting"], row["over_capacity"]) == (119, 119, True)
    assert by_mailbox(document)[BOB]["over_capacity"] is False
    assert len(kept(house, CAROL)) == 119
    assert "1 recipients have more waiting than the 50" in house.run("import", "pinch", str(file), code=4).stdout


def test_blocks_and_keys_stand_where_the_relay_looks_for_them(house: House, file: Path) -> None:
    house.json("import", "pinch", str(file), code=4)
    store = opened(house)
    assert [name for name, _ in store.kept("relay.blocks")] == sorted([f"{BOB} {DAVE}", f"{CAROL} {ALICE}"])
    keys = dict(relay.each(store))
    store.close()
    alice, bob = keys[bytes([1]) * 32], keys[bytes([2]) * 32]
    assert (alice.state, alice.by) == (relay.APPROVED, "import")
    assert (bob.state, bob.code, bob.registered_at) == (relay.PENDING, "0a1b2c3d", T0)


def test_what_was_decided_about_a_key_here_stays_decided(house: House, file: Path) -> None:
    revoked = relay.Key(relay.REVOKED, "", 1, 1, "operator:me")
    house.apply(Keep(relay.SHELF, (bytes([1]) * 32).hex(), revoked.encode()))
    document = house.json("import", "pinch", str(file), code=4)
    assert document["keys"] == {"approved": 0, "pending": 1, "known": 1}
    store = opened(house)
    assert dict(relay.each(store))[bytes([1]) * 32] == revoked
    store.close()


def test_it_goes_through_a_running_server(house: House, file: Path) -> None:
    with house.up():
        document = house.json("import", "pinch", str(file), code=4)
        assert document["imported"] == 129
        assert house.json("import", "pinch", str(file), "--dry-run", code=4)["duplicate"] == 130
        shown = house.json("mailbox", "show", BOB)
        assert shown["depth"] == 7
    assert [view.state for view in kept(house, BOB)] == [State.READY] * 7


def test_recipients_of_another_host_are_pointed_out(house: House, file: Path) -> None:
    configure(house)
    assert "another host" not in house.run("import", "pinch", str(file), "--dry-run", code=4).stdout
    text = house.run("import", "pinch", str(file), "--set", "relay.public_host=other.example", code=4).stdout
    assert "3 recipients have addresses at another host than relay.public_host (other.example)" in text


def test_a_file_that_cannot_be_read_leaves_no_store(house: House, file: Path) -> None:
    with file.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        document = house.json("import", "pinch", str(file), code=2)
    assert document["error"]["code"] == "bad_file"
    assert "stop it first" in document["error"]["message"]
    (house.folder / "other.db").write_bytes(b"hello")
    assert "no bbolt file" in house.run("import", "pinch", "other.db", code=2).stderr
    assert "No such file" in house.run("import", "pinch", "none.db", code=2).stderr
    assert not house.config().path("store.path").exists()


def test_the_report_for_people_names_what_was_left_out(house: House, file: Path) -> None:
    text = house.run("import", "pinch", str(file), code=4).stdout
    assert "Messages: 129 imported, 1 known already, 0 expired, 6 skipped." in text
    assert "Blocks: 2 added, 0 known. Keys: 1 approved, 1 pending, 0 known." in text
    assert "spoofed: its sender authenticated as" in text
    assert "key_registry/no key: malformed" in text
