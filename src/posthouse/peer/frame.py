"""Direct messages on the wire: a 4-byte big-endian length, then one JSON object.

In: values of our own to encode; bytes of others to decode. Out: frames, and values whose every field is checked. JSON
is read strictly: a key twice, NaN, a number of more than 64 bits, half of a surrogate pair, deep nesting and bytes that
are not UTF-8 are refused (BadFrame). Fields that are not known are passed over. It never reads a socket.
"""

from __future__ import annotations

import json
import struct
import uuid
from typing import Any, NamedTuple, NoReturn

import orjson

from ..errors import BadFrame, InvalidInput

PROTOCOL = "/klingon/swap/direct/1.0.0"
BODY_BYTES_MAX = 1_048_576
SMALL_BYTES = 524_288
"""A payload of this size fits into a frame, whatever stands beside it."""
HEAD_BYTES = 4
DEPTH_MAX = 64
ID_CHARS_MAX = 128
TEXT_CHARS_MAX = 256
WORDS_MAX = 16
WORD_CHARS_MAX = 32
ERROR_CHARS_MAX = 500
"""Of the reason in a failed acknowledgement."""
NUMBER_MAX = 2**63 - 1
INSTANT_S_MAX = 253_402_300_799

ACK = "ack"
SYNC_REQUEST = "sync_request"
SYNC_RESPONSE = "sync_response"
PRIVATE_TYPES = frozenset(
    {
        "pubkey_exchange", "nonce_exchange", "funding_info", "partial_sig", "htlc_secret_hash", "htlc_secret_reveal",
        "htlc_claim", "complete", "abort",
    }
)  # fmt: skip
"""Types that a trade's parties send each other, and that are numbered, kept and acknowledged."""

_LENGTH = struct.Struct(">I")
_OUTLINE = bytes(48 if 48 <= byte < 58 else 44 if byte in b"[:,- \t\n\r" else 34 for byte in range(256))
"""Digits become 0, what a number can begin behind becomes a comma, and all else a quotation mark."""
_LONG = b"0" * 19
"""What may be a number of more than 63 bits; a text may hold the same, and is then read more slowly."""
_STRICT = orjson.OPT_PASSTHROUGH_SUBCLASS | orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME


class Direct(NamedTuple):
    """One message as it stands on the wire."""

    type: str
    trade_id: str = ""
    order_id: str = ""
    from_peer: str = ""
    payload: Any = None
    timestamp: int = 0
    """Seconds since 1970."""
    message_id: str = ""
    sequence_num: int = 0
    """Its number in the trade and direction, from 1; 0: none."""
    requires_ack: bool = False
    swap_timeout: int = 0
    """When the trade ends, in seconds since 1970; 0: not said."""
    signature: str = ""
    capabilities: tuple[str, ...] = ()
    """What its sender can do; see ``capability``."""


def new_id() -> str:
    """A new name for a message, as other nodes make them."""
    return str(uuid.uuid4())


class Ack(NamedTuple):
    """What an acknowledgement says."""

    message_id: str
    success: bool
    error: str = ""


def fields(message: Direct) -> dict[str, Any]:
    """The object as it is written: fields that other nodes leave out when they are empty are left out."""
    plain: dict[str, Any] = {
        "type": message.type,
        "trade_id": message.trade_id,
        "order_id": message.order_id,
        "from_peer": message.from_peer,
        "payload": message.payload,
        "timestamp": message.timestamp,
    }
    for name in ("message_id", "sequence_num", "requires_ack", "swap_timeout", "signature"):
        if value := getattr(message, name):
            plain[name] = value
    if message.capabilities:
        plain["capabilities"] = list(message.capabilities)
    return plain


def dumps(value: Any) -> bytes:
    """JSON without spaces; InvalidInput if the value cannot be written so that others read the same."""
    try:
        body = orjson.dumps(value, option=_STRICT)
    except TypeError:
        return _strict_dumps(value)
    # What is no number becomes null there.
    return _strict_dumps(value) if b"null" in body else body


def _strict_dumps(value: Any) -> bytes:
    """The same, more slowly, for what is seldom written or perhaps cannot be."""
    try:
        return _ENCODER.encode(value).encode()
    except UnicodeEncodeError:
        raise InvalidInput("a text holds half of a surrogate pair") from None
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidInput(f"this cannot be written as JSON: {error}") from None


def encode(message: Direct) -> bytes:
    """The frame; InvalidInput if it is too large."""
    return framed(dumps(fields(message)))


def framed(body: bytes) -> bytes:
    """The frame of a message that is written already; InvalidInput if it is too large."""
    if len(body) > BODY_BYTES_MAX:
        raise InvalidInput(f"a message of {len(body)} bytes; at most {BODY_BYTES_MAX} can be sent")
    return _LENGTH.pack(len(body)) + body


def body_bytes(head: bytes) -> int:
    """How long the body behind this head is; BadFrame, before anything of it is read, if that is too long."""
    size: int = _LENGTH.unpack(head)[0]
    if not 0 < size <= BODY_BYTES_MAX:
        raise BadFrame(f"a frame of {size} bytes; 1 to {BODY_BYTES_MAX} are taken")
    return size


def decode(body: bytes) -> Direct:
    """The message in a frame's body; BadFrame says what is wrong with it."""
    plain = loads(body)
    if not isinstance(plain, dict):
        raise BadFrame("a message is a JSON object")
    return Direct(
        text_of(plain, "type"),
        text_of(plain, "trade_id"),
        text_of(plain, "order_id"),
        text_of(plain, "from_peer"),
        plain.get("payload"),
        _whole(plain, "timestamp", INSTANT_S_MAX),
        text_of(plain, "message_id"),
        _whole(plain, "sequence_num", NUMBER_MAX),
        _switch(plain, "requires_ack"),
        _whole(plain, "swap_timeout", INSTANT_S_MAX),
        text_of(plain, "signature", TEXT_CHARS_MAX),
        _words(plain, "capabilities"),
    )


def acknowledge(
    message: Direct, me: str, success: bool, error: str, now_s: int, id: str, capabilities: tuple[str, ...] = ()
) -> Direct:
    """The acknowledgement of a message; ``id`` is its own, ``capabilities`` are ours."""
    payload: dict[str, Any] = {
        "message_id": message.message_id,
        "sequence_num": message.sequence_num,
        "success": success,
    }
    if error:
        payload["error"] = error[:ERROR_CHARS_MAX]
    return Direct(
        ACK, message.trade_id, message.order_id, me, payload, now_s, id, sequence_num=message.sequence_num,
        capabilities=capabilities,
    )  # fmt: skip


def acknowledged(answer: Direct) -> Ack:
    """What an acknowledgement says; BadFrame if it is none."""
    payload = answer.payload
    if answer.type != ACK or not isinstance(payload, dict):
        raise BadFrame(f"an acknowledgement was expected, and {answer.type!r} came")
    success = payload.get("success")
    if not isinstance(success, bool):
        raise BadFrame("an acknowledgement that says neither yes nor no")
    return Ack(text_of(payload, "message_id"), success, str(payload.get("error") or "")[:ERROR_CHARS_MAX])


# Strict JSON.


def loads(data: bytes) -> Any:
    """The value that a JSON text stands for; BadFrame if it is not exactly that."""
    if data.count(b"[") + data.count(b"{") <= DEPTH_MAX and not _has_long_number(data):
        # What is written back byte for byte holds no key twice, and nothing that was read as something else.
        try:
            value = orjson.loads(data)
        except ValueError:
            pass
        else:
            if orjson.dumps(value) == data:
                return value
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise BadFrame(f"not UTF-8 at byte {error.start}") from None
    # Before it is parsed: the parser recurses.
    if text.count("[") + text.count("{") > DEPTH_MAX and _depth(text) > DEPTH_MAX:
        raise BadFrame(f"nested deeper than {DEPTH_MAX} levels")
    try:
        value = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise BadFrame(f"not JSON: {error}") from None
    if "\\u" in text:
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise BadFrame("a text holds half of a surrogate pair") from None
    return value


def _has_long_number(data: bytes) -> bool:
    outline = data.translate(_OUTLINE)
    return b"," + _LONG in outline or outline.startswith(_LONG)


def _depth(text: str) -> int:
    depth = deepest = 0
    inside = escaped = False
    for character in text:
        if inside:
            if escaped:
                escaped = False
            elif character == "\\":
                escaped = True
            elif character == '"':
                inside = False
        elif character == '"':
            inside = True
        elif character in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif character in "]}":
            depth -= 1
    return deepest


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise BadFrame("a key stands twice in one object")
    return found


def _constant(text: str) -> NoReturn:
    raise BadFrame(f"{text} is no number of JSON")


def _integer(text: str) -> int:
    if len(text) > 20 or abs(int(text)) > NUMBER_MAX:
        raise BadFrame(f"a number that is too large: {text[:20]}")
    return int(text)


def _fraction(text: str) -> float:
    number = float(text)
    if number - number != 0:
        raise BadFrame(f"a number that is too large: {text[:20]}")
    return number


_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_DECODER = json.JSONDecoder(
    object_pairs_hook=_object, parse_constant=_constant, parse_int=_integer, parse_float=_fraction
)


def text_of(plain: dict[str, Any], name: str, most: int = ID_CHARS_MAX) -> str:
    """A field that is a text; BadFrame if it is none, too long, or cannot be printed."""
    value = plain.get(name, "")
    if not isinstance(value, str):
        raise BadFrame(f"{name} must be a text")
    if len(value) > most:
        raise BadFrame(f"{name} has {len(value)} characters; at most {most} are taken")
    if not value.isprintable():
        raise BadFrame(f"{name} holds a character that cannot be printed")
    return value


def _whole(plain: dict[str, Any], name: str, most: int) -> int:
    value = plain.get(name, 0)
    if type(value) is not int or not 0 <= value <= most:
        raise BadFrame(f"{name} must be a whole number from 0 to {most}")
    return value


def _switch(plain: dict[str, Any], name: str) -> bool:
    value = plain.get(name, False)
    if not isinstance(value, bool):
        raise BadFrame(f"{name} must be true or false")
    return value


def _words(plain: dict[str, Any], name: str) -> tuple[str, ...]:
    value = plain.get(name, [])
    if not isinstance(value, list) or len(value) > WORDS_MAX:
        raise BadFrame(f"{name} must be a list of at most {WORDS_MAX} words")
    for word in value:
        if not isinstance(word, str) or not 0 < len(word) <= WORD_CHARS_MAX or not word.isascii() or " " in word:
            raise BadFrame(f"{name} must hold words of up to {WORD_CHARS_MAX} characters")
        if not word.isprintable():
            raise BadFrame(f"{name} holds a character that cannot be printed")
    return tuple(value)
