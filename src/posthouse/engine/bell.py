"""The bell: whoever found nothing to lease is told when it is worth looking again.

In: tickets of those who look, and after each commit the mailboxes in which something may have become
leasable. Out: wake-ups. It holds no messages and promises none: who is woken leases again, and may
find that another was faster.

No wake-up is lost, because the ticket is taken before looking:

    with bell.ticket("inbound", None) as ticket:
        leased = await engine.do(Lease(...))
        if not leased.deliveries:
            await ticket.wait(timeout_s=30)

What is committed before the ticket was taken, the lease sees; what is committed later, rings the ticket.
A mailbox is known to the bell only while somebody holds a ticket for it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any

from .writer import Wakeup

Key = tuple[str, str]
"""A desk and one of its mailboxes."""


class Ticket:
    """One look at a mailbox, or (mailbox None) at a whole desk; for one waiter, good for one ring."""

    __slots__ = ("_bell", "_sleeper", "desk", "mailbox", "rung")

    def __init__(self, bell: Bell, desk: str, mailbox: str | None) -> None:
        self.desk = desk
        self.mailbox = mailbox
        self.rung = False
        """Whether something may have become leasable since the ticket was taken."""
        self._bell = bell
        self._sleeper: Any = None  # a Wakeup, or a lock that a thread sleeps on

    async def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the ring; False when the time is up. EngineClosed when nothing will ring any more."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bool] = loop.create_future()
        # Shown to the ringer before looking at `rung`; the ringer does it the other way round.
        # So at least one of the two sees the other.
        self._sleeper = (loop, future)
        timer = None
        try:
            if self.rung:
                return self._answer(True)
            if timeout_s is not None:
                timer = loop.call_later(timeout_s, _give_up, future)
            return self._answer(await future)
        finally:
            self._sleeper = None
            if timer is not None:
                timer.cancel()

    def wait_blocking(self, timeout_s: float | None = None) -> bool:
        """The same for a plain thread."""
        gate = threading.Lock()
        gate.acquire()
        self._sleeper = gate
        try:
            if not self.rung:
                gate.acquire(timeout=-1 if timeout_s is None else max(timeout_s, 0))
            return self._answer(self.rung)
        finally:
            self._sleeper = None

    def drop(self) -> None:
        """Nobody looks any more. Idempotent."""
        self._bell.forget(self)

    def _answer(self, rung: bool) -> bool:
        self._bell.check_open()
        return rung

    def _ring(self) -> Wakeup | None:
        """Note the ring; wake a thread, or say which future is to be given True."""
        self.rung = True
        sleeper = self._sleeper
        self._sleeper = None
        if sleeper is None:
            return None
        if type(sleeper) is tuple:
            wakeup: Wakeup = sleeper
            return wakeup
        sleeper.release()
        return None

    def __enter__(self) -> Ticket:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.drop()


class Bell:
    """Who looks at which mailboxes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # By desk, then by mailbox; None stands for those who look at the whole desk.
        self._tickets: dict[str, dict[str | None, set[Ticket]]] = {}
        self._closed: Callable[[], BaseException] | None = None

    @property
    def listening(self) -> bool:
        """Whether anybody looks at all; if not, a commit need not ask whom to ring."""
        return bool(self._tickets)

    def ticket(self, desk: str, mailbox: str | None = None) -> Ticket:
        """A ticket, to be taken before leasing; drop it (or leave its ``with`` block) afterwards."""
        ticket = Ticket(self, desk, mailbox)
        with self._lock:
            self.check_open()
            mailboxes = self._tickets.get(desk)
            if mailboxes is None:
                mailboxes = self._tickets[desk] = {}
            tickets = mailboxes.get(mailbox)
            if tickets is None:
                mailboxes[mailbox] = {ticket}
            else:
                tickets.add(ticket)
        return ticket

    def forget(self, ticket: Ticket) -> None:
        """Take a ticket out of the books."""
        with self._lock:
            mailboxes = self._tickets.get(ticket.desk)
            tickets = None if mailboxes is None else mailboxes.get(ticket.mailbox)
            if mailboxes is None or tickets is None:
                return
            tickets.discard(ticket)
            if not tickets:
                del mailboxes[ticket.mailbox]
                if not mailboxes:
                    del self._tickets[ticket.desk]

    def ring(self, keys: Iterable[Key] = (), desks: Iterable[str] = (), everyone: bool = False) -> list[Wakeup]:
        """Ring for mailboxes, whole desks or everyone. Wakes threads; returns the futures to wake."""
        rung: list[set[Ticket]] = []
        with self._lock:
            if everyone:
                desks = list(self._tickets)
            for desk in desks:
                rung.extend(self._tickets.pop(desk, {}).values())
            for desk, mailbox in keys:
                mailboxes = self._tickets.get(desk)
                if mailboxes is None:
                    continue
                for name in (mailbox, None):
                    tickets = mailboxes.pop(name, None)
                    if tickets:
                        rung.append(tickets)
                if not mailboxes:
                    del self._tickets[desk]
            # Under the lock, so that a ticket is rung by one ringer only.
            wakeups = [ticket._ring() for tickets in rung for ticket in tickets]
        return [wakeup for wakeup in wakeups if wakeup is not None]

    def check_open(self) -> None:
        """Raise when nothing will ring any more."""
        if self._closed is not None:
            raise self._closed()

    def close(self, error: Callable[[], BaseException]) -> None:
        """Nothing will ring any more: who waits, and who comes later, is raised an error made by this."""
        with self._lock:
            self._closed = error
        wake(self.ring(everyone=True))


def wake(wakeups: Iterable[Wakeup]) -> None:
    """Give these futures True, with one call per event loop."""
    loops: dict[asyncio.AbstractEventLoop, list[asyncio.Future[Any]]] = {}
    for loop, future in wakeups:
        loops.setdefault(loop, []).append(future)
    for loop, futures in loops.items():
        try:
            loop.call_soon_threadsafe(_wake_all, futures)
        except RuntimeError:
            pass  # the loop is closed, and nobody waits in it


def _wake_all(futures: list[asyncio.Future[Any]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(True)


def _give_up(future: asyncio.Future[bool]) -> None:
    if not future.done():
        future.set_result(False)
