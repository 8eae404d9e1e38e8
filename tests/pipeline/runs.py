"""Real runs whose journals the books are made from: each role under load, killed again and again.

In: a folder. Out: segments of one node in it, as the role's own exporter wrote them. A new role registers its run with
``@role``; the test of the books takes it in by that.
"""

from __future__ import annotations

import asyncio
import functools
import subprocess
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import NamedTuple

import uvloop
from tests.faults.aftermath import Told
from tests.faults.swarm import Swarm
from tests.faults.test_kills import killed
from tests.faults.traffic import POLICIES
from tests.gateway.test_kills import KEYED, converse
from tests.libp2p.loop import until
from tests.peer.nodes import BOB, Node, node
from tests.relay.harness import HOST
from tests.relay.process import RelayProcess
from tests.unit.cli.house import PROGRAM, House

from posthouse.journal.tail import export
from posthouse.mailbox.message import IN_LANE
from posthouse.stores.sqlite import SqliteStore

Make = Callable[[Path, Path, float], int]
"""Given a folder to work in, one for segments and seconds of load: how often it started."""


class Run(NamedTuple):
    """A role at work, and what its faults may leave behind."""

    make: Make
    causes: frozenset[str]
    """Kinds of anomalies that the faults of the run cause by themselves."""


RUNS: dict[str, Run] = {}
"""By the role's name, which is the node's too."""


def role(name: str, *causes: str) -> Callable[[Make], Make]:
    """Register a run."""

    def register(make: Make) -> Make:
        assert name not in RUNS
        RUNS[name] = Run(make, frozenset(causes))
        return make

    return register


@role("relay")
def relay(folder: Path, journal: Path, seconds: float) -> int:
    """Agents come and go, are cut and stall; the relay is killed a few times and starts again."""
    settings = {
        "store.node": "relay",
        "store.path": str(folder / "relay.db"),
        "journal.dir": str(journal),
        "journal.export_s": "0.5",
        "journal.wait_s": "1",
        "relay.queue_max": "50",
        "relay.queue_ttl_s": str(seconds / 2),
        "engine.sweep_s": "1",
    }
    kills = 3
    with RelayProcess(folder, settings) as process:
        swarm = Swarm(process.port, HOST, 60, 200, 0.4, 0.01, seed=60)
        uvloop.run(_besiege(process, swarm, seconds, kills))
    words = [word for name in ("store.path", "journal.dir") for word in ("--set", f"{name}={settings[name]}")]
    subprocess.run([*PROGRAM, *words, "journal", "export"], cwd=folder, check=True, capture_output=True)
    return kills + 1


async def _besiege(process: RelayProcess, swarm: Swarm, seconds: float, kills: int) -> None:
    """Kill the relay now and then while the swarm is at it; the swarm waits until it is there again."""
    coming = asyncio.ensure_future(swarm.run(seconds))
    for _ in range(kills):
        await asyncio.wait([coming], timeout=seconds / (kills + 1))
        swarm.open.clear()
        process.kill()
        await asyncio.to_thread(process.start)
        swarm.open.set()
    await coming


@role("gateway")
def gateway(folder: Path, journal: Path, seconds: float) -> int:
    """A hundred sessions talk to a gateway that is killed while it works and sends; each is answered once."""
    kills = max(int(seconds / 2), 2)
    settings = {"store.node": "gateway", "journal.dir": str(journal), "journal.export_s": "0.5", "journal.wait_s": "1"}
    uvloop.run(converse(folder, KEYED, kills, 7, settings))
    words = ["--set", f"journal.dir={journal}", "journal", "export"]
    subprocess.run([*PROGRAM, *words], cwd=folder, check=True, capture_output=True)
    return kills + 2  # the last one is the check's


@role("peer")
def peer(folder: Path, journal: Path, seconds: float) -> int:
    """Another peer sends messages of several trades to one that is killed while it takes them, and sends some, too."""
    kills = max(int(seconds / 2), 2)
    words = [
        "--no-relay", "--no-gateway", "--set", "peer.enabled=true", "--set", "peer.listen=/ip4/127.0.0.1/tcp/0",
        "--set", "peer.handler=accept", "--set", "store.node=peer", "--set", f"journal.dir={journal}",
        "--set", "journal.export_s=0.5", "--set", "journal.wait_s=1",
    ]  # fmt: skip
    asyncio.run(_trade(House(folder), words, kills))
    subprocess.run(
        [*PROGRAM, "--set", f"journal.dir={journal}", "journal", "export"], cwd=folder, check=True, capture_output=True
    )
    return kills + 1


async def _trade(house: House, words: list[str], kills: int, each: int = 150) -> None:
    async with node(house.folder, BOB) as bob:
        sent = 0
        for turn in range(kills + 1):
            with house.up(*words) as (process, summary):
                await bob.host.dial(summary["peer_addresses"][0])
                for number in range(sent, sent + each):
                    await bob.peer.send(summary["peer"], f"t{number % 5}", "abort", number)
                sent += each
                answer = [*PROGRAM, "peer", "send", bob.id, "t0", "abort", str(turn)]
                await asyncio.to_thread(subprocess.run, answer, cwd=house.folder, check=True, capture_output=True)
                if turn < kills:
                    await until(functools.partial(_waiting_at_most, bob, each // 2), "half of a turn's are there")
                    process.kill()
                    await asyncio.to_thread(process.wait)
                else:
                    await until(functools.partial(_waiting_at_most, bob, 0), "all that was sent is there")
                    await until(lambda: len(bob.came) == kills + 1)


def _waiting_at_most(node: Node, count: int) -> bool:
    """Asked often, by a node that has other things to do: it looks at no message that is done with."""
    return len(node.sent(*IN_LANE)) <= count


@role("engine", "out_of_order")
def engine(folder: Path, journal: Path, seconds: float) -> int:
    """Every desk of the engine at once, posts and answers in one group; killed at random moments.

    Its workers let a message fail now and then and confirm those behind it by id all the same: that is out of order.
    """
    rng = Random(7)
    kills = max(int(seconds), 2)
    told = Told()
    path = folder / "load.db"
    for kill in range(kills):
        killed(path, f"r{kill}", told, after=rng.randint(300, 3_000))
    store = SqliteStore.open(str(path), POLICIES, node="load")
    try:
        export(store, journal, final=True)
    finally:
        store.close()
    return kills
