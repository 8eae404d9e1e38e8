"""Offsets as ranges: sets of whole numbers, each range a first and a last one.

In and out: pairs. Nothing here knows of files.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Ranges = Sequence[tuple[int, int]]


def count(ranges: Ranges) -> int:
    """How many offsets there are in them."""
    return sum(last - first + 1 for first, last in ranges)


def merged(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same offsets in the fewest ranges, rising."""
    found: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], last))
        else:
            found.append((first, last))
    return found


def gaps(ranges: Iterable[tuple[int, int]], reached: int = 0) -> list[tuple[int, int]]:
    """The offsets between 1 and the last one, or what was reached besides, that are in none of them."""
    found, due = [], 1
    for first, last in merged(ranges):
        if first > due:
            found.append((due, first - 1))
        due = last + 1
    if reached >= due:
        found.append((due, reached))
    return found


def common(one: Ranges, other: Ranges) -> list[tuple[int, int]]:
    """The offsets that are in both; each must be merged."""
    found, i, j = [], 0, 0
    while i < len(one) and j < len(other):
        first, last = max(one[i][0], other[j][0]), min(one[i][1], other[j][1])
        if first <= last:
            found.append((first, last))
        if one[i][1] < other[j][1]:
            i += 1
        else:
            j += 1
    return found
