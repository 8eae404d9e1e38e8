"""The most memory that a set of processes was seen to take."""

from __future__ import annotations

from collections.abc import Iterable

import psutil


class Peak:
    """Looked at now and then, by whoever measures."""

    def __init__(self) -> None:
        self.size_bytes = 0
        self._before: frozenset[int] = frozenset()

    def look(self, processes: Iterable[psutil.Process]) -> None:
        """Add up what they take now; nothing is added up while some of them end.

        Who was not there at the last look may be about to become another program, and looks as large as who began it.
        """
        try:
            sizes = {each.pid: each.memory_info().rss for each in processes}
        except psutil.Error:
            return
        self.size_bytes = max(self.size_bytes, sum(size for pid, size in sizes.items() if pid in self._before))
        self._before = frozenset(sizes)
