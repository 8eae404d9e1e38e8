"""What is signed on the wire, and whether a signature holds.

In: the parts of a challenge or a confirmation. Out: the bytes that an agent signs with its Ed25519 key.
It holds no key and makes no signature.
"""

from __future__ import annotations

import struct

from ..errors import BadEnvelope

NONCE_BYTES = 32
SIGNATURE_BYTES = 64
_PURPOSE = b"pinch-auth-v1"
_TIMESTAMP = struct.Struct(">q")


def challenge_bytes(host: str, nonce: bytes) -> bytes:
    """What an agent signs to prove its key to the relay of this host, as it stands in the challenge."""
    return b"\0".join((_PURPOSE, host.encode(), nonce))


def confirm_bytes(message_id: bytes, timestamp_ms: int) -> bytes:
    """What a recipient signs to confirm a message; BadEnvelope for a time that 64 bits do not hold."""
    try:
        return message_id + _TIMESTAMP.pack(timestamp_ms)
    except struct.error:
        raise BadEnvelope(f"a timestamp is a signed number of 64 bits, not {timestamp_ms}") from None


def is_signed(public_key: bytes, signature: bytes, data: bytes) -> bool:
    """Whether the key's owner signed the data. Keys and signatures of a wrong size never did."""
    from nacl.bindings import crypto_sign_open
    from nacl.exceptions import CryptoError

    if len(public_key) != 32 or len(signature) != SIGNATURE_BYTES:
        return False
    try:
        crypto_sign_open(signature + data, public_key)
    except (CryptoError, ValueError):
        return False
    return True
