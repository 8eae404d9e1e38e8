"""Live numbers: one snapshot for all viewers, and only while there are any; and the history behind the plots."""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import uvloop
from tests.console.desk import Desk, desk, tell
from tests.relay.test_tls import make_certificate

from posthouse.config import load
from posthouse.console.history import SHELF, WINDOWS, History
from posthouse.console.snapshot import Snapshots
from posthouse.control.operator import open_store
from posthouse.engine.clock import Clock
from posthouse.engine.engine import Engine
from posthouse.mailbox.command import Lease, Post, Settle, Verdict
from posthouse.mailbox.message import SECOND, Message
from posthouse.mailbox.outcome import Leased

VIEWERS = 50


async def next_snapshot(response: aiohttp.ClientResponse) -> dict[str, Any]:
    """The next one of a stream."""
    async with asyncio.timeout(30):
        async for line in response.content:
            if line.startswith(b"data: "):
                told: dict[str, Any] = json.loads(line.removeprefix(b"data: "))
                return told
    raise AssertionError("the stream ended")


def head(c: Desk) -> str:
    """The headers of a viewer who writes his request by hand."""
    return f"Host: localhost\r\nAuthorization: Bearer {c.tokens['viewer']}\r\n"


def test_fifty_viewers_share_one_snapshot_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("posthouse.console.live.EVERY_S", 0.1)

    async def story(c: Desk) -> None:
        taken = 0
        take = c.console.snapshots.take

        def counted() -> dict[str, Any]:
            nonlocal taken
            taken += 1
            return take()

        monkeypatch.setattr(c.console.snapshots, "take", counted)
        headers = {"Authorization": f"Bearer {c.tokens['viewer']}"}
        begun = time.monotonic()
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), headers=headers) as session:
            streams = [await session.get(f"{c.url}/api/v1/live") for _ in range(VIEWERS)]
            assert streams[0].headers["Content-Type"].startswith("text/event-stream")
            assert "Content-Security-Policy" in streams[0].headers
            await asyncio.gather(*map(next_snapshot, streams))
            await c.post("m1", "m2")
            depths = {0}
            async with asyncio.timeout(60):
                # Who came first has read least of what was told since.
                while depths != {2}:
                    depths = {told["all"]["depth"] for told in await asyncio.gather(*map(next_snapshot, streams))}
            assert c.console.live.viewers == VIEWERS
            # However many look, there is one in each span of time; the next may be under way.
            assert taken - c.console.live.taken in (0, 1)
            assert taken <= (time.monotonic() - begun) / 0.1 + 1
            for stream in streams:
                stream.close()
        # With nobody there nothing is looked at: the task that looks ends.
        assert c.console.live._task is not None
        async with asyncio.timeout(30):
            await c.console.live._task
        assert c.console.live.viewers == 0

    tell(story, tmp_path)


def test_viewers_beyond_the_limit_wait_and_those_whose_token_is_revoked_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("posthouse.console.live.EVERY_S", 0.05)

    async def story(c: Desk) -> None:
        headers = {"Authorization": f"Bearer {c.tokens['operator']}"}
        async with aiohttp.ClientSession(headers=headers) as session:
            async with session.get(f"{c.url}/api/v1/live") as stream:
                await next_snapshot(stream)
                async with session.get(f"{c.url}/api/v1/live") as second:
                    assert (second.status, (await second.json())["code"]) == (429, "busy")
                await c.operate("token.revoke", called="operator-token")
                async with asyncio.timeout(30):
                    await stream.read()
            assert c.console.live.viewers == 0

    tell(story, tmp_path, console__viewers_max="1")


def test_a_console_that_stops_lets_its_viewers_go(tmp_path: Path) -> None:
    async def story(c: Desk) -> None:
        headers = {"Authorization": f"Bearer {c.tokens['viewer']}"}
        async with aiohttp.ClientSession(headers=headers) as session:
            async with session.get(f"{c.url}/api/v1/live") as stream:
                await next_snapshot(stream)
                async with asyncio.timeout(30):
                    await c.console.close()
                    await stream.read()

    tell(story, tmp_path)


def test_a_viewer_who_does_not_read_is_let_go_and_others_are_told_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("posthouse.console.live.EVERY_S", 0.05)
    monkeypatch.setattr("posthouse.console.live.UNREAD_S", 2.0)

    async def story(c: Desk) -> None:
        # More than the sockets of two who do not read can hold for long.
        large = {"all": {"depth": 1}, "text": "x" * 1_000_000}
        monkeypatch.setattr(c.console.snapshots, "take", lambda: large)
        _, lazy = await asyncio.open_connection("127.0.0.1", c.console.port, limit=1)
        lazy.write(f"GET /api/v1/live HTTP/1.1\r\n{head(c)}\r\n".encode())
        headers = {"Authorization": f"Bearer {c.tokens['viewer']}"}
        async with aiohttp.ClientSession(headers=headers, read_bufsize=4_000_000) as session:
            async with session.get(f"{c.url}/api/v1/live") as stream:
                seen = 0
                while c.console.live.viewers < 2 or not seen:
                    assert (await next_snapshot(stream))["all"]["depth"] == 1
                    seen += 1
                async with asyncio.timeout(30):
                    while c.console.live.viewers == 2:
                        await next_snapshot(stream)
                await next_snapshot(stream)
                assert c.console.live.viewers == 1
        lazy.transport.abort()

    tell(story, tmp_path)


def test_a_viewer_behind_an_old_proxy_is_told_without_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("posthouse.console.live.EVERY_S", 0.05)

    async def story(c: Desk) -> None:
        await c.post("m1")
        reader, writer = await asyncio.open_connection("127.0.0.1", c.console.port)
        writer.write(f"GET /api/v1/live HTTP/1.0\r\n{head(c)}\r\n".encode())
        async with asyncio.timeout(30):
            assert b" 200 " in (await reader.readuntil(b"\r\n\r\n")).splitlines()[0]
            for _ in range(3):
                name, data = (await reader.readuntil(b"\n\n")).splitlines()[:2]
                assert name == b"event: snapshot"
                assert json.loads(data.removeprefix(b"data: "))["all"]["depth"] == 1
        writer.transport.abort()

    tell(story, tmp_path)


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_numbers_are_told_over_tls_in_either_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Callable[[Coroutine[Any, Any, None]], None]
) -> None:
    monkeypatch.setattr("posthouse.console.live.EVERY_S", 0.05)
    cert, key = make_certificate(tmp_path, "console")
    trusting = ssl.create_default_context(cafile=str(cert))
    trusting.check_hostname = False

    async def story() -> None:
        async with desk(tmp_path, console__tls_cert=str(cert), console__tls_key=str(key)) as c:
            headers = {"Authorization": f"Bearer {c.tokens['viewer']}"}
            async with aiohttp.ClientSession(headers=headers) as session:
                async with session.get(f"{c.url}/api/v1/live", ssl=trusting) as stream:
                    for number in range(3):
                        await c.post(f"m{number}")
                        while (await next_snapshot(stream))["all"]["depth"] <= number:
                            pass

    run(story())


class Hands(Clock):
    """A clock that is set by hand."""

    at = 1_000_000 * 3_600 * SECOND

    def now(self) -> int:
        return self.at


def deliver(engine: Engine, id: str) -> None:
    """Post a message and let it be delivered."""
    engine.call(Post(Message("inbound", "a", id)))
    leased = engine.call(Lease("inbound", "a", "w"))[0]
    assert isinstance(leased, Leased)
    engine.call(Settle(leased.deliveries[0].message.ref, "w", Verdict.DELIVERED))


def test_flow_is_that_of_the_last_minute(tmp_path: Path) -> None:
    with Engine(open_store(load({}, tmp_path), create=True)) as engine:
        now = [0.0]
        snapshots = Snapshots(engine, lambda: now[0])
        for second in range(0, 100, 5):
            now[0] = float(second)
            snapshots.mark()
            deliver(engine, f"m{second}")
        told = snapshots.take()["desks"]["inbound"]
        # The marks of second 35 to 95, each with the delivery behind it.
        assert (told["in"], told["out"]) == (13, 13)
        assert snapshots.take()["window_s"] == 60


def test_the_history_adds_up_in_every_window_survives_a_restart_and_never_grows(tmp_path: Path) -> None:
    clock = Hands()
    config = load({}, tmp_path)
    with Engine(open_store(config, create=True), clock=clock) as engine:
        history = History(engine)
        for minute in range(30):
            clock.at += 60 * SECOND
            deliver(engine, f"m{minute}")
            engine.call(Post(Message("outbound", "b", f"o{minute}")))
            history.look()
    # A restart, and an hour in which nobody served.
    clock.at += 3_600 * SECOND
    with Engine(open_store(config), clock=clock) as engine:
        history = History(engine)
        history.load()
        deliver(engine, "again")
        history.look()
        for window, known in zip(WINDOWS, ((0, 1), (30, 31), (30, 31)), strict=True):
            rows = history.rows(window)
            assert len(rows) == window.slots
            assert rows[-1]["at"] <= clock.at < rows[-1]["at"] + window.slot_s * SECOND
            total = sum(row["desks"]["inbound"]["out"] for row in rows if row["desks"])
            assert total in known, window
            assert sum(row["desks"]["outbound"]["in"] for row in rows if row["desks"]) in (0, 30)
            assert any(row["desks"] is None for row in rows)
        assert max(row["desks"]["outbound"]["depth"] for row in history.rows(WINDOWS[1]) if row["desks"]) == 30
        for _ in range(200):
            clock.at += 1_800 * SECOND
            history.look()
        assert len(engine.store.kept(SHELF)) <= sum(window.slots for window in WINDOWS)
        assert sum(len(ring) for ring in history._rings.values()) <= sum(window.slots for window in WINDOWS)


def test_a_damaged_history_is_left_out(tmp_path: Path) -> None:
    from posthouse.mailbox.command import Keep

    with Engine(open_store(load({}, tmp_path), create=True)) as engine:
        damaged = {"hour/0001": b"{", "hour/0002": b"[]", "nothing/1": b'{"slot":1}', "day/1": b'{"a":1}'}
        engine.call(*(Keep(SHELF, key, value) for key, value in damaged.items()))
        history = History(engine)
        history.load()
        assert all(row["desks"] is None for window in WINDOWS for row in history.rows(window))


def test_plots_draw_what_the_history_says(tmp_path: Path) -> None:
    async def story(c: Desk) -> None:
        for number in range(7):
            await c.post(f"m{number}")
        await c.console.thread(c.console.history.look)
        for window in ("hour", "day", "week"):
            page = await c.page(f"/?window={window}")
            assert "gateway 7" in page.text, window
            _, told = await c.api("GET", f"/api/v1/history?window={window}")
            assert told["rows"][-1]["desks"]["inbound"]["in"] == 7
            assert told["rows"][-1]["desks"]["inbound"]["depth"] == c.engine.store.desks()[0].counts["ready"] == 7

    tell(story, tmp_path)
