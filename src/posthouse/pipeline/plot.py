"""Plots as SVG text that stands inside a page: stacked bars over time, lines over time, horizontal bars.

In: numbers and names. Out: ``<svg>`` elements whose colours are variables of the page (``--s0`` … ``--s7``, and
classes of these names for legends), so that they follow its light and its dark side. They load nothing, run nothing and
have no style of their own. Every name is escaped.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

WIDTH = 860
HEIGHT = 240
LEFT, RIGHT, TOP, BOTTOM = 64, 12, 10, 26
COLOURS = 8


class Series(NamedTuple):
    """One colour of a plot: its name and a value for each place; None where there is none."""

    name: str
    values: Sequence[float | None]
    colour: int


def safe(text: object) -> str:
    """Text for a page: nothing in it is markup, and nothing in it turns the direction of writing."""
    plain = "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in str(text))
    return html.escape(plain, quote=True)


def number(value: float) -> str:
    """A count, short enough for an axis: 950, 12k, 3.4M."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            scaled = value / (1e3 if unit == "k" else size)
            return f"{scaled:.0f}{unit}" if scaled >= 10 else f"{scaled:.1f}{unit}"
    return f"{value:.0f}" if value == int(value) else f"{value:.2g}"


def span(us: float) -> str:
    """A length of time from microseconds, with the digits that count: "850 µs", "1.3 s", "2.5 h"."""
    for size, unit in ((86_400e6, "d"), (3_600e6, "h"), (60e6, "min"), (1e6, "s"), (1e3, "ms")):
        if us >= size:
            return f"{us / size:.0f} {unit}" if us >= 10 * size else f"{us / size:.1f} {unit}"
    return f"{us:.0f} µs"


def stacked_bars(title: str, places: Sequence[str], series: Sequence[Series]) -> str:
    """Bars, one for each place, each made of the series on top of each other."""
    totals = [sum(s.values[i] or 0 for s in series) for i in range(len(places))]
    scale = _Scale(0, max([*totals, 1]))
    step = _inner_width() / max(len(places), 1)
    width = max(min(step * 0.85, 40), 0.5)
    parts = []
    for i, place in enumerate(places):
        x = LEFT + step * i + (step - width) / 2
        below = 0.0
        for each in series:
            value = each.values[i] or 0
            if value <= 0:
                continue
            top, bottom = scale.y(below + value), scale.y(below)
            said = safe(f"{place}: {each.name} {number(value)}")
            parts.append(
                f'<rect x="{x:.1f}" y="{top:.1f}" width="{width:.1f}" height="{max(bottom - top, 0.5):.1f}" '
                f'fill="var(--s{each.colour})"><title>{said}</title></rect>'
            )
            below += value
    return _framed(title, _grid(scale, number) + _names(places, step) + "".join(parts), series)


def lines(
    title: str, places: Sequence[str], series: Sequence[Series], show: Callable[[float], str], *, log: bool = False
) -> str:
    """Lines over the places; ``log`` for values over several powers of ten, which must be above 0."""
    values = [value for each in series for value in each.values if value is not None and (value > 0 or not log)]
    scale = _Scale(min(values, default=1), max(values, default=1), log=True) if log else _Scale(0, max([*values, 1]))
    step = _inner_width() / max(len(places), 1)
    parts = []
    for each in series:
        run: list[str] = []
        for i, value in enumerate([*each.values, None]):
            if value is not None and (value > 0 or not log):
                x, y = LEFT + step * (i + 0.5), scale.y(value)
                run.append(f"{x:.1f},{y:.1f}")
                said = safe(f"{places[i]}: {each.name} {show(value)}")
                parts.append(
                    f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.2" fill="var(--s{each.colour})">'
                    f"<title>{said}</title></circle>"
                )
            elif run:
                points = " ".join(run)
                parts.append(f'<polyline points="{points}" class="line" stroke="var(--s{each.colour})"/>')
                run = []
    return _framed(title, _grid(scale, show) + _names(places, step) + "".join(parts), series)


def shares(title: str, rows: Sequence[tuple[str, Sequence[float]]], names: Sequence[str]) -> str:
    """A horizontal bar for each row, divided by what its parts make of the whole."""
    bar, gap, left = 22, 10, 170
    height = TOP + len(rows) * (bar + gap) + 4
    parts = []
    for i, (name, values) in enumerate(rows):
        y = TOP + i * (bar + gap)
        total = sum(values)
        parts.append(f'<text x="{left - 8}" y="{y + 15}" class="end">{safe(name[:24])}</text>')
        x = float(left)
        for j, value in enumerate(values):
            width = (WIDTH - left - RIGHT) * value / total if total else 0.0
            if width > 0:
                said = safe(f"{name}: {names[j]} {value / total:.1%}")
                parts.append(
                    f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{bar}" fill="var(--s{j % COLOURS})">'
                    f"<title>{said}</title></rect>"
                )
            x += width
    series = [Series(name, (), j % COLOURS) for j, name in enumerate(names)]
    return _framed(title, "".join(parts), series, height)


def bars(title: str, rows: Sequence[tuple[str, float]], show: Callable[[float], str] = number, colour: int = 1) -> str:
    """A horizontal bar for each row, with its value behind it."""
    bar, gap, left, behind = 20, 8, 260, 70
    height = TOP + len(rows) * (bar + gap) + 4
    most = max([value for _, value in rows] + [0]) or 1
    parts = []
    for i, (name, value) in enumerate(rows):
        y = TOP + i * (bar + gap)
        width = (WIDTH - left - behind) * value / most
        parts.append(
            f'<text x="{left - 8}" y="{y + 14}" class="end">{safe(name[:38])}</text>'
            f'<rect x="{left}" y="{y}" width="{max(width, 1):.1f}" height="{bar}" fill="var(--s{colour})"/>'
            f'<text x="{left + width + 6:.1f}" y="{y + 14}">{safe(show(value))}</text>'
        )
    return _framed(title, "".join(parts), (), height)


class _Scale:
    """From values to heights."""

    def __init__(self, least: float, most: float, *, log: bool = False) -> None:
        self.log = log
        if log:
            self.least = 10 ** math.floor(math.log10(least))
            self.most = 10 ** math.ceil(math.log10(most))
            if self.most <= self.least:
                self.most = self.least * 10
        else:
            step = 10 ** math.floor(math.log10(most or 1))
            self.least = 0.0
            self.most = next(step * factor for factor in (1, 2, 2.5, 5, 10) if step * factor >= most)

    def y(self, value: float) -> float:
        """The height at which a value stands."""
        if self.log:
            share = math.log10(value / self.least) / math.log10(self.most / self.least)
        else:
            share = value / self.most
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - share)

    def marks(self) -> list[float]:
        """Values worth a line."""
        if self.log:
            powers = round(math.log10(self.most / self.least))
            skip = max(1, powers // 6)
            return [self.least * 10**i for i in range(0, powers + 1, skip)]
        return [self.most * i / 4 for i in range(5)]


def _inner_width() -> float:
    return WIDTH - LEFT - RIGHT


def _grid(scale: _Scale, show: Callable[[float], str]) -> str:
    parts = []
    for value in scale.marks():
        y = scale.y(value)
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>'
            f'<text x="{LEFT - 6}" y="{y + 4:.1f}" class="end">{safe(show(value))}</text>'
        )
    return "".join(parts)


def _names(places: Sequence[str], step: float) -> str:
    every = max(1, math.ceil(len(places) / 8))
    return "".join(
        f'<text x="{LEFT + step * (i + 0.5):.1f}" y="{HEIGHT - 8}" class="middle">{safe(place)}</text>'
        for i, place in enumerate(places)
        if i % every == 0
    )


def _framed(title: str, inside: str, series: Sequence[Series], height: int = HEIGHT) -> str:
    legend = "".join(f'<span><i class="s{each.colour}"></i>{safe(each.name)}</span>' for each in series)
    return (
        f'<figure><svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{safe(title)}">{inside}</svg>'
        f"<figcaption>{safe(title)}{f'<span class=legend>{legend}</span>' if legend else ''}</figcaption></figure>"
    )
