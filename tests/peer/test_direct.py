"""Two peers over real streams: what is sent arrives once, in order, and its sender knows."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.libp2p.loop import coroutine, until, within
from tests.peer.nodes import ALICE, BOB, MALLORY, id_of, limits, node, plain

from posthouse.errors import InvalidInput
from posthouse.libp2p.errors import Libp2pError
from posthouse.mailbox.message import State
from posthouse.mailbox.policy import INBOX, OUTBOX
from posthouse.peer import frame
from posthouse.peer.inbox import Incoming, Reject


@coroutine
async def test_a_message_arrives_is_processed_and_its_sender_knows(tmp_path: Path) -> None:
    async with node(tmp_path, ALICE) as alice, node(tmp_path, BOB) as bob:
        await alice.meet(bob)
        id = await alice.peer.send(bob.id, "t1", "pubkey_exchange", {"pubkey": "02ab"}, order="o1")
        await until(lambda: alice.sent(State.DELIVERED))
        (came,) = bob.came
        assert (came.id, came.peer, came.trade, came.type, came.order) == (id, alice.id, "t1", "pubkey_exchange", "o1")
        assert (came.payload, came.sequence, came.signed) == ({"pubkey": "02ab"}, 1, True)
        await bob.peer.send(alice.id, "t1", "nonce_exchange", [1])
        await until(lambda: alice.came)
        assert alice.came[0].payload == [1]


@coroutine
async def test_what_was_sent_to_an_absent_peer_flows_in_order_when_it_comes(tmp_path: Path) -> None:
    async with node(tmp_path, ALICE, policies=(OUTBOX, INBOX)) as alice:
        for number in range(20):
            for trade in ("t1", "t2"):
                await alice.peer.send(id_of(BOB), trade, "partial_sig", number)
        await until(lambda: alice.stats.away)
        async with node(tmp_path, BOB) as bob:
            # The peer comes; nobody waits for the next try, which would be ten seconds later.
            await bob.meet(alice)
            await until(lambda: len(bob.came) == 40)
            for trade in ("t1", "t2"):
                of = [m for m in bob.came if m.trade == trade]
                assert [m.payload for m in of] == list(range(20))
                assert [m.sequence for m in of] == list(range(1, 21))
            await until(lambda: len(alice.sent(State.DELIVERED)) == 40)


@coroutine
async def test_a_rejection_is_final_and_recorded_with_its_reason(tmp_path: Path) -> None:
    def refuse(message: Incoming) -> None:
        if message.payload == "bad":
            raise Reject("this amount was not agreed on")

    async with node(tmp_path, ALICE) as alice, node(tmp_path, BOB) as bob:
        bob.then = refuse
        await alice.meet(bob)
        await alice.peer.send(bob.id, "t1", "funding_info", "bad")
        await alice.peer.send(bob.id, "t1", "funding_info", "good")
        await until(lambda: alice.sent(State.DELIVERED))
        (dead,) = alice.sent(State.DEAD)
        assert (dead.reason, dead.error, dead.attempts) == ("rejected", "this amount was not agreed on", 1)
        assert [m.payload for m in bob.came] == ["good"]


@coroutine
async def test_a_handler_that_fails_gives_no_acknowledgement_and_is_run_again(tmp_path: Path) -> None:
    failures = [OSError("disk"), OSError("disk")]

    def fail(message: Incoming) -> None:
        if failures:
            raise failures.pop()

    quick = limits(take={"process_s": 0.2})
    async with node(tmp_path, ALICE) as alice, node(tmp_path, BOB, quick) as bob:
        bob.then = fail
        await alice.meet(bob)
        await alice.peer.send(bob.id, "t1", "htlc_claim", 1)
        await alice.peer.send(bob.id, "t1", "complete", 2)
        await until(lambda: len(alice.sent(State.DELIVERED)) == 2)
        assert [m.payload for m in bob.came] == [1, 2]
        assert bob.stats.failed == 2


@coroutine
async def test_a_message_that_nobody_processes_is_kept_and_not_acknowledged(tmp_path: Path) -> None:
    quick = limits(take={"process_s": 0.05})
    async with node(tmp_path, ALICE) as alice, node(tmp_path, BOB, quick, handler=None) as bob:
        await alice.meet(bob)
        await alice.peer.send(bob.id, "t1", "abort", "why")
        await until(lambda: alice.stats.unconfirmed >= 2)
        assert not alice.sent(State.DELIVERED)
        async for message in bob.peer.messages():
            assert message.payload == "why"
            assert await message.done()
            break
        # The next copy is answered with what became of the first.
        await until(lambda: alice.sent(State.DELIVERED))
        assert bob.stats.received["abort"] == 1


@coroutine
async def test_both_sides_go_on_after_a_restart(tmp_path: Path) -> None:
    async with node(tmp_path, ALICE) as alice:
        await alice.peer.send(id_of(BOB), "t1", "abort", 1)
        await alice.peer.send(id_of(BOB), "t1", "abort", 2)
    async with node(tmp_path, BOB) as bob:
        async with node(tmp_path, ALICE) as alice:
            await alice.meet(bob)
            await until(lambda: len(bob.came) == 2)
    async with node(tmp_path, ALICE) as alice, node(tmp_path, BOB) as bob:
        await bob.meet(alice)
        await alice.peer.send(bob.id, "t1", "abort", 3)
        await until(lambda: bob.came)
        assert bob.came[0].sequence == 3


async def over_a_hundred_trades(folder: Path, count: int) -> None:
    async with node(folder, ALICE) as alice, node(folder, BOB) as bob:
        await alice.meet(bob)
        trades = [f"t{n}" for n in range(100)]
        for number in range(count):
            await asyncio.gather(*(alice.peer.send(bob.id, t, "nonce_exchange", number) for t in trades))
        for number in range(count):
            await until(lambda done=100 * (number + 1): alice.stats.acked >= done)  # type: ignore[misc]
        assert len(bob.came) == 100 * count
        for trade in trades:
            assert [m.payload for m in bob.came if m.trade == trade] == list(range(count))
        assert bob.stats.duplicates == alice.stats.unconfirmed == 0


@coroutine
async def test_messages_over_a_hundred_trades_arrive_in_order(tmp_path: Path) -> None:
    await over_a_hundred_trades(tmp_path, 5)


@pytest.mark.slow
@pytest.mark.timeout(400)
@within(380)
async def test_ten_thousand_messages_over_a_hundred_trades_arrive_in_order(tmp_path: Path) -> None:
    await over_a_hundred_trades(tmp_path, 100)


@coroutine
async def test_what_cannot_be_sent_is_said_at_once(tmp_path: Path) -> None:
    async with node(tmp_path, ALICE) as alice:
        bob = id_of(BOB)
        for peer, trade, kind, payload, wrong in (
            ("nobody", "t", "abort", 1, "peer id"),
            (alice.id, "t", "abort", 1, "our own"),
            (bob, "", "abort", 1, "empty"),
            (bob, "t\n", "abort", 1, "control"),
            (bob, "t", "order_announce", 1, "no type"),
            (bob, "t", "abort", {1, 2}, "JSON"),
            (bob, "t", "abort", float("nan"), "JSON"),
            (bob, "t", "abort", 0.5, "fraction"),
            (bob, "t", "abort", "x" * 2**20, "at most"),
        ):
            with pytest.raises(InvalidInput, match=wrong):
                await alice.peer.send(peer, trade, kind, payload)
        with pytest.raises(InvalidInput, match="too late"):
            await alice.peer.send(bob, "t", "abort", 1, timeout_s=int(alice.engine.now() / 1e6) + 3_000)
        await alice.peer.send(bob, "t", "abort", 1, id="same")
        await alice.peer.send(bob, "t", "abort", 1, id="same")
        assert len(alice.sent()) == 1
        with pytest.raises(InvalidInput, match="other party"):
            await alice.peer.send(id_of(MALLORY), "t", "abort", 1)


# A node that knows only direct messages.


@coroutine
async def test_a_plain_node_is_served_and_its_acknowledgement_is_checked(tmp_path: Path) -> None:
    async with node(tmp_path, ALICE) as alice, plain(BOB) as bob:
        await alice.meet(bob)
        bob.answers = [
            lambda m: bob.yes(m._replace(message_id="another")),
            lambda m: None,
            lambda m: b"\xff\xff\xff\xff",
            lambda m: b"\x00\x00\x00\x02{]",
            lambda m: m,
        ]
        await alice.peer.send(id_of(BOB), "t1", "abort", 1)
        await until(lambda: alice.sent(State.DELIVERED))
        assert len(bob.frames) == 6
        assert len({m.message_id for m in bob.frames}) == 1
        assert {m.sequence_num for m in bob.frames} == {1}
        assert alice.stats.unconfirmed == 5


@coroutine
async def test_a_plain_node_that_refuses_a_type_is_believed(tmp_path: Path) -> None:
    async with node(tmp_path, ALICE) as alice, plain(BOB) as bob:
        await alice.meet(bob)
        bob.answers = [lambda m: bob.no(m, "unknown message type")]
        await alice.peer.send(id_of(BOB), "t1", "complete", 1)
        await until(lambda: alice.sent(State.DEAD))
        assert alice.sent(State.DEAD)[0].error == "unknown message type"


@coroutine
async def test_a_thousand_copies_are_processed_once_and_answered_alike(tmp_path: Path) -> None:
    async with node(tmp_path, ALICE) as alice, plain(BOB) as bob:
        await bob.dial(alice.host.addresses[0])
        message = bob.direct(1)
        answers = []
        for _ in range(20):
            answers += await asyncio.gather(*(bob.say(alice.host, message) for _ in range(50)))
        assert {frame.acknowledged(answer) for answer in answers} == {frame.Ack("m1", True)}
        assert len(alice.came) == 1
        assert alice.stats.duplicates == 999


@coroutine
async def test_a_copy_of_what_was_rejected_is_answered_with_the_rejection(tmp_path: Path) -> None:
    def refuse(message: Incoming) -> None:
        raise Reject("no")

    async with node(tmp_path, ALICE) as alice, plain(BOB) as bob:
        alice.then = refuse
        await bob.dial(alice.host.addresses[0])
        for _ in range(3):
            assert frame.acknowledged(await bob.say(alice.host, bob.direct(1))) == frame.Ack("m1", False, "no")


@coroutine
async def test_a_message_that_comes_early_is_held_until_the_one_before_it_is_there(tmp_path: Path) -> None:
    async with node(tmp_path, ALICE) as alice, plain(BOB) as bob:
        await bob.dial(alice.host.addresses[0])
        late = [asyncio.create_task(bob.say(alice.host, bob.direct(n))) for n in (3, 2)]
        await until(lambda: alice.stats.held == 2)
        assert alice.came == []
        # What is missing was asked for.
        await until(lambda: any(m.type == frame.SYNC_REQUEST for m in bob.frames))
        assert frame.acknowledged(await bob.say(alice.host, bob.direct(1))).success
        assert all(frame.acknowledged(answer).success for answer in await asyncio.gather(*late))
        assert [m.payload["n"] for m in alice.came] == [1, 2, 3]


@coroutine
async def test_what_is_held_back_too_long_gets_no_acknowledgement_and_is_not_kept(tmp_path: Path) -> None:
    async with node(tmp_path, ALICE, limits(take={"hold_s": 0.1})) as alice, plain(BOB) as bob:
        await bob.dial(alice.host.addresses[0])
        with pytest.raises(Libp2pError):
            await bob.say(alice.host, bob.direct(2))
        assert alice.came == []
        assert alice.engine.store.mailbox("inbox", id_of(BOB)) is None


@coroutine
async def test_a_gap_that_a_plain_node_cannot_explain_is_passed_over_in_the_end(tmp_path: Path) -> None:
    short = limits(take={"hold_s": 0.1}, rules={"gap_s": 0.3})
    async with node(tmp_path, ALICE, short) as alice, plain(BOB) as bob:
        await bob.dial(alice.host.addresses[0])

        async def tried() -> bool:
            try:
                return frame.acknowledged(await bob.say(alice.host, bob.direct(3))).success
            except Libp2pError:
                return False

        while not await tried():
            assert alice.came == []
        assert [m.sequence for m in alice.came] == [3]
        assert alice.stats.skipped == 2
        answer = frame.acknowledged(await bob.say(alice.host, bob.direct(1)))
        assert (answer.success, answer.error) == (False, "this number has passed: a replay")
