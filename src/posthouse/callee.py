"""What a setting names to be called: a function by its place, or a program by its words.

In: the text of a setting; bytes for a program. Out: the function; a process in a group of its own, and what it said.
It knows nothing of messages: what an ending means is the caller's to say.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import shlex
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .errors import ConfigError

ERROR_BYTES_MAX = 2_000
"""Of what a program says on standard error, this much of the end is kept."""


def load(setting: str, place: str, folder: Path | None = None) -> Callable[..., Any]:
    """The function at ``module:name``, in ``folder`` or among what is installed; ConfigError says what is not there."""
    module_name, _, name = place.partition(":")
    if folder is not None and str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    try:
        module = importlib.import_module(module_name)
    except (ImportError, ValueError) as error:
        raise ConfigError(f"{setting}: cannot import {module_name!r}: {error}") from error
    function = getattr(module, name, None)
    if not callable(function):
        raise ConfigError(f"{setting}: {module_name!r} has no function {name!r}")
    return function  # type: ignore[no-any-return]


def words_of(setting: str, text: str) -> list[str]:
    """The words of a command line, as a shell would part them; ConfigError if it would not."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"{setting}: a command that cannot be parted into words: {error}") from error
    if not words:
        raise ConfigError(f"{setting}: a command needs a program")
    return words


async def start(words: list[str], answer_bytes_max: int | None = None) -> Process:
    """Start a program in a group of its own, so that what it starts ends with it; OSError if that fails.

    Its output is read where ``answer_bytes_max`` says how much of it may come, and dropped otherwise.
    """
    return await asyncio.create_subprocess_exec(
        *words,
        stdin=PIPE,
        stdout=DEVNULL if answer_bytes_max is None else PIPE,
        stderr=PIPE,
        start_new_session=True,
        limit=answer_bytes_max or 65_536,
    )


async def write(process: Process, data: bytes) -> None:
    """Give it all of its input. It need not read it; the loop says in two ways that it has ended before."""
    assert process.stdin is not None
    with contextlib.suppress(ConnectionError, RuntimeError):
        process.stdin.write(data)
        await process.stdin.drain()
    process.stdin.close()
    with contextlib.suppress(ConnectionError, RuntimeError):
        await process.stdin.wait_closed()


async def tail(process: Process) -> str:
    """The end of what it says on standard error, when it says no more."""
    assert process.stderr is not None
    kept = b""
    while data := await process.stderr.read(65_536):
        kept = (kept + data)[-ERROR_BYTES_MAX:]
    return kept.decode(errors="replace").strip()


async def end(process: Process) -> None:
    """Kill it with its group if it still runs, and wait for it."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        await asyncio.shield(process.wait())
