"""The compiled hot path: it passes what the sources pass, and gives way when a source is another."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NATIVE = Path(sys.prefix) / "native"
WIRE = " ".join(f"tests/{name}" for name in (
    "unit/libp2p/test_multistream.py", "unit/libp2p/test_upgrade.py", "unit/libp2p/test_yamux.py", "unit/peer",
    "libp2p/test_host.py", "peer/test_attacks.py", "peer/test_direct.py", "peer/test_sync.py",
))  # fmt: skip
"""What goes over the wire between peers: those of its tests that replace nothing."""
WHERE = "import posthouse.stores.sqlite.flush as module; print(module.__file__)"


def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run this Python in a process of its own, without the variables that choose a form."""
    kept = {
        name: value for name, value in os.environ.items() if name not in ("POSTHOUSE_PURE", "POSTHOUSE_TEST_NATIVE")
    }
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env={**kept, **variables}, capture_output=True, text=True, timeout=880
    )


@pytest.fixture
def manifest() -> dict[str, dict[str, str]]:
    """What was compiled. Missing, it fails: `./dev test` compiles first."""
    file = NATIVE / "manifest.json"
    if not file.exists():
        pytest.fail("the hot path is not compiled: it needs a C compiler and Python.h (./dev says what is missing)")
    found: dict[str, dict[str, str]] = json.loads(file.read_text())
    return found


def test_processes_use_what_was_compiled(manifest: dict[str, dict[str, str]]) -> None:
    assert set(manifest["modules"]) >= {"posthouse.stores.sqlite.flush", "posthouse.engine.writer"}
    assert Path(run("-c", WHERE).stdout.strip()).parent == NATIVE


def test_the_sources_run_by_choice(manifest: dict[str, dict[str, str]]) -> None:
    assert run("-c", WHERE, POSTHOUSE_PURE="1").stdout.strip().endswith("flush.py")


@pytest.mark.parametrize("damage", ["a changed source", "another Python", "no JSON"])
def test_what_does_not_fit_is_not_used(damage: str, manifest: dict[str, dict[str, str]], tmp_path: Path) -> None:
    source = tmp_path / "module.py"
    source.write_text("# another text\n")
    if damage == "a changed source":
        manifest["sources"] = {**manifest["sources"], str(source): "0" * 64}
    elif damage == "another Python":
        manifest = {**manifest, "python": "cpython-20"}  # type: ignore[dict-item]
    (tmp_path / "manifest.json").write_text("{" if damage == "no JSON" else json.dumps(manifest))
    code = (
        "import sys; sys.meta_path[:] = [f for f in sys.meta_path if type(f).__name__ != 'NativeFinder']\n"
        "import _posthouse_native; from pathlib import Path\n"
        f"_posthouse_native.install(Path({str(tmp_path)!r}))\n{WHERE}"
    )
    done = run("-c", code)
    assert done.stdout.strip().endswith("flush.py"), done.stderr


@pytest.mark.timeout(900)
@pytest.mark.parametrize("tests", ["tests/conformance", "tests/stateful/test_differential.py", WIRE])
def test_the_compiled_modules_pass(tests: str, manifest: dict[str, dict[str, str]]) -> None:
    words = ("-m", "pytest", "-q", "-m", "not slow", "-p", "no:cacheprovider", *tests.split())
    done = run(*words, POSTHOUSE_TEST_NATIVE="1")
    assert done.returncode == 0, done.stdout[-3_000:]
