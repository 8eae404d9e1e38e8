"""Leasing: windows, lanes in turn, quiet periods, renewal, fencing, recall."""

from __future__ import annotations

import pytest
from tests.conformance.scene import Scene, message, ref

from posthouse.mailbox.command import Cancel, Lease, Park, Pause, Post, Release, Renew, Resume, Settle, Sweep, Verdict
from posthouse.mailbox.message import State
from posthouse.mailbox.outcome import Leased, LeaseLost, Refusal, Refused, Renewed


def test_a_lease_tells_the_holder_all_it_needs(scene: Scene) -> None:
    scene.post("plain", "a")
    scene.later(3)
    delivery = scene.leased("plain").deliveries[0]
    assert (delivery.seq, delivery.attempt, delivery.progress, delivery.batch) == (1, 1, 0, None)
    assert delivery.posted_at == scene.in_s(-3)
    assert delivery.lease_ends_at == scene.in_s(60)
    view = scene.view("plain", "a")
    assert (view.state, view.token, view.holder, view.lease_ends_at) == ("leased", "t", "h-t", scene.in_s(60))


def test_a_lease_without_bodies_leaves_them_in_the_store(scene: Scene) -> None:
    scene.post("plain", "a")
    outcome = scene.do(Lease("plain", "m", "t", bodies=False))
    assert outcome.deliveries[0].message == message("plain", "a", body=b"")
    assert scene.store.bodies([ref("plain", "a"), ref("plain", "z")]) == [b"body", None]


def test_nothing_to_lease_is_an_empty_lease(scene: Scene) -> None:
    assert scene.do(Lease("plain", "m", "t")) == Leased("t", ())
    assert scene.do(Lease("plain", None, "t")) == Leased("t", ())
    scene.post("plain", "a")
    assert scene.do(Lease("plain", "other", "t")) == Leased("t", ())
    assert scene.do(Lease("plain", "m", "t", limit=0)) == Leased("t", ())


def test_an_unknown_desk_cannot_be_leased_from(scene: Scene) -> None:
    assert scene.do(Lease("nowhere", None, "t")) == Refused(Refusal.UNKNOWN_DESK)


def test_a_window_of_one_gives_the_head_and_then_waits(scene: Scene) -> None:
    scene.post("plain", "a", "b")
    assert scene.lease("plain") == ["a"]
    assert scene.lease("plain", token="u") == []
    scene.deliver("plain", "a")
    assert scene.lease("plain") == ["b"]


def test_a_window_of_three_counts_all_in_flight_whoever_holds_them(scene: Scene) -> None:
    scene.post("trio", "a", "b", "c", "d", "e")
    assert scene.lease("trio", token="t", limit=2) == ["a", "b"]
    assert scene.lease("trio", token="u") == ["c"]
    scene.settle("trio", "a", Verdict.RECEIVED)
    assert scene.lease("trio", token="u") == []
    scene.deliver("trio", "b")
    assert scene.lease("trio", token="u") == ["d"]


def test_without_a_window_all_can_be_out(scene: Scene) -> None:
    ids = [f"i{n}" for n in range(20)]
    scene.post("by_id", *ids)
    assert scene.lease("by_id", limit=15) == ids[:15]
    assert scene.lease("by_id", token="u") == ids[15:]


def test_lanes_of_a_mailbox_go_side_by_side(scene: Scene) -> None:
    for id, lane in (("a1", "a"), ("a2", "a"), ("b1", "b"), ("b2", "b"), ("c1", "c")):
        scene.post("plain", id, lane=lane)
    assert scene.lease("plain", limit=2) == ["a1", "b1"]
    assert scene.lease("plain") == ["c1"]


def test_a_head_that_is_not_due_holds_its_followers(scene: Scene) -> None:
    scene.post("trio", "a", due_at=scene.in_s(10))
    scene.post("trio", "b")
    assert scene.lease("trio") == []
    scene.later(10)
    assert scene.lease("trio") == ["a", "b"]


def test_a_message_in_the_middle_that_is_not_due_holds_those_behind_it(scene: Scene) -> None:
    scene.post("trio", "a")
    scene.post("trio", "b", due_at=scene.in_s(10))
    scene.post("trio", "c")
    assert scene.lease("trio") == ["a"]


def test_what_expired_is_finished_on_the_way_to_what_did_not(scene: Scene) -> None:
    scene.post("ttl", "a")
    scene.post("ttl", "b", expires_at=scene.in_s(99))
    scene.later(10)
    assert scene.lease("ttl") == ["b"]
    assert scene.state("ttl", "a") is State.EXPIRED
    assert scene.story("a") == ["posted", "expired:ttl"]


def test_a_deadline_that_passed_is_death_on_the_way(scene: Scene) -> None:
    scene.post("deadline", "a")
    scene.later(10)
    assert scene.lease("deadline") == []
    assert scene.story("a") == ["posted", "died:deadline"]


def test_what_is_in_flight_does_not_expire_in_a_lease(scene: Scene) -> None:
    scene.post("ttl", "a", "b")
    scene.lease("ttl", limit=1)
    scene.later(10)
    assert scene.lease("ttl", token="u") == []
    assert scene.states("ttl", "a", "b") == ["leased", "expired"]
    scene.deliver("ttl", "a")


def test_a_lease_by_desk_takes_one_lane_and_gives_each_mailbox_its_turn(scene: Scene) -> None:
    for mailbox in ("x", "y", "z"):
        for n in range(3):
            scene.post("trio", f"{mailbox}{n}", mailbox=mailbox)
    turns = []
    for n in range(9):
        ids = scene.lease("trio", None, token=f"t{n}", limit=1)
        turns += ids
        scene.settle("trio", ids[0], Verdict.DELIVERED, f"t{n}", mailbox=ids[0][0])
    assert turns == ["x0", "y0", "z0", "x1", "y1", "z1", "x2", "y2", "z2"]


def test_a_busy_mailbox_does_not_starve_the_others(scene: Scene) -> None:
    scene.post("plain", *(f"busy{n}" for n in range(20)), mailbox="busy")
    scene.post("plain", "calm", mailbox="calm")
    assert scene.lease("plain", None, "t0") == ["busy0"]
    scene.settle("plain", "busy0", Verdict.DELIVERED, "t0", mailbox="busy")
    assert scene.lease("plain", None, "t1") == ["calm"]


def test_in_a_mailbox_the_least_recently_served_lane_comes_first(scene: Scene) -> None:
    for lane in ("a", "b"):
        scene.post("plain", f"{lane}0", f"{lane}1", lane=lane)
    turns = []
    for n in range(3):
        turns += scene.lease("plain", None, f"t{n}", limit=5)
        scene.deliver("plain", turns[-1], token=f"t{n}")
    assert turns == ["a0", "b0", "a1"]


def test_a_new_mailbox_is_served_before_one_that_was(scene: Scene) -> None:
    scene.post("trio", "old1", "old2", mailbox="old")
    assert scene.lease("trio", None, limit=1) == ["old1"]
    scene.post("trio", "new", mailbox="new")
    assert scene.lease("trio", None, limit=1) == ["new"]
    assert scene.lease("trio", None, limit=1) == ["old2"]


def test_a_lease_by_mailbox_does_not_change_whose_turn_it_is(scene: Scene) -> None:
    for mailbox in ("x", "y"):
        scene.post("trio", f"{mailbox}0", f"{mailbox}1", mailbox=mailbox)
    assert scene.lease("trio", "x", limit=1) == ["x0"]
    assert scene.lease("trio", None, limit=1) == ["x1"]


def test_a_lease_by_desk_passes_over_the_mailboxes_that_it_names_and_their_turn_stays_theirs(scene: Scene) -> None:
    for mailbox in ("x", "y"):
        scene.post("trio", *(f"{mailbox}{n}" for n in range(3)), mailbox=mailbox)

    def besides(*mailboxes: str) -> list[str]:
        leased = scene.do(Lease("trio", None, "t", limit=1, besides=mailboxes))
        return [d.message.id for d in leased.deliveries]

    assert besides("x") == ["y0"]
    assert besides("x", "y") == []
    assert besides() == ["x0"]
    assert besides() == ["y1"]
    assert besides("y") == ["x1"]
    assert besides("x") == ["y2"]
    assert besides("x") == []
    assert besides("y") == ["x2"]


def test_a_lease_by_mailbox_gives_each_lane_its_turn(scene: Scene) -> None:
    for lane in ("a", "b", "c"):
        scene.post("plain", *(f"{lane}{n}" for n in range(3)), lane=lane)
    turns = []
    for n in range(5):
        ids = scene.lease("plain", token=f"t{n}", limit=2)
        turns.append(ids)
        for id in ids:
            scene.deliver("plain", id, token=f"t{n}")
    assert turns == [["a0", "b0"], ["c0", "a1"], ["b1", "c1"], ["a2", "b2"], ["c2"]]


def test_a_lane_that_was_alone_in_its_mailbox_takes_turns_with_one_that_comes_later(scene: Scene) -> None:
    scene.post("plain", "a0", "a1", "a2", lane="a")
    assert scene.lease("plain", token="t0", limit=1) == ["a0"]
    scene.deliver("plain", "a0", token="t0")
    scene.post("plain", "b0", "b1", lane="b")
    turns = []
    for n in range(4):
        turns += scene.lease("plain", token=f"u{n}", limit=1)
        scene.deliver("plain", turns[-1], token=f"u{n}")
    assert turns == ["a1", "b0", "a2", "b1"]


def test_a_holder_takes_ahead_of_a_lane_whatever_is_in_flight(scene: Scene) -> None:
    scene.post("plain", "a0", "a1", "a2", lane="a")
    scene.post("plain", "b0", "b1", lane="b")
    assert scene.lease("plain", token="t", limit=1) == ["a0"]
    assert scene.lease("plain", token="u", limit=5) == ["b0"]
    ahead = scene.do(Lease("plain", "m", "v", limit=5, lane="a"))
    assert [delivery.message.id for delivery in ahead.deliveries] == ["a1", "a2"]
    assert scene.do(Lease("plain", "m", "v", limit=5, lane="nowhere")) == Leased("v", ())
    # When the first one fails, those behind it come back; they are due when it is.
    scene.settle("plain", "a0", Verdict.RETRY)
    assert scene.states("plain", "a0", "a1", "a2") == ["ready"] * 3
    assert scene.do(Lease("plain", "m", "v", limit=5, lane="a")) == Leased("v", ())
    scene.later(1)
    assert scene.lease("plain", token="w", limit=5) == ["a0"]


def test_what_was_taken_ahead_holds_its_lane_until_it_is_settled(scene: Scene) -> None:
    scene.post("plain", "a0", "a1", "a2", lane="a")
    scene.lease("plain", limit=1)
    scene.do(Lease("plain", "m", "v", lane="a"))
    scene.deliver("plain", "a0")
    assert scene.lease("plain", token="w") == []
    scene.deliver("plain", "a1", token="v")
    assert scene.lease("plain", token="w") == ["a2"]


def test_a_lane_that_is_paused_is_not_taken_ahead(scene: Scene) -> None:
    scene.post("plain", "a0", "a1", lane="a")
    scene.lease("plain", limit=1)
    scene.do(Pause("plain", "m", "a"))
    assert scene.do(Lease("plain", "m", "v", lane="a")) == Leased("v", ())


def test_a_lease_by_desk_passes_over_what_cannot_be_leased(scene: Scene) -> None:
    scene.post("plain", "held", "behind", mailbox="held")
    scene.post("plain", "later", mailbox="later", due_at=scene.in_s(9))
    scene.post("plain", "paused", mailbox="paused")
    scene.post("plain", "free", mailbox="free")
    scene.lease("plain", "held")
    scene.do(Pause("plain", "paused"))
    assert scene.lease("plain", None, "u") == ["free"]
    assert scene.lease("plain", None, "u") == []
    scene.do(Resume("plain", "paused"))
    assert scene.lease("plain", None, "u") == ["paused"]
    scene.later(9)
    assert scene.lease("plain", None, "u") == ["later"]


def test_renewing_moves_the_end_of_every_lease_of_the_token(scene: Scene) -> None:
    scene.post("trio", "a", "b", "c")
    scene.lease("trio", token="t", limit=2)
    scene.lease("trio", token="u")
    scene.later(50)
    assert scene.do(Renew("trio", "t")) == Renewed(2, scene.in_s(60))
    scene.later(59)
    assert scene.do(Sweep()).lost == 1
    assert scene.states("trio", "a", "b", "c") == ["leased", "leased", "ready"]


def test_progress_is_kept_from_one_attempt_to_the_next(scene: Scene) -> None:
    scene.post("plain", "a")
    scene.lease("plain")
    assert scene.do(Renew("plain", "t", ref("plain", "a"), 3)).count == 1
    assert scene.do(Renew("plain", "t")).count == 1
    assert scene.view("plain", "a").progress == 3
    scene.settle("plain", "a", Verdict.RETRY)
    scene.later(1)
    assert scene.leased("plain", token="u").deliveries[0].progress == 3


def test_renewing_a_lease_that_was_lost_is_told(scene: Scene) -> None:
    scene.post("plain", "a")
    scene.lease("plain")
    scene.later(60)
    scene.do(Sweep())
    assert scene.do(Renew("plain", "t")) == LeaseLost(None)
    assert scene.do(Renew("plain", "t", ref("plain", "a"), 1)) == LeaseLost(State.READY)
    assert scene.do(Renew("plain", "t", ref("plain", "z"), 1)) == LeaseLost(None)
    assert scene.view("plain", "a").progress == 0


def test_renewing_with_a_message_that_is_not_held_renews_nothing(scene: Scene) -> None:
    scene.post("trio", "a", "b")
    scene.lease("trio", limit=1)
    before = scene.view("trio", "a")
    scene.later(5)
    assert scene.do(Renew("trio", "t", ref("trio", "b"), 1)) == LeaseLost(State.READY)
    assert scene.view("trio", "a") == before


def test_renewal_leaves_no_event(scene: Scene) -> None:
    scene.post("plain", "a")
    scene.lease("plain")
    offset = scene.store.offset()
    scene.do(Renew("plain", "t", ref("plain", "a"), 1))
    assert scene.store.offset() == offset


def test_a_lease_that_ended_but_was_not_swept_still_holds(scene: Scene) -> None:
    scene.post("plain", "a")
    scene.lease("plain")
    scene.later(3600)
    scene.deliver("plain", "a")


@pytest.mark.parametrize("verdict", list(Verdict))
def test_an_old_token_settles_nothing(scene: Scene, verdict: Verdict) -> None:
    scene.post("plain", "a")
    scene.lease("plain", token="old")
    scene.later(60)
    scene.do(Sweep())
    scene.later(1)
    assert scene.lease("plain", token="new") == ["a"]
    before = scene.view("plain", "a")
    assert scene.settle("plain", "a", verdict, "old") == LeaseLost(State.LEASED)
    assert scene.settle("plain", "a", verdict, None) == LeaseLost(State.LEASED)
    assert scene.view("plain", "a") == before
    scene.deliver("plain", "a", token="new")
    assert scene.settle("plain", "a", verdict, "new") == LeaseLost(State.DELIVERED)


def test_when_the_head_fails_its_leased_followers_come_back_uncounted(scene: Scene) -> None:
    scene.post("trio", "a", "b", "c")
    scene.lease("trio", token="t", limit=2)
    scene.lease("trio", token="u")
    scene.settle("trio", "a", Verdict.RETRY)
    assert scene.states("trio", "a", "b", "c") == ["ready", "ready", "ready"]
    assert [scene.view("trio", id).attempts for id in "abc"] == [1, 0, 0]
    assert scene.story("c") == ["posted", "leased", "recalled:head_failed"]
    assert scene.settle("trio", "c", Verdict.DELIVERED, "u") == LeaseLost(State.READY)
    assert scene.lease("trio", token="v") == ["a", "b", "c"]


def test_received_followers_are_spared_by_recall(scene: Scene) -> None:
    scene.post("trio", "a", "b", "c")
    scene.lease("trio")
    scene.settle("trio", "b", Verdict.RECEIVED)
    scene.settle("trio", "a", Verdict.RETRY)
    assert scene.states("trio", "a", "b", "c") == ["ready", "received", "ready"]
    scene.deliver("trio", "b")


def test_a_failure_does_not_recall_what_is_before_it_or_in_another_lane(scene: Scene) -> None:
    scene.post("trio", "a", "b", "c")
    scene.post("trio", "x", lane="other")
    scene.lease("trio")
    scene.settle("trio", "b", Verdict.RETRY)
    assert scene.states("trio", "a", "b", "c", "x") == ["leased", "ready", "ready", "leased"]


@pytest.mark.parametrize("verdict", [Verdict.RETRY, Verdict.RETURN, Verdict.DEAD, Verdict.REJECTED])
def test_each_failure_recalls(scene: Scene, verdict: Verdict) -> None:
    scene.post("trio", "a", "b")
    scene.lease("trio")
    scene.settle("trio", "a", verdict)
    assert scene.state("trio", "b") is State.READY


def test_a_received_head_that_fails_recalls_too(scene: Scene) -> None:
    scene.post("trio", "a", "b")
    scene.lease("trio")
    scene.settle("trio", "a", Verdict.RECEIVED)
    scene.settle("trio", "a", Verdict.RETRY)
    assert scene.state("trio", "b") is State.READY


@pytest.mark.parametrize("verdict", [Verdict.DELIVERED, Verdict.RECEIVED, Verdict.UNCERTAIN])
def test_what_is_no_failure_recalls_nothing(scene: Scene, verdict: Verdict) -> None:
    scene.post("trio", "a", "b")
    scene.lease("trio")
    scene.settle("trio", "a", verdict)
    assert scene.state("trio", "b") is State.LEASED


@pytest.mark.parametrize("command", [Cancel, Park])
def test_an_operator_who_takes_the_head_away_recalls_nothing(scene: Scene, command: type) -> None:
    scene.post("trio", "a", "b")
    scene.lease("trio")
    scene.do(command(ref("trio", "a")))
    assert scene.state("trio", "b") is State.LEASED


def test_a_lost_lease_recalls_followers_whose_lease_goes_on(scene: Scene) -> None:
    scene.post("trio", "a", "b")
    scene.lease("trio", token="t", limit=1)
    scene.later(30)
    scene.lease("trio", token="u")
    scene.later(30)
    swept = scene.do(Sweep())
    assert swept.lost == 1
    assert scene.story("b")[-1] == "recalled:head_failed"


def test_a_message_posted_leased_and_delivered_in_one_commit_was_live(scene: Scene) -> None:
    a = message("by_id", "a")
    outcomes = scene.apply(Post(a), Lease("by_id", "m", "t"), Settle(a.ref, "t", Verdict.DELIVERED))
    assert outcomes[2].live  # type: ignore[union-attr]


def test_live_is_decided_by_the_lease_not_by_when_it_is_settled(scene: Scene) -> None:
    a, b = message("by_id", "a"), message("by_id", "b")
    scene.apply(Post(a), Lease("by_id", "m", "t"))
    scene.do(Post(b))
    scene.do(Lease("by_id", "m", "t"))
    scene.settle("by_id", "a", Verdict.RECEIVED)
    assert scene.settle("by_id", "a", Verdict.DELIVERED, None).live
    assert not scene.settle("by_id", "b", Verdict.DELIVERED).live


def test_what_was_returned_is_no_longer_live(scene: Scene) -> None:
    a = message("trio", "a")
    outcomes = scene.apply(
        Post(a),
        Lease("trio", "m", "t"),
        Settle(a.ref, "t", Verdict.RETURN),
        Lease("trio", "m", "u"),
        Settle(a.ref, "u", Verdict.DELIVERED),
    )
    assert not outcomes[4].live  # type: ignore[union-attr]


def test_what_was_never_leased_is_not_live(scene: Scene) -> None:
    a = message("by_id", "a")
    outcomes = scene.apply(Post(a), Settle(a.ref, None, Verdict.DELIVERED))
    assert not outcomes[1].live  # type: ignore[union-attr]


def test_next_at_is_the_earliest_wait_or_lease_end_after_now(scene: Scene) -> None:
    assert scene.store.next_at(scene.at) is None
    scene.post("plain", "a")
    assert scene.store.next_at(scene.at) is None
    scene.lease("plain")
    assert scene.store.next_at(scene.at) == scene.in_s(60)
    scene.post("plain", "b", mailbox="other", due_at=scene.in_s(30))
    assert scene.store.next_at(scene.at) == scene.in_s(30)
    assert scene.store.next_at(scene.in_s(30)) == scene.in_s(60)
    assert scene.store.next_at(scene.in_s(60)) is None


def test_a_paused_mailbox_and_a_paused_lane_give_nothing(scene: Scene) -> None:
    scene.post("plain", "a", lane="a")
    scene.post("plain", "b", lane="b")
    scene.do(Pause("plain", "m", "a"))
    assert scene.lease("plain") == ["b"]
    scene.do(Resume("plain", "m", "a"))
    scene.do(Pause("plain", "m"))
    assert scene.lease("plain") == []
    scene.deliver("plain", "b")
    scene.do(Resume("plain", "m"))
    assert scene.lease("plain") == ["a"]


def test_a_delivery_says_whether_its_lease_was_committed_with_its_post(scene: Scene) -> None:
    scene.post("relay", "waited")
    *_, leased = scene.apply(Post(message("relay", "at once")), Lease("relay", "m", "t", limit=10))
    assert isinstance(leased, Leased)
    assert [(d.message.id, d.live) for d in leased.deliveries] == [("waited", False), ("at once", True)]
    scene.do(Release("relay", "t"))
    assert [d.live for d in scene.leased("relay").deliveries] == [False, False]
