"""Keeping the books beside a running server: every few minutes, in a process of its own.

In: the configuration. Out: the lake's tables, and a line of the log for each turn. The server's side is ``Keeper``;
``main`` is the process, started with ``python -m posthouse.cli.books_keep``. They talk over pipes, in lines of JSON:
settings first, then ``run``, answered by lines of progress and by what was done. Spark is started at the first turn
that has something to do and stays warm from then on. The process has a bounded heap and, unless a setting says
otherwise, takes the processor only when nobody else wants it. It ends when its standard input does, so it never
outlives the server, however that ends; a turn that is cut short is done again by the next one.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import json
import logging
import os
import queue
import shutil
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from ..config import Config
from ..errors import MissingExtra, PosthouseError, StoreFull, StoreUnavailable
from .books_place import FOUND_MAX, is_remote, need_packages
from .session import failure_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger("posthouse.books")

STOP_S = 5.0
"""How long the process, and Java behind it, may take to end before they are killed."""
STEP_S = 0.02
"""How often it is looked whether Java has ended: nobody tells of the end of what is not our own child."""
AGAIN_S_MAX = 3_600.0
"""The longest pause after turns that failed."""
JAVA_OPTIONS = "-XX:+UseSerialGC -XX:MaxMetaspaceSize=384m -XX:ReservedCodeCacheSize=160m"
"""One thread to collect, and bounds for what is not heap: nothing here is in a hurry."""

EVENTS_PER_MB = 1_000
"""How large a batch may be for each MiB of the heap."""

REPORT_S = 0.2
"""How often it is told how far a turn is."""

Answer = dict[str, Any]
Report = Callable[[int, int | None, str], None]


def missing(environment: Mapping[str, str], master: str | None = None) -> str | None:
    """What the books lack on this machine, in one line; None if nothing does. It starts nothing.

    A client of Spark Connect needs packages alone: Java and Delta's jars are its server's.
    """
    from ..pipeline import jars, java

    try:
        need_packages()
        if is_remote(master):
            return None
        jars.paths()
    except MissingExtra as error:
        return str(error)
    has_java = environment.get("JAVA_HOME") or shutil.which("java", path=environment.get("PATH", os.defpath))
    if not has_java and next(java.homes(java.folder(), environment), None) is None:
        return java.lacking()
    return None


class Keeper:
    """The server's side: sends a turn when one is due and logs what became of it."""

    def __init__(self, config: Config, environment: Mapping[str, str], command: list[str] | None = None) -> None:
        self._every_s = config.seconds("books.every_s")
        self._journal = config.path("journal.dir")
        self._settings = {
            "journal": str(self._journal),
            "lake": config.text("books.lake"),
            "master": config.text_or_none("books.master") or "local[1]",
            "memory_mb": config.whole("books.memory_mb"),
            "stand_back": config.switch("books.stand_back"),
        }
        self._environment = environment
        self._command = command or [sys.executable, "-m", "posthouse.cli.books_keep"]
        self._process: asyncio.subprocess.Process | None = None
        self._words: deque[str] = deque(maxlen=20)
        self._listener: asyncio.Task[None] | None = None
        self._seen: tuple[int, float] | None = None
        self._turns = asyncio.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._progress: tuple[int, int | None, str] = (0, None, "waiting")
        self._last: Answer | None = None
        self._well_at = _now()
        """When a turn last ended well; before the first one, since when the books are to be kept."""
        self._failed = 0
        self._found: set[tuple[str, str, str]] = set()
        """What the last turn found about files: kind, node and what it is."""

    async def run(self, stop: asyncio.Event) -> None:
        """Keep the books until ``stop``."""
        lacking: str | None = None
        pause_s = self._every_s
        self._loop, self._stop = asyncio.get_running_loop(), stop
        try:
            if not self._every_s:
                # Only when somebody asks.
                await stop.wait()
            while lacking is None and not await _set_within(stop, pause_s):
                try:
                    good = await self._turn(stop)
                    pause_s = self._every_s if good else min(2 * pause_s, max(AGAIN_S_MAX, self._every_s))
                except MissingExtra as error:
                    lacking = str(error)
            if lacking is not None:
                _log.warning("the books are not kept: %s", lacking)
        finally:
            self._loop = None
            await self._end()

    def standing(self) -> Answer:
        """Whether a turn is under way, and what became of the last one and of those before; from any thread."""
        return {
            "running": self._turns.locked(),
            "every_s": self._every_s,
            "well_at": self._well_at,
            "failed": self._failed,
            "last": self._last,
        }

    def run_now(self, report: Report) -> Answer:
        """Bring the books up to date now: what was done, or a StoreError; from a thread that may wait.

        Whoever stops waiting (``report`` raises) stops nothing else: the turn goes on to its end.
        """
        loop = self._loop
        if loop is None:
            raise StoreUnavailable("the books are not kept here any more; the log says why")
        turn = asyncio.run_coroutine_threadsafe(self._asked(), loop)
        while not concurrent.futures.wait((turn,), REPORT_S).done:
            report(*self._progress)
        return turn.result()

    async def _asked(self) -> Answer:
        assert self._stop is not None
        async with self._turns:
            seen = await asyncio.to_thread(newest, self._journal)
            if seen is None:
                self._well_at = _now()
                return {"segments": 0, "events": 0, "batches": 0, "rejected": [], "findings": []}
            await self._take_in(self._stop, seen)
            if self._stop.is_set() or self._last is None:
                raise StoreUnavailable("the server stops; the turn is done again by the next one")
            if self._last["error"] is not None:
                raise StoreUnavailable(f"the books were not brought up to date: {self._last['error']}")
            done: Answer = self._last["done"]
            return done

    async def _turn(self, stop: asyncio.Event) -> bool:
        """Bring the books up to date, if there is anything new; whether that went well."""
        async with self._turns:
            seen = await asyncio.to_thread(newest, self._journal)
            if seen is not None and seen != self._seen:
                return await self._take_in(stop, seen)
            self._well_at = _now()
            return True

    def _ended(self, done: Answer | None, error: str | None, took_s: float) -> None:
        at = _now()
        self._last = {"at": at, "took_s": took_s, "done": done, "error": error}
        if error is None:
            self._well_at = at
        else:
            self._failed += 1

    async def _take_in(self, stop: asyncio.Event, seen: tuple[int, float]) -> bool:
        begun = time.monotonic()
        self._progress = (0, None, "beginning")
        asking = asyncio.ensure_future(self._ask({"run": True}))
        stopping = asyncio.ensure_future(stop.wait())
        await asyncio.wait((asking, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not asking.done():
            asking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asking
            return True
        answer = asking.result()
        if answer is None:
            said = f": {self._words[-1]}" if self._words else ""
            _log.error("the process of the books ended%s", said)
            self._ended(None, f"the process of the books ended{said}", time.monotonic() - begun)
            await self._end()
            return False
        if "missing" in answer:
            self._ended(None, answer["missing"], time.monotonic() - begun)
            raise MissingExtra(answer["missing"])
        if "error" in answer:
            _log.error("the books were not brought up to date: %s", answer["error"])
            self._ended(None, answer["error"], time.monotonic() - begun)
            if answer.get("over"):
                await self._end()
            return False
        self._seen = seen
        self._ended(answer, None, time.monotonic() - begun)
        if answer["segments"]:
            _log.info(
                "the books took in %d events of %d segments in %.1f s",
                answer["events"],
                answer["segments"],
                time.monotonic() - begun,
            )
        self._tell({(each["kind"], each["node"], each["detail"]) for each in answer["findings"]})
        return True

    def _tell(self, found: set[tuple[str, str, str]]) -> None:
        """Log what was found about files, when it is first met: gaps in the journal, files that were not taken in."""
        news = sorted(found - self._found)
        self._found = found
        for kind, node, detail in news[:FOUND_MAX]:
            _log.warning("the books found %s%s: %s", kind, f" of node {node}" if node else "", detail)
        if len(news) > FOUND_MAX:
            _log.warning("the books found %d more; `posthouse books show anomalies` has all", len(news) - FOUND_MAX)

    async def _ask(self, request: Answer) -> Answer | None:
        """One line there, lines of progress and the answer back; None if the process ended instead."""
        try:
            process = await self._started()
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps(request).encode() + b"\n")
            await process.stdin.drain()
            while line := await process.stdout.readline():
                answer: Answer = json.loads(line)
                if "progress" not in answer:
                    return answer
                done, total, doing = answer["progress"]
                self._progress = (done, total, doing)
        except (OSError, ValueError) as error:
            self._words.append(str(error))
            return None
        if self._listener is not None:
            # Whoever stops asking does not stop listening.
            await asyncio.shield(self._listener)
        return None

    async def _started(self) -> asyncio.subprocess.Process:
        if self._process is None or self._process.returncode is not None:
            self._words.clear()
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=dict(self._environment),
                # Answers name every file that was rejected.
                limit=1 << 26,
                # Ctrl-C is for the server, which ends this one itself; and Java ends with its group.
                start_new_session=True,
            )
            self._listener = asyncio.ensure_future(self._listen(self._process))
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(self._settings).encode() + b"\n")
        return self._process

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        while True:
            try:
                line = await process.stderr.readline()
            except ValueError:
                # A line longer than anybody wants to read.
                continue
            if not line:
                return
            if said := line.decode(errors="replace").strip():
                self._words.append(said[:500])
                _log.debug("books: %s", said)

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        process.stdin.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_S):
                await process.wait()
                # Java, which may be behind, is of the same group; it removes its temporary files before it ends.
                await _emptied(process.pid)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        if self._listener is not None:
            await self._listener


async def _emptied(group: int) -> None:
    """Wait until nobody is left in a group of processes whose leader has ended and was waited for."""
    while True:
        if _is_empty(group):
            return
        await asyncio.sleep(STEP_S)


def _is_empty(group: int) -> bool:
    # The first process of a container inherits whoever lost his parent, and has to let him go.
    with contextlib.suppress(ChildProcessError):
        os.waitpid(-group, os.WNOHANG)
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return True
    return False


async def _set_within(event: asyncio.Event, seconds: float) -> bool:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)
    return event.is_set()


def _now() -> int:
    return int(time.time() * 1_000_000)


def newest(journal: Path) -> tuple[int, float] | None:
    """How many files the journal has and when the last one came; None if there is none."""
    count, last = 0, 0.0
    with contextlib.suppress(OSError):
        for path in journal.glob("node=*/*.parquet"):
            with contextlib.suppress(OSError):
                told = path.stat()
                # A copy may come with the time of what it was made of; that of its last change is its own.
                last = max(last, told.st_mtime, told.st_ctime)
                count += 1
    return (count, last) if count else None


# The process


def main() -> None:
    """Take settings and turns from standard input until it ends."""
    answers = _own_output()
    settings = json.loads(sys.stdin.readline() or "{}")
    if not settings:
        return
    go_first()
    if settings.get("stand_back", True):
        stand_back(one_core=settings.get("master") in ("local", "local[1]"))
    turns: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_read_turns, args=(turns,), daemon=True).start()
    _keep(settings, turns, answers)


def _own_output() -> TextIO:
    """Standard output for answers alone: what Spark and Java print goes to standard error."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return answers


def go_first() -> None:
    """Be what the system ends where memory runs out, with Java, and not the server: a turn is done again."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def stand_back(*, one_core: bool) -> None:
    """Use the processor only when nobody else wants it, and one core of it where no more was asked for.

    Threads and processes that are started inherit both: Java has threads of its own besides the one that works.
    """
    with contextlib.suppress(OSError):
        os.nice(19)
    if hasattr(os, "SCHED_IDLE"):
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    if one_core and hasattr(os, "sched_setaffinity"):
        with contextlib.suppress(OSError):
            # Whoever is woken meanwhile finds another one that is free at once.
            os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def _read_turns(turns: queue.SimpleQueue[str]) -> None:
    for line in sys.stdin:
        turns.put(line)
    # The server has gone. Whatever is under way will be done again; Java ends when its own input does, which is a pipe
    # from here (pyspark's ``launch_gateway``), and puts away its files first.
    os._exit(0)


def _keep(settings: Mapping[str, Any], turns: queue.SimpleQueue[str], answers: TextIO) -> None:
    from ..pipeline import failure
    from ..pipeline.job import Job
    from ..pipeline.session import Settings, start

    with contextlib.ExitStack() as stack:
        last_s = 0.0

        def report(done: int, total: int | None, doing: str) -> None:
            nonlocal last_s
            if time.monotonic() - last_s >= REPORT_S:
                last_s = time.monotonic()
                _say(answers, {"progress": [done, total, doing]})

        def session() -> SparkSession:
            report(0, None, "starting Spark")
            place = settings["master"]
            remote = is_remote(place)
            return stack.enter_context(
                start(
                    Settings(
                        master=None if remote else place,
                        remote=place if remote else None,
                        memory_mb=settings["memory_mb"],
                        conf={} if remote else {"spark.driver.extraJavaOptions": JAVA_OPTIONS},
                        environment=os.environ,
                    )
                )
            )

        job: Job | None = None
        while True:
            turns.get()
            try:
                if job is None:
                    most = EVENTS_PER_MB * settings["memory_mb"]
                    job = Job(settings["lake"], session, batch_events=most, report=report)
                with failure.told():
                    done = job.run(settings["journal"]).plain()
            except MissingExtra as error:
                _say(answers, {"missing": str(error)})
            except (StoreUnavailable, StoreFull) as error:
                # It may be Spark itself that failed: the next turn has another process.
                _say(answers, {"error": str(error), "over": True})
                return
            except (PosthouseError, OSError) as error:
                _say(answers, {"error": str(failure_of(error))})
            else:
                _say(answers, done)


def _say(answers: TextIO, answer: Answer) -> None:
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


if __name__ == "__main__":
    main()
