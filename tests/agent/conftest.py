"""Relays for the agent's tests: the project's own, and a small one that misbehaves when it is told to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.relay.harness import Relay


@pytest.fixture
def relay(tmp_path: Path) -> Iterator[Relay]:
    """The project's relay on a real socket and a real store, in a thread of its own."""
    (tmp_path / "relay").mkdir()
    made = Relay(tmp_path / "relay").start()
    yield made
    made.stop()
