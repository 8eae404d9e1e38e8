"""JSON from outside: what other readers pass over in silence is refused."""

from __future__ import annotations

import pytest

from posthouse.errors import InvalidInput
from posthouse.gateway import strict


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"{} {}", "not JSON"),
        (b"\xff", "not UTF-8 at byte 0"),
        (b"\xef\xbb\xbf{}", "not JSON"),
        (b'{"a": 1, "a": 2}', "'a' stands twice"),
        (b'[{"x": {"b": 1, "c": 2, "b": 3}}]', "'b' stands twice"),
        (b"NaN", "no number of JSON"),
        (b"[-Infinity]", "no number of JSON"),
        (b"1e999", "too large"),
        (b"9223372036854775808", "too large"),
        (b"-" + b"9" * 5_000, "too large"),
        (b'"\\ud800"', "surrogate"),
        (b'{"\\udfff": 1}', "surrogate"),
        (b"[" * 65 + b"]" * 65, "deeper than 64"),
        (b'{"a":' * 65 + b"1" + b"}" * 65, "deeper than 64"),
        (b"[" * 100_000 + b"]" * 100_000, "deeper than 64"),
        (b"[" * 100_000, "deeper than 64"),
    ],
)
def test_what_is_not_plain_json_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        strict.loads(data)


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"null", None),
        (b'"\\ud83d\\ude00 \xc3\xbc"', "😀 ü"),
        (b"9223372036854775807", 2**63 - 1),
        (b"-9223372036854775807", 1 - 2**63),
        (b"[1.5, true, {}]", [1.5, True, {}]),
        (b'"[[[[{{{{"', "[[[[{{{{"),
    ],
)
def test_plain_json_is_read(data: bytes, value: object) -> None:
    assert strict.loads(data) == value
    assert strict.loads(data.decode()) == value


def test_nesting_is_counted_by_depth_not_by_brackets() -> None:
    assert strict.loads(b"[" * 64 + b"]" * 64)
    assert len(strict.loads(b"[" + b",".join([b"[]"] * 10_000) + b"]")) == 10_000
