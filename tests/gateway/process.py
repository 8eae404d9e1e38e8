"""A gateway in a process of its own, for tests that kill it: it starts again on the same store."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROGRAM = [sys.executable, "-c", "from posthouse.cli import main; main()"]
START_S = 60.0
PATIENT = {
    # Killed in the middle is an attempt, and here a message may well meet more kills than anybody would try.
    "desk.inbound.attempts_max": "none",
    "desk.outbound.attempts_max": "none",
    "desk.inbound.retry": "50ms",
    "desk.outbound.retry": "50ms",
}


class GatewayProcess:
    """`posthouse gateway` in a folder."""

    def __init__(self, folder: Path, settings: dict[str, str], environ: dict[str, str]) -> None:
        self.folder = folder
        self.settings = {"metrics.enabled": "false", "log.level": "warning", "journal.export_s": "0", **settings}
        self._environ = environ
        self._process: asyncio.subprocess.Process | None = None
        self.kills = 0

    @property
    def log(self) -> Path:
        return self.folder / "gateway.log"

    @property
    def store(self) -> Path:
        return self.folder / ".posthouse" / "posthouse.db"

    async def start(self) -> None:
        """Start, or start again; returns when it serves."""
        assert self._process is None
        words = [word for name, text in self.settings.items() for word in ("--set", f"{name}={text}")]
        clean = {k: v for k, v in os.environ.items() if not k.startswith("POSTHOUSE_")}
        with self.log.open("a") as log:
            self._process = await asyncio.create_subprocess_exec(
                *PROGRAM, "gateway", "--json", *words,
                cwd=self.folder,
                env={**clean, "PYTHONPATH": str(ROOT), **self._environ},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
            )  # fmt: skip
        assert self._process.stdout is not None
        text = b""
        async with asyncio.timeout(START_S):
            while not text.endswith(b"}\n"):
                line = await self._process.stdout.readline()
                assert line, f"the gateway did not start: {self.log.read_text()[-3000:]}"
                text += line
        self.summary = json.loads(text)

    async def kill(self) -> None:
        """SIGKILL; returns when it is gone."""
        self.kills += 1
        await self._end(signal.SIGKILL)

    async def stop(self) -> None:
        """Stop cleanly."""
        assert await self._end(signal.SIGTERM) == 0, self.log.read_text()[-3000:]

    async def _end(self, number: int) -> int:
        process, self._process = self._process, None
        assert process is not None
        assert process.returncode is None, f"the gateway died by itself: {self.log.read_text()[-3000:]}"
        process.send_signal(number)
        async with asyncio.timeout(START_S):
            return await process.wait()

    async def abandon(self) -> None:
        """After a failed test."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
