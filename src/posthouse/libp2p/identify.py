"""identify: what peers tell each other about themselves when they meet.

In: our own key, addresses and protocols; bytes from another. Out: bytes for another; what another says. All of it is
only what a peer claims: addresses of a kind that is not known are passed over, and lists are cut at their bounds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from . import protobuf
from .errors import BadMultiaddr
from .key import PublicKey
from .multiaddr import Multiaddr
from .settings import Settings

PROTOCOL = "/ipfs/id/1.0.0"
PUSH = "/ipfs/id/push/1.0.0"
_VERSION = "ipfs/0.1.0"
_TEXT_MAX = 256
_FIELDS_MAX = 2_048


@dataclass(frozen=True, slots=True)
class Info:
    """What a peer says of itself."""

    agent: str = ""
    """The program's name and version."""
    protocols: frozenset[str] = frozenset()
    addresses: tuple[Multiaddr, ...] = ()
    """Where it listens."""
    observed: Multiaddr | None = None
    """Where it sees us."""


def encode(
    key: PublicKey, agent: str, protocols: Iterable[str], addresses: Iterable[Multiaddr], observed: Multiaddr | None
) -> bytes:
    """What we say."""
    out = bytearray(protobuf.bytes_field(1, key.encoded))
    for address in addresses:
        out += protobuf.bytes_field(2, address.bare().to_bytes())
    for protocol in protocols:
        out += protobuf.text_field(3, protocol)
    if observed is not None:
        out += protobuf.bytes_field(4, observed.to_bytes())
    out += protobuf.text_field(5, _VERSION)
    out += protobuf.text_field(6, agent)
    return bytes(out)


def decode(data: bytes, settings: Settings) -> Info:
    """What another says; ProtobufError if it is no such message."""
    agent, observed = "", None
    protocols: set[str] = set()
    addresses: list[Multiaddr] = []
    for field, value in protobuf.fields(data, protobuf.Budget(_FIELDS_MAX)):
        if field == 2 and len(addresses) < settings.addresses_known_max:
            address = _address(protobuf.octets(value))
            if address is not None:
                addresses.append(address)
        elif field == 3 and len(protocols) < settings.protocols_known_max:
            protocol = protobuf.text(value)
            if len(protocol) <= _TEXT_MAX:
                protocols.add(protocol)
        elif field == 4:
            observed = _address(protobuf.octets(value))
        elif field == 6:
            agent = protobuf.text(value)[:_TEXT_MAX]
    return Info(agent, frozenset(protocols), tuple(addresses), observed)


def _address(data: bytes) -> Multiaddr | None:
    try:
        return Multiaddr.from_bytes(data).bare()
    except BadMultiaddr:
        return None
