"""A chat server over WebSocket: it remembers keys, keeps what was not confirmed, and can be told to misbehave."""

from __future__ import annotations

import json
from typing import Any

from aiohttp import WSMsgType, web
from tests.gateway.channels.setups import setup

from posthouse.gateway.channels.bench import Bench
from posthouse.gateway.channels.websocket import WebSocket

TOKEN = "t0ken-of-the-socket"


class WebSocketBench(Bench):
    """Brings again at each connection what was not confirmed."""

    secrets = (TOKEN,)

    def __init__(self, values: dict[str, Any] | None = None) -> None:
        super().__init__()
        self._values = values or {}
        self._how = "ok"
        self._keys: set[str] = set()
        self._texts: list[str] = []
        self._unconfirmed: dict[str, dict[str, Any]] = {}
        self._confirmed: set[str] = set()
        self._last: dict[str, Any] = {}
        self._sockets: set[web.WebSocketResponse] = set()
        self._transports: dict[web.WebSocketResponse, Any] = {}
        self.frames: list[dict[str, Any]] = []

    async def open(self) -> None:
        app = web.Application()
        app.router.add_get("/ws", self._connected)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.port = self._runner.addresses[0][1]

    async def close(self) -> None:
        await self.cut()
        await self._runner.cleanup()

    def channel(self) -> WebSocket:
        values = {"url": f"ws://127.0.0.1:{self.port}/ws", "token_env": "TOKEN", "reconnect_s": 0.05, **self._values}
        return WebSocket(setup("websocket", values, TOKEN=TOKEN))

    async def _connected(self, request: web.Request) -> web.StreamResponse:
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return web.Response(status=401)
        socket = web.WebSocketResponse(max_msg_size=1 << 20)
        await socket.prepare(request)
        self._sockets.add(socket)
        self._transports[socket] = request.transport
        try:
            for value in self._unconfirmed.values():
                await socket.send_str(json.dumps(value))
            async for frame in socket:
                if frame.type is WSMsgType.TEXT:
                    await self._frame(socket, json.loads(frame.data))
        finally:
            self._sockets.discard(socket)
            self._transports.pop(socket, None)
        return socket

    async def _frame(self, socket: web.WebSocketResponse, value: dict[str, Any]) -> None:
        self.frames.append(value)
        if value["type"] == "received":
            self._unconfirmed.pop(value["id"], None)
            self._confirmed.add(value["id"])
        elif value["type"] == "send":
            await self._sent(socket, value)
        elif value["type"] == "ask":
            state = "sent" if value["key"] in self._keys else "not_sent"
            await socket.send_str(json.dumps({"type": "known", "key": value["key"], "state": state}))
        self.changes.ring()

    async def _sent(self, socket: web.WebSocketResponse, value: dict[str, Any]) -> None:
        if self._how in ("permanent", "transient", "rate_limited"):
            answer = {"type": "failed", "key": value["key"], "error": self._how, "after_s": 3, "text": f"no: {TOKEN}"}
            await socket.send_str(json.dumps(answer))
            return
        if value["key"] not in self._keys:
            self._keys.add(value["key"])
            self._texts.append(value["text"])
        if self._how == "silent":
            self._transports[socket].abort()
        elif self._how != "mute":
            await socket.send_str(json.dumps({"type": "sent", "key": value["key"], "id": f"theirs-{value['key']}"}))

    def answer(self, how: str) -> None:
        self._how = how

    def arrived(self) -> list[str]:
        return list(self._texts)

    async def cut(self) -> None:
        for transport in list(self._transports.values()):
            transport.abort()

    async def bring(self, text: str) -> None:
        number = len(self._confirmed) + len(self._unconfirmed) + 1
        self._last = {"type": "message", "id": f"m{number}", "conversation": "room 1", "from": "ann", "text": text}
        self._unconfirmed[f"m{number}"] = self._last
        await self.say(self._last)

    async def bring_again(self) -> None:
        await self.say(self._last)

    async def say(self, value: Any) -> None:
        """A frame to whoever is connected; None: bytes that are no text."""
        for socket in list(self._sockets):
            if isinstance(value, bytes):
                await socket.send_bytes(value)
            else:
                await socket.send_str(value if isinstance(value, str) else json.dumps(value))

    def told(self, text: str) -> bool:
        return self._last["text"] == text and self._last["id"] in self._confirmed
