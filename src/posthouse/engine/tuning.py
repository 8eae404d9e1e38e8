"""Settings of the interpreter for a process that is there to run an engine.

A library must not change them under its host, so only ``posthouse up`` and the benchmarks call this.
"""

from __future__ import annotations

import gc
import sys

SWITCH_S = 0.0002
"""The writer gives up the interpreter at every statement; a busy event loop returns it after this long."""
YOUNG_OBJECTS = 20_000
"""New objects before the collector looks at them. A command makes a dozen, none of them in a cycle."""


def tune_interpreter() -> None:
    """Make the interpreter suit an engine: shorter turns between threads, fewer collections."""
    sys.setswitchinterval(SWITCH_S)
    gc.set_threshold(YOUNG_OBJECTS, 50, 50)
    # What was imported lives as long as the process: the collector need not walk it.
    gc.freeze()
