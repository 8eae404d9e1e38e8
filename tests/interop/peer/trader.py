"""A trader on py-libp2p that a test drives: commands come as lines of JSON, and so does what it has to say.

It takes direct messages (a frame behind four bytes of length) and answers them as it is told: yes, no, wrong (an
acknowledgement of another message), garbage, reset, or silent. It runs in an environment of its own.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import multiaddr
import trio
from libp2p import new_host
from libp2p.abc import INotifee
from libp2p.peer.id import ID
from libp2p.peer.peerinfo import info_from_p2p_addr

PROTOCOL = "/klingon/swap/direct/1.0.0"


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


async def read_frame(stream: Any) -> bytes:
    return await exactly(stream, int.from_bytes(await exactly(stream, 4), "big"))


def frame(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


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


class Trader:
    """The commands."""

    def __init__(self, host: Any) -> None:
        self.host = host
        self.how = "yes"

    async def serve(self, stream: Any) -> None:
        """One frame and its answer."""
        body = await read_frame(stream)
        message, how = json.loads(body), self.how
        say(
            event="frame", size=len(body), id=message["message_id"], type=message["type"],
            number=message.get("sequence_num"), mode=how,
        )  # fmt: skip
        if how == "silent":
            await trio.sleep(60)
        if how in ("reset", "silent"):
            await stream.reset()
            return
        payload = {
            "message_id": "another" if how == "wrong" else message["message_id"],
            "sequence_num": message.get("sequence_num"),
            "success": how != "no",
        }
        if how == "no":
            payload["error"] = "as it was told"
        ack = {
            "type": "ack", "trade_id": message["trade_id"], "order_id": "", "from_peer": str(self.host.get_id()),
            "payload": payload, "timestamp": int(time.time()), "message_id": "ack",
        }  # fmt: skip
        await stream.write(frame(b"{]" if how == "garbage" else json.dumps(ack).encode()))
        await stream.close()

    async def dial(self, addr: str) -> dict[str, Any]:
        await self.host.connect(info_from_p2p_addr(multiaddr.Multiaddr(addr)))
        return {}

    async def hangup(self, peer: str) -> dict[str, Any]:
        await self.host.disconnect(ID.from_string(peer))
        return {}

    async def mode(self, mode: str) -> dict[str, Any]:
        self.how = mode
        return {}

    async def send(self, peer: str, data: str) -> dict[str, Any]:
        stream = await self.host.new_stream(ID.from_string(peer), [PROTOCOL])
        await stream.write(frame(data.encode()))
        answer = await read_frame(stream)
        await stream.close()
        return {"answer": answer.decode()}


async def obey(trader: Trader, line: str) -> None:
    command = json.loads(line)
    what = command.pop("do")
    try:
        answer = await getattr(trader, what)(**command)
    except Exception as error:
        say(event="failed", do=what, error=repr(error))
    else:
        say(event=what, **answer)


async def main() -> None:
    host = new_host()
    trader = Trader(host)
    host.set_stream_handler(PROTOCOL, trader.serve)
    host.get_network().register_notifee(Notices())
    listen = [multiaddr.Multiaddr("/ip4/127.0.0.1/tcp/0")]
    async with host.run(listen_addrs=listen), trio.open_nursery() as nursery:
        say(event="ready", peer=str(host.get_id()), addrs=[str(address) for address in host.get_addrs()])
        async for line in trio.wrap_file(sys.stdin):
            nursery.start_soon(obey, trader, line)
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(main)
