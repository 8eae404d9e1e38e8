"""What a process says, heard line by line, so that tests wait for its words and never ask twice.

In: an open pipe. Out: the first line that matches a pattern; an AssertionError when the process ends instead.
"""

from __future__ import annotations

import re
import threading
from typing import IO


class Heard:
    """The lines of one pipe."""

    def __init__(self, pipe: IO[str] | None) -> None:
        assert pipe is not None
        self._pipe = pipe
        self._lines: list[str] = []
        self._ended = False
        self._more = threading.Condition()
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        for line in self._pipe:
            with self._more:
                self._lines.append(line)
                self._more.notify_all()
        with self._more:
            self._ended = True
            self._more.notify_all()

    def wait_for(self, pattern: str, *, after: int = 0, deadline_s: float = 120) -> re.Match[str]:
        """The first line behind ``after`` lines that says so."""
        looked = after
        with self._more:
            while True:
                for line in self._lines[looked:]:
                    if found := re.search(pattern, line):
                        return found
                looked = max(looked, len(self._lines))
                assert not self._ended, f"it ended without saying {pattern!r}: " + "".join(self._lines[-20:])
                assert self._more.wait(deadline_s), f"it does not say {pattern!r}: " + "".join(self._lines[-20:])

    def __len__(self) -> int:
        with self._more:
            return len(self._lines)

    def text(self) -> str:
        """All of it, once the process has ended."""
        self._thread.join()
        return "".join(self._lines)
