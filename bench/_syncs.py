"""How often a system really syncs: counted by strace in a child process that posts one by one.

Run as a script it is that child: `_syncs.py SYSTEM FOLDER`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from _peers import PEERS, Peer
from _traffic import Posthouse

POSTS = 50
LIFECYCLES = 20
ENOUGH = 0.98
"""Of one sync per operation; a sync that two threads share may be missing at the edge."""
SYSTEMS: tuple[type[Posthouse] | type[Peer], ...] = (Posthouse, *PEERS)
_BY_TITLE = {system.title: system for system in SYSTEMS}


@dataclass(frozen=True)
class Syncs:
    """What was found about one system."""

    durable: bool
    """Nothing is answered before it is synced."""
    text: str


def find_syncs(title: str, parent: Path) -> Syncs:
    """Watch a child of this system; without strace, ask its database."""
    with tempfile.TemporaryDirectory(prefix="syncs-", dir=parent.resolve()) as folder:
        why = "there is no strace"
        if shutil.which("strace"):
            why = "strace does not work here"
            counts = _trace(title, Path(folder))
            if counts is not None:
                posts, lifecycles = counts[0] / POSTS, counts[1] / LIFECYCLES
                durable = posts >= ENOUGH and lifecycles >= 3 * ENOUGH
                word = "yes" if durable else "no" if posts < 0.5 else "partly"
                return Syncs(durable, f"{word} ({posts:.1f} and {lifecycles:.1f})")
        system = _BY_TITLE[title](Path(folder))
        settings = system.settings()
        system.close()
        durable = settings.endswith(("=2", "=3"))
        return Syncs(durable, f"{'yes' if durable else 'no'} (not measured, {why}: {settings})")


def _trace(title: str, folder: Path) -> tuple[int, int] | None:
    """Syncs during the posts and during the lifecycles; None if there is no tracing here."""
    log = folder / "trace"
    child = [sys.executable, __file__, title, str(folder)]
    done = subprocess.run(
        ["strace", "-f", "-qq", "-e", "trace=fsync,fdatasync,sync_file_range,chdir", "-o", log, *child],
        capture_output=True,
        text=True,
    )
    if done.returncode != 0 or not log.exists():
        return None
    # The child changes its folder before, between and behind the two, which strace writes down in order.
    counts = [0]
    for line in log.read_text(errors="replace").splitlines():
        if " chdir(" in line:
            counts.append(0)
        elif re.search(r"\bf(data)?sync\(", line):
            counts[-1] += 1
    return (counts[1], counts[2]) if len(counts) == 4 else None


def main(title: str, folder: str) -> None:
    """The child."""
    system = _BY_TITLE[title](Path(folder))
    # A first one of each, so that what is done only once is done.
    system.perform(1, 1, lambda: None)
    system.perform(POSTS, LIFECYCLES, lambda: os.chdir(folder))
    system.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
