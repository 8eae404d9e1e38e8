"""JSON from outside, read strictly: what other readers pass over in silence is refused here.

In: bytes. Out: plain values, or InvalidInput with one sentence. Refused are: bytes that are not UTF-8, a key twice in
one object, NaN and the infinities, numbers too large for a double or a 64-bit integer, lone surrogates, and nesting
deeper than ``DEPTH_MAX``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any, NoReturn

from ..errors import InvalidInput

DEPTH_MAX = 64
_WHOLE_MAX = 2**63 - 1


def loads(data: bytes | str, depth_max: int = DEPTH_MAX) -> Any:
    """The value that the text stands for."""
    try:
        text = data if isinstance(data, str) else data.decode()
    except UnicodeDecodeError as error:
        raise InvalidInput(f"not UTF-8 at byte {error.start}") from None
    try:
        value = json.loads(
            text, object_pairs_hook=_pairs, parse_constant=_constant, parse_int=_whole, parse_float=_fraction
        )
    except json.JSONDecodeError as error:
        raise InvalidInput(f"not JSON: {error}") from None
    except RecursionError:
        raise InvalidInput(f"nested deeper than {depth_max} levels") from None
    if (
        text.count("[") + text.count("{") > depth_max
        and isinstance(value, dict | list)
        and _is_deeper(value, depth_max)
    ):
        raise InvalidInput(f"nested deeper than {depth_max} levels")
    if "\\u" in text:
        # Only as an escape can half of a pair stand in text that is UTF-8.
        _check_text(value)
    return value


def _is_deeper(value: Any, most: int) -> bool:
    level = [value]
    for _ in range(most):
        level = [inner for one in level for inner in _inside(one) if isinstance(inner, dict | list)]
        if not level:
            return False
    return True


def _inside(value: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidInput(f"the key {twice[:80]!r} stands twice in one object")
    return fields


def _constant(text: str) -> NoReturn:
    raise InvalidInput(f"{text} is no number of JSON")


def _whole(text: str) -> int:
    if len(text) > 20 or abs(int(text)) > _WHOLE_MAX:
        raise InvalidInput(f"a number that is too large: {text[:20]}…")
    return int(text)


def _fraction(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise InvalidInput(f"a number that is too large: {text[:20]}")
    return number


def _check_text(value: Any) -> None:
    """A lone surrogate cannot be stored or sent as UTF-8."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str):
            try:
                one.encode()
            except UnicodeEncodeError:
                raise InvalidInput("a text holds half of a surrogate pair") from None
        elif isinstance(one, dict):
            waiting += one.keys()
            waiting += one.values()
        elif isinstance(one, list):
            waiting += one
