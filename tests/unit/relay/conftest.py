"""A relay without sockets, and two agents who may use it."""

from __future__ import annotations

import pytest
from tests.simulation.world import Agent, World


@pytest.fixture
def world() -> World:
    return World(1)


@pytest.fixture
def a(world: World) -> Agent:
    return world.agent(1)


@pytest.fixture
def b(world: World) -> Agent:
    return world.agent(2)
