"""A store most of whose mailboxes are quiet: each batch concerns a few of them.

Out: one node's events by hand, and where its batches end. Each batch tells more of messages that were refused or
finished before, wakes mailboxes that no batch did before it and one that the batch before it did, and leaves the others
alone. What comes of it is for the oracle to say.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql import functions as F
from tests.pipeline import compare
from tests.pipeline.journal import Journal

from posthouse.pipeline.schema import MORE
from posthouse.pipeline.transforms import asleep

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

BOXES = 24
TURNS = 2
"""Batches behind the first one."""
AWAKE = 9
"""Mailboxes that each names first."""


def quiet() -> tuple[Journal, list[int]]:
    """The events, and after how many of them each batch ends."""
    story, minute = Journal(), 60

    def tell(at: float, event: str, id: str, box: str, **other: Any) -> None:
        # A lane of its own, so that its numbers have no gap.
        story.add(at, event, id, mailbox=box, lane=box, **other)

    story.add(0, "started", detail=json.dumps({"policies": {"relay": {"capacity": 3}}}))
    boxes = [f"q{number:02d}" for number in range(BOXES)]
    for number, box in enumerate(boxes):
        if number % 3 == 0:
            story.add(1, "connected", mailbox=box, holder=f"c-{box}")
        for name in ("done", "dead", "waits", "flies", "stays"):
            tell(2 + number, "posted", f"{box}-{name}", box)
        for name, end in (("done", "delivered"), ("dead", "died")):
            tell(3 + number, "leased", f"{box}-{name}", box, holder="w")
            tell(4 + number, end, f"{box}-{name}", box, error="no route" if end == "died" else None)
        tell(5 + number, "leased", f"{box}-flies", box, holder="w")
        for name in ("never", "later", "again"):
            tell(6 + number, "refused", f"{box}-{name}", box, reason="full")
    cuts = [len(story.rows)]
    for turn in range(TURNS):
        at, own = (turn + 1) * 90 * minute, boxes[AWAKE * turn : AWAKE * turn + AWAKE]
        for one, two, three in zip(own[::3], own[1::3], own[2::3], strict=True):
            # Final rows that come again: of what was refused, of what was delivered, and of what died and lives again.
            tell(at, "refused", f"{one}-again", one, reason="full")
            tell(at + 1, "duplicate", f"{one}-done", one)
            tell(at + 2, "redriven", f"{two}-dead", two)
            tell(at + 3, "delivered", f"{one}-flies", one)
            tell(at + 4, "posted", f"{two}-later", two, expires_at=at + 30 * minute)
            story.add(at + 5, "connected", mailbox=three, holder=f"c-{three}")
            tell(at + 6, "posted", f"{three}-new", three)
        if turn:
            before = boxes[AWAKE * turn - AWAKE]
            tell(at + 7, "refused", f"{before}-again", before, reason="full")
            tell(at + 7, "duplicate", f"{before}-done", before)
            tell(at + 8, "cancelled", f"{before}-waits", before, reason="operator")
        cuts.append(len(story.rows))
    return story, cuts


class Size(NamedTuple):
    """How many rows are stored, how many of them in the second part, and how many of these are marks."""

    rows: int
    more: int
    marks: int


class Carried(NamedTuple):
    """How much is stored of a lake's open set, and what it comes to, row for row."""

    size: Size
    rows: list[str]


def carried(spark: SparkSession, lake: Path) -> Carried:
    """The open set of a lake."""
    stored = spark.read.format("delta").load(str(lake / "carried")).drop("batch")
    more = stored.where(F.col("part") == MORE)
    size = Size(stored.count(), more.count(), more.where("role = 'woken'").count())
    assert asleep.marked(stored) == (size.marks > 0)
    return Carried(size, sorted(map(repr, asleep.current(stored).collect())))


def every_row(lake: Path, names: tuple[str, ...]) -> dict[str, list[str]]:
    """All of some tables, with all that they have."""
    return {name: sorted(map(repr, compare.read(lake, name))) for name in names}
