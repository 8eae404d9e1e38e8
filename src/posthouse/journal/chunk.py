"""Chunks: the events of one commit as one compact blob, chained by hash.

In: events of one commit. Out: bytes for the store, and events again. It never touches a store.
A chunk's data is one JSON array in zlib's format; each of its items is an event as an array in the order of
``Event``'s fields. node, offset and commit are not stored: they follow from where the event stands.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Sequence
from typing import Any

import orjson
from isal import isal_zlib

from ..errors import StoreCorrupt
from ..mailbox.event import Event
from ..mailbox.store import Chunk

GENESIS = bytes(32)
"""What the first chunk of a node follows."""


def encode(events: Sequence[tuple[Any, ...]]) -> bytes:
    """One commit's events as a blob. ISA-L writes what zlib reads, in a quarter of the time."""
    # It takes plain tuples as they are; named ones it asks about.
    return isal_zlib.compress(orjson.dumps(events, default=tuple), 1)


def decode(data: bytes) -> list[Event]:
    """The events of a chunk's data; StoreCorrupt if the bytes are not what ``encode`` writes."""
    try:
        return [Event(*event) for event in orjson.loads(zlib.decompress(data))]
    except (zlib.error, ValueError, TypeError) as error:
        raise StoreCorrupt(f"a journal chunk cannot be read: {error}") from error


def link(prev: bytes, first: int, last: int, data: bytes) -> bytes:
    """The hash that binds a chunk to its place and to all before it."""
    return hashlib.sha256(b"%b%d-%d\n%b" % (prev, first, last, data)).digest()


def seal(prev: bytes, first: int, events: Sequence[tuple[Any, ...]]) -> Chunk:
    """The chunk of a commit whose first event has this offset."""
    data = encode(events)
    last = first + len(events) - 1
    return Chunk(first, last, prev, link(prev, first, last, data), data)
