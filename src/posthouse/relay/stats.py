"""Counters of the relay since its start, for metrics. Plain numbers; nothing decides by them."""

from __future__ import annotations

from collections import Counter


class Stats:
    """All that happened, in numbers."""

    __slots__ = (
        "authenticated", "closed", "confirmed", "delivered_bytes", "delivered_frames", "duplicates", "flushed_frames",
        "flushes", "frames", "opened", "pings", "posted", "refused", "set_aside", "slow", "store_failures",
        "taken_over", "unparseable",
    )  # fmt: skip

    def __init__(self) -> None:
        self.opened = 0
        """Connections."""
        self.authenticated = 0
        self.taken_over = 0
        """Half-open connections that gave way to a newer one of the same address."""
        self.frames = 0
        """Frames of authenticated agents."""
        self.posted = 0
        """Messages accepted; they are durable."""
        self.duplicates = 0
        self.confirmed = 0
        """Confirmations that matched a message."""
        self.delivered_frames = 0
        """Messages written to sockets."""
        self.delivered_bytes = 0
        self.flushed_frames = 0
        """Those of them that had waited."""
        self.flushes = 0
        self.pings = 0
        self.slow = 0
        """Times a recipient had no room and the rest waited in its mailbox."""
        self.set_aside = 0
        """Stored messages that could not be read."""
        self.unparseable = 0
        self.store_failures = 0
        """Submissions that came to nothing."""
        self.refused: Counter[str] = Counter()
        """Frames refused at the door, by reason."""
        self.closed: Counter[str] = Counter()
        """Connections ended by the relay, by the reason of the close frame."""
