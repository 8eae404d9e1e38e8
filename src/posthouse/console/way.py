"""Ways: where a visitor is sent, always to a place of our own."""

from __future__ import annotations

from urllib.parse import urlencode

from aiohttp import hdrs, web

LOG_IN = "/login"
NEXT_MAX = 2_000


def to_log_in(request: web.Request) -> web.HTTPSeeOther:
    """Where somebody without a session is sent; from there he comes back to where he wanted to go."""
    wanted = request.path_qs
    lost = wanted == "/" or len(wanted) > NEXT_MAX or request.method != "GET"
    return web.HTTPSeeOther(LOG_IN if lost else with_next(LOG_IN, wanted))


def safe_next(path: str) -> str:
    """A place of our own to go on to: a path, and nothing that a browser takes for another host."""
    good = path.startswith("/") and not path.startswith("//") and path.isascii() and path.isprintable()
    return path if good and "\\" not in path and len(path) <= NEXT_MAX else "/"


def see_other(path: str) -> web.Response:
    """Send a browser to a place of our own."""
    return web.Response(status=303, headers={hdrs.LOCATION: path, hdrs.CACHE_CONTROL: "no-store"})


def with_next(path: str, wanted: str) -> str:
    """A path that says where to go on to."""
    return f"{path}?{urlencode({'next': wanted})}"
