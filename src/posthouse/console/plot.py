"""Plots for pages: those of the books, as markup that a template takes as it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from markupsafe import Markup, escape

from ..pipeline import plot
from ..pipeline.plot import Series, number, span

__all__ = ["Series", "bars", "lines", "number", "shares", "span", "stacked_bars", "strip"]


def stacked_bars(title: str, places: Sequence[str], series: Sequence[Series]) -> Markup:
    """Bars, one for each place, each made of the series on top of each other."""
    return Markup(plot.stacked_bars(title, places, series))


def lines(
    title: str, places: Sequence[str], series: Sequence[Series], show: Callable[[float], str], *, log: bool = False
) -> Markup:
    """Lines over the places."""
    return Markup(plot.lines(title, places, series, show, log=log))


def shares(title: str, rows: Sequence[tuple[str, Sequence[float]]], names: Sequence[str]) -> Markup:
    """A horizontal bar for each row, divided by what its parts make of the whole."""
    return Markup(plot.shares(title, rows, names))


def bars(
    title: str, rows: Sequence[tuple[str, float]], show: Callable[[float], str] = number, colour: int = 1
) -> Markup:
    """A horizontal bar for each row, with its value behind it."""
    return Markup(plot.bars(title, rows, show, colour))


def strip(values: Sequence[float | None], title: str) -> Markup:
    """A small row of bars, each as high as its share of 1; what is not known is a gap."""
    width = 4
    bars = "".join(
        f'<rect x="{place * width}" y="{20 - 20 * value:.1f}" width="{width - 1}" height="{20 * value:.1f}"/>'
        for place, value in enumerate(values)
        if value
    )
    known = "".join(
        f'<rect class="known" x="{place * width}" y="20" width="{width - 1}" height="2"/>'
        for place, value in enumerate(values)
        if value is not None
    )
    size = f'viewBox="0 0 {len(values) * width} 22"'
    return Markup(f'<svg class="strip" {size} role="img" aria-label="{escape(title)}">{known}{bars}</svg>')
