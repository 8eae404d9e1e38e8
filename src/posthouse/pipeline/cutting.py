"""Cutting: which new segments make which batch.

In: segments, and those that are in the lake, as the books count them. Out: batches in which the offsets of each node
rise and none is there twice, and whether what was made of a node before still holds. No file is opened here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from . import offsets
from .bronze import Segment
from .lineage import Lineage
from .offsets import Ranges

Piece = tuple[Segment, ...]


def cut(segments: Sequence[Segment], known: Sequence[Segment], lineage: Lineage, batch_events: int) -> list[Piece]:
    """New segments as batches: rising offsets for each node, and no offset twice in one batch.

    Nodes of which something comes late have batches of their own: those are computed anew.
    """
    late = {_name(segment, lineage) for segment in segments if is_late((segment,), known, lineage)}
    in_time = [segment for segment in segments if _name(segment, lineage) not in late]
    behind = [segment for segment in segments if _name(segment, lineage) in late]
    have = _offsets(known, lineage)
    return _rising(in_time, have, lineage, batch_events) + _rising(behind, {}, lineage, batch_events)


def is_late(piece: Sequence[Segment], known: Iterable[Segment], lineage: Lineage) -> bool:
    """Whether these hold new offsets below what is in the lake of their node, or are dated before the last of that.

    What a mailbox was at an instant is not kept for ever: it may be told anew, but not told once more.
    """
    names = {_name(segment, lineage) for segment in piece}
    there = [segment for segment in known if _name(segment, lineage) in names]
    have, reached = _offsets(there, lineage), _instants(there, lineage)
    for segment in piece:
        name, own = _name(segment, lineage), lineage.within(segment.node, segment.ranges)
        if not own or name not in have:
            continue
        is_new = offsets.count(own) > offsets.count(offsets.common(own, have[name]))
        if is_new and (own[0][0] <= have[name][-1][1] or segment.lowest < reached[name]):
            return True
    return False


def _rising(
    segments: Sequence[Segment], known: Mapping[str, Ranges], lineage: Lineage, batch_events: int
) -> list[Piece]:
    pieces: list[list[Segment]] = []
    size, ends = 0, {node: ranges[-1][1] for node, ranges in known.items()}
    # What the last piece holds by the names of its files; of what counts nowhere, this alone tells what is there twice.
    held: dict[str, list[tuple[int, int]]] = {}
    # By their place in their node, so that nodes advance together; what counts nowhere goes anywhere.
    placed = [(lineage.within(segment.node, segment.ranges), segment) for segment in segments]
    for own, segment in sorted(placed, key=lambda each: (each[0][:1], each[1].node, each[1].name)):
        name = _name(segment, lineage)
        behind = bool(own) and own[0][0] <= ends.get(name, 0)
        twice = bool(offsets.common(segment.ranges, held.get(segment.node, ())))
        if not pieces or size + segment.events > batch_events or behind or twice:
            pieces.append([])
            size, held = 0, {}
        pieces[-1].append(segment)
        size += segment.events
        held[segment.node] = offsets.merged([*held.get(segment.node, ()), *segment.ranges])
        if own:
            ends[name] = max(ends.get(name, 0), own[-1][1])
    return [tuple(piece) for piece in pieces]


def _name(segment: Segment, lineage: Lineage) -> str:
    return lineage.place(segment.node).node


def _offsets(segments: Iterable[Segment], lineage: Lineage) -> dict[str, list[tuple[int, int]]]:
    """The offsets of each node, by its name in the books."""
    nodes: dict[str, list[tuple[int, int]]] = {}
    for segment in segments:
        nodes.setdefault(segment.node, []).extend(segment.ranges)
    return lineage.known(nodes)


def _instants(segments: Iterable[Segment], lineage: Lineage) -> dict[str, int]:
    """The latest instant of each node, by its name in the books."""
    found: dict[str, int] = {}
    for segment in segments:
        if lineage.within(segment.node, segment.ranges):
            name = _name(segment, lineage)
            found[name] = max(found.get(name, 0), segment.highest)
    return found
