"""Where the gateway may connect to when somebody else names the place: the public internet, and what is allowed.

In: networks that are allowed, and the addresses that a connection is about to be made to. Out: a connector that
refuses all others. It looks at the address of each connection itself, behind name resolution and at the moment of
connecting, so a name that leads to the loopback, or does so the second time, is refused as the bare address is.
Redirects are never followed by those who use it.
"""

from __future__ import annotations

import errno
import ipaddress
import re
import socket
import urllib.parse
from collections.abc import Iterable
from typing import Any

import aiohttp

from ..errors import ConfigError, InvalidInput

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

URL_CHARACTERS_MAX = 2_048
_PLAIN = re.compile(r"[!-~]+")
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


def networks(texts: Iterable[str]) -> tuple[Network, ...]:
    """Networks from text such as ``10.1.0.0/16`` or ``127.0.0.1``; ConfigError names one that is none."""
    found: list[Network] = []
    for text in texts:
        try:
            found.append(ipaddress.ip_network(text.strip()))
        except ValueError:
            raise ConfigError(f"a network is written as 10.1.0.0/16, fd00::/8 or 127.0.0.1: {text[:60]!r}") from None
    return tuple(found)


class Guard:
    """Says which addresses may be connected to."""

    def __init__(self, allowed: Iterable[Network] = ()) -> None:
        self._allowed = tuple(allowed)

    def may_reach(self, address: Address) -> bool:
        """Whether an address is public, or allowed."""
        # An IPv6 address may stand for an IPv4 one; what counts is where the packets go.
        inner = address if isinstance(address, ipaddress.IPv4Address) else _inner(address)
        for one in {address, inner}:
            if any(one in network for network in self._allowed if network.version == one.version):
                return True
        return all(one.is_global and not one.is_multicast for one in {address, inner})

    def check_url(self, url: str) -> str:
        """A URL that may be asked for, as far as its text tells; InvalidInput if it may not."""
        if len(url) > URL_CHARACTERS_MAX:
            raise InvalidInput(f"a URL has at most {URL_CHARACTERS_MAX} characters")
        try:
            parts = urllib.parse.urlsplit(url)
            host, _ = parts.hostname, parts.port
        except ValueError:
            host, parts = None, urllib.parse.urlsplit("")
        if parts.scheme not in ("http", "https") or not host or not _PLAIN.fullmatch(url):
            raise InvalidInput("a target is a URL: http:// or https:// and a host")
        if parts.username is not None or parts.password is not None:
            raise InvalidInput("a target's URL must not hold a user or a password")
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return url
        if not self.may_reach(address):
            raise InvalidInput(refusal(str(address)))
        return url

    def connector(self, **options: Any) -> aiohttp.TCPConnector:
        """What an HTTP client connects with."""
        return aiohttp.TCPConnector(socket_factory=self._socket, **options)

    def _socket(self, info: Any) -> socket.socket:
        family, kind, protocol, _, where = info
        # The address may carry a zone: fe80::1%eth0.
        address = ipaddress.ip_address(str(where[0]).partition("%")[0])
        if not self.may_reach(address):
            raise PermissionError(errno.EACCES, refusal(str(address)))
        return socket.socket(family, kind, protocol)


def refusal(address: str) -> str:
    """What is said of an address that may not be reached."""
    return f"{address} is not a public address, and no setting allows it"


def is_refusal(error: BaseException) -> bool:
    """Whether a failed connection was one that the guard did not allow."""
    found: BaseException | None = error
    while found is not None:
        if isinstance(found, OSError) and found.errno == errno.EACCES:
            return True
        found = found.__cause__
    return False


def _inner(address: ipaddress.IPv6Address) -> Address:
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address.teredo is not None:
        return address.teredo[1]
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
    # ::a.b.c.d, which nobody should use any more.
    if int(address) >> 32 == 0 and int(address) > 1:
        return ipaddress.IPv4Address(int(address))
    return address
