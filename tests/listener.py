"""A real HTTP server of a test's own, for what is sent to others: one path, on a free port of the loopback."""

from __future__ import annotations

from typing import Self

from aiohttp import web


class Listener:
    """Takes what is posted to one path."""

    def __init__(self, path: str, body_bytes_max: int = 1024 * 1024) -> None:
        self._path = path
        app = web.Application(client_max_size=body_bytes_max)
        app.router.add_post(path, self.take)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._runner.addresses[0][1]}{self._path}"

    async def take(self, request: web.Request) -> web.Response:
        """One request."""
        raise NotImplementedError
