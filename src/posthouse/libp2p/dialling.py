"""Finding a way to a peer: its addresses are tried one after the other, a little apart, and the first that leads wins.

In: addresses. Out: a secured connection, or DialFailed with what was wrong at each. All tries that did not win are
ended before it returns.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from typing import cast

from .connection import Connection
from .errors import DialFailed, Libp2pError
from .multiaddr import Multiaddr

_FAMILIES = {
    "ip4": socket.AF_INET,
    "ip6": socket.AF_INET6,
    "dns": socket.AF_UNSPEC,
    "dns4": socket.AF_INET,
    "dns6": socket.AF_INET6,
}


async def dial_one(address: Multiaddr, make: Callable[[], Connection]) -> Connection:
    """Dial one address; raises OSError or Libp2pError."""
    endpoint = address.endpoint
    if endpoint is None:
        raise DialFailed(f"{address} is not plain TCP, which is all that can be dialled")
    loop = asyncio.get_running_loop()
    _, protocol = await loop.create_connection(
        lambda: make().protocol, endpoint.host, endpoint.port, family=_FAMILIES[endpoint.kind]
    )
    connection = cast(Connection, protocol)
    try:
        await asyncio.shield(connection.ready)
    except BaseException:
        connection.abort()
        raise
    return connection


async def dial_any(
    addresses: Sequence[Multiaddr], make: Callable[[], Connection], stagger_s: float, within_s: float
) -> tuple[Connection, Multiaddr]:
    """Dial all addresses until one leads; which it was."""
    if not addresses:
        raise DialFailed("no address is known that could be dialled")
    tries: dict[asyncio.Task[Connection], Multiaddr] = {}
    waiting = list(addresses)
    wrong: list[str] = []
    won: asyncio.Task[Connection] | None = None
    try:
        async with asyncio.timeout(within_s):
            while won is None and (waiting or tries):
                if waiting:
                    address = waiting.pop(0)
                    tries[asyncio.create_task(dial_one(address, make))] = address
                done, _ = await asyncio.wait(
                    tries, timeout=stagger_s if waiting else None, return_when=asyncio.FIRST_COMPLETED
                )
                for task in done:
                    error = task.exception()
                    if error is None:
                        won = won or task
                    else:
                        wrong.append(f"{tries.pop(task)}: {_said(error)}")
    except TimeoutError:
        wrong.append(f"not in {within_s:g} s")
    finally:
        for task in tries:
            if task is not won:
                if task.done() and not task.cancelled() and task.exception() is None:
                    task.result().abort()
                task.cancel()
        await asyncio.gather(*(task for task in tries if task is not won), return_exceptions=True)
    if won is None:
        raise DialFailed("; ".join(wrong))
    return won.result(), tries[won]


def _said(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    # UnicodeError: a name that cannot be looked up.
    if isinstance(error, Libp2pError | OSError | UnicodeError):
        return str(error)
    raise error
