"""Counters of a running gateway: plain numbers that its parts raise and its metrics read."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class WorkerStats:
    """What became of the work since the start; messages, not batches."""

    running: int = 0
    """Sessions that are worked on now."""
    handled: int = 0
    replies: int = 0
    retried: int = 0
    away: int = 0
    rejected: int = 0
    timed_out: int = 0
    fenced: int = 0
    """Handlers whose lease was lost: what they answered was dropped."""


@dataclass(slots=True)
class CourierStats:
    """What became of the sends of one account since the start."""

    sending: int = 0
    sent: int = 0
    parts: int = 0
    resent: int = 0
    """Parts that were sent again on another connection, with the same key."""
    retried: int = 0
    rate_limited: int = 0
    offline: int = 0
    died: int = 0
    uncertain: int = 0
    reconciled: int = 0
    held_back: int = 0
    """Messages that an open breaker gave back."""
    received: int = 0
    duplicates: int = 0
    refused: int = 0
    ups: int = 0
    downs: int = 0
