from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from tests.unit.engine.fakes import WAIT_S, FakeClock, RecordingStore, WatchedStore, post, until, until_blocking

from posthouse.engine.engine import Engine
from posthouse.errors import EngineClosed, StoreUnavailable
from posthouse.mailbox.command import Command, Lease, Post, Settle, Shift, Sweep, Verdict
from posthouse.mailbox.message import SECOND, State
from posthouse.mailbox.outcome import Leased, Settled
from posthouse.mailbox.policy import Policy, ladder

DAY_S = 86_400.0


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


@contextmanager
def running(store: Any, clock: FakeClock, **options: Any) -> Iterator[Engine]:
    """An engine whose first sweep is over."""
    with Engine(store, clock=clock, **options) as engine:
        until_blocking(lambda: engine.sweeper._sweep_at > 0 and not engine.sweeper._unsure)
        yield engine


def pass_time(engine: Engine, seconds: float) -> None:
    clock = engine.clock
    assert isinstance(clock, FakeClock)
    clock.advance(seconds)
    engine.sweeper.poke()


def take(engine: Engine, token: str, mailbox: str | None = "alice") -> Leased:
    leased = engine.call(Lease("mail", mailbox, token))[0]
    assert isinstance(leased, Leased)
    return leased


def sweeps(store: WatchedStore) -> int:
    return sum(isinstance(c, Sweep) for group in list(store.groups) for c in group)


def waits(engine: Engine) -> bool:
    """Whether somebody sleeps on the bell."""
    with engine.bell._lock:
        tickets = [t for boxes in engine.bell._tickets.values() for found in boxes.values() for t in found]
    return any(ticket._sleeper is not None for ticket in tickets)


def test_whoever_waits_is_woken_when_a_message_is_due(clock: FakeClock) -> None:
    async def main(engine: Engine) -> None:
        await engine.do(post(1, due_at=clock.now() + 10 * SECOND))
        waiting = asyncio.create_task(engine.alease(Lease("mail", "alice", "t")))
        await until(lambda: waits(engine))
        pass_time(engine, 9)
        await until(lambda: engine.sweeper._timer_at == clock.now() + SECOND)
        assert not waiting.done()
        pass_time(engine, 1)
        leased = await asyncio.wait_for(waiting, WAIT_S)
        assert isinstance(leased, Leased)
        assert [d.message.id for d in leased.deliveries] == ["m-1"]

    with running(WatchedStore(), clock) as engine:
        asyncio.run(main(engine))


def test_a_retry_comes_when_its_wait_is_over(clock: FakeClock, pool: ThreadPoolExecutor) -> None:
    store = WatchedStore(Policy("mail", retry=ladder(30)))
    with running(store, clock) as engine:
        engine.call(post(1))
        (delivery,) = take(engine, "t").deliveries
        settled = engine.call(Settle(delivery.message.ref, "t", Verdict.RETRY))[0]
        assert isinstance(settled, Settled)
        assert settled.due_at == clock.now() + 30 * SECOND
        waiting = pool.submit(engine.lease, Lease("mail", None, "u"))
        until_blocking(lambda: waits(engine))
        pass_time(engine, 30)
        leased = waiting.result(WAIT_S)
        assert isinstance(leased, Leased)
        assert [d.attempt for d in leased.deliveries] == [2]


def test_a_lease_that_ends_is_swept_and_its_message_goes_to_another(clock: FakeClock, pool: ThreadPoolExecutor) -> None:
    store = WatchedStore(Policy("mail", lease_s=60))
    with running(store, clock) as engine:
        before = sweeps(store)
        engine.call(post(1))
        take(engine, "t")
        waiting = pool.submit(engine.lease, Lease("mail", "alice", "u"))
        until_blocking(lambda: waits(engine))
        pass_time(engine, 59)
        assert sweeps(store) == before
        pass_time(engine, 1)
        leased = waiting.result(WAIT_S)
        assert isinstance(leased, Leased)
        assert [d.attempt for d in leased.deliveries] == [2]
        assert sweeps(store) > before


def test_without_leases_a_due_message_costs_no_sweep(clock: FakeClock) -> None:
    store = WatchedStore()
    with running(store, clock) as engine:
        before = sweeps(store)
        engine.call(*[post(number, due_at=clock.now() + number * SECOND) for number in range(1, 5)])
        for number in range(1, 5):
            pass_time(engine, 1)
            left = clock.now() + SECOND if number < 4 else 2**63 - 1
            until_blocking(lambda left=left: engine.sweeper._timer_at == left)
        assert sweeps(store) == before


def test_the_timer_is_one_for_all_and_is_set_only_by_what_ends_sooner(clock: FakeClock) -> None:
    store = WatchedStore(Policy("mail", window_per_lane=None))
    asked: list[int] = []
    ask = store.next_at
    with running(store, clock) as engine:
        store.next_at = lambda at: (asked.append(at), ask(at))[1]  # type: ignore[method-assign]
        for number in range(200):
            engine.call(post(number))
            take(engine, f"t{number}")
            clock.advance(0.001)
        assert asked == [], "a commit asks the store nothing"
        assert engine.sweeper._timer_at == clock.now() - 200 * 1_000 + 60 * SECOND, "the first of two hundred"


def test_expired_messages_are_cleaned_and_counted_by_mailbox(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "posthouse.sweeper")
    store = WatchedStore(Policy("mail", ttl_s=60))
    with running(store, clock, sweep_s=300) as engine:
        engine.call(*[post(number, "alice") for number in range(12)], *[post(number, "bob") for number in range(3)])
        pass_time(engine, 299)
        assert store.mailbox("mail", "alice").counts == {State.READY: 12}  # type: ignore[union-attr]
        assert not caplog.messages
        pass_time(engine, 1)
        until_blocking(lambda: len(caplog.messages) == 3)
        assert caplog.messages == [
            "Cleaned 12 expired messages for alice",
            "Cleaned 3 expired messages for bob",
            "Cleaned 15 expired messages in 2 mailboxes",
        ]
        assert {record.name for record in caplog.records} == {"posthouse.sweeper"}
        assert engine.stats.outcomes["mail", "expired"] == 15


def test_a_large_sweep_lets_others_in_between_its_slices(
    clock: FakeClock, pool: ThreadPoolExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "posthouse.sweeper")
    store = WatchedStore(Policy("mail", ttl_s=60))
    work: list[Any] = []
    with running(store, clock, sweep_s=300) as engine:
        engine.call(*[post(number) for number in range(450)])
        store.groups.clear()

        def before_apply(commands: Sequence[Command]) -> None:
            # While a slice is at work, somebody posts.
            if any(isinstance(c, Sweep) for c in commands):
                work.append(pool.submit(engine.call, post(1_000 + len(work), "bob")))
                until_blocking(lambda: engine.queued() == 1)

        store.before_apply = before_apply
        pass_time(engine, 300)
        until_blocking(lambda: len(caplog.messages) == 2)
        store.before_apply = None
        for done in work:
            done.result(WAIT_S)
    order = "".join("s" if isinstance(c, Sweep) else "p" for group in store.groups for c in group)
    assert order == "spspsp", "three slices of 200, and a post behind each"
    assert "Cleaned 450 expired messages for alice" in caplog.messages


def test_a_clock_set_by_a_day_loses_no_lease_and_starts_no_retry_storm(
    clock: FakeClock, pool: ThreadPoolExecutor
) -> None:
    for by_s in (DAY_S, -DAY_S):
        store = WatchedStore(Policy("mail", lease_s=60, retry=ladder(30)))
        with running(store, clock) as engine:
            engine.call(post(1), post(2, "bob"))
            (delivery,) = take(engine, "t").deliveries
            (other,) = take(engine, "u", "bob").deliveries
            engine.call(Settle(other.message.ref, "u", Verdict.RETRY))
            clock.set(by_s)
            engine.sweeper.poke()
            until_blocking(lambda: engine.stats.shifts == 1)
            assert store.groups[-1][0] == Shift(int(by_s * SECOND), clock.now())
            view = store.message(delivery.message.ref)
            assert view is not None
            assert (view.state, view.lease_ends_at) == (State.LEASED, clock.now() + 60 * SECOND)

            waiting = pool.submit(engine.lease, Lease("mail", "bob", "v"))
            until_blocking(lambda: waits(engine))
            until_blocking(lambda: engine.sweeper._timer_at == clock.now() + 30 * SECOND)
            pass_time(engine, 29)
            assert not waiting.done()
            pass_time(engine, 1)
            leased = waiting.result(WAIT_S)
            assert isinstance(leased, Leased)
            assert [d.attempt for d in leased.deliveries] == [2]
            assert engine.stats.outcomes.get(("mail", "retried")) == 1


def test_a_store_that_does_not_answer_is_asked_again(clock: FakeClock, caplog: pytest.LogCaptureFixture) -> None:
    store = WatchedStore()
    ask = store.next_at
    with running(store, clock) as engine:
        failed = threading.Event()

        def unavailable(at: int) -> int | None:
            failed.set()
            raise StoreUnavailable("away")

        store.next_at = unavailable  # type: ignore[method-assign]
        engine.call(post(1, due_at=clock.now() + SECOND))
        pass_time(engine, 1)
        assert failed.wait(WAIT_S)
        until_blocking(lambda: "the sweeper will try again in 5 s: away" in caplog.messages)
        store.next_at = ask  # type: ignore[method-assign]
        asked_again = engine.sweeper._seen_at
        pass_time(engine, 5)
        until_blocking(lambda: engine.sweeper._seen_at > asked_again)
        assert engine.failure() is None


def test_a_sweeper_that_breaks_stops_the_engine(clock: FakeClock) -> None:
    failures: list[BaseException] = []
    store = WatchedStore()

    def broken(at: int) -> int | None:
        raise ZeroDivisionError("a bug")

    with running(store, clock, on_failure=failures.append) as engine:
        store.next_at = broken  # type: ignore[method-assign]
        engine.call(post(1, due_at=clock.now() + SECOND))
        pass_time(engine, 1)
        until_blocking(lambda: bool(failures))
        with pytest.raises(EngineClosed, match="a bug"):
            engine.call(post(2))


def test_a_store_that_knows_what_is_due_has_only_those_mailboxes_rung(clock: FakeClock) -> None:
    class Knowing(RecordingStore):
        asked: tuple[int, int, int] | None = None
        wake_at: int | None = None

        def next_at(self, at: int) -> int | None:
            return self.wake_at if self.wake_at is not None and self.wake_at > at else None

        def due(self, after: int, until: int, limit: int) -> list[tuple[str, str]]:
            self.asked = (after, until, limit)
            return [("mail", "alice")]

    store = Knowing()
    with running(store, clock) as engine:
        store.wake_at = clock.now() + SECOND
        engine.call(Post(post(1).message._replace(due_at=store.wake_at)))
        alice, bob = engine.bell.ticket("mail", "alice"), engine.bell.ticket("mail", "bob")
        since = engine.sweeper._seen_at
        pass_time(engine, 1)
        until_blocking(lambda: alice.rung)
        assert store.asked is not None
        assert store.asked[:2] == (since, clock.now())
        assert not bob.rung
