"""What the books cost the relay beside which they are kept.

    ./dev bench beside [--quick] [--folder DIR]

`posthouse up` runs a relay and keeps the books, as it does for everybody: Spark in one process of its own that stands
back. Agents send 500 messages/s. Rounds are measured while nothing else is done, then while the books are brought up to
date: Java starts, every table is made for the first time, and again with what came meanwhile; then with nothing else
again. It exits with 1 if the relay suffers, or if the books were not at work.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import uvloop
from _peak import Peak
from _pinch import Load, Measured, Pairs
from _run import make_console, print_place, print_target, work_folder
from _server import Server, running
from rich.console import Console
from rich.table import Table

from posthouse.config import load
from posthouse.control.operator import Operator

PAIRS = 20
SIZE_BYTES = 1_024
OFFERED_PER_S = 500
WARM_S, ROUND_S = 2.0, 3.0
CALM, QUICK_CALM = 8, 4
"""Rounds before, and again after."""
TURNS, QUICK_TURNS = 2, 1
MEMORY_MB = 1_024
P99_RATIO_MAX = 1.5
SLACK_MS = 2.0
"""Calm rounds differ by this much from each other."""


WORDS = ("up", "--relay-port", "0", "--no-console", "--no-metrics", "--no-gateway")
SETTINGS = {
    "relay.rate_limit": "0", "log.level": "warning", "journal.export_s": "600", "books.enabled": "true",
    "books.every_s": "0", "books.memory_mb": str(MEMORY_MB),
}  # fmt: skip


def bring_up_to_date(folder: Path) -> dict[str, Any]:
    """Ask the server of a folder to take in all that is new; what was done."""
    with contextlib.closing(Operator.connect(load({}, folder))) as operator:
        answer = operator.call("books.run", {}, lambda done, total, doing: None)
    if not isinstance(answer, dict):
        raise SystemExit(f"the books were not brought up to date: {answer}")
    return answer


class Found:
    """What was measured."""

    def __init__(self) -> None:
        self.calm: list[Measured] = []
        self.busy: list[Measured] = []
        self.events = 0
        """That the books took in."""
        self.took_s = 0.0
        self.books_cpu_s = 0.0
        self.peak = Peak()
        self.idle_class = True
        """Whether all that the books consist of takes the processor only when nobody else wants it."""

    def look_at(self, books: list[psutil.Process]) -> None:
        """Note what the processes of the books took so far."""
        self.peak.look(books)
        with contextlib.suppress(psutil.NoSuchProcess):
            self.books_cpu_s = sum(sum(each.cpu_times()[:2]) for each in books)
            self.idle_class &= all(os.sched_getscheduler(each.pid) == os.SCHED_IDLE for each in books)


async def compare(server: Server, calm: int, turns: int) -> Found:
    """Rounds with nothing else, while the books are at work, and with nothing else again."""
    found = Found()
    with ThreadPoolExecutor(1) as pool:
        async with Pairs(Load(server.summary["relay"], SIZE_BYTES, server.cpu_s), PAIRS) as pairs:
            await pairs.offer(OFFERED_PER_S, WARM_S)
            for _ in range(calm):
                found.calm.append(await pairs.offer(OFFERED_PER_S, ROUND_S))
            begun = time.monotonic()
            for _ in range(turns):
                turn: Future[dict[str, Any]] = pool.submit(bring_up_to_date, server.folder)
                while not turn.done():
                    round_ = await pairs.offer(OFFERED_PER_S, ROUND_S)
                    found.look_at(server.children())
                    # The last one was over before the round was.
                    if not turn.done():
                        found.busy.append(round_)
                found.events += turn.result()["events"]
            found.took_s = time.monotonic() - begun
            for _ in range(calm):
                found.calm.append(await pairs.offer(OFFERED_PER_S, ROUND_S))
    return found


def report(console: Console, found: Found) -> bool:
    """Print what was found; whether the relay was left alone."""
    table = Table(title=f"{OFFERED_PER_S} messages/s of 1 KiB; median of rounds of {ROUND_S:g} s")
    for name in ("round", "rounds", "messages/s", "p50 ms", "p99 ms", "slowest ms", "relay µs/message"):
        table.add_column(name, justify="left" if name == "round" else "right")
    middles: dict[str, float] = {}
    for name, rounds in (("nothing else", found.calm), ("beside the books", found.busy)):
        middles[name] = median(each.quantile_ms(0.99) for each in rounds)
        figures = (
            median(each.per_s for each in rounds), median(each.quantile_ms(0.5) for each in rounds), middles[name],
            max(each.times_s[-1] for each in rounds) * 1e3,
            median(each.relay_cpu_s / each.count * 1e6 for each in rounds),
        )  # fmt: skip
        table.add_row(name, str(len(rounds)), *(f"{value:.1f}" for value in figures))
    console.print(table)
    console.print(
        f"the books took in {found.events:,} events in {found.took_s:.0f} s,"
        f" {found.books_cpu_s:.0f} s of processor time and at most {found.peak.size_bytes >> 20} MiB",
        highlight=False,
    )
    wrong = next((each.wrong for each in (*found.calm, *found.busy) if each.wrong), "")
    print_target(console, not wrong, wrong or "every message arrived and was confirmed, in order")
    print_target(console, found.idle_class, "the books take the processor only when nobody else wants it")
    alone, beside = middles["nothing else"], middles["beside the books"]
    most = P99_RATIO_MAX * alone + SLACK_MS
    met = beside <= most
    print_target(console, met, f"p99 beside the books {beside:.1f} ms, alone {alone:.1f} ms, at most {most:.1f} ms")
    return met and not wrong and found.idle_class and found.books_cpu_s > 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev bench beside", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds, and the books once")
    parser.add_argument("--folder", type=Path, metavar="DIR", help="where to make the files [default: bench/results]")
    options = parser.parse_args()
    console = make_console()
    with work_folder(options.folder, "beside") as folder:
        if not print_place(console, folder):
            return 2
        calm, turns = (QUICK_CALM, QUICK_TURNS) if options.quick else (CALM, TURNS)
        with running(folder / "house", WORDS, SETTINGS) as server:
            found = uvloop.run(compare(server, calm, turns))
        return 0 if report(console, found) else 1


if __name__ == "__main__":
    sys.exit(main())
