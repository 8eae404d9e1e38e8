"""Hosts on the loopback: streams, limits, ends of connections, and what is left behind."""

from __future__ import annotations

import asyncio
import gc
import random
import socket
import time
from dataclasses import replace
from typing import Any

import psutil
import pytest
from tests.libp2p.hosts import ECHO, HERE, Watched, echo, hosts, stranger
from tests.libp2p.loop import DEADLINE_S, coroutine, until

from posthouse.libp2p.book import AddressBook
from posthouse.libp2p.connection import Connection
from posthouse.libp2p.errors import (
    BadInput,
    ConnectionLost,
    DialFailed,
    LimitReached,
    NotSupported,
    StreamEnded,
    StreamReset,
)
from posthouse.libp2p.host import Connected, Disconnected, Identified
from posthouse.libp2p.key import PrivateKey
from posthouse.libp2p.multiaddr import Multiaddr, tcp
from posthouse.libp2p.peer_id import PeerId
from posthouse.libp2p.settings import Settings
from posthouse.libp2p.stream import Stream
from posthouse.libp2p.yamux import Bounds


@coroutine
async def test_a_stream_carries_bytes_both_ways() -> None:
    async with hosts(2) as (alice, bob):
        connection = await alice.dial(bob.address)
        assert connection.peer == bob.peer_id
        assert connection.public_key == bob.peer_id.public_key()
        async with await alice.open_stream(bob.peer_id, ECHO) as stream:
            await stream.write(b"hello")
            assert await stream.read_exactly(5) == b"hello"
            stream.close_write()
            assert await stream.read() == b""
        await until(lambda: connection.streams == 0)


@coroutine
async def test_peers_say_who_they_are_and_what_they_speak() -> None:
    async with hosts(2, agent="tester/7") as (alice, bob):
        await alice.dial(bob.address)
        await until(lambda: alice.info(bob.peer_id) and bob.info(alice.peer_id))
        info = alice.info(bob.peer_id)
        assert info is not None
        assert info.agent == "tester/7"
        assert {ECHO, "/ipfs/id/1.0.0", "/ipfs/ping/1.0.0"} <= info.protocols
        assert [address.at(bob.peer_id) for address in info.addresses] == bob.addresses
        assert info.observed is not None
        # What is new is told to those who are there.
        bob.handle("/new/1", echo)
        await until(lambda: "/new/1" in alice.info(bob.peer_id).protocols)  # type: ignore[union-attr]
        bob.unhandle("/new/1")
        await until(lambda: "/new/1" not in alice.info(bob.peer_id).protocols)  # type: ignore[union-attr]
        # What a peer said of itself leads back to it.
        await bob.disconnect(alice.peer_id)
        await until(lambda: not alice.peers)
        assert await bob.ping(alice.peer_id) < DEADLINE_S
        assert (alice.saw(Connected), alice.saw(Disconnected)) == (2, 1)
        await until(lambda: alice.saw(Identified) >= 4)


@coroutine
async def test_who_a_peer_is_can_be_waited_for() -> None:
    async with hosts(2) as (alice, bob):
        with pytest.raises(ConnectionLost):
            await alice.identified(bob.peer_id)
        await alice.dial(bob.address)
        one, two = await asyncio.gather(alice.identified(bob.peer_id), alice.identified(bob.peer_id))
        assert one == two == alice.info(bob.peer_id) == await alice.identified(bob.peer_id)
        # Somebody who does not say it, and goes.
        bob.unhandle("/ipfs/id/1.0.0")
        await bob.disconnect(alice.peer_id)
        await until(lambda: not alice.peers)
        await alice.dial(bob.address)
        waiting = asyncio.create_task(alice.identified(bob.peer_id))
        assert await alice.ping(bob.peer_id) < DEADLINE_S
        await alice.disconnect(bob.peer_id)
        with pytest.raises(ConnectionLost, match="before it said"):
            await waiting


@coroutine
async def test_a_protocol_that_nobody_speaks_is_refused() -> None:
    async with hosts(2) as (alice, bob):
        connection = await alice.dial(bob.address)
        with pytest.raises(NotSupported):
            await alice.open_stream(bob.peer_id, "/nobody/1", "/nobody/2")
        stream = await alice.open_stream(bob.peer_id, "/nobody/1", ECHO)
        assert stream.protocol == ECHO
        stream.close()
        # Relied on in error: the first read tells.
        stream = connection.open_stream(["/nobody/1"], known=True)
        await stream.write(b"x")
        with pytest.raises(NotSupported):
            await stream.read()
        await until(lambda: connection.streams == 0)


@coroutine
async def test_a_megabyte_goes_through_small_windows_both_ways_at_once() -> None:
    async with hosts(2) as (alice, bob):
        await alice.dial(bob.address)
        data = [random.Random(number).randbytes(1 << 20) for number in range(8)]

        async def there_and_back(body: bytes) -> bool:
            async with await alice.open_stream(bob.peer_id, ECHO) as stream:
                _, back = await asyncio.gather(stream.write(body), stream.read_exactly(len(body)))
                return back == body

        assert all(await asyncio.gather(*map(there_and_back, data)))


@coroutine
async def test_who_does_not_read_makes_the_writer_wait_and_nobody_else() -> None:
    async with hosts(2) as (alice, bob):
        release = asyncio.Event()

        async def sluggish(stream: Stream) -> None:
            await release.wait()
            while await stream.read():
                pass

        bob.handle("/slow", sluggish)
        await alice.dial(bob.address)
        slow = await alice.open_stream(bob.peer_id, "/slow")
        writing = asyncio.create_task(slow.write(bytes(4 << 20)))
        quick = await alice.open_stream(bob.peer_id, ECHO)
        for _ in range(100):
            await quick.write(b"x")
            assert await quick.read_exactly(1) == b"x"
        assert not writing.done()
        (connection,) = bob.connections(alice.peer_id)
        assert connection.session.unread_bytes <= 2 * 262_144
        release.set()
        await writing
        slow.close()
        quick.close()


@coroutine
async def test_a_stream_that_is_forgotten_holds_no_memory() -> None:
    async with hosts(2) as (alice, bob):

        async def tells(stream: Stream) -> None:
            await stream.write(bytes(100_000))

        bob.handle("/tell", tells)
        connection = await alice.dial(bob.address)
        stream = await alice.open_stream(bob.peer_id, "/tell")
        stream.close_write()
        await until(lambda: connection.session.unread_bytes >= 100_000 and not connection.streams)
        assert alice._memory.used >= 100_000
        del stream
        gc.collect()
        assert connection.session.unread_bytes == alice._memory.used == 0


@coroutine
async def test_streams_that_have_ended_wait_for_no_collector() -> None:
    async with hosts(2, tick_s=0.05) as (alice, bob):
        connection = await alice.dial(bob.address)
        gc.collect()
        gc.disable()
        try:
            for number in range(200):
                async with await alice.open_stream(bob.peer_id, ECHO) as stream:
                    await stream.write(b"x")
                    await stream.read_exactly(1)
                    if number % 3 == 0:
                        stream.reset()
            del stream
            await until(lambda: not connection.streams and not connection._lingering)
            await until(lambda: sum(isinstance(one, Stream) for one in gc.get_objects()) <= 4)
        finally:
            gc.enable()


@coroutine
async def test_frames_and_lines_are_bounded_before_they_are_read() -> None:
    async with hosts(2) as (alice, bob):
        await alice.dial(bob.address)
        stream = await alice.open_stream(bob.peer_id, ECHO)
        await stream.write_frame(b"abc")
        assert await stream.read_frame(3) == b"abc"
        await stream.write(b"\x80\x80\x80\x80\x10")
        with pytest.raises(LimitReached):
            await stream.read_frame(1 << 20)
        await stream.write(b"one\ntwo\nthree")
        assert [await stream.read_line(9), await stream.read_line(9)] == [b"one", b"two"]
        stream.close_write()
        assert await stream.read_line(9) == b"three"
        with pytest.raises(StreamEnded):
            await stream.read_exactly(1)
        with pytest.raises(StreamEnded):
            await stream.write(b"x")
        stream = await alice.open_stream(bob.peer_id, ECHO)
        await stream.write(b"much too long\n")
        with pytest.raises(LimitReached):
            await stream.read_line(4)
        stream.reset()


@coroutine
async def test_a_reset_is_seen_at_the_other_end_and_a_handler_that_fails_resets() -> None:
    async with hosts(2) as (alice, bob):
        seen: asyncio.Queue[BaseException] = asyncio.Queue()

        async def waits(stream: Stream) -> None:
            await stream.write(b"!")
            try:
                await stream.read_exactly(10)
            except StreamReset as error:
                seen.put_nowait(error)
                raise

        async def refuses(stream: Stream) -> None:
            raise DialFailed("not today")

        bob.handle("/wait", waits)
        bob.handle("/refuse", refuses)
        await alice.dial(bob.address)
        stream = await alice.open_stream(bob.peer_id, "/wait")
        assert await stream.read() == b"!"
        stream.reset()
        assert isinstance(await seen.get(), StreamReset)
        with pytest.raises(StreamReset):
            await stream.write(b"x")
        stream = await alice.open_stream(bob.peer_id, "/refuse")
        with pytest.raises(StreamReset):
            await stream.read()


@coroutine
async def test_when_a_peer_goes_everybody_who_waits_is_told() -> None:
    async with hosts(2) as (alice, bob):
        connection = await alice.dial(bob.address)
        stream = await alice.open_stream(bob.peer_id, ECHO)
        reading = asyncio.create_task(stream.read())
        writing = asyncio.create_task(_write_all(await alice.open_stream(bob.peer_id, ECHO)))
        await until(lambda: bob.peers)
        bob.connections(alice.peer_id)[0].abort()
        for task in (reading, writing):
            with pytest.raises(ConnectionLost):
                await task
        await until(lambda: not alice.peers and not bob.peers)
        assert not connection.is_open
        assert alice.saw(Disconnected) == bob.saw(Disconnected) == 1
        with pytest.raises(ConnectionLost):
            connection.open_stream([ECHO])


async def _write_all(stream: Stream) -> None:
    while True:
        await stream.write(bytes(1 << 20))


@coroutine
async def test_who_answers_must_be_who_was_dialled() -> None:
    async with hosts(2) as (alice, bob):
        other = PeerId.of(PrivateKey.generate().public)
        with pytest.raises(DialFailed, match="who answers"):
            await alice.dial(bob.address.bare().at(other))
        with pytest.raises(DialFailed, match="ourselves"):
            await alice.dial(alice.address)
        with pytest.raises(DialFailed, match="no address"):
            await alice.dial(PeerId.of(PrivateKey.generate().public))
        with pytest.raises(BadInput, match="/p2p/"):
            await alice.dial(bob.address.bare())
        with pytest.raises(BadInput, match="plain TCP"):
            await alice.listen("/ip4/127.0.0.1/udp/0/quic-v1")
        await until(lambda: not bob.counts.pending)
        assert not alice.peers
        assert bob.counts.failed_handshakes == 1


@coroutine
async def test_a_dead_address_does_not_hold_up_a_good_one() -> None:
    async with hosts(2) as (alice, bob):
        with socket.create_server(("127.0.0.1", 0)) as silent:
            bad = [Multiaddr.parse("/ip4/127.0.0.1/tcp/1"), tcp("127.0.0.1", silent.getsockname()[1])]
            connection = await alice.dial(bob.peer_id, [*bad, bob.address])
        assert connection.peer == bob.peer_id
        assert alice.book.of(bob.peer_id)[0] == bob.address.bare()


@coroutine
async def test_a_name_that_cannot_be_looked_up_is_a_failed_dial() -> None:
    async with hosts(2) as (alice, bob):
        for name in ("x" * 64 + ".example", "nowhere.invalid", "\u2603" * 70):
            with pytest.raises(DialFailed, match="cannot reach"):
                await alice.dial(Multiaddr.parse(f"/dns4/{name}/tcp/1").at(bob.peer_id))
            alice.book.forget(bob.peer_id)


@coroutine
async def test_an_address_that_is_told_while_others_are_tried_is_tried_too() -> None:
    came, go = asyncio.Event(), asyncio.Event()

    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.set()
        await go.wait()
        writer.close()

    async with hosts(2) as (alice, bob), await asyncio.start_server(mute, "127.0.0.1", 0) as server:
        stale = tcp("127.0.0.1", server.sockets[0].getsockname()[1])
        first = asyncio.ensure_future(alice.dial(bob.peer_id, [stale]))
        await came.wait()
        second = asyncio.ensure_future(alice.dial(bob.address))
        await asyncio.sleep(0)
        go.set()
        with pytest.raises(DialFailed):
            await first
        assert (await second).peer == bob.peer_id


@coroutine
async def test_an_address_that_is_told_while_there_is_a_connection_is_kept() -> None:
    async with hosts(2) as (alice, bob):
        await alice.dial(bob.address)
        other = tcp("127.0.0.1", 1)
        await alice.dial(other.at(bob.peer_id))
        assert alice.book.of(bob.peer_id)[:2] == [bob.address.bare(), other]


def test_of_a_peer_that_moves_the_last_addresses_are_known() -> None:
    book, peer = AddressBook(4, 3), PeerId.of(PrivateKey.generate().public)
    for port in range(1, 9):
        book.add(peer, [tcp("127.0.0.1", port)])
    assert book.of(peer) == [tcp("127.0.0.1", port) for port in (1, 8, 7)]
    book.add(peer, [tcp("127.0.0.1", 8)], first=True)
    book.add(peer, [tcp("127.0.0.1", port) for port in (9, 8)])
    assert book.of(peer) == [tcp("127.0.0.1", port) for port in (8, 9, 1)]


@coroutine
async def test_many_who_dial_the_same_peer_share_one_connection() -> None:
    async with hosts(2) as (alice, bob):
        found = await asyncio.gather(*(alice.dial(bob.address) for _ in range(20)))
        assert len(set(map(id, found))) == 1
        assert bob.counts.connections == 1


@coroutine
async def test_two_who_dial_each_other_at_once_are_connected_once() -> None:
    for _ in range(20):
        async with hosts(2) as (alice, bob):
            await asyncio.gather(alice.dial(bob.address), bob.dial(alice.address))
            await until(lambda a=alice, b=bob: a.saw(Identified) and b.saw(Identified))
            assert alice.saw(Connected) == bob.saw(Connected) == 1
            assert 1 <= alice.counts.connections <= 2
            assert await alice.ping(bob.peer_id) < DEADLINE_S
            assert await bob.ping(alice.peer_id) < DEADLINE_S
            # The end of one of two connections is not the end of the peer.
            if len(alice.connections(bob.peer_id)) == 2:
                await alice.connections(bob.peer_id)[0].close()
                await until(lambda a=alice, b=bob: a.counts.connections == b.counts.connections == 1)
                assert alice.saw(Disconnected) == 0
                assert await alice.ping(bob.peer_id) < DEADLINE_S
            await alice.disconnect(bob.peer_id)
            await until(lambda b=bob: b.saw(Disconnected) == 1)


@coroutine
async def test_connections_that_say_nothing_are_bounded_and_end_in_time() -> None:
    async with hosts(2, pending_max=3, handshake_s=1.5) as (alice, bob):
        quiet = [await stranger(bob) for _ in range(3)]
        await until(lambda: bob.counts.pending == 3)
        reader, writer = await stranger(bob)
        assert await reader.read() == b""
        writer.close()
        assert bob.counts.refused == 1
        for reader, writer in quiet:
            while await reader.read(1_000):
                pass
            writer.close()
        await until(lambda: not bob.counts.pending)
        patient(alice, bob)
        assert await alice.dial(bob.address)


def patient(*hosts: Watched) -> None:
    """Give those who shake hands from now on the time that a busy machine may take."""
    for host in hosts:
        host.settings = replace(host.settings, handshake_s=DEADLINE_S)


@coroutine
async def test_numbers_of_connections_are_bounded() -> None:
    async with hosts(4, inbound_max=2, connections_max=3) as (alice, bob, carol, dave):
        await bob.dial(alice.address)
        await carol.dial(alice.address)
        with pytest.raises(DialFailed):
            await dave.dial(alice.address)
        await until(lambda: alice.counts.connections == 2)
        assert alice.counts.refused == 1
        # Our own dials have the rest.
        await alice.dial(dave.address)
        stray = PeerId.of(PrivateKey.generate().public)
        with pytest.raises(LimitReached):
            await alice.dial(stray, [bob.address])


@coroutine
async def test_connections_of_one_peer_are_bounded() -> None:
    async with hosts(1, per_peer_max=2) as (alice,):
        key = PrivateKey.generate()
        twins = [Watched(key, Settings()) for _ in range(3)]
        await twins[0].dial(alice.address)
        await twins[1].dial(alice.address)
        await twins[2].dial(alice.address)
        await until(lambda: not twins[2].peers, "the third is turned away")
        assert alice.counts.connections == 2
        assert alice.saw(Connected) == 1
        for twin in twins:
            await twin.close()


@coroutine
async def test_streams_beyond_the_bounds_are_reset() -> None:
    async with hosts(2, streams_per_protocol_max=2, bounds=Bounds(streams_in_max=5)) as (alice, bob):
        await alice.dial(bob.address)
        await until(lambda: alice.info(bob.peer_id) and bob.info(alice.peer_id))
        streams = [await alice.open_stream(bob.peer_id, ECHO) for _ in range(3)]
        for stream in streams:
            await stream.write(b"x")
        assert [await stream.read() for stream in streams[:2]] == [b"x", b"x"]
        with pytest.raises(StreamReset):
            await streams[2].read()
        (connection,) = alice.connections(bob.peer_id)
        mute = [connection.session.open() for _ in range(4)]
        connection.flush_soon()
        await until(lambda: mute[3].reset)
        assert not mute[2].reset


@coroutine
async def test_streams_that_agree_on_nothing_end_in_time() -> None:
    async with hosts(2, negotiate_s=0.2, tick_s=0.05) as (alice, bob):
        connection = await alice.dial(bob.address)
        flow = connection.session.open()
        connection.flush_soon()
        await until(lambda: flow.reset)
        assert bob.counts.connections == 1


@coroutine
async def test_a_stream_that_the_other_side_never_closes_does_not_stay_for_ever() -> None:
    async with hosts(2, linger_s=0.2, tick_s=0.05) as (alice, bob):
        ended = asyncio.Event()

        async def stubborn(stream: Stream) -> None:
            try:
                while True:
                    await stream.write(bytes(100_000))
            finally:
                ended.set()

        bob.handle("/stubborn", stubborn)
        connection = await alice.dial(bob.address)
        stream = await alice.open_stream(bob.peer_id, "/stubborn")
        stream.close()
        await ended.wait()
        await until(lambda: connection.streams == 0)


class Frozen(asyncio.Protocol):
    """Between two hosts: carries bytes until it is told to stop."""

    def __init__(self) -> None:
        self.carries = True

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, to = await asyncio.open_connection("127.0.0.1", self.port)
        await asyncio.gather(self.carry(reader, to), self.carry(there, writer))
        to.close()
        writer.close()

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65_536):
                if self.carries:
                    writer.write(data)
        except OSError:
            pass
        if not writer.is_closing():
            writer.close()

    port = 0


@coroutine
async def test_a_peer_that_says_nothing_any_more_is_noticed_and_a_quiet_one_is_kept() -> None:
    async with hosts(2, keepalive_s=0.2, keepalive_wait_s=1.0, tick_s=0.05) as (alice, bob):
        wire = Frozen()
        endpoint = bob.address.endpoint
        assert endpoint is not None
        wire.port = endpoint.port
        server = await asyncio.start_server(wire.serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        connection = await alice.dial(bob.peer_id, [Multiaddr.parse(f"/ip4/127.0.0.1/tcp/{port}")])
        await until(lambda: connection.rtt_s is not None)
        begun = asyncio.get_running_loop().time()
        while asyncio.get_running_loop().time() < begun + 1.5:
            await alice.ping(bob.peer_id)
            await asyncio.sleep(0.3)
        assert alice.is_connected(bob.peer_id)
        wire.carries = False
        await until(lambda: alice.saw(Disconnected) and bob.saw(Disconnected))
        # Whoever notices it first closes the connection, which the other may see as an end.
        assert any("no sign of life" in str(host.why_gone()) for host in (alice, bob))
        server.close()
        await server.wait_closed()
        await until(lambda: len(asyncio.all_tasks()) == 1)


@coroutine
async def test_who_stood_still_takes_nobody_else_for_dead() -> None:
    async with hosts(2, keepalive_s=0.2, keepalive_wait_s=0.4, tick_s=0.05) as (alice, bob):
        connection = await alice.dial(bob.address)
        await until(lambda: connection.rtt_s is not None)
        for _ in range(3):
            # The machine does, with both hosts on it.
            time.sleep(0.8)  # noqa: ASYNC251
            assert await alice.ping(bob.peer_id) < DEADLINE_S
        assert alice.connections(bob.peer_id) == [connection]
        assert alice.saw(Disconnected) == bob.saw(Disconnected) == 0


@pytest.mark.parametrize(
    "wrong",
    [{"dial_s": 0}, {"pending_max": -1}, {"inbound_max": 10, "connections_max": 9}, {"announce": ("nowhere",)}],
)
def test_settings_that_cannot_be_meant_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        Settings(**wrong)
    for bounds in ({"window_bytes": 1_000}, {"streams_in_max": 0}):
        with pytest.raises(BadInput):
            Bounds(**bounds)


def test_a_frozen_peer_is_noticed_within_thirty_seconds_by_default() -> None:
    settings = Settings()
    # It is asked at the first tick behind the one time, and given up at the first behind the other.
    assert settings.keepalive_s + settings.keepalive_wait_s + 2 * settings.tick_s <= 30


@coroutine
async def test_who_asks_and_does_not_read_the_answers_is_cut_off() -> None:
    async with hosts(2, output_bytes_max=300_000) as (alice, bob):
        connection = await alice.dial(bob.address)
        transport = connection._transport
        assert transport is not None
        transport.pause_reading()
        pings = bytes((0, 2, 0, 1, 0, 0, 0, 0, 0, 0, 0, 9)) * 5_000
        while bob.counts.connections:
            if transport.get_write_buffer_size() < 1 << 20:
                transport.write(connection._channel.seal(pings))
            await asyncio.sleep(0)
        assert isinstance(bob.why_gone(), LimitReached)


@pytest.mark.parametrize("junk", [b"GET / HTTP/1.1\r\n\r\n", b"\x13/multistream/1.0.0\n\x05/tls\n", b"\xff" * 100])
def test_strangers_who_speak_something_else_are_turned_away(junk: bytes) -> None:
    @coroutine
    async def turned_away() -> None:
        async with hosts(2, handshake_s=1.0) as (alice, bob):
            reader, writer = await stranger(bob)
            writer.write(junk)
            try:
                while await reader.read(1_000):
                    pass
            except ConnectionError:
                pass
            writer.close()
            await until(lambda: not bob.counts.pending)
            assert bob.counts.failed_handshakes == 1
            assert not bob.peers
            patient(alice, bob)
            assert await alice.dial(bob.address)

    turned_away()


@coroutine
async def test_garbage_behind_the_handshake_ends_only_that_connection() -> None:
    async with hosts(3) as (alice, bob, carol):
        await carol.dial(bob.address)
        connection = await alice.dial(bob.address)
        assert connection._transport is not None
        connection._transport.write(connection._channel.seal(b"\x09" * 40))
        await until(lambda: bob.saw(Disconnected))
        await until(lambda: alice.saw(Disconnected))
        connection = await alice.dial(bob.address)
        assert connection._transport is not None
        connection._transport.write(bytes(200))
        await until(lambda: bob.saw(Disconnected) == 2)
        assert await carol.ping(bob.peer_id) < DEADLINE_S


@coroutine
async def test_a_host_that_closes_leaves_nothing_behind() -> None:
    process = psutil.Process()
    before = process.num_fds()
    async with hosts(3) as (alice, bob, carol):
        await alice.dial(bob.address)
        await bob.dial(carol.address)
        waiting = await carol.open_stream(bob.peer_id, ECHO)
        quiet = await stranger(bob)
        await until(lambda: bob.counts.pending == 1)
        dialling = asyncio.create_task(alice.dial(PeerId.of(PrivateKey.generate().public), [bob.address]))
        await asyncio.sleep(0)
        await bob.close()
        await bob.close()
        with pytest.raises(ConnectionLost):
            await waiting.read()
        with pytest.raises(DialFailed):
            await dialling
        with pytest.raises(ConnectionLost):
            await bob.dial(alice.address)
        with pytest.raises(ConnectionLost):
            await bob.listen(HERE)
        quiet[1].close()
        await until(lambda: not alice.peers and not carol.peers)
    await until(lambda: process.num_fds() <= before + 2)


@coroutine
async def test_forty_reconnects_leave_nothing_behind() -> None:
    def alive() -> int:
        gc.collect()
        return sum(isinstance(each, Connection) for each in gc.get_objects())

    before = alive()
    async with hosts(2) as (alice, bob):
        process = psutil.Process()
        files = 0
        for number in range(40):
            connection = await alice.dial(bob.address)
            async with await alice.open_stream(bob.peer_id, ECHO) as stream:
                await stream.write(b"x")
                assert await stream.read() == b"x"
            await connection.close()
            del connection, stream
            await until(lambda: not bob.peers and not alice.peers)
            if number == 5:
                files = process.num_fds()
        await until(lambda: process.num_fds() <= files)
        assert alice.saw(Connected) == bob.saw(Connected) == 40
        await until(lambda: len(asyncio.all_tasks()) == 1)
        assert alive() <= before + 2
