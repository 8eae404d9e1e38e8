"""The two sides of a channel under test: a network's other end, and the gateway's.

In: a ``Bench`` that its author derives, with the network in the hands of a test. Out: a ``Trial``, with a channel, a
real engine in memory, and all that was said meanwhile. What must hold is checked in ``conformance``.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from ...engine.engine import Engine
from ...mailbox.command import Filter
from ...mailbox.outcome import Duplicate, Posted, Refused
from ...mailbox.policy import INBOUND
from ...stores.memory import MemoryStore
from ..channel import (
    Channel,
    NotAccepted,
    Offline,
    Receipt,
    SendError,
    Sending,
    Sent,
)
from ..letter import INBOUND_DESK, Inbound, Outbound, Part, encode

DEADLINE_S = 30.0
"""How long a check waits for anything; only one that does not hold waits so long."""
LOOK_S = 0.1


class NotConforming(AssertionError):
    """The channel does not do what every channel must."""


class Lacking(Exception):
    """The network cannot do what this check needs."""


def expect(condition: bool, what: str) -> None:
    """NotConforming unless it is so."""
    if not condition:
        raise NotConforming(what)


class Changes:
    """Something that changes, and those who wait until it is so."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Event] = set()

    def ring(self) -> None:
        """It has changed."""
        for event in self._waiting:
            event.set()

    async def until(self, condition: Callable[[], bool], what: str, within_s: float | None = None) -> None:
        """Wait until a condition holds; NotConforming if it does not for long (``DEADLINE_S``, if nothing is said)."""
        within_s = DEADLINE_S if within_s is None else within_s
        event = asyncio.Event()
        self._waiting.add(event)
        try:
            async with asyncio.timeout(within_s):
                while not condition():
                    # Not every network can ring: its other side is looked at now and then.
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(event.wait(), LOOK_S)
                    event.clear()
        except TimeoutError:
            raise NotConforming(f"{what}: not within {within_s:g} s") from None
        finally:
            self._waiting.discard(event)


class Bench:
    """The other side of a channel. Derive, and say how it is done on your network."""

    lacks: frozenset[str] = frozenset()
    """Of: receive, told, again, permanent, transient, rate_limited, silent, cut."""
    secrets: tuple[str, ...] = ()
    """Credentials of this account, which must be seen nowhere."""
    to: str = "someone"
    """A target that can be sent to."""

    def __init__(self) -> None:
        self.changes = Changes()
        """Ring it whenever something arrives or is told."""

    async def open(self) -> None:
        """Start the network."""

    async def close(self) -> None:
        """Stop it."""

    def channel(self) -> Channel:
        """A new channel for the account: it may be called again when the one before is closed, as at a restart."""
        raise NotImplementedError

    async def bring(self, text: str) -> None:
        """Somebody writes a message of this text to the account."""
        raise NotImplementedError

    async def bring_again(self) -> None:
        """The network brings the last message once more, as networks do."""
        raise NotImplementedError

    def told(self, text: str) -> bool:
        """Whether the network was told that the message was received, and will not bring it again."""
        raise NotImplementedError

    def arrived(self) -> list[str]:
        """The texts of all parts that arrived, in order."""
        raise NotImplementedError

    def answer(self, how: str) -> None:
        """How sends are answered from now on.

        ``ok``; or without taking the part: ``permanent``, ``transient``, ``rate_limited``; or ``silent``: it takes the
        part, and the connection ends without an answer.
        """
        raise NotImplementedError

    async def cut(self) -> None:
        """All connections break, without a word. New ones can be made."""
        raise NotImplementedError


class Desk:
    """The gateway's side: a real engine in memory, and switches that make it slow or full."""

    def __init__(self) -> None:
        self.changes = Changes()
        self.engine = Engine(MemoryStore({INBOUND_DESK: INBOUND}))
        self.offered: list[Inbound] = []
        """Everything that was handed over, whether or not it was kept."""
        self.receipts: list[Receipt] = []
        self.ups = 0
        self.downs: list[tuple[str, str]] = []
        self.is_up = False
        self.full = False
        self.free = asyncio.Event()
        """Cleared: handing over takes as long."""
        self.free.set()
        self.closed = False
        self.late: list[str] = []
        """What was called after the channel was closed."""

    async def receive(self, inbound: Inbound) -> Receipt:
        """As the gateway does it."""
        self._called("receive")
        self.offered.append(inbound)
        self.changes.ring()
        await self.free.wait()
        if self.full:
            raise NotAccepted("full", "there is no room")
        outcome = await self.engine.do(inbound.post())
        if isinstance(outcome, Refused):
            raise NotAccepted(str(outcome.reason), outcome.detail or str(outcome.reason))
        expect(isinstance(outcome, Posted | Duplicate), f"the engine answered {type(outcome).__name__}")
        receipt = Receipt(inbound.id, isinstance(outcome, Duplicate))
        self.receipts.append(receipt)
        self.changes.ring()
        return receipt

    def up(self, holder: str = "") -> None:
        """As the gateway does it."""
        self._called("up")
        self.ups += 1
        self.is_up = True
        self.changes.ring()

    def down(self, reason: str = "cut", error: str = "") -> None:
        """As the gateway does it."""
        self._called("down")
        expect(reason in ("closed", "cut", "timeout", "replaced", "shutdown"), f"down for the reason {reason!r}")
        self.downs.append((reason, error))
        self.is_up = False
        self.changes.ring()

    def _called(self, what: str) -> None:
        if self.closed:
            self.late.append(what)
            raise NotConforming(f"{what} is called on the port of a channel that is closed")

    def kept(self) -> list[Inbound]:
        """What is durable."""
        return [Inbound.from_message(view.message) for view in self.engine.store.messages(Filter(INBOUND_DESK))]


class Trial:
    """One check's bench, channel and desk, and all that was said meanwhile."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.desk = Desk()
        self.channel: Channel = bench.channel()
        self.said: list[str] = []
        """What was logged, and the errors that were raised."""
        self.changes = Changes()
        self.tasks: set[asyncio.Future[Any]] = set()
        """The channel's tasks that have not ended, and theirs; not those of the bench."""
        self._sent = 0

    def needs(self, *abilities: str) -> None:
        """The check cannot be made on a network that lacks one of these."""
        for ability in abilities:
            if ability in self.bench.lacks:
                raise Lacking(f"the network lacks {ability}")

    async def start(self) -> None:
        """Start the channel and wait until it is up."""
        before = self.desk.ups
        mark = _ours.set(True)
        try:
            await self.channel.start(self.desk)
        finally:
            _ours.reset(mark)
        await self.desk.changes.until(lambda: self.desk.ups > before, "the channel comes up")
        expect(self.channel.connection() is not None, "it is up, and there is no connection")

    async def restart(self) -> None:
        """Close the channel, and start another for the same account."""
        await self.channel.close()
        self.desk.is_up = False
        self.channel = self.bench.channel()
        await self.start()

    def sending(self, *texts: str, index: int = 0) -> Sending:
        """A new message on its way out."""
        self._sent += 1
        parts = tuple(Part(text) for text in texts)
        outbound = Outbound(
            f"out-{self._sent}", self.channel.kind, self.bench.to, parts, self.channel.account, origin="check"
        )
        return self.part(outbound, index)

    def part(self, outbound: Outbound, index: int, attempt: int = 1) -> Sending:
        """One part of a message on its way out."""
        return Sending(outbound, index, f"{outbound.id}/{index}", attempt)

    async def send(self, sending: Sending) -> Sent | SendError:
        """Send a part over the connection that is live now; what came of it."""
        connection = self.channel.connection()
        if connection is None:
            return Offline("there is no connection")
        return await self.send_over(connection, sending)

    async def send_over(self, connection: Any, sending: Sending) -> Sent | SendError:
        """Send a part over this connection; what came of it."""
        try:
            async with asyncio.timeout(DEADLINE_S):
                sent = await connection.send(sending)
        except SendError as error:
            self.said.append(f"{error!r} {error}")
            return error
        except TimeoutError:
            raise NotConforming(f"a send takes more than {DEADLINE_S:g} s") from None
        expect(isinstance(sent, Sent), "a send returns something else than Sent")
        return sent  # type: ignore[no-any-return]

    async def until_arrived(self, *texts: str) -> None:
        """Wait until exactly these have arrived."""
        await self.bench.changes.until(lambda: self.bench.arrived() == list(texts), f"{texts} arrive")

    async def until_kept(self, count: int) -> None:
        """Wait until so many messages are durable."""
        await self.desk.changes.until(lambda: len(self.desk.kept()) >= count, f"{count} messages are kept")

    async def until_said(self, text: str) -> None:
        """Wait until the log says this."""
        await self.changes.until(lambda: any(text in said for said in self.said), f"the log says {text!r}")

    def check_silence(self) -> None:
        """Nothing that was said anywhere holds a secret."""
        handed = [encode(inbound.as_json()).decode() + str(inbound.ref) for inbound in self.desk.offered]
        downs = [f"{reason} {error}" for reason, error in self.desk.downs]
        for text in (*self.said, *handed, *downs, repr(self.channel), str(self.channel)):
            for secret in self.bench.secrets:
                if secret in text:
                    raise NotConforming(f"a secret is shown: {text.replace(secret, '(it)')[:200]}")


_ours: contextvars.ContextVar[bool] = contextvars.ContextVar("ours", default=False)
"""Whether what runs was begun by the channel: tasks inherit it."""


def _watch_tasks(tasks: set[asyncio.Future[Any]]) -> None:
    def made(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Future[Any]:
        task: asyncio.Future[Any] = asyncio.Task(work, loop=loop, **options)
        if _ours.get():
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        return task

    asyncio.get_running_loop().set_task_factory(made)


class _Log(logging.Handler):
    def __init__(self, trial: Trial) -> None:
        super().__init__()
        self._trial = trial
        self._loop = asyncio.get_running_loop()

    def emit(self, record: logging.LogRecord) -> None:
        self._trial.said.append(logging.Formatter().format(record) + str(vars(record)))
        # The engine's thread may be the one that logs.
        self._loop.call_soon_threadsafe(self._trial.changes.ring)


@asynccontextmanager
async def trial(bench: Bench) -> AsyncIterator[Trial]:
    """A network, a channel and a desk; at the end all is closed, and nothing was said that should not be."""
    await bench.open()
    try:
        found = Trial(bench)
    except BaseException:
        await bench.close()
        raise
    _watch_tasks(found.tasks)
    handler = _Log(found)
    loggers = [logging.getLogger(), logging.getLogger("posthouse")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.addHandler(handler)
        logger.setLevel(logging.DEBUG)
    try:
        with found.desk.engine:
            try:
                yield found
            finally:
                found.desk.free.set()
                await found.channel.close()
                found.desk.closed = True
                await bench.close()
        expect(not found.desk.late, f"after the end the port is called: {found.desk.late}")
        found.check_silence()
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.removeHandler(handler)
            logger.setLevel(level)
