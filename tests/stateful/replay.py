"""Every message's state from the journal alone, and where a store's rows differ from it.

In: events in order of their offsets, from the first. Out: what became of each message, and complaints in
sentences. It looks at nothing else, so it can check any store, and one that was killed in mid-commit too.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from posthouse.mailbox import event as ev
from posthouse.mailbox.command import Filter
from posthouse.mailbox.event import Event
from posthouse.mailbox.message import FINISHED, IN_FLIGHT, Ref, State
from posthouse.mailbox.store import Store

STATES = {
    ev.POSTED: State.READY,
    ev.LEASED: State.LEASED,
    ev.RECEIVED: State.RECEIVED,
    ev.DELIVERED: State.DELIVERED,
    ev.RETRIED: State.READY,
    ev.RELEASED: State.READY,
    ev.RECALLED: State.READY,
    ev.UNCERTAIN: State.UNCERTAIN,
    ev.DIED: State.DEAD,
    ev.EXPIRED: State.EXPIRED,
    ev.CANCELLED: State.CANCELLED,
    ev.PARKED: State.PARKED,
    ev.UNPARKED: State.READY,
    ev.REDRIVEN: State.READY,
}
"""The state after each event of a message."""


class Told(NamedTuple):
    """What the journal tells of a message."""

    state: State
    lane: str
    seq: int
    attempts: int
    life: int


class Replay:
    """The messages as the events so far left them."""

    def __init__(self) -> None:
        self.messages: dict[Ref, Told] = {}
        self.last_seq: dict[tuple[str, str, str], int] = {}
        self.complaints: list[str] = []

    def take(self, event: Event) -> None:
        """Follow one event."""
        state = STATES.get(event.event)
        if state is None:
            return
        ref = Ref(event.desk, event.mailbox, event.sender, event.message_id)
        if event.event == ev.POSTED:
            lane = (event.desk, event.mailbox, event.lane)
            expected = self.last_seq.get(lane, 0) + 1
            if event.lane_seq != expected:
                self.complaints.append(f"{ref} has number {event.lane_seq} in its lane, not {expected}")
            self.last_seq[lane] = event.lane_seq
            before = self.messages.get(ref)
            if before is not None and before.state not in FINISHED:
                self.complaints.append(f"{ref} was posted again while it was {before.state}")
            self.messages[ref] = Told(state, event.lane, event.lane_seq, 0, 1)
            return
        before = self.messages.get(ref)
        if before is None:
            self.complaints.append(f"{ref} was {event.event} before it was posted")
            return
        if (event.lane, event.lane_seq) != (before.lane, before.seq):
            self.complaints.append(f"{ref} changed its place in its lane: {event}")
        under_way = before.attempts + (before.state in IN_FLIGHT or event.event == ev.LEASED)
        revived = event.event in (ev.REDRIVEN, ev.UNPARKED)
        if event.attempt != (0 if revived else under_way):
            self.complaints.append(f"{ref} should be at attempt {under_way}: {event}")
        self.messages[ref] = Told(
            state,
            before.lane,
            before.seq,
            0 if revived else event.attempt if counts(event, before.state) else before.attempts,
            before.life + revived,
        )


def counts(event: Event, before: State) -> bool:
    """Whether the attempts counted after the event are the number that it carries."""
    match event.event:
        case ev.DELIVERED | ev.RETRIED | ev.UNCERTAIN:
            return True
        case ev.DIED:
            # A deadline does not count; a leased message has none, so there a holder said so.
            return event.reason != "deadline" or before is State.LEASED
        case ev.PARKED:
            return event.reason == "attempts"
    return False


def replay(events: Iterable[Event]) -> Replay:
    """What the journal tells."""
    told = Replay()
    for event in events:
        told.take(event)
    return told


def differences(store: Store) -> list[str]:
    """Where a store's rows are not what its whole journal tells; empty: nowhere."""
    told = replay(event for _, _, event in store.events())
    complaints = list(told.complaints)
    for ref, expected in told.messages.items():
        view = store.message(ref)
        if view is None:
            # Only what is finished may be forgotten.
            if expected.state not in FINISHED:
                complaints.append(f"{ref} is lost: the journal says {expected}")
            continue
        actual = Told(view.state, view.message.lane, view.seq, view.attempts, view.life)
        if actual != expected:
            complaints.append(f"{ref}: the store says {actual}, the journal {expected}")
    for desk in store.desks():
        after = 0
        while page := store.messages(Filter(desk.desk), after, 1_000):
            complaints += [f"{v.message.ref} was never posted" for v in page if v.message.ref not in told.messages]
            after = page[-1].number
    for (desk_name, mailbox, name), last_seq in told.last_seq.items():
        lane = store.lane(desk_name, mailbox, name)
        if lane is None or lane.last_seq != last_seq:
            complaints.append(f"lane {name!r} of {desk_name}/{mailbox} ends at {last_seq} in the journal: {lane}")
    return complaints
