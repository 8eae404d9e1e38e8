"""A receiver and sender of webhooks: a real HTTP server that remembers ids, and can be told to misbehave."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from typing import Any

import aiohttp
from aiohttp import web
from standardwebhooks.webhooks import Webhook as Judge
from tests.gateway.channels.setups import setup

from posthouse.gateway.channels.bench import Bench
from posthouse.gateway.channels.webhook import Webhook
from posthouse.gateway.signature import Key, signed

KEY = "whsec_" + base64.b64encode(bytes(range(100, 132))).decode()
HIDDEN = "s3cr3t-path-of-the-hook"


class WebhookBench(Bench):
    """Takes what the channel sends, as an idempotent receiver does."""

    lacks = frozenset({"cut"})
    secrets = (KEY, KEY.removeprefix("whsec_"), HIDDEN)

    def __init__(self, values: dict[str, Any] | None = None) -> None:
        super().__init__()
        self._values = values or {}
        self._how = "ok"
        self._ids: set[str] = set()
        self._texts: list[str] = []
        self._told: set[str] = set()
        self._last: dict[str, Any] = {}
        self._count = 0
        self._posts: set[asyncio.Task[None]] = set()
        self.requests: list[tuple[dict[str, str], bytes]] = []
        self.redirect = ""

    async def open(self) -> None:
        app = web.Application()
        app.router.add_post("/{path:.*}", self._taken)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.port = self._runner.addresses[0][1]
        self._client = aiohttp.ClientSession()

    async def close(self) -> None:
        await asyncio.gather(*self._posts, return_exceptions=True)
        await self._client.close()
        await self._runner.cleanup()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/{HIDDEN}"

    def channel(self) -> Webhook:
        values = {"key_env": "KEY", "url_env": "URL", "allow": ["127.0.0.1"], "port": 0, **self._values}
        self.made = Webhook(setup("webhook", values, KEY=KEY, URL=self.url))
        return self.made

    # What the channel sends.

    async def _taken(self, request: web.Request) -> web.Response:
        data = await request.read()
        self.requests.append((dict(request.headers), data))
        if self.redirect:
            return web.Response(status=307, headers={"Location": self.redirect})
        if self._how in ANSWERS:
            return web.Response(status=ANSWERS[self._how], headers={"Retry-After": "7"})
        # Another implementation of the specification says whether it is signed.
        value = Judge(KEY).verify(data, {name.lower(): v for name, v in request.headers.items()})
        id = request.headers["webhook-id"]
        if id not in self._ids:
            self._ids.add(id)
            self._texts.append(value["text"])
            self.changes.ring()
        if self._how == "silent":
            assert request.transport is not None
            request.transport.abort()
        return web.json_response({"id": f"theirs-{id}"})

    def answer(self, how: str) -> None:
        self._how = how

    def arrived(self) -> list[str]:
        return list(self._texts)

    # What the channel takes.

    async def bring(self, text: str) -> None:
        self._count += 1
        self._last = {"id": f"m{self._count}", "conversation": "room 1", "from": "ann", "text": text}
        self._post()

    async def bring_again(self) -> None:
        self._post()

    def _post(self) -> None:
        task = asyncio.get_running_loop().create_task(self._deliver(dict(self._last)))
        self._posts.add(task)
        task.add_done_callback(self._posts.discard)

    async def _deliver(self, value: dict[str, Any]) -> None:
        data = json.dumps(value).encode()
        answer, _ = await self.post(data, signed([Key(KEY)], f"evt_{value['id']}", int(time.time()), data))
        if answer == 202:
            self._told.add(value["text"])
            self.changes.ring()

    async def post(self, data: Any, headers: dict[str, str] | None = None) -> tuple[int, dict[str, Any]]:
        """A request to the channel: status and answer."""
        url = f"http://127.0.0.1:{self.made.port}/"
        async with self._client.post(url, data=data, headers=headers or {}) as answer:
            return answer.status, await answer.json(content_type=None)

    def told(self, text: str) -> bool:
        return text in self._told


ANSWERS = {"permanent": 400, "transient": 500, "rate_limited": 429}
