"""Text for people: ages, instants and foreign text that cannot do anything to a terminal.

Ids, errors and bodies come from outside. On the way to a terminal every character that does not print is
shown as an escape (``\\x1b``), so no colour, cursor movement, title or change of direction takes effect.
"""

from __future__ import annotations

import datetime
import re


def inert(text: str) -> str:
    """The text with every character that does not print shown as an escape; it stays on one line."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _escaped(c) for c in text)


def inert_lines(text: str) -> str:
    """The same for a longer text whose line breaks are kept."""
    return "\n".join(inert(line) for line in re.split(r"\r?\n", text))


def _escaped(character: str) -> str:
    named = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(character)
    if named:
        return named
    point = ord(character)
    if point <= 0xFF:
        return f"\\x{point:02x}"
    return f"\\u{point:04x}" if point <= 0xFFFF else f"\\U{point:08x}"


def short_instant(at: str | None) -> str:
    """An ISO instant without its fraction; '–' where there is none."""
    return "–" if at is None else re.sub(r"\.\d+Z$", "Z", at)


def age(at: str | None, now: datetime.datetime) -> str:
    """How long ago: "3 min"."""
    if at is None:
        return "–"
    seconds = (now - datetime.datetime.fromisoformat(at)).total_seconds()
    return span(seconds) if seconds >= 0 else f"in {span(-seconds)}"


def span(seconds: float) -> str:
    """A length of time in one unit: "45 s", "3 min", "5 h", "12 d"."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size or (unit == "min" and seconds >= size):
            return f"{int(seconds // size)} {unit}"
    return f"{int(seconds)} s"


def size(bytes_: int) -> str:
    """A number of bytes: "17 KiB"."""
    value = float(bytes_)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1_024:
            return f"{value:.0f} {unit}" if unit == "B" or value >= 10 else f"{value:.1f} {unit}"
        value /= 1_024
    return f"{value:.1f} TiB"


_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def parse_instant(text: str, now: datetime.datetime, *, ahead: bool = False) -> int | None:
    """Microseconds since 1970 from an ISO date or time (UTC unless it says otherwise), or from a duration
    ("2h": two hours ago, or from now where ``ahead``). None if it is neither."""
    from ..config import duration_s

    text = text.strip()
    # A duration has a unit here: a number alone is a date (20260131), or somebody's idea of one (2026).
    seconds = duration_s(text) if text[-1:].isalpha() else None
    if seconds is not None:
        delta = datetime.timedelta(seconds=min(seconds, 1e9))
        moment = now + delta if ahead else now - delta
    else:
        try:
            moment = datetime.datetime.fromisoformat(text)
        except ValueError:
            return None
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=datetime.UTC)
    return (moment - _EPOCH) // datetime.timedelta(microseconds=1)
