"""Our libp2p with peers on go-libp2p, js-libp2p and py-libp2p: streams, ends, kills, and gossip in a mixed mesh.

The peers are built in the test run. js-libp2p is quick to fetch and runs always; the others take minutes the first time
and are slow tests.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from tests.interop.libp2p.foreign import Failed, Foreign, foreign, go_peer, node_peer, python_peer
from tests.libp2p.hosts import ECHO, Watched, hosts
from tests.libp2p.loop import DEADLINE_S, until, within

from posthouse.libp2p.errors import DialFailed, NotSupported, StreamReset
from posthouse.libp2p.gossip.service import Gossip
from posthouse.libp2p.host import Connected, Disconnected, Identified
from posthouse.libp2p.multiaddr import Multiaddr
from posthouse.libp2p.peer_id import PeerId
from posthouse.libp2p.stream import Stream

ROOT = Path(__file__).parents[3]
RESET = "/test/reset/1"
SLOW = [pytest.mark.slow, pytest.mark.timeout(1_500)]
PEERS = [
    pytest.param(node_peer, id="js", marks=pytest.mark.timeout(600)),
    pytest.param(go_peer, id="go", marks=SLOW),
    pytest.param(python_peer, id="py", marks=SLOW),
]


@pytest.fixture(params=PEERS)
def words(request: pytest.FixtureRequest) -> list[str]:
    """The words that start a foreign peer of each kind, which is built before the test's own time begins."""
    build: Callable[[], list[str]] = request.param
    return build()


@pytest.fixture
def go() -> list[str]:
    return go_peer()


@pytest.fixture
def all_kinds() -> list[list[str]]:
    return [go_peer(), node_peer(), python_peer()]


async def first_byte_then_reset(stream: Stream) -> None:
    await stream.read_exactly(1)
    stream.reset()


async def met(host: Watched, other: Foreign) -> PeerId:
    """Wait until both know what the other speaks."""
    peer = PeerId.parse(other.peer)
    await until(lambda: host.peers)
    await host.identified(peer)
    return peer


async def heard_of(other: Foreign, topic: str, count: int) -> None:
    """Wait until it knows of so many who are on a topic; it tells only when it is asked."""
    async with asyncio.timeout(30):
        while (await other.do("listeners", topic=topic))["count"] < count:
            pass


async def there_and_back(host: Watched, peer: PeerId, size: int) -> bool:
    body = os.urandom(size)
    async with await host.open_stream(peer, ECHO) as stream:
        _, back = await asyncio.gather(stream.write(body), stream.read_exactly(size))
        stream.close_write()
        return back == body and await stream.read() == b""


@within(120)
async def test_streams_go_both_ways_whoever_dialled(words: list[str]) -> None:
    async with hosts(1) as (host,), foreign(words) as other:
        for we_dial in (True, False):
            if we_dial:
                await host.dial(other.address)
            else:
                await other.do("dial", addr=str(host.address))
            peer = await met(host, other)
            assert await host.ping(peer) < DEADLINE_S
            assert (await other.do("ping", peer=str(host.peer_id)))["seconds"] < DEADLINE_S
            for size in (1, 1 << 20):
                assert await there_and_back(host, peer, size)
                answer = await other.do("echo", peer=str(host.peer_id), size=size)
                assert (answer["same"], answer["size"]) == (True, size)
            assert all(await asyncio.gather(*(there_and_back(host, peer, 100_000) for _ in range(16))))
            known = (await other.do("protocols", peer=str(host.peer_id)))["protocols"]
            assert set(host.protocols) <= set(known)
            if we_dial:
                await host.disconnect(peer)
                await other.wait("disconnected", peer=str(host.peer_id))
        (connection,) = host.connections(peer)
        await until(lambda: connection.session.unread_bytes == 0)


@within(120)
async def test_both_sides_see_who_comes_and_goes(words: list[str]) -> None:
    async with hosts(1) as (host,), foreign(words) as other:
        me = str(host.peer_id)
        for number, (we_dial, we_leave) in enumerate([(1, 1), (1, 0), (0, 1), (0, 0)], 1):
            if we_dial:
                await host.dial(other.address)
            else:
                await other.do("dial", addr=str(host.address))
            await other.wait("connected", number, peer=me)
            peer = await met(host, other)
            if we_leave:
                await host.disconnect(peer)
            else:
                await other.do("hangup", peer=me)
            await other.wait("disconnected", number, peer=me)
            await until(lambda n=number: host.saw(Disconnected) == n)
            assert host.saw(Connected) == number


@within(120)
async def test_resets_and_unknown_protocols_are_understood(words: list[str]) -> None:
    async with hosts(1) as (host,), foreign(words) as other:
        host.handle(RESET, first_byte_then_reset)
        await host.dial(other.address)
        peer = await met(host, other)
        stream = await host.open_stream(peer, RESET)
        await stream.write(b"x")
        with pytest.raises(StreamReset):
            await stream.read_exactly(1)
        assert (await other.do("expect_reset", peer=str(host.peer_id)))["reset"]
        with pytest.raises(NotSupported):
            await host.open_stream(peer, "/test/nobody/1")
        assert (await other.do("unknown", peer=str(host.peer_id)))["refused"]
        for _ in range(20):
            stream = await host.open_stream(peer, ECHO)
            await stream.write(b"x" * 1_000)
            stream.reset()
            await other.do("reset", peer=str(host.peer_id))
        assert await there_and_back(host, peer, 10_000)
        assert (await other.do("echo", peer=str(host.peer_id), size=10_000))["same"]


@within(120)
async def test_forty_reconnects_leave_nothing_behind(words: list[str]) -> None:
    async with hosts(1) as (host,), foreign(words) as other:
        files = 0
        process = psutil.Process()
        for number in range(1, 41):
            if number % 2:
                await host.dial(other.address)
            else:
                await other.do("dial", addr=str(host.address))
            peer = await met(host, other)
            assert await there_and_back(host, peer, 100)
            await host.disconnect(peer)
            await other.wait("disconnected", number, peer=str(host.peer_id))
            if number == 10:
                files = process.num_fds()
        assert host.saw(Connected) == host.saw(Disconnected) == 40
        assert host.counts.connections == host.counts.streams == host.counts.pending == 0
        await until(lambda: process.num_fds() <= files)
        # The test itself and the reader of the foreign peer.
        await until(lambda: len(asyncio.all_tasks()) == 2)
        gc.collect()


@within(120)
async def test_garbage_ends_the_connection_and_a_new_one_works(words: list[str]) -> None:
    # Not everybody hangs up on garbage; who only falls silent is missed.
    async with hosts(1, keepalive_s=1.0, keepalive_wait_s=1.0, tick_s=0.2) as (host,), foreign(words) as other:
        for number, garbage in enumerate((b"\x07" * 64, bytes(5)), 1):
            connection = await host.dial(other.address)
            peer = await met(host, other)
            transport = connection._transport
            assert transport is not None
            # Sealed, so that the multiplexer gets it; then bare, so that nothing can be opened any more.
            transport.write(connection._channel.seal(garbage) if number == 1 else os.urandom(400))
            if number == 1:
                transport.write(os.urandom(400))
            await until(lambda n=number: host.saw(Disconnected) >= n)
        await host.dial(other.address)
        assert await there_and_back(host, peer, 1_000)


@within(120)
async def test_a_peer_that_is_killed_is_missed_at_once(words: list[str]) -> None:
    async with hosts(1) as (host,), foreign(words) as other:
        await host.dial(other.address)
        peer = await met(host, other)
        stream = await host.open_stream(peer, ECHO)
        reading = asyncio.create_task(stream.read())
        other.signal(signal.SIGKILL)
        # Not by its silence, which would take 22 s.
        async with asyncio.timeout(15):
            await until(lambda: host.saw(Disconnected))
        with pytest.raises(Exception, match="lost"):
            await reading
        with pytest.raises(DialFailed):
            await host.dial(peer)


@pytest.mark.slow
@pytest.mark.timeout(1_500)
@within(120)
async def test_a_peer_that_is_frozen_is_missed_within_thirty_seconds(words: list[str]) -> None:
    async with hosts(1) as (host,), foreign(words) as other:
        loop = asyncio.get_running_loop()
        await host.dial(other.address)
        peer = await met(host, other)
        other.signal(signal.SIGSTOP)
        begun = loop.time()
        await until(lambda: host.saw(Disconnected))
        assert loop.time() - begun <= 30
        assert "no sign of life" in str(host.why_gone())
        other.signal(signal.SIGCONT)
        await host.dial(other.address)
        assert await there_and_back(host, peer, 1_000)


@pytest.mark.slow
@pytest.mark.timeout(1_500)
@within(300)
async def test_gossip_reaches_everybody_in_a_mesh_of_mixed_peers(all_kinds: list[list[str]]) -> None:
    topic, each = "/test/news/1", 10
    async with contextlib.AsyncExitStack() as stack:
        ours = await stack.enter_async_context(hosts(3))
        gossips = [await stack.enter_async_context(Gossip(host, host._key)) for host in ours]
        subscriptions = [gossip.subscribe(topic) for gossip in gossips]
        kinds = [*all_kinds, all_kinds[0]]
        theirs = [await stack.enter_async_context(foreign(words)) for words in kinds]
        for other in theirs:
            await other.do("join", topic=topic)
        # A ring of seven, so that nobody hears everything from its author: ours stand between theirs.
        first, js, py, last = theirs
        one, two, three = ours
        await one.dial(first.address)
        await first.do("dial", addr=str(two.address))
        await two.dial(js.address)
        await js.do("dial", addr=str(three.address))
        await three.dial(py.address)
        await py.do("dial", addr=str(last.address))
        await last.do("dial", addr=str(one.address))
        for host in ours:
            await until(lambda h=host: h.saw(Identified) >= 2)
        for gossip in gossips:
            await until(lambda g=gossip: len(g.router.mesh(topic)) == 2, "our mesh is whole")
        for other in theirs:
            await heard_of(other, topic, 2)
        sent: dict[str, set[str]] = {}
        for number in range(each):
            for gossip, host in zip(gossips, ours, strict=True):
                text = f"{host.peer_id}/{number}"
                gossip.publish(topic, text.encode())
                sent.setdefault(str(host.peer_id), set()).add(text)
            for other in theirs:
                text = f"{other.peer}/{number}"
                await other.do("publish", topic=topic, data=text)
                sent.setdefault(other.peer, set()).add(text)
        for host, subscription in zip(ours, subscriptions, strict=True):
            wanted = set().union(*(texts for author, texts in sent.items() if author != str(host.peer_id)))
            got = [await anext(subscription) for _ in wanted]
            assert {message.data.decode() for message in got} == wanted
            assert all(message.data.decode().startswith(str(message.author)) for message in got)
        for other in theirs:
            wanted = set().union(*(texts for author, texts in sent.items() if author != other.peer))
            await until(lambda o=other, w=wanted: set(o.messages(topic)) >= w, f"{other.address} has all")
            assert len(other.messages(topic)) == len(wanted)
        assert all(gossip.router.rejected == gossip.dropped == 0 for gossip in gossips)


@pytest.mark.slow
@pytest.mark.timeout(1_500)
@within(120)
async def test_an_address_of_somebody_else_is_refused_by_every_dialler(go: list[str]) -> None:
    async with hosts(2) as (host, other_host):
        async with foreign(go) as other:
            wrong = Multiaddr.parse(other.address).bare().at(other_host.peer_id)
            with pytest.raises(DialFailed, match="who answers"):
                await host.dial(wrong)
            with pytest.raises(Failed):
                await other.do("dial", addr=str(host.address.bare().at(other_host.peer_id)))
            assert not host.peers


@pytest.mark.slow
@pytest.mark.timeout(1_500)
def test_a_peer_on_go_and_ours_find_each_other_by_mdns(go: list[str]) -> None:
    # In a network of their own, whose loopback takes multicast: Go passes over interfaces that do not.
    network = 'ip link set lo up multicast on && ip route add 224.0.0.0/4 dev lo && exec "$@"'
    if subprocess.run(["unshare", "-rn", "true"], capture_output=True).returncode:
        pytest.fail(
            "this test needs `unshare -rn`: the machine makes no network namespaces for its users", pytrace=False
        )
    done = subprocess.run(
        ["unshare", "-rn", "sh", "-c", network, "sh", sys.executable, "-m", "tests.interop.libp2p.mdns_pair", *go],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-2_000:]
