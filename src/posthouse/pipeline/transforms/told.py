"""Told: what the journal tells of messages, with numbers in place of names where numbers are quicker.

In: events of the contract. Out: the events of messages with a code for what happened, instants in µs and a number for
the message and for its mailbox. It knows nothing of what they come to.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from ..schema import IDENTITY

KEY = IDENTITY
"""What a message is known by; a second `posted` of the same is its next generation."""
BOX = ("node", "desk", "mailbox")
LANE = (*BOX, "lane")
ID = ("key", "twin")
"""Two numbers for a message's key: unique, and quicker to group by than five texts."""
PLACE = ("box", "track")
"""Two numbers for a lane."""

EVENTS = (
    "posted", "retried", "released", "recalled", "unparked", "redriven", "leased", "received", "parked", "uncertain",
    "delivered", "died", "expired", "cancelled", "duplicate", "refused",
)  # fmt: skip
"""What is told of a message, by its code: what lets it wait, flight, aside, ends, and what changes nothing."""
CODE = {name: code for code, name in enumerate(EVENTS)}
WAITS, FLIES, ASIDES, ENDS = CODE["redriven"], CODE["received"], CODE["uncertain"], CODE["cancelled"]
"""The last code of each sort."""
READY, FLIGHT, ASIDE, DONE = 0, 1, 2, 3
"""What a message does after an event that counts."""
NEVER = 2**62
"""An instant, or an offset, after all others."""

_OUTCOMES = {"delivered": "delivered", "died": "dead", "expired": "expired", "cancelled": "cancelled"}
_OFTEN = ("leased", "posted", "delivered", "received")


def is_(*names: str) -> Column:
    """Whether the row's event is one of these."""
    code = F.col("code")
    return code == CODE[names[0]] if len(names) == 1 else code.isin([CODE[name] for name in names])


def ends() -> Column:
    """Whether the row's event finishes a message."""
    return F.col("code").between(ASIDES + 1, ENDS)


def limits() -> Column:
    """Whether the row's event says how long its message lasts from then on; if it says nothing, that has no end."""
    return is_("posted", "redriven", "unparked")


def state_of(code: Column) -> Column:
    """What a message does after an event of this code."""
    return (
        F.when(code <= WAITS, READY).when(code <= FLIES, FLIGHT).when(code <= ASIDES, ASIDE).otherwise(DONE).cast("int")
    )


def outcome_of(code: Column) -> Column:
    """The outcome that an event of this code makes; null if it makes none."""
    found = F.when(F.lit(False), "")
    for name, outcome in _OUTCOMES.items():
        found = found.when(code == CODE[name], outcome)
    return found


def name_of(code: Column) -> Column:
    """The event's name again."""
    return F.get(F.array(*(F.lit(name) for name in EVENTS)), code)


def box_of() -> Column:
    """A number for a mailbox: all that concerns one is worked off in one place."""
    return F.xxhash64(*BOX)


def spot_of() -> Column:
    """A number for a desk of a node."""
    return F.xxhash64("node", "desk")


def above(frame: DataFrame, edges: DataFrame | None) -> DataFrame:
    """With its node's ``edge``: what lies above is news. Where there are no edges, all is."""
    if edges is None:
        return frame.withColumn("edge", F.lit(0).cast("bigint"))
    return frame.join(F.broadcast(edges), on="node", how="left").withColumn("edge", F.coalesce("edge", F.lit(0)))


def key_of() -> Column:
    """A number for a message's key; see ``twin_of``."""
    return F.xxhash64(*KEY)


def twin_of() -> Column:
    """A second number, of the id alone: no two messages have both in common."""
    return F.xxhash64("message_id")


def track_of() -> Column:
    """A number for a lane among those of its mailbox."""
    return F.xxhash64("lane")


def told(events: DataFrame) -> DataFrame:
    """The events of messages as they are needed further on."""
    name = F.col("event")
    code = F.when(name == _OFTEN[0], CODE[_OFTEN[0]])
    for each in (*_OFTEN[1:], *(each for each in EVENTS if each not in _OFTEN)):
        code = code.when(name == each, CODE[each])
    return (
        events.where(F.col("message_id") != "")
        .withColumn("code", code.cast("int"))
        .where(F.col("code").isNotNull())
        .select(
            box_of().alias("box"),
            key_of().alias("key"),
            twin_of().alias("twin"),
            track_of().alias("track"),
            *KEY,
            "offset",
            F.unix_micros("at").alias("ts"),
            "commit",
            "code",
            "lane",
            "lane_seq",
            "kind",
            "size_bytes",
            "cause_id",
            "attempt",
            "holder",
            "reason",
            "error",
            F.unix_micros("due_at").alias("due"),
            F.unix_micros("expires_at").alias("expires"),
        )
    )
