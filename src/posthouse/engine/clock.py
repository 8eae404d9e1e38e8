"""The clock: what time it is, and whether somebody set it.

In: the wall clock and the monotonic clock of the machine (or a test's own). Out: instants in whole
microseconds, and the shift when the wall clock jumped. It never waits and never starts a timer.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from ..mailbox.message import SECOND, Instant

JUMP_US = 2 * SECOND
"""Less than this is the clock being disciplined (NTP), and is followed silently."""


class Clock:
    """Wall time in microseconds since 1970 that notices when it was set."""

    def __init__(
        self, wall_ns: Callable[[], int] = time.time_ns, monotonic_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._wall_ns = wall_ns
        self._monotonic_ns = monotonic_ns
        _, self._apart_us = self._look()

    def now(self) -> Instant:
        """The wall time. Any thread may ask."""
        return self._wall_ns() // 1_000

    def set_by(self) -> int:
        """By how much the clock was set since ``read`` was last called; 0: not at all. Any thread may ask."""
        shift_us = self._look()[1] - self._apart_us
        return shift_us if abs(shift_us) > JUMP_US else 0

    def read(self) -> tuple[Instant, int]:
        """The wall time, and by how much it was set since the last call (0: it was not). One thread only.

        The difference between the clocks is followed at every call, so slow corrections never add up
        to a jump. A machine that slept looks like one whose clock was set: its leases and waits keep
        their length, which is right, since their holders slept too.
        """
        wall_us, apart_us = self._look()
        shift_us = apart_us - self._apart_us
        self._apart_us = apart_us
        return wall_us, shift_us if abs(shift_us) > JUMP_US else 0

    def _look(self) -> tuple[Instant, int]:
        """The wall time, and how far it is from the monotonic time."""
        while True:
            before_ns = self._monotonic_ns()
            wall_us = self._wall_ns() // 1_000
            after_ns = self._monotonic_ns()
            # A process that was stopped between the looks would take the pause for a jump: look again.
            if after_ns - before_ns < 500_000_000:
                return wall_us, wall_us - after_ns // 1_000
