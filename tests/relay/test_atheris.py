"""Fuzzing that follows the code's branches: atheris in a process of its own, for a bounded number of inputs."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest
from tests.relay.garbage import Garbage
from tests.simulation.world import World

ROOT = Path(__file__).parents[2]


def corpus(folder: Path, name: str) -> None:
    """Something to begin with: what the other fuzzing makes."""
    garbage = Garbage(random.Random(1))
    world = World()
    mallory, other = world.agent(1).address, world.agent(2).address
    folder.mkdir()
    for n in range(200):
        if name == "head":
            data = garbage.request().partition(b"\r\n\r\n")[0]
        else:
            data = garbage.envelope(mallory, [other, mallory])
        (folder / str(n)).write_bytes(data)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("name", "runs"), [("head", 1_000_000), ("envelope", 3_000_000), ("session", 1_000_000)])
def test_nothing_escapes_what_atheris_finds(name: str, runs: int, tmp_path: Path) -> None:
    corpus(tmp_path / "corpus", name)
    # 1 GiB is more than any of it may take; a single input that takes 10 seconds is a failure too.
    limits = [f"-runs={runs}", "-max_len=4096", "-rss_limit_mb=1024", "-timeout=10", "-seed=1", "-print_final_stats=1"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.relay.fuzz_target", name, *limits, str(tmp_path / "corpus")],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4_000:]
    assert f"stat::number_of_executed_units: {runs}" in done.stdout, done.stdout[-4_000:]
    assert [path.name for path in ROOT.glob("crash-*")] == []
