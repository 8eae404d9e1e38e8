"""Peers that are to stay connected: static ones, and those through which a host finds its way into the network.

In: addresses. Out: dials, again and again, with growing waits that chance shortens, and at once when a peer is lost. A
bootstrap peer is dialled only while too few others are connected.
"""

from __future__ import annotations

import asyncio
import logging
import random

from .errors import BadInput, Libp2pError
from .host import Disconnected, Event, Host
from .multiaddr import Multiaddr
from .peer_id import PeerId
from .settings import Settings

log = logging.getLogger(__name__)


class Keeper:
    """Keeps a host connected."""

    def __init__(self, host: Host, enough: int = 4, rng: random.Random | None = None) -> None:
        """``enough``: with so many peers connected, bootstrap peers are left alone."""
        self._host = host
        self._enough = enough
        self._rng = rng or random.Random()
        self._tasks: dict[PeerId, asyncio.Task[None]] = {}
        self._bells: dict[PeerId, asyncio.Event] = {}
        self._bootstrap: set[PeerId] = set()
        self._unwatch = host.watch(self._seen)

    @property
    def peers(self) -> list[PeerId]:
        """Whom it keeps."""
        return list(self._tasks)

    def keep(self, address: Multiaddr | str, bootstrap: bool = False) -> PeerId:
        """Stay connected with the peer of an address, which ends with /p2p/…; its further addresses may follow."""
        if isinstance(address, str):
            address = Multiaddr.parse(address)
        peer = address.peer_id
        if peer is None or address.endpoint is None:
            raise BadInput(f"an address to keep is plain TCP and ends with the peer (/p2p/…): {address}")
        self._host.book.add(peer, [address])
        if peer != self._host.peer_id and peer not in self._tasks:
            if bootstrap:
                self._bootstrap.add(peer)
            self._bells[peer] = asyncio.Event()
            self._tasks[peer] = self._host.spawn(self._hold(peer, address))
        return peer

    def release(self, peer: PeerId) -> None:
        """Dial it no more; a connection that is there stays."""
        task = self._tasks.pop(peer, None)
        if task is not None:
            task.cancel()
            del self._bells[peer]
            self._bootstrap.discard(peer)

    def close(self) -> None:
        """Dial nobody any more."""
        self._unwatch()
        for peer in self.peers:
            self.release(peer)

    def _seen(self, event: Event) -> None:
        """Somebody is lost: look at once whether it, or another instead, is to be dialled."""
        if isinstance(event, Disconnected):
            for peer in {event.peer, *self._bootstrap} & self._bells.keys():
                self._bells[peer].set()

    async def _hold(self, peer: PeerId, address: Multiaddr) -> None:
        bell, loop = self._bells[peer], asyncio.get_running_loop()
        failures = 0
        while True:
            bell.clear()
            content = peer in self._bootstrap and len(self._host.peers) >= self._enough
            if content or self._host.is_connected(peer):
                begun = loop.time()
                await bell.wait()
                if loop.time() - begun >= self._host.settings.keep_first_s:
                    failures = 0
                    continue
            else:
                try:
                    await self._host.dial(peer, [address])
                    continue
                except Libp2pError as error:
                    log.debug("cannot keep %s: %s", peer, error)
            # It failed, or was lost as soon as it was there.
            await asyncio.sleep(pause_s(failures, self._host.settings, self._rng))
            failures += 1


def pause_s(failures: int, settings: Settings, rng: random.Random) -> float:
    """How long to wait after so many failures in a row and one more."""
    return min(settings.keep_first_s * 2.0 ** min(failures, 60), settings.keep_most_s) * rng.uniform(0.5, 1.0)
