"""The cast: everybody who uses the server of the demo, from the first entrance to the last exit.

In: what the server said of itself when it started. Out: traffic, and a log line for each fault. They use the server
as anybody would: agents over WebSocket, people over a channel and HTTP, traders over libp2p, the operator over the
control socket. Who fails comes on again after a while; nobody of the cast can stop the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Any

from ..config import Config
from ..control.operation import Refused
from ..control.operator import Operator
from ..errors import PosthouseError
from .agents import Agents
from .people import People
from .place import Place, write_secret
from .rhythm import Rhythm
from .town import Town
from .traders import Traders

log = logging.getLogger("posthouse.demo")

TOKEN = "demo"
SCOPES = ["inbound", "outbound", "status"]
AGAIN_S = 2.0


class Cast:
    """On stage for as long as its ``async with`` block lasts."""

    def __init__(
        self,
        place: Place,
        config: Config,
        summary: Mapping[str, Any],
        town: tuple[socket.socket, str],
        rhythm: Rhythm,
    ) -> None:
        """``town`` is the socket that was bound for the town, and its path."""
        self._place = place
        self._config = config
        self._summary = summary
        self._town = Town(*town)
        self._rhythm = rhythm
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Cast:
        summary, rhythm, place = self._summary, self._rhythm, self._place
        await self._town.start()
        if summary["relay"]:
            agents = Agents(place.agents, summary["relay"], rhythm)
            self._enter("zoe", agents.visit, once=True)
            for name in agents.names():
                self._enter(name, functools.partial(agents.live, name))
        if summary["api"]:
            people = People(self._town, summary["api"], await asyncio.to_thread(self._token), rhythm)
            for name in people.names():
                self._enter(name, functools.partial(people.talk, name))
            self._enter("the shop", people.order)
            self._enter("the town", people.disturb)
        if summary["peer"]:
            traders = Traders(place.traders, summary["peer"], summary["peer_addresses"], self._send, rhythm)
            for name in traders.names():
                self._enter(name, functools.partial(traders.live, name))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._town.close()

    def _enter(self, name: str, act: Callable[[], Awaitable[None]], *, once: bool = False) -> None:
        self._tasks.append(asyncio.create_task(self._play(name, act, once), name=f"demo {name}"))

    async def _play(self, name: str, act: Callable[[], Awaitable[None]], once: bool) -> None:
        while True:
            try:
                await act()
                if once:
                    return
            except Exception as error:
                log.warning("%s is interrupted: %s", name, _told(error))
            await self._rhythm.pause(AGAIN_S)

    # The operator's part, over the control socket.

    def _token(self) -> str:
        """The token of the shop: the one that the folder keeps, or a new one."""
        with contextlib.suppress(FileNotFoundError):
            return self._place.token.read_text(encoding="utf-8").strip()
        self._call("token.revoke", called=TOKEN)
        token = str(_done(self._call("token.add", called=TOKEN, scopes=SCOPES))["token"])
        write_secret(self._place.token, f"{token}\n")
        return token

    async def _send(self, parameters: dict[str, Any]) -> None:
        _done(await asyncio.to_thread(self._call, "peer.send", **parameters))

    def _call(self, name: str, **parameters: Any) -> Any:
        with contextlib.closing(Operator.connect(self._config)) as operator:
            return operator.call(name, parameters)


def _done(answer: Any) -> dict[str, Any]:
    if isinstance(answer, Refused):
        raise PosthouseError(answer.message)
    assert isinstance(answer, dict)
    return answer


def _told(error: BaseException) -> str:
    """An error in a few words; of several, the first."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error) or type(error).__name__
