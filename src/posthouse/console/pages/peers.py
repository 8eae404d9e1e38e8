"""Peers and agents: who is online, since when and how steadily, how far away, and what waits for whom."""

from __future__ import annotations

from aiohttp import web

from ...control.operation import Json
from ...errors import InvalidInput
from ..page import Ask, Page
from ..plot import strip

LIMIT = 50
STATES = {"": None, "online": True, "away": False}


async def peers(ask: Ask) -> web.StreamResponse:
    """A page of agents, peers or accounts, by name."""
    counts = await ask.call("presence.counts")
    desk = ask.text("desk") or _busiest(counts)
    state = ask.text("state") or ""
    if state not in STATES:
        raise InvalidInput(f"state must be online or away: {state[:40]!r}")
    found = await ask.call(
        "presence.ls",
        desk=desk,
        contains=ask.text("contains"),
        online=STATES[state],
        after=ask.given("after"),
        limit=LIMIT,
    )
    return ask.render(
        "peers.html",
        counts=counts["desks"],
        since=counts["since"],
        desk=desk,
        who=found["who"],
        state=state,
        contains=ask.text("contains"),
        parties=[_drawn(party) for party in found["parties"]],
        next=found["next"],
    )


async def party(ask: Ask) -> web.StreamResponse:
    """One of them."""
    desk = ask.needed("desk")
    found = await ask.call("presence.show", desk=desk, called=ask.needed("name"))
    title = f"{found['who'].capitalize()} {found['name']}"
    return ask.render("party.html", title=title, desk=desk, party=_drawn(found))


def _drawn(party: Json) -> Json:
    percent = f"{party['share']:.1%}"
    return {**party, "percent": percent, "plot": strip(party["strip"], f"online {percent} of the time")}


def _busiest(counts: Json) -> str:
    """The desk to begin with: one where somebody is online, else where somebody was."""
    return str(
        max(counts["desks"], key=lambda row: (row["online"] > 0, row["seen"] > 0, row["desk"] == "relay"))["desk"]
    )


PAGES = (
    Page("/peers", "Peers and agents", peers, nav="Peers and agents"),
    Page("/party", "Connection history", party),
)
