"""kill -9 under load, at random moments and at the n-th write or sync: what was acknowledged is there."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest
from tests.faults.aftermath import Told, check

ROOT = Path(__file__).parents[2]
KILLS_A_STORE = 10


def killed(
    path: Path,
    run: str,
    told: Told,
    *,
    after: int | None,
    options: Sequence[str] = (),
    under: Sequence[str] = (),
) -> None:
    """Run the load and kill it once it has said ``after`` lines; None: its own fault kills it."""
    command = [*under, sys.executable, "-m", "tests.faults.load", str(path), run, *options]
    errors = path.with_name("errors.txt")
    with errors.open("wb") as stderr:
        child = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=stderr)
    assert child.stdout is not None
    output = bytearray()
    lines = 0
    while piece := os.read(child.stdout.fileno(), 65_536):
        output += piece
        lines += piece.count(b"\n")
        if after is not None and lines >= after:
            child.kill()
            after = None
    child.stdout.close()
    code = child.wait()
    assert code == -signal.SIGKILL, f"run {run} ended by itself with {code}: {errors.read_text()[-2000:]}"
    told.read(bytes(output))


def survive(folder: Path, kills: int, seed: int, **how: Sequence[str]) -> int:
    """Kill a load on the same store again and again; the number of posts acknowledged."""
    rng = Random(seed)
    posts = 0
    for kill in range(kills):
        if kill % KILLS_A_STORE == 0:
            told = Told()
            path = folder / f"{kill}" / "load.db"
            path.parent.mkdir()
        before = len(told.posted)
        killed(path, f"r{kill}", told, after=rng.choice((rng.randint(1, 30), rng.randint(1, 2_000))), **how)
        wrong = check(path, told)
        assert not wrong, f"seed {seed}, kill {kill}, {path}: " + "\n".join(wrong[:20])
        posts += len(told.posted) - before
    return posts


def test_ten_kills_under_load_lose_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    assert survive(tmp_path, 10, seed=1) > 500


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_hundred_kills_under_load_lose_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    assert survive(tmp_path, 100, seed=2) > 5_000


@pytest.mark.parametrize("call", ["write", "sync"])
def test_kills_at_the_nth_write_or_sync_lose_nothing_that_was_acknowledged(tmp_path: Path, call: str) -> None:
    rng = Random(call)
    told = Told()
    for kill, n in enumerate((1, 2, 5, rng.randint(6, 40), rng.randint(40, 300))):
        killed(tmp_path / "load.db", f"r{kill}", told, after=None, options=["--fault", f"kill:{call}:{n}"])
        wrong = check(tmp_path / "load.db", told)
        assert not wrong, f"killed at {call} {n}: " + "\n".join(wrong[:20])


def strace() -> str:
    found = shutil.which("strace")
    if found is None:
        pytest.fail("this test needs strace: apt-get install strace", pytrace=False)
    return found


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("call", ["fdatasync", "pwrite64"])
def test_kills_by_strace_in_the_middle_of_a_system_call_lose_nothing(tmp_path: Path, call: str) -> None:
    rng = Random(call)
    told = Told()
    for kill, n in enumerate(
        (1, 2, 3, 7, *(rng.randint(8, 60) for _ in range(4)), *(rng.randint(60, 600) for _ in range(4)))
    ):
        under = [
            strace(),
            "-f",
            "-qq",
            "-o",
            os.devnull,
            "-e",
            f"trace={call}",
            "-e",
            f"inject={call}:signal=KILL:when={n}",
        ]
        killed(tmp_path / "load.db", f"r{kill}", told, after=None, under=under)
        wrong = check(tmp_path / "load.db", told)
        assert not wrong, f"killed at {call} {n}: " + "\n".join(wrong[:20])
