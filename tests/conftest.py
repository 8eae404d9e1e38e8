"""Which form of the hot path the tests' own process runs: the sources, or with POSTHOUSE_TEST_NATIVE=1 what was compiled.

Tests plant faults by replacing functions and sizes, which compiled code does not notice. Processes that tests start
use what is compiled wherever it is there.
"""

from __future__ import annotations

import os
import sys

if os.environ.get("POSTHOUSE_TEST_NATIVE") != "1":
    sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder).__name__ != "NativeFinder"]
