"""Hosts for tests: small ones on the loopback, what they saw, and a stranger who speaks only bytes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

from posthouse.libp2p.host import Disconnected, Event, Host
from posthouse.libp2p.key import PrivateKey
from posthouse.libp2p.multiaddr import Multiaddr
from posthouse.libp2p.settings import Settings
from posthouse.libp2p.stream import Stream

HERE = "/ip4/127.0.0.1/tcp/0"
ECHO = "/test/echo/1"
SINK = "/test/sink/1"


async def echo(stream: Stream) -> None:
    """Send back what comes."""
    while data := await stream.read():
        await stream.write(data)


class Watched(Host):
    """A host that keeps the events that it has seen."""

    def __init__(self, key: PrivateKey, settings: Settings) -> None:
        super().__init__(key, settings)
        self.events: list[Event] = []
        self.watch(self.events.append)
        self.handle(ECHO, echo)

    @property
    def address(self) -> Multiaddr:
        return self.addresses[0]

    def saw(self, kind: type[Event]) -> int:
        return sum(isinstance(event, kind) for event in self.events)

    def why_gone(self) -> Exception | None:
        """Why the last peer that went did so."""
        return next(event.error for event in reversed(self.events) if isinstance(event, Disconnected))


@contextlib.asynccontextmanager
async def hosts(count: int, **settings: Any) -> AsyncIterator[list[Watched]]:
    """So many hosts that listen."""
    async with contextlib.AsyncExitStack() as stack:
        made = []
        for number in range(count):
            key = PrivateKey(bytes([number + 1]) * 32)
            host = await stack.enter_async_context(Watched(key, replace(Settings(), **settings)))
            await host.listen(HERE)
            made.append(host)
        yield made


async def stranger(host: Watched) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A bare connection to a host."""
    endpoint = host.address.endpoint
    assert endpoint is not None
    return await asyncio.open_connection(endpoint.host, endpoint.port)
