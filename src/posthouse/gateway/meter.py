"""The meter: how much came, went and failed of late, by desk, account and session.

In: events of the journal, and the time by a clock that never goes back. Out: counts of the last five minutes, and
totals since the start for the metrics. What it remembers is bounded; it reads no store and starts nothing.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

from ..control.gateway import channel_of
from ..mailbox import event as ev
from ..mailbox.event import Event
from .letter import INBOUND_DESK, OUTBOUND_DESK

BUCKET_S = 10.0
BUCKETS = 30
KEYS_MAX = 20_000
"""Sessions that are told apart in one bucket; what is more is counted for their desk only."""
CHANNELS_MAX = 200
"""Channels that the totals tell apart; all others are one."""
OTHER = "other"

_WHAT = {
    ev.POSTED: "posted",
    ev.DELIVERED: "delivered",
    ev.RETRIED: "failed",
    ev.DIED: "died",
    ev.UNCERTAIN: "uncertain",
    ev.EXPIRED: "expired",
}
WHAT = tuple(dict.fromkeys(_WHAT.values()))


class Place(NamedTuple):
    """Whose messages are counted."""

    desk: str
    channel: str
    """channel/account, for both desks."""
    mailbox: str
    lane: str


Counts = dict[str, int]
_Key = tuple[str, str, str, str, str]
"""A place's fields, and what happened."""


class Meter:
    """Counts events as they are told to it."""

    def __init__(self) -> None:
        self.totals: Counter[tuple[str, str, str]] = Counter()
        """By desk, channel/account and what happened."""
        self._channels: set[str] = set()
        self._sources: dict[str, str] = {}
        """The channels of the senders of late."""
        self._buckets: deque[tuple[float, dict[_Key, int]]] = deque(maxlen=BUCKETS)
        self._begun_s: float | None = None
        self._lock = threading.Lock()  # one thread counts, others ask

    def count(self, events: Iterable[Event], now_s: float) -> None:
        """Count these."""
        with self._lock:
            self._count(events, now_s)

    def _count(self, events: Iterable[Event], now_s: float) -> None:
        if self._begun_s is None:
            self._begun_s = now_s
        if not self._buckets or now_s - self._buckets[-1][0] >= BUCKET_S:
            self._buckets.append((now_s, {}))
        bucket, sources = self._buckets[-1][1], self._sources
        for event in events:
            what = _WHAT.get(event.event)
            if what is None:
                continue
            desk, mailbox = event.desk, event.mailbox
            if desk == INBOUND_DESK:
                channel = sources.get(event.sender) or self._source(event.sender)
            elif desk == OUTBOUND_DESK:
                channel = mailbox
            else:
                continue
            self.totals[desk, self._known(channel), what] += 1
            key = (desk, channel, mailbox, event.lane, what)
            if len(bucket) >= KEYS_MAX and key not in bucket:
                key = (desk, "", "", "", what)
            bucket[key] = bucket.get(key, 0) + 1

    def _source(self, sender: str) -> str:
        if len(self._sources) >= KEYS_MAX:
            self._sources.clear()
        channel = self._sources[sender] = channel_of(INBOUND_DESK, "", sender)
        return channel

    def _known(self, channel: str) -> str:
        """The channel as the totals name it."""
        if channel not in self._channels:
            if len(self._channels) >= CHANNELS_MAX:
                return OTHER
            self._channels.add(channel)
        return channel

    def window_s(self, now_s: float) -> float:
        """How long a time the counts are of."""
        return 0.0 if self._begun_s is None else min(now_s - self._begun_s, BUCKET_S * BUCKETS)

    def by(self, key: Callable[[Place], tuple[str, ...]], now_s: float) -> dict[tuple[str, ...], Counts]:
        """The counts of late, added up by what ``key`` makes of a place."""
        found: dict[tuple[str, ...], Counts] = {}
        with self._lock:
            for begun_s, bucket in self._buckets:
                if now_s - begun_s > BUCKET_S * BUCKETS:
                    continue
                for (*place, what), count in bucket.items():
                    counts = found.setdefault(key(Place(*place)), {})
                    counts[what] = counts.get(what, 0) + count
        return found
