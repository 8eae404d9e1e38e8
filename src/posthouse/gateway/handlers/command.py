"""A handler that is a program: the work is written to its standard input, its answer read from its output.

In: the words of a command. Out: one process for each attempt, and replies from what it writes: JSON lines, of which
those with "progress" say that the work goes on and the last of the others is the answer; nothing is: done, no reply.
It ends with 0; 75 (try again later) and any other status are failed attempts, with the end of its standard error as the
reason. When the work is wanted no more, the process and all that it started are killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal

import orjson

from ...errors import ConfigError
from ..answer import Away, Reject, RetryLater, Work, replies_from_json
from ..letter import Reply, encode

ANSWER_BYTES_MAX = 8 * 1024 * 1024
ERROR_BYTES_MAX = 2_000
"""Of what it says on standard error, this much of the end is kept."""


class CommandHandler:
    """Starts a program for each attempt."""

    def __init__(self, words: list[str]) -> None:
        self._words = words

    async def handle(self, work: Work) -> tuple[Reply, ...]:
        """Run it to its end."""
        try:
            # A group of its own, so that what it starts ends with it.
            process = await asyncio.create_subprocess_exec(
                *self._words,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
                limit=ANSWER_BYTES_MAX,
            )
        except OSError as error:
            raise Away(f"the handler cannot be started: {error.strerror or error}", after_s=30.0) from error
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stderr is not None
            _, answer, said = await asyncio.gather(
                _write(process.stdin, encode(work.as_json()) + b"\n"),
                _answer(process.stdout, work),
                _tail(process.stderr),
            )
            status = await process.wait()
        finally:
            await _end(process)
        if status != 0:
            raise RetryLater(None, f"the handler ended with {status}: {said}".rstrip(": "))
        return replies_from_json(answer)

    async def close(self) -> None:
        """Nothing is kept between two attempts."""


def words_of(text: str) -> list[str]:
    """The words of a command line, as a shell would part them; ConfigError if it would not."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"a command that cannot be parted into words: {error}") from error
    if not words:
        raise ConfigError("a command needs a program")
    return words


async def _write(stdin: asyncio.StreamWriter, data: bytes) -> None:
    # It need not read what it is given.
    with contextlib.suppress(ConnectionError):
        stdin.write(data)
        await stdin.drain()
    stdin.close()
    with contextlib.suppress(ConnectionError):
        await stdin.wait_closed()


async def _answer(stdout: asyncio.StreamReader, work: Work) -> object:
    answer: object = None
    size = 0
    while True:
        try:
            line = await stdout.readline()
        except ValueError as error:
            raise Reject(f"the handler wrote a line of more than {ANSWER_BYTES_MAX} bytes") from error
        if not line:
            return answer
        work.progress()
        size += len(line)
        if size > ANSWER_BYTES_MAX:
            raise Reject(f"the handler wrote more than {ANSWER_BYTES_MAX} bytes")
        if not line.strip():
            continue
        try:
            document = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise Reject(f"the handler wrote what is no JSON: {error}") from error
        if not (isinstance(document, dict) and "progress" in document):
            answer = document


async def _tail(stderr: asyncio.StreamReader) -> str:
    kept = b""
    while data := await stderr.read(65_536):
        kept = (kept + data)[-ERROR_BYTES_MAX:]
    return kept.decode(errors="replace").strip()


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kill it with its group if it still runs, and wait for it."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        await asyncio.shield(process.wait())
