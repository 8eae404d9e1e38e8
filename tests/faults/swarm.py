"""Agents by the hundred who come and go, and remember all that they sent and saw.

In: the address of a relay, a seed. Out: for each agent what it sent (and whether it must have arrived), what it was
sent on each connection, and what it confirmed. They speak in raw frames, one small coroutine for each connection.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import os
import random
import struct
from collections.abc import Iterator
from typing import NamedTuple

import nacl.signing

from posthouse.wire import envelope as wire
from posthouse.wire.address import address_of
from posthouse.wire.auth import challenge_bytes, confirm_bytes
from posthouse.wire.envelope import Envelope, MessageType

POISON = b"poison"
"""Messages that begin so are confirmed by nobody."""
WAIT_S = 20.0


class Came(NamedTuple):
    """One envelope that an agent was sent."""

    sender: str
    id: str
    digest: bytes


class Stay:
    """One connection of an agent, as it remembers it."""

    def __init__(self) -> None:
        self.announced = 0
        self.came: list[Came] = []
        self.confirmed: list[tuple[str, str]] = []
        """By sender and id, in the order of confirming."""
        self.sent: list[tuple[str, str]] = []
        """By recipient and id."""
        self.full: list[tuple[str, str]] = []
        self.clean = False
        """It was closed by both sides: all that it sent has arrived."""


class Actor:
    """An agent."""

    def __init__(self, swarm: Swarm, number: int) -> None:
        self.swarm = swarm
        self.key = nacl.signing.SigningKey(hashlib.sha256(f"actor {number}".encode()).digest())
        self.address = address_of(bytes(self.key.verify_key), swarm.host)
        self.stays: list[Stay] = []
        self.sent: dict[tuple[str, str], bytes] = {}
        """Digests of what it sent, by recipient and id."""
        self.told: dict[tuple[str, str], bool] = {}
        """Confirmations of its messages that came: by recipient and id, and whether they had been stored."""
        self._count = 0

    def message(self, to: Actor) -> bytes:
        """An envelope; most are messages, some are of a kind that is never confirmed."""
        random = self.swarm.random
        self._count += 1
        id = f"{self.address[6:12]}-{self._count}"
        body = random.randbytes(random.choice((16, 100, 400, 1_500)))
        if random.random() < self.swarm.poison:
            body = POISON + body
        made = Envelope(version=1, from_address=self.address, to_address=to.address, message_id=id.encode())
        made.type = MessageType.MESSAGE if random.random() < 0.9 else MessageType.CONNECTION_REQUEST  # type: ignore[assignment]
        made.encrypted.ciphertext = body
        data = made.SerializeToString()
        self.sent[to.address, id] = digest(data)
        self.stays[-1].sent.append((to.address, id))
        return data

    def confirmation(self, of: Envelope) -> bytes:
        signature = self.key.sign(confirm_bytes(of.message_id, 1)).signature
        return wire.delivery_confirm(self.address, of.from_address, of.message_id, 1, signature)


class Connection:
    """A WebSocket, from the client's side."""

    def __init__(self, actor: Actor, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.actor = actor
        self.stay = Stay()
        self._reader = reader
        self._writer = writer
        self._leaving = False

    @classmethod
    async def open(cls, actor: Actor) -> Connection:
        """Connect and authenticate."""
        reader, writer = await asyncio.open_connection("127.0.0.1", actor.swarm.port)
        connection = cls(actor, reader, writer)
        key = base64.b64encode(os.urandom(16)).decode()
        writer.write(
            f"GET /ws HTTP/1.1\r\nHost: relay\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n".encode()
        )
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 101 "), head
        challenge = wire.parse(await connection._binary()).auth_challenge
        signature = actor.key.sign(challenge_bytes(challenge.relay_host, challenge.nonce)).signature
        connection.write(0x82, wire.auth_response(bytes(actor.key.verify_key), signature, challenge.nonce))
        result = wire.parse(await connection._binary()).auth_result
        if not result.success:
            writer.transport.abort()
            raise ConnectionRefusedError(result.error_message)
        actor.stays.append(connection.stay)
        return connection

    def write(self, first: int, payload: bytes) -> None:
        size = len(payload)
        head = struct.pack(">BB", first, 0x80 | size) if size < 126 else struct.pack(">BBH", first, 0x80 | 126, size)
        # A mask of zeros is one too, and changes nothing. Who was cut off a moment ago speaks to nobody.
        if not self._writer.transport.is_closing():
            self._writer.write(head + bytes(4) + payload)

    async def _frame(self) -> tuple[int, bytes]:
        first, size = await self._reader.readexactly(2)
        if size == 126:
            (size,) = struct.unpack(">H", await self._reader.readexactly(2))
        elif size == 127:
            (size,) = struct.unpack(">Q", await self._reader.readexactly(8))
        return first & 0x0F, await self._reader.readexactly(size)

    async def _binary(self) -> bytes:
        async with asyncio.timeout(WAIT_S):
            opcode, payload = await self._frame()
        assert opcode == 2, (opcode, payload)
        return payload

    async def listen(self) -> None:
        """Take what comes until the relay has closed, or the connection is cut."""
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                opcode, payload = await self._frame()
                if opcode == 9:
                    self.write(0x8A, payload)
                elif opcode == 8:
                    code = struct.unpack(">H", payload[:2])[0]
                    # 1000 answers our own; 1001 comes when the relay stops.
                    assert code in (1000, 1001), payload
                    self.stay.clean = code == 1000
                    break
                elif opcode == 2:
                    self._take(payload)
        self._writer.transport.abort()

    def _take(self, data: bytes) -> None:
        actor, stay = self.actor, self.stay
        came = wire.parse(data)
        match came.type:
            case MessageType.QUEUE_STATUS:
                assert not stay.came, "announced behind what was announced"
                stay.announced = came.queue_status.pending_count
            case MessageType.QUEUE_FULL:
                stay.full.append((came.queue_full.recipient_address, came.message_id.decode()))
            case MessageType.DELIVERY_CONFIRM:
                confirm = came.delivery_confirm
                id = confirm.message_id.decode()
                stay.came.append(Came(came.from_address, f"confirm:{id}", b""))
                actor.told.setdefault((came.from_address, id), confirm.was_stored)
            case MessageType.MESSAGE | MessageType.CONNECTION_REQUEST:
                stay.came.append(Came(came.from_address, came.message_id.decode(), digest(data)))
                confirms = came.type == MessageType.MESSAGE and not came.encrypted.ciphertext.startswith(POISON)
                # Now and then one is forgotten: it must come again, next time.
                # Behind our own close frame nobody would read it.
                if confirms and not self._leaving and actor.swarm.random.random() >= 0.03:
                    stay.confirmed.append((came.from_address, came.message_id.decode()))
                    self.write(0x82, actor.confirmation(came))
            case _:
                raise AssertionError(f"nobody sent this: {came}")

    def cut(self) -> None:
        self._writer.transport.abort()

    def close(self) -> None:
        self._leaving = True
        self.write(0x88, struct.pack(">H", 1000))

    def pause(self) -> None:
        self._writer.transport.pause_reading()  # type: ignore[attr-defined]


class Swarm:
    """All of them; a tenth is online at a time."""

    def __init__(
        self, port: int, host: str, agents: int, rate_per_s: float, stay_s_max: float, poison: float, seed: int
    ) -> None:
        """``poison``: the part of the messages that nobody confirms."""
        self.port = port
        self.host = host
        self.random = random.Random(seed)
        self.rate_per_s = rate_per_s
        self.stay_s_max = stay_s_max
        self.poison = poison
        self.actors = [Actor(self, number) for number in range(agents)]
        self._away = set(self.actors)
        # A few never come: their mailboxes fill up, and what is in them expires.
        self._never = set(self.actors[: max(agents // 100, 1)])
        self.connects = 0
        self.open = asyncio.Event()
        """Whether there is a relay to come to."""
        self.open.set()
        self._until = 0.0

    async def run(self, seconds: float) -> None:
        """Come and go for so long; then all leave."""
        loop = asyncio.get_running_loop()
        self._until = loop.time() + seconds
        online = max(len(self.actors) // 10, 1)
        async with asyncio.TaskGroup() as group:
            for _ in range(online):
                group.create_task(self._place(online))

    async def _place(self, online: int) -> None:
        """One of the places for those who are online."""
        loop = asyncio.get_running_loop()
        while loop.time() < self._until:
            await self.open.wait()
            actor = self.random.choice([actor for actor in self._away if actor not in self._never])
            self._away.discard(actor)
            try:
                await self._stay(actor, online)
            except (ConnectionError, asyncio.IncompleteReadError):
                # The relay has not noticed yet that the connection before was cut, or it was killed.
                pass
            finally:
                self._away.add(actor)

    async def _stay(self, actor: Actor, online: int) -> None:
        loop = asyncio.get_running_loop()
        connection = await Connection.open(actor)
        self.connects += 1
        listening = asyncio.ensure_future(connection.listen())
        until = min(loop.time() + self.random.uniform(0.1, self.stay_s_max), self._until)
        ends = self.random.choice(("leaves", "leaves", "leaves", "is cut", "stalls"))
        if loop.time() + 1 > self._until:
            ends = "leaves"
        while (left_s := until - loop.time()) > 0 and not listening.done():
            connection.write(0x82, actor.message(self._other(actor)))
            pause_s = self.random.expovariate(self.rate_per_s / online)
            await asyncio.wait([listening], timeout=min(pause_s, left_s))
        match ends:
            case _ if listening.done():
                # The other side was first: it was killed.
                pass
            case "leaves":
                connection.close()
            case "stalls":
                connection.pause()
                await asyncio.sleep(self.random.uniform(0.0, 1.0))
                connection.cut()
            case _:
                connection.cut()
        async with asyncio.timeout(WAIT_S):
            await listening

    def _other(self, actor: Actor) -> Actor:
        """Whom to write to: often the same few, so that some queues grow long; nobody but others."""
        while True:
            few = self.random.random() < 0.2
            other = self.actors[self.random.randrange(max(len(self.actors) // 20, 2) if few else len(self.actors))]
            if other is not actor:
                return other

    def stays(self) -> Iterator[tuple[Actor, Stay]]:
        """Every connection, those of one agent in their order."""
        for actor in self.actors:
            for stay in actor.stays:
                yield actor, stay


def digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=8).digest()
