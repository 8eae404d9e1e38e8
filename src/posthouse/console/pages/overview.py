"""The overview: what flows, what waits and what failed, by role and by desk, now and over time."""

from __future__ import annotations

import datetime
from collections.abc import Callable

from aiohttp import web

from ...control.operation import Json
from .. import plot
from ..history import BY_NAME, WINDOWS, Window
from ..page import Ask, Page
from ..render import duration
from ..snapshot import OWN, ROLES

COLOURS = 8
_LABELS = {"hour": "%H:%M", "day": "%H:%M", "week": "%a %H:%M"}


async def overview(ask: Ask) -> web.StreamResponse:
    """Numbers of this moment, which scripts keep fresh, and plots of one window."""
    window = BY_NAME.get(ask.text("window") or "hour", WINDOWS[0])
    console = ask.console
    return ask.render(
        "overview.html",
        now_is=await console.overview(),
        window=window.name,
        windows=[known.name for known in WINDOWS],
        plots=plots(window, console.history.rows(window)),
    )


def plots(window: Window, rows: list[Json]) -> list[str]:
    """What happened in a window, drawn."""
    places = [
        datetime.datetime.fromtimestamp(row["at"] / 1e6, datetime.UTC).strftime(_LABELS[window.name]) for row in rows
    ]
    desks = sorted({desk for row in rows for desk in row["desks"] or ()})
    roles = list(dict.fromkeys(ROLES.get(desk, OWN) for desk in desks))

    def summed(flow: str, role: str) -> list[float | None]:
        return [
            None
            if row["desks"] is None
            else sum(desk[flow] for name, desk in row["desks"].items() if ROLES.get(name, OWN) == role)
            for row in rows
        ]

    def each(gauge: str) -> list[plot.Series]:
        return [
            plot.Series(
                desk,
                [None if row["desks"] is None else row["desks"].get(desk, {}).get(gauge) for row in rows],
                number % COLOURS,
            )
            for number, desk in enumerate(desks)
        ]

    def flows(flow: str) -> list[plot.Series]:
        return [plot.Series(role, summed(flow, role), number % COLOURS) for number, role in enumerate(roles)]

    as_time: Callable[[float], str] = duration
    return [
        plot.stacked_bars("Messages in, by role", places, flows("in")),
        plot.stacked_bars("Messages out, by role", places, flows("out")),
        plot.lines("Depth, by desk", places, each("depth"), plot.number),
        plot.lines("Age of the oldest, by desk", places, each("oldest_s"), as_time),
        plot.stacked_bars("Failed and tried again, by role", places, flows("retried")),
        plot.lines("Dead letters, by desk", places, each("dead"), plot.number),
    ]


PAGES = (Page("/", "Overview", overview, nav="Overview"),)
