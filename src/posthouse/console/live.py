"""Live numbers: one snapshot a second while somebody looks, the same bytes for everybody who does.

In: viewers. Out: server-sent events. With nobody there nothing is computed. A viewer who does not read is let go: a
newer snapshot says all that an older one did, so none is queued for him.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import orjson
from aiohttp import hdrs, web

from ..control.operation import Json
from ..errors import StoreError
from .problem import Problem

log = logging.getLogger("posthouse.console")

EVERY_S = 1.0
AT_ONCE = 2
"""Viewers that are written to in one go."""
GAP_S = 0.02
"""How long to wait at most before the next ones."""
SPARE = 0.2
"""The share of the time between two snapshots by which everybody has been told."""
WRITE_S = 10.0
"""How long a viewer may take to read one snapshot."""


class _Viewer:
    """One who looks, and waits for something new."""

    def __init__(self) -> None:
        self.news = asyncio.Event()


class Live:
    """Tells every viewer the newest snapshot."""

    def __init__(self, take: Callable[[], Awaitable[Json]], viewers_max: int) -> None:
        self._take = take
        self._viewers_max = viewers_max
        self._viewers: dict[_Viewer, None] = {}
        self.taken = 0
        """Snapshots so far, however many looked."""
        self._event = b""
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def viewers(self) -> int:
        """How many look."""
        return len(self._viewers)

    async def close(self) -> None:
        """Let every viewer go."""
        self._closed = True
        for viewer in self._viewers:
            viewer.news.set()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def serve(self, request: web.Request, is_welcome: Callable[[], bool]) -> web.StreamResponse:
        """Send snapshots until the viewer leaves, or is welcome no more."""
        if self.viewers >= self._viewers_max:
            raise Problem("busy", f"{self.viewers} look already", {"Retry-After": "5"})
        viewer = _Viewer()
        self._viewers[viewer] = None
        try:
            response = web.StreamResponse(
                headers={hdrs.CONTENT_TYPE: "text/event-stream; charset=utf-8", hdrs.CACHE_CONTROL: "no-store"}
            )
            await response.prepare(request)
            if self._event:
                viewer.news.set()
            if self._task is None or self._task.done():
                self._task = asyncio.create_task(self._run(), name="console snapshots")
            async with asyncio.timeout(None) as patience:
                while True:
                    await viewer.news.wait()
                    viewer.news.clear()
                    if self._closed or not is_welcome():
                        return response
                    patience.reschedule(asyncio.get_running_loop().time() + WRITE_S)
                    await response.write(self._event)
                    patience.reschedule(None)
        except ConnectionError:
            return response  # he left
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()
            return response
        finally:
            del self._viewers[viewer]

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while self._viewers:
            next_at = loop.time() + EVERY_S
            try:
                self._event = b"event: snapshot\ndata: " + orjson.dumps(await self._take()) + b"\n\n"
                self.taken += 1
            except StoreError as error:
                log.warning("the console cannot look: %s", error)
                self._event = b": no news\n\n"
            await self._tell(next_at - EVERY_S * SPARE)
            await asyncio.sleep(max(next_at - loop.time(), 0))
        # The next viewer begins with a new one.
        self._event = b""

    async def _tell(self, until: float) -> None:
        """Wake the viewers a few at a time, all by ``until``: what else the loop does waits for a few writes only."""
        loop = asyncio.get_running_loop()
        waiting = list(self._viewers)
        for first in range(0, len(waiting), AT_ONCE):
            for viewer in waiting[first : first + AT_ONCE]:
                viewer.news.set()
            groups = (len(waiting) - first) / AT_ONCE
            await asyncio.sleep(max(min((until - loop.time()) / groups, GAP_S), 0))
