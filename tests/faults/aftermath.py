"""What a killed process left: its acknowledgements held against the store, the store against its journal.

In: the lines of ``load.py`` and the path of its store. Out: a list of contradictions, empty when all is well.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import apsw
from tests.faults.traffic import ENDS, POLICIES, chain_faults
from tests.stateful.replay import differences

from posthouse.mailbox import event as ev
from posthouse.mailbox.command import Filter
from posthouse.mailbox.message import FINISHED, Ref, State
from posthouse.mailbox.store import MessageView, Store
from posthouse.stores.sqlite import SqliteStore


@dataclass
class Told:
    """All that was acknowledged over the runs of one store."""

    posted: dict[Ref, tuple[str, int]] = field(default_factory=dict)
    asked: set[Ref] = field(default_factory=set)
    """A settlement was sent; whether it took effect is known only if it was acknowledged."""
    finished: dict[Ref, State] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def read(self, output: bytes) -> None:
        """Take in what a run said; a last line without its end was not said."""
        for line in output.split(b"\n")[:-1]:
            what, *rest = json.loads(line)
            if what == "F":
                self.failures.append(rest[0])
                continue
            ref = Ref(*rest[0])
            if what == "P":
                self.posted[ref] = (rest[1], rest[2])
            elif what == "s":
                self.asked.add(ref)
            elif State(rest[1]) in FINISHED:
                self.finished[ref] = State(rest[1])


def check(path: Path, told: Told) -> list[str]:
    """Open the store as the next process would, and compare."""
    store = SqliteStore.open(str(path), POLICIES, node="load")
    try:
        return [
            *_damage(path),
            *chain_faults(list(store.chunks())),
            *differences(store),
            *_order(store),
            *_rows(store, told),
        ]
    finally:
        store.close()


def _damage(path: Path) -> Iterable[str]:
    db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return [f"damaged: {line}" for (line,) in db.execute("PRAGMA integrity_check") if line != "ok"]
    finally:
        db.close()


def all_rows(store: Store) -> dict[Ref, MessageView]:
    """Every kept message."""
    rows: dict[Ref, MessageView] = {}
    for desk in store.policies:
        after = 0
        while page := store.messages(Filter(desk), after=after, limit=1_000):
            after = page[-1].number
            rows.update({view.message.ref: view for view in page})
    return rows


def _rows(store: Store, told: Told) -> Iterable[str]:
    rows = all_rows(store)
    ended = {Ref(e.desk, e.mailbox, e.sender, e.message_id) for _, _, e in store.events() if e.event in ENDS}
    for ref, (lane, seq) in told.posted.items():
        view = rows.get(ref)
        if view is not None and (view.message.lane, view.seq) != (lane, seq):
            yield f"altered: {ref} was number {seq} of {lane!r} and is {view.seq} of {view.message.lane!r}"
        if (view is None or view.state in FINISHED) and not (ref in told.asked and ref in ended):
            yield f"lost: {ref} is {view.state if view else 'gone'} and nobody settled it"
    for ref, state in told.finished.items():
        view = rows.get(ref)
        if view is not None and view.state != state:
            yield f"resurrected: {ref} ended as {state} and is {view.state}"


def _order(store: Store) -> Iterable[str]:
    """Numbers without gaps, and nobody leased before those ahead of it had been leased or had ended."""
    numbered: dict[tuple[str, str, str], int] = {}
    leased: dict[tuple[str, str, str], int] = {}
    for offset, _, e in store.events():
        lane = (e.desk, e.mailbox, e.lane)
        if e.event == ev.POSTED:
            if e.lane_seq != numbered.get(lane, 0) + 1:
                yield f"offset {offset}: {e.lane_seq} follows {numbered.get(lane, 0)} in lane {lane}"
            numbered[lane] = e.lane_seq
        elif e.event == ev.LEASED:
            if e.lane_seq > leased.get(lane, 0) + 1:
                yield f"offset {offset}: {lane} skips from {leased.get(lane, 0)} to {e.lane_seq}"
            leased[lane] = max(leased.get(lane, 0), e.lane_seq)
