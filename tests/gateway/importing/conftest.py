"""OpenClaw's state folders, of each version, to be imported from."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

# A fixture that is used by its name.
from tests.unit.cli.conftest import house  # noqa: F401

SAMPLES = Path(__file__).parent.parent / "samples"

Sample = Callable[[str], Path]


@pytest.fixture
def sample(tmp_path: Path) -> Sample:
    """A copy of a version's state folder."""

    def copied(version: str) -> Path:
        folder = tmp_path / version
        shutil.copytree(SAMPLES / version, folder)
        script = folder / "openclaw.sql"
        if script.exists():
            (folder / "state").mkdir()
            with contextlib.closing(sqlite3.connect(folder / "state" / "openclaw.sqlite")) as database:
                database.executescript(script.read_text())
            script.unlink()
        return folder

    return copied
