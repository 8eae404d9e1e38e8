"""A gateway on a real store and a real socket, for tests that watch it from outside."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from posthouse.control.rule import Rule
from posthouse.engine.engine import Engine
from posthouse.gateway.answer import Handler
from posthouse.gateway.courier import SendLimits
from posthouse.gateway.handlers.function import FunctionHandler
from posthouse.gateway.service import Gateway, Parts
from posthouse.gateway.worker import Limits
from posthouse.mailbox.command import Filter
from posthouse.mailbox.message import State
from posthouse.mailbox.policy import INBOUND, OUTBOUND, Policy, ladder
from posthouse.mailbox.store import MessageView
from posthouse.stores.sqlite import SqliteStore

LOOK_S = 0.02
AGAIN_S = 0.2
GRACE_S = 10.0
"""Long enough for what is under way when a gateway is closed; only what hangs waits so long."""
QUICK_IN = INBOUND.replace(retry=ladder(0.05))
QUICK_OUT = OUTBOUND.replace(retry=ladder(0.05))


class Watch:
    """Wakes whoever waits for something: it is looked at again after each commit, and now and then without one."""

    def __init__(self, engine: Engine) -> None:
        self._loop = asyncio.get_running_loop()
        self._committed = asyncio.Event()
        engine.on_commit.append(self._told)

    def _told(self, *_: object) -> None:
        with contextlib.suppress(RuntimeError):  # the test is over
            self._loop.call_soon_threadsafe(self._committed.set)

    async def until(self, what: Callable[[], bool], within_s: float = 30.0) -> None:
        """Wait until this is so."""
        async with asyncio.timeout(within_s):
            while True:
                self._committed.clear()
                # On a thread: the store answers when its commit is done, and whoever is watched must not wait for that.
                if await asyncio.to_thread(what):
                    return
                # What is not in the store, a courier's counts for instance, follows its commit, and no other may come.
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._committed.wait(), AGAIN_S)
                # Many commits, one look.
                await asyncio.sleep(LOOK_S)


def count(engine: Engine, desk: str, *states: State) -> int:
    """Messages of a desk in these states."""
    (found,) = [view for view in engine.store.desks() if view.desk == desk]
    return sum(found.counts.get(state, 0) for state in states)


def messages(engine: Engine, desk: str, *states: State) -> list[MessageView]:
    """The same, themselves."""
    found: list[MessageView] = []
    wanted = Filter(desk, states=frozenset(states))
    while page := engine.store.messages(wanted, found[-1].number if found else 0, 1_000):
        found += page
    return found


class House:
    """Gateways on one store, one after another."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextlib.asynccontextmanager
    async def engine(self, *policies: Policy) -> AsyncIterator[Engine]:
        found = {policy.name: policy for policy in (QUICK_IN, QUICK_OUT, *policies)}
        async with Engine(SqliteStore.open(self.path, found, node="test")) as engine:
            yield engine

    @contextlib.asynccontextmanager
    async def gateway(
        self,
        *channels: Any,
        handler: Handler | Callable[..., Any] | None = None,
        alert: Any = None,
        policies: tuple[Policy, ...] = (),
        work: Limits | None = None,
        send: SendLimits | None = None,
        rules: Sequence[Rule] = (),
        lake: str = "",
    ) -> AsyncIterator[Gateway]:
        if handler is not None and not hasattr(handler, "handle"):
            handler = FunctionHandler(handler)
        parts = Parts(
            channels,
            handler,
            alert,
            work or Limits(grace_s=GRACE_S),
            send or SendLimits(grace_s=GRACE_S),
            rules,
            lake,
            rules_every_s=LOOK_S,
        )
        async with self.engine(*policies) as engine:
            gateway = Gateway(engine, parts)
            try:
                await gateway.start()
                yield gateway
            finally:
                await gateway.close()


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path / "gateway.db")
