"""The page of the books: every number is the lake's, and the button brings them up to date."""

from __future__ import annotations

import asyncio
import datetime
import json
import os
import shutil
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from tests.console.desk import Desk, tell
from tests.console.sheet import Sheet
from tests.unit.pipeline.lakes import finding, message, schema, small, window, write

from posthouse.cli.books_keep import Keeper
from posthouse.console.jobs import Job
from posthouse.control import books
from posthouse.errors import InvalidInput
from posthouse.pipeline.digest import COUNTS, OUTCOMES
from posthouse.pipeline.lake import Lake
from posthouse.pipeline.plot import span
from posthouse.pipeline.schema import TABLES, WAITS

HOSTILE = "<script>alert(1)</script>"
# A process that keeps books of nothing: it tells how far it is, waits for a word, and is done.
CHILD = """
import json, sys
settings = json.loads(sys.stdin.readline())
for line in sys.stdin:
    print(json.dumps({"progress": [3, 7, "taking in"]}), flush=True)
    with open(sys.argv[1]) as word:
        word.read()
    print(json.dumps({"segments": 1, "events": 7, "batches": 1, "rejected": [], "findings": []}), flush=True)
"""


def test_every_number_is_the_lakes(tmp_path: Path) -> None:
    lake = Lake(str(small(tmp_path)))

    async def story(c: Desk) -> None:
        page = await c.page("/books?span=all")
        rows = list(lake.rows("books"))
        for name in COUNTS:
            assert page.number("test", name) == sum(row[name] for row in rows), name
        assert page.number("test", "posted") == sum(page.number("test", name) for name in OUTCOMES)
        for desk, kind in {(row["desk"], row["kind"]) for row in rows}:
            some = [row for row in rows if (row["desk"], row["kind"]) == (desk, kind)]
            for name in COUNTS:
                assert page.number("test", f"{desk}/{kind}/{name}") == sum(row[name] for row in some)
        found = lake.totals("anomalies", ["kind"])
        assert {row["kind"]: page.number("test", f"finding:{row['kind']}") for row in found} == {
            row["kind"]: row["n"] for row in found
        }
        assert len([tag for tag, given in page.tags if given.get("data-test") == "found"]) == lake.count("anomalies")
        for row in lake.rows("latency"):
            way = "live" if row["live"] else "stored"
            assert page.number("test", f"latency:{row['desk']}/{row['kind']}/{way}") == row["count"]
        for row in lake.sums("messages", ["desk"], [f"wait_{name}" for name in WAITS]):
            for name in WAITS:
                assert page.said("test", f"wait:{row['desk']}/{name}") == span(row[f"wait_{name}"] or 0)
        for row in lake.rows("replays"):
            for name in ("posted", "delivered", "expired", "dead", "refused", "attempts"):
                assert page.number("test", f"replay:{row['desk']}/{row['policy']}/{name}") == row[name]
        drawn = [given["aria-label"] for tag, given in page.tags if tag == "svg"]
        assert len(drawn) == 5
        assert page.said("test", "verdict") == "The books close. There are 3 findings; they are listed below."
        # The same by the API.
        status, told = await c.api("GET", "/api/v1/books/summary")
        assert status == 200
        assert told["totals"] == {name: sum(row[name] for row in rows) for name in COUNTS}
        assert told["written_at"] == lake.written_at("books")

    tell(story, tmp_path, books__lake=str(tmp_path / "lake"))


def test_a_desk_a_span_and_a_kind_can_be_chosen(tmp_path: Path) -> None:
    small(tmp_path)

    async def story(c: Desk) -> None:
        page = await c.page("/books?span=all&desk=relay")
        assert page.number("test", "posted") == 1
        page = await c.page("/books?span=all&kind=journal_gap")
        assert len([tag for tag, given in page.tags if given.get("data-test") == "found"]) == 1
        # The lake is of the past; only what has no time is of every span.
        for address in ("/books", "/books?span=day", "/books?desk=relay"):
            page = await c.page(address)
            assert page.number("test", "posted") == 0
            assert page.number("test", "finding:journal_gap") == 1
            said = "No message was posted in this span. There are 1 findings; they are listed below."
            assert page.said("test", "verdict") == said
            assert len([tag for tag, given in page.tags if given.get("data-test") == "found"]) == 1
        status, told = await c.api("GET", "/api/v1/books/summary?since=2026-03-02T00:00:00Z&until=2026-03-02T05:00:00Z")
        assert (status, told["totals"]["posted"]) == (200, 1)
        status, told = await c.api("GET", "/api/v1/books/findings?kind=delivered_twice")
        assert [(row["message_id"], row["offsets"]) for row in told["findings"]] == [("a", [3, 4])]
        status, told = await c.api("GET", "/api/v1/books/findings?since=2026-03-02T00:00:00Z")
        assert (status, [row["kind"] for row in told["findings"]]) == (200, ["journal_gap"])
        status, told = await c.api("GET", "/api/v1/books/findings?until=2026-03-02T00:00:00Z")
        assert (status, len(told["findings"])) == (200, 3)
        status, _ = await c.api("GET", "/api/v1/books/summary?since=never")
        assert status == 400
        for act in ("summary", "findings"):
            address = f"/api/v1/books/{act}?since=2026-03-02T00:00:00Z&until=2026-03-01T00:00:00Z"
            status, _ = await c.api("GET", address)
            assert status == 409
            with pytest.raises(InvalidInput, match="since must be before until"):
                await c.operate(f"books.{act}", since=2, until=1)

    tell(story, tmp_path, books__lake=str(tmp_path / "lake"))


def test_the_findings_that_are_listed_are_those_of_the_span(tmp_path: Path) -> None:
    lake = small(tmp_path)

    async def story(c: Desk) -> None:
        now = datetime.datetime.now(datetime.UTC)
        for id, hours in (("today", 2), ("yesterday", 30)):
            then = now - datetime.timedelta(hours=hours)
            write(lake, "anomalies", [finding("delivered_twice", id, [3, 4], at=then, part=then.date().isoformat())])

        async def listed(address: str) -> list[list[str]]:
            sheet = Sheet((await c.page(address)).source)
            return [row[:2] for row in sheet.tables["Findings one by one"]]

        today, gap = ["delivered_twice", "today"], ["journal_gap", "–"]
        assert await listed("/books?span=day") == [today, gap]
        assert await listed("/books?span=day&desk=inbound") == [today, gap]
        assert await listed("/books?span=day&kind=delivered_twice") == [today]
        assert await listed("/books?span=week") == [today, ["delivered_twice", "yesterday"], gap]
        assert len(await listed("/books?span=all")) == 5
        page = await c.page("/books?span=day")
        said = "No message was posted in this span. There are 2 findings; they are listed below."
        assert page.said("test", "verdict") == said

    tell(story, tmp_path, books__lake=str(lake))


def test_where_nothing_was_found_in_the_span_nothing_is_listed(tmp_path: Path) -> None:
    write(tmp_path / "lake", "books", [window(0, posted=1, delivered=1)])
    write(tmp_path / "lake", "anomalies", [finding("delivered_twice", "a", [3, 4])])

    async def story(c: Desk) -> None:
        page = await c.page("/books?span=day")
        assert ("test", "no findings") in page.data
        assert ("test", "found") not in page.data
        page = await c.page("/books?span=all")
        assert ("test", "no findings") not in page.data
        assert ("test", "found") in page.data

    tell(story, tmp_path, books__lake=str(tmp_path / "lake"))


def test_a_span_in_which_there_is_nothing_is_not_called_good(tmp_path: Path) -> None:
    write(tmp_path / "lake", "books", [window(0, posted=1, delivered=1)])

    async def story(c: Desk) -> None:
        page = await c.page("/books?desk=inbound")
        assert ("test", "no findings") in page.data
        said = "No message was posted in this span, and nothing was found."
        assert page.said("test", "verdict") == said
        # The list says which desk it is, though there is nothing of it.
        assert any(tag == "option" and "selected" in given for tag, given in page.tags if not given.get("value"))

    tell(story, tmp_path, books__lake=str(tmp_path / "lake"))


@pytest.mark.slow
def test_the_page_is_there_at_once_over_a_million_messages(tmp_path: Path) -> None:
    """The first time that it is looked at, and the second."""
    lake = small(tmp_path)
    some = [message(f"m{number}", number, desk=f"desk-{number % 5}") for number in range(1_000)]
    names = TABLES["messages"].names
    table = pa.Table.from_pylist([{name: row.get(name) for name in names} for row in some], schema("messages"))
    for _ in range(10):
        write_deltalake(lake / "messages", pa.concat_tables([table] * 100), mode="append")
    hours = [window(hour, posted=3, delivered=3, desk=f"desk-{d}") for hour in range(24 * 30) for d in range(5)]
    write(lake, "books", hours)

    async def story(c: Desk) -> None:
        async def took_s(path: str) -> float:
            begun = time.monotonic()
            page = await c.page(path)
            took = time.monotonic() - begun
            assert page.number("test", "posted") in (24 * 30 * 3, 5 * 24 * 30 * 3 + 4)
            return took

        await took_s("/books?span=all")
        # Each desk is a question of its own. The best of some counts: others may use the machine, too.
        new = [await took_s(f"/books?span=all&desk=desk-{number}") for number in range(5)]
        known = [await took_s("/books?span=all") for _ in range(5)]
        print(f"seconds: new {min(new):.3f} to {max(new):.3f}, known {min(known):.3f} to {max(known):.3f}")
        assert max(min(new), min(known)) < 0.2

    tell(story, tmp_path, books__lake=str(lake))


def test_books_that_do_not_close_say_so_and_hostile_names_are_text(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    write(lake, "books", [window(0, posted=1, delivered=1, remainder=1, remainder_ids=["ghost"], kind=HOSTILE)])
    write(lake, "messages", [message("a", kind=HOSTILE, desk=HOSTILE)])
    named = {"mailbox": HOSTILE, "sender": HOSTILE, "detail": HOSTILE}
    write(lake, "anomalies", [finding("lost", f"{HOSTILE}\x1b", [1], **named)])
    write(
        lake,
        "replays",
        [{"policy": HOSTILE, "desk": "inbound", "exact": True, "posted": 1, "delivered": 1, "expired": 0, "dead": 0,
          "refused": 0, "attempts": 1, "wait": None}],
    )  # fmt: skip

    async def story(c: Desk) -> None:
        page = await c.page("/books?span=all")
        assert page.said("test", "verdict") == "The books do not close: see the remainder and the findings."
        assert page.number("test", "remainder") == 1
        assert "<script>alert" not in page.source
        assert "\x1b" not in page.source
        assert page.text.count(HOSTILE) >= 5

    tell(story, tmp_path, books__lake=str(lake))


def test_a_lake_that_changes_is_read_again_and_one_that_does_not_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = small(tmp_path)
    opened: list[str] = []
    make = Lake.__init__

    def counted(lake: Lake, place: str) -> None:
        opened.append(place)
        make(lake, place)

    monkeypatch.setattr(Lake, "__init__", counted)

    async def story(c: Desk) -> None:
        for _ in range(3):
            await c.operate("books.summary")
        assert len(opened) == 1
        write(lake, "books", [window(31, posted=5, delivered=5)])
        found = await c.operate("books.summary")
        assert found["totals"]["posted"] == 9
        assert len(opened) == 2

    tell(story, tmp_path, books__lake=str(lake))


def test_a_lake_that_was_made_again_with_as_many_commits_is_read_again(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    write(lake, "books", [window(0, posted=1, delivered=1)])

    async def story(c: Desk) -> None:
        assert (await c.operate("books.summary"))["totals"]["posted"] == 1
        shutil.rmtree(lake)
        write(lake, "books", [window(0, posted=2, delivered=2)])
        assert (await c.operate("books.summary"))["totals"]["posted"] == 2

    tell(story, tmp_path, books__lake=str(lake))


def test_what_is_missing_to_keep_the_books_is_said_by_the_page_and_by_the_act(tmp_path: Path) -> None:
    small(tmp_path)
    why = "the books need Java 17 or newer: set JAVA_HOME"

    async def story(c: Desk) -> None:
        books.not_keeping(c.engine, why)
        page = await c.page("/books", role="operator")
        assert page.said("test", "lacking") == f"This server does not keep the books: {why}."
        assert "books.enabled" not in page.text
        assert "/do/books.run" not in page.forms
        status, told = await c.api("GET", "/api/v1/books/status")
        assert (status, told["kept"], told["lacking"]) == (200, False, why)
        _, answer = await c.do("books.run")
        job = json.loads(answer)
        assert (job["state"], job["error"]) == ("refused", f"this server does not keep the books: {why}")

    tell(story, tmp_path, books__lake=str(tmp_path / "lake"))


def test_where_there_are_no_books_the_page_says_how_to_get_some(tmp_path: Path) -> None:
    async def story(c: Desk) -> None:
        page = await c.page("/books")
        assert "there are no books in" in page.text
        assert "/do/books.run" not in page.forms
        status, told = await c.api("POST", "/api/v1/books/run", {}, role="operator")
        assert status == 202
        job = c.console.jobs.get(told["job"])
        async with asyncio.timeout(20):
            await job.ended.wait()
        assert (job.state, "does not keep the books" in job.error) == ("refused", True)

    tell(story, tmp_path, books__lake=str(tmp_path / "lake"))


def test_the_button_brings_the_books_up_to_date_and_shows_how_far_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    word = tmp_path / "word"
    os.mkfifo(word)
    small(tmp_path)
    report = Job.report

    async def story(c: Desk) -> None:
        await c.post("m1")
        loop, taking_in = asyncio.get_running_loop(), asyncio.Event()

        def told(job: Job, done: int, total: int | None, doing: str) -> None:
            report(job, done, total, doing)
            if doing == "taking in":
                loop.call_soon_threadsafe(taking_in.set)

        monkeypatch.setattr(Job, "report", told)
        keeper = Keeper(c.config, os.environ, [sys.executable, "-c", CHILD, str(word)])
        stop = asyncio.Event()
        keeping = asyncio.create_task(keeper.run(stop))
        books.keeping(c.engine, keeper)
        try:
            page = await c.page("/books", role="viewer")
            assert "/do/books.run" not in page.forms
            assert "There was no run since the server started." in page.text
            session = await c.session("operator")
            form = (await c.page("/books", role="operator")).forms["/do/books.run"]
            async with session.post(f"{c.url}/do/books.run", data=form, allow_redirects=False) as response:
                assert response.status == 303
                where = response.headers["Location"]
            job = c.console.jobs.get(where.removeprefix("/jobs/").partition("?")[0])
            async with asyncio.timeout(20):
                await taking_in.wait()
                shown = await c.page(where, role="operator")
                assert ("progress", {"id": "progress", "max": "7", "value": "3"}) in shown.tags
                assert "They are being brought up to date now." in (await c.page("/books")).text
                await asyncio.to_thread(word.write_text, "")
                await job.ended.wait()
            assert job.state == "done", job.error
            # The journal was exported for it: what was posted is in a segment.
            assert job.result == {"exported": c.engine.store.offset(), "events": 7, "segments": 1, "rejected": 0}
            page = await c.page("/books")
            assert page.number("test", "run:events") == 7
            assert page.number("test", "run:segments") == 1
            actions = (await c.operate("audit.ls"))["actions"]
            assert (actions[0]["act"], actions[0]["by"]) == ("books.run", "console:operator-token")
        finally:
            books.keeping(c.engine, None)
            stop.set()
            await keeping

    tell(story, tmp_path, books__lake=str(tmp_path / "lake"), books__every_s="0")


def test_a_keeper_that_fails_is_told(tmp_path: Path) -> None:
    small(tmp_path)

    async def story(c: Desk) -> None:
        await c.post("m1")
        failing = (
            'import sys, json; sys.stdin.readline(); sys.stdin.readline(); print(json.dumps({"error": "no room"}))'
        )
        keeper = Keeper(c.config, os.environ, [sys.executable, "-c", failing])
        stop = asyncio.Event()
        keeping = asyncio.create_task(keeper.run(stop))
        books.keeping(c.engine, keeper)
        try:
            status, told = await c.do("books.run")
            assert status == 303
            job = json.loads(told)
            assert (job["state"], job["error"]) == ("failed", "the books were not brought up to date: no room")
            assert "no room" in (await c.page("/books")).text
        finally:
            books.keeping(c.engine, None)
            stop.set()
            await keeping

    tell(story, tmp_path, books__lake=str(tmp_path / "lake"), books__every_s="0")
