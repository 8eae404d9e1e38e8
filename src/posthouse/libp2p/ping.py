"""ping: 32 bytes there and back. In: a stream. Out: how long it took. Whoever asks too fast only waits longer."""

from __future__ import annotations

import asyncio
import os
import time

from .errors import StreamEnded, WireError
from .stream import Stream

PROTOCOL = "/ipfs/ping/1.0.0"
PAYLOAD_BYTES = 32
ANSWER_S = 60.0
"""How long a stream may stay silent before we close it."""


async def answer(stream: Stream) -> None:
    """Send back what comes, until the other side ends."""
    try:
        while True:
            async with asyncio.timeout(ANSWER_S):
                await stream.write(await stream.read_exactly(PAYLOAD_BYTES))
    except (StreamEnded, TimeoutError):
        return


async def ask(stream: Stream) -> float:
    """Send one ping; the seconds until it came back."""
    payload = os.urandom(PAYLOAD_BYTES)
    begun = time.perf_counter()
    await stream.write(payload)
    if await stream.read_exactly(PAYLOAD_BYTES) != payload:
        raise WireError("a ping came back with something else in it")
    return time.perf_counter() - begun
