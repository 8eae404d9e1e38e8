from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import uvloop
from tests.unit.engine.fakes import WAIT_S, WatchedStore, post, until, until_blocking

from posthouse.engine.bell import Bell, wake
from posthouse.engine.engine import Engine
from posthouse.errors import EngineClosed
from posthouse.mailbox.command import Lease, Settle, Verdict
from posthouse.mailbox.outcome import Leased
from posthouse.mailbox.policy import Policy

RUNNERS = pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])


def rung(bell: Bell, *tickets: Any) -> list[bool]:
    return [ticket.rung for ticket in tickets]


def test_a_ring_reaches_those_who_look_at_the_mailbox_or_at_its_desk() -> None:
    bell = Bell()
    alice, bob = bell.ticket("mail", "alice"), bell.ticket("mail", "bob")
    desk, other = bell.ticket("mail"), bell.ticket("other", "alice")
    bell.ring([("mail", "alice"), ("mail", "nobody"), ("nowhere", "x")])
    assert rung(bell, alice, bob, desk, other) == [True, False, True, False]
    bell.ring(desks=["mail", "nowhere"])
    assert rung(bell, alice, bob, desk, other) == [True, True, True, False]
    bell.ring(everyone=True)
    assert other.rung


def test_nothing_is_left_in_the_books_of_those_who_were_rung_or_went() -> None:
    bell = Bell()
    assert not bell.listening
    for number in range(100):
        bell.ticket("mail", f"m{number}")
    bell.ring([("mail", f"m{number}") for number in range(50)])
    assert bell.listening
    bell.ring(desks=["mail"])
    assert not bell.listening
    with bell.ticket("mail") as ticket, bell.ticket("mail", "alice") as second, bell.ticket("mail", "alice"):
        assert bell.listening
        second.drop()
        second.drop()
        bell.ring([("mail", "bob")])
        ticket.drop()
        assert bell.listening
    assert not bell.listening
    assert bell._tickets == {}


@RUNNERS
def test_a_ring_before_the_wait_is_not_lost(run: Callable[..., Any]) -> None:
    async def main() -> None:
        bell = Bell()
        with bell.ticket("mail", "alice") as ticket:
            bell.ring([("mail", "alice")])
            assert await ticket.wait(0)
            assert ticket.wait_blocking(0)
        with bell.ticket("mail", "alice") as ticket:
            assert not await ticket.wait(0)
            assert not ticket.wait_blocking(0)

    run(main())


@RUNNERS
def test_who_waits_is_woken_from_another_thread(run: Callable[..., Any]) -> None:
    bell = Bell()

    async def main() -> None:
        with bell.ticket("mail", "alice") as ticket, ThreadPoolExecutor() as pool:
            waiting = asyncio.create_task(ticket.wait(WAIT_S))
            await until(lambda: ticket._sleeper is not None)
            pool.submit(lambda: wake(bell.ring([("mail", "alice")]))).result(WAIT_S)
            assert await waiting
        with bell.ticket("mail") as ticket, ThreadPoolExecutor() as pool:
            blocking = pool.submit(ticket.wait_blocking, WAIT_S)
            await until(lambda: ticket._sleeper is not None)
            wake(bell.ring([("mail", "alice")]))
            assert blocking.result(WAIT_S)

    run(main())


def test_a_cancelled_wait_leaves_nothing_behind() -> None:
    bell = Bell()

    async def main() -> None:
        async def look() -> None:
            with bell.ticket("mail", "alice") as ticket:
                await ticket.wait()

        task = asyncio.create_task(look())
        await asyncio.sleep(0)
        assert bell.listening
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not bell.listening

    asyncio.run(main())


def test_a_closed_bell_wakes_everyone_with_the_reason() -> None:
    bell = Bell()

    async def main() -> None:
        with bell.ticket("mail") as ticket, bell.ticket("mail") as blocking, ThreadPoolExecutor() as pool:
            waiting = asyncio.create_task(ticket.wait())
            thread = pool.submit(blocking.wait_blocking)
            await until(lambda: ticket._sleeper is not None and blocking._sleeper is not None)
            bell.close(lambda: EngineClosed("over"))
            with pytest.raises(EngineClosed, match="over"):
                await waiting
            with pytest.raises(EngineClosed, match="over"):
                thread.result(WAIT_S)
        with pytest.raises(EngineClosed, match="over"):
            bell.ticket("mail")

    asyncio.run(main())


@RUNNERS
def test_what_is_posted_between_an_empty_lease_and_the_wait_is_not_missed(run: Callable[..., Any]) -> None:
    store = WatchedStore()

    async def main(engine: Engine) -> None:
        waiting = asyncio.create_task(engine.alease(Lease("mail", "alice", "t")))
        await asyncio.sleep(0)
        engine.flush()
        # The loop is held here, so the task has not been told yet that it leased nothing.
        until_blocking(lambda: any(isinstance(c, Lease) for group in store.groups for c in group))
        assert not waiting.done()
        engine.call(post(1))
        leased = await asyncio.wait_for(waiting, WAIT_S)
        assert isinstance(leased, Leased)
        assert len(leased.deliveries) == 1

    with Engine(store) as engine:
        run(main(engine))


def test_nor_by_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    with Engine(WatchedStore()) as engine, ThreadPoolExecutor() as pool:
        call = engine.call
        posted = []

        def call_and_be_overtaken(*commands: Any) -> Any:
            outcomes = call(*commands)
            if not posted:
                posted.append(call(post(1)))
            return outcomes

        monkeypatch.setattr(engine, "call", call_and_be_overtaken)
        leased = pool.submit(engine.lease, Lease("mail", "alice", "t")).result(WAIT_S)
        assert isinstance(leased, Leased)
        assert len(leased.deliveries) == 1


@RUNNERS
def test_no_wake_up_is_lost_between_many_who_post_and_many_who_wait(run: Callable[..., Any]) -> None:
    """Nobody polls and no wait has a time limit: one lost wake-up, and this never ends."""
    store = WatchedStore(Policy("mail", window_per_lane=1))
    total, mailboxes = 2_000, 7
    got: list[str] = []
    enough = threading.Event()

    def take(leased: Any, settle: Callable[..., Any]) -> Any:
        assert isinstance(leased, Leased)
        (delivery,) = leased.deliveries
        got.append(delivery.message.id)
        if len(got) == total:
            enough.set()
        return settle(Settle(delivery.message.ref, leased.token, Verdict.DELIVERED))

    def blocking_consumer(engine: Engine, name: str, mailbox: str | None) -> None:
        for turn in range(total):
            try:
                take(engine.lease(Lease("mail", mailbox, f"{name}-{turn}")), engine.call)
            except EngineClosed:
                return

    async def consumer(engine: Engine, name: str, mailbox: str | None) -> None:
        for turn in range(total):
            await take(await engine.alease(Lease("mail", mailbox, f"{name}-{turn}")), engine.do)

    def producer(engine: Engine, base: int) -> None:
        for number in range(base, base + total // 4):
            engine.call(post(number, f"m{number % mailboxes}"))

    async def main(engine: Engine) -> None:
        with ThreadPoolExecutor(16) as pool:
            work = [pool.submit(producer, engine, base) for base in range(0, total, total // 4)]
            work += [pool.submit(blocking_consumer, engine, f"t{n}", None) for n in range(2)]
            work += [pool.submit(blocking_consumer, engine, "t2", "m3")]
            tasks = [asyncio.create_task(consumer(engine, f"c{n}", None)) for n in range(3)]
            tasks += [asyncio.create_task(consumer(engine, f"d{n}", f"m{n}")) for n in range(mailboxes)]
            assert await asyncio.to_thread(enough.wait, 60)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await engine.aclose()
            for done in work:
                done.result(WAIT_S)

    engine = Engine(store)
    engine.start()
    try:
        run(main(engine))
    finally:
        engine.close()
    assert sorted(got) == sorted(f"m-{number}" for number in range(total))
    assert not engine.bell.listening
