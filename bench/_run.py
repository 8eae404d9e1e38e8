"""What every benchmark begins and ends with: a folder on a real disk, a progress bar, lines for its targets."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import apsw
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

MEMORY_FILE_SYSTEMS = ("tmpfs", "ramfs")


def make_console() -> Console:
    """The terminal, or a wide page where there is none."""
    return Console() if sys.stdout.isatty() else Console(width=140)


@contextlib.contextmanager
def work_folder(parent: Path | None, name: str) -> Iterator[Path]:
    """A folder on a real disk that is gone afterwards."""
    ours = Path(__file__).resolve().parent / "results"
    (parent or ours).mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=parent or ours)).resolve()
    try:
        yield folder
    finally:
        shutil.rmtree(folder)
        if parent is None:
            with contextlib.suppress(OSError):  # another run may be using it
                ours.rmdir()


def print_place(console: Console, folder: Path) -> bool:
    """Say on what is measured; False if nothing would be kept there."""
    file_system = file_system_of(folder)
    if file_system in MEMORY_FILE_SYSTEMS:
        console.print(f"{folder} is on {file_system}, which keeps nothing: name another with --folder")
        return False
    console.print(
        f"{os.cpu_count()} cores, {file_system} at {folder.parent}, Python {platform.python_version()},"
        f" SQLite {apsw.sqlite_lib_version()}, load {os.getloadavg()[0]:.1f} before the run",
        highlight=False,
    )
    return True


def file_system_of(folder: Path) -> str:
    """The type of the file system that holds a folder."""
    best, found = Path("/"), "unknown file system"
    try:
        mounts = Path("/proc/self/mounts").read_text().splitlines()
    except OSError:
        return found
    for line in mounts:
        _, mount, kind, *_ = line.split(" ")
        point = Path(mount.encode().decode("unicode_escape"))
        if folder.is_relative_to(point) and point.is_relative_to(best):
            best, found = point, kind
    return found


def progress_bar(console: Console) -> Progress:
    """A bar that disappears; it is drawn when a step begins, and takes no time within one."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True, auto_refresh=False)


def print_target(console: Console, met: bool, text: str) -> None:
    console.print(f"[bold green]PASS[/]  {text}" if met else f"[bold red]FAIL[/]  {text}", highlight=False)
