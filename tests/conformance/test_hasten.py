"""Hasten: whoever a mailbox is for is there, so what waits after a failed attempt waits no longer."""

from __future__ import annotations

from tests.conformance.scene import Scene, message, ref

from posthouse.mailbox.command import Cancel, Filter, Hasten, Lease, Pause, Post, Redrive, Settle, Together, Verdict
from posthouse.mailbox.outcome import Hastened, NotFound, Refusal, Refused


def fail(scene: Scene, id: str, mailbox: str = "m", desk: str = "plain") -> None:
    """Try the next message in vain."""
    assert scene.lease(desk, mailbox) == [id]
    scene.settle(desk, id, Verdict.RETRY, mailbox=mailbox)


def test_a_retry_that_waits_is_due_at_once(scene: Scene) -> None:
    scene.post("plain", "a", "b")
    fail(scene, "a")
    assert scene.lease("plain") == []
    assert scene.do(Hasten("plain", "m")) == Hastened(1)
    assert scene.view("plain", "a").due_at == 0
    assert scene.lease("plain") == ["a"]


def test_it_counts_no_attempt_and_the_next_wait_is_the_next_of_the_ladder(scene: Scene) -> None:
    scene.post("plain", "a")
    fail(scene, "a")
    scene.do(Hasten("plain", "m"))
    fail(scene, "a")
    assert (scene.view("plain", "a").attempts, scene.view("plain", "a").due_at) == (2, scene.in_s(5))


def test_every_lane_of_the_mailbox_goes_on_and_no_other_mailbox_does(scene: Scene) -> None:
    for lane in ("x", "y", "z"):
        scene.post("plain", lane, lane=lane)
    scene.post("plain", "other", mailbox="n")
    assert scene.lease("plain") == ["x", "y", "z"]
    for id in ("x", "y", "z"):
        scene.settle("plain", id, Verdict.RETRY)
    fail(scene, "other", "n")
    assert scene.do(Hasten("plain", "m")) == Hastened(3)
    assert scene.lease("plain", "n") == []
    assert scene.lease("plain", None, "desk") == ["x"]
    assert scene.lease("plain") == ["y", "z"]


def test_what_its_poster_put_off_stays_put_off(scene: Scene) -> None:
    scene.post("plain", "a", due_at=scene.in_s(30))
    assert scene.do(Hasten("plain", "m")) == Hastened(0)
    assert scene.lease("plain") == []
    scene.later(30)
    assert scene.lease("plain") == ["a"]


def test_what_is_redriven_at_a_rate_keeps_its_place_in_time(scene: Scene) -> None:
    scene.post("trio", "a", "b")
    for id in "ab":
        scene.do(Cancel(ref("trio", id)))
    scene.do(Redrive(Filter("trio"), rate_per_s=1))
    assert scene.do(Hasten("trio", "m")) == Hastened(0)
    assert scene.view("trio", "b").due_at == scene.in_s(1)


def test_it_leaves_no_event_and_finds_nothing_where_nothing_waits(scene: Scene) -> None:
    scene.post("plain", "a", "b")
    fail(scene, "a")
    offset = scene.store.offset()
    assert scene.apply(Hasten("plain", "m"), Hasten("plain", "m")) == [Hastened(1), Hastened(0)]
    assert scene.do(Hasten("plain", "nobody")) == Hastened(0)
    assert scene.do(Hasten("nowhere", "m")) == Refused(Refusal.UNKNOWN_DESK)
    assert scene.store.offset() == offset
    assert scene.store.mailbox("plain", "nobody") is None


def test_it_sees_what_came_before_it_in_its_batch_and_is_seen_by_what_follows(scene: Scene) -> None:
    scene.post("plain", "a")
    scene.lease("plain")
    retry = Settle(ref("plain", "a"), "t", Verdict.RETRY)
    _, hastened, leased = scene.apply(retry, Hasten("plain", "m"), Lease("plain", "m", "u"))
    assert hastened == Hastened(1)
    assert [delivery.message.id for delivery in leased.deliveries] == ["a"]


def test_with_its_group_it_is_undone(scene: Scene) -> None:
    scene.post("plain", "a")
    fail(scene, "a")
    due_at = scene.view("plain", "a").due_at
    group = (Hasten("plain", "m"), Post(message("plain", "b")), Cancel(ref("plain", "z")))
    assert scene.do(Together(group)) == NotFound()
    assert scene.view("plain", "a").due_at == due_at
    assert scene.lease("plain") == []


def test_a_pause_outlasts_it(scene: Scene) -> None:
    scene.post("plain", "a")
    fail(scene, "a")
    scene.do(Pause("plain", "m"))
    assert scene.do(Hasten("plain", "m")) == Hastened(1)
    assert scene.lease("plain") == []
