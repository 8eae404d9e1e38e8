"""The flow: how long messages wait and take, in how many attempts and to which end, by desk and kind.

In: the journal's events in their order, commit by commit. Out: histograms and counts since the start.

When a message was posted stands in its first event only, so the instants of unfinished messages are remembered,
``OPEN_MAX`` of them at most; of others the store is asked, ``LOOKUPS_MAX`` times a turn. What neither tells is untimed.
Kinds are what posters say: ``KINDS_MAX`` of a desk are told apart, all others are one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice

from prometheus_client.core import Metric

from ..engine.stats import Histogram
from ..mailbox import event as ev
from ..mailbox.event import Event
from ..mailbox.message import SECOND, Instant, Ref
from .family import COUNTER, HISTOGRAM, Family

OTHER = "other"
OPEN_MAX = 50_000
LOOKUPS_MAX = 500
KINDS_MAX = 12
KIND_CHARS_MAX = 60
SECONDS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1_800, 7_200, 43_200, 604_800,
)  # fmt: skip
ATTEMPTS = (0, 1, 2, 3, 4, 5, 6, 10, 20, 50, 100)

WAIT = Family(
    "posthouse_wait_seconds", HISTOGRAM, "From posting to the first lease, by desk and kind.", ("desk", "kind")
)
DELIVERY = Family(
    "posthouse_delivery_seconds",
    HISTOGRAM,
    "From posting to delivery, by desk, kind and path: live (delivered by the lease that was committed with the post) "
    "or stored.",
    ("desk", "kind", "path"),
)
TAKEN = Family(
    "posthouse_attempts",
    HISTOGRAM,
    "Attempts that a message had taken when it was finished, by desk and kind.",
    ("desk", "kind"),
)
ENDED = Family(
    "posthouse_ended_total",
    COUNTER,
    "Messages that came to an end or were set aside, by desk, kind and outcome: delivered, died, expired, cancelled; "
    "parked, uncertain.",
    ("desk", "kind", "outcome"),
)
ACKNOWLEDGED = Family(
    "posthouse_acknowledgements_total",
    COUNTER,
    "Attempts by result: ok (the holder confirmed), failed (it did not, or said no). Holders that left do not count.",
    ("desk", "kind", "result"),
)
UNTIMED = Family(
    "posthouse_untimed_total",
    COUNTER,
    "Messages that are missing in the histograms of times, since nobody remembers when they were posted.",
)
FAMILIES = (WAIT, DELIVERY, TAKEN, ENDED, ACKNOWLEDGED, UNTIMED)

_FINISHED = frozenset({ev.DELIVERED, ev.DIED, ev.EXPIRED, ev.CANCELLED})
_COUNTED = _FINISHED | {ev.PARKED, ev.UNCERTAIN}
_ENDS = _COUNTED | {ev.RETRIED}
_FAILED = frozenset(
    {
        *((ev.RETRIED, reason) for reason in ev.REASONS[ev.RETRIED]),
        *((ev.UNCERTAIN, reason) for reason in ev.REASONS[ev.UNCERTAIN]),
        (ev.DIED, "attempts"),
        (ev.DIED, "permanent"),
        (ev.DIED, "rejected"),
        (ev.PARKED, "attempts"),
    }
)
_WAITING, _LIVE, _STORED = 0, 1, 2
"""How a message was leased last: not yet, with its post, later."""


class _Tally:
    """The numbers of one desk and kind."""

    __slots__ = ("attempts", "ended", "failed", "live", "ok", "stored", "wait")

    def __init__(self) -> None:
        self.wait = Histogram(SECONDS)
        self.live = Histogram(SECONDS)
        self.stored = Histogram(SECONDS)
        self.attempts: dict[int, int] = {}
        """Messages by their attempts."""
        self.ended: dict[str, int] = {}
        self.ok = 0
        self.failed = 0


Key = tuple[str, str, str, str]
Life = int
"""What is remembered of an unfinished message: four times the instant of its post, and how it was leased last."""


class Flow:
    """Counts what it is told; from one thread at a time. A busy server has many events, so each costs little."""

    def __init__(self, desk: Callable[[str], str], posted_at: Callable[[Ref], Instant | None]) -> None:
        """``desk`` is the label of a desk; ``posted_at`` asks the store when a message was posted."""
        self._desk = desk
        self._posted_at = posted_at
        self._open: dict[Key, Life] = {}
        self._tallies: dict[tuple[str, str], _Tally] = {}
        self._kinds: Counter[str] = Counter()
        self._lookups = 0
        self.untimed = 0

    def turn(self) -> None:
        """A new turn begins: the store may be asked again."""
        self._lookups = LOOKUPS_MAX

    def take(self, events: Sequence[Event]) -> None:
        """Count the events of one commit."""
        # What is posted here; most of it is leased here too, and much is over before anybody must remember it.
        fresh: dict[Key, Life] = {}
        tallies = self._tallies
        for event in events:
            name = event.event
            if name == ev.POSTED:
                fresh[event.desk, event.mailbox, event.sender, event.message_id] = event.at << 2
            elif name == ev.LEASED:
                self._leased(event, fresh)
            elif name in _ENDS:
                tally = tallies.get((event.desk, event.kind)) or self._tally(event.desk, event.kind)
                if name in _FINISHED:
                    self._finished(event, tally, fresh)
                if name in _COUNTED:
                    tally.ended[name] = tally.ended.get(name, 0) + 1
                if (name, event.reason) in _FAILED:
                    tally.failed += 1
        if fresh:
            self._open.update(fresh)
            if len(self._open) > OPEN_MAX:
                # The older half goes: of what is left of it the store is asked.
                kept = islice(self._open.items(), len(self._open) - max(1, OPEN_MAX // 2), None)
                self._open = dict(kept)

    def _leased(self, event: Event, fresh: dict[Key, Life]) -> None:
        key = (event.desk, event.mailbox, event.sender, event.message_id)
        life = fresh.get(key)
        if life is not None:
            if not life & 3:
                self._tally(event.desk, event.kind).wait.observe(0.0)
            fresh[key] = life & ~3 | _LIVE
            return
        life = self._open.get(key)
        if life is None:
            life = self._asked(key)
            if life is None:
                return
            if event.attempt > 1:
                life |= _STORED
        if not life & 3:
            waited_us = max(0, event.at - (life >> 2))
            self._tally(event.desk, event.kind).wait.observe(waited_us / SECOND)
        self._open[key] = life & ~3 | _STORED

    def _finished(self, event: Event, tally: _Tally, fresh: dict[Key, Life]) -> None:
        attempt = event.attempt
        tally.attempts[attempt] = tally.attempts.get(attempt, 0) + 1
        key = (event.desk, event.mailbox, event.sender, event.message_id)
        life = fresh.pop(key, None)
        if life is None:
            life = self._open.pop(key, None)
        if event.event != ev.DELIVERED:
            return
        tally.ok += 1
        if life is None and (life := self._asked(key)) is None:
            self.untimed += 1
            return
        took_s = max(0, event.at - (life >> 2)) / SECOND
        (tally.live if life & 3 == _LIVE else tally.stored).observe(took_s)

    def _asked(self, key: Key) -> Life | None:
        if self._lookups <= 0:
            return None
        self._lookups -= 1
        posted_at = self._posted_at(Ref(*key))
        return None if posted_at is None else posted_at << 2

    def _tally(self, desk: str, kind: str) -> _Tally:
        found = self._tallies.get((desk, kind))
        if found is not None:
            return found
        label = self._desk(desk)
        if kind != OTHER and (self._kinds[label] >= KINDS_MAX or len(kind) > KIND_CHARS_MAX):
            return self._tally(desk, OTHER)
        if label != desk:
            return self._tally(label, kind)
        if kind != OTHER:
            self._kinds[label] += 1
        return self._tallies.setdefault((label, kind), _Tally())

    def collect(self) -> Iterable[Metric]:
        """What was counted so far."""
        tallies = sorted(self._tallies.items())
        yield WAIT.distributed({key: tally.wait for key, tally in tallies if tally.wait.count})
        paths = [((*key, path), getattr(tally, path)) for key, tally in tallies for path in ("live", "stored")]
        yield DELIVERY.distributed({key: source for key, source in paths if source.count})
        yield TAKEN.distributed({key: _distributed(tally.attempts) for key, tally in tallies if tally.attempts})
        yield ENDED.by({(*key, name): count for key, tally in tallies for name, count in sorted(tally.ended.items())})
        results = {
            (*key, result): getattr(tally, result)
            for key, tally in tallies
            for result in ("ok", "failed")
            if tally.ok or tally.failed
        }
        yield ACKNOWLEDGED.by(results)
        yield UNTIMED.of(self.untimed)


def _distributed(counts: Mapping[int, int]) -> Histogram:
    """Counted whole numbers as a histogram."""
    found = Histogram(ATTEMPTS)
    # A copy: another thread may be counting.
    for value, count in dict(counts).items():
        found.counts[bisect_left(found.bounds, value)] += count
        found.count += count
        found.sum += value * count
    return found
