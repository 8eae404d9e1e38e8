"""Load: a burst over the HTTP API loses nothing and keeps order, and a flooded tenant does not starve another."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import random
import subprocess
from pathlib import Path

import aiohttp
import pytest
from tests.gateway.conftest import House, count, messages
from tests.gateway.process import PROGRAM, GatewayProcess
from tests.gateway.test_kills import finished_desks

from posthouse.engine.engine import Engine
from posthouse.gateway.answer import Work
from posthouse.gateway.handlers.function import FunctionHandler
from posthouse.gateway.letter import INBOUND_DESK, OUTBOUND_DESK, Inbound, Outbound
from posthouse.gateway.worker import Limits, Worker
from posthouse.mailbox.command import Pause, Resume
from posthouse.mailbox.message import State
from posthouse.mailbox.policy import INBOUND, PRESETS
from posthouse.stores.sqlite import SqliteStore

CLIENTS = 50
THINKS_S = (0.002, 0.038)
ROUNDS = 8
ROUND_S = 2.5


async def burst(folder: Path, total: int, sessions: int) -> None:
    """Every client posts for its own sessions, one message after the other; all clients at once."""
    settings = {"gateway.api_port": "0", "gateway.handler": "echo"}
    gateway = GatewayProcess(folder, settings, {})
    try:
        await gateway.start()
        made = await asyncio.to_thread(
            subprocess.run,
            [*PROGRAM, "token", "add", "burst", "--scope", "inbound", "--json"],
            cwd=folder, capture_output=True, check=True,
        )  # fmt: skip
        headers = {"Authorization": f"Bearer {json.loads(made.stdout)['token']}"}
        url = f"{gateway.summary['api']}/v1/inbound"

        async def client(own: range, http: aiohttp.ClientSession) -> None:
            for number in range(total // sessions):
                for session in own:
                    chat = f"chat{session}"
                    body = {
                        "id": f"{chat}-{number}",
                        "channel": "net",
                        "conversation": chat,
                        "text": f"{chat} {number}",
                    }
                    async with http.post(url, json=body) as response:
                        assert response.status == 201, await response.text()

        each = sessions // CLIENTS
        async with aiohttp.ClientSession(headers=headers, connector=aiohttp.TCPConnector(limit=CLIENTS)) as http:
            async with asyncio.TaskGroup() as group:
                for number in range(CLIENTS):
                    group.create_task(client(range(number * each, (number + 1) * each), http))
        await finished_desks(gateway, lambda desks: desks[INBOUND_DESK].get("delivered", 0) == total)
        await gateway.stop()
    finally:
        await gateway.abandon()
    with Engine(SqliteStore.open(gateway.store, PRESETS, node="check")) as engine:
        assert count(engine, INBOUND_DESK, State.DELIVERED) == total
        answers = messages(engine, OUTBOUND_DESK)
        assert len(answers) == total
        by_chat: dict[str, list[str]] = {}
        for view in answers:
            out = Outbound.from_message(view.message)
            by_chat.setdefault(out.to, []).append(out.parts[0].text)
    assert by_chat == {f"chat{s}": [f"chat{s} {n}" for n in range(total // sessions)] for s in range(sessions)}


@pytest.mark.timeout(240)
def test_a_burst_over_http_loses_nothing_and_keeps_the_order_of_each_session(tmp_path: Path) -> None:
    asyncio.run(burst(tmp_path, 1_000, 100))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_ten_thousand_messages_in_one_burst_over_five_hundred_sessions(tmp_path: Path) -> None:
    asyncio.run(burst(tmp_path, 10_000, 500))


class Turns:
    """A small tenant that says something 50 times a second, and how long each of it waits for its handler."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._loop = asyncio.get_running_loop()
        self._random = random.Random(1)
        self._said: dict[str, float] = {}
        self._waits: list[float] = []
        self._numbers = itertools.count()
        self._heard = asyncio.Event()

    async def handle(self, work: Work) -> None:
        if work.tenant == "small":
            self._waits.append(self._loop.time() - self._said.pop(work.message.id))
            self._heard.set()
        await asyncio.sleep(self._random.uniform(*THINKS_S))

    async def waits(self, seconds: float) -> list[float]:
        """The waits of so many seconds."""
        begun = self._loop.time()
        self._waits = []
        total = int(seconds * 50)
        for number in range(total):
            await asyncio.sleep(max(0.0, begun + number / 50 - self._loop.time()))
            letter = Inbound(f"s{next(self._numbers)}", "net", f"chat{number % 20}", "ann", "hello", tenant="small")
            self._said[letter.id] = self._loop.time()
            await self.engine.do(letter.post())
        while len(self._waits) < total:
            self._heard.clear()
            await self._heard.wait()
        return self._waits


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_hundred_thousand_waiting_messages_of_one_tenant_do_not_starve_another(house: House) -> None:
    """With and without the flood in turns, so that whatever else the machine does falls on both."""

    async def case() -> None:
        async with house.engine(INBOUND.replace(capacity=None)) as engine:
            turns = Turns(engine)
            worker = Worker(engine, FunctionHandler(turns.handle), Limits(slots=16, spare=4, grace_s=1.0))
            await engine.do(Pause(INBOUND_DESK, "flood"))
            for first in range(0, 100_000, 1_000):
                flood = (
                    Inbound(f"f{n}", "net", f"chat{n % 500}", "bob", "hello", tenant="flood")
                    for n in range(first, first + 1_000)
                )
                await engine.apply(*[letter.post() for letter in flood])
            worker.start()
            alone: list[float] = []
            beside: list[float] = []
            for _ in range(ROUNDS):
                alone += await turns.waits(ROUND_S)
                await engine.do(Resume(INBOUND_DESK, "flood"))
                beside += await turns.waits(ROUND_S)
                await engine.do(Pause(INBOUND_DESK, "flood"))
            await worker.close()
            done = count(engine, INBOUND_DESK, State.DELIVERED) - len(alone) - len(beside)
            assert done > ROUNDS * ROUND_S * 16 / THINKS_S[1] / 4, "the flood was hardly worked on"
            assert count(engine, INBOUND_DESK, State.READY) > 50_000, "the flood was gone too soon"
            p99 = [sorted(found)[math.ceil(0.99 * len(found)) - 1] for found in (alone, beside)]
            print(
                f"p99 of the small tenant's wait: {p99[0] * 1e3:.1f} ms alone, {p99[1] * 1e3:.1f} ms beside the flood"
            )
            assert p99[1] <= 2 * p99[0], p99

    asyncio.run(case())
