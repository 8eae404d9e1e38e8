"""Presence: who is connected, who was, for how long, and what waits for whom.

In: the journal's notes of connections, in order. Out: for agents (of the relay), peers and accounts (of the gateway's
channels) when they were online in the last day, with their backlog from the store and what their role knows of them.
The journal is the truth: after a restart the same is read from it again. What is remembered is bounded:
``PARTIES_MAX`` parties, those that came or went last, and ``STRETCHES_MAX`` stretches of each.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any

from ..errors import InvalidInput, PosthouseError
from ..journal.notes import Note
from ..mailbox.event import CONNECTED, DISCONNECTED, STARTED
from ..mailbox.message import SECOND, Instant, check_name
from . import view
from .operation import PAGE_MAX, Answer, Context, Json, Refused, operation

WHO = {"relay": "agent", "outbox": "peer", "outbound": "account"}
"""Desks at which somebody is connected, and what he is called."""
WINDOW_S = 86_400
SLOTS = 48
"""Half hours of that day."""
PARTIES_MAX = 20_000
STRETCHES_MAX = 100
DAYS = 14

Key = tuple[str, str]


class Party:
    """One agent, peer or account."""

    __slots__ = ("began", "came_at", "holders", "reason", "stretches", "went_at")

    def __init__(self) -> None:
        self.holders: set[str] = set()
        self.came_at: Instant | None = None
        """Online since then; None while it is away."""
        self.went_at: Instant | None = None
        self.reason: str | None = None
        """Why it went, last."""
        # Lists: most parties have few of each, and an empty deque is large.
        self.stretches: list[tuple[Instant, Instant]] = []
        """When it was online, up to the last time that it went."""
        self.began: list[Instant] = []
        """When its connections began."""

    def came(self, note: Note) -> None:
        self.holders.add(note.holder or "")
        self.began.append(note.at)
        del self.began[: -10 * STRETCHES_MAX]
        if self.came_at is None:
            self.came_at = note.at

    def went(self, at: Instant, holder: str | None, reason: str | None) -> None:
        if holder in self.holders:
            self.holders.discard(holder or "")
        else:
            # Whoever has one connection only may call it by another name when it ends.
            self.holders.clear()
        if self.holders or self.came_at is None:
            return
        self.stretches.append((self.came_at, max(at, self.came_at)))
        del self.stretches[:-STRETCHES_MAX]
        self.came_at, self.went_at, self.reason = None, at, reason

    def ended(self, at: Instant) -> None:
        """All its connections are over."""
        self.holders.clear()
        self.went(at, None, "restart")

    def online_us(self, begin: Instant, end: Instant) -> int:
        """How much of a span of time it was online."""
        stretches = [*self.stretches, *([] if self.came_at is None else [(self.came_at, end)])]
        return sum(max(0, min(to, end) - max(since, begin)) for since, to in stretches)


class Presence:
    """Remembers; told by one thread, asked by others."""

    def __init__(self) -> None:
        self.since: Instant | None = None
        """What was before is not known; None: nothing is."""
        self._parties: OrderedDict[Key, Party] = OrderedDict()
        self._last_at: Instant = 0
        self._lock = threading.Lock()

    def take(self, notes: Iterable[Note], last_at: Instant) -> None:
        """Learn of these; ``last_at`` is the instant of the last event that was looked at."""
        with self._lock:
            for note in notes:
                self._take(note)
                self._last_at = max(self._last_at, note.at)
            self._last_at = max(self._last_at, last_at)
            while len(self._parties) > PARTIES_MAX:
                self._parties.popitem(last=False)

    def _take(self, note: Note) -> None:
        if note.event == STARTED:
            # The process before ended somewhere behind its last event, and all connections with it.
            for known in self._parties.values():
                known.ended(self._last_at)
            return
        if note.desk not in WHO or note.event not in (CONNECTED, DISCONNECTED):
            return
        key = (note.desk, note.mailbox)
        party = self._parties.get(key)
        if party is None:
            party = self._parties[key] = Party()
        self._parties.move_to_end(key)
        if note.event == CONNECTED:
            party.came(note)
        else:
            party.went(note.at, note.holder, note.reason)

    def counts(self, desk: str) -> tuple[int, int]:
        """How many are online, and how many are remembered."""
        with self._lock:
            parties = [party for (at, _), party in self._parties.items() if at == desk]
        return sum(party.came_at is not None for party in parties), len(parties)

    def named(self, desk: str, contains: str, online: bool | None) -> list[tuple[str, Party]]:
        """Those of a desk by name."""
        with self._lock:
            found = [
                (name, party)
                for (at, name), party in self._parties.items()
                if at == desk and contains in name and online in (None, party.came_at is not None)
            ]
        return sorted(found, key=lambda item: item[0])

    def get(self, desk: str, name: str) -> Party | None:
        """One of them."""
        return self._parties.get((desk, name))

    def row(self, name: str, party: Party, at: Instant) -> Json:
        """What is known of one, as it stands at an instant."""
        with self._lock:
            begin = max(at - WINDOW_S * SECOND, self.since if self.since is not None else at)
            slot_us = WINDOW_S * SECOND // SLOTS
            first = at - WINDOW_S * SECOND
            edges = [(first + n * slot_us, first + (n + 1) * slot_us) for n in range(SLOTS)]
            return {
                "name": name,
                "online": party.came_at is not None,
                "since": view.instant_or_none(party.came_at if party.came_at is not None else party.went_at),
                "reason": party.reason,
                "connections": sum(begun >= begin for begun in party.began),
                "share": party.online_us(begin, at) / (at - begin) if at > begin else float(party.came_at is not None),
                "strip": [_share(party, max(since, begin), end) for since, end in edges],
            }


def _share(party: Party, begin: Instant, end: Instant) -> float | None:
    return None if end <= begin else round(party.online_us(begin, end) / (end - begin), 4)


_following: weakref.WeakKeyDictionary[Any, Presence] = weakref.WeakKeyDictionary()
_told: weakref.WeakKeyDictionary[Any, dict[str, Callable[[str], Json]]] = weakref.WeakKeyDictionary()


def following(access: object, presence: Presence | None) -> None:
    """Somebody follows the connections of this engine; None: no more."""
    if presence is None:
        _following.pop(access, None)
    else:
        _following[access] = presence


def about(access: object, desk: str, tell: Callable[[str], Json] | None) -> None:
    """A role on this engine knows more of who is connected at its desk; None: no more. ``tell`` is asked by threads.

    It tells ``rtt_s`` (there and back, None where it is not known) and ``can``, what the other side can do, in words.
    """
    if tell is None:
        _told.get(access, {}).pop(desk, None)
    else:
        _told.setdefault(access, {})[desk] = tell


def _whole(context: Context, presence: Presence, desk: str, name: str, party: Party) -> Json:
    box = context.store.mailbox(desk, name)
    tell = _told.get(context.access, {}).get(desk)
    known = tell(name) if tell is not None and party.came_at is not None else {}
    return {
        **presence.row(name, party, context.access.now()),
        "depth": 0 if box is None else box.depth,
        "oldest_at": None if box is None else view.instant_or_none(box.oldest_at),
        "rtt_s": known.get("rtt_s"),
        "can": list(known.get("can", ())),
    }


def _asked(context: Context, desk: str) -> Presence | Refused:
    if desk not in WHO:
        raise InvalidInput(f"desk must be one of {', '.join(WHO)}: {desk[:40]!r}")
    presence = _following.get(context.access)
    if presence is None:
        return Refused("not_running", "who is connected is known only while a server with a console runs")
    return presence


@operation("presence.counts")
def counts(context: Context) -> Answer:
    """How many are online, and how many are remembered, by desk."""
    presence = _asked(context, "relay")
    if isinstance(presence, Refused):
        return presence
    found = {desk: presence.counts(desk) for desk in WHO}
    return {
        "since": view.instant_or_none(presence.since),
        "desks": [
            {"desk": desk, "who": WHO[desk], "online": online, "seen": seen} for desk, (online, seen) in found.items()
        ],
    }


@operation("presence.ls")
def ls(
    context: Context, *, desk: str, contains: str = "", online: bool | None = None, after: str = "", limit: int = 50
) -> Answer:
    """A page of those who are or were connected at a desk, by name; ``next`` is the ``after`` of the page behind it."""
    presence = _asked(context, desk)
    if isinstance(presence, Refused):
        return presence
    check_name("after", after, empty=True)
    limit = min(limit, PAGE_MAX)
    found = [(name, party) for name, party in presence.named(desk, contains, online) if name > after]
    page = found[:limit]
    return {
        "who": WHO[desk],
        "parties": [_whole(context, presence, desk, name, party) for name, party in page],
        "next": page[-1][0] if len(found) > limit else None,
    }


@operation("presence.show")
def show(context: Context, *, desk: str, called: str) -> Answer:
    """One of them: the stretches of the last day, the newest first, and the days that the books know of."""
    presence = _asked(context, desk)
    if isinstance(presence, Refused):
        return presence
    party = presence.get(desk, called)
    if party is None:
        return Refused("not_found", f"no {WHO[desk]} {called[:80]!r} was connected of late")
    whole = _whole(context, presence, desk, called, party)
    stretches = [
        {"since": view.instant(since), "until": view.instant(until), "for_s": (until - since) / SECOND}
        for since, until in reversed(party.stretches)
    ]
    return {"who": WHO[desk], **whole, "stretches": stretches, "days": _days(context, desk, called)}


def _days(context: Context, desk: str, name: str) -> list[Json]:
    """How the books see it, the newest day first; none where there are no books."""
    from ..pipeline.lake import Lake, Selection

    own = Selection(equal={"desk": desk, "mailbox": name, "node": context.store.node})
    try:
        rows = list(Lake(context.config.text("books.lake")).rows("availability", own))
    except PosthouseError:
        return []
    found = [{name: row[name] for name in ("day", "share", "connections", "half_open")} for row in rows]
    return sorted(found, key=lambda row: str(row["day"]), reverse=True)[:DAYS]
