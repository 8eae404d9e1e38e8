"""A store that is full, and how long each page of the console takes on it.

In: a folder and how much to fill it with. Out: for each page, the times of its requests. The store, the engine and the
console are the real ones; the requests come over a socket.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode

import aiohttp

from posthouse.config import Config, Given, load
from posthouse.console import setup
from posthouse.console.server import Console
from posthouse.control.catalogue import run
from posthouse.control.operation import Context
from posthouse.control.operator import open_store
from posthouse.engine.engine import Engine
from posthouse.mailbox.command import Command, Lease, Post, Settle, Verdict
from posthouse.mailbox.message import Message
from posthouse.mailbox.outcome import Leased

BATCH = 1_000
DEAD = 2_000
"""Messages that are dead letters in the end, but for the last, which are still worked on."""
FLYING = 10
TENANT = "tenant-00000"


@dataclass(frozen=True)
class Size:
    """How much there is."""

    messages: int = 1_000_000
    mailboxes: int = 100_000

    @property
    def worked_on(self) -> int:
        """Mailboxes of the gateway from which a message was taken."""
        return min(DEAD, self.mailboxes // 20)


def config_for(folder: Path) -> Config:
    """A configuration whose console takes any port."""
    return load({}, folder, {"console.port": Given("0", "bench"), "store.node": Given("bench", "bench")})


def fill(engine: Engine, config: Config, size: Size, told: Callable[[int], None]) -> None:
    """Post messages, let some die, lease some, and export the journal as a server would."""
    batch: list[Command] = []
    # Nine in ten are for agents, one in ten is of the gateway; turn by turn, as they would come.
    for number in range(size.messages):
        box = number % size.mailboxes
        if box % 10:
            message = Message("relay", f"pinch:agent-{box:05}@relay", id_of(number), b"x" * 100, sender="pinch:s@relay")
        else:
            lane = f"session-{number // size.mailboxes % 3}"
            message = Message("inbound", f"tenant-{box:05}", id_of(number), b"x" * 100, sender="web/main/a", lane=lane)
        batch.append(Post(message))
        if len(batch) == BATCH:
            engine.call(*batch)
            batch.clear()
            told(number + 1)
    if batch:
        engine.call(*batch)
    for number in range(size.worked_on):
        leased = engine.call(Lease("inbound", f"tenant-{number * 20:05}", f"w{number}", holder=f"worker-{number}"))[0]
        assert isinstance(leased, Leased)
        # Of the last ones, the worker is still at work.
        if number < size.worked_on - FLYING:
            ref = leased.deliveries[0].message.ref
            engine.call(Settle(ref, f"w{number}", Verdict.DEAD, error=f"timeout after {number % 7} s"))
    context = Context(engine, config, "operator:bench", lambda done, total, doing: None)
    run(context, "journal.export", {})
    # What a server has not exported yet: ten minutes' worth, or a segment's.
    for number in range(0, min(40_000, size.messages // 20), BATCH):
        new = [Message("relay", "pinch:agent-00001@relay", f"n-{number + n:07}", b"x") for n in range(BATCH // 2)]
        engine.call(*map(Post, new))


def id_of(number: int) -> str:
    """An id as clients make them: nothing about it tells when it was made."""
    return f"{number * 0x9E3779B97F4A7C15 % 2**64:016x}"


def paths(size: Size) -> dict[str, str]:
    """Every page, with something worth showing on it."""
    box = {"desk": "inbound", "mailbox": TENANT}
    busy = f"tenant-{(size.worked_on - 1) * 20:05}"
    far = {"desk": "relay", "after_desk": "relay", "after": "pinch:agent-8"}
    return {
        "overview, hour": "/",
        "overview, week": "/?window=week",
        "mailboxes": "/mailboxes",
        "mailboxes of a desk, far on": "/mailboxes?" + urlencode(far),
        "mailboxes by name": "/mailboxes?contains=99999",
        "mailbox": "/mailbox?" + urlencode(box),
        "lane": "/lane?" + urlencode({**box, "lane": "session-1"}),
        "lane in flight": "/lane?" + urlencode({**box, "mailbox": busy, "lane": "session-0"}),
        "message, old": f"/message?id={id_of(11)}",
        "message, new": f"/message?id={id_of(size.messages - 2)}",
        "message, dead": f"/message?id={id_of(0)}",
        "purge?": "/confirm/mailbox.purge?" + urlencode(box),
        "dead letters": "/dead",
        "peers and agents": "/peers",
        "settings": "/settings",
        "audit": "/audit",
    }


async def log_in(console: Console, config: Config) -> aiohttp.ClientSession:
    """A browser with a session."""
    session = aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True))
    context = Context(console.engine, config, "operator:bench", lambda done, total, doing: None)
    made = await asyncio.to_thread(run, context, "token.add", {"called": f"bench-{time.time_ns()}", "role": "admin"})
    assert isinstance(made, dict)
    cookie = console.access.log_in(made["token"])
    assert cookie is not None
    session.cookie_jar.update_cookies({console.cookie: cookie}, aiohttp.client.URL(console.address))
    return session


async def times(session: aiohttp.ClientSession, url: str, count: int) -> list[float]:
    """How long each of so many requests took, in milliseconds."""
    found = []
    for _ in range(count):
        begun = time.perf_counter()
        async with session.get(url, allow_redirects=False) as answer:
            await answer.read()
            assert answer.status == 200, (url, answer.status)
        found.append((time.perf_counter() - begun) * 1_000)
    return found


def filled(folder: Path, size: Size, told: Callable[[int], None]) -> None:
    """Make a full store."""
    config = config_for(folder)
    with Engine(open_store(config, create=True)) as engine:
        fill(engine, config, size, told)


async def measure(folder: Path, size: Size, count: int) -> dict[str, list[float]]:
    """Ask for every page of the console so many times, on a store that is full."""
    config = config_for(folder)
    async with Engine(open_store(config)) as engine:
        console = setup.make(config, engine)
        await console.start()
        try:
            async with await log_in(console, config) as session:
                return {name: await times(session, console.address + path, count) for name, path in paths(size).items()}
        finally:
            await console.close()
