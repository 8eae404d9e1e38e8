"""The inbox as a program sees it: messages in order of their trades, each until it is settled.

    async for message in peer.messages():
        try: …
        except …: await message.reject("why")      a failed acknowledgement: it is final on both sides
        else: await message.done()                  the acknowledgement

In: the engine. Out: messages, one of each trade at a time, and commands for what becomes of them. A message that is
neither done nor rejected comes again, and its sender gets no acknowledgement meanwhile. While a program has a message,
its lease is renewed.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from ..control.trade import INBOX_DESK
from ..errors import EngineClosed, PosthouseError, StoreError
from ..mailbox.check import ERROR_CHARS_MAX
from ..mailbox.command import Lease, Release, Renew, Settle, Verdict
from ..mailbox.message import SECOND, State
from ..mailbox.outcome import Delivery, Leased, Outcome, Settled
from . import frame
from .port import Office
from .receiver import Receiver
from .stats import Stats

log = logging.getLogger("posthouse.peer")

STORE_PAUSE_S = 1.0


class Reject(PosthouseError):
    """Raised by a handler: this message can never be right. Its sender is told so, with the reason."""

    code = "rejected"


class RetryLater(PosthouseError):
    """Raised by a handler: not now. It comes again, after ``after_s`` if that is given."""

    code = "retry"

    def __init__(self, after_s: float | None = None, error: str = "") -> None:
        super().__init__(error or "later")
        self.after_s = after_s


class Incoming:
    """A message of a trade, until it is settled."""

    def __init__(self, inbox: Inbox, delivery: Delivery, token: str) -> None:
        self._inbox = inbox
        self._delivery = delivery
        self.token = token
        message = delivery.message
        self.id = message.id
        self.peer = message.mailbox
        """Who sent it: proven by the connection, and the other party of the trade."""
        self.trade = message.lane
        self.type = message.kind
        self.order = message.headers.get("order_id", "")
        self.sequence = int(message.headers.get("sequence_num", "0"))
        self.timestamp = int(message.headers.get("timestamp", "0"))
        self.timeout_s = int(message.headers.get("swap_timeout", "0"))
        """When the trade ends, in seconds since 1970; 0: not said."""
        self.signed = "signature" in message.headers
        self.attempt = delivery.attempt

    @property
    def payload(self) -> Any:
        """What it says, as plain values."""
        return frame.loads(self._delivery.message.body)

    def plain(self) -> dict[str, Any]:
        """All of it as plain values."""
        names = ("id", "peer", "trade", "type", "order", "sequence", "timestamp", "timeout_s", "signed", "attempt")
        return {name: getattr(self, name) for name in names} | {"payload": self.payload}

    async def done(self) -> bool:
        """It was processed: its sender is told. False if it was taken from us meanwhile."""
        return await self._inbox.settle(self._delivery, self.token, Verdict.DELIVERED)

    async def reject(self, reason: str) -> bool:
        """It can never be right: its sender is told, and does not try again."""
        return await self._inbox.settle(self._delivery, self.token, Verdict.REJECTED, error=reason or "rejected")

    async def retry(self, after_s: float | None = None, error: str = "") -> bool:
        """It failed for the moment: it comes again."""
        return await self._inbox.settle(self._delivery, self.token, Verdict.RETRY, after_s, error)

    def __repr__(self) -> str:
        return f"<Incoming {self.type} {self.sequence} of trade {self.trade!r} from {self.peer!r}>"


Handler = Callable[[Incoming], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class WorkLimits:
    """What handlers get."""

    workers: int = 32
    """Trades that are worked on side by side."""
    timeout_s: float = 60.0
    grace_s: float = 2.0


class Inbox:
    """Hands out what has come."""

    def __init__(self, office: Office, receiver: Receiver, stats: Stats, limits: WorkLimits | None = None) -> None:
        self._office = office
        self._receiver = receiver
        self._stats = stats
        self._limits = limits or WorkLimits()
        self._tokens = (f"{secrets.token_hex(8)}-{number}" for number in itertools.count())
        self._held: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._jobs: set[asyncio.Task[None]] = set()
        self._room = asyncio.Event()
        self._handler: Handler | None = None
        self._wanted = 0
        """Leases that others asked for on behalf of the handler, and that are on their way."""
        lease_s = office.store.policies[INBOX_DESK].lease_s
        if lease_s is not None:
            self._tasks.add(asyncio.create_task(self._renew(lease_s / 3), name="peer renewals"))

    async def messages(self) -> AsyncIterator[Incoming]:
        """What has come, as it comes. What is not settled when the loop is left comes again."""
        while True:
            token = next(self._tokens)
            self._held.add(token)
            try:
                delivery = await self._next(token)
            except EngineClosed:
                return
            except BaseException:
                self._give_back(token)
                raise
            try:
                yield Incoming(self, delivery, token)
            except GeneratorExit:
                self._give_back(token)
                raise

    async def _next(self, token: str) -> Delivery:
        while True:
            with self._office.bell.ticket(INBOX_DESK, None) as ticket:
                leased = await self._office.do(Lease(INBOX_DESK, None, token, "peer"))
                if isinstance(leased, Leased) and leased.deliveries:
                    return leased.deliveries[0]
                await ticket.wait()

    def _give_back(self, token: str) -> None:
        if token in self._held:
            self._held.discard(token)
            with contextlib.suppress(StoreError):
                self._office.submit(Release(INBOX_DESK, token)).add_done_callback(_forget)

    async def settle(
        self, delivery: Delivery, token: str, verdict: Verdict, after_s: float | None = None, error: str = ""
    ) -> bool:
        """For messages: say what became of one; those who wait to acknowledge it are told."""
        due_at = None if after_s is None else self._office.now() + int(after_s * SECOND)
        text = error.encode(errors="replace").decode()[:ERROR_CHARS_MAX] or None
        ref = delivery.message.ref
        outcome = await self._office.do(Settle(ref, token, verdict, due_at=due_at, error=text, holder="peer"))
        self._held.discard(token)
        if not isinstance(outcome, Settled):
            return False
        stats = self._stats
        if outcome.state is State.DELIVERED:
            stats.processed += 1
        elif outcome.state is State.DEAD:
            stats.refused_by_handler += 1
        else:
            stats.failed += 1
            return True
        self._receiver.settled(ref, outcome.state, error)
        return True

    # Handlers.

    def work(self, handler: Handler) -> None:
        """Have everything that comes processed by a handler, until ``close``."""
        self._handler = handler
        self._receiver.worker = self
        self._tasks.add(asyncio.create_task(self._dispatch(handler), name="peer worker"))

    async def _dispatch(self, handler: Handler) -> None:
        want = 1
        while True:
            free = self._limits.workers - len(self._jobs)
            if free <= 0:
                self._room.clear()
                await self._room.wait()
                continue
            want = min(want, free)
            with self._office.bell.ticket(INBOX_DESK, None) as ticket:
                try:
                    taken = await self._take(handler, want)
                except EngineClosed:
                    return
                except StoreError as error:
                    log.error("nothing can be taken from the inbox for now: %s", error)
                    await asyncio.sleep(STORE_PAUSE_S)
                    continue
                if taken == want:
                    want *= 2
                    continue
                want = max(1, taken)
                await ticket.wait()

    async def _take(self, handler: Handler, want: int) -> int:
        """Take up to so many trades' next messages, and begin with them; how many there were."""
        leases = [Lease(INBOX_DESK, None, next(self._tokens), "peer") for _ in range(want)]
        self._held.update(lease.token for lease in leases)
        outcomes = await self._office.apply(*leases)
        return sum(self._begin(handler, lease, outcome) for lease, outcome in zip(leases, outcomes, strict=True))

    def _begin(self, handler: Handler, lease: Lease, outcome: Outcome) -> int:
        """Begin with what a lease gave; how many that are."""
        deliveries = outcome.deliveries if isinstance(outcome, Leased) else ()
        if not deliveries:
            self._held.discard(lease.token)
        for delivery in deliveries:
            job = asyncio.create_task(self._job(handler, Incoming(self, delivery, lease.token)))
            self._jobs.add(job)
            job.add_done_callback(self._over)
        return len(deliveries)

    def wants(self) -> Lease | None:
        """See ``receiver.Worker``."""
        if self._handler is None or len(self._jobs) + self._wanted >= self._limits.workers:
            return None
        self._wanted += 1
        lease = Lease(INBOX_DESK, None, next(self._tokens), "peer")
        self._held.add(lease.token)
        return lease

    def gets(self, lease: Lease, outcome: Outcome | None) -> None:
        """See ``receiver.Worker``."""
        self._wanted -= 1
        if outcome is None or self._handler is None:
            self._give_back(lease.token)
        else:
            self._begin(self._handler, lease, outcome)

    def _over(self, job: asyncio.Task[None]) -> None:
        self._jobs.discard(job)
        self._room.set()
        if not job.cancelled() and (error := job.exception()) is not None:
            log.error("a message was not settled", exc_info=error)

    async def _job(self, handler: Handler, message: Incoming) -> None:
        try:
            await self.handle(handler, message)
        except EngineClosed:
            return  # the next process finds the lease, and takes it from there
        except StoreError as error:
            log.error("%r is not settled, and comes again: %s", message, error)
            self._give_back(message.token)

    async def handle(self, handler: Handler, message: Incoming) -> None:
        """Have one message processed, and settle it by what the handler does."""
        try:
            async with asyncio.timeout(self._limits.timeout_s):
                await handler(message)
        except Reject as no:
            await message.reject(str(no))
        except RetryLater as later:
            await message.retry(later.after_s, str(later))
        except TimeoutError:
            await message.retry(error=f"the handler took longer than {self._limits.timeout_s:g} s")
        except Exception as error:
            log.warning("the handler failed on %r", message, exc_info=error)
            await message.retry(error=f"{type(error).__name__}: {error}")
        else:
            await message.done()

    async def _renew(self, every_s: float) -> None:
        while True:
            await asyncio.sleep(every_s)
            held = list(self._held)
            if held:
                try:
                    await self._office.apply(*[Renew(INBOX_DESK, token) for token in held])
                except EngineClosed:
                    return
                except StoreError as error:
                    log.warning("%d leases were not renewed: %s", len(held), error)

    async def close(self) -> None:
        """Take nothing more, let handlers finish for a while, give back what is not settled. Idempotent."""
        self._handler = None
        tasks, self._tasks = self._tasks, set()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._jobs:
            await asyncio.wait(self._jobs, timeout=self._limits.grace_s)
            for job in list(self._jobs):
                job.cancel()
            await asyncio.gather(*self._jobs, return_exceptions=True)
        left, self._held = list(self._held), set()
        if left:
            try:
                await self._office.apply(*[Release(INBOX_DESK, token) for token in left])
            except StoreError as error:
                log.warning("%d leases were not given back: %s", len(left), error)


def _forget(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()
