"""Unsigned varints: seven bits a byte, least first. In: bytes. Out: numbers below 2**63. It never reads ahead."""

from __future__ import annotations

from .errors import VarintError

BYTES_MAX = 9
"""Longer ones are refused."""

_SHORT = [bytes((n,)) for n in range(0x80)]


def encode(number: int) -> bytes:
    """A number in its shortest form."""
    if number < 0x80:
        return _SHORT[number]
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def decode(data: bytes | bytearray | memoryview, start: int = 0) -> tuple[int, int] | None:
    """The number at ``start`` and where the next byte stands; None while it is not all there."""
    number = shift = 0
    for place in range(start, min(len(data), start + BYTES_MAX)):
        byte = data[place]
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            if byte == 0 and shift:
                raise VarintError("a number is not in its shortest form")
            return number, place + 1
        shift += 7
    if len(data) >= start + BYTES_MAX:
        raise VarintError(f"a number has more than {BYTES_MAX} bytes")
    return None


def frame(body: bytes) -> bytes:
    """A body behind its length."""
    return encode(len(body)) + body
