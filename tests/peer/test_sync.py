"""Two parties compare how far they are: what is gone is waited for no longer, what was lost is sent again."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.libp2p.loop import coroutine, until
from tests.peer.nodes import ALICE, BOB, MALLORY, id_of, limits, node, plain

from posthouse.mailbox.command import Cancel
from posthouse.mailbox.message import Ref, State
from posthouse.peer import frame
from posthouse.peer.frame import Direct
from posthouse.peer.sync import MARK


@coroutine
async def test_a_question_is_answered_with_the_state_of_the_trade(tmp_path: Path) -> None:
    def state(trade: str) -> dict[str, object]:
        return {"state": "funded", "has_funding": True}

    async with node(tmp_path, ALICE, state=state) as alice, plain(BOB) as bob:
        await bob.dial(alice.host.addresses[0])
        assert frame.acknowledged(await bob.say(alice.host, bob.direct(1))).success
        await alice.peer.send(id_of(BOB), "t1", "abort", 1)
        await until(lambda: alice.sent(State.DELIVERED))
        question = Direct(
            "sync_request", "t1", from_peer=id_of(BOB), message_id="q", requires_ack=True,
            payload={"local_sequence": 3, "remote_sequence": 1},
        )  # fmt: skip
        answer = await bob.say(alice.host, question)
        assert answer.type == "sync_response"
        assert answer.payload == {
            "trade_id": "t1", "state": "funded", "has_remote_pubkey": False, "has_remote_nonces": False,
            "has_funding": True, "has_remote_partials": False, "local_sequence": 1, "remote_sequence": 1,
            "next_sequence": 2, "missing": [2, 3],
        }  # fmt: skip


@coroutine
async def test_nobody_learns_of_the_trades_of_others(tmp_path: Path) -> None:
    async with node(tmp_path, ALICE) as alice, plain(MALLORY) as mallory:
        await alice.peer.send(id_of(BOB), "t1", "abort", 1)
        await mallory.dial(alice.host.addresses[0])
        for claimed in (id_of(MALLORY), id_of(BOB)):
            question = Direct("sync_request", "t1", from_peer=claimed, message_id="q", payload={}, requires_ack=True)
            answer = frame.acknowledged(await mallory.say(alice.host, question))
            assert (answer.success, answer.error) == (False, "not a party of this trade")


@coroutine
async def test_a_number_that_was_given_up_is_passed_over_when_the_next_one_comes(tmp_path: Path) -> None:
    async with node(tmp_path, ALICE) as alice:
        first = await alice.peer.send(id_of(BOB), "t1", "abort", 1)
        await alice.peer.send(id_of(BOB), "t1", "abort", 2)
        await until(lambda: alice.stats.away)
        await alice.engine.do(Cancel(Ref("outbox", id_of(BOB), "", first)))
        assert [view.message.id for view in alice.sent(State.CANCELLED)] == [first]
        async with node(tmp_path, BOB) as bob:
            await bob.meet(alice)
            await until(lambda: bob.came)
            assert (bob.came[0].sequence, bob.came[0].payload) == (2, 2)
            assert bob.stats.skipped == 1
            await until(lambda: alice.sent(State.DELIVERED))


@coroutine
async def test_a_peer_that_lost_its_store_is_sent_everything_again_in_order(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    async with node(tmp_path, ALICE) as alice:
        async with node(tmp_path, BOB) as bob:
            await bob.meet(alice)
            for number in range(5):
                await alice.peer.send(bob.id, "t1", "abort", number)
            await until(lambda: len(alice.sent(State.DELIVERED)) == 5)
        async with node(tmp_path_factory.mktemp("new"), BOB) as bob:
            await bob.meet(alice)
            await alice.peer.send(bob.id, "t1", "abort", 5)
            await until(lambda: len(bob.came) == 6)
            assert [m.payload for m in bob.came] == list(range(6))
            # Counted when the answer is there.
            await until(lambda: alice.stats.resent == 5)


@coroutine
async def test_a_node_that_knows_no_sync_is_asked_once(tmp_path: Path) -> None:
    async with node(tmp_path, ALICE, limits(take={"hold_s": 0.3})) as alice, plain(BOB) as bob:
        await bob.dial(alice.host.addresses[0])
        early = [
            asyncio.create_task(bob.say(alice.host, bob.direct(2, trade_id=f"t{n}", message_id=f"e{n}")))
            for n in range(5)
        ]
        await asyncio.gather(*early, return_exceptions=True)
        # Every question is answered: only the task that forgets old trades is left.
        await until(lambda: len(alice.peer._tasks) == 1)
        asked = [m for m in bob.frames if m.type == frame.SYNC_REQUEST]
        assert 1 <= len(asked) <= 5
        assert id_of(BOB) in alice.peer.receiver.plain
        again = asyncio.create_task(bob.say(alice.host, bob.direct(2, trade_id="t9", message_id="e9")))
        await asyncio.gather(again, return_exceptions=True)
        assert len([m for m in bob.frames if m.type == frame.SYNC_REQUEST]) == len(asked)


@coroutine
async def test_peers_that_meet_compare_their_trades(tmp_path: Path) -> None:
    async with node(tmp_path, ALICE) as alice, node(tmp_path, BOB) as bob:
        await alice.meet(bob)
        # Before there is a trade, or this meeting would be one to compare it at.
        await bob.host.identified(alice.host.peer_id)
        await alice.host.identified(bob.host.peer_id)
        await alice.peer.send(bob.id, "t1", "abort", 1)
        await until(lambda: alice.sent(State.DELIVERED))
        await alice.host.disconnect(bob.host.peer_id)
        await until(lambda: bob.host.peers == [])
        await bob.meet(alice)
        await until(lambda: alice.stats.syncs + bob.stats.syncs == 1)
        assert MARK in (await alice.host.identified(bob.host.peer_id)).protocols


@coroutine
async def test_who_asks_for_the_history_again_and_again_is_told_to_wait(tmp_path: Path) -> None:
    async with node(tmp_path, ALICE) as alice, plain(BOB) as bob:
        await bob.dial(alice.host.addresses[0])
        await alice.peer.send(id_of(BOB), "t1", "abort", 1)
        await until(lambda: alice.sent(State.DELIVERED))
        question = Direct(
            "sync_request", "t1", from_peer=id_of(BOB), message_id="q", requires_ack=True,
            payload={"remote_sequence": 0},
        )  # fmt: skip
        # Twice as many as there are at once: they come back slowly.
        answers = [await bob.say(alice.host, question) for _ in range(200)]
        assert answers[0].payload["next_sequence"] == 1
        assert frame.acknowledged(answers[-1]).error == "asked too often"
        # Who has everything may ask as often as he likes.
        cheap = await bob.say(alice.host, question._replace(payload={"remote_sequence": 1}))
        assert cheap.type == "sync_response"
