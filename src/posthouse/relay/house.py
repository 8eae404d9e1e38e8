"""The house: all that sessions share. Skeleton of the public interface."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from .port import Line, Port
from .session import Session
from .settings import Settings
from .stats import Stats

Admits = Callable[[bytes], str | None]
"""Given a public key: None, or the reason for which it is not admitted (``key not registered``)."""


class House:
    """Who is online, and the way from frames to the engine and back."""

    def __init__(self, settings: Settings, port: Port, *, capacity: int | None = 1_000, admits: Admits | None = None):
        """``capacity`` is that of the desk's policy: it is told to whoever finds a mailbox full."""
        self.settings = settings
        self.stats = Stats()

    def start(self, blocks: Iterable[tuple[str, bytes]] = ()) -> None:
        """Begin: ``blocks`` are the entries of the shelf BLOCKS; heartbeats run from now on."""
        raise NotImplementedError

    def has_room(self) -> bool:
        """Whether one more connection may be upgraded (ask before the upgrade; else answer 503)."""
        raise NotImplementedError

    def open(self, line: Line, peer: str = "") -> Session:
        """A new connection; call ``opened`` on it once its line can be written to."""
        raise NotImplementedError

    @property
    def connections(self) -> int:
        """Authenticated connections."""
        raise NotImplementedError

    def ring(self, mailbox: str | None = None) -> None:
        """Something may have become leasable by another's hand (an operator's): in this mailbox, or anywhere."""
        raise NotImplementedError

    def revoke(self, address: str, reason: str = "key not registered") -> bool:
        """Close the connection of an address at once; False if it has none."""
        raise NotImplementedError

    def close(self, closed: Callable[[], None]) -> None:
        """Close all connections with 1001, give back what they held, and say when that is durable."""
        raise NotImplementedError
