"""What comes in: one stream is one message, which is recorded, handed on, and acknowledged by what became of it.

    stream → frame → judge → inbox (durable) → whoever processes it → acknowledgement
                       ├ a copy of one that is known → what became of the first
                       ├ before its turn → held back for a while, and the missing one is asked for
                       └ refused → a failed acknowledgement with the reason

An acknowledgement says yes only when the message was processed, and no only when it was refused for good. While neither
is so, there is none, and the sender tries again. Sizes, numbers and times of what others may make us hold are bounded.

In: streams. Out: commands, acknowledgements. It processes nothing itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Protocol

from ..control.trade import INBOX_DESK
from ..errors import BadFrame, StoreError
from ..libp2p.errors import LimitReached
from ..libp2p.peer_id import PeerId
from ..mailbox.command import Lease, Note, Post, Together
from ..mailbox.event import REFUSED
from ..mailbox.message import FINISHED, Message, Ref, State
from ..mailbox.outcome import Done, Duplicate, Outcome, Posted
from . import frame
from .capability import Path
from .frame import Direct
from .port import Office, Stream
from .session import Bucket, Early, Old, Refused, Session, Take
from .stats import Stats

log = logging.getLogger("posthouse.peer")

LARGE_BYTES = 16_384
"""A message counts as one more towards the rate limit for each of these."""
GAPS_MAX = 4_096
"""Trades of which it is remembered since when a number is missing."""


@dataclass(frozen=True, slots=True)
class TakeLimits:
    """What others may make us hold."""

    read_s: float = 60.0
    """For the whole frame."""
    answer_s: float = 10.0
    """For writing the acknowledgement."""
    process_s: float = 25.0
    """How long a stream waits for its message to be processed; less than senders wait for an acknowledgement."""
    hold_s: float = 20.0
    """How long a message that came before its turn is held back."""
    ask_s: float = 5.1
    """After so long what is missing is asked for again."""
    held_per_peer_max: int = 64
    held_max: int = 1_024
    reading_per_peer_bytes_max: int = 8 * 1_048_576
    reading_bytes_max: int = 64 * 1_048_576
    """Frames that are being read, of all peers together."""
    turn_s: float = 5.0
    """How long a message may wait for its turn under the rate limit; beyond that it is dropped."""
    notes_per_peer_s: float = 1.0
    """At most one refusal of a peer in so long is written to the journal; all are counted."""


Ended = tuple[State, str]
Asker = Callable[[PeerId, str], None]
"""Asks a peer how far a trade is."""
Comparer = Callable[[PeerId, Direct], Coroutine[Any, Any, Direct | None]]
"""Answers such a question."""


class Worker(Protocol):
    """Who processes messages."""

    def wants(self) -> Lease | None:
        """A lease for one more, if there is time for one."""

    def gets(self, lease: Lease, outcome: Outcome | None) -> None:
        """What the lease gave; None: nobody knows."""


class _Turn:
    """Whose turn it is in a trade."""

    __slots__ = ("lock", "users")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.users = 0


class Receiver:
    """Takes streams, for one session."""

    def __init__(
        self,
        office: Office,
        session: Session,
        stats: Stats,
        limits: TakeLimits | None = None,
        ask: Asker = lambda peer, trade: None,
        compare: Comparer | None = None,
    ) -> None:
        self.session = session
        self.limits = limits or TakeLimits()
        self._office = office
        self._stats = stats
        self._loop = asyncio.get_running_loop()
        self._ask = ask
        self._compare = compare or self.take
        self._waiting: dict[Ref, list[asyncio.Future[Ended]]] = {}
        self._turns: dict[str, _Turn] = {}
        self._moved: dict[str, list[asyncio.Future[None]]] = {}
        """By trade: those whose message waits for one before it."""
        self._gaps: dict[str, float] = {}
        """By trade: since when a number is missing."""
        self._held: Counter[str] = Counter()
        self._reading: Counter[str] = Counter()
        self._buckets: dict[str, Bucket] = {}
        self._noted: dict[str, float] = {}
        self.worker: Worker | None = None
        """Who processes what comes, if that is done here."""
        self.plain: set[str] = set()
        """Connected peers that cannot say what became of a missing number."""

    # Streams.

    async def serve(self, stream: Stream) -> None:
        """One stream from its first byte to its acknowledgement."""
        peer = str(stream.peer)
        try:
            async with asyncio.timeout(self.limits.read_s):
                message, size = await self._read(stream, peer)
        except BadFrame as error:
            self._refuse(peer, Direct(""), Refused("malformed", str(error)))
            stream.reset()
            return
        if not await self._in_turn(peer, 1 + size // LARGE_BYTES):
            self._refuse(peer, message, Refused("rate_limited", "too many messages"))
            stream.reset()
            return
        try:
            if message.type == frame.SYNC_REQUEST:
                answer: Direct | None = await self._compare(stream.peer, message)
            else:
                answer = await self.take(stream.peer, message)
        except BadFrame as error:
            self._refuse(peer, message, Refused("malformed", str(error)))
            stream.reset()
            return
        except StoreError as error:
            # Whether it was recorded may be unknown: the sender tries again, and its id tells.
            log.warning("a message of %s is not answered: %s", peer, error)
            stream.reset()
            return
        if answer is None:
            if message.requires_ack:
                stream.reset()
            return
        async with asyncio.timeout(self.limits.answer_s):
            await stream.write(frame.encode(answer))

    async def _read(self, stream: Stream, peer: str) -> tuple[Direct, int]:
        """The message, and how many bytes it took."""
        size = frame.body_bytes(await stream.read_exactly(frame.HEAD_BYTES))
        all_, limits = self._reading, self.limits
        if all_[peer] + size > limits.reading_per_peer_bytes_max or all_[""] + size > limits.reading_bytes_max:
            self._stats.refused["full"] += 1
            raise LimitReached("too much is being read already")
        all_[peer] += size
        all_[""] += size
        try:
            return frame.decode(await stream.read_exactly(size)), size
        finally:
            all_[peer] -= size
            all_[""] -= size
            if not all_[peer]:
                del all_[peer]

    async def _in_turn(self, peer: str, cost: int) -> bool:
        """Wait for this peer's turn; False if it sends too much."""
        bucket = self._buckets.get(peer)
        if bucket is None:
            if len(self._buckets) >= 4_096:
                self._buckets.clear()
            bucket = self._buckets[peer] = Bucket(self.session.rules, self._loop.time())
        wait_s = bucket.wait_s(self._loop.time(), cost)
        if wait_s > self.limits.turn_s:
            bucket.give_back(cost)
            return False
        if wait_s:
            await asyncio.sleep(wait_s)
        return True

    # Messages.

    async def hear(self, peer: PeerId, message: Direct, size: int, path: Path) -> Direct | None:
        """Take a private message that came another way than on a stream; its acknowledgement, if there is one."""
        name = str(peer)
        try:
            if not await self._in_turn(name, 1 + size // LARGE_BYTES):
                self._refuse(name, message, Refused("rate_limited", "too many messages"))
                return None
            return await self.take(peer, message, path)
        except (BadFrame, StoreError) as error:
            log.warning("a message of %s is not answered: %s", name, error)
            return None

    async def take(self, peer: PeerId, message: Direct, path: Path = Path.STREAM) -> Direct | None:
        """Take a message; its acknowledgement, or None where there is none to give (yet)."""
        name = str(peer)
        until_s = self._loop.time() + self.limits.hold_s
        held = False
        ref = Ref(INBOX_DESK, name, name, message.message_id)
        while True:
            async with self._alone(message.trade_id):
                judged = self.session.judge(name, message, self._office.now(), path)
                if not isinstance(judged, Early) or self._gap_is_old(name, message.trade_id):
                    waiter = self._wait_for(ref)
                    try:
                        ended = await self._record(name, ref, message, judged, path)
                    except BaseException:
                        self._forget(ref, waiter)
                        raise
                    break
            self._stats.held += not held
            held = True
            if not await self._hold(peer, message, until_s):
                return None
        try:
            if ended is None:
                ended = await self._processed(waiter)
        finally:
            self._forget(ref, waiter)
        if ended is None or not message.requires_ack:
            return None
        state, error = ended
        return self.session.answer(message, state is State.DELIVERED, error, self._office.now(), frame.new_id())

    async def _record(self, peer: str, ref: Ref, message: Direct, judged: object, path: Path) -> Ended | None:
        """Write it down; what became of it, if that is known already."""
        if isinstance(judged, Refused):
            return self._refuse(peer, message, judged)
        known = self._known(ref)
        if known is not None and known not in ((message.trade_id, message.sequence_num), (message.trade_id, None)):
            return self._refuse(peer, message, Refused("unmatched", "this message_id was used for another message"))
        if isinstance(judged, Old) and known is None:
            return self._refuse(peer, message, Refused("unmatched", "this number has passed: a replay"))
        if isinstance(judged, Early):
            # It was waited for long enough, and the other side cannot say what became of what is missing.
            log.warning("trade %s: numbers from %d to %d never came", message.trade_id, judged.first,
                        message.sequence_num - 1)  # fmt: skip
            self._stats.skipped += message.sequence_num - judged.first
            await self._skip(message.trade_id, message.sequence_num)
            judged = self.session.judge(peer, message, self._office.now(), path)
            assert isinstance(judged, Take)
        post = Post(self._inbound(peer, message))
        if isinstance(judged, Take) and known is None:
            outcome = await self._post(Together((post, *judged.commands)))
            if isinstance(outcome, Done):
                outcome = outcome.outcomes[0]
            if isinstance(outcome, Posted):
                self.session.took(message)
                self._stats.received[message.type] += 1
                self._advance(message.trade_id)
        else:
            outcome = await self._office.do(post)
            if isinstance(judged, Take):
                # It was written down, and whoever did it did not hear of it.
                self.session.took(message)
                self._advance(message.trade_id)
        return self._became(peer, message, outcome)

    async def _post(self, post: Together) -> Outcome:
        """Record a message; where somebody has time for one, what is next is taken for him in the same commit."""
        lease = None if self.worker is None else self.worker.wants()
        if lease is None or self.worker is None:
            return await self._office.do(post)
        try:
            outcome, leased = await self._office.apply(post, lease)
        except BaseException:
            self.worker.gets(lease, None)
            raise
        self.worker.gets(lease, leased)
        return outcome

    def _known(self, ref: Ref) -> tuple[str, int | None] | None:
        """Trade and number of the message that had this id, if one had; the number is forgotten before the rest."""
        view = self._office.store.message(ref)
        if view is None:
            return None
        number = view.message.headers.get("sequence_num", "")
        return view.message.lane, int(number) if number.isdecimal() else None

    def _became(self, peer: str, message: Direct, outcome: Outcome) -> Ended | None:
        if isinstance(outcome, Posted):
            return None
        if isinstance(outcome, Duplicate):
            self._stats.duplicates += 1
            if outcome.state in FINISHED:
                return outcome.state, _why(outcome.state, outcome.error or outcome.reason)
            return None
        return self._refuse(peer, message, Refused("full", "the inbox takes no more for now"), final=False)

    def _inbound(self, peer: str, message: Direct) -> Message:
        headers = {"sequence_num": str(message.sequence_num), "timestamp": str(message.timestamp)}
        if message.order_id:
            headers["order_id"] = message.order_id
        if message.swap_timeout:
            headers["swap_timeout"] = str(message.swap_timeout)
        if message.signature:
            headers["signature"] = message.signature
        return Message(
            INBOX_DESK, peer, message.message_id, frame.dumps(message.payload), sender=peer, lane=message.trade_id,
            kind=message.type, headers=headers,
        )  # fmt: skip

    def _refuse(self, peer: str, message: Direct, refused: Refused, final: bool = True) -> Ended | None:
        """Count it, write it down where it is not one of many, and say no."""
        self._stats.refused[refused.reason] += 1
        now_s = self._loop.time()
        if now_s - self._noted.get(peer, -1e9) >= self.limits.notes_per_peer_s:
            if len(self._noted) >= 4_096:
                self._noted.clear()
            self._noted[peer] = now_s
            note = Note(
                REFUSED, INBOX_DESK, peer, peer, refused.reason, refused.error, message.message_id, message.type, peer
            )
            try:
                self._office.submit(note).add_done_callback(_noted)
            except StoreError as error:
                log.warning("a refusal was not written down: %s", error)
            log.info("a message of %s is refused (%s): %s", peer, refused.reason, refused.error)
        return (State.DEAD, refused.error) if final else None

    # Waiting.

    def settled(self, ref: Ref, state: State, error: str = "") -> None:
        """A message was processed, or refused for good: those who wait to acknowledge it can."""
        for waiter in self._waiting.pop(ref, ()):
            if not waiter.done():
                waiter.set_result((state, _why(state, error)))

    def _wait_for(self, ref: Ref) -> asyncio.Future[Ended]:
        waiter: asyncio.Future[Ended] = self._loop.create_future()
        self._waiting.setdefault(ref, []).append(waiter)
        return waiter

    def _forget(self, ref: Ref, waiter: asyncio.Future[Ended]) -> None:
        waiting = self._waiting.get(ref)
        if waiting is not None and waiter in waiting:
            waiting.remove(waiter)
            if not waiting:
                del self._waiting[ref]

    async def _processed(self, waiter: asyncio.Future[Ended]) -> Ended | None:
        try:
            async with asyncio.timeout(self.limits.process_s):
                return await waiter
        except TimeoutError:
            return None

    @contextlib.asynccontextmanager
    async def _alone(self, trade: str) -> AsyncIterator[None]:
        """One at a time in each trade."""
        turn = self._turns.setdefault(trade, _Turn())
        turn.users += 1
        try:
            async with turn.lock:
                yield
        finally:
            turn.users -= 1
            if not turn.users:
                del self._turns[trade]

    # Before its turn.

    def _gap_is_old(self, peer: str, trade: str) -> bool:
        since_s = self._gaps.get(trade)
        return peer in self.plain and since_s is not None and self._loop.time() - since_s >= self.session.rules.gap_s

    async def _hold(self, peer: PeerId, message: Direct, until_s: float) -> bool:
        """Wait until something of its trade has come, or it is time to ask again; False if it takes too long."""
        name, trade = str(peer), message.trade_id
        wait_s = until_s - self._loop.time()
        if wait_s <= 0:
            return False
        if self._held[name] >= self.limits.held_per_peer_max or self._held[""] >= self.limits.held_max:
            self._stats.refused["full"] += 1
            return False
        if trade not in self._gaps:
            if len(self._gaps) >= GAPS_MAX:
                del self._gaps[next(iter(self._gaps))]
            self._gaps[trade] = self._loop.time()
        self._held[name] += 1
        self._held[""] += 1
        moved = self._loop.create_future()
        self._moved.setdefault(trade, []).append(moved)
        self._ask(peer, trade)
        try:
            async with asyncio.timeout(min(wait_s, self.limits.ask_s)):
                await moved
        except TimeoutError:
            log.debug("trade %s: what is before %d has not come", trade, message.sequence_num)
        finally:
            self._held[name] -= 1
            self._held[""] -= 1
            waiting = self._moved.get(trade, [])
            if moved in waiting:
                waiting.remove(moved)
                if not waiting:
                    self._moved.pop(trade, None)
        return True

    async def skip(self, trade: str, next_number: int) -> None:
        """The other side says that no number below this one will come any more."""
        async with self._alone(trade):
            await self._skip(trade, next_number)

    async def _skip(self, trade: str, next_number: int) -> None:
        before = self.session.last(trade)
        commands = self.session.skip(trade, next_number)
        if commands:
            await self._office.apply(*commands)
        if self.session.last(trade) > before:
            self._advance(trade)

    def _advance(self, trade: str) -> None:
        self._gaps.pop(trade, None)
        for waiting in self._moved.pop(trade, ()):
            if not waiting.done():
                waiting.set_result(None)

    def missing(self, trade: str) -> bool:
        """Whether a message of this trade waits for one before it."""
        return trade in self._moved or trade in self._gaps


def _why(state: State, error: str | None) -> str:
    """What a failed acknowledgement says."""
    if state is State.DELIVERED:
        return ""
    return error or ("cancelled" if state is State.CANCELLED else "rejected")


def _noted(future: asyncio.Future[list[Outcome]]) -> None:
    if not future.cancelled() and (error := future.exception()) is not None:
        log.warning("a refusal was not written down: %s", error)
