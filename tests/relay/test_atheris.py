"""Fuzzing that follows the code's branches: atheris in a process of its own, for a bounded number of inputs."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.fuzzing import fuzz
from tests.relay.garbage import Garbage
from tests.simulation.world import World


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
    fuzz("tests.relay.fuzz_target", name, runs, tmp_path / "corpus")
