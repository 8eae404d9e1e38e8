"""Logging in and out: a token once, then a cookie.

In: a token, by a form that only our own page can send. Out: a session's cookie, which no script can read and no other
site can use. How often an address may be wrong is limited. The link of the start-up summary fills the form in; it logs
nobody in by being looked at.
"""

from __future__ import annotations

import hmac
import logging
import math
import time
from typing import TYPE_CHECKING

from aiohttp import web

from .form import fields_of
from .page import html
from .problem import Problem
from .way import LOG_IN, safe_next, see_other

if TYPE_CHECKING:
    from .server import Console

log = logging.getLogger("posthouse.console")

FORM_S = 3_600.0
"""How long the log-in page is good for."""


def route(console: Console, router: web.UrlDispatcher) -> None:
    """Add the log-in's addresses."""
    pages = _Login(console)
    router.add_get(LOG_IN, pages.show)
    router.add_post(LOG_IN, pages.log_in)
    router.add_post("/logout", pages.log_out)


class _Login:
    def __init__(self, console: Console) -> None:
        self._console = console

    @property
    def _nonce(self) -> str:
        return f"posthouse_form_{self._console.port}"

    async def show(self, request: web.Request) -> web.StreamResponse:
        if self._console.visitor(request) is not None and "once" not in request.query:
            return see_other(safe_next(request.query.get("next", "/")))
        return self._page(request, request.query.get("next", "/"), token=request.query.get("once", "")[:200])

    def _page(
        self, request: web.Request, wanted: str, *, token: str = "", error: str = "", status: int = 200
    ) -> web.Response:
        nonce = self._console.new_secret()
        values = {
            "title": "Log in",
            "csrf": self._console.access.form_mark(nonce),
            "next": safe_next(wanted),
            "token": token,
            "error": error,
        }
        response = html(self._console.renderer.page("login.html", values), status)
        self._set(response, self._nonce, nonce, FORM_S)
        return response

    def _set(self, response: web.StreamResponse, name: str, value: str, age_s: float) -> None:
        secure = self._console.scheme == "https"
        response.set_cookie(name, value, max_age=int(age_s), path="/", httponly=True, samesite="Strict", secure=secure)

    async def log_in(self, request: web.Request) -> web.StreamResponse:
        console = self._console
        access, now = console.access, time.monotonic()
        address = request.remote or ""
        if wait_s := access.tries.wait_s(address, now):
            raise Problem(
                "rate_limited",
                f"too many wrong tokens came from your address; wait {math.ceil(wait_s)} s",
                {"Retry-After": str(math.ceil(wait_s))},
            )
        given = fields_of(await console.body(request), request)
        nonce = request.cookies.get(self._nonce, "")
        if not nonce or not hmac.compare_digest(given.get("csrf", "").encode(), access.form_mark(nonce).encode()):
            return self._page(
                request,
                given.get("next", "/"),
                error="The form is too old, or cookies are off. Try again.",
                status=403,
            )
        cookie = access.log_in(given.get("token", "").strip())
        visitor = None if cookie is None else access.visitor(cookie)
        if cookie is None or visitor is None:
            access.tries.wrong(address, now)
            log.warning("a log-in from %s had no token that is known", address)
            return self._page(
                request, given.get("next", "/"), error="This token is not known here, or has no role.", status=401
            )
        response = see_other(safe_next(given.get("next", "/")))
        self._set(response, console.cookie, cookie, console.limits.session_s)
        response.del_cookie(self._nonce, path="/")
        log.info("%s logged in from %s", visitor.by, address)
        return response

    async def log_out(self, request: web.Request) -> web.StreamResponse:
        console = self._console
        visitor = console.visitor(request)
        given = fields_of(await console.body(request), request)
        if visitor is not None:
            if not hmac.compare_digest(given.get("csrf", "").encode(), visitor.csrf.encode()):
                raise Problem("cross_site", "the form does not carry its mark; load the page again")
            console.access.log_out(request.cookies[console.cookie])
        response = see_other(LOG_IN)
        response.del_cookie(
            console.cookie, path="/", secure=console.scheme == "https", httponly=True, samesite="Strict"
        )
        return response
