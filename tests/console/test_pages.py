"""Every page: what it shows is what the engine has."""

from __future__ import annotations

import json
from pathlib import Path

from tests.console.desk import Desk, tell

from posthouse.control.operation import Json
from posthouse.mailbox.command import Verdict
from posthouse.mailbox.message import State


async def fill(c: Desk) -> None:
    """Two desks with messages in several states."""
    await c.post("m1", "m2", "m3", lane="x")
    await c.post("n1", lane="y")
    await c.post("o1", desk="outbound", mailbox="mail/main", cause="m1")
    first = await c.lease("inbound", "alice")
    await c.settle(first, Verdict.DEAD, "timeout after 5 s")
    await c.lease("inbound", "alice", "worker-2")
    await c.post("d1", mailbox="bob")
    await c.settle(await c.lease("inbound", "bob"), Verdict.DELIVERED)


def test_the_overview_shows_the_engines_numbers(tmp_path: Path) -> None:
    async def story(c: Desk) -> None:
        await fill(c)
        page = await c.page("/")
        _, told = await c.api("GET", "/api/v1/overview")
        views = {view.desk: view for view in c.engine.store.desks()}
        outcomes = c.engine.stats.outcomes
        assert set(told["desks"]) == set(views)
        for name, view in views.items():
            counts = view.counts
            want = {
                "mailboxes": view.mailboxes,
                "ready": counts.get(State.READY, 0),
                "in_flight": counts.get(State.LEASED, 0) + counts.get(State.RECEIVED, 0),
                "parked": counts.get(State.PARKED, 0),
                "uncertain": counts.get(State.UNCERTAIN, 0),
                "dead": counts.get(State.DEAD, 0),
                "in": outcomes.get((name, "posted"), 0),
                "out": outcomes.get((name, "delivered"), 0),
                "retried": outcomes.get((name, "retried"), 0),
                "refused": 0,
            }
            for key, value in want.items():
                assert page.number("live", f"desks.{name}.{key}") == told["desks"][name][key] == value, (name, key)
        gateway = told["roles"]["gateway"]
        assert gateway["depth"] == told["desks"]["inbound"]["depth"] + told["desks"]["outbound"]["depth"] == 4
        for key in ("in", "out", "depth", "retried", "died", "dead"):
            assert page.number("live", f"roles.gateway.{key}") == gateway[key]
            if key != "died":
                assert page.number("live", f"all.{key}") == told["all"][key]
        assert (gateway["in"], gateway["out"], gateway["dead"], gateway["died"]) == (6, 1, 1, 1)
        assert gateway["oldest_s"] == max(told["desks"][d]["oldest_s"] for d in ("inbound", "outbound"))

    tell(story, tmp_path)


def test_who_is_online_is_counted_when_it_is_looked_at(tmp_path: Path) -> None:
    async def story(c: Desk) -> None:
        online = {"agents": 3, "peers": 0}
        for name in online:
            c.console.snapshots.online[name] = lambda name=name: online[name]  # type: ignore[misc]
        assert (await c.page("/")).number("live", "online.agents") == 3
        online["agents"] = 1
        assert (await c.page("/")).number("live", "online.agents") == 1

    tell(story, tmp_path)


def test_mailboxes_are_found_by_desk_and_name_and_read_page_by_page(tmp_path: Path) -> None:
    async def story(c: Desk) -> None:
        await fill(c)
        for number in range(60):
            await c.post("x", mailbox=f"box-{number:02}")
        page = await c.page("/mailboxes?desk=inbound")
        boxes = c.engine.store.mailboxes("inbound", limit=1_000)
        shown = [given["data-mailbox"] for _, given in page.tags if "data-mailbox" in given]
        assert shown == [box.mailbox for box in boxes[:50]]
        (following,) = [link for link in page.links if "after=" in link]
        rest = await c.page(following)
        assert [g["data-mailbox"] for _, g in rest.tags if "data-mailbox" in g] == [b.mailbox for b in boxes[50:]]
        found = await c.page("/mailboxes?contains=ali")
        assert [g["data-mailbox"] for _, g in found.tags if "data-mailbox" in g] == ["alice"]
        (alice,) = c.engine.store.mailboxes(None, "ali")
        assert found.number("number", "depth") == alice.depth == 3
        assert found.number("number", "lanes") == alice.lanes == 2
        assert found.number("number", "dead") == alice.counts[State.DEAD] == 1
        assert "no such mailbox" in (await c.page("/mailboxes?contains=nobody")).text

    tell(story, tmp_path)


def test_a_mailbox_and_a_lane_show_what_waits_who_holds_it_and_why(tmp_path: Path) -> None:
    async def story(c: Desk) -> None:
        await fill(c)
        box = c.engine.store.mailbox("inbound", "alice")
        assert box is not None
        assert box.oldest_at is not None
        page = await c.page("/mailbox?desk=inbound&mailbox=alice")
        assert page.number("number", "depth") == box.depth == 3
        lanes = c.engine.store.lanes("inbound", "alice")
        shown = [given["data-lane"] for _, given in page.tags if "data-lane" in given]
        assert shown == [lane.lane for lane in lanes] == ["x", "y"]
        page = await c.page("/lane?desk=inbound&mailbox=alice&lane=x")
        why = await c.operate("lane.why", mailbox="alice", lane="x", desk="inbound")
        assert ("code", why["code"]) in page.data
        assert why["sentence"] in " ".join(page.text.split())
        assert page.number("number", "depth") == why["depth"] == 2
        held = c.engine.store.in_lane("inbound", "alice", "x")
        assert [g["data-message"] for _, g in page.tags if "data-message" in g] == [v.message.id for v in held]
        flying = [v for v in held if v.holder]
        for view in flying:
            assert str(view.holder) in page.said("message", view.message.id)
        assert "timeout after 5 s" in page.text
        status, text = await c.get("/lane?desk=inbound&mailbox=alice&lane=nothing")
        assert status == 404
        assert "has no lane" in text

    tell(story, tmp_path)


def test_pause_resume_and_purge_change_the_engine_and_say_so(tmp_path: Path) -> None:
    async def story(c: Desk) -> None:
        await fill(c)
        place = {"desk": "inbound", "mailbox": "alice"}
        assert (await c.do("mailbox.pause", place))[0] == 303
        box = c.engine.store.mailbox("inbound", "alice")
        assert box is not None
        assert box.paused == "operator"
        assert "Pause: done (alice)." in (await c.page("/mailbox?desk=inbound&mailbox=alice", "operator")).text
        assert (await c.do("mailbox.pause", place))[0] == 303
        assert "it was so already" in (await c.page("/", "operator")).text
        await c.do("mailbox.resume", place)
        await c.do("mailbox.pause", {**place, "lane": "y"})
        lane = c.engine.store.lane("inbound", "alice", "y")
        assert lane is not None
        assert lane.paused == "operator"
        assert "paused" in (await c.page("/lane?desk=inbound&mailbox=alice&lane=y")).text
        await c.do("lane.unblock", {**place, "lane": "y"})
        lane = c.engine.store.lane("inbound", "alice", "y")
        assert lane is not None
        assert lane.paused is None
        asked = await c.page("/confirm/mailbox.purge?desk=inbound&mailbox=alice&lane=y&next=/mailboxes", "operator")
        assert asked.number("would", "cancelled") == 1
        assert c.engine.store.lane("inbound", "alice", "y").depth == 1  # type: ignore[union-attr]
        form = asked.forms["/do/mailbox.purge"]
        assert (form["lane"], form["next"]) == ("y", "/mailboxes")
        _, job = await c.do("mailbox.purge", {key: form[key] for key in ("desk", "mailbox", "lane")})
        told: Json = json.loads(job)
        assert (told["state"], told["result"]["cancelled"]) == ("done", 1)
        assert c.engine.store.lane("inbound", "alice", "y").depth == 0  # type: ignore[union-attr]
        assert "1 cancelled" in (await c.page(f"/jobs/{told['job']}", "viewer")).text
        assert c.engine.store.lane("inbound", "alice", "x").depth == 2  # type: ignore[union-attr]

    tell(story, tmp_path)


def test_a_messages_page_tells_its_whole_life_its_cause_and_its_effects(tmp_path: Path) -> None:
    async def story(c: Desk) -> None:
        await fill(c)
        page = await c.page("/message?id=m1")
        history = await c.operate("message.history", id="m1")
        shown = [given["data-event"] for _, given in page.tags if "data-event" in given]
        assert shown == [event["event"] for event in history["events"]] == ["posted", "leased", "died"]
        assert page.said("fact", "state") == "dead"
        assert page.number("number", "attempts") == 1
        assert "timeout after 5 s" in page.text
        assert ("effect", "") in page.data
        assert "o1" in page.said("effect")
        answer = await c.page("/message?id=o1")
        assert "m1" in answer.said("cause")
        # The same from segments, when the store has the chunks no more.
        await c.operate("journal.export")
        again = await c.page("/message?id=m1")
        assert [given["data-event"] for _, given in again.tags if "data-event" in given] == shown
        assert "o1" in again.said("effect")
        assert (await c.get("/message?id=nothing"))[0] == 404
        await c.post("m1", mailbox="carol", sender="s")
        several = await c.page("/message?id=m1")
        assert "2 messages have the id" in several.text
        assert any("mailbox=carol" in link for link in several.links)

    tell(story, tmp_path)


def test_a_body_is_shown_to_whom_it_may_be_and_on_demand(tmp_path: Path) -> None:
    async def story(c: Desk) -> None:
        await c.post("m1", body=b"a secret", headers={"x-trace": "abc"})
        for role in ("viewer", "operator"):
            page = await c.page("/message?id=m1&body=1", role)
            assert "a secret" not in page.source
            assert ("hidden", "") in page.data
            assert "abc" in page.text
            _, told = await c.api("GET", "/api/v1/message/show?id=m1", role=role)
            assert (told["body"], told["body_hidden"]) == (None, True)
        assert "a secret" not in (await c.page("/message?id=m1")).source
        assert (await c.page("/message?id=m1&body=1")).said("body") == "a secret"
        _, told = await c.api("GET", "/api/v1/message/show?id=m1")
        assert (told["body"]["data"], told["body_hidden"]) == ("a secret", False)

    tell(story, tmp_path)


def test_an_encrypted_envelope_says_so_to_everybody(tmp_path: Path) -> None:
    from posthouse.wire.envelope import encrypted_message

    data = encrypted_message("pinch:a@h", "pinch:b@h", b"e1", 1, b"n" * 24, b"c" * 77, b"k" * 32)

    async def story(c: Desk) -> None:
        await c.post("e1", desk="relay", body=data)
        page = await c.page("/message?id=e1", "viewer")
        assert "77 bytes that only its recipient can read" in page.said("sealed")
        assert ("hidden", "") in page.data

    tell(story, tmp_path)


def test_settings_and_tokens_are_shown_and_made(tmp_path: Path) -> None:
    async def story(c: Desk) -> None:
        page = await c.page("/settings?all=1", "viewer")
        for row in c.config.explain():
            assert ("setting", row["name"]) in page.data
        assert "operator-token" not in page.text
        status, text = await c.do("token.add", {"called": "eve", "role": "viewer"}, role="admin")
        assert status == 200
        from tests.console.desk import Html

        token = Html(text).said("token")
        assert (await c.api("GET", "/api/v1/overview", role="", headers={"Authorization": f"Bearer {token}"}))[0] == 200
        assert "eve" in (await c.page("/settings")).said("token", "eve")
        await c.do("token.revoke", {"called": "eve"}, role="admin")
        status, _ = await c.api("GET", "/api/v1/overview", role="", headers={"Authorization": f"Bearer {token}"})
        assert status == 401

    tell(story, tmp_path)
