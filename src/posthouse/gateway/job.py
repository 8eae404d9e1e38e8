"""One lease and its work: what the handler makes of it, as commands that settle it.

In: what was leased, and a handler. Out: the commands that settle it, replies among them, and what became of it as the
counters name it. It submits nothing and starts nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from ..engine.engine import Engine
from ..errors import InvalidInput
from ..mailbox.command import Command, Post, Settle, Together, Verdict
from ..mailbox.message import SECOND, check_message
from ..mailbox.outcome import Delivery, Refused
from .answer import DELAY_S_MAX, Away, Handler, Reject, RetryLater, Work
from .letter import Inbound, Reply

log = logging.getLogger("posthouse.gateway")

ERROR_CHARS_MAX = 2_000


class Job:
    """One lease and the task that works on it."""

    __slots__ = (
        "commands", "deliveries", "late", "lost", "replies", "settling", "task", "tenant", "token", "what",
        "work",
    )  # fmt: skip

    def __init__(self, token: str, deliveries: Sequence[Delivery]) -> None:
        self.token = token
        self.deliveries = deliveries
        self.tenant = deliveries[0].message.mailbox
        self.task: asyncio.Task[None] | None = None
        self.work: Work | None = None
        self.lost = self.late = self.settling = False
        self.what = ""
        """What became of it, as ``WorkerStats`` counts it."""
        self.replies = 0
        self.commands: list[Command] = []


class Handling:
    """Has work handled, and says how it is to be settled."""

    def __init__(self, engine: Engine, handler: Handler, holder: str, began: Callable[[Work], None], slow: str) -> None:
        """``began`` is told of every work that a handler is given, and sees to its time; ``slow``: why it ends it."""
        self._engine = engine
        self._handler = handler
        self._holder = holder
        self._began = began
        self._slow = slow

    async def handled(self, job: Job) -> list[Command]:
        """Have it handled; how it is to be settled."""
        try:
            work = Work([Inbound.from_message(d.message) for d in job.deliveries], job.deliveries[0].attempt)
        except InvalidInput as wrong:
            job.what = "rejected"
            return self._settles(job, Verdict.DEAD, error=f"not a message of the gateway: {wrong}")
        job.work = work
        self._began(work)
        try:
            replies = await self._handler.handle(work)
            posts = self._posts(work, replies) if replies else []
        except RetryLater as later:
            job.what = "retried"
            reason = "rate_limited" if later.rate_limited else None
            return self._settles(job, Verdict.RETRY, later.after_s, reason, str(later))
        except Away as away:
            job.what = "away"
            return self._settles(job, Verdict.RETURN, away.after_s, "offline", str(away))
        except (Reject, InvalidInput) as rejection:
            job.what = "rejected"
            return self._settles(job, Verdict.REJECTED, error=str(rejection))
        except asyncio.CancelledError:
            if job.lost or not job.late:
                raise
            job.what = "timed_out"
            return self._settles(job, Verdict.RETRY, error=self._slow)
        except Exception as error:
            job.what = "retried"
            log.warning("the handler failed on %s", work.message.id, exc_info=error)
            return self._settles(job, Verdict.RETRY, error=f"{type(error).__name__}: {error}")
        finally:
            work.end()
        job.what, job.replies = "handled", len(posts)
        settles = self._settles(job, Verdict.DELIVERED)
        return settles if len(settles) == 1 and not posts else [Together((*posts, *settles))]

    def _posts(self, work: Work, replies: Sequence[Reply]) -> list[Post]:
        now = self._engine.now()
        posts: list[Post] = []
        for number, reply in enumerate(replies):
            message = reply.answering(work.message, number, now).message()
            check_message(message)
            # What is answered must not be asked again because the queue of answers is full.
            posts.append(Post(message, exempt=True))
        return posts

    def _settles(
        self, job: Job, verdict: Verdict, after_s: float | None = None, reason: str | None = None, error: str = ""
    ) -> list[Command]:
        """The same for every message of the batch."""
        due_at = None if after_s is None else self._engine.now() + int(bounded_s(after_s) * SECOND)
        text = error.encode(errors="replace").decode()[:ERROR_CHARS_MAX] if error else None
        return [
            Settle(d.message.ref, job.token, verdict, due_at=due_at, reason=reason, error=text, holder=self._holder)
            for d in job.deliveries
        ]

    def reject(self, job: Job, outcome: Refused) -> None:
        """Its reply cannot be stored (oversize), and so never could be."""
        job.what, job.replies = "rejected", 0
        why = f"the reply cannot be kept: {outcome.detail or outcome.reason}"
        job.commands = self._settles(job, Verdict.REJECTED, error=why)


def bounded_s(after_s: float) -> float:
    """A wait that somebody else asked for, as far as it makes sense."""
    return min(max(after_s, 0.0), DELAY_S_MAX) if after_s == after_s else DELAY_S_MAX
