"""What every answer forbids to browsers, where paths lead, and that what others wrote is shown as text."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.console.desk import Desk, Html, tell

from posthouse.console.way import safe_next


def test_every_answer_forbids_what_browsers_would_otherwise_allow(tmp_path: Path) -> None:
    async def story(c: Desk) -> None:
        session = await c.session("admin")
        paths = ["/", "/login", "/nothing", "/api/v1/overview", "/api/v1/nothing", "/static/console.css", "/static/x"]
        for path in [*paths, *(f"{page.path}?id=x" for page in c.console.pages)]:
            async with session.get(c.url + path, allow_redirects=False) as answer:
                policy = answer.headers["Content-Security-Policy"]
                assert "unsafe" not in policy
                assert "default-src 'none'" in policy
                assert "frame-ancestors 'none'" in policy
                assert answer.headers["X-Content-Type-Options"] == "nosniff"
                assert answer.headers["X-Frame-Options"] == "DENY"
                assert answer.headers["Referrer-Policy"] == "same-origin"
                assert "Access-Control-Allow-Origin" not in answer.headers
                if "static" not in path:
                    assert answer.headers["Cache-Control"] == "no-store", path
                text = await answer.text()
            for tag, given in Html(text).tags:
                assert "style" not in given, (path, tag)
                assert not any(name.startswith("on") for name in given), (path, tag)
                assert tag != "script" or given["src"].startswith("/static/"), path

    tell(story, tmp_path)


PATHS = [
    "/static/../server.py",
    "/static/%2e%2e/server.py",
    "/static/..%2fserver.py",
    "/static//etc/passwd",
    "/static/%2fetc%2fpasswd",
    "/static/console.css%00",
    "/templates/base.html",
    "/jobs/../../etc/passwd",
    "/do/../login",
    "/confirm/nothing",
    "/confirm/mailbox.ls?mailbox=x",
    "/api/v1/../../login/x",
    "/api/v1/jobs/..%2f..",
    "//evil.example/",
]


def test_paths_lead_nowhere_but_where_they_should(tmp_path: Path) -> None:
    async def story(c: Desk) -> None:
        session = await c.session("admin")
        cookies = "; ".join(f"{cookie.key}={cookie.value}" for cookie in session.cookie_jar)
        head = f"Host: localhost\r\nCookie: {cookies}\r\nConnection: close"
        for path in PATHS:
            reader, writer = await asyncio.open_connection("127.0.0.1", c.console.port)
            writer.write(f"GET {path} HTTP/1.1\r\n{head}\r\n\r\n".encode())
            answer = (await reader.read()).decode()
            writer.close()
            assert answer.split(" ")[1] in ("400", "404"), (path, answer)
            assert "root:" not in answer
            assert "posthouse.console" not in answer

    tell(story, tmp_path)


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ("/mailboxes?desk=a", "/mailboxes?desk=a"),
        ("//evil.example", "/"),
        ("/\\evil.example", "/"),
        ("https://evil.example", "/"),
        ("javascript:alert(1)", "/"),
        ("/x\r\nSet-Cookie: a=b", "/"),
        ("/\t/evil.example", "/"),
        ("", "/"),
        ("/" + "x" * 3_000, "/"),
    ],
)
def test_nobody_is_sent_to_another_place_after_the_log_in(given: str, path: str) -> None:
    assert safe_next(given) == path


SCRIPT = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>"


def test_script_in_every_field_is_shown_as_text(tmp_path: Path) -> None:
    hostile = f"x{SCRIPT}"

    async def story(c: Desk) -> None:
        fields: dict[str, Any] = {
            "mailbox": f"box{hostile}",
            "lane": f"lane{hostile}",
            "sender": f"sender{hostile}",
            "kind": f"kind{hostile}",
            "headers": {f"file-name{hostile}": f"header{hostile}"},
            "cause": f"cause{hostile}",
            "body": f"body{hostile}".encode(),
        }
        id = f"id{hostile}"
        await c.post(id, f"{id}2", **fields)
        message = await c.lease("inbound", fields["mailbox"], f"holder{hostile}")
        from posthouse.mailbox.command import Verdict

        await c.settle(message, Verdict.DEAD, f"error{hostile}", f"holder{hostile}")
        await c.lease("inbound", fields["mailbox"], f"holder{hostile}")
        from posthouse.console.render import address

        paths = [
            "/",
            "/mailboxes",
            address("/mailboxes", contains=hostile),
            address("/mailbox", mailbox=fields["mailbox"], desk="inbound"),
            address("/lane", mailbox=fields["mailbox"], desk="inbound", lane=fields["lane"]),
            address("/message", id=id, body="1"),
            address("/message", id=f"{id}2"),
            address("/message", id=hostile),
            address("/login", once=hostile, next=hostile),
            address("/confirm/mailbox.purge", mailbox=fields["mailbox"], desk="inbound", next=hostile),
            address("/mailbox", mailbox=hostile, desk=hostile),
        ]
        await c.do("mailbox.pause", {"desk": "inbound", "mailbox": fields["mailbox"], "lane": fields["lane"]})
        for path in [*paths, "/audit", "/settings"]:
            _, text = await c.get(path)
            page = Html(text)
            assert "<script>alert" not in text, path
            assert not any("onerror" in given or given.get("src") == "x" for _, given in page.tags), path
        shown = (await c.page(address("/message", id=id, body="1"))).text
        for part in ("id", "lane", "sender", "kind", "file-name", "header", "cause", "body", "error", "holder"):
            assert part + hostile in shown, part
        assert f"box{hostile}" in (await c.page("/audit")).text

    tell(story, tmp_path)


def test_what_turns_the_direction_of_writing_is_shown_as_its_number(tmp_path: Path) -> None:
    async def story(c: Desk) -> None:
        await c.post("m1", mailbox="a\u202egpj.exe", body=b"line 1\nline\x1b[2J 2")
        page = await c.page("/mailboxes")
        assert "\u202e" not in page.source
        assert "a\\u202egpj.exe" in page.text
        body = await c.page("/message?id=m1&body=1")
        assert "line 1\nline\\u001b[2J 2" in body.text

    tell(story, tmp_path)


def test_mistakes_inside_tell_nothing_to_the_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(c: Desk) -> None:
        def broken() -> None:
            raise RuntimeError("the secret reason")

        monkeypatch.setattr(c.console.snapshots, "take", broken)
        status, text = await c.get("/")
        assert status == 500
        assert "the secret reason" not in text
        status, problem = await c.api("GET", "/api/v1/overview")
        assert (status, problem["code"]) == (500, "internal")
        assert "secret" not in json.dumps(problem)

    tell(story, tmp_path)
