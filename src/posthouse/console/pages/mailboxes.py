"""Mailboxes and lanes: how deep, how old, who holds what, and why a lane does not move."""

from __future__ import annotations

from aiohttp import web

from ...control.view import message
from ..page import Ask, Page

LIMIT = 50
IN_LANE = 20
"""Messages of a lane that are shown; they are read with their bodies, so no more than are worth it."""


async def mailboxes(ask: Ask) -> web.StreamResponse:
    """A page of mailboxes, by desk and name."""
    desk, contains = ask.text("desk"), ask.text("contains")
    after_desk, after = ask.text("after_desk"), ask.text("after")
    found = await ask.call(
        "mailbox.ls",
        desk=desk,
        contains=contains,
        after=[after_desk, after] if after_desk is not None and after is not None else None,
        limit=LIMIT,
    )
    return ask.render(
        "mailboxes.html",
        desks=[view.desk for view in await ask.read(lambda store: store.desks())],
        desk=desk,
        contains=contains,
        found=found["mailboxes"],
        next=found["next"],
    )


async def mailbox(ask: Ask) -> web.StreamResponse:
    """One mailbox and a page of its lanes."""
    found = await ask.call(
        "mailbox.show", mailbox=ask.needed("mailbox"), desk=ask.text("desk"), after=ask.given("after"), limit=LIMIT
    )
    return ask.render("mailbox.html", title=f"Mailbox {found['mailbox']}", box=found)


async def lane(ask: Ask) -> web.StreamResponse:
    """One lane: why it does not move, and the messages that hold it, head first."""
    name, box, desk = ask.given("lane"), ask.needed("mailbox"), ask.text("desk")
    why = await ask.call("lane.why", mailbox=box, lane=name, desk=desk)
    place = (why["desk"], why["mailbox"], why["lane"])
    view = await ask.read(lambda store: store.lane(*place))
    held = await ask.read(lambda store: store.in_lane(*place, limit=IN_LANE))
    return ask.render(
        "lane.html",
        title=f"Lane {why['lane'] or '(no name)'}",
        why=why,
        paused=None if view is None else view.paused,
        messages=[message(found) for found in held],
        more=why["depth"] > len(held),
    )


PAGES = (
    Page("/mailboxes", "Mailboxes and lanes", mailboxes, nav="Mailboxes"),
    Page("/mailbox", "Mailbox", mailbox),
    Page("/lane", "Lane", lane),
)
