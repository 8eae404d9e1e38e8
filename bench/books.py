"""The books in full and by increments: Spark beside DuckDB and Polars, on journals made up from one seed.

    ./dev bench books [--millions 2 20 60] [--quick] [--increment K] [--folder DIR]

Each engine builds in a process of its own, one after the other, from the same segments. Spark builds every table
of the lake; DuckDB and Polars the messages, books, latency, depth and dead letters as Parquet, without findings and
waits: they are a ceiling, not rivals. Cold is a fresh process, its start included; warm is the same build again in
it. The increment is the journal's last segments on top of the rest, in the warm process.
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
from _run import make_console, print_place, print_target, work_folder
from rich.console import Console
from rich.table import Table

ENGINES = ("duckdb", "polars", "spark")
COLD_MAX, WARM_MAX, GROWTH_MAX, INCREMENT_GROWTH_MAX, INCREMENT_SHARE_MAX = 4.0, 3.0, 3.3, 1.5, 1 / 20
SEED = 1


@dataclass(frozen=True)
class Figures:
    """One engine on one journal, in seconds and bytes."""

    cold: float
    warm: float
    increment: float | None
    peak: int


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
        for millions in sizes:
            journal, held = make_journal(console, folder, millions, options.increment)
            for engine in ENGINES:
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
        if moved >= min(increment, events // 4):
            break
        first, last = map(int, path.stem.split("-"))
        target = held / path.parent.name / path.name
        target.parent.mkdir(parents=True, exist_ok=True)
        path.rename(target)
        moved += last - first + 1
    size = sum(path.stat().st_size for path in journal.rglob("*.parquet"))
    console.print(
        f"{sheet['events']} events made up in {took:.0f} s, {size / 1e6:.0f} MB, {moved} of them for the increment",
        highlight=False,
    )
    return journal, held


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
    shutil.rmtree(lake, ignore_errors=True)
    shutil.rmtree(work)
    # From the start of the process to the end of its first build.
    return Figures(figures["built_at"] - _epoch(begun), figures["warm"], figures["increment"], peak)


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
        _give(journal, held)
        begun = time.perf_counter()
        job.run(journal)
        return {"built_at": built_at, "warm": warm, "increment": time.perf_counter() - begun}


def _give(journal: str, held: str) -> None:
    for path in sorted(Path(held).glob("node=*/*.parquet")):
        os.link(path, Path(journal) / path.parent.name / path.name)


KEY = "node, desk, mailbox, sender, message_id"
FINISHING = ("delivered", "died", "expired", "cancelled")

DUCKDB = {
    "messages": f"""
        select *, case when delivered is not null then 'delivered' when died is not null then 'dead'
            when expired is not null then 'expired' when cancelled is not null then 'cancelled'
            when posted is null and not other then 'refused' when last_event = 'uncertain' then 'uncertain'
            else 'open' end as outcome
        from (
            select {KEY}, any_value(lane) as lane, any_value(kind) as kind, max(lane_seq) as lane_seq,
                max(size_bytes) as size_bytes,
                min("at") filter (where event = 'posted') as posted,
                min("at") filter (where event = 'leased') as leased,
                {", ".join(f"min(at_) filter (where event = '{e}') as {e}" for e in FINISHING).replace("at_", '"at"')},
                count(*) filter (where event = 'leased') as leases,
                bool_or(event not in ('refused', 'duplicate')) as other,
                max_by(event, "offset") as last_event, max_by(error, "offset") as error
            from events where message_id <> '' group by all
        )
    """,
    "books": """select date_trunc('hour', posted) as "window", desk, kind, outcome, count(*) as n
        from messages group by all""",
    "latency": """select date_trunc('hour', posted) as "window", desk, kind, leased = posted as live,
            quantile_cont(epoch_us(delivered) - epoch_us(posted), [0.5, 0.95, 0.99]) as quantiles
        from messages where outcome = 'delivered' group by all""",
    "depth": """select date_trunc('hour', "at") as "window", node, desk, mailbox,
            count(*) filter (where event = 'posted') as posted,
            count(*) filter (where event in ('delivered', 'died', 'expired', 'cancelled')) as finished
        from events group by all""",
    "deadletters": r"""select desk, regexp_replace(error, '\d+', '#', 'g') as error, count(*) as n,
            min("at") as first_at, max("at") as last_at from events where event = 'died' group by all""",
}


def run_duckdb(journal: str, lake: str, held: str) -> dict[str, Any]:
    import duckdb

    def build() -> None:
        shutil.rmtree(lake, ignore_errors=True)
        Path(lake).mkdir()
        with duckdb.connect() as db:
            db.execute(f"create view events as select * from read_parquet('{journal}/node=*/*.parquet')")
            for name, query in DUCKDB.items():
                db.execute(f"create {'table' if name == 'messages' else 'view'} {name} as {query}")
                db.execute(f"copy {name} to '{lake}/{name}.parquet' (compression zstd)")

    return _twice(build)


def run_polars(journal: str, lake: str, held: str) -> dict[str, Any]:
    import polars as pl

    event = pl.col("event")
    hour = pl.col("posted").dt.truncate("1h").alias("window")

    def first(name: str) -> pl.Expr:
        return pl.col("at").filter(event == name).min()

    def build() -> None:
        shutil.rmtree(lake, ignore_errors=True)
        Path(lake).mkdir()
        events = pl.scan_parquet(f"{journal}/node=*/*.parquet", hive_partitioning=False)
        outcome = (
            pl.when(pl.col("delivered").is_not_null()).then(pl.lit("delivered"))
            .when(pl.col("died").is_not_null()).then(pl.lit("dead"))
            .when(pl.col("expired").is_not_null()).then(pl.lit("expired"))
            .when(pl.col("cancelled").is_not_null()).then(pl.lit("cancelled"))
            .when(pl.col("posted").is_null() & ~pl.col("other")).then(pl.lit("refused"))
            .when(pl.col("last_event") == "uncertain").then(pl.lit("uncertain"))
            .otherwise(pl.lit("open"))
        )  # fmt: skip
        messages = (
            events.filter(pl.col("message_id") != "")
            .group_by(KEY.split(", "))
            .agg(
                pl.col("lane").first(), pl.col("kind").first(), pl.col("lane_seq").max(), pl.col("size_bytes").max(),
                first("posted").alias("posted"), first("leased").alias("leased"),
                *(first(name).alias(name) for name in FINISHING),
                (event == "leased").sum().alias("leases"),
                (~event.is_in(["refused", "duplicate"])).any().alias("other"),
                event.sort_by("offset").last().alias("last_event"), pl.col("error").drop_nulls().last(),
            )
            .with_columns(outcome.alias("outcome"))
            .collect(engine="streaming")
        )  # fmt: skip
        messages.write_parquet(f"{lake}/messages.parquet")
        messages.group_by(hour, "desk", "kind", "outcome").len().write_parquet(f"{lake}/books.parquet")
        took = (pl.col("delivered") - pl.col("posted")).dt.total_microseconds()
        messages.filter(pl.col("outcome") == "delivered").group_by(
            hour, "desk", "kind", (pl.col("leased") == pl.col("posted")).alias("live")
        ).agg(*(took.quantile(q).alias(f"p{q}") for q in (0.5, 0.95, 0.99))).write_parquet(f"{lake}/latency.parquet")
        events.group_by(pl.col("at").dt.truncate("1h"), "node", "desk", "mailbox").agg(
            (event == "posted").sum().alias("posted"), event.is_in(list(FINISHING)).sum().alias("finished")
        ).collect(engine="streaming").write_parquet(f"{lake}/depth.parquet")
        events.filter(event == "died").group_by("desk", pl.col("error").str.replace_all(r"\d+", "#")).agg(
            pl.len(), pl.col("at").min().alias("first_at"), pl.col("at").max().alias("last_at")
        ).collect(engine="streaming").write_parquet(f"{lake}/deadletters.parquet")

    return _twice(build)


def _twice(build: Any) -> dict[str, Any]:
    build()
    built_at, begun = time.time(), time.perf_counter()
    build()
    return {"built_at": built_at, "warm": time.perf_counter() - begun, "increment": None}


CHILDREN = {"spark": run_spark, "duckdb": run_duckdb, "polars": run_polars}


# Results


def print_results(console: Console, sizes: list[float], found: dict[tuple[float, str], Figures]) -> None:
    table = Table("events", "engine", "cold", "warm", "increment", "peak memory")
    for (millions, engine), each in found.items():
        increment = "–" if each.increment is None else f"{each.increment:.1f} s"
        row = (f"{millions:g} M", engine, f"{each.cold:.1f} s", f"{each.warm:.1f} s", increment)
        table.add_row(*row, f"{each.peak / 1e9:.1f} GB")
    console.print(table)
    largest, spark = max(sizes), {size: found[size, "spark"] for size in sizes}
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
    smaller = min(sizes)
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
