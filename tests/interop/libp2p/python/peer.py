"""A peer on py-libp2p that a test drives: commands come as lines of JSON, and so does what it has to say.

It answers on /test/echo/1 (everything back), /test/ack/1 (a frame behind four bytes of length, acknowledged by such a
frame) and /test/reset/1 (reset after the first byte). It takes part in gossip. It runs in an environment of its own.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import multiaddr
import trio
from libp2p import new_host
from libp2p.abc import INotifee
from libp2p.host.ping import PingService
from libp2p.network.stream.exceptions import StreamEOF, StreamError
from libp2p.peer.id import ID
from libp2p.peer.peerinfo import info_from_p2p_addr
from libp2p.pubsub.gossipsub import GossipSub
from libp2p.pubsub.pubsub import Pubsub
from libp2p.tools.anyio_service import background_trio_service

ECHO, ACK, RESET = "/test/echo/1", "/test/ack/1", "/test/reset/1"


def say(**event: Any) -> None:
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


async def exactly(stream: Any, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = await stream.read(size - len(data))
        if not part:
            raise EOFError
        data += part
    return data


async def some(stream: Any) -> bytes:
    try:
        return await stream.read(65_536)
    except StreamEOF:
        return b""


async def echo(stream: Any) -> None:
    try:
        while data := await some(stream):
            await stream.write(data)
        await stream.close()
    except StreamError:
        await stream.reset()


async def ack(stream: Any) -> None:
    size = int.from_bytes(await exactly(stream, 4), "big")
    await exactly(stream, size)
    answer = json.dumps({"type": "ack", "size": size}).encode()
    await stream.write(len(answer).to_bytes(4, "big") + answer)
    await stream.close()


async def reset(stream: Any) -> None:
    await exactly(stream, 1)
    await stream.reset()


class Notices(INotifee):
    """Tells of peers that come and go."""

    def __init__(self) -> None:
        self.there: dict[str, int] = {}

    async def connected(self, network: Any, conn: Any) -> None:
        peer = str(conn.muxed_conn.peer_id)
        self.there[peer] = self.there.get(peer, 0) + 1
        if self.there[peer] == 1:
            say(event="connected", peer=peer)

    async def disconnected(self, network: Any, conn: Any) -> None:
        peer = str(conn.muxed_conn.peer_id)
        self.there[peer] = self.there.get(peer, 0) - 1
        if self.there[peer] == 0:
            say(event="disconnected", peer=peer)

    async def opened_stream(self, network: Any, stream: Any) -> None: ...

    async def closed_stream(self, network: Any, stream: Any) -> None: ...

    async def listen(self, network: Any, multiaddr: Any) -> None: ...

    async def listen_close(self, network: Any, multiaddr: Any) -> None: ...


class Peer:
    """The commands."""

    def __init__(self, host: Any, pubsub: Pubsub, nursery: trio.Nursery) -> None:
        self.host = host
        self.pubsub = pubsub
        self.nursery = nursery

    async def dial(self, addr: str) -> dict[str, Any]:
        begun = time.monotonic()
        await self.host.connect(info_from_p2p_addr(multiaddr.Multiaddr(addr)))
        return {"seconds": time.monotonic() - begun}

    async def hangup(self, peer: str) -> dict[str, Any]:
        await self.host.disconnect(ID.from_string(peer))
        return {}

    async def echo(self, peer: str, size: int) -> dict[str, Any]:
        body = os.urandom(size)
        stream = await self.host.new_stream(ID.from_string(peer), [ECHO])
        back = b""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.write, body)
            while len(back) < size:
                back += await some(stream)
        await stream.close()
        return {"same": back == body, "size": len(back)}

    async def reset(self, peer: str) -> dict[str, Any]:
        stream = await self.host.new_stream(ID.from_string(peer), [ECHO])
        await stream.write(b"x")
        await stream.reset()
        return {}

    async def expect_reset(self, peer: str) -> dict[str, Any]:
        stream = await self.host.new_stream(ID.from_string(peer), [RESET])
        try:
            await stream.write(b"x")
            await stream.read(1)
        except StreamError:
            # It tells some resets as ends.
            return {"reset": True}
        return {"reset": False}

    async def unknown(self, peer: str) -> dict[str, Any]:
        try:
            stream = await self.host.new_stream(ID.from_string(peer), ["/test/nobody/1"])
        except Exception:
            return {"refused": True}
        await stream.reset()
        return {"refused": False}

    async def ping(self, peer: str) -> dict[str, Any]:
        (rtt_ms,) = await PingService(self.host).ping(ID.from_string(peer))
        return {"seconds": rtt_ms / 1_000}

    async def bench(self, peer: str, count: int, at: int, size: int) -> dict[str, Any]:
        body = size.to_bytes(4, "big") + b"x" * size
        to = ID.from_string(peer)

        async def work() -> None:
            for _ in range(count // at):
                stream = await self.host.new_stream(to, [ACK])
                await stream.write(body)
                await exactly(stream, int.from_bytes(await exactly(stream, 4), "big"))
                await stream.close()

        begun = time.monotonic()
        async with trio.open_nursery() as nursery:
            for _ in range(at):
                nursery.start_soon(work)
        return {"seconds": time.monotonic() - begun}

    async def join(self, topic: str) -> dict[str, Any]:
        subscription = await self.pubsub.subscribe(topic)
        self.nursery.start_soon(self._hear, topic, subscription)
        return {}

    async def _hear(self, topic: str, subscription: Any) -> None:
        while True:
            message = await subscription.get()
            author = ID(message.from_id)
            if author != self.host.get_id():
                say(event="message", topic=topic, data=message.data.decode(), **{"from": str(author)})

    async def publish(self, topic: str, data: str) -> dict[str, Any]:
        await self.pubsub.publish(topic, data.encode())
        return {}

    async def listeners(self, topic: str) -> dict[str, Any]:
        return {"count": len(self.pubsub.peer_topics.get(topic, ()))}

    async def protocols(self, peer: str) -> dict[str, Any]:
        return {"protocols": self.host.get_peerstore().get_protocols(ID.from_string(peer))}


async def obey(peer: Peer, line: str) -> None:
    command = json.loads(line)
    what = command.pop("do")
    try:
        answer = await getattr(peer, what)(**command)
    except Exception as error:
        say(event="failed", do=what, error=repr(error))
    else:
        say(event=what, **answer)


async def main() -> None:
    host = new_host()
    host.set_stream_handler(ECHO, echo)
    host.set_stream_handler(ACK, ack)
    host.set_stream_handler(RESET, reset)
    host.get_network().register_notifee(Notices())
    gossip = GossipSub(
        protocols=["/meshsub/1.1.0", "/meshsub/1.0.0"],
        degree=6,
        degree_low=5,
        degree_high=12,
        heartbeat_interval=1,
        spam_protection_enabled=False,
    )
    pubsub = Pubsub(host, gossip)
    listen = [multiaddr.Multiaddr("/ip4/127.0.0.1/tcp/0")]
    async with host.run(listen_addrs=listen), trio.open_nursery() as nursery:
        async with background_trio_service(pubsub), background_trio_service(gossip):
            await pubsub.wait_until_ready()
            peer = Peer(host, pubsub, nursery)
            addrs = [str(address) for address in host.get_addrs()]
            say(event="ready", peer=str(host.get_id()), addrs=addrs)
            async for line in trio.wrap_file(sys.stdin):
                nursery.start_soon(obey, peer, line)
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(main)
