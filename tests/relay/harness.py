"""A relay on a real socket and a real store, and agents that speak to it in raw frames.

The relay runs in a thread with an event loop of its own; tests are plain functions that block, with deadlines.
Nothing sleeps: ``Agent.settled`` waits until all that an agent sent before has been worked off.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import dataclasses
import hashlib
import os
import re
import select
import socket
import ssl
import struct
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import nacl.signing
import uvloop
from tests.port import free_port

from posthouse.config import Config, Given, load
from posthouse.control.operator import open_store
from posthouse.engine.clock import Clock
from posthouse.engine.engine import Engine
from posthouse.mailbox.event import Event
from posthouse.relay import setup
from posthouse.relay.outflow import Stage
from posthouse.relay.server import RelayServer
from posthouse.wire import envelope as wire
from posthouse.wire.address import address_of
from posthouse.wire.auth import challenge_bytes, confirm_bytes
from posthouse.wire.envelope import Envelope, MessageType

T = TypeVar("T")
DEADLINE_S = 20.0
HOST = "relay.test"

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10

# The usual limits would end most tests before they begin; those that are about limits set their own.
DEFAULTS = {
    "relay.host": "127.0.0.1",
    "relay.port": "0",
    "relay.public_host": HOST,
    "relay.rate_limit": "1000000",
    "relay.rate_burst": "1000000",
    "relay.start_pause_s": "0",
    "relay.batch_pause_s": "0",
}


class Relay:
    """A relay in a thread. Settings are those of the configuration: ``Relay(folder, {"relay.locked": "true"})``."""

    def __init__(self, folder: Path, settings: dict[str, str] | None = None, **fixed: Any) -> None:
        """``fixed``: what cannot be configured, by its name in the relay's own settings: ``auth_s=0.3``."""
        self.folder = folder
        self.settings = {**DEFAULTS, **(settings or {})}
        self.fixed = fixed
        self.ahead_ns = 0
        """How far the engine's clock is ahead; see ``pass_time``."""
        self.engine: Engine
        self.server: RelayServer
        self.loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None

    @property
    def config(self) -> Config:
        flags = {name: Given(text, "test") for name, text in self.settings.items()}
        return load({}, self.folder, flags)

    def start(self) -> Relay:
        """Start, or start again on the same store and port."""
        if self.settings["relay.port"] == "0":
            self.settings["relay.port"] = str(free_port())
        ready = threading.Event()
        self._thread = threading.Thread(target=lambda: uvloop.run(self._run(ready)), name="relay", daemon=True)
        self._thread.start()
        assert ready.wait(DEADLINE_S)
        if self._failure is not None:
            raise self._failure
        return self

    async def _run(self, ready: threading.Event) -> None:
        self.loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        try:
            config = self.config
            clock = Clock(lambda: time.time_ns() + self.ahead_ns, lambda: time.monotonic_ns() + self.ahead_ns)
            self.engine = Engine(open_store(config, create=True), clock=clock)
            await self.engine.astart()
            settings = dataclasses.replace(setup.settings(config), **self.fixed)
            self.server = RelayServer(self.engine, settings, setup.listen(config))
            await self.server.start()
        except BaseException as error:
            self._failure = error
            ready.set()
            return
        ready.set()
        await self._stop.wait()
        await self.server.close()
        await self.engine.aclose()

    def stop(self) -> None:
        """Stop cleanly. Idempotent."""
        thread, self._thread = self._thread, None
        if thread is not None and self._failure is None:
            self.loop.call_soon_threadsafe(self._stop.set)
            thread.join(DEADLINE_S)
            assert not thread.is_alive(), "the relay does not stop"

    def restart(self) -> None:
        """Stop cleanly and start on the same store and port."""
        self.stop()
        self.start()

    def pass_time(self, seconds: float) -> None:
        """Let so much time pass for what is stored; returns when a sweep that fell due is over.

        Connections notice nothing: their clock is another.
        """
        sweeper, clock = self.engine.sweeper, self.engine.clock
        # The one of the start is still at the time before.
        self.until(lambda: sweeper._sweep_at > clock.now(), "no sweep")
        self.ahead_ns += int(seconds * 1e9)
        sweeper.poke()
        self.until(lambda: sweeper._sweep_at > clock.now(), "no sweep")

    def change(self, **fixed: Any) -> None:
        """Change what cannot be configured, for the connections that come from now on."""
        self.on_loop(lambda: setattr(self.house, "settings", dataclasses.replace(self.house.settings, **fixed)))

    def on_loop(self, function: Callable[[], T]) -> T:
        """Run something in the relay's event loop."""

        async def run() -> T:
            return function()

        return self.wait(run())

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the relay's event loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(DEADLINE_S)

    def until(self, true: Callable[[], bool], what: str = "") -> None:
        """Wait until something holds, looked at in the relay's event loop."""

        async def look() -> None:
            async with asyncio.timeout(DEADLINE_S):
                while not true():  # noqa: ASYNC110 (what is looked at signals nobody)
                    await asyncio.sleep(0.001)

        try:
            self.wait(look())
        except TimeoutError:
            raise AssertionError(what or "it never became true") from None

    @property
    def port(self) -> int:
        return self.server.port

    @property
    def house(self) -> Any:
        return self.server.house

    def events(self, *names: str) -> list[Event]:
        """The journal so far, or only these events."""
        return [event for _, _, event in self.engine.store.events() if not names or event.event in names]

    def refusals(self) -> list[str | None]:
        """Reasons of what was refused at the door."""
        return [event.reason for event in self.events("refused")]

    def agent(self, name: str = "", **options: Any) -> Agent:
        """An agent whose key follows from its name; not connected yet."""
        return Agent(self, name or os.urandom(8).hex(), **options)

    def online(self, *names: str) -> list[Agent]:
        """Agents that are connected and have nothing queued: what is sent to them now comes live."""
        return [self.agent(name).connect().live() for name in names]

    def http(
        self, path: str, body: bytes | None = None, headers: dict[str, str] | None = None, method: str | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        """A plain request: status, headers (lower case), body."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", data=body, headers=headers or {}, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
                return answer.status, {k.lower(): v for k, v in answer.headers.items()}, answer.read()
        except urllib.error.HTTPError as answer:
            with answer:
                return answer.code, {k.lower(): v for k, v in answer.headers.items()}, answer.read()


_PAGE = Path(__file__).parents[2] / "protocol" / "relay.md"
CLOSES = {
    (int(code), reason)
    for code, reason in re.findall(r"^\| (\d{4}) \| `([^`]+)` \|", _PAGE.read_text(encoding="utf-8"), re.MULTILINE)
}
"""Every close code and reason that protocol/relay.md has; agents here accept no other."""


class Closed(AssertionError):
    """The relay closed the connection (code None: without a close frame) while something else was expected."""

    def __init__(self, code: int | None, reason: str) -> None:
        super().__init__(f"closed: {code} {reason!r}")
        self.code = code
        self.reason = reason


class Socket:
    """A WebSocket client in raw frames."""

    def __init__(
        self,
        port: int,
        *,
        headers: dict[str, str] | None = None,
        tls: ssl.SSLContext | None = None,
        receive_bytes: int | None = None,
        early: bytes = b"",
        path: str = "/ws",
    ) -> None:
        """``receive_bytes`` makes the kernel's buffer small, for slow readers; ``early`` goes with the head."""
        self.sock: socket.socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        if receive_bytes is not None:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.sock.settimeout(DEADLINE_S)
        self.sock.connect(("127.0.0.1", port))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            self.sock = tls.wrap_socket(self.sock, server_hostname=HOST)
        self._data = b""
        key = base64.b64encode(os.urandom(16)).decode()
        lines = {
            "Host": f"127.0.0.1:{port}",
            "Upgrade": "websocket",
            "Connection": "Upgrade",
            "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Key": key,
            **(headers or {}),
        }
        head = f"GET {path} HTTP/1.1\r\n" + "".join(f"{k}: {v}\r\n" for k, v in lines.items()) + "\r\n"
        self.sock.sendall(head.encode() + early)
        while b"\r\n\r\n" not in self._data:
            self._more()
        answer, _, self._data = self._data.partition(b"\r\n\r\n")
        self.status = int(answer.split(b" ")[1])
        self.answer = answer.decode("latin-1")
        if self.status == 101:
            digest = hashlib.sha1(key.encode() + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest()
            assert f"sec-websocket-accept: {base64.b64encode(digest).decode()}".lower() in self.answer.lower()

    def _more(self) -> None:
        try:
            data = self.sock.recv(1 << 16)
        except ConnectionResetError:
            data = b""
        if not data:
            raise Closed(None, "")
        self._data += data

    def _take(self, count: int) -> bytes:
        while len(self._data) < count:
            self._more()
        taken, self._data = self._data[:count], self._data[count:]
        return taken

    def send(self, opcode: int, payload: bytes, *, fin: bool = True, rsv: int = 0, masked: bool = True) -> None:
        """One frame."""
        self.sock.sendall(frame(opcode, payload, fin=fin, rsv=rsv, masked=masked))

    def receive(self, timeout_s: float = DEADLINE_S) -> tuple[int, bytes]:
        """The next frame: opcode and payload."""
        self.sock.settimeout(timeout_s)
        first, second = self._take(2)
        assert first & 0x70 == 0, "reserved bits"
        assert not second & 0x80, "masked"
        size = second & 0x7F
        if size == 126:
            (size,) = struct.unpack(">H", self._take(2))
        elif size == 127:
            (size,) = struct.unpack(">Q", self._take(8))
        assert first & 0x80, "the relay does not fragment"
        return first & 0x0F, self._take(size)

    def close(self) -> None:
        """Cut it."""
        with contextlib.suppress(OSError):
            self.sock.close()


def frame(opcode: int, payload: bytes, *, fin: bool = True, rsv: int = 0, masked: bool = True) -> bytes:
    """A frame from client to server."""
    head = bytes([(0x80 if fin else 0) | rsv << 4 | opcode])
    bit = 0x80 if masked else 0
    if len(payload) < 126:
        head += bytes([bit | len(payload)])
    elif len(payload) < 65_536:
        head += bytes([bit | 126]) + struct.pack(">H", len(payload))
    else:
        head += bytes([bit | 127]) + struct.pack(">Q", len(payload))
    if not masked:
        return head + payload
    mask = os.urandom(4)
    stream = (mask * (len(payload) // 4 + 1))[: len(payload)]
    hidden = (int.from_bytes(payload, "big") ^ int.from_bytes(stream, "big")).to_bytes(len(payload), "big")
    return head + mask + hidden


class Agent:
    """One identity and its connection. Answers pings by itself as long as ``answers_pings``."""

    def __init__(self, relay: Relay, name: str, **options: Any) -> None:
        self.relay = relay
        self.key = nacl.signing.SigningKey(hashlib.sha256(name.encode()).digest())
        self.public_key = bytes(self.key.verify_key)
        self.address = address_of(self.public_key, relay.settings["relay.public_host"])
        self.answers_pings = True
        self.socket: Socket
        self.pings: list[bytes] = []
        self.pongs: list[bytes] = []
        self._options = options
        self._envelopes: deque[bytes] = deque()
        self._sent = 0

    # Connecting

    def open(self) -> Envelope:
        """Connect, and return the challenge."""
        self.socket = Socket(self.relay.port, **self._options)
        assert self.socket.status == 101, self.socket.answer
        self._envelopes.clear()
        return self.receive()

    def connect(self) -> Agent:
        """Connect and authenticate; fails unless admitted."""
        result = self.authenticate()
        assert result.success, result.error_message
        assert result.assigned_address == self.address
        return self

    def live(self) -> Agent:
        """Wait until the relay has seen that nothing is queued."""
        session = self.session
        self.relay.until(lambda: session.outflow.stage is Stage.LIVE, "it never came to live traffic")
        return self

    def begin(self) -> None:
        """The pause after authentication is over: now, where a test has made it long."""
        self.relay.on_loop(self.session.outflow.start)

    def authenticate(self) -> Any:
        """Connect and answer the challenge; the AuthResult."""
        self.send_answer()
        return self.expect(MessageType.AUTH_RESULT).auth_result

    def send_answer(self) -> None:
        """Connect and answer the challenge; do not wait for the result."""
        self.send(self.auth_response(self.open().auth_challenge))

    def auth_response(self, challenge: Any) -> bytes:
        """The right answer to a challenge."""
        signature = self.key.sign(challenge_bytes(challenge.relay_host, challenge.nonce)).signature
        return wire.auth_response(self.public_key, signature, challenge.nonce)

    def cut(self) -> None:
        """End the connection without a word; returns when the relay has noticed."""
        session = self.session
        self.socket.close()
        if session is not None:
            self.relay.until(lambda: not session.is_open, "the relay did not notice that the connection was cut")

    def leave(self) -> None:
        """Close properly and wait until the relay has closed."""
        self.socket.send(CLOSE, struct.pack(">H", 1000))
        self.closed()

    @property
    def session(self) -> Any:
        """The relay's session of this agent, if it is online."""
        return self.relay.on_loop(lambda: self.relay.house.online.get(self.address))

    # Sending

    def send(self, data: bytes) -> None:
        """One binary message."""
        self.socket.send(BINARY, data)

    def new_id(self) -> bytes:
        """An id as clients make them."""
        self._sent += 1
        return f"{self.address[6:14]}-{self._sent:08}-{os.urandom(4).hex()}".encode()

    def envelope(self, to: Agent | str, kind: int = MessageType.MESSAGE, **fields: Any) -> Envelope:
        """An envelope from this agent; fields as in the protocol."""
        address = to if isinstance(to, str) else to.address
        made = Envelope(version=1, from_address=self.address, to_address=address, type=kind, timestamp=1)  # type: ignore[arg-type]
        made.message_id = self.new_id()
        if kind == MessageType.MESSAGE:
            made.encrypted.nonce = bytes(24)
            made.encrypted.ciphertext = b"?"
            made.encrypted.sender_public_key = self.public_key
        for name, value in fields.items():
            setattr(made, name, value)
        return made

    def message(self, to: Agent | str, body: bytes = b"hello", **fields: Any) -> Envelope:
        """Send a MESSAGE and return it."""
        made = self.envelope(to, **fields)
        made.encrypted.ciphertext = body
        self.send(made.SerializeToString())
        return made

    def confirm(self, message: Envelope) -> Envelope:
        """Confirm a message that came."""
        signature = self.key.sign(confirm_bytes(message.message_id, 2)).signature
        data = wire.delivery_confirm(self.address, message.from_address, message.message_id, 2, signature)
        self.send(data)
        return wire.parse(data)

    def block(self, other: Agent) -> None:
        self.send(wire.block_notification(self.address, other.address, 1))

    def unblock(self, other: Agent) -> None:
        self.send(wire.unblock_notification(self.address, other.address, 1))

    # Receiving

    def _frame(self, timeout_s: float) -> None:
        """Take one frame off the socket."""
        opcode, payload = self.socket.receive(timeout_s)
        if opcode == PING:
            self.pings.append(payload)
            if self.answers_pings:
                self.socket.send(PONG, payload)
        elif opcode == PONG:
            self.pongs.append(payload)
        elif opcode == CLOSE:
            code = struct.unpack(">H", payload[:2])[0] if payload else None
            with contextlib.suppress(OSError):
                self.socket.send(CLOSE, payload[:2])
            self.socket.close()
            reason = payload[2:].decode()
            # A close without a reason answers one of ours.
            assert not reason or (code, reason) in CLOSES, f"protocol/relay.md does not know {code} {reason!r}"
            raise Closed(code, reason)
        else:
            assert opcode == BINARY
            self._envelopes.append(payload)

    def receive_bytes(self, timeout_s: float = DEADLINE_S) -> bytes:
        """The next message as it came."""
        until = time.monotonic() + timeout_s
        while not self._envelopes:
            self._frame(max(until - time.monotonic(), 0.001))
        return self._envelopes.popleft()

    def receive(self, timeout_s: float = DEADLINE_S) -> Envelope:
        """The next envelope."""
        return wire.parse(self.receive_bytes(timeout_s))

    def expect(self, kind: int, timeout_s: float = DEADLINE_S) -> Envelope:
        """The next envelope, which must be of this type."""
        found = self.receive(timeout_s)
        assert found.type == kind, found
        return found

    def receive_all(self, count: int) -> list[Envelope]:
        """So many envelopes."""
        return [self.receive() for _ in range(count)]

    def pong(self, payload: bytes = b"?") -> None:
        """Ping the relay and wait for its pong."""
        self.socket.send(PING, payload)
        while payload not in self.pongs:
            self._frame(DEADLINE_S)
        self.pongs.remove(payload)

    def until(self, true: Callable[[], bool], what: str = "") -> None:
        """Wait until something holds; meanwhile answer pings and keep what comes."""
        until = time.monotonic() + DEADLINE_S
        while not true():
            assert time.monotonic() < until, what or "it never became true"
            if self.socket._data or select.select([self.socket.sock], [], [], 0.002)[0]:
                self._frame(DEADLINE_S)

    def settled(self) -> list[Envelope]:
        """Wait until all that this agent sent is worked off; what came meanwhile, without the mark it used."""
        mark = self.envelope(self.address, MessageType.HEARTBEAT)
        self.send(mark.SerializeToString())
        came: list[Envelope] = []
        while (found := self.receive()).message_id != mark.message_id:
            came.append(found)
        return came

    def closed(self, timeout_s: float = DEADLINE_S) -> tuple[int | None, str]:
        """Wait for the relay to close; its code (None: cut) and reason. What comes before is kept to be received."""
        until = time.monotonic() + timeout_s
        try:
            while True:
                self._frame(max(until - time.monotonic(), 0.001))
        except Closed as closed:
            return closed.code, closed.reason
