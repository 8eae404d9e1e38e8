"""The journal's contract as stores keep it: offsets, commits, numbers, attempts, times, chain, segments."""

from __future__ import annotations

import pytest
from tests.conformance.desks import DESKS
from tests.conformance.scene import Scene, message, names, ref

from posthouse.errors import InvalidInput
from posthouse.journal.chunk import GENESIS, decode, link
from posthouse.mailbox.command import (
    Cancel,
    Filter,
    Lease,
    Note,
    Park,
    Post,
    Purge,
    Redrive,
    Release,
    Settle,
    Start,
    Sweep,
    Unpark,
    Verdict,
)
from posthouse.mailbox.event import EVENTS, REASONS
from posthouse.mailbox.outcome import Noted, Refusal, Refused
from posthouse.mailbox.store import Segment


def busy_day(scene: Scene) -> None:
    """Something of everything."""
    scene.do(Start(DESKS))
    scene.do(Note("connected", "relay", "m", holder="c1"))
    scene.post("relay", "a", "b", "c", cause="before")
    scene.do(Post(message("relay", "a", cause="before")))
    scene.lease("relay")
    scene.settle("relay", "a", Verdict.RECEIVED)
    scene.do(Release("relay", "t"))
    scene.settle("relay", "b", Verdict.DELIVERED, None)
    scene.do(Park(ref("relay", "c")))
    scene.do(Unpark(Filter("relay")))
    scene.post("ttl", "e")
    scene.post("block", "f", "g")
    scene.lease("block")
    scene.settle("block", "f", Verdict.DEAD, error="x")
    scene.do(Redrive(Filter("block")))
    scene.post("unsure", "h")
    scene.lease("unsure")
    scene.post("tiny", "t")
    scene.do(Post(message("tiny", "u", body=b"12345")))
    scene.later(60)
    scene.do(Sweep())
    scene.do(Purge(Filter("block")))
    scene.do(Note("disconnected", "relay", "m", holder="c1", reason="cut"))


def test_offsets_have_no_gaps_and_a_commit_is_named_by_its_first_event(scene: Scene) -> None:
    scene.apply(Post(message("plain", "a")), Post(message("plain", "b")), Lease("plain", "m", "t"))
    scene.apply(Lease("plain", "m", "u"))
    scene.apply(Settle(ref("plain", "a"), "t", Verdict.DELIVERED), Lease("plain", "m", "u"))
    rows = [(offset, commit) for offset, commit, _ in scene.store.events()]
    assert rows == [(1, 1), (2, 1), (3, 1), (4, 4), (5, 4)]
    assert scene.store.offset() == 5
    assert [(c.first, c.last) for c in scene.store.chunks()] == [(1, 3), (4, 5)]


def test_a_reader_begins_where_it_stopped(scene: Scene) -> None:
    scene.apply(*(Post(message("plain", id)) for id in "abc"))
    scene.apply(*(Post(message("plain", id)) for id in "de"))
    assert [(o, c, e.message_id) for o, c, e in scene.store.events(after=2)] == [
        (3, 1, "c"),
        (4, 4, "d"),
        (5, 4, "e"),
    ]
    assert [c.first for c in scene.store.chunks(after=3)] == [4]
    assert list(scene.store.events(after=5)) == []


def test_chunks_are_chained_from_the_beginning(scene: Scene) -> None:
    busy_day(scene)
    prev, last = GENESIS, 0
    for chunk in scene.store.chunks():
        assert (chunk.prev, chunk.first) == (prev, last + 1)
        assert link(chunk.prev, chunk.first, chunk.last, chunk.data) == chunk.hash
        assert len(decode(chunk.data)) == chunk.last - chunk.first + 1
        prev, last = chunk.hash, chunk.last
    assert last == scene.store.offset()


def test_every_event_and_reason_is_of_the_closed_list(scene: Scene) -> None:
    busy_day(scene)
    seen = set()
    for event in scene.events():
        assert event.event in EVENTS
        assert event.reason is None or event.reason in REASONS[event.event]
        seen.add(event.event)
    assert seen >= {
        "started", "connected", "disconnected", "posted", "duplicate", "refused", "leased", "received",
        "delivered", "retried", "released", "recalled", "uncertain", "died", "expired", "cancelled", "parked",
        "unparked", "redriven", "paused",
    }  # fmt: skip


def test_due_at_and_expires_at_stand_where_the_contract_says(scene: Scene) -> None:
    busy_day(scene)
    for event in scene.events():
        if event.event in ("posted", "retried", "released", "redriven"):
            assert event.due_at is not None, event
        else:
            assert event.due_at is None, event
        if event.event not in ("posted", "redriven", "unparked"):
            assert event.expires_at is None, event
    limits = {e.event: e.expires_at for e in scene.events() if e.desk == "relay" and e.expires_at is not None}
    assert set(limits) == {"posted", "unparked"}


def test_every_event_of_a_message_carries_its_number_size_and_cause(scene: Scene) -> None:
    busy_day(scene)
    for event in scene.events("c"):
        assert (event.desk, event.mailbox, event.lane_seq, event.sender) == ("relay", "m", 3, "s")
        assert (event.size_bytes, event.cause_id) == (4, "before")


def test_what_did_not_come_in_has_no_number(scene: Scene) -> None:
    scene.post("small", "a", "b")
    scene.do(Post(message("small", "a", lane="l", kind="k", body=b"longer", cause="q")))
    scene.do(Post(message("small", "c", lane="l", kind="k", body=b"longer", cause="q")))
    duplicate, refused = scene.events()[-2:]
    assert (duplicate.event, duplicate.reason) == ("duplicate", None)
    assert (refused.event, refused.reason) == ("refused", "full")
    for event in (duplicate, refused):
        assert (event.desk, event.mailbox, event.lane, event.lane_seq) == ("small", "m", "l", 0)
        assert (event.kind, event.sender, event.size_bytes, event.attempt) == ("k", "s", 6, 0)
        assert event.cause_id == "q"


def test_posted_tells_when_it_is_due_and_where_it_came_from(scene: Scene) -> None:
    scene.do(Post(message("plain", "a"), reason="import"))
    scene.do(Post(message("plain", "b", due_at=scene.in_s(9))))
    first, second = scene.events()
    assert (first.reason, first.due_at, first.attempt, first.lane_seq) == ("import", scene.at, 0, 1)
    assert (second.reason, second.due_at, second.lane_seq) == (None, scene.in_s(9), 2)


def test_a_released_or_recalled_lease_reuses_its_attempt_number(scene: Scene) -> None:
    scene.post("trio", "a", "b")
    scene.lease("trio", token="1")
    scene.do(Release("trio", "1"))
    scene.lease("trio", token="2")
    scene.settle("trio", "a", Verdict.RETRY, "2")
    scene.lease("trio", token="3")
    scene.deliver("trio", "a", "b", token="3")
    assert [(e.event, e.attempt) for e in scene.events("a")] == [
        ("posted", 0),
        ("leased", 1),
        ("released", 1),
        ("leased", 1),
        ("retried", 1),
        ("leased", 2),
        ("delivered", 2),
    ]
    assert [(e.event, e.attempt) for e in scene.events("b")] == [
        ("posted", 0),
        ("leased", 1),
        ("released", 1),
        ("leased", 1),
        ("recalled", 1),
        ("leased", 1),
        ("delivered", 1),
    ]


def test_events_outside_a_lease_carry_the_attempts_counted_so_far(scene: Scene) -> None:
    scene.post("plain", "a")
    scene.lease("plain")
    scene.settle("plain", "a", Verdict.RETRY)
    scene.do(Park(ref("plain", "a")))
    scene.do(Cancel(ref("plain", "a")))
    assert [(e.event, e.attempt) for e in scene.events("a")[-2:]] == [("parked", 1), ("cancelled", 1)]


def test_the_time_of_an_event_is_that_of_its_command_even_if_the_clock_went_back(scene: Scene) -> None:
    scene.post("plain", "a")
    scene.later(-86_400)
    scene.post("plain", "b")
    assert [e.at for e in scene.events()] == [scene.in_s(86_400), scene.at]


def test_the_holder_stands_on_what_begins_and_ends_a_lease(scene: Scene) -> None:
    scene.post("plain", "a")
    scene.lease("plain")
    scene.settle("plain", "a", Verdict.RECEIVED)
    scene.settle("plain", "a", Verdict.DELIVERED, holder="other")
    assert [e.holder for e in scene.events("a")] == [None, "h-t", "h-t", "other"]


def test_a_note_is_a_fact_that_changes_no_message(scene: Scene) -> None:
    note = Note("refused", "relay", "m", "c1", "spoofed", "text", "id", "kind", "mallory", 17, {"z": 1, "a": "ü"})
    assert scene.do(note) == Noted()
    event = scene.events()[0]
    assert event.detail == '{"a":"ü","z":1}'
    assert (event.event, event.desk, event.mailbox, event.holder) == ("refused", "relay", "m", "c1")
    assert (event.reason, event.error, event.message_id) == ("spoofed", "text", "id")
    assert (event.kind, event.sender, event.size_bytes, event.lane_seq) == ("kind", "mallory", 17, 0)
    assert scene.store.mailbox("relay", "m") is None


def test_a_note_cannot_pretend_to_be_a_state_change(scene: Scene) -> None:
    assert scene.do(Note("delivered", "relay", "m")) == Refused(Refusal.NOT_ALLOWED)
    assert scene.do(Note("connected", "nowhere")) == Refused(Refusal.UNKNOWN_DESK)
    assert scene.store.offset() == 0


def test_text_of_any_language_survives_the_journal(scene: Scene) -> None:
    scene.post("plain", "й\u2028ß")
    scene.lease("plain")
    scene.settle("plain", "й\u2028ß", Verdict.DEAD, error='line\nbreak "quoted" \x00 🦉')
    assert scene.events()[-1].error == 'line\nbreak "quoted" \x00 🦉'
    assert scene.view("plain", "й\u2028ß").error == 'line\nbreak "quoted" \x00 🦉'


def test_segments_are_planned_once_finished_once_and_trim_the_journal(scene: Scene) -> None:
    scene.apply(*(Post(message("plain", id)) for id in "ab"))
    scene.apply(*(Post(message("plain", id)) for id in "cd"))
    scene.apply(*(Post(message("plain", id)) for id in "ef"))
    assert scene.store.segments() == []
    planned = scene.store.plan_segment(4)
    assert planned == Segment(1, 4, "0" * 64, "")
    # Who comes again after a crash gets the same boundary, whatever was written since.
    assert scene.store.plan_segment(6) == planned
    assert scene.store.segments() == [planned]
    assert [c.first for c in scene.store.chunks()] == [1, 3, 5]
    finished = planned._replace(chain="ab" * 32)
    scene.store.finish_segment(finished)
    scene.store.finish_segment(finished)
    assert scene.store.segments() == [finished]
    assert [c.first for c in scene.store.chunks()] == [5]
    assert [o for o, _, _ in scene.store.events()] == [5, 6]
    assert scene.store.plan_segment(6) == Segment(5, 6, "ab" * 32, "")


def test_a_journal_that_was_trimmed_goes_on_where_it_was(scene: Scene) -> None:
    scene.post("plain", "a")
    hash = next(iter(scene.store.chunks())).hash
    segment = scene.store.plan_segment(1)
    scene.store.finish_segment(segment._replace(chain="cd" * 32))
    assert list(scene.store.chunks()) == []
    assert scene.store.offset() == 1
    scene.post("plain", "b")
    (chunk,) = scene.store.chunks()
    assert (chunk.first, chunk.prev) == (2, hash)


def test_a_segment_ends_where_a_chunk_ends(scene: Scene) -> None:
    scene.apply(*(Post(message("plain", id)) for id in "ab"))
    for last in (0, 1, 3):
        with pytest.raises(InvalidInput):
            scene.store.plan_segment(last)
    with pytest.raises(InvalidInput):
        scene.store.finish_segment(Segment(1, 2, "0" * 64, "ab" * 32))
    assert scene.store.segments() == []


def test_a_commit_without_events_writes_no_chunk(scene: Scene) -> None:
    scene.apply(Sweep(), Lease("plain", "m", "t"))
    assert list(scene.store.chunks()) == []
    assert names(scene.events()) == []
