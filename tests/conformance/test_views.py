"""Views: what operators see, page by page."""

from __future__ import annotations

from tests.conformance.desks import DESKS
from tests.conformance.scene import Scene, ref

from posthouse.mailbox.command import Filter, Park, Pause, Verdict
from posthouse.mailbox.message import State
from posthouse.mailbox.store import DeskView, LaneView, MailboxView


def test_a_new_store_has_its_desks_and_nothing_in_them(scene: Scene) -> None:
    assert scene.store.desks() == [DeskView(name, {}, 0, None) for name in sorted(DESKS)]
    assert scene.store.mailboxes() == []
    assert scene.store.mailbox("plain", "m") is None
    assert scene.store.lane("plain", "m", "") is None
    assert scene.store.lanes("plain", "m") == []
    assert scene.store.in_lane("plain", "m", "") == []
    assert scene.store.message(ref("plain", "a")) is None
    assert scene.store.find("a") == []
    assert scene.store.messages(Filter("plain")) == []


def test_a_mailbox_shows_counts_depth_and_its_oldest_message(scene: Scene) -> None:
    posted_at = scene.at
    scene.post("trio", "a")
    scene.later(1)
    scene.post("trio", "b", "c", "d", "e")
    scene.lease("trio", limit=3)
    scene.settle("trio", "b", Verdict.RECEIVED)
    scene.do(Park(ref("trio", "e")))
    expected = {State.LEASED: 2, State.RECEIVED: 1, State.READY: 1, State.PARKED: 1}
    view = scene.store.mailbox("trio", "m")
    assert view == MailboxView("trio", "m", expected, 1, None, posted_at)
    assert view is not None
    assert view.depth == 4
    assert scene.store.lane("trio", "m", "") == LaneView("trio", "m", "", 5, 4, 3, None, posted_at)
    scene.deliver("trio", "a", "b", "c")
    view = scene.store.mailbox("trio", "m")
    assert view is not None
    assert (view.depth, view.oldest_at) == (1, posted_at + 1_000_000)
    assert view.counts == {State.DELIVERED: 3, State.READY: 1, State.PARKED: 1}


def test_an_emptied_mailbox_has_no_oldest_message(scene: Scene) -> None:
    scene.post("brief", "a")
    scene.lease("brief")
    scene.deliver("brief", "a")
    assert scene.store.mailbox("brief", "m") == MailboxView("brief", "m", {}, 1, None, None)
    assert scene.store.lane("brief", "m", "") == LaneView("brief", "m", "", 1, 0, 0, None, None)


def test_a_desk_sums_its_mailboxes(scene: Scene) -> None:
    posted_at = scene.at
    scene.post("trio", "a")
    scene.later(5)
    scene.post("trio", "b", mailbox="n")
    scene.do(Park(ref("trio", "b", "n")))
    scene.post("trio", "c", mailbox="n")
    (desk,) = [d for d in scene.store.desks() if d.desk == "trio"]
    assert desk == DeskView("trio", {State.READY: 2, State.PARKED: 1}, 2, posted_at)


def test_mailboxes_are_paged_by_desk_and_name(scene: Scene) -> None:
    for desk in ("trio", "plain"):
        for mailbox in ("b", "a", "Ab", "ä"):
            scene.post(desk, "i", mailbox=mailbox)
    everything = [(m.desk, m.mailbox) for m in scene.store.mailboxes()]
    assert everything == [(d, m) for d in ("plain", "trio") for m in ("Ab", "a", "b", "ä")]
    paged: list[tuple[str, str]] = []
    while page := scene.store.mailboxes(after=paged[-1] if paged else None, limit=3):
        paged += [(m.desk, m.mailbox) for m in page]
    assert paged == everything
    assert [m.mailbox for m in scene.store.mailboxes("trio")] == ["Ab", "a", "b", "ä"]
    assert [(m.desk, m.mailbox) for m in scene.store.mailboxes("trio", after=("trio", "a"))] == [
        ("trio", "b"),
        ("trio", "ä"),
    ]


def test_mailboxes_are_found_by_a_part_of_their_name(scene: Scene) -> None:
    for mailbox in ("alpha", "ALPHA", "beta", "a%b", "a_b"):
        scene.post("plain", "i", mailbox=mailbox)
    assert [m.mailbox for m in scene.store.mailboxes(contains="lph")] == ["alpha"]
    assert [m.mailbox for m in scene.store.mailboxes(contains="%")] == ["a%b"]
    assert [m.mailbox for m in scene.store.mailboxes(contains="_")] == ["a_b"]
    assert [m.mailbox for m in scene.store.mailboxes(contains="zzz")] == []


def test_lanes_are_paged_by_name(scene: Scene) -> None:
    for lane in ("c", "", "b", "a"):
        scene.post("plain", f"i{lane}", lane=lane)
    assert [lane.lane for lane in scene.store.lanes("plain", "m")] == ["", "a", "b", "c"]
    assert [lane.lane for lane in scene.store.lanes("plain", "m", after="", limit=2)] == ["a", "b"]
    assert [lane.lane for lane in scene.store.lanes("plain", "m", after="b")] == ["c"]
    view = scene.store.mailbox("plain", "m")
    assert view is not None
    assert view.lanes == 4


def test_a_paused_lane_that_holds_nothing_is_shown(scene: Scene) -> None:
    scene.do(Pause("plain", "m", "l"))
    assert scene.store.lanes("plain", "m") == [LaneView("plain", "m", "l", 0, 0, 0, "operator", None)]
    assert scene.store.mailboxes() == [MailboxView("plain", "m", {}, 1, None, None)]


def test_in_lane_shows_the_head_first_and_only_what_holds_the_lane(scene: Scene) -> None:
    scene.post("trio", "a", "b", "c", "d")
    scene.lease("trio", limit=2)
    scene.do(Park(ref("trio", "c")))
    assert [v.message.id for v in scene.store.in_lane("trio", "m", "")] == ["a", "b", "d"]
    assert [v.message.id for v in scene.store.in_lane("trio", "m", "", limit=1)] == ["a"]


def test_messages_are_paged_by_number_and_filtered_by_state(scene: Scene) -> None:
    ids = [f"i{n}" for n in range(7)]
    for id in ids:
        scene.post("trio", id, mailbox=f"m{id[1:]}", kind="odd" if int(id[1:]) % 2 else "even")
    seen: list[str] = []
    after = 0
    while page := scene.store.messages(Filter("trio"), after=after, limit=3):
        seen += [v.message.id for v in page]
        after = page[-1].number
    assert seen == ids
    assert scene.kept("trio", kind="odd") == ["i1", "i3", "i5"]
    scene.lease("trio", "m1")
    assert scene.kept("trio", states=frozenset({State.LEASED})) == ["i1"]
    assert scene.kept("trio", mailbox="m2") == ["i2"]
    assert scene.kept("plain") == []


def test_find_shows_an_id_in_every_mailbox_and_what_is_remembered(scene: Scene) -> None:
    scene.post("plain", "a")
    scene.post("brief", "a")
    scene.post("trio", "a", mailbox="n", sender="bob")
    scene.lease("brief")
    scene.deliver("brief", "a")
    found = scene.store.find("a")
    assert [(v.message.desk, v.memory) for v in found] == [("plain", False), ("brief", True), ("trio", False)]
    assert len(scene.store.find("a", limit=2)) == 2
    assert scene.store.find("A") == []
