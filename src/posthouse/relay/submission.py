"""Submissions: the commands of all frames that one iteration of the loop reads go to the engine as one.

In: commands with whoever wants their outcome, and recipients that want to lease. Out: one submission with
the leases behind the posts (so one lease serves many posts, and is committed with them), and each outcome
to its handler, in order. It never reorders commands, and leases nothing for a recipient that has left.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from ..mailbox.command import Command, Lease
from ..mailbox.outcome import Outcome
from .port import Port
from .stats import Stats

log = logging.getLogger("posthouse.relay")

Handler = Callable[[Any, Any], None]
"""Called with the outcome (or the exception of a submission that came to nothing) and what was added with it."""


class Leaseholder(Protocol):
    """Whoever leases behind the posts of a submission."""

    def lease(self) -> tuple[Lease, Any] | None:
        """The command, and what ``leased`` is to be given with its outcome; None: not any more."""

    def leased(self, outcome: Any, arg: Any) -> None:
        """The outcome of that lease."""


class Submissions:
    """The one way from the relay to the engine."""

    def __init__(self, port: Port, stats: Stats, size_max: int) -> None:
        self._port = port
        self._stats = stats
        self._size_max = size_max
        self._commands: list[Command] = []
        self._handlers: list[tuple[Handler, Any]] = []
        self._leases: dict[Leaseholder, None] = {}
        self._scheduled = False
        self._answering = False
        self._open = 0  # submissions without an answer
        self._drained: list[Callable[[], None]] = []

    def add(self, command: Command, handler: Handler, arg: Any = None) -> None:
        """Submit a command; its handler is told the outcome once it is durable."""
        self._commands.append(command)
        self._handlers.append((handler, arg))
        if not self._scheduled:
            self._schedule()
        elif len(self._commands) >= self._size_max:
            self.hand_over()

    def want_lease(self, holder: Leaseholder) -> None:
        """Lease for this one behind what was added so far, in the same submission."""
        self._leases[holder] = None
        if not self._scheduled:
            self._schedule()

    def unwant_lease(self, holder: Leaseholder) -> None:
        """It has left."""
        self._leases.pop(holder, None)

    def hand_over(self) -> None:
        """Submit what has gathered."""
        commands, handlers = self._commands, self._handlers
        if self._leases:
            leases, self._leases = self._leases, {}
            for holder in leases:
                wanted = holder.lease()
                if wanted is not None:
                    commands.append(wanted[0])
                    handlers.append((holder.leased, wanted[1]))
        if not commands:
            return
        self._commands, self._handlers = [], []
        self._open += 1
        self._port.submit(commands, partial(self._answered, handlers))

    def drain(self, drained: Callable[[], None]) -> None:
        """Say when everything submitted has been answered."""
        self.hand_over()
        self._drained.append(drained)
        self._port.soon(self._look)

    def _schedule(self) -> None:
        self._scheduled = True
        if not self._answering:
            self._port.soon(self._turn)

    def _turn(self) -> None:
        self._scheduled = False
        self.hand_over()

    def _answered(self, handlers: list[tuple[Handler, Any]], result: Sequence[Outcome] | BaseException) -> None:
        self._open -= 1
        # What the handlers add is handed over when all have run, without waiting for another iteration.
        self._answering = not self._scheduled
        try:
            if isinstance(result, BaseException):
                self._stats.store_failures += 1
                log.warning("%d commands came to nothing: %s", len(handlers), result)
                result = [result] * len(handlers)  # type: ignore[list-item]  # each is told the same
            broken = None
            for (handler, arg), outcome in zip(handlers, result, strict=True):
                try:
                    handler(outcome, arg)
                except Exception as error:
                    # A mistake of ours in one connection: the others get their outcomes all the same.
                    broken = error
            if broken is not None:
                raise broken
        finally:
            if self._answering:
                self._answering = False
                if self._scheduled:
                    self._turn()
            if self._drained:
                self._look()

    def _look(self) -> None:
        if not self._open and not self._commands and not self._leases:
            drained, self._drained = self._drained, []
            for callback in drained:
                callback()
