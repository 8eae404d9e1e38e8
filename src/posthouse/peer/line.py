"""The line to one peer: what waits for it is taken, sent and settled, one trade beside the other.

    away ── its turn to be tried, or something new ──→ one message finds out ── it came ──→ there
    there ── what is due, ``sends_per_peer`` trades side by side; each settle takes the next in its commit ──→ away

In: a courier. Out: leases and settles. A trade's messages go one after the other, each when the one before it is
acknowledged. Where that goes well, the next ones are taken ahead, and what is acknowledged is settled a few at a time:
a crash then sends again what was acknowledged and not settled, and the other side knows it by its id. While its peer
is away the line tries with one message at a time, after waits that grow. It ends when nothing has waited for long.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from ..control.trade import OUTBOX_DESK
from ..errors import BadFrame, EngineClosed, InvalidInput, StoreError
from ..libp2p.errors import ConnectionLost, DialFailed, Libp2pError, LimitReached
from ..libp2p.peer_id import PeerId
from ..mailbox.check import ERROR_CHARS_MAX
from ..mailbox.command import Command, Lease, Release, Renew, Settle, Verdict
from ..mailbox.message import SECOND
from ..mailbox.outcome import Delivery, Leased, Outcome
from . import frame
from .deadline import Deadline
from .frame import Direct
from .tasks import Tasks

if TYPE_CHECKING:
    from .courier import Courier

log = logging.getLogger("posthouse.peer")

STORE_PAUSE_S = 1.0
KNOCK_S = 1.0
"""Between two tries of a peer that is away, when something new was posted for it."""
LEASES_MAX = 64
LOOK_S = 0.02
"""While messages are on their way, how often it is looked for more that has become due."""
AHEAD_MAX = 256
"""Messages of a trade that are taken ahead, once so many to this peer have gone well."""
SETTLE_S = 0.05
SETTLES_MAX = 128
"""What was acknowledged is settled after so long, or when there is so much of it, or nothing is left to send."""
WHISPERS = 3
"""How often a message is published by gossip for a node of which nobody knows whether it acknowledges there."""
AWAY = (DialFailed, ConnectionLost, LimitReached)


class Run:
    """What goes on of one trade."""

    __slots__ = ("ahead", "deadline", "failing", "lane", "ready", "refilling", "renewal", "waiting")

    def __init__(self, lane: str, ahead: int) -> None:
        self.lane = lane
        self.waiting: deque[tuple[Delivery, str]] = deque()
        """What is being sent, and what was taken to follow it; each with its token."""
        self.ahead = ahead
        """How many may be taken."""
        self.ready: tuple[Delivery, Direct, bytes] | None = None
        """The message that comes next as it is sent: made while an acknowledgement is waited for."""
        self.refilling = False
        self.failing = False
        """Its message has failed, and that is being written: what was taken behind it goes back."""
        self.deadline: Deadline
        self.renewal: asyncio.TimerHandle | None = None
        """When its leases are renewed."""


class Done(NamedTuple):
    """A message that was tried, and what is to be written for it."""

    run: Run
    delivery: Delivery
    settle: Settle
    commands: tuple[Command, ...]
    """The settle, and what goes with it."""
    tokens: tuple[str, ...]
    """Leases that end with it."""


class Line:
    """What goes to one peer."""

    def __init__(self, courier: Courier, peer: PeerId) -> None:
        self.peer = peer
        self.name = str(peer)
        self.tasks = Tasks(f"sending to {self.name} failed")
        """Sends and settles that go on."""
        self._courier = courier
        self._loop = asyncio.get_running_loop()
        self._runs: dict[str, Run] = {}
        """By trade."""
        self._done: list[Done] = []
        self._timer: asyncio.TimerHandle | None = None
        self._want = 1
        self._ahead = 1
        """How many of a trade may be taken when it begins."""
        self._failures = 0
        """Tries in a row that did not reach the peer."""
        self._next_try_s = 0.0
        self._tried_s = -KNOCK_S
        self._knocked = False
        self._looked = False
        """Since the last look nothing has come to its end."""
        self._wanted: dict[str, Run | None] = {}
        """Leases that whoever posts has under way, and what they are to go on with."""
        self._bell = asyncio.Event()
        self._room = asyncio.Event()
        self.task = asyncio.create_task(self._run(), name=f"line to {self.name}")

    def came(self) -> None:
        """The peer is there."""
        self._failures = 0
        self._next_try_s = 0.0
        self._bell.set()
        self._room.set()

    def knock(self, trade: str = "") -> None:
        """Something new is there: try at once, though the peer was away, unless it was tried just now."""
        if trade not in self._runs:  # else it is taken as what was sent before it is settled
            self._knocked = True
            self._bell.set()

    @property
    def is_there(self) -> bool:
        """Whether the peer is connected."""
        return self._courier.network.is_connected(self.peer)

    # Taking.

    async def _run(self) -> None:
        while True:
            try:
                await self._gate()
                if await self._look():
                    self._courier.done(self)
                    return
            except EngineClosed:
                return
            except StoreError as error:
                log.error("nothing can be taken from the outbox for now: %s", error)
                await asyncio.sleep(STORE_PAUSE_S)

    async def _look(self) -> bool:
        """Take what is due, or wait until it is worth to look again; True if nothing has waited for long."""
        courier, there = self._courier, self.is_there
        # While it is away, one message finds out whether it still is.
        room = self._free if there else int(not self._runs)
        if room <= 0:
            self._room.clear()
            await (self._room if self._runs else courier.freed).wait()
            return False
        self._looked = True
        with courier.office.bell.ticket(OUTBOX_DESK, self.name) as ticket:
            if there:
                want = min(self._want, room, LEASES_MAX)
                taken = await self._take(want)
                self._want = 2 * want if taken == want else max(taken, 1)
                if taken == want:
                    return False
            else:
                async with courier.tries:
                    taken = await self._take(1)
                    self._room.clear()
                    if taken:
                        await self._room.wait()
                        return False
            if not await ticket.wait(courier.limits.idle_s) and self._is_idle():
                return True
            if self._runs and self._looked and not self._knocked:
                # Each settle rings, and has taken ahead what follows: nobody has to look each time.
                await self._until_bell(LOOK_S)
        return False

    @property
    def _free(self) -> int:
        """How many more trades may be sent for."""
        return min(self._courier.limits.sends_per_peer - len(self._runs), self._courier.free)

    def _is_idle(self) -> bool:
        box = self._courier.office.store.mailbox(OUTBOX_DESK, self.name)
        return not self._runs and (box is None or not box.depth)

    async def _gate(self) -> None:
        """Wait until the peer is there, or it is time to try it again."""
        while not self.is_there:
            until_s = min(self._next_try_s, self._tried_s + KNOCK_S) if self._knocked else self._next_try_s
            wait_s = until_s - self._loop.time()
            if wait_s <= 0:
                break
            await self._until_bell(wait_s)
        self._knocked = False

    async def _until_bell(self, wait_s: float) -> None:
        self._bell.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._bell.wait()

    async def _take(self, want: int) -> int:
        """Take up to so many next messages and begin to send them; how many there were."""
        courier = self._courier
        leases = [self._lease() for _ in range(want)]
        outcomes = await courier.office.apply(*leases)
        return sum(self._begin(lease, outcome) for lease, outcome in zip(leases, outcomes, strict=True))

    def _lease(self, lane: str | None = None, limit: int = 1) -> Lease:
        courier = self._courier
        lease = Lease(OUTBOX_DESK, self.name, courier.token(), self.name, limit, lane=lane)
        courier.held.add(lease.token)
        return lease

    def wants(self, trade: str) -> Lease | None:
        """For whoever posts to a trade: a lease to go with it, if it can be sent at once, or as the next."""
        run = self._runs.get(trade)
        if self._courier.closed or not self.is_there:
            return None
        if run is None:
            if self._runs or self._wanted or self._free <= 0:
                return None
            lease = self._lease(trade, self._ahead)
        else:
            more = run.ahead - len(run.waiting)
            if run.refilling or run.failing or more <= 0:
                return None
            run.refilling = True
            lease = self._lease(trade, more)
        self._wanted[lease.token] = run
        return lease

    def gets(self, lease: Lease, outcome: Outcome | None) -> None:
        """What that lease gave; None: nobody knows."""
        run = self._wanted.pop(lease.token, None)
        if run is not None:
            run.refilling = False
        if outcome is None:
            self._give_back(lease.token)
        else:
            self._begin(lease, outcome)

    def _begin(self, lease: Lease, outcome: Outcome) -> int:
        """Begin to send what a lease gave, or put it behind what goes on of its trade; how many there were."""
        deliveries = outcome.deliveries if isinstance(outcome, Leased) else ()
        if not deliveries:
            self._courier.held.discard(lease.token)
        for delivery in deliveries:
            key = self._key(delivery)
            run = self._runs.get(key)
            if run is not None and run.failing:
                self._give_back(lease.token)
                break
            if run is None:
                run = self._runs[key] = Run(delivery.message.lane, self._ahead)
                self._courier.begin()
                self.tasks.spawn(self._send(key, run))
            run.waiting.append((delivery, lease.token))
        return len(deliveries)

    def _key(self, delivery: Delivery) -> str:
        """What is sent one after the other."""
        return delivery.message.lane

    def _give_back(self, token: str) -> None:
        self._courier.held.discard(token)
        with contextlib.suppress(EngineClosed):
            self._courier.office.submit(Release(OUTBOX_DESK, token)).add_done_callback(_forget)

    # Sending.

    async def _send(self, key: str, run: Run) -> None:
        """Send what was taken of a trade, one after the other, and what more is taken meanwhile."""
        waiting = run.waiting
        run.deadline = Deadline()
        self._renew_later(run)
        try:
            while waiting:
                settle, noted = await self._outcome(run)
                delivery, token = waiting.popleft()
                commands: tuple[Command, ...] = (*noted, settle)
                tokens: tuple[str, ...] = (token,)
                if settle.verdict is Verdict.DELIVERED or settle.verdict is Verdict.UNCERTAIN:
                    run.ahead = self._ahead = min(4 * run.ahead, AHEAD_MAX)
                else:
                    # What follows it comes back with it, for order's sake.
                    behind = tuple(dict.fromkeys(token for _, token in waiting))
                    commands += tuple(Release(OUTBOX_DESK, token) for token in behind)
                    tokens += behind
                    waiting.clear()
                    run.ahead = self._ahead = 1
                    run.failing = True
                self._done.append(Done(run, delivery, settle, commands, tokens))
                if not waiting:
                    # It may bring the next.
                    await self._flush()
                elif len(self._done) >= SETTLES_MAX or (not run.refilling and 2 * len(waiting) <= run.ahead):
                    self._flush()
                elif self._timer is None:
                    self._timer = self._loop.call_later(SETTLE_S, self._flush)
        finally:
            run.deadline.close()
            if run.renewal is not None:
                run.renewal.cancel()
            del self._runs[key]
            self._courier.end()
            self._looked = False
            self._bell.set()
            self._room.set()

    async def _outcome(self, run: Run) -> tuple[Settle, tuple[Command, ...]]:
        """Send the first message of a run; how it is to be settled, and what is to be noted besides."""
        courier, stats = self._courier, self._courier.stats
        delivery, token = run.waiting[0]
        ref, begun_s = delivery.message.ref, self._loop.time()
        reason: str | None = None
        due_at = None
        noted: tuple[Command, ...] = ()
        stats.sent[delivery.message.kind if delivery.message.kind in frame.PRIVATE_TYPES else "other"] += 1
        try:
            message, data = self._made(run, delivery)
        except (InvalidInput, BadFrame, ValueError) as error:
            verdict, said = Verdict.DEAD, f"this can never be sent: {error}"
            stats.died += 1
        else:
            self._tried_s = begun_s
            try:
                verdict, said, noted = await self._attempt(message, data, run)
            except InvalidInput as error:
                verdict, said = Verdict.DEAD, f"this can never be sent by gossip: {error}"
                stats.died += 1
            except (Libp2pError, BadFrame, TimeoutError) as error:
                verdict, said = Verdict.RETRY, str(error) or "no acknowledgement came in time"
                if self._is_lost(message.trade_id, delivery.attempt, error):
                    verdict, reason = Verdict.UNCERTAIN, "unknown"
                elif isinstance(error, AWAY) or not self.is_there:
                    reason = "not_sent" if isinstance(error, DialFailed | LimitReached) else "unconfirmed"
                    # It waits for the peer, not for a time.
                    due_at = courier.office.now()
                    self._failed(delivery.attempt, begun_s)
                    stats.away += 1
                    if courier.shelter is not None:
                        courier.shelter.away(self.peer)
                else:
                    reason = "unconfirmed"
                    stats.unconfirmed += 1
        text = said.encode(errors="replace").decode()[:ERROR_CHARS_MAX] or None
        return Settle(ref, token, verdict, due_at=due_at, reason=reason, error=text, holder=self.name), noted

    def _made(self, run: Run, delivery: Delivery) -> tuple[Direct, bytes]:
        """A message as it is sent, and its frame."""
        ready, run.ready = run.ready, None
        if ready is not None and ready[0] is delivery:
            return ready[1:]
        return self._courier.session.written(delivery)

    def _make_next(self, run: Run) -> None:
        """Number, sign and encode what comes next, while the other side is busy with what was sent."""
        if run.ready is None and len(run.waiting) > 1:
            delivery = run.waiting[1][0]
            # What cannot be sent is found out when it is its turn.
            with contextlib.suppress(InvalidInput, BadFrame, ValueError):
                run.ready = (delivery, *self._made(run, delivery))

    def _is_lost(self, trade: str, attempt: int, error: Exception) -> bool:
        """Whether a message was published often enough for a node that may acknowledge nothing."""
        courier = self._courier
        if attempt < WHISPERS or not isinstance(error, TimeoutError) or not courier.goes_by_gossip(self.peer, trade):
            return False
        return courier.session.acknowledges_gossip(trade) is None

    def settle(self) -> None:
        """Settle at once what was acknowledged: the courier stops."""
        if self._done:
            self._flush()

    def _flush(self) -> asyncio.Task[None]:
        """Settle what was tried, and take ahead for the trades that go on."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        done, self._done = self._done, []
        leases: list[tuple[Run, Lease]] = []
        if self.is_there and not self._courier.closed:
            for run in dict.fromkeys(each.run for each in done):
                more = run.ahead - len(run.waiting)
                if not run.refilling and 2 * more >= run.ahead:
                    run.refilling = True
                    leases.append((run, self._lease(run.lane, more)))
        return self.tasks.spawn(self._settle(done, leases))

    async def _settle(self, done: list[Done], leases: list[tuple[Run, Lease]]) -> None:
        courier, stats = self._courier, self._courier.stats
        commands: list[Command] = [command for each in done for command in each.commands]
        try:
            while True:
                try:
                    outcomes = await courier.office.apply(*commands, *(lease for _, lease in leases))
                    break
                except EngineClosed:
                    return
                except StoreError as error:
                    # If it took effect all the same, the repeat finds no lease and does nothing.
                    log.error("%d messages are not settled yet: %s", len(done), error)
                    commands += [Release(OUTBOX_DESK, lease.token) for _, lease in leases]
                    for run, _ in leases:
                        run.refilling = False
                    leases = []
                    await asyncio.sleep(STORE_PAUSE_S)
        finally:
            for each in done:
                each.run.failing = False
            for run, _ in leases:
                run.refilling = False
        now = courier.office.now()
        for each in done:
            courier.held.difference_update(each.tokens)
            settle = each.settle
            if settle.verdict is Verdict.DELIVERED:
                stats.acked += 1
                stats.latency_s += max(now - each.delivery.posted_at, 0) / SECOND
            elif settle.verdict is Verdict.REJECTED:
                stats.rejected += 1
                log.warning("%s rejected %s: %s", self.name, settle.ref.id, settle.error)
        for (_, lease), outcome in zip(leases, outcomes[len(commands) :], strict=True):
            self._begin(lease, outcome)

    async def _attempt(self, message: Direct, data: bytes, run: Run) -> tuple[Verdict, str, tuple[Command, ...]]:
        """One attempt within its time."""
        # In the next turn of the loop: by then this one is on its way.
        self._loop.call_soon(self._make_next, run)
        run.deadline.begin(self._courier.limits.ack_s)
        try:
            return await self._courier.attempt(self.peer, message, data)
        except asyncio.CancelledError:
            if run.deadline.cut():
                raise TimeoutError from None
            raise
        finally:
            run.deadline.end()

    def _renew_later(self, run: Run) -> None:
        if (lease_s := self._courier.lease_s) is not None:
            run.renewal = self._loop.call_later(lease_s / 3, self._renew, run)

    def _renew(self, run: Run) -> None:
        """Leases last as long as what was taken with them is sent or waits for that."""
        self._renew_later(run)
        renewals = [Renew(OUTBOX_DESK, token) for token in dict.fromkeys(token for _, token in run.waiting)]
        if renewals:
            with contextlib.suppress(EngineClosed):
                self._courier.office.submit(*renewals).add_done_callback(_forget)

    def _failed(self, attempt: int, begun_s: float) -> None:
        """The peer is away: the next try is later than the one before was."""
        now_s = self._loop.time()
        if self._next_try_s > begun_s:
            return  # others have noticed it, or it was a message that was posted in between
        self._failures = max(self._failures + 1, attempt)
        self._next_try_s = now_s + self._courier.retry.delay_us(self._failures) / SECOND


def _forget(future: asyncio.Future[list[Outcome]]) -> None:
    if not future.cancelled() and (error := future.exception()) is not None and not isinstance(error, EngineClosed):
        log.warning("leases were not renewed or given back: %s", error)
