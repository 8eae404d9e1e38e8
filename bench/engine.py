"""Durable posts and lifecycles a second beside the disk's own ceiling and other queues; --scale: at 1 M messages.

    ./dev bench engine [--quick] [--scale] [--folder DIR]

One table, all from one run and one disk, with random bodies of 1 KiB. A lifecycle is post, lease and settle,
each awaited by its caller before the next. Systems take turns, and each figure is the median of three rounds;
a system goes on with its own files from round to round, so that work it puts off is counted too. Each measurement has
a process of its own: in the heap that another's 200 threads left behind, ours is a third slower.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _bare import Bare
from _load import Figures, Timing, append_synced, median
from _peers import PEERS, Peer
from _run import make_console, print_place, print_target, progress_bar, work_folder
from _scale import run_scale
from _syncs import SYSTEMS, Syncs, find_syncs
from _traffic import Posthouse
from rich.console import Console
from rich.table import Table

CALLERS = (1, 16, 200)
ROUNDS = 3
CEILING = "ceiling"
BARE = "bare SQLite"
LIFECYCLES_MIN = 15_000
LEAD_MIN = 8.0
CEILING_SHARE_MIN = 0.20


@dataclass(frozen=True)
class Row:
    """One system with so many callers."""

    posts: Figures
    lifecycles: Figures | None


def main() -> int:
    options = parse()
    console = make_console()
    with work_folder(options.folder, "engine") as folder:
        if not print_place(console, folder):
            return 2
        if options.scale:
            run_scale(console, folder, options.quick)
        else:
            compare(console, folder, Timing(0.15, 0.45) if options.quick else Timing(0.4, 1.6))
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev bench engine", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="shorter rounds; with --scale, fewer messages")
    parser.add_argument("--scale", action="store_true", help="cost per operation at 10 k and at 1 M messages")
    parser.add_argument("--folder", type=Path, metavar="DIR", help="where to make the files [default: bench/results]")
    return parser.parse_args()


# The comparison


def compare(console: Console, folder: Path, timing: Timing) -> None:
    """Measure all systems in turns and print the table and the targets."""
    found: dict[tuple[str, int, bool], list[Figures]] = {}
    steps = len(SYSTEMS) + ROUNDS * len(CALLERS) * (2 * len(SYSTEMS) + 2)
    with progress_bar(console) as progress:
        task = progress.add_task("", total=steps)

        def tell(text: str) -> None:
            progress.update(task, description=text, advance=1, refresh=True)

        syncs = {}
        for system in SYSTEMS:
            tell(f"{system.title}: counting its syncs")
            syncs[system.title] = find_syncs(system.title, folder)
        for number in range(ROUNDS):
            for callers in CALLERS:
                measure_round(folder, number, callers, timing, tell, found)
    rows = {
        (title, callers): Row(median(found[title, callers, False]), lifecycles_of(found, title, callers))
        for callers in CALLERS
        for title in (CEILING, BARE, *(system.title for system in SYSTEMS))
    }
    console.print(as_table(rows, syncs))
    console.print(
        f"  {BARE}: coroutines, a thread and one INSERT a group; no ids, lanes, counts or journal", highlight=False
    )
    for system in SYSTEMS:
        version = f" ({system.version()})" if issubclass(system, Peer) else ""
        console.print(f"  {system.title}{version}: {system.usage}", highlight=False)
    print_failures(console, rows)
    print_targets(console, rows, syncs)


def measure_round(
    folder: Path,
    number: int,
    callers: int,
    timing: Timing,
    tell: Callable[[str], None],
    found: dict[tuple[str, int, bool], list[Figures]],
) -> None:
    """All systems with so many callers, once; each begins in turn."""
    turn = number % len(SYSTEMS)
    for system in (*SYSTEMS[turn:], *SYSTEMS[:turn]):
        for lifecycle in (False, True):
            tell(f"{system.title}: {callers} callers, {'lifecycles' if lifecycle else 'posts'}")
            home = folder / f"{system.title}-{callers}-{lifecycle}".replace(" ", "")
            home.mkdir(exist_ok=True)
            figure = alone(measure, system, home, lifecycle, callers, timing)
            found.setdefault((system.title, callers, lifecycle), []).append(figure)
            if system is Posthouse and not lifecycle:
                tell(f"{CEILING}: {callers} callers")
                assert figure.group is not None
                ceiling = append_synced(folder / "ceiling", max(1, round(figure.group)), timing)
                found.setdefault((CEILING, callers, False), []).append(ceiling)
                tell(f"{BARE}: {callers} callers")
                bare = alone(measure_bare, folder / f"bare-{callers}-{number}.db", callers, timing)
                found.setdefault((BARE, callers, False), []).append(bare)


def alone(function: Callable[..., Figures], *arguments: Any) -> Figures:
    """Call a function in a process of its own."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        return process.submit(function, *arguments).result()


def measure(system: Any, home: Path, lifecycle: bool, callers: int, timing: Timing) -> Figures:
    """One round of one system."""
    opened = system(home)
    try:
        figure: Figures = opened.measure(lifecycle, callers, timing)
    finally:
        opened.close()
    return figure


def measure_bare(path: Path, callers: int, timing: Timing) -> Figures:
    """One round of the bare store."""
    return Bare(path).measure(callers, timing)


def lifecycles_of(found: dict[tuple[str, int, bool], list[Figures]], title: str, callers: int) -> Figures | None:
    rounds = found.get((title, callers, True))
    return median(rounds) if rounds else None


def as_table(rows: dict[tuple[str, int], Row], syncs: dict[str, Syncs]) -> Table:
    """The table; one section for each number of callers."""
    table = Table(title=f"Durable queues, 1 KiB bodies, median of {ROUNDS} rounds", title_justify="left")
    for heading in ("callers", "system", "posts/s", "lifecycles/s", "p50 ms", "p99 ms", "CPU µs", "mean group"):
        table.add_column(heading, justify="left" if heading == "system" else "right")
    table.add_column("syncs before it answers")
    table.add_column("ours ÷ it", justify="right")
    for callers in CALLERS:
        table.add_section()
        ours = rows[Posthouse.title, callers]
        assert ours.lifecycles is not None
        for (title, of), row in rows.items():
            if of != callers:
                continue
            # One operation of a lifecycle; of the ceiling, one group; of the bare store, one post.
            shown = row.lifecycles or row.posts
            lead = ours.lifecycles.per_s if row.lifecycles else ours.posts.per_s
            table.add_row(
                str(callers),
                title,
                f"{row.posts.per_s:,.0f}",
                f"{row.lifecycles.per_s:,.0f}" if row.lifecycles else "–",
                f"{shown.p50_ms:.2f}",
                f"{shown.p99_ms:.2f}",
                f"{shown.cpu_us:,.0f}",
                "–" if shown.group is None else f"{shown.group:.0f}",
                syncs[title].text if title in syncs else "yes",
                f"{lead / shown.per_s:.2f}×" if shown.per_s else "–",
                style="bold" if title == Posthouse.title else None,
            )
    table.caption = (
        "p50, p99: one operation within lifecycles (of the ceiling, one group). CPU: a whole lifecycle, its caller"
        " included. Syncs: counted by strace, for a post and for a lifecycle. ours ÷ it: lifecycles/s (of the ceiling"
        " and the bare store, posts/s)."
    )
    table.caption_justify = "left"
    return table


def print_failures(console: Console, rows: dict[tuple[str, int], Row]) -> None:
    for (title, callers), row in rows.items():
        for what, figure in (("posts", row.posts), ("lifecycles", row.lifecycles)):
            if figure is not None and figure.failure:
                console.print(f"  {title}, {callers} callers, {what}: {figure.failures} failed ({figure.failure})")


def print_targets(console: Console, rows: dict[tuple[str, int], Row], syncs: dict[str, Syncs]) -> None:
    """One line for each target."""
    most = CALLERS[-1]
    ours = rows[Posthouse.title, most]
    assert ours.lifecycles is not None
    rates = {}
    for peer in PEERS:
        lifecycles = rows[peer.title, most].lifecycles
        if syncs[peer.title].durable and lifecycles is not None:
            rates[peer.title] = lifecycles.per_s
    if rates:
        best = max(rates, key=lambda title: rates[title])
        lead = ours.lifecycles.per_s / max(rates[best], 1e-9)
        text = f"lifecycles at {most} callers: {lead:.1f}× the best peer that syncs ({best}); target ≥ {LEAD_MIN:.0f}×"
        print_target(console, lead >= LEAD_MIN, text)
    else:
        print_target(console, False, "no other queue syncs here: there is none to compare with")
    rate = ours.lifecycles.per_s
    text = f"lifecycles at {most} callers: {rate:,.0f}/s; target ≥ {LIFECYCLES_MIN:,}/s"
    print_target(console, rate >= LIFECYCLES_MIN, text)
    share = ours.posts.per_s / rows[CEILING, most].posts.per_s
    bare = rows[BARE, most].posts.per_s / rows[CEILING, most].posts.per_s
    text = f"posts at {most} callers: {share:.0%} of the ceiling ({BARE}: {bare:.0%}); target ≥ {CEILING_SHARE_MIN:.0%}"
    print_target(console, share >= CEILING_SHARE_MIN, text)


if __name__ == "__main__":
    sys.exit(main())
