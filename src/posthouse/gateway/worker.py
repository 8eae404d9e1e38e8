"""The worker: leases what came in, has it handled, and settles it together with the replies.

    lease (the next due lane of the desk) → handler → Together(post replies, settle)   one commit: all or nothing
                                              │
                                              ├ RetryLater, an error, silence for too long → back, by the ladder
                                              ├ Away → back, uncounted
                                              └ Reject → dead letter

One message (or batch) of a session at a time: that is the desk's window. Sessions run side by side up to ``slots`` for
one tenant, and ``spare`` more for the others (``Places``). Which comes next, the engine says: the least recently served
tenant, in it the least recently served session. What is done in one turn of the event loop is settled together.
A lease is renewed while its handler works. A handler whose lease was lost all the same (the process slept, the store
was away) is cancelled; were it to go on, it could neither settle nor reply, since both need the lease.

In: the engine, a handler. Out: commands. It keeps no message and knows no channel.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from ..engine.engine import Engine
from ..engine.tasks import Tasks
from ..errors import EngineClosed, StoreError
from ..mailbox.command import Lease, Release, Renew, Together
from ..mailbox.outcome import FAILURES, Leased, LeaseLost, Outcome, Refused
from .answer import Handler, Work
from .job import Handling, Job
from .letter import INBOUND_DESK
from .places import Places
from .stats import WorkerStats

log = logging.getLogger("posthouse.gateway")

LEASES_MAX = 64
"""Leases that are asked for in one go."""
SETTLED_MAX = 250
"""Sessions that are settled in one go; more are settled in several."""
STORE_PAUSE_S = 1.0
"""How long to wait after the store refused, before the same is tried again."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a worker goes by."""

    slots: int = 32
    """Sessions of one tenant side by side."""
    spare: int = 0
    """Places beyond those, for other tenants."""
    timeout_s: float = 120.0
    """Without a word from the handler."""
    max_s: float = 3_600.0
    """In all."""
    grace_s: float = 10.0
    """How long handlers may finish when the worker is told to stop."""


class Worker:
    """Works off the inbound desk from ``start`` to ``close``."""

    def __init__(
        self,
        engine: Engine,
        handler: Handler,
        limits: Limits | None = None,
        *,
        holder: str = "gateway",
        desk: str = INBOUND_DESK,
    ) -> None:
        self.stats = WorkerStats()
        self._engine = engine
        self._limits = limits or Limits()
        slow = f"the handler said nothing for {self._limits.timeout_s:g} s, or worked for {self._limits.max_s:g} s"
        self._handling = Handling(engine, handler, holder, self._limit, slow)
        self._holder = holder
        self._desk = desk
        self._tokens = (f"{secrets.token_hex(8)}-{number}" for number in itertools.count())
        self._asked: set[str] = set()
        """Tokens of leases that were asked for and not answered yet."""
        self._places = Places(self._limits.slots, self._limits.spare)
        self._jobs: dict[str, Job] = {}
        self._done: list[Job] = []
        """Jobs that were done in this turn of the loop and are to be settled."""
        self._room = asyncio.Event()
        self._room.set()
        self._backlog = False
        """More is due than there are places: who settles takes the next in the same commit."""
        self._loop: asyncio.AbstractEventLoop
        self._look_at_s = math.inf
        self._looking: asyncio.TimerHandle | None = None
        self._tasks = Tasks(log, level=logging.CRITICAL)
        self._dispatching: asyncio.Task[None] | None = None
        """From ``start`` to ``close``."""

    def start(self) -> None:
        """Begin to work; on a running event loop."""
        self._loop = asyncio.get_running_loop()
        self._dispatching = self._tasks.spawn(self._dispatch(), "the worker")
        lease_s = self._engine.store.policies[self._desk].lease_s
        if lease_s is not None:
            self._tasks.spawn(self._renew(lease_s / 3), "renewing of leases")

    async def close(self) -> None:
        """Take nothing more, let handlers finish for a while, give back the rest. Idempotent."""
        if self._dispatching is None:
            return
        dispatching, self._dispatching = self._dispatching, None
        self._backlog = False
        dispatching.cancel()
        await asyncio.gather(dispatching, return_exceptions=True)
        try:
            async with asyncio.timeout(self._limits.grace_s):
                while self._jobs:
                    self._room.clear()
                    await self._room.wait()
        except TimeoutError:
            pass
        running = [job.task for job in self._jobs.values() if job.task is not None]
        for task in running:
            task.cancel()
        await asyncio.gather(self._tasks.close(), *running, return_exceptions=True)
        if self._looking is not None:
            self._looking.cancel()
        self._settle_all()
        # Whatever was submitted before these, leases among it, takes effect before them.
        left = [*self._asked, *self._jobs]
        self._asked.clear()
        self._jobs.clear()
        self.stats.running = 0
        if left:
            try:
                await self._engine.apply(*[Release(self._desk, token) for token in left])
            except StoreError as error:
                log.warning("%d leases were not given back: %s", len(left), error)

    # Taking work.

    async def _dispatch(self) -> None:
        want = 1
        while True:
            await self._room.wait()
            most = min(self._places.whole - len(self._jobs), self._places.at_once(), LEASES_MAX)
            if most <= 0:
                self._room.clear()  # who settled has taken the next one itself
                continue
            want = max(1, min(want, most))
            with self._engine.bell.ticket(self._desk, None) as ticket:
                try:
                    taken = await self._lease(want)
                except EngineClosed:
                    raise
                except StoreError as error:
                    log.error("nothing can be taken for now: %s", error)
                    await asyncio.sleep(STORE_PAUSE_S)
                    continue
                self._backlog = taken == want
                if self._backlog:
                    want *= 2
                    continue
                want = max(1, taken)
                await ticket.wait()

    async def _lease(self, count: int) -> int:
        """Take up to so many lanes' next messages, and start on them; how many there were."""
        full = self._places.full()
        leases = [self._next_lease(full) for _ in range(count)]
        try:
            outcomes = await self._engine.apply(*leases)
        except StoreError:
            self._unheard(leases)
            raise
        finally:
            self._places.asked -= count
        return sum([self._taken(outcome) for outcome in outcomes])

    def _next_lease(self, full: tuple[str, ...]) -> Lease:
        lease = Lease(self._desk, None, next(self._tokens), self._holder, besides=full)
        self._asked.add(lease.token)
        self._places.asked += 1
        return lease

    def _unheard(self, leases: Sequence[Lease]) -> None:
        """Whether these took something is unknown: soon, what they took goes back uncounted."""
        if leases:
            self._loop.call_later(STORE_PAUSE_S, self._release, [lease.token for lease in leases])

    def _release(self, tokens: list[str]) -> None:
        try:
            future = self._engine.submit(*[Release(self._desk, token) for token in tokens])
        except EngineClosed:
            return
        future.add_done_callback(functools.partial(self._released, tokens))

    def _released(self, tokens: list[str], future: asyncio.Future[list[Outcome]]) -> None:
        error = future.exception()
        if error is None:
            self._asked.difference_update(tokens)
        elif not isinstance(error, EngineClosed):
            self._loop.call_later(STORE_PAUSE_S, self._release, tokens)

    def _taken(self, outcome: Outcome) -> bool:
        """Start on what was taken, if something was."""
        # The desk is there, so the engine has no reason to refuse.
        assert isinstance(outcome, Leased)
        if self._dispatching is None:
            return False  # told to stop meanwhile: it is given back with what was asked for
        self._asked.discard(outcome.token)
        if outcome.deliveries:
            self._begin(Job(outcome.token, outcome.deliveries))
        return bool(outcome.deliveries)

    def _begin(self, job: Job) -> None:
        self._jobs[job.token] = job
        self._places.take(job.tenant)
        self.stats.running = len(self._jobs)
        if len(self._jobs) >= self._places.whole:
            self._room.clear()
        job.task = self._loop.create_task(self._work(job))

    def _over(self, job: Job) -> None:
        """The lease is settled or lost: nothing is to be given back."""
        self._jobs.pop(job.token, None)
        self.stats.running = len(self._jobs)
        self._room.set()

    # Working.

    async def _work(self, job: Job) -> None:
        try:
            job.commands = await self._handling.handled(job)
        except asyncio.CancelledError:
            self._places.leave(job.tenant)
            if not job.lost:
                raise  # told to stop: the lease is given back with the others
            self.stats.fenced += len(job.deliveries)
            self._over(job)
            return
        job.settling = True
        if not self._done:
            self._loop.call_soon(self._settle_all)
        self._done.append(job)

    # Its time.

    def _limit(self, work: Work) -> None:
        """From now on the work is given up where nothing is heard of it. One timer looks after all of them."""
        due_s = work.begin(self._loop, self._limits.timeout_s, self._limits.max_s)
        if due_s < self._look_at_s:
            self._look_at(due_s)

    def _look_at(self, at_s: float) -> None:
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None
        self._look_at_s = at_s
        if at_s < math.inf:
            self._looking = self._loop.call_at(at_s, self._look)

    def _look(self) -> None:
        # Behind those whose time came before it while the loop was held up: what they have to say is heard first.
        self._loop.call_soon(self._give_up, self._look_at_s)

    def _give_up(self, by_s: float) -> None:
        """End what was due by then. The time is not asked for: it may be later by as long as the loop was held up."""
        soonest_s = math.inf
        for job in self._jobs.values():
            if job.work is None or job.task is None:
                continue
            if job.work.due_s <= by_s:
                job.late = True
                job.work.end()
                job.task.cancel()
            else:
                soonest_s = min(soonest_s, job.work.due_s)
        self._look_at(soonest_s)

    # Settling.

    def _settle_all(self) -> None:
        """Settle what was done in this turn of the loop."""
        done, self._done = self._done, []
        for first in range(0, len(done), SETTLED_MAX):
            self._settle(done[first : first + SETTLED_MAX], follow=True)

    def _settle(self, jobs: list[Job], *, follow: bool) -> None:
        """Settle these and, where more is due than there are places, take the next in theirs in the same commit."""
        leases: list[Lease] = []
        if follow:
            for job in jobs:
                more = self._places.leave(job.tenant)
                if (more or self._backlog) and self._dispatching is not None and self._places.may_ask():
                    leases.append(self._next_lease(self._places.full()))
        try:
            future = self._engine.submit(*[command for job in jobs for command in job.commands], *leases)
        except Exception as error:
            self._places.asked -= len(leases)
            self._asked.difference_update([lease.token for lease in leases])
            self._failed(jobs, error)
        else:
            future.add_done_callback(functools.partial(self._settled, jobs, leases))

    def _settled(self, jobs: list[Job], leases: list[Lease], future: asyncio.Future[list[Outcome]]) -> None:
        self._places.asked -= len(leases)
        error = future.exception()
        if error is not None:
            self._unheard(leases)
            self._failed(jobs, error)
            return
        outcomes = future.result()
        refused: list[Job] = []
        number = 0
        for job in jobs:
            outcome = outcomes[number]
            number += len(job.commands)
            if isinstance(outcome, Refused) and isinstance(job.commands[0], Together):
                self._handling.reject(job, outcome)
                refused.append(job)
                continue
            if isinstance(outcome, FAILURES):
                job.what, job.replies = "fenced", 0
                log.warning("%s was handled, but its lease was lost: dropped", job.deliveries[-1].message.id)
            setattr(self.stats, job.what, getattr(self.stats, job.what) + len(job.deliveries))
            self.stats.replies += job.replies
            self._over(job)
        for outcome in outcomes[number:]:
            if not self._taken(outcome):
                self._backlog = False
        if refused:
            self._settle(refused, follow=False)

    def _failed(self, jobs: list[Job], error: BaseException) -> None:
        """They are not settled, or whether they are is unknown."""
        if isinstance(error, StoreError) and not isinstance(error, EngineClosed):
            # If it took effect, the repeat finds no lease and does nothing.
            log.error("%d messages are not settled yet: %s", len(jobs), error)
            self._loop.call_later(STORE_PAUSE_S, self._settle_again, jobs)
        elif len(jobs) > 1 and not isinstance(error, EngineClosed):
            # The fault is one message's: the others are settled without it.
            for job in jobs:
                self._settle([job], follow=False)
        else:
            if not isinstance(error, EngineClosed):
                # Nobody renews its lease any more, so it comes again when that is over.
                log.error("%s could not be settled", jobs[0].deliveries[-1].message.id, exc_info=error)
            for job in jobs:
                self._over(job)  # after a closed engine, the next process finds the lease, and takes it from there

    def _settle_again(self, jobs: list[Job]) -> None:
        left = [job for job in jobs if job.token in self._jobs]
        if left:
            self._settle(left, follow=False)

    # Renewing.

    async def _renew(self, every_s: float) -> None:
        """Keep every lease whose handler works; its own time limit ends a handler that hangs."""
        while True:
            await asyncio.sleep(every_s)
            jobs = list(self._jobs.values())
            if not jobs:
                continue
            try:
                outcomes = await self._engine.apply(*[Renew(self._desk, job.token) for job in jobs])
            except EngineClosed:
                return
            except StoreError as error:
                log.warning("%d leases were not renewed: %s", len(jobs), error)
                continue
            for job, outcome in zip(jobs, outcomes, strict=True):
                # One that is being settled is told there.
                if isinstance(outcome, LeaseLost) and not job.settling and job.task is not None:
                    job.lost = True
                    job.task.cancel()
