"""Gossip between hosts on the loopback: streams, late comers, slow subscribers, peers that misbehave."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.libp2p.hosts import HERE, Watched, hosts
from tests.libp2p.loop import DEADLINE_S, coroutine, until

from posthouse.libp2p.errors import LimitReached
from posthouse.libp2p.gossip.message import decode
from posthouse.libp2p.gossip.params import Params
from posthouse.libp2p.gossip.service import Gossip
from posthouse.libp2p.key import PrivateKey
from posthouse.libp2p.settings import Settings
from posthouse.libp2p.stream import Stream

PARAMS = Params(heartbeat_s=0.1)


@contextlib.asynccontextmanager
async def gossips(count: int, params: Params = PARAMS, **settings: Any) -> AsyncIterator[list[tuple[Watched, Gossip]]]:
    """So many hosts in a row, each connected with the next, and their gossip."""
    async with contextlib.AsyncExitStack() as stack:
        made = await stack.enter_async_context(hosts(count, **settings))
        pairs = []
        for number, host in enumerate(made):
            gossip = await stack.enter_async_context(Gossip(host, host._key, params))
            pairs.append((host, gossip))
            if number:
                await host.dial(made[number - 1].address)
        yield pairs


@coroutine
async def test_messages_travel_along_a_row_of_hosts() -> None:
    async with gossips(5) as pairs:
        subscriptions = [gossip.subscribe("news") for _, gossip in pairs]
        for number, (_, gossip) in enumerate(pairs):
            neighbours = 1 if number in (0, 4) else 2
            await until(lambda g=gossip, n=neighbours: len(g.router.mesh("news")) == n)
        sent = [pairs[0][1].publish("news", b"%d" % number) for number in range(50)]
        for subscription in subscriptions[1:]:
            got = [await anext(subscription) for _ in range(50)]
            assert sorted(got, key=lambda m: m.seqno) == sent
            assert {message.author for message in got} == {pairs[0][0].peer_id}
        assert not subscriptions[0]._waiting
        assert all(gossip.router.rejected == gossip.dropped == 0 for _, gossip in pairs)


@coroutine
async def test_who_subscribes_late_or_comes_late_takes_part() -> None:
    async with gossips(3) as pairs:
        (_, one), (_, two), (third, three) = pairs
        first = one.subscribe("t")
        two.subscribe("t")
        await until(lambda: one.peers("t") and two.router.mesh("t"))
        late = three.subscribe("t")
        await until(lambda: len(two.router.mesh("t")) == 2)
        one.publish("t", b"hello")
        assert (await anext(late)).data == b"hello"
        # Leave and come back; the gossip service starts when the connection is there already.
        await three.close()
        await until(lambda: third.peer_id not in two.router)
        again = Gossip(third, third._key, PARAMS)
        back = again.subscribe("t")
        await until(lambda: third.peer_id in two.router and two.peers("t").count(third.peer_id))
        message = one.publish("t", b"welcome")
        # It may hear of what was sent while it was away.
        while (await anext(back)).id != message.id:
            pass
        await again.close()
        first.close()
        await until(lambda: not two.peers("t"))
        with pytest.raises(StopAsyncIteration):
            await anext(first)


@coroutine
async def test_every_new_stream_begins_with_what_we_are_subscribed_to() -> None:
    async with gossips(1) as pairs:
        ((host, gossip),) = pairs
        gossip.subscribe("t")
        heard: asyncio.Queue[list[tuple[bool, str]]] = asyncio.Queue()

        async def forgetful(stream: Stream) -> None:
            heard.put_nowait(decode(await stream.read_frame(1_000), PARAMS).subscriptions)
            stream.reset()

        async with Watched(PrivateKey.generate(), Settings()) as other:
            other.handle("/meshsub/1.1.0", forgetful)
            await other.dial(host.address)
            assert [await heard.get() for _ in range(2)] == [[(True, "t")]] * 2


@coroutine
async def test_a_subscriber_that_does_not_read_loses_messages_and_holds_up_nobody() -> None:
    async with gossips(2, Params(heartbeat_s=0.1, subscription_max=10)) as pairs:
        (_, one), (_, two) = pairs
        lazy, quick = two.subscribe("t"), two.subscribe("t")
        await until(lambda: one.peers("t"))
        for number in range(30):
            one.publish("t", b"%d" % number)
            assert (await anext(quick)).data == b"%d" % number
        assert lazy.dropped == 20
        assert quick.dropped == 0
        lazy.close()
        assert [message.data async for message in lazy] == [b"%d" % number for number in range(10)]
        one.publish("t", b"more")
        assert (await anext(quick)).data == b"more"


@coroutine
async def test_large_messages_pass_and_larger_ones_are_refused() -> None:
    async with gossips(3) as pairs:
        (_, one), (_, two), (_, three) = pairs
        last = three.subscribe("t")
        two.subscribe("t")
        await until(lambda: one.peers("t") and two.router.mesh("t"))
        body = bytes(PARAMS.message_bytes_max)
        one.publish("t", body)
        assert (await anext(last)).data == body
        with pytest.raises(LimitReached):
            one.publish("t", body + b"x")


@coroutine
async def test_a_peer_that_sends_garbage_is_cut_off_from_gossip_only() -> None:
    async with gossips(1) as pairs:
        ((host, gossip),) = pairs
        news = gossip.subscribe("t")
        async with Watched(PrivateKey.generate(), Settings()) as bad:
            await bad.dial(host.address)
            # The garbage comes behind an honest frame, so that it is known when it came.
            async with Gossip(bad, bad._key, PARAMS) as honest:
                await until(lambda: honest.peers("t"))
                honest.publish("t", b"x")
                await anext(news)
                for garbage in (b"\x80\x80\x80\x80\x80\x80\x01", b"\xff" * 10, b"\x03\x0a\xff\x01"):
                    stream = await bad.open_stream(host.peer_id, "/meshsub/1.1.0")
                    await stream.write(garbage)
                    with pytest.raises(Exception, match="reset"):
                        await stream.read()
                assert await bad.ping(host.peer_id) < DEADLINE_S
                assert host.is_connected(bad.peer_id)


@coroutine
async def test_a_slow_peer_loses_frames_and_holds_up_nobody() -> None:
    params = Params(heartbeat_s=0.1, queue_bytes_max=2_000_000)
    async with gossips(2, params) as pairs:
        (host, one), (_, two) = pairs
        news = two.subscribe("t")
        async with Watched(PrivateKey.generate(), Settings()) as slow:
            await slow.listen(HERE)
            stuck = asyncio.Event()

            async def never_reads(stream: object) -> None:
                await stuck.wait()

            connection = await slow.dial(host.address)
            async with Gossip(slow, slow._key, params) as sleepy:
                sleepy.subscribe("t")
                await until(lambda: len(one.peers("t")) == 2)
                slow.handle("/meshsub/1.1.0", never_reads)  # type: ignore[arg-type]
                transport = connection._transport
                assert transport is not None
                transport.pause_reading()
                for number in range(100):
                    one.publish("t", b"%d" % number + bytes(100_000))
                    assert (await anext(news)).data.startswith(b"%d" % number)
                assert one.dropped > 0
                assert one._queued_bytes <= params.queue_bytes_max
                transport.resume_reading()
                stuck.set()
        await until(lambda: one._queued_bytes == 0)
