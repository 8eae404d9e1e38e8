"""Which form of the hot path the tests' own process runs, and which tests stay together where several processes run.

The form is that of the sources, or (POSTHOUSE_TEST_NATIVE=1) what was compiled. Tests plant faults by replacing
functions and sizes, which compiled code does not notice. Processes that tests start use what is compiled wherever it is
there.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

import hypothesis
import pytest

# How long an example takes says more about the machine than about the code.
hypothesis.settings.register_profile("posthouse", deadline=None)
hypothesis.settings.load_profile("posthouse")

if os.environ.get("POSTHOUSE_TEST_NATIVE") == "1":
    if not str(importlib.import_module("posthouse.stores.sqlite.flush").__file__).endswith(".so"):
        pytest.exit("the sources have changed since the hot path was compiled: any ./dev command compiles it", 1)
else:
    sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder).__name__ != "NativeFinder"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in, without settings of the environment."""
    for name in list(os.environ):
        if name.startswith("POSTHOUSE_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


TOGETHER = ("pipeline", "interop")
"""Folders whose tests share what is costly to have twice: a Spark, programs that are built."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A file's tests run in one process, and so do those of some folders."""
    for item in items:
        path = item.path.relative_to(Path(__file__).parent)
        item.add_marker(pytest.mark.xdist_group(path.parts[0] if path.parts[0] in TOGETHER else str(path)))
