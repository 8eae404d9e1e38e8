"""The threat model: every adversary has his limits, and every limit names the tests that hold it."""

from __future__ import annotations

import re

from tests.docs.page import ROOT

from posthouse.cli.up import PARTS

TEXT = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
PLAIN = ("Report a weakness", "What is protected, and from whom", "What runs inside")
"""Sections that are about no adversary."""


def sections() -> dict[str, str]:
    parts = re.split(r"^## (.+)$", TEXT, flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def test_every_adversary_has_what_he_can_and_what_he_cannot() -> None:
    adversaries = {name: text for name, text in sections().items() if name not in PLAIN}
    assert len(adversaries) >= 8
    for name, text in adversaries.items():
        assert re.search(r"\b(He|It) can\b|\bcan (say|see|do)\b", text), name
        assert len(re.findall(r"^\| (he|it) cannot \| tests \|$", text, re.MULTILINE)) == 1, name


def test_every_cannot_names_a_test() -> None:
    count = 0
    for name, text in sections().items():
        for line in text.splitlines():
            if line.startswith("| ") and not re.match(r"\| (he|it) cannot", line):
                cells = line.strip("| ").split(" | ")
                assert len(cells) == 2, line
                assert re.findall(r"`test_\w+`", cells[1]), f"{name}: {cells[0]}"
                count += 1
    assert count >= 30


def test_every_part_of_a_server_is_spoken_of() -> None:
    for part in PARTS:
        assert part in TEXT, part
