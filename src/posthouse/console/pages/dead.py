"""Dead letters: in groups of like errors, one by one, and what can be done with them.

Groups are made of the first ``SCAN`` letters, so that the page is there at once; how many there are is told beside
that, and whoever wants all of them grouped asks for it.
"""

from __future__ import annotations

from typing import Any

from aiohttp import web

from ...errors import InvalidInput
from ...mailbox.message import State
from ..acts import WHERE, in_where
from ..field import from_text
from ..page import Ask, Page

GROUPS = 50
LIMIT = 50
SCAN = 2_000
ASIDE = (State.DEAD, State.PARKED, State.UNCERTAIN, State.EXPIRED, State.CANCELLED)
"""States that this page can list; dead letters, unless another is asked for."""
FILTERS = tuple(field.name for field in WHERE)


def chosen(ask: Ask) -> dict[str, str]:
    """The filters that were given, as they stand in addresses; the state is always among them.

    In a link an empty text means that it is empty (no error, no sender); in the form, that it was left out.
    """
    left_out = "" if ask.given("filter") is not None else None
    given = {name: value for name in FILTERS if (value := ask.given(name)) is not None and value != left_out}
    state = given.setdefault("state", str(State.DEAD))
    if state not in ASIDE:
        raise InvalidInput(f"state must be one of {', '.join(ASIDE)}: {state[:40]!r}")
    return given


def where(given: dict[str, str]) -> dict[str, Any]:
    """The same, checked, as operations take them."""
    found: dict[str, Any] = in_where(from_text(given, WHERE, is_form=True))["where"]
    return found


async def dead(ask: Ask) -> web.StreamResponse:
    """Groups, the largest first."""
    given = chosen(ask)
    everything = ask.text("all") is not None
    found = await ask.call("dead.ls", where=where(given), limit=GROUPS, scan=None if everything else SCAN)
    views = await ask.read(lambda store: store.desks())
    return ask.render(
        "dead.html",
        title=_title(given["state"]),
        given=given,
        desks=[view.desk for view in views],
        states=[(str(state), sum(view.counts.get(state, 0) for view in views)) for state in ASIDE],
        found=found,
        partial=not everything and found["messages"] >= SCAN,
    )


async def letters(ask: Ask) -> web.StreamResponse:
    """One by one, the oldest first."""
    given = chosen(ask)
    found = await ask.call("dead.messages", where=where(given), after=ask.whole("after"), limit=LIMIT)
    return ask.render(
        "dead_letters.html",
        title=f"{_title(given['state'])}, one by one",
        given=given,
        messages=found["messages"],
        next=found["next"],
    )


def _title(state: str) -> str:
    return "Dead letters" if state == State.DEAD else f"{state.capitalize()} messages"


PAGES = (
    Page("/dead", "Dead letters", dead, nav="Dead letters"),
    Page("/dead/letters", "Dead letters, one by one", letters),
)
