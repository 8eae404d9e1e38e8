"""Lifecycles a second of no-op handlers beside huey and celery, and how long posts over HTTP take at an offered rate.

    ./dev bench gateway [--quick] [--folder DIR] [--rate N]

A lifecycle is: a message is posted (durable before its caller goes on), given to a handler that does nothing, and
settled. Each system runs with its own workers, in a process of its own, with 50 callers; systems take turns, and each
figure is the median of three rounds. huey deletes a task before it runs, so a crash loses it; celery acknowledges late.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
from pathlib import Path

import uvloop
from _http import offer
from _jobs import SYSTEMS
from _run import make_console, print_place, print_target, progress_bar, work_folder
from rich.console import Console
from rich.table import Table

ROUNDS = 3
COUNTS = {"gateway": 20_000, "gateway, replies sent": 10_000, "huey": 10_000, "huey, fsync": 2_000, "celery": 150}
SYNCS = {
    "gateway": "yes: synchronous=FULL, in groups",
    "gateway, replies sent": "yes: synchronous=FULL, in groups",
    "huey": "no: synchronous=NORMAL or less",
    "huey, fsync": "yes: synchronous=FULL",
    "celery": "yes: SQLite's default, FULL",
}
OURS = "gateway"
LEAD_MIN = 5.0
RATE_PER_S = 2_000
P99_S_MAX = 0.050
CONNECTIONS = 50


def main() -> int:
    options = parse()
    console = make_console()
    with work_folder(options.folder, "gateway") as folder:
        if not print_place(console, folder):
            return 2
        compare(console, folder, 0.25 if options.quick else 1.0)
        http(console, folder, options.rate, 3.0 if options.quick else 10.0)
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev bench gateway", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer messages, shorter rounds")
    parser.add_argument("--folder", type=Path, help="where to write [default: bench/results]")
    parser.add_argument("--rate", type=float, default=RATE_PER_S, help="posts a second over HTTP [default: 2000]")
    return parser.parse_args()


def compare(console: Console, folder: Path, share: float) -> None:
    """Lifecycles a second of every system, in turns."""
    rates: dict[str, list[float]] = {name: [] for name in SYSTEMS}
    with progress_bar(console) as bar:
        task = bar.add_task("", total=ROUNDS * len(SYSTEMS))
        for round in range(ROUNDS):
            for name in SYSTEMS:
                bar.update(task, description=name)
                bar.refresh()
                place = folder / f"{round}-{name}"
                place.mkdir()
                rates[name].append(_measure(name, place, max(50, int(COUNTS[name] * share))))
                bar.advance(task)
    medians = {name: statistics.median(found) for name, found in rates.items()}
    table = Table(title="No-op handlers, 50 callers, 500 sessions")
    for column in ("system", "lifecycles/s", "least … most", "gateway is", "synced before it is answered"):
        table.add_column(column, justify="right" if column in ("lifecycles/s", "gateway is") else "left")
    for name, rate in medians.items():
        found = rates[name]
        ratio = "" if name.startswith(OURS) else f"{medians[OURS] / rate:.1f}×"
        table.add_row(name, f"{rate:,.0f}", f"{min(found):,.0f} … {max(found):,.0f}", ratio, SYNCS[name])
    console.print(table)
    best = max((rate, name) for name, rate in medians.items() if SYNCS[name].startswith("yes") and name[:7] != OURS)
    lead = medians[OURS] / best[0]
    print_target(console, lead >= LEAD_MIN, f"{lead:.1f}× the best that syncs ({best[1]}); target {LEAD_MIN:g}×")


def _measure(name: str, folder: Path, count: int) -> float:
    script = Path(__file__).with_name("_jobs.py")
    done = subprocess.run(
        [sys.executable, str(script), name, str(folder), str(count)], capture_output=True, text=True, timeout=600
    )
    if done.returncode:
        raise SystemExit(f"{name} failed: {done.stderr[-2000:]}")
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["done"] >= count, found
    return float(count / found["seconds"])


def http(console: Console, folder: Path, rate_per_s: float, seconds: float) -> None:
    """How long posts take over HTTP until they are durable, while a no-op handler works them off."""
    (folder / "noop.py").write_text("async def handle(work):\n    return None\n")
    program = [sys.executable, "-c", "from posthouse.cli import main; main()"]
    settings = [
        "gateway.api_port=0",
        "gateway.handler=python:noop:handle",
        "metrics.enabled=false",
        "log.level=warning",
    ]
    words = [word for setting in (*settings, "journal.export_s=0") for word in ("--set", setting)]
    clean = {k: v for k, v in os.environ.items() if not k.startswith("POSTHOUSE_")}
    server = subprocess.Popen(
        [*program, "gateway", "--json", *words], cwd=folder, env=clean, stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None
        text = ""
        while not text.endswith("}\n"):
            line = server.stdout.readline()
            assert line, "the gateway did not start"
            text += line
        port = int(json.loads(text)["api"].rpartition(":")[2])
        added = subprocess.run(
            [*program, "token", "add", "bench", "--scope", "inbound", "--json"],
            cwd=folder, env=clean, capture_output=True, text=True, check=True,
        )  # fmt: skip
        token = json.loads(added.stdout)["token"]
        uvloop.run(offer(port, token, rate_per_s / 2, 1.0, CONNECTIONS, "warm"))
        took_s = sorted(uvloop.run(offer(port, token, rate_per_s, seconds, CONNECTIONS, "post")))
    finally:
        server.terminate()
        server.wait()
    shares = {
        share: took_s[min(len(took_s) - 1, math.ceil(share * len(took_s)) - 1)] for share in (0.5, 0.9, 0.99, 1.0)
    }
    console.print(
        f"{len(took_s):,} posts over HTTP at {rate_per_s:,.0f}/s, {CONNECTIONS} connections, from the same cores: "
        f"p50 {shares[0.5] * 1e3:.1f} ms, p90 {shares[0.9] * 1e3:.1f} ms, p99 {shares[0.99] * 1e3:.1f} ms, "
        f"most {shares[1.0] * 1e3:.1f} ms",
        highlight=False,
    )
    met = shares[0.99] <= P99_S_MAX
    print_target(console, met, f"p99 {shares[0.99] * 1e3:.1f} ms to a durable answer; target {P99_S_MAX * 1e3:g} ms")


if __name__ == "__main__":
    sys.exit(main())
