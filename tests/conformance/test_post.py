"""Posting: duplicates, capacity, limits in time, numbers, batches."""

from __future__ import annotations

import pytest
from tests.conformance.scene import Scene, message, names

from posthouse.errors import PosthouseError
from posthouse.mailbox.command import Cancel, Filter, Park, Post, Purge, Sweep, Verdict
from posthouse.mailbox.message import State
from posthouse.mailbox.outcome import Duplicate, Posted, Refusal, Refused


def test_a_repeated_id_is_a_duplicate_that_tells_what_became_of_the_first(scene: Scene) -> None:
    scene.post("plain", "a")
    assert scene.do(Post(message("plain", "a"))) == Duplicate(State.READY, 1, 0, None, None, None)
    scene.lease("plain")
    assert scene.do(Post(message("plain", "a"))).state is State.LEASED
    scene.settle("plain", "a", Verdict.DEAD, error="no such user")
    died_at = scene.at
    scene.later(5)
    expected = Duplicate(State.DEAD, 1, 1, "permanent", "no such user", died_at)
    assert scene.do(Post(message("plain", "a"))) == expected


def test_a_duplicate_of_a_parked_message_has_not_finished(scene: Scene) -> None:
    scene.post("plain", "a")
    scene.do(Park(message("plain", "a").ref))
    assert scene.do(Post(message("plain", "a"))) == Duplicate(State.PARKED, 1, 0, "operator", None, None)


def test_a_duplicate_of_a_bare_memory_tells_what_became_of_the_first(scene: Scene) -> None:
    scene.post("brief", "a")
    scene.lease("brief")
    scene.deliver("brief", "a")
    assert scene.view("brief", "a").memory
    assert scene.do(Post(message("brief", "a"))) == Duplicate(State.DELIVERED, 1, 1, None, None, scene.at)


def test_an_id_of_another_sender_is_another_message(scene: Scene) -> None:
    scene.post("plain", "a", sender="alice")
    scene.post("plain", "a", sender="mallory")
    assert [v.message.sender for v in scene.store.find("a")] == ["alice", "mallory"]
    assert scene.do(Post(message("plain", "a", sender="alice"))).seq == 1


def test_an_id_in_another_mailbox_or_desk_is_another_message(scene: Scene) -> None:
    scene.post("plain", "a")
    scene.post("plain", "a", mailbox="other")
    scene.post("trio", "a")
    assert len(scene.store.find("a")) == 3


def test_the_same_id_in_another_lane_is_a_duplicate(scene: Scene) -> None:
    scene.post("plain", "a", lane="one")
    assert isinstance(scene.do(Post(message("plain", "a", lane="two"))), Duplicate)
    assert scene.store.lane("plain", "m", "two") is None


def test_memory_ends_dedup_s_after_the_message_finished_and_not_before(scene: Scene) -> None:
    scene.post("brief", "a")
    scene.later(100)
    scene.lease("brief")
    scene.deliver("brief", "a")
    scene.later(9.999999)
    assert isinstance(scene.do(Post(message("brief", "a"))), Duplicate)
    scene.later(0.000001)
    # The lane goes on counting: a number is never used twice.
    assert scene.do(Post(message("brief", "a"))) == Posted(2, None)
    assert scene.state("brief", "a") is State.READY


def test_an_unfinished_message_is_known_for_ever(scene: Scene) -> None:
    scene.post("brief", "a")
    scene.later(1e6)
    assert isinstance(scene.do(Post(message("brief", "a"))), Duplicate)


def test_a_message_that_is_kept_longer_than_dedup_s_is_known_as_long_as_it_is_kept(scene: Scene) -> None:
    scene.post("brief", "a")
    scene.lease("brief")
    scene.settle("brief", "a", Verdict.DEAD)
    scene.later(86_399)
    assert isinstance(scene.do(Post(message("brief", "a"))), Duplicate)
    scene.later(1)
    assert isinstance(scene.do(Post(message("brief", "a"))), Posted)


def test_a_purged_message_is_still_remembered(scene: Scene) -> None:
    scene.post("plain", "a")
    scene.do(Cancel(message("plain", "a").ref))
    scene.do(Purge(Filter("plain")))
    assert scene.do(Post(message("plain", "a"))).state is State.CANCELLED


def test_a_full_mailbox_refuses_and_another_does_not(scene: Scene) -> None:
    scene.post("small", "a", "b")
    assert scene.do(Post(message("small", "c"))) == Refused(Refusal.FULL)
    scene.post("small", "c", mailbox="other")


def test_a_refusal_leaves_no_memory_and_takes_no_number(scene: Scene) -> None:
    scene.post("small", "a", "b")
    scene.do(Post(message("small", "c")))
    scene.lease("small")
    scene.deliver("small", "a")
    assert scene.do(Post(message("small", "c"))) == Posted(3, None)


def test_capacity_counts_what_is_in_flight_and_not_what_is_set_aside(scene: Scene) -> None:
    scene.post("small", "a", "b")
    scene.lease("small")
    assert scene.do(Post(message("small", "c"))) == Refused(Refusal.FULL)
    scene.do(Park(message("small", "b").ref))
    scene.post("small", "c")
    assert scene.do(Post(message("small", "d"))) == Refused(Refusal.FULL)


def test_one_sender_has_no_more_than_its_share_of_a_mailbox(scene: Scene) -> None:
    scene.post("shared", "a", "b", sender="greedy")
    scene.lease("shared")
    assert scene.do(Post(message("shared", "c", sender="greedy", lane="x"))) == Refused(Refusal.SHARE)
    scene.post("shared", "c", sender="greedy", exempt=True)
    scene.post("shared", "a", sender="modest", lane="x")
    assert scene.do(Post(message("shared", "b", sender="modest"))) == Refused(Refusal.FULL)
    scene.do(Park(message("shared", "a", sender="greedy").ref))
    assert scene.do(Post(message("shared", "d", sender="greedy"))) == Refused(Refusal.SHARE)
    scene.post("shared", "b", sender="modest")
    assert [e.reason for _, _, e in scene.store.events() if e.event == "refused"] == ["share", "full", "share"]


def test_a_duplicate_in_a_full_mailbox_is_a_duplicate(scene: Scene) -> None:
    scene.post("small", "a", "b")
    assert isinstance(scene.do(Post(message("small", "a"))), Duplicate)


def test_an_exempt_message_enters_a_full_mailbox(scene: Scene) -> None:
    scene.post("small", "a", "b")
    scene.post("small", "c", exempt=True)
    mailbox = scene.store.mailbox("small", "m")
    assert mailbox is not None
    assert mailbox.depth == 3
    assert scene.do(Post(message("small", "d"))) == Refused(Refusal.FULL)


def test_a_body_over_the_limit_is_refused_and_one_at_the_limit_is_not(scene: Scene) -> None:
    assert scene.do(Post(message("tiny", "a", body=b"12345"))) == Refused(Refusal.OVERSIZE)
    assert scene.store.mailbox("tiny", "m") is None
    scene.post("tiny", "a", body=b"1234")


def test_an_oversize_message_is_not_let_in_by_exempt(scene: Scene) -> None:
    assert scene.do(Post(message("tiny", "a"), exempt=True)) == Posted(1, None)
    assert scene.do(Post(message("tiny", "b", body=b"12345"), exempt=True)) == Refused(Refusal.OVERSIZE)


def test_a_message_that_has_expired_already_is_refused(scene: Scene) -> None:
    assert scene.do(Post(message("ttl", "a", expires_at=scene.at))) == Refused(Refusal.TTL)
    assert scene.do(Post(message("ttl", "a", expires_at=scene.at + 1))) == Posted(1, scene.at + 1)


def test_a_message_without_a_limit_of_its_own_gets_that_of_the_desk(scene: Scene) -> None:
    assert scene.do(Post(message("ttl", "a"))) == Posted(1, scene.in_s(10))
    assert scene.do(Post(message("plain", "a"))) == Posted(1, None)
    assert scene.do(Post(message("ttl", "b", expires_at=scene.in_s(99)))) == Posted(2, scene.in_s(99))


def test_numbers_of_a_lane_have_no_gaps_whatever_is_refused_or_repeated(scene: Scene) -> None:
    accepted = []
    for round in range(4):
        for id in ("a", "b", f"c{round}", f"d{round}"):
            outcome = scene.do(Post(message("small", id, lane="l")))
            if isinstance(outcome, Posted):
                accepted.append(outcome.seq)
        for id in scene.lease("small", token=f"t{round}"):
            scene.deliver("small", id, token=f"t{round}")
    assert accepted == list(range(1, len(accepted) + 1))
    assert len(accepted) > 3
    lane = scene.store.lane("small", "m", "l")
    assert lane is not None
    assert lane.last_seq == len(accepted)


def test_each_lane_counts_for_itself(scene: Scene) -> None:
    seqs = [scene.do(Post(message("plain", f"{lane}{i}", lane=lane))).seq for i in range(2) for lane in "xy"]
    assert seqs == [1, 1, 2, 2]


def test_a_batch_of_posts_is_one_commit_and_each_sees_those_before(scene: Scene) -> None:
    outcomes = scene.apply(*(Post(message("small", id)) for id in ("a", "a", "b", "c")))
    assert [type(o) for o in outcomes] == [Posted, Duplicate, Posted, Refused]
    rows = list(scene.store.events())
    assert [commit for _, commit, _ in rows] == [1, 1, 1, 1]
    assert names(e for _, _, e in rows) == ["posted", "duplicate", "posted", "refused"]


def test_a_desk_without_a_policy_is_refused_without_a_trace(scene: Scene) -> None:
    assert scene.do(Post(message("nowhere", "a"))) == Refused(Refusal.UNKNOWN_DESK)
    assert scene.store.offset() == 0


def test_a_batch_that_raises_changes_nothing(scene: Scene) -> None:
    scene.post("plain", "a")
    before = (scene.kept("plain"), scene.store.offset(), scene.store.lane("plain", "m", ""))
    # What a store raises for something that is no command is its own affair.
    with pytest.raises((PosthouseError, TypeError, AttributeError, KeyError, AssertionError)):
        scene.store.apply([Post(message("plain", "b"), at=scene.at), object()])  # type: ignore[list-item]
    assert (scene.kept("plain"), scene.store.offset(), scene.store.lane("plain", "m", "")) == before
    assert scene.do(Post(message("plain", "b"))) == Posted(2, None)


def test_a_message_comes_out_as_it_went_in(scene: Scene) -> None:
    sent = message(
        "plain",
        "a",
        mailbox="пошта",
        lane="ls/ü",
        kind="text",
        batch_key="k",
        headers={"x": "1", "ö": "ß"},
        cause="before",
        due_at=scene.at,
        expires_at=scene.in_s(5),
        body=bytes(range(256)),
    )
    scene.do(Post(sent))
    outcome = scene.leased("plain", "пошта")
    assert outcome.deliveries[0].message == sent
    found = scene.store.message(sent.ref)
    assert found is not None
    assert found.message == sent


def test_an_empty_body_is_a_body(scene: Scene) -> None:
    scene.post("plain", "a", body=b"")
    assert scene.leased("plain").deliveries[0].message.body == b""
    assert scene.store.bodies([message("plain", "a").ref]) == [b""]


def test_a_due_date_in_the_future_is_waited_for(scene: Scene) -> None:
    scene.post("plain", "a", due_at=scene.in_s(30))
    assert scene.store.next_at(scene.at) == scene.in_s(30)
    assert scene.lease("plain") == []
    scene.later(30)
    assert scene.lease("plain") == ["a"]


def test_an_expired_id_is_remembered_after_the_sweep(scene: Scene) -> None:
    scene.post("ttl", "a")
    scene.later(10)
    scene.do(Sweep())
    assert scene.do(Post(message("ttl", "a"))) == Duplicate(State.EXPIRED, 1, 0, "ttl", None, scene.at)


def test_an_import_keeps_its_age_and_what_is_left_of_its_time(scene: Scene) -> None:
    posted_at = scene.in_s(-4)
    outcome = scene.do(Post(message("ttl", "a"), reason="import", posted_at=posted_at))
    assert outcome == Posted(1, scene.in_s(6))
    assert scene.view("ttl", "a").posted_at == posted_at
    mailbox = scene.store.mailbox("ttl", "m")
    assert mailbox is not None
    assert mailbox.oldest_at == posted_at
    (event,) = scene.events("a")
    assert (event.at, event.due_at, event.reason) == (scene.at, scene.at, "import")
    assert event.detail == f'{{"posted_at":{posted_at}}}'
    assert scene.leased("ttl").deliveries[0].posted_at == posted_at


def test_an_import_is_never_from_the_future(scene: Scene) -> None:
    outcome = scene.do(Post(message("ttl", "a"), reason="import", posted_at=scene.in_s(60)))
    assert outcome == Posted(1, scene.in_s(10))
    assert scene.view("ttl", "a").posted_at == scene.at


def test_an_import_whose_time_has_passed_expires_at_the_first_look(scene: Scene) -> None:
    scene.do(Post(message("ttl", "a"), reason="import", posted_at=scene.in_s(-60)))
    assert scene.lease("ttl") == []
    assert scene.story("a") == ["posted:import", "expired:ttl"]
