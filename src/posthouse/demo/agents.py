"""The demo's agents: they write to each other through the relay, and go away in between.

In: the relay's URL. Out: traffic. Each is a real agent with a key and a store of its own, so what it wrote while the
relay was away, or before the demo was killed, is sent later. Zoe comes once and never again: what is for her waits,
and expires.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

from ..agent.client import Agent
from .rhythm import Rhythm

log = logging.getLogger("posthouse.demo")

NAMES = ("alice", "bob", "carol", "dave")
ABSENT = "zoe"
WRITES_S = 2.0
STAYS_S = 25.0
STAYS_AWAY_S = 12.0
SENTENCES = ("Are you there?", "The parcel has come.", "It is about lunch.", "See the attached.", "Thank you.", "Now?")


class Agents:
    """All agents of the demo; ``live`` is one of them, ``visit`` the one that does not stay."""

    def __init__(self, folder: Path, relay: str, rhythm: Rhythm) -> None:
        self._folder = folder
        self._relay = relay
        self._rhythm = rhythm
        self._addresses: dict[str, str] = {}

    def names(self) -> Iterator[str]:
        """Those who come and go."""
        yield from NAMES

    async def live(self, name: str) -> None:
        """Come, talk, go away, come again, without end."""
        rhythm = self._rhythm.of(name)
        while True:
            async with self._agent(name) as agent:
                await self._arrive(name, agent)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(rhythm.about_s(STAYS_S)), asyncio.TaskGroup() as group:
                        group.create_task(self._write(name, agent, rhythm))
                        group.create_task(_read(agent))
            log.info("agent %s goes away", name)
            await rhythm.pause(STAYS_AWAY_S)

    async def visit(self) -> None:
        """Come once, to be known, and leave."""
        async with self._agent(ABSENT) as agent:
            if agent.address is None:
                await agent.wait_connected()
            assert agent.address is not None
            self._addresses[ABSENT] = agent.address

    def _agent(self, name: str) -> Agent:
        return Agent(self._folder / name, self._relay)

    async def _arrive(self, name: str, agent: Agent) -> None:
        self._addresses[name] = await agent.wait_connected()
        log.info("agent %s is there", name)

    async def _write(self, name: str, agent: Agent, rhythm: Rhythm) -> None:
        while True:
            await rhythm.pause(WRITES_S)
            others = sorted(self._addresses.keys() - {name})
            if others:
                await agent.send(self._addresses[rhythm.choose(others)], rhythm.choose(SENTENCES))


async def _read(agent: Agent) -> None:
    async for item in agent.receive():
        await item.done()
