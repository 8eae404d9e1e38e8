"""A handler that is a Python function, plain or async, of one argument: the work.

In: the function. Out: its result as replies. A plain function runs in a thread,
which cannot be ended from outside: when its time is up, its result is dropped, and the thread goes on to its end.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ..answer import Work, replies_from
from ..letter import Reply

Function = Callable[[Work], Any]


class FunctionHandler:
    """Calls a function in this process."""

    def __init__(self, function: Function, threads: int = 32) -> None:
        self._function = function
        self._is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
            getattr(function, "__call__", None)  # noqa: B004 (an object with an async __call__)
        )
        self._threads = None if self._is_async else ThreadPoolExecutor(threads, thread_name_prefix="posthouse-handler")

    async def handle(self, work: Work) -> tuple[Reply, ...]:
        """Its result as replies."""
        if self._is_async:
            return replies_from(await self._function(work))
        loop = asyncio.get_running_loop()
        return replies_from(await loop.run_in_executor(self._threads, self._function, work))

    async def close(self) -> None:
        """Wait for no thread: what it returns is wanted no more."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)


async def echo(work: Work) -> str:
    """Say back what was said."""
    return work.text
