"""The endpoint: /metrics, /health/live and /health/ready over HTTP.

In: requests of scrapers and supervisors. Out: the registry's page, or whether the process lives and may get work.
One request a connection, bounded in size, time and number. Nothing can be changed from here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

from prometheus_client.exposition import CONTENT_TYPE_LATEST

from ..errors import ConfigError, StoreError
from .registry import Metrics

_log = logging.getLogger("posthouse.metrics")

REQUEST_BYTES_MAX = 8_192
REQUEST_S = 5.0
CONNECTIONS_MAX = 32

_REASON_PHRASES = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
}
_TEXT = "text/plain; charset=utf-8"


class MetricsServer:
    """A small HTTP server for scrapers: one request a connection, bounded in size, time and number."""

    def __init__(self, metrics: Metrics, host: str, port: int) -> None:
        self._metrics = metrics
        self._host = host
        self._port = port
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._scraping = asyncio.Lock()

    @property
    def address(self) -> str:
        """Where it listens, as a URL."""
        assert self._server is not None
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    async def start(self) -> None:
        """Listen. ConfigError if the place cannot be had."""
        try:
            self._server = await asyncio.start_server(self._accept, self._host, self._port, limit=REQUEST_BYTES_MAX)
        except OSError as error:
            place = f"{self._host} port {self._port}"
            reason = "it is taken" if "in use" in str(error) else error.strerror or str(error)
            raise ConfigError(f"cannot listen for metrics on {place}: {reason} (metrics.host, metrics.port)") from error

    async def close(self) -> None:
        """Stop listening and cut what is still open."""
        if self._server is None:
            return
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        full = len(self._tasks) >= CONNECTIONS_MAX
        self._tasks.add(task)
        try:
            async with asyncio.timeout(2 * REQUEST_S):
                status, kind, body = (503, _TEXT, b"too many connections\n") if full else await self._answer(reader)
                head = (
                    f"HTTP/1.1 {status} {_REASON_PHRASES[status]}\r\n"
                    f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
                    "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
                )
                writer.write(head.encode() + body)
                await writer.drain()
        except (OSError, TimeoutError):
            pass  # It left, or does not read what it asked for.
        finally:
            self._tasks.discard(task)
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader) -> tuple[int, str, bytes]:
        try:
            # One deadline for the whole head: a byte now and then does not keep the connection.
            async with asyncio.timeout(REQUEST_S):
                head = await reader.readuntil(b"\r\n\r\n")
        except TimeoutError:
            return 408, _TEXT, b"the request took too long\n"
        except asyncio.LimitOverrunError:
            return 431, _TEXT, b"the request is too large\n"
        except asyncio.IncompleteReadError:
            return 400, _TEXT, b"no request\n"
        words = head.split(b"\r\n", 1)[0].split(b" ")
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            return 400, _TEXT, b"no HTTP request\n"
        if words[0] not in (b"GET", b"HEAD"):
            return 405, _TEXT, b"only GET\n"
        status, kind, body = await self._resource(words[1].split(b"?", 1)[0])
        return status, kind, b"" if words[0] == b"HEAD" else body

    async def _resource(self, path: bytes) -> tuple[int, str, bytes]:
        if path == b"/health/live":
            return 200, _TEXT, b"ok\n"
        if path == b"/health/ready":
            trouble = await asyncio.to_thread(self._metrics.trouble)
            return (200, _TEXT, b"ok\n") if trouble is None else (503, _TEXT, f"{trouble}\n".encode())
        if path != b"/metrics":
            return 404, _TEXT, b"there are /metrics, /health/live and /health/ready\n"
        # One at a time: a scrape reads the store, and impatient scrapers must not pile up.
        async with self._scraping:
            try:
                return 200, CONTENT_TYPE_LATEST, await asyncio.to_thread(self._metrics.page)
            except StoreError as error:
                _log.warning("metrics cannot be read: %s", error)
                return 500, _TEXT, b"the store cannot be read\n"
