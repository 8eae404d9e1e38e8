"""What the peer needs of the network and of its engine: a ``Host`` and an ``Engine`` are such, tests have others.

It holds no code that runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from ..engine.bell import Bell
from ..libp2p.host import Event
from ..libp2p.identify import Info
from ..libp2p.peer_id import PeerId
from ..mailbox.command import Command
from ..mailbox.message import Instant
from ..mailbox.outcome import Outcome
from ..mailbox.store import Store
from .frame import Direct


class Stream(Protocol):
    """Bytes to and from one peer."""

    @property
    def peer(self) -> PeerId:
        """Who is at the other end, as the connection has proven."""

    async def read_exactly(self, size: int) -> bytes:
        """So many bytes."""

    async def write(self, data: bytes) -> None:
        """Hand over all bytes."""

    def close(self) -> None:
        """Be done with it."""

    def reset(self) -> None:
        """End it by force."""


class Network(Protocol):
    """Who is there, and streams with them."""

    @property
    def peers(self) -> list[PeerId]:
        """Who is connected."""

    def is_connected(self, peer: PeerId) -> bool:
        """Whether a peer is connected."""

    def info(self, peer: PeerId) -> Info | None:
        """What a connected peer said of itself; None while it has not."""

    def rtt_s(self, peer: PeerId) -> float | None:
        """Seconds there and back; None while nobody knows."""

    async def open_stream(self, peer: PeerId, *protocols: str) -> Stream:
        """A stream with a peer, which is dialled if it is not connected."""

    def handle(self, protocol: str, handler: Callable[[Any], Coroutine[Any, Any, None]]) -> None:
        """Serve a protocol."""

    def watch(self, watcher: Callable[[Event], None]) -> Callable[[], None]:
        """Be told who comes and goes."""


class Carrier(Protocol):
    """Gossip of private messages."""

    def publish(self, to: PeerId, message: Direct) -> bool:
        """Publish a message for one peer; False if nobody is there who could carry it."""


class Shelter(Protocol):
    """Where messages are left for peers that are away."""

    def away(self, peer: PeerId) -> None:
        """A peer was tried in vain."""


class Office(Protocol):
    """The engine."""

    @property
    def store(self) -> Store:
        """For read queries."""

    bell: Bell

    def now(self) -> Instant:
        """The time."""

    async def do(self, command: Command) -> Outcome:
        """Apply one command."""

    async def apply(self, *commands: Command) -> list[Outcome]:
        """Apply commands in one commit."""

    def submit(self, *commands: Command) -> asyncio.Future[list[Outcome]]:
        """The same without waiting."""
