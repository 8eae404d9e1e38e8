"""The console in a browser: every page is walked, acted upon and looked at, in both themes and on a phone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright
from tests.console.browser.stage import AGENT, HOSTILE, Stage, chromium

from posthouse.console.pages import PAGES
from posthouse.mailbox.message import Ref, State

pytestmark = pytest.mark.timeout(180)

PICTURES = Path(__file__).parents[3] / "test-output" / "console"
SERIOUS = ("serious", "critical")
THEMES = {"light": {"resultTypes": ["violations"]}, "dark": {"runOnly": ["color-contrast"]}}
"""Each theme, and what is looked for in it: all else is the same in both."""
PHONE = {"width": 390, "height": 844}
WITH: dict[str, dict[str, str]] = {
    "/mailbox": {"desk": "inbound", "mailbox": "town"},
    "/lane": {"desk": "inbound", "mailbox": "town", "lane": "ann"},
    "/message": {"id": "m1", "desk": "inbound"},
    "/party": {"desk": "relay", "name": AGENT},
    "/books": {"span": "all"},
}
"""What the address of a page carries."""


def address(path: str) -> str:
    return f"{path}?{urlencode(WITH[path])}" if path in WITH else path


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    made = Stage(tmp_path_factory.mktemp("stage"))
    made.start()
    yield made
    made.stop()


# A machine on which other tests run is slow at times.
expect.set_options(timeout=20_000)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        # The sandbox needs rights that the tests' user may not have; nothing but our own pages is loaded.
        launched = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        yield launched
        launched.close()


class Watch:
    """What goes wrong in a browser without anybody seeing it."""

    def __init__(self, context: BrowserContext) -> None:
        self.wrong: list[str] = []
        context.on("weberror", lambda error: self.wrong.append(f"error: {error.error}"))
        context.on("console", lambda said: self._said(said.type, said.text))
        context.on("requestfailed", lambda request: self._failed(request.url, request.failure or ""))

    def _said(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.wrong.append(f"{kind}: {text}")

    def _failed(self, url: str, why: str) -> None:
        # What is under way when a page is left ends with it: the stream of live numbers, above all.
        if "ERR_ABORTED" not in why:
            self.wrong.append(f"failed: {url} {why}")


@pytest.fixture(scope="module")
def visit(stage: Stage, browser: Browser) -> Iterator[tuple[Page, Watch]]:
    """An admin who logged in with the link of the start-up summary."""
    context = browser.new_context(base_url=stage.desk.url)
    watch = Watch(context)
    page = context.new_page()
    page.goto(stage.desk.login_url)
    page.get_by_role("button", name="Log in").click()
    expect(page).to_have_title(re.compile("^Overview"))
    yield page, watch
    context.close()


@pytest.fixture
def page(visit: tuple[Page, Watch]) -> Iterator[Page]:
    shown, watch = visit
    shown.emulate_media(color_scheme="light")
    watch.wrong.clear()
    yield shown
    assert watch.wrong == []
    assert shown.evaluate("window.hit") is None, "a hostile name was taken for markup"


def state_of(stage: Stage, id: str) -> str:
    return str(stage.operate("message.show", id=id)["state"])


@pytest.mark.parametrize("path", [page.path for page in PAGES])
def test_a_page_is_sound_in_both_themes_and_on_a_phone(page: Page, path: str) -> None:
    PICTURES.mkdir(parents=True, exist_ok=True)
    name = path.strip("/").replace("/", "-") or "overview"
    response = page.goto(address(path))
    assert response is not None
    assert response.status == 200
    for theme, options in THEMES.items():
        page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
        found = Axe().run(page, options=options).response["violations"]
        assert [(v["id"], v["nodes"][0]["html"]) for v in found if v["impact"] in SERIOUS] == [], theme
        page.screenshot(path=PICTURES / f"{name}-{theme}.png", full_page=True)
    size = page.viewport_size
    assert size is not None
    page.set_viewport_size(PHONE)  # type: ignore[arg-type]
    wide = page.evaluate("document.documentElement.scrollWidth")
    page.set_viewport_size(size)
    assert wide <= PHONE["width"], "the page is wider than a phone"


def test_the_link_of_the_summary_is_good_for_one_time(stage: Stage, browser: Browser) -> None:
    link = stage.desk.login_url
    for expected in ("Overview", "Log in"):
        context = browser.new_context(base_url=stage.desk.url)
        visitor = context.new_page()
        visitor.goto(link)
        found = Axe().run(visitor).response["violations"]
        assert [v["id"] for v in found if v["impact"] in SERIOUS] == []
        visitor.get_by_role("button", name="Log in").click()
        expect(visitor).to_have_title(re.compile(f"^{expected}"))
        context.close()


def test_numbers_move_while_the_overview_is_looked_at(stage: Stage, page: Page) -> None:
    page.goto("/")
    ready = page.locator('[data-live="desks.inbound.ready"]')
    before = int(ready.inner_text())
    stage.ask(lambda c: c.post("live-1", "live-2", mailbox="live"))
    expect(ready).to_have_text(str(before + 2))
    stage.operate("message.cancel", id="live-1")
    stage.operate("message.cancel", id="live-2")
    expect(ready).to_have_text(str(before))


def test_a_mailbox_is_found_paused_and_resumed(stage: Stage, page: Page) -> None:
    page.goto("/mailboxes")
    rows = page.locator("[data-mailbox]")
    found = stage.operate("mailbox.ls")["mailboxes"]
    expect(rows).to_have_count(len(found))
    page.get_by_label("Name contains").fill("shop")
    page.get_by_role("button", name="Show").click()
    expect(rows).to_have_count(1)
    page.get_by_label("Name contains").fill("")
    page.locator("select[name=desk]").select_option("inbound")
    page.get_by_role("button", name="Show").click()
    expect(rows).to_have_count(sum(box["desk"] == "inbound" for box in found))
    page.get_by_role("link", name="town").click()
    page.get_by_role("button", name="Pause").click()
    expect(page.get_by_role("status")).to_contain_text("Pause: done")
    assert stage.operate("mailbox.show", mailbox="town", desk="inbound")["paused"] is not None
    page.get_by_role("button", name="Resume").click()
    expect(page.get_by_role("status")).to_contain_text("Resume: done")
    assert stage.operate("mailbox.show", mailbox="town", desk="inbound")["paused"] is None


def test_purging_asks_first_and_no_means_no(stage: Stage, page: Page) -> None:
    stage.ask(lambda c: c.post("p1", "p2", mailbox="attic"))
    page.goto("/mailbox?desk=inbound&mailbox=attic")
    page.get_by_role("link", name="Purge…").click()
    expect(page.locator('[data-would="cancelled"]')).to_have_text("2")
    page.get_by_role("link", name="Leave it").click()
    assert state_of(stage, "p1") == "ready"
    page.get_by_role("link", name="Purge…").click()
    page.get_by_role("button", name="Purge").click()
    expect(page.get_by_role("status")).to_contain_text("2 cancelled")
    assert stage.operate("mailbox.show", mailbox="attic", desk="inbound")["depth"] == 0


def test_a_messages_life_is_told_and_hostile_names_are_text(stage: Stage, page: Page) -> None:
    page.goto(f"/message?{urlencode({'id': 'm1', 'desk': 'inbound'})}")
    expect(page.locator(".timeline")).to_contain_text("posted")
    # What it caused is one click away.
    page.get_by_role("link", name="o1").first.click()
    expect(page).to_have_title(re.compile("o1"))
    page.goto(f"/message?{urlencode({'id': HOSTILE, 'desk': 'inbound'})}")
    expect(page.get_by_role("heading", level=1)).to_contain_text(HOSTILE)
    assert stage.desk.engine.store.message(Ref("inbound", "town", "", HOSTILE)) is not None


def test_a_message_is_parked_and_comes_back(stage: Stage, page: Page) -> None:
    page.goto("/message?id=m3&desk=inbound")
    page.get_by_role("button", name="Park", exact=True).click()
    expect(page.get_by_role("status")).to_contain_text("Park: done")
    assert state_of(stage, "m3") == State.PARKED
    page.get_by_role("button", name="Unpark").click()
    expect(page.get_by_role("status")).to_contain_text("Unpark: done")
    assert state_of(stage, "m3") == State.READY


def test_dead_letters_are_filtered_and_a_group_is_redriven(stage: Stage, page: Page) -> None:
    page.goto("/dead")
    groups = page.locator("[data-group]")
    expect(groups).to_have_count(len(stage.operate("dead.ls")["groups"]))
    page.get_by_label("Error like").fill("no customer 1")
    page.get_by_role("button", name="Show").click()
    expect(groups).to_have_count(1)
    expect(groups.locator("[data-count]")).to_have_text("2")
    groups.get_by_role("link", name="Redrive…").click()
    expect(page.locator('[data-would="redriven"]')).to_have_text("2")
    page.get_by_role("button", name="Redrive").click()
    expect(page.get_by_role("status")).to_contain_text("2 redriven")
    assert {state_of(stage, id) for id in ("dead-4711", "dead-4712")} == {"ready"}
    page.goto("/dead")
    expect(groups).to_have_count(1)
    expect(groups).to_contain_text(HOSTILE)


def test_the_books_are_brought_up_to_date_by_their_button(stage: Stage, page: Page) -> None:
    page.goto("/books?span=all")
    posted = page.locator('[data-test="posted"]')
    before = int(posted.inner_text())
    page.get_by_role("button", name="Bring the books up to date").click()
    # A process is started for it.
    expect(page.get_by_role("status")).to_contain_text("5 events", timeout=60_000)
    page.get_by_role("link", name="Back").click()
    expect(posted).to_have_text(str(before + 5))
    assert stage.operate("books.summary")["totals"]["posted"] == before + 5
    page.get_by_role("link", name="delivered_twice").click()
    expect(page.locator('[data-test="found"]')).to_have_count(1)
    page.locator("select[name=desk]").select_option("relay")
    page.get_by_role("button", name="Show").click()
    expect(posted).to_have_text("1")
    # Nothing of that desk; what the journal lacks concerns every one.
    expect(page.locator('[data-test="found"]')).to_have_count(1)
    expect(page.locator('[data-test="found"]')).to_contain_text("journal_gap")


def test_who_was_there_is_found_and_shown(stage: Stage, page: Page) -> None:
    page.goto("/peers?desk=relay")
    parties = page.locator("[data-party]")
    expect(parties).to_have_count(2)
    page.goto("/peers?desk=relay&state=away")
    expect(parties).to_have_count(1)
    depth = stage.operate("mailbox.show", mailbox=AGENT, desk="relay")["depth"]
    expect(parties.locator("[data-depth]")).to_have_text(str(depth))
    parties.get_by_role("link", name=AGENT).first.click()
    expect(page.get_by_role("heading", level=1)).to_contain_text(AGENT)


def test_what_operators_did_is_in_the_audit_log(stage: Stage, page: Page) -> None:
    stage.operate("mailbox.pause", mailbox="shop", desk="inbound")
    stage.operate("mailbox.resume", mailbox="shop", desk="inbound")
    page.goto("/audit")
    expect(page.locator("main")).to_contain_text("mailbox.resume")
    expect(page.locator("main")).to_contain_text("operator:test")


def test_it_can_be_used_with_the_keyboard_alone(page: Page) -> None:
    page.goto("/")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("#main$"))
    page.goto("/")
    switch = page.locator("[data-theme-switch]")
    for _ in range(30):
        page.keyboard.press("Tab")
        if switch.evaluate("box => box === document.activeElement"):
            break
    expect(switch).to_be_focused()
    page.keyboard.press("Enter")
    shown = page.locator("html")
    expect(shown).to_have_attribute("data-theme", "dark")
    page.reload()
    # The choice is kept.
    expect(shown).to_have_attribute("data-theme", "dark")
    page.evaluate("localStorage.removeItem('theme')")


def test_pages_work_without_scripts(stage: Stage, browser: Browser) -> None:
    context = browser.new_context(base_url=stage.desk.url, java_script_enabled=False)
    visitor = context.new_page()
    visitor.goto(stage.desk.login_url)
    visitor.get_by_role("button", name="Log in").click()
    visitor.goto("/mailbox?desk=inbound&mailbox=town")
    visitor.get_by_role("button", name="Pause").click()
    expect(visitor.get_by_role("status")).to_contain_text("Pause: done")
    visitor.get_by_role("button", name="Resume").click()
    expect(visitor.get_by_role("status")).to_contain_text("Resume: done")
    context.close()
