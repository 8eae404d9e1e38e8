"""Spans: the lives of messages, put together from the journal's events.

In: events in their order. Out: a span for each life of a message when it ends (from its post, or its redrive, to its
end), one below it for each attempt, and one without length for each post that was refused or known. A message and what
it causes are one trace: its number follows from the id of the first of them, so that every process and role that
carries the same id adds to the same trace. Bodies and headers are never in it.

What is remembered is bounded: ``OPEN_MAX`` unfinished messages, and as many ids of causes. When a message was posted
that is not remembered, the store is asked, ``LOOKUPS_MAX`` times a turn; else its span begins with what is known.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import NamedTuple

from ..mailbox import event as ev
from ..mailbox.event import Event
from ..mailbox.message import Instant, Ref

OPEN_MAX = 50_000
LOOKUPS_MAX = 200
POINTS_MAX = 64
"""Things that happened to a message, of which its span tells; more are left out."""
TEXT_MAX = 500

_FINISHED = frozenset({ev.DELIVERED, ev.DIED, ev.EXPIRED, ev.CANCELLED})
_ENDS_LEASE = frozenset({*_FINISHED, ev.RETRIED, ev.RELEASED, ev.RECALLED, ev.UNCERTAIN, ev.PARKED})
_TURNED_AWAY = frozenset({ev.REFUSED, ev.DUPLICATE})
_TOLD = frozenset({*_ENDS_LEASE, ev.RECEIVED, ev.UNPARKED, ev.REDRIVEN})
_BAD = frozenset({ev.DIED, ev.RETRIED, ev.UNCERTAIN, ev.REFUSED})
_WHOLE = float(1 << 128)

Attributes = dict[str, str | int]


class Point(NamedTuple):
    """Something that happened on the way."""

    name: str
    at: Instant
    attributes: Attributes


class Span(NamedTuple):
    """A stretch of time in a trace."""

    trace: int
    id: int
    parent: int | None
    name: str
    begun: Instant
    ended: Instant
    attributes: Attributes
    points: tuple[Point, ...] = ()
    error: str | None = None
    """What went wrong; None: nothing."""


class Known(NamedTuple):
    """What the store knows of a message that was posted before anybody listened."""

    posted_at: Instant
    cause: str | None


class _Life:
    """An unfinished message."""

    __slots__ = ("begun", "lease", "parent", "points", "span", "trace")

    def __init__(self, trace: int, span: int, parent: int | None, begun: Instant) -> None:
        self.trace = trace
        self.span = span
        self.parent = parent
        self.begun = begun
        self.points: list[Point] = []
        self.lease: Event | None = None


Key = tuple[str, str, str, str]


class Spans:
    """Turns events into spans; from one thread at a time."""

    def __init__(self, node: str, known: Callable[[Ref], Known | None], sample: float = 1.0) -> None:
        """``known`` asks the store; ``sample`` is the share of traces that are told."""
        self._node = node
        self._known = known
        self._limit = int(sample * _WHOLE)
        self._open: OrderedDict[Key, _Life] = OrderedDict()
        self._causes: OrderedDict[str, tuple[int, int]] = OrderedDict()
        self._lookups = LOOKUPS_MAX

    def turn(self) -> None:
        """A new turn begins: the store may be asked again."""
        self._lookups = LOOKUPS_MAX

    def take(self, events: Iterable[Event]) -> list[Span]:
        """The spans that these events complete."""
        found: list[Span] = []
        for event in events:
            if event.message_id:
                self._take(event, found)
        for remembered in (self._open, self._causes):
            while len(remembered) > OPEN_MAX:
                remembered.popitem(last=False)
        return [span for span in found if span.trace < self._limit]

    def _take(self, event: Event, found: list[Span]) -> None:
        name = event.event
        key = (event.desk, event.mailbox, event.sender, event.message_id)
        if name == ev.POSTED:
            self._open[key] = self._life(key, event.at, event.cause_id)
        elif name in _TURNED_AWAY:
            found.append(self._turned_away(key, event))
        elif name == ev.LEASED:
            self._held(key, event).lease = event
        elif name in _TOLD:
            life = self._held(key, event)
            if life.lease is not None and name in _ENDS_LEASE:
                found.append(self._attempt(life, life.lease, event))
                life.lease = None
            if name in _FINISHED:
                del self._open[key]
                found.append(self._message(life, event))
            elif len(life.points) < POINTS_MAX:
                life.points.append(Point(name, event.at, _said(event)))

    def _held(self, key: Key, event: Event) -> _Life:
        """The message's life; where it is not remembered, from what the store knows."""
        life = self._open.get(key)
        if life is None:
            known = None
            if self._lookups > 0:
                self._lookups -= 1
                known = self._known(Ref(*key))
            # A redriven one begins anew; its first life was told.
            begun = event.at if known is None or event.event == ev.REDRIVEN else known.posted_at
            life = self._life(key, begun, None if known is None else known.cause)
            self._open[key] = life
        return life

    def _life(self, key: Key, begun: Instant, cause: str | None) -> _Life:
        if cause is None:
            trace, parent = trace_of(key[3]), None
        else:
            trace, parent = self._causes.get(cause, (trace_of(cause), None))
        span = _number("span", *key, str(begun), length=8)
        self._causes[key[3]] = (trace, span)
        self._causes.move_to_end(key[3])
        return _Life(trace, span, parent, begun)

    def _message(self, life: _Life, event: Event) -> Span:
        attributes = self._about(event) | {"posthouse.outcome": event.event, "posthouse.attempts": event.attempt}
        return Span(
            life.trace, life.span, life.parent, _named(event), life.begun, max(event.at, life.begun),
            attributes | _said(event), tuple(life.points), _error(event),
        )  # fmt: skip

    def _attempt(self, life: _Life, lease: Event, event: Event) -> Span:
        attributes = self._about(event) | {"posthouse.attempt": lease.attempt, "posthouse.ended": event.event}
        if lease.holder:
            attributes["posthouse.holder"] = lease.holder[:TEXT_MAX]
        id = _number("lease", str(life.span), str(lease.at), str(lease.attempt), str(event.at), length=8)
        return Span(
            life.trace, id, life.span, f"{_named(event)} attempt", lease.at, max(event.at, lease.at),
            attributes | _said(event), (), _error(event),
        )  # fmt: skip

    def _turned_away(self, key: Key, event: Event) -> Span:
        cause = event.cause_id
        trace, parent = (trace_of(key[3]), None) if cause is None else self._causes.get(cause, (trace_of(cause), None))
        id = _number(event.event, *key, str(event.at), length=8)
        attributes = self._about(event) | {"posthouse.outcome": event.event} | _said(event)
        return Span(
            trace, id, parent, f"{_named(event)} {event.event}", event.at, event.at, attributes, (), _error(event)
        )

    def _about(self, event: Event) -> Attributes:
        found: Attributes = {
            "messaging.system": "posthouse",
            "messaging.message.id": event.message_id,
            "messaging.destination.name": event.mailbox,
            "posthouse.node": self._node,
            "posthouse.desk": event.desk,
            "posthouse.lane": event.lane,
            "posthouse.lane_seq": event.lane_seq,
            "posthouse.kind": event.kind,
        }
        return {name: value for name, value in found.items() if value != ""}


def trace_of(id: str) -> int:
    """The trace of whatever a message of this id begins."""
    return _number("trace", id, length=16)


def _number(*words: str, length: int) -> int:
    """A number that follows from words; never 0, which means none."""
    digest = hashlib.blake2b("\0".join(words).encode(errors="surrogatepass"), digest_size=length).digest()
    return int.from_bytes(digest, "big") or 1


def _named(event: Event) -> str:
    return f"{event.desk} {event.kind}"[:TEXT_MAX] if event.kind else event.desk


def _said(event: Event) -> Attributes:
    found: Attributes = {}
    if event.reason:
        found["posthouse.reason"] = event.reason
    if event.error:
        found["posthouse.error"] = event.error[:TEXT_MAX]
    return found


def _error(event: Event) -> str | None:
    if event.event not in _BAD:
        return None
    return (event.error or event.reason or event.event)[:TEXT_MAX]
