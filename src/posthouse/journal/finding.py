"""Findings: what is wrong with a journal, one value for each fault, naming where and what."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import NamedTuple

Progress = Callable[[int, int], None]
"""Called with the events done and those to do. What it raises ends the work; nothing is harmed by that."""


class Kind(enum.StrEnum):
    """What kind of fault was found; these words are stable."""

    MISSING = "missing"  # offsets, or a segment that was written, are not there
    OVERLAP = "overlap"  # offsets are there twice
    REORDERED = "reordered"  # something stands before what it belongs after
    ALTERED = "altered"  # the bytes or rows are not those that were written
    CHAIN_BROKEN = "chain_broken"  # it does not follow what stands before it
    UNREADABLE = "unreadable"
    MISPLACED = "misplaced"  # name, folder and content disagree about node or offsets
    INVALID = "invalid"  # it can be read and breaks the contract
    UNVERIFIED = "unverified"  # a segment without the keys that would prove it
    FOREIGN = "foreign"  # something that the journal did not write lies in its folder


class Finding(NamedTuple):
    """One fault: its kind, the file or the chunk it is in, and what is wrong there."""

    kind: Kind
    where: str
    detail: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.where}: {self.detail}"


class Findings(list[Finding]):
    """The faults that were found, and how much was looked at."""

    chunks: int = 0
    segments: int = 0
    events: int = 0
