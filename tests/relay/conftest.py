"""A relay for each test: ``relay`` with the usual settings, ``make_relay`` for others, ``run`` for processes."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.relay.harness import Agent, Relay
from tests.unit.cli.house import House

MakeRelay = Callable[..., Relay]
STOP_S = 9.0
"""A relay stops within a second, one that waits for a store or a client in vain within 10 or more; a busy machine may
stand still for some of them."""
LOUD = ["--set", "relay.rate_limit=1000000", "--set", "relay.rate_burst=1000000"]


@pytest.fixture
def make_relay(tmp_path: Path) -> Iterator[MakeRelay]:
    """Start relays: ``make_relay({"relay.locked": "true"})``; each is stopped when the test is over."""
    made: list[Relay] = []

    def make(settings: dict[str, str] | None = None, folder: str = "relay", **fixed: Any) -> Relay:
        (tmp_path / folder).mkdir(exist_ok=True)
        relay = Relay(tmp_path / folder, settings, **fixed)
        made.append(relay)
        return relay.start()

    yield make
    for relay in made:
        relay.stop()


@pytest.fixture
def relay(make_relay: MakeRelay) -> Relay:
    """A relay with the usual settings, without pauses and rate limits."""
    return make_relay()


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> House:
    monkeypatch.chdir(tmp_path)
    return House(tmp_path)


class Running:
    """A relay in a process, as far as agents need to know it."""

    def __init__(self, house: House, *words: str, **env: str) -> None:
        self.process = house.spawn("relay", "--metrics-port", "0", "--json", *LOUD, *words, env=env)
        self.summary: dict[str, Any] = house._summary(self.process)
        self.port = int(self.summary["relay"].split(":")[2].partition("/")[0])
        self.settings = {"relay.public_host": self.summary["relay_host"]}

    def agent(self, name: str, **options: Any) -> Agent:
        return Agent(self, name, **options)  # type: ignore[arg-type]

    def stop(self, number: int = signal.SIGTERM) -> str:
        """Its log."""
        started = time.monotonic()
        self.process.send_signal(number)
        _, errors = self.process.communicate(timeout=20)
        assert self.process.returncode == 0, errors
        assert time.monotonic() - started < STOP_S
        return str(errors)


@pytest.fixture
def run(house: House) -> Iterator[Any]:
    running: list[Running] = []

    def start(*words: str, **env: str) -> Running:
        running.append(Running(house, *words, **env))
        return running[-1]

    yield start
    for one in running:
        if one.process.poll() is None:
            one.process.kill()
        one.process.communicate()
