"""The channel ``websocket``: a long-lived connection that we make, and that may break at any time.

Frames are JSON objects in text. From the server:

    {"type": "message", "id": …, "conversation": …, "from": …, "text": …, …}    a message (``plain.FIELDS``)
    {"type": "sent", "key": …, "id": …}                                         it has a part of ours
    {"type": "failed", "key": …, "error": …, "after_s": …, "text": …}           it has not, and why: permanent,
                                                                                transient, rate_limited or offline
    {"type": "known", "key": …, "state": …}                                     sent, not_sent or unknown

From us:

    {"type": "received", "id": …}                                               the message is durable
    {"type": "refused", "id": …, "reason": …, "again": …}                       it is not; whether to bring it again
    {"type": "send", "key": …, "to": …, "text": …, …}                           a part; the key is its own for ever
    {"type": "ask", "key": …}                                                   what became of that part?

What the server does not answer before the connection breaks is unclear: it may have arrived. A server that knows a
repeated ``send`` by its key makes that harmless.
"""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import aiohttp

from ...errors import InvalidInput, StoreError
from ...settings import Kind, Setting
from .. import strict
from ..channel import (
    NotAccepted,
    Offline,
    Permanent,
    RateLimited,
    Reconciled,
    SendError,
    Sending,
    Sent,
    Setup,
    Transient,
    Unclear,
)
from ..letter import Inbound
from .account import PASSING, Account, Lost
from .plain import inbound_from, outbound_as_json

log = logging.getLogger("posthouse.gateway")

OPTIONS: tuple[Setting, ...] = (
    Setting("url", Kind.PLACE, None, "The server: `ws://…` or `wss://…`.", derived="must be given", secret=True),
    Setting(
        "token", Kind.TEXT, None, "Sent as `Authorization: Bearer …` when connecting.", derived="none", secret=True
    ),
    Setting(
        "idempotent",
        Kind.SWITCH,
        True,
        "Whether the server knows a repeated part by its key. If not, an unclear send is not repeated.",
    ),
    Setting("connect_s", Kind.SECONDS, 15.0, "How long connecting may take.", least=0.1, most=600),
    Setting("answer_s", Kind.SECONDS, 20.0, "How long the answer to a part may take.", least=0.05, most=600),
    Setting(
        "heartbeat_s",
        Kind.SECONDS,
        20.0,
        "How long the connection may be silent before it is pinged; half of it is the time to answer.",
        least=0.1,
        most=3_600,
    ),
    Setting("frame_bytes_max", Kind.WHOLE, 1_048_576, "The largest frame that is taken.", least=1_024, most=67_108_864),
    Setting("waiting_max", Kind.WHOLE, 1_000, "Messages that may wait to be stored.", least=1, most=100_000),
)
RATE_LIMITED_S = 30.0
AFTER_S_MAX = 86_400.0


def make(setup: Setup) -> WebSocket:
    """The factory."""
    return WebSocket(setup)


class WebSocket(Account):
    """One account: one connection at a time."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup, OPTIONS)
        self.idempotent = self.options.switch("idempotent")
        self._url = self.options.secret("url").reveal()
        if not self._url.startswith(("ws://", "wss://")):
            raise self.options.wrong("url", "must begin with ws:// or wss://")
        token = self.options.secret_or_none("token")
        self._headers = {} if token is None else {"Authorization": f"Bearer {token.reveal()}"}
        self._live: Live | None = None

    def connection(self) -> Live | None:
        """The connection of this moment."""
        return self._live if self.is_up else None

    async def live(self) -> None:
        """One connection from its beginning to its end."""
        options = self.options
        async with aiohttp.ClientSession(headers=self._headers, cookie_jar=aiohttp.DummyCookieJar()) as client:
            try:
                async with asyncio.timeout(options.seconds("connect_s")):
                    socket = await client.ws_connect(
                        self._url,
                        heartbeat=options.seconds("heartbeat_s"),
                        max_msg_size=options.whole("frame_bytes_max"),
                        timeout=aiohttp.ClientWSTimeout(ws_close=1.0),
                    )
            except TimeoutError:
                raise Lost("the server does not answer", "timeout") from None
            except aiohttp.WSServerHandshakeError as error:
                raise Lost(f"the server answered {error.status}") from None
            except (aiohttp.ClientError, OSError, ValueError) as error:
                raise Lost(f"cannot connect: {getattr(error, 'os_error', None) or type(error).__name__}") from None
            live = Live(self, socket)
            storing = self.spawn(live.store())
            self._live = live
            self.came_up("websocket")
            try:
                await live.read()
            finally:
                self._live = None
                live.end()
                storing.cancel()
                await socket.close()

    async def reconcile(self, sending: Sending) -> Reconciled:
        """Ask the server."""
        live = self.connection()
        if live is None:
            raise Offline("there is no connection to ask over")
        return await live.ask(sending.key)


class Live:
    """One connection while it lasts; afterwards it sends nothing."""

    def __init__(self, account: WebSocket, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._account = account
        self._socket = socket
        self._answers: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self._waiting: asyncio.Queue[Inbound] = asyncio.Queue(account.options.whole("waiting_max"))
        self._ended = False

    # Out.

    async def send(self, sending: Sending) -> Sent:
        """One part; returns when the server says that it has it."""
        answer = await self._asked("send", sending.key, outbound_as_json(sending))
        if answer["type"] == "sent":
            id = answer.get("id", "")
            return Sent(id[:200] if isinstance(id, str) else "")
        raise self._failure(answer)

    async def ask(self, key: str) -> Reconciled:
        """What became of a part."""
        answer = await self._asked("ask", key, {})
        state = answer.get("state")
        return Reconciled(state) if state in tuple(Reconciled) else Reconciled.UNKNOWN

    async def _asked(self, type: str, key: str, fields: dict[str, Any]) -> dict[str, Any]:
        """Write a frame and wait for its answer."""
        if self._ended or self._socket.closed:
            raise Offline("the connection is gone")
        name = f"{type}:{key}"
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._answers[name] = answer
        try:
            async with asyncio.timeout(self._account.options.seconds("answer_s")):
                await self._socket.send_str(json.dumps({"type": type, "key": key, **fields}))
                return await answer
        except TimeoutError:
            raise Unclear("no answer came in time") from None
        except (aiohttp.ClientError, OSError):
            raise Unclear("the connection broke while the part was written") from None
        finally:
            if self._answers.get(name) is answer:
                del self._answers[name]

    def _failure(self, answer: dict[str, Any]) -> SendError:
        error, after_s = answer.get("error"), answer.get("after_s")
        text = self._account.scrub(answer.get("text") or "the server refused it")
        wait_s = None
        if isinstance(after_s, int | float) and not isinstance(after_s, bool):
            wait_s = min(max(float(after_s), 0.001), AFTER_S_MAX)
        if error == "permanent":
            return Permanent(text)
        if error == "rate_limited":
            return RateLimited(RATE_LIMITED_S if wait_s is None else wait_s, text)
        if error == "offline":
            return Offline(text, wait_s)
        return Transient(text)

    def end(self) -> None:
        """The connection is gone: what was not answered may have arrived."""
        self._ended = True
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(Unclear("the connection ended before the answer came"))

    # In.

    async def read(self) -> None:
        """Read frames until there are no more."""
        async for frame in self._socket:
            if frame.type is not aiohttp.WSMsgType.TEXT:
                raise Lost("a frame that is no text")
            try:
                await self._frame(strict.loads(frame.data))
            except InvalidInput as error:
                log.warning("%r: a frame that is none of ours: %s", self._account, self._account.scrub(error))
                await self._tell({"type": "error", "text": str(error)})
        code = self._socket.close_code
        if isinstance(self._socket.exception(), aiohttp.ServerTimeoutError):
            raise Lost("no answer to a ping", "timeout")
        raise Lost(f"the connection ended with {code}", "closed" if code == aiohttp.WSCloseCode.OK else "cut")

    async def _frame(self, value: Any) -> None:
        if not isinstance(value, dict):
            raise InvalidInput("a frame must be a JSON object")
        type, key = value.get("type"), value.get("key")
        if type == "message":
            await self._message({name: v for name, v in value.items() if name != "type"})
        elif type in ("sent", "failed", "known") and isinstance(key, str):
            answer = self._answers.get(f"{'ask' if type == 'known' else 'send'}:{key}")
            if answer is not None and not answer.done():
                answer.set_result(value)
        elif type != "error":
            raise InvalidInput("a frame of no known type")

    async def _message(self, value: dict[str, Any]) -> None:
        try:
            inbound = inbound_from(self._account, value)
        except InvalidInput as error:
            id = value.get("id")
            await self._refuse(id if isinstance(id, str) else "", "malformed", str(error), again=False)
            return
        try:
            self._waiting.put_nowait(inbound)
        except asyncio.QueueFull:
            await self._refuse(inbound.id, "full", "too many messages at once", again=True)

    async def store(self) -> None:
        """Hand over together what came together, in its order; the server hears of each when it is durable."""
        while True:
            come = [await self._waiting.get()]
            while not self._waiting.empty():
                come.append(self._waiting.get_nowait())
            # Tasks begin in the order in which they are made, and the engine keeps the order in which it is asked.
            await asyncio.gather(*[self._keep(inbound) for inbound in come])

    async def _keep(self, inbound: Inbound) -> None:
        try:
            await self._account.receive(inbound)
            await self._tell({"type": "received", "id": inbound.id})
        except NotAccepted as error:
            await self._refuse(inbound.id, error.reason, str(error), again=error.reason in PASSING)
        except InvalidInput as error:
            await self._refuse(inbound.id, "malformed", str(error), again=False)
        except StoreError as error:
            await self._refuse(inbound.id, error.code, "the message could not be stored", again=True)

    async def _refuse(self, id: str, reason: str, text: str, *, again: bool) -> None:
        await self._tell({"type": "refused", "id": id, "reason": reason, "text": text[:500], "again": again})

    async def _tell(self, value: dict[str, Any]) -> None:
        try:
            await self._socket.send_str(json.dumps(value))
        except (aiohttp.ClientError, OSError):
            # The server brings the message again, and it is known then.
            log.debug("%r: the connection broke while it was told of a message", self._account)
