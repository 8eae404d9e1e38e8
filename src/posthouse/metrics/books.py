"""The turns of the books that a server keeps: when the last one ended well, and how many failed.

In: how their keeper stands, asked at each scrape. Out: numbers. They are told wherever a server keeps the books, and
where it was told to and cannot: whoever looks at them alone finds that no turn ends well. It reads no table and starts
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from prometheus_client.core import Metric

from ..mailbox.message import SECOND
from .family import COUNTER, GAUGE, Asked, Family

WELL_AT = Family(
    "posthouse_books_last_success_timestamp_seconds",
    GAUGE,
    "When a turn of the books last ended well, be it that nothing was new, in seconds since 1970; "
    "before the first one, when the server started.",
)
FAILED = Family("posthouse_books_failed_turns_total", COUNTER, "Turns of the books that failed.")
INTERVAL = Family(
    "posthouse_books_interval_seconds", GAUGE, "How often a turn is due; 0: only when an operator asks for it."
)
FAMILIES = (WELL_AT, FAILED, INTERVAL)


class BooksCollector(Asked):
    """Asks whoever keeps the books how he stands, at each scrape."""

    def __init__(self, standing: Callable[[], Mapping[str, Any]]) -> None:
        self._standing = standing

    def collect(self) -> Iterable[Metric]:
        """Everything, freshly asked."""
        found = self._standing()
        yield WELL_AT.of(found["well_at"] / SECOND)
        yield FAILED.of(found["failed"])
        yield INTERVAL.of(found["every_s"])
