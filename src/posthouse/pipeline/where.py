"""The small language of ``--where``: which rows of a table to show.

In: text such as ``outcome = dead and (attempts > 3 or error ~ timeout)`` and the types of a table's columns.
Out: a condition in SQL whose columns are known and quoted and whose values are checked and quoted. Nothing of the
text is ever run or handed on as it came. A column without a value equals nothing and differs from everything.

    condition  = part {"or" part}
    part       = factor {"and" factor}
    factor     = "not" factor | "(" condition ")" | comparison
    comparison = column ("=" | "!=" | "<" | "<=" | ">" | ">=" | "~" | "!~") value
               | column ["not"] "in" "(" value {"," value} ")"
               | column "is" ["not"] "null"
"""

from __future__ import annotations

import datetime
import difflib
import math
import re
from collections.abc import Mapping
from typing import NamedTuple

from ..errors import InvalidInput

LENGTH_MAX = 4_000
DEPTH_MAX = 40

_TOKEN = re.compile(
    r"""\s*(?:
        (?P<quoted>'(?:[^']|'')*'|"(?:[^"]|"")*")
      | (?P<sign><=|>=|!=|<>|==|!~|=|<|>|~|\(|\)|,)
      | (?P<word>[^\s'"<>=!~(),]+)
    )""",
    re.VERBOSE,
)
_COMPARISONS = {"=": "=", "==": "=", "!=": "!=", "<>": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_WORDS = frozenset({"and", "or", "not", "in", "is", "null"})
_WHOLE = re.compile(r"[+-]?\d{1,18}")
_NUMBER = re.compile(r"[+-]?\d{1,18}(\.\d{1,18})?([eE][+-]?\d{1,2})?")
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)(us|ms|s|m|h|d)")
_UNITS = {"us": 1, "ms": 1_000, "s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000}
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_FAR = 2**62


class _Token(NamedTuple):
    kind: str
    text: str
    at: int


def condition(text: str, types: Mapping[str, str]) -> str:
    """The condition in SQL; InvalidInput says what is wrong and where.

    ``types`` are the table's columns: text, whole, number, switch, instant, date; what has another type cannot be
    compared.
    """
    if len(text) > LENGTH_MAX:
        raise InvalidInput(f"--where: at most {LENGTH_MAX} characters")
    return _Parser(_tokens(text), types).whole()


def name(column: str) -> str:
    """A column's name in SQL."""
    return '"' + column.replace('"', '""') + '"'


def literal(value: str) -> str:
    """A text in SQL."""
    if "\0" in value:
        raise InvalidInput("--where: a text holds no zero byte")
    return "'" + value.replace("'", "''") + "'"


def instant(at: int) -> str:
    """An instant, in microseconds since 1970, in SQL."""
    return f"arrow_cast({at:d}, 'Timestamp(Microsecond, Some(\"UTC\"))')"


def date(at: int) -> str:
    """The UTC date of an instant, in SQL."""
    day = (_EPOCH + datetime.timedelta(microseconds=at)).date()
    return f"arrow_cast('{day.isoformat()}', 'Date32')"


def _tokens(text: str) -> list[_Token]:
    found: list[_Token] = []
    place = 0
    while text[place:].strip():
        match = _TOKEN.match(text, place)
        if match is None:
            raise InvalidInput(f"--where: a quote has no end: {text[place:].strip()[:40]!r}")
        kind = match.lastgroup or ""
        found.append(_Token(kind, match[kind], match.start(kind)))
        place = match.end()
    return found


class _Parser:
    """Reads tokens from the left, one level of the grammar a method."""

    def __init__(self, tokens: list[_Token], types: Mapping[str, str]) -> None:
        self._tokens = tokens
        self._types = types
        self._next = 0

    def whole(self) -> str:
        found = self._either(0)
        if self._next < len(self._tokens):
            raise self._wrong("and, or, or the end")
        return found

    def _either(self, depth: int) -> str:
        if depth > DEPTH_MAX:
            raise InvalidInput(f"--where: brackets go {DEPTH_MAX} deep at most")
        parts = [self._both(depth)]
        while self._take("or"):
            parts.append(self._both(depth))
        return parts[0] if len(parts) == 1 else "(" + " OR ".join(parts) + ")"

    def _both(self, depth: int) -> str:
        parts = [self._factor(depth)]
        while self._take("and"):
            parts.append(self._factor(depth))
        return parts[0] if len(parts) == 1 else "(" + " AND ".join(parts) + ")"

    def _factor(self, depth: int) -> str:
        if depth > DEPTH_MAX:
            raise InvalidInput(f"--where: brackets go {DEPTH_MAX} deep at most")
        if self._take("not"):
            return _opposite(self._factor(depth + 1))
        if self._take("("):
            inner = self._either(depth + 1)
            self._need(")")
            return inner
        return self._comparison()

    def _comparison(self) -> str:
        token = self._any("a column")
        if token.kind != "word" or token.text.lower() in _WORDS:
            self._next -= 1
            raise self._wrong("a column")
        column = token.text
        if column not in self._types:
            near = difflib.get_close_matches(column, self._types, n=1)
            hint = f"did you mean {near[0]}?" if near else "there are " + ", ".join(self._types)
            raise InvalidInput(f"--where: no column {column[:60]!r}; {hint}")
        if self._take("is"):
            negated = self._take("not")
            self._need("null")
            return f"({name(column)} IS {'NOT ' if negated else ''}NULL)"
        negated = self._take("not")
        if self._take("in"):
            self._need("(")
            values = [self._value(column)]
            while self._take(","):
                values.append(self._value(column))
            self._need(")")
            found = f"({name(column)} IN ({', '.join(values)}))"
            return _opposite(found) if negated else found
        if negated:
            raise self._wrong("in")
        sign = self._any("a comparison")
        if sign.text in ("~", "!~") and sign.kind == "sign":
            if self._types[column] != "text":
                raise InvalidInput(f"--where: ~ looks into texts, and {column} is none")
            found = f"(strpos(lower({name(column)}), lower({self._value(column)})) > 0)"
            return _opposite(found) if sign.text == "!~" else found
        comparison = _COMPARISONS.get(sign.text) if sign.kind == "sign" else None
        if comparison is None:
            self._next -= 1
            raise self._wrong("a comparison: = != < <= > >= ~ !~, in (…), is null")
        value = self._value(column)
        if comparison == "!=":
            return _opposite(f"({name(column)} = {value})")
        return f"({name(column)} {comparison} {value})"

    def _value(self, column: str) -> str:
        token = self._any("a value")
        if token.kind == "sign":
            self._next -= 1
            raise self._wrong("a value")
        text = token.text
        if token.kind == "quoted":
            quote = text[0]
            text = text[1:-1].replace(quote * 2, quote)
        elif text.lower() in _WORDS:
            self._next -= 1
            raise self._wrong("a value (in quotes, if that is what it says)")
        kind = self._types[column]
        found = _READ[kind](text) if kind in _READ else None
        if kind not in _READ:
            raise InvalidInput(f"--where: {column} is a list and can only be compared by is null")
        if found is None:
            raise InvalidInput(f"--where: {column} is {_EXPECTED[kind]}, not {text[:60]!r}")
        return found

    def _take(self, text: str) -> bool:
        if self._next < len(self._tokens):
            token = self._tokens[self._next]
            if token.kind != "quoted" and token.text.lower() == text:
                self._next += 1
                return True
        return False

    def _need(self, text: str) -> None:
        if not self._take(text):
            raise self._wrong(text)

    def _any(self, expected: str) -> _Token:
        if self._next >= len(self._tokens):
            raise self._wrong(expected)
        self._next += 1
        return self._tokens[self._next - 1]

    def _wrong(self, expected: str) -> InvalidInput:
        if self._next >= len(self._tokens):
            return InvalidInput(f"--where ends where {expected} is expected")
        token = self._tokens[self._next]
        return InvalidInput(f"--where: {expected} is expected at {token.text[:40]!r} (character {token.at + 1})")


def _opposite(found: str) -> str:
    """Everything else, also what has no value."""
    return f"({found} IS NOT TRUE)"


def _read_whole(text: str) -> str | None:
    if _WHOLE.fullmatch(text):
        return str(int(text))
    # Lengths of time are whole microseconds in every table.
    duration = _DURATION.fullmatch(text)
    return str(round(float(duration[1]) * _UNITS[duration[2]])) if duration else None


def _read_number(text: str) -> str | None:
    if not _NUMBER.fullmatch(text):
        return None
    number = float(text)
    return repr(number) if math.isfinite(number) else None


def _read_switch(text: str) -> str | None:
    return {"true": "TRUE", "yes": "TRUE", "false": "FALSE", "no": "FALSE"}.get(text.lower())


def _read_instant(text: str) -> str | None:
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    at = (moment - _EPOCH) // datetime.timedelta(microseconds=1)
    return instant(at) if abs(at) < _FAR else None


def _read_date(text: str) -> str | None:
    try:
        return f"arrow_cast('{datetime.date.fromisoformat(text).isoformat()}', 'Date32')"
    except ValueError:
        return None


_READ = {
    "text": literal,
    "whole": _read_whole,
    "number": _read_number,
    "switch": _read_switch,
    "instant": _read_instant,
    "date": _read_date,
}
_EXPECTED = {
    "text": "text",
    "whole": "a whole number (or a length of time such as 250ms, 5s, 2h)",
    "number": "a number",
    "switch": "true or false",
    "instant": "an instant such as 2026-01-31T12:00:00Z",
    "date": "a date such as 2026-01-31",
}
