"""Two stores side by side: the same history must give the same outcomes, journal and rows.

In: a history and two stores. Out: nothing, or a ``Difference`` that says where they part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tests.stateful.histories import IDS, MAILBOXES, POLICIES, SENDERS, SHELVES, T0, History, stamped

from posthouse.mailbox.command import Command, Filter, Shift, Sweep, Together
from posthouse.mailbox.event import Event
from posthouse.mailbox.message import SECOND, Ref
from posthouse.mailbox.store import MessageView, Store

REFS = [Ref(d, m, s, i) for d in POLICIES for m in MAILBOXES for s in sorted(set(SENDERS)) for i in IDS]
ALL = 1_000_000


class Difference(AssertionError):
    """The stores do not agree."""


def rows(store: Store, ids: Sequence[str]) -> dict[str, list[Any]]:
    """All that can be seen of a store but its journal and its bodies; memories of these ids."""
    mailboxes = store.mailboxes(limit=ALL)
    lanes = [lane for m in mailboxes for lane in store.lanes(m.desk, m.mailbox, limit=ALL)]
    desks = sorted({m.desk for m in mailboxes})
    return {
        "messages": [view for desk in desks for view in store.messages(Filter(desk), limit=ALL)],
        "memories": [view for id in ids for view in store.find(id, limit=ALL) if view.memory],
        "mailboxes": mailboxes,
        "lanes": lanes,
        "in lane": [view.number for lane in lanes for view in store.in_lane(*lane[:3], limit=ALL)],
        "desks": store.desks(),
        "kept": [(shelf, *row) for shelf in sorted(set(SHELVES)) for row in store.kept(shelf)],
    }


def has_sweep(command: Command) -> bool:
    if isinstance(command, Together):
        return any(has_sweep(c) for c in command.commands)
    return isinstance(command, Sweep)


def by_lane(events: Sequence[Event]) -> list[Event]:
    """Order between lanes is the store's own inside a Sweep; in a lane it is not."""
    return sorted(events, key=lambda e: (e.desk, e.mailbox, e.lane))


def compare(what: str, expected: Any, actual: Any) -> None:
    if expected != actual:
        raise Difference(f"{what} differ\n  reference: {expected!r}\n  other:     {actual!r}")


def run(
    history: History, reference: Store, other: Store, reopen: Callable[[Store], Store] = lambda store: store
) -> Store:
    """Drive both stores through a history; raise Difference where they part. The other store is returned."""
    at = T0
    known: list[MessageView] = []
    offset = 0
    for number, step in enumerate(history.steps, 1):
        at += step.wait_s * SECOND + step.jump_s * SECOND
        commands = [stamped(command, at, known) for command in step.commands]
        if step.told:
            commands.insert(0, Shift(step.jump_s * SECOND, at))
        if step.reopen:
            other = reopen(other)
        outcomes = reference.apply(commands)
        theirs = other.apply(commands)
        for command, expected, actual in zip(commands, outcomes, theirs, strict=True):
            compare(f"step {number}: outcomes of {command!r}", expected, actual)
        journal, other_journal = list(reference.events(offset)), list(other.events(offset))
        compare(f"step {number}: offsets", [row[:2] for row in journal], [row[:2] for row in other_journal])
        events, other_events = [e for _, _, e in journal], [e for _, _, e in other_journal]
        if any(has_sweep(command) for command in commands):
            events, other_events = by_lane(events), by_lane(other_events)
        if events != other_events:
            for expected_event, actual_event in zip(events, other_events, strict=True):
                compare(f"step {number}: events", expected_event, actual_event)
        offset = reference.offset()
        compare(f"step {number}: last offset", offset, other.offset())
        # Looking for memories of one id at a time is enough to find where they part, and four times faster.
        ids = IDS if number == len(history.steps) else (IDS[number % len(IDS)],)
        expected_rows, actual_rows = rows(reference, ids), rows(other, ids)
        known = expected_rows["messages"]
        for what, wanted in expected_rows.items():
            got = actual_rows[what]
            if wanted != got:
                missing = [row for row in wanted if row not in got]
                surplus = [row for row in got if row not in wanted]
                compare(f"step {number}: {what}", missing or wanted, surplus or got)
    compare("bodies", reference.bodies(REFS), other.bodies(REFS))
    return other
