"""A small relay for the agent's tests: a real server on a real socket that can be told to misbehave.

It keeps what is for somebody who is away in memory, and answers pings at once. What the project's own relay does is
tested with that one (see test_walk.py); this one is for what a relay does only when it is made to.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from typing import Any

from picows import WSCloseCode, WSFrame, WSListener, WSMsgType, WSTransport, ws_create_server
from tests.port import free_port

from posthouse.wire import envelope as wire
from posthouse.wire.address import address_of
from posthouse.wire.auth import challenge_bytes, is_signed


class Relay:
    """Routes envelopes; ``on_frame`` may take one away by returning True."""

    def __init__(self, host: str = "test.relay") -> None:
        self.host = host
        self.online: dict[str, _Connection] = {}
        self.queues: dict[str, deque[bytes]] = {}
        self.seen: list[wire.Envelope] = []
        self.refusal: str | None = None
        self.on_frame: Any = lambda connection, envelope, data: False
        self.answers_pings = True
        self.admissions = 0
        self._changed = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._port = free_port()

    async def start(self) -> str:
        self._server = await ws_create_server(
            lambda request: _Connection(self), "127.0.0.1", self._port, enable_auto_pong=False
        )
        return f"ws://127.0.0.1:{self._port}"

    async def stop(self) -> None:
        """Go away; what is queued stays."""
        assert self._server is not None
        self._server.close()
        for connection in list(self.online.values()):
            connection.transport.disconnect(False)
        await self._server.wait_closed()
        while self.online:
            await self.change()

    async def change(self) -> None:
        """Wait for the next frame, admission or departure."""
        self._changed.clear()
        async with asyncio.timeout(30):
            await self._changed.wait()

    async def until(self, condition: Any) -> None:
        """Wait until something is so."""
        while not condition():
            await self.change()

    def changed(self) -> None:
        self._changed.set()

    def kinds(self, kind: str) -> list[wire.Envelope]:
        """The envelopes of one kind that came from agents, in order."""
        return [e for e in self.seen if wire.kind_of(e.type) == kind]

    def route(self, connection: _Connection, data: bytes) -> None:
        envelope = wire.parse(data)
        self.seen.append(envelope)
        if not self.on_frame(connection, envelope, data):
            self.deliver(envelope.to_address, data)
        self.changed()

    def deliver(self, address: str, data: bytes) -> None:
        """To whoever has this address, now or later."""
        if not address:
            return
        if address in self.online:
            self.online[address].send(data)
        else:
            self.queues.setdefault(address, deque()).append(data)

    def drop(self, address: str) -> None:
        """Cut a connection without a word."""
        self.online[address].transport.disconnect(False)


class _Connection(WSListener):
    def __init__(self, relay: Relay) -> None:
        self._relay = relay
        self._nonce = os.urandom(32)
        self.address = ""

    def on_ws_connected(self, transport: WSTransport) -> None:
        self.transport = transport
        self.send(wire.auth_challenge(self._relay.host, self._nonce, 0, 10_000))

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type == WSMsgType.PING:
            if self._relay.answers_pings:
                transport.send_pong(frame.get_payload_as_bytes())
        elif frame.msg_type == WSMsgType.CLOSE:
            transport.send_close(WSCloseCode.OK)
            transport.disconnect()
        elif frame.msg_type == WSMsgType.BINARY:
            if self.address:
                self._relay.route(self, frame.get_payload_as_bytes())
            else:
                self._authenticate(frame.get_payload_as_bytes())

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        if self._relay.online.get(self.address) is self:
            del self._relay.online[self.address]
        self._relay.changed()

    def send(self, data: bytes) -> None:
        self.transport.send(WSMsgType.BINARY, data)

    def _authenticate(self, data: bytes) -> None:
        relay, answer = self._relay, wire.parse(data).auth_response
        signed = is_signed(answer.public_key, answer.signature, challenge_bytes(relay.host, self._nonce))
        refusal = relay.refusal or (None if signed else "authentication failed")
        if refusal:
            self.send(wire.auth_result(False, refusal))
            self.transport.send_close(WSCloseCode.POLICY_VIOLATION, refusal.encode())
            self.transport.disconnect()
            return
        self.address = address_of(answer.public_key, relay.host)
        self.send(wire.auth_result(True, assigned_address=self.address))
        relay.online[self.address] = self
        relay.admissions += 1
        queued = relay.queues.pop(self.address, deque())
        if queued:
            self.send(wire.queue_status(len(queued)))
        for frame in queued:
            self.send(frame)
        relay.changed()
