"""A local server that speaks Telegram's Bot API, as far as bots by long polling see it."""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import web
from tests.gateway.channels.setups import setup

from posthouse.gateway.channels.bench import Bench
from posthouse.gateway.channels.telegram import Telegram

TOKEN = "123456:AAtest-Token_of_a_bot"
CHAT = 4711


class TelegramBench(Bench):
    """One bot, one chat. An update is forgotten when a poll asks for later ones, and not before."""

    secrets = (TOKEN, TOKEN.partition(":")[2])
    lacks = frozenset({"transient"})
    to = str(CHAT)

    def __init__(self, values: dict[str, Any] | None = None) -> None:
        super().__init__()
        self._values = values or {}
        self._how = "ok"
        self._updates: list[dict[str, Any]] = []
        self._numbers = 100
        self._texts: list[str] = []
        self._last: dict[str, Any] = {}
        self._news = asyncio.Event()
        self._polls: set[Any] = set()
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.failure: dict[str, Any] | None = None
        """What calls are answered with, if not None."""
        self.slow: asyncio.Event | None = None
        """Until it is set, calls that send are not answered."""
        self.failing = ""
        """Only calls whose method begins so."""

    async def open(self) -> None:
        app = web.Application()
        app.router.add_post("/bot{token}/{method}", self._called)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.port = self._runner.addresses[0][1]

    async def close(self) -> None:
        self._abort()
        await self._runner.cleanup()

    def channel(self) -> Telegram:
        values = {
            "token_env": "BOT",
            "base_url": f"http://127.0.0.1:{self.port}",
            "reconnect_s": 0.05,
            "poll_s": 20,
            **self._values,
        }
        return Telegram(setup("telegram", values, BOT=TOKEN))

    async def _called(self, request: web.Request) -> web.StreamResponse:
        method, values = request.match_info["method"], await _values(request)
        self.calls.append((method, values))
        if request.match_info["token"] != TOKEN:
            return _failed(401, "Unauthorized")
        if self.failure is not None and method.startswith(self.failing):
            return web.json_response(self.failure, status=int(self.failure.get("error_code", 200)))
        if method == "getMe":
            return _ok({"id": 1, "is_bot": True, "username": "test_bot"})
        if method == "getUpdates":
            return _ok(await self._polled(request, values))
        self.changes.ring()
        if method == "answerCallbackQuery":
            return _ok(True)
        if self.slow is not None:
            await self.slow.wait()
        return self._sent(request, method, values)

    async def _polled(self, request: web.Request, values: dict[str, Any]) -> list[dict[str, Any]]:
        self._updates = [u for u in self._updates if u["update_id"] >= values["offset"]]
        self._polls.add(request.transport)
        self.changes.ring()
        try:
            async with asyncio.timeout(values["timeout"]):
                while not self._updates:
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            pass
        finally:
            self._polls.discard(request.transport)
        return self._updates[:100]

    def _sent(self, request: web.Request, method: str, values: dict[str, Any]) -> web.Response:
        if self._how == "permanent":
            return _failed(403, f"Forbidden: bot was blocked by the user {TOKEN}")
        if self._how == "rate_limited":
            return _failed(429, "Too Many Requests: retry after 3", {"retry_after": 3})
        self._numbers += 1
        self._texts.append(values.get("text") or values.get("caption", ""))
        self.changes.ring()
        if self._how == "silent":
            assert request.transport is not None
            request.transport.abort()
        message = {"message_id": self._numbers, "chat": {"id": CHAT}}
        return _ok([message] if method == "sendMediaGroup" else message)

    def answer(self, how: str) -> None:
        self._how = how

    def arrived(self) -> list[str]:
        return list(self._texts)

    async def cut(self) -> None:
        await self.changes.until(lambda: bool(self._polls), "the channel polls")
        self._abort()

    def _abort(self) -> None:
        while self._polls:
            self._polls.pop().abort()

    async def bring(self, text: str) -> None:
        person = {"id": 99, "first_name": "Ann", "last_name": "Other", "username": "ann"}
        message = {"message_id": self._numbers + 1, "date": 1_800_000_000, "from": person, "text": text}
        await self.update({"message": message | {"chat": {"id": CHAT, "type": "private"}}})

    async def update(self, value: dict[str, Any]) -> None:
        """An update of any kind."""
        self._numbers += 1
        self._last = {"update_id": self._numbers, **value}
        self._updates.append(self._last)
        self._news.set()

    async def bring_again(self) -> None:
        if self._last not in self._updates:
            # As after a fault of Telegram's, with a new number: only the message's own id tells.
            self._numbers += 1
            self._updates.append({**self._last, "update_id": self._numbers})
        self._news.set()

    def told(self, text: str) -> bool:
        return self._last["message"]["text"] == text and self._last not in self._updates


async def _values(request: web.Request) -> dict[str, Any]:
    """Parameters, as JSON or as a form with a file."""
    if request.content_type != "multipart/form-data":
        found: dict[str, Any] = await request.json()
        return found
    form = await request.post()
    return {name: v.file.read().decode() if isinstance(v, web.FileField) else v for name, v in form.items()}


def _ok(result: Any) -> web.Response:
    return web.json_response({"ok": True, "result": result})


def _failed(code: int, text: str, parameters: dict[str, Any] | None = None) -> web.Response:
    value = {"ok": False, "error_code": code, "description": text, "parameters": parameters}
    return web.json_response({k: v for k, v in value.items() if v is not None}, status=code)
