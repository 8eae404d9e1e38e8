"""The history behind the plots: an hour by the minute, a day by ten minutes, a week by the hour.

In: the engine's counters and the store's counts, looked at once a minute. Out: rows for plots. Each window is a ring
of slots on the shelf ``console.history``, at most 372 small rows in all, so it outlives the process and never grows; a
time in which no server ran is a gap. It is no proof of anything: the journal is, and the books are made from that.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from ..control.operation import Json
from ..engine.engine import Engine
from ..mailbox.command import Command, Keep
from ..mailbox.message import SECOND, Instant, State
from ..mailbox.store import DeskView, Store
from .snapshot import FLOWS, Counts

SHELF = "console.history"
DESKS_MAX = 32
"""Desks that are told apart; those beyond are left out of the plots."""


class Window(NamedTuple):
    """One ring."""

    name: str
    slot_s: int
    slots: int


WINDOWS = (Window("hour", 60, 60), Window("day", 600, 144), Window("week", 3_600, 168))
BY_NAME = {window.name: window for window in WINDOWS}
GAUGES = ("depth", "oldest_s", "dead")


class History:
    """Keeps the rings."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._before: Counts = dict(engine.stats.outcomes)
        self._rings: dict[str, dict[int, Json]] = {window.name: {} for window in WINDOWS}
        """By window and number of the slot since 1970: what stands in it."""

    def load(self) -> None:
        """Read what earlier processes left; what cannot be read is left out."""
        after = ""
        while page := self._engine.store.kept(SHELF, after):
            for key, value in page:
                try:
                    slot = json.loads(value)
                    self._rings[key.partition("/")[0]][int(slot["slot"])] = slot
                except (ValueError, KeyError, TypeError):
                    continue
            after = page[-1][0]
        self._drop(self._engine.now())

    def look(self) -> None:
        """Add what happened since the last time to the slots of this moment. Blocking."""
        at = self._engine.now()
        counts = dict(self._engine.stats.outcomes)
        views = self._engine.store.desks()[:DESKS_MAX]
        desks = {view.desk: _row(view, at, counts, self._before) for view in views}
        self._before = counts
        keeps: list[Command] = []
        for window in WINDOWS:
            number = at // (window.slot_s * SECOND)
            ring = self._rings[window.name]
            ring[number] = slot = _added(ring.get(number, {"slot": number, "desks": {}}), desks)
            key = f"{window.name}/{number % window.slots:04d}"
            keeps.append(Keep(SHELF, key, json.dumps(slot, separators=(",", ":")).encode()))
        self._drop(at)
        self._engine.call(*keeps)

    def rows(self, window: Window) -> list[Json]:
        """A row for each slot up to now, the oldest first; ``desks`` is None where nothing is known."""
        last = self._engine.now() // (window.slot_s * SECOND)
        ring = self._rings[window.name]
        return [
            {"at": number * window.slot_s * SECOND, "desks": ring[number]["desks"] if number in ring else None}
            for number in range(last - window.slots + 1, last + 1)
        ]

    def _drop(self, at: Instant) -> None:
        for window in WINDOWS:
            last = at // (window.slot_s * SECOND)
            ring = self._rings[window.name]
            for number in [n for n in ring if not last - window.slots < n <= last]:
                del ring[number]


def _row(view: DeskView, at: Instant, counts: Counts, before: Counts) -> Json:
    kept = view.counts
    flows = {name: counts.get((view.desk, word), 0) - before.get((view.desk, word), 0) for word, name in FLOWS.items()}
    return {
        **flows,
        "depth": sum(kept.get(state, 0) for state in (State.READY, State.LEASED, State.RECEIVED)),
        "oldest_s": 0.0 if view.oldest_at is None else round(max(at - view.oldest_at, 0) / SECOND, 1),
        "dead": kept.get(State.DEAD, 0),
    }


def _added(slot: Json, desks: dict[str, Json]) -> Json:
    """Flows add up; of depth and age the largest stands, of dead letters the last."""
    known: dict[str, Json] = slot["desks"]
    for desk, row in desks.items():
        old = known.get(desk)
        if old is None:
            known[desk] = row
            continue
        known[desk] = {
            **{name: old[name] + row[name] for name in FLOWS.values()},
            "depth": max(old["depth"], row["depth"]),
            "oldest_s": max(old["oldest_s"], row["oldest_s"]),
            "dead": row["dead"],
        }
    return slot


def as_json(store: Store, window: Window, rows: list[Json]) -> Json:
    """What the API tells of a window; instants as microseconds since 1970."""
    return {"node": store.node, "window": window.name, "slot_s": window.slot_s, "rows": rows}
