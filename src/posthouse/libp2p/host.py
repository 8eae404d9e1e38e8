"""A host: one identity that listens, dials, and speaks protocols with other peers.

In: handlers for protocols, peers to dial. Out: streams, and events when a peer comes, goes, or says who it is. Whoever
is connected has proven its peer id. Numbers of connections are bounded before and after that proof. Closing it ends
everything that it began.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from . import identify, multiaddr, ping
from .book import AddressBook
from .connection import Connection
from .dialling import dial_any
from .errors import BadInput, ConnectionLost, DialFailed, Libp2pError, LimitReached
from .identify import Info
from .key import PrivateKey
from .multiaddr import Multiaddr
from .peer_id import PeerId
from .settings import Settings
from .stream import Stream
from .yamux import Memory

log = logging.getLogger(__name__)

Handler = Callable[[Stream], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True)
class Connected:
    """A peer is there: its first connection."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class Identified:
    """A peer has said who it is; again when that changes."""

    peer: PeerId
    info: Info


@dataclass(frozen=True, slots=True)
class Disconnected:
    """A peer is gone: its last connection."""

    peer: PeerId
    error: Exception | None
    """Why; None: one side closed it."""


Event = Connected | Identified | Disconnected
Watcher = Callable[[Event], None]


@dataclass(frozen=True, slots=True)
class Counts:
    """What the host has seen, for its operator."""

    connections: int
    inbound: int
    pending: int
    """Inbound connections that have not shown who they are yet."""
    streams: int
    refused: int
    """Connections that were closed because of a limit."""
    failed_handshakes: int


class Host:
    """One identity on the network."""

    def __init__(self, key: PrivateKey, settings: Settings | None = None) -> None:
        self._key = key
        self.settings = settings or Settings()
        self.peer_id = PeerId.of(key.public)
        self.book = AddressBook(self.settings.peers_known_max, self.settings.addresses_known_max)
        self._memory = Memory(self.settings.unread_bytes_max)
        self._handlers: dict[str, Handler] = {}
        self._peers: dict[PeerId, list[Connection]] = {}
        self._info: dict[PeerId, Info] = {}
        self._pending: set[Connection] = set()
        self._inbound = 0
        self._dials: dict[PeerId, asyncio.Task[Connection]] = {}
        self._servers: list[asyncio.Server] = []
        self._watchers: list[Watcher] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._pushing: asyncio.TimerHandle | None = None
        self._curious: dict[PeerId, list[asyncio.Future[Info]]] = {}
        self._version = 0
        self._told: dict[PeerId, int] = {}
        self._closed = False
        self._refused = 0
        self._failed = 0
        self.handle(identify.PROTOCOL, self._tell)
        self.handle(identify.PUSH, self._hear)
        self.handle(ping.PROTOCOL, ping.answer)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # What we speak.

    def handle(self, protocol: str, handler: Handler) -> None:
        """Serve a protocol. The stream is closed when the handler returns, and reset when it raises."""
        if not 0 < len(protocol.encode()) <= 255 or "\n" in protocol:
            raise BadInput(f"a protocol's name has 1 to 255 bytes and no line end: {protocol!r}")
        self._handlers[protocol] = handler
        self._push_soon()

    def unhandle(self, protocol: str) -> None:
        """Serve it no more; streams that are open go on."""
        self._handlers.pop(protocol, None)
        self._push_soon()

    @property
    def protocols(self) -> list[str]:
        """What we serve."""
        return list(self._handlers)

    def watch(self, watcher: Watcher) -> Callable[[], None]:
        """Call it on every event; what is returned ends that."""
        self._watchers.append(watcher)
        return lambda: self._watchers.remove(watcher) if watcher in self._watchers else None

    # Listening.

    async def listen(self, address: Multiaddr | str) -> list[Multiaddr]:
        """Take connections at a TCP address; port 0 takes any free one. The addresses with our peer id."""
        if isinstance(address, str):
            address = Multiaddr.parse(address)
        endpoint = address.endpoint
        if endpoint is None or endpoint.kind not in ("ip4", "ip6"):
            raise BadInput(f"only plain TCP addresses can be listened on, as /ip4/127.0.0.1/tcp/4001: {address}")
        if self._closed:
            raise ConnectionLost("the host is closed")
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            lambda: Connection(self, self._key, self.settings, False, None, self._memory).protocol,
            endpoint.host,
            endpoint.port,
            backlog=self.settings.backlog,
            family=socket.AF_INET if endpoint.kind == "ip4" else socket.AF_INET6,
        )
        self._servers.append(server)
        self._push_soon()
        return [found.at(self.peer_id) for found in _addresses(server)]

    @property
    def addresses(self) -> list[Multiaddr]:
        """Where we can be dialled, with our peer id; what ``announce`` says if it says anything."""
        if self.settings.announce:
            return [Multiaddr.parse(text).at(self.peer_id) for text in self.settings.announce]
        return [address.at(self.peer_id) for server in self._servers for address in _addresses(server)]

    # Peers.

    @property
    def peers(self) -> list[PeerId]:
        """Who is connected."""
        return list(self._peers)

    def is_connected(self, peer: PeerId) -> bool:
        """Whether there is a connection that takes streams."""
        return self._connection(peer) is not None

    def connections(self, peer: PeerId) -> list[Connection]:
        """All connections with a peer, oldest first."""
        return list(self._peers.get(peer, ()))

    def info(self, peer: PeerId) -> Info | None:
        """What a connected peer said of itself; None while it has not."""
        return self._info.get(peer)

    def rtt_s(self, peer: PeerId) -> float | None:
        """Seconds there and back, as the last keep-alive took them; None while there was none."""
        return next((each.rtt_s for each in reversed(self._peers.get(peer, ())) if each.rtt_s is not None), None)

    async def identified(self, peer: PeerId) -> Info:
        """Wait until a connected peer has said who it is; ConnectionLost if it goes before, or never came."""
        info = self._info.get(peer)
        if info is not None:
            return info
        if peer not in self._peers:
            raise ConnectionLost(f"{peer} is not connected")
        answer: asyncio.Future[Info] = asyncio.get_running_loop().create_future()
        self._curious.setdefault(peer, []).append(answer)
        return await answer

    @property
    def counts(self) -> Counts:
        """Numbers for an operator."""
        streams = sum(connection.streams for all_ in self._peers.values() for connection in all_)
        connections = sum(map(len, self._peers.values()))
        return Counts(connections, self._inbound, len(self._pending), streams, self._refused, self._failed)

    async def dial(self, to: PeerId | Multiaddr | str, addresses: Iterable[Multiaddr] = ()) -> Connection:
        """A connection with a peer: the one that is there, or a new one. DialFailed says what was tried.

        ``to`` is a peer id, or an address that ends with one (/p2p/…). Who dials a peer that is being dialled
        already waits for the same connection; if that fails, it is tried once more with the addresses given here.
        """
        if isinstance(to, str):
            to = Multiaddr.parse(to) if to.startswith("/") else PeerId.parse(to)
        if isinstance(to, Multiaddr):
            peer = to.peer_id
            if peer is None:
                raise BadInput(f"an address to dial ends with the peer that must be there (/p2p/…): {to}")
            addresses = (to, *addresses)
        else:
            peer = to
        if peer == self.peer_id:
            raise DialFailed("that is ourselves")
        if self._closed:
            raise ConnectionLost("the host is closed")
        told = tuple(addresses)
        # Kept for later even where there is a connection: it may be one whose end is not known yet.
        self.book.add(peer, told)
        found = self._connection(peer)
        if found is not None:
            return found
        under_way = self._dials.get(peer)
        if under_way is not None:
            try:
                return await asyncio.shield(under_way)
            except DialFailed:
                if not told:
                    raise
        return await asyncio.shield(self._dials.get(peer) or self._begin(peer))

    def _begin(self, peer: PeerId) -> asyncio.Task[Connection]:
        """Begin to dial a peer."""
        if len(self._dials) >= self.settings.dials_max:
            raise LimitReached(f"{len(self._dials)} peers are being dialled already")
        if sum(map(len, self._peers.values())) >= self.settings.connections_max:
            raise LimitReached(f"there are {self.settings.connections_max} connections already")
        task = self._dials[peer] = asyncio.create_task(self._dial(peer))
        task.add_done_callback(lambda done: self._dialled(peer, done))
        return task

    def _dialled(self, peer: PeerId, task: asyncio.Task[Connection]) -> None:
        del self._dials[peer]
        if not task.cancelled():
            # Nobody may be waiting any more.
            task.exception()

    async def _dial(self, peer: PeerId) -> Connection:
        settings = self.settings
        try:
            connection, address = await dial_any(
                self.book.of(peer),
                lambda: Connection(self, self._key, settings, True, peer, self._memory),
                settings.dial_stagger_s,
                settings.dial_s,
            )
        except DialFailed as error:
            # The other side may have come to us meanwhile.
            found = self._connection(peer)
            if found is not None:
                return found
            raise DialFailed(f"cannot reach {peer}: {error}") from None
        self.book.add(peer, [address], first=True)
        return connection

    async def disconnect(self, peer: PeerId) -> None:
        """Close every connection with a peer."""
        await asyncio.gather(*(connection.close() for connection in self.connections(peer)))

    # Streams.

    async def open_stream(self, peer: PeerId, *protocols: str, dial: bool = True) -> Stream:
        """A stream with a peer: the first of the protocols that it speaks.

        A protocol that the peer said it speaks is relied on: the stream can be written to at once. A peer that is not
        connected is dialled, unless ``dial`` is False: then ConnectionLost is raised.
        """
        connection = self._connection(peer)
        if connection is None:
            if not dial:
                raise ConnectionLost(f"{peer} is not connected")
            connection = await self.dial(peer)
        info = self._info.get(peer)
        if info is not None:
            for protocol in protocols:
                if protocol in info.protocols:
                    return connection.open_stream([protocol], known=True)
        stream = connection.open_stream(protocols)
        try:
            async with asyncio.timeout(self.settings.negotiate_s):
                await stream.agreed()
        except BaseException:
            stream.reset()
            raise
        return stream

    async def ping(self, peer: PeerId) -> float:
        """Seconds there and back, over the ping protocol."""
        async with await self.open_stream(peer, ping.PROTOCOL) as stream:
            return await ping.ask(stream)

    def _connection(self, peer: PeerId) -> Connection | None:
        for connection in self._peers.get(peer, ()):
            if connection.is_open and connection.session.gone_away is None:
                return connection
        return None

    # Tasks.

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run something until it ends or the host closes."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ran)
        return task

    def _ran(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a task failed", exc_info=error)

    async def close(self) -> None:
        """Stop listening, end what runs, close every connection."""
        if self._closed:
            return
        self._closed = True
        if self._pushing is not None:
            self._pushing.cancel()
        for server in self._servers:
            server.close()
        tasks = [*self._tasks, *self._dials.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for connection in list(self._pending):
            connection.abort()
        await asyncio.gather(*(connection.close() for all_ in list(self._peers.values()) for connection in list(all_)))
        for server in self._servers:
            await server.wait_closed()
        self._servers.clear()

    # What connections ask (connection.Owner).

    def admit(self, connection: Connection) -> bool:
        """See ``Owner``."""
        if self._closed:
            return False
        if not connection.dialled:
            settings = self.settings
            full = (
                len(self._pending) >= settings.pending_max
                or self._inbound + len(self._pending) >= settings.inbound_max
                or sum(map(len, self._peers.values())) + len(self._pending) >= settings.connections_max
            )
            if full:
                self._refused += 1
                return False
            self._pending.add(connection)
        return True

    def connected(self, connection: Connection) -> None:
        """See ``Owner``."""
        self._pending.discard(connection)
        peer = connection.peer
        if peer == self.peer_id:
            raise LimitReached("that is ourselves")
        known = self._peers.setdefault(peer, [])
        if len(known) >= self.settings.per_peer_max:
            self._refused += 1
            raise LimitReached(f"{peer} has {len(known)} connections already")
        known.append(connection)
        if not connection.dialled:
            self._inbound += 1
        if len(known) == 1:
            self._say(Connected(peer))
        self.spawn(self._ask(connection))

    def ended(self, connection: Connection) -> None:
        """See ``Owner``."""
        if connection in self._pending:
            self._pending.discard(connection)
            self._failed += 1
            return
        peer = getattr(connection, "peer", None)
        known = self._peers.get(peer, []) if peer is not None else []
        if connection not in known:
            return
        assert peer is not None
        known.remove(connection)
        if not connection.dialled:
            self._inbound -= 1
        if not known:
            del self._peers[peer]
            self._info.pop(peer, None)
            self._told.pop(peer, None)
            for answer in self._curious.pop(peer, ()):
                if not answer.done():
                    answer.set_exception(ConnectionLost(f"{peer} went before it said who it is"))
            self._say(Disconnected(peer, connection.error))

    def speaks(self, protocol: str) -> bool:
        """See ``Owner``."""
        return protocol in self._handlers

    def serve(self, stream: Stream) -> None:
        """See ``Owner``."""
        handler = self._handlers.get(stream.protocol)
        if handler is None or self._closed:
            stream.reset()
            stream.connection.served(stream)
            return
        self.spawn(self._run(handler, stream))

    async def _run(self, handler: Handler, stream: Stream) -> None:
        try:
            await handler(stream)
        except asyncio.CancelledError:
            stream.reset()
            raise
        except (Libp2pError, TimeoutError) as error:
            log.debug("%s with %s ended: %s", stream.protocol, stream.peer, error)
            stream.reset()
        except Exception:
            log.exception("the handler of %s failed", stream.protocol)
            stream.reset()
        else:
            stream.close()
        finally:
            stream.connection.served(stream)

    def _say(self, event: Event) -> None:
        for watcher in list(self._watchers):
            try:
                watcher(event)
            except Exception:
                log.exception("a watcher failed")

    # Identify.

    async def _tell(self, stream: Stream) -> None:
        await stream.write_frame(self._about_us(stream.connection))

    def _about_us(self, connection: Connection) -> bytes:
        if connection.is_open:
            self._told[connection.peer] = self._version
        return identify.encode(
            self._key.public, self.settings.agent, self._handlers, self.addresses, connection.address
        )

    async def _hear(self, stream: Stream) -> None:
        await self._learn(stream)

    async def _ask(self, connection: Connection) -> None:
        """Ask a new connection who it is; who does not say stays unidentified."""
        try:
            stream = connection.open_stream([identify.PROTOCOL], known=True)
            try:
                stream.close_write()
                await self._learn(stream)
            finally:
                stream.close()
        except (Libp2pError, TimeoutError) as error:
            log.debug("%s does not say who it is: %s", connection.peer, error)

    async def _learn(self, stream: Stream) -> None:
        settings = self.settings
        async with asyncio.timeout(settings.identify_s):
            data = await stream.read_frame(settings.identify_bytes_max)
        info = identify.decode(data, settings)
        peer = stream.peer
        if peer in self._peers:
            self._info[peer] = info
            self.book.add(peer, info.addresses)
            for answer in self._curious.pop(peer, ()):
                if not answer.done():
                    answer.set_result(info)
            self._say(Identified(peer, info))
            if self._told.get(peer, self._version) != self._version:
                self.spawn(self._push_to(peer))

    def _push_soon(self) -> None:
        """Tell those who are connected what has changed about us, once a turn."""
        self._version += 1
        if self._peers and self._pushing is None and not self._closed:
            self._pushing = asyncio.get_running_loop().call_later(0, self._push)

    def _push(self) -> None:
        self._pushing = None
        for peer in self._peers:
            # Who has not said yet what it takes is told when it does.
            if peer in self._info:
                self.spawn(self._push_to(peer))

    async def _push_to(self, peer: PeerId) -> None:
        info = self._info.get(peer)
        if info is None or identify.PUSH not in info.protocols:
            return
        try:
            async with asyncio.timeout(self.settings.identify_s):
                async with await self.open_stream(peer, identify.PUSH, dial=False) as stream:
                    await stream.write_frame(self._about_us(stream.connection))
        except (Libp2pError, TimeoutError) as error:
            log.debug("cannot tell %s what has changed: %s", peer, error)


def _addresses(server: asyncio.Server) -> Sequence[Multiaddr]:
    """Where a server can be dialled; one that listens everywhere can be at the address that leads outside, and here."""
    found = []
    for one in server.sockets:
        host, port = one.getsockname()[:2]
        if host in ("0.0.0.0", "::"):
            found += [multiaddr.tcp(each, port) for each in _own_hosts(one.family)]
        else:
            found.append(multiaddr.tcp(host, port))
    return found


def _own_hosts(family: int) -> list[str]:
    """Our address towards the world, if there is one, and the loopback. Nothing is sent to find out."""
    hosts = []
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1" if family == socket.AF_INET else "2001:db8::1", 9))
            hosts.append(probe.getsockname()[0])
        except OSError:
            pass
    hosts.append("127.0.0.1" if family == socket.AF_INET else "::1")
    return list(dict.fromkeys(hosts))
