"""A handler that is a program: the work is written to its standard input, its answer read from its output.

In: the words of a command. Out: one process for each attempt, and replies from what it writes: JSON lines, of which
those with "progress" say that the work goes on and the last of the others is the answer; nothing is: done, no reply.
It ends with 0; 75 (try again later) and any other status are failed attempts, with the end of its standard error as the
reason. When the work is wanted no more, the process and all that it started are killed.
"""

from __future__ import annotations

import asyncio

import orjson

from ... import callee
from ..answer import Away, Reject, RetryLater, Work, replies_from_json
from ..letter import Reply, encode

ANSWER_BYTES_MAX = 8 * 1024 * 1024


class CommandHandler:
    """Starts a program for each attempt."""

    def __init__(self, words: list[str]) -> None:
        self._words = words

    async def handle(self, work: Work) -> tuple[Reply, ...]:
        """Run it to its end."""
        try:
            process = await callee.start(self._words, ANSWER_BYTES_MAX)
        except OSError as error:
            raise Away(f"the handler cannot be started: {error.strerror or error}", after_s=30.0) from error
        try:
            assert process.stdout is not None
            _, answer, said = await asyncio.gather(
                callee.write(process, encode(work.as_json()) + b"\n"),
                _answer(process.stdout, work),
                callee.tail(process),
            )
            status = await process.wait()
        finally:
            await callee.end(process)
        if status != 0:
            raise RetryLater(None, f"the handler ended with {status}: {said}".rstrip(": "))
        return replies_from_json(answer)

    async def close(self) -> None:
        """Nothing is kept between two attempts."""


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
