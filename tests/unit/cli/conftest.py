"""A folder for the command line to work in."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.unit.cli.house import House


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> House:
    for name in list(os.environ):
        if name.startswith("POSTHOUSE_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return House(tmp_path)
