"""Takeovers: what becomes of a connection for an address that has one already.

In: newcomers that have proved their key, signs of life of the connections that are there, and time. Out:
a live connection stays and the newcomer is refused; one that shows no life in time gives way.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from .session import ALREADY_CONNECTED, POLICY_VIOLATION, REPLACED

if TYPE_CHECKING:
    from .house import House
    from .session import Session


class Takeovers:
    """Newcomers by address, in the order in which they came."""

    def __init__(self, house: House) -> None:
        self._house = house
        self._newcomers: dict[str, list[Session]] = {}
        self._probes = 0

    def claim(self, newcomer: Session) -> None:
        """A connection wants its address: it is admitted now, or when the other has been found dead."""
        house = self._house
        there = house.online.get(newcomer.address)
        if there is None:
            house.admit(newcomer)
            return
        waiting = self._newcomers.setdefault(newcomer.address, [])
        waiting.append(newcomer)
        if len(waiting) == 1:
            self._probes += 1
            there.probed = self._probes
            there.outflow.ping()
            house.port.later(house.settings.probe_s, partial(self._time_is_up, there, self._probes))

    def lives(self, there: Session) -> None:
        """The one that is there showed life."""
        there.probed = 0
        self.refuse(there.address, ALREADY_CONNECTED)

    def refuse(self, address: str, reason: str) -> None:
        """Whoever waits for this address waits in vain."""
        for newcomer in self._newcomers.pop(address, ()):
            newcomer.refuse(reason)

    def left(self, session: Session) -> None:
        """A connection ended: a newcomer that gave up, or the one that was there."""
        waiting = self._newcomers.get(session.address)
        if waiting is None:
            return
        if session in waiting:
            waiting.remove(session)
            if not waiting:
                del self._newcomers[session.address]
                there = self._house.online.get(session.address)
                if there is not None:
                    there.probed = 0
        elif session.address not in self._house.online:
            del self._newcomers[session.address]
            first, *others = waiting
            self._house.admit(first)
            for newcomer in others:
                newcomer.refuse(ALREADY_CONNECTED)

    def _time_is_up(self, there: Session, probe: int) -> None:
        # Only of this probe: the one before may have been answered, and another begun.
        if there.probed == probe and there.is_open:
            self._house.stats.taken_over += 1
            there.close(POLICY_VIOLATION, REPLACED, "replaced")
