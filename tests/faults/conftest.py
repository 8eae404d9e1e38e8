"""What the tests of faults share."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def quick_folder(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A folder in memory where there is one: cuts make thousands of small files. It is kept if the test fails."""
    shm = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="posthouse-faults-", dir=shm if shm.is_dir() else None))
    failed_before = request.session.testsfailed
    yield folder
    if request.session.testsfailed == failed_before:
        shutil.rmtree(folder)
