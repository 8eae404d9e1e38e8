"""The guard at the door: which requests are looked at at all, and what every answer says to browsers.

In: a request's head. Out: nothing, or a Problem. A name that leads here only by a forged DNS answer is refused, and so
is whatever another site makes a browser send. It knows no visitor and reads no body.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping

from aiohttp import hdrs, web

from .problem import Problem

HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # Not no-referrer: with that, browsers hide from us where our own forms were sent from.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=(), payment=(), usb=()",
}
TLS_HEADERS: Mapping[str, str] = {"Strict-Transport-Security": "max-age=31536000"}
SAFE = frozenset({"GET", "HEAD"})


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach what listens here."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_host(request: web.Request, public_host: str | None) -> None:
    """The request names us as we may be named. An address cannot be forged by DNS, so any will do."""
    given = request.headers.getall(hdrs.HOST, [])
    if len(given) == 1 and _is_ours(given[0], public_host):
        return
    raise Problem("misdirected", "call it by its address, by localhost, or by the name in console.public_host")


def _is_ours(given: str, public_host: str | None) -> bool:
    name, _, port = given.rpartition(":") if not given.endswith("]") else (given, "", "")
    if not name:
        name, port = given, ""
    if port and not (port.isascii() and port.isdigit()):
        return False
    name = name.lower()
    if name == "localhost" or (public_host is not None and name == public_host.lower()):
        return True
    try:
        if name.startswith("[") and name.endswith("]"):
            ipaddress.IPv6Address(name[1:-1])
        else:
            ipaddress.IPv4Address(name)
    except ValueError:
        return False
    return True


def check_origin(request: web.Request, scheme: str) -> None:
    """What a script asks, or what may change something, comes from our own pages, or from no page at all.

    A link on another site may lead here: browsers say no Origin then, and send no cookie of ours.
    """
    site = request.headers.get("Sec-Fetch-Site", "same-origin") if request.method not in SAFE else "none"
    origin = request.headers.get(hdrs.ORIGIN)
    ours = f"{scheme}://{request.headers.get(hdrs.HOST, '')}"
    if site not in ("same-origin", "none") or (origin is not None and origin.lower() != ours.lower()):
        raise Problem("cross_site", "only the console's own pages may send this")
