"""The books in full and by increments: Spark beside DuckDB and Polars, on journals made up from one seed.

    ./dev bench books [--millions 2 20 60] [--quick] [--increment K] [--folder DIR] [--journals DIR] [--engines …]

Each engine builds in a process of its own, one after the other, from the same segments: Spark every table of the lake,
DuckDB and Polars the same tables as Parquet, as far as ``_rivals`` says. Cold is a fresh process, its start included;
warm is the same build again in it. The increments are the journal's last segments on top of the rest, one by one in the
warm process; the last one is measured, and holds events about messages that were finished long ago. They are measured
on the largest journal and on one of a tenth of its size. What fails or takes too long is said, and the rest goes on. It
exits with 1 if a target is missed by what was measured; ratios have theirs at 60 M alone.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
from _journals import increments, journals
from _peak import Peak
from _reading import ask, print_answers
from _rivals import run_duckdb, run_polars
from _run import make_console, print_place, print_target, work_folder
from rich.console import Console
from rich.table import Table

ENGINES = ("duckdb", "polars", "spark")
COLD_MAX, WARM_MAX, GROWTH_MAX, INCREMENT_GROWTH_MAX, INCREMENT_SHARE_MAX = 4.0, 3.0, 3.3, 1.5, 1 / 20
TARGET_MILLIONS = 60.0
LOOK_S = 0.2
SPARE_MIN = 256 << 20
"""Bytes of memory below which a machine reads its programs from the disk again and again, until it ends one of them."""

Figures = dict[str, Any]
"""One engine on one journal: ``cold``, ``warm`` and ``increments`` in seconds, ``peak`` in bytes, ``answers`` in
seconds for the commands that read; what was not reached is not there."""


def main() -> int:
    options = parse()
    if options.child:
        for said in CHILDREN[options.child](options.journal, options.lake, options.held):
            print(json.dumps(said), flush=True)
        return 0
    console = make_console()
    sizes = [0.2] if options.quick else options.millions
    compared = {max(sizes), max(sizes) / 10}
    every = sorted({*sizes, *(compared if "spark" in options.engines else ())})
    with work_folder(options.folder, "books") as folder:
        if not print_place(console, folder):
            return 2
        found: dict[tuple[float, str], Figures] = {}
        for millions in every:
            made = journals(console, options.journals or folder, millions, options.increment)
            if options.prepare:
                continue
            for engine in options.engines if millions in sizes else ["spark"]:
                held = made.held if millions in compared else None
                found[millions, engine] = measure(console, engine, made.journal, held, folder, options.limit_s)
                console.print(f"{millions:g} M {engine}: {_said(found[millions, engine])}", highlight=False)
            if options.journals is None:
                shutil.rmtree(made.journal)
                shutil.rmtree(made.held)
        return 0 if options.prepare or print_results(console, sizes, found) else 1


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev bench books", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--millions", type=float, nargs="+", default=[2, 20, 60], metavar="M", help="events of a journal"
    )
    parser.add_argument("--quick", action="store_true", help="0.2 M events only")
    parser.add_argument("--increment", type=int, default=100_000, metavar="K", help="events of an increment")
    parser.add_argument("--folder", type=Path, metavar="DIR", help="where to make the files [default: bench/results]")
    parser.add_argument(
        "--journals", type=Path, metavar="DIR", help="journals that were made before, or are to be kept there"
    )
    parser.add_argument("--prepare", action="store_true", help="only make the journals")
    parser.add_argument(
        "--engines", nargs="+", choices=ENGINES, default=list(ENGINES), help="who builds [default: all]"
    )
    parser.add_argument(
        "--limit-s", type=float, default=7_200, metavar="S", help="seconds that one engine may take on one journal"
    )
    for name in ("--child", "--journal", "--lake", "--held"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.journals is not None:
        options.journals.mkdir(parents=True, exist_ok=True)
    return options


def measure(console: Console, engine: str, journal: Path, held: Path | None, folder: Path, limit_s: float) -> Figures:
    """Build in a process of its own; its memory is that of the whole tree of processes. What is held comes later."""
    lake, work = folder / "lake", folder / "work"
    shutil.copytree(journal, work, copy_function=os.link)
    arguments = ["--child", engine, "--journal", str(work), "--lake", str(lake)]
    arguments += ["--held", str(held)] if held else []
    begun, figures = time.monotonic(), Figures()
    child = subprocess.Popen([sys.executable, __file__, *arguments], stdout=subprocess.PIPE, text=True)
    reader = threading.Thread(target=_read, args=(console, child, begun, figures))
    reader.start()
    peak = Peak()
    while child.poll() is None:
        peak.look(_tree(child.pid))
        if time.monotonic() - begun > limit_s:
            _end(child.pid)
        if psutil.virtual_memory().available < SPARE_MIN:
            figures["failed"] = "ended: the machine's memory was all taken"
            _end(child.pid)
        time.sleep(LOOK_S)
    reader.join()
    figures["peak"] = peak.size_bytes
    if child.returncode:
        figures.setdefault("failed", f"ended with {child.returncode} after {time.monotonic() - begun:.0f} s")
    elif engine == "spark":
        try:
            figures["answers"] = ask(lake, work)
        except (SystemExit, OSError, subprocess.SubprocessError) as error:
            figures["failed"] = str(error)
    shutil.rmtree(lake, ignore_errors=True)
    shutil.rmtree(work)
    return figures


def _read(console: Console, child: subprocess.Popen[str], begun: float, figures: Figures) -> None:
    """Take what the process says, line by line. Cold is from its start to the end of its first build."""
    assert child.stdout is not None
    for line in child.stdout:
        try:
            said = json.loads(line)
        except ValueError:
            continue
        if "built_at" in said:
            said = {"cold": said["built_at"] - begun}
        if "increment" in said:
            said = {"increments": [*figures.get("increments", []), said["increment"]]}
        figures |= said
        console.print(f"  {_said(said)}", highlight=False)


def _said(figures: Figures) -> str:
    def shown(value: Any) -> str:
        if isinstance(value, float):
            return f"{value:.2f} s"
        return ", ".join(map(shown, value)) if isinstance(value, list) else str(value)

    return "; ".join(
        f"{name} {value / 1e9:.1f} GB" if name == "peak" else f"{name} {shown(value)}"
        for name, value in figures.items()
        if name != "answers"
    )


def _tree(pid: int) -> list[psutil.Process]:
    """A process after all that it started; nobody once it has ended."""
    try:
        process = psutil.Process(pid)
        return [*process.children(recursive=True), process]
    except psutil.NoSuchProcess:
        return []


def _end(pid: int) -> None:
    """End a process and all that it started."""
    for each in _tree(pid):
        with contextlib.suppress(psutil.NoSuchProcess):
            each.kill()


# The engines


def run_spark(journal: str, lake: str, held: str | None) -> Iterator[Figures]:
    from posthouse.pipeline import session
    from posthouse.pipeline.job import Job

    settings = session.Settings(environment=dict(os.environ))
    with session.start(settings) as spark:
        job = Job(lake, lambda: spark)
        job.run(journal)
        yield {"built_at": time.monotonic()}
        begun = time.monotonic()
        job.run(journal, rebuild=True)
        yield {"warm": time.monotonic() - begun}
        for paths in increments(Path(held)) if held else []:
            for path in paths:
                os.link(path, Path(journal) / path.parent.name / path.name)
            begun = time.monotonic()
            job.run(journal)
            yield {"increment": time.monotonic() - begun}


CHILDREN = {"spark": run_spark, "duckdb": run_duckdb, "polars": run_polars}


# Results


def print_results(console: Console, sizes: list[float], found: dict[tuple[float, str], Figures]) -> bool:
    """Print what was found; whether no target was missed."""
    table = Table("events", "engine", "cold", "warm", "increments", "peak memory", "")
    for (millions, engine), each in found.items():
        cold, warm = (f"{each[name]:.1f} s" if name in each else "–" for name in ("cold", "warm"))
        last = ", ".join(f"{seconds:.1f} s" for seconds in each.get("increments", [])) or "–"
        table.add_row(f"{millions:g} M", engine, cold, warm, last, f"{each['peak'] / 1e9:.1f} GB", each.get("failed"))
    console.print(table)
    largest, spark = max(sizes), {size: each for (size, engine), each in found.items() if engine == "spark"}
    met = [print_answers(console, millions, each.get("answers", {})) for millions, each in spark.items()]
    ours, duck = spark.get(largest, {}), found.get((largest, "duckdb"), {})

    def target(text: str, most: float, one: float | None, other: float | None) -> None:
        """A ratio of two figures, where both are there."""
        if one and other and largest == TARGET_MILLIONS:
            met.append(one / other <= most)
            print_target(console, met[-1], f"{text}: {one / other:.3g}, at most {most:g}")
        elif one and other:
            console.print(f"      {text}: {one / other:.3g}, has its target at {TARGET_MILLIONS:g} M", highlight=False)
        else:
            console.print(f"?     {text}: not measured", highlight=False)

    target(f"full build at {largest:g} M, Spark cold to DuckDB cold", COLD_MAX, ours.get("cold"), duck.get("cold"))
    target(f"full build at {largest:g} M, Spark warm to DuckDB warm", WARM_MAX, ours.get("warm"), duck.get("warm"))
    if {20.0, 60.0} <= set(spark):
        target("growth of the warm build from 20 to 60 M", GROWTH_MAX, spark[60.0].get("warm"), spark[20.0].get("warm"))
    smaller = largest / 10
    last, before = (spark.get(size, {}).get("increments", [None])[-1] for size in (largest, smaller))
    text = f"the increment on {largest:g} M to that on {smaller:g} M"
    target(text, INCREMENT_GROWTH_MAX, last, before)
    target("the increment to the full build, both warm", INCREMENT_SHARE_MAX, last, ours.get("warm"))
    return all(met)


if __name__ == "__main__":
    sys.exit(main())
