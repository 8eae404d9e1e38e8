"""The gateway itself: its channels, their couriers, the worker, and who is told of dead letters.

    channel → port.receive → engine (inbound) → worker → handler → engine (outbound) → courier → channel

In: an engine, channels, a handler. Out: a running whole, and a clean end: what was received is kept, what was leased
goes back, what was being sent is finished or settled by what is certain. It holds no message.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..control import gateway as control
from ..control import presence
from ..control.rule import Rule
from ..engine.engine import Engine
from ..engine.tail import Tail
from ..errors import ConfigError, EngineClosed, StoreError
from ..mailbox.command import Note
from ..mailbox.event import CONNECTED, DISCONNECTED, REASONS
from ..mailbox.outcome import Duplicate, Posted, Refused
from .alerts import Alerts
from .answer import Handler
from .channel import Channel, NotAccepted, Receipt
from .courier import Courier, SendLimits
from .letter import INBOUND_DESK, OUTBOUND_DESK, Inbound, Json
from .meter import Meter
from .watch import EVERY_S, Watch, missing_accounts
from .worker import Limits, Worker

log = logging.getLogger("posthouse.gateway")


@dataclass(frozen=True, slots=True)
class Parts:
    """What a gateway is made of."""

    channels: Sequence[Channel] = ()
    handler: Handler | None = None
    """None: what comes in is kept and waits."""
    alert: Channel | None = None
    work: Limits = field(default_factory=Limits)
    send: SendLimits = field(default_factory=SendLimits)
    rules: Sequence[Rule] = ()
    """When somebody is told that something is wrong."""
    lake: str = ""
    """Where the books are that some rules look at."""
    rules_every_s: float = EVERY_S


class GatewayPort:
    """What one channel calls; see ``channel.Port``."""

    def __init__(self, engine: Engine, courier: Courier) -> None:
        self._engine = engine
        self._courier = courier
        self._notes: set[asyncio.Future[object]] = set()

    async def receive(self, inbound: Inbound) -> Receipt:
        """Keep a received message; returns only when it is durable."""
        outcome = await self._engine.do(inbound.post())
        stats = self._courier.stats
        if isinstance(outcome, Refused):
            stats.refused += 1
            raise NotAccepted(str(outcome.reason), f"not kept: {outcome.detail or outcome.reason}")
        assert isinstance(outcome, Posted | Duplicate)
        duplicate = isinstance(outcome, Duplicate)
        if duplicate:
            stats.duplicates += 1
        else:
            stats.received += 1
        return Receipt(inbound.id, duplicate)

    def up(self, holder: str = "") -> None:
        """There is a live connection (again)."""
        self._courier.up()
        self._note(CONNECTED, holder)

    def down(self, reason: str = "cut", error: str = "") -> None:
        """There is none any more."""
        self._courier.down()
        self._note(DISCONNECTED, "", reason if reason in REASONS[DISCONNECTED] else "cut", error)

    def _note(self, event: str, holder: str, reason: str | None = None, error: str = "") -> None:
        mailbox = self._courier.mailbox
        note = Note(event, OUTBOUND_DESK, mailbox, holder or mailbox, reason, error[:500] or None)
        try:
            future: asyncio.Future[object] = asyncio.ensure_future(self._engine.do(note))
        except EngineClosed:
            return
        self._notes.add(future)
        future.add_done_callback(self._noted)

    def _noted(self, future: asyncio.Future[object]) -> None:
        self._notes.discard(future)
        if not future.cancelled() and (error := future.exception()) is not None and not isinstance(error, EngineClosed):
            log.warning("%s: a connection was not written down: %s", self._courier.mailbox, error)

    async def close(self) -> None:
        """Wait until all that was told is written down."""
        await asyncio.gather(*self._notes, return_exceptions=True)


class Gateway:
    """Runs from ``start`` to ``close``."""

    def __init__(self, engine: Engine, parts: Parts) -> None:
        for desk in (INBOUND_DESK, OUTBOUND_DESK):
            if desk not in engine.store.policies:
                raise ConfigError(f"the gateway needs the desk {desk!r}, and the store has no policy of that name")
        self.engine = engine
        self.meter = Meter()
        self._alerts = Alerts(engine, wanted=parts.alert is not None)
        self._tail = Tail(engine, self._alerts.after)
        self._tail.listen(self._alerts.told)
        self._tail.listen(lambda events, last, gap: self.meter.count(events, time.monotonic()))
        self._channels = [*parts.channels, *([] if parts.alert is None else [parts.alert])]
        self.couriers: dict[str, Courier] = {}
        self._ports: dict[str, GatewayPort] = {}
        for channel in self._channels:
            courier = Courier(engine, channel, parts.send)
            if courier.mailbox in self.couriers:
                raise ConfigError(f"two channels are the same account: {courier.mailbox}")
            self.couriers[courier.mailbox] = courier
            self._ports[courier.mailbox] = GatewayPort(engine, courier)
        accounts = frozenset(self.couriers)
        for rule in missing_accounts(parts.rules, accounts):
            have = ", ".join(sorted(accounts)) or "none"
            raise ConfigError(
                f"{rule.where}: alert.{rule.name} is told by {rule.account!r}, and no channel is that account; "
                f"there are: {have}"
            )
        self.watch = Watch(engine, parts.rules, parts.lake, accounts, parts.rules_every_s) if parts.rules else None
        self._handler = parts.handler
        self.worker = None if parts.handler is None else Worker(engine, parts.handler, parts.work)
        self._running = False

    async def start(self) -> None:
        """Begin with sending and working, then with receiving. What fails is raised, and what began is to be closed."""
        assert not self._running
        self._running = True
        # An engine that stopped says so itself.
        with contextlib.suppress(EngineClosed):
            await asyncio.to_thread(self._alerts.keep)
        self._tail.start()
        for courier in self.couriers.values():
            courier.start()
        if self.worker is not None:
            self.worker.start()
        elif self._channels:
            log.warning("no handler is set (gateway.handler): what comes in is kept and waits")
        if self.watch is not None:
            self.watch.start()
        control.running(self.engine, self.live)
        presence.about(self.engine, OUTBOUND_DESK, self._about)
        for channel, mailbox in zip(self._channels, self.couriers, strict=True):
            await channel.start(self._ports[mailbox])

    async def close(self) -> None:
        """End cleanly. Idempotent."""
        if not self._running:
            return
        self._running = False
        control.stopped(self.engine)
        presence.about(self.engine, OUTBOUND_DESK, None)
        if self.watch is not None:
            await self.watch.close()
        ending = [courier.close() for courier in self.couriers.values()]
        if self.worker is not None:
            ending.append(self.worker.close())
        await self._all("stopped badly", ending)
        await self._all("was not closed", [channel.close() for channel in self._channels])
        for courier in self.couriers.values():
            if courier.is_up:
                self._ports[courier.mailbox].down("shutdown")
        await self._all("was not written down", [port.close() for port in self._ports.values()])
        if self._handler is not None:
            await self._all("was not closed", [self._handler.close()])
        await self._tail.close()
        try:
            await asyncio.to_thread(self._alerts.keep)
        except StoreError as error:
            log.warning("how far the journal was read is not kept: %s", error)

    def live(self) -> Json:
        """Its counts, for ``gateway.stats``; from any thread."""
        now_s = time.monotonic()
        accounts = [
            {
                "account": mailbox,
                "up": courier.is_up,
                **dataclasses.asdict(courier.stats),
                "left_alone": courier.open_targets(),
            }
            for mailbox, courier in self.couriers.items()
        ]
        return {
            "window_s": self.meter.window_s(now_s),
            "worker": None if self.worker is None else dataclasses.asdict(self.worker.stats),
            "accounts": accounts,
            "rates": {desk: self._rates(desk, now_s) for desk in (INBOUND_DESK, OUTBOUND_DESK)},
        }

    def _about(self, mailbox: str) -> Json:
        """What is known of an account that is connected, for ``presence``; from any thread."""
        channel = next((c for c, name in zip(self._channels, self.couriers, strict=True) if name == mailbox), None)
        if channel is None:
            return {}
        return {"rtt_s": None, "can": [channel.kind, *(["knows repeats"] if channel.idempotent else [])]}

    def _rates(self, desk: str, now_s: float) -> Json:
        by = self.meter.by
        places = by(lambda place: (place.desk, place.mailbox, place.lane), now_s)
        return {
            "all": by(lambda place: (place.desk,), now_s).get((desk,), {}),
            "channels": {
                name: counts
                for (at, name), counts in by(lambda place: (place.desk, place.channel), now_s).items()
                if at == desk and name
            },
            "sessions": [
                {"mailbox": mailbox, "lane": lane, "failed": 0, **counts}
                for (at, mailbox, lane), counts in places.items()
                if at == desk and mailbox
            ],
        }

    async def _all(self, what: str, ending: list[Coroutine[Any, Any, None]]) -> None:
        """Wait for all of these; the fault of one must not keep the others open."""
        for error in await asyncio.gather(*ending, return_exceptions=True):
            if isinstance(error, BaseException):
                log.error("a part of the gateway %s", what, exc_info=error)
