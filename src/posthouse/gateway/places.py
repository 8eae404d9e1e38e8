"""Places: how many sessions are worked on side by side, and how many of them are one tenant's.

One tenant may have ``share`` of them. ``spare`` more are for the others while one has its whole share: so a tenant with
a long queue and slow handlers holds up nobody else, and a tenant that is alone has its share as before.

In: who takes a place and leaves it, and leases that were asked for. Out: whom a lease must pass over, and how many can
be asked for in one go. Leases on their way count as if each of them went to whoever has most.
"""

from __future__ import annotations


class Places:
    """Counts the places of one worker."""

    __slots__ = ("_held", "_share", "_spare", "asked", "whole")

    def __init__(self, share: int, spare: int) -> None:
        self.whole = share + spare
        self.asked = 0
        """Leases on their way: whose they will be is not known."""
        self._share, self._spare = share, spare
        self._held: dict[str, int] = {}

    def take(self, tenant: str) -> None:
        """A session of the tenant is begun with."""
        self._held[tenant] = self._held.get(tenant, 0) + 1

    def leave(self, tenant: str) -> bool:
        """One of them is done; whether the tenant had its whole share, and so may have more that waits."""
        held = self._held[tenant]
        if held == 1:
            del self._held[tenant]
        else:
            self._held[tenant] = held - 1
        return bool(self._spare) and held + self.asked >= self._share

    def full(self) -> tuple[str, ...]:
        """Tenants that the next lease must pass over."""
        if not self._spare:
            return ()
        return tuple([tenant for tenant, held in self._held.items() if held + self.asked >= self._share])

    def may_ask(self) -> bool:
        """Whether one more lease may be asked for: all on their way may turn out to be one tenant's, whoever it is."""
        return not self._spare or self.asked < self._share

    def at_once(self) -> int:
        """Leases that may be asked for together, whoever gets them."""
        if not self._spare:
            return self.whole
        room = self._share - self.asked
        return room - max((held for held in self._held.values() if held < room), default=0)
