"""Handlers by name: who processes what comes to a peer that no program of its own surrounds.

    python:MODULE:FUNCTION    a function of one message, plain (in a thread) or async
    command:PROGRAM …         a program for each message: JSON on its standard input
    accept                    everything is kept and acknowledged

A function raises ``Reject`` or ``RetryLater``; a program ends with 0 (processed), 65 (rejected: the end of its standard
error is the reason, for the sender too) or anything else (not now). It never settles a message itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import inspect
import os
import shlex
import signal
from collections.abc import Callable
from typing import Any

from ..errors import ConfigError
from . import frame
from .inbox import Handler, Incoming, Reject, RetryLater

REJECTED = 65
ERROR_BYTES_MAX = 2_000


def handler_of(text: str) -> Handler:
    """The handler that a text describes; ConfigError says what is wrong with it."""
    kind, _, place = text.partition(":")
    if kind == "python":
        return _function(_load(place))
    if kind == "command":
        return _program(_words(place))
    if text == "accept":
        return accept
    raise ConfigError(f"peer.handler: python:MODULE:FUNCTION, command:PROGRAM or accept, not {text[:80]!r}")


async def accept(message: Incoming) -> None:
    """Everything is welcome."""


def _load(place: str) -> Callable[[Incoming], Any]:
    module_name, _, name = place.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ConfigError(f"peer.handler: cannot import {module_name!r}: {error}") from error
    function = getattr(module, name, None)
    if not callable(function):
        raise ConfigError(f"peer.handler: {module_name!r} has no function {name!r}")
    return function  # type: ignore[no-any-return]


def _function(function: Callable[[Incoming], Any]) -> Handler:
    if inspect.iscoroutinefunction(function):
        return function

    async def in_a_thread(message: Incoming) -> None:
        await asyncio.to_thread(function, message)

    return in_a_thread


def _words(text: str) -> list[str]:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"peer.handler: a command that cannot be parted into words: {error}") from error
    if not words:
        raise ConfigError("peer.handler: a command needs a program")
    return words


def _program(words: list[str]) -> Handler:
    async def run(message: Incoming) -> None:
        try:
            # A group of its own, so that what it starts ends with it.
            process = await asyncio.create_subprocess_exec(
                *words,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise RetryLater(30.0, f"the handler cannot be started: {error.strerror or error}") from error
        try:
            _, said = await asyncio.gather(_write(process, frame.dumps(message.plain()) + b"\n"), _tail(process))
            status = await process.wait()
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
                await asyncio.shield(process.wait())
        if status == REJECTED:
            raise Reject(said or "rejected")
        if status != 0:
            raise RetryLater(None, f"the handler ended with {status}: {said}".rstrip(": "))

    return run


async def _write(process: asyncio.subprocess.Process, data: bytes) -> None:
    assert process.stdin is not None
    # It need not read what it is given; the loop says in two ways that it has ended before.
    with contextlib.suppress(ConnectionError, RuntimeError):
        process.stdin.write(data)
        await process.stdin.drain()
    process.stdin.close()


async def _tail(process: asyncio.subprocess.Process) -> str:
    assert process.stderr is not None
    kept = b""
    while data := await process.stderr.read(65_536):
        kept = (kept + data)[-ERROR_BYTES_MAX:]
    return kept.decode(errors="replace").strip()
