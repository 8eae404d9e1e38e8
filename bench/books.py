"""The books in full and by increments: Spark beside DuckDB and Polars, on journals made up from one seed.

    ./dev bench books [--millions 2 20 60] [--quick] [--increment K] [--folder DIR]

Each engine builds in a process of its own, one after the other, from the same segments: Spark every table of the lake,
DuckDB and Polars the same tables as Parquet, as far as ``_rivals`` says. Cold is a fresh process, its start included;
warm is the same build again in it. The increment is the journal's last segments on top of the rest, and among them
events about messages that were finished long ago, in the warm process; it is measured on the second of two, and on a
journal of a tenth of the largest size too.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from _reading import ask, print_answers
from _rivals import run_duckdb, run_polars
from _run import make_console, print_place, print_target, work_folder
from rich.console import Console
from rich.table import Table

ENGINES = ("duckdb", "polars", "spark")
COLD_MAX, WARM_MAX, GROWTH_MAX, INCREMENT_GROWTH_MAX, INCREMENT_SHARE_MAX = 4.0, 3.0, 3.3, 1.5, 1 / 20
SEED, LATE_EVENTS = 1, 200


@dataclass(frozen=True)
class Figures:
    """One engine on one journal, in seconds and bytes."""

    cold: float
    warm: float
    increment: float | None
    peak: int
    answers: dict[str, float]
    """How long the commands that read took, for Spark's lake."""


def main() -> int:
    options = parse()
    if options.child:
        print(json.dumps(CHILDREN[options.child](options.journal, options.lake, options.held)))
        return 0
    console = make_console()
    sizes = [0.2] if options.quick else options.millions
    with work_folder(options.folder, "books") as folder:
        if not print_place(console, folder):
            return 2
        found: dict[tuple[float, str], Figures] = {}
        tenth = max(sizes) / 10
        for millions in sorted({*sizes, tenth}):
            journal, held = make_journal(console, folder, millions, options.increment)
            for engine in ENGINES if millions in sizes else ("spark",):
                found[millions, engine] = measure(engine, journal, held, folder)
                console.print(f"{millions:g} M {engine}: {found[millions, engine]}", highlight=False)
            shutil.rmtree(journal)
            shutil.rmtree(held)
        print_results(console, sizes, found)
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev bench books", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--millions", type=float, nargs="+", default=[2, 20, 60], metavar="M", help="events of a journal"
    )
    parser.add_argument("--quick", action="store_true", help="0.2 M events only")
    parser.add_argument("--increment", type=int, default=100_000, metavar="K", help="events of the increment")
    parser.add_argument("--folder", type=Path, metavar="DIR", help="where to make the files [default: bench/results]")
    for name in ("--child", "--journal", "--lake", "--held"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    return parser.parse_args()


def make_journal(console: Console, folder: Path, millions: float, increment: int) -> tuple[Path, Path]:
    """A journal, and apart from it the last segments, which come later."""
    from posthouse.pipeline.generate import generate

    journal, held = folder / f"journal-{millions:g}", folder / f"held-{millions:g}"
    begun = time.perf_counter()
    # One node: what is held back is then the journal's end, and nothing in it is late.
    events = int(millions * 1e6)
    sheet = generate(
        journal, events=events, seed=SEED, nodes=1, segment_events=min(max(events // 8, 1_000), increment, 250_000)
    )
    took = time.perf_counter() - begun
    moved = 0
    for path in sorted(journal.glob("node=*/*.parquet"), reverse=True):
        if moved >= min(2 * increment, events // 4):
            break
        first, last = map(int, path.stem.split("-"))
        target = held / path.parent.name / path.name
        target.parent.mkdir(parents=True, exist_ok=True)
        path.rename(target)
        moved += last - first + 1
    moved += scatter(journal, held)
    size = sum(path.stat().st_size for path in journal.rglob("*.parquet"))
    console.print(
        f"{sheet['events']} events made up in {took:.0f} s, {size / 1e6:.0f} MB, {moved} of them for two increments",
        highlight=False,
    )
    return journal, held


def scatter(journal: Path, held: Path) -> int:
    """One more segment behind the last: events about messages that were posted and finished all over the journal."""
    import pyarrow.parquet as pq

    from posthouse.journal import schema, segment

    last = sorted(held.glob("node=*/*.parquet"))[-1]
    facts = pq.read_schema(last).metadata
    node, end = facts[schema.KEY_NODE.encode()].decode(), int(facts[schema.KEY_LAST.encode()])
    files = sorted(journal.glob("node=*/*.parquet"))
    each = max(LATE_EVENTS // len(files), 1)
    posts = []
    for path in files[: LATE_EVENTS // each]:
        posts += pq.read_table(path, filters=[("event", "=", "posted")]).slice(0, each).to_pylist()
    latest = pq.read_table(last, columns=["at"]).column("at")[-1].as_py()
    rows = []
    for number, row in enumerate(posts, 1):
        row |= {"offset": end + number, "commit": end + number, "at": latest, "due_at": None, "expires_at": None}
        row |= {"event": "duplicate", "lane_seq": 0} if number % 2 else {"event": "delivered"}
        values = (row[column.name] for column in schema.COLUMNS)
        rows.append(tuple(int(v.timestamp() * 1e6) if hasattr(v, "timestamp") else v for v in values))
    prev = facts[schema.KEY_CHAIN.encode()].decode()
    segment.write(last.parent, segment.Stamp(node, end + 1, end + len(rows), prev, ""), rows)
    return len(rows)


def measure(engine: str, journal: Path, held: Path, folder: Path) -> Figures:
    """Build in a process of its own; its memory is that of the whole tree of processes."""
    lake, work = folder / "lake", folder / "work"
    shutil.copytree(journal, work, copy_function=os.link)
    arguments = ["--child", engine, "--journal", str(work), "--lake", str(lake), "--held", str(held)]
    begun = time.perf_counter()
    child = subprocess.Popen([sys.executable, __file__, *arguments], stdout=subprocess.PIPE, text=True)
    peak = 0
    while child.poll() is None:
        peak = max(peak, _memory(child.pid))
        time.sleep(0.2)
    assert child.stdout is not None
    told = child.stdout.read().strip().splitlines()
    if child.returncode:
        raise SystemExit(f"{engine} failed with {child.returncode}")
    figures: dict[str, Any] = json.loads(told[-1])
    cold = figures["built_at"] - _epoch(begun)
    answers = ask(lake, work) if engine == "spark" else {}
    shutil.rmtree(lake, ignore_errors=True)
    shutil.rmtree(work)
    # From the start of the process to the end of its first build.
    return Figures(cold, figures["warm"], figures["increment"], peak, answers)


def _epoch(instant: float) -> float:
    return time.time() - (time.perf_counter() - instant)


def _memory(pid: int) -> int:
    try:
        process = psutil.Process(pid)
        return int(sum(each.memory_info().rss for each in (process, *process.children(recursive=True))))
    except psutil.Error:
        return 0


# The engines


def run_spark(journal: str, lake: str, held: str) -> dict[str, Any]:
    from posthouse.pipeline import session
    from posthouse.pipeline.job import Job

    settings = session.Settings(environment=dict(os.environ))
    with session.start(settings) as spark:
        job = Job(lake, lambda: spark)
        job.run(journal)
        built_at, begun = time.time(), time.perf_counter()
        job.run(journal, rebuild=True)
        warm = time.perf_counter() - begun
        first, *rest = sorted(Path(held).glob("node=*/*.parquet"))
        _give(journal, [first])
        job.run(journal)
        _give(journal, rest)
        begun = time.perf_counter()
        job.run(journal)
        return {"built_at": built_at, "warm": warm, "increment": time.perf_counter() - begun}


def _give(journal: str, paths: list[Path]) -> None:
    for path in paths:
        os.link(path, Path(journal) / path.parent.name / path.name)


CHILDREN = {"spark": run_spark, "duckdb": run_duckdb, "polars": run_polars}


# Results


def print_results(console: Console, sizes: list[float], found: dict[tuple[float, str], Figures]) -> None:
    table = Table("events", "engine", "cold", "warm", "increment", "peak memory")
    for (millions, engine), each in found.items():
        increment = "–" if each.increment is None else f"{each.increment:.1f} s"
        row = (f"{millions:g} M", engine, f"{each.cold:.1f} s", f"{each.warm:.1f} s", increment)
        table.add_row(*row, f"{each.peak / 1e9:.1f} GB")
    console.print(table)
    largest, spark = max(sizes), {size: each for (size, engine), each in found.items() if engine == "spark"}
    for millions, each in spark.items():
        print_answers(console, millions, each.answers)
    ours, duck = spark[largest], found[largest, "duckdb"]
    cold, warm = ours.cold / duck.cold, ours.warm / duck.warm
    print_target(
        console, cold <= COLD_MAX, f"full build at {largest:g} M: {cold:.1f}× DuckDB cold, at most {COLD_MAX:g}×"
    )
    print_target(
        console, warm <= WARM_MAX, f"full build at {largest:g} M: {warm:.1f}× DuckDB warm, at most {WARM_MAX:g}×"
    )
    if {20.0, 60.0} <= set(sizes):
        growth = spark[60.0].warm / spark[20.0].warm
        print_target(console, growth <= GROWTH_MAX, f"from 20 to 60 M: {growth:.1f}×, at most {GROWTH_MAX:g}×")
    smaller = largest / 10
    if ours.increment is not None and spark[smaller].increment and smaller < largest:
        ratio = ours.increment / (spark[smaller].increment or 1)
        text = f"the increment on {largest:g} M: {ratio:.1f}× that on {smaller:g} M, at most {INCREMENT_GROWTH_MAX:g}×"
        print_target(console, ratio <= INCREMENT_GROWTH_MAX, text)
    if ours.increment is not None:
        share = ours.increment / ours.warm
        text = f"the increment is {share:.3f} of the full build, at most {INCREMENT_SHARE_MAX:g}"
        print_target(console, share <= INCREMENT_SHARE_MAX, text)


if __name__ == "__main__":
    sys.exit(main())
