"""One connection to a peer: a socket with the upgrade, the sealed channel and the multiplexer on it.

In: what the socket brings, and what streams write. Out: streams, and the news that the connection is there or gone. All
that is written in one turn of the event loop leaves in one sealed frame. It asks a silent peer for a sign of life and
ends when none comes. What it holds for the other side is bounded; whoever does not read its answers is cut off.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Protocol, cast

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from . import multiaddr, multistream, noise, yamux
from .errors import ConnectionLost, Libp2pError, LimitReached, WireError
from .key import PrivateKey, PublicKey
from .multiaddr import Multiaddr
from .peer_id import PeerId
from .settings import Settings
from .stream import Stream
from .upgrade import Upgrade
from .yamux import Flow

_FEW_STREAMS = 4
_JOINED_BYTES_MAX = 16_384


class Owner(Protocol):
    """What a connection needs of its host."""

    def admit(self, connection: Connection) -> bool:
        """A bare connection is there; False: there is no room for it."""

    def connected(self, connection: Connection) -> None:
        """It is secured: we know who it is. LimitReached: it is not wanted."""

    def ended(self, connection: Connection) -> None:
        """It is gone."""

    def speaks(self, protocol: str) -> bool:
        """Whether there is somebody to serve that protocol."""

    def serve(self, stream: Stream) -> None:
        """The other side has opened a stream and agreed on a protocol."""


class Connection:
    """A connection, from its socket to its end.

    It is what asyncio calls a protocol, and does not inherit from one: where it is compiled, a weak reference to it
    would not be told of its end then. ``protocol`` is how asyncio gets it.
    """

    def __init__(
        self,
        owner: Owner,
        key: PrivateKey,
        settings: Settings,
        dialled: bool,
        expected: PeerId | None,
        memory: yamux.Memory,
    ) -> None:
        self._owner = owner
        self._settings = settings
        self.dialled = dialled
        """Whether we dialled."""
        self.loop = asyncio.get_running_loop()
        self._upgrade: Upgrade | None = Upgrade(
            dialled, key, X25519PrivateKey.generate(), X25519PrivateKey.generate(), expected
        )
        self._channel: noise.Channel
        self.session = yamux.Session(dialled, settings.bounds, memory)
        self.peer: PeerId
        self.public_key: PublicKey
        self.address: Multiaddr | None = None
        """Where the other side is, as the socket says."""
        self.is_open = False
        """Secured and not ended."""
        self.error: Exception | None = None
        """Why it ended; None: because one side closed it."""
        self.ready: asyncio.Future[None] = self.loop.create_future()
        """Done when it is secured, or failed with what was wrong."""
        self.gone = asyncio.Event()
        self.rtt_s: float | None = None
        """How long the last sign of life took."""
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._heard_at = self._asked_at = self._ticked_at = 0.0
        self._asked = 0
        self._flushing = False
        self._pending_bytes = 0
        self._paused = False
        self._writers: list[Stream] = []
        self._negotiating: dict[Flow, float] = {}
        self._lingering: dict[Flow, float] = {}
        self._serving: Counter[str] = Counter()

    def __repr__(self) -> str:
        who = self.peer if self.is_open else "nobody yet" if self._upgrade is not None else "nobody any more"
        return f"<Connection {'to' if self.dialled else 'from'} {who} at {self.address}>"

    # The socket.

    @property
    def protocol(self) -> asyncio.Protocol:
        """This, as the event loop's types want it."""
        return cast(asyncio.Protocol, self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=self._settings.write_high_bytes)
        name = transport.get_extra_info("peername")
        if name:
            self.address = multiaddr.tcp(name[0], name[1])
        if not self._owner.admit(self):
            self._end(LimitReached("there are too many connections"))
            return
        self._heard_at = self.loop.time()
        self._timer = self.loop.call_later(self._settings.handshake_s, self._too_slow)
        assert self._upgrade is not None
        self._transport.write(self._upgrade.take())

    def data_received(self, data: bytes) -> None:
        self._heard_at = self.loop.time()
        try:
            if self._upgrade is not None:
                self._rise(data)
            else:
                opened = self._channel.open(data)
                if len(opened) > 1 and len(data) <= _JOINED_BYTES_MAX:
                    # Many small frames are cheaper to take as one.
                    self._receive(b"".join(opened))
                else:
                    for plain in opened:
                        self._receive(plain)
        except Libp2pError as error:
            self._end(error)

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._wake_writers()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.error is None:
            self.error = exc
        self.is_open = False
        self._upgrade = None
        if self._timer is not None:
            self._timer.cancel()
        if not self.ready.done():
            self.ready.set_exception(self.error or ConnectionLost("the other side closed the connection"))
            # Whoever dialled looks at it; for others nobody does.
            self.ready.exception()
        for flow in self.session.end():
            if isinstance(flow.user, Stream):
                flow.user.wake()
            flow.user = None
        self._writers.clear()
        self._negotiating.clear()
        self._lingering.clear()
        self.gone.set()
        self._owner.ended(self)

    # Life.

    def _rise(self, data: bytes) -> None:
        upgrade = self._upgrade
        assert upgrade is not None
        assert self._transport is not None
        done = upgrade.receive(data)
        if out := upgrade.take():
            self._transport.write(out)
        if not done:
            return
        self._upgrade = None
        self._channel = upgrade.channel
        self.peer, self.public_key = upgrade.peer, upgrade.public_key
        self.is_open = True
        if self._timer is not None:
            self._timer.cancel()
        self._ticked_at = self.loop.time()
        self._timer = self.loop.call_later(self._settings.tick_s, self._tick)
        self._owner.connected(self)
        if not self.ready.done():
            self.ready.set_result(None)
        for plain in upgrade.early():
            self._receive(plain)

    def _too_slow(self) -> None:
        self._end(ConnectionLost(f"no handshake in {self._settings.handshake_s:g} s"))

    def _tick(self) -> None:
        now, settings = self.loop.time(), self._settings
        self._timer = self.loop.call_later(settings.tick_s, self._tick)
        silent_s, asked = now - self._heard_at, self._asked_at > self._heard_at
        # A tick that is so late says nothing: this process stood still, and what was said meanwhile is not read yet.
        late = now - self._ticked_at >= settings.tick_s + settings.keepalive_wait_s / 2
        self._ticked_at = now
        if asked and not late and now - self._asked_at >= settings.keepalive_wait_s:
            self._end(ConnectionLost(f"no sign of life for {silent_s:.0f} s"))
            return
        if self.session.gone_away is not None and not self.session.flows:
            # The other side takes no new streams, and the last one has ended.
            self._end(None)
            return
        if silent_s >= settings.keepalive_s and not asked:
            self._asked_at, self._asked = now, self.session.ping()
            self.flush_soon()
        for waiting in (self._negotiating, self._lingering):
            for flow in [flow for flow, until in waiting.items() if until <= now or flow.is_gone]:
                del waiting[flow]
                if not flow.is_gone:
                    self.session.reset(flow)
                    self.flush_soon()

    def _end(self, error: Exception | None) -> None:
        """End at once. What goes wrong is told to the other side, if it listens."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        self.error = error
        if self.is_open:
            self.session.go_away(yamux.BROKEN if isinstance(error, WireError) else yamux.NORMAL)
            self._flush()
        self.is_open = False
        transport.abort()

    async def close(self) -> None:
        """Close it: what was written still leaves, within ``close_s``."""
        transport = self._transport
        if transport is None or self.gone.is_set():
            return
        if self.is_open:
            self.session.go_away()
            self._flush()
        self.is_open = False
        transport.close()
        try:
            async with asyncio.timeout(self._settings.close_s):
                await self.gone.wait()
        except TimeoutError:
            transport.abort()
            await self.gone.wait()

    def abort(self) -> None:
        """End it at once, without a word."""
        if self._transport is not None:
            self.is_open = False
            self._transport.abort()

    # Streams.

    def _receive(self, plain: bytes) -> None:
        session = self.session
        changed = session.receive(plain)
        if session.opened:
            for flow in session.opened:
                if not flow.is_gone:
                    flow.user = Stream(self, flow, multistream.Listener(self._owner.speaks))
                    self._negotiating[flow] = self._heard_at + self._settings.negotiate_s
            session.opened.clear()
        if self._asked and session.pong == self._asked:
            self.rtt_s, self._asked = self.loop.time() - self._asked_at, 0
        for flow in changed:
            stream = flow.user
            if not isinstance(stream, Stream):
                continue
            if flow in self._negotiating:
                self._negotiate(flow, stream)
            else:
                stream.changed()
            if flow.is_gone:
                # They would hold each other until the garbage is collected.
                flow.user = None
        if session.outgoing:
            self.flush_soon()

    def _negotiate(self, flow: Flow, stream: Stream) -> None:
        """A new stream of the other side has said something."""
        if stream.advance():
            del self._negotiating[flow]
            if self._serving[stream.protocol] >= self._settings.streams_per_protocol_max:
                self.session.refused += 1
                stream.reset()
                return
            self._serving[stream.protocol] += 1
            self._owner.serve(stream)
        elif flow.ended_in or flow.reset:
            del self._negotiating[flow]
            self.session.reset(flow)

    def served(self, stream: Stream) -> None:
        """Somebody is done with a stream that the other side had opened."""
        self._serving[stream.protocol] -= 1
        if not self._serving[stream.protocol]:
            del self._serving[stream.protocol]

    def open_stream(self, protocols: Sequence[str], known: bool = False) -> Stream:
        """A new stream. ``known``: the other side speaks the first of them, so that no answer is waited for."""
        if not self.is_open:
            raise ConnectionLost("the connection is closed")
        negotiation = multistream.Dialler(protocols)
        flow = self.session.open()
        stream = Stream(self, flow, negotiation)
        flow.user = stream
        stream.begin()
        if known:
            stream.rely_on(protocols[0])
        return stream

    @property
    def streams(self) -> int:
        """How many are open."""
        return len(self.session.flows)

    def linger(self, flow: Flow) -> None:
        """We closed it; the other side may take its time, but not for ever."""
        if not flow.is_gone:
            self._lingering[flow] = self.loop.time() + self._settings.linger_s

    # Writing.

    @property
    def room_bytes(self) -> int:
        """How much streams may write now."""
        return 0 if self._paused else max(self._settings.write_high_bytes - self._pending_bytes, 0)

    def wants_to_write(self, stream: Stream) -> None:
        """Wake it when there is room."""
        if not self.room_bytes:
            self._writers.append(stream)

    def flush_soon(self, size: int = 0) -> None:
        """Send what is there at the end of this turn of the event loop."""
        self._pending_bytes += size
        if not self._flushing:
            self._flushing = True
            self.loop.call_soon(self._flush)

    def flush_if_few(self) -> None:
        """Whoever waits for an answer has said all; with few streams nobody else has more to add in this turn."""
        if self._flushing and len(self.session.flows) <= _FEW_STREAMS:
            self._flush()

    def _flush(self) -> None:
        self._flushing = False
        self._pending_bytes = 0
        transport = self._transport
        if not self.is_open or transport is None or transport.is_closing():
            self.session.outgoing.clear()
            return
        if self.session.outgoing:
            transport.write(self._channel.seal(self.session.take()))
            if transport.get_write_buffer_size() > self._settings.output_bytes_max:
                self.error = LimitReached("the other side does not read what we answer")
                self.is_open = False
                transport.abort()
                return
        if self._writers and not self._paused:
            self._wake_writers()

    def _wake_writers(self) -> None:
        writers, self._writers = self._writers, []
        for stream in writers:
            stream.wake_writer()
