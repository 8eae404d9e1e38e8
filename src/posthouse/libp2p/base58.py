"""Base58, the text form of peer ids. In: bytes or text. Out: the other. ValueError for text that is none."""

from __future__ import annotations

_ALPHABET = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_VALUES = {letter: value for value, letter in enumerate(_ALPHABET)}


def encode(data: bytes) -> str:
    """Bytes as text; each zero byte in front becomes a 1."""
    number = int.from_bytes(data, "big")
    letters = []
    while number:
        number, rest = divmod(number, 58)
        letters.append(_ALPHABET[rest])
    zeros = len(data) - len(data.lstrip(b"\0"))
    return "1" * zeros + "".join(reversed(letters))


def decode(text: str) -> bytes:
    """Text as bytes."""
    number = 0
    for letter in text:
        value = _VALUES.get(letter)
        if value is None:
            raise ValueError(f"{letter!r} is no letter of base58")
        number = number * 58 + value
    zeros = len(text) - len(text.lstrip("1"))
    return bytes(zeros) + number.to_bytes((number.bit_length() + 7) // 8, "big")
