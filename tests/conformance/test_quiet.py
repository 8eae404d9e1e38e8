"""The quiet period: a durable debounce that gathers a run of messages into one batch."""

from __future__ import annotations

import json

from tests.conformance.scene import Scene, message, ref

from posthouse.mailbox.command import Cancel, Filter, Lease, Post, Redrive, Verdict
from posthouse.mailbox.message import State


def test_a_lane_is_leased_once_it_was_quiet(scene: Scene) -> None:
    scene.post("quiet", "a")
    scene.later(3)
    scene.post("quiet", "b")
    assert scene.store.next_at(scene.at) == scene.in_s(5)
    scene.later(4.999999)
    assert scene.lease("quiet") == []
    scene.later(0.000001)
    assert scene.lease("quiet") == ["a", "b"]


def test_the_wait_has_an_upper_bound(scene: Scene) -> None:
    for n in range(7):
        scene.post("quiet", f"i{n}")
        scene.later(3)
        if n < 6:
            assert scene.lease("quiet") == []
    assert scene.lease("quiet") == [f"i{n}" for n in range(7)]


def test_a_limit_does_not_cut_a_batch(scene: Scene) -> None:
    scene.post("quiet", "a", "b", "c")
    scene.later(5)
    assert scene.lease("quiet", limit=1) == ["a", "b", "c"]


def test_a_limit_of_zero_takes_no_batch(scene: Scene) -> None:
    scene.post("quiet", "a")
    scene.later(5)
    assert scene.lease("quiet", limit=0) == []


def test_the_members_of_a_batch_and_their_events_name_its_first_message(scene: Scene) -> None:
    scene.post("quiet", "a", "b")
    scene.later(5)
    assert [d.batch for d in scene.leased("quiet").deliveries] == ["a", "a"]
    leased = [e for e in scene.events() if e.event == "leased"]
    assert [json.loads(e.detail or "") for e in leased] == [{"batch": "a"}] * 2


def test_a_batch_of_one_has_no_detail_but_is_fixed(scene: Scene) -> None:
    scene.post("quiet", "a")
    scene.later(5)
    assert scene.leased("quiet").deliveries[0].batch == "a"
    assert scene.events("a")[-1].detail is None
    scene.post("quiet", "b")
    scene.settle("quiet", "a", Verdict.RETRY)
    scene.later(30)
    assert scene.lease("quiet", token="u") == ["a"]


def test_a_batch_is_a_run_of_one_batch_key(scene: Scene) -> None:
    for id, key in (("a", "x"), ("b", "x"), ("c", "y"), ("d", "x")):
        scene.post("quiet", id, batch_key=key)
    scene.later(5)
    taken = []
    for token in ("1", "2", "3"):
        ids = scene.lease("quiet", token=token)
        taken.append(ids)
        scene.deliver("quiet", *ids, token=token)
    assert taken == [["a", "b"], ["c"], ["d"]]


def test_a_message_posted_not_quiet_ends_the_wait_and_is_leased_alone(scene: Scene) -> None:
    scene.post("quiet", "a", "b")
    scene.post("quiet", "now", quiet=False)
    scene.post("quiet", "c")
    assert scene.lease("quiet", token="1") == ["a", "b"]
    assert scene.lease("quiet", token="2") == []
    scene.deliver("quiet", "a", "b", token="1")
    assert scene.lease("quiet", token="2") == ["now"]
    assert scene.view("quiet", "now").batch is None
    scene.deliver("quiet", "now", token="2")
    assert scene.lease("quiet", token="3") == []
    scene.later(5)
    assert scene.lease("quiet", token="3") == ["c"]


def test_a_batch_is_fixed_when_it_is_tried_again(scene: Scene) -> None:
    scene.post("quiet", "a", "b")
    scene.later(5)
    scene.lease("quiet", token="1")
    scene.post("quiet", "c")
    scene.settle("quiet", "a", Verdict.RETRY, "1")
    # b is of the same batch and token: it is not recalled, its holder settles it too.
    assert scene.state("quiet", "b") is State.LEASED
    scene.settle("quiet", "b", Verdict.RETRY, "1")
    scene.later(1)
    assert scene.lease("quiet", token="2") == ["a", "b"]
    assert [d["batch"] for d in (json.loads(e.detail or "{}") for e in scene.events("b")[-1:])] == ["a"]


def test_a_batch_is_taken_whole_though_one_of_it_is_not_due(scene: Scene) -> None:
    scene.post("quiet", "a", "b")
    scene.later(5)
    scene.lease("quiet", token="1")
    scene.settle("quiet", "a", Verdict.RETRY, "1", due_at=scene.in_s(1))
    scene.settle("quiet", "b", Verdict.RETRY, "1", due_at=scene.in_s(100))
    scene.later(1)
    assert scene.lease("quiet", token="2") == ["a", "b"]


def test_what_is_left_of_a_batch_stays_together(scene: Scene) -> None:
    scene.post("quiet", "a", "b", "c")
    scene.later(5)
    scene.lease("quiet", token="1")
    scene.deliver("quiet", "a", token="1")
    for id in ("b", "c"):
        scene.settle("quiet", id, Verdict.RETRY, "1")
    scene.post("quiet", "d")
    scene.later(60)
    assert scene.lease("quiet", token="2") == ["b", "c"]


def test_a_redriven_message_is_in_no_batch_any_more(scene: Scene) -> None:
    scene.post("quiet", "a", "b")
    scene.later(5)
    scene.lease("quiet")
    scene.settle("quiet", "a", Verdict.DEAD)
    scene.settle("quiet", "b", Verdict.RETRY)
    scene.do(Redrive(Filter("quiet")))
    assert scene.view("quiet", "a").batch is None
    scene.later(1)
    assert scene.lease("quiet", token="u") == ["a"]
    scene.deliver("quiet", "a", token="u")
    assert scene.lease("quiet", token="u") == ["b"]


def test_an_expired_head_gives_way_and_an_expired_follower_ends_the_run(scene: Scene) -> None:
    scene.post("quiet", "a", expires_at=scene.in_s(4))
    scene.post("quiet", "b")
    scene.post("quiet", "c", expires_at=scene.in_s(4))
    scene.post("quiet", "d")
    scene.later(5)
    assert scene.lease("quiet", token="1") == ["b"]
    assert scene.states("quiet", "a", "c") == ["expired", "ready"]
    scene.deliver("quiet", "b", token="1")
    assert scene.lease("quiet", token="1") == ["d"]
    assert scene.state("quiet", "c") is State.EXPIRED


def test_a_follower_that_is_not_due_ends_the_run(scene: Scene) -> None:
    scene.post("quiet", "a")
    scene.post("quiet", "b", due_at=scene.in_s(60))
    scene.later(5)
    assert scene.lease("quiet") == ["a"]


def test_lanes_are_quiet_each_for_itself(scene: Scene) -> None:
    scene.post("quiet", "a", lane="a")
    scene.later(4)
    scene.post("quiet", "b", lane="b")
    scene.later(1)
    assert scene.lease("quiet") == ["a"]
    assert scene.lease("quiet", None, "u") == []
    scene.later(4)
    assert scene.lease("quiet", None, "u") == ["b"]


def test_a_clock_that_was_set_back_does_not_make_a_day_of_a_debounce(scene: Scene) -> None:
    scene.post("quiet", "a")
    scene.later(-86_400)
    assert scene.lease("quiet") == ["a"]


def test_the_lane_is_as_loud_as_its_last_message_in_lane(scene: Scene) -> None:
    scene.post("quiet", "a")
    scene.later(4)
    scene.post("quiet", "b")
    scene.later(1)
    assert scene.lease("quiet") == []
    scene.do(Cancel(ref("quiet", "b")))
    assert scene.lease("quiet") == ["a"]


def test_two_desks_or_commits_do_not_matter_to_a_batch(scene: Scene) -> None:
    scene.apply(Post(message("quiet", "a")), Post(message("quiet", "b"), quiet=False), Lease("quiet", "m", "t"))
    assert scene.states("quiet", "a", "b") == ["leased", "ready"]
