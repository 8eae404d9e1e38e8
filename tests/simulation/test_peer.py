"""Peers under loss, delay, partitions, crashes, copies, reordering and clocks that differ; and to the second, in time.

A seed that fails prints itself; ``run(seed, story)`` repeats it.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tests.simulation.network import Party, VirtualLoop, World, run
from tests.simulation.trades import Broken, numbers, story

from posthouse.mailbox.command import Verdict
from posthouse.mailbox.event import LEASED
from posthouse.mailbox.message import Ref, State
from posthouse.mailbox.outcome import Duplicate
from posthouse.peer.frame import Direct
from posthouse.peer.inbox import Incoming
from posthouse.peer.node import Limits
from posthouse.peer.receiver import Receiver
from posthouse.peer.session import Early, Session, Take

BLOCK = 8
FAST_SEEDS = 24
SLOW_SEEDS = 3_000
PLANTED_SEEDS = 40
HOUR_S = 3_600


@pytest.mark.parametrize("first", range(0, FAST_SEEDS, BLOCK))
def test_every_message_is_processed_once_in_order_or_dead_with_its_sender_knowing(first: int) -> None:
    for seed in range(first, first + BLOCK):
        run(seed, story)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", range(10_000, 10_000 + SLOW_SEEDS, 250))
def test_thousands_of_seeds(first: int) -> None:
    for seed in range(first, first + 250):
        run(seed, story)


# Faults planted on purpose: the simulation must find each of them.


def nothing_is_early(self: Session, trade: Any, peer: str, message: Direct, now: int, path: Any) -> Any:
    judged = BY_NUMBER(self, trade, peer, message, now, path)
    return Take(()) if isinstance(judged, Early) else judged


def every_copy_is_welcome(self: Receiver, peer: str, message: Direct, outcome: Any) -> Any:
    return (State.DELIVERED, "") if isinstance(outcome, Duplicate) else BECAME(self, peer, message, outcome)


async def acknowledged_when_recorded(self: Receiver, waiter: Any) -> Any:
    return State.DELIVERED, ""


def a_no_is_taken_for_a_yes(self: Session, peer: str, sent: Direct, answer: Direct) -> Any:
    VERDICT(self, peer, sent, answer)
    return Verdict.DELIVERED, ""


def one_too_many_is_skipped(self: Session, name: str, next_number: int) -> Any:
    return SKIP(self, name, next_number + 1)


BY_NUMBER, VERDICT, SKIP, BECAME = Session._by_number, Session.verdict, Session.skip, Receiver._became


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("where", "name", "fault"),
    [
        (Session, "_by_number", nothing_is_early),
        (Receiver, "_became", every_copy_is_welcome),
        (Receiver, "_processed", acknowledged_when_recorded),
        (Session, "verdict", a_no_is_taken_for_a_yes),
        (Session, "skip", one_too_many_is_skipped),
    ],
)
def test_a_planted_fault_is_found(where: Any, name: str, fault: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(where, name, fault)
    with pytest.raises(Broken, match="seed"):
        run_seeds(PLANTED_SEEDS)


def run_seeds(count: int) -> None:
    for seed in range(count):
        run(seed, story)


# Times, to the second.


def timed(test: Callable[[World, Party, Party], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """A test of two parties in virtual time; the network needs none."""

    async def whole(loop: VirtualLoop, seed: int) -> None:
        world = World(loop, seed, 2, Limits())
        world.latency = (0.0, 0.0)
        alice, bob = world.parties
        await alice.boot(keep)
        await test(world, alice, bob)

    def once() -> None:
        run(0, whole)

    once.__name__, once.__doc__ = test.__name__, test.__doc__
    return once


came: list[tuple[float, int]] = []


async def keep(message: Incoming) -> None:
    came.append((asyncio.get_running_loop().time(), message.sequence))


async def send(one: Party, other: Party, lasts_s: int = 24 * HOUR_S, trade: str = "t") -> str:
    ends_s = one.office.now() // 1_000_000 + lasts_s
    done: str = await one.run(one.peer.send(other.id, trade, "abort", 1, timeout_s=ends_s))
    return done


@timed
async def test_a_peer_that_is_away_is_tried_at_the_times_that_are_promised(
    world: World, alice: Party, bob: Party
) -> None:
    begin_s = world.loop.time()
    id = await send(alice, bob, 5 * HOUR_S)
    await asyncio.sleep(5 * HOUR_S)
    expected = [0.0, 10, 30, 70, 150, 310, 630]
    while expected[-1] + 600 < 4 * HOUR_S:
        expected.append(expected[-1] + 600)
    tried = [at - begin_s for at in alice.host.dials]
    # Each try takes a few commits, of milliseconds.
    assert len(tried) == len(expected)
    assert all(0 <= at - should < 1 for at, should in zip(tried, expected, strict=True)), tried
    view = alice.store.message(Ref("outbox", bob.id, "", id))
    assert view is not None
    assert (view.state, view.reason, view.attempts) == (State.DEAD, "deadline", len(expected))


@timed
async def test_after_hours_everything_flows_when_the_peer_comes(world: World, alice: Party, bob: Party) -> None:
    came.clear()
    for _ in range(30):
        await send(alice, bob)
        await asyncio.sleep(400)
    await bob.boot(keep)
    begin_s = world.loop.time()
    await bob.run(bob.host.dial(alice.peer_id))
    await asyncio.sleep(3)
    assert [number for _, number in came] == list(range(1, 31))
    assert came[-1][0] - begin_s < 3
    assert numbers(alice) == {"t": list(range(1, 31))}


@timed
async def test_a_new_message_is_tried_at_once_though_the_peer_was_away(world: World, alice: Party, bob: Party) -> None:
    await send(alice, bob)
    await asyncio.sleep(2_000)
    before = len(alice.host.dials)
    await send(alice, bob, trade="other")
    await asyncio.sleep(2)
    assert len(alice.host.dials) == before + 1
    # And the times of the tries go on as they were.
    at = alice.host.dials[before - 1]
    await asyncio.sleep(700)
    assert any(abs(dial - at - 600) < 1 for dial in alice.host.dials)


@timed
async def test_a_hundred_trades_with_a_peer_that_is_away_are_no_stampede(
    world: World, alice: Party, bob: Party
) -> None:
    for number in range(100):
        await send(alice, bob, trade=f"t{number}")
    begun = len(alice.host.dials)
    await asyncio.sleep(600)
    assert len(alice.host.dials) - begun <= 8


@timed
async def test_a_peer_that_never_acknowledges_is_tried_with_the_same_waits(
    world: World, alice: Party, bob: Party
) -> None:
    async def hang(message: Incoming) -> None:
        await asyncio.sleep(1e6)

    await bob.boot(hang)
    await send(alice, bob)
    await asyncio.sleep(1_000)
    tries = [event.at / 1e6 for _, _, event in alice.store.events() if event.event == LEASED]
    waits = [later - sooner for sooner, later in itertools.pairwise(tries)]
    # Between two tries there is the wait for the acknowledgement (no answer comes after 25 s) and the policy's.
    assert [round(wait - 25) for wait in waits] == [10, 20, 40, 80, 160, 320]


@timed
async def test_what_got_no_acknowledgement_is_sent_again_as_soon_as_the_peer_comes_back(
    world: World, alice: Party, bob: Party
) -> None:
    came.clear()
    await bob.boot(keep)
    world.drop = 1.0
    ids = [await send(alice, bob, trade=trade) for trade in ("t", "t", "other")]
    # By now the next try is minutes away. The peer dies, which is noticed, and comes back.
    await asyncio.sleep(700)
    bob.crash()
    await asyncio.sleep(30)
    world.drop = 0.0
    await bob.boot(keep)
    begin_s = world.loop.time()
    await bob.run(bob.host.dial(alice.peer_id))
    await asyncio.sleep(3)
    assert sorted(number for _, number in came) == [1, 1, 2]
    assert came[-1][0] - begin_s < 3
    views = [alice.store.message(Ref("outbox", bob.id, "", id)) for id in ids]
    assert [view.state for view in views if view is not None] == [State.DELIVERED] * 3
