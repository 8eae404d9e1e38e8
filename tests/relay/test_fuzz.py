"""Any bytes at all, at any point of a connection: the relay lives, others are not disturbed, nothing is left behind."""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.relay.harness import BINARY, DEADLINE_S, Agent, Closed, Relay, frame

SHORT = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)

frames = st.builds(
    frame,
    st.sampled_from([0, 1, 2, 8, 9, 10]) | st.integers(0, 15),
    st.binary(max_size=200),
    fin=st.booleans(),
    rsv=st.sampled_from([0, 0, 0, 0]) | st.integers(0, 7),
    masked=st.sampled_from([True, True, True, False]),
)
heads = st.lists(
    st.sampled_from([b"GET /ws HTTP/1.1\r\n", b"POST /agents/register HTTP/1.1\r\n", b"\r\n", b"\r\n\r\n"])
    | st.sampled_from([b"Upgrade: websocket\r\n", b"Connection: upgrade\r\n", b"Content-Length: 3\r\n", b"Host: x\r\n"])
    | st.sampled_from([b"Sec-WebSocket-Version: 13\r\n", b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"])
    | st.binary(max_size=60),
    max_size=12,
).map(b"".join)


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Relay]:
    folder: Path = tmp_path_factory.mktemp("fuzz")
    relay = Relay(folder).start()
    yield relay
    relay.stop()


@pytest.fixture(scope="module")
def witness(relay: Relay) -> Agent:
    """Somebody whom nothing of this concerns."""
    return relay.agent("witness").connect().live()


def survives(relay: Relay, witness: Agent, caplog: pytest.LogCaptureFixture) -> None:
    assert witness.settled() == []
    relay.until(lambda: relay.house.connections == 1)
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


def read_to_the_end(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_WR)
        while sock.recv(1 << 16):
            pass


@SHORT
@given(heads)
def test_any_request(relay: Relay, witness: Agent, caplog: pytest.LogCaptureFixture, head: bytes) -> None:
    with socket.create_connection(("127.0.0.1", relay.port), timeout=DEADLINE_S) as sock:
        with contextlib.suppress(OSError):
            sock.sendall(head)
        read_to_the_end(sock)
    survives(relay, witness, caplog)


@SHORT
@given(st.lists(frames | st.binary(max_size=40), max_size=8).map(b"".join))
def test_any_frames_before_authentication(
    relay: Relay, witness: Agent, caplog: pytest.LogCaptureFixture, data: bytes
) -> None:
    stranger = relay.agent("stranger")
    stranger.open()
    with contextlib.suppress(OSError):
        stranger.socket.sock.sendall(data)
    read_to_the_end(stranger.socket.sock)
    stranger.socket.close()
    survives(relay, witness, caplog)


@SHORT
@given(st.lists(frames | st.binary(max_size=40), max_size=8).map(b"".join))
def test_any_frames_of_an_agent(relay: Relay, witness: Agent, caplog: pytest.LogCaptureFixture, data: bytes) -> None:
    agent = relay.agent("agent").connect()
    with contextlib.suppress(OSError):
        agent.socket.sock.sendall(data)
    read_to_the_end(agent.socket.sock)
    agent.socket.close()
    survives(relay, witness, caplog)


@SHORT
@given(st.data())
def test_an_envelope_with_flipped_bytes(
    relay: Relay, witness: Agent, caplog: pytest.LogCaptureFixture, data: st.DataObject
) -> None:
    agent = relay.agent("agent").connect()
    bent = bytearray(agent.envelope(witness).SerializeToString())
    for _ in range(data.draw(st.integers(1, 4))):
        bent[data.draw(st.integers(0, len(bent) - 1))] = data.draw(st.integers(0, 255))
    agent.socket.send(BINARY, bytes(bent))
    with contextlib.suppress(Closed):
        agent.pong(b"behind it")
    agent.cut()
    # It may have reached the witness, if what was bent does not matter.
    assert len(witness.settled()) <= 1
    relay.until(lambda: relay.house.connections == 1)
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
