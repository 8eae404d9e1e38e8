"""The keeper of the books beside a server, with a process in place of Spark's."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import importlib.util
import io
import json
import logging
import os
import queue
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.unit.cli.house import House

from posthouse.cli import books_keep
from posthouse.cli.books_keep import Keeper, missing, newest
from posthouse.config import Given, load
from posthouse.errors import InvalidInput

DEADLINE_S = 20.0
DONE = {"segments": 1, "events": 7, "findings": []}
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
# Starts the program that is its second argument, as Spark starts Java, and ends as soon as its input does.
LEAVING = """
import json, os, subprocess, sys
settings = json.loads(sys.stdin.readline())
program = [sys.executable, "-c", sys.argv[2], settings["lake"], str(os.getpid())]
behind = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
behind.stdout.readline()
with open(sys.argv[1], "a") as log:
    log.write(json.dumps({"pid": os.getpid()}) + "\\n")
sys.stdin.read()
os._exit(0)
"""
# Once its input has ended, and whoever waits for the first process alone has heard of that one's end, it makes a file.
TIDY = """
import os, sys, time
print(flush=True)
sys.stdin.read()
while True:
    try:
        os.kill(int(sys.argv[2]), 0)
    except ProcessLookupError:
        break
    time.sleep(0.01)
open(sys.argv[1], "w").close()
"""
# Holds a pipe and never ends by itself.
STUCK = """
import signal, sys
held = open(sys.argv[1], "w")
print(flush=True)
signal.pause()
"""


class Ear(logging.Handler):
    """Hears what the keeper logs; who waits for words is woken by them."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[str] = []
        self._more = asyncio.Event()
        logger = logging.getLogger("posthouse.books")
        logger.addHandler(self)
        logger.setLevel(logging.INFO)

    def emit(self, record: logging.LogRecord) -> None:
        self.heard.append(record.getMessage())
        self._more.set()

    def has(self, text: str) -> bool:
        return any(text in each for each in self.heard)

    async def wait_for(self, text: str) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not self.has(text):
                self._more.clear()
                await self._more.wait()

    def end(self) -> None:
        logger = logging.getLogger("posthouse.books")
        logger.removeHandler(self)
        logger.setLevel(logging.NOTSET)


class Stage:
    """A folder with a journal, and a keeper whose process answers as it is told."""

    def __init__(self, folder: Path, *answers: object, child: str = CHILD) -> None:
        self.folder = folder
        told = folder / "told"
        os.mkfifo(told)
        # Open for both, so that it never ends, whoever else opens and closes it.
        self._told = os.fdopen(os.open(told, os.O_RDWR), "rb", 0)
        flags = {
            "books.every_s": Given("0.01", "test"),
            "journal.dir": Given(str(folder / "journal"), "test"),
            "books.lake": Given(str(folder / "lake"), "test"),
        }
        config = load({}, folder, flags)
        words = [answer if isinstance(answer, str) else json.dumps(answer) for answer in answers]
        self.keeper = Keeper(config, os.environ, [sys.executable, "-c", child, str(told), *words])
        self.stop = asyncio.Event()
        self.ear = Ear()

    def segment(self, number: int) -> None:
        path = self.folder / "journal" / "node=n1" / f"{number}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")

    async def start(self) -> dict[str, object]:
        """Wait for the next process; what it was told."""
        async with asyncio.timeout(DEADLINE_S):
            found: dict[str, object] = json.loads(await asyncio.to_thread(self._told.readline))
        return found

    @contextlib.asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        """Keep the books meanwhile."""
        task = asyncio.create_task(self.keeper.run(self.stop))
        try:
            yield
            self.stop.set()
            await asyncio.wait_for(task, DEADLINE_S)
        finally:
            task.cancel()
            self.end()

    def end(self) -> None:
        self.ear.end()
        self._told.close()


def is_running(pid: object) -> bool:
    try:
        os.kill(int(str(pid)), 0)
    except ProcessLookupError:
        return False
    return True


def test_spark_is_not_started_before_there_is_something_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        stage = Stage(tmp_path, DONE)
        looks = asyncio.Semaphore(0)
        loop = asyncio.get_running_loop()

        def look(journal: Path) -> tuple[int, float] | None:
            loop.call_soon_threadsafe(looks.release)
            return newest(journal)

        monkeypatch.setattr(books_keep, "newest", look)
        monkeypatch.setattr(asyncio, "create_subprocess_exec", None)
        async with stage.kept():
            for _ in range(3):
                await looks.acquire()
        assert stage.ear.heard == []

    asyncio.run(scene())


def test_one_process_does_turn_after_turn_and_ends_with_the_keeper(tmp_path: Path) -> None:
    async def scene() -> None:
        gap = {"kind": "journal_gap", "node": "a", "offsets": [3, 4], "detail": "the offsets 3 to 4 are missing"}
        stage = Stage(tmp_path, DONE, {**DONE, "events": 8, "findings": [gap]})
        async with stage.kept():
            stage.segment(1)
            start = await stage.start()
            assert start["lake"] == str(tmp_path / "lake")
            assert start["master"] == "local[1]"
            assert start["memory_mb"] == 1_024
            await stage.ear.wait_for("took in 7 events of 1 segments")
            assert is_running(start["pid"])
            stage.segment(2)
            await stage.ear.wait_for("took in 8 events of 1 segments")
            await stage.ear.wait_for("found journal_gap of node a: the offsets 3 to 4 are missing")
        assert not is_running(start["pid"])

    asyncio.run(scene())


def test_who_ends_behind_the_process_is_given_the_time_to_put_away_its_files(tmp_path: Path) -> None:
    async def scene() -> None:
        stage = Stage(tmp_path, TIDY, child=LEAVING)
        stage.segment(1)
        async with stage.kept():
            await stage.start()
            assert not (tmp_path / "lake").exists()
        assert (tmp_path / "lake").exists()

    asyncio.run(scene())


def test_who_does_not_end_behind_the_process_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(books_keep, "STOP_S", 0.2)
    held = tmp_path / "lake"
    os.mkfifo(held)

    async def scene() -> None:
        stage = Stage(tmp_path, STUCK, child=LEAVING)
        stage.segment(1)
        # It ends when nobody holds the other side any more.
        reading = asyncio.create_task(asyncio.to_thread(held.read_text))
        async with stage.kept():
            await stage.start()
            assert not reading.done()
        assert await asyncio.wait_for(reading, DEADLINE_S) == ""

    asyncio.run(scene())


def test_those_left_behind_are_let_go_where_their_parent_is_the_server() -> None:
    """As in a container, whose first process inherits them."""
    left = subprocess.Popen([sys.executable, "-c", ""], start_new_session=True)
    asyncio.run(asyncio.wait_for(books_keep._emptied(left.pid), DEADLINE_S))
    with pytest.raises(ProcessLookupError):
        os.killpg(left.pid, 0)
    left.wait()


def test_turns_that_fail_are_counted_and_one_that_ends_well_is_dated(tmp_path: Path) -> None:
    async def scene() -> None:
        stage = Stage(tmp_path, {"error": "another run has the lake"}, {"error": "no room", "over": True})
        begun = stage.keeper.standing()
        assert begun["failed"] == 0
        stage.segment(1)
        async with stage.kept():
            await stage.ear.wait_for("were not brought up to date: another run has the lake")
            assert stage.keeper.standing()["failed"] == 1
            await stage.ear.wait_for("were not brought up to date: no room")
            failed = stage.keeper.standing()
            assert (failed["failed"], failed["well_at"]) == (2, begun["well_at"])

    asyncio.run(scene())


def test_a_turn_that_takes_something_in_is_one_that_ended_well(tmp_path: Path) -> None:
    async def scene() -> None:
        stage = Stage(tmp_path, {"error": "another run has the lake"}, DONE)
        begun = stage.keeper.standing()
        stage.segment(1)
        async with stage.kept():
            await stage.ear.wait_for("took in 7 events")
            found = stage.keeper.standing()
        assert found["failed"] == 1
        assert found["well_at"] >= found["last"]["at"] > begun["well_at"]

    asyncio.run(scene())


def test_a_turn_that_finds_nothing_new_is_one_that_ended_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        stage = Stage(tmp_path)
        looks = asyncio.Semaphore(0)
        loop = asyncio.get_running_loop()

        def look(journal: Path) -> tuple[int, float] | None:
            loop.call_soon_threadsafe(looks.release)
            return newest(journal)

        monkeypatch.setattr(books_keep, "newest", look)
        begun = stage.keeper.standing()["well_at"]
        async with stage.kept():
            # The second one is begun when the first one has ended.
            for _ in range(2):
                await looks.acquire()
            assert stage.keeper.standing()["well_at"] > begun

    asyncio.run(scene())


def test_a_process_that_dies_is_named_and_started_again(tmp_path: Path) -> None:
    async def scene() -> None:
        stage = Stage(tmp_path, "die")
        stage.segment(1)
        async with stage.kept():
            first, second = await stage.start(), await stage.start()
            assert first["pid"] != second["pid"]
            assert stage.ear.has("the process of the books ended: no room on the disk")

    asyncio.run(scene())


def test_a_turn_that_fails_is_tried_again(tmp_path: Path) -> None:
    async def scene() -> None:
        stage = Stage(tmp_path, {"error": "another run has the lake"}, DONE)
        stage.segment(1)
        async with stage.kept():
            start = await stage.start()
            await stage.ear.wait_for("took in 7 events")
            assert stage.ear.has("were not brought up to date: another run has the lake")
            assert is_running(start["pid"])

    asyncio.run(scene())


def test_after_a_turn_that_failed_in_spark_the_next_one_has_another_process(tmp_path: Path) -> None:
    async def scene() -> None:
        stage = Stage(tmp_path, {"error": "the disk is full", "over": True})
        stage.segment(1)
        async with stage.kept():
            first, second = await stage.start(), await stage.start()
            assert first["pid"] != second["pid"]
            assert not is_running(first["pid"])
            assert stage.ear.has("were not brought up to date: the disk is full")
            assert not stage.ear.has("the process of the books ended")

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("error", "answer", "stays"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "/lake/x"), {"over": True}, False),
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"), {"over": True}, False),
        (PermissionError(errno.EACCES, "Permission denied", "/lake/x"), {"error": "Permission denied: /lake/x"}, True),
        (InvalidInput("no journal"), {"error": "no journal"}, True),
    ],
)
def test_the_process_answers_whatever_fails_and_ends_where_it_may_be_spark(
    monkeypatch: pytest.MonkeyPatch, error: Exception, answer: dict[str, object], stays: bool
) -> None:
    from posthouse.pipeline import job

    class Failing:
        def __init__(self, *arguments: object, **named: object) -> None:
            pass

        def run(self, journal: str) -> None:
            if not turns.qsize():
                # Nobody is there to give another one.
                raise KeyboardInterrupt
            raise error

    monkeypatch.setattr(job, "Job", Failing)
    turns: queue.SimpleQueue[str] = queue.SimpleQueue()
    for _ in range(3):
        turns.put("")
    said = io.StringIO()
    with pytest.raises(KeyboardInterrupt) if stays else contextlib.nullcontext():
        books_keep._keep({"lake": "l", "journal": "j", "memory_mb": 1}, turns, said)
    answers = [json.loads(line) for line in said.getvalue().splitlines()]
    assert len(answers) == (2 if stays else 1)
    for each in answers:
        assert each.items() >= answer.items()
        assert each["error"]


def test_a_mistake_of_ours_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    from posthouse.pipeline import job

    turns: queue.SimpleQueue[str] = queue.SimpleQueue()
    turns.put("")
    monkeypatch.setattr(job, "Job", lambda *arguments, **named: None)
    with pytest.raises(AttributeError):
        books_keep._keep({"lake": "l", "journal": "j", "memory_mb": 1}, turns, io.StringIO())


def test_a_turn_under_way_does_not_hold_the_server(tmp_path: Path) -> None:
    async def scene() -> None:
        stage = Stage(tmp_path, "wait")
        stage.segment(1)
        async with stage.kept():
            start = await stage.start()
        assert not is_running(start["pid"])

    asyncio.run(scene())


def test_what_is_missing_is_said_once_and_ends_it(tmp_path: Path) -> None:
    async def scene() -> None:
        stage = Stage(tmp_path, {"missing": "the books need Java 17 or newer"})
        stage.segment(1)
        await asyncio.wait_for(stage.keeper.run(stage.stop), DEADLINE_S)
        stage.end()
        assert stage.ear.heard == ["the books are not kept: the books need Java 17 or newer"]

    asyncio.run(scene())


def test_missing_parts_are_named_in_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from posthouse.pipeline import jars, java

    monkeypatch.setattr(jars, "folder", lambda: tmp_path)
    found = missing({})
    assert found is not None
    assert "jars" in found
    assert "\n" not in found
    monkeypatch.setattr(jars, "paths", list)
    assert missing({"PATH": str(tmp_path)}) is None
    monkeypatch.setattr(java, "homes", lambda folder, environment: iter(()))
    assert (missing({"PATH": str(tmp_path)}) or "").startswith("the books need Java 17 or newer: set JAVA_HOME")
    assert missing({"PATH": str(tmp_path), "JAVA_HOME": "/java"}) is None
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert missing({}) == "the books need pyspark: pip install posthouse[pipeline]"


def test_a_client_of_spark_connect_needs_neither_java_nor_jars(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from posthouse.pipeline import jars, java

    environment = {"PATH": str(tmp_path)}
    monkeypatch.setattr(jars, "folder", lambda: tmp_path)
    monkeypatch.setattr(java, "homes", lambda folder, environment: iter(()))
    assert missing(environment, "sc://spark:15002") is None
    for master in (None, "local[2]", "spark://spark:7077"):
        assert "jars" in (missing(environment, master) or "")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert missing(environment, "sc://spark:15002") == "the books need pyspark: pip install posthouse[pipeline]"


def test_the_process_stands_back_and_ends_with_its_input() -> None:
    code = (
        "import os, sys; from posthouse.cli.books_keep import stand_back; stand_back(one_core=True);"
        "print(os.nice(0), os.sched_getscheduler(0) == os.SCHED_IDLE if hasattr(os, 'SCHED_IDLE') else True,"
        " len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else 1)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["19", "True", "1"]
    settings = json.dumps({"journal": "/nowhere", "lake": "/nowhere", "master": "local[1]", "memory_mb": 512})
    process = [sys.executable, "-m", "posthouse.cli.books_keep"]
    ended = subprocess.run(process, input=settings + "\n", capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (0, "")


@pytest.mark.skipif(not Path("/proc/self/oom_score_adj").exists(), reason="only Linux is told which process to end")
@pytest.mark.parametrize("stands_back", [True, False])
def test_where_memory_runs_out_the_process_goes_before_the_server(stands_back: bool) -> None:
    settings = {"journal": "/nowhere", "lake": "/nowhere", "master": "local[1]", "memory_mb": 512}
    with subprocess.Popen(
        [sys.executable, "-m", "posthouse.cli.books_keep"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        # It answers a turn once it has settled what it is.
        process.stdin.write(json.dumps({**settings, "stand_back": stands_back}) + "\n{}\n")
        process.stdin.flush()
        process.stdout.readline()
        told = Path(f"/proc/{process.pid}/oom_score_adj").read_text()
        process.stdin.close()
    assert told == "1000\n"


def test_a_journal_is_new_when_a_file_came(tmp_path: Path) -> None:
    assert newest(tmp_path) is None
    folder = tmp_path / "node=a"
    folder.mkdir()
    (folder / "1.parquet").write_bytes(b"")
    first = newest(tmp_path)
    assert first == newest(tmp_path)
    (folder / "2.parquet").write_bytes(b"")
    assert newest(tmp_path) != first


def test_a_journal_is_new_when_a_file_was_replaced_by_a_copy_that_looks_old(tmp_path: Path) -> None:
    segment, last = (tmp_path / "node=a" / name for name in ("1.parquet", "2.parquet"))
    segment.parent.mkdir()
    segment.write_bytes(b"torn")
    last.write_bytes(b"whole")
    first = newest(tmp_path)
    copy = tmp_path / "copy"
    # File systems tell time in steps of some milliseconds.
    while not copy.exists() or copy.stat().st_ctime == last.stat().st_ctime:
        copy.write_bytes(b"whole")
        os.utime(copy, (0, 0))
    copy.replace(segment)
    assert newest(tmp_path) != first


def test_a_server_says_where_the_books_are_and_starts_without_them(house: House) -> None:
    with house.up("--no-books") as (_, summary):
        assert summary["books"] is None
    for words in ((), ("--set", "books.every_s=0")):
        with house.up(*words) as (_, summary):
            assert summary["books"] == str(house.folder / ".posthouse/lake")
