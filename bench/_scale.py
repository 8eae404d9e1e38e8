"""The same engine with few and with many messages: what an operation costs, and what the whole takes.

Each size has a child process of its own, so that its memory can be read; the two take turns at the rounds.
Run as a script it is that child: `_scale.py FOLDER MESSAGES MAILBOXES POSTS LIFECYCLES`. It writes JSON lines
and does a round for each line that it reads.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _load import BODY_BYTES
from _traffic import DESK, ManyPlaces, Posthouse, Traffic, mailbox_name
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from posthouse.engine.library import MAIL
from posthouse.mailbox.command import Command, Post
from posthouse.mailbox.message import Message
from posthouse.stores.sqlite import SqliteStore

CALLERS = 200
ROUNDS = 3
BATCH = 1_000
PAGE = 50
SKEWED = "skewed"
KINDS = (SKEWED, "uniform")
"""Which mailboxes the callers use: by Zipf's law, as people do, or all alike, which no cache can help."""
COST_RATIO_MAX = 2.0
PAGE_MS_MAX = 100.0
MEMORY_MB_MAX = 300.0
FILE_RATIO_MAX = 1.6


@dataclass(frozen=True)
class Size:
    """How much a store holds while it is measured."""

    messages: int
    mailboxes: int

    @property
    def title(self) -> str:
        return f"{self.messages:,} messages in {self.mailboxes:,} mailboxes"


SMALL = Size(10_000, 1_000)
LARGE = Size(1_000_000, 100_000)
LARGE_QUICK = Size(100_000, 10_000)
POSTS, LIFECYCLES = 10_000, 30_000
"""Per round. Index entries are written many thousand messages late, so that fewer would leave that cost out."""


class Child:
    """The process of one size."""

    def __init__(self, folder: Path, size: Size) -> None:
        self.size = size
        self.folder = folder / str(size.messages)
        self.folder.mkdir()
        self.rounds: list[dict[str, float]] = []
        arguments = [self.folder, size.messages, size.mailboxes, POSTS, LIFECYCLES]
        self._process = subprocess.Popen(
            [sys.executable, __file__, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def loading(self) -> Iterator[int]:
        """How many messages are in, again and again until all are."""
        loaded = 0
        while loaded < self.size.messages:
            loaded = self._read()["loaded"]
            yield loaded

    def opened(self) -> dict[str, Any]:
        """What it found when it had opened the loaded store."""
        return self._read()

    def round(self) -> None:
        """Do one round."""
        self._tell("round")
        self.rounds.append(self._read())

    def end(self) -> dict[str, Any]:
        """What it found at the end; it has closed the store and is gone."""
        self._tell("end")
        found = self._read()
        self._process.wait()
        return found

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *error: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def _tell(self, word: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(word + "\n")
        self._process.stdin.flush()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process of {self.size.title} has died")
        found: dict[str, Any] = json.loads(line)
        return found


def run_scale(console: Console, folder: Path, quick: bool) -> None:
    """Measure both sizes in turns and print the table and the targets."""
    sizes = (SMALL, LARGE_QUICK if quick else LARGE)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with ExitStack() as stack:
        children = []
        opened = []
        with Progress(*columns, console=console, transient=True) as progress:
            for size in sizes:
                child = stack.enter_context(Child(folder, size))
                children.append(child)
                task = progress.add_task(f"loading {size.title}", total=size.messages)
                for loaded in child.loading():
                    progress.update(task, completed=loaded)
                opened.append(child.opened())
            task = progress.add_task("rounds", total=ROUNDS * len(children))
            for _ in range(ROUNDS):
                for child in children:
                    child.round()
                    progress.advance(task)
            ended = [child.end() for child in children]
        cli_ms = [time_command(child.folder / "mail.db") for child in children]
    figures = [
        {name: statistics.median(one[name] for one in child.rounds) for name in child.rounds[0]} for child in children
    ]
    console.print(as_table(sizes, figures, opened, ended, cli_ms))
    print_targets(console, figures, opened, ended, cli_ms)
    if quick:
        console.print(f"The targets are for {LARGE.title}: run it without --quick.", highlight=False)


def time_command(database: Path) -> float | str:
    """Milliseconds of `posthouse mailbox ls` over those of a start that does nothing, or why there are none."""
    command = Path(sys.executable).with_name("posthouse")
    if not command.exists():
        return "there is no command yet"
    # As for anybody who has used it before: compiled modules are kept.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    times: dict[str, list[float]] = {}
    for _ in range(5):
        for name, arguments in (("start", ["--version"]), ("ls", ["mailbox", "ls", "--json", "--store", database])):
            began = time.perf_counter()
            done = subprocess.run(
                [command, *arguments], cwd=database.parent, env=environment, capture_output=True, text=True
            )
            times.setdefault(name, []).append((time.perf_counter() - began) * 1e3)
            if done.returncode != 0:
                return f"it failed: {done.stderr.strip()[:120]}"
    return statistics.median(times["ls"]) - statistics.median(times["start"])


def as_table(
    sizes: tuple[Size, ...],
    figures: list[dict[str, float]],
    opened: list[dict[str, Any]],
    ended: list[dict[str, Any]],
    cli_ms: list[float | str],
) -> Table:
    """One column for each size and one for their ratio."""
    table = Table(title=f"Posthouse at scale: {CALLERS} callers, median of {ROUNDS} rounds")
    table.title_justify = "left"
    table.add_column("")
    for size in sizes:
        table.add_column(size.title, justify="right")
    table.add_column("ratio", justify="right")

    def add(title: str, values: list[Any], form: str, ratio: bool = False) -> None:
        shown = [format(value, form) if isinstance(value, int | float) else str(value) for value in values]
        table.add_row(title, *shown, f"{values[1] / values[0]:.2f}×" if ratio else "")

    for kind in KINDS:
        for name, title, form in (
            ("post_us", "µs per post", ".1f"),
            ("lifecycle_us", "µs per lifecycle", ".1f"),
            ("post_cpu_us", "CPU µs per post", ".1f"),
            ("lifecycle_cpu_us", "CPU µs per lifecycle", ".1f"),
            ("p99_ms", "p99 ms of one operation (lifecycles)", ".1f"),
        ):
            add(f"{title}, {kind}", [one[f"{kind}_{name}"] for one in figures], form, ratio=True)
        add(f"mean group (lifecycles), {kind}", [one[f"{kind}_group"] for one in figures], ".0f")
    add("µs per post while loading (batches of 1,000)", [one["load_us"] for one in opened], ".1f", ratio=True)
    add("ms to open the loaded store", [one["open_ms"] for one in opened], ",.0f")
    add("ms for the first page, store.mailboxes, first call", [one["page_first_ms"] for one in ended], ".1f")
    add("ms for the first page, store.mailboxes, again", [one["page_ms"] for one in ended], ".1f")
    add("ms for the first page, command less its start-up", cli_ms, ".0f")
    add("MB of memory, peak while loading", [one["peak_mb"] for one in opened], ".0f")
    add("MB of memory, peak at the end", [one["peak_mb"] for one in ended], ".0f")
    add("file ÷ bodies, loaded and closed", [one["file_ratio"] for one in opened], ".2f")
    add("file ÷ bodies, at the end, journal not exported", [one["file_ratio"] for one in ended], ".2f")
    return table


def print_targets(
    console: Console,
    figures: list[dict[str, float]],
    opened: list[dict[str, Any]],
    ended: list[dict[str, Any]],
    cli_ms: list[float | str],
) -> None:
    """One line for each target; all but the ratios are of the larger size."""

    def say(met: bool, text: str) -> None:
        console.print(f"[bold green]PASS[/]  {text}" if met else f"[bold red]FAIL[/]  {text}", highlight=False)

    for kind in KINDS:
        for name, title in (("post_us", "post"), ("lifecycle_us", "lifecycle")):
            ratio = figures[1][f"{kind}_{name}"] / figures[0][f"{kind}_{name}"]
            text = f"cost per {title}, {kind}: {ratio:.2f}× that at few messages; target ≤ {COST_RATIO_MAX}×"
            say(ratio <= COST_RATIO_MAX, text)
    page_ms = max(ended[1]["page_first_ms"], ended[1]["page_ms"])
    say(page_ms < PAGE_MS_MAX, f"first page by the store: {page_ms:.1f} ms; target < {PAGE_MS_MAX:.0f} ms")
    command_ms = cli_ms[1]
    if isinstance(command_ms, str):
        say(False, f"first page by the command: {command_ms}")
    else:
        say(command_ms < PAGE_MS_MAX, f"first page by the command: {command_ms:.0f} ms; target < {PAGE_MS_MAX:.0f} ms")
    memory_mb = max(opened[1]["peak_mb"], ended[1]["peak_mb"])
    say(memory_mb < MEMORY_MB_MAX, f"memory of the process: {memory_mb:.0f} MB; target < {MEMORY_MB_MAX:.0f} MB")
    ratio = opened[1]["file_ratio"]
    say(ratio <= FILE_RATIO_MAX, f"file: {ratio:.2f}× the bodies; target ≤ {FILE_RATIO_MAX}×")


# The child


def main(folder: Path, size: Size, posts: int, lifecycles: int) -> None:
    """Load, open, answer until told to end."""
    began = time.perf_counter()
    path = load(folder, size)
    load_us = (time.perf_counter() - began) / size.messages * 1e6
    loaded_ratio = file_ratio(path, size)
    began = time.perf_counter()
    posthouse = Posthouse(folder)
    open_ms = (time.perf_counter() - began) * 1e3
    answer(load_us=load_us, open_ms=open_ms, peak_mb=peak_mb(), file_ratio=loaded_ratio)
    depth = size.messages // size.mailboxes
    depths = [[depth] * len(range(caller, size.mailboxes, CALLERS)) for caller in range(CALLERS)]
    kinds = {kind: Traffic(posthouse.engine, CALLERS, ManyPlaces(depths, skewed=kind == SKEWED)) for kind in KINDS}
    for line in sys.stdin:
        if line.strip() != "round":
            break
        found: dict[str, float] = {}
        for kind, traffic in kinds.items():
            posted = posthouse.run(traffic.run_posts(posts))
            posthouse.run(traffic.drain(posts))
            lived = posthouse.run(traffic.run_lifecycles(lifecycles))
            found |= {
                f"{kind}_post_us": 1e6 / posted.per_s,
                f"{kind}_lifecycle_us": 1e6 / lived.per_s,
                f"{kind}_post_cpu_us": posted.cpu_us,
                f"{kind}_lifecycle_cpu_us": lived.cpu_us,
                f"{kind}_p99_ms": lived.p99_ms,
                f"{kind}_group": lived.group,
            }
        answer(**found)
    page_ms = [time_page(posthouse) for _ in range(6)]
    peak = peak_mb()
    posthouse.close()
    answer(
        page_first_ms=page_ms[0],
        page_ms=statistics.median(page_ms[1:]),
        peak_mb=peak,
        file_ratio=file_ratio(path, size),
    )


def load(folder: Path, size: Size) -> Path:
    """Fill a new store by batches, every mailbox equally and in random order."""
    path = folder / "mail.db"
    source = random.Random(2)
    order = list(range(size.mailboxes))
    store = SqliteStore.open(path, {DESK: MAIL})
    batch: list[Command] = []
    loaded = 0
    while loaded < size.messages:
        source.shuffle(order)
        for mailbox in order[: size.messages - loaded]:
            loaded += 1
            message = Message(DESK, mailbox_name(mailbox), f"{'load':<24}{loaded:012}", source.randbytes(BODY_BYTES))
            batch.append(Post(message, at=time.time_ns() // 1_000))
            if len(batch) == BATCH or loaded == size.messages:
                store.apply(batch)
                batch.clear()
                answer(loaded=loaded)
    store.close()
    return path


def time_page(posthouse: Posthouse) -> float:
    """Milliseconds for the first page of mailboxes."""
    began = time.perf_counter()
    page = posthouse.engine.store.mailboxes(limit=PAGE)
    assert len(page) == PAGE
    return (time.perf_counter() - began) * 1e3


def file_ratio(path: Path, size: Size) -> float:
    """What the database takes, with its log, over the bodies that wait in it."""
    files = (path, path.with_name(path.name + "-wal"))
    return sum(file.stat().st_size for file in files if file.exists()) / (size.messages * BODY_BYTES)


def peak_mb() -> float:
    """The most memory that this process has had at once."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("the kernel does not tell the process's memory")


def answer(**values: float | None) -> None:
    """One line to the parent."""
    os.write(sys.stdout.fileno(), json.dumps(values).encode() + b"\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Size(int(sys.argv[2]), int(sys.argv[3])), int(sys.argv[4]), int(sys.argv[5]))
