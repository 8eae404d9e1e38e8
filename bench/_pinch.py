"""Load for a relay that speaks Pinch: agents in one event loop, and what can be measured with them.

In: the relay's URL, how much of what. Out: rates and times as the agents see them, and whether everything that was
sent arrived in order. Agents do what real ones do: they sign their challenge, and a confirmation for each message.
It knows nothing of how the relay works.
"""

from __future__ import annotations

import asyncio
import os
import struct
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import nacl.signing
from picows import WSFrame, WSListener, WSMsgType, WSTransport, ws_connect

from posthouse.wire import envelope as wire
from posthouse.wire._pb import pinch_pb2 as pb
from posthouse.wire.auth import challenge_bytes, confirm_bytes
from posthouse.wire.envelope import Envelope

DEADLINE_S = 30.0
CONNECTING_MAX = 50
"""Agents that connect at once."""
_stamp = struct.Struct("<QQ")


class Refused(Exception):
    """The relay did not admit an agent."""


class Agent(WSListener):
    """One identity, and its connection if it has one."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._key = nacl.signing.SigningKey.generate()
        self.public_key = bytes(self._key.verify_key)
        self.address = ""
        self.numbers: list[int] = []
        """Of the messages that came, in order."""
        self.took_ns: list[int] = []
        """From being sent to being here, of the same messages."""
        self.confirmed = 0
        self.announced = 0
        self.other: dict[int, int] = {}
        """How many envelopes came that nobody expected, by type."""
        self.is_open = False
        self.on_message: Callable[[], None] | None = None
        self.on_confirm: Callable[[], None] | None = None
        self._transport: WSTransport
        self._admitted: asyncio.Future[None]
        self._gone: asyncio.Future[None]
        self._mark: asyncio.Future[None] | None = None
        self._writable: asyncio.Future[None] | None = None
        """While too much of what was sent is still in this process."""

    async def connect(self) -> Agent:
        """Connect and authenticate."""
        loop = asyncio.get_running_loop()
        self._admitted, self._gone = loop.create_future(), loop.create_future()
        async with asyncio.timeout(DEADLINE_S):
            await ws_connect(lambda: self, self._url)
            await self._admitted
        return self

    async def leave(self) -> None:
        """Close, and wait until that is done."""
        self._transport.send_close()
        self._transport.disconnect()
        async with asyncio.timeout(DEADLINE_S):
            await self._gone

    def send(self, data: bytes) -> None:
        self._transport.send(WSMsgType.BINARY, data)

    async def drained(self) -> None:
        """Wait until little of what was sent is still in this process."""
        if self._writable is not None:
            await self._writable
        await asyncio.sleep(0)

    async def routed(self) -> None:
        """Wait until the relay has routed all that was sent: a heartbeat to itself comes back."""
        self._mark = asyncio.get_running_loop().create_future()
        mark = Envelope(version=1, from_address=self.address, to_address=self.address, type=pb.MESSAGE_TYPE_HEARTBEAT)
        mark.message_id = os.urandom(8).hex().encode()
        self.send(mark.SerializeToString())
        async with asyncio.timeout(DEADLINE_S):
            await self._mark

    # What the connection tells.

    def on_ws_connected(self, transport: WSTransport) -> None:
        self._transport = transport

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type is WSMsgType.BINARY:
            self._take(Envelope.FromString(frame.get_payload_as_bytes()))
        elif frame.msg_type is WSMsgType.CLOSE:
            transport.disconnect()

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        self.is_open = False
        if not self._admitted.done():
            self._admitted.set_exception(Refused("the relay closed the connection"))
        if not self._gone.done():
            self._gone.set_result(None)

    def pause_writing(self) -> None:
        self._writable = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        assert self._writable is not None
        self._writable.set_result(None)
        self._writable = None

    def _take(self, envelope: Envelope) -> None:
        kind = envelope.type
        if kind == pb.MESSAGE_TYPE_MESSAGE:
            number, sent_ns = _stamp.unpack_from(envelope.encrypted.ciphertext)
            self.took_ns.append(time.perf_counter_ns() - sent_ns)
            self.numbers.append(number)
            self._confirm(envelope)
            if self.on_message is not None:
                self.on_message()
        elif kind == pb.MESSAGE_TYPE_DELIVERY_CONFIRM:
            self.confirmed += 1
            if self.on_confirm is not None:
                self.on_confirm()
        elif kind == pb.MESSAGE_TYPE_QUEUE_STATUS:
            self.announced = envelope.queue_status.pending_count
        elif kind == pb.MESSAGE_TYPE_HEARTBEAT and self._mark is not None:
            self._mark.set_result(None)
            self._mark = None
        elif kind == pb.MESSAGE_TYPE_AUTH_CHALLENGE:
            challenge = envelope.auth_challenge
            signature = self._key.sign(challenge_bytes(challenge.relay_host, challenge.nonce)).signature
            self.send(wire.auth_response(self.public_key, signature, challenge.nonce))
        elif kind == pb.MESSAGE_TYPE_AUTH_RESULT:
            self._enter(envelope.auth_result)
        else:
            self.other[kind] = self.other.get(kind, 0) + 1

    def _enter(self, result: Any) -> None:
        if result.success:
            self.address = result.assigned_address
            self.is_open = True
            self._admitted.set_result(None)
        else:
            self._admitted.set_exception(Refused(result.error_message))

    def _confirm(self, message: Envelope) -> None:
        now_ms = time.time_ns() // 1_000_000
        signature = self._key.sign(confirm_bytes(message.message_id, now_ms)).signature
        self.send(wire.delivery_confirm(self.address, message.from_address, message.message_id, now_ms, signature))


class Letters:
    """Messages from one agent to another, numbered from 0. Made once; each copy gets an id, its number and the time."""

    def __init__(self, sender: Agent, recipient: str, size_bytes: int) -> None:
        self._prefix = os.urandom(10).hex()
        id, head = b"#" * 36, b"\xa5" * _stamp.size
        body = head + os.urandom(size_bytes - len(head))
        made = wire.encrypted_message(sender.address, recipient, id, 1, bytes(24), body, sender.public_key)
        self._data = bytearray(made)
        self._id_at, self._head_at = made.index(id), made.index(head)
        self._sender = sender
        self.count = 0

    def send(self) -> None:
        """Send the next one."""
        data = self._data
        data[self._id_at : self._id_at + 36] = b"%s%016x" % (self._prefix.encode(), self.count)
        _stamp.pack_into(data, self._head_at, self.count, time.perf_counter_ns())
        self.count += 1
        self._sender.send(bytes(data))


async def connect_all(agents: list[Agent]) -> None:
    """Connect agents, some at once."""
    for start in range(0, len(agents), CONNECTING_MAX):
        await asyncio.gather(*(agent.connect() for agent in agents[start : start + CONNECTING_MAX]))


async def leave_all(agents: list[Agent]) -> None:
    await asyncio.gather(*(agent.leave() for agent in agents if agent.is_open))


# What is measured.


@dataclass(frozen=True)
class Measured:
    """One round of something."""

    count: int
    """Messages (or connections) that it was about."""
    lasted_s: float
    relay_cpu_s: float
    agents_cpu_s: float
    times_s: tuple[float, ...] = ()
    """Sorted: how long single messages took, or whatever the round says."""
    wrong: str = ""
    """What did not arrive as it should; '' if everything did."""

    @property
    def per_s(self) -> float:
        return self.count / self.lasted_s

    def quantile_ms(self, share: float) -> float:
        return self.times_s[min(int(len(self.times_s) * share), len(self.times_s) - 1)] * 1e3


class Watch:
    """Wall time since it was made, and the processor time of the relay and of this process."""

    def __init__(self, relay_cpu_s: Callable[[], float]) -> None:
        self._relay_cpu_s = relay_cpu_s
        self._begun = self._now()

    def _now(self) -> tuple[float, float, float]:
        return time.perf_counter(), self._relay_cpu_s(), time.process_time()

    def read(self) -> tuple[float, float, float]:
        """All three, in seconds."""
        wall, relay, agents = (now - begun for now, begun in zip(self._now(), self._begun, strict=True))
        return wall, relay, agents


class Load:
    """Work for one relay."""

    def __init__(self, url: str, size_bytes: int, relay_cpu_s: Callable[[], float]) -> None:
        self.url = url
        self.size_bytes = size_bytes
        self._relay_cpu_s = relay_cpu_s

    def watch(self) -> Watch:
        return Watch(self._relay_cpu_s)

    async def store(self, recipients: int, each: int) -> Measured:
        """One sender, recipients that are away; then they come, and all must be there."""
        sender = await Agent(self.url).connect()
        away = [Agent(self.url) for _ in range(recipients)]
        await connect_all(away)
        await leave_all(away)
        letters = [Letters(sender, agent.address, self.size_bytes) for agent in away]
        # Sent when the others had left, so it is routed when the relay knows that.
        await sender.routed()
        watch = self.watch()
        for _ in range(each):
            for one in letters:
                one.send()
            await sender.drained()
        await sender.routed()
        spent = watch.read()
        wrong = strays(sender)
        for agent in away:
            wrong = wrong or await self._fetch(agent, each)
        await sender.leave()
        return Measured(recipients * each, *spent, wrong=wrong)

    async def _fetch(self, agent: Agent, count: int) -> str:
        """Let an agent come for its messages; what is wrong with them."""
        await agent.connect()
        await until(lambda: len(agent.numbers) >= count)
        await agent.leave()
        return misses(agent, count) or ("" if agent.announced == count else f"{agent.announced} were announced")

    async def flush(self, queued: int) -> Measured:
        """A recipient comes for what waited. Times since it was admitted: until the first, the last, all confirmed."""
        sender, recipient = await Agent(self.url).connect(), await Agent(self.url).connect()
        await recipient.leave()
        letters = Letters(sender, recipient.address, self.size_bytes)
        for number in range(queued):
            letters.send()
            if number % 64 == 0:
                await sender.drained()
        await sender.routed()
        came_at: list[float] = []
        recipient.on_message = lambda: came_at.append(time.perf_counter())
        confirmed = asyncio.get_running_loop().create_future()
        sender.on_confirm = lambda: None if sender.confirmed < queued else confirmed.set_result(time.perf_counter())
        watch = self.watch()
        await recipient.connect()
        begun = time.perf_counter()
        async with asyncio.timeout(DEADLINE_S):
            confirmed_at = await confirmed
        spent = watch.read()
        wrong = misses(recipient, queued) or strays(sender)
        if recipient.announced != queued:
            wrong = wrong or f"{recipient.announced} of {queued} were announced"
        await leave_all([sender, recipient])
        times_s = tuple(at - begun for at in (came_at[0], came_at[-1], confirmed_at))
        return Measured(queued, *spent, times_s, wrong)

    async def idle(self, count: int) -> tuple[Measured, list[Agent]]:
        """Agents that connect and do nothing; they are left connected."""
        agents = [Agent(self.url) for _ in range(count)]
        watch = self.watch()
        await connect_all(agents)
        return Measured(count, *watch.read()), agents


class Pairs:
    """Pairs of agents that are connected; one of each writes to the other."""

    def __init__(self, load: Load, count: int) -> None:
        self._load = load
        self._senders = [Agent(load.url) for _ in range(count)]
        self._recipients = [Agent(load.url) for _ in range(count)]
        self._letters: list[Letters] = []

    async def __aenter__(self) -> Pairs:
        await connect_all([*self._senders, *self._recipients])
        for sender, recipient in zip(self._senders, self._recipients, strict=True):
            self._letters.append(Letters(sender, recipient.address, self._load.size_bytes))
        return self

    async def __aexit__(self, *_: object) -> None:
        await leave_all([*self._senders, *self._recipients])

    async def saturate(self, window: int, seconds: float) -> Measured:
        """Each pair keeps so many messages on their way."""
        return await self._measure(self._keep_full(window, seconds))

    async def _keep_full(self, window: int, seconds: float) -> None:
        """Whoever is woken by a message fills the pair's window up, as a client that waits for room does."""
        pairs = zip(self._recipients, self._letters, strict=True)
        fillers = [asyncio.ensure_future(_fill(recipient, letters, window)) for recipient, letters in pairs]
        await asyncio.sleep(seconds)
        for filler in fillers:
            filler.cancel()
        await asyncio.gather(*fillers, return_exceptions=True)

    async def offer(self, rate_per_s: float, seconds: float) -> Measured:
        """So many messages a second over all pairs, whatever becomes of them."""
        return await self._measure(self._send_at(rate_per_s, seconds))

    async def _send_at(self, rate_per_s: float, seconds: float) -> None:
        begun, sent = time.perf_counter(), 0
        while (passed_s := time.perf_counter() - begun) < seconds:
            while sent < passed_s * rate_per_s:
                self._letters[sent % len(self._letters)].send()
                sent += 1
            await asyncio.sleep(0.001)

    async def _measure(self, work: Awaitable[None]) -> Measured:
        before = [len(agent.numbers) for agent in self._recipients]
        watch = self._load.watch()
        await work
        spent = watch.read()
        after = [len(agent.numbers) for agent in self._recipients]
        for agent in self._recipients:
            agent.on_message = None
        times_s = sorted(
            took_ns / 1e9
            for agent, first, last in zip(self._recipients, before, after, strict=True)
            for took_ns in agent.took_ns[first:last]
        )
        return Measured(sum(after) - sum(before), *spent, tuple(times_s), await self._check())

    async def _check(self) -> str:
        """Wait until all is received and confirmed; what is wrong with it."""
        pairs = list(zip(self._senders, self._recipients, self._letters, strict=True))
        await until(lambda: all(min(len(r.numbers), s.confirmed) >= letters.count for s, r, letters in pairs))
        wrong = ""
        for sender, recipient, letters in pairs:
            wrong = wrong or misses(recipient, letters.count) or strays(sender) or strays(recipient)
            if sender.confirmed != letters.count:
                wrong = wrong or f"{sender.confirmed} confirmations of {letters.count} messages"
        return wrong


async def _fill(recipient: Agent, letters: Letters, window: int) -> None:
    """Send whenever fewer than a window are on their way."""
    came = asyncio.Event()
    recipient.on_message = came.set
    while True:
        while letters.count - len(recipient.numbers) < window:
            letters.send()
        came.clear()
        await came.wait()


async def until(true: Callable[[], bool]) -> None:
    """Wait until something is true, but not for ever."""
    until_s = time.perf_counter() + DEADLINE_S
    while not true() and time.perf_counter() < until_s:  # noqa: ASYNC110 (signals would cost time where it is measured)
        await asyncio.sleep(0.005)


def misses(agent: Agent, count: int) -> str:
    """What is wrong with the messages that an agent got: so many were sent, in order."""
    numbers = agent.numbers
    if numbers == list(range(count)):
        return ""
    lost, twice = len(set(range(count)) - set(numbers)), len(numbers) - len(set(numbers))
    return f"of {count} messages {lost} lost, {twice} twice" if lost or twice else f"{count} messages out of order"


def strays(agent: Agent) -> str:
    """Envelopes that an agent got and nobody expected."""
    return ", ".join(f"{count} envelopes of type {kind}" for kind, count in agent.other.items())
