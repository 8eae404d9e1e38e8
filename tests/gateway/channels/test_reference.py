"""The pages about channels are what the program says of itself."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from tests.docs.page import ROOT, blocks

from posthouse.config import load
from posthouse.gateway.channels import catalogue, reference

GUIDE = ROOT / "docs/guides/channels.md"
SECTIONS = [block for block in blocks(GUIDE) if block.language == "toml"]


def test_the_reference_is_current():
    written = (ROOT / "docs/reference/channels.md").read_text(encoding="utf-8")
    assert written == reference.page(), (
        "run `python -m posthouse.gateway.channels.reference > docs/reference/channels.md`"
    )


@pytest.mark.parametrize("number", range(len(SECTIONS)))
def test_every_section_that_the_guide_shows_can_be_used(number: int, tmp_path: Path):
    (tmp_path / "secrets").mkdir()
    contents = {"telegram": "1:A", "mail": "hunter2", "webhook": "whsec_" + base64.b64encode(bytes(24)).decode()}
    for name, text in contents.items():
        (tmp_path / "secrets" / name).write_text(text + "\n")
    (tmp_path / "posthouse.toml").write_text("\n".join(SECTIONS[number].lines), encoding="utf-8")
    made = catalogue.channels(load({}, tmp_path), {"SUPPORT_BOT_TOKEN": "2:B", "BRIDGE_TOKEN": "t"})
    assert made


def test_the_guide_shows_every_kind():
    text = GUIDE.read_text(encoding="utf-8")
    for kind in catalogue.BUILT_IN:
        assert f"\n## {kind}\n" in text
        assert f"\n[channel.{kind}]" in text
