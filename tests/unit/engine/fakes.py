"""Stores and clocks that a test can stop, break and look into."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from posthouse.engine.clock import Clock
from posthouse.mailbox.command import Command, Lease, Post, Shift, Start, Sweep
from posthouse.mailbox.message import SECOND, Instant, Message
from posthouse.mailbox.outcome import Leased, Noted, Outcome, Posted, Shifted, Started, Swept
from posthouse.mailbox.policy import Policy
from posthouse.stores.memory import MemoryStore

MAIL = Policy("mail")
WAIT_S = 20.0
"""Long enough for a busy machine; only a test that fails waits for it."""


class RecordingStore:
    """Applies nothing and remembers everything. A test may hold it in the middle of ``apply``."""

    node = "recording"
    durable = False

    def __init__(self, *errors: BaseException | None) -> None:
        self.policies = {"mail": MAIL}
        self.groups: list[list[Command]] = []
        self.closed = False
        self.threads: set[threading.Thread] = set()
        self._errors = deque(errors)
        self._held = False
        self._entered = threading.Semaphore(0)
        self._go_on = threading.Semaphore(0)

    def apply(self, commands: Sequence[Command]) -> list[Outcome]:
        assert not self.closed
        self.threads.add(threading.current_thread())
        if self._held:
            self._entered.release()
            assert self._go_on.acquire(timeout=WAIT_S)
        error = self._errors.popleft() if self._errors else None
        if error is not None:
            raise error
        self.groups.append(list(commands))
        return [outcome_of(command) for command in commands]

    def next_at(self, at: Instant) -> Instant | None:
        return None

    def close(self) -> None:
        self.closed = True

    def hold(self) -> None:
        """From now on every apply waits for ``let_go``."""
        self._held = True

    def wait_until_entered(self) -> None:
        """Wait until an apply is held."""
        assert self._entered.acquire(timeout=WAIT_S)

    def let_go(self, *, for_good: bool = True) -> None:
        """Let the held apply go on, and (for good) all that follow."""
        self._held = not for_good
        self._go_on.release()

    @property
    def ids(self) -> list[list[str]]:
        """The ids that were posted, commit by commit."""
        return [[c.message.id for c in group if isinstance(c, Post)] for group in self.groups]


def outcome_of(command: Command) -> Outcome:
    """An outcome that shows which command it belongs to."""
    if isinstance(command, Post):
        return Posted(int(command.message.id.rsplit("-", 1)[-1]), None)
    if isinstance(command, Lease):
        return Leased(command.token, ())
    if isinstance(command, Sweep):
        return Swept((), 0, 0, False)
    if isinstance(command, Start):
        return Started(0)
    return Shifted() if isinstance(command, Shift) else Noted()


class FakeClock(Clock):
    """A clock that stands still until it is told."""

    def __init__(self, at: Instant = 1_800_000_000 * SECOND) -> None:
        self._wall = at
        self._monotonic = 1_000 * SECOND
        super().__init__(lambda: self._wall * 1_000, lambda: self._monotonic * 1_000)

    def advance(self, seconds: float) -> None:
        """Time passes."""
        self._wall += int(seconds * SECOND)
        self._monotonic += int(seconds * SECOND)

    def set(self, seconds: float) -> None:
        """Somebody sets the clock by this much; no time passes."""
        self._wall += int(seconds * SECOND)


class WatchedStore(MemoryStore):
    """The reference store, with the commands that it was given."""

    def __init__(self, *policies: Policy) -> None:
        super().__init__({policy.name: policy for policy in policies or (MAIL,)})
        self.groups: list[list[Command]] = []
        self.closed = False
        self.before_apply: Any = None

    def apply(self, commands: Sequence[Command]) -> list[Outcome]:
        if self.before_apply is not None:
            self.before_apply(commands)
        outcomes = super().apply(commands)
        self.groups.append(list(commands))
        return outcomes

    def close(self) -> None:
        self.closed = True
        super().close()


def post(number: int | str, mailbox: str = "alice", **fields: Any) -> Post:
    """A post whose id ends in a number."""
    body = fields.pop("body", b"hello")
    return Post(Message("mail", mailbox, f"{number}" if isinstance(number, str) else f"m-{number}", body, **fields))


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop turn until the condition holds."""
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0)


def until_blocking(condition: Callable[[], bool]) -> None:
    """Let other threads run until the condition holds."""
    pause = threading.Event()
    for _ in range(int(WAIT_S * 1_000)):
        if condition():
            return
        pause.wait(0.001)
    raise AssertionError("it did not come to pass")
