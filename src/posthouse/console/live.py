"""Live numbers: one snapshot a second while somebody looks, the same bytes for everybody who does.

In: viewers. Out: server-sent events. With nobody there nothing is computed. A snapshot is made into bytes once, and
telling a viewer is one write to his connection: no task is woken for it. None is queued for a viewer who does not read,
since a newer snapshot says all that an older one did; if he goes on not reading he is let go.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import orjson
from aiohttp import HttpVersion11, hdrs, web

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
UNREAD_S = 10.0
"""How long a viewer may take to read one snapshot."""


class _News(NamedTuple):
    """The newest snapshot as it goes out."""

    plain: bytes
    chunk: bytes
    """The same as a chunk of HTTP/1.1."""


def _news(event: bytes) -> _News:
    return _News(event, b"%x\r\n%b\r\n" % (len(event), event))


class _Viewer:
    """One who looks."""

    def __init__(self, is_welcome: Callable[[], bool], takes_chunks: bool) -> None:
        self.is_welcome = is_welcome
        self.takes_chunks = takes_chunks
        self.transport: asyncio.Transport | None = None
        """His connection, once the answer's head is on it."""
        self.behind_since: float | None = None
        """Since when there is something that he has not read."""
        self.gone = asyncio.Event()


class Live:
    """Tells every viewer the newest snapshot."""

    def __init__(self, take: Callable[[], Awaitable[Json]], viewers_max: int) -> None:
        self._take = take
        self._viewers_max = viewers_max
        self._viewers: dict[_Viewer, None] = {}
        self.taken = 0
        """Snapshots so far, however many looked."""
        self._news: _News | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def viewers(self) -> int:
        """How many look."""
        return len(self._viewers)

    async def close(self) -> None:
        """Let every viewer go, and take no more."""
        self._viewers_max = 0
        for viewer in self._viewers:
            viewer.gone.set()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def serve(self, request: web.Request, is_welcome: Callable[[], bool]) -> web.StreamResponse:
        """Send snapshots until the viewer leaves, or is welcome no more."""
        if self.viewers >= self._viewers_max:
            raise Problem("busy", f"{self.viewers} look already", {"Retry-After": "5"})
        viewer = _Viewer(is_welcome, request.version >= HttpVersion11)
        self._viewers[viewer] = None
        try:
            response = web.StreamResponse(
                headers={hdrs.CONTENT_TYPE: "text/event-stream; charset=utf-8", hdrs.CACHE_CONTROL: "no-store"}
            )
            await response.prepare(request)
            # The head leaves with what is written first; all that follows goes to the connection itself.
            await response.write(b"" if self._news is None else self._news.plain)
            viewer.transport = request.transport
            if not viewer.gone.is_set() and (self._task is None or self._task.done()):
                self._task = asyncio.create_task(self._run(), name="console snapshots")
            await viewer.gone.wait()
        except ConnectionError:
            pass  # he left
        finally:
            del self._viewers[viewer]
        return response

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while self._viewers:
            next_at = loop.time() + EVERY_S
            try:
                self._news = _news(b"event: snapshot\ndata: " + orjson.dumps(await self._take()) + b"\n\n")
                self.taken += 1
            except StoreError as error:
                log.warning("the console cannot look: %s", error)
                self._news = _news(b": no news\n\n")
            await self._tell_all(self._news, next_at - EVERY_S * SPARE)
            await asyncio.sleep(max(next_at - loop.time(), 0))
        # The next viewer begins with a new one.
        self._news = None

    async def _tell_all(self, news: _News, until: float) -> None:
        """Tell the viewers a few at a time, all by ``until``: what else the loop does waits for a few writes only."""
        loop = asyncio.get_running_loop()
        waiting = list(self._viewers)
        for first in range(0, len(waiting), AT_ONCE):
            now = loop.time()
            for viewer in waiting[first : first + AT_ONCE]:
                _tell(viewer, news, now)
            groups = (len(waiting) - first) / AT_ONCE
            await asyncio.sleep(max(min((until - now) / groups, GAP_S), 0))


def _tell(viewer: _Viewer, news: _News, now: float) -> None:
    """Write to one viewer if he has read what there was, and let him go if he should."""
    transport = viewer.transport
    if transport is None or viewer.gone.is_set():
        return
    if transport.is_closing() or not viewer.is_welcome():
        viewer.gone.set()
    elif not transport.get_write_buffer_size():
        viewer.behind_since = None
        transport.write(news.chunk if viewer.takes_chunks else news.plain)
    elif viewer.behind_since is None:
        viewer.behind_since = now
    elif now - viewer.behind_since >= UNREAD_S:
        transport.abort()
        viewer.gone.set()
