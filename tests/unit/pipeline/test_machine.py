"""The limits of containers, as both versions of cgroups tell them, and files that tell nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from posthouse.pipeline import machine, session

WHOLE_MB = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20
WHOLE_CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
MIB = 1 << 20
"""Limits are below what any machine has that runs these tests."""


def made(folder: Path, membership: str, files: dict[str, str]) -> tuple[Path, Path]:
    told = folder / "membership"
    told.write_text(membership)
    for name, text in files.items():
        file = folder / "groups" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return told, folder / "groups"


@pytest.mark.parametrize(
    ("membership", "files", "mb", "cores"),
    [
        pytest.param("0::/\n", {"memory.max": f"{300 * MIB}\n", "cpu.max": "100000 100000\n"}, 300, 1, id="container"),
        pytest.param(
            "0::/a/b\n", {"a/b/memory.max": "max\n", "a/memory.max": f"{200 * MIB}\n", "a/b/cpu.max": "max 100000\n",
            "a/cpu.max": "150\n"}, 200, WHOLE_CORES, id="a group further out",
        ),
        pytest.param(
            "0::/a/b\n", {"a/b/memory.max": f"{100 * MIB}\n", "a/memory.max": f"{200 * MIB}\n",
            "a/b/cpu.max": "20000 100000\n"}, 100, 1, id="the smallest of several",
        ),
        pytest.param(
            "4:memory:/docker/0f\n3:cpu,cpuacct:/docker/0f\n0::/\n",
            {"memory/memory.limit_in_bytes": f"{128 * MIB}\n", "cpu/cpu.cfs_quota_us": "50000\n",
            "cpu/cpu.cfs_period_us": "100000\n"}, 128, 1, id="first version, the host's path",
        ),
        pytest.param(
            "4:memory:/x\n3:cpu,cpuacct:/x\n",
            {"memory/x/memory.limit_in_bytes": "9223372036854771712\n", "cpu/x/cpu.cfs_quota_us": "-1\n",
            "cpu/x/cpu.cfs_period_us": "100000\n"}, WHOLE_MB, WHOLE_CORES, id="first version, no limits",
        ),
        pytest.param("no such thing\n\n7\n", {"memory.max": "1\n"}, WHOLE_MB, WHOLE_CORES, id="odd membership"),
        pytest.param(
            "0::/\n", {"memory.max": "much\n", "cpu.max": "a b\n"}, WHOLE_MB, WHOLE_CORES, id="odd limits",
        ),
    ],
)  # fmt: skip
def test_limits(tmp_path: Path, membership: str, files: dict[str, str], mb: int, cores: int) -> None:
    places = made(tmp_path, membership, files)
    assert (machine.memory_mb(*places), machine.cores(*places)) == (mb, cores)


def test_where_nothing_is_told_the_whole_machine_is_there(tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere"
    assert (machine.memory_mb(nowhere, nowhere), machine.cores(nowhere, nowhere)) == (WHOLE_MB, WHOLE_CORES)


def test_spark_gets_a_quarter_and_no_less_than_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "memory_mb", lambda: 8_000)
    monkeypatch.setattr(machine, "cores", lambda: 3)
    found = session.defaults(session.Settings())
    assert (found["spark.driver.memory"], found["spark.master"]) == ("2000m", "local[3]")
    monkeypatch.setattr(machine, "memory_mb", lambda: 0)
    assert session.defaults(session.Settings())["spark.driver.memory"] == f"{session.MEMORY_MB_MIN}m"
