"""Stats: plain counters that the writer's thread adds to and anybody may read.

No locks: each number is written by one thread, and a reader that is a commit behind does no harm.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

Counts = dict[tuple[str, str], int]
"""By desk and word: posted, duplicate, refused_full, leased, delivered, retried, …"""

SIZE_BOUNDS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000)
SECONDS_BOUNDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)


class Histogram:
    """How many values were at most each bound; the last place counts those above all."""

    __slots__ = ("bounds", "count", "counts", "max", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.count = 0
        self.sum = 0.0
        self.max = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.count += 1
        self.sum += value
        if value > self.max:
            self.max = value


class Stats:
    """What an engine has done since it started."""

    def __init__(self) -> None:
        self.commands = 0
        self.commits = 0
        self.failed_groups = 0
        """Groups that the store could not commit; their callers were told."""
        self.shifts = 0
        """How often the clock was found set."""
        self.group_size = Histogram(SIZE_BOUNDS)
        self.commit_seconds = Histogram(SECONDS_BOUNDS)
        self.outcomes: Counts = {}
        """The writer's own; read a copy of it (``dict(stats.outcomes)``)."""

    def committed(self, commands: int, seconds: float) -> None:
        """Count a commit."""
        self.commands += commands
        self.commits += 1
        self.group_size.observe(commands)
        self.commit_seconds.observe(seconds)
