"""Operations on dead letters: grouped by like errors, shown, given a new life, set aside, purged."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..errors import InvalidInput
from ..mailbox import command as cm
from ..mailbox import outcome as oc
from ..mailbox.message import SET_ASIDE, State
from ..mailbox.rules import normalise_error
from ..mailbox.store import MessageView
from . import message, selection, view
from .mailbox import DRY_RUN_MAX, purge_all
from .operation import PAGE_MAX, SCAN_PAGE, Answer, Context, Json, Refused, operation

DEAD = frozenset({State.DEAD})
PARKED = frozenset({State.PARKED})
REDRIVE_STEP = 500
PARK_STEP = 100
RATED_MAX = 10_000
"""With a rate all due times follow from one instant, so it is one command: this many at a time."""
SCAN_MAX = 200_000
"""Dead letters that are looked at in order to group them."""
_PARKABLE = cm.REDRIVABLE
_SHOWABLE = frozenset({State.DEAD, State.EXPIRED, State.CANCELLED}) | SET_ASIDE


class _Group:
    """Dead letters of one desk that died of the same."""

    def __init__(self, first: MessageView) -> None:
        self.count = 0
        self.mailboxes: set[str] = set()
        self.example = first
        self.first = self.last = _when(first)

    def add(self, found: MessageView) -> None:
        self.count += 1
        self.mailboxes.add(found.message.mailbox)
        self.first = min(self.first, _when(found))
        self.last = max(self.last, _when(found))


def _when(found: MessageView) -> int:
    return found.since if found.since is not None else found.posted_at


@operation("dead.ls")
def ls(context: Context, *, where: dict[str, Any] | None = None, limit: int = 50, scan: int = SCAN_MAX) -> Answer:
    """Dead letters grouped by desk, reason and normalised error, the largest group first.

    ``scan`` bounds how many are looked at, the oldest first. ``total`` is how many there are, where that is known
    without looking.
    """
    selected = selection.filters(context, where or {}, DEAD)
    if isinstance(selected, Refused):
        return selected
    scan = min(scan, SCAN_MAX)
    groups: dict[tuple[str, str, str], _Group] = {}
    seen = 0
    for found in _each(context, selected):
        seen += 1
        key = (found.message.desk, found.reason or "", normalise_error(found.error))
        groups.setdefault(key, _Group(found)).add(found)
        if seen % PAGE_MAX == 0:
            context.report(seen, None, "reading")
        if seen >= scan:
            break
    ordered = sorted(groups.items(), key=lambda item: (-item[1].count, item[0]))
    rows: list[Json] = [
        {
            "desk": desk,
            "reason": reason or None,
            "error": error,
            "count": group.count,
            "mailboxes": len(group.mailboxes),
            "first_at": view.instant(group.first),
            "last_at": view.instant(group.last),
            "example": group.example.message.id,
        }
        for (desk, reason, error), group in ordered[:limit]
    ]
    total = _count(context, selected, where or {})
    return {"groups": rows, "messages": seen, "total": total, "more": seen >= scan or len(ordered) > limit}


@operation("dead.messages")
def messages(context: Context, *, where: dict[str, Any] | None = None, after: int = 0, limit: int = 50) -> Answer:
    """Dead letters one by one, as they were posted; ``next`` is the ``after`` of the page behind it."""
    selected = selection.filters(context, where or {}, DEAD)
    if isinstance(selected, Refused):
        return selected
    limit = min(limit, PAGE_MAX)
    found: list[MessageView] = []
    for filter in _present(context, selected):
        found += context.store.messages(filter, after, limit + 1)
    found.sort(key=lambda v: v.number)
    page = found[:limit]
    return {
        "messages": [view.message(v) for v in page],
        "next": page[-1].number if len(found) > limit else None,
    }


@operation("dead.show")
def show(
    context: Context,
    *,
    id: str,
    desk: str | None = None,
    mailbox: str | None = None,
    sender: str | None = None,
    body_bytes_max: int = message.BODY_BYTES_MAX,
) -> Answer:
    """One dead letter with its body, and the group of errors it belongs to."""
    found = selection.message(context, id, desk, mailbox, sender)
    if isinstance(found, Refused):
        return found
    if found.state not in _SHOWABLE:
        return Refused("not_dead", f"message {id!r} is {found.state}, not dead")
    return {**message.whole(context, found, body_bytes_max), "error_group": normalise_error(found.error)}


@operation("dead.redrive")
def redrive(
    context: Context,
    *,
    where: dict[str, Any] | None = None,
    limit: int = 10**9,
    rate_per_s: float | None = None,
    dry_run: bool = False,
) -> Answer:
    """Give dead letters a new life in their old order; with a rate, that many fall due each second."""
    selected = selection.filters(context, where or {}, DEAD)
    if isinstance(selected, Refused):
        return selected
    if rate_per_s is not None and not 0 < rate_per_s <= 1e6:
        raise InvalidInput(f"rate_per_s must be more than 0 and at most 1000000: {rate_per_s}")
    for filter in selected:
        if not filter.states <= cm.REDRIVABLE:
            allowed = ", ".join(state for state in State if state in cm.REDRIVABLE)
            raise InvalidInput(f"only {allowed} messages can be redriven")
    total = _count(context, selected, where or {})
    ids: list[str] = []
    done = skipped = 0
    more = False
    for filter in selected:
        while (room := limit - done) > 0:
            most = DRY_RUN_MAX if dry_run else RATED_MAX if rate_per_s else REDRIVE_STEP
            step = min(room, most)
            outcome = context.apply(cm.Redrive(filter, step, rate_per_s, dry_run, context.by))
            assert isinstance(outcome, oc.Redriven)
            done += len(outcome.refs)
            ids += [ref.id for ref in outcome.refs[: 100 - len(ids)]]
            context.report(done, None if total is None else min(total, limit), "redriving")
            if dry_run or rate_per_s or len(outcome.refs) < step:
                skipped += outcome.skipped
                more = more or (step == most and len(outcome.refs) == step)
                break
    return {"redriven": done, "skipped": skipped, "dry_run": dry_run, "more": more, "ids": ids}


@operation("dead.park")
def park(context: Context, *, where: dict[str, Any] | None = None, limit: int = 10**9, dry_run: bool = False) -> Answer:
    """Set dead letters aside: they are dead no longer, and wait until somebody unparks, cancels or purges them."""
    selected = selection.filters(context, where or {}, DEAD)
    if isinstance(selected, Refused):
        return selected
    for filter in selected:
        if not filter.states <= _PARKABLE:
            raise InvalidInput(f"only {', '.join(s for s in State if s in _PARKABLE)} messages can be set aside here")
    total = _count(context, selected, where or {})
    most = min(limit, DRY_RUN_MAX) if dry_run else limit
    parked = skipped = 0
    for filter in _present(context, selected):
        after = 0
        while (room := most - parked) > 0 and (page := context.store.messages(filter, after, min(room, PARK_STEP))):
            after = page[-1].number
            if dry_run:
                parked += len(page)
                continue
            # One by one, each whole: nobody can lease it between its new life and its being set aside.
            outcomes = context.call(*(_set_aside(context, found) for found in page))
            done = sum(isinstance(outcome, oc.Done | oc.Settled) for outcome in outcomes)
            parked += done
            skipped += len(page) - done
            context.report(parked, None if total is None else min(total, limit), "setting aside")
    more = dry_run and parked >= DRY_RUN_MAX
    return {"parked": parked, "skipped": skipped, "dry_run": dry_run, "more": more}


def _set_aside(context: Context, found: MessageView) -> cm.Command:
    ref = found.message.ref
    aside = cm.Park(ref, holder=context.by)
    if found.state is State.UNCERTAIN:
        return aside
    only = cm.Filter(ref.desk, ref.mailbox, sender=ref.sender, id=ref.id, states=frozenset({found.state}))
    return cm.Together((cm.Redrive(only, 1, holder=context.by), aside))


@operation("dead.unpark")
def unpark(
    context: Context, *, where: dict[str, Any] | None = None, limit: int = 10**9, dry_run: bool = False
) -> Answer:
    """Return what was set aside to its lanes, each with a new life."""
    selected = selection.filters(context, where or {}, PARKED)
    if isinstance(selected, Refused):
        return selected
    if any(filter.states != PARKED for filter in selected):
        raise InvalidInput("only parked messages can be unparked")
    total = _count(context, selected, {**(where or {}), "states": [State.PARKED]})
    done = skipped = 0
    more = False
    for filter in _present(context, selected):
        while (room := limit - done) > 0:
            step = min(room, DRY_RUN_MAX if dry_run else REDRIVE_STEP)
            outcome = context.apply(cm.Unpark(filter, step, dry_run, context.by))
            assert isinstance(outcome, oc.Redriven)
            done += len(outcome.refs)
            context.report(done, None if total is None else min(total, limit), "unparking")
            if dry_run or len(outcome.refs) < step:
                skipped += outcome.skipped
                more = more or (dry_run and len(outcome.refs) >= DRY_RUN_MAX)
                break
    return {"unparked": done, "skipped": skipped, "dry_run": dry_run, "more": more}


@operation("dead.purge")
def purge(
    context: Context, *, where: dict[str, Any] | None = None, limit: int = 10**9, dry_run: bool = False
) -> Answer:
    """Remove dead letters from sight; their ids are still remembered."""
    selected = selection.filters(context, where or {}, DEAD)
    if isinstance(selected, Refused):
        return selected
    for filter in selected:
        if not filter.states <= _SHOWABLE:
            raise InvalidInput(f"only {', '.join(s for s in State if s in _SHOWABLE)} messages can be purged here")
    return purge_all(context, selected, limit, dry_run, _count(context, selected, where or {}))


def _each(context: Context, selected: list[cm.Filter]) -> Iterator[MessageView]:
    """Every selected message, page by page."""
    for filter in _present(context, selected):
        after = 0
        while page := context.store.messages(filter, after, SCAN_PAGE):
            yield from page
            after = page[-1].number


def _present(context: Context, selected: list[cm.Filter]) -> list[cm.Filter]:
    """Of these, the filters whose desk has anything in their states: the others need not be tried."""
    counts = {view.desk: view.counts for view in context.store.desks()}
    return [each for each in selected if any(counts.get(each.desk, {}).get(state, 0) for state in each.states)]


def _count(context: Context, selected: list[cm.Filter], where: dict[str, Any]) -> int | None:
    """How many there are, where the counts that the store keeps can tell: for a progress bar."""
    if {key for key, value in where.items() if value is not None} - {"desk", "states"}:
        return None
    desks = {filter.desk: filter.states for filter in selected}
    return sum(
        count
        for view in context.store.desks()
        for state, count in view.counts.items()
        if state in desks.get(view.desk, ())
    )
