"""A server of ours in a process of its own, as its user starts it.

In: a folder, the words of a command and settings. Out: what it says when it serves, its processor time and memory. Of
the environment it has only what is no setting.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil

PROGRAM = (sys.executable, "-c", "from posthouse.cli import main; main()")


class Server:
    """One that serves; ``summary`` is what it said then."""

    def __init__(self, folder: Path, words: tuple[str, ...], settings: Mapping[str, str]) -> None:
        self.folder = folder
        self._environ = {k: v for k, v in os.environ.items() if k == "POSTHOUSE_PURE" or "POSTHOUSE" not in k}
        given = [word for each in settings.items() for word in ("--set", "=".join(each))]
        self._process = subprocess.Popen(
            [*PROGRAM, *words, "--json", *given],
            cwd=folder,
            env=self._environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        text = ""
        while not text.endswith("}\n"):
            line = self._process.stdout.readline()
            if not line:
                raise SystemExit("the server did not start")
            text += line
        self.summary: dict[str, Any] = json.loads(text)

    def command(self, *words: str) -> str:
        """What a command in its folder prints."""
        done = subprocess.run(
            [*PROGRAM, *words], cwd=self.folder, env=self._environ, check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    def cpu_s(self) -> float:
        """Processor time so far, of all its threads."""
        # The clock of another process, numbered as clock_getcpuclockid(3) does; /proc counts in hundredths of a second.
        return time.clock_gettime(~self._process.pid << 3 | 2)

    def rss_bytes(self) -> int:
        """Memory that it has now."""
        return int(psutil.Process(self._process.pid).memory_info().rss)

    def children(self) -> list[psutil.Process]:
        """Processes that it started, and theirs."""
        return psutil.Process(self._process.pid).children(recursive=True)

    def stop(self) -> None:
        """End it; it must end well."""
        self._process.send_signal(signal.SIGTERM)
        try:
            code = self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise SystemExit("the server does not stop") from None
        if code != 0:
            raise SystemExit(f"the server ended with {code}")


@contextlib.contextmanager
def running(folder: Path, words: tuple[str, ...], settings: Mapping[str, str]) -> Iterator[Server]:
    """A server in a new folder that is stopped afterwards."""
    folder.mkdir()
    server = Server(folder, words, settings)
    try:
        yield server
    finally:
        server.stop()
