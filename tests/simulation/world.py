"""A world for the relay's core: time, a store that commits in groups, sockets with latency, and agents.

Everything that happens is an event at a virtual instant, and all chance comes from one seed. The house and its
sessions are the real ones. A crash drops them with all that was not committed; the store is what it was at the
last commit.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence
from typing import Any

from nacl.signing import SigningKey

from posthouse.mailbox.command import Command, Lease, Post, Settle, Shift, Start, Sweep, Together
from posthouse.mailbox.message import Ref, State
from posthouse.mailbox.outcome import Done, Leased, Posted, Refusal, Refused, Settled
from posthouse.mailbox.policy import RELAY
from posthouse.mailbox.store import MessageView, Store
from posthouse.relay.blocks import SHELF
from posthouse.relay.house import House
from posthouse.relay.port import Answered, BodiesRead
from posthouse.relay.session import Session
from posthouse.relay.settings import Settings
from posthouse.stores.memory import MemoryStore
from posthouse.wire import auth, envelope
from posthouse.wire.address import address_of
from posthouse.wire.envelope import Envelope, MessageType

HOST = "relay.test"
WALL_US = 1_700_000_000_000_000
KERNEL_BYTES = 20_000
"""What the sockets hold between the relay and a client that does not read."""

FAST = Settings(HOST, rate_per_s=0, unreceived_frames_max=12, unreceived_bytes_max=6_000, batch=5)
"""Small bounds, so that a few messages reach them."""


class World:
    """One run."""

    def __init__(
        self,
        seed: int = 0,
        settings: Settings = FAST,
        *,
        store: Store | None = None,
        commit_s: tuple[float, float] = (0.0005, 0.004),
        latency_s: tuple[float, float] = (0.0001, 0.003),
        **policy: Any,
    ) -> None:
        self.random = random.Random(seed)
        self.settings = settings
        self.policy = RELAY.replace(**policy)
        self.store: Store = store or MemoryStore({"relay": self.policy}, node="sim")
        self.commit_s = commit_s
        self.latency_s = latency_s
        self.now_s = 0.0
        self.clock_us = 0  # by how much somebody set the clock
        self._clock_known_us = 0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._queue: list[tuple[list[Command], Answered]] = []
        self._committing = False
        self.age = 0  # of the process: what an earlier one asked for is not called back
        self.groups = 0
        self.fail_next = 0
        """So many of the next groups come to nothing."""
        self.damaged: set[Ref] = set()
        """Messages whose stored bytes cannot be read."""
        # What really happened, seen at the store.
        self.seqs: dict[tuple[str, bytes], int] = {}
        self.posted_in: dict[Ref, int] = {}
        self.leased_in: dict[Ref, tuple[int, str]] = {}
        self.settled: set[tuple[str, bytes]] = set()
        self.full: list[tuple[str, bytes]] = []
        self._bodies: dict[Ref, bytes] = {}
        self.lines: list[SimLine] = []
        self.house: House
        self.boot()

    # The process.

    def boot(self) -> None:
        """Start a relay on the store."""
        self.store.apply([Start({"relay": self.policy}, None, self.now_us())])
        self.house = House(
            self.settings, SimPort(self), capacity=self.policy.capacity, sender_max=self.policy.sender_max
        )
        self.house.start(self.store.kept(SHELF))

    def crash(self) -> None:
        """The process dies: some of what it submitted may be committed, none of it is answered."""
        self.age += 1
        n = self.random.randint(0, len(self._queue))
        commands = [command for batch, _ in self._queue[:n] for command in batch]
        if commands:
            self._apply(commands)
        self._queue.clear()
        self._committing = False
        lines, self.lines = self.lines, []
        for line in lines:
            line.cut(tell=False)
        self.boot()

    # Time.

    def now_us(self) -> int:
        return WALL_US + int(self.now_s * 1e6) + self.clock_us

    def at(self, delay_s: float, callback: Callable[[], None]) -> None:
        """Call back later."""
        self._count += 1
        heapq.heappush(self._events, (self.now_s + delay_s, self._count, callback))

    def run(self, seconds: float) -> None:
        """Let time pass."""
        until = self.now_s + seconds
        events = self._events
        while events and events[0][0] <= until:
            at, _, callback = heapq.heappop(events)
            self.now_s = max(at, self.now_s)
            callback()
        self.now_s = until

    def between(self, bounds: tuple[float, float]) -> float:
        return self.random.uniform(*bounds)

    # The store.

    def submit(self, commands: Sequence[Command], answered: Answered) -> None:
        self._queue.append((list(commands), answered))
        if not self._committing:
            self._committing = True
            self.mine(self.between(self.commit_s), self._commit)

    def mine(self, delay_s: float, callback: Callable[[], None]) -> None:
        """Call back this process, if it still lives."""
        age = self.age
        self.at(delay_s, lambda: callback() if age == self.age else None)

    def _commit(self) -> None:
        n = self.random.randint(1, len(self._queue))
        group, self._queue = self._queue[:n], self._queue[n:]
        if self.fail_next:
            # Whether it took effect is unknown to whoever is told of the failure.
            self.fail_next -= 1
            if self.random.random() < 0.5:
                self._apply([command for batch, _ in group for command in batch])
            error = OSError("the disk did not answer")
            self.mine(0, lambda: [answered(error) for _, answered in group] and None)
        else:
            outcomes = self._apply([command for batch, _ in group for command in batch])
            self.mine(0.00005, lambda: self._answer(group, outcomes))
        self._committing = bool(self._queue)
        if self._queue:
            self.mine(self.between(self.commit_s), self._commit)

    def _answer(self, group: list[tuple[list[Command], Answered]], outcomes: list[Any]) -> None:
        for batch, answered in group:
            mine, outcomes = outcomes[: len(batch)], outcomes[len(batch) :]
            answered(mine)

    def _apply(self, commands: list[Command]) -> list[Any]:
        self.groups += 1
        at = self.now_us()
        shift = []
        if self.clock_us != self._clock_known_us:
            shift = [Shift(self.clock_us - self._clock_known_us, at)]
            self._clock_known_us = self.clock_us
        stamped: list[Command] = [_stamped(command, at) for command in commands]
        outcomes = self.store.apply([*shift, *stamped])[len(shift) :]
        for command, outcome in zip(commands, outcomes, strict=True):
            self._watch(command, outcome)
        return list(outcomes)

    def _watch(self, command: Command, outcome: Any) -> None:
        if isinstance(command, Together):
            if isinstance(outcome, Done):
                self._watch_confirmation(command, outcome)
                for inner, result in zip(command.commands, outcome.outcomes, strict=True):
                    self._watch(inner, result)
        elif isinstance(command, Post):
            message = command.message
            if isinstance(outcome, Posted):
                self.seqs[message.mailbox, message.body] = outcome.seq
                self.posted_in[message.ref] = self.groups
                self._bodies[message.ref] = message.body
            elif isinstance(outcome, Refused) and outcome.reason is Refusal.FULL:
                self.full.append((message.sender, message.body))
        elif isinstance(command, Settle) and isinstance(outcome, Settled) and outcome.state is State.DELIVERED:
            self.settled.add((command.ref.mailbox, self._bodies[command.ref]))
        elif isinstance(command, Lease) and isinstance(outcome, Leased):
            for delivery in outcome.deliveries:
                self.leased_in[delivery.message.ref] = (self.groups, command.token)

    def _watch_confirmation(self, command: Together, outcome: Done) -> None:
        """Whether a message waited is what the store did with it, not what its session believes."""
        settle, post = command.commands
        assert isinstance(settle, Settle)
        assert isinstance(post, Post)
        settled = outcome.outcomes[0]
        assert isinstance(settled, Settled)
        leased = self.leased_in.get(settle.ref)
        together = leased is not None and leased[0] == self.posted_in[settle.ref]
        assert together or not settled.live
        told = envelope.parse(post.message.body).delivery_confirm.was_stored
        assert told is not settled.live, f"was_stored of {settle.ref.id} is {told}, and it was live: {settled.live}"

    def sweep(self) -> None:
        """What the engine does from time to time."""
        self._apply([Sweep()])

    # Agents.

    def agent(self, name: int) -> Agent:
        return Agent(self, name)


def _stamped(command: Any, at: int) -> Any:
    if isinstance(command, Together):
        return Together(tuple(_stamped(c, at) for c in command.commands), at)
    return command._replace(at=at)


class SimPort:
    """The world as one process sees it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.submit = world.submit
        self.later = world.mine

    def read_bodies(self, refs: Sequence[Ref], read: BodiesRead) -> None:
        world = self.world

        def answer() -> None:
            bodies = world.store.bodies(refs)
            read([None if ref in world.damaged else body for ref, body in zip(refs, bodies, strict=True)])

        world.mine(world.between(world.latency_s), answer)

    def soon(self, callback: Callable[[], None]) -> None:
        self.world.mine(0, callback)

    def monotonic(self) -> float:
        return self.world.now_s

    def now_ms(self) -> int:
        return self.world.now_us() // 1_000

    def random_bytes(self, n: int) -> bytes:
        return self.world.random.randbytes(n)


class SimLine:
    """A socket between a session and a client: in order, with latency, cut at any instant."""

    def __init__(self, world: World, client: Client) -> None:
        self.world = world
        self.client = client
        self.session: Session
        self.open = True  # for the relay
        self.reading = True
        self.unread_bytes = 0
        self.sent: list[bytes] = []
        """Messages written by the relay, of the kinds that agents send each other."""
        self.confirmed: set[tuple[str, bytes]] = set()
        """Messages whose confirmation reached the relay on this connection."""
        self.closed_with: tuple[int, str] | None = None
        self._down_at = 0.0
        self._up_at = 0.0
        self._held: list[Callable[[], None]] = []

    # The relay's side.

    def send(self, data: bytes) -> None:
        assert self.closed_with is None, "written after the close"
        if not self.open:
            return  # cut, and the relay does not know yet
        message = (self.client.agent.address, data)
        if message in self.world.seqs:
            assert message not in self.world.settled, "a message that was finished is sent again"
            self._check_nothing_is_overtaken(self.world.seqs[message])
            self.sent.append(data)
        elif len(data) < 20 and (parsed := envelope.parse(data)).HasField("queue_status"):
            self._check_announcement(parsed.queue_status.pending_count)
        self.unread_bytes += len(data)
        self._down(lambda: self.client.frame(data), len(data))

    def ping(self, payload: bytes) -> None:
        assert self.closed_with is None, "pinged after the close"
        if self.open:
            self._down(lambda: self.client.ping(payload), 0)

    def close(self, code: int, reason: str) -> None:
        self.closed_with = (code, reason)
        if self.open:
            self._down(lambda: self.client.closed(code, reason), 0)
        self.open = False

    def buffered(self) -> int:
        return max(self.unread_bytes - KERNEL_BYTES, 0)

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True
        held, self._held = self._held, []
        for callback in held:
            self.world.mine(0, callback)

    def _check_announcement(self, pending_count: int) -> None:
        lane = self.world.store.in_lane("relay", self.client.agent.address, "", limit=1_000)
        held = [view for view in lane if view.token == self.session.token and not self._is_known(view)]
        assert pending_count == len(held), f"{pending_count} announced, {len(held)} will be sent"

    def _check_nothing_is_overtaken(self, seq: int) -> None:
        address = self.client.agent.address
        sent = set(self.sent)
        for view in self.world.store.in_lane("relay", address, "", limit=1_000):
            if view.seq >= seq:
                break
            if self._is_known(view) or view.message.ref in self.world.damaged:
                continue
            assert view.message.body in sent, f"{seq} overtakes {view.seq} of {address[:12]}"

    def _is_known(self, view: MessageView) -> bool:
        """One that was confirmed before it came again is not sent, and about to be finished."""
        message = view.message
        return message.kind == "message" and (message.sender, message.id.encode()) in self.confirmed

    def _down(self, callback: Callable[[], None], size: int) -> None:
        world = self.world
        self._down_at = max(self._down_at, world.now_s) + 1e-9
        self._down_at = max(self._down_at, world.now_s + world.between(world.latency_s))
        world.at(self._down_at - world.now_s, lambda: self.client.arrives(callback, size))

    # The client's side.

    def up(self, callback: Callable[[], None]) -> None:
        """Something on its way to the relay."""
        world = self.world
        self._up_at = max(self._up_at + 1e-9, world.now_s + world.between(world.latency_s))

        def arrive() -> None:
            if not self.open or self.client.gone:
                return
            if self.reading:
                callback()
            else:
                self._held.append(callback)

        world.mine(self._up_at - world.now_s, arrive)

    def cut(self, tell: bool = True) -> None:
        """The socket is gone; ``tell``: and the relay notices."""
        if not self.client.gone:
            self.client.gone = True
            self.client.agent.disconnected(self.client)
        if tell and self.session.is_open:
            self.world.mine(0, lambda: self.session.lost("cut"))
        if tell:
            self.open = False


class Client:
    """One connection of an agent, as the agent sees it."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.world = agent.world
        self.gone = False
        self.authenticated: bool | None = None
        self.error = ""
        self.close: tuple[int, str] | None = None
        self.announced: int | None = None
        self.frames_before_status = 0
        self.received: list[bytes] = []
        self.notices: list[Envelope] = []
        self.early = 0  # confirmations of messages that had not come on this connection
        self.stalled = False
        self._waiting: list[Callable[[], None]] = []
        self._refs: set[tuple[str, bytes]] = set()
        self.line = SimLine(self.world, self)
        self.world.lines.append(self.line)
        self.line.session = self.world.house.open(self.line)
        self.line.session.opened()

    @property
    def is_open(self) -> bool:
        return not self.gone and self.authenticated is True

    # From the relay.

    def arrives(self, callback: Callable[[], None], size: int) -> None:
        if self.gone:
            return
        if self.stalled:
            self._waiting.append(lambda: self._read(callback, size))
        else:
            self._read(callback, size)

    def _read(self, callback: Callable[[], None], size: int) -> None:
        if self.gone:
            return
        before = self.line.buffered()
        self.line.unread_bytes -= size
        if before and not self.line.buffered() and self.line.open:
            self.world.mine(0, self.line.session.writable)
        callback()

    def stall(self) -> None:
        self.stalled = True

    def go_on(self) -> None:
        self.stalled = False
        waiting, self._waiting = self._waiting, []
        for callback in waiting:
            callback()

    def frame(self, data: bytes) -> None:
        parsed = envelope.parse(data)
        kind = parsed.type
        if kind == MessageType.AUTH_CHALLENGE:
            challenge = parsed.auth_challenge
            signed = auth.challenge_bytes(challenge.relay_host, challenge.nonce)
            signature = self.agent.key.sign(signed).signature
            answer = envelope.auth_response(self.agent.public_key, signature, challenge.nonce)
            self.send(answer)
        elif kind == MessageType.AUTH_RESULT:
            self.authenticated = parsed.auth_result.success
            self.error = parsed.auth_result.error_message
        elif kind == MessageType.QUEUE_STATUS:
            assert self.announced is None, "announced twice"
            assert not self.received, "announced behind queued frames"
            self.announced = parsed.queue_status.pending_count
            assert self.announced > 0
        elif kind in (MessageType.QUEUE_FULL, MessageType.RATE_LIMITED):
            self.notices.append(parsed)
        else:
            self.received.append(data)
            self.agent.received(self, parsed, data)

    def ping(self, payload: bytes) -> None:
        if self.world.random.random() >= self.agent.loses_pongs:
            self.up(lambda: self.line.session.pong(payload))

    def closed(self, code: int, reason: str) -> None:
        self.close = (code, reason)
        self.gone = True
        self.agent.disconnected(self)

    # To the relay.

    def send(self, data: bytes) -> None:
        self.up(lambda: self.line.session.frame(data))

    def up(self, callback: Callable[[], None]) -> None:
        if not self.gone:
            self.line.up(callback)

    def cut(self) -> None:
        """The connection breaks, and both sides notice."""
        self.line.cut()

    def vanish(self) -> None:
        """The client is gone and the relay does not notice: a half-open connection."""
        self.gone = True
        self.agent.disconnected(self)


class Agent:
    """An agent: keeps what it has seen, confirms messages, remembers what it was told."""

    def __init__(self, world: World, name: int) -> None:
        self.world = world
        self.key = SigningKey(name.to_bytes(32, "big"))
        self.public_key = bytes(self.key.verify_key)
        self.address = address_of(self.public_key, HOST)
        self.client: Client | None = None
        self.clients: list[Client] = []
        self.loses_pongs = 0.0
        self.confirms = 1.0
        """How often it confirms a message that it received."""
        self.confirm_s = (0.0, 0.01)
        self.seen: dict[bytes, int] = {}
        """Bodies, and how often they came."""
        self.confirmed: set[tuple[str, bytes]] = set()
        """Messages it has confirmed: by sender and id."""
        self.confirmations: dict[bytes, bool] = {}
        """Ids of its own messages whose confirmation came, and whether they had been stored."""
        self.unconfirmed: list[tuple[str, bytes]] = []
        """Messages it received and did not confirm (yet)."""
        self.carried: dict[bytes, Client] = {}
        """Which connection carried what it sent."""
        self.sent = 0

    def connect(self) -> Client:
        self.client = Client(self)
        self.clients.append(self.client)
        return self.client

    def disconnected(self, client: Client) -> None:
        if self.client is client:
            self.client = None

    def send(self, to: Agent | str, size: int = 40, id: bytes | None = None, type: int = MessageType.MESSAGE) -> bytes:
        """Send an envelope on the connection; its id."""
        assert self.client is not None
        self.sent += 1
        if id is None:
            id = f"{self.address[6:10]}-{self.sent}".encode()
        data = self.make(to, id, type, size)
        self.carried[data] = self.client
        self.client.send(data)
        return id

    def make(self, to: Agent | str, id: bytes, type: int = MessageType.MESSAGE, size: int = 40, **fields: Any) -> bytes:
        """The bytes of an envelope from this agent."""
        made = Envelope(
            version=1,
            from_address=self.address,
            to_address=to if isinstance(to, str) else to.address,
            message_id=id,
            timestamp=self.sent,
            **fields,
        )
        made.type = type  # type: ignore[assignment]
        if not fields:
            made.encrypted.ciphertext = f"{self.sent} ".encode() + b"x" * size
        return made.SerializeToString()

    def received(self, client: Client, parsed: Envelope, data: bytes) -> None:
        self.seen[data] = self.seen.get(data, 0) + 1
        if parsed.type == MessageType.DELIVERY_CONFIRM:
            self.confirmations[parsed.delivery_confirm.message_id] = parsed.delivery_confirm.was_stored
        elif parsed.type == MessageType.MESSAGE:
            sender, id = parsed.from_address, parsed.message_id
            self.unconfirmed.append((sender, id))
            if self.world.random.random() >= self.confirms:
                return
            delay_s = self.world.between(self.confirm_s)
            self.world.at(delay_s, lambda: self.confirm(client, sender, id))

    def confirm(self, client: Client, sender: str, id: bytes) -> None:
        """Confirm a message on a connection, if it still stands."""
        if client.gone:
            return
        self.confirmed.add((sender, id))
        if (sender, id) in self.unconfirmed:
            self.unconfirmed.remove((sender, id))
        if not any(envelope.parse(data).message_id == id for data in client.received):
            client.early += 1
        now_ms = self.world.now_us() // 1_000
        signature = self.key.sign(auth.confirm_bytes(id, now_ms)).signature
        data = envelope.delivery_confirm(self.address, sender, id, now_ms, signature)

        def arrive() -> None:
            client.line.confirmed.add((sender, id))
            client.line.session.frame(data)

        client.up(arrive)

    def block(self, other: Agent, block: bool = True) -> None:
        assert self.client is not None
        make = envelope.block_notification if block else envelope.unblock_notification
        self.client.send(make(self.address, other.address, self.world.now_us() // 1_000))


def online(world: World, agent: Agent) -> Client:
    """Connect and wait until it is live."""
    client = agent.connect()
    world.run(0.5)
    assert client.is_open
    return client
