"""Where peers can be found. In: addresses as they become known. Out: those of one peer, best first. It is bounded."""

from __future__ import annotations

from collections.abc import Iterable

from .multiaddr import Multiaddr
from .peer_id import PeerId


class AddressBook:
    """Addresses that can be dialled. What worked last stands first, and behind it what was told last."""

    def __init__(self, peers_max: int, addresses_max: int) -> None:
        self._peers_max = peers_max
        self._addresses_max = addresses_max
        self._by_peer: dict[PeerId, dict[Multiaddr, None]] = {}

    def add(self, peer: PeerId, addresses: Iterable[Multiaddr], first: bool = False) -> None:
        """Remember addresses of a peer; ``first``: they are known to work. What cannot be dialled is not kept.

        Where there is no room for all, those are dropped that were told first: who moves is found at its new place.
        """
        found = [address.bare() for address in addresses if address.endpoint is not None]
        if not found:
            return
        known = list(self._by_peer.pop(peer, ()))
        merged = dict.fromkeys([*found, *known] if first else [*known[:1], *found, *known[1:]])
        self._by_peer[peer] = dict.fromkeys(list(merged)[: self._addresses_max])
        while len(self._by_peer) > self._peers_max:
            del self._by_peer[next(iter(self._by_peer))]

    def of(self, peer: PeerId) -> list[Multiaddr]:
        """The addresses of a peer, best first."""
        return list(self._by_peer.get(peer, ()))

    def forget(self, peer: PeerId) -> None:
        """Drop all that is known of a peer."""
        self._by_peer.pop(peer, None)

    def __len__(self) -> int:
        return len(self._by_peer)
