"""Peer ids: the name of a peer, made of its public key.

In: a public key, a text or bytes. Out: the other forms. A short key stands in the id itself, so an id of Ed25519 gives
its key back; a long one (RSA) stands there as its SHA-256.
"""

from __future__ import annotations

import base64
import hashlib
from functools import lru_cache

from . import base58
from .errors import BadKey, BadPeerId
from .key import PublicKey

_IDENTITY, _SHA256 = 0x00, 0x12
_INLINE_BYTES_MAX = 42
_CID_HEAD = bytes((1, 0x72))
_TEXT_MAX = 128


class PeerId:
    """The name of a peer. Equal names are equal objects for sets and dictionaries."""

    __slots__ = ("_hash", "_text", "raw")

    def __init__(self, raw: bytes) -> None:
        if len(raw) < 2 or raw[1] != len(raw) - 2:
            raise BadPeerId("a peer id is a hash behind its kind and its length")
        if not (raw[0] == _IDENTITY and 0 < raw[1] <= _INLINE_BYTES_MAX) and not (raw[0] == _SHA256 and raw[1] == 32):
            raise BadPeerId("a peer id is a short public key or the SHA-256 of a long one")
        self.raw = raw
        """The multihash: as it stands in frames."""
        self._hash = hash(raw)
        self._text = ""

    @classmethod
    def of(cls, key: PublicKey) -> PeerId:
        """The id of the owner of a key."""
        encoded = key.encoded
        if len(encoded) <= _INLINE_BYTES_MAX:
            return cls(bytes((_IDENTITY, len(encoded))) + encoded)
        return cls(bytes((_SHA256, 32)) + hashlib.sha256(encoded).digest())

    @classmethod
    def parse(cls, text: str) -> PeerId:
        """From text: base58 (12D3KooW…, Qm…), or a CID in base32 (bafz…)."""
        if len(text) > _TEXT_MAX:
            raise BadPeerId(f"a peer id has at most {_TEXT_MAX} characters")
        try:
            if text.startswith("b"):
                padded = text[1:].upper() + "=" * (-(len(text) - 1) % 8)
                raw = base64.b32decode(padded)
                if not raw.startswith(_CID_HEAD):
                    raise BadPeerId(f"not the CID of a peer: {text}")
                return cls(raw[2:])
            return cls(base58.decode(text))
        except ValueError:
            raise BadPeerId(f"no peer id: {text!r}") from None

    def public_key(self) -> PublicKey | None:
        """The key, where the id holds it; BadPeerId if what it holds is none."""
        return _inlined(self.raw)

    def is_of(self, key: PublicKey) -> bool:
        """Whether this is the id of the owner of that key."""
        return PeerId.of(key) == self

    def __str__(self) -> str:
        if not self._text:
            self._text = base58.encode(self.raw)
        return self._text

    def __repr__(self) -> str:
        return f"<PeerId {self}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PeerId) and other.raw == self.raw

    def __lt__(self, other: PeerId) -> bool:
        return self.raw < other.raw

    def __hash__(self) -> int:
        return self._hash


@lru_cache(maxsize=1_024)
def _inlined(raw: bytes) -> PublicKey | None:
    if raw[0] != _IDENTITY:
        return None
    try:
        return PublicKey.from_bytes(raw[2:])
    except BadKey as error:
        raise BadPeerId(f"the peer id holds no usable key: {error}") from None
