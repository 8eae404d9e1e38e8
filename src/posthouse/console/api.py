"""The API under /api/v1: the acts for programs, and the same for the console's own scripts.

In: a token in the header ``Authorization``, or a session's cookie, which for what changes something needs the session's
mark in the header ``X-CSRF-Token`` beside it. Out: JSON; errors as problem details.
"""

from __future__ import annotations

import hmac
import math
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import orjson
from aiohttp import hdrs, web

from ..control.operation import Json, Refused
from ..control.token import PREFIX
from ..errors import InvalidInput
from ..gateway import strict
from . import history, openapi
from .access import Visitor
from .acts import ACTS, API, Act
from .field import from_json, from_text, text
from .form import start
from .guard import SAFE
from .page import refusal
from .problem import Problem
from .role import OPERATOR, VIEWER, Role

if TYPE_CHECKING:
    from .server import Console

CSRF = "X-CSRF-Token"
_WINDOW = (text("window", "Which one.", one_of=tuple(history.BY_NAME)),)


def route(console: Console, router: web.UrlDispatcher) -> None:
    """Add the API's addresses."""
    api = _Api(console)
    for act in ACTS:
        if act.changes:
            router.add_post(act.path, api.post(act))
        else:
            router.add_get(act.path, api.get(act), allow_head=False)
    router.add_get(f"{API}/overview", api.overview, allow_head=False)
    router.add_get(f"{API}/history", api.history, allow_head=False)
    router.add_get(f"{API}/live", api.live, allow_head=False)
    router.add_get(f"{API}/settings", api.settings, allow_head=False)
    router.add_get(f"{API}/jobs/{{id}}", api.job, allow_head=False)
    router.add_post(f"{API}/jobs/{{id}}/stop", api.stop)
    router.add_get(f"{API}/openapi.json", api.document, allow_head=False)


class _Api:
    def __init__(self, console: Console) -> None:
        self._console = console

    def visitor(self, request: web.Request, role: Role) -> Visitor:
        """Who asks, if he may; else a Problem."""
        console, now = self._console, time.monotonic()
        header = request.headers.get(hdrs.AUTHORIZATION)
        found: Visitor | None
        if header is not None:
            found = console.access.bearer(header)
            if found is None:
                self._wrong(request.remote or "", now)
        else:
            found = console.visitor(request)
            mark = request.headers.get(CSRF, "").encode(errors="replace")
            if found is not None and request.method not in SAFE and not hmac.compare_digest(mark, found.csrf.encode()):
                raise Problem("cross_site", f"with a cookie, the header {CSRF} is needed")
        if found is None:
            raise Problem(
                "unauthorized",
                f"give a token that has a role: Authorization: Bearer {PREFIX}…",
                {"WWW-Authenticate": 'Bearer realm="posthouse console"'},
            )
        if found.role < role:
            raise Problem("forbidden", f"this is for the role {role.word}; yours is {found.role.word}")
        return found

    def _wrong(self, address: str, now: float) -> None:
        """A token that is nothing here. Whoever has a right one is not shut out by others at his address."""
        tries = self._console.access.tries
        if wait_s := tries.wait_s(address, now):
            wait = str(math.ceil(wait_s))
            raise Problem("rate_limited", f"too many wrong tokens; wait {wait} s", {"Retry-After": wait})
        tries.wrong(address, now)

    def get(self, act: Act) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        """The handler of an act that only looks."""

        async def handle(request: web.Request) -> web.StreamResponse:
            visitor = self.visitor(request, act.role)
            return await self._done(visitor, act, from_text(_query(request), act.fields))

        return handle

    def post(self, act: Act) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        """The handler of an act that changes something."""

        async def handle(request: web.Request) -> web.StreamResponse:
            visitor = self.visitor(request, act.role)
            if request.query_string:
                raise InvalidInput("a post takes no parameters; all of it stands in the body")
            if request.content_type != "application/json":
                raise Problem("unsupported_media_type", "say Content-Type: application/json")
            given = from_json(strict.loads(await self._console.body(request)), act.fields)
            if act.long:
                return _answer(start(self._console, visitor, act, given).as_json(), 202)
            return await self._done(visitor, act, given)

        return handle

    async def _done(self, visitor: Visitor, act: Act, given: Json) -> web.Response:
        answer = await self._console.run(visitor, act.name, act.adapt(given))
        if isinstance(answer, Refused):
            raise refusal(answer)
        return _answer(answer)

    async def overview(self, request: web.Request) -> web.StreamResponse:
        self.visitor(request, VIEWER)
        from_text(_query(request), ())
        return _answer(await self._console.overview())

    async def history(self, request: web.Request) -> web.StreamResponse:
        self.visitor(request, VIEWER)
        window = history.BY_NAME[from_text(_query(request), _WINDOW).get("window", "hour")]
        console = self._console
        return _answer(history.as_json(console.engine.store, window, console.history.rows(window)))

    async def live(self, request: web.Request) -> web.StreamResponse:
        self.visitor(request, VIEWER)

        def is_welcome() -> bool:
            try:
                self.visitor(request, VIEWER)
            except Problem:
                return False
            return True

        return await self._console.live.serve(request, is_welcome)

    async def settings(self, request: web.Request) -> web.StreamResponse:
        self.visitor(request, VIEWER)
        from_text(_query(request), ())
        config = self._console.config
        return _answer({"file": str(config.file) if config.file else None, "settings": config.explain()})

    async def job(self, request: web.Request) -> web.StreamResponse:
        self.visitor(request, VIEWER)
        from_text(_query(request), ())
        return _answer(self._console.jobs.get(request.match_info["id"]).as_json())

    async def stop(self, request: web.Request) -> web.StreamResponse:
        self.visitor(request, OPERATOR)
        from_text(_query(request), ())
        job = self._console.jobs.get(request.match_info["id"])
        job.stopping.set()
        return _answer(job.as_json(), 202)

    async def document(self, request: web.Request) -> web.StreamResponse:
        return _answer(openapi.document())


def _query(request: web.Request) -> dict[str, str]:
    given = request.query
    if len(set(given)) != len(given):
        raise InvalidInput("a parameter is given twice")
    return dict(given)


def _answer(document: Json, code: int = 200) -> web.Response:
    return web.Response(
        body=orjson.dumps(document),
        status=code,
        content_type="application/json",
        headers={hdrs.CACHE_CONTROL: "no-store"},
    )
