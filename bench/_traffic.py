"""Posthouse under load: many coroutines that post, or post, lease and settle, each awaiting every step."""

from __future__ import annotations

import asyncio
import random
import sys
import time
import uuid
from bisect import bisect
from collections.abc import Awaitable, Callable, Coroutine
from itertools import accumulate, count
from pathlib import Path
from typing import Any, Protocol, TypeVar

import uvloop
from _load import Figures, Stopwatch, Timing, bodies, figures

from posthouse.engine.engine import Engine
from posthouse.engine.library import MAIL
from posthouse.engine.tuning import tune_interpreter
from posthouse.mailbox.command import Lease, Post, Settle, Verdict
from posthouse.mailbox.message import Message, State
from posthouse.mailbox.outcome import Leased, Posted, Settled
from posthouse.stores.sqlite import SqliteStore

T = TypeVar("T")
DESK = MAIL.name
"""The library's own desk: what a user gets who configures nothing."""


class Places(Protocol):
    """Which mailboxes the callers use. No two callers share one, so that a lease is never in vain."""

    def post(self, caller: int) -> str:
        """Where this caller posts next."""

    def lease(self, caller: int) -> str:
        """Where this caller leases next; something waits there."""


class OwnPlaces:
    """One mailbox for each caller."""

    def post(self, caller: int) -> str:
        return f"caller-{caller}"

    lease = post


class ManyPlaces:
    """Every step at a mailbox of many, chosen by weight; each caller has its share of them."""

    def __init__(self, depths: list[list[int]], *, skewed: bool) -> None:
        """``depths``: how many messages wait in each mailbox of each caller; kept up to date."""
        self._random = random.Random(1)
        self._callers = len(depths)
        self._depths = depths
        # Zipf: the n-th mailbox of a caller is used 1/n as often as its first. Otherwise all alike.
        self._weights = [list(accumulate(1 / n if skewed else 1.0 for n in range(1, len(d) + 1))) for d in self._depths]

    def _choose(self, caller: int) -> int:
        weights = self._weights[caller]
        return bisect(weights, self._random.random() * weights[-1], 0, len(weights) - 1)

    def post(self, caller: int) -> str:
        place = self._choose(caller)
        self._depths[caller][place] += 1
        return mailbox_name(place * self._callers + caller)

    def lease(self, caller: int) -> str:
        depths = self._depths[caller]
        place = self._choose(caller)
        while not depths[place]:
            place = self._choose(caller)
        depths[place] -= 1
        return mailbox_name(place * self._callers + caller)


def mailbox_name(number: int) -> str:
    """The name of one of many mailboxes."""
    return f"mailbox-{number:06}"


class Traffic:
    """Callers of one engine."""

    def __init__(self, engine: Engine, callers: int, places: Places) -> None:
        self._engine = engine
        self._callers = callers
        self._places = places
        self._bodies = [bodies(caller) for caller in range(callers)]
        # Ids as long as a UUID's text, at a fraction of its cost: the load must not be what is measured.
        self._prefix = uuid.uuid4().hex[:24]
        self._numbers = count()
        self._left = 0
        self._spent: list[float] = []

    async def run_for(self, timing: Timing, lifecycle: bool) -> Figures:
        """Run for a time, of which the beginning does not count."""
        step, per_unit = (self._lifecycle, 3) if lifecycle else (self._post, 1)
        tasks = self._start(step, sys.maxsize)
        stats, spent = self._engine.stats, self._spent
        await asyncio.sleep(timing.warm_s)
        first, commands, commits, watch = len(spent), stats.commands, stats.commits, Stopwatch()
        await asyncio.sleep(timing.measure_s)
        last, lasted_s = len(spent), watch.read()
        group = (stats.commands - commands) / max(stats.commits - commits, 1)
        self._left = 0
        await asyncio.gather(*tasks)
        return figures(spent[first:last], per_unit, lasted_s, group)

    async def run_posts(self, posts: int) -> Figures:
        """Post so many messages."""
        return await self._run(self._post, posts, 1)

    async def run_lifecycles(self, lifecycles: int) -> Figures:
        """Run so many lifecycles."""
        return await self._run(self._lifecycle, lifecycles, 3)

    async def drain(self, messages: int) -> None:
        """Lease and settle so many of those that wait."""
        await self._run(self._take, messages, 2)

    async def _run(self, step: Callable[[int], Awaitable[None]], units: int, per_unit: int) -> Figures:
        stats = self._engine.stats
        commands, commits, watch = stats.commands, stats.commits, Stopwatch()
        await asyncio.gather(*self._start(step, units))
        lasted_s = watch.read()
        group = (stats.commands - commands) / max(stats.commits - commits, 1)
        return figures(self._spent, per_unit, lasted_s, group)

    def _start(self, step: Callable[[int], Awaitable[None]], units: int) -> list[asyncio.Task[None]]:
        self._left = units
        self._spent = []
        return [asyncio.create_task(self._call(caller, step)) for caller in range(self._callers)]

    async def _call(self, caller: int, step: Callable[[int], Awaitable[None]]) -> None:
        while self._left > 0:
            self._left -= 1
            await step(caller)

    async def _post(self, caller: int) -> None:
        began = time.perf_counter()
        id = f"{self._prefix}{next(self._numbers):012}"
        posted = await self._engine.do(Post(Message(DESK, self._places.post(caller), id, next(self._bodies[caller]))))
        self._spent.append(time.perf_counter() - began)
        if type(posted) is not Posted:
            raise RuntimeError(f"a post was answered with {posted}")

    async def _take(self, caller: int) -> None:
        began = time.perf_counter()
        token = f"{self._prefix}{next(self._numbers)}"
        leased = await self._engine.do(Lease(DESK, self._places.lease(caller), token))
        taken = time.perf_counter()
        if type(leased) is not Leased or not leased.deliveries:
            raise RuntimeError(f"a lease was answered with {leased}")
        settled = await self._engine.do(Settle(leased.deliveries[0].message.ref, token, Verdict.DELIVERED))
        if type(settled) is not Settled or settled.state is not State.DELIVERED:
            raise RuntimeError(f"a settlement was answered with {settled}")
        self._spent += (taken - began, time.perf_counter() - taken)

    async def _lifecycle(self, caller: int) -> None:
        await self._post(caller)
        await self._take(caller)


class Posthouse:
    """An open store with its engine, and an event loop to call it from."""

    title = "Posthouse"
    usage = "one engine, callers are coroutines on uvloop; a mailbox for each caller; journal written"

    def __init__(self, folder: Path) -> None:
        tune_interpreter()  # as the server does
        self.path = folder / "mail.db"
        self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self.engine = Engine(SqliteStore.open(self.path, {DESK: MAIL}))
        self.engine.start()

    def measure(self, lifecycle: bool, callers: int, timing: Timing) -> Figures:
        """One round."""
        return self.run(Traffic(self.engine, callers, OwnPlaces()).run_for(timing, lifecycle))

    def perform(self, posts: int, lifecycles: int, between: Callable[[], None]) -> None:
        """A few of each, one after the other; ``between`` is called before, between and behind."""
        traffic = Traffic(self.engine, 1, OwnPlaces())
        between()
        self.run(traffic.run_posts(posts))
        between()
        self.run(traffic.run_lifecycles(lifecycles))
        between()

    def settings(self) -> str:
        """What its database is told about syncing."""
        store = self.engine.store
        assert isinstance(store, SqliteStore)
        facts = store.facts()
        return f"journal_mode={facts['journal_mode']} synchronous={facts['synchronous']}"

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop, to its end."""
        return self._runner.run(coroutine)

    def close(self) -> None:
        """Let go of the files."""
        self.engine.close()
        self._runner.close()
