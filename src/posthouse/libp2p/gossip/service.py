"""Gossip on a host: the streams, queues and times around the rules in ``router``.

In: a host. Out: topics to publish on and to read. To each peer one stream goes out and one comes in, as in gossipsub.
What waits for a slow peer or a slow subscriber is bounded; beyond it is dropped and counted, since gossip promises
nothing. Closing it leaves the topics.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Self

from .. import varint
from ..errors import Libp2pError, LimitReached, StreamEnded, WireError
from ..host import Disconnected, Event, Host, Identified
from ..key import PrivateKey
from ..peer_id import PeerId
from ..stream import Stream
from .message import Message
from .params import Params
from .router import Router, Validator

log = logging.getLogger(__name__)

MESH_PROTOCOLS = ("/meshsub/1.1.0", "/meshsub/1.0.0")
FLOOD_PROTOCOL = "/floodsub/1.0.0"
PROTOCOLS = (*MESH_PROTOCOLS, FLOOD_PROTOCOL)
RETRIES = 4
"""How often a stream to a connected peer may fail in a row; it is opened again a second later each time."""
STEADY_S = 60.0
"""A stream that lived so long has not failed in a row."""


class Subscription:
    """The messages of one topic, as they come: ``async for message in subscription``."""

    def __init__(self, gossip: Gossip, topic: str) -> None:
        self._gossip = gossip
        self.topic = topic
        self.dropped = 0
        """Messages that came while too many waited."""
        self._waiting: deque[Message] = deque()
        self._waiting_bytes = 0
        self._bell = asyncio.Event()
        self._closed = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        while not self._waiting:
            if self._closed:
                raise StopAsyncIteration
            self._bell.clear()
            await self._bell.wait()
        message = self._waiting.popleft()
        self._waiting_bytes -= len(message.encoded)
        return message

    def put(self, message: Message) -> None:
        """For the service: one more."""
        params, size = self._gossip.params, len(message.encoded)
        full = self._waiting_bytes + size > params.subscription_bytes_max
        if full or len(self._waiting) >= params.subscription_max:
            self.dropped += 1
            return
        self._waiting.append(message)
        self._waiting_bytes += size
        self._bell.set()

    def close(self) -> None:
        """Take no more; the last one to leave a topic unsubscribes from it. What waits can still be read."""
        if not self._closed:
            self._closed = True
            self._bell.set()
            self._gossip.leave(self)


class _Outbox:
    """What waits for one peer, and the task that sends it."""

    __slots__ = ("again", "bell", "bytes", "frames", "task")

    def __init__(self) -> None:
        self.frames: deque[bytes] = deque()
        self.bytes = 0
        self.bell = asyncio.Event()
        self.again = asyncio.Event()
        """The peer has said something new of itself: a stream that failed may be tried again at once."""
        self.task: asyncio.Task[None] | None = None


class Gossip:
    """Topics of one host."""

    def __init__(
        self,
        host: Host,
        key: PrivateKey,
        params: Params | None = None,
        application: Callable[[PeerId], float] | None = None,
    ) -> None:
        """``application`` adds to peers' scores."""
        self.params = params or Params()
        self._host = host
        self._loop = asyncio.get_running_loop()
        # Numbers by the clock: after a restart they go on above the old ones.
        self.router = Router(key, self.params, random.Random(), time.time_ns(), application)
        self._subscriptions: dict[str, list[Subscription]] = {}
        self._outboxes: dict[PeerId, _Outbox] = {}
        self._queued_bytes = 0
        self._inbound: dict[PeerId, Stream] = {}
        self.dropped = 0
        """Frames that did not fit into the queue of a slow peer."""
        self._closed = False
        for protocol in PROTOCOLS:
            host.handle(protocol, self._hear)
        self._unwatch = host.watch(self._seen)
        for peer in host.peers:
            info = host.info(peer)
            if info is not None:
                self._seen(Identified(peer, info))
        self._heart = host.spawn(self._beat())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # Topics.

    def subscribe(self, topic: str, validator: Validator | None = None) -> Subscription:
        """The messages of a topic. ``validator`` judges each before it is passed on; the last one given counts."""
        known = self._subscriptions.get(topic)
        if known is None or validator is not None:
            self.router.subscribe(topic, self._loop.time(), validator)
        subscription = Subscription(self, topic)
        self._subscriptions.setdefault(topic, []).append(subscription)
        self._send()
        return subscription

    def leave(self, subscription: Subscription) -> None:
        """For subscriptions: this one has closed."""
        mine = self._subscriptions.get(subscription.topic, [])
        if subscription in mine:
            mine.remove(subscription)
        if not mine and self._subscriptions.pop(subscription.topic, None) is not None:
            self.router.unsubscribe(subscription.topic, self._loop.time())
            self._send()

    def publish(self, topic: str, data: bytes) -> Message:
        """Send a message to whoever is on the topic; it promises nothing."""
        message = self.router.publish(topic, data, self._loop.time())
        self._send()
        return message

    def peers(self, topic: str) -> list[PeerId]:
        """Who is subscribed to a topic."""
        return self.router.peers(topic)

    async def close(self) -> None:
        """Leave all topics and end all streams."""
        if self._closed:
            return
        self._closed = True
        self._unwatch()
        for subscriptions in list(self._subscriptions.values()):
            for subscription in list(subscriptions):
                subscription.close()
        for protocol in PROTOCOLS:
            self._host.unhandle(protocol)
        tasks = [self._heart, *(outbox.task for outbox in self._outboxes.values() if outbox.task is not None)]
        # One turn, so that what is said in leaving still leaves.
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for stream in self._inbound.values():
            stream.reset()

    # Peers.

    def _seen(self, event: Event) -> None:
        if isinstance(event, Identified):
            if event.info.protocols.intersection(PROTOCOLS):
                self._meet(event.peer, bool(event.info.protocols.intersection(MESH_PROTOCOLS))).again.set()
            else:
                self._part(event.peer)
        elif isinstance(event, Disconnected):
            self._part(event.peer)

    def _meet(self, peer: PeerId, meshes: bool) -> _Outbox:
        """A peer takes part; what is for it waits until there is a stream to it."""
        outbox = self._outboxes.get(peer)
        if outbox is None:
            outbox = self._outboxes[peer] = _Outbox()
            dialled = any(connection.dialled for connection in self._host.connections(peer))
            self.router.came(peer, meshes, dialled)
            self._send()
            outbox.task = self._host.spawn(self._tell(peer, outbox))
        return outbox

    def _part(self, peer: PeerId) -> None:
        """A peer takes part no more."""
        outbox = self._outboxes.pop(peer, None)
        if outbox is not None:
            self._drop(outbox)
            if outbox.task is not None:
                outbox.task.cancel()
        self.router.went(peer, self._loop.time())

    async def _tell(self, peer: PeerId, outbox: _Outbox) -> None:
        """Keep a stream to a peer open, and send what waits for it."""
        failures, first = 0, True
        while failures < RETRIES:
            outbox.again.clear()
            begun = self._loop.time()
            try:
                async with await self._host.open_stream(peer, *PROTOCOLS, dial=False) as stream:
                    if not first:
                        self.router.greet(peer)
                        self._send()
                    await self._send_all(outbox, stream)
            except (Libp2pError, TimeoutError) as error:
                log.debug("gossip to %s ended: %s", peer, error)
            self.router.lost(peer)
            self._drop(outbox)
            first = False
            failures = 1 if self._loop.time() - begun >= STEADY_S else failures + 1
            try:
                async with asyncio.timeout(failures):
                    await outbox.again.wait()
            except TimeoutError:
                pass
        if self._outboxes.get(peer) is outbox:
            del self._outboxes[peer]
            self.router.went(peer, self._loop.time())

    async def _send_all(self, outbox: _Outbox, stream: Stream) -> None:
        # Nothing comes on it but its end.
        end = asyncio.create_task(stream.read(1))
        end.add_done_callback(lambda _: outbox.bell.set())
        try:
            while True:
                while outbox.frames:
                    frame = outbox.frames.popleft()
                    outbox.bytes -= len(frame)
                    self._queued_bytes -= len(frame)
                    await stream.write(varint.frame(frame))
                if end.done():
                    end.result()
                outbox.bell.clear()
                await outbox.bell.wait()
        finally:
            end.cancel()
            await asyncio.gather(end, return_exceptions=True)

    async def _hear(self, stream: Stream) -> None:
        """A peer's stream to us; a newer one of the same peer takes its place."""
        peer = stream.peer
        self._meet(peer, stream.protocol != FLOOD_PROTOCOL)
        old = self._inbound.get(peer)
        self._inbound[peer] = stream
        if old is not None:
            old.reset()
        try:
            while True:
                try:
                    frame = await stream.read_frame(self.params.frame_bytes_max)
                except (WireError, LimitReached):
                    self.router.scores.offended(peer, 2.0)
                    raise
                try:
                    self.router.receive(peer, frame, self._loop.time())
                finally:
                    self._deliver()
                    self._send()
        except StreamEnded:
            return
        finally:
            if self._inbound.get(peer) is stream:
                del self._inbound[peer]

    def _deliver(self) -> None:
        delivered, self.router.delivered = self.router.delivered, []
        for message in delivered:
            for subscription in self._subscriptions.get(message.topic, ()):
                subscription.put(message)

    def _send(self) -> None:
        for peer, frame in self.router.take():
            outbox = self._outboxes.get(peer)
            if outbox is None:
                continue
            size, params = len(frame), self.params
            full = outbox.bytes + size > params.queue_bytes_max or self._queued_bytes + size > params.queues_bytes_max
            if full or len(outbox.frames) >= self.params.queue_frames_max:
                self.dropped += 1
                continue
            outbox.frames.append(frame)
            outbox.bytes += size
            self._queued_bytes += size
            outbox.bell.set()

    def _drop(self, outbox: _Outbox) -> None:
        self._queued_bytes -= outbox.bytes
        outbox.frames.clear()
        outbox.bytes = 0

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self.params.heartbeat_s)
            self.router.heartbeat(self._loop.time())
            self._send()
