"""The relay's ports: what its core asks of a socket, of the engine, of time and of chance.

In: calls of the core. Out: calls back, always later and never from inside the call, on the same thread.
The server implements them with sockets and an event loop, the simulation with a seed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from ..mailbox.command import Command
from ..mailbox.message import Ref
from ..mailbox.outcome import Outcome

Answered = Callable[[Sequence[Outcome] | BaseException], None]
BodiesRead = Callable[[Sequence[bytes | None] | BaseException], None]


class Line(Protocol):
    """What a session may do with its socket."""

    def send(self, data: bytes) -> None:
        """Write one BINARY message."""

    def ping(self, payload: bytes) -> None:
        """Write a ping."""

    def close(self, code: int, reason: str) -> None:
        """Begin the closing handshake; the server calls ``Session.lost`` when the socket is gone."""

    def buffered(self) -> int:
        """Bytes written and not yet taken by the kernel."""

    def pause_reading(self) -> None:
        """Read no more from the socket; frames that are read already may still come."""

    def resume_reading(self) -> None:
        """Read again."""


class Port(Protocol):
    """What the house asks of the world."""

    def submit(self, commands: Sequence[Command], answered: Answered) -> None:
        """Apply commands as one submission; outcomes come once they are durable, in the order of submission."""

    def read_bodies(self, refs: Sequence[Ref], read: BodiesRead) -> None:
        """The bodies of these messages, None where there is none (any more)."""

    def later(self, delay_s: float, callback: Callable[[], None]) -> None:
        """Call back after a while; it cannot be taken back."""

    def soon(self, callback: Callable[[], None]) -> None:
        """Call back when what is being read now has been read: at the end of the loop's iteration."""

    def monotonic(self) -> float:
        """Seconds on a clock that nobody sets."""

    def now_ms(self) -> int:
        """The wall time in milliseconds."""

    def random_bytes(self, n: int) -> bytes:
        """Bytes that nobody can guess."""
