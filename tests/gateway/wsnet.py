"""The chat network of ``net.py`` as a WebSocket server, for the gateway's own channel ``websocket``."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import aiohttp
from aiohttp import web
from tests.gateway.net import WAIT_S, Arrived


class WsNetwork:
    """The other side. ``keys``: it takes a key once; ``tells``: it says what it has when it is asked."""

    def __init__(self, *, keys: bool, tells: bool, seed: int = 0) -> None:
        self.keys, self.tells = keys, tells
        self.arrived: list[Arrived] = []
        self.connects = self.drops = 0
        self.drop_before = self.drop_after = 0.0
        self._random = random.Random(seed)
        self._taken: set[str] = set()
        self._unreceived: dict[str, dict[str, Any]] = {}
        self._sockets: set[web.WebSocketResponse] = set()
        self._changed = asyncio.Condition()
        app = web.Application()
        app.router.add_get("/", self._serve)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)

    async def __aenter__(self) -> WsNetwork:
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.drop()
        await self._runner.cleanup()

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self._runner.addresses[0][1]}/"

    def say(self, conversation: str, id: str, text: str) -> None:
        """Somebody writes; it is brought at each connection until it is received."""
        self._unreceived[id] = {"type": "message", "id": id, "conversation": conversation, "from": "ann", "text": text}

    @property
    def unreceived(self) -> int:
        return len(self._unreceived)

    def drop(self) -> None:
        """End every connection without a word."""
        for socket in list(self._sockets):
            _abort(socket)
            self.drops += 1

    async def until(self, what: Callable[[], bool], within_s: float = WAIT_S) -> None:
        """Wait until this is so; it is looked at whenever something has changed."""
        async with asyncio.timeout(within_s):
            async with self._changed:
                await self._changed.wait_for(what)

    def texts(self, to: str) -> list[str]:
        return [arrived.text for arrived in self.arrived if arrived.to == to]

    def twice(self) -> list[tuple[str, str]]:
        """What arrived more than once."""
        return [place for place, n in Counter((a.to, a.text) for a in self.arrived).items() if n > 1]

    async def _serve(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        self._sockets.add(socket)
        self.connects += 1
        bringing = asyncio.create_task(self._bring(socket))
        try:
            with contextlib.suppress(ConnectionError):
                async for frame in socket:
                    if frame.type is aiohttp.WSMsgType.TEXT:
                        await self._take(json.loads(frame.data), socket)
                    async with self._changed:
                        self._changed.notify_all()
        finally:
            bringing.cancel()
            self._sockets.discard(socket)
        return socket

    async def _bring(self, socket: web.WebSocketResponse) -> None:
        with contextlib.suppress(ConnectionError, RuntimeError):
            for message in list(self._unreceived.values()):
                await socket.send_json(message)

    async def _take(self, frame: dict[str, Any], socket: web.WebSocketResponse) -> None:
        match frame["type"]:
            case "received":
                self._unreceived.pop(frame["id"], None)
            case "ask":
                state = ("sent" if frame["key"] in self._taken else "not_sent") if self.tells else "unknown"
                await socket.send_json({"type": "known", "key": frame["key"], "state": state})
            case "send":
                if self._random.random() < self.drop_before:
                    _abort(socket)
                    return
                if not (self.keys and frame["key"] in self._taken):
                    self.arrived.append(Arrived(frame["to"], frame["text"], frame["key"], frame.get("reply_to", "")))
                self._taken.add(frame["key"])
                if self._random.random() < self.drop_after:
                    _abort(socket)
                    return
                await socket.send_json({"type": "sent", "key": frame["key"], "id": frame["key"]})


def _abort(socket: web.WebSocketResponse) -> None:
    transport = socket._req.transport if socket._req is not None else None
    if transport is not None:
        transport.abort()
