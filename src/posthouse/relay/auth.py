"""Authentication: a challenge, and whether a frame answers it.

In: the frame of an agent, and the time. Out: its public key, or None. Pure; the same answer for every
failed check, so that nobody learns which one it was.
"""

from __future__ import annotations

import hmac
from typing import NamedTuple

from ..errors import BadEnvelope
from ..wire.auth import NONCE_BYTES, SIGNATURE_BYTES, challenge_bytes, is_signed
from ..wire.envelope import AUTH_BYTES_MAX, MessageType, auth_challenge, parse

FAILED = "authentication failed"
PUBLIC_KEY_BYTES = 32
VERSION = 1
_AUTH_RESPONSE = int(MessageType.AUTH_RESPONSE)


class Challenge(NamedTuple):
    """What the relay asked on one connection; good for one answer."""

    host: str
    nonce: bytes
    issued_at_ms: int
    expires_at_ms: int

    def frame(self) -> bytes:
        """The relay's first word."""
        return auth_challenge(self.host, self.nonce, self.issued_at_ms, self.expires_at_ms)

    def answered_by(self, data: bytes, binary: bool, now_ms: int) -> bytes | None:
        """The public key that signed it, or None."""
        if not binary or len(data) > AUTH_BYTES_MAX:
            return None
        try:
            envelope = parse(data)
        except BadEnvelope:
            return None
        if envelope.type != _AUTH_RESPONSE or not envelope.HasField("auth_response"):
            return None
        response = envelope.auth_response
        public_key, signature, nonce = response.public_key, response.signature, response.nonce
        right = (
            response.version == VERSION
            and len(public_key) == PUBLIC_KEY_BYTES
            and len(signature) == SIGNATURE_BYTES
            and len(nonce) == NONCE_BYTES
            # A clock that was set back must not lengthen it for ever.
            and self.issued_at_ms - 60_000 <= now_ms < self.expires_at_ms
            and hmac.compare_digest(nonce, self.nonce)
        )
        if right and is_signed(public_key, signature, challenge_bytes(self.host, self.nonce)):
            return public_key
        return None
