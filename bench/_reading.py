"""How long the books take to answer: whole processes of the command line on a lake that is there.

In: a lake and its journal. Out: seconds for each question, the slowest of a few, and a table of them.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from _run import print_target
from _server import PROGRAM
from rich.console import Console

ANSWER_S_MAX = 1.0
NOTHING_NEW_MAX = 1.5
"""Of the time that a session takes to start."""
TIMES = 3
MESSAGE, NOTHING_NEW, SESSION_START = "books message", "books run with nothing new", "start of a session"

SESSION = """\
import os
from posthouse.pipeline import session
with session.start(session.Settings(environment=dict(os.environ))) as spark:
    spark.range(1).count()
"""


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
        MESSAGE: [["message", id] for id in [*ids, "no such id"]],
    }


def ask(lake: Path, journal: Path) -> dict[str, float]:
    """Seconds from the start of the process to its end, the slowest of each question."""
    found = {}
    # A run tells that it found the planted faults; and one message is asked for that is not there.
    fine = {NOTHING_NEW: {0, 4}, MESSAGE: {0, 1}}
    for name, forms in {**questions(lake), NOTHING_NEW: [["run", "--journal", str(journal)]]}.items():
        slowest = 0.0
        for words in forms * TIMES:
            begun = time.perf_counter()
            done = subprocess.run([*PROGRAM, "books", *words, "--lake", str(lake)], capture_output=True, check=False)
            slowest = max(slowest, time.perf_counter() - begun)
            if done.returncode not in fine.get(name, {0}):
                raise SystemExit(f"books {' '.join(words)} failed: {done.stderr.decode()[-500:]}")
        found[name] = slowest
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-c", SESSION], check=True, capture_output=True)
    found[SESSION_START] = time.perf_counter() - begun
    return found


def print_answers(console: Console, millions: float, answers: dict[str, float]) -> bool:
    """One line for each question, held against what it may take; whether none took more."""
    met = True
    for name, seconds in answers.items():
        if name == SESSION_START:
            continue
        most = NOTHING_NEW_MAX * answers[SESSION_START] if name == NOTHING_NEW else ANSWER_S_MAX
        met &= seconds <= most
        print_target(console, seconds <= most, f"{name} on {millions:g} M: {seconds:.2f} s, at most {most:.1f} s")
    return met
