"""Peers of other implementations: how they are built, once for each version, and how a test drives them.

Each is a small program (go/libp2p, libp2p/node, libp2p/python) that takes commands as lines of JSON and tells what
happens in the same way. What is built or fetched is kept in the environment's folder, so that the second run finds it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from tests.interop.toolchain import go_build, kept, node_program, npm_ci, run

HERE = Path(__file__).parent
GO_SOURCE = HERE.parent / "go" / "libp2p"
NODE_SOURCE = HERE / "node"
PYTHON_SOURCE = HERE / "python"
ANSWER_S = 60.0


def go_peer() -> list[str]:
    """The words that start the peer on go-libp2p."""

    def build(draft: Path) -> None:
        for path in GO_SOURCE.iterdir():
            shutil.copy(path, draft)
        go_build(draft, "peer")

    return [str(kept("libp2p-go", sorted(GO_SOURCE.iterdir()), build) / "peer")]


def node_peer() -> list[str]:
    """The words that start the peer on js-libp2p."""
    sources = [NODE_SOURCE / name for name in ("package.json", "package-lock.json", "peer.mjs")]

    def build(draft: Path) -> None:
        for path in sources:
            shutil.copy(path, draft)
        npm_ci(draft)

    return [node_program(), str(kept("libp2p-node", sources, build) / "peer.mjs")]


def python_peer() -> list[str]:
    """The words that start the peer on py-libp2p, which needs an environment of its own."""
    sources = [PYTHON_SOURCE / "requirements.txt"]

    def build(draft: Path) -> None:
        # Environments cannot be moved, so only the packages are put there.
        pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        run([*pip, "--target", "packages", "-r", str(sources[0])], draft)

    packages = kept("libp2p-python", sources, build) / "packages"
    return ["env", f"PYTHONPATH={packages}", sys.executable, "-S", str(PYTHON_SOURCE / "peer.py")]


class Failed(Exception):
    """The foreign peer says that something went wrong."""


class Foreign:
    """A running peer of another implementation."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.events: list[dict[str, Any]] = []
        self._bell = asyncio.Event()
        self._ended = False
        self._reading = asyncio.create_task(self._read())
        self.peer = ""
        self.address = ""

    async def _read(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            self.events.append(json.loads(line))
            self._bell.set()
        self._ended = True
        self._bell.set()

    async def wait(self, event: str, count: int = 1, **fields: Any) -> dict[str, Any]:
        """Wait until it has said this so often; what it said the last time."""
        async with asyncio.timeout(ANSWER_S):
            while True:
                found = [
                    said
                    for said in self.events
                    if said["event"] == event and all(said.get(key) == value for key, value in fields.items())
                ]
                if len(found) >= count:
                    return found[count - 1]
                await self._more()

    async def _more(self) -> None:
        assert not self._ended, "the foreign peer ended"
        self._bell.clear()
        await self._bell.wait()

    async def do(self, what: str, **fields: Any) -> dict[str, Any]:
        """Tell it to do something; what came of it. One at a time."""
        seen = len(self.events)
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": what, **fields}).encode() + b"\n")
        async with asyncio.timeout(ANSWER_S):
            while True:
                for said in self.events[seen:]:
                    if said["event"] == what:
                        return said
                    if said["event"] == "failed":
                        raise Failed(said["error"])
                await self._more()

    def messages(self, topic: str) -> list[str]:
        """What came on a topic."""
        return [said["data"] for said in self.events if said["event"] == "message" and said["topic"] == topic]

    def signal(self, number: int) -> None:
        """Stop it, go on, or kill it."""
        self.process.send_signal(number)


@contextlib.asynccontextmanager
async def foreign(words: list[str]) -> AsyncIterator[Foreign]:
    """Start a peer; it is killed at the end."""
    process = await asyncio.create_subprocess_exec(
        *words, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=1 << 22
    )
    peer = Foreign(process)
    try:
        ready = await peer.wait("ready")
        peer.peer, peer.address = ready["peer"], ready["addrs"][0]
        yield peer
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGKILL)
        await process.wait()
        await peer._reading
