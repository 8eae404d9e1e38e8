"""What a PromQL expression names: metrics with the labels that it asks of them, and the labels that it groups by.

In: the text of an expression. Out: its selectors and groupings; ValueError where its brackets do not match or a word
is no metric, function or keyword. It evaluates nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

FUNCTIONS = {
    "rate", "increase", "histogram_quantile", "min_over_time", "max_over_time", "vector", "label_values", "time",
    "clamp_min",
}  # fmt: skip
AGGREGATIONS = {"sum", "min", "max", "avg", "count", "topk"}
KEYWORDS = {"or", "and", "unless", "bool"}
TOKEN = re.compile(
    r"""\s*(?:(?P<string>"(?:[^"\\]|\\.)*")|(?P<range>\[[^\]]*\])|(?P<number>\d+(?:\.\d+)?)
    |(?P<word>[A-Za-z_:][\w:]*)|(?P<op>=~|!~|!=|==|>=|<=|[(){},=<>+*/-]))""",
    re.VERBOSE,
)
RANGE = re.compile(r"\[(\d+[smhd]|\$__rate_interval)\]")


@dataclass
class Expression:
    """What was found."""

    selectors: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    """Metrics, with what each asks of labels."""
    groups: set[str] = field(default_factory=set)


def parse(text: str) -> Expression:
    """Read an expression."""
    tokens = _tokens(text)
    found = Expression()
    depth = place = 0
    while place < len(tokens):
        kind, token = tokens[place]
        following = tokens[place + 1][1] if place + 1 < len(tokens) else ""
        if token == "(":
            depth += 1
        elif token == ")":
            depth -= 1
            if depth < 0:
                raise ValueError(f"a bracket too many: {text}")
        elif kind == "range" and not RANGE.fullmatch(token):
            raise ValueError(f"no range: {token}")
        elif kind == "word" and token in ("by", "without", "on", "ignoring"):
            end = next(i for i in range(place, len(tokens)) if tokens[i][1] == ")")
            found.groups |= {word for kind, word in tokens[place + 2 : end] if kind == "word"}
            place = end
        elif kind == "word" and token in FUNCTIONS | AGGREGATIONS and following in ("(", "by", "without"):
            pass
        elif kind == "word" and token not in KEYWORDS:
            labels: dict[str, str] = {}
            if following == "{":
                end = next(i for i in range(place, len(tokens)) if tokens[i][1] == "}")
                inside = tokens[place + 2 : end]
                for at, (inner, word) in enumerate(inside):
                    if inner == "word":
                        labels[word] = inside[at + 2][1].strip('"')
                place = end
            found.selectors.append((token, labels))
        place += 1
    if depth:
        raise ValueError(f"a bracket too few: {text}")
    return found


def _tokens(text: str) -> list[tuple[str, str]]:
    found, place = [], 0
    text = text.strip()
    while place < len(text):
        match = TOKEN.match(text, place)
        if match is None:
            raise ValueError(f"not understood: {text[place : place + 20]!r}")
        assert match.lastgroup is not None
        found.append((match.lastgroup, match[match.lastgroup]))
        place = match.end()
    return found
