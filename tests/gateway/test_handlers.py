"""Handlers: a function, an HTTP endpoint, a command; and what each of their answers means."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from aiohttp import web

from posthouse.callee import load, words_of
from posthouse.errors import ConfigError
from posthouse.gateway.answer import Away, Handler, Reject, RetryLater, Work, replies_from_json
from posthouse.gateway.handlers.command import CommandHandler
from posthouse.gateway.handlers.function import FunctionHandler
from posthouse.gateway.handlers.http import HttpHandler, retry_after_s
from posthouse.gateway.letter import Inbound, Media, Part, Reply
from posthouse.gateway.signature import Key, verified

KEY = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
ASKED = Inbound("m1", "net", "chat", "ann", "hello", media=(Media("https://example.org/a.png", "image/png"),))


def work(*messages: Inbound, attempt: int = 1) -> Work:
    return Work(messages or (ASKED,), attempt)


async def limited(handler: Handler, given: Work, silent_s: float = 60.0) -> tuple[Reply, ...]:
    """As the worker calls it: given up when nothing was heard of it."""
    loop = asyncio.get_running_loop()
    given.begin(loop, silent_s, 90.0)
    working = asyncio.create_task(handler.handle(given))
    try:
        while not working.done():
            left_s = given.due_s - loop.time()
            if left_s <= 0:
                raise TimeoutError
            await asyncio.wait({working}, timeout=left_s)
        return await working
    finally:
        given.end()
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)


# HTTP


@asynccontextmanager
async def endpoint(answer: Callable[[web.Request], Any]) -> AsyncIterator[str]:
    """An HTTP server with one handler; its URL."""
    app = web.Application()
    app.router.add_post("/", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/"
    finally:
        await runner.cleanup()


def ask(
    answer: Callable[[web.Request], Any],
    silent_s: float = 60.0,
    keys: list[Key] | None = None,
    given: Work | None = None,
) -> tuple[Reply, ...]:
    async def case() -> tuple[Reply, ...]:
        async with endpoint(answer) as url:
            handler = HttpHandler(url, keys or [])
            try:
                return await limited(handler, given or work(), silent_s)
            finally:
                await handler.close()

    return asyncio.run(case())


def test_the_work_is_posted_signed_and_its_answer_is_the_answer() -> None:
    async def answer(request: web.Request) -> web.Response:
        body = await request.read()
        assert verified([Key(KEY)], request.headers, body, now_s=float(request.headers["webhook-timestamp"]))
        assert request.headers["webhook-id"] == work().key
        given = json.loads(body)
        assert (given["session"], given["tenant"], given["attempt"]) == ("net:default:chat", "default", 1)
        (message,) = given["messages"]
        assert (message["id"], message["from"], message["text"]) == ("m1", "ann", "hello")
        assert message["media"] == [{"url": "https://example.org/a.png", "type": "image/png"}]
        return web.json_response({"replies": ["one", {"parts": [{"text": "two"}, {"text": "three"}], "to": "bob"}]})

    assert ask(answer, keys=[Key(KEY)]) == (Reply.of("one"), Reply((Part("two"), Part("three")), to="bob"))


@pytest.mark.parametrize(
    ("status", "headers", "body", "expected"),
    [
        (204, {}, "", ()),
        (200, {}, "", ()),
        (200, {}, "{}", ()),
        (200, {}, '{"retry_after_s": 7, "error": "busy"}', RetryLater(7, "busy")),
        (200, {}, '{"reject": "never"}', Reject("never")),
        (200, {}, "no JSON", Reject("the handler's answer is no JSON")),
        (200, {}, "[]", Reject("the handler's answer must be a JSON object, not list")),
        (200, {}, '{"replies": [{"txt": "a"}]}', Reject("has no field 'txt'")),
        (200, {}, '{"answer": "a"}', Reject("unknown field 'answer'")),
        (429, {"Retry-After": "12"}, "", RetryLater(12, "answered 429", rate_limited=True)),
        (503, {"Retry-After": "12"}, "", RetryLater(12, "answered 503", rate_limited=True)),
        (503, {}, "", RetryLater(None, "answered 503")),
        (500, {}, "", RetryLater(None, "answered 500")),
        (404, {}, "", Reject("answered 404")),
        (302, {"Location": "http://127.0.0.1:9/"}, "", Reject("answered 302")),
    ],
)
def test_what_an_endpoint_may_answer(status: int, headers: dict[str, str], body: str, expected: Any) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=status, headers=headers, text=body)

    if isinstance(expected, tuple):
        assert ask(answer) == expected
        return
    with pytest.raises(type(expected)) as caught:
        ask(answer)
    assert str(expected) in str(caught.value)
    if isinstance(expected, RetryLater):
        assert isinstance(caught.value, RetryLater)
        assert (caught.value.after_s, caught.value.rate_limited) == (expected.after_s, expected.rate_limited)


def test_progress_that_is_streamed_keeps_the_work_alive() -> None:
    given = work()

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        await response.prepare(request)
        for step in range(6):
            due_s = given.due_s
            await response.write(json.dumps({"progress": step}).encode() + b"\n")
            # The work is due later for each word of it.
            while given.due_s <= due_s:  # noqa: ASYNC110 (it signals nobody)
                await asyncio.sleep(0.01)
        await response.write(b'{"replies": ["at last"]}')
        return response

    assert ask(answer, silent_s=30.0, given=given) == (Reply.of("at last"),)


def test_an_endpoint_that_says_nothing_is_given_up() -> None:
    async def answer(request: web.Request) -> web.Response:
        await asyncio.sleep(30)
        return web.Response()

    with pytest.raises(TimeoutError):
        ask(answer, silent_s=0.2)


def test_an_endpoint_that_is_not_there_costs_no_attempt_and_one_that_breaks_off_does() -> None:
    async def broken(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b'{"replies"')
        assert request.transport is not None
        request.transport.close()
        return response

    with pytest.raises(RetryLater, match="broke off"):
        ask(broken)

    async def gone() -> None:
        handler = HttpHandler("http://127.0.0.1:9/")
        try:
            await limited(handler, work())
        finally:
            await handler.close()

    with pytest.raises(Away, match="cannot be reached"):
        asyncio.run(gone())


def test_retry_after_may_be_a_date_and_is_bounded() -> None:
    assert retry_after_s("Sun, 06 Nov 1994 08:49:37 GMT", 784_111_770.0) == 7.0
    assert retry_after_s("Sun, 06 Nov 1994 08:49:37 GMT", 784_111_790.0) == 0.0
    assert retry_after_s("999999999999", 0) == 7 * 86_400
    assert retry_after_s("soon", 0) is None
    assert retry_after_s(None, 0) is None


# Commands


def handler_of(code: str, tmp_path: Path) -> CommandHandler:
    script = tmp_path / "handler.py"
    script.write_text(code)
    return CommandHandler([sys.executable, "-u", str(script)])


def command(code: str, tmp_path: Path) -> tuple[Reply, ...]:
    return asyncio.run(limited(handler_of(code, tmp_path), work()))


def test_a_command_reads_the_work_and_writes_its_answer(tmp_path: Path) -> None:
    code = """
import json, sys
work = json.load(sys.stdin)
print(json.dumps({"progress": 1}))
print(json.dumps({"replies": [work["messages"][0]["text"].upper()]}))
"""
    assert command(code, tmp_path) == (Reply.of("HELLO"),)
    assert command("pass", tmp_path) == ()


@pytest.mark.parametrize(
    ("code", "expected", "text"),
    [
        ("raise SystemExit('out of order')", RetryLater, "ended with 1: out of order"),
        ("raise SystemExit(75)", RetryLater, "ended with 75"),
        ('print(\'{"reject": "no"}\')', Reject, "no"),
        ("print('nonsense')", Reject, "no JSON"),
        ("print('{\"retry_after_s\": 3}')", RetryLater, "later attempt"),
    ],
)
def test_what_a_command_may_end_with(tmp_path: Path, code: str, expected: type[Exception], text: str) -> None:
    with pytest.raises(expected, match=text):
        command(code, tmp_path)


def test_a_command_that_hangs_is_killed_with_all_that_it_started(tmp_path: Path) -> None:
    code = f"""
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
with open({str(tmp_path / "new")!r}, "w") as file:
    file.write(f"{{os.getpid()}} {{child.pid}}")
os.rename({str(tmp_path / "new")!r}, {str(tmp_path / "pids")!r})
time.sleep(60)
"""

    async def given_up() -> None:
        """As the worker does it, once both have begun."""
        working = asyncio.create_task(handler_of(code, tmp_path).handle(work()))
        async with asyncio.timeout(60):
            while not (tmp_path / "pids").exists():  # noqa: ASYNC110 (another process)
                await asyncio.sleep(0.02)
        assert not working.done()
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working

    asyncio.run(given_up())
    for pid in map(int, (tmp_path / "pids").read_text().split()):
        # The signal was sent; the kernel takes its time.
        with suppress(psutil.NoSuchProcess):
            wait_until_dead(psutil.Process(pid))


def wait_until_dead(process: psutil.Process) -> None:
    """It ends within a few seconds; it may still be waiting for init to collect it."""
    end_s = time.monotonic() + 30
    while process.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < end_s, f"process {process.pid} goes on"
        time.sleep(0.01)


def test_a_command_that_is_not_there_costs_no_attempt() -> None:
    with pytest.raises(Away, match="cannot be started"):
        asyncio.run(limited(CommandHandler(["/nowhere/handler"]), work()))


def test_a_command_line_is_parted_as_a_shell_does() -> None:
    assert words_of("gateway.handler", "a 'b c' --d=\"e f\"") == ["a", "b c", "--d=e f"]
    for wrong in ("", "a 'b"):
        with pytest.raises(ConfigError):
            words_of("gateway.handler", wrong)


# Functions


def test_a_plain_function_runs_in_a_thread_and_may_tell_progress() -> None:
    seen: list[str] = []

    def handle(given: Work) -> list[str]:
        seen.append(threading.current_thread().name)
        given.progress()
        return [given.text]

    async def case() -> tuple[Reply, ...]:
        handler = FunctionHandler(handle)
        try:
            return await limited(handler, work())
        finally:
            await handler.close()

    assert asyncio.run(case()) == (Reply.of("hello"),)
    assert seen[0].startswith("posthouse-handler")


def test_a_function_is_found_by_its_place() -> None:
    assert load("gateway.handler", "posthouse.gateway.handlers.function:echo").__name__ == "echo"
    for wrong, text in (("no.such.module:f", "cannot import"), ("json:nothing", "has no function")):
        with pytest.raises(ConfigError, match=text):
            load("gateway.handler", wrong)


def test_a_hostile_answer_is_rejected_and_never_crashes() -> None:
    part = {"text": "a"}
    hostile: list[object] = [1, "text", [], {"replies": 1}, {"replies": [1]}, {"replies": [{}]}, {"retry_after_s": "x"}]
    hostile += [{"retry_after_s": -1}, {"retry_after_s": 1e30}, {"replies": ["a"] * 101}]
    hostile += [{"replies": [{"text": "a", "parts": []}]}, {"replies": [{"parts": [part] * 101}]}]
    for value in hostile:
        with pytest.raises(Reject):
            replies_from_json(value)
