"""Anything at any point of a connection: nothing escapes, nothing stays, and nobody else notices.

First over sessions without a socket, then over the socket of a running relay. Through all of it a pair of agents
exchanges messages with confirmations; not one of them may be lost or late.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.relay.garbage import Garbage
from tests.relay.harness import BINARY, DEADLINE_S, TEXT, Agent, Closed, Relay, Socket, frame
from tests.relay.test_tls import make_certificate
from tests.simulation.world import FAST, HOST, World

from posthouse.relay import http
from posthouse.wire import envelope as wire
from posthouse.wire.auth import challenge_bytes
from posthouse.wire.envelope import Envelope, MessageType

SHORT = settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
LATE_S = 9.0
"""A message and its confirmation take milliseconds; a machine that does other work may stand still for seconds. Nobody
is to wait for as long as a stranger may (10 s)."""

garbage = st.randoms(use_true_random=False).map(Garbage)
"""Every choice is hypothesis's own: what fails is made small. For what is the same each time."""
seeded = st.integers(0, 2**32).map(lambda seed: Garbage(random.Random(seed)))
"""Over sockets the same bytes may be read in other portions; there is nothing to be made small."""


# Without a socket.


class FuzzLine:
    """A line whose client reads nothing, or everything."""

    def __init__(self, reads: bool) -> None:
        self.reads = reads
        self.reading = True
        self.sent: list[bytes] = []
        self.pings: list[bytes] = []
        self.closed: tuple[int, str] | None = None

    def send(self, data: bytes) -> None:
        assert self.closed is None, "written after the close"
        self.sent.append(data)

    def ping(self, payload: bytes) -> None:
        assert self.closed is None, "pinged after the close"
        self.pings.append(payload)

    def close(self, code: int, reason: str) -> None:
        assert self.closed is None, "closed twice"
        self.closed = (code, reason)

    def buffered(self) -> int:
        return 0 if self.reads else sum(len(data) for data in self.sent)

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


class Neighbours:
    """A world with two agents to whom none of it matters."""

    def __init__(self, limited: bool) -> None:
        rate = {"rate_per_s": 1.0, "rate_burst": 10} if limited else {}
        self.world = World(settings=replace(FAST, buffered_bytes_max=20_000, **rate), capacity=100)  # type: ignore[arg-type]
        self.alice, self.bob = self.world.agent(1), self.world.agent(2)
        for agent in (self.alice, self.bob):
            agent.connect()
        self.world.run(0.2)
        self.sent: list[bytes] = []
        self._count = 0

    def talk(self) -> None:
        # Less often than the limit of one a second, where there is one.
        if len(self.sent) < 8:
            self.sent.append(self.alice.send(self.bob, id=f"talk-{len(self.sent)}".encode()))
        self.world.run(0.01)

    def unique(self, data: bytes) -> bytes:
        """The same envelope with a number in a field that nobody knows: the world tells messages by their bytes."""
        self._count += 1
        with contextlib.suppress(Exception):
            wire.parse(data)
            return data + b"\xc0\x3e" + bytes([0x80 | self._count & 0x7F, self._count >> 7 & 0x7F])
        return data

    def check(self) -> None:
        """Whoever came is gone, and the neighbours heard each other."""
        world, house = self.world, self.world.house
        world.run(40)
        assert set(house.online) == {self.alice.address, self.bob.address}
        assert len(house._sessions) == 2
        assert house.unauthenticated == 0
        assert not house.paused
        assert house.unanswered_bytes == 0
        assert not house.takeovers._probes
        assert not house._unreleased
        assert not house._receipts
        assert house.submissions._open == 0
        assert len(house._beats) == 2
        assert [id for id in self.sent if id not in self.alice.confirmations] == []


@SHORT
@given(garbage, st.booleans(), st.booleans(), st.booleans())
def test_any_envelopes_of_an_agent(garbage: Garbage, limited: bool, reads: bool, pongs: bool) -> None:
    neighbours = Neighbours(limited)
    world = neighbours.world
    mallory = world.agent(3)
    others = [neighbours.alice.address, neighbours.bob.address, world.agent(4).address]
    line = FuzzLine(reads)
    session = world.house.open(line)
    session.opened()
    challenge = wire.parse(line.sent[0]).auth_challenge
    signature = mallory.key.sign(challenge_bytes(HOST, challenge.nonce)).signature
    session.frame(wire.auth_response(mallory.public_key, signature, challenge.nonce))
    for _ in range(garbage.random.randint(1, 40)):
        data = garbage.envelope(mallory.address, others)
        match garbage.random.randint(0, 19):
            case 0:
                session.frame(garbage.bytes(100), False)
            case 1:
                session.pong(garbage.bytes(9))
            case 2:
                session.ping_seen()
            case 3:
                session.writable()
            case 4:
                session.oversize(garbage.random.choice((65_537, 2**63 - 1)))
            case _:
                session.frame(neighbours.unique(data), garbage.random.random() < 0.9)
        if pongs and line.pings:
            session.pong(line.pings[-1])
        if not line.reads:
            assert line.buffered() < 200_000
        neighbours.talk()
    if garbage.random.random() < 0.5:
        session.lost()
    neighbours.check()
    assert not session.is_open


Step = Callable[["Handshake"], tuple[bytes, bool]]


class Handshake:
    """What a stranger may say, given the challenge."""

    def __init__(self, challenge: Any, agent: Any, other: Any) -> None:
        self.challenge = challenge
        self.agent = agent
        self.other = other

    def answer(self, host: str = HOST, nonce: bytes | None = None, key: Any = None) -> bytes:
        key = key or self.agent.key
        nonce = self.challenge.nonce if nonce is None else nonce
        signature = key.sign(challenge_bytes(host, self.challenge.nonce)).signature
        return wire.auth_response(bytes(self.agent.key.verify_key), signature, nonce)


def _with(made: bytes, **fields: Any) -> bytes:
    parsed = wire.parse(made)
    for name, value in fields.items():
        setattr(parsed.auth_response, name, value)
    return parsed.SerializeToString()


STEPS: dict[str, Step] = {
    "right": lambda h: (h.answer(), True),
    "as text": lambda h: (h.answer(), False),
    "another host": lambda h: (h.answer(host="evil.test"), True),
    "another nonce": lambda h: (h.answer(nonce=bytes(32)), True),
    "a short nonce": lambda h: (h.answer(nonce=h.challenge.nonce[:31]), True),
    "another's signature": lambda h: (h.answer(key=h.other.key), True),
    "no signature": lambda h: (_with(h.answer(), signature=b""), True),
    "a long signature": lambda h: (_with(h.answer(), signature=bytes(65)), True),
    "a short key": lambda h: (_with(h.answer(), public_key=bytes(31)), True),
    "a key of small order": lambda h: (_with(h.answer(), public_key=bytes(32), signature=bytes(64)), True),
    "version 2": lambda h: (_with(h.answer(), version=2), True),
    "nothing": lambda h: (b"", True),
    "noise": lambda h: (b"\xff" * 50, True),
    "the challenge itself": lambda h: (wire.auth_challenge(HOST, h.challenge.nonce, 1, 2), True),
    "its own admission": lambda h: (wire.auth_result(True, "", h.agent.address), True),
    "a message": lambda h: (
        wire.encrypted_message(h.agent.address, h.other.address, b"m", 1, bytes(24), b"x", bytes(32)), True),
    "too long": lambda h: (h.answer() + b"\xfa\x3e\x80\x80\x02" + bytes(32_768), True),
}  # fmt: skip


@SHORT
@given(st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=5), st.booleans())
@example(["right", "right"], False)
@example(["a message", "right"], False)
def test_only_the_right_first_answer_is_admitted(steps: list[str], taken: bool) -> None:
    neighbours = Neighbours(limited=False)
    world = neighbours.world
    # Where the address is taken, by one who lives, nobody is admitted.
    agent = neighbours.bob if taken else world.agent(3)
    line = FuzzLine(reads=True)
    session = world.house.open(line)
    session.opened()
    handshake = Handshake(wire.parse(line.sent[0]).auth_challenge, agent, world.agent(4))
    for step in steps:
        data, binary = STEPS[step](handshake)
        session.frame(data, binary)
        neighbours.talk()
    world.run(0.5)
    results = [parsed.auth_result for data in line.sent if (parsed := wire.parse(data)).HasField("auth_result")]
    [result] = results
    assert result.success is (steps[0] == "right" and not taken)
    if result.success:
        assert line.closed is None
        session.lost()
    else:
        assert line.closed is not None
        assert line.closed[0] == 1008
        assert line.closed[1] == result.error_message
    neighbours.check()


@SHORT
@given(st.binary(max_size=300) | garbage.map(Garbage.request).filter(lambda data: b"\r\n\r\n" in data))
def test_any_head_is_a_request_or_has_an_answer(data: bytes) -> None:
    parsed = http.parse_head(data.partition(b"\r\n\r\n")[0])
    if isinstance(parsed, http.Answer):
        assert 400 <= parsed.status < 500
        assert parsed.render().startswith(b"HTTP/1.1 4")
    else:
        assert 0 <= parsed.body_bytes <= http.BODY_BYTES_MAX


@SHORT
@given(st.binary(max_size=400) | garbage.map(lambda g: g.envelope("a", ["b"])))
def test_any_bytes_are_an_envelope_or_none(data: bytes) -> None:
    try:
        parsed = wire.parse(data)
    except wire.BadEnvelope:
        return
    assert isinstance(parsed, Envelope)
    text = wire.id_text(parsed.message_id)
    assert len(text) <= 136
    assert text.isprintable()
    assert wire.kind_of(parsed.type).isascii()
    again = wire.parse(parsed.SerializeToString() or b"\x08\x00")
    assert again.message_id == parsed.message_id


# Over the socket.


class Pair:
    """Two agents who write to each other, one message after the other, each confirmed, until they are told to stop."""

    def __init__(self, relay: Any, **options: Any) -> None:
        self.alice, self.bob = (relay.agent(name, **options).connect() for name in ("alice", "bob"))
        self.rounds = 0
        self.longest_s = 0.0
        self._failure: BaseException | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pair")
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._over.is_set():
                began = time.monotonic()
                sent = self.alice.message(self.bob, str(self.rounds).encode())
                while (came := self._next(self.bob)).from_address != self.alice.address:
                    pass
                assert came == sent, "lost, or in another order"
                while (told := self._next(self.alice)).from_address != self.bob.address:
                    pass
                assert told.delivery_confirm.message_id == sent.message_id
                self.longest_s = max(self.longest_s, time.monotonic() - began)
                self.rounds += 1
        except BaseException as error:
            self._failure = error

    def _next(self, agent: Agent) -> Envelope:
        """What comes next; strangers' messages are confirmed too, or they would fill the mailbox."""
        came = agent.receive()
        if came.type == MessageType.MESSAGE and came.message_id:
            agent.confirm(came)
        return came

    def goes_on(self) -> None:
        """They still talk."""
        before, until = self.rounds, time.monotonic() + DEADLINE_S
        while self.rounds == before and self._failure is None and time.monotonic() < until:
            self._over.wait(0.001)
        if self._failure is not None:
            raise self._failure
        assert self.rounds > before

    def stop(self) -> None:
        """Nothing was lost, and nothing came late."""
        self._over.set()
        self._thread.join(2 * DEADLINE_S)
        assert not self._thread.is_alive()
        if self._failure is not None:
            raise self._failure
        assert self.rounds > 0
        assert self.longest_s < LATE_S


class Errors(logging.Handler):
    """What the relay logs as a warning or worse, and what escapes in its event loop."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(self.format(record))

    def escaped(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.found.append(f"escaped: {context.get('message')}: {context.get('exception')!r}")


class Target:
    """A relay, two who talk through it, and all that goes wrong."""

    def __init__(self, folder: Path, settings: dict[str, str], tls: ssl.SSLContext | None = None) -> None:
        self.errors = Errors()
        logging.getLogger().addHandler(self.errors)
        self.options: dict[str, Any] = {} if tls is None else {"tls": tls}
        self.relay = Relay(folder, settings).start()
        self.relay.on_loop(lambda: self.relay.loop.set_exception_handler(self.errors.escaped))
        self.pair = Pair(self.relay, **self.options)
        self._agents = 0

    def agent(self) -> Agent:
        """One that was not there before."""
        self._agents += 1
        return self.relay.agent(f"agent {self._agents}", **self.options)

    @property
    def others(self) -> list[str]:
        return [self.pair.alice.address, self.pair.bob.address, self.relay.agent("away").address]

    def survives(self) -> None:
        """After each example: all that it brought is gone, and the two still talk."""
        server, house = self.relay.server, self.relay.house
        self.relay.until(
            lambda: (
                len(house._sessions) == house.connections == len(server._wires) == 2
                and not house._strangers
                and not house.takeovers._probes
                and not server._fronts
                and not server._lingering
                and not server._tasks
            ),
            "something stayed behind",
        )
        self.pair.goes_on()
        assert self.errors.found == []

    def stop(self) -> None:
        self.pair.stop()
        house = self.relay.house
        self.relay.until(lambda: house.unanswered_bytes == 0)
        assert not house.paused
        self.relay.stop()
        logging.getLogger().removeHandler(self.errors)
        assert self.errors.found == []


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    target = Target(tmp_path_factory.mktemp("fuzz"), {})
    yield target
    target.stop()


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    folder = tmp_path_factory.mktemp("fuzz-tls")
    cert, key = make_certificate(folder, "relay")
    tls = ssl.create_default_context(cafile=str(cert))
    tls.check_hostname = False
    target = Target(folder, {"relay.tls_cert": str(cert), "relay.tls_key": str(key)}, tls)
    yield target
    target.stop()


def pour(sock: socket.socket, garbage: Garbage, data: bytes) -> None:
    """Send it, in one piece or in many; the relay may close in the middle."""
    with contextlib.suppress(OSError):
        if garbage.random.random() < 0.7:
            sock.sendall(data)
            return
        size = max(len(data) // 100, 1)
        for part in range(0, len(data), size):
            sock.sendall(data[part : part + size])


def end(sock: socket.socket, garbage: Garbage) -> None:
    """Leave: cut at once, or after reading all that there is to read."""
    with contextlib.suppress(OSError):
        if garbage.random.random() < 0.5:
            sock.shutdown(socket.SHUT_WR)
            sock.settimeout(DEADLINE_S)
            while sock.recv(1 << 16):
                pass
    sock.close()


@SHORT
@given(seeded, st.none() | st.binary(max_size=200))
def test_any_request(target: Target, garbage: Garbage, data: bytes | None) -> None:
    with socket.create_connection(("127.0.0.1", target.relay.port), timeout=DEADLINE_S) as sock:
        pour(sock, garbage, garbage.request() if data is None else data)
        end(sock, garbage)
    target.survives()


@SHORT
@given(seeded)
def test_any_frames_before_authentication(target: Target, garbage: Garbage) -> None:
    stranger = target.agent()
    early = garbage.frames(lambda: garbage.bytes(40)) if garbage.random.random() < 0.2 else b""
    with contextlib.suppress(Closed):
        stranger.socket = Socket(target.relay.port, early=early)
        assert stranger.socket.status == 101
        pour(stranger.socket.sock, garbage, garbage.frames(lambda: garbage.bytes(300)))
    end(stranger.socket.sock, garbage)
    target.survives()


@SHORT
@given(st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=4), seeded)
def test_any_handshake(target: Target, steps: list[str], garbage: Garbage) -> None:
    stranger = target.agent()
    handshake = Handshake(stranger.open().auth_challenge, stranger, target.pair.bob)
    said = [STEPS[step](handshake) for step in steps]
    pour(stranger.socket.sock, garbage, b"".join(frame(BINARY if binary else TEXT, data) for data, binary in said))
    result = stranger.expect(MessageType.AUTH_RESULT).auth_result
    assert result.success is (steps[0] == "right")
    if result.success:
        # The rest of what it says is between agents, and none of it is allowed there: the connection stays.
        if "too long" not in steps:
            stranger.pong()
        stranger.socket.close()
    else:
        assert stranger.closed() == (1008, "authentication failed")
    target.survives()


def frames_of_an_agent(target: Target, garbage: Garbage) -> None:
    agent, sender = target.agent().connect(), target.agent().connect()
    # It is written to all the while, so that it is closed with frames on their way.
    for n in range(garbage.random.choice((0, 1, 20))):
        sender.message(agent, str(n).encode())
    others = [*target.others, sender.address]
    data = garbage.frames(lambda: garbage.envelope(agent.address, others), 20)
    for _ in range(garbage.random.choice((0, 5))):
        sender.message(agent, b"meanwhile")
    pour(agent.socket.sock, garbage, data)
    end(agent.socket.sock, garbage)
    sender.socket.close()
    target.survives()


@SHORT
@given(seeded)
def test_any_frames_of_an_agent(target: Target, garbage: Garbage) -> None:
    frames_of_an_agent(target, garbage)


@settings(parent=SHORT, max_examples=25)
@given(seeded)
def test_any_frames_of_an_agent_over_tls(encrypted: Target, garbage: Garbage) -> None:
    frames_of_an_agent(encrypted, garbage)


@settings(parent=SHORT, max_examples=25)
@given(seeded, st.none() | st.binary(max_size=200))
def test_anything_instead_of_tls(encrypted: Target, garbage: Garbage, data: bytes | None) -> None:
    with socket.create_connection(("127.0.0.1", encrypted.relay.port), timeout=DEADLINE_S) as sock:
        pour(sock, garbage, garbage.request() if data is None else data)
        end(sock, garbage)
    encrypted.survives()


def storm(relay: Any, garbage: Garbage, others: list[str], connections: int) -> None:
    """Garbage from many connections, a few open at once."""
    open_: list[socket.socket] = []
    for _ in range(connections):
        with contextlib.suppress(OSError, Closed, AssertionError):
            if garbage.random.random() < 0.3:
                sock = socket.create_connection(("127.0.0.1", relay.port), timeout=DEADLINE_S)
                open_.append(sock)
                pour(sock, garbage, garbage.request())
            else:
                agent = relay.agent(f"storm {garbage.random.getrandbits(40)}")
                if garbage.random.random() < 0.5:
                    agent.connect()
                    data = garbage.frames(lambda agent=agent: garbage.envelope(agent.address, others), 20)
                else:
                    agent.socket = Socket(relay.port)
                    data = garbage.frames(lambda: garbage.bytes(40_000))
                open_.append(agent.socket.sock)
                pour(agent.socket.sock, garbage, data)
        while len(open_) > 20:
            open_.pop(garbage.random.randrange(len(open_))).close()
    for sock in open_:
        sock.close()


def test_a_storm_of_garbage_leaves_memory_and_others_as_they_were(run: Any) -> None:
    relay = run()
    process = psutil.Process(relay.process.pid)
    pair = Pair(relay)
    garbage = Garbage(random.Random(7))
    others = [pair.alice.address, pair.bob.address]
    storm(relay, garbage, others, 400)
    warm_bytes = process.memory_info().rss
    storm(relay, garbage, others, 1_200)
    pair.goes_on()
    grown_bytes = process.memory_info().rss - warm_bytes
    until = time.monotonic() + DEADLINE_S
    # What was cut a moment ago is still to be noticed, or lingers.
    while (files := process.num_fds()) >= 100 and time.monotonic() < until:
        pair.goes_on()
    pair.stop()
    # What accumulates by right: messages that wait, and the memory of their ids.
    assert grown_bytes < 32 * 1024 * 1024, f"{grown_bytes / 2**20:.1f} MiB more"
    assert files < 100, "sockets that nobody ended"
    log = relay.stop()
    assert "Traceback" not in log
    assert '"level": "error"' not in log
    assert '"level": "critical"' not in log
