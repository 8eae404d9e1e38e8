"""The relay under load beside the Go relay's figures: live, stored, flushed, idle connections, authentications.

    ./dev bench relay [--quick] [--only WORK] [--folder DIR]

`posthouse relay` runs in a process of its own with its store on a real disk; agents in this one sign and confirm as
real ones do, with random bodies of 1 KiB. Each kind of work has a new relay, and each figure is the median of
its rounds. Exits with 1 if a target is missed or a message did not arrive as it should.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import sys
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import TypedDict

import psutil
import uvloop
from _load import Timing, append_synced
from _pinch import Load, Measured, Pairs, leave_all
from _run import make_console, print_place, print_target, progress_bar, work_folder
from _server import Server, running
from rich.console import Console
from rich.table import Table

SIZE_BYTES = 1_024
PAIRS, WINDOW = 50, 8
OFFERED_PER_S = 1_000
QUEUED = 1_000
IDLE = 10_000
IDLE_FILES_SPARE = 200
IDLE_HOLD_S = 2.0
OTHERS_BUSY_MAX = 0.15
START_PAUSE_S = 0.05
"""The relay's own, its default: a flush begins after it."""


@dataclass(frozen=True)
class Size:
    """How much of everything."""

    rounds: int
    warm_s: float
    live_s: float
    recipients: int
    flushes: int
    idle: int


FULL = Size(rounds=3, warm_s=1.0, live_s=4.0, recipients=20, flushes=7, idle=IDLE)
QUICK = Size(rounds=1, warm_s=0.5, live_s=2.0, recipients=10, flushes=3, idle=2_000)


@dataclass(frozen=True)
class Figure:
    """One line of the table."""

    work: str
    unit: str
    ours: float
    go: float | None = None
    """The Go relay's, where it was measured."""
    target: float | None = None
    is_rate: bool = True
    """More is better."""
    cpu_us: float | None = None
    """Processor time of the relay for one message or connection."""
    agents: float | None = None
    """Of the agents: processors that they kept busy."""

    @property
    def met(self) -> bool:
        if self.target is None:
            return True
        return self.ours >= self.target if self.is_rate else self.ours <= self.target

    @property
    def lead(self) -> float | None:
        """How many times better than the Go relay's."""
        if self.go is None:
            return None
        return self.ours / self.go if self.is_rate else self.go / self.ours


WORDS = ("relay", "--relay-port", "0", "--no-metrics")
SETTINGS = {"relay.rate_limit": "0", "relay.start_pause_s": str(START_PAUSE_S), "log.level": "warning"}


# The kinds of work. Each has a relay of its own.

Tell = Callable[[], None]
Result = tuple[list[Figure], list[Measured]]


async def run_live(relay: Server, size: Size, tell: Tell) -> Result:
    rounds = []
    async with Pairs(Load(relay.summary["relay"], SIZE_BYTES, relay.cpu_s), PAIRS) as pairs:
        await pairs.saturate(WINDOW, size.warm_s)
        for _ in range(size.rounds):
            tell()
            rounds.append(await pairs.saturate(WINDOW, size.live_s))
    work = f"live, {PAIRS} pairs, window {WINDOW}, confirmed"
    p50 = Figure(f"{work}: p50", "ms", mid(rounds, lambda one: one.quantile_ms(0.5)), 22.0, is_rate=False)
    return [Figure(work, "messages/s", mid(rounds, per_s), 7_800, 8_000, **costs(rounds)), p50], rounds


async def run_offered(relay: Server, size: Size, tell: Tell) -> Result:
    rounds = []
    async with Pairs(Load(relay.summary["relay"], SIZE_BYTES, relay.cpu_s), PAIRS) as pairs:
        await pairs.offer(OFFERED_PER_S, size.warm_s)
        for _ in range(size.rounds):
            tell()
            rounds.append(await pairs.offer(OFFERED_PER_S, size.live_s))
    work = f"live, {OFFERED_PER_S:,} messages/s offered"
    p50_ms, p99_ms = mid(rounds, lambda one: one.quantile_ms(0.5)), mid(rounds, lambda one: one.quantile_ms(0.99))
    return [
        Figure(f"{work}: p50", "ms", p50_ms, 0.26, is_rate=False, **costs(rounds)),
        Figure(f"{work}: p99", "ms", p99_ms, 1.3, 5.0, is_rate=False),
    ], rounds


async def run_store(relay: Server, size: Size, tell: Tell) -> Result:
    load, rounds = Load(relay.summary["relay"], SIZE_BYTES, relay.cpu_s), []
    await load.store(2, 500)
    for _ in range(size.rounds):
        tell()
        rounds.append(await load.store(size.recipients, QUEUED))
    work = f"store for {size.recipients} offline recipients, {QUEUED:,} each"
    return [Figure(work, "messages/s", mid(rounds, per_s), 1_100, 10_000, **costs(rounds))], rounds


async def run_flush(relay: Server, size: Size, tell: Tell) -> Result:
    load, rounds = Load(relay.summary["relay"], SIZE_BYTES, relay.cpu_s), []
    await load.flush(QUEUED)
    for _ in range(size.flushes):
        tell()
        rounds.append(await load.flush(QUEUED))
    work = f"flush of {QUEUED:,} queued, after the pause"
    received_s = mid(rounds, lambda one: one.times_s[1] - START_PAUSE_S)
    confirmed_s = mid(rounds, lambda one: one.times_s[2] - START_PAUSE_S)
    return [
        Figure(work, "s", received_s, 1.7, 0.17, is_rate=False, **costs(rounds)),
        Figure(f"{work}: all confirmed", "s", confirmed_s, is_rate=False),
    ], rounds


async def run_idle(relay: Server, size: Size, tell: Tell) -> Result:
    tell()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    count = min(size.idle, hard - IDLE_FILES_SPARE)
    before_bytes = relay.rss_bytes()
    measured, agents = await Load(relay.summary["relay"], SIZE_BYTES, relay.cpu_s).idle(count)
    # Past the start pause of the last one, and its first look for messages.
    await asyncio.sleep(IDLE_HOLD_S)
    grown_kib = (relay.rss_bytes() - before_bytes) / 1024 / count
    gone = sum(not agent.is_open for agent in agents)
    await leave_all(agents)
    rounds = [replace(measured, wrong=f"{gone} connections were lost" if gone else "")]
    return [
        Figure(f"idle, {count:,} connections: memory of one", "KiB", grown_kib, 34, 34, is_rate=False),
        Figure("authentications", "1/s", measured.per_s, 1_500, 1_500, **costs(rounds)),
    ], rounds


class Costs(TypedDict):
    cpu_us: float
    agents: float


def costs(rounds: list[Measured]) -> Costs:
    """What one message (or connection) cost the relay, and how busy the agents were."""
    return {
        "cpu_us": mid(rounds, lambda one: one.relay_cpu_s / one.count * 1e6),
        "agents": mid(rounds, lambda one: one.agents_cpu_s / one.lasted_s),
    }


def mid(rounds: list[Measured], of: Callable[[Measured], float]) -> float:
    return median(of(one) for one in rounds)


def per_s(measured: Measured) -> float:
    return measured.per_s


WORKS: dict[str, tuple[Callable[[Server, Size, Tell], Coroutine[None, None, Result]], Callable[[Size], int]]] = {
    "live": (run_live, lambda size: size.rounds),
    "offered": (run_offered, lambda size: size.rounds),
    "store": (run_store, lambda size: size.rounds),
    "flush": (run_flush, lambda size: size.flushes),
    "idle": (run_idle, lambda size: 1),
}
"""Each kind of work, and how many rounds it has."""


def main() -> int:
    options = parse()
    console = make_console()
    size = QUICK if options.quick else FULL
    names = [name for name in WORKS if options.only in (None, name)]
    figures: list[Figure] = []
    wrong: list[str] = []
    with work_folder(options.folder, "relay") as folder:
        if not print_place(console, folder):
            return 2
        print_disk(console, folder)
        others = Others()
        with progress_bar(console) as progress:
            task = progress.add_task("", total=sum(WORKS[name][1](size) for name in names))
            for name in names:
                progress.update(task, description=name, refresh=True)
                with running(folder / name, WORDS, SETTINGS) as relay:
                    work, _ = WORKS[name]
                    found, rounds = uvloop.run(
                        work(relay, size, lambda: progress.update(task, advance=1, refresh=True))
                    )
                figures += found
                wrong += [f"{name}: {one.wrong}" for one in rounds if one.wrong]
    console.print(as_table(figures))
    others.print(console)
    for figure in figures:
        if figure.target is not None:
            sign = "≥" if figure.is_rate else "≤"
            text = f"{figure.work}: {shown(figure.ours)} {figure.unit}; target {sign} {shown(figure.target)}"
            print_target(console, figure.met, text)
    print_target(console, not wrong, wrong[0] if wrong else "every message arrived, once and in order")
    return 0 if not wrong and all(figure.met for figure in figures) else 1


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev bench relay", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds, 2 000 idle connections")
    parser.add_argument("--only", choices=WORKS, metavar="WORK", help=f"one kind of work: {', '.join(WORKS)}")
    parser.add_argument("--folder", type=Path, metavar="DIR", help="where to make the files [default: bench/results]")
    return parser.parse_args()


def print_disk(console: Console, folder: Path) -> None:
    """Nothing is forwarded before it is on the disk: what the disk takes is in every figure."""
    disk = append_synced(folder / "disk", 16, Timing(0.1, 0.5))
    console.print(
        f"a synced append of 16 KiB takes {disk.p50_ms:.2f} ms here, p99 {disk.p99_ms:.2f} ms", highlight=False
    )


class Others:
    """How busy everybody else on this machine is, from here on."""

    def __init__(self) -> None:
        self._begun = self._now()

    @staticmethod
    def _now() -> tuple[float, float]:
        times = psutil.cpu_times()
        idle_s = times.idle + getattr(times, "iowait", 0.0)
        ours_s = sum(os.times()[:4])
        return time.perf_counter(), (os.cpu_count() or 1) * time.perf_counter() - idle_s - ours_s

    def print(self, console: Console) -> None:
        """Say so if they were: they slow down everything but the processor time of a message."""
        (begun, before_s), (now, after_s) = self._begun, self._now()
        busy = (after_s - before_s) / (now - begun)
        if busy >= OTHERS_BUSY_MAX:
            text = f"others kept {busy:.1f} of {os.cpu_count()} cores busy meanwhile: measure again when they do not"
            console.print(text, style="yellow", highlight=False)


def as_table(figures: list[Figure]) -> Table:
    table = Table(title="A relay under load, bodies of 1 KiB", title_justify="left")
    table.add_column("work")
    for heading in ("ours", "Go relay", "ours better by"):
        table.add_column(heading, justify="right")
    table.add_column("unit")
    for heading in ("relay CPU µs", "agents CPU"):
        table.add_column(heading, justify="right")
    for figure in figures:
        lead = figure.lead
        table.add_row(
            figure.work,
            shown(figure.ours),
            "–" if figure.go is None else shown(figure.go),
            "–" if lead is None else f"{lead:.1f}×",
            figure.unit,
            "–" if figure.cpu_us is None else f"{figure.cpu_us:,.0f}",
            "–" if figure.agents is None else f"{figure.agents:.0%}",
        )
    table.caption = (
        "Go relay: the public one, measured on 2 cores on another day. Relay CPU: for one message (with its"
        " confirmation where it is confirmed) or one authentication. Agents CPU: of one core, on the same machine."
    )
    table.caption_justify = "left"
    return table


def shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


if __name__ == "__main__":
    sys.exit(main())
