"""Jobs: long operations in threads of their own, and how far they are.

In: an operation to run. Out: a job that can be looked at and stopped. Only so many run at a time, and of those that
ended only the last are remembered. A job that is stopped keeps what it did so far.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import threading
from collections.abc import Callable

from ..control.operation import Answer, Json, Refused, Stopped
from ..errors import PosthouseError
from .problem import Problem

log = logging.getLogger("posthouse.console")

RUNNING_MAX = 4
REMEMBERED_MAX = 200
CLOSE_S = 10.0

Report = Callable[[int, int | None, str], None]


class Job:
    """One long operation."""

    def __init__(self, act: str, by: str) -> None:
        self.id = secrets.token_urlsafe(12)
        self.act = act
        self.by = by
        self.done = 0
        self.total: int | None = None
        self.doing = ""
        self.state = "running"
        """running, done, refused, stopped or failed."""
        self.result: Json = {}
        self.error = ""
        self.stopping = threading.Event()
        self.ended = asyncio.Event()

    def report(self, done: int, total: int | None, doing: str) -> None:
        """Called by the operation, on its own thread."""
        self.done, self.total, self.doing = done, total, doing
        if self.stopping.is_set():
            raise Stopped(f"stopped; {doing} ended after {done}")

    def as_json(self) -> Json:
        """What the API tells of it."""
        return {
            "job": self.id,
            "act": self.act,
            "by": self.by,
            "state": self.state,
            "done": self.done,
            "total": self.total,
            "doing": self.doing,
            "result": self.result,
            "error": self.error or None,
        }


class Jobs:
    """The jobs of this process."""

    def __init__(self) -> None:
        self._jobs: dict[str, Job] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, act: str, by: str, run: Callable[[Report], Answer]) -> Job:
        """Begin one; a Problem if too many run."""
        if len(self._tasks) >= RUNNING_MAX:
            raise Problem("busy", f"{len(self._tasks)} jobs run already; wait for one to end, or stop one")
        job = Job(act, by)
        while len(self._jobs) >= REMEMBERED_MAX:
            oldest = next(known for known in self._jobs.values() if known.state != "running")
            del self._jobs[oldest.id]
        self._jobs[job.id] = job
        task = asyncio.get_running_loop().create_task(self._run(job, run), name=f"console job {act}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return job

    def get(self, id: str) -> Job:
        """The job of this id; a Problem if there is none."""
        job = self._jobs.get(id)
        if job is None:
            raise Problem("not_found", "there is no such job (any more)")
        return job

    async def close(self) -> None:
        """Stop every job at its next step."""
        for job in self._jobs.values():
            job.stopping.set()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CLOSE_S)

    async def _run(self, job: Job, run: Callable[[Report], Answer]) -> None:
        try:
            answer = await asyncio.to_thread(run, job.report)
            if isinstance(answer, Refused):
                job.state, job.error = "refused", answer.message
            else:
                job.state, job.result = "done", answer
        except Stopped as error:
            job.state, job.error = "stopped", str(error)
        except PosthouseError as error:
            job.state, job.error = "failed", str(error)
        except Exception:
            log.exception("the job %s failed", job.act)
            job.state, job.error = "failed", "something went wrong; the log says more"
        finally:
            job.ended.set()
