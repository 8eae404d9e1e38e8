"""What the Go relay keeps in its bbolt file, entry by entry.

In: an open bbolt file. Out: queued envelopes in order, blocks, registered keys, and for each entry that cannot be
taken over one word that says why. It decides nothing about ages and room, and writes nowhere.

The buckets, as the public relay (pinch-protocol/pinch) writes them:

    queue             recipient → 16 bytes (nanoseconds and sequence, big-endian) → JSON {enqueued_at (nanoseconds),
                      sender_addr (as it authenticated), envelope (base64)}
    blocks            blocker ":" blocked → "1"
    key_registry      public key in base64 → address: approved
    pending_registry  claim code → JSON {pubKeyB64, address, registeredAt (seconds)}: not approved yet
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import orjson

from ...errors import BadFile, WireError
from ...mailbox.message import INSTANT_MAX, SECOND, Instant
from ...wire.address import PUBLIC_KEY_BYTES, parse_address
from ...wire.envelope import RELAY_ONLY, MessageType, id_text, is_disguised, kind_of, parse
from .bbolt import BoltFile, Bucket, Entry

QUEUE, BLOCKS, KEYS, PENDING = b"queue", b"blocks", b"key_registry", b"pending_registry"
KNOWN = (BLOCKS, KEYS, PENDING, QUEUE)
_KEY_BYTES = 16


class Queued(NamedTuple):
    """An envelope that waits for its recipient."""

    recipient: str
    id: str
    sender: str
    kind: str
    body: bytes
    posted_at: Instant


class Block(NamedTuple):
    """``blocker`` wants nothing from ``blocked``."""

    blocker: str
    blocked: str


class Registered(NamedTuple):
    """A public key that registered, and was approved or not."""

    public_key: bytes
    approved: bool
    code: str
    registered_at: Instant | None


class Skipped(NamedTuple):
    """An entry that cannot be taken over."""

    where: str
    """The bucket and the key."""
    recipient: str | None
    """Of a queued entry."""
    reason: str
    """A stable word: damaged, malformed, bad_address, spoofed, forbidden_type."""
    message: str


Found = Queued | Block | Registered | Skipped


class _Unfit(Exception):
    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def read(file: BoltFile) -> Iterator[Found]:
    """All entries: blocks and keys first, then the queue, each recipient's envelopes in order.

    BadFile if the list of buckets cannot be read; damage further down is told as Skipped, and the rest is read.
    """
    buckets = {entry.key: entry.bucket for entry in file.root if entry.bucket is not None}
    if not any(name in buckets for name in KNOWN):
        raise file.wrong("a bbolt file, but not of the Pinch relay: it has none of its buckets")
    for name, take in ((BLOCKS, _block), (KEYS, _approved), (PENDING, _pending)):
        bucket = buckets.get(name)
        if bucket is not None:
            for entry in _entries(bucket):
                yield entry if isinstance(entry, Skipped) else _taken(take, name.decode(), entry, None)
    queue = buckets.get(QUEUE)
    if queue is not None:
        yield from _queue(queue)


def _queue(queue: Bucket) -> Iterator[Found]:
    for box in _entries(queue):
        if isinstance(box, Skipped):
            yield box
            continue
        name = box.key.decode(errors="backslashreplace")
        if box.bucket is None:
            yield Skipped(f"queue/{name[:200]}", None, "malformed", "a value where a recipient's bucket should be")
            continue
        unfit: _Unfit | None = None
        try:
            recipient = _address("recipient", box.key)
        except _Unfit as error:
            # Nobody can ever connect as such a recipient, so nobody would ever be given these.
            recipient, unfit = name[:200], error
        for entry in _entries(box.bucket, recipient):
            if isinstance(entry, Skipped):
                yield entry
            elif unfit is not None:
                yield Skipped(_where(f"queue/{recipient}", entry.key), recipient, unfit.reason, str(unfit))
            else:
                yield _taken(partial(_queued, recipient), f"queue/{recipient}", entry, recipient)


def _entries(bucket: Bucket, recipient: str | None = None) -> Iterator[Entry | Skipped]:
    """The bucket's entries as far as it can be read."""
    try:
        yield from bucket
    except BadFile as error:
        where = "/".join(part.decode(errors="backslashreplace")[:200] for part in bucket.path)
        yield Skipped(where, recipient, "damaged", f"{error}; what follows in this bucket cannot be read")


def _taken(take: Callable[[Entry], Found], where: str, entry: Entry, recipient: str | None) -> Found:
    try:
        if entry.bucket is not None:
            raise _Unfit("malformed", "a bucket where a value should be")
        return take(entry)
    except _Unfit as error:
        return Skipped(_where(where, entry.key), recipient, error.reason, str(error))


def _where(bucket: str, key: bytes) -> str:
    is_text = key.isascii() and key.decode("ascii").isprintable()
    return f"{bucket}/{key[:200].decode('ascii') if is_text else key[:100].hex()}"


def _queued(recipient: str, entry: Entry) -> Queued:
    if len(entry.key) != _KEY_BYTES:
        raise _Unfit("malformed", f"a key of {len(entry.key)} bytes; a queue's have {_KEY_BYTES}")
    fields = _json(entry.value)
    posted_at = _instant("enqueued_at", fields.get("enqueued_at"), per=1_000)
    body = _base64("envelope", fields.get("envelope"))
    try:
        envelope = parse(body)
    except WireError as error:
        raise _Unfit("malformed", str(error)) from error
    sender = fields.get("sender_addr")
    if not isinstance(sender, str):
        raise _Unfit("malformed", "it has no sender_addr")
    _address("sender", sender.encode(errors="replace"))
    if envelope.from_address != sender:
        raise _Unfit(
            "spoofed", f"its sender authenticated as {sender} and calls itself {envelope.from_address[:200]!r}"
        )
    if envelope.to_address != recipient:
        raise _Unfit("malformed", f"it is addressed to another: {envelope.to_address[:200]!r}")
    type = int(envelope.type)
    if type in RELAY_ONLY:
        raise _Unfit("forbidden_type", f"only a relay may send {kind_of(type)}")
    if is_disguised(envelope):
        raise _Unfit("malformed", f"its type is {kind_of(type)}, its payload {envelope.WhichOneof('payload')}")
    id = id_text(envelope.message_id) if envelope.message_id else ""
    if not id and type == MessageType.DELIVERY_CONFIRM and envelope.delivery_confirm.message_id:
        id = f"confirm:{id_text(envelope.delivery_confirm.message_id)}"
    # The key is unique in the queue and stays the same, so that a second import knows the entry again.
    return Queued(recipient, id or f"relay:import:{entry.key.hex()}", sender, kind_of(type), body, posted_at)


def _block(entry: Entry) -> Block:
    text = _text(entry.key)
    # An address holds a colon, and so may its host: only one of the places gives two addresses.
    for place, character in enumerate(text):
        if character == ":" and _is_address(text[:place]) and _is_address(text[place + 1 :]):
            return Block(text[:place], text[place + 1 :])
    raise _Unfit("malformed", "not two addresses")


def _approved(entry: Entry) -> Registered:
    return Registered(_public_key(_text(entry.key)), True, "", None)


def _pending(entry: Entry) -> Registered:
    fields = _json(entry.value)
    code = _text(entry.key)
    if not 0 < len(code) <= 64 or not code.isprintable():
        raise _Unfit("malformed", "not a claim code")
    registered_at = _instant("registeredAt", fields.get("registeredAt"), times=SECOND)
    return Registered(_public_key(fields.get("pubKeyB64")), False, code, registered_at)


def _json(value: bytes) -> dict[str, Any]:
    try:
        fields = orjson.loads(value)
    except orjson.JSONDecodeError as error:
        raise _Unfit("malformed", f"not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise _Unfit("malformed", "not a JSON object")
    return fields


def _instant(field: str, value: object, *, times: int = 1, per: int = 1) -> Instant:
    if type(value) is not int or not 0 <= value * times // per <= INSTANT_MAX:
        raise _Unfit("malformed", f"{field} is no time: {str(value)[:40]!r}")
    return value * times // per


def _base64(field: str, value: object) -> bytes:
    try:
        if isinstance(value, str):
            return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        pass
    raise _Unfit("malformed", f"{field} is not base64")


def _public_key(value: object) -> bytes:
    key = _base64("the public key", value)
    if len(key) != PUBLIC_KEY_BYTES:
        raise _Unfit("malformed", f"a public key has {PUBLIC_KEY_BYTES} bytes, not {len(key)}")
    return key


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise _Unfit("malformed", "the key is no text") from None


def _address(what: str, data: bytes) -> str:
    text = data.decode(errors="replace")
    try:
        parse_address(text)
    except WireError as error:
        raise _Unfit("bad_address", f"the {what} is no address: {error}") from error
    return text


def _is_address(text: str) -> bool:
    try:
        parse_address(text)
    except WireError:
        return False
    return True
