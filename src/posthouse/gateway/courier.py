"""The courier of one account: takes what is to be sent, sends it part by part, and settles it by what is certain.

    lease, while there is a live connection → connection() → send part → Renew(progress) → … → delivered
                                                 │              │
                                                 │              ├ Permanent → dead letter
                                                 │              ├ Transient, RateLimited → back, by the ladder, as told
                                                 │              └ unclear: sent again with the same key, or found out by
                                                 │                the channel, else uncertain, and never sent blindly
                                                 └ none, or Offline → back, uncounted

The connection is asked for before every part and never kept, so one that was replaced meanwhile is not written to.
Nothing is leased while there is no connection. A target that failed often is left alone for a while (``Breaker``), and
what waited for the channel to come up is sent at a pace. What a crash interrupted is uncertain when the next process
starts, and settled before anything else is sent: at once where the channel knows keys, by asking it where it can be
asked.

In: the engine, a channel. Out: sends, and commands. It keeps no message.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from ..engine.engine import Engine
from ..engine.tasks import Tasks
from ..errors import EngineClosed, InvalidInput, StoreError
from ..mailbox.command import Command, Filter, Lease, Release, Settle, Verdict
from ..mailbox.message import SECOND, State
from ..mailbox.outcome import Delivery, Leased, LeaseLost
from ..mailbox.store import MessageView
from .attempt import OFFLINE_S, Attempt, End, key_of
from .channel import Channel, Connection, Reconciled, Reconciles, Sending
from .job import ERROR_CHARS_MAX, bounded_s
from .letter import OUTBOUND_DESK, Outbound, outbound_mailbox
from .pacing import Breaker, Pace
from .stats import CourierStats
from .worker import STORE_PAUSE_S

log = logging.getLogger("posthouse.gateway")

PAGE = 100
IMPORT_ORIGIN = "import"
"""Who posted what other programs began to send. Our keys were never given for that, so nobody can be asked about it."""


@dataclass(frozen=True, slots=True)
class SendLimits:
    """What a courier goes by."""

    side_by_side: int = 16
    timeout_s: float = 30.0
    drain_per_s: float = 20.0
    breaker_failures: int = 5
    breaker_s: float = 60.0
    reconcile_s: float = 60.0
    grace_s: float = 10.0
    """How long sends may finish when the courier is told to stop."""


class Courier:
    """Sends for one account from ``start`` to ``close``."""

    def __init__(self, engine: Engine, channel: Channel, limits: SendLimits | None = None) -> None:
        self.stats = CourierStats()
        self.channel = channel
        self.mailbox = outbound_mailbox(channel.kind, channel.account)
        self._engine = engine
        self._limits = limits = limits or SendLimits()
        lease_s = engine.store.policies[OUTBOUND_DESK].lease_s
        # A send must end before its lease does, or its outcome would be unknown though it is not.
        self._timeout_s = limits.timeout_s if lease_s is None else min(limits.timeout_s, lease_s * 0.8)
        self._breaker = Breaker(limits.breaker_failures, limits.breaker_s)
        self._pace = Pace(limits.drain_per_s)
        self._backlog = self._unsure = 0
        self._is_up = asyncio.Event()
        self._came_up = asyncio.Event()
        self._next_up = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._tokens = (f"{secrets.token_hex(8)}-{number}" for number in itertools.count())
        self._asked: set[str] = set()
        """Tokens of leases that were asked for and of which nothing was heard."""
        self._sends: set[asyncio.Task[None]] = set()
        self._tasks = Tasks(log, level=logging.CRITICAL)

    # What its channel's port tells it.

    def up(self) -> None:
        """There is a live connection (again)."""
        self._is_up.set()
        self._came_up.set()
        self._next_up.set()
        self._next_up = asyncio.Event()
        self.stats.ups += 1

    def down(self) -> None:
        """There is none any more."""
        self._is_up.clear()
        self.stats.downs += 1

    @property
    def is_up(self) -> bool:
        return self._is_up.is_set()

    def start(self) -> None:
        """Begin to send; on a running event loop."""
        self._tasks.spawn(self._run(), f"the courier of {self.mailbox}")
        if isinstance(self.channel, Reconciles) or self.channel.idempotent:
            self._tasks.spawn(self._keep_asking(), f"asking about {self.mailbox}")

    async def close(self) -> None:
        """Take nothing more, let sends finish for a while, settle the rest by what is certain. Idempotent."""
        await self._tasks.close()
        if self._sends:
            await asyncio.wait(self._sends, timeout=self._limits.grace_s)
        sends = list(self._sends)
        for task in sends:
            task.cancel()
        await asyncio.gather(*sends, return_exceptions=True)
        try:
            await self._give_back()
        except StoreError as error:
            log.warning("%s: a lease was not given back: %s", self.mailbox, error)

    # Taking.

    async def _run(self) -> None:
        while True:
            await self._is_up.wait()
            try:
                if self._came_up.is_set():
                    self._came_up.clear()
                    await self._take_stock()
                await self._take()
            except EngineClosed:
                raise
            except StoreError as error:
                log.error("%s: nothing can be taken for now: %s", self.mailbox, error)
                await asyncio.sleep(STORE_PAUSE_S)

    async def _take(self) -> None:
        """Take what is due and begin to send it; wait for more if there is nothing."""
        await self._give_back()
        await self._room.wait()
        limit = self._limits.side_by_side - len(self._sends)
        if self._backlog > 0:
            limit = 1
            await asyncio.sleep(self._pace.take_s(time.monotonic()))
        if not self._is_up.is_set():
            return
        if self.channel.connection() is None:
            await _either(asyncio.sleep(OFFLINE_S), self._came_up.wait())
            return
        token = next(self._tokens)
        self._asked.add(token)
        with self._engine.bell.ticket(OUTBOUND_DESK, self.mailbox) as ticket:
            leased = await self._engine.do(Lease(OUTBOUND_DESK, self.mailbox, token, self.mailbox, limit))
            self._asked.discard(token)
            # The desk is there, so the engine has no reason to refuse.
            assert isinstance(leased, Leased)
            for delivery in leased.deliveries:
                self._begin(token, delivery)
            if leased.deliveries:
                self._backlog = max(0, self._backlog - len(leased.deliveries))
            else:
                self._backlog = 0
                await _either(ticket.wait(), self._came_up.wait())

    async def _give_back(self) -> None:
        """What was taken, perhaps, and not begun goes back uncounted."""
        if self._asked:
            asked = list(self._asked)
            await self._engine.apply(*[Release(OUTBOUND_DESK, token) for token in asked])
            self._asked.difference_update(asked)

    async def _take_stock(self) -> None:
        """The channel came up: settle what is uncertain if that can be done, and count what waited."""
        await self._resolve()
        mailbox = await self._engine.read(lambda store: store.mailbox(OUTBOUND_DESK, self.mailbox))
        unsure = 0 if mailbox is None else mailbox.counts.get(State.UNCERTAIN, 0)
        if unsure > self._unsure:
            log.warning("%s: of %d messages nobody knows whether they were sent (uncertain)", self.mailbox, unsure)
        self._unsure = unsure
        self._backlog = mailbox.depth if mailbox is not None and self._limits.drain_per_s else 0
        if self._backlog <= self._limits.side_by_side:
            self._backlog = 0

    def _begin(self, token: str, delivery: Delivery) -> None:
        task = asyncio.create_task(self._deliver(token, delivery))
        self._sends.add(task)
        task.add_done_callback(self._ended)
        self.stats.sending = len(self._sends)
        if len(self._sends) >= self._limits.side_by_side:
            self._room.clear()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._sends.discard(task)
        self.stats.sending = len(self._sends)
        self._room.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s: a send failed in an unforeseen way", self.mailbox, exc_info=error)

    # Sending.

    async def _deliver(self, token: str, delivery: Delivery) -> None:
        message = delivery.message
        try:
            outbound = Outbound.from_message(message)
        except InvalidInput as error:
            wrong = End(Verdict.DEAD, "died", error=f"not a message of the gateway: {error}")
            await self._settle(token, delivery, wrong)
            return
        wait_s = self._breaker.wait_s(message.lane, time.monotonic())
        if wait_s:
            held = End(Verdict.RETURN, "held_back", wait_s, "offline", "the target failed often and is left alone")
            await self._settle(token, delivery, held)
            return
        sender = Attempt(self, token, delivery, outbound)
        try:
            end = await sender.run()
        except asyncio.CancelledError:
            # Told to stop. What is certain is kept; the process may go when that is durable.
            await asyncio.shield(self._settle(token, delivery, sender.interrupted()))
            raise
        except EngineClosed:
            return
        if end is not None:
            self._judge(message.lane, end)
            await self._settle(token, delivery, end)

    def _judge(self, target: str, end: End) -> None:
        if end.stat == "retried":
            self._breaker.failed(target, time.monotonic())
        elif end.verdict is not Verdict.RETURN:
            self._breaker.succeeded(target)

    async def _settle(self, token: str, delivery: Delivery, end: End) -> None:
        ref = delivery.message.ref
        due_at = None if end.after_s is None else self._engine.now() + int(bounded_s(end.after_s) * SECOND)
        error = None if end.error is None else end.error.encode(errors="replace").decode()[:ERROR_CHARS_MAX]
        settle = Settle(ref, token, end.verdict, due_at, end.reason, error, self.mailbox)
        while True:
            try:
                outcome = await self._engine.do(settle)
            except EngineClosed:
                return
            except StoreError as trouble:
                # It may have been sent: this must be written down before anything else is done with it.
                log.error("%s: %s is not settled yet: %s", self.mailbox, ref.id, trouble)
                await asyncio.sleep(STORE_PAUSE_S)
                continue
            lost = isinstance(outcome, LeaseLost)
            if lost and outcome == LeaseLost(State.UNCERTAIN) and settle.token and end.verdict is Verdict.DELIVERED:
                # The lease ran out though the send went well, and we know that it did.
                settle = settle._replace(token=None)
                continue
            if lost:
                log.warning("%s: the lease of %s was lost", self.mailbox, ref.id)
            else:
                if end.verdict is Verdict.UNCERTAIN:
                    log.warning("%s: whether %s was sent is unknown: %s", self.mailbox, ref.id, error)
                setattr(self.stats, end.stat, getattr(self.stats, end.stat) + 1)
            return

    # What is uncertain.

    async def _keep_asking(self) -> None:
        while True:
            await asyncio.sleep(self._limits.reconcile_s)
            if self.is_up:
                try:
                    await self._resolve()
                except EngineClosed:
                    return
                except StoreError as error:
                    log.warning("%s: what is uncertain stays so for now: %s", self.mailbox, error)

    async def _resolve(self) -> None:
        """Settle what is uncertain, as far as that can be known."""
        if not self.channel.idempotent and not isinstance(self.channel, Reconciles):
            return
        after = 0
        wanted = Filter(OUTBOUND_DESK, self.mailbox, states=frozenset({State.UNCERTAIN}))
        while True:
            page = await self._page(wanted, after)
            if not page:
                return
            after = page[-1].number
            found = await asyncio.gather(*[self._resolved(view) for view in page])
            commands: list[Command] = [settle for settle in found if settle is not None]
            if commands:
                await self._engine.apply(*commands)
                self.stats.reconciled += len(commands)

    async def _page(self, wanted: Filter, after: int) -> list[MessageView]:
        return await self._engine.read(lambda store: store.messages(wanted, after, PAGE))

    async def _resolved(self, view: MessageView) -> Settle | None:
        """How to settle an uncertain message, if that can be known."""
        try:
            outbound = Outbound.from_message(view.message)
        except InvalidInput:
            return None
        ref, index = view.message.ref, min(view.progress, len(outbound.parts) - 1)
        if outbound.origin == IMPORT_ORIGIN and view.attempts == 0:
            return None
        if self.channel.idempotent:
            return Settle(ref, None, Verdict.RETRY, self._engine.now(), "not_sent", view.error, self.mailbox)
        found = await self.find_out(Sending(outbound, index, key_of(outbound, index), view.attempts))
        if found is Reconciled.UNKNOWN:
            return None
        if found is Reconciled.SENT and index == len(outbound.parts) - 1:
            return Settle(ref, None, Verdict.DELIVERED, holder=self.mailbox)
        # Where a part was sent and others are left, it is asked for again when the rest is sent: see ``Attempt``.
        reason = "unconfirmed" if found is Reconciled.SENT else "not_sent"
        return Settle(ref, None, Verdict.RETRY, self._engine.now(), reason, view.error, self.mailbox)

    async def find_out(self, sending: Sending, *, patient: bool = False) -> Reconciled:
        """What became of a part whose sending was interrupted; ``patient``: ask until somebody answers, for a while."""
        if self.channel.idempotent:
            return Reconciled.NOT_SENT  # or it was, which the key makes the same
        if not isinstance(self.channel, Reconciles):
            return Reconciled.UNKNOWN
        try:
            async with asyncio.timeout(self._timeout_s):
                while True:
                    gone = self.channel.connection()
                    try:
                        return await self.channel.reconcile(sending)
                    except Exception as error:
                        log.info("%s: what became of %s is not known yet: %s", self.mailbox, sending.outbound.id, error)
                        if not patient:
                            return Reconciled.UNKNOWN
                        await self.reconnected(gone)
        except TimeoutError:
            return Reconciled.UNKNOWN

    async def reconnected(self, gone: Connection | None) -> bool:
        """Wait a little for a connection other than the one that is gone."""
        try:
            async with asyncio.timeout(OFFLINE_S):
                while True:
                    up = self._next_up
                    found = self.channel.connection()
                    if found is not None and found is not gone:
                        return True
                    await up.wait()
        except TimeoutError:
            return False

    @property
    def timeout_s(self) -> float:
        """How long the sending of one part may take."""
        return self._timeout_s

    @property
    def engine(self) -> Engine:
        return self._engine

    def open_targets(self) -> list[str]:
        """Targets that are left alone now."""
        return self._breaker.open(time.monotonic())


async def _either(*waits: Coroutine[Any, Any, object]) -> None:
    """Wait for the first of these; its exception is raised."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
