"""The town: the chat network of the demo, a WebSocket server that the gateway's channel connects to.

In: what people say, and frames of the gateway. Out: frames to it (the protocol of the channel ``websocket``).
A message is brought again with each connection until the gateway has said that it has it; a part that comes twice is
known by its key. It can be shut for a while, and can refuse parts: so networks are.
It listens on the loopback only, and only who knows its path may connect.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import socket
import uuid
from collections import OrderedDict
from typing import Any

from aiohttp import WSMsgType, web

WAITING_MAX = 1_000
"""Messages that wait for the gateway; while there are as many, people are silent."""
KEYS_MAX = 10_000
"""Parts that are remembered."""

Json = dict[str, Any]


def bind() -> socket.socket:
    """A socket for it: the gateway may connect to it before the town is open, and waits."""
    return socket.create_server(("127.0.0.1", 0))


class Town:
    """One network, from ``start`` to ``close``."""

    def __init__(self, bound: socket.socket, path: str) -> None:
        self._bound = bound
        self._path = path
        self._waiting: dict[str, Json] = {}
        self._keys: OrderedDict[str, None] = OrderedDict()
        self._socket: web.WebSocketResponse | None = None
        self._shut = False
        self._refusing = 0
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        """Open it."""
        app = web.Application()
        app.router.add_get(self._path, self._connected)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        await web.SockSite(self._runner, self._bound).start()

    async def close(self) -> None:
        """Close it. Idempotent."""
        self._shut = True
        await self._cut()
        if self._runner is not None:
            await self._runner.cleanup()
        self._bound.close()

    async def say(self, who: str, text: str) -> bool:
        """Somebody says something; False where too much waits already."""
        if len(self._waiting) >= WAITING_MAX:
            return False
        id = uuid.uuid4().hex
        frame = {"type": "message", "id": id, "conversation": who, "from": who, "text": text}
        self._waiting[id] = frame
        await self._tell(frame)
        return True

    async def shut(self) -> None:
        """The network breaks: the connection is cut, and no other is taken."""
        self._shut = True
        await self._cut()

    def reopen(self) -> None:
        """It works again."""
        self._shut = False

    def refuse(self, parts: int) -> None:
        """Refuse the next few parts, for now."""
        self._refusing = parts

    async def _cut(self) -> None:
        if self._socket is not None:
            await self._socket.close()

    async def _tell(self, frame: Json) -> None:
        if self._socket is not None and not self._socket.closed:
            # A gateway that has gone is brought the frame when it comes again.
            with contextlib.suppress(ConnectionError):
                await self._socket.send_str(json.dumps(frame))

    async def _connected(self, request: web.Request) -> web.StreamResponse:
        if self._shut:
            return web.Response(status=503)
        ours = web.WebSocketResponse(heartbeat=20.0)
        await ours.prepare(request)
        await self._cut()
        self._socket = ours
        for frame in list(self._waiting.values()):
            await self._tell(frame)
        async for message in ours:
            if message.type is WSMsgType.TEXT:
                await self._heard(json.loads(message.data))
        if self._socket is ours:
            self._socket = None
        return ours

    async def _heard(self, frame: Json) -> None:
        kind, key = frame.get("type"), str(frame.get("key", ""))
        if kind == "received" or (kind == "refused" and not frame.get("again")):
            self._waiting.pop(str(frame.get("id")), None)
        elif kind == "send":
            await self._tell(self._taken(key))
        elif kind == "ask":
            await self._tell({"type": "known", "key": key, "state": "sent" if key in self._keys else "not_sent"})

    def _taken(self, key: str) -> Json:
        if self._refusing and key not in self._keys:
            self._refusing -= 1
            return {"type": "failed", "key": key, "error": "transient", "text": "the town's post is on strike"}
        if key not in self._keys:
            self._keys[key] = None
            if len(self._keys) > KEYS_MAX:
                self._keys.popitem(last=False)
        return {"type": "sent", "key": key, "id": key[-12:]}


def new_path() -> str:
    """A path that nobody guesses."""
    return f"/{secrets.token_urlsafe(16)}"


async def breaks(town: Town, for_s: float) -> None:
    """Shut the town for so long."""
    await town.shut()
    try:
        await asyncio.sleep(for_s)
    finally:
        town.reopen()
