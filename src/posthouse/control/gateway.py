"""Operations on the gateway: how long its queues are, how fast they move, and what fails, by desk, channel and session.

In: the store, and the counts of a gateway that runs on it, if one does in this process. Out: numbers. Lengths are
those of the store; rates and errors of late are known only while a gateway runs.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

from ..errors import InvalidInput
from ..mailbox.command import Filter
from ..mailbox.message import IN_LANE, State
from ..mailbox.store import DeskView, Store
from . import view
from .operation import SCAN_PAGE, Answer, Context, Json, operation

DESKS = ("inbound", "outbound")
SCAN_MAX = 20_000
"""Messages of a desk that are looked at; what is more is told as such."""
BOXES_MAX = 50
SESSIONS = 20

_running: weakref.WeakKeyDictionary[Any, Callable[[], Json]] = weakref.WeakKeyDictionary()


def running(access: object, live: Callable[[], Json]) -> None:
    """A gateway runs on this engine, and ``live`` tells its counts."""
    _running[access] = live


def stopped(access: object) -> None:
    """It runs no more."""
    _running.pop(access, None)


def channel_of(desk: str, mailbox: str, sender: str) -> str:
    """The channel/account of a message: what is inbound names it in its sender, what is outbound is in its mailbox."""
    return "/".join(sender.split("/", 2)[:2]) if desk == DESKS[0] else mailbox


class _Scan:
    """Messages of a desk in some states, counted by channel and by session."""

    def __init__(self, store: Store, desk: DeskView | None, states: frozenset[State], most: int) -> None:
        self.channels: Counter[str] = Counter()
        self.sessions: Counter[tuple[str, str]] = Counter()
        there = 0 if desk is None else sum(desk.counts.get(state, 0) for state in states)
        self.whole = there <= most
        left = min(there, most)
        if desk is None or not left:
            return
        boxes = store.mailboxes(desk.desk, limit=BOXES_MAX + 1)
        # Of a few mailboxes each has an index of its own; of many, the desk's messages are not far between others.
        names = [box.mailbox for box in boxes] if len(boxes) <= BOXES_MAX else [None]
        for name in names:
            left -= self._count(store, Filter(desk.desk, name, states=states), left)

    def _count(self, store: Store, filter: Filter, most: int) -> int:
        after = seen = 0
        while seen < most and (page := store.messages(filter, after, min(SCAN_PAGE, most - seen))):
            for found in page:
                message = found.message
                self.channels[channel_of(filter.desk, message.mailbox, message.sender)] += 1
                self.sessions[message.mailbox, message.lane] += 1
            after = page[-1].number
            seen += len(page)
        return seen


@operation("gateway.stats")
def stats(context: Context, *, sessions: int = SESSIONS, scan: int = SCAN_MAX) -> Answer:
    """Lengths, rates and errors: of the desks, of each channel's accounts, and of the ``sessions`` longest sessions.

    Channels and sessions are counted over the ``scan`` oldest messages that wait, and as many dead ones; where there
    are more, ``scanned_all`` is false.
    """
    if not 1 <= scan <= SCAN_MAX:
        raise InvalidInput(f"scan must be between 1 and {SCAN_MAX}: {scan}")
    live = _running.get(context.access)
    counts = live() if live is not None else {}
    found: list[Json] = [_desk(context.store, desk, counts, sessions, scan) for desk in DESKS]
    return {
        "running": live is not None,
        "window_s": counts.get("window_s"),
        "worker": counts.get("worker"),
        "accounts": counts.get("accounts", []),
        "desks": found,
    }


def _desk(store: Store, desk: str, live: Json, most: int, scan: int) -> Json:
    found = next((found for found in store.desks() if found.desk == desk), None)
    waiting = _Scan(store, found, IN_LANE, scan)
    dead = _Scan(store, found, frozenset({State.DEAD}), scan)
    rates: Json = live.get("rates", {}).get(desk, {})
    # Those that wait longest, then those that failed of late.
    longest = [place for place, _ in waiting.sessions.most_common(most)]
    failing = sorted(rates.get("sessions", []), key=lambda row: -row["failed"])
    named = {(row["mailbox"], row["lane"]): row for row in failing}
    places = dict.fromkeys([*longest, *(place for place, row in named.items() if row["failed"])][:most])
    return {
        "desk": desk,
        "counts": view.counts(found.counts if found else {}),
        "oldest_at": view.instant_or_none(found.oldest_at if found else None),
        **_late(rates.get("all")),
        "scanned_all": waiting.whole and dead.whole,
        "channels": [
            {
                "channel": name,
                "waiting": waiting.channels[name],
                "dead": dead.channels[name],
                **_late(rates.get("channels", {}).get(name)),
            }
            for name in sorted({*waiting.channels, *dead.channels, *rates.get("channels", {})})
        ],
        "sessions": [
            {
                "mailbox": mailbox,
                "lane": lane,
                "waiting": waiting.sessions[mailbox, lane],
                "dead": dead.sessions[mailbox, lane],
                **_state(store, desk, mailbox, lane),
                **_late(named.get((mailbox, lane))),
            }
            for mailbox, lane in places
        ],
    }


def _state(store: Store, desk: str, mailbox: str, lane: str) -> Json:
    found = store.lane(desk, mailbox, lane)
    return {
        "in_flight": found.in_flight if found else 0,
        "paused": found.paused if found else None,
        "oldest_at": view.instant_or_none(found.oldest_at if found else None),
    }


def _late(counts: Json | None) -> Json:
    """Counts of late; None where no gateway runs."""
    names = ("posted", "delivered", "failed", "died", "uncertain", "expired")
    return {name: None if counts is None else counts.get(name, 0) for name in names}
