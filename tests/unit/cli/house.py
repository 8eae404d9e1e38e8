"""A folder with a store in it: commands run inside this process, servers as processes of their own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from posthouse.cli import main
from posthouse.config import Config, load
from posthouse.control.operator import open_store
from posthouse.engine.engine import Engine
from posthouse.mailbox.command import Command, Lease, Post, Settle, Verdict
from posthouse.mailbox.message import Message
from posthouse.mailbox.outcome import Leased, Outcome

PROGRAM = [sys.executable, "-c", "from posthouse.cli import main; main()"]


class House:
    """One folder in which commands run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def config(self) -> Config:
        return load({}, self.folder)

    @property
    def socket(self) -> Path:
        return self.config().path("control.path")

    def run(self, *words: str, code: int = 0, input: str | bytes | None = None) -> Result:
        """Run a command in this process."""
        result = CliRunner().invoke(main, words, input=input, catch_exceptions=False)
        assert result.exit_code == code, (words, result.exit_code, result.stdout, result.stderr)
        return result

    def json(self, *words: str, code: int = 0) -> Any:
        """The one JSON document that a command prints, on stdout or (errors) on stderr."""
        result = self.run(*words, "--json", code=code)
        if result.stdout:
            assert not result.stderr
            return json.loads(result.stdout)
        return json.loads(result.stderr)

    def apply(self, *commands: Command) -> list[Outcome]:
        """Apply commands with no server running; makes the store if there is none."""
        with Engine(open_store(self.config(), create=True)) as engine:
            return engine.call(*commands)

    def post(self, *ids: str, desk: str = "inbound", mailbox: str = "alice", **fields: Any) -> None:
        self.apply(*(Post(Message(desk, mailbox, id, **{"body": b"hello", **fields})) for id in ids))

    def kill(self, *ids: str, error: str = "it broke", desk: str = "inbound", mailbox: str = "alice") -> None:
        """Lease messages and let them die of an error."""
        with Engine(open_store(self.config(), create=True)) as engine:
            for id in ids:
                leased = engine.call(Lease(desk, mailbox, f"token-{id}", holder="worker"))[0]
                assert isinstance(leased, Leased)
                (delivery,) = leased.deliveries
                assert delivery.message.id == id
                ref = delivery.message.ref
                engine.call(Settle(ref, f"token-{id}", Verdict.DEAD, error=error))

    def spawn(self, *words: str, **options: Any) -> subprocess.Popen[str]:
        """Start a command as a process of its own."""
        environ = {k: v for k, v in os.environ.items() if not k.startswith("POSTHOUSE_")}
        # Any free ports: the usual ones may be somebody else's.
        environ |= {"POSTHOUSE_RELAY_PORT": "0", "POSTHOUSE_CONSOLE_PORT": "0"} | options.pop("env", {})
        return subprocess.Popen(
            [*PROGRAM, *words],
            cwd=self.folder,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )

    @contextlib.contextmanager
    def up(self, *words: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
        """A running server and what it said of itself; it must stop cleanly."""
        process = self.spawn("up", "--metrics-port", "0", "--json", *words)
        try:
            yield process, self._summary(process)
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                _, errors = process.communicate(timeout=30)
                assert process.returncode == 0, errors
        finally:
            if process.poll() is None:
                process.kill()
            process.communicate()

    def _summary(self, process: subprocess.Popen[str]) -> dict[str, Any]:
        assert process.stdout is not None
        text = ""
        for line in process.stdout:
            text += line
            if line == "}\n":
                summary: dict[str, Any] = json.loads(text)
                return summary
        _, errors = process.communicate()
        raise AssertionError(f"the server did not start: {errors}")
