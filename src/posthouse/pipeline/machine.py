"""What of the machine Spark may use: cores and memory, by the limits of a container where it runs in one.

In: what the operating system tells. Out: two numbers. A limit that cannot be read is none. Python's own counts are
those of the whole machine, whatever a container may use of it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

MEMBERSHIP = Path("/proc/self/cgroup")
GROUPS = Path("/sys/fs/cgroup")


def cores(membership: Path = MEMBERSHIP, groups: Path = GROUPS) -> int:
    """How many can be at work for this process at once, at least one."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    for folder in _folders(membership, groups, "cpu"):
        quota = _numbers(folder / "cpu.max") or _numbers(folder / "cpu.cfs_quota_us", folder / "cpu.cfs_period_us")
        if len(quota) == 2 and min(quota) > 0:
            allowed = min(allowed, math.ceil(quota[0] / quota[1]))
    return allowed


def memory_mb(membership: Path = MEMBERSHIP, groups: Path = GROUPS) -> int:
    """The machine's memory or the smallest limit on this process's; 0 where nobody tells."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        total = 0
    limits = [total] if total > 0 else []
    for folder in _folders(membership, groups, "memory"):
        limits += _numbers(folder / "memory.max") or _numbers(folder / "memory.limit_in_bytes")
    return min(limits, default=0) >> 20


def _folders(membership: Path, groups: Path, controller: str) -> Iterator[Path]:
    """Those of the groups that limit this process, inner ones first, of both versions of cgroups.

    In a container the path may be the host's, of which only the top is seen; that is the container's own group.
    """
    try:
        lines = membership.read_text().splitlines()
    except (OSError, ValueError):
        return
    for line in lines:
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            top = groups
        elif controller in controllers.split(","):
            top = groups / controller
        else:
            continue
        inner = top / path.strip("/")
        yield from (each for each in (inner, *inner.parents) if each.is_relative_to(top))


def _numbers(*files: Path) -> list[int]:
    """All numbers in files; none if one cannot be read or says `max`, which is no limit."""
    try:
        return [int(word) for file in files for word in file.read_text().split()]
    except (OSError, ValueError):
        return []
