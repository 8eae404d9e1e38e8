"""A story: some agents, much mischief, all of it from one seed; and at the end, whether every promise was kept."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

from tests.simulation.world import FAST, Agent, Client, World

from posthouse.mailbox.event import DELIVERED, EXPIRED, PARKED, POSTED
from posthouse.mailbox.store import Store
from posthouse.wire import envelope
from posthouse.wire.envelope import MessageType

OTHER_TYPES = (MessageType.CONNECTION_REQUEST, MessageType.HEARTBEAT, MessageType.HANDSHAKE, 99)


class Broken(AssertionError):
    """A promise was not kept."""


class Story:
    """One run from a seed."""

    def __init__(self, seed: int, store: Store | None = None, policy: dict[str, Any] | None = None) -> None:
        self.seed = seed
        settings = dataclasses.replace(FAST, unanswered_max=20, heartbeat_s=5.0, heartbeat_wait_s=2.0)
        if policy is None:
            tries = 2 + seed % 4
            policy = {"capacity": 40, "ttl_s": 90.0, "attempts_max": tries, "unreceived_max": tries}
        self.world = World(seed, settings, store=store, **policy)
        self.random = self.world.random
        self.agents = [self.world.agent(1 + n) for n in range(self.random.randint(2, 4))]
        for agent in self.agents:
            agent.confirms = self.random.choice((1.0, 1.0, 0.95, 0.7))
            agent.loses_pongs = self.random.choice((0.0, 0.0, 0.05))

    def run(self, steps: int = 60) -> None:
        """Live through it, then let everything come to rest, and look."""
        try:
            for _ in range(steps):
                self._step()
                self.world.run(self.random.choice((0.0, 0.002, 0.01, 0.05, 0.3)))
            self._rest()
            self._check()
        except AssertionError as error:
            raise Broken(f"seed {self.seed}: {error}") from error

    # Mischief.

    def _step(self) -> None:
        world, random = self.world, self.random
        agent = random.choice(self.agents)
        client = agent.client
        dice = random.random()
        if dice < 0.015:
            world.crash()
        elif dice < 0.03:
            # Less than the time to live, forward and back.
            world.clock_us += random.choice((-1, 1)) * random.randint(1, 60_000_000)
        elif dice < 0.06:
            world.sweep()
        elif dice < 0.07:
            world.run(random.uniform(1, 20))
        elif dice < 0.075:
            world.fail_next += 1
        elif client is None:
            self._connect(agent)
        elif not client.is_open:
            if dice < 0.3:
                client.cut()
        elif dice < 0.10:
            client.cut()
        elif dice < 0.13:
            client.vanish()
        elif dice < 0.16:
            client.stall()
        elif dice < 0.25:
            client.go_on()
        elif dice < 0.27:
            # A second connection while the first lives (or is stalled, which looks dead).
            agent.connect()
        elif dice < 0.29:
            other = random.choice(self.agents)
            agent.block(other, block=random.random() < 0.4)
        elif dice < 0.31:
            client.send(random.randbytes(random.randint(0, 60)))
        elif dice < 0.33:
            agent.confirm(client, random.choice(self.agents).address, b"never sent")
        elif dice < 0.36 and agent.unconfirmed:
            agent.confirm(client, *random.choice(agent.unconfirmed))
        else:
            for _ in range(random.choice((1, 1, 3, 8, 25))):
                self._send(agent, random.choice(self.agents))

    def _connect(self, agent: Agent) -> None:
        """Connect, and perhaps confirm what came on an earlier connection, before or while it comes again."""
        client = agent.connect()
        if self.random.random() < 0.5:
            for sender, id in self.random.sample(agent.unconfirmed, min(len(agent.unconfirmed), 4)):
                at_s = self.random.uniform(0.02, 0.1)
                self.world.at(at_s, partial(self._confirm_early, agent, client, sender, id))

    def _confirm_early(self, agent: Agent, client: Client, sender: str, id: bytes) -> None:
        if client.is_open and (sender, id) in agent.unconfirmed:
            agent.confirm(client, sender, id)

    def _send(self, agent: Agent, to: Agent) -> None:
        random = self.random
        type = MessageType.MESSAGE if random.random() < 0.7 else random.choice(OTHER_TYPES)
        id = b"" if random.random() < 0.05 else None
        agent.send(to, size=random.choice((10, 100, 1_500)), type=type, id=id)

    def _rest(self) -> None:
        """Everybody connects, behaves, and has time."""
        world = self.world
        world.fail_next = 0
        for agent in self.agents:
            agent.confirms, agent.loses_pongs = 1.0, 0.0
            if agent.client is not None:
                agent.client.go_on()
            for client in agent.clients:
                if not client.gone:
                    client.cut()
        world.run(40)
        for agent in self.agents:
            agent.connect()
        world.run(3)
        for agent in self.agents:
            # Half-open connections were taken over meanwhile; whoever was refused tries again.
            if agent.client is None or not agent.client.is_open:
                agent.connect()
        world.run(30)

    # Promises.

    def _check(self) -> None:
        for agent in self.agents:
            assert agent.client is not None, "an agent cannot connect"
            assert agent.client.is_open, "an agent cannot connect"
            for client in agent.clients:
                self._check_connection(agent, client)
            self._check_announced(agent.client)
            self._check_confirmations(agent)
        self._check_books()
        self._check_notices()
        self._check_house()

    def _check_connection(self, agent: Agent, client: Client) -> None:
        seqs = [self.world.seqs[agent.address, data] for data in client.received]
        assert seqs == sorted(set(seqs)), f"out of order or twice on one connection: {seqs}"

    def _check_announced(self, client: Client) -> None:
        """On a connection that stands: all that was announced came."""
        if client.announced is not None:
            assert len(client.received) + client.early >= client.announced, (
                f"{client.announced} announced, {len(client.received)} came"
            )

    def _check_confirmations(self, agent: Agent) -> None:
        for other in self.agents:
            for data in other.seen:
                parsed = envelope.parse(data)
                if parsed.type != MessageType.DELIVERY_CONFIRM or parsed.from_address != agent.address:
                    continue
                id = parsed.delivery_confirm.message_id
                assert (parsed.to_address, id) in agent.confirmed, "a confirmation that nobody gave"

    def _check_books(self) -> None:
        """Every accepted message: delivered and really received, expired, parked, or (nothing else) at rest."""
        world = self.world
        bodies = {(mailbox, seq): body for (mailbox, body), seq in world.seqs.items()}
        agents = {agent.address: agent for agent in self.agents}
        accepted: set[tuple[str, int]] = set()
        ended: dict[tuple[str, int], str] = {}
        for _, _, event in world.store.events():
            key = (event.mailbox, event.lane_seq)
            if event.event == POSTED:
                accepted.add(key)
            elif event.event in (DELIVERED, EXPIRED, PARKED):
                ended[key] = event.event
                if event.event == DELIVERED:
                    agent = agents[event.mailbox]
                    body = bodies[key]
                    assert body in agent.seen, f"finished and never received: {event.message_id} ({event.kind})"
                    if event.kind == "message":
                        id = envelope.parse(body).message_id
                        # One without an id can be confirmed by nobody: its receipt is enough.
                        assert not id or (event.sender, id) in agent.confirmed, (
                            f"finished and never confirmed: {event.message_id}"
                        )
        assert accepted == set(bodies), "the journal and the outcomes differ"
        left = accepted - set(ended)
        for agent in self.agents:
            rest = [(v.message.id, v.state) for v in world.store.in_lane("relay", agent.address, "")]
            assert not rest, f"at rest and not delivered: {rest}"
        assert not left, f"lost: {sorted(left)}"

    def _check_notices(self) -> None:
        """Whoever found a mailbox full was told, if its connection stood."""
        agents = {agent.address: agent for agent in self.agents}
        for sender, body in self.world.full:
            client = agents[sender].carried[body]
            if client.gone:
                continue
            told = {notice.message_id for notice in client.notices if notice.HasField("queue_full")}
            assert envelope.parse(body).message_id in told, "a full mailbox, and the sender was not told"

    def _check_house(self) -> None:
        house = self.world.house
        assert house.unanswered_bytes == 0, "back-pressure is not let go"
        assert not house.paused, "a connection is not read from"
        assert house.connections == len(self.agents)
        for session in house.online.values():
            assert session.outflow.is_idle, "something is on its way still"
