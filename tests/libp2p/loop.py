"""Coroutines as tests: each on an event loop of its own, at whose end nothing may be left running or have escaped."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any

import uvloop

DEADLINE_S = 30.0


Test = Callable[..., Coroutine[Any, Any, None]]


def coroutine(test: Test) -> Callable[..., None]:
    """Make a test of a coroutine."""
    return within(DEADLINE_S)(test)


def within(deadline_s: float) -> Callable[[Test], Callable[..., None]]:
    """Make a test of a coroutine that may take so long."""

    def make(test: Test) -> Callable[..., None]:
        async def whole(arguments: dict[str, Any]) -> None:
            escaped: list[str] = []
            loop = asyncio.get_running_loop()
            loop.set_exception_handler(lambda _, context: escaped.append(str(context)))
            async with asyncio.timeout(deadline_s):
                await test(**arguments)
            left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            assert not left, f"still running: {left}"
            assert not escaped, escaped

        @functools.wraps(test)
        def run(**arguments: Any) -> None:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(whole(arguments))

        run.__signature__ = inspect.signature(test)  # type: ignore[attr-defined]
        return run

    return make


async def until(condition: Callable[[], object], what: str = "") -> None:
    """Wait until something holds that announces itself to nobody."""
    end = asyncio.get_running_loop().time() + DEADLINE_S
    while not condition():
        assert asyncio.get_running_loop().time() < end, f"it never came to this: {what or inspect.getsource(condition)}"
        await asyncio.sleep(0.005)
