"""The README's walk with two agents, typed into a real shell beside a real server."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from tests.docs.page import ROOT, plain
from tests.port import free_port
from tests.unit.cli.house import House

from posthouse.relay.metrics import _COUNTERS

DONE = "--- done ---"


def blocks() -> list[list[tuple[str, list[str]]]]:
    """The commands of each shell block in the relay's section, with what each is said to print."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    section = text[text.index("## The relay:") : text.index("## A durable queue")]
    found = []
    for block in re.findall(r"^```shell\n(.*?)^```", section, re.MULTILINE | re.DOTALL):
        commands: list[tuple[str, list[str]]] = []
        for line in block.splitlines():
            if line.startswith("$ "):
                commands.append((line[2:], []))
            else:
                commands[-1][1].append(line)
        found.append(commands)
    return found


class Shell:
    """A shell that keeps its variables; output of both kinds comes together, as in a terminal."""

    def __init__(self, folder: Path, environ: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            ["bash", "--norc"],
            cwd=folder,
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, command: str) -> list[str]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{command}\necho '{DONE}'\n")
        self._process.stdin.flush()
        lines = []
        for line in self._process.stdout:
            if line.rstrip("\n").endswith(DONE):
                return lines
            lines.append(line.rstrip("\n"))
        raise AssertionError(f"the shell ended in {command!r}: {lines}")

    def close(self) -> None:
        self._process.communicate("wait\nexit\n", timeout=30)


def compare(command: str, expected: list[str], printed: list[str]) -> None:
    real = iter([plain(line) for line in printed])
    for wanted in expected:
        pattern = ".*".join(re.escape(part) for part in plain(wanted).split("…"))
        assert any(re.fullmatch(pattern, line) for line in real), f"{command}: not printed: {wanted}\n{printed}"


def start(house: House, port: str) -> subprocess.Popen[str]:
    process = house.spawn("up", "--no-metrics", "--json", "--relay-port", port)
    assert f":{port}/" in house._summary(process)["relay"]
    return process


def test_the_walk_works_as_written(tmp_path: Path) -> None:
    house = House(tmp_path)
    port = str(free_port())
    server = start(house, port)
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("POSTHOUSE_", "PINCH_"))}
    environ["POSTHOUSE_RELAY_PORT"] = port
    (tmp_path / "bin").mkdir()
    script = tmp_path / "bin" / "posthouse"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -c "from posthouse.cli import main; main()" "$@"\n')
    script.chmod(0o755)
    environ["PATH"] = f"{script.parent}:{environ['PATH']}"
    shell = Shell(tmp_path, environ)
    try:
        parts = blocks()
        assert len(parts) == 3
        for number, commands in enumerate(parts):
            if number == 1:
                # "Stop the server … and start it again, if you like."
                server.send_signal(signal.SIGINT)
                server.communicate(timeout=30)
                assert server.returncode == 0
                server = start(house, port)
            for command, expected in commands:
                compare(command, expected, shell.run(command))
        shell.close()
    finally:
        server.send_signal(signal.SIGTERM)
        server.communicate(timeout=30)


def test_metrics_of_the_relay_are_in_its_guide_and_no_others() -> None:
    text = (ROOT / "docs/guides/relay.md").read_text(encoding="utf-8")
    said = set(re.findall(r"\bposthouse_relay_\w+", text))
    counters = {f"posthouse_relay_{name}_total" for _, name, _ in _COUNTERS}
    assert said == counters | {
        "posthouse_relay_connections",
        "posthouse_relay_refused_total",
        "posthouse_relay_closed_total",
    }
