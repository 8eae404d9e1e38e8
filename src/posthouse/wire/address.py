"""Addresses of agents: pinch:<base58 of public key and checksum>@<relay host>.

In: text from anybody, or a public key. Out: the parts of a well-formed address, or BadAddress.
It never asks whether the agent exists, nor whether the host is ours.
"""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from typing import NamedTuple

from ..errors import BadAddress

PUBLIC_KEY_BYTES = 32
HOST_CHARACTERS_MAX = 255
_PREFIX = "pinch:"
_CHECKSUM_BYTES = 4
_RAW_BYTES = PUBLIC_KEY_BYTES + _CHECKSUM_BYTES
_TEXT_MAX = 50  # 36 bytes never take more characters
_ALPHABET = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_VALUES = {character: value for value, character in enumerate(_ALPHABET)}
_HOST = re.compile(rf"[!-.0-?A-~]{{1,{HOST_CHARACTERS_MAX}}}")
"""Printable ASCII without space, slash and @: a name, perhaps with a port."""


class Address(NamedTuple):
    """Who (an Ed25519 public key) and at which relay."""

    public_key: bytes
    host: str


@lru_cache(maxsize=16_384)
def address_of(public_key: bytes, host: str) -> str:
    """The address of a public key at a relay."""
    if len(public_key) != PUBLIC_KEY_BYTES:
        raise BadAddress(f"a public key has {PUBLIC_KEY_BYTES} bytes, not {len(public_key)}")
    if not is_host(host):
        raise BadAddress(f"no host of a relay: {host[:60]!r}")
    return f"{_PREFIX}{_base58(public_key + _checksum(public_key))}@{host}"


@lru_cache(maxsize=16_384)
def parse_address(text: str) -> Address:
    """The parts of an address; BadAddress if it is none. One address has one spelling."""
    key_text, at, host = text.removeprefix(_PREFIX).partition("@")
    if not text.startswith(_PREFIX) or not at:
        raise BadAddress(f"an address is pinch:<key>@<host>: {text[:80]!r}")
    if not is_host(host):
        raise BadAddress(f"no host of a relay: {host[:60]!r}")
    if not 0 < len(key_text) <= _TEXT_MAX:
        raise BadAddress(f"the key in an address has at most {_TEXT_MAX} characters, not {len(key_text)}")
    number = 0
    for character in key_text:
        value = _VALUES.get(character)
        if value is None:
            raise BadAddress(f"not a character of base58: {character!r}")
        number = number * 58 + value
    zeros = len(key_text) - len(key_text.lstrip("1"))
    raw = bytes(zeros) + number.to_bytes((number.bit_length() + 7) // 8, "big")
    if len(raw) != _RAW_BYTES:
        raise BadAddress(f"the key in an address has {_RAW_BYTES} bytes with its checksum, not {len(raw)}")
    public_key = raw[:PUBLIC_KEY_BYTES]
    if raw[PUBLIC_KEY_BYTES:] != _checksum(public_key):
        raise BadAddress("the checksum of the address is wrong; was it copied whole?")
    return Address(public_key, host)


def is_host(host: str) -> bool:
    """Whether a relay can have this name."""
    return _HOST.fullmatch(host) is not None


def _checksum(public_key: bytes) -> bytes:
    return hashlib.sha256(public_key).digest()[:_CHECKSUM_BYTES]


def _base58(raw: bytes) -> str:
    number, digits = int.from_bytes(raw, "big"), []
    while number:
        number, digit = divmod(number, 58)
        digits.append(_ALPHABET[digit])
    zeros = len(raw) - len(raw.lstrip(b"\0"))
    return "1" * zeros + "".join(reversed(digits))
