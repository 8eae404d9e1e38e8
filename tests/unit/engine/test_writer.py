from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import pytest
import uvloop
from tests.unit.engine.fakes import WAIT_S, FakeClock, RecordingStore, post, until, until_blocking

from posthouse.engine.clock import Clock
from posthouse.engine.stats import Stats
from posthouse.engine.writer import Writer
from posthouse.errors import EngineClosed, StoreError, StoreFailed, StoreFull, StoreUnavailable
from posthouse.mailbox.command import Command, Post, Shift, Together
from posthouse.mailbox.message import SECOND
from posthouse.mailbox.outcome import Posted

LINGER_S = 0.5
RUNNERS = pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])


@contextmanager
def writing(store: RecordingStore, clock: Clock | None = None, **options: Any) -> Iterator[Writer]:
    failures: list[BaseException] = []
    options.setdefault("after_commit", lambda commands, outcomes, seconds: ())
    options.setdefault("on_failure", failures.append)
    writer = Writer(store, clock or Clock(), Stats(), **options)  # type: ignore[arg-type]
    writer.start()
    try:
        yield writer
    finally:
        store.let_go()
        writer.stop()


@contextmanager
def threads(count: int = 8) -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(count) as pool:
        yield pool


def seqs(outcomes: Sequence[Any]) -> list[int]:
    return [outcome.seq for outcome in outcomes if isinstance(outcome, Posted)]


@RUNNERS
def test_each_caller_gets_the_outcomes_of_its_own_commands_in_order(run: Callable[..., Any]) -> None:
    store = RecordingStore()

    async def caller(writer: Writer, number: int) -> None:
        for turn in range(20):
            first = number * 1_000 + turn * 3
            outcomes = await writer.submit((post(first), post(first + 1), post(first + 2)))
            assert seqs(outcomes) == [first, first + 1, first + 2]

    async def main(writer: Writer) -> None:
        await asyncio.gather(*[caller(writer, number) for number in range(50)])

    with writing(store) as writer:
        run(main(writer))
    assert sum(map(len, store.groups)) == 50 * 20 * 3
    assert len(store.threads) == 1


def test_coroutines_of_several_loops_and_threads_are_served_together() -> None:
    store = RecordingStore()

    async def main(writer: Writer, base: int) -> None:
        async def caller(number: int) -> None:
            for turn in range(20):
                assert seqs(await writer.submit((post(number + turn),))) == [number + turn]

        await asyncio.gather(*[caller(base + 100 * number) for number in range(20)])

    def blocking(writer: Writer, base: int) -> None:
        for turn in range(100):
            assert seqs(writer.call((post(base + turn),))) == [base + turn]

    with writing(store) as writer, threads() as pool:
        work = [pool.submit(asyncio.run, main(writer, 10_000)), pool.submit(uvloop.run, main(writer, 20_000))]
        work += [pool.submit(blocking, writer, 100_000 * (number + 1)) for number in range(4)]
        for done in work:
            done.result(WAIT_S)
    assert sum(map(len, store.groups)) == 2 * 20 * 20 + 4 * 100


@RUNNERS
def test_what_one_caller_submits_is_applied_in_its_order(run: Callable[..., Any]) -> None:
    store = RecordingStore()

    async def main(writer: Writer) -> None:
        async def caller(name: int) -> None:
            await asyncio.gather(*[writer.submit((post(f"{name}-{turn}"),)) for turn in range(200)])

        await asyncio.gather(*[caller(name) for name in range(5)])

    with writing(store, group_max=7) as writer:
        run(main(writer))
    order = [id for ids in store.ids for id in ids]
    for name in range(5):
        assert [id for id in order if id.startswith(f"{name}-")] == [f"{name}-{turn}" for turn in range(200)]


def test_a_batch_is_never_split_and_a_group_is_bounded() -> None:
    store = RecordingStore()
    batches = [tuple(post(100 * number + n) for n in range(size)) for number, size in enumerate([3, 3, 1, 4, 12, 1, 9])]

    async def main(writer: Writer) -> None:
        await asyncio.gather(*[writer.submit(batch) for batch in batches])

    with writing(store, group_max=8) as writer:
        asyncio.run(main(writer))
    assert [len(group) for group in store.groups] == [7, 4, 12, 1, 9], (
        "as many whole batches as fit, or one that is larger"
    )


def test_a_group_ends_when_its_bodies_are_large() -> None:
    store = RecordingStore()

    async def main(writer: Writer) -> None:
        await asyncio.gather(*[writer.submit((post(number, body=b"x" * 400),)) for number in range(6)])
        await asyncio.gather(*[writer.submit((Together((post(1, body=b"x" * 900), post(2))),)) for _ in range(4)])

    with writing(store, group_bytes_max=1_000) as writer:
        asyncio.run(main(writer))
    assert [len(group) for group in store.groups] == [3, 3, 2, 2]


def test_the_instant_is_the_same_for_a_whole_group_and_inside_a_together() -> None:
    store, clock = RecordingStore(), FakeClock()
    given = (post(1), Together((post(2), post(3))), post(4, headers={"a": "b"}))
    with writing(store, clock) as writer:
        writer.call(given)
        clock.advance(1)
        writer.call((post(5),))
    first, second = store.groups
    assert {c.at for c in first} == {clock.now() - SECOND}
    together = first[1]
    assert isinstance(together, Together)
    assert [c.at for c in together.commands] == [clock.now() - SECOND] * 2
    assert all(type(c) is Post for c in together.commands)
    assert [c._replace(at=0) for c in (first[0], first[2])] == [given[0], given[2]]
    assert {c.at for c in second} == {clock.now()}


@RUNNERS
def test_a_group_wakes_its_loop_once_and_holds_all_callers(
    run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # However long the machine holds up those who are woken.
    monkeypatch.setattr("posthouse.engine.writer.REFILL_S", WAIT_S)
    store = RecordingStore()
    calls = 0

    async def main(writer: Writer) -> None:
        async def caller(number: int) -> None:
            for turn in range(30):
                await writer.submit((post(number * 100 + turn),))

        nonlocal calls
        loop = asyncio.get_running_loop()
        port = writer._open_port(loop)
        port.loop = Counting(loop)  # type: ignore[assignment]
        await asyncio.gather(*[caller(number) for number in range(200)])
        calls = port.loop.calls  # type: ignore[attr-defined]

    class Counting:
        def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
            self._loop = loop
            self.calls = 0

        def call_soon_threadsafe(self, *args: Any) -> Any:
            self.calls += 1
            return self._loop.call_soon_threadsafe(*args)

        def call_soon(self, *args: Any) -> Any:
            return self._loop.call_soon(*args)

    with writing(store) as writer:
        run(main(writer))
    assert calls == len(store.groups)
    # Whoever is woken submits again before the writer goes on.
    assert [len(group) for group in store.groups] == [200] * 30


def test_who_submits_during_a_commit_is_joined_by_those_whom_it_wakes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("posthouse.engine.writer.REFILL_S", WAIT_S)
    store = RecordingStore()

    async def main(writer: Writer) -> None:
        async def caller(number: int) -> None:
            await writer.submit((post(number),))
            await writer.submit((post(100 + number),))

        store.hold()
        callers = [asyncio.create_task(caller(number)) for number in range(50)]
        await asyncio.to_thread(store.wait_until_entered)
        early = writer.submit((post(99),))
        await until(lambda: writer.queued == 1)
        store.let_go()
        await asyncio.gather(*callers, early)

    with writing(store) as writer:
        asyncio.run(main(writer))
    assert [len(group) for group in store.groups] == [50, 51], "not 50, 1, 50"


@pytest.mark.parametrize("woken", [1, 5])
def test_a_loop_that_is_busy_does_not_hold_up_others(woken: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if woken == 1:
        # As many wait as could be woken: then there is nothing to wait for, however long that may take.
        monkeypatch.setattr("posthouse.engine.writer.REFILL_S", 10 * WAIT_S)
    store = RecordingStore()
    blocked, go_on = threading.Event(), threading.Event()

    async def main(writer: Writer) -> None:
        async def caller(number: int) -> None:
            await writer.submit((post(number),))
            if number == 0:
                # Woken, and now it neither submits nor lets its loop turn.
                blocked.set()
                assert go_on.wait(WAIT_S)

        await asyncio.gather(*[caller(number) for number in range(woken)])

    with writing(store) as writer, threads() as pool:
        loop = pool.submit(asyncio.run, main(writer))
        assert blocked.wait(WAIT_S)
        assert seqs(pool.submit(writer.call, (post(7),)).result(WAIT_S)) == [7]
        assert not loop.done()
        go_on.set()
        loop.result(WAIT_S)


def test_waiting_for_room_is_fair_to_coroutines_and_threads() -> None:
    store = RecordingStore()

    async def main(writer: Writer, pool: ThreadPoolExecutor) -> None:
        store.hold()
        work: list[Any] = [asyncio.ensure_future(writer.submit((post(0),)))]
        await asyncio.to_thread(store.wait_until_entered)
        for number in range(1, 9):
            if number % 2:
                work.append(asyncio.wrap_future(pool.submit(writer.call, (post(number),))))
            else:
                work.append(asyncio.ensure_future(writer.submit((post(number),))))
            # One after the other, so that the order in which they came is known.
            await until(lambda number=number: writer.queued + writer.waiting == number)  # type: ignore[misc]
            assert writer.queued <= 3
        assert writer.waiting == 5
        store.let_go()
        outcomes = await asyncio.gather(*work)
        assert [seqs(outcome) for outcome in outcomes] == [[number] for number in range(9)]

    with writing(store, queue_max=3) as writer, threads() as pool:
        asyncio.run(main(writer, pool))
    assert [id for ids in store.ids for id in ids] == [f"m-{number}" for number in range(9)]
    assert max(map(len, store.groups)) <= 3, "the queue never held more"


def test_a_batch_larger_than_the_queue_enters_when_it_is_empty() -> None:
    store = RecordingStore()

    async def main(writer: Writer) -> None:
        store.hold()
        first = writer.submit((post(0),))
        await asyncio.to_thread(store.wait_until_entered)
        small = writer.submit((post(1),))
        large = writer.submit(tuple(post(number) for number in range(2, 12)))
        last = writer.submit((post(12),))
        await until(lambda: writer.waiting == 2)
        store.let_go()
        await asyncio.gather(first, small, large, last)

    with writing(store, queue_max=3) as writer:
        asyncio.run(main(writer))
    assert store.ids == [["m-0"], ["m-1"], [f"m-{number}" for number in range(2, 12)], ["m-12"]]


def test_cancelled_before_the_queue_it_does_nothing_and_in_the_queue_it_is_done() -> None:
    store = RecordingStore()

    async def main(writer: Writer) -> None:
        async def submit(number: int) -> None:
            future = writer.submit((post(number),))
            try:
                await future
            except asyncio.CancelledError:
                writer.withdraw(future)
                raise

        store.hold()
        tasks = [asyncio.create_task(submit(0))]
        await asyncio.to_thread(store.wait_until_entered)
        tasks += [asyncio.create_task(submit(number)) for number in (1, 2, 3, 4)]
        await until(lambda: writer.waiting == 2)
        tasks[1].cancel()  # in the queue
        tasks[3].cancel()  # in line for it
        await until(lambda: tasks[3].done() and tasks[1].done())
        assert writer.waiting == 1, "it has left the line"
        unseen = asyncio.create_task(submit(5))
        await asyncio.sleep(0)
        unseen.cancel()  # not even handed over
        store.let_go()
        results = await asyncio.gather(*tasks, unseen, return_exceptions=True)
        assert [isinstance(r, asyncio.CancelledError) for r in results] == [False, True, False, True, False, True]

    with writing(store, queue_max=2) as writer:
        asyncio.run(main(writer))
    assert sorted(id for ids in store.ids for id in ids) == ["m-0", "m-1", "m-2", "m-4"]


def test_a_future_that_was_cancelled_before_it_was_handed_over_or_in_line_does_nothing() -> None:
    store = RecordingStore()

    async def main(writer: Writer) -> None:
        unseen = writer.submit((post(0),))
        unseen.cancel()
        await writer.submit((post(1),))
        store.hold()
        futures = [writer.submit((post(2),))]
        await asyncio.to_thread(store.wait_until_entered)
        futures += [writer.submit((post(number),)) for number in (3, 4, 5)]
        await until(lambda: writer.waiting == 2)
        futures[2].cancel()
        store.let_go()
        await asyncio.gather(*futures, return_exceptions=True)

    with writing(store, queue_max=1) as writer:
        asyncio.run(main(writer))
    assert [id for ids in store.ids for id in ids] == ["m-1", "m-2", "m-3", "m-5"]


@pytest.mark.parametrize("kind", [StoreFull, StoreUnavailable])
def test_a_store_that_is_full_fails_the_group_and_the_writer_goes_on(kind: type[StoreError]) -> None:
    store = RecordingStore(None, kind("no room"))
    failures: list[BaseException] = []

    async def main(writer: Writer, pool: ThreadPoolExecutor) -> None:
        store.hold()
        first = writer.submit((post(0),))
        await asyncio.to_thread(store.wait_until_entered)
        work: list[Any] = [writer.submit((post(number),)) for number in range(1, 4)]
        work.append(asyncio.wrap_future(pool.submit(writer.call, (post(4),))))
        await until(lambda: writer.queued == 4)
        store.let_go()
        await first
        errors = await asyncio.gather(*work, return_exceptions=True)
        assert [type(error) for error in errors] == [kind] * 4
        assert len({id(error) for error in errors}) == 4, "each has its own, with its own traceback"
        assert {str(error) for error in errors} == {"no room"}
        assert seqs(await writer.submit((post(5),))) == [5]

    with writing(store, on_failure=failures.append) as writer, threads() as pool:
        asyncio.run(main(writer, pool))
        assert writer.failure is None
        assert writer._stats.failed_groups == 1
        assert writer._stats.commits == 2
    assert not failures
    assert store.ids == [["m-0"], ["m-5"]]


class Surprise(Exception):
    pass


def unavailable_for_good() -> StoreError:
    error = StoreUnavailable("gone")
    error.fatal = True
    return error


@pytest.mark.parametrize(
    "make",
    [lambda: StoreFailed("sync failed"), lambda: Surprise("what"), unavailable_for_good, lambda: SystemExit(3)],
    ids=["failed sync", "unexpected", "marked fatal", "exit"],
)
def test_a_failure_that_must_not_be_survived_stops_everything(make: Callable[[], BaseException]) -> None:
    failure = make()
    store = RecordingStore(None, failure)
    failures: list[BaseException] = []

    async def main(writer: Writer, pool: ThreadPoolExecutor) -> None:
        store.hold()
        first = writer.submit((post(0),))
        await asyncio.to_thread(store.wait_until_entered)
        work: list[Any] = [writer.submit((post(number),)) for number in range(1, 6)]
        work.append(asyncio.wrap_future(pool.submit(writer.call, (post(6),))))
        work.append(writer.submit((), lambda store: None))
        await until(lambda: writer.queued == 2 and writer.waiting == 5)
        store.let_go()
        assert seqs(await first) == [0]
        errors = await asyncio.gather(*work, return_exceptions=True)
        assert [type(error) for error in errors] == [EngineClosed] * 7
        assert all(isinstance(error, BaseException) and error.__cause__ is failure for error in errors)
        with pytest.raises(EngineClosed):
            writer.submit((post(7),))

    with writing(store, on_failure=failures.append, queue_max=2) as writer, threads() as pool:
        asyncio.run(main(writer, pool))
        with pytest.raises(EngineClosed) as raised:
            writer.call((post(8),))
        assert raised.value.__cause__ is failure
        assert writer.failure is failure
        until_blocking(lambda: failures == [failure])
        assert not store.closed, "it can still be looked at"
    assert store.closed
    assert store.ids == [["m-0"]]


def test_a_store_that_miscounts_its_outcomes_stops_the_writer() -> None:
    class Miscounting(RecordingStore):
        def apply(self, commands: Sequence[Command]) -> list[Any]:
            return super().apply(commands)[1:]

    with writing(Miscounting()) as writer, pytest.raises(EngineClosed, match="0 outcomes to 1 commands"):
        writer.call((post(1),))


def test_a_set_clock_is_told_before_all_else_and_again_if_the_commit_failed() -> None:
    store, clock = RecordingStore(None, StoreFull("no room")), FakeClock()
    with writing(store, clock) as writer:
        writer.call((post(1),))
        clock.set(86_400)
        with pytest.raises(StoreFull):
            writer.call((post(2),))
        clock.set(-3_600)
        assert seqs(writer.call((post(3), post(4)))) == [3, 4]
        writer.call((post(5),))
    assert [type(c) for group in store.groups for c in group] == [Post, Shift, Post, Post, Post]
    assert store.groups[1][0] == Shift(82_800 * SECOND, clock.now())


def test_a_job_has_the_store_to_itself_in_its_turn() -> None:
    store = RecordingStore()
    seen: list[int] = []

    def job(given: Any) -> str:
        assert given is store
        store.threads.add(threading.current_thread())
        seen.append(sum(map(len, store.groups)))
        return "done"

    async def main(writer: Writer) -> None:
        results = await asyncio.gather(
            writer.submit((post(1),)), writer.submit((post(2),)), writer.submit((), job), writer.submit((post(3),))
        )
        assert results[2] == "done"

    with writing(store) as writer:
        asyncio.run(main(writer))
        assert writer.call((), job) == "done"
        assert len(store.threads) == 1
        with pytest.raises(Surprise):
            writer.call((), raising(Surprise("mine")))
        with pytest.raises(RuntimeError, match="must not wait"):
            writer.call((), lambda _: writer.call((post(4),)))
        assert seqs(writer.call((post(5),))) == [5]
        with pytest.raises(EngineClosed):
            writer.call((), raising(StoreFailed("sync failed")))
        assert isinstance(writer.failure, StoreFailed)
    assert store.ids == [["m-1", "m-2"], ["m-3"], ["m-5"]]
    assert seen == [2, 3]


def raising(error: Exception) -> Callable[[Any], None]:
    def job(store: Any) -> None:
        raise error

    return job


def test_stopping_finishes_what_was_taken_and_fails_the_rest() -> None:
    store = RecordingStore()

    async def main(writer: Writer, pool: ThreadPoolExecutor) -> None:
        store.hold()
        taken = [writer.submit((post(0),))]
        await asyncio.to_thread(store.wait_until_entered)
        taken += [writer.submit((post(number),)) for number in range(1, 6)]
        await until(lambda: writer.waiting == 3)
        late = writer.submit((post(6),))  # not handed over yet
        stopping = pool.submit(writer.stop, lambda: [post(7), post(8)])
        until_blocking(lambda: writer._closing)
        with pytest.raises(EngineClosed):
            writer.submit((post(9),))
        store.let_go()
        await asyncio.wrap_future(stopping)
        assert [seqs(outcomes) for outcomes in await asyncio.gather(*taken)] == [[number] for number in range(6)]
        with pytest.raises(EngineClosed):
            await late

    with writing(store, queue_max=2) as writer, threads() as pool:
        asyncio.run(main(writer, pool))
        writer.stop()
    assert [id for ids in store.ids for id in ids] == [f"m-{number}" for number in (0, 1, 2, 3, 4, 5, 7, 8)]
    assert store.closed


def test_a_loop_that_was_closed_meanwhile_does_no_harm() -> None:
    store = RecordingStore()

    async def main(writer: Writer) -> None:
        store.hold()
        writer.submit((post(1),))
        await asyncio.to_thread(store.wait_until_entered)

    with writing(store) as writer:
        asyncio.run(main(writer))
        store.let_go()
        assert seqs(writer.call((post(2),))) == [2]
        # And its port goes when the next loop comes.
        asyncio.run(wait_for(writer, post(3)))
        asyncio.run(wait_for(writer, post(4)))
        assert len(writer._ports) == 1
    assert store.ids == [["m-1"], ["m-2"], ["m-3"], ["m-4"]]


async def wait_for(writer: Writer, command: Command) -> None:
    await writer.submit((command,))


def test_a_batch_of_nothing_waits_for_all_before_it() -> None:
    store = RecordingStore()
    with writing(store) as writer:
        assert writer.call(()) == []
    assert store.groups == []


def test_a_thread_that_is_interrupted_while_it_waits_for_room_leaves_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    store = RecordingStore()
    with writing(store, queue_max=1) as writer, threads() as pool:
        store.hold()
        first = pool.submit(writer.call, (post(0),))
        store.wait_until_entered()
        second = pool.submit(writer.call, (post(1),))
        until_blocking(lambda: writer.queued == 1)

        def interrupted(self: Any) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr("posthouse.engine.writer.ThreadWaiter.wait", interrupted)
            with pytest.raises(KeyboardInterrupt):
                writer.call((post(2),))
        assert writer.waiting == 0
        store.let_go()
        first.result(WAIT_S)
        second.result(WAIT_S)
    assert store.ids == [["m-0"], ["m-1"]]


class Hands:
    """A time that stands still until the writer sleeps, and a sleep that lasts until a test ends it."""

    def __init__(self) -> None:
        self.slept: list[float] = []
        self.wake_up = threading.Event()
        self._now = 100.0
        self.perf_counter = perf_counter

    def monotonic(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        assert self.wake_up.wait(WAIT_S)
        self._now += seconds


@pytest.fixture
def hands(monkeypatch: pytest.MonkeyPatch) -> Hands:
    made = Hands()
    monkeypatch.setattr("posthouse.engine.writer.time", made)
    return made


def test_a_lingering_commit_takes_what_came_meanwhile_and_the_first_after_a_pause_goes_at_once(hands: Hands) -> None:
    store = RecordingStore()

    async def main(writer: Writer) -> None:
        await writer.submit((post(1),))
        assert hands.slept == []
        # Each in an iteration of its own, so that the loop hands them over one by one.
        rest = []
        for number in (2, 3, 4):
            rest.append(writer.submit((post(number),)))
            await asyncio.sleep(0)
        await until(lambda: writer.queued == 3 and hands.slept == [LINGER_S])
        hands.wake_up.set()
        await asyncio.gather(*rest)

    with writing(store, linger_s=LINGER_S) as writer:
        asyncio.run(main(writer))
    assert [len(group) for group in store.groups] == [1, 3]
    assert hands.slept == [LINGER_S]


def test_a_full_group_does_not_linger_and_what_lingers_at_the_stop_is_committed(hands: Hands) -> None:
    store = RecordingStore()

    async def main(writer: Writer) -> None:
        await writer.submit((post(1),))
        await writer.submit((post(2), post(3), post(4)))
        assert hands.slept == []

    with writing(store, linger_s=LINGER_S, group_max=3) as writer:
        asyncio.run(main(writer))
        with threads(2) as pool:
            last = pool.submit(writer.call, (post(5),))
            until_blocking(lambda: hands.slept == [LINGER_S])
            stopping = pool.submit(writer.stop)
            until_blocking(lambda: writer._closing)
            hands.wake_up.set()
            stopping.result(WAIT_S)
            assert seqs(last.result(WAIT_S)) == [5]
    assert [len(group) for group in store.groups] == [1, 3, 1]
