"""How long the books take to answer: whole processes of the command line on a lake that is there.

In: a lake and its journal. Out: seconds for each question, the slowest of a few, and a table of them.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from _run import print_target
from rich.console import Console

ANSWER_S_MAX = 1.0
TIMES = 3
PROGRAM = [sys.executable, "-c", "from posthouse.cli import main; main()"]


def questions(lake: Path) -> dict[str, list[list[str]]]:
    """What is asked, each in a few forms: the books, the newest messages, conditions, messages old and new by id."""
    from posthouse.pipeline.lake import Lake, Selection

    books = Lake(str(lake))
    days = sorted(str(part) for part in books.parts("messages"))
    ids = [
        row["message_id"]
        for day in (days[0], days[len(days) // 2], days[-1])
        for row in books.rows("messages", Selection(equal={"part": day}, columns=("message_id",), limit=1))
    ]
    return {
        "books show": [["show"], ["show", "anomalies"], ["show", "latency", "--desk", "relay"]],
        "books show messages": [["show", "messages"], ["show", "messages", "--where", "outcome = dead"]],
        "books message": [["message", id] for id in [*ids, "no such id"]],
    }


def ask(lake: Path) -> dict[str, float]:
    """Seconds from the start of the process to its end, the slowest of each question."""
    found = {}
    for name, forms in questions(lake).items():
        slowest = 0.0
        for words in forms * TIMES:
            begun = time.perf_counter()
            done = subprocess.run([*PROGRAM, "books", *words, "--lake", str(lake)], capture_output=True, check=False)
            slowest = max(slowest, time.perf_counter() - begun)
            if done.returncode != (1 if words[-1] == "no such id" else 0):
                raise SystemExit(f"books {' '.join(words)} failed: {done.stderr.decode()[-500:]}")
        found[name] = slowest
    return found


def print_answers(console: Console, millions: float, answers: dict[str, float]) -> None:
    """One line for each question, held against what it may take."""
    for name, seconds in answers.items():
        text = f"{name} on {millions:g} M: {seconds:.2f} s, at most {ANSWER_S_MAX:g} s"
        print_target(console, seconds <= ANSWER_S_MAX, text)
