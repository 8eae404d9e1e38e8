"""Peers on the loopback for tests: whole ones, with stores on disk, and one that speaks only frames."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from posthouse.engine.engine import Engine
from posthouse.libp2p.host import Host
from posthouse.libp2p.key import PrivateKey
from posthouse.libp2p.peer_id import PeerId
from posthouse.libp2p.stream import Stream
from posthouse.mailbox.command import Filter
from posthouse.mailbox.message import State
from posthouse.mailbox.policy import INBOX, OUTBOX, Policy, exponential
from posthouse.mailbox.store import MessageView
from posthouse.peer import frame
from posthouse.peer.frame import Direct
from posthouse.peer.inbox import Incoming
from posthouse.peer.node import Limits, Peer
from posthouse.stores.sqlite import SqliteStore

HERE = "/ip4/127.0.0.1/tcp/0"
QUICK = (OUTBOX.replace(retry=exponential(0.05, 0.4)), INBOX.replace(retry=exponential(0.05, 0.4)))
ALICE, BOB, MALLORY = (PrivateKey(bytes([n]) * 32) for n in (1, 2, 3))


def id_of(key: PrivateKey) -> str:
    return str(PeerId.of(key.public))


class Node:
    """A running peer and what came to it."""

    def __init__(self, peer: Peer, host: Host, engine: Engine) -> None:
        self.peer = peer
        self.host = host
        self.engine = engine
        self.came: list[Incoming] = []
        self.then: Callable[[Incoming], None] = lambda message: None
        """What its handler does with a message, beyond keeping it."""

    async def handle(self, message: Incoming) -> None:
        self.then(message)
        self.came.append(message)

    @property
    def id(self) -> str:
        return self.peer.id

    @property
    def stats(self) -> Any:
        return self.peer.stats

    async def meet(self, other: Node | Host) -> None:
        host = other if isinstance(other, Host) else other.host
        await self.host.dial(host.addresses[0])

    def allow(self, **fields: Any) -> None:
        """Change what others may make it hold, from now on: ``allow(read_s=1)``."""
        self.peer.receiver.limits = dataclasses.replace(self.peer.receiver.limits, **fields)

    def sent(self, *states: State) -> list[MessageView]:
        found: list[MessageView] = []
        while page := self.engine.store.messages(
            Filter("outbox", states=frozenset(states)), found[-1].number if found else 0, 1_000
        ):
            found += page
        return found


@contextlib.asynccontextmanager
async def node(
    folder: Path, key: PrivateKey, limits: Limits | None = None, policies: tuple[Policy, ...] = QUICK, **more: Any
) -> AsyncIterator[Node]:
    """A peer with its store in a folder; without a handler of its own it keeps what comes."""
    store = SqliteStore.open(folder / f"{id_of(key)[-8:]}.db", {p.name: p for p in policies}, node="test")
    async with Engine(store) as engine, Host(key) as host:
        holder: list[Node] = []

        async def handle(message: Incoming) -> None:
            await holder[0].handle(message)

        more.setdefault("handler", handle)
        peer = Peer(engine, host, key, limits, **more)
        holder.append(Node(peer, host, engine))
        await host.listen(HERE)
        try:
            await peer.start()
            yield holder[0]
        finally:
            await peer.close()


def limits(**parts: dict[str, Any]) -> Limits:
    """The usual limits with some changed: ``limits(take={"hold_s": 1})``."""
    usual = Limits()
    return dataclasses.replace(
        usual, **{name: dataclasses.replace(getattr(usual, name), **fields) for name, fields in parts.items()}
    )


class Plain(Host):
    """A node that knows direct messages and nothing else: it answers as it is told, or leaves that to a test."""

    def __init__(self, key: PrivateKey) -> None:
        super().__init__(key)
        self.frames: list[Direct] = []
        self.answers: list[Callable[[Direct], Direct | bytes | None]] = []
        """For the next frames; then yes."""
        self.handle(frame.PROTOCOL, self._serve)

    async def _serve(self, stream: Stream) -> None:
        message = frame.decode(await stream.read_exactly(frame.body_bytes(await stream.read_exactly(4))))
        self.frames.append(message)
        answer = self.answers.pop(0)(message) if self.answers else self.yes(message)
        if answer is None:
            stream.reset()
            return
        await stream.write(answer if isinstance(answer, bytes) else frame.encode(answer))

    def yes(self, message: Direct) -> Direct:
        if message.type == frame.SYNC_REQUEST:
            return self.no(message, "unknown message type")
        return frame.acknowledge(message, str(self.peer_id), True, "", 1, "ack-id")

    def no(self, message: Direct, why: str) -> Direct:
        return frame.acknowledge(message, str(self.peer_id), False, why, 1, "ack-id")

    def direct(self, number: int, **fields: Any) -> Direct:
        whole = Direct(
            "pubkey_exchange", "t1", "", str(self.peer_id), {"n": number}, 1, f"m{number}", number, True, 2**31
        )
        return whole._replace(**fields)

    async def say(self, to: Host, message: Direct | bytes) -> Direct:
        """Send a frame and read the answer."""
        async with await self.open_stream(to.peer_id, frame.PROTOCOL) as stream:
            await stream.write(message if isinstance(message, bytes) else frame.encode(message))
            return frame.decode(await stream.read_exactly(frame.body_bytes(await stream.read_exactly(4))))


@contextlib.asynccontextmanager
async def plain(key: PrivateKey) -> AsyncIterator[Plain]:
    async with Plain(key) as host:
        await host.listen(HERE)
        yield host
