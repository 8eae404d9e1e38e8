"""Operators: redrive, cancel, park, unpark, pause, resume, purge."""

from __future__ import annotations

import pytest
from tests.conformance.scene import Scene, message, ref

from posthouse.mailbox.command import (
    Cancel,
    Filter,
    Lease,
    Park,
    Pause,
    Post,
    Purge,
    Redrive,
    Release,
    Renew,
    Resume,
    Settle,
    Sweep,
    Unpark,
    Verdict,
)
from posthouse.mailbox.message import State
from posthouse.mailbox.outcome import (
    LeaseLost,
    NotFound,
    Posted,
    Purged,
    Redriven,
    Refusal,
    Refused,
    Settled,
    Switched,
)
from posthouse.mailbox.rules import normalise_error


def kill(scene: Scene, desk: str, *ids: str, mailbox: str = "m", error: str | None = None) -> None:
    """Post and let die, one after the other."""
    for id in ids:
        scene.post(desk, id, mailbox=mailbox)
        scene.do(Lease(desk, mailbox, "killer"))
        scene.settle(desk, id, Verdict.DEAD, "killer", mailbox=mailbox, error=error)


def test_redriven_messages_live_again_in_order_and_history_keeps_both_lives(scene: Scene) -> None:
    kill(scene, "trio", "a", "b")
    scene.post("trio", "c")
    scene.later(100)
    assert scene.do(Redrive(Filter("trio"), holder="op")) == Redriven((ref("trio", "a"), ref("trio", "b")), 0)
    assert scene.lease("trio") == ["a", "b", "c"]
    assert scene.story("a") == ["posted", "leased", "died:permanent", "redriven", "leased"]
    event = scene.events("a")[3]
    assert (event.holder, event.attempt, event.due_at, event.lane_seq) == ("op", 0, scene.at, 1)
    view = scene.view("trio", "a")
    assert (view.life, view.attempts, view.since, view.number) == (2, 0, None, 1)


def test_a_redriven_message_gets_a_new_limit_of_the_same_length(scene: Scene) -> None:
    scene.post("ttl", "own", expires_at=scene.in_s(3))
    scene.post("ttl", "desk")
    scene.later(50)
    scene.do(Sweep())
    scene.do(Redrive(Filter("ttl")))
    assert scene.view("ttl", "own").expires_at == scene.in_s(3)
    assert scene.view("ttl", "desk").expires_at == scene.in_s(10)
    assert [e.expires_at for e in scene.events() if e.event == "redriven"] == [scene.in_s(3), scene.in_s(10)]


@pytest.mark.parametrize("state", ["dead", "expired", "cancelled", "uncertain"])
def test_whatever_failed_can_be_redriven(scene: Scene, state: str) -> None:
    scene.post("ttl", "a")
    if state == "cancelled":
        scene.do(Cancel(ref("ttl", "a")))
    elif state == "expired":
        scene.later(10)
        scene.do(Sweep())
    else:
        scene.lease("ttl")
        scene.settle("ttl", "a", Verdict(state))
    assert scene.state("ttl", "a") == state
    assert scene.do(Redrive(Filter("ttl"))).refs == (ref("ttl", "a"),)
    assert scene.lease("ttl", token="u") == ["a"]


def test_what_was_delivered_is_parked_or_under_way_is_not_redriven(scene: Scene) -> None:
    scene.post("trio", "done", "parked", "out", "ready")
    scene.lease("trio", limit=3)
    scene.deliver("trio", "done")
    scene.do(Park(ref("trio", "parked")))
    assert scene.do(Redrive(Filter("trio"))) == Redriven((), 0)
    assert scene.do(Redrive(Filter("trio", states=frozenset({State.DELIVERED})))) == Redriven((), 0)


def test_redrive_by_filter(scene: Scene) -> None:
    kill(scene, "trio", "a", error="user 17 unknown")
    kill(scene, "trio", "b", error="timeout")
    kill(scene, "trio", "c", mailbox="other", error="user 4 unknown")
    scene.later(10)
    kill(scene, "trio", "d", error="user 5 unknown")
    scene.post("trio", "e", lane="l", kind="k", sender="bob")
    scene.do(Cancel(ref("trio", "e", sender="bob")))

    def would(**fields: object) -> list[str]:
        return [r.id for r in scene.do(Redrive(Filter("trio", **fields), dry_run=True)).refs]  # type: ignore[arg-type]

    assert would() == ["a", "b", "c", "d", "e"]
    assert would(mailbox="m") == ["a", "b", "d", "e"]
    assert would(error=normalise_error("user 99 unknown")) == ["a", "c", "d"]
    assert would(error="") == ["e"]
    assert would(since=scene.at) == ["d", "e"]
    assert would(until=scene.at) == ["a", "b", "c"]
    assert would(lane="l") == ["e"]
    assert would(lane="") == ["a", "b", "c", "d"]
    assert would(kind="k") == ["e"]
    assert would(sender="bob") == ["e"]
    assert would(id="b") == ["b"]
    assert would(reason="operator") == ["e"]
    assert would(states=frozenset({State.CANCELLED})) == ["e"]
    assert would(mailbox="nobody") == []


def test_a_dry_run_changes_nothing(scene: Scene) -> None:
    kill(scene, "trio", "a")
    scene.post("trio", "p")
    scene.do(Park(ref("trio", "p")))
    offset, before = scene.store.offset(), [scene.view("trio", id) for id in "ap"]
    assert scene.do(Redrive(Filter("trio"), dry_run=True)).refs == (ref("trio", "a"),)
    assert scene.do(Unpark(Filter("trio"), dry_run=True)).refs == (ref("trio", "p"),)
    assert scene.do(Purge(Filter("trio"), dry_run=True)) == Purged(1, 1, 0)
    assert (scene.store.offset(), [scene.view("trio", id) for id in "ap"]) == (offset, before)


def test_a_redrive_with_a_rate_spreads_in_time(scene: Scene) -> None:
    kill(scene, "trio", "a", "b", "c")
    scene.do(Redrive(Filter("trio"), rate_per_s=2))
    assert [scene.view("trio", id).due_at for id in "abc"] == [0, scene.in_s(0.5), scene.in_s(1)]
    due = [e.due_at for e in scene.events() if e.event == "redriven"]
    assert due == [scene.at, scene.in_s(0.5), scene.in_s(1)]
    assert scene.lease("trio") == ["a"]
    scene.later(0.5)
    assert scene.lease("trio") == ["b"]
    scene.later(0.5)
    assert scene.lease("trio") == ["c"]


def test_a_redrive_takes_at_most_its_limit_oldest_first(scene: Scene) -> None:
    kill(scene, "trio", "a", "b", "c")
    assert [r.id for r in scene.do(Redrive(Filter("trio"), limit=2)).refs] == ["a", "b"]
    assert [r.id for r in scene.do(Redrive(Filter("trio"), limit=2)).refs] == ["c"]


def test_a_redrive_heeds_capacity_and_says_what_it_skipped(scene: Scene) -> None:
    kill(scene, "small", "a", "b", "c")
    kill(scene, "small", "x", mailbox="other")
    scene.post("small", "d")
    expected = Redriven((ref("small", "a"), ref("small", "x", mailbox="other")), 2)
    assert scene.do(Redrive(Filter("small"), dry_run=True)) == expected
    assert scene.do(Redrive(Filter("small"))) == expected
    assert scene.states("small", "a", "b", "c") == ["ready", "dead", "dead"]


def test_cancel_finishes_what_is_ready_and_revokes_what_is_leased(scene: Scene) -> None:
    scene.post("trio", "a", "b")
    scene.lease("trio", limit=1)
    assert scene.do(Cancel(ref("trio", "a"), holder="op")) == Settled(State.CANCELLED, 0, None, False)
    assert scene.do(Cancel(ref("trio", "b"))) == Settled(State.CANCELLED, 0, None, False)
    assert scene.settle("trio", "a", Verdict.DELIVERED) == LeaseLost(State.CANCELLED)
    first, second = scene.events("a")[-1], scene.events("b")[-1]
    assert (first.event, first.reason, first.holder, first.attempt) == ("cancelled", "operator", "op", 1)
    assert (second.event, second.reason, second.holder, second.attempt) == ("cancelled", "operator", None, 0)


def test_an_operator_without_a_name_leaves_the_holder_of_the_lease(scene: Scene) -> None:
    scene.post("plain", "a")
    scene.lease("plain")
    scene.do(Cancel(ref("plain", "a")))
    assert scene.events("a")[-1].holder == "h-t"


@pytest.mark.parametrize("command", [Cancel, Park])
def test_cancel_and_park_answer_what_they_cannot_do(scene: Scene, command: type) -> None:
    assert scene.do(command(ref("plain", "a"))) == NotFound()
    assert scene.do(command(ref("nowhere", "a"))) == Refused(Refusal.UNKNOWN_DESK)
    scene.post("plain", "a")
    scene.do(Cancel(ref("plain", "a")))
    assert scene.do(command(ref("plain", "a"))) == Refused(Refusal.FINISHED)
    scene.post("unsure", "a")
    scene.lease("unsure")
    assert scene.do(command(ref("unsure", "a"))) == Refused(Refusal.IN_FLIGHT)
    assert scene.state("unsure", "a") is State.LEASED


@pytest.mark.parametrize("command", [Cancel, Park])
def test_cancel_and_park_of_a_bare_memory_are_refused(scene: Scene, command: type) -> None:
    scene.post("brief", "a")
    scene.lease("brief")
    scene.deliver("brief", "a")
    assert scene.do(command(ref("brief", "a"))) == Refused(Refusal.FINISHED)


def test_a_parked_message_is_out_of_its_lane_until_it_is_unparked_to_its_place(scene: Scene) -> None:
    scene.post("trio", "a", "b", "c")
    outcome = scene.do(Park(ref("trio", "a"), reason="review", holder="op"))
    assert outcome == Settled(State.PARKED, 0, None, False)
    assert scene.story("a")[-1] == "parked:review"
    assert scene.do(Park(ref("trio", "a"))) == Refused(Refusal.NOT_ALLOWED)
    assert scene.lease("trio", limit=1) == ["b"]
    assert scene.do(Unpark(Filter("trio"), holder="op")) == Redriven((ref("trio", "a"),), 0)
    event = scene.events("a")[-1]
    assert (event.event, event.holder, event.due_at, event.lane_seq) == ("unparked", "op", None, 1)
    assert scene.lease("trio", token="u") == ["a", "c"]


def test_parking_a_leased_message_revokes_the_lease(scene: Scene) -> None:
    scene.post("plain", "a")
    scene.lease("plain")
    scene.do(Park(ref("plain", "a")))
    assert scene.do(Renew("plain", "t")) == LeaseLost(None)
    view = scene.view("plain", "a")
    assert (view.token, view.holder, view.lease_ends_at, view.since) == (None, None, None, scene.at)


def test_a_parked_message_does_not_expire_and_gets_a_new_limit(scene: Scene) -> None:
    scene.post("ttl", "a")
    scene.do(Park(ref("ttl", "a")))
    scene.later(100)
    scene.do(Sweep())
    assert scene.state("ttl", "a") is State.PARKED
    scene.do(Unpark(Filter("ttl")))
    assert scene.view("ttl", "a").expires_at == scene.in_s(10)
    assert scene.events("a")[-1].expires_at == scene.in_s(10)


def test_what_is_parked_has_a_bound_of_its_own(scene: Scene) -> None:
    scene.post("relay", "a", "b", "c")
    scene.do(Park(ref("relay", "a")))
    scene.do(Park(ref("relay", "b")))
    assert scene.do(Park(ref("relay", "c"))) == Refused(Refusal.PARKED_FULL)
    assert scene.state("relay", "c") is State.READY


def test_unpark_heeds_capacity(scene: Scene) -> None:
    scene.post("small", "a", "b")
    scene.do(Park(ref("small", "a")))
    scene.do(Park(ref("small", "b")))
    scene.post("small", "c")
    assert scene.do(Unpark(Filter("small"))) == Redriven((ref("small", "a"),), 1)


def test_unpark_takes_only_what_is_parked_and_at_most_its_limit(scene: Scene) -> None:
    kill(scene, "trio", "dead")
    scene.post("trio", "a", "b")
    for id in "ab":
        scene.do(Park(ref("trio", id)))
    assert [r.id for r in scene.do(Unpark(Filter("trio"), limit=1)).refs] == ["a"]
    assert [r.id for r in scene.do(Unpark(Filter("trio", id="b"))).refs] == ["b"]
    assert scene.state("trio", "dead") is State.DEAD


def test_an_uncertain_message_can_be_parked_and_cancelled(scene: Scene) -> None:
    scene.post("unsure", "a", "b")
    scene.lease("unsure")
    for id in "ab":
        scene.settle("unsure", id, Verdict.UNCERTAIN)
    assert scene.do(Park(ref("unsure", "a"))).state is State.PARKED
    assert scene.do(Cancel(ref("unsure", "b"))).state is State.CANCELLED


def test_pausing_twice_changes_once(scene: Scene) -> None:
    scene.post("plain", "a", lane="l")
    assert scene.do(Pause("plain", "m", holder="op")) == Switched(True)
    assert scene.do(Pause("plain", "m", reason="poison")) == Switched(False)
    assert scene.do(Pause("plain", "m", "l", holder="op")) == Switched(True)
    assert scene.do(Pause("plain", "m", "l")) == Switched(False)
    events = [e for e in scene.events() if e.event == "paused"]
    assert [(e.mailbox, e.lane, e.holder, e.reason) for e in events] == [
        ("m", "", "op", "operator"),
        ("m", "l", "op", "operator"),
    ]
    mailbox, lane = scene.store.mailbox("plain", "m"), scene.store.lane("plain", "m", "l")
    assert mailbox is not None
    assert lane is not None
    assert (mailbox.paused, lane.paused) == ("operator", "operator")


def test_resuming_the_mailbox_leaves_a_paused_lane_paused(scene: Scene) -> None:
    scene.post("plain", "a", lane="l")
    scene.do(Pause("plain", "m"))
    scene.do(Pause("plain", "m", "l"))
    assert scene.do(Resume("plain", "m", holder="op")) == Switched(True)
    assert scene.do(Resume("plain", "m")) == Switched(False)
    assert scene.lease("plain") == []
    assert scene.do(Resume("plain", "m", "l")) == Switched(True)
    assert scene.lease("plain") == ["a"]
    resumed = [e for e in scene.events() if e.event == "resumed"]
    assert [(e.lane, e.holder, e.reason) for e in resumed] == [("", "op", None), ("l", None, None)]


def test_a_mailbox_can_be_paused_before_anything_is_posted(scene: Scene) -> None:
    assert scene.do(Resume("plain", "m")) == Switched(False)
    assert scene.do(Resume("plain", "m", "l")) == Switched(False)
    assert scene.store.mailbox("plain", "m") is None
    scene.do(Pause("plain", "m"))
    scene.post("plain", "a")
    assert scene.lease("plain") == []
    assert scene.lease("plain", None) == []


def test_a_paused_lane_still_takes_posts_settles_and_expires(scene: Scene) -> None:
    scene.post("ttl", "a")
    scene.lease("ttl")
    scene.do(Pause("ttl", "m", ""))
    scene.post("ttl", "b")
    scene.deliver("ttl", "a")
    scene.later(10)
    assert scene.do(Sweep()).expired == (("ttl", "m", 1),)


def test_poison_leaves_a_lane_that_is_paused_as_it_is(scene: Scene) -> None:
    scene.post("block", "a")
    scene.lease("block")
    scene.do(Pause("block", "m", ""))
    scene.settle("block", "a", Verdict.DEAD)
    lane = scene.store.lane("block", "m", "")
    assert lane is not None
    assert lane.paused == "operator"
    assert [e.event for e in scene.events()].count("paused") == 1


def test_purge_cancels_the_unfinished_and_removes_the_finished(scene: Scene) -> None:
    kill(scene, "trio", "dead")
    scene.post("trio", "out", "ready", "parked", "done")
    scene.lease("trio", limit=1)
    scene.do(Park(ref("trio", "parked")))
    assert scene.do(Purge(Filter("trio"), holder="op")) == Purged(4, 1, 0)
    assert scene.states("trio", "out", "ready", "parked", "done") == ["cancelled"] * 4
    assert scene.view("trio", "dead").memory
    purged = [e for e in scene.events() if e.event == "cancelled"]
    assert {(e.reason, e.holder) for e in purged} == {("purged", "op")}
    assert [e.attempt for e in purged] == [1, 0, 0, 0]
    assert scene.settle("trio", "out", Verdict.DELIVERED) == LeaseLost(State.CANCELLED)
    assert scene.do(Purge(Filter("trio"))) == Purged(0, 4, 0)
    assert scene.kept("trio") == []


def test_purge_spares_what_was_delivered(scene: Scene) -> None:
    scene.post("plain", "a")
    scene.lease("plain")
    scene.deliver("plain", "a")
    assert scene.do(Purge(Filter("plain"))) == Purged(0, 0, 0)
    assert scene.kept("plain") == ["a"]


def test_purge_skips_what_is_in_flight_where_its_outcome_would_be_unknown(scene: Scene) -> None:
    scene.post("unsure", "a", "b")
    scene.lease("unsure", limit=1)
    assert scene.do(Purge(Filter("unsure"))) == Purged(1, 0, 1)
    scene.deliver("unsure", "a")


def test_purge_by_filter_and_limit(scene: Scene) -> None:
    scene.post("trio", "a", "b", "c")
    scene.post("trio", "x", lane="l")
    assert scene.do(Purge(Filter("trio", lane="l"))) == Purged(1, 0, 0)
    assert scene.do(Purge(Filter("trio", states=frozenset({State.READY})), limit=2)) == Purged(2, 0, 0)
    assert scene.states("trio", "a", "b", "c", "x") == ["cancelled", "cancelled", "ready", "cancelled"]


def test_a_purged_mailbox_has_room_again(scene: Scene) -> None:
    scene.post("small", "a", "b")
    scene.do(Purge(Filter("small")))
    assert scene.do(Post(message("small", "c"))) == Posted(3, None)


@pytest.mark.parametrize(
    "command",
    [
        Redrive(Filter("nowhere")),
        Unpark(Filter("nowhere")),
        Purge(Filter("nowhere")),
        Pause("nowhere", "m"),
        Resume("nowhere", "m"),
        Release("nowhere", "t"),
        Renew("nowhere", "t"),
        Settle(ref("nowhere", "a"), "t", Verdict.DELIVERED),
    ],
    ids=lambda c: type(c).__name__,
)
def test_no_command_finds_a_desk_that_is_not_there(scene: Scene, command: Pause) -> None:
    assert scene.do(command) == Refused(Refusal.UNKNOWN_DESK)
    assert scene.store.offset() == 0
