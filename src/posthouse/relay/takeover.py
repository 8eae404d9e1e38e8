"""Takeovers: what becomes of a connection for an address that has one already.

In: newcomers that have proved their key, signs of life of the connections that are there, and time. Out:
a live connection stays and the newcomer is refused; one that shows no life in time gives way. What a connection
sent before it was lost may arrive after its agent has come again: it is no sign of life.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from .session import ALREADY_CONNECTED, POLICY_VIOLATION, REPLACED

if TYPE_CHECKING:
    from .house import House
    from .session import Session


class _Probe:
    """A connection that is there, and who waits to see whether it lives, in the order in which they came."""

    __slots__ = ("began_at", "newcomers", "ping", "there")

    def __init__(self, there: Session, newcomer: Session, now: float) -> None:
        self.there = there
        self.newcomers = [newcomer]
        self.began_at = now
        self.ping = there.outflow.receipts.pings + 1
        """The first ping whose answer cannot have been under way already."""


class Takeovers:
    """The probes under way, by address."""

    def __init__(self, house: House) -> None:
        self._house = house
        self._probes: dict[str, _Probe] = {}

    def claim(self, newcomer: Session) -> None:
        """A connection wants its address: it is admitted now, or when the other has been found dead."""
        house = self._house
        address = newcomer.address
        there = house.online.get(address)
        if there is None:
            house.admit(newcomer)
        elif address in self._probes:
            self._probes[address].newcomers.append(newcomer)
        else:
            self._probes[address] = probe = _Probe(there, newcomer, house.port.monotonic())
            there.probed = True
            there.outflow.ping()
            house.port.later(house.settings.probe_s, partial(self._time_is_up, probe))

    def stirs(self, there: Session, answered: int = 0) -> None:
        """Something came from the one that is there: the answer to this ping of ours, or anything else (0)."""
        probe = self._probes[there.address]
        if answered >= probe.ping or there.seen_at - probe.began_at >= self._house.settings.probe_s / 2:
            self.refuse(there.address, ALREADY_CONNECTED)
        elif answered:
            there.outflow.ping()

    def refuse(self, address: str, reason: str) -> None:
        """Whoever waits for this address waits in vain."""
        probe = self._end(address)
        if probe is not None:
            for newcomer in probe.newcomers:
                newcomer.refuse(reason)

    def left(self, session: Session) -> None:
        """A connection ended: a newcomer that gave up, or the one that was there."""
        probe = self._probes.get(session.address)
        if probe is None:
            return
        if session is probe.there:
            self._end(session.address)
            first, *others = probe.newcomers
            self._house.admit(first)
            for newcomer in others:
                newcomer.refuse(ALREADY_CONNECTED)
        elif session in probe.newcomers:
            probe.newcomers.remove(session)
            if not probe.newcomers:
                self._end(session.address)

    def _end(self, address: str) -> _Probe | None:
        probe = self._probes.pop(address, None)
        if probe is not None:
            probe.there.probed = False
        return probe

    def _time_is_up(self, probe: _Probe) -> None:
        # The probe may be over, and another begun.
        if self._probes.get(probe.there.address) is probe:
            self._house.stats.taken_over += 1
            probe.there.close(POLICY_VIOLATION, REPLACED, "replaced")
