"""An HTTP server with limits: who is slow, or one too many, is cut off before he costs anything.

In: an application, an address and limits. Out: a listening socket. A connection may take ``head_s`` until its first
request has come up to the body, and ``IDLE_S`` between one request and the next; how long a body may take, and how
large it may be, the application says with ``body``. Compressed bodies are not taken.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from typing import Any, cast

from aiohttp import web

from ..errors import ConfigError, InvalidInput

HEAD_S = 10.0
IDLE_S = 75.0
"""Longer than clients keep an idle connection, so that none is closed while a request is on its way."""
SHUTDOWN_S = 2.0
LINE_BYTES_MAX = 8_190

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class TooLarge(InvalidInput):
    """A body of more bytes than are taken."""

    code = "too_large"


class TooSlow(InvalidInput):
    """A body that did not come in time."""

    code = "too_slow"


class Listener:
    """One application on one port."""

    def __init__(
        self,
        app: web.Application,
        host: str,
        port: int,
        connections_max: int,
        head_s: float = HEAD_S,
        linger_s: float = 0.0,
        tls: ssl.SSLContext | None = None,
        line_bytes_max: int = LINE_BYTES_MAX,
    ) -> None:
        """``linger_s``: how long the rest of a body is thrown away after an early answer, so that this is read.

        ``line_bytes_max``: of a request's first line, with its query.
        """
        self._app = app
        self._host, self._wanted_port = host, port
        self._connections_max = connections_max
        self._head_s = head_s
        self._linger_s = linger_s
        self._tls = tls
        self._line_bytes_max = line_bytes_max
        self._open: dict[asyncio.BaseTransport, _Watched] = {}
        self._server: asyncio.Server | None = None
        self._runner: web.AppRunner | None = None
        self.port = 0
        """The port, once it listens."""
        self.cut = 0
        """Connections that were cut: too slow, or one too many."""
        app.middlewares.append(self._timed)

    async def start(self) -> None:
        """Listen; ConfigError if that is not possible."""
        loop = asyncio.get_running_loop()
        self._runner = web.AppRunner(
            self._app,
            access_log=None,
            auto_decompress=False,
            lingering_time=self._linger_s,
            shutdown_timeout=SHUTDOWN_S,
            max_line_size=self._line_bytes_max,
        )
        await self._runner.setup()
        made = self._runner.server
        assert made is not None
        try:
            self._server = await loop.create_server(
                lambda: _Watched(made(), self._open, self._connections_max, self._head_s, self._count),
                None if self._host == "*" else self._host,
                self._wanted_port,
                ssl=self._tls,
                ssl_handshake_timeout=None if self._tls is None else self._head_s,
            )
        except OSError as error:
            await self.close()
            raise ConfigError(f"cannot listen on {self._host}:{self._wanted_port}: {error.strerror}") from error
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Listen no more; what is being answered has a moment to end."""
        if self._server is not None:
            self._server.close()
        if self._runner is not None:
            await self._runner.cleanup()
        for transport in list(self._open):
            cast(asyncio.Transport, transport).abort()

    def _count(self) -> None:
        self.cut += 1

    @property
    def connections(self) -> int:
        """How many are open."""
        return len(self._open)

    @web.middleware
    async def _timed(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        watched = self._open.get(request.transport) if request.transport is not None else None
        if watched is None:
            return await handler(request)
        watched.begun()
        try:
            return await handler(request)
        finally:
            watched.done()


class _Watched(asyncio.Protocol):
    """A connection's protocol with somebody who looks at the clock."""

    def __init__(
        self,
        inner: Any,
        open: dict[asyncio.BaseTransport, _Watched],
        connections_max: int,
        head_s: float,
        on_cut: Callable[[], None],
    ) -> None:
        self._inner = inner
        self._open = open
        self._connections_max = connections_max
        self._head_s = head_s
        self._on_cut = on_cut
        self._timer: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not every event loop's transport is of asyncio's class.
        self._transport = cast(asyncio.Transport, transport)
        self._inner.connection_made(transport)
        if len(self._open) >= self._connections_max:
            self._cut(self._transport)
            return
        self._open[transport] = self
        self._wait(self._head_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self.begun()
        if self._transport is not None:
            self._open.pop(self._transport, None)
        self._inner.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        kept: bool | None = self._inner.eof_received()
        return kept

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def begun(self) -> None:
        """A request has come up to its body."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def done(self) -> None:
        """The next request may come."""
        self._wait(max(self._head_s, IDLE_S))

    def _wait(self, most_s: float) -> None:
        self.begun()
        transport = self._transport
        if transport is not None and not transport.is_closing():
            self._timer = asyncio.get_running_loop().call_later(most_s, self._cut, transport)

    def _cut(self, transport: asyncio.Transport) -> None:
        self._on_cut()
        transport.abort()


async def body(request: web.Request, size_bytes_max: int, timeout_s: float) -> bytes:
    """The body of a request; TooLarge or TooSlow where it goes beyond the limits."""
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise InvalidInput("a compressed body is not taken")
    if request.content_length is not None and request.content_length > size_bytes_max:
        raise TooLarge(f"a body has at most {size_bytes_max} bytes")
    if request.content.is_eof():
        # All of it came with the head, as it mostly does: there is nothing to wait for.
        data = request.content.read_nowait()
        if len(data) > size_bytes_max:
            raise TooLarge(f"a body has at most {size_bytes_max} bytes")
        return data
    parts: list[bytes] = []
    size_bytes = 0
    try:
        async with asyncio.timeout(timeout_s):
            async for chunk in request.content.iter_any():
                size_bytes += len(chunk)
                if size_bytes > size_bytes_max:
                    raise TooLarge(f"a body has at most {size_bytes_max} bytes")
                parts.append(chunk)
    except TimeoutError:
        raise TooSlow(f"the body did not come within {timeout_s:g} s") from None
    return b"".join(parts)
