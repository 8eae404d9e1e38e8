"""The courier: takes what waits in the outbox to the peers that it is for, one stream a message.

    lease → the message, numbered and signed → stream → acknowledgement → settled
                                                │            ├ yes → delivered
                                                │            ├ no  → dead: rejected, with the reason
                                                │            └ none, or one of another message → again, by the policy
                                                ├ the peer is away → again when it comes, or after the policy's waits
                                                └ it takes no streams → by gossip (``whisper``), where the trade allows

A peer that is away is tried with one message at a time, after waits that grow; the others stay where they are. As soon
as it connects, from either side, all of its trades go on, each in order, ``sends_per_peer`` side by side; what got no
answer before does not wait for its next try either. A message that is posted meanwhile is tried at once. It keeps no
message, and decides nothing about order: the engine does.

An acknowledgement counts whichever way it comes (``confirmed``): the first one settles the message.

In: the engine, the network. Out: streams, and commands.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import secrets
from dataclasses import dataclass

from ..control.trade import OUTBOX_DESK
from ..errors import BadFrame, EngineClosed, StoreError
from ..libp2p.errors import BadInput, DialFailed
from ..libp2p.peer_id import PeerId
from ..mailbox.command import Command, Hasten, Lease, Release, Settle, Verdict
from ..mailbox.message import FINISHED, SECOND, Ref, State
from ..mailbox.outcome import Outcome, Settled
from ..mailbox.store import MessageView
from . import frame
from .capability import Path
from .frame import Direct
from .line import Line
from .port import Carrier, Network, Office, Shelter
from .session import Session
from .signature import is_signed_by
from .stats import Stats

log = logging.getLogger("posthouse.peer")


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
        self._tokens = itertools.count()
        self._mark = secrets.token_hex(8)
        self.held: set[str] = set()
        """Tokens that hold something, or may."""
        self.whispers: Carrier | None = None
        """Gossip, where we take part in it."""
        self.shelter: Shelter | None = None
        """Where messages are left for those who are away, if anywhere."""
        self._expected: dict[tuple[PeerId, str], asyncio.Future[Direct]] = {}
        """Acknowledgements that are waited for and come by themselves."""
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

    def posted(self, peer: str, trade: str = "") -> None:
        """Something new waits for a peer."""
        line = self.line(peer)
        if line is not None:
            line.knock(trade)

    def wants(self, peer: str, trade: str) -> Lease | None:
        """For whoever posts: a lease to go with it, if it can be sent soon; ``gets`` is told what it gave."""
        line = self._lines.get(peer)
        return None if line is None else line.wants(trade)

    def gets(self, peer: str, lease: Lease, outcome: Outcome | None) -> None:
        """What the lease of ``wants`` gave; None: nobody knows."""
        line = self.line(peer)
        if line is not None:
            line.gets(lease, outcome)

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

    def token(self) -> str:
        """For lines: the name of a new lease."""
        return f"{self._mark}-{next(self._tokens)}"

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
        for line in lines:
            line.settle()
        sends = [task for line in lines for task in line.tasks]
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

    # Acknowledgements.

    def confirmed(self, peer: PeerId, answer: Direct, path: Path) -> None:
        """An acknowledgement came by itself; BadFrame if it is none. Who sent it is proven."""
        ack = frame.acknowledged(answer)
        expected = self._expected.get((peer, ack.message_id))
        if expected is not None:
            if not expected.done():
                expected.set_result(answer)
            return
        if answer.signature and not is_signed_by(answer, str(peer)):
            raise BadFrame("the signature of an acknowledgement is not the peer's")
        ref = Ref(OUTBOX_DESK, str(peer), "", ack.message_id)
        known = self.office.store.message(ref)
        if known is None or known.state in FINISHED:
            return
        verdict = Verdict.DELIVERED if ack.success else Verdict.REJECTED
        settle = Settle(ref, None, verdict, error=None if ack.success else ack.error or "rejected", holder=str(peer))
        with contextlib.suppress(EngineClosed):
            future = self.office.submit(settle, *self.session.learn(str(peer), answer, path))
            future.add_done_callback(lambda future: self._settled(known, future))

    def _settled(self, known: MessageView, future: asyncio.Future[list[Outcome]]) -> None:
        if future.cancelled():
            return
        if (error := future.exception()) is not None:
            log.warning("an acknowledgement was not written down, and is asked for again: %s", error)
        elif isinstance(settled := future.result()[0], Settled):
            if settled.state is State.DELIVERED:
                self.stats.acked += 1
                self.stats.latency_s += max(self.office.now() - known.posted_at, 0) / SECOND
            else:
                self.stats.rejected += 1

    # One attempt.

    async def attempt(self, peer: PeerId, message: Direct, data: bytes) -> tuple[Verdict, str, tuple[Command, ...]]:
        """Send a message (``data``: its frame): what its acknowledgement says, and what is to be noted of the peer."""
        if self.goes_by_gossip(peer, message.trade_id):
            answer, path = await self._whisper(peer, message), Path.GOSSIP
            if answer is None:
                return Verdict.UNCERTAIN, "published by gossip, for a node that acknowledges nothing there", ()
        else:
            answer, path = await self._exchange(peer, data), Path.STREAM
        verdict, said = self.session.verdict(str(peer), message, answer)
        return verdict, said, self.session.learn(str(peer), answer, path)

    def goes_by_gossip(self, peer: PeerId, trade: str) -> bool:
        """Whether the next message of a trade goes by gossip."""
        info = self.network.info(peer)
        return self.session.goes_by_gossip(trade, None if info is None else frame.PROTOCOL in info.protocols)

    async def _whisper(self, peer: PeerId, message: Direct) -> Direct | None:
        """Publish a message and wait for its acknowledgement; None where none is to be expected."""
        key = (peer, message.message_id)
        expected: asyncio.Future[Direct] = asyncio.get_running_loop().create_future()
        self._expected[key] = expected
        try:
            if self.whispers is None or not self.whispers.publish(peer, message):
                raise DialFailed("it takes no streams, and nobody is there who could carry it by gossip")
            if self.session.acknowledges_gossip(message.trade_id) is False:
                return None
            return await expected
        finally:
            if self._expected.get(key) is expected:
                del self._expected[key]

    async def ask(self, peer: PeerId, message: Direct) -> Direct:
        """Send a message and read what is answered, on a stream of its own."""
        return await self._exchange(peer, frame.encode(message))

    async def _exchange(self, peer: PeerId, data: bytes) -> Direct:
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


def _hastened(future: asyncio.Future[list[Outcome]]) -> None:
    if not future.cancelled() and (error := future.exception()) is not None and not isinstance(error, EngineClosed):
        log.warning("what waits for a peer that came waits on: %s", error)
