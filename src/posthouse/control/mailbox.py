"""Operations on mailboxes: list, show, pause, resume, purge."""

from __future__ import annotations

from typing import Any

from ..errors import InvalidInput
from ..mailbox import command as cm
from ..mailbox import outcome as oc
from ..mailbox.message import check_name
from . import selection, view
from .operation import PAGE_MAX, Answer, Context, Refused, operation

PURGE_STEP = 500
DRY_RUN_MAX = 10_000
"""A dry run does it all and undoes it, so it holds the writer: it looks no further than this."""


@operation("mailbox.ls")
def ls(
    context: Context,
    *,
    desk: str | None = None,
    contains: str = "",
    after: list[str] | None = None,
    limit: int = 50,
) -> Answer:
    """A page of mailboxes; ``next`` is the ``after`` of the page behind it."""
    if after is not None and len(after) != 2:
        raise InvalidInput("after must be a desk and a mailbox")
    limit = min(limit, PAGE_MAX)
    # One more than asked for tells whether there is a next page.
    found = context.store.mailboxes(desk, contains, (after[0], after[1]) if after else None, limit + 1)
    page = found[:limit]
    more = len(found) > limit
    return {
        "mailboxes": [view.mailbox(v) for v in page],
        "next": [page[-1].desk, page[-1].mailbox] if more else None,
    }


@operation("mailbox.show")
def show(
    context: Context, *, mailbox: str, desk: str | None = None, after: str | None = None, limit: int = 50
) -> Answer:
    """One mailbox with a page of its lanes."""
    box = selection.mailbox(context, mailbox, desk)
    if isinstance(box, Refused):
        return box
    limit = min(limit, PAGE_MAX)
    found = context.store.lanes(box.desk, box.mailbox, after, limit + 1)
    policy = context.store.policies.get(box.desk)
    return {
        **view.mailbox(box),
        "capacity": policy.capacity if policy else None,
        "lane_list": [view.lane(v) for v in found[:limit]],
        "next": found[limit - 1].lane if len(found) > limit else None,
    }


@operation("mailbox.pause")
def pause(context: Context, *, mailbox: str, desk: str | None = None, lane: str | None = None) -> Answer:
    """Stop leasing from a mailbox or from one lane of it. With its desk named it need not exist yet."""
    return _switch(context, mailbox, desk, lane, to_pause=True)


@operation("mailbox.resume")
def resume(context: Context, *, mailbox: str, desk: str | None = None, lane: str | None = None) -> Answer:
    """Undo a pause; for a lane, whoever paused it."""
    return _switch(context, mailbox, desk, lane, to_pause=False)


def _switch(context: Context, mailbox: str, desk: str | None, lane: str | None, *, to_pause: bool) -> Answer:
    check_name("mailbox", mailbox)
    if lane is not None:
        check_name("lane", lane, empty=True)
    if desk is None or not to_pause:
        box = selection.mailbox(context, mailbox, desk)
        if isinstance(box, Refused):
            return box
        desk = box.desk
    if desk not in context.store.policies:
        return selection.unknown_desk(context, desk)
    if lane is not None and not to_pause and context.store.lane(desk, mailbox, lane) is None:
        return Refused("not_found", f"mailbox {mailbox!r} has no lane {lane!r}")
    command: cm.Command
    if to_pause:
        command = cm.Pause(desk, mailbox, lane, holder=context.by)
    else:
        command = cm.Resume(desk, mailbox, lane, holder=context.by)
    outcome = context.apply(command)
    assert isinstance(outcome, oc.Switched)
    return {"desk": desk, "mailbox": mailbox, "lane": lane, "paused": to_pause, "changed": outcome.changed}


@operation("mailbox.purge")
def purge(
    context: Context,
    *,
    mailbox: str,
    desk: str | None = None,
    where: dict[str, Any] | None = None,
    limit: int = 10**9,
    dry_run: bool = False,
) -> Answer:
    """Cancel what is unfinished in a mailbox and remove from sight what is finished."""
    box = selection.mailbox(context, mailbox, desk)
    if isinstance(box, Refused):
        return box
    asked = {**(where or {}), "desk": box.desk, "mailbox": box.mailbox}
    selected = selection.filters(context, asked, frozenset())
    if isinstance(selected, Refused):
        return selected
    total = None if set(where or {}) else sum(box.counts.values())
    return purge_all(context, selected, limit, dry_run, total)


def purge_all(context: Context, selected: list[cm.Filter], limit: int, dry_run: bool, total: int | None) -> Answer:
    """Purge in small steps, so that the writer is never held for long."""
    cancelled = removed = skipped = 0
    more = False
    for filter in selected:
        while (room := limit - cancelled - removed) > 0:
            step = min(room, DRY_RUN_MAX if dry_run else PURGE_STEP)
            outcome = context.apply(cm.Purge(filter, step, dry_run, context.by))
            assert isinstance(outcome, oc.Purged)
            cancelled += outcome.cancelled
            removed += outcome.removed
            done = outcome.cancelled + outcome.removed
            context.report(cancelled + removed, total, "purging")
            if dry_run or done < step:
                skipped += outcome.skipped
                more = more or (dry_run and done >= DRY_RUN_MAX)
                break
    return {"cancelled": cancelled, "removed": removed, "skipped": skipped, "dry_run": dry_run, "more": more}
