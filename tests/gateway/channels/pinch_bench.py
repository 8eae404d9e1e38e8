"""The project's own relay, and another agent that writes through it."""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any

from tests.gateway.channels.setups import setup
from tests.relay.harness import Relay

from posthouse.agent import Agent
from posthouse.agent import desk as agent_desk
from posthouse.agent.book import Book
from posthouse.agent.identity import FILE_NAME, Identity
from posthouse.gateway.channels.bench import DEADLINE_S, Bench
from posthouse.gateway.channels.pinch import Pinch
from posthouse.stores.sqlite import SqliteStore


class PinchBench(Bench):
    """Ann, who is online all the time. A relay refuses nothing that an agent may send."""

    lacks = frozenset({"transient", "rate_limited", "silent"})

    def __init__(self, values: dict[str, Any] | None = None) -> None:
        super().__init__()
        self._values = {"strangers": True} if values is None else values
        self._texts: list[str] = []

    async def open(self) -> None:
        self._scratch = tempfile.TemporaryDirectory()
        self.folder = Path(self._scratch.name)
        (self.folder / "relay").mkdir()
        self.relay = await asyncio.to_thread(Relay(self.folder / "relay").start)
        self.ann = Agent(self.folder / "ann", self.url)
        await self.ann.__aenter__()
        self._theirs = await self.ann.wait_connected(DEADLINE_S)
        self.to = self._theirs
        self._reading = asyncio.create_task(self._read())
        # The channel's agent has an address as soon as it was connected once.
        async with Agent(self.folder / "bot", self.url) as bot:
            self.bot = await bot.wait_connected(DEADLINE_S)
        seed = Identity.load(self.folder / "bot" / FILE_NAME)
        self._identity = seed
        self.secrets = (_private_key(self.folder / "bot" / FILE_NAME),)

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.relay.settings['relay.port']}"

    async def close(self) -> None:
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        await self.ann.__aexit__(None, None, None)
        await asyncio.to_thread(self.relay.stop)
        self._scratch.cleanup()

    async def _read(self) -> None:
        async for item in self.ann.receive():
            if item.kind == "message":
                self._texts.append(item.text)
            await item.done()
            self.changes.ring()

    def channel(self) -> Pinch:
        values = {"relay": self.url, "folder": str(self.folder / "bot"), "reconnect_s": 0.05, **self._values}
        self.made = Pinch(setup("pinch", values))
        return self.made

    async def bring(self, text: str) -> None:
        await self.ann.send(self.bot, text)

    async def bring_again(self) -> None:
        """Neither a relay nor an inbox brings again what was done; what was not done comes by itself."""

    def told(self, text: str) -> bool:
        agent = self.made.agent
        if agent is not None:
            return _is_read(agent.book, text)
        store = SqliteStore.open(
            self.folder / "bot" / agent_desk.STORE_NAME,
            agent_desk.POLICIES,
            agent_desk.node_of(self._identity.public_key),
        )
        try:
            return _is_read(Book(self._identity, store), text)
        finally:
            store.close()

    def arrived(self) -> list[str]:
        return list(self._texts)

    def answer(self, how: str) -> None:
        self.to = "nobody of that name" if how == "permanent" else self._theirs

    async def cut(self) -> None:
        await asyncio.to_thread(self.relay.restart)


def _is_read(book: Book, text: str) -> bool:
    return any(item.get("text") == text and item["state"] == "read" for item in book.history(None, 100))


def _private_key(path: Path) -> str:
    return str(json.loads(path.read_text())["private_key"])
