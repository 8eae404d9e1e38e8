"""Findings about files: gaps, broken chains, clocks that go back, and what could not be taken in.

In: segments that were examined. Out: rows of the table of anomalies, the same for any order of arrival. No file is
opened.
"""

from __future__ import annotations

import datetime
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from ..journal import schema as contract
from .bronze import REJECTED, Segment
from .lineage import ALONE, Lineage
from .offsets import Ranges, count, gaps, merged


class Finding(NamedTuple):
    """A finding about files, as a row of the table of anomalies."""

    kind: str
    node: str
    offsets: tuple[int, ...]
    detail: str
    at: int | None = None
    """When the evidence was written, in µs."""


def findings(segments: Iterable[Segment], foreign: Iterable[str], lineage: Lineage = ALONE) -> list[Finding]:
    """All that is wrong with files, from those that were looked at; the same for any order of arrival."""
    found = [Finding("bad_segment", "", (), f"{name}: it is no segment") for name in sorted(foreign)]
    nodes: dict[str, list[Segment]] = defaultdict(list)
    for segment in segments:
        nodes[segment.node].append(segment)
    for restore in lineage.restores:
        # A node that only its snapshot tells of.
        nodes.setdefault(restore.origin, [])
    for node, all_of_it in sorted(nodes.items()):
        rows = sorted(all_of_it, key=lambda segment: (segment.first, segment.last, segment.name))
        for segment in rows:
            where = (segment.first, segment.last)
            for fault in segment.faults:
                found.append(Finding("bad_segment", node, where, f"{segment.name}: {fault}", segment.first_at))
        taken = [segment for segment in rows if segment.state != REJECTED]
        held = merged(each for segment in taken for each in segment.ranges)
        for first, last in gaps(held, lineage.reached(node)):
            detail = f"the offsets {first} to {last} are missing" if first < last else f"the offset {first} is missing"
            found.append(Finding("journal_gap", node, (first, last), detail))
        found += _abandoned(node, held, lineage)
        found += _chain_findings(node, taken)
        found += _clock_findings(node, taken)
    return found


def _abandoned(node: str, held: Ranges, lineage: Lineage) -> Iterator[Finding]:
    """What a node wrote behind the snapshot that another goes on from."""
    heir, last = lineage.heir(node), lineage.place(node).last
    if heir is None or last is None or not held or held[-1][1] <= last:
        return
    events = count([(max(first, last + 1), end) for first, end in held if end > last])
    detail = f"{events} events are in no book: node {heir.node} goes on from offset {heir.offset} of {heir.origin}"
    yield Finding("abandoned", node, (last + 1, held[-1][1]), detail, heir.at)


def _chain_findings(node: str, taken: Sequence[Segment]) -> list[Finding]:
    """Overlaps and broken chains of a node, one of a sort for each segment."""
    found = []
    before: Segment | None = None
    end = 0
    for segment in taken:
        where = (segment.first, segment.last)
        if segment.first <= end:
            detail = (
                f"{segment.name}: it holds offsets again that another segment holds, up to {min(end, segment.last)}"
            )
            found.append(Finding("bad_segment", node, where, detail, segment.first_at))
        broken = segment.broken
        due = None
        if segment.first == 1:
            due = contract.GENESIS
        elif before is not None and before.last == segment.first - 1:
            due = before.chain
        if broken is None and due is not None and segment.prev is not None and segment.prev != due:
            broken = "its prev is not the chain of the segment before"
        if broken is not None:
            found.append(Finding("chain_broken", node, where, f"{segment.name}: {broken}", segment.first_at))
        if segment.last > end:
            before, end = segment, segment.last
    return found


def _clock_findings(node: str, taken: Sequence[Segment]) -> Iterator[Finding]:
    """Each offset whose `at` is below that of the one before it that is known."""
    backs: dict[int, tuple[int, int, int]] = {}
    for segment in taken:
        for offset, before, at in segment.backs:
            backs.setdefault(offset, (offset - 1, before, at))
    # What is next to each other inside a range is known from its file; here range meets range.
    ranges = sorted(pair for segment in taken for pair in zip(segment.ranges, segment.edges, strict=True))
    end, end_at = 0, 0
    for (first, last), (first_at, last_at) in ranges:
        if 0 < end < first and first_at < end_at:
            backs.setdefault(first, (end, end_at, first_at))
        if last > end:
            end, end_at = last, last_at
    for offset, (previous, before, at) in sorted(backs.items()):
        detail = f"the clock went back by {datetime.timedelta(microseconds=before - at)}"
        yield Finding("clock_back", node, (previous, offset), detail, at)
    for segment in taken:
        if segment.backs_more:
            detail = f"{segment.name}: the clock goes back {segment.backs_more} more times"
            yield Finding("clock_back", node, (segment.backs[-1][0] + 1, segment.last), detail, segment.last_at)
