"""The snapshot: how everything stands at one moment, from counters that engine and store keep anyway.

In: the engine, and who is online. Out: plain numbers, by desk, by role and in all. Nothing is scanned: it costs the
same with ten messages and with ten million. What flowed is told for the last minute, from marks of the counters.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple

from ..control.operation import Json
from ..control.view import instant
from ..engine.engine import Engine
from ..mailbox.message import SECOND, State
from ..mailbox.store import DeskView

ROLES: Mapping[str, str] = {
    "relay": "relay",
    "outbox": "peer",
    "inbox": "peer",
    "inbound": "gateway",
    "outbound": "gateway",
}
"""Which role works at which desk; others are a user's own."""
OWN = "own"
FLOWS: Mapping[str, str] = {
    "posted": "in",
    "delivered": "out",
    "retried": "retried",
    "dead": "died",
    "expired": "expired",
}
"""What the engine counts, and what it is called here."""
MARK_S = 5.0
WINDOW_S = 60.0

Counts = dict[tuple[str, str], int]


class _Mark(NamedTuple):
    at: float
    counts: Counts


class Snapshots:
    """Looks at an engine again and again."""

    def __init__(self, engine: Engine, now: Callable[[], float]) -> None:
        """``now``: a clock that only goes forward."""
        self._engine = engine
        self._now = now
        self._marks: deque[_Mark] = deque([_Mark(now(), dict(engine.stats.outcomes))])
        self.online: dict[str, Callable[[], int]] = {}
        """Who is connected: a word and how many."""

    def mark(self) -> None:
        """Remember the counters, every few seconds."""
        now = self._now()
        self._marks.append(_Mark(now, dict(self._engine.stats.outcomes)))
        while len(self._marks) > 1 and self._marks[1].at <= now - WINDOW_S:
            self._marks.popleft()

    def take(self) -> Json:
        """All numbers. It reads the store, so it belongs on a thread of its own."""
        counts, before = dict(self._engine.stats.outcomes), self._marks[0]
        at = self._engine.now()
        desks = {view.desk: _desk(view, at, counts, before.counts) for view in self._engine.store.desks()}
        roles: dict[str, Json] = {}
        for desk in desks.values():
            known = roles.get(desk["role"])
            roles[desk["role"]] = desk if known is None else _sum(known, desk)
        total: Json = _empty()
        for desk in desks.values():
            total = _sum(total, desk)
        for summed in (*roles.values(), total):
            summed.pop("role", None)
        return {
            "at": instant(at),
            "node": self._engine.store.node,
            "window_s": round(min(self._now() - before.at, WINDOW_S + MARK_S), 3),
            "desks": desks,
            "roles": {name: dict(role) for name, role in roles.items()},
            "all": total,
            "online": {name: count() for name, count in self.online.items()},
            "offset": self._engine.store.offset(),
            "queued": self._engine.queued(),
        }


_SUMMED = ("mailboxes", "depth", "ready", "in_flight", "parked", "uncertain", "dead", *FLOWS.values(), "refused")


def _empty() -> Json:
    return {**dict.fromkeys(_SUMMED, 0), "oldest_s": 0.0}


def _desk(view: DeskView, at: int, counts: Counts, before: Counts) -> Json:
    kept = view.counts
    flying = kept.get(State.LEASED, 0) + kept.get(State.RECEIVED, 0)
    since = {word: count - before.get((desk, word), 0) for (desk, word), count in counts.items() if desk == view.desk}
    return {
        "role": ROLES.get(view.desk, OWN),
        "mailboxes": view.mailboxes,
        "depth": kept.get(State.READY, 0) + flying,
        "ready": kept.get(State.READY, 0),
        "in_flight": flying,
        "parked": kept.get(State.PARKED, 0),
        "uncertain": kept.get(State.UNCERTAIN, 0),
        "dead": kept.get(State.DEAD, 0),
        "oldest_s": 0.0 if view.oldest_at is None else round(max(at - view.oldest_at, 0) / SECOND, 1),
        **{name: since.get(word, 0) for word, name in FLOWS.items()},
        "refused": sum(count for word, count in since.items() if word.startswith("refused_")),
    }


def _sum(one: Json, other: Json) -> Json:
    summed: Json = {name: one[name] + other[name] for name in _SUMMED}
    return {**summed, "oldest_s": max(one["oldest_s"], other["oldest_s"])}
