"""The tasks of a part of the peer: held until they end, and what fails in them is told."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from ..errors import EngineClosed

log = logging.getLogger("posthouse.peer")


class Tasks(set[asyncio.Task[None]]):
    """Those under way."""

    def __init__(self, failed: str) -> None:
        """``failed``: what is told of one that fails."""
        super().__init__()
        self._failed = failed

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Begin one."""
        task = asyncio.create_task(work)
        self.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not isinstance(error, EngineClosed):
            log.error("%s", self._failed, exc_info=error)
