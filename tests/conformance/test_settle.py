"""Settling by token and by id, retries, death, uncertainty, poison, and the holder who left."""

from __future__ import annotations

import pytest
from tests.conformance.scene import Scene, message, names, ref

from posthouse.mailbox.command import (
    Cancel,
    Filter,
    Lease,
    Park,
    Post,
    Release,
    Resume,
    Settle,
    Sweep,
    Unpark,
    Verdict,
)
from posthouse.mailbox.message import State
from posthouse.mailbox.outcome import LeaseLost, NotFound, Refusal, Refused, Released, Settled


def test_received_finishes_nothing(scene: Scene) -> None:
    scene.post("plain", "a", "b")
    scene.lease("plain")
    assert scene.settle("plain", "a", Verdict.RECEIVED) == Settled(State.RECEIVED, 0, None, False)
    assert scene.view("plain", "a").token == "t"
    assert scene.lease("plain", token="u") == []
    assert scene.settle("plain", "a", Verdict.DELIVERED) == Settled(State.DELIVERED, 1, None, False)
    assert scene.story("a") == ["posted", "leased", "received", "delivered"]


def test_received_twice_is_received_once(scene: Scene) -> None:
    scene.post("plain", "a")
    scene.lease("plain")
    scene.settle("plain", "a", Verdict.RECEIVED)
    offset = scene.store.offset()
    assert scene.settle("plain", "a", Verdict.RECEIVED) == Settled(State.RECEIVED, 0, None, False)
    assert scene.store.offset() == offset


def test_a_delivered_message_is_kept_for_its_history(scene: Scene) -> None:
    scene.post("plain", "a")
    scene.lease("plain")
    scene.deliver("plain", "a")
    view = scene.view("plain", "a")
    assert (view.state, view.attempts, view.since, view.token, view.holder) == (
        "delivered",
        1,
        scene.at,
        None,
        None,
    )
    assert not view.memory
    assert scene.store.bodies([ref("plain", "a")]) == [b"body"]


def test_where_nothing_is_kept_a_bare_memory_is_left_at_once(scene: Scene) -> None:
    scene.post("brief", "a", headers={"h": "1"}, lane="l", kind="k")
    scene.lease("brief")
    scene.deliver("brief", "a")
    view = scene.view("brief", "a")
    assert view.memory
    assert (view.state, view.seq, view.attempts, view.since) == ("delivered", 1, 1, scene.at)
    assert (view.message.body, dict(view.message.headers)) == (b"", {})
    assert (view.message.lane, view.message.kind) == ("l", "k")
    assert scene.store.bodies([ref("brief", "a")]) == [None]
    assert scene.kept("brief") == []
    assert scene.settle("brief", "a", Verdict.DELIVERED) == LeaseLost(State.DELIVERED)


def test_an_unknown_message_is_not_found(scene: Scene) -> None:
    assert scene.settle("plain", "a", Verdict.DELIVERED) == NotFound()
    assert scene.settle("nowhere", "a", Verdict.DELIVERED) == Refused(Refusal.UNKNOWN_DESK)


def test_retries_climb_the_ladder_and_its_last_step_repeats(scene: Scene) -> None:
    scene.post("plain", "a")
    for attempt, wait in enumerate((1, 5, 25, 25), 1):
        delivery = scene.leased("plain").deliveries[0]
        assert delivery.attempt == attempt
        outcome = scene.settle("plain", "a", Verdict.RETRY, error="503")
        assert outcome == Settled(State.READY, attempt, scene.in_s(wait), False)
        assert scene.view("plain", "a").due_at == scene.in_s(wait)
        scene.later(wait - 0.000001)
        assert scene.lease("plain") == []
        scene.later(0.000001)


def test_exponential_waits_double_up_to_their_cap(scene: Scene) -> None:
    scene.post("doubling", "a")
    for wait in (1, 2, 4, 8, 8):
        scene.lease("doubling")
        assert scene.settle("doubling", "a", Verdict.RETRY).due_at == scene.in_s(wait)
        scene.later(wait)


def test_the_caller_may_say_when_to_try_again(scene: Scene) -> None:
    scene.post("plain", "a")
    scene.lease("plain")
    outcome = scene.settle("plain", "a", Verdict.RETRY, due_at=scene.in_s(77), reason="rate_limited")
    assert outcome.due_at == scene.in_s(77)
    assert scene.story("a")[-1] == "retried:rate_limited"
    scene.later(77)
    assert scene.lease("plain") == ["a"]


def test_a_time_that_has_passed_means_at_once(scene: Scene) -> None:
    scene.post("plain", "a")
    scene.lease("plain")
    assert scene.settle("plain", "a", Verdict.RETRY, due_at=1) == Settled(State.READY, 1, scene.at, False)
    assert scene.view("plain", "a").due_at == 0
    assert scene.lease("plain") == ["a"]


def test_a_failure_is_told_by_event_and_view(scene: Scene) -> None:
    scene.post("plain", "a")
    scene.lease("plain")
    scene.settle("plain", "a", Verdict.RETRY, error="no route to 10.0.0.7")
    event = scene.events("a")[-1]
    assert (event.event, event.reason, event.error) == ("retried", "failed", "no route to 10.0.0.7")
    assert (event.attempt, event.holder, event.due_at) == (1, "h-t", scene.in_s(1))
    view = scene.view("plain", "a")
    assert (view.reason, view.error) == ("failed", "no route to 10.0.0.7")


def test_the_last_failure_is_still_told_after_delivery(scene: Scene) -> None:
    scene.post("trio", "a")
    scene.lease("trio")
    scene.settle("trio", "a", Verdict.RETRY, error="503")
    scene.lease("trio")
    scene.deliver("trio", "a")
    view = scene.view("trio", "a")
    assert (view.attempts, view.reason, view.error) == (2, "failed", "503")
    assert scene.events("a")[-1].error is None


def test_returned_is_not_counted(scene: Scene) -> None:
    scene.post("plain", "a")
    scene.lease("plain")
    assert scene.settle("plain", "a", Verdict.RETURN, error="away") == Settled(State.READY, 0, scene.at, False)
    event = scene.events("a")[-1]
    assert (event.event, event.reason, event.error, event.attempt) == ("released", "returned", "away", 1)
    assert event.due_at == scene.at
    assert scene.leased("plain").deliveries[0].attempt == 1
    outcome = scene.settle("plain", "a", Verdict.RETURN, due_at=scene.in_s(9), reason="offline")
    assert outcome.due_at == scene.in_s(9)
    assert scene.lease("plain") == []
    assert scene.story("a")[-1] == "released:offline"


@pytest.mark.parametrize(("verdict", "reason"), [(Verdict.DEAD, "permanent"), (Verdict.REJECTED, "rejected")])
def test_dead_and_rejected_end_it_at_once(scene: Scene, verdict: Verdict, reason: str) -> None:
    scene.post("plain", "a", "b")
    scene.lease("plain")
    assert scene.settle("plain", "a", verdict, error="no") == Settled(State.DEAD, 1, None, False)
    event = scene.events("a")[-1]
    assert (event.event, event.reason, event.error, event.attempt) == ("died", reason, "no", 1)
    assert scene.lease("plain") == ["b"]


@pytest.mark.parametrize("state", [State.READY, State.LEASED, State.RECEIVED, State.PARKED, State.UNCERTAIN])
def test_where_the_policy_settles_by_id_a_confirmation_finishes_any_unfinished_state(
    scene: Scene, state: State
) -> None:
    scene.post("by_id", "a")
    if state in (State.LEASED, State.RECEIVED, State.UNCERTAIN):
        scene.lease("by_id")
    if state is State.RECEIVED:
        scene.settle("by_id", "a", Verdict.RECEIVED)
    if state is State.UNCERTAIN:
        scene.settle("by_id", "a", Verdict.UNCERTAIN)
    if state is State.PARKED:
        scene.do(Park(ref("by_id", "a")))
    assert scene.state("by_id", "a") is state
    attempts = 0 if state in (State.READY, State.PARKED) else 1
    outcome = scene.settle("by_id", "a", Verdict.DELIVERED, None, holder="bob")
    assert outcome == Settled(State.DELIVERED, attempts, None, False)
    assert (scene.events("a")[-1].event, scene.events("a")[-1].holder) == ("delivered", "bob")
    mailbox = scene.store.mailbox("by_id", "m")
    assert mailbox is not None
    assert mailbox.counts == {State.DELIVERED: 1}


@pytest.mark.parametrize("end", ["cancelled", "delivered"])
def test_a_confirmation_by_id_that_comes_after_the_end_is_told(scene: Scene, end: str) -> None:
    scene.post("by_id", "a")
    if end == "cancelled":
        scene.do(Cancel(ref("by_id", "a")))
    else:
        scene.settle("by_id", "a", Verdict.DELIVERED, None)
    assert scene.settle("by_id", "a", Verdict.DELIVERED, None) == LeaseLost(State(end))


def test_settling_by_id_confirms_with_a_token_of_somebody_else_too(scene: Scene) -> None:
    scene.post("by_id", "a")
    scene.lease("by_id", token="new")
    assert scene.settle("by_id", "a", Verdict.DELIVERED, "old").state is State.DELIVERED


@pytest.mark.parametrize("verdict", [v for v in Verdict if v is not Verdict.DELIVERED])
def test_by_id_one_can_only_confirm(scene: Scene, verdict: Verdict) -> None:
    scene.post("by_id", "a")
    scene.lease("by_id")
    assert scene.settle("by_id", "a", verdict, None) == LeaseLost(State.LEASED)


def test_a_policy_that_settles_by_token_takes_no_confirmation_by_id(scene: Scene) -> None:
    scene.post("plain", "a")
    assert scene.settle("plain", "a", Verdict.DELIVERED, None) == LeaseLost(State.READY)


def test_an_uncertain_message_leaves_its_lane_and_is_not_replayed(scene: Scene) -> None:
    scene.post("unsure", "a", "b")
    scene.lease("unsure", limit=1)
    outcome = scene.settle("unsure", "a", Verdict.UNCERTAIN, error="timeout after send")
    assert outcome == Settled(State.UNCERTAIN, 1, None, False)
    event = scene.events("a")[-1]
    assert (event.event, event.reason, event.error, event.attempt) == (
        "uncertain",
        "unknown",
        "timeout after send",
        1,
    )
    assert scene.lease("unsure", token="u") == ["b"]
    assert scene.settle("unsure", "a", Verdict.DELIVERED) == LeaseLost(State.UNCERTAIN)


@pytest.mark.parametrize(
    ("verdict", "state"),
    [
        (Verdict.DELIVERED, "delivered"),
        (Verdict.DEAD, "dead"),
        (Verdict.REJECTED, "dead"),
        (Verdict.RETRY, "ready"),
    ],
)
def test_an_uncertain_message_is_resolved_by_hand(scene: Scene, verdict: Verdict, state: str) -> None:
    scene.post("unsure", "a")
    scene.lease("unsure")
    scene.settle("unsure", "a", Verdict.UNCERTAIN)
    outcome = scene.settle("unsure", "a", verdict, None, holder="op")
    # The attempt was counted when its outcome became unknown, and is not counted again.
    assert (outcome.state, outcome.attempts) == (state, 1)
    assert (scene.events("a")[-1].attempt, scene.events("a")[-1].holder) == (1, "op")


@pytest.mark.parametrize("verdict", [Verdict.RECEIVED, Verdict.RETURN, Verdict.UNCERTAIN])
def test_an_uncertain_message_cannot_be_resolved_by_what_says_nothing(scene: Scene, verdict: Verdict) -> None:
    scene.post("unsure", "a")
    scene.lease("unsure")
    scene.settle("unsure", "a", Verdict.UNCERTAIN)
    assert scene.settle("unsure", "a", verdict, None) == LeaseLost(State.UNCERTAIN)


def test_an_uncertain_message_resolved_as_not_sent_returns_to_its_place(scene: Scene) -> None:
    scene.post("unsure", "a", "b")
    scene.lease("unsure")
    scene.settle("unsure", "a", Verdict.UNCERTAIN)
    scene.settle("unsure", "b", Verdict.RETURN)
    scene.settle("unsure", "a", Verdict.RETRY, None, reason="not_sent", due_at=0)
    assert scene.story("a")[-1] == "retried:not_sent"
    assert scene.leased("unsure").deliveries[0].attempt == 2
    assert scene.states("unsure", "a", "b") == ["leased", "leased"]


def test_resolving_an_uncertain_message_recalls_nothing(scene: Scene) -> None:
    scene.post("unsure", "a", "b")
    scene.lease("unsure")
    scene.settle("unsure", "a", Verdict.UNCERTAIN)
    scene.settle("unsure", "a", Verdict.DEAD, None)
    assert scene.state("unsure", "b") is State.LEASED


def test_a_second_uncertain_attempt_may_be_the_last(scene: Scene) -> None:
    scene.post("unsure", "a")
    for _ in range(2):
        scene.lease("unsure")
        scene.settle("unsure", "a", Verdict.UNCERTAIN)
        outcome = scene.settle("unsure", "a", Verdict.RETRY, None, due_at=0)
    assert outcome == Settled(State.DEAD, 2, None, False)
    assert scene.story("a")[-1] == "died:attempts"


def use_up(scene: Scene, desk: str, id: str) -> Settled:
    """Fail a message until its attempts are used up; it is leased again in between."""
    for attempt in range(2):
        assert id in scene.lease(desk, token=f"{id}{attempt}")
        outcome = scene.settle(desk, id, Verdict.RETRY, f"{id}{attempt}", error="boom")
    assert isinstance(outcome, Settled)
    return outcome


def test_poison_skip_kills_the_message_and_the_lane_goes_on(scene: Scene) -> None:
    scene.post("skip", "a", "b")
    assert use_up(scene, "skip", "a") == Settled(State.DEAD, 2, None, False)
    assert scene.story("a")[-1] == "died:attempts"
    assert scene.events("a")[-1].error == "boom"
    assert scene.lease("skip", token="u") == ["b"]


def test_poison_block_kills_the_message_and_pauses_the_lane(scene: Scene) -> None:
    scene.post("block", "a", "b", lane="l")
    scene.post("block", "x", lane="other")
    use_up(scene, "block", "a")
    assert names(scene.events())[-3:] == ["died", "paused", "recalled"]
    paused = scene.events()[-2]
    assert (paused.mailbox, paused.lane, paused.reason, paused.holder) == ("m", "l", "poison", None)
    assert (paused.message_id, paused.lane_seq, paused.attempt) == ("", 0, 0)
    lane = scene.store.lane("block", "m", "l")
    assert lane is not None
    assert lane.paused == "poison"
    assert scene.lease("block", token="u") == []
    assert scene.state("block", "b") is State.READY
    scene.do(Resume("block", "m", "l"))
    assert scene.lease("block", token="u") == ["b"]


def test_a_dead_verdict_blocks_the_lane_too_and_a_rejection_does_not(scene: Scene) -> None:
    scene.post("block", "a", "b")
    scene.lease("block")
    scene.settle("block", "a", Verdict.REJECTED)
    assert scene.lease("block") == ["b"]
    scene.settle("block", "b", Verdict.DEAD)
    lane = scene.store.lane("block", "m", "")
    assert lane is not None
    assert lane.paused == "poison"


def test_poison_park_sets_the_message_aside_and_the_lane_goes_on(scene: Scene) -> None:
    scene.post("park", "a", "b")
    assert use_up(scene, "park", "a") == Settled(State.PARKED, 2, None, False)
    assert scene.story("a")[-1] == "parked:attempts"
    assert scene.lease("park", token="u") == ["b"]


def test_where_no_more_may_be_parked_poison_kills(scene: Scene) -> None:
    scene.post("park", "a", "b")
    use_up(scene, "park", "a")
    assert use_up(scene, "park", "b").state is State.DEAD
    assert scene.story("b")[-1] == "died:parked_full"


def test_release_returns_what_the_holder_had_in_order_and_uncounted(scene: Scene) -> None:
    scene.post("relay", "a", "b", "c")
    scene.lease("relay", token="t", limit=2)
    scene.lease("relay", token="u")
    assert scene.do(Release("relay", "t")) == Released(2)
    assert scene.states("relay", "a", "b", "c") == ["ready", "ready", "leased"]
    released = [e for e in scene.events() if e.event == "released"]
    assert [(e.message_id, e.attempt, e.reason, e.holder) for e in released] == [
        ("a", 1, "left", "h-t"),
        ("b", 1, "left", "h-t"),
    ]
    assert released[0].due_at == scene.at
    assert scene.do(Release("relay", "t")) == Released(0)
    assert scene.lease("relay", token="v") == ["a", "b"]


def test_a_release_may_say_why(scene: Scene) -> None:
    scene.post("plain", "a")
    scene.lease("plain")
    scene.do(Release("plain", "t", "offline"))
    assert scene.story("a")[-1] == "released:offline"


def test_what_was_received_and_left_counts(scene: Scene) -> None:
    scene.post("relay", "a", "b")
    scene.lease("relay")
    scene.settle("relay", "a", Verdict.RECEIVED)
    assert scene.do(Release("relay", "t")) == Released(2)
    assert scene.story("a")[-1] == "retried:unconfirmed"
    assert scene.story("b")[-1] == "released:left"
    assert [scene.view("relay", id).attempts for id in "ab"] == [1, 0]
    assert scene.lease("relay", token="u") == ["a", "b"]


def test_received_and_never_confirmed_is_parked_after_attempts_max(scene: Scene) -> None:
    scene.post("relay", "a")
    for n in range(3):
        scene.lease("relay", token=f"t{n}")
        scene.settle("relay", "a", Verdict.RECEIVED, f"t{n}")
        scene.do(Release("relay", f"t{n}"))
    assert scene.state("relay", "a") is State.PARKED
    assert scene.story("a")[-1] == "parked:attempts"
    scene.post("relay", "b")
    assert scene.lease("relay", token="u") == ["b"]


def test_the_first_unreceived_message_is_parked_after_unreceived_max_holders(scene: Scene) -> None:
    scene.post("relay", "a", "b")
    for n in range(3):
        assert scene.lease("relay", token=f"t{n}") == ["a", "b"]
        scene.do(Release("relay", f"t{n}"))
    assert scene.states("relay", "a", "b") == ["parked", "ready"]
    assert scene.story("a")[-1] == "parked:unreceived"
    view = scene.view("relay", "b")
    assert (view.unreceived, view.attempts) == (0, 0)
    assert scene.view("relay", "a").attempts == 0


def test_the_first_of_each_lane_is_counted_behind_the_received_ones(scene: Scene) -> None:
    scene.post("relay", "a", "b", "c")
    scene.post("relay", "x", "y", lane="l")
    scene.lease("relay")
    scene.settle("relay", "a", Verdict.RECEIVED)
    scene.do(Release("relay", "t"))
    assert [scene.view("relay", id).unreceived for id in "abcxy"] == [0, 1, 0, 1, 0]


def test_a_message_that_is_received_begins_the_row_of_absent_holders_again(scene: Scene) -> None:
    scene.post("relay", "a")
    for n in range(2):
        scene.lease("relay", token=f"t{n}")
        scene.do(Release("relay", f"t{n}"))
    assert scene.view("relay", "a").unreceived == 2
    scene.lease("relay", token="u")
    scene.settle("relay", "a", Verdict.RECEIVED, "u")
    assert scene.view("relay", "a").unreceived == 0


def test_where_no_more_may_be_parked_the_unreceived_dies(scene: Scene) -> None:
    scene.post("relay", "p", "q", "a")
    for id in ("p", "q"):
        scene.do(Park(ref("relay", id)))
    for n in range(3):
        scene.lease("relay", token=f"t{n}")
        scene.do(Release("relay", f"t{n}"))
    assert scene.story("a")[-1] == "died:parked_full"


def test_release_recalls_nothing(scene: Scene) -> None:
    scene.post("trio", "a", "b")
    scene.lease("trio", token="t", limit=1)
    scene.lease("trio", token="u")
    scene.do(Release("trio", "t"))
    assert scene.states("trio", "a", "b") == ["ready", "leased"]


def test_a_token_is_of_one_desk(scene: Scene) -> None:
    scene.post("plain", "a")
    scene.post("trio", "a")
    scene.lease("plain")
    scene.lease("trio")
    assert scene.do(Release("trio", "t")) == Released(1)
    assert scene.state("plain", "a") is State.LEASED


def test_a_desk_with_uncertain_leases_releases_without_doubt(scene: Scene) -> None:
    scene.post("unsure", "a")
    scene.lease("unsure")
    scene.do(Release("unsure", "t"))
    assert scene.state("unsure", "a") is State.READY


def test_a_second_life_counts_anew(scene: Scene) -> None:
    scene.post("park", "a")
    use_up(scene, "park", "a")
    scene.do(Unpark(Filter("park")))
    delivery = scene.leased("park", token="z").deliveries[0]
    assert delivery.attempt == 1
    assert scene.view("park", "a").life == 2


def test_commands_of_one_batch_see_each_other(scene: Scene) -> None:
    a = message("plain", "a")
    outcomes = scene.apply(
        Post(a),
        Lease("plain", "m", "t"),
        Settle(a.ref, "t", Verdict.DELIVERED),
        Settle(a.ref, "t", Verdict.DEAD),
    )
    assert outcomes[3] == LeaseLost(State.DELIVERED)


def test_a_message_that_expired_while_leased_may_still_be_delivered(scene: Scene) -> None:
    scene.post("ttl", "a")
    scene.lease("ttl")
    scene.later(30)
    assert scene.do(Sweep()).expired == ()
    scene.deliver("ttl", "a")


@pytest.mark.parametrize(
    ("verdict", "state", "event"),
    [
        (Verdict.DEAD, State.DEAD, "died:permanent"),
        (Verdict.REJECTED, State.DEAD, "died:rejected"),
        (Verdict.UNCERTAIN, State.UNCERTAIN, "uncertain:unknown"),
    ],
)
def test_an_import_says_what_became_of_a_message_elsewhere(
    scene: Scene, verdict: Verdict, state: State, event: str
) -> None:
    scene.post("plain", "before", "a", "behind")
    assert scene.settle("plain", "a", verdict, token=None) == Settled(state, 0, None, False)
    view = scene.view("plain", "a")
    assert (view.state, view.attempts, view.since) == (state, 0, scene.at)
    assert scene.story("a") == ["posted", event]
    assert scene.lease("plain") == ["before"]
    scene.deliver("plain", "before")
    assert scene.lease("plain") == ["behind"]


def test_nobody_says_so_of_what_is_leased(scene: Scene) -> None:
    scene.post("plain", "a")
    scene.lease("plain")
    for verdict in (Verdict.DELIVERED, Verdict.DEAD, Verdict.UNCERTAIN, Verdict.RETRY):
        assert scene.settle("plain", "a", verdict, token=None) == LeaseLost(State.LEASED)
