"""What was taken in, in short: the segments of a node in as few pieces as its findings allow.

In: segments that were examined. Out: the same, with those that follow on each other in every respect as one piece
without a name. Findings are the same of both. The names are in the table of segments, where a piece is looked up again
when a file overlaps it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from .bronze import Segment


def compact(segments: Iterable[Segment]) -> tuple[Segment, ...]:
    """The segments with pieces in place of those that follow on each other.

    The first of them stays by itself: what comes to be known of its neighbour may be held against it.
    """
    found: list[Segment] = []
    for _, own in groupby(sorted(segments, key=_order), key=lambda segment: segment.node):
        rows = list(own)
        alone = _overlapping(rows)
        follows = False
        for number, segment in enumerate(rows):
            followed = follows
            free = number > 0 and not {number - 1, number} & alone
            follows = free and _follows(segment, rows[number - 1])
            if follows and followed:
                found[-1] = _joined(found[-1], segment)
            else:
                found.append(segment)
    return tuple(found)


def touched(pieces: Iterable[Segment], new: Sequence[Segment]) -> list[Segment]:
    """The pieces without a name that new segments overlap: their findings depend on what they were made of."""
    spans: dict[str, list[tuple[int, int]]] = {}
    for segment in new:
        spans.setdefault(segment.node, []).append(_span(segment))
    return [
        piece
        for piece in pieces
        if not piece.name
        and any(first <= piece.last and piece.first <= last for first, last in spans.get(piece.node, ()))
    ]


def replaced(pieces: Iterable[Segment], touched: Sequence[Segment], rows: Iterable[Segment]) -> tuple[Segment, ...]:
    """The segments with the ones that pieces were made of in place of these pieces."""
    inside = [row for row in rows if any(_is_in(row, piece) for piece in touched)]
    return tuple(sorted((*(piece for piece in pieces if piece not in touched), *inside), key=_order))


def _order(segment: Segment) -> tuple[str, int, int, str]:
    return segment.node, segment.first, segment.last, segment.name


def _span(segment: Segment) -> tuple[int, int]:
    """All offsets that a segment may be about, by its name and by its rows."""
    first, last = (segment.ranges[0][0], segment.ranges[-1][1]) if segment.ranges else (segment.first, segment.last)
    return min(first, segment.first), max(last, segment.last)


def _overlapping(rows: Sequence[Segment]) -> set[int]:
    """The places in this list of those that overlap others."""
    found: set[int] = set()
    by_begin = sorted(range(len(rows)), key=lambda place: _span(rows[place]))
    furthest: int | None = None
    for place in by_begin:
        first, last = _span(rows[place])
        if furthest is not None and first <= _span(rows[furthest])[1]:
            found |= {place, furthest}
        if furthest is None or last > _span(rows[furthest])[1]:
            furthest = place
    return found


def _is_plain(segment: Segment) -> bool:
    """Whether it holds what its name says, and there is nothing to say of it."""
    return (
        not segment.faults
        and segment.broken is None
        and not segment.backs
        and segment.ranges == ((segment.first, segment.last),)
    )


def _follows(segment: Segment, before: Segment) -> bool:
    if not _is_plain(segment) or not _is_plain(before):
        return False
    assert segment.first_at is not None
    assert before.last_at is not None
    return (
        segment.first == before.last + 1
        and segment.state == before.state
        and segment.prev == before.chain
        and segment.first_at >= before.last_at
    )


def _joined(one: Segment, other: Segment) -> Segment:
    assert one.first_at is not None
    assert other.last_at is not None
    return one._replace(
        name="",
        last=other.last,
        size_bytes=one.size_bytes + other.size_bytes,
        ranges=((one.first, other.last),),
        edges=((one.first_at, other.last_at),),
        chain=other.chain,
        last_at=other.last_at,
        restored=None,
    )


def _is_in(row: Segment, piece: Segment) -> bool:
    return row.node == piece.node and piece.first <= row.first and row.last <= piece.last and _is_plain(row)
