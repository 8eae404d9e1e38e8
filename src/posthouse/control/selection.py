"""Selection: from what an operator names to the mailbox, the lane, the message or the messages he means."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import InvalidInput
from ..mailbox.command import Filter
from ..mailbox.message import State, check_instant, check_name
from ..mailbox.rules import normalise_error
from ..mailbox.store import LaneView, MailboxView, MessageView
from .operation import Context, Refused

_NAMES = ("desk", "mailbox", "lane", "kind", "sender", "id")
_KEYS = (*_NAMES, "reason", "error", "since", "until", "states")


def filters(context: Context, where: Mapping[str, Any], default: frozenset[State]) -> list[Filter] | Refused:
    """One filter for each desk that ``where`` covers: the one it names, or all that have a policy."""
    for key, value in where.items():
        if key not in _KEYS:
            raise InvalidInput(f"unknown filter {key[:80]!r}; known are {', '.join(_KEYS)}")
        if value is None:
            continue
        if key in ("since", "until"):
            check_instant(key, value)
        elif key in _NAMES:
            check_name(key, value, empty=key in ("lane", "kind", "sender"))
        elif key == "states":
            if not isinstance(value, list) or not all(state in list(State) for state in value):
                raise InvalidInput(f"states must be a list of {', '.join(State)}")
        elif not isinstance(value, str):
            raise InvalidInput(f"{key} must be text")
    policies = context.store.policies
    desk = where.get("desk")
    if desk is not None and desk not in policies:
        return unknown_desk(context, desk)
    states = frozenset(State(state) for state in where.get("states") or ()) or default
    error = where.get("error")
    return [
        Filter(
            desk=name,
            mailbox=where.get("mailbox"),
            lane=where.get("lane"),
            kind=where.get("kind"),
            sender=where.get("sender"),
            id=where.get("id"),
            reason=where.get("reason"),
            # As it came or normalised already: both name the same group.
            error=None if error is None else normalise_error(error),
            since=where.get("since"),
            until=where.get("until"),
            states=states,
        )
        for name in ([desk] if desk is not None else sorted(policies))
    ]


def unknown_desk(context: Context, desk: str) -> Refused:
    """No policy of that name is in force."""
    known = ", ".join(sorted(context.store.policies))
    return Refused("unknown_desk", f"there is no desk {desk!r}; there are {known}")


def mailbox(context: Context, name: str, desk: str | None) -> MailboxView | Refused:
    """The mailbox of this name; where several desks have one, the desk must be said."""
    check_name("mailbox", name)
    if desk is not None:
        found = [view for view in [context.store.mailbox(desk, name)] if view is not None]
    else:
        desks = [view.desk for view in context.store.desks()]
        found = [view for d in desks if (view := context.store.mailbox(d, name)) is not None]
    if not found:
        of = f" of desk {desk!r}" if desk is not None else ""
        return Refused("not_found", f"there is no mailbox {name!r}{of}")
    if len(found) > 1:
        desks = [view.desk for view in found]
        return Refused(
            "ambiguous",
            f"several desks have a mailbox {name!r}: {', '.join(desks)}; name one",
            {"desks": desks},
        )
    return found[0]


def lane(context: Context, mailbox: MailboxView, name: str | None) -> LaneView | Refused:
    """The lane of this name, or the only one of the mailbox."""
    store = context.store
    if name is not None:
        check_name("lane", name, empty=True)
        view = store.lane(mailbox.desk, mailbox.mailbox, name)
        if view is None:
            return Refused("not_found", f"mailbox {mailbox.mailbox!r} has no lane {name!r}")
        return view
    lanes = store.lanes(mailbox.desk, mailbox.mailbox, limit=2)
    if len(lanes) == 1:
        return lanes[0]
    if not lanes:
        return Refused("not_found", f"mailbox {mailbox.mailbox!r} has no lane")
    return Refused("ambiguous", f"mailbox {mailbox.mailbox!r} has {mailbox.lanes} lanes; name one")


def message(
    context: Context, id: str, desk: str | None, mailbox: str | None, sender: str | None
) -> MessageView | Refused:
    """The message of this id; an id may stand in several mailboxes, then more must be said."""
    check_name("id", id)
    found = [
        view
        for view in context.store.find(id, limit=1_000)
        if desk in (None, view.message.desk)
        and mailbox in (None, view.message.mailbox)
        and sender in (None, view.message.sender)
    ]
    if not found:
        return Refused("not_found", f"there is no message {id!r} (any more)")
    if len(found) > 1:
        candidates = [
            {"desk": v.message.desk, "mailbox": v.message.mailbox, "sender": v.message.sender} for v in found[:20]
        ]
        return Refused(
            "ambiguous",
            f"{len(found)} messages have the id {id!r}; name desk, mailbox or sender",
            {"candidates": candidates},
        )
    return found[0]
