"""Addresses of peers: /ip4/192.0.2.7/tcp/4001/p2p/12D3KooW…

In: text or bytes. Out: the parts, in order. Only TCP can be dialled here; the other kinds that peers tell of
themselves (QUIC, WebSocket, relays) are understood, so that they can be shown and passed over. An address in bytes of
a kind that is not in the table cannot be cut into parts and is refused.
"""

from __future__ import annotations

import base64
import ipaddress
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from . import varint
from .errors import BadMultiaddr, BadPeerId, VarintError
from .peer_id import PeerId

PARTS_MAX = 16
BYTES_MAX = 1_024
_NAME_MAX = 253


class _Kind(NamedTuple):
    code: int
    size: int
    """Of the value, in bytes; 0: it has none; -1: it stands behind its length."""
    to_bytes: Callable[[str], bytes]
    to_text: Callable[[bytes], str]


class Endpoint(NamedTuple):
    """Where a TCP address leads."""

    kind: str
    """ip4, ip6, dns, dns4 or dns6."""
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Multiaddr:
    """An address; each part is a name and its value, which is "" where there is none."""

    parts: tuple[tuple[str, str], ...]

    @classmethod
    def parse(cls, text: str) -> Multiaddr:
        """From text; BadMultiaddr says what is wrong with it."""
        if len(text) > BYTES_MAX:
            raise BadMultiaddr(f"an address has at most {BYTES_MAX} characters")
        if not text.startswith("/"):
            raise BadMultiaddr(f"an address begins with a slash: {text!r}")
        words = text.strip("/").split("/")
        parts: list[tuple[str, str]] = []
        at = 0
        while at < len(words):
            name = _ALIASES.get(words[at], words[at])
            at += 1
            kind = _KINDS.get(name)
            if kind is None:
                raise BadMultiaddr(f"unknown kind of address {name!r} in {text!r}")
            value = ""
            if kind.size:
                if at == len(words):
                    raise BadMultiaddr(f"{name} needs a value in {text!r}")
                try:
                    value = kind.to_text(kind.to_bytes(words[at]))
                except (ValueError, BadPeerId) as error:
                    raise BadMultiaddr(f"{words[at]!r} is no value of {name}: {error}") from None
                at += 1
            parts.append((name, value))
        if len(parts) > PARTS_MAX:
            raise BadMultiaddr(f"an address has at most {PARTS_MAX} parts")
        return cls(tuple(parts))

    @classmethod
    def from_bytes(cls, data: bytes) -> Multiaddr:
        """From bytes; BadMultiaddr if they are none, or of a kind that is not known."""
        if not 0 < len(data) <= BYTES_MAX:
            raise BadMultiaddr(f"an address has 1 to {BYTES_MAX} bytes, not {len(data)}")
        parts: list[tuple[str, str]] = []
        at = 0
        try:
            while at < len(data):
                code, at = _number(data, at)
                name = _NAMES.get(code)
                if name is None:
                    raise BadMultiaddr(f"unknown kind of address {code}")
                kind = _KINDS[name]
                size = kind.size
                if size < 0:
                    size, at = _number(data, at)
                value = data[at : at + size]
                if len(value) != size:
                    raise BadMultiaddr(f"the value of {name} is cut off")
                at += size
                parts.append((name, kind.to_text(value) if size else ""))
                if len(parts) > PARTS_MAX:
                    raise BadMultiaddr(f"an address has at most {PARTS_MAX} parts")
        except (ValueError, VarintError, BadPeerId) as error:
            raise BadMultiaddr(f"no address: {error}") from None
        return cls(tuple(parts))

    def to_bytes(self) -> bytes:
        """As it stands in frames."""
        out = bytearray()
        for name, value in self.parts:
            kind = _KINDS[name]
            out += varint.encode(kind.code)
            if kind.size:
                data = kind.to_bytes(value)
                out += varint.frame(data) if kind.size < 0 else data
        return bytes(out)

    def __str__(self) -> str:
        return "".join(f"/{name}/{value}" if value else f"/{name}" for name, value in self.parts)

    @property
    def endpoint(self) -> Endpoint | None:
        """Where it leads if it is plain TCP, to a peer or to whoever is there; None for every other kind."""
        names = [name for name, _ in self.parts]
        if names[1:] not in (["tcp"], ["tcp", "p2p"]) or names[0] not in ("ip4", "ip6", "dns", "dns4", "dns6"):
            return None
        return Endpoint(names[0], self.parts[0][1], int(self.parts[1][1]))

    @property
    def peer_id(self) -> PeerId | None:
        """The peer at its end, if it names one."""
        return PeerId.parse(self.parts[-1][1]) if self.parts and self.parts[-1][0] == "p2p" else None

    def at(self, peer: PeerId) -> Multiaddr:
        """The same address, of that peer."""
        return Multiaddr((*self.bare().parts, ("p2p", str(peer))))

    def bare(self) -> Multiaddr:
        """The same address without the peer at its end."""
        return Multiaddr(self.parts[:-1]) if self.parts and self.parts[-1][0] == "p2p" else self


def tcp(host: str, port: int) -> Multiaddr:
    """The address of a TCP port; the host is an IP address or a name."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return Multiaddr.parse(f"/dns/{host}/tcp/{port}")
    return Multiaddr((("ip4" if address.version == 4 else "ip6", str(address)), ("tcp", str(port))))


def _number(data: bytes, at: int) -> tuple[int, int]:
    found = varint.decode(data, at)
    if found is None:
        raise BadMultiaddr("the address is cut off")
    return found


def _port_bytes(text: str) -> bytes:
    if not (text.isascii() and text.isdigit() and len(text) <= 5) or int(text) > 0xFFFF:
        raise ValueError("a port is a number from 0 to 65535")
    return int(text).to_bytes(2, "big")


def _name_bytes(text: str) -> bytes:
    data = text.encode()
    if not 0 < len(data) <= _NAME_MAX or any(byte <= 0x20 or byte == 0x7F for byte in data):
        raise ValueError(f"a name has 1 to {_NAME_MAX} characters, none of them blank")
    return data


def _name_text(data: bytes) -> str:
    text = data.decode()
    if "/" in text:
        raise ValueError("a name with a slash")
    _name_bytes(text)
    return text


def _peer_bytes(text: str) -> bytes:
    return PeerId.parse(text).raw


def _hash_bytes(text: str) -> bytes:
    if not text.startswith("u"):
        raise ValueError("a hash in base64url begins with u")
    return base64.urlsafe_b64decode(text[1:] + "=" * (-(len(text) - 1) % 4))


_PORT = (2, _port_bytes, lambda data: str(int.from_bytes(data, "big")))
_NAME = (-1, _name_bytes, _name_text)
_NONE = (0, lambda text: b"", lambda data: "")

_KINDS: dict[str, _Kind] = {
    "ip4": _Kind(4, 4, lambda text: ipaddress.IPv4Address(text).packed, lambda data: str(ipaddress.IPv4Address(data))),
    "tcp": _Kind(6, *_PORT),
    "ip6": _Kind(
        41, 16, lambda text: ipaddress.IPv6Address(text).packed, lambda data: str(ipaddress.IPv6Address(data))
    ),
    "ip6zone": _Kind(42, *_NAME),
    "dns": _Kind(53, *_NAME),
    "dns4": _Kind(54, *_NAME),
    "dns6": _Kind(55, *_NAME),
    "dnsaddr": _Kind(56, *_NAME),
    "udp": _Kind(273, *_PORT),
    "webrtc-direct": _Kind(280, *_NONE),
    "webrtc": _Kind(281, *_NONE),
    "p2p-circuit": _Kind(290, *_NONE),
    "p2p": _Kind(421, -1, _peer_bytes, lambda data: str(PeerId(data))),
    "tls": _Kind(448, *_NONE),
    "sni": _Kind(449, *_NAME),
    "noise": _Kind(454, *_NONE),
    "quic": _Kind(460, *_NONE),
    "quic-v1": _Kind(461, *_NONE),
    "webtransport": _Kind(465, *_NONE),
    "certhash": _Kind(466, -1, _hash_bytes, lambda data: "u" + base64.urlsafe_b64encode(data).decode().rstrip("=")),
    "ws": _Kind(477, *_NONE),
    "wss": _Kind(478, *_NONE),
    "http": _Kind(480, *_NONE),
}
_NAMES = {kind.code: name for name, kind in _KINDS.items()}
_ALIASES = {"ipfs": "p2p"}
