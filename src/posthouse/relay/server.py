"""The relay's server: one port for WebSocket and HTTP, in one event loop.

In: connections, a started engine, settings. Out: sessions of the house that speak to sockets, and answers to plain
requests: /health, /agents/register, /agents/claim, /claim. It knows time and sockets, and leaves every decision
about messages to the house.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import logging
import os
import re
import resource
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from ..control import presence
from ..engine.engine import Engine
from ..errors import ConfigError, InvalidInput, PosthouseError
from ..mailbox.check import check_command
from ..mailbox.command import Command, Keep, Post
from ..mailbox.message import Ref
from ..wire.address import parse_address
from . import claim, http
from .blocks import SHELF as BLOCKS
from .connection import Front, Wire
from .house import House
from .port import Answered, BodiesRead, Line
from .registration import Challenge, Registration
from .session import Session
from .settings import Settings
from .tls import Certificate

REQUEST_S = 10.0
"""How long a request's head and body may take."""
LINGER_S = 2.0
"""How long a client has to take what it was told last."""
SHUTDOWN_S = 0.5
"""The same when the relay stops."""
TICK_S = 0.5
RECEIVE_BYTES = 131_072
"""The kernel's buffer for a connection that is not read from: what a client can push before it must wait."""
BACKLOG = 1_024

_log = logging.getLogger("posthouse.relay")
C = TypeVar("C", Front, Front | Wire)


@dataclass(frozen=True, slots=True)
class Listen:
    """Where the relay listens, and for whom."""

    host: str = "127.0.0.1"
    """``*`` is every address of the machine."""
    port: int = 8080
    origins: frozenset[str] = frozenset()
    """Origins that may connect; ``*`` is all."""
    locked: bool = False
    challenge: Challenge | None = None
    certificate: Certificate | None = None


class _Port:
    """The world as the house sees it: this event loop and the engine."""

    def __init__(self, engine: Engine, loop: asyncio.AbstractEventLoop) -> None:
        self._engine = engine
        self._loop = loop
        self._reads: set[asyncio.Task[Any]] = set()
        self.monotonic = time.monotonic
        self.random_bytes = os.urandom

    def submit(self, commands: Sequence[Command], answered: Answered) -> None:
        try:
            future = self._engine.submit(*commands)
            # The house has gathered what one iteration brings: nothing more is to be waited for.
            self._engine.flush()
        except InvalidInput:
            # A mistake of ours in one command is not to cost all others theirs.
            faults = [self._fault(command) for command in commands]
            _log.error("a command is not valid: %s", next(fault for fault in faults if fault is not None))
            valid = [command for command, fault in zip(commands, faults, strict=True) if fault is None]
            self.submit(valid, functools.partial(_merge, faults, answered))
            return
        except PosthouseError as error:
            self._loop.call_soon(answered, error)
            return
        future.add_done_callback(functools.partial(_answer, answered))

    def _fault(self, command: Command) -> InvalidInput | None:
        try:
            check_command(command, self._engine.store.policies)
        except InvalidInput as error:
            return error
        return None

    def read_bodies(self, refs: Sequence[Ref], read: BodiesRead) -> None:
        task = self._loop.create_task(self._engine.read(lambda store: store.bodies(refs)))
        self._reads.add(task)
        task.add_done_callback(self._reads.discard)
        task.add_done_callback(functools.partial(_answer, read))

    def later(self, delay_s: float, callback: Callable[[], None]) -> None:
        self._loop.call_later(delay_s, self._due, time.monotonic() + delay_s, callback)

    def _due(self, at_s: float, callback: Callable[[], None]) -> None:
        # The loop's clock is coarse, and behind: its timers may ring early, by the clock that the house reads.
        left_s = at_s - time.monotonic()
        if left_s > 0:
            self._loop.call_later(max(left_s, 0.001), self._due, at_s, callback)
        else:
            callback()

    def soon(self, callback: Callable[[], None]) -> None:
        self._loop.call_soon(callback)

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


def _answer(answered: Callable[[Any], None], future: asyncio.Future[Any]) -> None:
    if future.cancelled():
        answered(asyncio.CancelledError())
    else:
        answered(future.exception() or future.result())


def _merge(faults: Sequence[InvalidInput | None], answered: Answered, result: Any) -> None:
    """Outcomes of the valid commands, and in the places of the others what is wrong with them."""
    if not isinstance(result, BaseException):
        outcomes = iter(result)
        result = [next(outcomes) if fault is None else fault for fault in faults]
    answered(result)


class RelayServer:
    """Listens, and connects sockets with sessions. ``start`` and ``close`` once each."""

    def __init__(self, engine: Engine, settings: Settings, listen: Listen) -> None:
        self._engine = engine
        self._settings = settings
        self._listen = listen
        self._loop = asyncio.get_running_loop()
        self.registration = Registration(
            engine, settings.host, locked=listen.locked, challenge=listen.challenge, on_revoked=self._revoked
        )
        policy = engine.store.policies[settings.desk]
        self.house = House(
            settings,
            _Port(engine, self._loop),
            capacity=policy.capacity,
            sender_max=policy.sender_max,
            admits=self.registration.admits,
        )
        self.requests = 0
        self._fronts: dict[Front, float] = {}
        self._lingering: dict[Front | Wire, float] = {}
        self._wires: set[Wire] = set()
        self._dirty: list[Wire] = []
        """Connections that have frames to write."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._ticker: asyncio.TimerHandle | None = None
        self._stopping = False
        self._empty: asyncio.Future[None] | None = None
        """Set, while it stops, when the last connection is gone."""

    # Life

    async def start(self) -> None:
        """Listen. ConfigError if the place cannot be had."""
        _raise_file_limit()
        await asyncio.to_thread(self.registration.load)
        blocks = await self._engine.read(_read_blocks)
        self.house.start(blocks)
        self._engine.on_call.append(self._told)
        presence.about(self._engine, self.house.settings.desk, self._about)
        listen = self._listen
        sockets = _bind(listen.host, listen.port)
        self._server = await self._loop.create_server(
            lambda: Front(self),
            sock=sockets[0],
            backlog=BACKLOG,
            ssl=listen.certificate.context if listen.certificate else None,
            ssl_handshake_timeout=REQUEST_S if listen.certificate else None,
        )
        self._ticker = self._loop.call_later(TICK_S, self._tick)

    @property
    def address(self) -> str:
        """Where it listens, as a URL."""
        assert self._server is not None
        host, port = self._server.sockets[0].getsockname()[:2]
        scheme = "wss" if self._listen.certificate else "ws"
        if host in ("::", "0.0.0.0"):
            host = "*"
        return f"{scheme}://[{host}]:{port}/ws" if ":" in host else f"{scheme}://{host}:{port}/ws"

    @property
    def port(self) -> int:
        """The port that it listens on."""
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    def reload(self) -> None:
        """Read the certificate again; a broken one is logged and the old one stays."""
        certificate = self._listen.certificate
        if certificate is None:
            return
        try:
            certificate.reload()
        except ConfigError as error:
            _log.error("the certificate was not read again, the old one stays: %s", error)
        else:
            _log.info("the certificate was read again")

    async def close(self) -> None:
        """Accept no more, close every connection with 1001, let what was sent before become durable."""
        self._stopping = True
        if self._server is not None:
            self._server.close()
        with contextlib.suppress(ValueError):
            self._engine.on_call.remove(self._told)
        presence.about(self._engine, self.house.settings.desk, None)
        for front in list(self._fronts):
            front.expire()
        self.house.leave()
        if self._wires or self._lingering:
            self._empty = self._loop.create_future()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._empty, SHUTDOWN_S)
        if self._ticker is not None:
            self._ticker.cancel()
        for left in [*self._wires, *self._lingering, *self._fronts]:
            left.expire()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        # Connections that were cut just now are told so in the next iteration.
        await asyncio.sleep(0)
        closed: asyncio.Future[None] = self._loop.create_future()
        self.house.close(lambda: None if closed.done() else closed.set_result(None))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(closed, 10)

    def _about(self, address: str) -> dict[str, Any]:
        """What is known of an agent that is connected; from any thread."""
        session = self.house.online.get(address)
        line = None if session is None else session.line
        state = self.registration.state(parse_address(address).public_key)
        return {"rtt_s": line.rtt_s if isinstance(line, Wire) else None, "can": [f"key {state}"] if state else []}

    def _tick(self) -> None:
        """One timer for all: who took too long is ended."""
        self._ticker = self._loop.call_later(TICK_S, self._tick)
        now_s = time.monotonic()
        _expire(self._fronts, now_s)
        _expire(self._lingering, now_s)

    # What connections ask for

    def admit(self, front: Front, transport: Any) -> bool:
        """A connection was accepted: whether it may ask for something."""
        if self._stopping or len(self._fronts) >= self._settings.unauthenticated_max:
            return False
        self._fronts[front] = time.monotonic() + REQUEST_S
        return True

    def gone(self, connection: Front | Wire) -> None:
        """A connection has ended (or is no longer a plain one)."""
        if isinstance(connection, Front):
            self._fronts.pop(connection, None)
        else:
            self._wires.discard(connection)
        self._lingering.pop(connection, None)
        if self._empty is not None and not (self._wires or self._lingering or self._empty.done()):
            self._empty.set_result(None)

    def linger(self, connection: Front | Wire) -> None:
        """Its last word is said; it goes soon by itself, or is cut."""
        if isinstance(connection, Front):
            self._fronts.pop(connection, None)
        self._lingering.setdefault(connection, time.monotonic() + LINGER_S)

    def flush_soon(self, wire: Wire) -> None:
        """Something is to be written: at the end of this iteration."""
        if not self._dirty:
            self._loop.call_soon(self._flush)
        self._dirty.append(wire)

    def _flush(self) -> None:
        dirty, self._dirty = self._dirty, []
        for wire in dirty:
            wire.flush()

    def refusal(self, request: http.Request) -> http.Answer | None:
        """Why this request does not become a WebSocket; None: it does."""
        headers = request.headers
        if not request.is_upgrade:
            return http.wrong(426, "this is a WebSocket", (("Upgrade", "websocket"),))
        origin = headers.get("origin")
        if origin is not None and not self._listen.origins & {origin, "*"}:
            return http.wrong(403, "origin not allowed")
        if headers.get("sec-websocket-version") != "13":
            return http.wrong(426, "WebSocket version 13", (("Sec-WebSocket-Version", "13"),))
        if not _is_websocket_key(headers.get("sec-websocket-key", "")):
            return http.wrong(400, "no Sec-WebSocket-Key")
        if request.body_bytes:
            return http.wrong(400, "a WebSocket request has no body")
        if self._stopping or not self.house.has_room():
            return http.wrong(503, "no room for another connection", (("Retry-After", "5"),))
        return None

    def opened(self, wire: Wire, peer: str) -> Session:
        """A WebSocket is open."""
        self._wires.add(wire)
        line: Line = wire
        return self.house.open(line, peer)

    def handle(self, front: Front, request: http.Request, body: bytes) -> None:
        """Answer a plain request, now or when it is decided."""
        self.requests += 1
        method = "GET" if request.method == "HEAD" else request.method
        route = (method, request.path)
        if route == ("GET", "/health"):
            front.answer(self._health())
        elif route == ("GET", "/claim") and self.registration.locked:
            front.answer(claim.form())
        elif route in (("POST", "/agents/register"), ("POST", "/agents/claim")):
            task = self._loop.create_task(self._register(front, request, body))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        elif request.path in ("/health", "/ws", "/agents/register", "/agents/claim"):
            allowed = "POST" if request.path.startswith("/agents/") else "GET"
            front.answer(http.wrong(405, f"only {allowed}", (("Allow", allowed),)))
        else:
            front.answer(http.wrong(404, "not found"))

    def _health(self) -> http.Answer:
        failure = self._engine.failure()
        document = {
            "status": "ok" if failure is None else "failed",
            "connections": self.house.connections,
            # The Go relay's name for how much runs at once; here it is threads.
            "goroutines": threading.active_count(),
        }
        return http.as_json(200 if failure is None else 503, document)

    async def _register(self, front: Front, request: http.Request, body: bytes) -> None:
        remote, now_s = front.remote, time.monotonic()
        origin = request.headers.get("origin")
        own = origin is not None and origin.partition("://")[2] == request.headers.get("host")
        try:
            if origin is not None and not own and not self._listen.origins & {origin, "*"}:
                answer = http.wrong(403, "origin not allowed")
            elif request.path == "/agents/register":
                answer = await self.registration.register(body, remote, now_s)
            else:
                kind = request.headers.get("content-type", "")
                answer = await self.registration.claim(body, kind, remote, now_s)
        except PosthouseError as error:
            _log.error("a request to %s failed: %s", request.path, error)
            answer = http.wrong(503, "the store did not answer", (("Retry-After", "5"),))
        except Exception:
            # A challenge provider is anybody's code.
            _log.exception("a request to %s failed", request.path)
            answer = http.wrong(500, "internal error")
        front.answer(answer)

    # What others do

    def _told(self, commands: Sequence[Command]) -> None:
        """An operator applied commands, on another thread: keys may have changed, or something can be leased."""
        self.registration.told(commands)
        blocks = [
            (c.key, c.value) for c in commands if isinstance(c, Keep) and c.shelf == BLOCKS and c.value is not None
        ]
        if blocks:
            self._loop.call_soon_threadsafe(self.house.blocks.load, blocks)
        # An import posts hundreds at once to a few mailboxes.
        rung: dict[str | None, None] = {}
        for command in commands:
            place = command.message if isinstance(command, Post) else command
            if not isinstance(place, Keep) and getattr(place, "desk", self._settings.desk) == self._settings.desk:
                rung[getattr(place, "mailbox", None)] = None
        for mailbox in rung:
            self._loop.call_soon_threadsafe(self.house.ring, mailbox)

    def _revoked(self, address: str) -> None:
        if self.house.revoke(address):
            _log.info("the connection of a key that may connect no longer was closed")


def _expire(waiting: dict[C, float], now_s: float) -> None:
    """End those whose time is up; they stand in the order of their time."""
    while waiting:
        connection = next(iter(waiting))
        if waiting[connection] > now_s:
            return
        del waiting[connection]
        connection.expire()


def _read_blocks(store: Any) -> list[tuple[str, bytes]]:
    blocks: list[tuple[str, bytes]] = []
    after = ""
    while page := store.kept(BLOCKS, after, 1_000):
        blocks += page
        after = page[-1][0]
    return blocks


def _is_websocket_key(text: str) -> bool:
    """Base64 of 16 bytes."""
    return re.fullmatch(r"[A-Za-z0-9+/]{22}==", text) is not None


def _bind(host: str, port: int) -> list[socket.socket]:
    """Sockets that are bound; ConfigError if the place cannot be had."""
    try:
        if host == "*" and socket.has_dualstack_ipv6():
            bound = socket.create_server(
                ("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=BACKLOG, reuse_port=False
            )
        else:
            name = "0.0.0.0" if host == "*" else host
            family, _, _, _, place = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)[0]
            bound = socket.create_server(place[:2], family=family, backlog=BACKLOG)
        # Taken over by every connection.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
    except OSError as error:
        taken = error.errno == errno.EADDRINUSE
        reason = "it is taken" if taken else error.strerror or str(error)
        raise ConfigError(
            f"the relay cannot listen on {host} port {port}: {reason} (relay.host, relay.port)"
        ) from error
    bound.setblocking(False)
    return [bound]


def _raise_file_limit() -> None:
    """Each connection is an open file: take as many as the system lets us have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
