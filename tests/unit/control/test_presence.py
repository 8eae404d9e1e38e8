"""Presence: stretches, shares and strips follow from the journal's notes alone, also when it was exported."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from posthouse.control import presence as module
from posthouse.control.presence import SLOTS, WINDOW_S, Presence
from posthouse.engine.engine import Engine
from posthouse.engine.tail import Tail
from posthouse.journal import notes
from posthouse.journal.notes import Note
from posthouse.journal.tail import export
from posthouse.mailbox.command import Note as WriteNote
from posthouse.mailbox.command import Post
from posthouse.mailbox.event import CONNECTED, DISCONNECTED, STARTED
from posthouse.mailbox.message import SECOND, Message
from posthouse.mailbox.policy import PRESETS
from posthouse.stores.sqlite import SqliteStore

HOUR = 3_600 * SECOND
NOW = 1_000 * 24 * HOUR


def told(*story: tuple[int, str, str, str], since: int = NOW - 24 * HOUR) -> Presence:
    """Presence after a story of (instant, event, mailbox, holder) at the relay."""
    presence = Presence()
    presence.since = since
    presence.take(list(_notes(story)), NOW)
    return presence


def _notes(story: Iterable[tuple[int, str, str, str]]) -> Iterable[Note]:
    for at, event, mailbox, holder in story:
        yield Note(at, event, "" if event == STARTED else "relay", mailbox, holder, None)


def row(presence: Presence, name: str = "ann") -> dict[str, object]:
    party = presence.get("relay", name)
    assert party is not None
    return presence.row(name, party, NOW)


def test_a_day_is_told_in_shares_and_half_hours() -> None:
    presence = told(
        (NOW - 12 * HOUR, CONNECTED, "ann", "a"),
        (NOW - 9 * HOUR, DISCONNECTED, "ann", "a"),
        (NOW - 3 * HOUR, CONNECTED, "ann", "b"),
    )
    found = row(presence)
    assert (found["online"], found["connections"], found["share"]) == (True, 2, 0.25)
    strip = found["strip"]
    assert isinstance(strip, list)
    assert len(strip) == SLOTS
    assert strip == [0.0] * 24 + [1.0] * 6 + [0.0] * 12 + [1.0] * 6
    assert presence.counts("relay") == (1, 1)


def test_what_is_not_known_is_a_gap_and_does_not_count() -> None:
    presence = told((NOW - HOUR, CONNECTED, "ann", "a"), since=NOW - 2 * HOUR)
    found = row(presence)
    assert found["share"] == 0.5
    assert found["strip"] == [None] * 44 + [0.0] * 2 + [1.0] * 2


def test_several_connections_are_one_stretch_until_the_last_ends() -> None:
    presence = told(
        (NOW - 5 * HOUR, CONNECTED, "ann", "a"),
        (NOW - 4 * HOUR, CONNECTED, "ann", "b"),
        (NOW - 3 * HOUR, DISCONNECTED, "ann", "a"),
    )
    assert row(presence)["online"] is True
    presence.take([Note(NOW - 2 * HOUR, DISCONNECTED, "relay", "ann", "b", "timeout")], NOW)
    party = presence.get("relay", "ann")
    assert party is not None
    assert list(party.stretches) == [(NOW - 5 * HOUR, NOW - 2 * HOUR)]
    assert (row(presence)["online"], row(presence)["reason"]) == (False, "timeout")


def test_a_start_ends_what_the_process_before_left_open() -> None:
    presence = told(
        (NOW - 5 * HOUR, CONNECTED, "ann", "a"),
        (NOW - 4 * HOUR, CONNECTED, "bob", "b"),
        (NOW - 2 * HOUR, STARTED, "", ""),
    )
    for name, began in (("ann", NOW - 5 * HOUR), ("bob", NOW - 4 * HOUR)):
        party = presence.get("relay", name)
        assert party is not None
        # It was there until the last word of that process at least.
        assert list(party.stretches) == [(began, NOW - 4 * HOUR)]
        assert party.reason == "restart"


def test_an_end_under_another_name_ends_the_only_connection() -> None:
    presence = told((NOW - 2 * HOUR, CONNECTED, "ann", "telegram"), (NOW - HOUR, DISCONNECTED, "ann", "ann"))
    assert row(presence)["online"] is False
    presence = told((NOW - HOUR, DISCONNECTED, "ann", "a"))
    assert (row(presence)["online"], row(presence)["share"]) == (False, 0.0), "of one that was never seen to come"


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PARTIES_MAX", 3)
    story = [(NOW - HOUR + n, CONNECTED, f"agent-{n}", "a") for n in range(10)]
    presence = told(*story)
    assert [name for name, _ in presence.named("relay", "", None)] == ["agent-7", "agent-8", "agent-9"]
    flapping = [(NOW - HOUR + n, CONNECTED if n % 2 == 0 else DISCONNECTED, "ann", "a") for n in range(2 * 3_000)]
    party = told(*flapping).get("relay", "ann")
    assert party is not None
    assert len(party.stretches) == module.STRETCHES_MAX


def test_parties_are_found_by_name_and_state() -> None:
    presence = told(
        (NOW - HOUR, CONNECTED, "ann", "a"), (NOW - HOUR, CONNECTED, "bob", "b"), (NOW - 1, DISCONNECTED, "bob", "b")
    )
    assert [name for name, _ in presence.named("relay", "", True)] == ["ann"]
    assert [name for name, _ in presence.named("relay", "", False)] == ["bob"]
    assert [name for name, _ in presence.named("relay", "n", None)] == ["ann"]
    assert presence.named("outbox", "", None) == []


def test_segments_tell_the_same_as_the_store(tmp_path: Path) -> None:
    with Engine(SqliteStore.open(tmp_path / "p.db", PRESETS, node="n1")) as engine:
        begun = engine.now()
        for n in range(6):
            event = CONNECTED if n % 2 == 0 else DISCONNECTED
            engine.call(WriteNote(event, "relay", "ann", "a", None if event == CONNECTED else "closed"))
            engine.call(Post(Message("relay", "ann", f"m{n}")))
        held = list(notes.of(event for _, _, event in engine.store.events()))
        assert notes.exported(tmp_path / "journal", "n1", 0) == ([], None, 0)
        for _ in range(2):
            export(engine.store, tmp_path / "journal", final=True)
            engine.call(WriteNote(CONNECTED, "relay", "ann", "a"))
        found = notes.exported(tmp_path / "journal", "n1", begun - WINDOW_S * SECOND)
        assert found.last == engine.store.offset() - 1
        told_of = [note for note in found.notes if note.event]
        assert told_of[: len(held)] == held
        assert [note.event for note in told_of] == [STARTED, *[CONNECTED, DISCONNECTED] * 3, CONNECTED]
        assert found.since == held[0].at
        # Of before nothing is told, and no older segment is opened.
        late = notes.exported(tmp_path / "journal", "n1", told_of[-1].at)
        assert [note for note in late.notes if note.event] == told_of[-1:]
        assert late.since == told_of[-1].at
        (first, *_) = sorted((tmp_path / "journal" / "node=n1").iterdir())
        first.write_bytes(b"no segment")
        assert [note.event for note in notes.exported(tmp_path / "journal", "n1", 0).notes] == [CONNECTED, ""]


def test_a_process_was_there_until_the_last_thing_that_it_did(tmp_path: Path) -> None:
    """Whether that is in a segment or in the store, and whatever it was."""
    for kept in ("store", "segment"):
        path = tmp_path / f"{kept}.db"
        with Engine(SqliteStore.open(path, PRESETS, node=kept)) as engine:
            engine.call(WriteNote(CONNECTED, "relay", "ann", "a"))
            engine.call(Post(Message("relay", "bob", "m1")))
            (last,) = [event.at for _, _, event in engine.store.events() if event.event == "posted"]
        with Engine(SqliteStore.open(path, PRESETS, node=kept)) as engine:
            if kept == "segment":
                export(engine.store, tmp_path / "journal", final=True)
            found = notes.exported(tmp_path / "journal", kept, 0)
            presence = Presence()
            presence.take(found.notes, 0)
            tail = Tail(engine, found.last, words=notes.KINDS)
            tail.listen(lambda events, _, __, p=presence: p.take(notes.of(events), events[-1].at))  # type: ignore[misc]
            tail.catch_up()
            party = presence.get("relay", "ann")
            assert party is not None
            assert [until for _, until in party.stretches] == [last], kept
