"""Posts over HTTP at an offered rate, timed from the moment at which each was due.

In: an address, a token, how many a second for how long over how many connections. Out: how long each answer took. A
post that had to wait for its connection has waited: its time counts from when it was due, not from when it was sent.
It shares the machine with what it measures, so it does no more than it must: no streams, no tasks, one timer.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections import deque
from collections.abc import Callable, Iterator

SESSIONS = 500
clock = time.perf_counter
_LENGTH = b"\r\ncontent-length:"


class Poster(asyncio.Protocol):
    """One connection that is kept open; one post at a time."""

    def __init__(self, head: bytes, answered: Callable[[Poster, int], None]) -> None:
        self.due = 0.0
        self._head = head
        self._answered = answered
        self._data = b""
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def post(self, body: bytes, due: float) -> None:
        """Post one message, which was due at this instant."""
        self.due = due
        self._transport.write(b"%s%d\r\n\r\n%s" % (self._head, len(body), body))

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, found, body = self._data.partition(b"\r\n\r\n")
        if found:
            length = head.lower().partition(_LENGTH)[2].partition(b"\r\n")[0]
            if len(body) >= int(length):
                self._data = b""
                self._answered(self, int(head.split(b" ", 2)[1]))

    def close(self) -> None:
        self._transport.close()


def bodies(prefix: str) -> Iterator[bytes]:
    """Messages without end, over so many sessions in turn."""
    for number in itertools.count():
        chat = f"chat{number % SESSIONS}"
        message = {"id": f"{prefix}-{number}", "channel": "bench", "conversation": chat, "from": "ann"}
        yield json.dumps({**message, "text": f"{chat} {number // SESSIONS} " + "x" * 200}).encode()


async def offer(port: int, token: str, rate_per_s: float, seconds: float, connections: int, prefix: str) -> list[float]:
    """Post at this rate; how long each took, in seconds."""
    loop = asyncio.get_running_loop()
    head = (
        "POST /v1/inbound HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {token}\r\nContent-Length: "
    ).encode()
    free: deque[Poster] = deque()
    waiting: deque[tuple[bytes, float]] = deque()
    took_s: list[float] = []
    failed: list[int] = []
    total = int(rate_per_s * seconds)
    over = asyncio.Event()

    def answered(poster: Poster, status: int) -> None:
        took_s.append(clock() - poster.due)
        if status != 201:
            failed.append(status)
        if waiting:
            poster.post(*waiting.popleft())
        else:
            free.append(poster)
        if len(took_s) == total:
            over.set()

    posters = [
        (await loop.create_connection(lambda: Poster(head, answered), "127.0.0.1", port))[1] for _ in range(connections)
    ]
    free.extend(posters)
    messages = list(itertools.islice(bodies(prefix), total))
    begun = clock() + 0.1
    for number, body in enumerate(messages):
        due = begun + number / rate_per_s
        if due > clock():
            await asyncio.sleep(due - clock())
        if free:
            free.popleft().post(body, due)
        else:
            waiting.append((body, due))
    await over.wait()
    assert not failed, failed[:10]
    for poster in posters:
        poster.close()
    return took_s
