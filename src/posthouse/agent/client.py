"""The agent: an identity, its store, and a connection to the relay that is made again whenever it is lost.

    async with Agent("alice", relay="ws://127.0.0.1:8080") as alice:
        await alice.send(bob, "hello")
        async for item in alice.receive():
            print(item.peer, item.text)
            await item.done()

In: what to send, verdicts on what came. Out: what came, and happenings for whoever watches. What is sent is in the
outbox, on disk, when ``send`` returns, whether or not there is a relay; what comes is in the inbox before it is
confirmed. Who may do what on the wire is decided in ``session``; this module moves bytes and time.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import ipaddress
import logging
import os
import random
import secrets
import ssl
import time
import urllib.parse
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from picows import WSCloseCode, WSError, WSFrame, WSListener, WSMsgType, WSTransport, ws_connect

from ..engine.engine import Engine
from ..errors import EngineClosed, InvalidInput, OutboxFull, RelayRefused, StoreError
from ..mailbox.command import Command, Lease, Release, Settle, Verdict
from ..mailbox.message import Ref, State
from ..mailbox.outcome import Delivery, Leased, Outcome, Refused
from ..mailbox.store import MessageView
from ..stores.sqlite import SqliteStore
from ..wire.envelope import FRAME_BYTES_MAX
from . import desk
from .book import TEXT, Book, Draft
from .contact import Contact
from .courier import Courier
from .happening import Connected, Denied, Disconnected, Happening
from .identity import FILE_NAME, Identity
from .session import Session, Then
from .uuid7 import uuid7

log = logging.getLogger("posthouse.agent")

CONNECT_S = 15.0
BACKOFF_FIRST_S = 0.5
BACKOFF_CAP_S = 30.0
TICK_S = 0.25
HELD_MAX = 256
"""Messages that wait in memory to be written; the rest waits in the outbox."""
BUSY_TRIES = 3
"""Connections of the same address that a relay may refuse in a row before we believe it."""
BUSY = "address already connected"


class Item:
    """Something that came: a message, a request, an answer or a confirmation."""

    def __init__(self, agent: Agent, delivery: Delivery) -> None:
        self._agent = agent
        self._ref = delivery.message.ref
        self.plain: dict[str, Any] = agent.book.shown(_as_view(delivery))
        """All that is known of it, as plain values."""

    @property
    def id(self) -> str:
        """Its id; of a confirmation, ``confirm:`` and that of the message."""
        return self._ref.id

    @property
    def peer(self) -> str:
        """The address that it came from."""
        return self._ref.mailbox

    @property
    def kind(self) -> str:
        """message, delivery_confirm, connection_request, connection_response or connection_revoke."""
        return str(self.plain["kind"])

    @property
    def text(self) -> str:
        """What it says, where it says something in text; else ''."""
        return str(self.plain.get("text") or "")

    async def done(self) -> None:
        """It was looked at: it will not come again."""
        await self._agent.engine.do(Settle(self._ref, None, Verdict.DELIVERED))

    def __repr__(self) -> str:
        return f"<Item {self.kind} {self.id!r} from {self.peer!r}>"


class Agent:
    """One agent, open for as long as its ``async with`` block lasts."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        relay: str | None = None,
        *,
        host: str | None = None,
        create: bool = True,
        identity: Identity | None = None,
        ssl_context: ssl.SSLContext | None = None,
        on_happening: Callable[[Happening], None] | None = None,
    ) -> None:
        """``folder`` holds its identity (made there the first time, if ``create``) and its store.

        Whose ``identity`` is given keeps it elsewhere: then the folder holds the store alone.

        ``relay`` is a ws:// or wss:// URL; without one nothing is sent or received for now. ``host`` is the name that
        the relay must have; else it is the one it had before, else that of the URL.
        """
        self.folder = Path(folder)
        self._url = None if relay is None else relay_url(relay)
        self._wanted_host = host
        self._create = create
        self._identity = identity
        self._ssl = ssl_context
        self._on_happening = on_happening
        self._session: Session | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._busy = 0
        self._denied: str | None = None
        self._was_admitted = False
        self._failures = 0
        """Connections in a row that were not made."""

    async def __aenter__(self) -> Agent:
        self._loop = asyncio.get_running_loop()
        self._failed: asyncio.Future[None] = self._loop.create_future()
        self._news = asyncio.Event()
        self._admitted = asyncio.Event()
        self._room = asyncio.Event()
        identity, store = await asyncio.to_thread(self._open)
        self.engine = Engine(store)
        self.book = Book(identity, store)
        self._posting = asyncio.Lock()
        self._courier = Courier(f"agent-{secrets.token_hex(8)}")
        try:
            await self.engine.astart()
            if self._url is not None:
                self._tasks = [self._loop.create_task(self._run(self._url)), self._loop.create_task(self._pump())]
                for task in self._tasks:
                    task.add_done_callback(self._ended)
        except BaseException:
            await self.engine.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        try:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        finally:
            # Also where whoever leaves is cancelled meanwhile: the store must not stay open.
            if not self._failed.done():
                self._failed.cancel()
            elif not self._failed.cancelled():
                self._failed.exception()
            token = self._courier.token
            await self.engine.aclose(lambda: [Release(desk.OUTBOX.name, token)])

    def _open(self) -> tuple[Identity, SqliteStore]:
        identity = self._identity
        if identity is None:
            path = self.folder / FILE_NAME
            if self._create and not path.exists():
                Identity.generate().save(path, datetime.datetime.now(datetime.UTC).isoformat())
            identity = Identity.load(path)
        else:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        store = SqliteStore.open(self.folder / desk.STORE_NAME, desk.POLICIES, desk.node_of(identity.public_key))
        return identity, store

    # What a user does.

    @property
    def public_key(self) -> bytes:
        """Our Ed25519 key."""
        return self.book.identity.public_key

    @property
    def address(self) -> str | None:
        """Our address; None before the first connection."""
        return self.book.address

    @property
    def connected(self) -> bool:
        """Whether the relay has admitted us now."""
        return self._admitted.is_set()

    async def wait_connected(self, timeout_s: float | None = None, tries: int | None = None) -> str:
        """Wait until the relay admits us; our address.

        RelayRefused if it does not admit us; TimeoutError if it is too late or ``tries`` connections failed in a row.
        """

        async def until_connected() -> None:
            while not self._admitted.is_set() and (tries is None or self._failures < tries):
                self._news.clear()
                await self._news.wait()

        await self._or_failed(until_connected(), timeout_s)
        if not self._admitted.is_set():
            raise TimeoutError
        address = self.address
        assert address is not None
        return address

    async def send(self, to: str, content: str | bytes, content_type: str = TEXT, *, id: str | None = None) -> str:
        """Send a message to an address or a contact's name: its id, once it is in the outbox, on disk.

        Who gives it an ``id`` (a UUID) may repeat the call: what the outbox knows is not sent again.
        """
        raw = content.encode() if isinstance(content, str) else content
        # One at a time: each counts on from the one before.
        async with self._posting:
            random = secrets.token_bytes(34)
            return await self._post(self.book.message(to, raw, content_type, self._now_ms(), random, id))

    async def connect(self, to: str, greeting: str = "", name: str = "") -> str:
        """Ask an agent whether we may write to each other."""
        return await self._post(self.book.request(to, greeting, name, self._now_ms(), secrets.token_bytes(10)))

    async def accept(self, who: str, name: str = "") -> str:
        """Say yes to an agent that asked."""
        return await self._post(self.book.accept(who, name, self._now_ms(), secrets.token_bytes(10)))

    async def reject(self, who: str) -> None:
        """Do not answer an agent that asked."""
        await self.engine.do(self.book.reject(who, self._now_ms()))

    async def block(self, who: str) -> str:
        """Take nothing more from an agent."""
        return await self._post(self.book.block(who, self._now_ms(), secrets.token_bytes(10)))

    async def unblock(self, who: str) -> str:
        """Undo it."""
        return await self._post(self.book.unblock(who, self._now_ms(), secrets.token_bytes(10)))

    def contacts(self) -> list[Contact]:
        """Everybody we have to do with."""
        return self.book.contacts()

    def receive(self, wait_s: float | None = None) -> AsyncIterator[Item]:
        """What came, as it comes; ends when nothing came for ``wait_s`` seconds. Settle each with ``done``."""
        return self._receive(wait_s)

    async def wait_state(self, to: str, id: str, states: Sequence[str], timeout_s: float | None = None) -> str:
        """Wait until a message that we sent is in one of these states (see the guide); the state that it is in."""
        recipient = self.book.resolve(to)
        until = None if timeout_s is None else self._loop.time() + timeout_s
        while True:
            self._news.clear()
            found = self.book.sent(recipient, id)
            state = "unknown" if found is None else str(found["state"])
            if state in states or found is None:
                return state
            left_s = None if until is None else until - self._loop.time()
            if left_s is not None and left_s <= 0:
                return state
            try:
                await self._or_failed(self._news.wait(), left_s)
            except TimeoutError:
                continue

    async def settle_down(self, quiet_s: float) -> None:
        """Wait until nothing came from the relay for so long, and all that came is committed and confirmed."""
        while True:
            self._news.clear()
            await self.engine.amaintain(lambda store: None)
            try:
                await self._or_failed(self._news.wait(), quiet_s)
            except TimeoutError:
                return

    async def _post(self, draft: Draft) -> str:
        outcome = await self.engine.do(draft.command)
        if isinstance(outcome, Refused):
            raise OutboxFull(f"the outbox does not take it: {outcome.detail or outcome.reason}")
        return draft.id

    async def _receive(self, wait_s: float | None) -> AsyncIterator[Item]:
        while True:
            lease = Lease(desk.INBOX.name, None, f"reader-{secrets.token_hex(8)}", "reader")
            waiting = asyncio.ensure_future(self.engine.alease(lease, wait_s))
            try:
                leased = await self._or_failed(waiting)
            except EngineClosed:
                return
            except BaseException:
                waiting.cancel()
                self._give_back(lease)
                raise
            assert isinstance(leased, Leased)
            if not leased.deliveries:
                return
            try:
                for delivery in leased.deliveries:
                    yield Item(self, delivery)
            except GeneratorExit:
                # What was not settled comes again.
                self._give_back(lease)
                raise

    def _give_back(self, lease: Lease) -> None:
        # The lease may be on its way still. The release goes behind it, and nobody waits for it.
        with contextlib.suppress(StoreError):
            self.engine.submit(Release(desk.INBOX.name, lease.token)).add_done_callback(_forget)

    async def _or_failed(self, waited: Any, timeout_s: float | None = None) -> Any:
        """Wait for something, or for the end of all hope: RelayRefused, TimeoutError."""
        task = asyncio.ensure_future(waited)
        try:
            await asyncio.wait({task, self._failed}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            if self._failed.done():
                self._failed.result()
            raise TimeoutError
        finally:
            if not task.done():
                task.cancel()

    # The connection.

    def _ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or self._failed.done():
            return
        error = task.exception()
        if error is not None and not isinstance(error, EngineClosed):
            self._failed.set_exception(error)

    async def _run(self, url: str) -> None:
        while True:
            reason = await self._connection(url)
            if denied := self._take_denied():
                self._busy = self._busy + 1 if denied == BUSY else BUSY_TRIES
                if self._busy >= BUSY_TRIES:
                    raise RelayRefused(f"the relay at {url} does not admit us: {denied}")
                reason = denied
            self._failures = 0 if self._was_admitted else self._failures + 1
            self._was_admitted = False
            retry_s = min(BACKOFF_FIRST_S * 2 ** min(self._failures, 10), BACKOFF_CAP_S) * (0.5 + random.random() / 2)
            self.tell(Disconnected(reason, retry_s))
            await asyncio.sleep(retry_s)

    def _take_denied(self) -> str | None:
        denied, self._denied = self._denied, None
        return denied

    async def _connection(self, url: str) -> str:
        """One connection from its beginning to its end; why it ended."""
        host = self._wanted_host or self.book.host or _host_of(url)
        try:
            async with asyncio.timeout(CONNECT_S):
                _, wire = await ws_connect(
                    lambda: _Wire(self, host),
                    url,
                    ssl_context=self._ssl,
                    enable_auto_pong=False,
                    enable_auto_ping=False,
                    max_frame_size=FRAME_BYTES_MAX,
                    max_redirects=0,
                    logger_name=log,
                )
        except TimeoutError:
            return "the relay does not answer"
        except (OSError, WSError, ValueError) as error:
            return f"cannot connect: {str(error) or type(error).__name__}"
        if not isinstance(wire, _Wire):
            # It is none where the connection was lost before the handshake was over.
            return "the relay hung up before it had answered"
        try:
            while not wire.closed.is_set():
                # Not wait_for: where both come at once, it takes the end of the connection for that of this task.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(TICK_S):
                        await wire.closed.wait()
                wire.session.tick()
                self._make_room()
        finally:
            self._session = None
            self._admitted.clear()
            wire.session.lost()
            wire.hang_up()
        return wire.reason or "the connection was cut"

    async def _pump(self) -> None:
        """Takes from the outbox whether or not there is a connection: what is taken is in one place, the courier."""
        while True:
            while self._courier.waiting >= HELD_MAX:
                self._room.clear()
                await self._room.wait()
            lease = Lease(desk.OUTBOX.name, None, self._courier.token, "agent", limit=HELD_MAX)
            leased = await self.engine.alease(lease)
            assert isinstance(leased, Leased)
            if self._session is not None:
                self._session.taken(leased.deliveries)
            else:
                commands = self._courier.taken(leased.deliveries, self._now_ms())
                if commands:
                    await self.engine.apply(*commands)

    def opened(self, session: Session) -> None:
        """A connection is made; it speaks through this session."""
        self._session = session

    def _make_room(self) -> None:
        if self._courier.waiting < HELD_MAX:
            self._room.set()

    # What a session asks of its agent.

    @property
    def courier(self) -> Courier:
        """What was taken from the outbox."""
        return self._courier

    def now_us(self) -> int:
        """The time."""
        return self.engine.now()

    def _now_ms(self) -> int:
        return self.engine.now() // 1_000

    def monotonic_s(self) -> float:
        """A clock that is never set."""
        return time.monotonic()

    def random(self) -> float:
        """Between 0 and 1."""
        return random.random()

    def new_id(self) -> str:
        """An id for a new message."""
        return uuid7(self._now_ms(), secrets.token_bytes(10))

    def submit(self, commands: tuple[Command, ...], then: Then) -> None:
        """Apply commands; ``then`` hears of it when they are durable."""
        future = self.engine.submit(*commands)

        def committed(future: asyncio.Future[list[Outcome]]) -> None:
            if future.cancelled():
                return
            error = future.exception()
            if error is not None:
                # Nothing was confirmed, so nothing is lost. Without a store there is no use in going on.
                if not self._failed.done() and not isinstance(error, EngineClosed):
                    self._failed.set_exception(error)
                return
            then(future.result())
            self._make_room()
            self._news.set()

        future.add_done_callback(committed)

    def contact(self, address: str) -> Contact | None:
        """One contact."""
        return self.book.contact(address)

    def is_known(self, ref: Ref) -> bool:
        """Whether the store has heard of a message."""
        return self.engine.store.message(ref) is not None

    def bodies(self, refs: Sequence[Ref]) -> list[bytes | None]:
        """The bodies of messages."""
        return self.engine.store.bodies(refs)

    def tell(self, happening: Happening) -> None:
        """Something happened."""
        if isinstance(happening, Connected):
            self._busy, self._was_admitted = 0, True
            if self.book.host != happening.host:
                # Known to all readers before anybody is told.
                self.submit((self.book.keep_host(happening.host),), lambda outcomes: self._admitted.set())
            else:
                self._admitted.set()
        elif isinstance(happening, Denied):
            self._denied = happening.reason
        self._news.set()
        if self._on_happening is not None:
            self._on_happening(happening)


class _Wire(WSListener):
    """The socket's side of one connection."""

    def __init__(self, agent: Agent, host: str | None) -> None:
        self._agent = agent
        self._host = host
        self._transport: WSTransport | None = None
        self._parts: list[bytes] = []
        self.closed = asyncio.Event()
        self.reason = ""

    def on_ws_connected(self, transport: WSTransport) -> None:
        self._transport = transport
        agent = self._agent
        self.session = Session(agent.book.identity, agent.courier, agent, self, self._host)
        agent.opened(self.session)

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        kind = frame.msg_type
        if kind == WSMsgType.PING:
            self.session.ping(frame.get_payload_as_bytes())
        elif kind == WSMsgType.PONG:
            self.session.pong(frame.get_payload_as_bytes())
        elif kind == WSMsgType.CLOSE:
            # Text of a stranger, but never more than a hundred bytes.
            words = (frame.get_close_message() or b"").decode(errors="replace")
            self.reason = self.reason or f"the relay closed the connection: {words or frame.get_close_code()}"
            self.hang_up()
        else:
            data = frame.get_payload_as_bytes()
            if self._parts or not frame.fin:
                self._parts.append(data)
                if sum(map(len, self._parts)) > FRAME_BYTES_MAX:
                    self.close(1009, "a message that is too large")
                    return
                if not frame.fin:
                    return
                data = b"".join(self._parts)
                self._parts.clear()
            self.session.frame(data)

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        self.closed.set()

    def hang_up(self) -> None:
        """Close politely, if it is still open."""
        transport = self._transport
        if transport is not None and not transport.is_disconnected:
            if not transport.is_close_frame_sent:
                transport.send_close(WSCloseCode.OK)
            transport.disconnect()

    # What the session does with it.

    def send(self, data: bytes) -> None:
        assert self._transport is not None
        self._transport.send(WSMsgType.BINARY, data)

    def ping(self, payload: bytes) -> None:
        assert self._transport is not None
        self._transport.send_ping(payload)

    def pong(self, payload: bytes) -> None:
        assert self._transport is not None
        self._transport.send_pong(payload)

    def close(self, code: int, reason: str) -> None:
        self.reason = self.reason or reason
        transport = self._transport
        if transport is not None and not transport.is_disconnected:
            transport.send_close(WSCloseCode(code), reason.encode()[:120])
            transport.disconnect()


def relay_url(text: str) -> str:
    """A relay's URL as it is dialled: with /ws behind it. InvalidInput if it is none."""
    try:
        parts = urllib.parse.urlsplit(text.strip())
        good = parts.scheme in ("ws", "wss") and parts.hostname and (parts.port is None or parts.port > 0)
    except ValueError:
        good = False
    if not good or parts.username is not None or parts.query or parts.fragment:
        raise InvalidInput(f"a relay's URL is ws://host:port or wss://host:port: {text[:80]!r}")
    path = parts.path.rstrip("/")
    return urllib.parse.urlunsplit((parts.scheme, parts.netloc, path if path.endswith("/ws") else path + "/ws", "", ""))


def _host_of(url: str) -> str | None:
    """The name that the relay of a URL should have; None where the URL does not tell, as on this very machine."""
    host = urllib.parse.urlsplit(url).hostname or ""
    if host == "localhost":
        return None
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return host
    return None


def _as_view(delivery: Delivery) -> MessageView:
    return MessageView(
        message=delivery.message, number=0, seq=delivery.seq, state=State.LEASED, posted_at=delivery.posted_at,
        attempts=0, unreceived=0, life=1, due_at=0, expires_at=None, token=None, holder=None, lease_ends_at=None,
        progress=0, batch=None, reason=None, error=None, since=None, memory=False,
    )  # fmt: skip


def _forget(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()
