"""Settings: what is in force and why, who has tokens, and what operators did."""

from __future__ import annotations

from aiohttp import web

from ..page import Ask, Page
from ..role import ADMIN

LIMIT = 50


async def settings(ask: Ask) -> web.StreamResponse:
    """Every setting, its value and where it came from."""
    config = ask.console.config
    everything = ask.text("all") is not None
    rows = config.explain()
    return ask.render(
        "settings.html",
        file=config.file,
        everything=everything,
        settings=[
            row for row in rows if everything or not row["name"].startswith("desk.") or row["source"] != "default"
        ],
        desks=sorted(config.policies),
        tokens=(await ask.call("token.ls"))["tokens"] if ask.visitor.role >= ADMIN else None,
    )


async def audit(ask: Ask) -> web.StreamResponse:
    """What operators did, the newest first."""
    found = await ask.call("audit.ls", after=ask.text("after"), limit=LIMIT)
    return ask.render("audit.html", actions=found["actions"], next=found["next"])


PAGES = (
    Page("/settings", "Settings", settings, nav="Settings"),
    Page("/audit", "Audit log", audit, nav="Audit"),
)
