"""The console's server: who comes in, what he may ask, and how mistakes are told.

In: requests of browsers and programs. Out: pages, and JSON under /api/v1. Every request passes the guard, then a
visitor is made of its cookie or its token, then its role is looked at; only then is anything done. The console keeps no
message and knows no second way to change one: all it does are control operations, on threads of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from aiohttp import hdrs, web

from ..config import Config
from ..control import catalogue
from ..control.operation import Answer, Context, Json
from ..engine.engine import Engine
from ..engine.tasks import Tasks
from ..errors import ConfigError, EngineClosed, InvalidInput, MissingExtra, StoreError
from ..gateway.listener import Listener, TooLarge, TooSlow, body
from ..journal import segment
from ..relay.tls import Certificate
from . import api, form, guard, login
from .access import Access, Visitor
from .acts import API
from .attendance import Attendance
from .history import History
from .jobs import Jobs, Report
from .live import Live
from .page import Ask, Page, html
from .pages import PAGES
from .problem import KINDS, Problem
from .render import Renderer
from .role import Role
from .snapshot import MARK_S, Snapshots
from .way import see_other, to_log_in

log = logging.getLogger("posthouse.console")

T = TypeVar("T")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

THREADS = 4
WAITING_MAX = 64
"""Requests that wait for one of these threads."""
LINGER_S = 2.0
LINE_BYTES_MAX = 131_072
"""Names may be long, and their characters stand in a query as up to twelve bytes each."""
LOOK_S = 60.0
RETRY_AFTER_S = "5"


@dataclass(frozen=True, slots=True)
class Limits:
    """What visitors may cost."""

    session_s: float = 43_200.0
    logins_per_min: int = 10
    body_bytes_max: int = 262_144
    body_s: float = 10.0
    head_s: float = 10.0
    connections_max: int = 500
    viewers_max: int = 200


class Console:
    """The console on one port, from ``start`` to ``close``."""

    def __init__(
        self,
        engine: Engine,
        config: Config,
        host: str,
        port: int,
        limits: Limits | None = None,
        certificate: Certificate | None = None,
        public_host: str | None = None,
        bodies: Role | None = Role.ADMIN,
    ) -> None:
        """``bodies``: the least role that may read them; None: nobody may."""
        self.engine = engine
        self.config = config
        self.limits = limits = limits or Limits()
        self.access = Access(engine, limits.session_s, limits.logins_per_min, time.monotonic)
        self.jobs = Jobs()
        self.history = History(engine)
        self.snapshots = Snapshots(engine, time.monotonic)
        self.attendance = Attendance(engine, config.path("journal.dir"))
        self.live = Live(lambda: self.thread(self.snapshots.take), limits.viewers_max)
        self.renderer = Renderer()
        self.pages = PAGES
        self.menu = [page for page in PAGES if page.nav]
        self.answers: Counter[str] = Counter()
        """Requests that were answered, by the code of the problem; ``ok`` where there was none."""
        self.bodies = bodies
        self.scheme = "http" if certificate is None else "https"
        self._certificate = certificate
        self._host = host
        self._public_host = public_host
        self._headers = {**guard.HEADERS, **(guard.TLS_HEADERS if certificate is not None else {})}
        self._threads = ThreadPoolExecutor(THREADS, "posthouse-console")
        self._waiting = 0
        self._tasks = Tasks(log)
        self._warming: asyncio.Task[None] | None = None
        self.app = web.Application(middlewares=[self._answered])
        self.app.on_response_prepare.append(self._guarded)
        self._route()
        self._listener = Listener(
            self.app,
            host,
            port,
            limits.connections_max,
            limits.head_s,
            min(LINGER_S, limits.body_s),
            None if certificate is None else certificate.context,
            LINE_BYTES_MAX,
        )

    def _route(self) -> None:
        router = self.app.router
        router.add_get("/static/{name}", self._static)
        login.route(self, router)
        form.route(self, router)
        api.route(self, router)
        for page in self.pages:
            router.add_get(page.path, self._handler(page))

    def _handler(self, page: Page) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            visitor = self.visitor(request)
            if visitor is None:
                raise to_log_in(request)
            if visitor.role < page.role:
                raise Problem("forbidden", f"this page is for the role {page.role.word}; yours is {visitor.role.word}")
            return await page.handler(Ask(self, request, visitor, page))

        return handle

    # Life.

    async def start(self) -> None:
        """Listen; ConfigError if that is not possible."""
        try:
            await self.thread(self.history.load)
            self._tasks.spawn(self._mark(), "the marks of the console's counters")
            self._tasks.spawn(self._look(), "the console's history")
            self.attendance.start()
            await self._listener.start()
            self._warming = self._tasks.spawn(self._warm(), "the console's warming up")
        except BaseException as error:
            await self.close()
            if isinstance(error, ConfigError):
                raise ConfigError(f"{error} (console.host, console.port)") from error
            raise

    async def close(self) -> None:
        """Let everybody go, and stop what runs. Idempotent."""
        await self._tasks.close()
        await self.attendance.close()
        await self.live.close()
        await self.jobs.close()
        await self._listener.close()
        self.access.close()
        # The store is closed behind this: no thread may still be reading it.
        await asyncio.to_thread(self._threads.shutdown, cancel_futures=True)

    def reload(self) -> None:
        """Read the certificate again, if there is one; a broken one changes nothing."""
        if self._certificate is None:
            return
        try:
            self._certificate.reload()
        except ConfigError as error:
            log.error("the old certificate stays: %s", error)
        else:
            log.info("the certificate was read again")

    @property
    def port(self) -> int:
        """The port, once it listens."""
        return self._listener.port

    @property
    def connections(self) -> int:
        """How many are open."""
        return self._listener.connections

    @property
    def address(self) -> str:
        """Where browsers find it."""
        host = self._public_host or ("127.0.0.1" if self._host in ("*", "0.0.0.0", "::") else self._host)
        return f"{self.scheme}://{f'[{host}]' if ':' in host else host}:{self.port}"

    async def warmed_up(self) -> None:
        """Return when the first page is as quick as the next ones, and who is connected is known."""
        if self._warming is not None:
            await asyncio.shield(self._warming)
        await self.attendance.caught_up()

    async def _warm(self) -> None:
        """Load what the first pages would otherwise wait for."""

        def load() -> None:
            catalogue.load()
            with contextlib.suppress(MissingExtra):
                segment.arrow()

        await self.thread(load)

    async def _mark(self) -> None:
        while True:
            await asyncio.sleep(MARK_S)
            self.snapshots.mark()

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                await self.thread(self.history.look)
            except EngineClosed:
                return
            except StoreError as error:
                log.warning("the console's history misses a minute: %s", error)

    # For pages and the API.

    async def thread(self, job: Callable[[], T]) -> T:
        """Run something that blocks on a thread of the console's own."""
        if self._waiting >= WAITING_MAX:
            raise Problem("busy", f"{self._waiting} requests wait already", {"Retry-After": RETRY_AFTER_S})
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, job)
        finally:
            self._waiting -= 1

    async def run(self, visitor: Visitor, operation: str, parameters: Mapping[str, Any]) -> Answer:
        """Do an operation for a visitor; what he may not read is not in the answer."""
        context = self.context(visitor, lambda done, total, doing: None)
        answer = await self.thread(lambda: catalogue.run(context, operation, parameters))
        if isinstance(answer, dict) and "body" in answer:
            answer["body_hidden"] = not self.may_read(visitor)
            if answer["body_hidden"]:
                answer["body"] = None
        return answer

    def context(self, visitor: Visitor, report: Report) -> Context:
        """What an operation of this visitor works with."""
        return Context(self.engine, self.config, visitor.by, report)

    def may_read(self, visitor: Visitor) -> bool:
        """Whether bodies are for him."""
        return self.bodies is not None and visitor.role >= self.bodies

    async def overview(self) -> Json:
        """How everything stands."""
        return await self.thread(self.snapshots.take)

    async def body(self, request: web.Request) -> bytes:
        """A request's body, within its limits."""
        return await body(request, self.limits.body_bytes_max, self.limits.body_s)

    def visitor(self, request: web.Request) -> Visitor | None:
        """Whose browser this is; None: nobody's that logged in."""
        cookie = request.cookies.get(self.cookie)
        return None if cookie is None else self.access.visitor(cookie)

    @property
    def cookie(self) -> str:
        """The name of the session's cookie. Over TLS it is one that no other host could have set."""
        # Browsers tell hosts apart, but not ports: a second console here has another cookie.
        return f"{'__Host-' if self.scheme == 'https' else ''}posthouse_{self.port}"

    def new_secret(self) -> str:
        """Something nobody can guess."""
        return secrets.token_urlsafe(24)

    # Every request.

    @web.middleware
    async def _answered(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Guard the door, and turn every error into an answer."""
        response: web.StreamResponse
        try:
            guard.check_host(request, self._public_host)
            guard.check_origin(request, self.scheme)
            response = await handler(request)
            self.answers["ok"] += 1
        except (ConnectionError, asyncio.CancelledError):
            raise
        except web.HTTPRedirection as redirection:
            self.answers["ok"] += 1
            response = see_other(redirection.headers[hdrs.LOCATION])
        except Exception as error:
            problem = error if isinstance(error, Problem) else _problem_of(error)
            self.answers[problem.code] += 1
            response = self._told(request, problem)
        return response

    async def _guarded(self, request: web.Request, response: web.StreamResponse) -> None:
        response.headers.update(self._headers)

    def _told(self, request: web.Request, problem: Problem) -> web.StreamResponse:
        """A problem as JSON for programs and as a page for people."""
        if request.path.startswith(f"{API}/") or problem.code == "misdirected":
            response = problem.response()
            response.headers[hdrs.CACHE_CONTROL] = "no-store"
            return response
        status, title = KINDS[problem.code]
        visitor = None
        with contextlib.suppress(StoreError):
            visitor = self.visitor(request)
        if visitor is None:
            page = self.renderer.page("problem_bare.html", {"title": title, "detail": problem.detail})
            return html(page, status, problem.headers)
        answer = Ask(self, request, visitor).render("problem.html", status=status, title=title, detail=problem.detail)
        answer.headers.update(problem.headers)
        return answer

    async def _static(self, request: web.Request) -> web.StreamResponse:
        asset = self.renderer.assets.get(request.match_info["name"])
        if asset is None:
            raise web.HTTPNotFound
        lasting = request.query.get("v") == asset.mark
        return web.Response(
            body=asset.data,
            content_type=asset.kind,
            charset="utf-8",
            headers={hdrs.CACHE_CONTROL: "public, max-age=31536000, immutable" if lasting else "no-cache"},
        )


def _problem_of(error: Exception) -> Problem:
    """What is told of an error; nothing of what went wrong inside."""
    match error:
        case TooLarge():
            return Problem("too_large", str(error), {"Connection": "close"})
        case TooSlow():
            return Problem("too_slow", str(error), {"Connection": "close"})
        case InvalidInput():
            return Problem("invalid", str(error))
        case StoreError():
            log.warning("a visitor of the console found no store: %s", error)
            return Problem("unavailable", "try again", {"Retry-After": RETRY_AFTER_S})
        case web.HTTPNotFound():
            return Problem("not_found", "there is no such address")
        case web.HTTPMethodNotAllowed():
            allowed = ", ".join(sorted(error.allowed_methods))
            return Problem("method_not_allowed", f"allowed is {allowed}", {"Allow": allowed})
        case web.HTTPException():
            return Problem("too_large" if error.status == 413 else "invalid", error.reason or "not a request")
    log.error("a request to the console failed", exc_info=error)
    return Problem("internal", "the log says more")
