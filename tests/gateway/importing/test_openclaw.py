"""posthouse import openclaw: all five layouts become what they were, and nothing that was sent is sent again."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.gateway.importing.conftest import SAMPLES, Sample
from tests.unit.cli.house import House

from posthouse.cli import import_openclaw
from posthouse.control import openclaw
from posthouse.control.operator import Operator, open_store
from posthouse.gateway.letter import Inbound, Outbound
from posthouse.mailbox.command import Filter, Lease, Settle, Verdict
from posthouse.mailbox.message import SECOND, Ref, State
from posthouse.mailbox.outcome import Leased
from posthouse.mailbox.store import MessageView

EXPECTED = json.loads((SAMPLES / "EXPECTED.json").read_text())
AT = {
    "2026.2.17": "2026-02-18T01:00:00Z",
    "2026.3.13": "2026-03-13T01:00:00Z",
    "2026.5.18": "2026-05-18T01:00:00Z",
    "2026.6.11": "2026-06-11T01:00:00Z",
    "2026.9.6": "2026-09-06T01:00:00Z",
}
"""An hour after the entries of each sample were queued."""
FILES = [version for version, told in EXPECTED.items() if "rows" not in told]
TABLES = [version for version, told in EXPECTED.items() if "rows" in told]
STATES = {
    "pending": State.READY,
    "review": State.PARKED,
    "uncertain": State.UNCERTAIN,
    "dead": State.DEAD,
}


def kept(house: House, desk: str = "outbound") -> dict[str, MessageView]:
    """Every message of a desk, by id."""
    store = open_store(house.config())
    with closing(store):
        return {view.message.id: view for view in store.messages(Filter(desk), limit=1_000)}


def taken(house: House, folder: Path, *words: str, code: int = 0) -> Any:
    now = AT.get(folder.name)
    return house.json("import", "openclaw", str(folder), *(("--now", now) if now else ()), *words, code=code)


def by_source(document: Any) -> dict[str, Any]:
    return {row["source"]: row for row in document["entries"]}


def fingerprint(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Everything in a folder, byte for byte, with its times."""
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize("version", FILES)
def test_a_folder_of_files_becomes_what_the_sample_says(house: House, sample: Sample, version: str) -> None:
    folder = sample(version)
    has_problems = any(told["result"] == "quarantined" for told in EXPECTED[version].values())
    rows = by_source(taken(house, folder, code=4 if has_problems else 0))
    assert set(rows) == set(EXPECTED[version])
    for source, told in EXPECTED[version].items():
        row = rows[source]
        assert row["result"] == told["result"], source
        assert row.get("retries", 0) == told.get("retries", row.get("retries", 0)), source
        if told["result"] == "dead":
            assert row["reason"] == told["reason"]
        if told["result"] in STATES:
            desk = "inbound" if told.get("queue") == "session" else "outbound"
            assert kept(house, desk)[row["id"]].state is STATES[told["result"]], source


@pytest.mark.parametrize("version", TABLES)
def test_a_database_becomes_what_the_sample_says(house: House, sample: Sample, version: str) -> None:
    document = taken(house, sample(version))
    told = EXPECTED[version]["rows"]
    counts = Counter(
        row["result"] if row.get("queue", "outbound") == "outbound" else f"{row['queue']}_{row['result']}"
        for row in document["entries"]
    )
    # The other program's words for what is on its way in.
    named = {"ingress_claimed": "ingress_uncertain", "ingress_completed": "ingress_delivered"}
    named["ingress_failed"] = "ingress_dead"
    assert counts == Counter({named.get(name, name): count for name, count in told.items()})
    states = Counter(view.state for view in kept(house).values())
    assert states == Counter({STATES[name]: told[name] for name in STATES if name in told})


@pytest.mark.parametrize("version", list(AT))
def test_with_todays_date_what_waited_is_parked_for_review(house: House, sample: Sample, version: str) -> None:
    folder = sample(version)
    document = house.json("import", "openclaw", str(folder), code=4 if version == "2026.2.17" else 0)
    assert document["imported"]["pending"] == 0
    assert document["imported"]["review"] > 0
    for desk in ("outbound", "inbound"):
        views = kept(house, desk).values()
        assert not [view for view in views if view.state is State.READY]
        assert {view.reason for view in views if view.state is State.PARKED} <= {"review"}


@pytest.mark.parametrize("version", list(AT))
def test_the_source_is_not_touched(house: House, sample: Sample, version: str) -> None:
    folder = sample(version)
    before = fingerprint(folder)
    taken(house, folder, code=4 if version == "2026.2.17" else 0)
    assert fingerprint(folder) == before


@pytest.mark.parametrize("version", list(AT))
def test_a_second_import_changes_nothing(house: House, sample: Sample, version: str) -> None:
    folder, code = sample(version), 4 if version == "2026.2.17" else 0
    first = taken(house, folder, code=code)
    before = {desk: kept(house, desk) for desk in ("outbound", "inbound")}
    second = taken(house, folder, code=code)
    assert sum(second["imported"].values()) == 0
    assert second["known"] == sum(first["imported"].values())
    assert {desk: kept(house, desk) for desk in ("outbound", "inbound")} == before


@pytest.mark.parametrize("version", list(AT))
def test_a_dry_run_says_the_same_and_makes_nothing(house: House, sample: Sample, version: str) -> None:
    folder, code = sample(version), 4 if version == "2026.2.17" else 0
    foreseen = taken(house, folder, "--dry-run", code=code)
    assert not house.config().path("store.path").exists()
    assert foreseen == {**taken(house, folder, code=code), "dry_run": True}
    again = taken(house, folder, "--dry-run", code=code)
    assert sum(again["imported"].values()) == 0


def test_an_outbound_entry_keeps_every_field(house: House, sample: Sample) -> None:
    taken(house, sample("2026.2.17"), code=4)
    view = kept(house)["5c0d6a1b-9f77-4e0a-8a55-2b9c41d7e6f2"]
    letter = Outbound.from_message(view.message)
    assert (letter.channel, letter.account, letter.to, letter.thread) == ("telegram", "default", "-1001234567890", "42")
    assert letter.reply_to == "3EB0A1"
    assert [part.text for part in letter.parts] == ["part 1", "part 2"]
    assert [media.url for media in letter.parts[1].media] == ["file:///tmp/a.png"]
    assert letter.session == "agent:main:telegram:group:-1001234567890:topic:42"
    rest = letter.metadata["openclaw"]
    assert rest["bestEffort"] is False
    assert rest["mirror"]["agentId"] == "main"
    assert rest["lastError"].startswith("Call to 'sendMessage' failed!")
    assert rest["retries"] == rest["retryCount"] == 3
    assert view.posted_at == 1_771_372_800 * SECOND
    assert view.expires_at is not None
    assert view.expires_at > view.posted_at


def test_a_prepared_batch_loses_what_its_own_rules_refused(house: House, sample: Sample) -> None:
    taken(house, sample("2026.9.6"))
    letter = Outbound.from_message(kept(house)["66666666-0000-4000-8000-000000000001"].message)
    assert [part.text for part in letter.parts] == ["Done."]
    assert letter.reply_to == "551"
    assert letter.session == "agent:main:telegram:direct:8123456789"


def test_a_dead_letter_says_what_it_died_of(house: House, sample: Sample) -> None:
    taken(house, sample("2026.2.17"), code=4)
    view = kept(house)["e3f0b8d4-1c2a-4f6e-b0c9-6a5d4e3f2b1a"]
    assert (view.state, view.reason) == (State.DEAD, "permanent")
    assert view.error == "No conversation reference found for user:29:1abc"
    assert view.attempts == 0
    assert house.json("dead", "ls")["groups"][0]["count"] == 1


def test_a_turn_for_the_agent_is_an_inbound_message_of_its_session(house: House, sample: Sample) -> None:
    taken(house, sample("2026.5.18"))
    ((id, view),) = kept(house, "inbound").items()
    assert id == hashlib.sha256(b"restart:agent:main:main:1779062400000").hexdigest()
    letter = Inbound.from_message(view.message)
    assert (letter.text, letter.session) == ("Gateway restarted; continue.", "agent:main:main")
    assert (letter.channel, letter.conversation) == ("whatsapp", "+15550001111")
    assert letter.metadata["openclaw"]["messageId"] == "restart-1"


def test_what_came_from_a_channel_is_worked_on_once(house: House, sample: Sample) -> None:
    taken(house, sample("2026.6.11"))
    states = {id: view.state for id, view in kept(house, "inbound").items()}
    assert states == {
        "900001:551": State.READY,
        "900002:551": State.UNCERTAIN,
        "900003": State.DELIVERED,
        "900004:551": State.DEAD,
    }
    view = kept(house, "inbound")["900001:551"]
    letter = Inbound.from_message(view.message)
    assert (letter.text, letter.conversation, letter.channel) == ("status?", "8123456789", "telegram")
    assert view.message.ref == Ref("inbound", "default", "telegram/default/8123456789", "900001:551")


def test_each_entry_leaves_a_receipt(house: House, sample: Sample) -> None:
    folder = sample("2026.3.13")
    taken(house, folder)
    store = open_store(house.config())
    with closing(store):
        receipts = {key: openclaw.decode(value) for key, value in store.kept(openclaw.SHELF)}
    assert Counter(receipt.result for receipt in receipts.values()) == {"pending": 2, "delivered": 2, "dead": 1}
    first = receipts["outbound/33333333-0000-4000-8000-000000000001"]
    file = folder / first.source
    assert first.digest == hashlib.sha256(file.read_bytes()).hexdigest()
    assert first.root == str(folder)
    # What was delivered there has no message here, only its receipt.
    assert receipts["outbound/33333333-0000-4000-8000-000000000002"].ref is None


def test_what_changed_since_the_last_import_is_a_conflict(house: House, sample: Sample) -> None:
    folder = sample("2026.3.13")
    taken(house, folder)
    file = folder / "delivery-queue/33333333-0000-4000-8000-000000000001.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "to": "+15559999999"}))
    row = by_source(taken(house, folder, code=4))["delivery-queue/33333333-0000-4000-8000-000000000001.json"]
    assert (row["result"], row["reason"]) == ("quarantined", "conflict")
    assert len(kept(house)) == 3


def test_a_mark_that_appears_later_does_not_undo_the_import(house: House, sample: Sample) -> None:
    folder = sample("2026.3.13")
    taken(house, folder)
    file = folder / "delivery-queue/33333333-0000-4000-8000-000000000001.json"
    file.rename(file.with_suffix(".delivered"))
    row = by_source(taken(house, folder))["delivery-queue/33333333-0000-4000-8000-000000000001.delivered"]
    assert (row["result"], row["became"]) == ("delivered", "known")


def test_what_waited_for_less_than_its_next_step_waits_for_the_rest(house: House, sample: Sample) -> None:
    folder = sample("2026.3.13")
    # Tried twice, 40 s after it was queued; the ladder's second step is 5 s.
    house.json("import", "openclaw", str(folder), "--now", "2026-03-13T00:00:42Z")
    (event,) = [e for e in posted(house) if e.message_id == "33333333-0000-4000-8000-000000000001"]
    assert event.due_at is not None
    assert 0 < event.due_at - event.at <= 3 * SECOND


def posted(house: House) -> list[Any]:
    store = open_store(house.config())
    with closing(store):
        return [event for _, _, event in store.events() if event.event == "posted"]


def test_the_journal_says_that_it_was_an_import_and_how_old(house: House, sample: Sample) -> None:
    taken(house, sample("2026.5.18"))
    events = posted(house)
    assert {event.reason for event in events} == {"import"}
    assert {json.loads(event.detail)["posted_at"] for event in events} == {1_779_062_400 * SECOND}


def test_the_oldest_comes_first_in_its_lane(house: House, sample: Sample) -> None:
    folder = sample("2026.3.13") / "delivery-queue"
    for number in (3, 1, 2):
        write(folder, f"ffffffff-{number}", enqueuedAt=1_773_360_000_000 + number, to="same")
    taken(house, folder.parent)
    views = [view for view in kept(house).values() if view.message.lane == "same"]
    assert [view.message.id for view in sorted(views, key=lambda v: v.seq)] == [f"ffffffff-{n}" for n in (1, 2, 3)]


def write(folder: Path, id: str, **fields: Any) -> Path:
    """A plain entry that waits."""
    entry = {
        "id": id,
        "enqueuedAt": 1_773_360_000_000,
        "channel": "telegram",
        "to": "1",
        "payloads": [{"text": "hello"}],
        "retryCount": 0,
        **fields,
    }
    path = folder / f"{id}.json"
    path.write_text(json.dumps(entry))
    return path


@pytest.mark.parametrize(
    "enqueued_at",
    [None, "yesterday", -1, 0, True, 4_102_444_800_000, 1e300],
    ids=["missing", "text", "negative", "zero", "true", "future", "huge"],
)
def test_what_has_no_credible_time_is_parked(house: House, sample: Sample, enqueued_at: Any) -> None:
    folder = sample("2026.3.13")
    write(folder / "delivery-queue", "odd", enqueuedAt=enqueued_at)
    taken(house, folder)
    view = kept(house)["odd"]
    assert (view.state, view.reason) == (State.PARKED, "review")


def test_files_beside_a_database_are_left_overs(house: House, sample: Sample) -> None:
    folder = sample("2026.6.11")
    queue = folder / "delivery-queue"
    queue.mkdir()
    write(queue, "22222222-0000-4000-8000-000000000001", enqueuedAt=1_781_136_000_000)
    write(queue, "left-over", enqueuedAt=1_781_136_000_000)
    rows = by_source(taken(house, folder))
    assert rows["delivery-queue/22222222-0000-4000-8000-000000000001.json"]["result"] == "ignored"
    assert rows["delivery-queue/left-over.json"]["result"] == "review"


def test_a_rollback_takes_back_what_nobody_touched(house: House, sample: Sample) -> None:
    folder = sample("2026.5.18")
    taken(house, folder)
    foreseen = house.json("import", "openclaw", str(folder), "--rollback", "--dry-run")
    assert {view.state for view in kept(house).values()} == {State.READY, State.UNCERTAIN}
    document = house.json("import", "openclaw", str(folder), "--rollback")
    assert {**foreseen, "dry_run": False} == document
    assert (len(document["undone"]), document["kept"]) == (4, [])
    assert {view.state for view in kept(house).values()} == {State.CANCELLED}
    assert {view.state for view in kept(house, "inbound").values()} == {State.CANCELLED}


@pytest.mark.parametrize("version", list(AT))
def test_an_import_after_a_rollback_is_as_the_first(house: House, sample: Sample, version: str) -> None:
    folder, code = sample(version), 4 if version == "2026.2.17" else 0
    first = taken(house, folder, code=code)
    before = {desk: {id: view.state for id, view in kept(house, desk).items()} for desk in ("outbound", "inbound")}
    house.json("import", "openclaw", str(folder), "--rollback")
    second = taken(house, folder, code=code)
    worked_on = sum(row["result"] == "delivered" and row["queue"] == "ingress" for row in kept_rows(first))
    assert sum(second["imported"].values()) == sum(first["imported"].values()) - worked_on
    assert {desk: {id: v.state for id, v in kept(house, desk).items()} for desk in ("outbound", "inbound")} == before


def kept_rows(document: Any) -> list[Any]:
    return [row for row in document["entries"] if row["became"] == "imported"]


def test_a_rollback_leaves_what_was_tried_or_sent(house: House, sample: Sample) -> None:
    folder = sample("2026.3.13")
    taken(house, folder)
    leased = house.apply(Lease("outbound", "whatsapp/default", "t", limit=10))[0]
    assert isinstance(leased, Leased)
    (delivery,) = leased.deliveries
    house.apply(Settle(delivery.message.ref, None, Verdict.DELIVERED))
    document = house.json("import", "openclaw", str(folder), "--rollback")
    (row,) = document["kept"]
    assert row["key"] == f"outbound/{delivery.message.id}"
    assert kept(house)[delivery.message.id].state is State.DELIVERED
    assert kept(house)[delivery.message.id].attempts == 1


def test_a_rollback_takes_back_nothing_of_another_folder(house: House, sample: Sample) -> None:
    one, other = sample("2026.3.13"), sample("2026.5.18")
    taken(house, one)
    taken(house, other)
    house.json("import", "openclaw", str(one), "--rollback")
    states = {id[:8]: view.state for id, view in kept(house).items()}
    assert states["33333333"] is State.CANCELLED
    assert states["11111111"] in (State.READY, State.UNCERTAIN)


def test_an_import_goes_through_a_running_server(house: House, sample: Sample) -> None:
    folder = sample("2026.5.18")
    with house.up():
        document = taken(house, folder)
        assert document["imported"]["uncertain"] == 2
    assert sum(taken(house, folder)["imported"].values()) == 0


def test_a_row_that_was_deleted_there_is_not_missed_here(house: House, sample: Sample) -> None:
    folder = sample("2026.6.11")
    taken(house, folder)
    with closing(sqlite3.connect(folder / "state/openclaw.sqlite")) as database:
        database.execute("DELETE FROM delivery_queue_entries")
        database.commit()
    document = taken(house, folder)
    assert sum(document["imported"].values()) == 0
    assert len(kept(house)) == 2


def test_an_interrupted_import_is_completed_by_the_next(
    house: House, sample: Sample, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = sample("2026.9.6")
    foreseen = taken(house, folder, "--dry-run")
    monkeypatch.setattr(import_openclaw, "PAGE_ENTRIES", 3)
    call, calls = Operator.call, []

    def failing(self: Operator, *given: Any) -> Any:
        calls.append(given)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return call(self, *given)

    monkeypatch.setattr(Operator, "call", failing)
    house.run("import", "openclaw", str(folder), "--now", AT["2026.9.6"], code=130)
    document = taken(house, folder)
    assert document["known"] == 6
    assert sum(document["imported"].values()) == sum(foreseen["imported"].values()) - 6
