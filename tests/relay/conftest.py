"""A relay for each test: ``relay`` with the usual settings, ``make_relay`` for others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.relay.harness import Relay

MakeRelay = Callable[..., Relay]


@pytest.fixture
def make_relay(tmp_path: Path) -> Iterator[MakeRelay]:
    """Start relays: ``make_relay({"relay.locked": "true"})``; each is stopped when the test is over."""
    made: list[Relay] = []

    def make(settings: dict[str, str] | None = None, folder: str = "relay") -> Relay:
        (tmp_path / folder).mkdir(exist_ok=True)
        relay = Relay(tmp_path / folder, settings)
        made.append(relay)
        return relay.start()

    yield make
    for relay in made:
        relay.stop()


@pytest.fixture
def relay(make_relay: MakeRelay) -> Relay:
    """A relay with the usual settings, without pauses and rate limits."""
    return make_relay()
