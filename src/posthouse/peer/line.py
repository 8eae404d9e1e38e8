"""The line to one peer: what waits for it is taken, sent and settled, one trade beside the other.

    away ── its turn to be tried, or something new ──→ one message finds out ── it came ──→ there
    there ── what is due, ``sends_per_peer`` side by side; each settles and takes the next in one commit ──→ away

In: a courier. Out: leases and settles. While its peer is away it tries with one message at a time, after waits that
grow. It ends when nothing has waited for long.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING

from ..control.peer import OUTBOX_DESK
from ..errors import BadFrame, EngineClosed, InvalidInput, StoreError
from ..libp2p.errors import ConnectionLost, DialFailed, Libp2pError, LimitReached
from ..libp2p.peer_id import PeerId
from ..mailbox.check import ERROR_CHARS_MAX
from ..mailbox.command import Command, Lease, Release, Renew, Settle, Verdict
from ..mailbox.message import SECOND
from ..mailbox.outcome import Delivery, Leased
from . import frame
from .frame import Direct

if TYPE_CHECKING:
    from .courier import Courier

log = logging.getLogger("posthouse.peer")

STORE_PAUSE_S = 1.0
KNOCK_S = 1.0
"""Between two tries of a peer that is away, when something new was posted for it."""
LEASES_MAX = 64
WHISPERS = 3
"""How often a message is published by gossip for a node of which nobody knows whether it acknowledges there."""
AWAY = (DialFailed, ConnectionLost, LimitReached)


class Line:
    """What goes to one peer."""

    def __init__(self, courier: Courier, peer: PeerId) -> None:
        self.peer = peer
        self.name = str(peer)
        self.sends: set[asyncio.Task[None]] = set()
        self._courier = courier
        self._loop = asyncio.get_running_loop()
        self._failures = 0
        """Tries in a row that did not reach the peer."""
        self._next_try_s = 0.0
        self._tried_s = -KNOCK_S
        self._knocked = False
        self._bell = asyncio.Event()
        self._room = asyncio.Event()
        self.task = asyncio.create_task(self._run(), name=f"line to {self.name}")

    def came(self) -> None:
        """The peer is there."""
        self._failures = 0
        self._next_try_s = 0.0
        self._bell.set()
        self._room.set()

    def knock(self) -> None:
        """Something new is there: try at once, though the peer was away, unless it was tried just now."""
        self._knocked = True
        self._bell.set()

    @property
    def is_there(self) -> bool:
        """Whether the peer is connected."""
        return self._courier.network.is_connected(self.peer)

    async def _run(self) -> None:
        courier = self._courier
        while True:
            try:
                await self._gate()
                there = self.is_there
                # While it is away, one message finds out whether it still is.
                want = min(courier.limits.sends_per_peer - len(self.sends), courier.free) if there else not self.sends
                if not want:
                    self._room.clear()
                    await (self._room if self.sends else courier.freed).wait()
                    continue
                with courier.office.bell.ticket(OUTBOX_DESK, self.name) as ticket:
                    if there:
                        taken = await self._take(want)
                    else:
                        async with courier.tries:
                            taken = await self._take(1)
                            self._room.clear()
                            if taken:
                                await self._room.wait()
                    if not taken and not await ticket.wait(courier.limits.idle_s) and self._is_idle():
                        courier.done(self)
                        return
            except EngineClosed:
                return
            except StoreError as error:
                log.error("nothing can be taken from the outbox for now: %s", error)
                await asyncio.sleep(STORE_PAUSE_S)

    def _is_idle(self) -> bool:
        box = self._courier.office.store.mailbox(OUTBOX_DESK, self.name)
        return not self.sends and (box is None or not box.depth)

    async def _gate(self) -> None:
        """Wait until the peer is there, or it is time to try it again."""
        while not self.is_there:
            until_s = min(self._next_try_s, self._tried_s + KNOCK_S) if self._knocked else self._next_try_s
            wait_s = until_s - self._loop.time()
            if wait_s <= 0:
                break
            self._bell.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._bell.wait()
        self._knocked = False

    async def _take(self, want: int) -> int:
        """Take up to so many trades' next messages and begin to send them; how many there were."""
        courier = self._courier
        count = min(want, LEASES_MAX)
        leases = [Lease(OUTBOX_DESK, self.name, next(courier.tokens), self.name) for _ in range(count)]
        courier.held.update(lease.token for lease in leases)
        outcomes = await courier.office.apply(*leases)
        taken = 0
        for lease, outcome in zip(leases, outcomes, strict=True):
            deliveries = outcome.deliveries if isinstance(outcome, Leased) else ()
            if not deliveries:
                courier.held.discard(lease.token)
            for delivery in deliveries:
                taken += 1
                courier.begin()
                task = asyncio.create_task(self._send(delivery, lease.token))
                self.sends.add(task)
                task.add_done_callback(self._sent)
        return taken

    def _sent(self, task: asyncio.Task[None]) -> None:
        self.sends.discard(task)
        self._courier.end()
        self._room.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("sending to %s failed", self.name, exc_info=error)

    async def _send(self, delivery: Delivery, token: str) -> None:
        """Send a message and settle it; then the next that waits for this peer, taken in the same commit."""
        while True:
            settle, noted = await self._outcome(delivery, token)
            following = await self._settle(delivery, settle, noted)
            if following is None:
                return
            delivery, token = following

    async def _outcome(self, delivery: Delivery, token: str) -> tuple[Settle, tuple[Command, ...]]:
        """Send a message; how it is to be settled, and what is to be noted besides."""
        courier, stats = self._courier, self._courier.stats
        ref, begun_s = delivery.message.ref, self._loop.time()
        reason: str | None = None
        due_at = None
        noted: tuple[Command, ...] = ()
        stats.sent[delivery.message.kind if delivery.message.kind in frame.PRIVATE_TYPES else "other"] += 1
        try:
            message = courier.session.outgoing(delivery)
            frame.encode(message)
        except (InvalidInput, BadFrame, ValueError) as error:
            verdict, said = Verdict.DEAD, f"this can never be sent: {error}"
            stats.died += 1
        else:
            self._tried_s = begun_s
            try:
                verdict, said, noted = await self._attempt(message, token)
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

    def _is_lost(self, trade: str, attempt: int, error: Exception) -> bool:
        """Whether a message was published often enough for a node that may acknowledge nothing."""
        courier = self._courier
        if attempt < WHISPERS or not isinstance(error, TimeoutError) or not courier.goes_by_gossip(self.peer, trade):
            return False
        return courier.session.acknowledges_gossip(trade) is None

    async def _settle(
        self, delivery: Delivery, settle: Settle, noted: tuple[Command, ...]
    ) -> tuple[Delivery, str] | None:
        """Settle a message and note what was learned; what is to be sent next, if anything is."""
        courier, stats = self._courier, self._courier.stats
        lease = Lease(OUTBOX_DESK, self.name, next(courier.tokens), self.name)
        commands: tuple[Command, ...] = (*noted, settle)
        if self.is_there and not courier.closed:
            courier.held.add(lease.token)
            commands = (*commands, lease)
        while True:
            try:
                outcomes = await courier.office.apply(*commands)
                break
            except EngineClosed:
                return None
            except StoreError as error:
                # If it took effect all the same, the repeat finds no lease and does nothing.
                log.error("%s is not settled yet: %s", settle.ref.id, error)
                await asyncio.sleep(STORE_PAUSE_S)
                commands = (*noted, settle, Release(OUTBOX_DESK, lease.token))
        assert settle.token is not None
        courier.held.discard(settle.token)
        if settle.verdict is Verdict.DELIVERED:
            stats.acked += 1
            stats.latency_s += max(courier.office.now() - delivery.posted_at, 0) / SECOND
        elif settle.verdict is Verdict.REJECTED:
            stats.rejected += 1
            log.warning("%s rejected %s: %s", self.name, settle.ref.id, settle.error)
        taken = outcomes[-1].deliveries if isinstance(outcomes[-1], Leased) else ()
        if not taken:
            courier.held.discard(lease.token)
            return None
        return taken[0], lease.token

    async def _attempt(self, message: Direct, token: str) -> tuple[Verdict, str, tuple[Command, ...]]:
        """One attempt within its time, under a lease that lasts as long."""
        courier = self._courier
        ack_s, lease_s = courier.limits.ack_s, courier.lease_s
        async with asyncio.timeout(ack_s):
            attempt = asyncio.ensure_future(courier.attempt(self.peer, message))
            try:
                while lease_s is not None and ack_s >= lease_s * 0.9:
                    done, _ = await asyncio.wait({attempt}, timeout=lease_s / 2)
                    if done:
                        break
                    await courier.office.do(Renew(OUTBOX_DESK, token))
                return await attempt
            finally:
                if not attempt.done():
                    attempt.cancel()
                    await asyncio.gather(attempt, return_exceptions=True)

    def _failed(self, attempt: int, begun_s: float) -> None:
        """The peer is away: the next try is later than the one before was."""
        now_s = self._loop.time()
        if self._next_try_s > begun_s:
            return  # others have noticed it, or it was a message that was posted in between
        self._failures = max(self._failures + 1, attempt)
        self._next_try_s = now_s + self._courier.retry.delay_us(self._failures) / SECOND
