"""The report: what the books say, as one HTML page with plots.

In: a lake, a span of time, perhaps a desk. Out: the text of a page that holds everything it needs: no scripts, no
other files, nothing from a network; light or dark as its reader's system is. It reads the lake and never writes.
"""

from __future__ import annotations

import datetime
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..errors import InvalidInput
from . import plot
from .digest import ENDS, OUTCOMES, of_findings, other, verdict
from .lake import Lake, Row, Selection
from .plot import Series, safe, span
from .schema import ANOMALIES, TABLES, WAITS

BARS_MAX = 96
ROWS_MAX = 100
MAILBOXES_MAX = 20
_COLOURS = {"delivered": 0, "open": 1, "uncertain": 2, "cancelled": 3, "expired": 4, "dead": 5}
_STEPS_H = (1, 3, 6, 12, 24, 72, 168, 720)
_BOX = ("node", "desk", "mailbox")


def page(
    lake: Lake,
    *,
    now: datetime.datetime,
    since: int | None = None,
    until: int | None = None,
    desk: str | None = None,
) -> str:
    """The whole page; InvalidInput if the books know no such desk, or the span ends before it begins."""
    return _Report(lake, now, Selection(since, until, {} if desk is None else {"desk": desk})).page()


class _Report:
    def __init__(self, lake: Lake, now: datetime.datetime, chosen: Selection) -> None:
        self._lake = lake
        self._now = now
        self._chosen = chosen
        self._found = of_findings(chosen)
        self._have = lake.tables()

    def page(self) -> str:
        self._check_desk()
        books = self._rows("books", needed=True)
        sections = [
            self._summary(books),
            self._over_time(books),
            self._by_kind(books),
            self._findings(),
            self._latency(),
            self._waits(),
            self._depth(),
            self._availability(),
            self._dead_letters(),
            self._outages(),
            self._replays(),
        ]
        spoken = [f"written {self._now.strftime('%Y-%m-%d %H:%M UTC')}"]
        if desk := self._chosen.equal.get("desk"):
            spoken.append(f"desk {desk}")
        for word, at in (("from", self._chosen.since), ("until", self._chosen.until)):
            if at is not None:
                moment = datetime.datetime.fromtimestamp(at / 1_000_000, datetime.UTC)
                spoken.append(f"{word} {moment.strftime('%Y-%m-%d %H:%M UTC')}")
        body = "\n".join(section for section in sections if section)
        return _PAGE.format(spoken=safe(", ".join(spoken)), body=body, style=_STYLE)

    def _check_desk(self) -> None:
        desk = self._chosen.equal.get("desk")
        if desk is None:
            return
        known = sorted(row["desk"] for row in self._lake.totals("books", ["desk"]))
        if desk not in known:
            raise InvalidInput(f"the books know no message of a desk {desk!r}; they have {', '.join(known) or 'none'}")

    # Sections

    def _summary(self, books: Sequence[Row]) -> str:
        total = _sums(books, ("posted", *OUTCOMES, "remainder", "refused", "duplicate"))
        found = self._lake.count("anomalies", self._found) if "anomalies" in self._have else 0
        closed = total["posted"] == sum(total[outcome] for outcome in OUTCOMES) and not total["remainder"]
        share = f"{total['delivered'] / total['posted']:.2%}" if total["posted"] else "–"
        tiles = [
            ("posted", f"{total['posted']:,}", ""),
            ("delivered", f"{total['delivered']:,}", share),
            *((name, f"{total[name]:,}", "") for name in OUTCOMES[1:]),
            ("refused", f"{total['refused']:,}", "outside the sum"),
            ("duplicates", f"{total['duplicate']:,}", "outside the sum"),
            ("remainder", f"{total['remainder']:,}", "never posted"),
            ("findings", f"{found:,}", ""),
        ]
        tone, said = verdict(total["posted"], closed, found)
        cells = "".join(
            f"<div class=tile><b>{safe(value)}</b><span>{safe(name)}</span><small>{safe(note)}</small></div>"
            for name, value, note in tiles
        )
        return f"<p class='verdict {tone}'>{safe(said)}</p><div class=tiles>{cells}</div>"

    def _over_time(self, books: Sequence[Row]) -> str:
        if not books:
            return ""
        places, group = windows([row["window"] for row in books])
        by = _grouped(books, group, OUTCOMES)
        series = [
            Series(outcome, [by.get(place, {}).get(outcome, 0) for place in places], _COLOURS[outcome])
            for outcome in OUTCOMES
        ]
        drawn = plot.stacked_bars("Messages by the time they were posted, and what became of them", places, series)
        return _section("What became of messages", drawn)

    def _by_kind(self, books: Sequence[Row]) -> str:
        groups: dict[tuple[str, str], list[Row]] = defaultdict(list)
        for row in books:
            groups[row["desk"], row["kind"]].append(row)
        names = ("posted", *OUTCOMES, "refused", "duplicate", "remainder")
        rows = [(*key, *_sums(found, names).values()) for key, found in sorted(groups.items())]
        return _section("By desk and kind", _table(("desk", "kind", *names), rows))

    def _findings(self) -> str:
        if "anomalies" not in self._have:
            return ""
        counts = {row["kind"]: row["n"] for row in self._lake.totals("anomalies", ["kind"], self._found)}
        if not counts:
            return _section("Findings", "<p>None.</p>")
        drawn = plot.bars("Findings by kind", sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])), colour=5)
        explained = _table(
            ("kind", "count", "meaning"),
            [(kind, count, ANOMALIES.get(kind, "")) for kind, count in sorted(counts.items())],
        )
        first = self._rows("anomalies", limit=ROWS_MAX)
        listed = _table(
            ("kind", "node", "desk", "mailbox", "message", "offsets", "detail"),
            [
                (
                    row["kind"],
                    row["node"],
                    row["desk"],
                    row["mailbox"],
                    row["message_id"],
                    ", ".join(map(str, (row["offsets"] or [])[:8])),
                    row["detail"] or "",
                )
                for row in first
            ],
        )
        more = sum(counts.values()) - len(first)
        note = f"<p>{more:,} more: <code>posthouse books show anomalies</code>.</p>" if more > 0 else ""
        return _section("Findings", drawn + explained + _folded(f"The first {len(first)}", listed) + note)

    def _latency(self) -> str:
        rows = [row for row in self._rows("latency") if row["count"]]
        if not rows:
            return ""
        drawn = []
        for live, title in ((True, "Delivered at once"), (False, "Delivered from the store")):
            some = [row for row in rows if bool(row["live"]) is live]
            if some:
                drawn.append(self._percentiles(f"{title}: posted to delivered", some))
        table = _table(
            ("desk", "kind", "live", "delivered", "p50 (hours' median)", "p99 (worst hour)"),
            [
                (*key[:2], "yes" if key[2] else "no", count, span(median), span(worst))
                for key, count, median, worst in latency_rows(rows)
            ],
        )
        return _section("Latency", "".join(drawn) + table)

    def _percentiles(self, title: str, rows: Sequence[Row]) -> str:
        """Each percentile over time: of the hours and kinds that share a place, the one in the middle, weighted."""
        places, group = windows([row["window"] for row in rows])
        found: dict[str, list[Row]] = defaultdict(list)
        for row in rows:
            found[group(row["window"])].append(row)
        series = [
            Series(name, [middle(found.get(place, ()), name) for place in places], colour)
            for name, colour in (("p50", 0), ("p95", 4), ("p99", 5))
        ]
        return plot.lines(title, places, series, span, log=True)

    def _waits(self) -> str:
        if "messages" not in self._have:
            return ""
        names = [f"wait_{name}" for name in WAITS]
        rows = [row for row in self._lake.sums("messages", ["desk"], names, self._chosen) if any(map(row.get, names))]
        if not rows:
            return ""
        drawn = plot.shares(
            "What messages waited for, as shares of all their waiting",
            [(row["desk"], [float(row[name] or 0) for name in names]) for row in rows],
            [name.replace("_", " ") for name in WAITS],
        )
        table = _table(
            ("desk", *(name.replace("_", " ") for name in WAITS)),
            [(row["desk"], *(span(row[name] or 0) for name in names)) for row in rows],
        )
        return _section("What they waited for", drawn + table)

    def _depth(self) -> str:
        if "depth" not in self._have:
            return ""
        desks = self._depth_of_desks()
        fullest = self._lake.top(
            "depth",
            _BOX,
            ("at_cap", "refused"),
            ("-depth_max",),
            replace(self._chosen, where="mailbox != ''", limit=MAILBOXES_MAX),
            most=("depth_max", "depth_end"),
        )
        if not desks and not fullest:
            return ""
        drawn = ""
        if desks:
            places, group = windows([window for window, _, _ in desks])
            by: dict[tuple[str, str], int] = defaultdict(int)
            for window, desk, most in desks:
                key = (desk, group(window))
                by[key] = max(by[key], most)
            series = [
                Series(desk, [by.get((desk, place)) for place in places], i % plot.COLOURS)
                for i, desk in enumerate(sorted({desk for _, desk, _ in desks})[: plot.COLOURS])
            ]
            drawn = plot.lines("Unfinished messages at most", places, series, plot.number)
        table = _table(
            (*_BOX, "deepest", "time at its cap", "refused as full"),
            [(*(row[name] for name in _BOX), row["depth_max"], span(row["at_cap"]), row["refused"]) for row in fullest],
        )
        return _section("Depth", drawn + _folded("The fullest mailboxes", table))

    def _depth_of_desks(self) -> list[tuple[str, str, int]]:
        """Of each hour, node and desk: the hour, the desk, and how deep it was at most.

        Only rows of whole desks are read: there are up to 200 times as many of mailboxes.
        """
        types = self._lake.columns("depth")
        columns = tuple(name for name in ("window", "desk", "depth_max", "depth_end") if name in types)
        equal = {**self._chosen.equal, "mailbox": ""}
        return [
            (row["window"], row["desk"], row.get("depth_max") or row.get("depth_end") or 0)
            for row in self._lake.rows("depth", replace(self._chosen, equal=equal, columns=columns))
        ]

    def _availability(self) -> str:
        if "availability" not in self._have:
            return ""
        tenths = self._lake.tenths("availability", _BOX, "online", "covered", self._chosen)
        if not tenths:
            return ""
        bins = [0] * 10
        for tenth, mailboxes in tenths.items():
            bins[min(tenth, 9)] += mailboxes
        drawn = plot.stacked_bars(
            "Mailboxes by the share of time that somebody was connected",
            [f"{10 * i}–{10 * (i + 1)} %" for i in range(10)],
            [Series("mailboxes", bins, 0)],
        )
        worst = self._lake.top(
            "availability",
            _BOX,
            ("covered", "online", "connections", "half_open"),
            ("-half_open", "-connections"),
            replace(self._chosen, limit=MAILBOXES_MAX),
        )
        table = _table(
            (*_BOX, "online", "connections", "ended without a goodbye"),
            [
                (
                    *(row[name] for name in _BOX),
                    f"{row['online'] / row['covered']:.1%}" if row["covered"] else "–",
                    row["connections"],
                    row["half_open"],
                )
                for row in worst
            ],
        )
        return _section("Availability", drawn + _folded("The least steady", table))

    def _dead_letters(self) -> str:
        rows = self._rows("deadletters", limit=ROWS_MAX)
        if not rows:
            return ""
        drawn = plot.bars(
            "Dead letters by error", [(f"{row['desk']}: {row['error'] or '–'}", row["count"]) for row in rows[:12]]
        )
        table = _table(
            ("desk", "error", "count", "first", "last", "redriven", "of these delivered"),
            [
                (
                    row["desk"],
                    row["error"] or "–",
                    row["count"],
                    _short(row["first_at"]),
                    _short(row["last_at"]),
                    row["redriven"],
                    row["redriven_delivered"],
                )
                for row in rows
            ],
        )
        of_a_span = self._chosen.since is not None or self._chosen.until is not None
        note = "<p>Errors that were there in this span; their counts are over all time.</p>" if of_a_span else ""
        return _section("Dead letters", note + drawn + _folded(f"{len(rows)} clusters", table))

    def _outages(self) -> str:
        rows = self._rows("outages", limit=ROWS_MAX)
        if not rows:
            return ""
        table = _table(
            ("hour", "desk", "target", "attempts", "failed", "otherwise", "backlog", "drained after", "attempts each"),
            [
                (
                    _short(row["window"]),
                    row["desk"],
                    row["mailbox"],
                    row["attempts"],
                    f"{row['failure_rate'] or 0:.0%}",
                    f"{row['baseline'] or 0:.0%}",
                    row["backlog"],
                    "–" if row["drain"] is None else span(row["drain"]),
                    f"{row['retry_storm'] or 0:.2f}",
                )
                for row in rows
            ],
        )
        return _section("Outages", table)

    def _replays(self) -> str:
        rows = self._rows("replays", limit=ROWS_MAX)
        if not rows:
            return ""
        drawn = "".join(
            plot.shares(
                f"What each policy would have made of the posts of {desk}",
                [(row["policy"], [*map(row.__getitem__, ENDS), other(row)]) for row in rows if row["desk"] == desk],
                [*ENDS, "unfinished or cancelled"],
            )
            for desk in sorted({row["desk"] for row in rows})
        )
        names = ("posted", *ENDS, "attempts")
        table = _table(
            ("desk", "policy", "", *names, "mean wait"),
            [
                (
                    row["desk"],
                    row["policy"],
                    "exact" if row["exact"] else "modelled",
                    *(row[name] for name in names),
                    "–" if row["wait"] is None else span(row["wait"]),
                )
                for row in rows
            ],
        )
        return _section("Other policies, replayed", drawn + table)

    def _rows(self, name: str, *, limit: int | None = None, needed: bool = False) -> list[Row]:
        if name not in self._have and not needed:
            return []
        types = self._lake.columns(name)
        wanted = tuple(column for column in types if column != "buckets")
        chosen = {"anomalies": self._found, "replays": Selection(equal=self._chosen.equal)}.get(name, self._chosen)
        rows = self._lake.rows(name, replace(chosen, columns=wanted, limit=limit))
        # A lake may lack columns that came later.
        lacking = dict.fromkeys(column for column in TABLES[name].names if column not in types)
        return [{**lacking, **row} for row in rows]


def windows(found: Iterable[str]) -> tuple[list[str], Callable[[str], str]]:
    """Names of at most BARS_MAX places that cover these hours, and which of them an hour belongs to."""
    hours = sorted({_hour(window) for window in found})
    steps = (step for step in _STEPS_H if (hours[-1] // step - hours[0] // step) < BARS_MAX)
    step = next(steps, (hours[-1] - hours[0]) // BARS_MAX + 1)

    def name(number: int) -> str:
        at = datetime.datetime.fromtimestamp(number * step * 3_600, datetime.UTC)
        return at.strftime("%m-%d %H:%M" if step < 24 else "%Y-%m-%d")

    places = [name(number) for number in range(hours[0] // step, hours[-1] // step + 1)]
    return places, lambda window: name(_hour(window) // step)


def _hour(window: str) -> int:
    return int(datetime.datetime.fromisoformat(window).timestamp()) // 3_600


def _grouped(rows: Iterable[Row], group: Callable[[str], str], names: Sequence[str]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for row in rows:
        sums = found.setdefault(group(row["window"]), dict.fromkeys(names, 0))
        for name in names:
            sums[name] += row[name] or 0
    return found


def _sums(rows: Iterable[Row], names: Sequence[str]) -> dict[str, int]:
    total = dict.fromkeys(names, 0)
    for row in rows:
        for name in names:
            total[name] += row[name] or 0
    return total


def middle(rows: Sequence[Row], name: str) -> float | None:
    """The weighted median of a percentile over hours and kinds."""
    ranked = sorted((row[name], row["count"]) for row in rows if row[name] is not None)
    half = sum(count for _, count in ranked) / 2
    for value, count in ranked:
        half -= count
        if half <= 0:
            # 0 has no place on a scale of powers of ten.
            return float(max(value, 1))
    return None


def latency_rows(rows: Iterable[Row]) -> list[tuple[tuple[str, str, bool], int, float, float]]:
    """Of each desk, kind and way: how many were delivered, the hours' median, the worst hour's p99."""
    groups: dict[tuple[str, str, bool], list[Row]] = defaultdict(list)
    for row in rows:
        groups[row["desk"], row["kind"], bool(row["live"])].append(row)
    return [
        (key, sum(row["count"] for row in some), middle(some, "p50") or 0, max(row["p99"] or 0 for row in some))
        for key, some in sorted(groups.items())
    ]


def _short(at: str | None) -> str:
    return "–" if at is None else at[:16].replace("T", " ")


def _section(title: str, inside: str) -> str:
    return f"<section><h2>{safe(title)}</h2>{inside}</section>"


def _folded(title: str, inside: str) -> str:
    return f"<details><summary>{safe(title)}</summary>{inside}</details>"


def _table(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    if not rows:
        return "<p>None.</p>"
    head = "".join(f"<th>{safe(name)}</th>" for name in names)
    body = "".join("<tr>" + "".join(_cell(value) for value in row) + "</tr>" for row in rows)
    return f"<div class=scroll><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"


def _cell(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"<td class=n>{value:,}</td>"
    return f"<td>{'–' if value is None else safe(value)}</td>"


_LIGHT: Mapping[str, str] = {
    "bg": "#ffffff", "fg": "#1b2430", "soft": "#5d6b7c", "line": "#dde3ea", "tile": "#f5f7fa",
    "s0": "#2f7d5b", "s1": "#3b7dd8", "s2": "#8a5fc7", "s3": "#8894a3",
    "s4": "#d99a1c", "s5": "#c8403a", "s6": "#27a2a8", "s7": "#a86b3c",
}  # fmt: skip
_DARK: Mapping[str, str] = {
    "bg": "#12171d", "fg": "#e4e9ef", "soft": "#97a4b3", "line": "#2b343f", "tile": "#1a2129",
    "s0": "#4fb286", "s1": "#6aa3f0", "s2": "#b08ce6", "s3": "#7f8c9b",
    "s4": "#e8b548", "s5": "#ef6f68", "s6": "#4fc4ca", "s7": "#cf9463",
}  # fmt: skip


def _variables(colours: Mapping[str, str]) -> str:
    return "".join(f"--{name}:{value};" for name, value in colours.items())


_STYLE = (
    f":root{{color-scheme:light dark;{_variables(_LIGHT)}}}"
    f"@media(prefers-color-scheme:dark){{:root{{{_variables(_DARK)}}}}}"
    """
body{margin:0;background:var(--bg);color:var(--fg);font:15px/1.5 system-ui,sans-serif}
main{max-width:960px;margin:0 auto;padding:24px 16px 64px}
h1{font-size:26px;margin:0}h2{font-size:19px;margin:40px 0 8px}
header p,figcaption,small,summary{color:var(--soft)}
.verdict{padding:10px 14px;border-left:4px solid;background:var(--tile);font-weight:600}
.good{border-color:var(--s0)}.warn{border-color:var(--s4)}.bad{border-color:var(--s5)}
.tiles{display:grid;grid-template-columns:repeat(auto-fill,minmax(130px,1fr));gap:8px}
.tile{background:var(--tile);padding:10px 12px;border-radius:6px;display:flex;flex-direction:column}
.tile b{font-size:20px;font-variant-numeric:tabular-nums}
figure{margin:12px 0}svg{width:100%;height:auto;display:block}
svg text{fill:var(--soft);font:11px system-ui,sans-serif}svg .end{text-anchor:end}svg .middle{text-anchor:middle}
svg .grid{stroke:var(--line);stroke-width:1}svg .line{fill:none;stroke-width:1.6}
.legend{float:right}.legend span{margin-left:12px;white-space:nowrap}
.legend i{display:inline-block;width:10px;height:10px;border-radius:2px;margin-right:5px}
.s0{background:var(--s0)}.s1{background:var(--s1)}.s2{background:var(--s2)}.s3{background:var(--s3)}
.s4{background:var(--s4)}.s5{background:var(--s5)}.s6{background:var(--s6)}.s7{background:var(--s7)}
.scroll{overflow-x:auto}table{border-collapse:collapse;width:100%;font-size:13px}
th,td{text-align:left;padding:4px 10px 4px 0;border-bottom:1px solid var(--line);vertical-align:top}
th{color:var(--soft);font-weight:600}td.n{text-align:right;font-variant-numeric:tabular-nums}
td{overflow-wrap:anywhere}summary{cursor:pointer;margin:8px 0}
@media print{details{display:block}}
"""
)

_PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Posthouse: the books</title>
<style>{style}</style>
</head>
<body><main>
<header><h1>The books</h1><p>{spoken}</p></header>
{body}
</main></body>
</html>
"""
