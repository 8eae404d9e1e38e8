"""What a node says of its policies when it starts, as others may write it."""

from __future__ import annotations

import json

import pytest

from posthouse.pipeline.replay import _policy_in
from posthouse.pipeline.transforms.batch import SECONDS_MAX, _policies, _us


@pytest.mark.parametrize(
    "detail",
    [
        "", "{", "[]", "7", '{"policies": 3}', '{"policies": {"relay": 3}}', '{"policies":' + "[" * 100_000,
        '{"policies": {"\\ud800": {"capacity": 3}}}',
    ],
)  # fmt: skip
def test_what_is_no_policy_counts_for_nothing(detail: str) -> None:
    assert (_policies(detail), _policy_in(detail, "relay")) == ({}, {})


@pytest.mark.parametrize(
    ("said", "us"),
    [
        ("2", 2_000_000), ("0.5", 500_000), ("0", 0), ("-1", -1_000_000), ("null", None), ('"2"', None), ("NaN", None),
        ("true", None),
        *((text, int(SECONDS_MAX * 1e6)) for text in ("1e300", "1e400", "Infinity", "9" * 4_000)),
        *((text, -int(SECONDS_MAX * 1e6)) for text in ("-1e300", "-Infinity")),
    ],
)  # fmt: skip
def test_a_time_without_end_is_some_centuries(said: str, us: int | None) -> None:
    assert _us(json.loads(said)) == us
