"""A page as a reader finds its numbers: tables row by row, facts, tiles, tabs, lists, and the text that is in none."""

from __future__ import annotations

import re
from html.parser import HTMLParser

VOID = frozenset({"meta", "link", "input", "br", "img", "rect", "line", "circle", "polyline", "path"})
KEPT = frozenset({"td", "th", "dt", "dd", "svg", "title", "figcaption", "li", "pre", "time"})
"""What has its text for itself."""


class Sheet(HTMLParser):
    """The main part of one page."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.tables: dict[str, list[list[str]]] = {}
        """The rows of a table's body, by its region's name."""
        self.facts: dict[str, str] = {}
        self.tiles: dict[str, str] = {}
        self.tabs: list[str] = []
        self.items: list[str] = []
        """Of lists."""
        self.drawn: list[str] = []
        """What plots say of their points."""
        self.times: dict[str, str] = {}
        """What is said of an instant, by the instant."""
        self._label = ""
        self._open: list[tuple[str, list[str] | None, dict[str, str]]] = []
        self._texts: list[list[str]] = [[]]
        self._rows: list[list[str]] = []
        self._name = ""
        self.feed(source[source.index("<main") : source.index("</main>")])
        self.rest = plain(self._texts[0])
        """All other text."""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag in VOID:
            self._texts[-1].append(" " if tag == "br" else "")
            return
        if given.get("role") == "region":
            self._label = given["aria-label"]
        if tag == "tbody":
            self.tables[self._label] = self._rows = []
        elif tag == "table":
            self._rows = []
        elif tag == "tr":
            self._rows.append([])
        above = [(name, known.get("class", "")) for name, _, known in self._open]
        is_in_tile = above[-1:] in ([("div", "tile")], [("div", "tile alarm")])
        is_kept = tag in KEPT or is_in_tile or (tag == "a" and ("nav", "tabs") in above)
        text: list[str] | None = [] if is_kept else None
        if text is not None:
            self._texts.append(text)
        self._open.append((tag, text, given))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in VOID, tag

    def handle_endtag(self, tag: str) -> None:
        while self._open and tag not in VOID:
            closed, text, given = self._open.pop()
            if text is not None:
                self._texts.pop()
                self._said(closed, plain(text), given)
            if closed == tag:
                return

    def handle_data(self, data: str) -> None:
        self._texts[-1].append(data)

    def _said(self, tag: str, text: str, given: dict[str, str]) -> None:
        tags = [name for name, _, _ in self._open]
        if tag in ("td", "th"):
            if "tbody" in tags:
                self._rows[-1].append(text)
        elif tag == "dt":
            self._name = text
        elif tag == "dd":
            self.facts[self._name] = text
        elif tag == "li":
            self.items.append(text)
        elif tag == "title":
            self.drawn.append(text)
        elif tag == "a":
            self.tabs.append(text)
        elif tag == "span":
            self._name = text
        elif tag == "b":
            self.tiles[self._name] = text
        elif tag == "time":
            # It is part of what it stands in.
            self.times[given.get("datetime", "")] = text
            self._texts[-1].append(text)


def plain(parts: list[str]) -> str:
    return " ".join("".join(parts).split())


def numbers(text: str) -> list[str]:
    """Every word of a text that has a digit in it, without its punctuation."""
    return [word.strip(".,;:()…") for word in text.split() if re.search(r"\d", word)]
