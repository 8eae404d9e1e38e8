"""Tokens, and clients that are slow, large or many: refused, and nobody else notices."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from tests.gateway.api.desk import HELLO, SEND, Desk, tell

from posthouse.gateway.api.server import Limits
from posthouse.mailbox.command import Filter


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer ph_wrong", "Basic YTpi", "Bearer " + "x" * 5_000, "ph_x"])
def test_a_wrong_token_is_refused_before_the_body_is_read(tmp_path: Path, header: str) -> None:
    async def story(desk: Desk) -> None:
        # A body that never comes: the answer does not wait for it.
        reader, writer = await asyncio.open_connection("127.0.0.1", desk.api.port)
        lines = ["POST /v1/inbound HTTP/1.1", "Host: x", "Content-Type: application/json", "Content-Length: 100"]
        writer.write(("\r\n".join([*lines, *([f"Authorization: {header}"] if header else [])]) + "\r\n\r\n").encode())
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30)
        assert b" 401 " in head.split(b"\r\n")[0]
        assert b'Bearer realm="posthouse"' in head
        writer.close()
        assert desk.engine.store.messages(Filter("inbound")) == []

    tell(story, tmp_path)


def test_every_operation_needs_its_scope(tmp_path: Path) -> None:
    asked = {
        "inbound": ("POST", "/v1/inbound", HELLO),
        "outbound": ("POST", "/v1/outbound", SEND),
        "status": ("GET", "/v1/inbound/m1", None),
        "events": ("GET", "/v1/events", None),
    }

    async def story(desk: Desk) -> None:
        for scope in asked:
            token = await desk.token_for(f"only-{scope}", scope)
            for other, (method, path, value) in asked.items():
                if other != scope:
                    code, problem = await desk.ask(method, path, value, token=token)
                    assert (code, problem["code"]) == (403, "forbidden")
        token = await desk.token_for("mine", "inbound")
        assert (await desk.ask("POST", "/v1/inbound", {**HELLO, "id": "m5"}, token=token))[0] == 201

    tell(story, tmp_path)


def test_a_revoked_token_is_refused_at_once(tmp_path: Path) -> None:
    async def story(desk: Desk) -> None:
        token = await desk.token_for("short", "inbound")
        assert (await desk.ask("POST", "/v1/inbound", HELLO, token=token))[0] == 201
        await desk.operate("token.revoke", called="short")
        assert (await desk.ask("POST", "/v1/inbound", HELLO, token=token))[0] == 401

    tell(story, tmp_path)


def test_a_token_for_one_tenant_sees_no_other(tmp_path: Path) -> None:
    async def story(desk: Desk) -> None:
        acme = await desk.token_for("acme", "inbound", "outbound", "status", tenant="acme")
        code, problem = await desk.ask("POST", "/v1/inbound", HELLO, token=acme)
        assert (code, problem["code"]) == (403, "forbidden")
        assert (await desk.ask("POST", "/v1/inbound", HELLO))[0] == 201
        assert (await desk.ask("GET", "/v1/inbound/m1", token=acme))[0] == 404
        assert (await desk.ask("POST", "/v1/inbound", {**HELLO, "tenant": "acme"}, token=acme))[0] == 201
        assert (await desk.ask("GET", "/v1/inbound/m1", token=acme))[1]["tenant"] == "acme"
        assert (await desk.ask("POST", "/v1/outbound", SEND))[0] == 201
        assert (await desk.ask("GET", "/v1/outbound/o1", token=acme))[0] == 404

    tell(story, tmp_path)


def test_tokens_are_kept_as_hashes_only(tmp_path: Path) -> None:
    async def story(desk: Desk) -> None:
        await desk.ask("POST", "/v1/inbound", HELLO)
        token = desk.token.encode()
        assert desk.engine.store.kept("gateway.tokens")
        tokens.append(token)

    tokens: list[bytes] = []
    tell(story, tmp_path)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if tokens[0] in path.read_bytes()]


def test_a_body_that_is_too_large_is_refused(tmp_path: Path) -> None:
    async def story(desk: Desk) -> None:
        code, problem = await desk.ask("POST", "/v1/inbound", {**HELLO, "text": "x" * 5_000})
        assert (code, problem["code"]) == (413, "too_large")
        # Also where its size is not said in advance.
        reader, writer = await asyncio.open_connection("127.0.0.1", desk.api.port)
        head = (
            "POST /v1/inbound HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            f"Authorization: Bearer {desk.token}\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        writer.write(head.encode() + (b"800\r\n" + b"x" * 0x800 + b"\r\n") * 3)
        assert b" 413 " in await asyncio.wait_for(reader.readline(), 30)
        writer.close()
        assert (await desk.ask("POST", "/v1/inbound", HELLO))[0] == 201

    tell(story, tmp_path, Limits(body_bytes_max=4_000))


def test_a_compressed_body_is_not_taken(tmp_path: Path) -> None:
    async def story(desk: Desk) -> None:
        headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
        code, problem = await desk.ask("POST", "/v1/inbound", data=b"\x1f\x8b", headers=headers)
        assert (code, problem["code"]) == (400, "invalid")

    tell(story, tmp_path)


def test_slow_clients_are_cut_off_and_disturb_nobody(tmp_path: Path) -> None:
    async def story(desk: Desk) -> None:
        async def drip(head: bytes, pieces: int) -> bytes:
            """A client that sends a byte now and then, until it is cut off."""
            reader, writer = await asyncio.open_connection("127.0.0.1", desk.api.port)
            answer = asyncio.create_task(reader.read())
            try:
                writer.write(head)
                for _ in range(pieces):
                    writer.write(b"a")
                    await writer.drain()
                    done, _ = await asyncio.wait([answer], timeout=0.05)
                    if done:
                        break
                else:
                    raise AssertionError("nobody cut it off")
            except ConnectionError:
                pass
            finally:
                writer.close()
            return await answer if not answer.cancelled() else b""

        async def quiet(task: asyncio.Task[bytes]) -> bytes:
            try:
                return await task
            except ConnectionError:
                return b""

        begun = time.monotonic()
        headless = [asyncio.create_task(drip(b"POST /v1/inbound HTTP/1.1\r\nX: ", 400)) for _ in range(20)]
        head = (
            "POST /v1/inbound HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            f"Authorization: Bearer {desk.token}\r\nContent-Length: 1000\r\n\r\n"
        ).encode()
        bodiless = [asyncio.create_task(drip(head, 400)) for _ in range(20)]
        took_s = []
        for number in range(100):
            before = time.monotonic()
            assert (await desk.ask("POST", "/v1/inbound", {**HELLO, "id": f"m{number}"}))[0] == 201
            took_s.append(time.monotonic() - before)
        # Those that the machine itself held up are few.
        assert sorted(took_s)[-10] < 1
        for task in headless:
            assert await quiet(task) == b""
        for task in bodiless:
            answer = await quiet(task)
            assert b" 408 " in answer or answer == b""
        assert time.monotonic() - begun < 19, "before the clients gave up by themselves"
        assert desk.api.cut >= len(headless)

    tell(story, tmp_path, Limits(head_s=1, body_s=1))


def test_more_connections_than_allowed_are_cut(tmp_path: Path) -> None:
    async def story(desk: Desk) -> None:
        held = [await asyncio.open_connection("127.0.0.1", desk.api.port) for _ in range(5)]
        cut = 0
        for reader, writer in held:
            writer.write(b"GET /v1/openapi.json HTTP/1.1\r\nHost: x\r\n\r\n")
            try:
                if not await asyncio.wait_for(reader.read(10), 30):
                    cut += 1
            except ConnectionError:
                cut += 1
        assert cut == 2
        assert desk.api.cut == 2
        for _, writer in held:
            writer.close()

    tell(story, tmp_path, Limits(connections_max=3))


def test_only_so_many_may_wait(tmp_path: Path) -> None:
    async def story(desk: Desk) -> None:
        await desk.ask("POST", "/v1/inbound", HELLO)
        waiting = [asyncio.create_task(desk.ask("GET", "/v1/inbound/m1?wait_s=30")) for _ in range(2)]
        await desk.until_listening(2)
        code, problem = await desk.ask("GET", "/v1/inbound/m1?wait_s=30")
        assert (code, problem["code"]) == (429, "busy")
        assert (await desk.ask("GET", "/v1/inbound/m1"))[0] == 200
        await desk.handle()
        assert [code for code, _ in await asyncio.gather(*waiting)] == [200, 200]

    tell(story, tmp_path, Limits(waiting_max=2))


def test_closing_ends_what_waits(tmp_path: Path) -> None:
    async def story(desk: Desk) -> None:
        await desk.ask("POST", "/v1/inbound", HELLO)
        waiting = asyncio.create_task(desk.ask("GET", "/v1/inbound/m1?wait_s=60"))
        await desk.until_listening()
        begun = time.monotonic()
        await desk.api.close()
        assert (await waiting)[1]["status"] == "pending"
        assert time.monotonic() - begun < 30

    tell(story, tmp_path)


@pytest.mark.parametrize(
    ("method", "path", "code"), [("GET", "/", 404), ("GET", "/v2/x", 404), ("PUT", "/v1/inbound", 405)]
)
def test_what_is_not_there_is_a_problem_too(tmp_path: Path, method: str, path: str, code: int) -> None:
    async def story(desk: Desk) -> None:
        assert (await desk.ask(method, path))[0] == code

    tell(story, tmp_path)
