"""Dead letters in the console: every number is the engine's, and every act does what it says to those it names."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from tests.console.desk import Desk, Html, tell

from posthouse.console.pages import dead as module
from posthouse.mailbox.command import Filter, Verdict
from posthouse.mailbox.message import State
from posthouse.mailbox.store import MessageView

EVIL = '<script>alert("error 7")</script>'


async def die(c: Desk, number: int, error: str | None, mailbox: str = "alice", desk: str = "inbound") -> None:
    """Let some messages die of an error that names each."""
    for n in range(number):
        id = f"{mailbox}-{abs(hash(error)) % 997}-{n}"
        await c.post(id, desk=desk, mailbox=mailbox, kind="talk")
        message = await c.lease(desk, mailbox)
        await c.settle(message, Verdict.DEAD, None if error is None else f"{error} {n}")


def kept(c: Desk, state: State = State.DEAD, desk: str = "inbound", **names: str) -> list[MessageView]:
    return c.engine.store.messages(Filter(desk, states=frozenset({state}), **names), 0, 1_000)  # type: ignore[arg-type]


def number(c: Desk, state: State) -> int:
    return sum(view.counts.get(state, 0) for view in c.engine.store.desks())


def link(page: Html, act: str, **asked: str) -> str:
    """The link to an act that names these."""
    (found,) = {
        href
        for href in page.links
        if href.startswith(f"/confirm/{act}?")
        and all(parse_qs(urlsplit(href).query, keep_blank_values=True).get(k) == [v] for k, v in asked.items())
    }
    return found


def test_groups_are_those_of_the_engine(tmp_path: Path) -> None:
    async def story(c: Desk) -> None:
        await die(c, 3, "no price for article")
        await die(c, 2, "no price for article", mailbox="bob")
        await die(c, 1, EVIL, desk="outbound", mailbox="net/default")
        await die(c, 1, None, mailbox="carol")
        page = await c.page("/dead")
        assert "<script>alert" not in page.source
        assert page.number("count", "inbound no price for article #") == 5
        assert page.number("mailboxes", "inbound no price for article #") == 2
        assert page.number("count", f"outbound {EVIL.replace('7', '#')} #") == 1
        assert page.number("count", "inbound ") == len([v for v in kept(c) if v.error is None]) == 1
        assert page.number("number", "messages") == page.number("total", "dead") == number(c, State.DEAD) == 7
        assert page.number("number", "groups") == 3
        only = await c.page("/dead?filter=1&state=dead&desk=inbound&error=no+price+for+article+99&mailbox=&kind=")
        assert only.number("number", "messages") == 5
        assert (await c.page("/dead?filter=1&desk=relay")).text.count("There is nothing of that kind.") == 1
        assert (await c.page("/dead?filter=1&mailbox=bob")).number("number", "messages") == 2

    tell(story, tmp_path)


def test_letters_are_listed_page_by_page_with_their_attempts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LIMIT", 2)

    async def story(c: Desk) -> None:
        await die(c, 3, "broken")
        seen: list[str] = []
        address = "/dead/letters?desk=inbound&error=broken+%23"
        while address:
            page = await c.page(address)
            rows = [value for name, value in page.data if name == "letter"]
            for id in rows:
                (view,) = c.engine.store.find(id)
                assert page.number("attempts", id) == view.attempts == 1
            seen += rows
            address = next((href for href in page.links if href.startswith("/dead/letters") and "after=" in href), "")
        assert seen == [view.message.id for view in kept(c)]

    tell(story, tmp_path)


def test_a_group_is_redriven_after_a_dry_run_and_no_other(tmp_path: Path) -> None:
    async def story(c: Desk) -> None:
        await die(c, 3, "no price")
        await die(c, 2, "no stock", mailbox="bob")
        await die(c, 2, None, mailbox="carol")
        page = await c.page("/dead", role="operator")
        confirm = await c.page(link(page, "dead.redrive", desk="inbound", error="no price #"), role="operator")
        assert confirm.number("would", "redriven") == 3
        assert number(c, State.DEAD) == 7, "asking changes nothing"
        form = confirm.forms["/do/dead.redrive"]
        status, text = await c.do("dead.redrive", {k: v for k, v in form.items() if k not in ("csrf", "next")})
        job = json.loads(text)
        assert (status, job["state"], job["result"]["redriven"], job["done"]) == (303, "done", 3, 3)
        assert number(c, State.DEAD) == 4
        assert number(c, State.READY) == 3
        # A group without an error is only that: what has one is not touched.
        page = await c.page("/dead", role="operator")
        fields = parse_qs(urlsplit(link(page, "dead.redrive", error="")).query, keep_blank_values=True)
        given = {name: value for name, (value,) in fields.items() if name != "next"}
        assert json.loads((await c.do("dead.redrive", given))[1])["result"]["redriven"] == 2
        assert {view.error for view in kept(c)} == {"no stock 0", "no stock 1"}

    tell(story, tmp_path)


def test_a_rate_spreads_what_is_redriven(tmp_path: Path) -> None:
    async def story(c: Desk) -> None:
        await die(c, 3, "broken")
        page = await c.page("/dead", role="operator")
        form = page.forms["/confirm/dead.redrive"]
        assert form["state"] == "dead"
        address = "/confirm/dead.redrive?state=dead&rate_per_s=0.1&limit=&next=%2Fdead"
        assert (await c.page(address, role="operator")).number("would", "redriven") == 3
        await c.do("dead.redrive", {"state": "dead", "rate_per_s": "0.1"})
        views = kept(c, State.READY)
        at_once, *later = sorted(view.due_at for view in views)
        assert (at_once, later[1] - later[0]) == (0, 10_000_000)
        status, _ = await c.get("/confirm/dead.redrive?state=dead&rate_per_s=fast", role="operator")
        assert status == 400

    tell(story, tmp_path)


def test_letters_are_parked_unparked_and_purged_in_bulk(tmp_path: Path) -> None:
    async def story(c: Desk) -> None:
        await die(c, 4, "broken")
        await die(c, 1, "other", mailbox="bob")
        page = await c.page("/dead", role="operator")
        confirm = await c.page(link(page, "dead.park", error="broken #"), role="operator")
        assert confirm.number("would", "parked") == 4
        _, text = await c.do("dead.park", {"error": "broken #", "desk": "inbound"})
        assert json.loads(text)["result"] == {"parked": 4, "skipped": 0, "dry_run": False, "more": False}
        assert (number(c, State.DEAD), number(c, State.PARKED), number(c, State.READY)) == (1, 4, 0)
        events = [event.event for _, _, event in c.engine.store.events() if event.mailbox == "alice"]
        assert events[-8:] == ["redriven", "parked"] * 4, "nobody could lease one between the two"
        aside = await c.page("/dead?state=parked", role="operator")
        assert aside.number("total", "parked") == aside.number("number", "messages") == 4
        assert not [href for href in aside.links if "dead.redrive" in href]
        assert link(aside, "dead.unpark", state="parked", desk="inbound", error="broken #")
        _, text = await c.do("dead.unpark", {"state": "parked", "limit": "3"})
        assert json.loads(text)["result"]["unparked"] == 3
        assert (number(c, State.PARKED), number(c, State.READY)) == (1, 3)
        _, text = await c.do("dead.purge", {"state": "dead"})
        assert json.loads(text)["result"]["removed"] == 1
        assert number(c, State.DEAD) == 0
        acts = {row["act"]: row["by"] for row in (await c.operate("audit.ls"))["actions"]}
        assert {"dead.park", "dead.unpark", "dead.purge"} <= set(acts)

    tell(story, tmp_path)


def test_one_letter_is_named_by_all_that_it_has(tmp_path: Path) -> None:
    async def story(c: Desk) -> None:
        for mailbox in ("alice", "bob"):
            await c.post("same", mailbox=mailbox)
            await c.settle(await c.lease("inbound", mailbox), Verdict.DEAD, "broken")
        page = await c.page("/dead/letters", role="operator")
        fields = parse_qs(urlsplit(link(page, "dead.redrive", mailbox="bob", id="same")).query, keep_blank_values=True)
        assert fields["sender"] == [""]
        await c.do("dead.redrive", {name: value for name, (value,) in fields.items() if name != "next"})
        assert [view.message.mailbox for view in kept(c)] == ["alice"]

    tell(story, tmp_path)


def test_many_letters_are_grouped_in_part_and_all_on_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SCAN", 3)

    async def story(c: Desk) -> None:
        await die(c, 5, "broken")
        page = await c.page("/dead")
        assert page.said("partial").startswith("Of 5, the oldest 3 are grouped here.")
        assert page.number("count", "inbound broken #") == 3
        assert page.number("total", "dead") == 5
        (everything,) = [href for href in page.links if "all=1" in href]
        assert (await c.page(everything)).number("count", "inbound broken #") == 5

    tell(story, tmp_path)


def test_programs_too_are_told_of_the_oldest_unless_they_ask_for_more(tmp_path: Path) -> None:
    """What looks at messages one by one looks at a few, and says so."""

    async def story(c: Desk) -> None:
        await die(c, 4, "broken")
        _, told = await c.api("GET", "/api/v1/dead/ls?scan=3")
        assert (told["messages"], told["total"]) == (3, 4)
        assert (await c.api("GET", "/api/v1/dead/ls"))[1]["messages"] == 4
        for number in range(5):
            await c.post(f"w{number}", mailbox="town", lane=f"lane-{number}", sender="web/main/ann")
        await c.post("r1", desk="relay", mailbox="pinch:a@h")
        for scan, waiting, whole in ((2, 2, False), (4, 4, False), (5, 5, True)):
            _, told = await c.api("GET", f"/api/v1/gateway/stats?scan={scan}")
            inbound = told["desks"][0]
            assert inbound["counts"]["ready"] == 5
            assert sum(row["waiting"] for row in inbound["channels"]) == waiting
            assert (sum(row["waiting"] for row in inbound["sessions"]), inbound["scanned_all"]) == (waiting, whole)
        _, told = await c.api("GET", "/api/v1/gateway/stats")
        assert told["desks"][0]["scanned_all"] is True
        assert (await c.api("GET", "/api/v1/gateway/stats?scan=0"))[0] == 400

    tell(story, tmp_path)


def test_who_may_only_look_sees_no_way_to_act(tmp_path: Path) -> None:
    async def story(c: Desk) -> None:
        await die(c, 1, "broken")
        for path in ("/dead", "/dead/letters"):
            page = await c.page(path, role="viewer")
            assert not [href for href in page.links if href.startswith("/confirm/")]
            assert "/confirm/dead.redrive" not in page.forms
        for act in ("dead.redrive", "dead.park", "dead.unpark", "dead.purge"):
            assert (await c.do(act, {"state": "dead"}, role="viewer"))[0] == 403
            assert (await c.get(f"/confirm/{act}", role="viewer"))[0] == 403
            assert (await c.api("POST", f"/api/v1/{act.replace('.', '/')}", {}, role="viewer"))[0] == 403
        assert number(c, State.DEAD) == 1
        assert (await c.get("/dead", role=""))[0] == 303

    tell(story, tmp_path)


@pytest.mark.parametrize(
    "query", ["state=ready", "state=%3Cb%3E", "desk=nobody", "since=yesterday", "id=" + "x" * 5_000]
)
def test_filters_that_cannot_be_are_told_as_text(tmp_path: Path, query: str) -> None:
    async def story(c: Desk) -> None:
        for path in ("/dead", "/dead/letters"):
            status, text = await c.get(f"{path}?{query}")
            assert status in (400, 404, 409)
            assert "<b>" not in text.split("<main", 1)[1].split("data-total", 1)[0]

    tell(story, tmp_path)


def test_a_bulk_act_tells_how_far_it_is_and_can_be_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from posthouse.control import dead as operations

    monkeypatch.setattr(operations, "PARK_STEP", 2)

    async def story(c: Desk) -> None:
        await die(c, 6, "broken")
        seen: list[tuple[int, int | None]] = []
        whole = c.console.jobs.start

        def start(act: str, by: str, run: object) -> object:
            def reporting(report: object) -> object:
                def told(done: int, total: int | None, doing: str) -> None:
                    seen.append((done, total))
                    if done == 4:
                        job.stopping.set()
                    report(done, total, doing)  # type: ignore[operator]

                return run(told)  # type: ignore[operator]

            job = whole(act, by, reporting)  # type: ignore[arg-type]
            return job

        monkeypatch.setattr(c.console.jobs, "start", start)
        _, text = await c.do("dead.park", {"state": "dead"})
        job = json.loads(text)
        assert seen == [(2, 6), (4, 6)]
        assert (job["state"], job["done"], job["total"]) == ("stopped", 4, 6)
        assert (number(c, State.DEAD), number(c, State.PARKED)) == (2, 4), "what was done stays done"
        page = await c.page(f"/jobs/{job['job']}", role="operator")
        assert "stopped" in page.text

    tell(story, tmp_path)
