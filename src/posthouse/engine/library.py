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
import time
import uuid
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from types import TracebackType

from ..errors import EngineClosed, InvalidInput, StoreError
from ..mailbox.check import ERROR_CHARS_MAX
from ..mailbox.command import Lease, Release, Renew, Settle, Verdict
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
        # What is released at the end, by token; and what is renewed until then: letters that somebody
        # still has. One that was forgotten is not renewed, so it comes back when its lease ends.
        self._held: dict[str, str] = {}
        self._letters: weakref.WeakValueDictionary[str, _Letter] = weakref.WeakValueDictionary()
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
        return Lease(
            self.desk if desk is None else desk, mailbox, f"{self.holder}-{next(self._numbers)}", self.holder
        )

    def hold(self, lease: Lease) -> None:
        """From now on the token may hold something: it is released at the end."""
        with self._lock:
            self._held[lease.token] = lease.desk

    def let_go(self, token: str) -> None:
        """The token holds nothing any more."""
        with self._lock:
            self._held.pop(token, None)
            self._letters.pop(token, None)

    def keep(self, letter: _Letter) -> None:
        """Renew this letter's lease for as long as somebody has it."""
        policy = self._policies[letter.delivery.message.desk]
        if policy.lease_s is None:
            return
        with self._lock:
            self._letters[letter.token] = letter
            if self._renewer is None:
                self._renewer = threading.Thread(target=self._renew, name="posthouse-renewer", daemon=True)
                self._renewer.start()

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
        letter.is_settled = True
        letter.batch.discard(letter)
        if not letter.batch:
            self.let_go(letter.token)
        assert isinstance(outcome, Settled | LeaseLost | NotFound)
        return outcome

    def close(self) -> None:
        """Give back what is held, and close the engine."""
        self._closing.set()
        with self._lock:
            held, self._held = self._held, {}
            self._letters.clear()
        try:
            if held:
                self.engine.call(*[Release(desk, token) for token, desk in held.items()])
        except StoreError as error:
            # They come back when the store is opened next.
            log.warning("%d leases were not released: %s", len(held), error)
        finally:
            self.engine.close()
            if self._renewer is not None:
                self._renewer.join()

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
                letters = list(self._letters.values())
            if not letters:
                continue
            try:
                outcomes = self.engine.call(*[Renew(x.delivery.message.desk, x.token) for x in letters])
            except EngineClosed:
                return
            except StoreError as error:
                log.warning("%d leases were not renewed: %s", len(letters), error)
                continue
            for letter, outcome in zip(letters, outcomes, strict=True):
                if isinstance(outcome, LeaseLost):
                    log.warning("the lease of %s was lost", letter.id)
                    self.let_go(letter.token)
            del letters, letter
