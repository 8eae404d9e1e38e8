"""Kills of the relay and cuts of its connections while a queue is flushed, filled, or passed on live.

Whatever happens: nothing that was accepted is lost, the first sight of each message is in order, every message is
confirmed to its sender, and a relay that was not killed lives on. Only what the relay could not know to be confirmed
may come twice.
"""

from __future__ import annotations

import contextlib
import queue
import random
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.relay.harness import DEADLINE_S, Agent, Closed
from tests.relay.process import RelayProcess

from posthouse.wire.envelope import Envelope, MessageType

DELAY_S = 0.04
WITHIN = 200
"""How far a sender runs ahead of what it knows to be accepted."""
ENDS = (Closed, ConnectionError)
"""A connection whose other end is gone, seen by who reads from it or writes to it."""


class Reader(threading.Thread):
    """Reads for an agent and confirms its messages, until the connection ends or ``stop_at`` messages have come."""

    def __init__(self, agent: Agent, stop_at: int | None = None) -> None:
        super().__init__(daemon=True)
        self.came: list[Envelope] = []
        self._agent = agent
        self._stop_at = stop_at
        self._changed = threading.Condition()
        self._failure: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            with contextlib.suppress(*ENDS):
                self._read()
        except BaseException as error:
            self._failure = error

    def _read(self) -> None:
        messages = 0
        while messages != self._stop_at:
            envelope = self._agent.receive(60)
            with self._changed:
                self.came.append(envelope)
                self._changed.notify()
            if envelope.type == MessageType.MESSAGE:
                messages += 1
                self._agent.confirm(envelope)

    def wait_for(self, count: int) -> None:
        """Wait until so many envelopes have come."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.came) >= count, DEADLINE_S), f"{len(self.came)} of {count}"

    def ended(self) -> list[Envelope]:
        """Wait for the end; all that came."""
        self.join(DEADLINE_S)
        assert not self.is_alive(), "the reader did not end"
        if self._failure is not None:
            raise self._failure
        return self.came


class Delay:
    """A way to the relay on which everything from the relay takes a while longer; a cut is known at once."""

    def __init__(self, port: int, delay_s: float) -> None:
        self._to, self._delay_s = port, delay_s
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._server.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._server.accept()
                relay = socket.create_connection(("127.0.0.1", self._to))
                late: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()
                for target, words in ((_up, (client, relay)), (self._down, (relay, late)), (_late, (late, client))):
                    threading.Thread(target=target, args=words, daemon=True).start()

    def _down(self, relay: socket.socket, late: queue.SimpleQueue[tuple[float, bytes]]) -> None:
        with contextlib.suppress(OSError):
            while data := relay.recv(65_536):
                late.put((time.monotonic() + self._delay_s, data))
        late.put((0.0, b""))

    def close(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()


def _up(client: socket.socket, relay: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := client.recv(65_536):
            relay.sendall(data)
    reset(relay)


def _late(late: queue.SimpleQueue[tuple[float, bytes]], client: socket.socket) -> None:
    while True:
        due_at, data = late.get()
        if not data:
            reset(client)
            return
        time.sleep(max(0.0, due_at - time.monotonic()))
        with contextlib.suppress(OSError):
            client.sendall(data)


def reset(sock: socket.socket) -> None:
    """End a connection without a word; whoever reads from it in another thread is woken."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()


class Scene:
    """A sender and a recipient, new for each run, and what the recipient has seen."""

    def __init__(self, relay: RelayProcess, run: int, count: int) -> None:
        self.relay, self.count = relay, count
        self.rng = random.Random(f"{run} of {count}")
        self.sender = relay.agent(f"sender {run}").connect()
        self.recipient = relay.agent(f"recipient {run}")
        self.sent = 0
        self._seen: list[int] = []
        self._confirmed: set[bytes] = set()
        self._ids: list[bytes] = []

    def send(self, count: int) -> None:
        """So many more messages to the recipient."""
        for _ in range(count):
            body = struct.pack(">Q", self.sent) + bytes(1_016)
            self._ids.append(self.sender.message(self.recipient, body).message_id)
            self.sent += 1

    def settle(self) -> None:
        """Wait until all that was sent is accepted."""
        self.see_confirmations(self.sender.settled())

    def see(self, came: list[Envelope]) -> None:
        """The recipient got these."""
        self._seen += [number_of(message) for message in messages(came)]

    def see_confirmations(self, came: list[Envelope]) -> None:
        """The sender got these."""
        for one in came:
            assert one.type not in (MessageType.QUEUE_FULL, MessageType.RATE_LIMITED), one
            if one.type == MessageType.DELIVERY_CONFIRM:
                self._confirmed.add(one.delivery_confirm.message_id)

    def restart(self) -> None:
        """The relay was killed: start it, and let the sender come again."""
        self.relay.start()
        self.sender.connect()

    def finish(self, wanted: int | None = None) -> None:
        """The recipient comes for the rest: all that was accepted (``wanted``: at least so many) is there."""
        recipient = self.recipient.connect()
        # A mark to itself stands behind all that is queued.
        came = recipient.settled()
        self.see(came)
        if came:
            status, *rest = came
            # The mark may be among those that were announced.
            announced = status.queue_status.pending_count
            assert announced in (len(rest), len(rest) + 1), f"{announced} were announced, {len(rest)} came"
        for message in messages(came):
            recipient.confirm(message)
        assert messages(recipient.settled()) == [], "something came twice on one connection"
        recipient.leave()
        assert messages(recipient.connect().settled()) == [], "something was confirmed and came again"
        recipient.leave()

        first_seen = list(dict.fromkeys(self._seen))
        assert first_seen == sorted(first_seen), f"reordered: {first_seen}"
        lost = set(range(self.sent if wanted is None else wanted)) - set(first_seen)
        assert not lost, f"lost: {sorted(lost)}"
        while not self._confirmed >= {self._ids[number] for number in first_seen}:
            self.see_confirmations([self.sender.receive()])
        self.sender.leave()


def messages(came: list[Envelope]) -> list[Envelope]:
    """Without marks and announcements."""
    return [one for one in came if one.type == MessageType.MESSAGE]


def number_of(message: Envelope) -> int:
    (number,) = struct.unpack_from(">Q", message.encrypted.ciphertext)
    return int(number)


@contextlib.contextmanager
def way(relay: RelayProcess, agent: Agent, delay_s: float) -> Iterator[None]:
    """The agent reaches the relay with a delay."""
    if not delay_s:
        yield
        return
    delay = Delay(relay.port, delay_s)
    agent.relay = _Through(delay.port)  # type: ignore[assignment]
    try:
        yield
    finally:
        delay.close()
        agent.relay = relay  # type: ignore[assignment]


class _Through:
    """A relay, as far as an agent needs to know it to connect."""

    def __init__(self, port: int) -> None:
        self.port = port


def flush(scene: Scene, at: int, *, kill: bool, stall: bool, delay_s: float) -> None:
    """The recipient comes for a full queue; after ``at`` messages the relay is killed or the connection is cut."""
    scene.send(scene.count)
    scene.settle()
    recipient = scene.recipient
    with way(scene.relay, recipient, delay_s):
        recipient.connect()
        reader = Reader(recipient, stop_at=None if kill and not stall else at)
        if kill and not stall:
            reader.wait_for(at)
        else:
            scene.see(reader.ended())
        if stall:
            # Nobody reads. The sender does not notice, and what it sends is behind what waits.
            scene.send(scene.count // 10)
            scene.settle()
        if kill:
            scene.relay.kill()
        if kill and not stall:
            # What the relay had written arrives all the same.
            scene.see(reader.ended())
        else:
            reset(recipient.socket.sock)
    if kill:
        scene.restart()


def store(scene: Scene, at: int) -> int:
    """A queue is filled; the relay is killed when ``at`` messages are known to be accepted. How many are."""
    sender = scene.sender
    marks: dict[bytes, int] = {}
    accepted = 0
    while accepted < at:
        if scene.sent < scene.count and scene.sent - accepted < WITHIN:
            scene.send(20)
            mark = sender.envelope(sender, MessageType.HEARTBEAT)
            marks[mark.message_id] = scene.sent
            sender.send(mark.SerializeToString())
        else:
            accepted = marks.get(sender.receive().message_id, accepted)
    scene.relay.kill()
    with contextlib.suppress(*ENDS):
        while True:
            accepted = marks.get(sender.receive().message_id, accepted)
    scene.restart()
    return accepted


def live(scene: Scene, at: int) -> None:
    """The recipient is online; after ``at`` messages its connection is cut, and the sender goes on."""
    recipient = scene.recipient.connect()
    reader = Reader(recipient, stop_at=at)
    while scene.sent < scene.count:
        scene.send(5)
        if scene.sent < at:
            scene.settle()
        elif recipient.socket.sock.fileno() >= 0:
            scene.see(reader.ended())
            reset(recipient.socket.sock)
    scene.settle()


FLUSHES: dict[str, dict[str, Any]] = {
    "the relay is killed": {"kill": True},
    "the recipient stalls and the relay is killed": {"kill": True, "stall": True},
    "the relay is killed behind a delay": {"kill": True, "delay_s": DELAY_S},
    "the connection is cut": {},
    "the recipient stalls and is cut": {"stall": True},
    "the connection is cut behind a delay": {"delay_s": DELAY_S},
    "the recipient stalls behind a delay and is cut": {"stall": True, "delay_s": DELAY_S},
}
STANDARD: dict[str, Any] = {"kill": False, "stall": False, "delay_s": 0.0}


@pytest.fixture
def relay(tmp_path: Path) -> Iterator[RelayProcess]:
    with RelayProcess(tmp_path, {"relay.queue_max": "5000"}) as relay:
        yield relay
        assert relay.is_alive, "the relay died"
    log = relay.log.read_text()
    assert "Traceback" not in log, log[-3000:]


@pytest.mark.parametrize("what", FLUSHES)
def test_a_flush_that_is_broken_off_loses_and_reorders_nothing(relay: RelayProcess, what: str) -> None:
    flush_often(relay, what, runs=2, count=300)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("what", FLUSHES)
def test_twenty_flushes_that_are_broken_off_lose_and_reorder_nothing(relay: RelayProcess, what: str) -> None:
    flush_often(relay, what, runs=20, count=1_000)


def flush_often(relay: RelayProcess, what: str, runs: int, count: int) -> None:
    for run in range(runs):
        scene = Scene(relay, run, count)
        flush(scene, scene.rng.randint(1, count - 60), **STANDARD | FLUSHES[what])
        scene.finish()


def test_a_kill_while_a_queue_is_filled_loses_nothing_that_was_accepted(relay: RelayProcess) -> None:
    store_often(relay, runs=2, count=300)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_twenty_kills_while_queues_are_filled_lose_nothing_that_was_accepted(relay: RelayProcess) -> None:
    store_often(relay, runs=20, count=1_000)


def store_often(relay: RelayProcess, runs: int, count: int) -> None:
    for run in range(runs):
        scene = Scene(relay, run, count)
        accepted = store(scene, scene.rng.randint(1, count - 60))
        scene.finish(accepted)


def test_a_live_connection_that_is_cut_loses_and_reorders_nothing(relay: RelayProcess) -> None:
    live_often(relay, runs=2, count=300)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_twenty_live_connections_that_are_cut_lose_and_reorder_nothing(relay: RelayProcess) -> None:
    live_often(relay, runs=20, count=1_000)


def live_often(relay: RelayProcess, runs: int, count: int) -> None:
    for run in range(runs):
        scene = Scene(relay, run, count)
        live(scene, scene.rng.randint(1, count - 60))
        scene.finish()
