"""How the fuzz targets are run: by atheris, in a process of their own, from a corpus, within bounds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def fuzz(target: str, name: str, runs: int, corpus: Path) -> None:
    """So many inputs for one part of a target: none of them may end it, hang it or fill the memory."""
    # 1 GiB is more than any of it may take; a single input that takes half a minute is a failure too.
    limits = [f"-runs={runs}", "-max_len=4096", "-rss_limit_mb=1024", "-timeout=30", "-seed=1", "-print_final_stats=1"]
    done = subprocess.run(
        [sys.executable, "-m", target, name, *limits, str(corpus)],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "TMPDIR": str(corpus.parent)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4_000:]
    assert f"stat::number_of_executed_units: {runs}" in done.stdout, done.stdout[-4_000:]
    assert [path.name for path in ROOT.glob("crash-*")] == []
