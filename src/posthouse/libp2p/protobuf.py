"""Protocol buffers as far as libp2p uses them: numbers and byte strings in numbered fields.

In: bytes from anybody. Out: pairs of field number and value, in order; or the bytes of a message from such pairs. The
number of fields is bounded by the caller, since a frame of a megabyte could hold half a million of them. Nothing is
copied out of the frame but what is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator

from . import varint
from .errors import ProtobufError

_NUMBER_MAX = (1 << 64) - 1


def number_field(field: int, number: int) -> bytes:
    """A number."""
    return varint.encode(field << 3) + varint.encode(number)


def bytes_field(field: int, value: bytes) -> bytes:
    """Bytes, or another message."""
    return varint.encode(field << 3 | 2) + varint.encode(len(value)) + value


def text_field(field: int, text: str) -> bytes:
    """A text."""
    return bytes_field(field, text.encode())


class Budget:
    """How many fields may still be read: shared by a frame and the messages inside it."""

    __slots__ = ("left",)

    def __init__(self, fields_max: int) -> None:
        self.left = fields_max


def fields(data: bytes, budget: Budget) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message in order; fixed-width ones, which libp2p does not use, are skipped."""
    place, end = 0, len(data)
    while place < end:
        budget.left -= 1
        if budget.left < 0:
            raise ProtobufError("too many fields in one frame")
        tag, place = _number(data, place)
        field, kind = tag >> 3, tag & 7
        if field == 0:
            raise ProtobufError("a field has the number 0")
        if kind == 2:
            size, place = _number(data, place)
            if size > end - place:
                raise ProtobufError("a field is longer than its message")
            yield field, data[place : place + size]
            place += size
        elif kind == 0:
            number, place = _number(data, place)
            yield field, number
        elif kind == 1 or kind == 5:
            place += 8 if kind == 1 else 4
            if place > end:
                raise ProtobufError("a field is longer than its message")
        else:
            raise ProtobufError(f"a field is of kind {kind}, which is not in use")


def _number(data: bytes, place: int) -> tuple[int, int]:
    """Laxer than a varint of libp2p: ten bytes, and any form."""
    number = shift = 0
    end = min(len(data), place + 10)
    while place < end:
        byte = data[place]
        place += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number & _NUMBER_MAX, place
        shift += 7
    raise ProtobufError("a number does not end")


def text(value: int | bytes) -> str:
    """The value as text; ProtobufError if it is none."""
    try:
        return octets(value).decode()
    except UnicodeDecodeError:
        raise ProtobufError("a text is not UTF-8") from None


def octets(value: int | bytes) -> bytes:
    """The value as bytes; ProtobufError if it is a number."""
    if not isinstance(value, bytes):
        raise ProtobufError("a number stands where bytes belong")
    return value


def number(value: int | bytes) -> int:
    """The value as a number; ProtobufError if it is none."""
    if not isinstance(value, int):
        raise ProtobufError("bytes stand where a number belongs")
    return value
