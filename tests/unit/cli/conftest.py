"""A folder for the command line to work in."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.cli.house import House


@pytest.fixture
def house(folder: Path) -> House:
    return House(folder)
