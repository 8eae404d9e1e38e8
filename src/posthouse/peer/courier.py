"""The courier: takes what waits in the outbox to the peers that it is for, one stream a message.

    lease → the message, numbered and signed → stream → acknowledgement → settled
                                                │            ├ yes → delivered
                                                │            ├ no  → dead: rejected, with the reason
                                                │            └ none, or one of another message → again, by the policy
                                                └ the peer is away → again when it comes, or after the policy's waits

A peer that is away is tried with one message at a time, after waits that grow; the others stay where they are. As soon
as it connects, from either side, all of its trades go on, each in order, ``sends_per_peer`` side by side; what got no
answer before does not wait for its next try either. A message that is posted meanwhile is tried at once. It keeps no
message, and decides nothing about order: the engine does.

In: the engine, the network. Out: streams, and commands.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import secrets
from dataclasses import dataclass

from ..control.peer import OUTBOX_DESK
from ..errors import BadFrame, EngineClosed, InvalidInput, StoreError
from ..libp2p.errors import BadInput, ConnectionLost, DialFailed, Libp2pError, LimitReached
from ..libp2p.peer_id import PeerId
from ..mailbox.check import ERROR_CHARS_MAX
from ..mailbox.command import Command, Hasten, Lease, Release, Renew, Settle, Verdict
from ..mailbox.message import SECOND
from ..mailbox.outcome import Delivery, Leased, Outcome
from . import frame
from .frame import Direct
from .port import Network, Office
from .session import Session
from .stats import Stats

log = logging.getLogger("posthouse.peer")

STORE_PAUSE_S = 1.0
KNOCK_S = 1.0
"""Between two tries of a peer that is away, when something new was posted for it."""
LEASES_MAX = 64
AWAY = (DialFailed, ConnectionLost, LimitReached)


@dataclass(frozen=True, slots=True)
class SendLimits:
    """What the courier goes by."""

    ack_s: float = 30.0
    """From opening the stream to the acknowledgement."""
    sends_per_peer: int = 32
    sends_max: int = 256
    """To all peers together."""
    tries_max: int = 32
    """Peers that are away and are tried at once."""
    idle_s: float = 600.0
    """After so long without anything to send, a peer's line is closed."""
    grace_s: float = 2.0
    """How long sends may go on when the courier is told to stop."""


class Courier:
    """Sends from ``start`` to ``close``."""

    def __init__(
        self, office: Office, network: Network, session: Session, stats: Stats, limits: SendLimits | None = None
    ) -> None:
        self.office = office
        self.network = network
        self.session = session
        self.stats = stats
        self.limits = limits or SendLimits()
        policy = office.store.policies[OUTBOX_DESK]
        self.retry = policy.retry
        self.lease_s = policy.lease_s
        self.freed = asyncio.Event()
        self._sending = 0
        self.tries = asyncio.Semaphore(self.limits.tries_max)
        self.tokens = (f"{secrets.token_hex(8)}-{number}" for number in itertools.count())
        self.held: set[str] = set()
        """Tokens that hold something, or may."""
        self._lines: dict[str, Line] = {}
        self.closed = False

    def start(self) -> None:
        """Begin with what is in the outbox."""
        self.look()

    def look(self) -> None:
        """Find every peer that something waits for."""
        after: tuple[str, str] | None = None
        while page := self.office.store.mailboxes(OUTBOX_DESK, after=after, limit=500):
            for box in page:
                if box.depth:
                    self.line(box.mailbox)
            after = (page[-1].desk, page[-1].mailbox)

    def posted(self, peer: str) -> None:
        """Something new waits for a peer."""
        line = self.line(peer)
        if line is not None:
            line.knock()

    def came(self, peer: PeerId) -> None:
        """A peer is connected."""
        line = self._lines.get(str(peer))
        if line is not None:
            line.came()
            # What waits for its next try waits no longer; the line is rung for it.
            with contextlib.suppress(EngineClosed):
                self.office.submit(Hasten(OUTBOX_DESK, line.name)).add_done_callback(_hastened)

    def line(self, peer: str) -> Line | None:
        """What serves one peer; None where the name is no peer's, or nothing is sent any more."""
        line = self._lines.get(peer)
        if line is None and not self.closed:
            try:
                line = self._lines[peer] = Line(self, PeerId.parse(peer))
            except BadInput as error:
                log.warning("the outbox holds messages for %r, which is no peer: %s", peer[:80], error)
                return None
        return line

    def done(self, line: Line) -> None:
        """For lines: nothing waits any more."""
        self._lines.pop(line.name, None)

    @property
    def free(self) -> int:
        """How many more may be sent at once."""
        return self.limits.sends_max - self._sending

    def begin(self) -> None:
        """For lines: one more is sent."""
        self._sending += 1
        if not self.free:
            self.freed.clear()

    def end(self) -> None:
        """For lines: one less."""
        self._sending -= 1
        self.freed.set()

    async def close(self) -> None:
        """Take nothing more, let sends finish for a while, give back the rest. Idempotent."""
        self.closed = True
        lines, self._lines = list(self._lines.values()), {}
        for line in lines:
            line.task.cancel()
        await asyncio.gather(*(line.task for line in lines), return_exceptions=True)
        sends = [task for line in lines for task in line.sends]
        if sends:
            await asyncio.wait(sends, timeout=self.limits.grace_s)
            for task in sends:
                task.cancel()
            await asyncio.gather(*sends, return_exceptions=True)
        left, self.held = list(self.held), set()
        if left:
            try:
                await self.office.apply(*[Release(OUTBOX_DESK, token) for token in left])
            except StoreError as error:
                log.warning("%d leases were not given back: %s", len(left), error)

    # One attempt.

    async def attempt(self, peer: PeerId, message: Direct) -> tuple[Verdict, str]:
        """Send a message and read its acknowledgement."""
        answer = await self.ask(peer, message)
        return self.session.verdict(str(peer), message, answer)

    async def ask(self, peer: PeerId, message: Direct) -> Direct:
        """Send a message and read what is answered, on a stream of its own."""
        data = frame.encode(message)
        stream = await self.network.open_stream(peer, frame.PROTOCOL)
        try:
            await stream.write(data)
            size = frame.body_bytes(await stream.read_exactly(frame.HEAD_BYTES))
            answer = frame.decode(await stream.read_exactly(size))
        except BaseException:
            stream.reset()
            raise
        stream.close()
        return answer


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
            settle = await self._outcome(delivery, token)
            following = await self._settle(delivery, settle)
            if following is None:
                return
            delivery, token = following

    async def _outcome(self, delivery: Delivery, token: str) -> Settle:
        """Send a message; how it is to be settled."""
        courier, stats = self._courier, self._courier.stats
        ref, begun_s = delivery.message.ref, self._loop.time()
        reason: str | None = None
        due_at = None
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
                verdict, said = await self._attempt(message, token)
            except (Libp2pError, BadFrame, TimeoutError) as error:
                verdict, said = Verdict.RETRY, str(error) or "no acknowledgement came in time"
                if isinstance(error, AWAY) or not self.is_there:
                    reason = "not_sent" if isinstance(error, DialFailed | LimitReached) else "unconfirmed"
                    # It waits for the peer, not for a time.
                    due_at = courier.office.now()
                    self._failed(delivery.attempt, begun_s)
                    stats.away += 1
                else:
                    reason = "unconfirmed"
                    stats.unconfirmed += 1
        text = said.encode(errors="replace").decode()[:ERROR_CHARS_MAX] or None
        return Settle(ref, token, verdict, due_at=due_at, reason=reason, error=text, holder=self.name)

    async def _settle(self, delivery: Delivery, settle: Settle) -> tuple[Delivery, str] | None:
        """Settle a message; what is to be sent next, if anything is."""
        courier, stats = self._courier, self._courier.stats
        lease = Lease(OUTBOX_DESK, self.name, next(courier.tokens), self.name)
        commands: tuple[Command, ...] = (settle, lease) if self.is_there and not courier.closed else (settle,)
        if len(commands) > 1:
            courier.held.add(lease.token)
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
                commands = (settle, Release(OUTBOX_DESK, lease.token))
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

    async def _attempt(self, message: Direct, token: str) -> tuple[Verdict, str]:
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


def _hastened(future: asyncio.Future[list[Outcome]]) -> None:
    if not future.cancelled() and (error := future.exception()) is not None and not isinstance(error, EngineClosed):
        log.warning("what waits for a peer that came waits on: %s", error)
