"""What all channels have in common: the life of one account, its reconnecting, and its silence about secrets.

    start ─→ live() ─→ came_up() … Lost ─→ a pause ─→ live() … ─→ close

In: a section's options, and the gateway's port. Out: messages to the port, and whether there is a connection.
A kind of channel derives from ``Account`` and says in ``live`` how one connection goes from its beginning to its end.
Whatever it says to the log, to the port or in an error goes through ``scrub`` first.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Coroutine, Sequence
from typing import Any

from ...errors import InvalidInput, StoreError
from ...settings import Setting
from ..channel import NotAccepted, Port, Receipt, Setup
from ..letter import Inbound
from .option import Options

log = logging.getLogger("posthouse.gateway")

FIRST_PAUSE_S = 0.2
KEEP_PAUSE_CAP_S = 30.0
PASSING = frozenset({"full", "share"})
"""Reasons for which the gateway does not keep a message now and may later."""


class Lost(Exception):
    """A connection ended, or did not come about."""

    def __init__(self, error: str, reason: str = "cut", after_s: float = 0.0) -> None:
        super().__init__(error)
        self.reason = reason
        """As the port takes it: closed, cut, timeout, replaced."""
        self.after_s = after_s
        """The least pause before the next one."""


class Backoff:
    """Pauses between attempts: short at first, then longer, never longer than the longest."""

    def __init__(self, most_s: float) -> None:
        self._most_s = most_s
        self._failures = 0

    def worked(self) -> None:
        """An attempt succeeded: the next pause is short again."""
        self._failures = 0

    def next_s(self, least_s: float = 0.0) -> float:
        """The pause after another failure."""
        pause_s = min(FIRST_PAUSE_S * 2.0 ** min(self._failures, 20), self._most_s) * (0.5 + random.random() / 2)
        self._failures += 1
        return max(pause_s, min(least_s, self._most_s))


class Account:
    """One account on one network; the part of it that every kind of channel has."""

    idempotent: bool = False

    def __init__(self, setup: Setup, table: Sequence[Setting]) -> None:
        self.options = Options(setup, table)
        self.scrub = self.options.scrubber.scrub
        self.tenant = self.options.text("tenant")
        self._kind, self._account = setup.kind, setup.account
        self._port: Port | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_up = False

    def __repr__(self) -> str:
        return f"<channel {self._kind}/{self._account}>"

    @property
    def kind(self) -> str:
        """The network."""
        return self._kind

    @property
    def account(self) -> str:
        """Which account on it."""
        return self._account

    # Its life.

    async def start(self, port: Port) -> None:
        """Begin."""
        assert self._port is None, "a channel is started once"
        self._port = port
        try:
            await self.open()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """End all tasks and connections; the port is not called any more."""
        self._port = None
        self._is_up = False
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.shut()

    async def open(self) -> None:
        """What happens at the start: by default, connecting again and again."""
        self.spawn(self._connect())

    async def shut(self) -> None:
        """What is left to close when all tasks have ended."""

    async def live(self) -> None:
        """One connection from its beginning to its end; raises Lost."""
        raise NotImplementedError

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """A task that ends with the channel."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%r: a task failed: %s", self, self._told(error))

    async def _connect(self) -> None:
        pauses = Backoff(self.options.seconds("reconnect_s"))
        while True:
            try:
                await self.live()
                lost = Lost("the connection ended", "closed")
            except Lost as error:
                lost = error
            except Exception as error:
                # A fault of ours, or a network that says what nobody has thought of: the account goes on.
                log.error("%r: a connection failed: %s", self, self._told(error))
                lost = Lost(type(error).__name__)
            if self._is_up:
                pauses.worked()
            else:
                log.warning("%r is not connected: %s", self, self.scrub(lost))
            self.went_down(lost.reason, str(lost))
            await asyncio.sleep(pauses.next_s(lost.after_s))

    def _told(self, error: BaseException) -> str:
        return f"{type(error).__name__}: {self.scrub(error)}"

    # What it tells the gateway.

    @property
    def is_up(self) -> bool:
        """Whether there is a live connection."""
        return self._is_up

    def came_up(self, holder: str = "") -> None:
        """There is a live connection."""
        if not self._is_up and self._port is not None:
            self._is_up = True
            log.info("%r is connected", self)
            self._port.up(self.scrub(holder))

    def went_down(self, reason: str, error: str) -> None:
        """There is none any more."""
        if self._is_up:
            self._is_up = False
            log.info("%r is not connected any more: %s", self, self.scrub(error))
            if self._port is not None:
                self._port.down(reason, self.scrub(error))

    async def receive(self, inbound: Inbound) -> Receipt:
        """Hand a message over, once; it is durable when this returns."""
        port = self._port
        if port is None:
            raise NotAccepted("closed", "the channel is closed")
        return await port.receive(inbound)

    async def keep(self, inbound: Inbound) -> Receipt | None:
        """Hand a message over, as often as it takes; None if it can never be kept, which the log says."""
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                return await self.receive(inbound)
            except NotAccepted as error:
                if error.reason not in PASSING and error.reason != "closed":
                    self._given_up(inbound, error)
                    return None
                told = str(error)
            except InvalidInput as error:
                self._given_up(inbound, error)
                return None
            except StoreError as error:
                told = str(error)
            log.warning("%r: the message %r is not kept yet: %s", self, inbound.id, self.scrub(told))
            await asyncio.sleep(pause_s * (0.5 + random.random() / 2))
            pause_s = min(2 * pause_s, KEEP_PAUSE_CAP_S)

    def _given_up(self, inbound: Inbound, error: Exception) -> None:
        log.error("%r: the message %r can never be kept: %s", self, inbound.id, self.scrub(error))
