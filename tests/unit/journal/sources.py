"""Journals to test with: real traffic in a MemoryStore, and a source whose chunks can be tampered with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from posthouse.journal.chunk import GENESIS, seal
from posthouse.mailbox.command import Lease, Note, Post, Settle, Verdict
from posthouse.mailbox.event import Event
from posthouse.mailbox.message import Message
from posthouse.mailbox.policy import PRESETS
from posthouse.mailbox.store import Chunk, Segment
from posthouse.stores.memory import MemoryStore

NOON = 1_700_000_000_000_000
HOSTILE = (
    "a\nb\r\n\x00\x01\x1f\x7f",
    "quotes \" and \\ and ' and `",
    "../../etc/passwd",
    "node=other/00000000000000000001-00000000000000000002.parquet",
    "žluťoučký 馬 🐎 \u2028\u2029\ufeff\u202e",
    "null",
    '["posted"]\n',
    "sha256=" + "0" * 64,
    "\x18\x0eposthouse.seal\x18\x47sha256=" + "0" * 64,
    " ",
    "x" * 5_000,
)


def traffic(count: int = 20, node: str = "n1") -> MemoryStore:
    """A store in which ``count`` messages were posted, and worked off in different ways."""
    store = MemoryStore(PRESETS, node=node)
    work(store, 0, count)
    return store


def work(store: MemoryStore, begin: int, end: int) -> None:
    for i in range(begin, end):
        at = NOON + i * 1_000
        message = Message("inbound", f"box-{i % 3}", f"id-{i}", b"b" * i, sender="s", lane=f"lane-{i}", cause=f"c-{i}")
        store.apply([Post(message, at=at), Lease("inbound", message.mailbox, f"t-{i}", "worker", at=at)])
        if i % 4 == 3:
            error = HOSTILE[i % len(HOSTILE)]
            store.apply([Settle(message.ref, f"t-{i}", Verdict.RETRY, error=error, at=at + 1)])
        else:
            store.apply([Settle(message.ref, f"t-{i}", Verdict.DELIVERED, at=at + 1)])
    store.apply([Note("connected", "relay", "box", holder="c1", detail={"ä": '"\n'}, at=NOON)])


class Kept:
    """Chunks and segments in lists, for a test to change as no store would."""

    def __init__(self, node: str, chunks: list[Chunk], offset: int | None = None) -> None:
        self.node = node
        self.kept = chunks
        self.record: list[Segment] = []
        self.last = chunks[-1].last if offset is None else offset

    def offset(self) -> int:
        return self.last

    def chunks(self, after: int = 0) -> Iterator[Chunk]:
        return (chunk for chunk in self.kept if chunk.last > after)

    def segments(self) -> list[Segment]:
        return list(self.record)

    def plan_segment(self, last: int) -> Segment:
        before = self.record[-1] if self.record else Segment(0, 0, "", "0" * 64)
        self.record.append(Segment(before.last + 1, last, before.chain, ""))
        return self.record[-1]

    def finish_segment(self, segment: Segment) -> None:
        self.record[-1] = segment
        self.kept = [chunk for chunk in self.kept if chunk.last > segment.last]


def kept(commits: list[list[Event]], node: str = "n1") -> Kept:
    """A source of these commits."""
    chunks: list[Chunk] = []
    prev, first = GENESIS, 1
    for events in commits:
        chunks.append(seal(prev, first, events))
        prev, first = chunks[-1].hash, chunks[-1].last + 1
    return Kept(node, chunks)


def files(folder: Path) -> dict[str, bytes]:
    """Everything in a folder, by its path there."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}
