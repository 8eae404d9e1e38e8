"""The console's pages on a full store, and what fifty viewers cost the relay.

    ./dev bench console [--quick] [--only pages|viewers] [--folder DIR]

First a store with 1 M messages in 100 k mailboxes and 1 M events of the journal, and how long each page takes. Then a
relay with agents that send 1,000 messages/s, in turns with nobody and with 50 viewers of the live overview. It exits
with 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from urllib.parse import urlsplit

import uvloop
from _pages import Size, filled, measure
from _pinch import Load, Measured, Pairs
from _run import make_console, print_place, print_target, progress_bar, work_folder
from _server import Server, running
from rich.console import Console
from rich.table import Table

PAGE_MS_MAX = 200.0
REQUESTS = 20
VIEWERS = 50
PAIRS = 50
SIZE_BYTES = 1_024
OFFERED_PER_S = 1_000
ROUNDS, ROUND_S, WARM_S = 24, 3.0, 2.0
QUICK_ROUNDS = 6
P99_RATIO_MAX = 1.10


def main() -> int:
    options = parse()
    console = make_console()
    size = Size(50_000, 5_000) if options.quick else Size()
    with work_folder(options.folder, "console") as folder:
        if not print_place(console, folder):
            return 2
        good = True
        if options.only in (None, "pages"):
            good = pages(console, folder / "full", size)
        if options.only in (None, "viewers"):
            good &= viewers(console, folder / "live", QUICK_ROUNDS if options.quick else ROUNDS)
    return 0 if good else 1


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev bench console", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a smaller store and fewer rounds")
    parser.add_argument("--only", choices=("pages", "viewers"), help="one of the two halves")
    parser.add_argument("--folder", type=Path, metavar="DIR", help="where to make the files [default: bench/results]")
    return parser.parse_args()


# Pages


def pages(console: Console, folder: Path, size: Size) -> bool:
    """Time every page, and print what it took."""
    folder.mkdir()
    with progress_bar(console) as bar:
        task = bar.add_task("filling the store", total=size.messages)

        def told(done: int) -> None:
            bar.update(task, completed=done)
            bar.refresh()

        filled(folder, size, told)
    found = asyncio.run(measure(folder, size, REQUESTS))
    table = Table(title=f"{size.messages:,} messages in {size.mailboxes:,} mailboxes, {REQUESTS} requests each")
    for name in ("page", "of a new server, ms", "median ms", "slowest ms"):
        table.add_column(name, justify="left" if name == "page" else "right")
    for name, (first, *times) in found.items():
        table.add_row(name, *(f"{value:.1f}" for value in (first, median(times), max(times))))
    console.print(table)
    slowest = max(max(times) for times in found.values())
    met = slowest <= PAGE_MS_MAX
    print_target(
        console,
        met,
        f"every page and every read within {PAGE_MS_MAX:.0f} ms: the slowest request took {slowest:.0f} ms",
    )
    return met


# Viewers


WORDS = ("up", "--relay-port", "0", "--console-port", "0", "--no-metrics", "--no-gateway")
SETTINGS = {"relay.rate_limit": "0", "log.level": "warning"}


class Viewers:
    """Viewers in a process of their own."""

    def __init__(self, server: Server, token: str, count: int) -> None:
        at = urlsplit(server.summary["console"])
        words = [sys.executable, str(Path(__file__).with_name("_viewers.py")), str(at.hostname), str(at.port)]
        self._process = subprocess.Popen(
            [*words, str(count)],
            env={**os.environ, "TOKEN": token},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "all look\n":
            raise SystemExit("the viewers did not come")

    def leave(self) -> tuple[int, float]:
        """Let them go; how many snapshots the least lucky one saw, and the seconds of processor time that all took."""
        seen, spent_s = self._process.communicate("", timeout=30)[0].split()
        return int(seen), float(spent_s)


@dataclass
class Found:
    """What was measured, round by round."""

    alone: list[Measured] = field(default_factory=list)
    watched: list[Measured] = field(default_factory=list)
    seen: list[int] = field(default_factory=list)
    """Snapshots that the least lucky viewer of a round saw."""
    viewers_cpu_s: list[float] = field(default_factory=list)

    def ratios(self) -> list[float]:
        """By how much p99 was longer with viewers than without, of each pair of rounds."""
        pairs = zip(self.alone, self.watched, strict=True)
        return [watched.quantile_ms(0.99) / alone.quantile_ms(0.99) for alone, watched in pairs]


async def compare(server: Server, rounds: int) -> Found:
    """Pairs of rounds, with nobody and with viewers; every other pair the other way round."""
    found = Found()
    token = await asyncio.to_thread(server.command, "token", "add", "viewers", "--role", "viewer")
    async with Pairs(Load(server.summary["relay"], SIZE_BYTES, server.cpu_s), PAIRS) as pairs:
        await pairs.offer(OFFERED_PER_S, WARM_S)
        for number in range(rounds):
            for is_watched in (False, True) if number % 2 else (True, False):
                if is_watched:
                    looking = await asyncio.to_thread(Viewers, server, token, VIEWERS)
                    found.watched.append(await pairs.offer(OFFERED_PER_S, ROUND_S))
                    seen, spent_s = await asyncio.to_thread(looking.leave)
                    found.seen.append(seen)
                    found.viewers_cpu_s.append(spent_s)
                else:
                    found.alone.append(await pairs.offer(OFFERED_PER_S, ROUND_S))
    return found


def viewers(console: Console, folder: Path, rounds: int) -> bool:
    """Measure the relay with and without viewers, and print both."""
    with running(folder, WORDS, SETTINGS) as server:
        found = uvloop.run(compare(server, rounds))
    table = Table(title=f"The relay, {OFFERED_PER_S:,} messages/s offered, medians of {rounds} rounds of {ROUND_S:g} s")
    for name in ("", "p50 ms", "p99 ms", "relay's CPU %", "viewers' CPU %"):
        table.add_column(name, justify="right" if name else "left")
    for name, measured in (("nobody looks", found.alone), (f"{VIEWERS} viewers", found.watched)):
        cells = [median(one.quantile_ms(share) for one in measured) for share in (0.5, 0.99)]
        relay = median(100 * one.relay_cpu_s / one.lasted_s for one in measured)
        theirs = median(found.viewers_cpu_s) / ROUND_S * 100 if measured is found.watched else 0.0
        table.add_row(name, *(f"{cell:.2f}" for cell in cells), f"{relay:.1f}", f"{theirs:.2f}")
    console.print(table)
    wrong = [one.wrong for one in (*found.alone, *found.watched) if one.wrong]
    fresh = min(found.seen) >= ROUND_S - 1
    print_target(console, fresh, f"every viewer saw a snapshot a second: {min(found.seen)} in {ROUND_S:g} s at least")
    print_target(console, not wrong, f"every message arrived{f': {wrong[0]}' if wrong else ''}")
    low, ratio, high = quantiles(found.ratios(), n=4)
    met = ratio <= P99_RATIO_MAX
    print_target(
        console,
        met,
        f"p99 with viewers is {ratio:.2f} times that without, at most {P99_RATIO_MAX}"
        f" (median of {rounds} pairs, half of them from {low:.2f} to {high:.2f})",
    )
    return met and fresh and not wrong


if __name__ == "__main__":
    sys.exit(main())
