"""Handlers by name: who processes what comes to a peer that no program of its own surrounds.

    python:MODULE:FUNCTION    a function of one message, plain (in a thread) or async
    command:PROGRAM …         a program for each message: JSON on its standard input
    accept                    everything is kept and acknowledged

A function raises ``Reject`` or ``RetryLater``; a program ends with 0 (processed), 65 (rejected: the end of its standard
error is the reason, for the sender too) or anything else (not now). It never settles a message itself.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .. import callee
from ..errors import ConfigError
from . import frame
from .inbox import Handler, Incoming, Reject, RetryLater

REJECTED = 65


def handler_of(text: str, folder: Path | None = None) -> Handler:
    """The handler that a text describes, functions also in ``folder``; ConfigError says what is wrong with it."""
    kind, _, place = text.partition(":")
    if kind == "python":
        return _function(callee.load("peer.handler", place, folder))
    if kind == "command":
        return _program(callee.words_of("peer.handler", place))
    if text == "accept":
        return accept
    raise ConfigError(f"peer.handler: python:MODULE:FUNCTION, command:PROGRAM or accept, not {text[:80]!r}")


async def accept(message: Incoming) -> None:
    """Everything is welcome."""


def _function(function: Callable[[Incoming], Any]) -> Handler:
    if inspect.iscoroutinefunction(function):
        return function

    async def in_a_thread(message: Incoming) -> None:
        await asyncio.to_thread(function, message)

    return in_a_thread


def _program(words: list[str]) -> Handler:
    async def run(message: Incoming) -> None:
        try:
            process = await callee.start(words)
        except OSError as error:
            raise RetryLater(30.0, f"the handler cannot be started: {error.strerror or error}") from error
        try:
            _, said = await asyncio.gather(
                callee.write(process, frame.dumps(message.plain()) + b"\n"), callee.tail(process)
            )
            status = await process.wait()
        finally:
            await callee.end(process)
        if status == REJECTED:
            raise Reject(said or "rejected")
        if status != 0:
            raise RetryLater(None, f"the handler ended with {status}: {said}".rstrip(": "))

    return run
