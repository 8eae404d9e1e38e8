"""Two kinds of restraint in sending: a breaker for each target, and a pace for what waited long.

In: instants of a clock that never goes back. Out: how long to wait. They read no clock and start no timer.
"""

from __future__ import annotations

from collections import OrderedDict

TARGETS_MAX = 10_000
"""Targets whose failures are remembered; past it the one that failed longest ago is forgotten."""


class Breaker:
    """Leaves a target alone for a while after so many failures in a row; then one message tries it.

    closed ── failures in a row ──→ open ── open_s later ──→ half open: one try
       ↑                              ↑                          │      │
       └────── a success ─────────────┼────────── it succeeds ───┘      │
                                      └────────── it fails ─────────────┘
    """

    def __init__(self, failures: int, open_s: float) -> None:
        """``failures`` 0: it never opens."""
        self._failures = failures
        self._open_s = open_s
        self._targets: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def wait_s(self, target: str, now_s: float) -> float:
        """How long the target is to be left alone; 0: it may be tried."""
        found = self._targets.get(target)
        return 0.0 if found is None else max(found[1] - now_s, 0.0)

    def failed(self, target: str, now_s: float) -> None:
        """A send to it failed."""
        if not self._failures:
            return
        count = self._targets.pop(target, (0, 0.0))[0] + 1
        self._targets[target] = (count, now_s + self._open_s if count >= self._failures else 0.0)
        if len(self._targets) > TARGETS_MAX:
            self._targets.popitem(last=False)

    def succeeded(self, target: str) -> None:
        """A send to it succeeded, or failed for a reason that is not the target's."""
        self._targets.pop(target, None)

    def open(self, now_s: float) -> list[str]:
        """The targets that are left alone now."""
        return [target for target, (_, until_s) in list(self._targets.items()) if until_s > now_s]


class Pace:
    """So many a second, evenly; ``rate_per_s`` 0: no limit."""

    def __init__(self, rate_per_s: float) -> None:
        self._gap_s = 1.0 / rate_per_s if rate_per_s else 0.0
        self._next_s = 0.0

    def take_s(self, now_s: float) -> float:
        """Take the next turn; how long until it comes."""
        if not self._gap_s:
            return 0.0
        turn_s = max(self._next_s, now_s)
        self._next_s = turn_s + self._gap_s
        return turn_s - now_s
