"""What a peer has done since it started, for its operator. Types of messages come from a closed list."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class Stats:
    """Counters; they only grow."""

    sent: Counter[str] = field(default_factory=Counter)
    """Attempts to send, by type."""
    acked: int = 0
    rejected: int = 0
    unconfirmed: int = 0
    """Attempts that no acknowledgement came for."""
    away: int = 0
    """Attempts that did not reach the peer."""
    died: int = 0
    """Messages that could never be sent."""
    whispered: int = 0
    """Messages and acknowledgements published by gossip."""
    left: int = 0
    """Messages left at a relay for peers that were away."""
    received: Counter[str] = field(default_factory=Counter)
    """Messages recorded, by type."""
    duplicates: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    """Messages refused, by reason."""
    held: int = 0
    """Messages that came before their turn."""
    skipped: int = 0
    """Numbers that the other side gave up."""
    processed: int = 0
    failed: int = 0
    """Times that a handler failed for the moment."""
    refused_by_handler: int = 0
    connected: int = 0
    disconnected: int = 0
    syncs: int = 0
    resent: int = 0
    latency_s: float = 0.0
    """From posting to acknowledgement, summed over ``acked``."""
