"""Rendering: templates into pages. Every value is text unless it was made as markup here, whoever wrote it.

In: a template's name and values. Out: HTML. What does not print, or turns the direction of writing, is shown as its
number, so that no name can look like another.
"""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

import jinja2
from markupsafe import Markup

from ..pipeline.plot import span

FOLDER = Path(__file__).parent
KINDS: Mapping[str, str] = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


class Asset(NamedTuple):
    """A file for browsers."""

    data: bytes
    kind: str
    mark: str
    """Of its content: another content has another address."""


def assets() -> dict[str, Asset]:
    """Every file for browsers, by name. They are few and small, and nothing else can be asked for."""
    return {
        path.name: Asset(data := path.read_bytes(), KINDS[path.suffix], hashlib.sha256(data).hexdigest()[:16])
        for path in sorted((FOLDER / "static").iterdir())
        if path.suffix in KINDS
    }


def shown(value: Any) -> Any:
    """Text as it is shown: nothing in it is invisible."""
    if isinstance(value, str) and not isinstance(value, Markup) and not value.isprintable():
        return "".join(c if c.isprintable() or c in "\n\t" else f"\\u{ord(c):04x}" for c in value)
    return "–" if value is None else value


def count(value: float) -> str:
    """A number with its thousands parted."""
    return f"{value:,}"


def duration(seconds: float) -> str:
    """A length of time: "850 ms", "1.3 s", "2.5 h"; nothing is "0 s"."""
    return span(seconds * 1e6) if seconds >= 1e-3 else "0 s"


def size(size_bytes: int) -> str:
    """A number of bytes."""
    for unit, much in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size_bytes >= much:
            return f"{size_bytes / much:.1f} {unit}"
    return f"{size_bytes} bytes"


def age_s(at: str, now: str) -> float:
    """Seconds between two instants as the operations tell them."""
    return (datetime.datetime.fromisoformat(now) - datetime.datetime.fromisoformat(at)).total_seconds()


def ago(at: str | None, now: str) -> str:
    """How long ago an instant is, or how long until then."""
    if at is None:
        return "–"
    seconds = age_s(at, now)
    return f"{duration(seconds)} ago" if seconds >= 0 else f"in {duration(-seconds)}"


def short(at: str | None) -> str:
    """An instant without what is rarely looked at."""
    return "–" if at is None else at[:19].replace("T", " ")


def address(path: str, **given: Any) -> str:
    """A path with a query; what is None is left out."""
    query = urlencode({name: value for name, value in given.items() if value is not None})
    return f"{path}?{query}" if query else path


class Renderer:
    """The templates, compiled once each."""

    def __init__(self) -> None:
        self.assets = assets()
        self._environment = jinja2.Environment(
            loader=jinja2.FileSystemLoader(FOLDER / "templates"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            finalize=shown,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        self._environment.filters.update(count=count, duration=duration, size=size, ago=ago, short=short, age_s=age_s)
        self._environment.globals.update(address=address, asset=self._asset)

    def _asset(self, name: str) -> str:
        return f"/static/{name}?v={self.assets[name].mark}"

    def page(self, template: str, values: Mapping[str, Any]) -> str:
        """A page."""
        return self._environment.get_template(template).render(values)
