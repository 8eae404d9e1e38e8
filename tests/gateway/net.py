"""A chat network on a real socket, whose connections break as one pleases, and the channel that speaks to it.

The network brings messages until it is told that they were received, and remembers in which order what was sent to it
arrived. It can be told to drop connections: now, or in the middle of a send, before or after it took the message. As a
network that knows keys it takes each key once; as one that can be asked it says which keys it has.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections import Counter, deque
from collections.abc import Iterable
from typing import Any, NamedTuple

from posthouse.errors import StoreError
from posthouse.gateway.channel import (
    Connection,
    NotAccepted,
    Offline,
    Permanent,
    Port,
    Reconciled,
    Sending,
    Sent,
    Unclear,
)
from posthouse.gateway.letter import Inbound

WAIT_S = 30.0
WINDOW = 100
"""Messages that are brought over one connection and not received yet: if it breaks, so many are brought again."""


class Arrived(NamedTuple):
    """Something that was sent to the network."""

    to: str
    text: str
    key: str
    reply_to: str


class Network:
    """The other side. ``knows_keys``: it takes a key once."""

    def __init__(self, *, knows_keys: bool = True, seed: int = 0) -> None:
        self.knows_keys = knows_keys
        self.arrived: list[Arrived] = []
        self.drops = 0
        self.connects = 0
        self.drop_before = 0.0
        """How likely a send ends the connection before it is taken."""
        self.drop_after = 0.0
        """How likely it does so after it is taken, unanswered."""
        self.refusals: dict[str, str] = {}
        """What is answered to sends to a target instead of taking them."""
        self.port = 0
        self._random = random.Random(seed)
        self._keys: set[str] = set()
        self._unreceived: dict[str, dict[str, Any]] = {}
        self._writers: set[asyncio.StreamWriter] = set()
        self._brought: dict[asyncio.StreamWriter, set[str]] = {}
        self._waiting: dict[asyncio.StreamWriter, deque[str]] = {}
        self._server: asyncio.Server | None = None
        self._changed = asyncio.Condition()

    async def start(self, port: int = 0) -> Network:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        self.port = int(self._server.sockets[0].getsockname()[1])
        return self

    async def close(self) -> None:
        """Go away: nobody is answered any more."""
        if self._server is not None:
            self._server.close()
            self.drop()
            await self._server.wait_closed()
            self._server = None

    async def __aenter__(self) -> Network:
        return self if self._server is not None else await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def say(self, conversation: str, id: str, text: str, **fields: Any) -> None:
        """Somebody writes; the network brings it until it is received."""
        message = {"type": "message", "id": id, "conversation": conversation, "from": "someone", "text": text, **fields}
        self._unreceived[id] = message
        for writer in self._writers:
            self._waiting[writer].append(id)
            self._bring(writer)

    def _bring(self, writer: asyncio.StreamWriter) -> None:
        """Bring what waits, as far as the connection takes it now."""
        brought, waiting = self._brought[writer], self._waiting[writer]
        while waiting and len(brought) < WINDOW:
            message = self._unreceived.get(waiting.popleft())
            if message is not None:
                brought.add(message["id"])
                _write(writer, message)

    @property
    def unreceived(self) -> int:
        return len(self._unreceived)

    def drop(self) -> None:
        """End every connection without a word."""
        for writer in list(self._writers):
            self.drops += 1
            writer.transport.abort()

    async def until(self, what: Any, within_s: float = WAIT_S) -> None:
        """Wait until this is so; it is looked at whenever something has changed."""
        async with asyncio.timeout(within_s):
            async with self._changed:
                await self._changed.wait_for(what)

    def texts(self, to: str) -> list[str]:
        return [arrived.text for arrived in self.arrived if arrived.to == to]

    def twice(self) -> list[tuple[str, str]]:
        """What arrived more than once: (to, text)."""
        return [place for place, count in Counter((a.to, a.text) for a in self.arrived).items() if count > 1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        self.connects += 1
        self._brought[writer], self._waiting[writer] = set(), deque(self._unreceived)
        self._bring(writer)
        await self._tell()
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while line := await reader.readline():
                self._take(json.loads(line), writer)
                await self._tell()
        self._writers.discard(writer)
        del self._brought[writer], self._waiting[writer]
        writer.close()

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    def _take(self, frame: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        match frame["type"]:
            case "received":
                self._unreceived.pop(frame["id"], None)
                self._brought[writer].discard(frame["id"])
                self._bring(writer)
            case "find":
                _write(writer, {"type": "answer", "n": frame["n"], "sent": frame["key"] in self._keys})
            case "send":
                self._send(frame, writer)

    def _send(self, frame: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        if frame["to"] in self.refusals:
            _write(writer, {"type": "answer", "n": frame["n"], "refused": self.refusals[frame["to"]]})
            return
        if self._random.random() < self.drop_before:
            self.drops += 1
            writer.transport.abort()
            return
        if not (self.knows_keys and frame["key"] in self._keys):
            self.arrived.append(Arrived(frame["to"], frame["text"], frame["key"], frame["reply_to"]))
        self._keys.add(frame["key"])
        if self._random.random() < self.drop_after:
            self.drops += 1
            writer.transport.abort()
            return
        _write(writer, {"type": "answer", "n": frame["n"]})


def _write(writer: asyncio.StreamWriter, frame: dict[str, Any]) -> None:
    if not writer.transport.is_closing():
        writer.write(json.dumps(frame).encode() + b"\n")


class _Line:
    """One connection to the network."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._number = 0
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}

    async def ask(self, frame: dict[str, Any]) -> dict[str, Any]:
        if self.writer.transport.is_closing():
            raise Offline("the connection is closed")
        self._number += 1
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._answers[self._number] = answer
        _write(self.writer, {**frame, "n": self._number})
        return await answer

    async def send(self, sending: Sending) -> Sent:
        out = sending.outbound
        frame = {"type": "send", "key": sending.key, "to": out.to, "text": sending.part.text, "reply_to": out.reply_to}
        answer = await self.ask(frame)
        if "refused" in answer:
            raise Permanent(answer["refused"])
        return Sent()

    def answered(self, frame: dict[str, Any]) -> None:
        waiting = self._answers.pop(frame["n"], None)
        if waiting is not None and not waiting.done():
            waiting.set_result(frame)

    def ended(self) -> None:
        for waiting in self._answers.values():
            if not waiting.done():
                waiting.set_exception(Unclear("the connection was lost"))
        self._answers.clear()
        self.writer.close()


class NetChannel:
    """An account on such a network. It reconnects for as long as it runs."""

    kind = "net"

    def __init__(self, port: int, *, idempotent: bool = True, account: str = "default", pause_s: float = 0.01) -> None:
        self.account = account
        self.idempotent = idempotent
        self._to = port
        self._pause_s = pause_s
        self._line: _Line | None = None
        self._port: Port | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self, port: Port) -> None:
        self._port = port
        self._task = asyncio.create_task(self._run(port))

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._port = None

    def connection(self) -> Connection | None:
        return self._line

    async def _run(self, port: Port) -> None:
        while True:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", self._to)
            except OSError:
                await asyncio.sleep(self._pause_s)
                continue
            self._line = line = _Line(reader, writer)
            port.up()
            try:
                async with asyncio.TaskGroup() as group:
                    async for data in reader:
                        frame = json.loads(data)
                        if frame["type"] == "answer":
                            line.answered(frame)
                        else:
                            group.create_task(self._bring(port, line, frame))
            except* (ConnectionError, NotAccepted, StoreError):
                pass
            finally:
                self._line = None
                line.ended()
                if self._port is not None:
                    port.down()
            await asyncio.sleep(self._pause_s)

    async def _bring(self, port: Port, line: _Line, frame: dict[str, Any]) -> None:
        inbound = Inbound(
            id=frame["id"],
            channel=self.kind,
            account=self.account,
            conversation=frame["conversation"],
            sender=frame["from"],
            text=frame["text"],
            tenant=frame.get("tenant", "default"),
            control=frame.get("control", False),
        )
        await port.receive(inbound)
        _write(line.writer, {"type": "received", "id": frame["id"]})


class AskingChannel(NetChannel):
    """The same, where the network can be asked what it has."""

    async def reconcile(self, sending: Sending) -> Reconciled:
        line = self._line
        if line is None:
            raise Offline("no connection")
        answer = await line.ask({"type": "find", "key": sending.key})
        return Reconciled.SENT if answer["sent"] else Reconciled.NOT_SENT


def ordered(texts: Iterable[str]) -> bool:
    """Whether numbers at the end of these texts rise."""
    numbers = [int(text.rpartition(" ")[2]) for text in texts]
    return numbers == sorted(numbers)
