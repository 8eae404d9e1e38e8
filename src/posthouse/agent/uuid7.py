"""UUIDs of version 7: their text sorts by the time at which they were made.

In: the time and randomness. Out: the 36 characters. It reads neither a clock nor a source of randomness.
"""

from __future__ import annotations

import uuid

RANDOM_BYTES = 10


def uuid7(now_ms: int, random: bytes) -> str:
    """The UUID of this millisecond with these ten random bytes (of which six bits make way for the version)."""
    assert len(random) == RANDOM_BYTES
    assert 0 <= now_ms < 1 << 48
    raw = bytearray(now_ms.to_bytes(6, "big") + random)
    raw[6] = raw[6] & 0x0F | 0x70
    raw[8] = raw[8] & 0x3F | 0x80
    return str(uuid.UUID(bytes=bytes(raw)))
