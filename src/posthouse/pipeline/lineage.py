"""Lineage: stores that go on from a snapshot of another one are one in the books.

In: which node was restored from which, and at which offset. Out: for each node the name under which its events are in
the books, what is added to its offsets there, and how far it counts. A line of restores has the name of its first
node, and its offsets go on from the snapshot's. What a node wrote behind the snapshot that another goes on from is
abandoned: it stays among the events, and counts nowhere. Where several go on from one node, the line with the newest
restore is followed. No file is opened here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from ..errors import InvalidInput
from ..journal import schema as contract
from . import offsets
from .offsets import Ranges

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

OFFSET_MAX = 1 << 53
"""What a restore may say of a snapshot's offset."""


class Restore(NamedTuple):
    """What a node said when it started from a snapshot."""

    node: str
    start: int
    """Its own offset where it says so."""
    origin: str
    """The node of the snapshot."""
    offset: int
    """The last offset in the snapshot."""
    at: int
    """When it started, in µs."""


class Place(NamedTuple):
    """Where a node's events are in the books."""

    node: str
    shift: int = 0
    last: int | None = None
    """The last own offset that counts; None if all do, 0 if none does."""


def restored_from(detail: str | None) -> tuple[str, int] | None:
    """Node and offset of the snapshot that a `started` names; None where it names none, ValueError where it is odd."""
    if not detail or "restored_from" not in detail:
        return None
    try:
        said = json.loads(detail)
    except (ValueError, RecursionError):
        return None
    found = said.get("restored_from") if isinstance(said, dict) else None
    if found is None:
        return None
    node, offset = (found.get(name) for name in ("node", "offset")) if isinstance(found, dict) else (None, None)
    try:
        contract.check_node(node)
    except InvalidInput:
        raise ValueError("its node is no name of a node") from None
    if type(offset) is not int or not 0 <= offset <= OFFSET_MAX:
        raise ValueError("its offset is no offset")
    return str(node), offset


def told(*restores: Restore | None) -> tuple[Restore, ...]:
    """Each node's restore, once: what it said first."""
    found: dict[str, Restore] = {}
    for each in restores:
        if each is not None and (each.node not in found or each < found[each.node]):
            found[each.node] = each
    return tuple(sorted(found.values()))


class Lineage:
    """The places of all nodes."""

    def __init__(self, restores: Iterable[Restore] = ()) -> None:
        self.restores = told(*restores)
        self._places, self._heirs = _places({each.node: each for each in self.restores})

    def place(self, node: str) -> Place:
        """Where a node's events are."""
        return self._places.get(node) or Place(node)

    def within(self, node: str, ranges: Ranges) -> list[tuple[int, int]]:
        """A node's offsets as they are in the books, without those that are abandoned."""
        _, shift, last = self.place(node)
        if last is not None:
            ranges = [(first, min(end, last)) for first, end in ranges if first <= last]
        return [(first + shift, end + shift) for first, end in ranges]

    def known(self, nodes: Mapping[str, Ranges]) -> dict[str, list[tuple[int, int]]]:
        """The offsets of several nodes by the names that they have in the books."""
        found: dict[str, list[tuple[int, int]]] = {}
        for node, ranges in nodes.items():
            if inside := self.within(node, ranges):
                found.setdefault(self.place(node).node, []).extend(inside)
        return {node: offsets.merged(ranges) for node, ranges in found.items()}

    def moved(self, before: Lineage, nodes: Mapping[str, Ranges]) -> set[str]:
        """Names in the books whose events are others than they were before, of the offsets that are known."""
        found: set[str] = set()
        for node, ranges in nodes.items():
            then, now = before.place(node), self.place(node)
            if (then.node, before.within(node, ranges)) != (now.node, self.within(node, ranges)):
                found |= {then.node, now.node}
        return found

    def reached(self, node: str) -> int:
        """The offset up to which a node has written for certain, since a snapshot of it says so."""
        return max((each.offset for each in self.restores if each.origin == node), default=0)

    def heir(self, node: str) -> Restore | None:
        """Who goes on in a node's place; None if it counts to its end."""
        return self._heirs.get(node)

    def counted(self, events: DataFrame) -> DataFrame:
        """Events as they are in the books: with the names and offsets that they have there, without those abandoned."""
        if not self._places:
            return events
        from pyspark.sql import functions as F

        node, offset = F.col("node"), F.col("offset")
        name, shift, counts = node, F.lit(0).cast("bigint"), F.lit(True)
        for each, place in self._places.items():
            own = node == each
            name = F.when(own, F.lit(place.node)).otherwise(name)
            shift = F.when(own, F.lit(place.shift)).otherwise(shift)
            if place.last is not None:
                counts = counts & (~own | (offset <= place.last))
        return events.where(counts).withColumns(
            {"node": name, "offset": offset + shift, "commit": F.col("commit") + shift}
        )


def _places(restores: Mapping[str, Restore]) -> tuple[dict[str, Place], dict[str, Restore]]:
    """Each node's place, and who goes on instead of it."""
    lines: dict[str, list[Restore]] = {}
    for each in restores.values():
        if not _goes_round(each, restores):
            lines.setdefault(each.origin, []).append(each)
    found: dict[str, Place] = {}
    heirs: dict[str, Restore] = {}
    for root in sorted(lines.keys() - {each.node for own in lines.values() for each in own}):
        node, shift = root, 0
        while own := lines.get(node):
            followed = max(own, key=lambda each: _newest(each, lines))
            found[node], heirs[node] = Place(root, shift, followed.offset), followed
            for other in own:
                if other is not followed:
                    for each in _line(other, lines):
                        found[each.node], heirs[each.node] = Place(each.node, 0, 0), followed
            node, shift = followed.node, shift + followed.offset
        found[node] = Place(root, shift)
    return found, heirs


def _goes_round(restore: Restore, restores: Mapping[str, Restore]) -> bool:
    """Whether a node would go on from itself: that says nothing."""
    seen = {restore.node}
    at: Restore | None = restore
    while at is not None:
        if at.origin in seen:
            return True
        seen.add(at.origin)
        at = restores.get(at.origin)
    return False


def _line(restore: Restore, lines: Mapping[str, list[Restore]]) -> list[Restore]:
    """A node and all that go on from it, one way or another."""
    found, rest = [], [restore]
    while rest:
        found.append(rest.pop())
        rest += lines.get(found[-1].node, [])
    return found


def _newest(restore: Restore, lines: Mapping[str, list[Restore]]) -> tuple[int, str]:
    """The newest restore in a line."""
    return max((each.at, each.node) for each in _line(restore, lines))


ALONE = Lineage()
"""Nobody goes on from another."""
