"""What every system of a benchmark is measured with: timing, bodies, figures, threads as callers.

In: a step that one caller repeats. Out: how many were done per second and how long one operation took.
"""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path

BODY_BYTES = 1_024
POOL = [os.urandom(BODY_BYTES) for _ in range(4_096)]
"""Random, so that nothing on the way can compress them; made before, so that making them costs nothing."""


@dataclass(frozen=True)
class Timing:
    """One round of one measurement."""

    warm_s: float
    measure_s: float


@dataclass(frozen=True)
class Figures:
    """What one round, or the median of several, found."""

    per_s: float
    p50_ms: float
    p99_ms: float
    cpu_us: float
    """Processor time of the process for one post or lifecycle: what other people's load moves least."""
    group: float | None = None
    """Commands per commit, where the system groups them."""
    failures: int = 0
    failure: str = ""


def bodies(caller: int) -> Iterator[bytes]:
    """Bodies for one caller, without end; callers begin at different ones."""
    start = caller * 97 % len(POOL)
    return cycle([*islice(POOL, start, None), *islice(POOL, start)])


class Stopwatch:
    """Wall and processor time since it was made."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def read(self) -> tuple[float, float]:
        """Both, in seconds."""
        return time.perf_counter() - self._wall, time.process_time() - self._cpu


def figures(
    spent_s: Sequence[float],
    per_unit: int,
    lasted_s: tuple[float, float],
    group: float | None = None,
    failures: Sequence[str] = (),
) -> Figures:
    """Figures of a round from the times of its operations, of which a unit (a lifecycle) has several."""
    ordered = sorted(spent_s)
    if not ordered:
        return Figures(0.0, 0.0, 0.0, 0.0, group, len(failures), failures[0] if failures else "nothing was finished")
    wall_s, cpu_s = lasted_s
    units = len(ordered) / per_unit
    return Figures(
        per_s=units / wall_s,
        p50_ms=ordered[len(ordered) // 2] * 1e3,
        p99_ms=ordered[len(ordered) * 99 // 100] * 1e3,
        cpu_us=cpu_s / units * 1e6,
        group=group,
        failures=len(failures),
        failure=failures[0] if failures else "",
    )


def median(rounds: Sequence[Figures]) -> Figures:
    """The median of each figure; failures are added up."""
    groups = [figure.group for figure in rounds if figure.group is not None]
    return Figures(
        per_s=statistics.median(figure.per_s for figure in rounds),
        p50_ms=statistics.median(figure.p50_ms for figure in rounds),
        p99_ms=statistics.median(figure.p99_ms for figure in rounds),
        cpu_us=statistics.median(figure.cpu_us for figure in rounds),
        group=statistics.median(groups) if groups else None,
        failures=sum(figure.failures for figure in rounds),
        failure=next((figure.failure for figure in rounds if figure.failure), ""),
    )


def drive_threads(
    step: Callable[[Iterator[bytes], list[float]], None], per_unit: int, callers: int, timing: Timing
) -> Figures:
    """Let threads repeat a step, which notes the time of each of its operations."""
    spent: list[list[float]] = [[] for _ in range(callers)]
    failures: list[str] = []
    stop = threading.Event()

    def call(caller: int) -> None:
        mine, texts = spent[caller], bodies(caller)
        while not stop.is_set():
            try:
                step(texts, mine)
            except Exception as error:
                failures.append(f"{type(error).__name__}: {error}")

    threads = [threading.Thread(target=call, args=(caller,), daemon=True) for caller in range(callers)]
    try:
        for thread in threads:
            thread.start()
        time.sleep(timing.warm_s)
        first = [len(mine) for mine in spent]
        watch = Stopwatch()
        time.sleep(timing.measure_s)
        last = [len(mine) for mine in spent]
        lasted_s = watch.read()
    finally:
        stop.set()
        for thread in threads:
            if thread.ident is not None:
                thread.join()
    measured = [one for mine, start, end in zip(spent, first, last, strict=True) for one in mine[start:end]]
    return figures(measured, per_unit, lasted_s, failures=failures)


def append_synced(path: Path, group: int, timing: Timing) -> Figures:
    """The ceiling: append bodies to a file and sync them, a group at a time."""
    block = b"".join(islice(cycle(POOL), group))
    spent: list[float] = []
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        until = time.perf_counter() + timing.warm_s
        while time.perf_counter() < until:
            os.write(fd, block)
            os.fdatasync(fd)
        watch = Stopwatch()
        until = time.perf_counter() + timing.measure_s
        while (before := time.perf_counter()) < until:
            if os.write(fd, block) != len(block):
                raise OSError("a short write: the disk is full")
            os.fdatasync(fd)
            spent.append(time.perf_counter() - before)
        lasted_s = watch.read()
    finally:
        os.close(fd)
        path.unlink()
    found = figures(spent, 1, lasted_s)
    return Figures(found.per_s * group, found.p50_ms, found.p99_ms, found.cpu_us / group, float(group))
