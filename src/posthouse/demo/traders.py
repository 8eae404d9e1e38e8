"""The demo's traders: peers of their own that trade with the server's peer over direct streams, and go away in between.

In: the server's peer. Out: trades of a few messages each way. What is for a trader who is away waits in the server's
outbox; what a trader wrote while he was away waits in his.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

from ..peer.handler import accept
from ..peer.node import Peer, open_peer
from .rhythm import Rhythm

log = logging.getLogger("posthouse.demo")

NAMES = ("mara", "nils")
TRADES_S = 4.0
STAYS_S = 35.0
STAYS_AWAY_S = 12.0
STEPS = ("pubkey_exchange", "nonce_exchange", "funding_info", "partial_sig", "complete")

Send = Callable[[dict[str, Any]], Awaitable[None]]
"""Has the server's peer send a message: the parameters of the operation ``peer.send``."""


class Traders:
    """All traders of the demo; ``live`` is one of them."""

    def __init__(self, folder: Path, peer: str, addresses: list[str], send: Send, rhythm: Rhythm) -> None:
        self._folder = folder
        self._peer = peer
        self._addresses = addresses
        self._send = send
        self._rhythm = rhythm

    def names(self) -> Iterator[str]:
        """Who they are."""
        yield from NAMES

    async def live(self, name: str) -> None:
        """Come, trade, go away, come again, without end."""
        rhythm = self._rhythm.of(name)
        while True:
            async with open_peer(self._folder / name, peers=self._addresses, handler=accept) as trader:
                log.info("trader %s is there", name)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(rhythm.about_s(STAYS_S)):
                        await self._trade(trader, rhythm)
                # For him while he is away.
                last = self._told(trader.id, f"trade-{uuid.uuid4().hex[:12]}", "abort", rhythm)
            log.info("trader %s goes away", name)
            await self._send(last)
            await rhythm.pause(STAYS_AWAY_S)

    async def _trade(self, trader: Peer, rhythm: Rhythm) -> None:
        while True:
            await rhythm.pause(TRADES_S)
            trade = f"trade-{uuid.uuid4().hex[:12]}"
            for step in STEPS:
                # Now and then one that is never right: the other side says so.
                amount = 0 if rhythm.happens(25) else rhythm.number(1_000)
                await trader.send(self._peer, trade, step, {"amount": amount})
                await self._send(self._told(trader.id, trade, step, rhythm))
                await rhythm.pause(TRADES_S / 10)

    def _told(self, peer: str, trade: str, step: str, rhythm: Rhythm) -> dict[str, Any]:
        amount = rhythm.number(1_000)
        return {"peer": peer, "trade": trade, "kind": step, "payload": f'{{"amount": {amount}}}'}
