"""The library: a durable queue in ten lines.

    async with posthouse.open("mail.db") as post:
        await post.send("alice", b"hello")
        async for letter in post.receive("alice"):
            print(letter.body)
            await letter.done()

A script that has no event loop writes the same with ``with`` and without ``await``.

In: bodies to send, verdicts on letters. Out: letters, each until it is settled: at least once, in order
within its lane, and never two of a lane at the same time (with the default policy). While a program holds
a letter its lease is renewed; when the program leaves, what it holds returns at once, and when it dies,
after ``lease_s``. It adds nothing to what the engine does but comfort; ``post.engine`` is there for the rest.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import threading
import uuid
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from types import TracebackType

from ..errors import EngineClosed, InvalidInput, StoreError
from ..mailbox.check import ERROR_CHARS_MAX
from ..mailbox.command import Command, Lease, Release, Renew, Settle, Verdict
from ..mailbox.command import Post as PostCommand
from ..mailbox.message import NO_HEADERS, SECOND, Instant, Message
from ..mailbox.outcome import Delivery, Duplicate, Leased, LeaseLost, NotFound, Outcome, Posted, Refused, Settled
from ..mailbox.policy import Policy, exponential
from ..mailbox.store import Store
from .engine import Engine

log = logging.getLogger("posthouse.library")

MAIL = Policy("mail", retry=exponential(1, 300), attempts_max=20)
"""The desk of those who bring none: no cap, in order, retried for about an hour and then a dead letter."""

PathLike = str | os.PathLike[str]
StoreOpener = Callable[[str, Mapping[str, Policy]], Store]
SendOutcome = Posted | Duplicate | Refused
SettleOutcome = Settled | LeaseLost | NotFound


def open(
    path: PathLike,
    policies: Mapping[str, Policy] | Iterable[Policy] | None = None,
    *,
    desk: str | None = None,
    node: str | None = None,
    open_store: StoreOpener | None = None,
) -> Opening:
    """Open a store, to be used in ``async with`` or ``with``. ``":memory:"`` keeps nothing.

    ``policies`` are the desks it has (one named "mail" by default); ``desk`` is the one that ``send`` and
    ``receive`` use unless told otherwise, and need not be given where there is only one.
    """
    return Opening(os.fspath(path), _as_policies(policies), desk, node, open_store)


class Opening:
    """A store that is about to be opened, in one style or the other."""

    def __init__(
        self,
        path: str,
        policies: Mapping[str, Policy],
        desk: str | None,
        node: str | None,
        open_store: StoreOpener | None,
    ) -> None:
        self._path = path
        self._policies = policies
        self._node = node
        self._open_store = open_store
        self._desk = _pick_desk(policies, desk)
        self._counter: _Counter | None = None

    async def __aenter__(self) -> Posthouse:
        counter = await asyncio.to_thread(self._open)
        return Posthouse(counter)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._counter is not None:
            self._counter.engine.flush()
        await asyncio.to_thread(self._close)

    def __enter__(self) -> BlockingPosthouse:
        return BlockingPosthouse(self._open())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def _open(self) -> _Counter:
        if self._counter is not None:
            raise InvalidInput("this store is open already; call posthouse.open again for another")
        if self._open_store is not None:
            store = self._open_store(self._path, self._policies)
        elif self._path == ":memory:":
            from ..stores.memory import MemoryStore

            store = MemoryStore(self._policies)
        else:
            # Loaded here, so that what only keeps messages in memory needs no database.
            from ..stores.sqlite import SqliteStore

            store = SqliteStore.open(self._path, self._policies, node=self._node)
        engine = Engine(store)
        try:
            engine.start()
        except BaseException:
            engine.close()
            raise
        self._counter = _Counter(engine, self._desk)
        return self._counter

    def _close(self) -> None:
        counter, self._counter = self._counter, None
        if counter is not None:
            counter.close()


class _Counter:
    """What both styles share: it makes commands, knows what is held, and renews it."""

    def __init__(self, engine: Engine, desk: str) -> None:
        self.engine = engine
        self.desk = desk
        self._policies = engine.store.policies
        # One name for this use of the store; tokens are this and a number, one for each lease.
        self.holder = f"{os.getpid()}-{uuid.uuid4().hex[:12]}"
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        # What is released at the end: by token, its desk and how many letters it still holds.
        self._held: dict[str, tuple[str, int]] = {}
        # What is renewed until then: letters that somebody still has. One that was dropped without a
        # verdict is not renewed, so it comes back when its lease ends.
        self._letters: weakref.WeakSet[_Letter] = weakref.WeakSet()
        self._renewer: threading.Thread | None = None
        self._closing = threading.Event()

    def post(
        self,
        mailbox: str,
        body: bytes | str,
        id: str | None,
        desk: str | None,
        sender: str,
        lane: str,
        kind: str,
        headers: Mapping[str, str] | None,
        cause: str | None,
        after_s: float | None,
        ttl_s: float | None,
    ) -> PostCommand:
        if isinstance(body, str):
            body = body.encode()
        return PostCommand(
            Message(
                self.desk if desk is None else desk,
                mailbox,
                str(uuid.uuid4()) if id is None else id,
                body,
                sender=sender,
                lane=lane,
                kind=kind,
                # A copy: the caller's own may change before it is stored.
                headers=dict(headers) if headers else NO_HEADERS,
                cause=cause,
                due_at=None if after_s is None else self._after("after_s", after_s),
                expires_at=None if ttl_s is None else self._after("ttl_s", ttl_s),
            )
        )

    def lease(self, mailbox: str | None, desk: str | None) -> Lease:
        return Lease(self.desk if desk is None else desk, mailbox, f"{self.holder}-{next(self._numbers)}", self.holder)

    def hold(self, lease: Lease, count: int = 1) -> None:
        """The token holds this many letters, or is about to: at the end it is released."""
        with self._lock:
            self._held[lease.token] = (lease.desk, count)

    def let_go(self, token: str) -> None:
        """The token holds nothing any more."""
        with self._lock:
            self._held.pop(token, None)

    def give_back(self, lease: Lease) -> None:
        """Release what the token may hold, without waiting; what fails now is tried again at the end."""
        try:
            future = self.engine.submit(Release(lease.desk, lease.token))
        except EngineClosed:
            return

        def given_back(done: asyncio.Future[list[Outcome]]) -> None:
            if not done.cancelled() and done.exception() is None:
                self.let_go(lease.token)

        future.add_done_callback(given_back)

    def keep(self, lease: Lease, letters: Iterable[_Letter]) -> None:
        """Renew the lease for as long as somebody has one of these letters."""
        if self._policies[lease.desk].lease_s is None:
            return
        with self._lock:
            self._letters.update(letters)
            if self._renewer is None:
                self._renewer = threading.Thread(target=self._renew, name="posthouse-renewer", daemon=True)
                self._renewer.start()

    def taken(self, lease: Lease, leased: Leased | Refused) -> tuple[Delivery, ...]:
        """Note what a lease took."""
        # The desk was checked before, so the engine has no reason to refuse.
        assert isinstance(leased, Leased)
        if leased.deliveries:
            self.hold(lease, len(leased.deliveries))
        else:
            self.let_go(lease.token)
        return leased.deliveries

    def settle(
        self,
        letter: _Letter,
        verdict: Verdict,
        after_s: float | None = None,
        error: str | BaseException | None = None,
    ) -> Settle:
        if isinstance(error, BaseException):
            error = f"{type(error).__name__}: {error}"
        if error is not None:
            error = error.encode(errors="replace").decode()[:ERROR_CHARS_MAX]
        due_at = None if after_s is None else self._after("after_s", after_s)
        return Settle(
            letter.delivery.message.ref, letter.token, verdict, due_at=due_at, error=error, holder=self.holder
        )

    def settled(self, letter: _Letter, outcome: Outcome) -> SettleOutcome:
        with self._lock:
            self._letters.discard(letter)
            desk, count = self._held.pop(letter.token, (letter.desk, 0))
            if count > 1:
                self._held[letter.token] = (desk, count - 1)
        assert isinstance(outcome, Settled | LeaseLost | NotFound)
        return outcome

    def close(self) -> None:
        """Close the engine, and give back what is held as the last thing it does."""
        self._closing.set()
        self.engine.close(self._releases)
        if self._renewer is not None:
            self._renewer.join()

    def _releases(self) -> list[Command]:
        with self._lock:
            held, self._held = self._held, {}
            self._letters.clear()
        return [Release(desk, token) for token, (desk, _) in held.items()]

    def _after(self, field: str, seconds: object) -> Instant:
        if isinstance(seconds, bool) or not isinstance(seconds, int | float):
            raise InvalidInput(f"{field} must be a number of seconds, not {type(seconds).__name__}")
        if not 0 <= seconds <= 1e10:
            raise InvalidInput(f"{field} must be 0 s or more: {seconds!r}")
        return self.engine.clock.now() + int(seconds * SECOND)

    def _renew(self) -> None:
        lease_s = min(p.lease_s for p in self._policies.values() if p.lease_s is not None)
        # Three tries before the lease would end.
        while not self._closing.wait(lease_s / 3):
            with self._lock:
                held = list({letter.token: letter.desk for letter in self._letters}.items())
            if not held:
                continue
            try:
                outcomes = self.engine.call(*[Renew(desk, token) for token, desk in held])
            except EngineClosed:
                return
            except StoreError as error:
                log.warning("%d leases were not renewed: %s", len(held), error)
                continue
            for (token, _), outcome in zip(held, outcomes, strict=True):
                if isinstance(outcome, LeaseLost):
                    # Settling it will say so; there is nothing to renew or release.
                    with self._lock:
                        self._held.pop(token, None)
                        for letter in [x for x in self._letters if x.token == token]:
                            self._letters.discard(letter)


class _Letter:
    """A message in the hands of this program, until it is settled."""

    def __init__(self, counter: _Counter, delivery: Delivery, token: str) -> None:
        self._counter = counter
        self.delivery = delivery
        """All that the engine knows of it."""
        self.token = token

    @property
    def id(self) -> str:
        return self.delivery.message.id

    @property
    def body(self) -> bytes:
        return self.delivery.message.body

    @property
    def text(self) -> str:
        """The body as UTF-8 text."""
        return self.delivery.message.body.decode()

    @property
    def sender(self) -> str:
        return self.delivery.message.sender

    @property
    def kind(self) -> str:
        return self.delivery.message.kind

    @property
    def headers(self) -> Mapping[str, str]:
        return self.delivery.message.headers

    @property
    def desk(self) -> str:
        return self.delivery.message.desk

    @property
    def mailbox(self) -> str:
        return self.delivery.message.mailbox

    @property
    def lane(self) -> str:
        return self.delivery.message.lane

    @property
    def seq(self) -> int:
        """Its number in its lane, from 1 without gaps."""
        return self.delivery.seq

    @property
    def attempt(self) -> int:
        """1 when it is tried for the first time."""
        return self.delivery.attempt

    @property
    def posted_at(self) -> datetime:
        return datetime.fromtimestamp(self.delivery.posted_at / SECOND, UTC)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id!r} for {self.mailbox!r}, attempt {self.attempt}>"


class Letter(_Letter):
    """A letter, for coroutines. Settle it with one of its methods; LeaseLost means: too late."""

    async def done(self) -> SettleOutcome:
        """It was handled: it will not come again."""
        return await self._settle(self._counter.settle(self, Verdict.DELIVERED))

    async def retry(self, after_s: float | None = None, error: str | BaseException | None = None) -> SettleOutcome:
        """It failed for now: it comes again after the policy's wait, or after ``after_s``."""
        return await self._settle(self._counter.settle(self, Verdict.RETRY, after_s, error))

    async def reject(self, reason: str | BaseException | None = None) -> SettleOutcome:
        """It can never be handled: it becomes a dead letter, for an operator to look at."""
        return await self._settle(self._counter.settle(self, Verdict.REJECTED, None, reason))

    async def release(self, after_s: float | None = None) -> SettleOutcome:
        """It was not tried: it comes again, and the attempt does not count."""
        return await self._settle(self._counter.settle(self, Verdict.RETURN, after_s))

    async def _settle(self, command: Settle) -> SettleOutcome:
        return self._counter.settled(self, await self._counter.engine.do(command))


class BlockingLetter(_Letter):
    """A letter, for plain threads. Settle it with one of its methods; LeaseLost means: too late."""

    def done(self) -> SettleOutcome:
        """It was handled: it will not come again."""
        return self._settle(self._counter.settle(self, Verdict.DELIVERED))

    def retry(self, after_s: float | None = None, error: str | BaseException | None = None) -> SettleOutcome:
        """It failed for now: it comes again after the policy's wait, or after ``after_s``."""
        return self._settle(self._counter.settle(self, Verdict.RETRY, after_s, error))

    def reject(self, reason: str | BaseException | None = None) -> SettleOutcome:
        """It can never be handled: it becomes a dead letter, for an operator to look at."""
        return self._settle(self._counter.settle(self, Verdict.REJECTED, None, reason))

    def release(self, after_s: float | None = None) -> SettleOutcome:
        """It was not tried: it comes again, and the attempt does not count."""
        return self._settle(self._counter.settle(self, Verdict.RETURN, after_s))

    def _settle(self, command: Settle) -> SettleOutcome:
        return self._counter.settled(self, self._counter.engine.call(command)[0])


class Posthouse:
    """An open store, for coroutines."""

    def __init__(self, counter: _Counter) -> None:
        self._counter = counter

    @property
    def engine(self) -> Engine:
        """The engine, for all that is not comfort."""
        return self._counter.engine

    async def send(
        self,
        mailbox: str,
        body: bytes | str,
        *,
        id: str | None = None,
        desk: str | None = None,
        sender: str = "",
        lane: str = "",
        kind: str = "",
        headers: Mapping[str, str] | None = None,
        cause: str | None = None,
        after_s: float | None = None,
        ttl_s: float | None = None,
    ) -> SendOutcome:
        """Store a message; when this returns, it is durable (or was Refused).

        With an ``id`` of its own a message can be sent again safely: the repeat is a Duplicate.
        """
        outcome = await self.engine.do(
            self._counter.post(mailbox, body, id, desk, sender, lane, kind, headers, cause, after_s, ttl_s)
        )
        assert isinstance(outcome, Posted | Duplicate | Refused)
        return outcome

    def receive(
        self, mailbox: str | None = None, *, desk: str | None = None, wait_s: float | None = None
    ) -> AsyncIterator[Letter]:
        """The letters of a mailbox (None: of every mailbox of the desk, in turn), as they come.

        It ends when none came for ``wait_s`` seconds; by default only when the store is closed.
        """
        return _Receiver(self._counter, mailbox, desk, wait_s)


class BlockingPosthouse:
    """An open store, for plain threads."""

    def __init__(self, counter: _Counter) -> None:
        self._counter = counter

    @property
    def engine(self) -> Engine:
        """The engine, for all that is not comfort."""
        return self._counter.engine

    def send(
        self,
        mailbox: str,
        body: bytes | str,
        *,
        id: str | None = None,
        desk: str | None = None,
        sender: str = "",
        lane: str = "",
        kind: str = "",
        headers: Mapping[str, str] | None = None,
        cause: str | None = None,
        after_s: float | None = None,
        ttl_s: float | None = None,
    ) -> SendOutcome:
        """Store a message; when this returns, it is durable (or was Refused).

        With an ``id`` of its own a message can be sent again safely: the repeat is a Duplicate.
        """
        command = self._counter.post(mailbox, body, id, desk, sender, lane, kind, headers, cause, after_s, ttl_s)
        outcome = self.engine.call(command)[0]
        assert isinstance(outcome, Posted | Duplicate | Refused)
        return outcome

    def receive(
        self, mailbox: str | None = None, *, desk: str | None = None, wait_s: float | None = None
    ) -> Iterator[BlockingLetter]:
        """The letters of a mailbox (None: of every mailbox of the desk, in turn), as they come.

        It ends when none came for ``wait_s`` seconds; by default only when the store is closed.
        """
        return _BlockingReceiver(self._counter, mailbox, desk, wait_s)


class _Receiver(AsyncIterator[Letter]):
    def __init__(self, counter: _Counter, mailbox: str | None, desk: str | None, wait_s: float | None) -> None:
        self._counter = counter
        self._mailbox = mailbox
        self._desk = desk
        self._wait_s = wait_s
        # More than one only at a desk that hands out batches.
        self._letters: deque[Letter] = deque()

    async def __anext__(self) -> Letter:
        if not self._letters:
            counter = self._counter
            lease = counter.lease(self._mailbox, self._desk)
            counter.hold(lease)
            try:
                leased = await counter.engine.alease(lease, self._wait_s)
            except asyncio.CancelledError:
                # The lease may be on its way all the same. The release goes behind it, and nobody waits for it.
                counter.give_back(lease)
                raise
            except EngineClosed:
                counter.let_go(lease.token)
                if counter.engine.failure() is None:
                    raise StopAsyncIteration from None
                raise
            deliveries = counter.taken(lease, leased)
            if not deliveries:
                raise StopAsyncIteration
            letters = [Letter(counter, delivery, lease.token) for delivery in deliveries]
            counter.keep(lease, letters)
            self._letters.extend(letters)
        return self._letters.popleft()


class _BlockingReceiver(Iterator[BlockingLetter]):
    def __init__(self, counter: _Counter, mailbox: str | None, desk: str | None, wait_s: float | None) -> None:
        self._counter = counter
        self._mailbox = mailbox
        self._desk = desk
        self._wait_s = wait_s
        self._letters: deque[BlockingLetter] = deque()

    def __next__(self) -> BlockingLetter:
        if not self._letters:
            counter = self._counter
            lease = counter.lease(self._mailbox, self._desk)
            # Held before it is asked for: an interrupted wait may have leased something.
            counter.hold(lease)
            try:
                leased = counter.engine.lease(lease, self._wait_s)
            except EngineClosed:
                counter.let_go(lease.token)
                if counter.engine.failure() is None:
                    raise StopIteration from None
                raise
            deliveries = counter.taken(lease, leased)
            if not deliveries:
                raise StopIteration
            letters = [BlockingLetter(counter, delivery, lease.token) for delivery in deliveries]
            counter.keep(lease, letters)
            self._letters.extend(letters)
        return self._letters.popleft()


def _as_policies(policies: Mapping[str, Policy] | Iterable[Policy] | None) -> Mapping[str, Policy]:
    if policies is None:
        return {MAIL.name: MAIL}
    listed = list(policies.values()) if isinstance(policies, Mapping) else list(policies)
    for policy in listed:
        if not isinstance(policy, Policy):
            raise InvalidInput(f"expected a Policy, not {type(policy).__name__}")
    if not listed:
        raise InvalidInput("a store needs at least one policy")
    return {policy.name: policy for policy in listed}


def _pick_desk(policies: Mapping[str, Policy], desk: str | None) -> str:
    if desk is None and len(policies) == 1:
        return next(iter(policies))
    chosen = MAIL.name if desk is None else desk
    if chosen not in policies:
        raise InvalidInput(f"desk must be one of {', '.join(sorted(policies))}: {chosen!r}")
    return chosen
