"""One attempt at one outbound message: its parts, from the first that was not sent, and what is certain in the end.

In: a lease, the message, and the courier that has both. Out: how the message is to be settled. It settles nothing.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from typing import TYPE_CHECKING, NamedTuple

from ..errors import EngineClosed, StoreError
from ..mailbox.command import Renew, Verdict
from ..mailbox.outcome import Delivery, LeaseLost
from .channel import Offline, Permanent, RateLimited, Reconciled, Sending, Transient
from .letter import OUTBOUND_DESK, Outbound
from .worker import STORE_PAUSE_S

if TYPE_CHECKING:
    from .courier import Courier

log = logging.getLogger("posthouse.gateway")

RESENDS_MAX = 3
"""How often a part is sent again within one attempt, where that is safe."""
OFFLINE_S = 1.0
"""How long a send waits for another connection where the one it had is gone; then the message goes back."""


class End(NamedTuple):
    """What a send came to."""

    verdict: Verdict
    stat: str
    after_s: float | None = None
    reason: str | None = None
    error: str | None = None


_DONE = End(Verdict.DELIVERED, "sent")


class Attempt:
    """One attempt at one message."""

    def __init__(self, courier: Courier, token: str, delivery: Delivery, outbound: Outbound) -> None:
        self._courier = courier
        self._token = token
        self._delivery = delivery
        self._outbound = outbound
        self._index = delivery.progress
        self._writing = False
        """A part is with the connection, and its outcome is not known."""

    def interrupted(self) -> End:
        """What is certain of it when it is broken off."""
        if self._writing and not self._courier.channel.idempotent:
            return End(Verdict.UNCERTAIN, "uncertain", reason="unknown", error="stopped in the middle of a send")
        return End(Verdict.RETURN, "offline", reason="returned")

    async def run(self) -> End | None:
        """Send what is left of its parts; None: the lease was lost, and nothing is to be said."""
        if self._delivery.attempt > 1 and not await self._confirmed():
            return End(Verdict.UNCERTAIN, "uncertain", reason="unknown", error="whether a part was sent is unknown")
        resends = 0
        while self._index < len(self._outbound.parts):
            connection = self._courier.channel.connection()
            if connection is None:
                if await self._courier.reconnected(None):
                    continue
                return End(Verdict.RETURN, "offline", None, "offline", "the channel has no connection")
            sending = self._sending()
            try:
                self._writing = True
                async with asyncio.timeout(self._courier.timeout_s):
                    await connection.send(sending)
            except Permanent as error:
                return End(Verdict.DEAD, "died", reason="permanent", error=str(error))
            except RateLimited as error:
                return End(Verdict.RETRY, "rate_limited", error.after_s, "rate_limited", str(error))
            except Transient as error:
                return End(Verdict.RETRY, "retried", error=str(error))
            except Offline as error:
                self._writing = False
                if error.after_s is None and await self._courier.reconnected(connection):
                    continue
                after_s = OFFLINE_S if error.after_s is None else error.after_s
                return End(Verdict.RETURN, "offline", after_s, "offline", str(error))
            except Exception as error:
                # Unclear, no answer in time, or an error that says nothing about what was sent.
                told = str(error) or type(error).__name__
                if not await self._renewed():
                    return None
                found = await self._courier.find_out(sending, patient=True)
                if found is Reconciled.UNKNOWN:
                    return End(Verdict.UNCERTAIN, "uncertain", reason="unknown", error=told)
                if found is Reconciled.NOT_SENT:
                    resends += 1
                    if resends > RESENDS_MAX:
                        return End(Verdict.RETRY, "retried", error=told)
                    self._courier.stats.resent += 1
                    continue
            self._writing = False
            resends = 0
            if not await self._sent():
                return None
        return _DONE

    def _sending(self) -> Sending:
        return Sending(self._outbound, self._index, key_of(self._outbound, self._index), self._delivery.attempt)

    async def _sent(self) -> bool:
        """A part is sent: keep that, if others are left. False: the lease was lost."""
        self._index += 1
        self._courier.stats.parts += 1
        return self._index >= len(self._outbound.parts) or await self._renewed()

    async def _renewed(self) -> bool:
        """Keep the lease, and how many parts are sent. False: it was lost."""
        renew = Renew(OUTBOUND_DESK, self._token, self._delivery.message.ref, self._index)
        while True:
            try:
                return not isinstance(await self._courier.engine.do(renew), LeaseLost)
            except EngineClosed:
                raise
            except StoreError as error:
                log.error("%s: the progress of %s is not kept yet: %s", self._courier.mailbox, self._outbound.id, error)
                await asyncio.sleep(STORE_PAUSE_S)

    async def _confirmed(self) -> bool:
        """Where the channel found before that the part under way was sent: skip it. False: now nobody knows."""
        ref = self._delivery.message.ref
        view = await self._courier.engine.read(lambda store: store.message(ref))
        if view is None or view.reason != "unconfirmed" or self._index >= len(self._outbound.parts):
            return True
        found = await self._courier.find_out(self._sending(), patient=True)
        if found is Reconciled.SENT:
            return await self._sent()
        return found is Reconciled.NOT_SENT


def key_of(outbound: Outbound, index: int) -> str:
    """The idempotency key of a part: the same for every attempt, and for no other part."""
    text = "\0".join((*outbound.ref, str(index)))
    return f"ph-{hashlib.sha256(text.encode()).hexdigest()[:40]}"
