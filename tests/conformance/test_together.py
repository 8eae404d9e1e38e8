"""Together: all or nothing."""

from __future__ import annotations

from tests.conformance.scene import Scene, message, names, ref

from posthouse.mailbox.command import Cancel, Lease, Note, Park, Pause, Post, Settle, Together, Verdict
from posthouse.mailbox.message import State
from posthouse.mailbox.outcome import (
    Done,
    Duplicate,
    Leased,
    LeaseLost,
    NotFound,
    Posted,
    Refusal,
    Refused,
    Settled,
)


def test_a_message_is_completed_together_with_its_reply(scene: Scene) -> None:
    scene.post("plain", "question")
    scene.lease("plain")
    outcome = scene.do(
        Together(
            (
                Settle(ref("plain", "question"), "t", Verdict.DELIVERED),
                Post(message("trio", "answer", cause="question")),
            )
        )
    )
    assert outcome == Done((Settled(State.DELIVERED, 1, None, False), Posted(1, None)))
    assert names(scene.events())[-2:] == ["delivered", "posted"]
    assert scene.events("answer")[0].cause_id == "question"


def test_the_first_failure_undoes_the_group_and_is_its_outcome(scene: Scene) -> None:
    scene.post("small", "a", "b")
    scene.post("plain", "q")
    scene.lease("plain")
    offset, view = scene.store.offset(), scene.view("plain", "q")
    outcome = scene.do(Together((Settle(ref("plain", "q"), "t", Verdict.DELIVERED), Post(message("small", "c")))))
    assert outcome == Refused(Refusal.FULL)
    assert scene.store.offset() == offset
    assert scene.view("plain", "q") == view
    scene.deliver("plain", "q")


def test_every_failure_undoes(scene: Scene) -> None:
    scene.post("plain", "a")
    for failing, expected in (
        (Settle(ref("plain", "a"), "t", Verdict.DELIVERED), LeaseLost(State.READY)),
        (Settle(ref("plain", "z"), "t", Verdict.DELIVERED), NotFound()),
        (Cancel(ref("nowhere", "z")), Refused(Refusal.UNKNOWN_DESK)),
    ):
        group = Together((Post(message("plain", "b")), Pause("plain", "m"), Park(ref("plain", "b")), failing))
        assert scene.do(group) == expected
    assert scene.kept("plain") == ["a"]
    mailbox = scene.store.mailbox("plain", "m")
    assert mailbox is not None
    assert (mailbox.paused, mailbox.depth) == (None, 1)


def test_an_undone_group_takes_no_number_and_no_mailbox(scene: Scene) -> None:
    scene.do(Together((Post(message("plain", "a", lane="l")), Cancel(ref("plain", "z")))))
    assert scene.store.mailbox("plain", "m") is None
    assert scene.store.lane("plain", "m", "l") is None
    assert scene.do(Post(message("plain", "b", lane="l"))) == Posted(1, None)
    assert scene.view("plain", "b").number == 1


def test_a_duplicate_counts_as_success(scene: Scene) -> None:
    scene.post("plain", "a")
    outcome = scene.do(Together((Post(message("plain", "a")), Post(message("plain", "b")))))
    assert [type(o) for o in outcome.outcomes] == [Duplicate, Posted]


def test_an_empty_lease_counts_as_success(scene: Scene) -> None:
    outcome = scene.do(Together((Lease("plain", "m", "t"), Post(message("plain", "a")))))
    assert outcome == Done((Leased("t", ()), Posted(1, None)))


def test_an_undone_group_leaves_its_neighbours_in_the_batch(scene: Scene) -> None:
    outcomes = scene.apply(
        Post(message("plain", "a")),
        Together((Post(message("plain", "b")), Cancel(ref("plain", "z")))),
        Post(message("plain", "c")),
    )
    assert outcomes == [Posted(1, None), NotFound(), Posted(2, None)]
    assert [(e.message_id, e.lane_seq) for e in scene.events()] == [("a", 1), ("c", 2)]


def test_an_undone_post_leaves_no_memory(scene: Scene) -> None:
    scene.do(Together((Post(message("plain", "a")), Cancel(ref("plain", "z")))))
    assert isinstance(scene.do(Post(message("plain", "a"))), Posted)


def test_an_undone_group_forgets_nothing_that_it_would_have_forgotten(scene: Scene) -> None:
    scene.post("brief", "a")
    scene.do(Cancel(ref("brief", "a")))
    scene.later(100)
    scene.do(Together((Post(message("brief", "a")), Cancel(ref("plain", "z")))))
    assert scene.state("brief", "a") is State.CANCELLED


def test_an_undone_lease_is_as_if_it_had_not_been(scene: Scene) -> None:
    for mailbox in ("x", "y"):
        scene.post("trio", f"{mailbox}1", f"{mailbox}2", mailbox=mailbox)
    scene.do(Together((Lease("trio", None, "t"), Cancel(ref("plain", "z")))))
    # Whose turn it is was undone too.
    assert scene.lease("trio", None, limit=1) == ["x1"]


def test_an_undone_note_is_not_in_the_journal(scene: Scene) -> None:
    scene.do(Together((Note("connected", "plain"), Cancel(ref("plain", "z")))))
    assert scene.store.offset() == 0


def test_a_group_in_a_group_fails_with_it(scene: Scene) -> None:
    inner = Together((Post(message("plain", "b")), Cancel(ref("plain", "z"))))
    assert scene.do(Together((Post(message("plain", "a")), inner))) == NotFound()
    assert scene.kept("plain") == []
    good = Together((Post(message("plain", "a")), Together((Post(message("plain", "b")),))))
    assert scene.do(good) == Done((Posted(1, None), Done((Posted(2, None),))))


def test_an_empty_group_is_done(scene: Scene) -> None:
    assert scene.do(Together(())) == Done(())
