"""How a trade's private messages travel: what each side can do, and which way follows from it. Pure: values only.

    require  streams only, also when the setting is changed later: the trade keeps it
    prefer   streams, and gossip for a node that does not take them
    off      gossip, as before there were streams

Both sides say what they can in every private message and acknowledgement (``capabilities``), so it is known from a
trade's first message on. A node that says nothing is judged by how it speaks: a stream is a stream.

In: a setting, a trade's record, what a peer says. Out: words, and decisions. A trade in which either side asked for
streams only never goes any other way.
"""

from __future__ import annotations

import enum
from collections.abc import Collection

from ..control.trade import Trade

DIRECT = "direct"
"""Takes private messages on streams."""
DIRECT_ONLY = "direct_only"
"""Takes them in no other way."""
GOSSIP = "gossip"
"""Takes them by gossip, and acknowledges them there."""
SILENT = "none"
"""What is noted of a node that speaks by gossip and says nothing of itself."""


class Mode(enum.StrEnum):
    """How we want private messages to travel."""

    OFF = "off"
    PREFER = "prefer"
    REQUIRE = "require"


class Path(enum.StrEnum):
    """How a message came."""

    STREAM = "stream"
    GOSSIP = "gossip"
    RELAY = "relay"


def ours(mode: Mode, gossips: bool) -> tuple[str, ...]:
    """What we say of ourselves; ``gossips``: we take part in the gossip of private messages."""
    if mode is Mode.REQUIRE:
        return (DIRECT, DIRECT_ONLY)
    if mode is Mode.OFF:
        return (GOSSIP,)
    return (DIRECT, GOSSIP) if gossips else (DIRECT,)


def learned(trade: Trade, words: Collection[str], path: Path, mode: Mode) -> Trade:
    """The trade's record once its other party has said this of itself, or nothing, on this path."""
    theirs = " ".join(sorted(words)) or trade.theirs
    if not theirs and path is not Path.RELAY:
        theirs = DIRECT if path is Path.STREAM else SILENT
    only = trade.direct_only or mode is Mode.REQUIRE or DIRECT_ONLY in words
    return trade._replace(theirs=theirs, direct_only=only)


def goes_by_gossip(trade: Trade | None, mode: Mode, takes_streams: bool | None) -> bool:
    """Whether the next message goes by gossip; ``takes_streams``: what a connected peer serves, None: not known."""
    if mode is Mode.REQUIRE or (trade is not None and trade.direct_only):
        return False
    if mode is Mode.OFF:
        return True
    if takes_streams is not None:
        return not takes_streams
    return trade is not None and bool(trade.theirs) and DIRECT not in trade.theirs.split()


def acknowledges_gossip(trade: Trade | None) -> bool | None:
    """Whether the other party acknowledges what comes by gossip; None: not known."""
    if trade is None or not trade.theirs:
        return None
    return GOSSIP in trade.theirs.split()
