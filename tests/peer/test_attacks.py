"""Peers that lie, flood or send nonsense: each is refused with a stable reason, and others are served."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.libp2p.loop import coroutine, until
from tests.peer.nodes import ALICE, BOB, MALLORY, id_of, limits, node, plain

from posthouse.libp2p.errors import Libp2pError
from posthouse.mailbox.event import REFUSED
from posthouse.peer import frame
from posthouse.peer.frame import Direct


@coroutine
async def test_nobody_speaks_for_another(tmp_path: Path) -> None:
    async with node(tmp_path, ALICE) as alice, plain(BOB) as bob, plain(MALLORY) as mallory:
        await bob.dial(alice.host.addresses[0])
        await mallory.dial(alice.host.addresses[0])
        assert frame.acknowledged(await bob.say(alice.host, bob.direct(1))).success
        spoofed = mallory.direct(2, from_peer=id_of(BOB))
        other = mallory.direct(2, trade_id="t1")
        for message, why in (
            (spoofed, "from_peer is not the peer of this stream"),
            (other, "not a party of this trade"),
        ):
            assert frame.acknowledged(await mallory.say(alice.host, message)) == frame.Ack("m2", False, why)
        # The id that the liar used is still the owner's to use.
        assert frame.acknowledged(await bob.say(alice.host, bob.direct(2))).success
        assert [m.sequence for m in alice.came] == [1, 2]
        assert alice.stats.refused["spoofed"] == 2
        refused = [e for _, _, e in alice.engine.store.events() if e.event == REFUSED]
        assert (refused[0].reason, refused[0].mailbox) == ("spoofed", id_of(MALLORY))


@coroutine
async def test_old_numbers_and_reused_ids_are_refused(tmp_path: Path) -> None:
    async with node(tmp_path, ALICE) as alice, plain(BOB) as bob:
        await bob.dial(alice.host.addresses[0])
        for number in (1, 2):
            assert frame.acknowledged(await bob.say(alice.host, bob.direct(number))).success
        for message, why in (
            (bob.direct(1, message_id="new"), "this number has passed: a replay"),
            (bob.direct(3, message_id="m1"), "this message_id was used for another message"),
            (bob.direct(1, message_id="m2"), "this message_id was used for another message"),
            (bob.direct(1, message_id="m1", trade_id="t2"), "this message_id was used for another message"),
        ):
            answer = frame.acknowledged(await bob.say(alice.host, message))
            assert (answer.success, answer.error) == (False, why)
        assert frame.acknowledged(await bob.say(alice.host, bob.direct(3))).success
        assert len(alice.came) == 3


@coroutine
async def test_a_bad_signature_and_a_missing_one_are_refused(tmp_path: Path) -> None:
    from posthouse.peer.signature import sign

    async with node(tmp_path, ALICE) as alice, plain(BOB) as bob:
        await bob.dial(alice.host.addresses[0])
        forged = sign(bob.direct(1), MALLORY)
        answer = frame.acknowledged(await bob.say(alice.host, forged))
        assert (answer.success, answer.error) == (False, "the signature is not the sender's")
        assert frame.acknowledged(await bob.say(alice.host, sign(bob.direct(1), BOB))).success
        answer = frame.acknowledged(await bob.say(alice.host, bob.direct(2)))
        assert (answer.success, answer.error) == (False, "this trade takes signed messages only")


@coroutine
async def test_types_that_are_not_private_are_refused(tmp_path: Path) -> None:
    async with node(tmp_path, ALICE) as alice, plain(BOB) as bob:
        await bob.dial(alice.host.addresses[0])
        for kind in ("order_announce", "order_take", "swap_init", "ack", "", "<script>"):
            answer = frame.acknowledged(await bob.say(alice.host, bob.direct(1, type=kind)))
            assert (answer.success, answer.error) == (False, "unknown message type")
        assert alice.engine.store.kept("peer.trades") == []


@coroutine
async def test_nonsense_gets_no_answer_and_harms_nobody(tmp_path: Path) -> None:
    async with node(tmp_path, ALICE) as alice, plain(BOB) as bob:
        await bob.dial(alice.host.addresses[0])
        for nonsense in (
            b"\xff\xff\xff\xff",
            b"\x00\x00\x00\x00",
            b"\x00\x10\x00\x01" + b"x" * 100,
            b"\x00\x00\x00\x05hello",
            b"\x00\x00\x00\x10" + b'{"payload": NaN}',
        ):
            with pytest.raises(Libp2pError):
                await bob.say(alice.host, nonsense)
        # What does not come to its end is waited for as long as a frame may take.
        alice.allow(read_s=0.2)
        for unfinished in (b"\x00\x00", b"\x00\x00\x00\xffshort"):
            with pytest.raises(Libp2pError):
                await bob.say(alice.host, unfinished)
        alice.allow(read_s=60.0)
        assert frame.acknowledged(await bob.say(alice.host, bob.direct(1))).success
        assert alice.stats.refused["malformed"] == 5


@coroutine
async def test_a_flood_is_slowed_and_then_dropped_while_others_are_served(tmp_path: Path) -> None:
    # So slowly that a machine that stands still for seconds makes up for few.
    tight = limits(rules={"rate_per_s": 2.0, "burst": 10}, take={"turn_s": 1.0})
    async with node(tmp_path, ALICE, tight) as alice, plain(BOB) as bob, plain(MALLORY) as mallory:
        await bob.dial(alice.host.addresses[0])
        await mallory.dial(alice.host.addresses[0])

        async def flood(number: int) -> bool:
            try:
                await mallory.say(alice.host, mallory.direct(1, trade_id=f"x{number}", message_id=f"f{number}"))
            except Libp2pError:
                return False
            return True

        flooding = asyncio.gather(*(flood(number) for number in range(60)))
        assert frame.acknowledged(await bob.say(alice.host, bob.direct(1))).success
        served = sum(await flooding)
        assert 10 <= served <= 30
        assert alice.stats.refused["rate_limited"] == 60 - served
        assert sum(e.event == REFUSED for _, _, e in alice.engine.store.events()) <= 3


@coroutine
async def test_what_is_held_back_for_a_peer_is_bounded(tmp_path: Path) -> None:
    async with node(tmp_path, ALICE, limits(take={"held_per_peer_max": 3})) as alice, plain(BOB) as bob:
        await bob.dial(alice.host.addresses[0])
        early = [asyncio.create_task(bob.say(alice.host, bob.direct(number))) for number in range(2, 12)]
        # The others are held back, for longer than this test lasts.
        await all_but(3, early)
        assert alice.stats.refused["full"] == 7
        assert alice.stats.held == 10
        await given_up(early)


async def all_but(left: int, tasks: list[asyncio.Task[Direct]]) -> None:
    """Wait until so many are left; the others were reset."""
    await until(lambda: sum(task.done() for task in tasks) >= len(tasks) - left)
    over = [task for task in tasks if task.done()]
    assert len(over) == len(tasks) - left
    assert all(isinstance(task.exception(), Libp2pError) for task in over)


async def given_up(tasks: list[asyncio.Task[Direct]]) -> None:
    """End those that are left."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@coroutine
async def test_frames_that_are_read_at_once_are_bounded(tmp_path: Path) -> None:
    tight = limits(take={"reading_per_peer_bytes_max": 100_000})
    async with node(tmp_path, ALICE, tight) as alice, plain(BOB) as bob:
        await bob.dial(alice.host.addresses[0])
        head = (60_000).to_bytes(4, "big")
        halves = [asyncio.create_task(bob.say(alice.host, head + b"{")) for _ in range(3)]
        await all_but(1, halves)
        assert alice.stats.refused["full"] == 2
        await given_up(halves)
        await until(lambda: not alice.peer.receiver._reading[""])
        assert frame.acknowledged(await bob.say(alice.host, bob.direct(1))).success


@coroutine
async def test_a_peer_that_never_answers_holds_up_nobody_else(tmp_path: Path) -> None:
    quick = limits(send={"ack_s": 0.3})
    async with node(tmp_path, ALICE, quick) as alice, plain(BOB) as bob, plain(MALLORY) as mallory:
        await alice.meet(bob)
        await alice.meet(mallory)
        gate = asyncio.Event()

        async def silent(stream: object) -> None:
            await gate.wait()

        mallory.handle(frame.PROTOCOL, silent)
        for number in range(10):
            await alice.peer.send(id_of(MALLORY), f"m{number}", "abort", number)
            await alice.peer.send(id_of(BOB), f"b{number}", "abort", number)
        await until(lambda: alice.stats.acked == 10)
        await until(lambda: alice.stats.unconfirmed >= 10)
        gate.set()


@coroutine
async def test_json_that_others_read_differently_is_refused_on_the_wire(tmp_path: Path) -> None:
    async with node(tmp_path, ALICE) as alice, plain(BOB) as bob:
        await bob.dial(alice.host.addresses[0])
        for body in (
            b'{"type":"abort","type":"complete"}',
            b'{"payload":' + b"[" * 10_000 + b"]" * 10_000 + b"}",
            b'{"timestamp":1' + b"0" * 5_000 + b"}",
            b'{"payload":1e999}',
            b'{"payload":"\\ud800"}',
            b'{"payload":"\xff"}',
            b'{"capabilities":["a b"]}',
            b'{"capabilities":' + b"[" + b'"x",' * 20 + b'"x"]}',
        ):
            with pytest.raises(Libp2pError):
                await bob.say(alice.host, len(body).to_bytes(4, "big") + body)
        assert alice.stats.refused["malformed"] == 8
        assert frame.acknowledged(await bob.say(alice.host, bob.direct(1))).success


@coroutine
async def test_who_dribbles_a_frame_has_the_time_of_one_frame(tmp_path: Path) -> None:
    async with node(tmp_path, ALICE, limits(take={"read_s": 0.3})) as alice, plain(BOB) as bob:
        await bob.dial(alice.host.addresses[0])
        data = frame.encode(bob.direct(1))
        stream = await bob.open_stream(alice.host.peer_id, frame.PROTOCOL)

        async def dribble() -> None:
            for byte in data:
                await stream.write(bytes((byte,)))
                await asyncio.sleep(0.01)
            await stream.read_exactly(1)

        with pytest.raises(Libp2pError):
            await dribble()
        assert alice.came == []
        alice.allow(read_s=60.0)
        assert frame.acknowledged(await bob.say(alice.host, bob.direct(1))).success


@coroutine
async def test_names_that_mean_something_elsewhere_are_only_names_here(tmp_path: Path) -> None:
    names = ("<img src=x onerror=alert(1)>", "'; DROP TABLE message; --", "../../etc/passwd", "a/b\\c", "%s{0}$(id)")
    async with node(tmp_path, ALICE) as alice, plain(BOB) as bob:
        await bob.dial(alice.host.addresses[0])
        for name in names:
            message = bob.direct(1, trade_id=name, message_id=name, order_id=name)
            assert frame.acknowledged(await bob.say(alice.host, message)).success
        assert [(m.trade, m.id, m.order) for m in alice.came] == [(name,) * 3 for name in names]
        seen = {e.message_id: (e.mailbox, e.lane) for _, _, e in alice.engine.store.events() if e.event == "delivered"}
        assert seen == {name: (id_of(BOB), name) for name in names}
        for name in ("two\nlines", "\x1b[2J", "\u202e", "\0"):
            with pytest.raises(Libp2pError):
                await bob.say(alice.host, bob.direct(1, trade_id=name, message_id="m"))
        assert alice.stats.refused["malformed"] == 4
