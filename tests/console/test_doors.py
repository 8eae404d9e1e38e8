"""Who gets in and who does not: tokens, sessions, roles, forged requests, and names that are not ours."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from tests.console.desk import Desk, Html, tell

from posthouse.config import load
from posthouse.console.access import Access, Tries
from posthouse.console.acts import ACTS
from posthouse.console.page import Page
from posthouse.console.role import Role
from posthouse.control.operator import open_store
from posthouse.engine.engine import Engine

PLACE = {"desk": "inbound", "mailbox": "alice"}


def is_paused(c: Desk) -> bool:
    box = c.engine.store.mailbox("inbound", "alice")
    assert box is not None
    return box.paused is not None


def test_without_a_token_there_is_only_the_log_in(tmp_path: Path) -> None:
    async def story(c: Desk) -> None:
        for page in c.console.pages:
            status, text = await c.get(page.path + "?id=x&mailbox=y", role="")
            assert (status, text) == (303, ""), page.path
        for act in ACTS:
            method = "POST" if act.changes else "GET"
            assert (await c.api(method, act.path, {} if act.changes else None, role=""))[0] == 401, act.name
            if act.changes:
                session = await c.session("")
                async with session.post(f"{c.url}/do/{act.name}", data={"csrf": ""}, allow_redirects=False) as answer:
                    assert (answer.status, answer.headers["Location"]) == (303, "/login")
        for path in ("overview", "history", "live", "settings", "jobs/x"):
            assert (await c.api("GET", f"/api/v1/{path}", role=""))[0] == 401
        assert (await c.get("/jobs/x", role=""))[0] == 303
        assert (await c.get("/confirm/mailbox.purge", role=""))[0] == 303
        async with (await c.session("")).get(f"{c.url}/mailboxes?desk=a%26b", allow_redirects=False) as answer:
            wanted = parse_qs(urlsplit(answer.headers["Location"]).query)
            assert wanted == {"next": ["/mailboxes?desk=a%26b"]}

    tell(story, tmp_path)


def test_the_session_cookie_is_for_this_site_alone_and_for_no_script(tmp_path: Path) -> None:
    async def story(c: Desk) -> None:
        session = c.browser()
        async with session.get(f"{c.url}/login") as answer:
            form = Html(await answer.text()).forms["/login"]
        form |= {"token": c.tokens["viewer"], "next": "/mailboxes"}
        async with session.post(f"{c.url}/login", data=form, allow_redirects=False) as answer:
            assert (answer.status, answer.headers["Location"]) == (303, "/mailboxes")
            (cookie,) = [
                v for v in answer.headers.getall("Set-Cookie") if v.startswith("posthouse_") and "_form_" not in v
            ]
            assert "HttpOnly" in cookie
            assert "SameSite=Strict" in cookie
            assert "Max-Age=43200" in cookie
        async with session.get(f"{c.url}/") as answer:
            page = Html(await answer.text())
        # Logging out needs its form's mark.
        async with session.post(f"{c.url}/logout", data={"csrf": "guess"}, allow_redirects=False) as answer:
            assert answer.status == 403
        async with session.post(f"{c.url}/logout", data=page.forms["/logout"], allow_redirects=False) as answer:
            assert answer.status == 303
        async with session.get(f"{c.url}/", allow_redirects=False) as answer:
            assert answer.status == 303
        await session.close()

    tell(story, tmp_path)


def test_the_one_time_token_logs_in_once_and_not_by_being_looked_at(tmp_path: Path) -> None:
    async def story(c: Desk) -> None:
        url = c.login_url
        first, second = c.browser(), c.browser()
        for _ in range(3):
            async with first.get(url) as answer:
                page = Html(await answer.text())
        token = next(given["value"] for tag, given in page.tags if given.get("name") == "token")
        form = {**page.forms["/login"], "token": token}
        async with first.post(f"{c.url}/login", data=form, allow_redirects=False) as answer:
            assert answer.status == 303
        async with first.get(f"{c.url}/") as answer:
            assert "start-up (admin)" in await answer.text()
        async with second.get(url) as answer:
            form = {**Html(await answer.text()).forms["/login"], "token": token}
        async with second.post(f"{c.url}/login", data=form, allow_redirects=False) as answer:
            assert answer.status == 401
        # It is for browsers' log-in alone.
        assert (await c.api("GET", "/api/v1/overview", role="", headers={"Authorization": f"Bearer {token}"}))[0] == 401
        await first.close()
        await second.close()

    tell(story, tmp_path)


def test_a_session_ends_with_its_time_and_with_its_token(tmp_path: Path) -> None:
    with Engine(open_store(load({}, tmp_path), create=True)) as engine:
        from posthouse.control.catalogue import run
        from posthouse.control.operation import Context

        clock = [1_000.0]
        access = Access(engine, 60.0, 10, lambda: clock[0])
        context = Context(engine, load({}, tmp_path), "operator:test", lambda done, total, doing: None)
        made = run(context, "token.add", {"called": "a", "role": "operator"})
        assert isinstance(made, dict)
        cookie = access.log_in(made["token"])
        assert cookie is not None
        visitor = access.visitor(cookie)
        assert visitor is not None
        assert (visitor.name, visitor.role) == ("a", Role.OPERATOR)
        clock[0] += 59
        assert access.visitor(cookie) is not None
        clock[0] += 1
        assert access.visitor(cookie) is None
        cookie = access.log_in(made["token"])
        assert cookie is not None
        run(context, "token.revoke", {"called": "a"})
        assert access.visitor(cookie) is None
        # A token of the gateway's API has no role here.
        plain = run(context, "token.add", {"called": "b", "scopes": ["status"]})
        assert isinstance(plain, dict)
        assert access.log_in(plain["token"]) is None
        assert access.bearer(f"Bearer {plain['token']}") is None
        once = access.once()
        clock[0] += 86_400
        assert access.log_in(once) is None
        access.close()


def test_wrong_tokens_are_limited_for_each_address(tmp_path: Path) -> None:
    async def story(c: Desk) -> None:
        session = c.browser()
        async with session.get(f"{c.url}/login") as answer:
            form = {**Html(await answer.text()).forms["/login"], "token": "ph_wrong"}
        seen = []
        for _ in range(4):
            async with session.post(f"{c.url}/login", data=form, allow_redirects=False) as answer:
                seen.append(answer.status)
                async with session.get(f"{c.url}/login") as again:
                    form = {**Html(await again.text()).forms["/login"], "token": "ph_wrong"}
        assert seen == [401, 401, 401, 429]
        wrong = {"Authorization": "Bearer ph_wrong"}
        status, problem = await c.api("GET", "/api/v1/overview", role="", headers=wrong)
        assert (status, problem["code"]) == (429, "rate_limited")
        # At the form nobody of this address is let in for now, and no program with a right token is shut out.
        form["token"] = c.tokens["admin"]
        async with session.post(f"{c.url}/login", data=form, allow_redirects=False) as answer:
            assert answer.status == 429
            assert 0 < int(answer.headers["Retry-After"]) <= 60
        assert (await c.api("GET", "/api/v1/overview"))[0] == 200
        await session.close()

    tell(story, tmp_path, console__logins_per_min="3")


def test_the_count_of_mistakes_ends_with_its_minute_and_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("posthouse.console.access.ADDRESSES_MAX", 3)
    tries = Tries(2)
    for now in (0.0, 1.0):
        assert tries.wait_s("a", now) == 0
        tries.wrong("a", now)
    assert tries.wait_s("a", 2.0) == 58
    assert tries.wait_s("b", 2.0) == 0
    assert tries.wait_s("a", 60.0) == 0
    tries.wrong("a", 61.0)
    assert tries.wait_s("a", 61.0) == 0
    for number in range(10):
        tries.wrong(f"x{number}", 62.0)
    assert len(tries._wrong) == 3


@pytest.mark.parametrize("role", ["viewer", "operator"])
def test_a_role_does_what_it_may_and_nothing_more(tmp_path: Path, role: str) -> None:
    async def story(c: Desk) -> None:
        await c.post("m1")
        ours = {"viewer": Role.VIEWER, "operator": Role.OPERATOR}[role]
        for act in ACTS:
            if act.role <= ours:
                continue
            method = "POST" if act.changes else "GET"
            status, problem = await c.api(method, act.path, {} if act.changes else None, role=role)
            assert (status, problem["code"]) == (403, "forbidden"), act.name
            if act.changes:
                status, text = await c.do(act.name, PLACE, role=role)
                assert status == 403, act.name
                assert f"yours is {role}" in text
                assert (await c.get(f"/confirm/{act.name}?mailbox=alice", role))[0] == 403
        page = await c.page("/mailbox?desk=inbound&mailbox=alice", role)
        assert ("/do/mailbox.pause" in page.forms) == (role == "operator")
        await c.do("mailbox.pause", PLACE, role=role)
        assert is_paused(c) == (role == "operator")
        assert "token.add" not in (await c.page("/settings", role)).source

    tell(story, tmp_path)


def test_a_page_for_another_role_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from posthouse.console.pages import settings

    secret = Page("/secret", "Secret", settings.settings, role=Role.ADMIN)
    monkeypatch.setattr("posthouse.console.server.PAGES", (secret,))

    async def story(c: Desk) -> None:
        assert [(await c.get("/secret", role))[0] for role in ("viewer", "operator", "admin")] == [403, 403, 200]

    tell(story, tmp_path)


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_what_another_site_makes_a_browser_send_changes_nothing(tmp_path: Path, headers: dict[str, str]) -> None:
    async def story(c: Desk) -> None:
        await c.post("m1")
        # Even with the right mark, which another site cannot know.
        status, _ = await c.do("mailbox.pause", PLACE, headers=headers)
        assert status == 403
        session = await c.session("operator")
        mark = {"X-CSRF-Token": await c.csrf("operator")}
        path = f"{c.url}/api/v1/mailbox/pause"
        async with session.post(path, json=PLACE, headers=headers | mark) as answer:
            assert (answer.status, (await answer.json())["code"]) == (403, "cross_site")
        for target in ("/login", "/logout"):
            async with session.post(c.url + target, data={}, headers=headers, allow_redirects=False) as answer:
                assert answer.status == 403
        assert not is_paused(c)
        if "Origin" in headers:
            # A script of another site gets no answer to read either.
            async with session.get(f"{c.url}/api/v1/overview", headers=headers) as answer:
                assert answer.status == 403
        else:
            # A link there may lead here.
            async with session.get(f"{c.url}/", headers=headers) as answer:
                assert answer.status == 200

    tell(story, tmp_path)


@pytest.mark.parametrize("mark", [None, "", "guess", "\xe9"])
def test_a_form_without_its_mark_changes_nothing(tmp_path: Path, mark: str | None) -> None:
    async def story(c: Desk) -> None:
        await c.post("m1")
        session = await c.session("operator")
        # The mark of another session is as good as none.
        for csrf in (mark, await c.csrf("admin")):
            form = PLACE | ({} if csrf is None else {"csrf": csrf})
            async with session.post(f"{c.url}/do/mailbox.pause", data=form, allow_redirects=False) as answer:
                assert answer.status == 403
            headers = {} if csrf is None else {"X-CSRF-Token": csrf}
            async with session.post(f"{c.url}/api/v1/mailbox/pause", json=PLACE, headers=headers) as answer:
                assert answer.status == 403
        # A form that is no form, as a page of another site could send without being asked.
        async with session.post(
            f"{c.url}/do/mailbox.pause", data=b'{"a":"', headers={"Content-Type": "text/plain"}
        ) as a:
            assert a.status == 415
        assert not is_paused(c)
        # Looking at the address does nothing.
        assert (await c.get("/do/mailbox.pause?desk=inbound&mailbox=alice", "operator"))[0] == 405
        headers = {"X-CSRF-Token": await c.csrf("operator"), "Origin": c.url, "Sec-Fetch-Site": "same-origin"}
        async with session.post(f"{c.url}/api/v1/mailbox/pause", json=PLACE, headers=headers) as answer:
            assert answer.status == 200
        assert is_paused(c)

    tell(story, tmp_path)


def test_the_log_in_needs_its_own_form(tmp_path: Path) -> None:
    async def story(c: Desk) -> None:
        async with c.browser() as session:
            async with session.post(f"{c.url}/login", data={"token": c.tokens["admin"]}) as answer:
                assert answer.status == 403
            async with session.get(f"{c.url}/login") as answer:
                form = Html(await answer.text()).forms["/login"]
            session.cookie_jar.clear()
            async with session.post(f"{c.url}/login", data={**form, "token": c.tokens["admin"]}) as answer:
                assert answer.status == 403

    tell(story, tmp_path)


HOSTS = [
    ("evil.example", 421),
    ("evil.example:{port}", 421),
    ("localhost.evil.example", 421),
    ("127.0.0.1.evil.example", 421),
    ("console.example", 200),
    ("CONSOLE.example:{port}", 200),
    ("localhost", 200),
    ("127.0.0.1:{port}", 200),
    ("[::1]:{port}", 200),
    ("[::1", 421),
    ("", 421),
    ("localhost:80x", 421),
]


def test_a_name_that_is_not_ours_is_refused(tmp_path: Path) -> None:
    async def story(c: Desk) -> None:
        session = await c.session("")
        for host, status in HOSTS:
            headers = {"Host": host.format(port=c.console.port)}
            async with session.get(f"http://127.0.0.1:{c.console.port}/login", headers=headers) as answer:
                assert answer.status == status, host

    tell(story, tmp_path, console__public_host="console.example")
