"""Verifying: finds and names whatever is missing, altered or out of order in chunks and segments.

In: a store, a folder of segments, or both. Out: findings, each with its kind, where and what; none
means that all is as it was written. It changes nothing.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from ..errors import InvalidInput
from ..mailbox.store import Chunk, Segment
from . import chunk as chunks
from . import feed, schema, segment
from .feed import JournalSource
from .finding import Finding, Findings, Kind, Progress

TELL_EVENTS = 10_000


def verify(
    source: JournalSource, folder: str | os.PathLike[str] | None, *, progress: Progress | None = None
) -> Findings:
    """Verify a store's chunks, its node's segments in ``folder``, and that the two agree."""
    found = verify_store(source, progress=progress)
    if folder is None:
        return found
    # Taken before the files are read: a segment that is finished meanwhile must not look missing.
    finished = [s for s in source.segments() if s.chain]
    seen = _verify_node(Path(folder) / schema.folder_name(source.node), source.node, finished, progress)
    known = {(s.first, s.last) for s in source.segments()}
    last = max((last for _, last in known), default=0)
    for path, (first, end) in seen.places.items():
        if (first, end) not in known:
            beyond = f", which stands at {last}," if first > last else ""
            seen.findings.append(
                Finding(Kind.FOREIGN, str(path), f"the store{beyond} knows of no segment {first} to {end}")
            )
    found += seen.findings
    found.segments += seen.findings.segments
    found.events += seen.findings.events
    return found


# ── Chunks ───────────────────────────────────────────────────────────────────────────────────────


def verify_store(source: JournalSource, *, progress: Progress | None = None) -> Findings:
    """Verify the chunks that a store holds, and its record of what was exported."""
    while True:
        before = source.segments()
        found = _verify_chunks(source, before, progress)
        # An export that finished meanwhile trimmed chunks under our eyes: look again.
        if not found or source.segments() == before:
            return found


def _verify_chunks(source: JournalSource, segments: Sequence[Segment], progress: Progress | None) -> Findings:
    found = Findings()
    node = source.node
    upto = source.offset()
    after = _verify_record(node, segments, found)
    ends = {s.last for s in segments if not s.chain}
    prev: bytes | None = chunks.GENESIS if after == 0 else None
    told, begun = 0, after
    with closing(feed.read(source, after)) as kept:
        for chunk in kept:
            where = feed.place(node, chunk)
            faults = feed.faults(chunk, after, prev)
            found += [Finding(fault.kind, where, fault.detail) for fault in faults]
            if not any(fault.kind is Kind.ALTERED for fault in faults):
                _verify_events(node, chunk, where, found)
            found.chunks += 1
            found.events += max(chunk.last - chunk.first + 1, 0)
            ends.discard(chunk.last)
            after, prev = max(after, chunk.last), chunk.hash
            if progress is not None and found.events - told >= TELL_EVENTS:
                told = found.events
                progress(found.events, max(upto - begun, found.events))
    if after < upto:
        found.append(
            Finding(Kind.MISSING, f"node {node}", f"the chunks of the offsets {after + 1} to {upto} are missing")
        )
    for end in ends:
        found.append(
            Finding(Kind.INVALID, f"node {node}", f"the planned segment's end {end} is not the end of a chunk")
        )
    if progress is not None:
        progress(found.events, found.events)
    return found


def _verify_events(node: str, chunk: Chunk, where: str, found: Findings) -> None:
    events = feed.events(chunk)
    if isinstance(events, feed.Fault):
        found.append(Finding(events.kind, where, events.detail))
        return
    for offset, event in enumerate(events, chunk.first):
        fault = schema.row_fault(schema.row_values(node, offset, chunk.first, event))
        if fault is not None:
            found.append(Finding(Kind.INVALID, where, fault))
            return


def _verify_record(node: str, segments: Sequence[Segment], found: Findings) -> int:
    """Check the store's list of segments; the offset after which its chunks begin."""
    last, chain = 0, schema.GENESIS
    for index, each in enumerate(segments):
        where = f"node {node}, recorded segment {each.first}-{each.last}"
        if each.first > last + 1:
            found.append(
                Finding(
                    Kind.MISSING,
                    where,
                    f"no segment is recorded of the offsets {last + 1} to {each.first - 1}",
                )
            )
        elif each.first <= last:
            found.append(Finding(Kind.OVERLAP, where, f"the segment recorded before it ends at offset {last}"))
        elif each.prev != chain:
            found.append(Finding(Kind.CHAIN_BROKEN, where, "its prev is not the chain of the one before"))
        if each.last < each.first:
            found.append(Finding(Kind.INVALID, where, "it ends before it begins"))
        if each.chain:
            if not schema.is_hash(each.chain):
                found.append(Finding(Kind.INVALID, where, f"its chain is no SHA-256 in hex: {each.chain!r:.80}"))
            last, chain = max(last, each.last), each.chain
        elif index != len(segments) - 1:
            found.append(Finding(Kind.INVALID, where, "it is only planned, and others come after it"))
    return last


# ── Segments ─────────────────────────────────────────────────────────────────────────────────────


class _Seen(NamedTuple):
    """One node's folder after its check."""

    findings: Findings
    places: dict[Path, tuple[int, int]]


def verify_folder(
    folder: str | os.PathLike[str],
    node: str | None = None,
    *,
    recorded: Sequence[Segment] = (),
    progress: Progress | None = None,
) -> Findings:
    """Verify the segments of one node or of all in a journal's folder.

    ``recorded`` are the segments of ``node`` that are known to have been finished: without them nobody
    can tell that the last files of a folder are missing.
    """
    home = Path(folder)
    if recorded and node is None:
        raise InvalidInput("recorded segments are those of one node: name it")
    if not home.is_dir():
        raise InvalidInput(f"{home} is no folder")
    if node is not None:
        return _verify_node(home / schema.folder_name(node), node, recorded, progress).findings
    found = Findings()
    for name in sorted(os.listdir(home)):
        each = schema.node_of(name)
        if each is not None and (home / name).is_dir():
            seen = _verify_node(home / name, each, (), progress).findings
            found += seen
            found.segments += seen.segments
            found.events += seen.events
        elif not name.startswith((".", "_")):
            found.append(Finding(Kind.FOREIGN, str(home / name), "it is no node's folder"))
    return found


def _verify_node(home: Path, node: str, recorded: Sequence[Segment], progress: Progress | None) -> _Seen:
    found = Findings()
    places: dict[Path, tuple[int, int]] = {}
    for name in sorted(os.listdir(home)) if home.is_dir() else ():
        place = schema.offsets_of(name)
        if place is not None:
            places[home / name] = place
        elif not name.startswith((".", "_")):
            # Spark and its like leave files whose names begin so, and so do we while writing.
            found.append(Finding(Kind.FOREIGN, str(home / name), "it has no segment's name"))

    total = sum(last - first + 1 for first, last in places.values())
    stamps: dict[tuple[int, int], segment.Stamp | None] = {}
    after, chain, done = 0, schema.GENESIS, 0
    before: str | None = "the beginning"
    # By first offset; of two that begin alike the shorter one.
    for path, (first, last) in sorted(places.items(), key=lambda item: item[1]):
        checked = segment.check(path)
        stamps[first, last] = checked.stamp
        found.segments += 1
        found.events += checked.events
        found += checked.findings
        if first > after + 1:
            found.append(Finding(Kind.MISSING, str(home), f"no segment holds the offsets {after + 1} to {first - 1}"))
            before = None
        elif first <= after:
            found.append(Finding(Kind.OVERLAP, str(path), f"the segment before it ends at offset {after}"))
            before = None
        # Across a gap, or behind a segment that does not tell its chain, there is nothing to compare with.
        if before is not None and checked.stamp is not None and checked.stamp.prev != chain:
            found.append(Finding(Kind.CHAIN_BROKEN, str(path), f"its prev is not the chain of {before}"))
        before = path.name if checked.stamp is not None else None
        chain = checked.stamp.chain if checked.stamp is not None else ""
        after = max(after, last)
        done += last - first + 1
        if progress is not None:
            progress(done, total)

    for each in recorded:
        path = home / schema.file_name(each.first, each.last)
        stamp = stamps.get((each.first, each.last))
        if path not in places:
            found.append(Finding(Kind.MISSING, str(path), "the store recorded this segment, and it is not there"))
        elif stamp is not None and (stamp.prev, stamp.chain) != (each.prev, each.chain):
            found.append(Finding(Kind.ALTERED, str(path), "its chain is not the one that the store recorded"))
    return _Seen(found, places)
