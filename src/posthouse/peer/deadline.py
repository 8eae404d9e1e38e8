"""A deadline for many waits of one task, one after the other, with one timer for all of them.

In: when each wait begins and ends. Out: TimeoutError in the task when one takes too long. A timer is not stopped when
its wait ends in time: when it rings, it is set again for the wait that is under way then, if one is. So a wait that
ends in time costs next to nothing.
"""

from __future__ import annotations

import asyncio


class Deadline:
    """Bounds waits of the task that makes it; to be closed by it."""

    __slots__ = ("_loop", "_passed", "_task", "_timer", "_until_s")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._timer: asyncio.TimerHandle | None = None
        self._until_s: float | None = None
        self._passed = False

    def begin(self, wait_s: float) -> None:
        """The task is about to wait, for so long at most."""
        self._until_s = until_s = self._loop.time() + wait_s
        timer = self._timer
        if timer is None or timer.when() > until_s:
            if timer is not None:
                timer.cancel()
            self._timer = self._loop.call_at(until_s, self._ring)

    def end(self) -> None:
        """It waits no more."""
        self._until_s = None

    def cut(self) -> bool:
        """For the task, when it is cancelled: whether that is because the time is up, and nothing else."""
        passed, self._passed = self._passed, False
        return passed and self._task.uncancel() == 0

    def close(self) -> None:
        """There is nothing more to wait for."""
        self._until_s = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _ring(self) -> None:
        self._timer = None
        if self._until_s is None:
            return
        if self._until_s > self._loop.time():
            self._timer = self._loop.call_at(self._until_s, self._ring)
            return
        self._passed = True
        self._task.cancel()
