"""Tasks of one part: held until they end, told of when they fail, ended together.

In: coroutines. Out: running tasks. That the engine was closed under one of them is no failure.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from ..errors import EngineClosed


class Tasks(set[asyncio.Task[None]]):
    """Those under way."""

    def __init__(self, log: logging.Logger, failed: str = "{} has stopped", level: int = logging.ERROR) -> None:
        """``failed``: what is told of one that fails; {} in it stands for its name."""
        super().__init__()
        self._log = log
        self._failed = failed
        self._level = level

    def spawn(self, work: Coroutine[Any, Any, None], name: str | None = None) -> asyncio.Task[None]:
        """Begin one."""
        task = asyncio.create_task(work, name=name)
        self.add(task)
        task.add_done_callback(self._ended)
        return task

    async def close(self) -> None:
        """Cancel them, and wait until they have ended. Idempotent."""
        tasks = list(self)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not isinstance(error, EngineClosed):
            self._log.log(self._level, "%s", self._failed.format(task.get_name()), exc_info=error)
