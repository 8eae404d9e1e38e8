"""Posts over HTTP at an offered rate, timed from the moment at which each was due.

In: an address, a token, how many a second for how long over how many connections. Out: how long each answer took. A
post that had to wait for its connection has waited: its time counts from when it was due, not from when it was sent.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Iterator

SESSIONS = 500


class Poster:
    """One connection that is kept open."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: str) -> None:
        self._reader, self._writer = reader, writer
        self._head = (
            "POST /v1/inbound HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Authorization: Bearer {token}\r\nContent-Length: "
        ).encode()

    @classmethod
    async def open(cls, port: int, token: str) -> Poster:
        return cls(*await asyncio.open_connection("127.0.0.1", port), token)

    async def post(self, body: bytes) -> int:
        """Post one message; the status of its answer."""
        self._writer.write(self._head + b"%d\r\n\r\n%s" % (len(body), body))
        head = await self._reader.readuntil(b"\r\n\r\n")
        length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        await self._reader.readexactly(int(length.partition(b":")[2]))
        return int(head.split(b" ", 2)[1])

    def close(self) -> None:
        self._writer.close()


def bodies(prefix: str) -> Iterator[bytes]:
    """Messages without end, over so many sessions in turn."""
    for number in itertools.count():
        chat = f"chat{number % SESSIONS}"
        message = {"id": f"{prefix}-{number}", "channel": "bench", "conversation": chat, "from": "ann"}
        yield json.dumps({**message, "text": f"{chat} {number // SESSIONS} " + "x" * 200}).encode()


async def offer(port: int, token: str, rate_per_s: float, seconds: float, connections: int, prefix: str) -> list[float]:
    """Post at this rate; how long each took, in seconds."""
    loop = asyncio.get_running_loop()
    posters = [await Poster.open(port, token) for _ in range(connections)]
    free: asyncio.Queue[Poster] = asyncio.Queue()
    for poster in posters:
        free.put_nowait(poster)
    took_s: list[float] = []

    async def one(body: bytes, due: float) -> None:
        poster = await free.get()
        status = await poster.post(body)
        took_s.append(loop.time() - due)
        free.put_nowait(poster)
        assert status == 201, status

    begun = loop.time() + 0.1
    messages = bodies(prefix)
    async with asyncio.TaskGroup() as group:
        for number in range(int(rate_per_s * seconds)):
            due = begun + number / rate_per_s
            await asyncio.sleep(max(0.0, due - loop.time()))
            group.create_task(one(next(messages), due))
    for poster in posters:
        poster.close()
    return took_s
