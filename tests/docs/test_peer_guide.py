"""What the peer's guide shows is run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.docs.page import ROOT, Runner


def test_what_the_peer_guide_shows_is_what_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("POSTHOUSE_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    runner = Runner(ROOT / "docs/guides/peer.md", {})
    runner.run()
    assert runner.commands >= 3
