"""A relay for a long time: agents by the hundred come and go, its memory stays flat, and its books close.

The long form takes 10 minutes with 1,000 agents; SOAK_S and SOAK_AGENTS set other numbers.
"""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import uvloop
from tests.faults.books import Books, rows
from tests.faults.swarm import Swarm
from tests.relay.conftest import Running
from tests.unit.cli.house import House

from posthouse.control.operator import open_store

LONG_S = float(os.environ.get("SOAK_S", "600"))
LONG_AGENTS = int(os.environ.get("SOAK_AGENTS", "1000"))
SAMPLE_S = 0.5
MIB = 1024 * 1024


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> House:
    monkeypatch.chdir(tmp_path)
    return House(tmp_path)


class Memory:
    """The relay's memory over time."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self.samples: list[tuple[float, float]] = []
        """Seconds since the start, MiB."""

    async def watch(self) -> None:
        began = time.monotonic()
        while True:
            self.samples.append((time.monotonic() - began, self._process.memory_info().rss / MIB))
            await asyncio.sleep(SAMPLE_S)

    def growth(self, warm_s: float) -> tuple[float, float]:
        """What it gained behind the warm-up: MiB in all, and MiB an hour, by the line that fits best."""
        warm = [sample for sample in self.samples if sample[0] >= warm_s]
        slope, _ = statistics.linear_regression(*zip(*warm, strict=True))
        return slope * (warm[-1][0] - warm[0][0]), slope * 3_600


async def use(swarm: Swarm, memory: Memory, seconds: float) -> None:
    watching = asyncio.ensure_future(memory.watch())
    await swarm.run(seconds)
    watching.cancel()


def soak(
    house: House, seconds: float, agents: int, rate_per_s: float, *, stay_s_max: float, ttl_s: float, poison: float
) -> Iterator[str]:
    """Run it; then yield what is to be known of it, and check."""
    relay = Running(
        house, "--set", f"relay.queue_ttl_s={ttl_s}", "--set", "engine.sweep_s=2", "--set", "relay.queue_max=50",
        "--set", "store.node=soak", "--set", f"journal.export_s={seconds / 20}",
        "--set", f"journal.wait_s={seconds / 20}",
        # Nobody reads its log meanwhile, and a pipe holds little.
        "--log-level", "warning", PYTHONFAULTHANDLER="1",
    )  # fmt: skip
    try:
        swarm = Swarm(
            relay.port, relay.settings["relay.public_host"], agents, rate_per_s, stay_s_max, poison, seed=agents
        )
        memory = Memory(relay.process.pid)
        uvloop.run(use(swarm, memory, seconds))
        files = psutil.Process(relay.process.pid).num_fds()
        log = relay.stop()
    except BaseException:
        if relay.process.poll() is None:
            # What each of its threads is doing.
            relay.process.send_signal(signal.SIGABRT)
        print(relay.process.communicate()[1][-200_000:])
        raise
    house.run("journal", "export")
    house.run("journal", "verify")
    books = Books(rows(house.config().path("journal.dir")))
    store = open_store(house.config())
    try:
        complaints = books.close(swarm, store)
    finally:
        store.close()
    grown, hourly = memory.growth(seconds / 2)
    ends = books.ends()
    yield (
        f"{len(books.entries)} messages in {seconds:g} s over {swarm.connects} connections of {agents} agents: {ends}; "
        f"refused: {dict(books.refused)}; memory {memory.samples[-1][1]:.1f} MiB, {grown:+.1f} MiB after the warm-up "
        f"({hourly:+.0f} MiB an hour)"
    )
    assert complaints == [], "\n".join(complaints)
    assert books.connections == swarm.connects
    assert "Traceback" not in log
    assert files < 64, "sockets that nobody ended"
    # In seconds nothing is flat yet: caches fill.
    assert grown < (8.0 if seconds >= 120 else 24.0), f"memory grows by {hourly:.0f} MiB an hour"
    # It must have been worth it.
    assert len(books.entries) > rate_per_s * seconds / 2
    assert {"delivered", "expired", "parked", "ready"} == set(ends)
    assert books.refused["full"] > 0
    assert sum(entry.live for entry in books.entries.values()) > 0
    assert sum(len(stay.came) for _, stay in swarm.stays()) > ends["delivered"] * 0.9


def test_the_books_close_after_twenty_seconds_of_coming_and_going(house: House) -> None:
    # It is parked at its fifth connection: of a few, none would come so far on a machine that stands still meanwhile.
    for told in soak(house, 20, 100, 200, stay_s_max=0.4, ttl_s=14, poison=0.08):
        print(told)


@pytest.mark.slow
@pytest.mark.timeout(LONG_S + 600)
def test_memory_is_flat_and_the_books_close_after_a_long_time(house: House) -> None:
    for told in soak(house, LONG_S, LONG_AGENTS, 300, stay_s_max=4.0, ttl_s=LONG_S / 2, poison=0.01):
        print(told)
