"""Results: a webhook is told what became of what was posted over the API, once each, across restarts."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from tests.gateway.api.desk import HELLO, SEND, Desk, tell

from posthouse.config import load
from posthouse.engine.engine import Engine
from posthouse.errors import ConfigError
from posthouse.gateway.api.results import ResultChannel, Results, result_channel
from posthouse.gateway.api.setup import Outside
from posthouse.gateway.service import Gateway, Parts
from posthouse.gateway.signature import Key, verified
from posthouse.mailbox.command import Filter, Post, Verdict
from posthouse.mailbox.message import Message
from posthouse.stores.memory import MemoryStore

KEY = "whsec_" + "QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVphYmNkZWY="


class Hook:
    """A program that is told of results."""

    def __init__(self) -> None:
        self.told: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.failures = 0

    async def _asked(self, request: web.Request) -> web.Response:
        data = await request.read()
        verified([Key(KEY)], request.headers, data, time.time())
        if self.failures:
            self.failures -= 1
            return web.Response(status=503, headers={"Retry-After": "0"})
        await self.told.put(json.loads(data))
        return web.Response(status=204)

    @asynccontextmanager
    async def listen(self) -> AsyncIterator[str]:
        app = web.Application()
        app.router.add_post("/", self._asked)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        try:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}/"
        finally:
            await runner.cleanup()

    async def next(self) -> dict[str, Any]:
        async with asyncio.timeout(30):
            return await self.told.get()


@asynccontextmanager
async def telling(engine: Engine, url: str) -> AsyncIterator[None]:
    """A gateway that tells results, without handler or other channels."""
    gateway = Gateway(engine, Parts(channels=[ResultChannel(url, [Key(KEY)])]))
    results = Results(engine)
    await gateway.start()
    results.start()
    try:
        yield
    finally:
        await results.close()
        await gateway.close()


def test_a_webhook_is_told_what_became_of_each_message(tmp_path: Path) -> None:
    async def story(desk: Desk) -> None:
        hook = Hook()
        async with hook.listen() as url, telling(desk.engine, url):
            await desk.ask("POST", "/v1/inbound", HELLO)
            # What came another way is nobody's result.
            await desk.engine.do(Post(Message("inbound", "other", "x", b"{}")))
            await desk.handle("the answer")
            result = await hook.next()
            assert (result["desk"], result["id"], result["status"]) == ("inbound", "m1", "completed")
            assert result["replies"][0]["parts"] == [{"text": "the answer"}]
            await desk.ask("POST", "/v1/outbound", {**SEND, "channel": "telegram"})
            await desk.send("telegram/default", Verdict.DEAD, "chat not found")
            result = await hook.next()
            assert (result["id"], result["status"], result["error"]) == ("o1", "failed", "chat not found")
            assert hook.told.empty()

    tell(story, tmp_path)


def test_a_result_waits_for_a_webhook_that_is_away(tmp_path: Path) -> None:
    async def story(desk: Desk) -> None:
        hook = Hook()
        hook.failures = 2
        async with hook.listen() as url, telling(desk.engine, url):
            await desk.ask("POST", "/v1/inbound", HELLO)
            await desk.handle()
            assert (await hook.next())["id"] == "m1"
            assert hook.failures == 0

    tell(story, tmp_path)


def test_what_was_finished_while_nobody_told_is_told_later_and_once(tmp_path: Path) -> None:
    async def story(desk: Desk) -> None:
        hook = Hook()
        async with hook.listen() as url:
            async with telling(desk.engine, url):
                await desk.ask("POST", "/v1/inbound", HELLO)
                await desk.handle()
                assert (await hook.next())["id"] == "m1"
            await desk.ask("POST", "/v1/inbound", {**HELLO, "id": "m2"})
            await desk.handle()
            async with telling(desk.engine, url):
                assert (await hook.next())["id"] == "m2"
            async with telling(desk.engine, url):
                await desk.ask("POST", "/v1/inbound", {**HELLO, "id": "m3"})
                await desk.handle()
                assert (await hook.next())["id"] == "m3"
            assert hook.told.empty()
            posted = desk.engine.store.messages(Filter("outbound", mailbox="result/default"))
            assert len(posted) == 3

    tell(story, tmp_path)


def test_settings_that_do_not_fit_together_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="results_key"):
        result_channel(None, KEY)
    (tmp_path / "posthouse.toml").write_text('[gateway]\nresults = "https://example.org/"\n')
    config = load({}, tmp_path)
    with Engine(MemoryStore(config.policies)) as engine, pytest.raises(ConfigError, match="api_port"):
        Outside(config, engine)
