"""A relay in a process of its own, for tests that kill it: it starts again on the same store and the same port."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

from tests.port import free_port
from tests.relay.harness import DEADLINE_S, HOST, Agent
from tests.unit.cli.house import PROGRAM


class RelayProcess:
    """`posthouse relay` in a folder. No rate limit, otherwise its defaults; ``settings`` change them."""

    def __init__(self, folder: Path, settings: dict[str, str] | None = None) -> None:
        self.folder = folder
        self.settings = {
            "relay.port": str(free_port()),
            "relay.public_host": HOST,
            "relay.rate_limit": "0",
            "metrics.enabled": "false",
            "log.level": "warning",
            **(settings or {}),
        }
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> RelayProcess:
        """Start, or start again where it was; returns when it listens."""
        assert self._process is None
        words = [word for name, text in self.settings.items() for word in ("--set", f"{name}={text}")]
        with self.log.open("a") as log:
            self._process = subprocess.Popen(
                [*PROGRAM, "relay", "--json", *words],
                cwd=self.folder,
                env={k: v for k, v in os.environ.items() if not k.startswith("POSTHOUSE_")},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self._process.stdout is not None
        text = ""
        while not text.endswith("}\n"):
            line = self._process.stdout.readline()
            assert line, f"the relay did not start: {self.log.read_text()[-2000:]}"
            text += line
        self.url = str(json.loads(text)["relay"])
        return self

    @property
    def log(self) -> Path:
        """What it said on stderr, over all its lives."""
        return self.folder / "relay.log"

    @property
    def port(self) -> int:
        return int(self.url.split(":")[2].partition("/")[0])

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def agent(self, name: str, **options: Any) -> Agent:
        """An agent whose key follows from its name; not connected yet."""
        return Agent(self, name, **options)  # type: ignore[arg-type]

    def kill(self) -> None:
        """SIGKILL; returns when it is gone."""
        assert self.is_alive, f"the relay died by itself: {self.log.read_text()[-2000:]}"
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Stop cleanly."""
        assert self.is_alive, f"the relay died by itself: {self.log.read_text()[-2000:]}"
        assert self._end(signal.SIGTERM) == 0, self.log.read_text()[-2000:]

    def __enter__(self) -> RelayProcess:
        return self.start()

    def __exit__(self, failure: object, *_: object) -> None:
        if failure is not None and not self.is_alive:
            return
        if failure is not None:
            self._end(signal.SIGKILL)
        else:
            self.stop()

    def _end(self, number: int) -> int:
        process, self._process = self._process, None
        assert process is not None
        process.send_signal(number)
        try:
            process.communicate(timeout=DEADLINE_S)
        finally:
            process.kill()
            process.communicate()
        return process.returncode
