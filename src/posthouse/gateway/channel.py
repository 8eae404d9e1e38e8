"""Channels: what a chat network, a mailbox or a terminal must offer so that the gateway can use it.

One ``Channel`` is one account on one network. Its life:

    made by its factory ─ start(port) ─→ port.up(), port.receive(…), port.down(…), port.up() … ─ close() ─→ over

- What it receives it hands over with ``await port.receive(inbound)``. When that returns, the message is durable and
  the network may be told so; when it raises, the network must not be told, so that it brings the message again.
  The same message handed over twice is no harm: its id is known.
- What is to be sent, the gateway sends itself: it asks ``connection()`` before every part, and never keeps what it
  was given. ``None`` means: not now. So a connection that was replaced while a handler worked is never written to.
- A part is sent by ``Connection.send``. It returns when the network has it, or raises one of the errors below, which
  say what is certain. What it does not say for sure it must not say: an error of any other class, and one that ends
  the connection after something was written, means that nobody knows (``Unclear``).

This is what a plug-in author implements; ``posthouse.gateway.channels.conformance`` tries an implementation out.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from ..errors import PosthouseError
from .letter import Inbound, Outbound, Part

ENTRY_POINTS = "posthouse.channels"
"""The group in which a plug-in declares its factory, under the name of its kind."""


# What a send may come to.


class SendError(PosthouseError):
    """A part was not sent, or not for certain. One of the classes below is raised."""

    code = "send"


class Permanent(SendError):
    """It was not sent and never can be: no such chat, blocked, too long. The message becomes a dead letter."""

    code = "permanent"


class Transient(SendError):
    """It was not sent; later it may be. The attempt counts, and the ladder says when the next one is."""

    code = "transient"


class RateLimited(SendError):
    """It was not sent: too much at once. The attempt counts, and is repeated after ``after_s``."""

    code = "rate_limited"

    def __init__(self, after_s: float, message: str = "") -> None:
        super().__init__(message or f"rate limited for {after_s:g} s")
        self.after_s = after_s


class Offline(SendError):
    """It was not sent: there is no connection, or the recipient is away. The attempt does not count."""

    code = "offline"

    def __init__(self, message: str = "offline", after_s: float | None = None) -> None:
        super().__init__(message)
        self.after_s = after_s
        """When to try again; None: when the channel is up again, or after a short while."""


class Unclear(SendError):
    """Something was written and no answer came: whether it was sent is unknown."""

    code = "unclear"


class Sent(NamedTuple):
    """The network has the part."""

    id: str = ""
    """The network's own id of it, where it says one."""


class Reconciled(enum.StrEnum):
    """What a channel can find out of a part whose sending was interrupted."""

    SENT = "sent"
    NOT_SENT = "not_sent"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Sending:
    """One part on its way out."""

    outbound: Outbound
    index: int
    """Which of its parts, from 0."""
    key: str
    """The same for every attempt of this part and for no other part: what to give as idempotency key."""
    attempt: int
    """1 when the message is tried for the first time."""

    @property
    def part(self) -> Part:
        return self.outbound.parts[self.index]


# What the gateway offers to a channel.


class Receipt(NamedTuple):
    """The message is durable."""

    id: str
    duplicate: bool
    """It was known already, so it is not worked on again."""


class NotAccepted(PosthouseError):
    """The gateway cannot keep the message now (full), or never (oversize): the network must not be told otherwise."""

    code = "not_accepted"

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        """The engine's word: full, share, oversize, ttl …"""


class Port(Protocol):
    """What a running channel calls. All of it is called on the event loop that called ``start``."""

    async def receive(self, inbound: Inbound) -> Receipt:
        """Keep a received message; returns only when it is durable. NotAccepted or StoreError: it is not kept."""

    def up(self, holder: str = "") -> None:
        """There is a live connection (again): what waits is sent. ``holder`` names it in the journal."""

    def down(self, reason: str = "cut", error: str = "") -> None:
        """There is none any more. ``reason``: closed, cut, timeout, replaced or shutdown."""


# What a channel offers to the gateway.


class Connection(Protocol):
    """A live connection, as ``connection()`` gives it for one part."""

    async def send(self, sending: Sending) -> Sent:
        """Send one part; returns when the network has it, else raises a SendError. It may be cancelled."""


class Channel(Protocol):
    """One account on one network."""

    @property
    def kind(self) -> str:
        """The network, as messages name it: ``telegram``."""

    @property
    def account(self) -> str:
        """Which account on it."""

    @property
    def idempotent(self) -> bool:
        """True: a part that is sent twice with the same key arrives once. Then an unclear send is repeated."""

    async def start(self, port: Port) -> None:
        """Begin to receive and to connect; returns soon and reconnects by itself until ``close``."""

    async def close(self) -> None:
        """End all tasks and connections; nothing is called on the port after it. Idempotent."""

    def connection(self) -> Connection | None:
        """The connection that is live now, if one is."""


@runtime_checkable
class Reconciles(Protocol):
    """What a channel offers besides, if it can ask its network what became of a part."""

    async def reconcile(self, sending: Sending) -> Reconciled:
        """Whether the network has this part. An exception means: ask again later."""


# How a channel is made.


@dataclass(frozen=True)
class Setup:
    """The section ``[channel.NAME]`` of the configuration. Its values may hold secrets: it has no repr of them."""

    name: str
    kind: str
    account: str
    values: Mapping[str, Any]
    """All keys of the section but ``kind`` and ``account``, as they were written."""
    environ: Mapping[str, str]
    """Where a value may name a variable that holds a secret."""
    folder: Path
    """What relative paths start from."""

    def __repr__(self) -> str:
        return f"Setup({self.name!r}, {self.kind!r}, {self.account!r})"


class Factory(Protocol):
    """What an entry point names. ConfigError: the section cannot be used, with the key that is wrong."""

    def __call__(self, setup: Setup) -> Channel: ...
