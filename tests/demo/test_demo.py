"""The demo as a process: it lives, can be killed and stopped, goes on, and its books close."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.pipeline.oracle import Oracle

from posthouse.cli import main
from posthouse.demo.place import CONFIG, Place
from posthouse.errors import ConfigError
from posthouse.journal.verify import verify_folder
from posthouse.pipeline.lake import Lake

PROGRAM = [sys.executable, "-c", "from posthouse.cli import main; main()"]
FAULTS = ("goes away", "on strike", "cut off", "reached again", "no tool takes a teapot")
"""What has happened when a demo has lived: words of its log. The last one is a dead letter's error."""
NAMES = ("posted", "delivered", "dead", "expired", "cancelled", "uncertain", "open", "remainder")
DESKS = ("relay", "inbound", "outbound", "outbox", "inbox")


class Demo:
    """A demo's process."""

    def __init__(self, folder: Path, *words: str) -> None:
        environ = {name: value for name, value in os.environ.items() if not name.startswith("POSTHOUSE_")}
        self.folder = folder
        self.process = subprocess.Popen(
            [*PROGRAM, "demo", "--folder", str(folder), "--json", *words],
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.log: list[dict[str, Any]] = []

    def lines(self) -> Iterator[dict[str, Any]]:
        """What it logs, as it does."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            record = json.loads(line)
            assert "message" in record, record
            self.log.append(record)
            yield record

    def live(self, faults: tuple[str, ...] = FAULTS) -> None:
        """Until all these faults have happened."""
        left = set(faults)
        for record in self.lines():
            left -= {words for words in left if words in record["message"]}
            if not left:
                return
        raise AssertionError(f"the demo ended early: {self.log[-5:]}")

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        for _ in self.lines():
            pass
        assert self.process.wait(timeout=60) == 0, self.log[-5:]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


def run(folder: Path, *words: str) -> Any:
    result = CliRunner().invoke(main, ["--config", str(folder / "posthouse.toml"), *words, "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def lived(folder: Path, *words: str) -> None:
    """A demo that was killed, went on, and was stopped."""
    for end, faults in ((Demo.kill, FAULTS[:-1]), (Demo.stop, FAULTS)):
        demo = Demo(folder, "--pace", "30", *words)
        try:
            demo.live(faults)
            end(demo)
        finally:
            demo.end()
    run(folder, "journal", "export")


def closes(folder: Path) -> dict[str, Counter[str]]:
    """What became of everything, by desk, as an oracle finds it in the journal; nothing is strange."""
    assert list(verify_folder(folder / "journal")) == []
    oracle = Oracle(folder / "journal")
    found: dict[str, Counter[str]] = {}
    for row in oracle.rows("select * from books"):
        found.setdefault(row["desk"], Counter()).update({name: row[name] for name in NAMES})
    assert oracle.rows("select * from findings") == []
    return found


@pytest.mark.timeout(300)
def test_a_demo_that_was_killed_goes_on_and_its_books_close(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    lived(folder, "--no-books")
    books = closes(folder)
    for desk in DESKS:
        row = books[desk]
        assert row["delivered"] > 10, desk
        assert row["remainder"] == 0, desk
        ended = sum(row[name] for name in ("delivered", "dead", "expired", "cancelled", "uncertain", "open"))
        assert row["posted"] == ended, desk
    # Its faults left their marks, and nobody has to ask what became of a send: the town knows keys.
    assert books["inbound"]["dead"] > 0
    assert books["outbound"]["uncertain"] == 0
    kinds = {group["error"] for group in run(folder, "dead", "ls")["groups"]}
    assert any("teapot" in kind for kind in kinds)
    assert any("no customer" in kind for kind in kinds)


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_spark_keeps_the_books_of_a_demo_that_was_killed_and_an_oracle_agrees(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    faults = (*FAULTS[:-1], "the books took in")
    for end in (Demo.kill, Demo.stop):
        demo = Demo(folder, "--pace", "5")
        try:
            demo.live(faults)
            end(demo)
        finally:
            demo.end()
    run(folder, "journal", "export")
    run(folder, "books", "run")
    oracle = closes(folder)
    lake = Lake(str(folder / "lake"))
    kept: dict[str, Counter[str]] = {}
    for row in lake.rows("books"):
        kept.setdefault(row["desk"], Counter()).update({name: row[name] for name in NAMES})
    assert kept == oracle
    assert {desk: row["remainder"] for desk, row in kept.items()} == dict.fromkeys(DESKS, 0)
    assert lake.count("anomalies") == 0


def test_it_keeps_its_folder_to_itself_and_leaves_others_alone(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    assert Place(folder).prepare()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    file = folder / "posthouse.toml"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    file.write_text(CONFIG.replace('every_s = "10s"', 'every_s = "1m"'), encoding="utf-8")
    assert not Place(folder).prepare()
    assert 'every_s = "1m"' in file.read_text(encoding="utf-8")
    other = tmp_path / "other"
    other.mkdir()
    (other / "letter.txt").write_text("mine")
    with pytest.raises(ConfigError, match="not empty and no demo's"):
        Place(other).prepare()
    (other / "posthouse.toml").write_text("[store]\n")
    with pytest.raises(ConfigError, match="no demo's"):
        Place(other).prepare()
    assert sorted(path.name for path in other.iterdir()) == ["letter.txt", "posthouse.toml"]


def test_a_demo_has_its_own_configuration(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["--config", "my.toml", "demo", "--folder", str(tmp_path / "demo")])
    assert result.exit_code == 2
    assert "leave --config out" in result.stderr
    assert not (tmp_path / "demo").exists()
