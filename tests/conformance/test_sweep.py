"""What time does: sweeping, starting again, and clocks that are set."""

from __future__ import annotations

import json

from tests.conformance.desks import DAY_S, DESKS, HOUR_S
from tests.conformance.scene import Scene, message, names, ref

from posthouse.mailbox.command import Cancel, Filter, Park, Post, Redrive, Shift, Start, Sweep, Verdict
from posthouse.mailbox.message import SECOND, State
from posthouse.mailbox.outcome import Duplicate, Posted, Shifted, Started, Swept
from posthouse.mailbox.policy import policy_from


def test_a_sweep_with_nothing_to_do_does_nothing(scene: Scene) -> None:
    assert scene.do(Sweep()) == Swept((), 0, 0, False)
    assert scene.store.offset() == 0


def test_expiry_is_counted_by_mailbox(scene: Scene) -> None:
    scene.post("ttl", "a", "b")
    scene.post("ttl", "c", mailbox="n")
    scene.post("deadline", "d")
    scene.later(9.999999)
    assert scene.do(Sweep()).expired == ()
    scene.later(0.000001)
    expected = (("deadline", "m", 1), ("ttl", "m", 2), ("ttl", "n", 1))
    assert scene.do(Sweep()) == Swept(expected, 0, 0, False)
    assert scene.story("a") == ["posted", "expired:ttl"]
    assert scene.story("d") == ["posted", "died:deadline"]
    assert scene.view("ttl", "a").reason == "ttl"


def test_a_received_message_expires_and_a_leased_one_does_not(scene: Scene) -> None:
    scene.post("ttl", "a", "b")
    scene.lease("ttl")
    scene.settle("ttl", "a", Verdict.RECEIVED)
    scene.later(10)
    assert scene.do(Sweep()).expired == (("ttl", "m", 1),)
    assert scene.states("ttl", "a", "b") == ["expired", "leased"]
    event = scene.events("a")[-1]
    assert (event.attempt, event.holder) == (1, "h-t")
    assert scene.view("ttl", "a").attempts == 0


def test_a_received_head_that_dies_at_its_deadline_recalls_its_followers(scene: Scene) -> None:
    scene.post("deadline", "a")
    scene.post("deadline", "b", expires_at=scene.in_s(99))
    scene.lease("deadline")
    scene.settle("deadline", "a", Verdict.RECEIVED)
    scene.later(10)
    scene.do(Sweep())
    assert scene.states("deadline", "a", "b") == ["dead", "ready"]


def test_a_message_that_expires_keeps_the_error_that_delayed_it(scene: Scene) -> None:
    scene.post("deadline", "a")
    scene.lease("deadline")
    scene.settle("deadline", "a", Verdict.RETRY, error="unreachable")
    scene.later(10)
    scene.do(Sweep())
    view = scene.view("deadline", "a")
    assert (view.state, view.reason, view.error, view.attempts) == ("dead", "deadline", "unreachable", 1)


def test_a_lost_lease_counts_and_is_tried_again_later(scene: Scene) -> None:
    scene.post("plain", "a")
    scene.lease("plain")
    scene.later(59.999999)
    assert scene.do(Sweep()).lost == 0
    scene.later(0.000001)
    assert scene.do(Sweep()) == Swept((), 1, 0, False)
    event = scene.events("a")[-1]
    assert (event.event, event.reason, event.attempt, event.holder) == ("retried", "lease_lost", 1, "h-t")
    assert event.due_at == scene.in_s(1)
    view = scene.view("plain", "a")
    assert (view.state, view.attempts, view.token, view.due_at) == ("ready", 1, None, scene.in_s(1))


def test_a_received_message_whose_lease_is_lost_counts_too(scene: Scene) -> None:
    scene.post("plain", "a")
    scene.lease("plain")
    scene.settle("plain", "a", Verdict.RECEIVED)
    scene.later(60)
    assert scene.do(Sweep()).lost == 1
    assert scene.view("plain", "a").attempts == 1


def test_a_lost_lease_is_uncertain_where_the_policy_says_so(scene: Scene) -> None:
    scene.post("unsure", "a", "b")
    scene.lease("unsure")
    scene.later(60)
    assert scene.do(Sweep()).lost == 2
    assert scene.states("unsure", "a", "b") == ["uncertain", "uncertain"]
    assert scene.story("a")[-1] == "uncertain:lease_lost"
    assert scene.view("unsure", "a").attempts == 1


def test_lost_leases_of_one_holder_cost_one_attempt_in_a_lane(scene: Scene) -> None:
    # The head is lost and recalls the others, which therefore have no lease to lose.
    scene.post("trio", "a", "b", "c")
    scene.lease("trio")
    scene.later(60)
    assert scene.do(Sweep()).lost == 1
    assert [scene.view("trio", id).attempts for id in "abc"] == [1, 0, 0]
    assert scene.lease("trio", token="u") == ["a", "b", "c"]


def test_leases_are_lost_in_the_order_in_which_they_end(scene: Scene) -> None:
    scene.post("trio", "a", "b")
    scene.post("trio", "x", lane="l")
    scene.lease("trio", token="1", limit=1)
    scene.later(1)
    scene.lease("trio", token="2", limit=1)
    scene.later(1)
    scene.lease("trio", token="3", limit=1)
    scene.later(60)
    scene.do(Sweep())
    last = [(e.message_id, e.event) for e in scene.events()][-3:]
    assert last == [("a", "retried"), ("b", "recalled"), ("x", "retried")]


def test_a_lease_without_an_end_is_never_lost(scene: Scene) -> None:
    scene.post("relay", "a", expires_at=scene.in_s(1e8))
    scene.lease("relay")
    scene.later(1e7)
    assert scene.do(Sweep()).lost == 0


def test_a_limit_is_for_each_kind_and_says_that_there_is_more(scene: Scene) -> None:
    for n in range(5):
        scene.post("ttl", f"e{n}", mailbox=f"e{n}")
        scene.post("plain", f"l{n}", mailbox=f"l{n}")
        scene.lease("plain", f"l{n}")
    scene.later(60)
    swept = scene.do(Sweep(limit=3))
    assert (sum(n for _, _, n in swept.expired), swept.lost, swept.more) == (3, 3, True)
    swept = scene.do(Sweep(limit=3))
    assert (sum(n for _, _, n in swept.expired), swept.lost, swept.more) == (2, 2, False)


def test_the_earliest_goes_first_when_the_limit_is_reached(scene: Scene) -> None:
    for id, seconds in (("a", 30), ("b", 10), ("c", 20)):
        scene.post("ttl", id, expires_at=scene.in_s(seconds))
    scene.later(30)
    scene.do(Sweep(limit=2))
    assert scene.states("ttl", "a", "b", "c") == ["ready", "expired", "expired"]


def test_history_ends_with_a_bare_memory_and_memory_ends_later(scene: Scene) -> None:
    scene.post("plain", "a")
    scene.lease("plain")
    scene.deliver("plain", "a")
    scene.later(HOUR_S - 0.000001)
    assert scene.do(Sweep()).forgotten == 0
    scene.later(0.000001)
    assert scene.do(Sweep()).forgotten == 1
    assert scene.view("plain", "a").memory
    assert isinstance(scene.do(Post(message("plain", "a"))), Duplicate)
    scene.later(DAY_S - HOUR_S)
    assert scene.do(Sweep()).forgotten == 1
    assert scene.store.message(ref("plain", "a")) is None
    assert scene.store.find("a") == []
    assert scene.do(Post(message("plain", "a"))) == Posted(2, None)


def test_the_dead_are_kept_longer_than_the_delivered(scene: Scene) -> None:
    scene.post("plain", "a")
    scene.lease("plain")
    scene.settle("plain", "a", Verdict.DEAD)
    scene.later(HOUR_S)
    scene.do(Sweep())
    assert scene.kept("plain") == ["a"]
    scene.later(DAY_S)
    # Kept and known equally long: it goes at once and altogether.
    assert scene.do(Sweep()).forgotten == 2
    assert scene.store.message(ref("plain", "a")) is None


def test_what_was_set_aside_too_long_is_cancelled(scene: Scene) -> None:
    scene.post("unsure", "a", "b")
    scene.lease("unsure", limit=1)
    scene.settle("unsure", "a", Verdict.UNCERTAIN)
    scene.do(Park(ref("unsure", "b")))
    scene.later(DAY_S - 0.000001)
    assert scene.do(Sweep()).forgotten == 0
    scene.later(0.000001)
    assert scene.do(Sweep()).forgotten == 2
    assert scene.story("a")[-1] == "cancelled:kept_long_enough"
    assert scene.states("unsure", "a", "b") == ["cancelled", "cancelled"]
    # Its own history begins now.
    assert scene.kept("unsure") == ["a", "b"]


def test_forgetting_leaves_no_event(scene: Scene) -> None:
    scene.post("brief", "a")
    scene.do(Cancel(ref("brief", "a")))
    offset = scene.store.offset()
    scene.later(DAY_S * 40)
    scene.do(Sweep())
    assert scene.store.offset() == offset


def test_start_journals_the_policies_and_ends_every_lease(scene: Scene) -> None:
    scene.post("plain", "a")
    scene.post("relay", "b", "c")
    scene.post("unsure", "d")
    for desk in ("plain", "relay", "unsure"):
        scene.lease(desk)
    scene.settle("relay", "b", Verdict.RECEIVED)
    assert scene.do(Start(DESKS)) == Started(4)
    events = scene.events()[-5:]
    assert names(events) == ["started", "retried", "retried", "released", "uncertain"]
    assert [e.reason for e in events] == [None, "lease_lost", "unconfirmed", "left", "lease_lost"]
    assert [e.message_id for e in events] == ["", "a", "b", "c", "d"]
    assert (events[0].desk, events[0].mailbox) == ("", "")
    detail = json.loads(events[0].detail or "")
    assert set(detail) == {"policies"}
    assert {name: policy_from(name, values) for name, values in detail["policies"].items()} == DESKS
    assert scene.view("relay", "c").unreceived == 1
    assert scene.states("plain", "a") == ["ready"]
    assert scene.do(Start(DESKS)) == Started(0)


def test_start_recalls_nothing_so_each_lost_lease_is_told_as_such(scene: Scene) -> None:
    scene.post("trio", "a", "b")
    scene.lease("trio")
    scene.do(Start(DESKS))
    assert [scene.story(id)[-1] for id in "ab"] == ["retried:lease_lost"] * 2


def test_a_crash_loop_ends_by_parking_the_first_unreceived(scene: Scene) -> None:
    scene.post("relay", "a", "b")
    for _ in range(3):
        scene.lease("relay")
        scene.do(Start(DESKS))
    assert scene.states("relay", "a", "b") == ["parked", "ready"]


def test_a_restored_store_says_where_it_came_from(scene: Scene) -> None:
    scene.do(Start({}, {"node": "old", "offset": 17}))
    detail = scene.events()[-1].detail
    assert detail == '{"policies":{},"restored_from":{"node":"old","offset":17}}'


def test_a_day_forward_with_shift_keeps_waits_and_leases_as_long_as_they_were(scene: Scene) -> None:
    scene.post("plain", "wait", mailbox="w")
    scene.lease("plain", "w")
    scene.settle("plain", "wait", Verdict.RETRY, mailbox="w")
    scene.post("plain", "held", mailbox="h")
    scene.lease("plain", "h")
    scene.later(DAY_S)
    assert scene.do(Shift(int(DAY_S * SECOND))) == Shifted()
    assert scene.do(Sweep()).lost == 0
    assert scene.lease("plain", "w") == []
    assert scene.view("plain", "held", "h").lease_ends_at == scene.in_s(60)
    scene.later(1)
    assert scene.lease("plain", "w") == ["wait"]
    scene.later(59)
    assert scene.do(Sweep()).lost == 1


def test_a_day_back_with_shift_does_not_make_anybody_wait_a_day(scene: Scene) -> None:
    scene.post("plain", "a")
    scene.lease("plain")
    scene.settle("plain", "a", Verdict.RETRY)
    scene.later(-DAY_S)
    scene.do(Shift(int(-DAY_S * SECOND)))
    scene.later(1)
    assert scene.lease("plain") == ["a"]


def test_a_date_that_the_poster_chose_stays_when_the_clock_is_set(scene: Scene) -> None:
    chosen = scene.in_s(DAY_S + 60)
    scene.post("plain", "a", due_at=chosen)
    scene.later(DAY_S)
    scene.do(Shift(int(DAY_S * SECOND)))
    assert scene.view("plain", "a").due_at == chosen
    scene.later(60)
    assert scene.lease("plain") == ["a"]


def test_a_shift_writes_no_event_and_moves_no_limit(scene: Scene) -> None:
    scene.post("ttl", "a")
    expires_at, offset = scene.view("ttl", "a").expires_at, scene.store.offset()
    scene.do(Shift(int(DAY_S * SECOND)))
    assert scene.view("ttl", "a").expires_at == expires_at
    assert scene.store.offset() == offset


def test_a_clock_that_jumps_without_shift_loses_no_message_and_breaks_no_order(scene: Scene) -> None:
    scene.post("trio", "a", "b")
    scene.later(-DAY_S)
    scene.post("trio", "c")
    assert scene.lease("trio", token="1", limit=2) == ["a", "b"]
    scene.later(2 * DAY_S)
    scene.do(Sweep())
    scene.post("trio", "d")
    assert scene.lease("trio", token="2") == ["a", "b", "c"]


def test_what_is_redriven_with_a_rate_shifts_with_the_clock(scene: Scene) -> None:
    scene.post("trio", "a", "b")
    for id in "ab":
        scene.do(Cancel(ref("trio", id)))
    scene.do(Redrive(Filter("trio"), rate_per_s=1))
    scene.do(Shift(5 * SECOND))
    assert scene.view("trio", "b").due_at == scene.in_s(6)


def test_a_sweep_counts_a_finished_message_once(scene: Scene) -> None:
    scene.post("brief", "a")
    scene.later(1)
    scene.do(Cancel(ref("brief", "a")))
    assert scene.view("brief", "a").memory
    scene.later(9)
    assert scene.do(Sweep()) == Swept((), 0, 0, False)
    scene.later(1)
    assert scene.do(Sweep()) == Swept((), 0, 1, False)
    assert scene.store.message(ref("brief", "a")) is None


def test_uncertain_messages_wait_for_no_sweep(scene: Scene) -> None:
    scene.post("unsure", "a")
    scene.lease("unsure")
    scene.settle("unsure", "a", Verdict.UNCERTAIN)
    scene.later(HOUR_S)
    scene.do(Sweep())
    assert scene.state("unsure", "a") is State.UNCERTAIN


def test_what_a_deadline_gives_back_may_die_of_its_own_in_the_same_sweep(scene: Scene) -> None:
    scene.post("deadline", "a", "b")
    scene.lease("deadline")
    scene.settle("deadline", "a", Verdict.RECEIVED)
    scene.later(10)
    assert scene.do(Sweep()).expired == (("deadline", "m", 2),)
    assert scene.story("b") == ["posted", "leased", "recalled:head_failed", "died:deadline"]
