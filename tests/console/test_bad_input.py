"""What an attacker sends to pages and API: each is refused with its code, counted, and changes nothing."""

from __future__ import annotations

import asyncio
import gzip
import re
from pathlib import Path
from typing import Any

import pytest
from tests.console.desk import Desk, tell

from posthouse.console.acts import ACTS
from posthouse.console.metrics import ConsoleCollector
from posthouse.console.render import address

PLACE = {"desk": "inbound", "mailbox": "alice"}
JSON = {"Content-Type": "application/json"}

NOT_PLAIN = [
    b"",
    b"{",
    b"null",
    b'"text"',
    b'{"mailbox": "alice", "mailbox": "bob"}',
    b'{"limit": NaN, "mailbox": "alice"}',
    b'{"limit": Infinity, "mailbox": "alice"}',
    b'{"limit": 1e999, "mailbox": "alice"}',
    b'{"limit": ' + b"9" * 5_000 + b', "mailbox": "alice"}',
    b'{"limit": 1.5, "mailbox": "alice"}',
    b'{"limit": true, "mailbox": "alice"}',
    b"[" * 10_000 + b"]" * 10_000,
    b'{"mailbox": ' + b"[" * 10_000 + b"]" * 10_000 + b"}",
    b'{"mailbox": "\xff\xfe"}',
    b'{"mailbox": "\\ud800"}',
    b'{"mailbox": "a\\u0000b"}',
    b'{"mailbox": "alice", "role": "admin"}',
    b'{"mailbox": "alice", "by": "operator:root"}',
]


def refused(c: Desk, code: str) -> int:
    """How often the metrics say that a request was refused so."""
    (requests,) = [
        family for family in ConsoleCollector(c.console).collect() if family.name == "posthouse_console_requests"
    ]
    return int(sum(sample.value for sample in requests.samples if sample.labels.get("outcome") == code))


def unchanged(c: Desk) -> bool:
    box = c.engine.store.mailbox("inbound", "alice")
    assert box is not None
    return box.paused is None and box.depth == 1


async def unnoticed(c: Desk) -> None:
    """Nothing happened to messages or to the audit log, and others are served."""
    assert unchanged(c)
    acts = [action["act"] for action in (await c.operate("audit.ls"))["actions"]]
    assert set(acts) == {"token.add"}
    assert (await c.api("GET", "/api/v1/overview"))[0] == 200


def test_json_that_is_not_plain_is_refused_by_every_act(tmp_path: Path) -> None:
    async def story(c: Desk) -> None:
        await c.post("m1")
        count = 0
        for data in NOT_PLAIN:
            status, problem = await c.api("POST", "/api/v1/mailbox/purge", data=data, headers=JSON)
            assert (status, problem["code"]) == (400, "invalid"), data[:60]
            assert "Traceback" not in problem["detail"]
            count += 1
        for act in ACTS:
            if act.changes:
                status, problem = await c.api("POST", act.path, data=NOT_PLAIN[4], headers=JSON)
                assert (status, problem["code"]) == (400, "invalid"), act.name
                count += 1
        assert refused(c, "invalid") == count
        await unnoticed(c)

    tell(story, tmp_path)


def test_a_compressed_body_is_not_taken_however_small_it_is(tmp_path: Path) -> None:
    bomb = gzip.compress(b'{"mailbox": "' + b"a" * 10_000_000 + b'"}')

    async def story(c: Desk) -> None:
        await c.post("m1")
        for coding in ("gzip", "deflate", "br", "zstd"):
            headers = {**JSON, "Content-Encoding": coding}
            status, problem = await c.api("POST", "/api/v1/mailbox/pause", data=bomb[:2_000], headers=headers)
            assert (status, problem["code"]) == (400, "invalid"), coding
        session = await c.session("operator")
        form = {"Content-Type": "application/x-www-form-urlencoded", "Content-Encoding": "gzip"}
        async with session.post(f"{c.url}/do/mailbox.pause", data=gzip.compress(b"mailbox=alice"), headers=form) as a:
            assert a.status == 400
        await unnoticed(c)

    tell(story, tmp_path)


@pytest.mark.parametrize(
    "given",
    [
        {"headers": {"X-Role": "admin", "X-Forwarded-User": "admin", "X-Remote-User": "root"}},
        {"headers": {"Cookie": "role=admin; posthouse_1=x"}},
        {"params": {"role": "admin"}},
        {"params": {"token": "admin-token"}},
        {"params": {"access_token": "admin-token", "scopes": "all"}},
    ],
)
def test_nobody_is_what_he_says_of_himself(tmp_path: Path, given: dict[str, Any]) -> None:
    async def story(c: Desk) -> None:
        await c.post("m1")
        status, _ = await c.api("POST", "/api/v1/token/add", {"called": "eve", "role": "admin"}, role="viewer", **given)
        assert status in (400, 403)
        status, _ = await c.api("POST", "/api/v1/token/add", {"called": "eve", "role": "admin"}, role="", **given)
        assert status == 401
        await unnoticed(c)

    tell(story, tmp_path)


def test_where_the_server_is_nobody_says_in_an_address(tmp_path: Path) -> None:
    """Pages and answers name no address that a request brought, and lead nobody there."""

    async def story(c: Desk) -> None:
        elsewhere = "https://evil.example"
        given = {"X-Forwarded-Host": "evil.example", "X-Forwarded-Proto": "https", "X-Original-URL": "/api/v1/token/ls"}
        query = "server=https://evil.example&host=evil.example&gatewayUrl=wss://evil.example&next=https://evil.example"
        for role in ("", "viewer"):
            session = await c.session(role)
            for path in ("/login", "/", "/mailboxes", "/api/v1/openapi.json", "/confirm/mailbox.purge"):
                async with session.get(f"{c.url}{path}?{query}", headers=given, allow_redirects=False) as answer:
                    assert re.match(r"/(?!/)|$", answer.headers.get("Location", ""))
                    text = await answer.text()
                    assert f'href="{elsewhere}' not in text
                    assert f'action="{elsewhere}' not in text
                    assert f'value="{elsewhere}' not in text

    tell(story, tmp_path)


SQL = [
    "'; DROP TABLE message; --",
    'x" OR "1"="1',
    "a%' OR 1=1 --",
    "%",
    "_",
    "../../../etc/passwd",
    "{{7*7}}",
    "${7*7}",
]


@pytest.mark.parametrize("text", SQL)
def test_a_name_is_only_a_name_wherever_it_is_asked_for(tmp_path: Path, text: str) -> None:
    async def story(c: Desk) -> None:
        await c.post("m1")
        nothing = [address("/mailboxes", contains=text), address("/peers", desk="relay", contains=text)]
        for path in nothing:
            page = await c.page(path)
            assert not [given for _, given in page.tags if "data-mailbox" in given or "data-party" in given]
            assert "49" not in page.source.split("<main", 1)[1]
        for path in ("/message?id=", "/mailbox?desk=inbound&mailbox=", "/party?desk=relay&name="):
            status, shown = await c.get(path + address("", x=text).removeprefix("?x="))
            assert status == 404
            assert "49" not in shown.split("<main", 1)[1]
        await c.post("m1", mailbox=text, sender=text)
        status, told = await c.api("GET", "/api/v1/mailbox/show", params={"desk": "inbound", "mailbox": text})
        assert (status, told["mailbox"], told["depth"]) == (200, text, 1)
        status, told = await c.api("GET", "/api/v1/message/show", params={"id": "m1", "mailbox": text})
        assert (status, told["sender"]) == (200, text)
        await unnoticed(c)

    tell(story, tmp_path)


QUERIES = [
    ("limit=1&limit=2", 400),
    ("limit=1e3", 400),
    ("limit=-1", 400),
    ("limit=99999999999999999999999", 400),
    ("limit=nan", 400),
    ("unknown=1", 400),
    ("desk=%00", 400),
    ("desk=%ff%fe", 200),  # a name that nobody has
    ("contains=%0d%0aSet-Cookie:%20a=b", 200),
]


def test_queries_that_cannot_be_are_refused(tmp_path: Path) -> None:
    async def story(c: Desk) -> None:
        await c.post("m1")
        for query, wanted in QUERIES:
            headers = f"Host: localhost\r\nAuthorization: Bearer {c.tokens['viewer']}\r\nConnection: close"
            reader, writer = await asyncio.open_connection("127.0.0.1", c.console.port)
            writer.write(f"GET /api/v1/mailbox/ls?{query} HTTP/1.1\r\n{headers}\r\n\r\n".encode())
            head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
            writer.close()
            assert int(head.split(" ")[1]) == wanted, (query, body)
            assert "Set-Cookie" not in head
        await unnoticed(c)

    tell(story, tmp_path)


UPGRADE = "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: "


@pytest.mark.parametrize(
    "key", ["dGhlIHNhbXBsZSBub25jZQ==\r\n", "x\r\nSec-WebSocket-Extensions: permessage-deflate\r\n"]
)
def test_an_upgrade_holds_no_place(tmp_path: Path, key: str) -> None:
    """There is no WebSocket here: whoever asks for one is answered as anybody, and what he sends then is no request."""

    async def story(c: Desk) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", c.console.port)
        head = f"Host: localhost\r\nAuthorization: Bearer {c.tokens['viewer']}\r\n{UPGRADE}{key}"
        writer.write(f"GET /api/v1/overview HTTP/1.1\r\n{head}\r\n".encode())
        async with asyncio.timeout(20):
            assert int((await reader.readuntil(b"\r\n\r\n")).split(b" ")[1]) != 101
            # A frame with a bit that nobody agreed on.
            writer.write(b"\xc1\x05hello" * 100)
            try:
                await reader.read()
            except ConnectionError:
                pass
        writer.close()
        async with asyncio.timeout(20):
            while c.console.connections:
                await c.api("GET", "/api/v1/overview", headers={"Connection": "close"})
        assert (await c.api("GET", "/api/v1/overview"))[0] == 200

    tell(story, tmp_path, console__head_s="5")


def test_forms_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    bodies = [
        b"csrf=%s&mailbox=alice&mailbox=bob",
        b"csrf=%s&mailbox=%%ff%%fe",
        b"csrf=%s&" + b"&".join(b"f%d=x" % number for number in range(100)),
        b"csrf=%s&mailbox=alice&role=admin",
        b"csrf=%s&mailbox=a%%0ab",
    ]

    async def story(c: Desk) -> None:
        await c.post("m1")
        session = await c.session("operator")
        mark = (await c.csrf("operator")).encode()
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        for body in bodies:
            data = body % mark
            async with session.post(
                f"{c.url}/do/mailbox.pause", data=data, headers=headers, allow_redirects=False
            ) as a:
                assert a.status in (400, 403), body
        await unnoticed(c)

    tell(story, tmp_path)
