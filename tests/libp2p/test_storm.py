"""Garbage at every layer of a host, from many connections: nothing escapes, memory stays, others are served."""

from __future__ import annotations

import asyncio
import contextlib
import random

import psutil
from tests.libp2p.hosts import ECHO, Watched, hosts, stranger
from tests.libp2p.loop import DEADLINE_S, coroutine, until

from posthouse.libp2p.errors import Libp2pError
from posthouse.libp2p.gossip import Gossip
from posthouse.libp2p.key import PrivateKey
from posthouse.libp2p.multistream import GREETING, line
from posthouse.libp2p.settings import Settings


def frames(rng: random.Random) -> bytes:
    """Frames of a multiplexer, most of them wrong in something."""
    out = bytearray()
    for _ in range(rng.randrange(1, 30)):
        kind, flags, id = rng.choice((0, 0, 1, 1, 2, 3, 9)), rng.randrange(16), rng.randrange(1, 30)
        body = rng.randbytes(rng.choice((0, 1, 20, 300)))
        size = len(body) if kind == 0 else rng.choice((0, 1, 1 << 18, 0xFFFF_FFFF))
        if rng.random() < 0.1:
            size = rng.choice((0xFFFF_FFFF, 1 << 20, len(body) + 1))
        out += bytes((0, kind)) + flags.to_bytes(2, "big") + id.to_bytes(4, "big") + size.to_bytes(4, "big")
        if kind == 0:
            out += body
    return bytes(out)


async def bare(target: Watched, rng: random.Random) -> None:
    """Bytes before anybody is known."""
    reader, writer = await stranger(target)
    junk = rng.randbytes(rng.randrange(1, 2_000))
    opening = line(GREETING) + line("/noise")
    writer.write(rng.choice((junk, opening + junk, opening + b"\x00\x20" + rng.randbytes(32) + junk, opening)))
    with contextlib.suppress(OSError):
        writer.write_eof()
        while await reader.read(1_000):
            pass
    writer.close()


async def known(target: Watched, rng: random.Random, attacker: Watched) -> None:
    """Bytes of somebody who has proven who it is."""
    connection = await attacker.dial(target.address)
    transport = connection._transport
    assert transport is not None
    how = rng.randrange(3)
    if how == 0:
        transport.write(connection._channel.seal(frames(rng)))
    elif how == 1:
        for protocol in ("/meshsub/1.1.0", ECHO, "/ipfs/id/push/1.0.0", "/ipfs/ping/1.0.0", "/nobody"):
            with contextlib.suppress(Libp2pError):
                stream = connection.open_stream([protocol], known=True)
                await stream.write(rng.randbytes(rng.randrange(1, 3_000)))
                rng.choice((stream.close, stream.reset, stream.close_write))()
    else:
        transport.write(rng.randbytes(500))
    with contextlib.suppress(Libp2pError, TimeoutError):
        async with asyncio.timeout(0.2):
            await attacker.ping(target.peer_id)
    await attacker.disconnect(target.peer_id)


async def attack(target: Watched, rng: random.Random) -> None:
    if rng.random() < 0.5:
        await bare(target, rng)
    else:
        async with Watched(PrivateKey.generate(), Settings(close_s=0.2)) as attacker:
            await known(target, rng, attacker)


@coroutine
async def test_a_storm_of_garbage_leaves_a_host_as_it_was() -> None:
    rng = random.Random(11)
    async with hosts(2, handshake_s=2.0) as (target, friend):
        async with Gossip(target, target._key) as gossip:
            gossip.subscribe("t")
            await friend.dial(target.address)
            process, warm_bytes, files = psutil.Process(), 0, 0
            for number in range(30):
                await asyncio.gather(*(attack(target, random.Random(rng.random())) for _ in range(10)))
                assert await friend.ping(target.peer_id) < DEADLINE_S
                if number == 10:
                    warm_bytes, files = process.memory_info().rss, process.num_fds()
            await until(lambda: target.counts.pending == 0 and target.counts.connections == 1)
            await until(lambda: target.counts.streams <= 1)
            assert process.memory_info().rss - warm_bytes < 16 * 1024 * 1024
            await until(lambda: process.num_fds() <= files + 2)
            assert target.peers == [friend.peer_id]
            # Scores of those who offended are all that may stay, and they are bounded.
            assert len(gossip.router.scores) <= 300
