"""A console that a browser visits: it runs on a thread, with a store whose messages have been through something.

In: a folder. Out: the console's address, its engine, and a way to have things happen to messages meanwhile. The books
are those of a small lake; whoever brings them up to date is a process that tells how far it is and adds an hour.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

import pytest
from tests.console.desk import Desk, desk
from tests.unit.pipeline.lakes import small

from posthouse.cli.books_keep import Keeper
from posthouse.control import books
from posthouse.mailbox.command import Note, Post, Verdict
from posthouse.mailbox.event import CONNECTED, DISCONNECTED
from posthouse.mailbox.message import Message

T = TypeVar("T")
CHROMIUM = "/usr/bin/chromium"
HOSTILE = '<img src=x onerror="window.hit=true"><script>window.hit=true</script>'
AGENT = "pinch:bob@localhost"
KEEPER = """
import json, sys
settings = json.loads(sys.stdin.readline())
for line in sys.stdin:
    print(json.dumps({"progress": [2, 5, "taking in"]}), flush=True)
    from tests.unit.pipeline.lakes import window, write
    from pathlib import Path
    write(Path(settings["lake"]), "books", [window(40, posted=5, delivered=5)])
    print(json.dumps({"segments": 1, "events": 5, "batches": 1, "rejected": [], "findings": []}), flush=True)
"""


def chromium() -> str:
    """Debian's browser; it is installed where it is missing and we may, and otherwise said to be missing."""
    # Of several processes that run tests, one installs it, and the others wait.
    with open(Path(tempfile.gettempdir(), "posthouse-chromium.lock"), "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        if not os.path.exists(CHROMIUM) and os.geteuid() == 0 and shutil.which("apt-get"):
            environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
            for words in (["update"], ["install", "--yes", "--no-install-recommends", "chromium"]):
                subprocess.run(["apt-get", "--quiet", *words], env=environ, capture_output=True)
    if not os.path.exists(CHROMIUM):
        pytest.fail(f"there is no {CHROMIUM}: apt-get install chromium", pytrace=False)
    return CHROMIUM


async def fill(c: Desk) -> None:
    """Messages of every role in every state that a page shows, some of them with hostile names."""
    for number in range(6):
        await c.post(f"hello-{number}", desk="relay", mailbox=AGENT, sender="pinch:alice@localhost")
    await c.post("m1", "m2", "m3", lane="ann", mailbox="town")
    await c.post("m4", lane="ben", mailbox="town", sender=HOSTILE, kind=HOSTILE)
    await c.post(HOSTILE, mailbox="town", lane=HOSTILE)
    for error in ("no customer 4711", "no customer 4712", HOSTILE):
        await c.post(f"dead-{error[-4:]}", mailbox="shop")
        await c.settle(await c.lease("inbound", "shop"), Verdict.DEAD, error)
    await c.post("m5", mailbox="shop")
    await c.settle(await c.lease("inbound", "shop"), Verdict.DELIVERED)
    await c.engine.apply(Post(Message("outbound", "websocket/town", "o1", b"{}", cause="m1")))
    await c.post("t1", "t2", desk="outbox", mailbox="12D3KooWpeer", lane="trade-1")
    await c.operate("mailbox.pause", mailbox="12D3KooWpeer", desk="outbox")
    for place, name in (("relay", AGENT), ("relay", HOSTILE), ("outbox", "12D3KooWpeer")):
        await c.engine.apply(Note(CONNECTED, place, name, f"{name}-1"))
    await c.engine.apply(Note(DISCONNECTED, "relay", AGENT, f"{AGENT}-1", "timeout"))
    await c.console.attendance.caught_up()


class Stage:
    """The console, from ``start`` to ``stop``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ready: Future[Desk] = Future()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.desk: Desk

    def start(self) -> None:
        small(self._folder)
        self._thread.start()
        self.desk = self._ready.result(30)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(30)

    def ask(self, what: Callable[[Desk], Awaitable[T]]) -> T:
        """Have something done on the console's own loop."""

        async def done() -> T:
            return await what(self.desk)

        return asyncio.run_coroutine_threadsafe(done(), self._loop).result(30)

    def operate(self, name: str, **parameters: Any) -> Any:
        """What an operation says."""
        return self.ask(lambda c: c.operate(name, **parameters))

    def _run(self) -> None:
        try:
            asyncio.run(self._live())
        except BaseException as error:
            if not self._ready.done():
                self._ready.set_exception(error)
            raise

    async def _live(self) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        settings = {"books__lake": str(self._folder / "lake"), "books__every_s": "0"}
        async with desk(self._folder, **settings) as c:
            await fill(c)
            root = str(Path(__file__).parents[3])
            keeper = Keeper(c.config, {**os.environ, "PYTHONPATH": root}, [sys.executable, "-c", KEEPER])
            stop = asyncio.Event()
            keeping = asyncio.create_task(keeper.run(stop))
            books.keeping(c.engine, keeper)
            self._ready.set_result(c)
            await self._over.wait()
            books.keeping(c.engine, None)
            stop.set()
            await keeping
