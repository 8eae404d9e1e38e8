"""Operations on lanes: why one is not moving, and unblocking it.

The codes of ``lane.why`` are stable: unknown_desk, mailbox_paused, paused, poisoned, empty, in_flight,
received, lease_ended, window_full, retry, scheduled, quiet, expired, corrupt, ready.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from ..journal.chunk import decode
from ..journal.feed import may_hold
from ..mailbox import command as cm
from ..mailbox import event as ev
from ..mailbox import outcome as oc
from ..mailbox import rules
from ..mailbox.command import Filter
from ..mailbox.event import Event
from ..mailbox.message import IN_FLIGHT, Instant, State
from ..mailbox.policy import Policy
from ..mailbox.store import LaneView, MailboxView, MessageView, Store
from . import selection, view
from .operation import SCAN_PAGE, Answer, Context, Json, Refused, operation

LOOK_BACK = 50_000
"""Events of the journal that are searched for who did what; older ones are not worth the wait."""
LOOK_AHEAD = 200
"""Messages of a lane that are looked at; they come with their bodies, so no more than are needed."""
QUIET_LOOK_AHEAD = 1_000
ASIDE = 5
"""Messages set aside or dead that are named, the newest ones."""
ASIDE_LOOK = 2_000
_ASIDE = frozenset({State.DEAD, State.PARKED, State.UNCERTAIN})


@operation("lane.why")
def why(context: Context, *, mailbox: str, lane: str | None = None, desk: str | None = None) -> Answer:
    """Why the lane is not moving: a stable code, a sentence, and the head's id."""
    box = selection.mailbox(context, mailbox, desk)
    if isinstance(box, Refused):
        return box
    found = selection.lane(context, box, lane)
    if isinstance(found, Refused):
        return found
    store = context.store
    policy = store.policies.get(box.desk)
    if policy is not None and policy.quiet_s:
        enough = QUIET_LOOK_AHEAD  # the last one counts too
    else:
        enough = min(LOOK_AHEAD, found.in_flight + 1)  # all in flight and the one behind them
    waiting = store.in_lane(box.desk, box.mailbox, found.lane, enough)
    code, sentence, more = _diagnose(store, policy, box, found, waiting, context.access.now())
    head = waiting[0] if waiting else None
    return {
        "desk": box.desk,
        "mailbox": box.mailbox,
        "lane": found.lane,
        "depth": found.depth,
        "in_flight": found.in_flight,
        "code": code,
        "sentence": sentence,
        "head": None if head is None else _head(head),
        "until": None,
        "holder": None,
        "since": None,
        "message_id": None,
        "error": None,
        "aside": _aside(store, box, found),
        **more,
    }


def _aside(store: Store, box: MailboxView, lane: LaneView) -> list[Json]:
    """The last few messages that left the lane without being delivered: who looks for poison finds it here."""
    last: deque[MessageView] = deque(maxlen=ASIDE)
    after = seen = 0
    while page := store.messages(Filter(box.desk, box.mailbox, lane.lane, states=_ASIDE), after, SCAN_PAGE):
        last.extend(page)
        after, seen = page[-1].number, seen + len(page)
        if seen >= ASIDE_LOOK:
            break
    return [
        {"id": m.message.id, "state": str(m.state), "reason": m.reason, "error": m.error, "attempts": m.attempts}
        for m in last
    ]


def _head(head: MessageView) -> Json:
    plain = view.message(head)
    keys = (
        "id",
        "sender",
        "kind",
        "seq",
        "state",
        "posted_at",
        "due_at",
        "attempts",
        "holder",
        "lease_ends_at",
    )
    return {key: plain[key] for key in keys}


Diagnosis = tuple[str, str, Json]


def _diagnose(
    store: Store,
    policy: Policy | None,
    box: MailboxView,
    lane: LaneView,
    waiting: list[MessageView],
    now: Instant,
) -> Diagnosis:
    if policy is None:
        return "unknown_desk", f"Desk {box.desk} is not configured, so nobody can lease from it.", {}
    if box.paused is not None:
        return _paused(store, "mailbox_paused", "The mailbox", box.paused, box, "", lane.depth)
    if lane.paused == "poison":
        return _poisoned(store, box, lane)
    if lane.paused is not None:
        return _paused(store, "paused", "The lane", lane.paused, box, lane.lane, lane.depth)
    if not waiting:
        return "empty", "Nothing waits in this lane.", {}
    flying = [m for m in waiting if m.state in IN_FLIGHT]
    next_up = next((m for m in waiting if m.state is State.READY), None)
    window = policy.window_per_lane
    if flying and (next_up is None or (window is not None and lane.in_flight >= window)):
        return _in_flight(store, flying[0], lane, window, now)
    if next_up is None:
        # Only what lies beyond LOOK_AHEAD could be ready.
        return "window_full", f"{lane.in_flight} messages are in flight.", {}
    if next_up.due_at > now:
        return _not_due(next_up)
    if rules.has_expired(next_up.expires_at, now):
        what = "dies by its deadline" if rules.passed(policy).state is State.DEAD else "expires"
        assert next_up.expires_at is not None
        return (
            "expired",
            f"Message {next_up.message.id!r} passed its limit at {view.instant(next_up.expires_at)}; "
            f"it {what} with the next lease or sweep.",
            {"message_id": next_up.message.id},
        )
    # A fixed batch does not wait again.
    if policy.quiet_s and next_up.batch is None and not flying:
        first, last = next_up.posted_at, waiting[-1].posted_at
        if not rules.is_quiet(policy, first, last, now):
            until = view.instant(rules.quiet_until(policy, first, last))
            sentence = f"Waiting for {policy.quiet_s:g} s of quiet, until {until} unless more arrives."
            return "quiet", sentence, {"until": until, "message_id": next_up.message.id}
    if store.bodies([next_up.message.ref])[0] is None:
        sentence = f"Message {next_up.message.id!r} is damaged on disk; the next lease sets it aside and goes on."
        return "corrupt", sentence, {"message_id": next_up.message.id}
    return (
        "ready",
        f"Message {next_up.message.id!r} can be leased now; nobody has asked for it. Is a worker connected?",
        {"message_id": next_up.message.id},
    )


def _paused(store: Store, code: str, what: str, reason: str, box: MailboxView, lane: str, depth: int) -> Diagnosis:
    event = _latest(
        store,
        ev.PAUSED,
        lambda e: e.event == ev.PAUSED and (e.desk, e.mailbox, e.lane) == (box.desk, box.mailbox, lane),
    )
    by = f" by {event.holder}" if event and event.holder else ""
    at = f" since {view.instant(event.at)}" if event else ""
    return (
        code,
        f"{what} is paused{by}{at} (reason {reason}); {depth} waiting.",
        {"holder": event.holder if event else None, "since": view.instant(event.at) if event else None},
    )


def _poisoned(store: Store, box: MailboxView, lane: LaneView) -> Diagnosis:
    """The lane was paused when a message died; the one that died last is the poison."""
    poison: MessageView | None = None
    after = 0
    dead = Filter(box.desk, box.mailbox, lane.lane, states=frozenset({State.DEAD}))
    while page := store.messages(dead, after, SCAN_PAGE):
        after = page[-1].number
        poison = max([*page, *([poison] if poison else [])], key=lambda m: (m.since or 0, m.number))
    if poison is None:
        return "poisoned", "The lane is paused by poison; the message is gone. Unblock the lane to go on.", {}
    died = view.instant(poison.since) if poison.since is not None else None
    error = f": {poison.error}" if poison.error else ""
    return (
        "poisoned",
        f"The lane is paused since message {poison.message.id!r} died after {poison.attempts} attempts"
        f"{f' at {died}' if died else ''}{error}. Unblock the lane to go on without it.",
        {"message_id": poison.message.id, "since": died, "error": poison.error},
    )


def _in_flight(store: Store, message: MessageView, lane: LaneView, window: int | None, now: Instant) -> Diagnosis:
    id = message.message.id
    ref = message.message.ref
    event = _latest(
        store,
        id,
        lambda e: e.event in (ev.LEASED, ev.RECEIVED) and (e.desk, e.mailbox, e.sender, e.message_id) == tuple(ref),
    )
    since = view.instant(event.at) if event else None
    until = view.instant_or_none(message.lease_ends_at)
    more: Json = {
        "message_id": id,
        "holder": message.holder,
        "since": since,
        "until": until,
        "error": message.error,
    }
    by = message.holder or "somebody"
    from_ = f" since {since}" if since else ""
    to = f" until {until}" if until else ""
    if message.lease_ends_at is not None and message.lease_ends_at <= now:
        return (
            "lease_ended",
            f"The lease of message {id!r} by {by} ended at {until}; it returns shortly.",
            more,
        )
    if window is not None and window > 1 and lane.in_flight >= window:
        return "window_full", f"{lane.in_flight} messages are in flight, as many as the window allows.", more
    if message.state is State.RECEIVED:
        return "received", f"Message {id!r} was received by {by}{from_} and is not confirmed yet.", more
    attempt = message.attempts + 1
    return "in_flight", f"Message {id!r} is in flight (attempt {attempt}), held by {by}{from_}{to}.", more


def _not_due(message: MessageView) -> Diagnosis:
    id, until = message.message.id, view.instant(message.due_at)
    more: Json = {"message_id": id, "until": until, "error": message.error}
    if message.attempts:
        error = f": {message.error}" if message.error else ""
        return (
            "retry",
            f"Message {id!r} failed {message.attempts} times and is tried again at {until}{error}",
            more,
        )
    return "scheduled", f"Message {id!r} is not due before {until}.", more


def _latest(store: Store, word: str, wanted: Callable[[Event], bool]) -> Event | None:
    """The last such event among the newest that the store still has. ``word`` stands in it, as most chunks' bytes do
    not, so few are read."""
    found = None
    after = max(0, store.offset() - LOOK_BACK)
    for chunk in store.chunks(after):
        if may_hold(chunk, word):
            found = next((event for event in reversed(decode(chunk.data)) if wanted(event)), found)
    return found


@operation("lane.unblock")
def unblock(context: Context, *, mailbox: str, lane: str | None = None, desk: str | None = None) -> Answer:
    """Resume a lane that poison or an operator paused."""
    box = selection.mailbox(context, mailbox, desk)
    if isinstance(box, Refused):
        return box
    found = selection.lane(context, box, lane)
    if isinstance(found, Refused):
        return found
    if box.desk not in context.store.policies:
        return selection.unknown_desk(context, box.desk)
    outcome = context.apply(cm.Resume(box.desk, box.mailbox, found.lane, holder=context.by))
    assert isinstance(outcome, oc.Switched)
    return {
        "desk": box.desk,
        "mailbox": box.mailbox,
        "lane": found.lane,
        "was": found.paused,
        "changed": outcome.changed,
    }
