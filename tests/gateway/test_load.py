"""Load: a burst over the HTTP API loses nothing and keeps order, and a flooded tenant does not starve another."""

from __future__ import annotations

import asyncio
import json
import math
import random
import subprocess
from pathlib import Path

import aiohttp
import pytest
from tests.gateway.conftest import House, Watch, count, messages
from tests.gateway.process import PROGRAM, GatewayProcess
from tests.gateway.test_kills import finished_desks

from posthouse.engine.engine import Engine
from posthouse.gateway.answer import Work
from posthouse.gateway.handlers.function import FunctionHandler
from posthouse.gateway.letter import INBOUND_DESK, OUTBOUND_DESK, Inbound, Outbound
from posthouse.gateway.worker import Limits, Worker
from posthouse.mailbox.message import State
from posthouse.mailbox.policy import INBOUND, PRESETS
from posthouse.stores.sqlite import SqliteStore

CLIENTS = 50
THINKS_S = (0.002, 0.038)


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


async def waits(engine: Engine, seconds: float) -> list[float]:
    """How long each message of a small tenant waits for its handler, in seconds, at 50 a second."""
    loop = asyncio.get_running_loop()
    rng = random.Random(1)
    begun: dict[str, float] = {}
    found: list[float] = []

    async def handle(work: Work) -> None:
        if work.tenant == "small":
            found.append(loop.time() - begun[work.message.id])
        await asyncio.sleep(rng.uniform(*THINKS_S))

    worker = Worker(engine, FunctionHandler(handle), Limits(slots=16, grace_s=1.0))
    worker.start()
    total = int(seconds * 50)
    start = loop.time() + 0.5
    for number in range(total):
        await asyncio.sleep(max(0.0, start + number / 50 - loop.time()))
        letter = Inbound(f"small-{loop.time()}", "net", f"chat{number % 20}", "ann", "hello", tenant="small")
        begun[letter.id] = loop.time()
        await engine.do(letter.post())
    watch = Watch(engine)
    await watch.until(lambda: len(found) == total)
    await worker.close()
    return sorted(found)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_hundred_thousand_waiting_messages_of_one_tenant_do_not_starve_another(house: House) -> None:
    async def case() -> None:
        async with house.engine(INBOUND.replace(capacity=None)) as engine:
            alone = await waits(engine, 20.0)
            for first in range(0, 100_000, 1_000):
                flood = (
                    Inbound(f"f{n}", "net", f"chat{n % 500}", "bob", "hello", tenant="flood")
                    for n in range(first, first + 1_000)
                )
                await engine.apply(*[letter.post() for letter in flood])
            beside = await waits(engine, 20.0)
            assert count(engine, INBOUND_DESK, State.READY) > 50_000, "the flood was gone too soon"
            p99 = [found[math.ceil(0.99 * len(found)) - 1] for found in (alone, beside)]
            print(
                f"p99 of the small tenant's wait: {p99[0] * 1e3:.1f} ms alone, {p99[1] * 1e3:.1f} ms beside the flood"
            )
            assert p99[1] <= 2 * p99[0], p99

    asyncio.run(case())
