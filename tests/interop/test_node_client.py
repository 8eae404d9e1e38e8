"""A client in JavaScript, as careless as the real one, through offline delivery, reconnects and crashes.

tests/interop/node/client.cjs exits when a message comes twice, installs its handlers late, and never confirms what it
cannot decrypt. It must get every message once, in order, and stay alive.
"""

from __future__ import annotations

import hashlib
import json
import os
import queue
import random
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.interop.toolchain import kept, node_program, npm_ci
from tests.relay.harness import DEADLINE_S, HOST, Agent
from tests.relay.process import RelayProcess

from posthouse.agent.identity import Identity
from posthouse.agent.uuid7 import uuid7
from posthouse.wire import envelope as wire
from posthouse.wire.address import address_of
from posthouse.wire.envelope import Envelope, MessageType, PlaintextPayload

HERE = Path(__file__).parent / "node"
PROTO = Path(__file__).parents[2] / "protocol" / "pinch.proto"
DUPLICATE = 3
"""The exit code of a client that got a message twice."""


@pytest.fixture(scope="session")
def modules() -> Path:
    """The client's packages, installed once for each lock file."""

    def build(draft: Path) -> None:
        for path in sources:
            shutil.copy(path, draft)
        npm_ci(draft)

    sources = [HERE / name for name in ("package.json", "package-lock.json")]
    return kept("pinch-node", sources, build) / "node_modules"


class Client:
    """The JavaScript client. It can be started again, with what it has kept."""

    def __init__(self, relay: RelayProcess, modules: Path, folder: Path) -> None:
        self._relay = relay
        self._modules = modules
        self._folder = folder
        self._seed = hashlib.sha256(str(folder).encode()).digest()
        self.public_key = Identity(self._seed).public_key
        self.address = address_of(self.public_key, HOST)
        self.unreadable: list[str] = []
        self._process: subprocess.Popen[str] | None = None
        self._events: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self.start()

    def start(self) -> None:
        """Start, or start again."""
        words = [self._relay.url, HOST, self._seed.hex(), str(self._folder), str(PROTO)]
        self._process = subprocess.Popen(
            [node_program(), str(HERE / "client.cjs"), *words],
            env={**os.environ, "NODE_PATH": str(self._modules)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._events = queue.SimpleQueue()
        threading.Thread(target=self._read, args=(self._process, self._events), daemon=True).start()
        self.wait("ready")

    @staticmethod
    def _read(process: subprocess.Popen[str], events: queue.SimpleQueue[dict[str, Any]]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            events.put(json.loads(line))
        events.put({"event": "exited", "code": process.wait()})

    def tell(self, what: str, **fields: Any) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": what, **fields}) + "\n")
        self._process.stdin.flush()

    def wait(self, event: str, count: int = 1) -> dict[str, Any]:
        """Wait until this has happened so often; what it said the last time."""
        until = time.monotonic() + DEADLINE_S
        while True:
            try:
                said = self._events.get(timeout=max(until - time.monotonic(), 0.001))
            except queue.Empty:
                raise AssertionError(
                    f"the client never said {event!r}, {count} times; it has {len(self.kept)}"
                ) from None
            if said["event"] == "unreadable":
                self.unreadable.append(said["id"])
            if said["event"] == event:
                count -= 1
                if not count:
                    return said
            assert said["event"] not in ("exited", "duplicate", "queue_timeout", "refused", "other"), said

    def connect(self, after: int = 0, then: str = "") -> None:
        """Connect; when ``after`` messages have come, leave, cut, stall, die, or die unconfirmed."""
        self.tell("connect", after=after, then=then)
        self.wait("connected")

    def died(self) -> int:
        """Wait until it has died; its exit code."""
        until = time.monotonic() + DEADLINE_S
        while (said := self._events.get(timeout=max(until - time.monotonic(), 0.001)))["event"] != "exited":
            pass
        return int(said["code"])

    @property
    def kept(self) -> list[str]:
        """The texts of all messages that it has, in the order in which they came."""
        file = self._folder / "messages.jsonl"
        return [json.loads(line)["text"] for line in file.read_text().splitlines()] if file.exists() else []

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                assert pipe is not None
                pipe.close()


class Sender:
    """Writes numbered, encrypted messages to the client, and hears of what was confirmed."""

    def __init__(self, relay: RelayProcess, client: Client) -> None:
        self.agent: Agent = relay.agent("sender").connect()
        self._identity = Identity(hashlib.sha256(b"sender").digest())
        self._client = client
        self.texts: list[str] = []
        self._ids: dict[bytes, bool | None] = {}

    def send(self, count: int) -> None:
        """So many more messages."""
        for _ in range(count):
            text = f"message {len(self.texts)}"
            self.texts.append(text)
            plain = PlaintextPayload(version=1, sequence=len(self.texts), content=text.encode()).SerializeToString()
            nonce = os.urandom(24)
            self._send(nonce, self._identity.seal(self._client.public_key, plain, nonce), True)
        self.settle()

    def send_unreadable(self) -> str:
        """A message that nobody can decrypt; its id."""
        id = self._send(bytes(24), os.urandom(100), False)
        self.settle()
        return id

    def _send(self, nonce: bytes, cipher: bytes, readable: bool) -> str:
        now_ms = time.time_ns() // 1_000_000
        id = uuid7(now_ms, os.urandom(10))
        if readable:
            self._ids[id.encode()] = None
        agent, client = self.agent, self._client
        agent.send(
            wire.encrypted_message(agent.address, client.address, id.encode(), now_ms, nonce, cipher, agent.public_key)
        )
        return id

    def settle(self) -> None:
        """Wait until the relay has all that was sent."""
        for one in self.agent.settled():
            self._hear(one)

    def _hear(self, envelope: Envelope) -> None:
        if envelope.type == MessageType.DELIVERY_CONFIRM:
            confirm = envelope.delivery_confirm
            assert confirm.message_id in self._ids, "nobody could read this one"
            self._ids[confirm.message_id] = confirm.was_stored
        else:
            assert envelope.type in (MessageType.QUEUE_STATUS, MessageType.HEARTBEAT)

    def hear(self, count: int) -> list[bool | None]:
        """Wait until so many messages are confirmed; of each, whether it was stored (None: not confirmed yet)."""
        while sum(stored is not None for stored in self._ids.values()) < count:
            self._hear(self.agent.receive())
        return list(self._ids.values())

    def hear_all(self) -> list[bool | None]:
        """The same, of every message."""
        return self.hear(len(self._ids))

    def connect(self) -> None:
        """Connect again."""
        self.agent.connect()


@pytest.fixture
def relay(tmp_path: Path) -> Iterator[RelayProcess]:
    # A longer pause before what waited than the usual 0.05 s: of that the client's 20 ms take most on a busy machine.
    with RelayProcess(tmp_path, {"relay.start_pause_s": "0.3"}) as relay:
        yield relay
    log = relay.log.read_text()
    assert "Traceback" not in log, log[-3000:]


@pytest.fixture
def client(relay: RelayProcess, modules: Path, tmp_path: Path) -> Iterator[Client]:
    folder = tmp_path / "client"
    folder.mkdir()
    client = Client(relay, modules, folder)
    yield client
    client.kill()


@pytest.fixture
def sender(relay: RelayProcess, client: Client) -> Iterator[Sender]:
    sender = Sender(relay, client)
    yield sender
    sender.agent.socket.close()


def got_everything(client: Client, sender: Sender) -> bool:
    """Every message has come once, in order, and was confirmed; nothing else comes."""
    sender.hear_all()
    return client.kept == sender.texts


def test_what_waited_comes_in_order_and_only_what_could_be_decrypted_is_confirmed(
    client: Client, sender: Sender
) -> None:
    sender.send(100)
    unreadable = sender.send_unreadable()
    sender.send(50)
    client.connect()
    assert client.wait("flushed")["pending"] in (151, 152)
    assert sender.hear_all() == [True] * 150
    assert got_everything(client, sender)
    assert client.unreadable == [unreadable]


def test_what_cannot_be_decrypted_comes_five_times_and_then_never_again(client: Client, sender: Sender) -> None:
    unreadable = sender.send_unreadable()
    for connection in range(1, 6):
        client.connect()
        client.wait("flushed")
        assert client.unreadable == [unreadable] * connection
        # Behind a pong, so that the relay knows that the message arrived.
        sender.send(1)
        client.wait("message")
        assert got_everything(client, sender)
        client.tell("leave")
        client.wait("closed")
    sender.send(1)
    client.connect()
    client.wait("message")
    assert got_everything(client, sender)
    assert client.unreadable == [unreadable] * 5


def test_live_messages_go_both_ways_and_confirmations_are_valid(client: Client, sender: Sender) -> None:
    client.connect()
    sender.send(1)
    sender.hear_all()
    sender.send(20)
    client.wait("message", 21)
    assert sender.hear_all()[1:] == [False] * 20
    agent = sender.agent
    client.tell("send", to=agent.address, public_key=agent.public_key.hex(), text="hello")
    id = client.wait("sent")["id"]
    message = agent.expect(MessageType.MESSAGE)
    identity = Identity(hashlib.sha256(b"sender").digest())
    plain = identity.open(client.public_key, message.encrypted.ciphertext, message.encrypted.nonce)
    assert PlaintextPayload.FromString(plain).content == b"hello"
    agent.confirm(message)
    said = client.wait("confirmed")
    assert (said["id"], said["state"], said["valid"], said["was_stored"]) == (id, "delivered", True, False)


@pytest.mark.parametrize("how", ["leave", "cut"])
def test_connections_that_end_in_the_middle_lose_and_repeat_nothing(client: Client, sender: Sender, how: str) -> None:
    for count in (1, 7, 49, 50, 51, 120):
        sender.send(60)
        client.connect(count, how)
        client.wait("closed")
        assert len(client.kept) >= count
    client.connect()
    sender.send(20)
    assert got_everything(client, sender)


def test_a_client_that_crashes_in_the_middle_loses_and_repeats_nothing(client: Client, sender: Sender) -> None:
    sender.send(400)
    for count in (1, 50, 77):
        client.tell("connect", after=count, then="die")
        assert client.died() == -signal.SIGKILL
        client.start()
    client.connect()
    assert got_everything(client, sender)


def test_a_relay_that_is_killed_loses_and_repeats_nothing_that_was_confirmed(
    relay: RelayProcess, client: Client, sender: Sender
) -> None:
    sender.send(150)
    relay.kill()
    relay.start()
    sender.connect()
    client.connect()
    assert got_everything(client, sender)
    # While the client is online.
    relay.kill()
    relay.start()
    sender.connect()
    client.wait("closed")
    client.connect()
    sender.send(100)
    assert got_everything(client, sender)


def test_a_relay_and_a_client_that_crash_in_mid_flush_lose_and_repeat_nothing_that_was_confirmed(
    relay: RelayProcess, client: Client, sender: Sender
) -> None:
    sender.send(300)
    client.connect(120, "stall")
    client.wait("stalled")
    sender.hear(120)
    relay.kill()
    client.kill()
    relay.start()
    sender.connect()
    client.start()
    client.connect()
    assert got_everything(client, sender)


def test_a_relay_that_is_restarted_in_mid_flush_loses_and_repeats_nothing(
    relay: RelayProcess, client: Client, sender: Sender
) -> None:
    sender.send(400)
    for count in (1, 110):
        client.connect()
        client.wait("message", count)
        sender.agent.socket.close()
        relay.stop()
        client.wait("closed")
        relay.start()
        sender.connect()
    client.connect()
    assert got_everything(client, sender)


def test_a_message_that_was_kept_and_not_confirmed_kills_five_times_and_the_rest_comes(
    client: Client, sender: Sender
) -> None:
    sender.send(10)
    client.tell("connect", after=4, then="die_unconfirmed")
    assert client.died() == -signal.SIGKILL
    for _ in range(4):
        client.start()
        client.tell("connect")
        assert client.died() == DUPLICATE
    client.start()
    client.connect()
    client.wait("message", 6)
    assert client.kept == sender.texts


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_hundred_random_ends_lose_and_repeat_nothing(relay: RelayProcess, client: Client, sender: Sender) -> None:
    rng = random.Random(4)
    for _ in range(200):
        sender.send(rng.randint(1, 60))
        how = rng.choice(["leave", "cut", "die", "stop", "kill"])
        if how in ("stop", "kill"):
            if how == "stop":
                client.connect()
                client.wait("message", rng.randint(1, waiting(client, sender)))
                sender.agent.socket.close()
                relay.stop()
                client.wait("closed")
            else:
                relay.kill()
            relay.start()
            sender.connect()
            continue
        client.tell("connect", after=rng.randint(1, waiting(client, sender)), then=how)
        if how == "die":
            assert client.died() == -signal.SIGKILL
            client.start()
        else:
            client.wait("closed")
    client.connect()
    assert got_everything(client, sender)


def waiting(client: Client, sender: Sender) -> int:
    """How many messages the client does not have yet."""
    return len(sender.texts) - len(client.kept)
