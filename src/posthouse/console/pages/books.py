"""The books: what became of every message, what was found, how long it took and why, and other policies replayed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from aiohttp import web

from ...control.operation import Json, Refused
from ...mailbox.message import SECOND
from ...pipeline.digest import BESIDE, COUNTS, ENDS, OUTCOMES
from ...pipeline.digest import verdict as judged
from ...pipeline.report import latency_rows, middle, windows
from ...pipeline.schema import WAITS
from .. import plot
from ..page import Ask, Page

SPANS: Mapping[str, int | None] = {"day": 24, "week": 168, "month": 720, "all": None}
"""Hours back that the page tells of."""
FINDINGS = 50
_COLOURS = {"delivered": 0, "open": 1, "uncertain": 2, "cancelled": 3, "expired": 4, "dead": 5}
_PERCENTILES = (("p50", 0), ("p95", 4), ("p99", 5))
_HOUR_US = 3_600 * SECOND


async def books(ask: Ask) -> web.StreamResponse:
    """Everything that the books say of a span, and the button that brings them up to date."""
    span = ask.text("span") or "week"
    hours = SPANS.get(span, SPANS["week"])
    desk, kind = ask.text("desk"), ask.text("kind")
    since = None if hours is None else ask.console.engine.now() // _HOUR_US * _HOUR_US - hours * _HOUR_US
    status = await ask.call("books.status")
    found = await ask.answer("books.summary", since=since, desk=desk)
    if isinstance(found, Refused):
        return ask.render("books_none.html", status_is=status, why=found.message)
    listed = await ask.call("books.findings", kind=kind, desk=desk, since=since, limit=FINDINGS)
    return ask.render(
        "books.html",
        status_is=status,
        found=found,
        verdict=verdict(found),
        outcomes=OUTCOMES,
        beside=BESIDE,
        counts=COUNTS,
        span=span,
        spans=list(SPANS),
        desk=desk,
        desks=sorted({row["desk"] for row in found["kinds"]} | ({desk} if desk else set())),
        kind=kind,
        listed=listed,
        latency=[
            {"desk": of, "kind": what, "live": live, "count": count, "p50": median, "p99": worst}
            for (of, what, live), count, median, worst in latency_rows(found["latency"])
        ],
        waits=WAITS,
        drawn=plots(found),
        as_span=plot.span,
    )


def verdict(found: Json) -> tuple[str, str]:
    """How good it is what the books come to, and what to say of it."""
    return judged(found["totals"]["posted"], found["closes"], sum(row["count"] for row in found["findings"]))


def plots(found: Json) -> dict[str, Any]:
    """Everything that is drawn, by the section that it stands in."""
    return {
        "outcomes": [_outcomes(found["hours"])] if found["hours"] else [],
        "latency": [
            _latency(title, [row for row in found["latency"] if bool(row["live"]) is live])
            for live, title in ((True, "Delivered at once"), (False, "Delivered from the store"))
            if any(bool(row["live"]) is live for row in found["latency"])
        ],
        "waits": [_waits(found["waits"])] if found["waits"] else [],
        "replays": [
            _replays(desk, [row for row in found["replays"] if row["desk"] == desk])
            for desk in sorted({row["desk"] for row in found["replays"]})
        ],
    }


def _outcomes(hours: Sequence[Json]) -> str:
    places, group = windows([row["window"] for row in hours])
    by: dict[str, dict[str, int]] = {place: dict.fromkeys(OUTCOMES, 0) for place in places}
    for row in hours:
        for name in OUTCOMES:
            by[group(row["window"])][name] += row[name] or 0
    series = [plot.Series(name, [by[place][name] for place in places], _COLOURS[name]) for name in OUTCOMES]
    return plot.stacked_bars("Messages by the time they were posted, and what became of them", places, series)


def _latency(title: str, rows: Sequence[Json]) -> str:
    places, group = windows([row["window"] for row in rows])
    by: dict[str, list[Json]] = {place: [] for place in places}
    for row in rows:
        by[group(row["window"])].append(row)
    series = [plot.Series(name, [middle(by[place], name) for place in places], colour) for name, colour in _PERCENTILES]
    return plot.lines(f"{title}: from post to delivery", places, series, plot.span, log=True)


def _waits(rows: Iterable[Json]) -> str:
    return plot.shares(
        "What messages waited for, as shares of all their waiting",
        [(row["desk"], [float(row["waits"][name]) for name in WAITS]) for row in rows],
        [name.replace("_", " ") for name in WAITS],
    )


def _replays(desk: str, rows: Sequence[Json]) -> str:
    names = [*ENDS, "other"]
    return plot.shares(
        f"What each policy would have made of the posts of {desk}",
        [(row["policy"], [float(row[name] or 0) for name in names]) for row in rows],
        [*ENDS, "unfinished or cancelled"],
    )


PAGES = (Page("/books", "The books", books, nav="Books"),)
