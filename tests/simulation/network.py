"""A world for peers: virtual time under real coroutines, a network that fails, and stores that outlive their processes.

The peers are the real ones: session, courier, receiver, inbox, sync. Time passes only when nothing else can happen, so
a day takes as long as what happens in it, and all chance comes from one seed.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
import selectors
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from posthouse.engine.bell import Bell, wake
from posthouse.libp2p.errors import ConnectionLost, DialFailed, StreamEnded, StreamReset
from posthouse.libp2p.host import Connected, Disconnected, Event, Identified
from posthouse.libp2p.identify import Info
from posthouse.libp2p.key import PrivateKey
from posthouse.libp2p.peer_id import PeerId
from posthouse.mailbox.command import Command, Keep, Lease, Note, Renew, Start, Sweep, Together
from posthouse.mailbox.outcome import Outcome
from posthouse.mailbox.policy import INBOX, OUTBOX, Policy
from posthouse.peer.inbox import Handler
from posthouse.peer.node import Limits, Peer
from posthouse.stores.memory import MemoryStore

WALL_US = 1_700_000_000_000_000
SWEEP_S = 60.0
_QUIET = (Lease, Renew, Note, Keep)
"""After these nothing can be leased that could not be before."""
_owner: contextvars.ContextVar[str] = contextvars.ContextVar("owner", default="")


class _Selector(selectors.SelectSelector):
    """Waits in no time."""

    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[Any]:
        assert timeout is not None, "everybody waits, and nothing will happen any more"
        self.loop.virtual_s += max(timeout, 0)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock moves on when nothing else can happen."""

    def __init__(self) -> None:
        self.virtual_s = 0.0
        selector = _Selector()
        super().__init__(selector)
        selector.loop = self
        self.slow_callback_duration = 1e9

    def time(self) -> float:
        return self.virtual_s

    def _write_to_self(self) -> None:
        """Nobody sleeps in the selector, so nobody is to be woken there."""


class Office:
    """An engine of one process on a store: commits take time, and the process may die before, in or behind one."""

    def __init__(self, world: World, name: str, store: MemoryStore, skew_us: int) -> None:
        self.store = store
        self.bell = Bell()
        self.dead = False
        self._world = world
        self._name = name
        self._skew_us = skew_us
        self._queue: list[tuple[tuple[Command, ...], asyncio.Future[list[Outcome]]]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._apply([Start(store.policies)])
        self._sweep()

    def now(self) -> int:
        return WALL_US + int(self._world.loop.time() * 1e6) + self._skew_us

    async def do(self, command: Command) -> Outcome:
        return (await self.apply(command))[0]

    async def apply(self, *commands: Command) -> list[Outcome]:
        return await self.submit(*commands)

    def submit(self, *commands: Command) -> asyncio.Future[list[Outcome]]:
        future: asyncio.Future[list[Outcome]] = self._world.loop.create_future()
        if not self.dead:
            if not self._queue:
                self._world.later(self._world.random.uniform(0.0005, 0.004), self._commit)
            self._queue.append((commands, future))
        return future

    def crash(self) -> None:
        """The process dies; some of what it submitted may be committed, none of it is answered."""
        self.dead = True
        count = self._world.random.randint(0, len(self._queue))
        for commands, _ in self._queue[:count]:
            self._apply(commands)
        if self._timer is not None:
            self._timer.cancel()

    def _commit(self) -> None:
        if self.dead:
            return
        queue, self._queue = self._queue, []
        for commands, future in queue:
            outcomes = self._apply(commands)
            if not future.done():
                future.set_result(outcomes)
        if not all(isinstance(command, _QUIET) for commands, _ in queue for command in commands):
            wake(self.bell.ring(everyone=True))
        self._arm()

    def _apply(self, commands: Sequence[Command]) -> list[Outcome]:
        return self.store.apply([_stamped(command, self.now()) for command in commands])

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        next_at = self.store.next_at(self.now())
        if next_at is not None:
            self._timer = self._world.later((next_at - self.now()) / 1e6 + 1e-6, self._due)

    def _due(self) -> None:
        if not self.dead:
            self._apply([Sweep()])
            wake(self.bell.ring(everyone=True))
            self._arm()

    def _sweep(self) -> None:
        self._due()
        if not self.dead:
            self._world.later(SWEEP_S, self._sweep)


def _stamped(command: Any, at: int) -> Any:
    if isinstance(command, Together):
        return Together(tuple(_stamped(c, at) for c in command.commands), at)
    return command._replace(at=at)


class Pipe:
    """One end of a stream."""

    def __init__(self, world: World, peer: PeerId) -> None:
        self.peer = peer
        self.other: Pipe
        self.lost = False
        """What is written now never arrives."""
        self._world = world
        self._data = b""
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._arrives_s = 0.0

    async def read_exactly(self, size: int) -> bytes:
        while len(self._data) < size:
            if self._error is not None:
                raise self._error
            self._waiter = self._world.loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        data, self._data = self._data[:size], self._data[size:]
        return data

    async def write(self, data: bytes) -> None:
        if self._error is not None:
            raise self._error
        if not self.lost:
            self._arrives_s = max(self._arrives_s, self._world.loop.time() + self._world.latency_s())
            self._world.later(self._arrives_s - self._world.loop.time(), lambda: self.other.arrive(data))

    def arrive(self, data: bytes) -> None:
        self._data += data
        self._wake()

    def fail(self, error: Exception) -> None:
        if self._error is None:
            self._error = error
            self._wake()

    def close(self) -> None:
        after_s = max(self._arrives_s - self._world.loop.time(), 0) + 1e-6
        if not self.lost:
            self._world.later(after_s, lambda: self.other.fail(StreamEnded("closed")))

    def reset(self) -> None:
        self.fail(StreamReset("we have reset it"))
        if not self.lost:
            self._world.later(self._world.latency_s(), lambda: self.other.fail(StreamReset("reset")))

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class SimHost:
    """A host of one process."""

    def __init__(self, world: World, name: str, key: PrivateKey) -> None:
        self.peer_id = PeerId.of(key.public)
        self.dead = False
        self.dials: list[float] = []
        self._world = world
        self._name = name
        self._handlers: dict[str, Callable[[Any], Coroutine[Any, Any, None]]] = {}
        self._watchers: list[Callable[[Event], None]] = []
        self._up: dict[PeerId, list[Pipe]] = {}

    @property
    def peers(self) -> list[PeerId]:
        return list(self._up)

    def is_connected(self, peer: PeerId) -> bool:
        return peer in self._up

    def info(self, peer: PeerId) -> Info | None:
        other = self._world.hosts.get(peer)
        return Info(protocols=frozenset(other._handlers)) if other is not None and peer in self._up else None

    def rtt_s(self, peer: PeerId) -> float | None:
        return None

    def handle(self, protocol: str, handler: Callable[[Any], Coroutine[Any, Any, None]]) -> None:
        self._handlers[protocol] = handler

    def watch(self, watcher: Callable[[Event], None]) -> Callable[[], None]:
        self._watchers.append(watcher)
        return lambda: self._watchers.remove(watcher)

    async def dial(self, peer: PeerId) -> None:
        self.dials.append(self._world.loop.time())
        await asyncio.sleep(self._world.latency_s())
        other = self._world.hosts.get(peer)
        if other is None or other.dead or self._world.is_parted(self.peer_id, peer):
            raise DialFailed("nobody answers")
        self.came(other)
        other.came(self)

    def came(self, other: SimHost) -> None:
        if not self.dead and other.peer_id not in self._up:
            self._up[other.peer_id] = []
            self._say(Connected(other.peer_id))
            info = self.info(other.peer_id)
            assert info is not None
            self._world.later(self._world.latency_s(), lambda: self._identified(other.peer_id, info))

    def _identified(self, peer: PeerId, info: Info) -> None:
        if not self.dead and peer in self._up:
            self._say(Identified(peer, info))

    def went(self, peer: PeerId) -> None:
        """The connection is lost, and we notice."""
        pipes = self._up.pop(peer, None)
        if pipes is not None:
            for pipe in pipes:
                pipe.fail(ConnectionLost("the connection was lost"))
            self._say(Disconnected(peer, ConnectionLost("lost")))

    async def open_stream(self, peer: PeerId, *protocols: str) -> Pipe:
        if peer not in self._up:
            await self.dial(peer)
        return self._world.open(self, peer, protocols[0])

    def pipe(self, peer: PeerId) -> Pipe:
        pipe = Pipe(self._world, peer)
        self._up.setdefault(peer, []).append(pipe)
        return pipe

    def serve(self, protocol: str, pipe: Pipe) -> None:
        if not self.dead and protocol in self._handlers:
            self._world.spawn(self._name, self._serve(self._handlers[protocol], pipe))

    async def _serve(self, handler: Callable[[Any], Coroutine[Any, Any, None]], pipe: Pipe) -> None:
        try:
            await handler(pipe)
        except (StreamReset, StreamEnded, ConnectionLost, TimeoutError):
            pipe.reset()
        else:
            pipe.close()

    def _say(self, event: Event) -> None:
        if not self.dead:
            for watcher in list(self._watchers):
                watcher(event)


class Party:
    """A peer over all of its processes: its key and its store stay."""

    def __init__(self, world: World, number: int, policies: Sequence[Policy], limits: Limits) -> None:
        self.key = PrivateKey(bytes([number + 1]) * 32)
        self.peer_id = PeerId.of(self.key.public)
        self.id = str(self.peer_id)
        self.store = MemoryStore({p.name: p for p in policies}, node=f"peer-{number}")
        self.skew_us = 0
        self.peer: Peer
        self.host: SimHost
        self.office: Office
        self._world = world
        self._limits = limits
        self._lives = 0

    async def boot(self, handler: Handler) -> None:
        """Start a process."""
        self._lives += 1
        name = f"{self.id}-{self._lives}"
        world = self._world
        self.office = Office(world, name, self.store, self.skew_us)
        self.host = world.hosts[self.peer_id] = SimHost(world, name, self.key)
        self._name = name
        await world.spawn(name, self._start(handler))

    async def _start(self, handler: Handler) -> None:
        self.peer = Peer(self.office, self.host, self.key, self._limits, handler=handler)
        await self.peer.start()

    def crash(self) -> None:
        """The process dies."""
        self.office.crash()
        self.host.dead = True
        del self._world.hosts[self.peer_id]
        self._world.kill(self._name)
        for other in list(self._world.hosts.values()):
            self._world.later(
                self._world.random.uniform(0, 25),
                lambda other=other: other.went(self.peer_id),  # type: ignore[misc]
            )

    @property
    def is_up(self) -> bool:
        return not self.host.dead

    def run(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Do something in its process."""
        return self._world.spawn(self._name, work)


class World:
    """One run."""

    def __init__(
        self, loop: VirtualLoop, seed: int, count: int, limits: Limits, policies: Sequence[Policy] = (OUTBOX, INBOX)
    ) -> None:
        self.loop = loop
        self.random = random.Random(seed)
        self.hosts: dict[PeerId, SimHost] = {}
        self.latency = (0.001, 0.05)
        self.drop = 0.0
        """How often a stream is a black hole, in one direction or the other."""
        self.repeat = 0.0
        """How often a frame comes once more, later, on a stream of its own."""
        self._parted: set[frozenset[PeerId]] = set()
        self._tasks: dict[str, set[asyncio.Task[Any]]] = {}
        loop.set_task_factory(self._task)
        self.parties = [Party(self, number, policies, limits) for number in range(count)]

    # Tasks belong to processes.

    def _task(self, loop: asyncio.AbstractEventLoop, work: Any, **more: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, **more)
        context = more.get("context")
        owner = context.get(_owner, "") if context is not None else _owner.get()
        if owner:
            tasks = self._tasks.setdefault(owner, set())
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        return task

    def spawn(self, owner: str, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        context = contextvars.copy_context()
        context.run(_owner.set, owner)
        return self.loop.create_task(work, context=context)

    def kill(self, owner: str) -> None:
        for task in list(self._tasks.pop(owner, ())):
            task.cancel()

    def later(self, delay_s: float, callback: Callable[[], Any]) -> asyncio.TimerHandle:
        return self.loop.call_later(delay_s, callback)

    def latency_s(self) -> float:
        return self.random.uniform(*self.latency)

    # The network.

    def is_parted(self, one: PeerId, other: PeerId) -> bool:
        return frozenset((one, other)) in self._parted

    def part(self, one: Party, other: Party) -> None:
        """Nothing goes between these two; each side notices after a while."""
        self._parted.add(frozenset((one.peer_id, other.peer_id)))
        self.cut(one, other)

    def heal(self) -> None:
        self._parted.clear()

    def cut(self, one: Party, other: Party) -> None:
        """Their connection is lost; each side notices after a while."""
        for here, there in ((one, other), (other, one)):
            host = here.host
            for pipe in host._up.get(there.peer_id, ()):
                pipe.lost = True
            self.later(self.random.uniform(0, 25), lambda host=host, peer=there.peer_id: host.went(peer))  # type: ignore[misc]

    def open(self, host: SimHost, peer: PeerId, protocol: str) -> Pipe:
        """A stream, with all that may happen to it."""
        near = host.pipe(peer)
        other = self.hosts.get(peer)
        if other is None or not other.is_connected(host.peer_id) or self.is_parted(host.peer_id, peer):
            # Half open: nobody is there, and we have not noticed; keep-alive will.
            near.lost = True
            self.later(self.random.uniform(0, 25), lambda: host.went(peer))
            near.other = Pipe(self, host.peer_id)
            return near
        far = other.pipe(host.peer_id)
        near.other, far.other = far, near
        dice = self.random.random()
        if dice < self.drop / 2:
            near.lost = True
        elif dice < self.drop:
            far.lost = True
        elif dice < self.drop + self.repeat:
            self._record(near, far, other, protocol)
        self.later(self.latency_s(), lambda: other.serve(protocol, far))
        return near

    def _record(self, near: Pipe, far: Pipe, other: SimHost, protocol: str) -> None:
        """What is written on this stream comes once more, later."""
        data: list[bytes] = []
        arrive = far.arrive

        def both(more: bytes) -> None:
            data.append(more)
            arrive(more)

        far.arrive = both  # type: ignore[method-assign]

        def again() -> None:
            if not other.dead and other.is_connected(far.peer):
                copy = other.pipe(far.peer)
                copy.other = Pipe(self, other.peer_id)
                copy.arrive(b"".join(data))
                other.serve(protocol, copy)

        self.later(self.random.choice((0.001, 0.2, 3.0, 40.0)), again)


def run(seed: int, story: Callable[[VirtualLoop, int], Coroutine[Any, Any, Any]]) -> None:
    """Live through a story on a loop of its own."""
    loop = VirtualLoop()
    try:
        asyncio.set_event_loop(loop)
        loop.run_until_complete(story(loop, seed))
    finally:
        loop.set_task_factory(None)
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.run_until_complete(asyncio.sleep(0))
        asyncio.set_event_loop(None)
        loop.close()
