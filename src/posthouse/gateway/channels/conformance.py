"""A test kit for channels: what every implementation must do, tried on the real thing.

Who writes a channel derives from ``Bench``: the network's other side, in the hands of a test. Then

    @pytest.mark.parametrize("check", CHECKS, ids=name_of)
    def test_my_channel(check):
        asyncio.run(tried(check, MyBench))

tries all of it. The gateway's side is a real engine in memory. A check that does not hold raises ``NotConforming`` with
one sentence. What a network cannot do at all it ``lacks``, and the check that needs it raises ``Lacking``.
In all checks, nothing that is logged, raised, told or handed over may hold one of the bench's ``secrets``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
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
    Permanent,
    RateLimited,
    Receipt,
    Reconciled,
    Reconciles,
    SendError,
    Sending,
    Sent,
    Transient,
    Unclear,
)
from ..letter import INBOUND_DESK, Inbound, Outbound, Part, encode

DEADLINE_S = 10.0
"""How long a check waits for anything."""
LOOK_S = 0.1


class NotConforming(AssertionError):
    """The channel does not do what every channel must."""


class Lacking(Exception):
    """The network cannot do what this check needs."""


class Changes:
    """Something that changes, and those who wait until it is so."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Event] = set()

    def ring(self) -> None:
        """It has changed."""
        for event in self._waiting:
            event.set()

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until a condition holds; NotConforming if it does not for long."""
        event = asyncio.Event()
        self._waiting.add(event)
        try:
            async with asyncio.timeout(DEADLINE_S):
                while not condition():
                    # Not every network can ring: its other side is looked at now and then.
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(event.wait(), LOOK_S)
                    event.clear()
        except TimeoutError:
            raise NotConforming(f"{what}: not within {DEADLINE_S:g} s") from None
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
        self._sent = 0

    def needs(self, *abilities: str) -> None:
        """The check cannot be made on a network that lacks one of these."""
        for ability in abilities:
            if ability in self.bench.lacks:
                raise Lacking(f"the network lacks {ability}")

    async def start(self) -> None:
        """Start the channel and wait until it is up."""
        before = self.desk.ups
        await self.channel.start(self.desk)
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
    found = Trial(bench)
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


Check = Callable[[Trial], Awaitable[None]]


async def tried(check: Check, bench: Callable[[], Bench]) -> None:
    """Make one check on a new bench."""
    async with trial(bench()) as found:
        await check(found)


def expect(condition: bool, what: str) -> None:
    """NotConforming unless it is so."""
    if not condition:
        raise NotConforming(what)


def name_of(check: Check) -> str:
    """A check's name, for a test's."""
    return str(getattr(check, "__name__", check))


# The checks.


async def it_starts_and_ends(trial: Trial) -> None:
    """No connection before the start and after the end, no task left over, and ending twice is no harm."""
    expect(trial.channel.connection() is None, "there is a connection before the start")
    tasks = asyncio.all_tasks()
    await trial.start()
    await trial.channel.close()
    trial.desk.closed = True
    expect(trial.channel.connection() is None, "there is a connection after the end")
    await trial.channel.close()
    await asyncio.sleep(0)
    left = {task for task in asyncio.all_tasks() - tasks if "aiohttp" not in repr(task)}
    expect(not left, f"tasks are left over: {left}")


async def what_comes_is_handed_over(trial: Trial) -> None:
    """Messages come in their order, with all that an answer needs."""
    trial.needs("receive")
    await trial.start()
    for number in range(3):
        await trial.bench.bring(f"grüß dich {number}")
        await trial.until_kept(number + 1)
    kept = trial.desk.kept()
    expect([inbound.text for inbound in kept] == [f"grüß dich {n}" for n in range(3)], "other texts, or another order")
    for inbound in kept:
        named = inbound.channel == trial.channel.kind and inbound.account == trial.channel.account
        expect(named, "a message names another channel or account")
        expect(bool(inbound.conversation), "a message has no conversation, so that nobody can answer it")
    expect(len({inbound.id for inbound in kept}) == 3, "two messages have the same id")
    expect(len({inbound.lane for inbound in kept}) == 1, "one conversation has two sessions")


async def the_network_is_told_when_it_is_durable_and_not_before(trial: Trial) -> None:
    """While the message is being stored, the network has not been told."""
    trial.needs("receive", "told")
    await trial.start()
    trial.desk.free.clear()
    await trial.bench.bring("patience")
    await trial.desk.changes.until(lambda: bool(trial.desk.offered), "the message is handed over")
    expect(not trial.bench.told("patience"), "the network is told before the message is durable")
    trial.desk.free.set()
    await trial.bench.changes.until(lambda: trial.bench.told("patience"), "the network is told")
    expect(bool(trial.desk.receipts), "the network is told, and the message is not kept")


async def what_was_not_kept_comes_again(trial: Trial) -> None:
    """A message that the gateway had no room for is not confirmed, and comes again, after a restart too."""
    trial.needs("receive", "told", "again")
    await trial.start()
    trial.desk.full = True
    await trial.bench.bring("no room")
    await trial.desk.changes.until(lambda: bool(trial.desk.offered), "the message is handed over")
    await trial.channel.close()
    expect(not trial.bench.told("no room"), "the network is told of a message that was not kept")
    trial.desk.full = False
    await trial.restart()
    await trial.bench.bring_again()
    await trial.until_kept(1)
    expect(trial.desk.kept()[0].text == "no room", "something else came")
    await trial.bench.changes.until(lambda: trial.bench.told("no room"), "the network is told")


async def a_message_that_comes_twice_has_one_id(trial: Trial) -> None:
    """So that it is known, across restarts."""
    trial.needs("receive", "again")
    await trial.start()
    await trial.bench.bring("once")
    await trial.until_kept(1)
    await trial.restart()
    offered = len(trial.desk.receipts)
    await trial.bench.bring_again()
    await trial.bench.bring("and then")
    await trial.desk.changes.until(
        lambda: any(i.text == "and then" for i in trial.desk.kept()), "the next message is kept"
    )
    expect([i.text for i in trial.desk.kept()] == ["once", "and then"], "a message is kept twice")
    again = [receipt for receipt in trial.desk.receipts[offered:] if receipt.duplicate]
    expect(all(receipt.id == trial.desk.kept()[0].id for receipt in again), "it came again under another id")


async def parts_arrive_in_order(trial: Trial) -> None:
    """What is reported as sent has arrived."""
    await trial.start()
    first = trial.sending("one", "two — zwei", "three")
    for index in range(3):
        sent = await trial.send(trial.part(first.outbound, index))
        expect(isinstance(sent, Sent), f"part {index} was not sent: {sent}")
    await trial.until_arrived("one", "two — zwei", "three")


async def a_repeated_part_arrives_once(trial: Trial) -> None:
    """Where the channel says that it is idempotent."""
    if not trial.channel.idempotent:
        raise Lacking("the channel is not idempotent")
    await trial.start()
    sending = trial.sending("just once")
    for attempt in (1, 2):
        again = trial.part(sending.outbound, 0, attempt)
        expect(isinstance(await trial.send(again), Sent), f"attempt {attempt} was not sent")
    expect(isinstance(await trial.send(trial.sending("behind it")), Sent), "the next was not sent")
    await trial.until_arrived("just once", "behind it")


async def refusals_are_what_they_are(trial: Trial) -> None:
    """For good, for now, or for being too many: each has its class, and nothing has arrived."""
    kinds: dict[str, tuple[type[SendError], ...]] = {
        "permanent": (Permanent,),
        "transient": (Transient, Offline),
        "rate_limited": (RateLimited,),
    }
    possible = {how: errors for how, errors in kinds.items() if how not in trial.bench.lacks}
    if not possible:
        raise Lacking("the network refuses nothing")
    await trial.start()
    for how, errors in possible.items():
        trial.bench.answer(how)
        found = await trial.send(trial.sending(f"refused: {how}"))
        expect(isinstance(found, errors), f"{how} is told as {type(found).__name__}")
        if isinstance(found, RateLimited):
            expect(0 < found.after_s <= 86_400, f"rate limited for {found.after_s} s")
    trial.bench.answer("ok")
    await trial.desk.changes.until(lambda: trial.channel.connection() is not None, "there is a connection again")
    expect(isinstance(await trial.send(trial.sending("taken")), Sent), "nothing can be sent after a refusal")
    await trial.until_arrived("taken")


async def silence_is_unclear(trial: Trial) -> None:
    """The network took the part and died before it answered: nobody may say that it was, or was not, sent."""
    trial.needs("silent")
    await trial.start()
    trial.bench.answer("silent")
    sending = trial.sending("did it arrive?")
    found = await trial.send(sending)
    expect(isinstance(found, Unclear), f"an interrupted send is told as {type(found).__name__}")
    trial.bench.answer("ok")
    await trial.desk.changes.until(lambda: trial.channel.connection() is not None, "there is a connection again")
    if isinstance(trial.channel, Reconciles):
        answer = await trial.channel.reconcile(sending)
        expect(answer is not Reconciled.NOT_SENT, "reconcile says that what arrived was not sent")
    if trial.channel.idempotent:
        expect(isinstance(await trial.send(sending), Sent), "the repeated send was not sent")
    expect(isinstance(await trial.send(trial.sending("behind it")), Sent), "the next was not sent")
    await trial.until_arrived("did it arrive?", "behind it")


async def a_cut_connection_is_made_again(trial: Trial) -> None:
    """What breaks is reported, an old connection sends nothing, and a new one does, both ways."""
    trial.needs("cut")
    await trial.start()
    old = trial.channel.connection()
    for number in range(2):
        downs, ups = len(trial.desk.downs), trial.desk.ups
        await trial.bench.cut()
        await trial.desk.changes.until(lambda: len(trial.desk.downs) > downs, "the cut is reported")  # noqa: B023
        await trial.desk.changes.until(lambda: trial.desk.ups > ups, "it comes up again")  # noqa: B023
        expect(trial.channel.connection() is not None, "it is up, and there is no connection")
        found = await trial.send_over(old, trial.sending("into the void"))
        expect(isinstance(found, SendError), "a connection that is gone sends")
        expect(isinstance(found, Offline | Transient), f"nothing was written, and it is told as {type(found).__name__}")
        sent = await trial.send(trial.sending(f"after cut {number}"))
        expect(isinstance(sent, Sent), f"nothing can be sent after a cut: {sent}")
        if "receive" not in trial.bench.lacks:
            await trial.bench.bring(f"still there {number}")
            await trial.until_kept(number + 1)
    await trial.until_arrived("after cut 0", "after cut 1")


async def reconcile_does_not_invent(trial: Trial) -> None:
    """What was sent is not called unsent, and what never was is not called sent."""
    if not isinstance(trial.channel, Reconciles):
        raise Lacking("the channel does not reconcile")
    await trial.start()
    sent, never = trial.sending("on record"), trial.sending("never")
    expect(isinstance(await trial.send(sent), Sent), "it was not sent")
    expect(await trial.channel.reconcile(sent) is not Reconciled.NOT_SENT, "what was sent is called not sent")
    expect(await trial.channel.reconcile(never) is not Reconciled.SENT, "what was never sent is called sent")


CHECKS: tuple[Check, ...] = (
    it_starts_and_ends,
    what_comes_is_handed_over,
    the_network_is_told_when_it_is_durable_and_not_before,
    what_was_not_kept_comes_again,
    a_message_that_comes_twice_has_one_id,
    parts_arrive_in_order,
    a_repeated_part_arrives_once,
    refusals_are_what_they_are,
    silence_is_unclear,
    a_cut_connection_is_made_again,
    reconcile_does_not_invent,
)
