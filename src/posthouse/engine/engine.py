"""The engine: the one way to a store, for coroutines and for plain threads.

In: commands, checked here in the caller's own thread. Out: outcomes, once the commit that holds them is
durable. It knows no role and keeps no message: what makes desks differ is in their policies, what
happened is in the store.

Where a call exists in two forms, the one that begins with ``a`` is for coroutines; ``apply`` and ``do``
are for coroutines too, and ``call`` is their blocking twin.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, TypeVar

from ..mailbox.check import check_command
from ..mailbox.command import Command, Lease, Shift, Start, Sweep
from ..mailbox.message import Instant
from ..mailbox.outcome import Leased, Outcome, Refused, Started, Swept
from ..mailbox.store import Store
from .bell import Bell
from .clock import JUMP_US, Clock
from .effects import FAR, Effects
from .stats import Stats
from .sweeper import SWEEP_S, Sweeper
from .writer import GROUP_MAX, QUEUE_MAX, LastCommands, Wakeup, Writer

log = logging.getLogger("posthouse.engine")

READERS = 2
"""Threads for heavy read queries: more would only fight the writer for the processor."""

T = TypeVar("T")
CommitHook = Callable[[Sequence[Command], Sequence[Outcome], float], None]
"""Told of each commit on the writer's thread: its commands, their outcomes, the seconds it took."""


class Engine:
    """Runs one store: a writer, a bell, a sweeper."""

    def __init__(
        self,
        store: Store,
        *,
        clock: Clock | None = None,
        queue_max: int = QUEUE_MAX,
        group_max: int = GROUP_MAX,
        linger_s: float = 0.0,
        sweep_s: float = SWEEP_S,
        on_failure: Callable[[BaseException], None] | None = None,
    ) -> None:
        """``linger_s`` is how long a commit waits for more where another began just before: for a server of many.

        ``on_failure`` is told, on the writer's thread, that the engine has stopped for good.
        """
        self.clock = clock or Clock()
        self.bell = Bell()
        self.on_commit: list[CommitHook] = []
        self.before_trim: list[Callable[[], None]] = []
        """Called before journal chunks are trimmed, by whoever exports them: the last chance to read them."""
        self.on_call: list[Callable[[Sequence[Command]], None]] = []
        """Told, on the caller's thread, what a plain thread (an operator, mostly) has applied with ``call``."""
        self._store = store
        self._policies = store.policies
        self.stats = Stats()
        self._effects = Effects(store.policies, self.stats.outcomes)
        self._failure_callback = on_failure
        self._writer = Writer(
            store,
            self.clock,
            self.stats,
            after_commit=self._after_commit,
            on_failure=self._failed,
            queue_max=queue_max,
            group_max=group_max,
            linger_s=linger_s,
        )
        self.sweeper = Sweeper(
            store, self.clock, self.bell, self._sweep, on_failure=self._writer.abort, sweep_s=sweep_s
        )
        self._readers: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()
        self._close_lock = threading.Lock()
        self._closed = False

    # Life.

    def start(self, restored_from: Mapping[str, Any] | None = None) -> Started:
        """Take the store into use: end the leases of the process before, and start the threads.

        Where that fails (the disk is full, say), the engine is closed and the store is let go of.
        """
        self._writer.start()
        try:
            started = self._take_over(restored_from)
        except BaseException:
            self.close()
            raise
        self.sweeper.start()
        return started

    def _take_over(self, restored_from: Mapping[str, Any] | None) -> Started:
        commands: list[Command] = []
        last_at = getattr(self._store, "last_at", lambda: None)()
        if last_at is not None:
            behind_us = last_at - self.clock.now()
            if behind_us > JUMP_US:
                # The clock went back while no process had the store. Its waits keep their length.
                log.warning("the clock is %.0f s behind the store's last event", behind_us / 1e6)
                commands.append(Shift(-behind_us))
        commands.append(Start(self._policies, restored_from))
        started = self.call(*commands)[-1]
        assert isinstance(started, Started)
        return started

    async def astart(self, restored_from: Mapping[str, Any] | None = None) -> Started:
        """``start`` without holding up the event loop."""
        return await asyncio.to_thread(self.start, restored_from)

    def close(self, last: LastCommands | None = None) -> None:
        """Finish all that was accepted, stop the threads, close the store. Idempotent.

        ``last`` is asked, when nothing more is accepted, for commands to end with: releases, for instance.
        """
        self.flush()
        self._close(last)

    async def aclose(self, last: LastCommands | None = None) -> None:
        """``close`` without holding up the event loop."""
        self.flush()
        await asyncio.to_thread(self._close, last)

    def flush(self) -> None:
        """Hand over what the tasks of this very iteration have submitted, if a loop runs in this thread.

        It would be handed over at the iteration's end; what closes the engine before that must not cut it off.
        """
        self._writer.flush()

    def _close(self, last: LastCommands | None) -> None:
        # A failure callback may close the engine on the writer's thread, for which another closer waits.
        if not self._close_lock.acquire(blocking=not self._writer.is_current_thread()):
            return
        try:
            if self._closed:
                return
            self.sweeper.stop()
            with self._lock:
                readers, self._readers = self._readers, None
                self._closed = True
            if readers is not None:
                readers.shutdown(cancel_futures=True)
            # Before the writer stops, so that nobody waits for a ring that cannot come.
            self.bell.close(self._writer.closed_error)
            self._writer.stop(last)
        finally:
            self._close_lock.release()

    @property
    def closed(self) -> bool:
        """Whether it takes no more commands: closed, or stopped by a failure."""
        return self._closed or self._writer.failure is not None

    def failure(self) -> BaseException | None:
        """What stopped it, if something did."""
        return self._writer.failure

    def __enter__(self) -> Engine:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Engine:
        await self.astart()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    # Commands.

    def submit(self, *commands: Command) -> asyncio.Future[list[Outcome]]:
        """Submit from a coroutine or callback without waiting; the commands of one call are one commit.

        Whoever does not await the future at once must bound how many it leaves open.
        """
        for command in commands:
            check_command(command, self._policies)
        return self._writer.submit(commands)

    async def apply(self, *commands: Command) -> list[Outcome]:
        """Apply commands in one commit; their outcomes once it is durable.

        Cancelled while it waits for room in the queue, nothing happens; later, the commands take effect
        all the same.
        """
        future = self.submit(*commands)
        try:
            return await future
        except asyncio.CancelledError:
            self._writer.withdraw(future)
            raise

    async def do(self, command: Command) -> Outcome:
        """Apply one command."""
        check_command(command, self._policies)
        future = self._writer.submit((command,))
        try:
            outcomes: list[Outcome] = await future
        except asyncio.CancelledError:
            self._writer.withdraw(future)
            raise
        return outcomes[0]

    def call(self, *commands: Command) -> list[Outcome]:
        """Apply commands in one commit, blocking; for plain threads."""
        for command in commands:
            check_command(command, self._policies)
        outcomes: list[Outcome] = self._writer.call(commands)
        for told in self.on_call:
            told(commands)
        return outcomes

    async def alease(self, lease: Lease, wait_s: float | None = None) -> Leased | Refused:
        """Lease, waiting until there is something (or ``wait_s`` have passed: then it is empty)."""
        until = None if wait_s is None else time.monotonic() + wait_s
        while True:
            with self.bell.ticket(lease.desk, lease.mailbox) as ticket:
                leased = await self.do(lease)
                assert isinstance(leased, Leased | Refused)
                if isinstance(leased, Refused) or leased.deliveries:
                    return leased
                left_s = None if until is None else until - time.monotonic()
                if left_s is not None and left_s <= 0:
                    return leased
                await ticket.wait(left_s)

    def lease(self, lease: Lease, wait_s: float | None = None) -> Leased | Refused:
        """The same, blocking; for plain threads."""
        until = None if wait_s is None else time.monotonic() + wait_s
        while True:
            with self.bell.ticket(lease.desk, lease.mailbox) as ticket:
                leased = self.call(lease)[0]
                assert isinstance(leased, Leased | Refused)
                if isinstance(leased, Refused) or leased.deliveries:
                    return leased
                left_s = None if until is None else until - time.monotonic()
                if left_s is not None and left_s <= 0:
                    return leased
                ticket.wait_blocking(left_s)

    # The store itself.

    @property
    def store(self) -> Store:
        """For read queries, from any thread; they see what is committed."""
        return self._store

    def now(self) -> Instant:
        """The time by its clock."""
        return self.clock.now()

    def queued(self) -> int:
        """Commands accepted and not yet taken by the writer."""
        return self._writer.queued

    def waiting(self) -> int:
        """Submissions that wait for room in the queue."""
        return self._writer.waiting

    async def read(self, query: Callable[[Store], T]) -> T:
        """Run a read query in a thread of its own, so that a heavy one does not hold up the event loop."""
        with self._lock:
            if self._closed:
                raise self._writer.closed_error()
            if self._readers is None:
                self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="posthouse-reader")
            running = self._readers.submit(query, self._store)
        return await asyncio.wrap_future(running)

    def maintain(self, job: Callable[[Store], T]) -> T:
        """Run a job on the writer's thread between two groups, behind what was submitted before; blocking.

        Nothing is committed meanwhile, so a job is short, and long work is many jobs.
        """
        result: T = self._writer.call((), job)
        return result

    async def amaintain(self, job: Callable[[Store], T]) -> T:
        """The same, for coroutines."""
        result: T = await self._writer.submit((), job)
        return result

    # What the writer and the sweeper call back.

    def _sweep(self, command: Sweep) -> Swept:
        swept = self._writer.call((command,))[0]
        assert isinstance(swept, Swept)
        return swept

    def _after_commit(self, commands: Sequence[Command], outcomes: Sequence[Outcome], seconds: float) -> list[Wakeup]:
        effects, sweeper = self._effects, self.sweeper
        effects.begin()
        effects.gather(commands, outcomes)
        sweeper.leases_until = effects.leases_until
        if effects.soonest != FAR:
            sweeper.arm(effects.soonest)
        if effects.unsure:
            if effects.shifted_us:
                self.stats.shifts += 1
            sweeper.doubt(effects.shifted_us)
        for hook in self.on_commit:
            try:
                hook(commands, outcomes, seconds)
            except Exception:
                log.exception("a commit hook failed")
        # Asked after the commit: whoever took a ticket since has not looked yet, or sees it.
        if self.bell.listening:
            return self.bell.ring(effects.keys, effects.desks, effects.everyone)
        return []

    def _failed(self, error: BaseException) -> None:
        self.bell.close(self._writer.closed_error)
        if self._failure_callback is not None:
            self._failure_callback(error)
