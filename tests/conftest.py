"""Which form of the hot path the tests' own process runs: the sources, or (POSTHOUSE_TEST_NATIVE=1) what was compiled.

Tests plant faults by replacing functions and sizes, which compiled code does not notice. Processes that tests start
use what is compiled wherever it is there.
"""

from __future__ import annotations

import importlib
import os
import sys

import pytest

if os.environ.get("POSTHOUSE_TEST_NATIVE") == "1":
    if not str(importlib.import_module("posthouse.stores.sqlite.flush").__file__).endswith(".so"):
        pytest.exit("the sources have changed since the hot path was compiled: any ./dev command compiles it", 1)
else:
    sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder).__name__ != "NativeFinder"]
