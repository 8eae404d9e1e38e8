"""A gateway with webhooks in and out, killed again and again: senders repeat, receivers know ids, nothing is lost."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from tests.gateway.channels.webhook_bench import KEY
from tests.port import free_port
from tests.unit.cli.house import House

from posthouse.gateway.channels.bench import Changes
from posthouse.gateway.signature import Key, signed, verified

ROOMS = 20
EACH = 10
CONFIG = """
[gateway]
handler = "echo"
breaker_failures = 0

[channel.webhook]
key_env = "KEY"
url = "http://127.0.0.1:{out}/"
port = {into}
allow = "127.0.0.1"

[desk.inbound]
retry = ["100ms"]

[desk.outbound]
retry = ["100ms"]
attempts_max = 1000
"""


class Receiver:
    """Remembers ids, as the specification asks for."""

    def __init__(self) -> None:
        self._ids: set[str] = set()
        self.rooms: dict[str, list[int]] = defaultdict(list)
        self.repeated = 0
        self.changes = Changes()

    async def taken(self, request: web.Request) -> web.Response:
        data = await request.read()
        id = verified([Key(KEY)], request.headers, data, time.time())
        if id in self._ids:
            self.repeated += 1
        else:
            self._ids.add(id)
            value = json.loads(data)
            self.rooms[value["to"]].append(int(value["text"]))
            self.changes.ring()
        return web.json_response({"id": id})

    @property
    def count(self) -> int:
        return len(self._ids)


async def send_all(client: aiohttp.ClientSession, url: str, room: int) -> None:
    """Say everything in one room, each until it is taken."""
    for number in range(EACH):
        data = json.dumps({"id": f"r{room}-{number}", "conversation": f"room{room}", "text": str(number)}).encode()
        while True:
            headers = signed([Key(KEY)], f"evt_{room}_{number}", int(time.time()), data)
            try:
                async with client.post(url, data=data, headers=headers) as answer:
                    if answer.status == 202:
                        break
            except (aiohttp.ClientError, OSError, TimeoutError):
                pass
            await asyncio.sleep(0.05)


async def run(folder: Path, kills: int, seed: int) -> Receiver:
    rng = random.Random(seed)
    receiver = Receiver()
    app = web.Application()
    app.router.add_post("/", receiver.taken)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    into = free_port()
    (folder / "posthouse.toml").write_text(CONFIG.format(out=runner.addresses[0][1], into=into), encoding="utf-8")
    house = House(folder)

    async def start() -> subprocess.Popen[str]:
        process = house.spawn("gateway", "--no-metrics", "--json", env={"KEY": KEY})
        await asyncio.to_thread(house._summary, process)
        return process

    process: Any = None
    try:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as client:
            process = await start()
            talking = asyncio.gather(*[send_all(client, f"http://127.0.0.1:{into}/", room) for room in range(ROOMS)])
            for killed in range(kills):
                # A little later each time, so that all of it is not over before the last.
                wanted = ROOMS * EACH * killed // (kills + 1)
                await receiver.changes.until(lambda: receiver.count >= wanted, "answers arrive", 60)  # noqa: B023
                await asyncio.sleep(rng.uniform(0, 0.05))
                process.kill()
                await asyncio.to_thread(process.communicate)
                process = await start()
            await talking
            await receiver.changes.until(lambda: receiver.count >= ROOMS * EACH, "all answers arrive", 60)
    finally:
        if process is not None and process.poll() is None:
            process.kill()
            process.communicate()
        await runner.cleanup()
    return receiver


@pytest.mark.parametrize(
    ("kills", "seed"), [(3, 0), *(pytest.param(10, seed, marks=pytest.mark.slow) for seed in range(1, 6))]
)
def test_every_message_is_answered_once_and_in_order_whenever_the_gateway_is_killed(
    tmp_path: Path, kills: int, seed: int
):
    receiver = asyncio.run(run(tmp_path, kills, seed))
    assert receiver.count == ROOMS * EACH
    assert receiver.rooms == {f"room{room}": list(range(EACH)) for room in range(ROOMS)}
