"""A store that is full, and how long each page of the console takes on it.

In: a folder and how much to fill it with. Out: for each page and each read of the API, the times of its requests: the
first one to a server that was just started, then some in a row. The store, the engine and the console are the real
ones; the requests come over a socket.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode

import aiohttp

from posthouse.config import Config, Given, load
from posthouse.console import setup
from posthouse.console.acts import ACTS, API
from posthouse.console.pages import PAGES
from posthouse.console.server import Console
from posthouse.control.catalogue import run
from posthouse.control.operation import Context
from posthouse.control.operator import open_store
from posthouse.engine.engine import Engine
from posthouse.engine.tuning import tune_interpreter
from posthouse.mailbox.command import Command, Lease, Note, Post, Settle, Verdict
from posthouse.mailbox.event import CONNECTED, DISCONNECTED
from posthouse.mailbox.message import Message
from posthouse.mailbox.outcome import Leased

BATCH = 1_000
DEAD = 2_000
"""Messages that are dead letters in the end, but for the last, which are still worked on."""
FLYING = 10
AGENTS = 20_000
"""Agents that came of late; every other one went."""
ACTIONS = 1_000
"""Of operators, in the audit log."""
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
            message = Message("relay", agent(box), id_of(number), b"x" * 100, sender="pinch:s@relay")
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
    for number in range(0, AGENTS, BATCH):
        names = [agent(n) for n in range(number, number + BATCH)]
        engine.call(*(Note(CONNECTED, "relay", name, f"{name}-1") for name in names))
        engine.call(*(Note(DISCONNECTED, "relay", name, f"{name}-1", "timeout") for name in names[::2]))
    context = Context(engine, config, "operator:bench", lambda done, total, doing: None)
    for number in range(ACTIONS):
        run(context, "mailbox.pause" if number % 2 == 0 else "mailbox.resume", {"mailbox": TENANT, "desk": "inbound"})
    run(context, "journal.export", {})
    # What a server has not exported yet: ten minutes' worth, or a segment's.
    for number in range(0, min(40_000, size.messages // 20), BATCH):
        new = [Message("relay", agent(1), f"n-{number + n:07}", b"x") for n in range(BATCH // 2)]
        engine.call(*map(Post, new))


def id_of(number: int) -> str:
    """An id as clients make them: nothing about it tells when it was made."""
    return f"{number * 0x9E3779B97F4A7C15 % 2**64:016x}"


def agent(number: int) -> str:
    return f"pinch:agent-{number:05}@relay"


def paths(size: Size) -> dict[str, str]:
    """Every page and every read of the API, with something worth showing on it."""
    box = {"desk": "inbound", "mailbox": TENANT}
    busy = {"desk": "inbound", "mailbox": f"tenant-{(size.worked_on - 1) * 20:05}", "lane": "session-0"}
    far = {"desk": "relay", "after_desk": "relay", "after": "pinch:agent-8"}
    old, new, dead = id_of(11), id_of(size.messages - 2), id_of(0)
    someone = {"desk": "relay", "name": agent(4_711)}
    pages = {
        "overview, hour": "/",
        "overview, week": "/?window=week",
        "mailboxes": "/mailboxes",
        "mailboxes of a desk, far on": "/mailboxes?" + urlencode(far),
        "mailboxes by name": "/mailboxes?contains=99999",
        "mailbox": "/mailbox?" + urlencode(box),
        "lane": "/lane?" + urlencode({**box, "lane": "session-1"}),
        "lane in flight": "/lane?" + urlencode(busy),
        "message, old": f"/message?id={old}",
        "message, new": f"/message?id={new}",
        "message, dead": f"/message?id={dead}",
        "message, unknown": "/message?id=nobody",
        "purge?": "/confirm/mailbox.purge?" + urlencode(box),
        "redrive?": "/confirm/dead.redrive?state=dead&desk=inbound",
        "dead letters": "/dead",
        "dead letters by error": "/dead?" + urlencode({"filter": "1", "error": "timeout after 3 s"}),
        "dead letters, one by one": "/dead/letters",
        "parked": "/dead?state=parked",
        "peers and agents": "/peers",
        "agents by name": "/peers?desk=relay&contains=-19999",
        "an agent": "/party?" + urlencode(someone),
        "books": "/books",
        "settings": "/settings?all=1",
        "audit": "/audit",
        "no such page": "/nothing",
    }
    given: dict[str, dict[str, str]] = {
        "mailbox.ls": far,
        "mailbox.show": box,
        "lane.why": busy,
        "message.show": {"id": old},
        "message.history": {"id": old},
        "presence.ls": {"desk": "relay"},
        "presence.show": {"desk": "relay", "called": agent(4_711)},
    }
    reads = {act.name: f"{act.path}?{urlencode(given.get(act.name, {}))}" for act in ACTS if not act.changes}
    others = {name: f"{API}/{name}" for name in ("overview", "history", "settings", "openapi.json")}
    lacking = {page.path for page in PAGES} - {path.partition("?")[0] for path in pages.values()}
    assert not lacking, f"not measured: {lacking}"
    return {**pages, **{f"API {name}": path.rstrip("?") for name, path in (others | reads).items()}}


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
            text = await answer.text()
            # Not found is an answer; so is that this server keeps no books.
            assert answer.status in (200, 404, 409), (url, answer.status, text)
        found.append((time.perf_counter() - begun) * 1_000)
    return found


def filled(folder: Path, size: Size, told: Callable[[int], None]) -> None:
    """Make a full store."""
    config = config_for(folder)
    with Engine(open_store(config, create=True)) as engine:
        fill(engine, config, size, told)


@asynccontextmanager
async def serving(config: Config) -> AsyncIterator[tuple[Console, aiohttp.ClientSession]]:
    """A server that was just started and has warmed up, which takes it about a second, and a browser."""
    async with Engine(open_store(config)) as engine:
        console = setup.make(config, engine)
        await console.start()
        await console.warmed_up()
        try:
            async with await log_in(console, config) as session:
                yield console, session
        finally:
            await console.close()


async def measure(folder: Path, size: Size, count: int) -> dict[str, list[float]]:
    """Ask for everything so many times, on a store that is full; the first time as a new server's first request."""
    tune_interpreter()
    config = config_for(folder)
    found: dict[str, list[float]] = {}
    for name, path in paths(size).items():
        async with serving(config) as (console, session):
            found[name] = await times(session, console.address + path, 1)
    async with serving(config) as (console, session):
        for name, path in paths(size).items():
            found[name] += await times(session, console.address + path, count)
    return found
