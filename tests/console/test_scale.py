"""Pages on a full store: 1 M messages in 100 k mailboxes, 1 M events of the journal, as the bench has it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("half", ["pages", "viewers"])
def test_pages_are_quick_on_a_full_store_and_viewers_cost_the_relay_little(tmp_path: Path, half: str) -> None:
    words = [sys.executable, "bench/console.py", "--only", half, "--folder", str(tmp_path)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "PASS" in done.stdout
