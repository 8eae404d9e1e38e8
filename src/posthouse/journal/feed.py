"""The feed of chunks: the part of a store that the journal needs, and the check of each chunk.

In: a store, or an engine's wrapper that makes these calls on the store's writer thread.
Out: chunks that are proved to be the ones that were written, in their order.
"""

from __future__ import annotations

import zlib
from collections.abc import Generator, Iterator
from contextlib import closing
from typing import NamedTuple, Protocol

import orjson

from ..errors import StoreCorrupt
from ..mailbox.event import Event
from ..mailbox.store import Chunk, Segment
from . import chunk as chunks
from .finding import Kind


class ChunkSource(Protocol):
    """What reading a history needs."""

    @property
    def node(self) -> str: ...

    def chunks(self, after: int = 0) -> Iterator[Chunk]: ...


class JournalSource(ChunkSource, Protocol):
    """What exporting and verifying need; see ``mailbox.store.Store`` for what each call means."""

    def offset(self) -> int: ...

    def segments(self) -> list[Segment]: ...

    def plan_segment(self, last: int) -> Segment: ...

    def finish_segment(self, segment: Segment) -> None: ...


class Fault(NamedTuple):
    """What is wrong with a chunk."""

    kind: Kind
    detail: str


def place(node: str, chunk: Chunk) -> str:
    """How a chunk is named to people."""
    return f"node {node}, chunk {chunk.first}-{chunk.last}"


def read(source: ChunkSource, after: int) -> Generator[Chunk, None, None]:
    """The source's chunks; its iterator is closed with this one, so that no read transaction stays open."""
    found = source.chunks(after)
    try:
        yield from found
    finally:
        close = getattr(found, "close", None)
        if close is not None:
            close()


def may_hold(chunk: Chunk, *words: str) -> bool:
    """Whether one of these texts may stand in an event of the chunk: its bytes are looked at, and nothing is parsed."""
    try:
        data = zlib.decompress(chunk.data)
        return any(orjson.dumps(word) in data for word in words)
    except zlib.error as error:
        raise StoreCorrupt(f"chunk {chunk.first}-{chunk.last} cannot be read: {error}") from error


def faults(chunk: Chunk, after: int, prev: bytes | None) -> list[Fault]:
    """What is wrong with a chunk that should follow offset ``after`` and hash ``prev`` (None: not known)."""
    found: list[Fault] = []
    first, last = chunk.first, chunk.last
    if last < first:
        found.append(Fault(Kind.INVALID, f"its last offset {last} is below its first {first}"))
    if first > after + 1:
        found.append(Fault(Kind.MISSING, f"the offsets {after + 1} to {first - 1} before it are missing"))
    elif first <= after:
        kind = Kind.REORDERED if last <= after else Kind.OVERLAP
        found.append(Fault(kind, f"it stands after offset {after}"))
    elif prev is not None and chunk.prev != prev:
        found.append(Fault(Kind.CHAIN_BROKEN, f"it does not follow the chunk that ends at offset {after}"))
    if chunk.hash != chunks.link(chunk.prev, first, last, chunk.data):
        found.append(Fault(Kind.ALTERED, "its content does not have the hash it was stored with"))
    return found


def checked(source: ChunkSource, after: int, upto: int, prev: bytes | None = None) -> Generator[Chunk, None, None]:
    """The chunks above ``after`` up to ``upto``, the end of one; StoreCorrupt names the first fault."""
    if after == 0:
        prev = chunks.GENESIS
    with closing(read(source, after)) as found:
        for chunk in found:
            if chunk.first > upto:
                break
            for fault in faults(chunk, after, prev):
                raise StoreCorrupt(f"{place(source.node, chunk)} is {fault.kind}: {fault.detail}")
            if chunk.last > upto:
                raise StoreCorrupt(f"{place(source.node, chunk)} goes beyond offset {upto}, which should end a chunk")
            yield chunk
            after, prev = chunk.last, chunk.hash
            if after == upto:
                return
    if after < upto:
        raise StoreCorrupt(f"node {source.node}: the chunks of the offsets {after + 1} to {upto} are missing")


def decode(node: str, chunk: Chunk) -> list[Event]:
    """The events of a chunk; StoreCorrupt names it where they are not as many as its offsets say."""
    found = events(chunk)
    if isinstance(found, Fault):
        raise StoreCorrupt(f"{place(node, chunk)} is {found.kind}: {found.detail}")
    return found


def events(chunk: Chunk) -> list[Event] | Fault:
    """The events of a chunk, or why they cannot be told."""
    try:
        found = chunks.decode(chunk.data)
    except StoreCorrupt as error:
        return Fault(Kind.UNREADABLE, str(error))
    if len(found) != chunk.last - chunk.first + 1:
        return Fault(Kind.INVALID, f"it holds {len(found)} events")
    return found
