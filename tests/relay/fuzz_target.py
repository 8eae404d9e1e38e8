"""What atheris fuzzes, as a program: ``python -m tests.relay.fuzz_target NAME -runs=N [corpus …]``.

NAME is ``head`` (of HTTP requests), ``envelope`` or ``session`` (frames of an agent, over a house without sockets).
Whatever escapes ends the process with a trace and the bytes that did it.
"""

from __future__ import annotations

import sys
from typing import Any

import atheris

with atheris.instrument_imports(include=["posthouse.relay", "posthouse.wire"]):
    from tests.simulation.world import FAST, HOST, World

    from posthouse.errors import BadEnvelope
    from posthouse.relay import http
    from posthouse.wire import address, envelope
    from posthouse.wire.auth import challenge_bytes

BATCH = 500
"""Inputs that one house is given: then a new one, or it would fill."""


def head(data: bytes) -> None:
    parsed = http.parse_head(data)
    if isinstance(parsed, http.Request):
        assert 0 <= parsed.body_bytes <= http.BODY_BYTES_MAX
        assert parsed.path.startswith("/")
        assert parsed.is_upgrade in (True, False)
    else:
        assert 400 <= parsed.status < 500
        parsed.render()


def parse(data: bytes) -> None:
    try:
        parsed = envelope.parse(data)
    except BadEnvelope:
        return
    text = envelope.id_text(parsed.message_id)
    assert text.isprintable()
    assert len(text) <= 136
    assert envelope.kind_of(parsed.type).isprintable()
    try:
        address.parse_address(parsed.to_address)
    except address.BadAddress:
        pass
    if parsed.WhichOneof("payload") == "delivery_confirm":
        assert envelope.parse(envelope.with_was_stored(data)).delivery_confirm.was_stored


class Line:
    """A line into nothing."""

    def __init__(self) -> None:
        self.first: bytes | None = None
        self.pings: list[bytes] = []
        self.closed = False

    def send(self, data: bytes) -> None:
        assert not self.closed
        self.first = self.first or data

    def ping(self, payload: bytes) -> None:
        assert not self.closed
        self.pings.append(payload)

    def close(self, code: int, reason: str) -> None:
        assert not self.closed
        self.closed = True

    def buffered(self) -> int:
        return 0

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


class Sessions:
    """A house in memory with one agent who says anything, and one who only listens."""

    def __init__(self) -> None:
        self._left = 0
        self._world: World
        self._session: Any
        self._line: Line
        self._listener: Any
        self._listener_line: Line

    def __call__(self, data: bytes) -> None:
        if not self._left:
            self._left = BATCH
            self._world = World(settings=FAST, capacity=1_000)
            self._listener, self._listener_line = self._connect(2)
            self._session, self._line = self._connect(1)
        self._left -= 1
        if not self._session.is_open:
            self._session, self._line = self._connect(1)
        kind, rest = data[:1], data[1:]
        if kind == b"\0":
            self._session.pong(rest)
        elif kind == b"\1":
            self._session.ping_seen()
        elif kind == b"\2" and self._line.pings:
            self._session.pong(self._line.pings[-1])
        else:
            self._session.frame(data, kind != b"\3")
        if not self._left % 10:
            if self._listener_line.pings:
                self._listener.pong(self._listener_line.pings.pop())
            self._world.run(0.1)
        if not self._left:
            self._check()

    def _check(self) -> None:
        house = self._world.house
        assert self._listener.is_open
        self._session.lost()
        self._listener.lost()
        self._world.run(1)
        assert not house._sessions
        assert not house.online
        assert not house.paused
        assert not house._unreleased
        assert house.unanswered_bytes == 0
        assert house.submissions._open == 0

    def _connect(self, number: int) -> tuple[Any, Line]:
        agent = self._world.agent(number)
        line = Line()
        session = self._world.house.open(line)
        session.opened()
        assert line.first is not None
        challenge = envelope.parse(line.first).auth_challenge
        signature = agent.key.sign(challenge_bytes(HOST, challenge.nonce)).signature
        session.frame(envelope.auth_response(agent.public_key, signature, challenge.nonce))
        self._world.run(0.1)
        assert session.is_open
        return session, line


if __name__ == "__main__":
    target = {"head": head, "envelope": parse, "session": Sessions()}[sys.argv.pop(1)]
    atheris.Setup(sys.argv, target)
    atheris.Fuzz()
