from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import uvloop
from tests.unit.engine.fakes import MAIL, WAIT_S, FakeClock, RecordingStore, WatchedStore, post, until, until_blocking

from posthouse.engine.engine import Engine
from posthouse.errors import EngineClosed, InvalidInput, StoreFailed, StoreFull
from posthouse.mailbox.command import Command, Lease, Post, Shift, Start, Sweep
from posthouse.mailbox.message import SECOND
from posthouse.mailbox.outcome import Leased, Posted, Started

RUNNERS = pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])


def test_starting_takes_the_store_and_ends_the_leases_of_the_process_before() -> None:
    store = WatchedStore()
    with Engine(store) as engine:
        engine.call(post(1))
        leased = engine.call(Lease("mail", "alice", "t"))[0]
        assert isinstance(leased, Leased)
        assert leased.deliveries
    second = Engine(store)
    assert second.start({"node": "old", "offset": 7}) == Started(1)
    second.close()
    starts = [c for group in store.groups for c in group if isinstance(c, Start)]
    assert [start.restored_from for start in starts] == [None, {"node": "old", "offset": 7}]
    assert starts[0].policies == {"mail": MAIL}


def test_a_clock_behind_the_last_event_is_told_before_the_start() -> None:
    class Later(RecordingStore):
        def last_at(self) -> int:
            return clock.now() + 3_600 * SECOND

    clock = FakeClock()
    store = Later()
    with Engine(store, clock=clock):  # type: ignore[arg-type]
        pass
    assert store.groups[0][0] == Shift(-3_600 * SECOND, clock.now())
    assert isinstance(store.groups[0][1], Start)


@RUNNERS
def test_commands_in_both_styles(run: Callable[..., Any]) -> None:
    store = WatchedStore()

    async def main(engine: Engine) -> None:
        assert await engine.do(post(1)) == Posted(1, None)
        outcomes = await engine.apply(post(2), post(3))
        assert outcomes == [Posted(2, None), Posted(3, None)]
        assert await engine.apply() == []
        future = engine.submit(post(4))
        assert await future == [Posted(4, None)]
        leased = await engine.alease(Lease("mail", "alice", "t"))
        assert isinstance(leased, Leased)
        assert [d.message.id for d in leased.deliveries] == ["m-1"]
        nothing = await engine.alease(Lease("mail", "bob", "u"), wait_s=0)
        assert nothing == Leased("u", ())
        assert await engine.read(lambda store: store.mailbox("mail", "alice").depth) == 4  # type: ignore[union-attr]
        assert await engine.amaintain(lambda store: threading.current_thread().name) == "posthouse-writer"

    with Engine(store) as engine:
        run(main(engine))
        assert engine.call(post(5)) == [Posted(5, None)]
        assert engine.lease(Lease("mail", "bob", "u"), wait_s=0) == Leased("u", ())
        assert engine.maintain(lambda store: store.offset()) == engine.store.offset()
        assert engine.queued() == engine.waiting() == 0
    assert [n for group in store.groups if (n := sum(isinstance(c, Post) for c in group))] == [1, 2, 1, 1]


def test_bad_input_is_refused_in_the_callers_thread_and_changes_nothing() -> None:
    store = WatchedStore()

    async def main(engine: Engine) -> None:
        with pytest.raises(InvalidInput, match="control character"):
            await engine.do(post("a\nb"))
        with pytest.raises(InvalidInput, match="unknown desk"):
            await engine.apply(post(1), Lease("nowhere", None, "t"))

    with Engine(store) as engine:
        asyncio.run(main(engine))
        with pytest.raises(InvalidInput, match="limit"):
            engine.call(post(1), Lease("mail", None, "t", limit=0))
    assert not [c for group in store.groups for c in group if isinstance(c, Post | Lease)]


def test_an_engine_takes_nothing_before_it_is_started_and_after_it_is_closed() -> None:
    store = WatchedStore()
    engine = Engine(store)

    async def refused(words: str) -> None:
        with pytest.raises(EngineClosed, match=words):
            await engine.do(post(1))
        with pytest.raises(EngineClosed, match=words):
            await engine.amaintain(lambda store: None)

    with pytest.raises(EngineClosed, match="not started"):
        engine.call(post(1))
    asyncio.run(refused("not started"))
    engine.start()
    engine.close()
    engine.close()
    assert engine.closed
    assert store.closed
    with pytest.raises(EngineClosed, match="is closed"):
        engine.call(post(1))
    with pytest.raises(EngineClosed, match="is closed"):
        engine.maintain(lambda store: None)
    asyncio.run(refused("is closed"))
    with pytest.raises(EngineClosed):
        asyncio.run(engine.read(lambda store: None))


def test_an_engine_that_was_never_started_closes_its_store() -> None:
    store = WatchedStore()
    engine = Engine(store)
    engine.close()
    engine.close()
    assert store.closed


def test_an_engine_that_cannot_start_lets_go_of_its_store() -> None:
    def refuse(commands: Sequence[Command]) -> None:
        raise StoreFull("no room")

    before = set(threading.enumerate())
    store = WatchedStore()
    store.before_apply = refuse
    with pytest.raises(StoreFull), Engine(store):
        pytest.fail("it has started")
    assert store.closed
    assert set(threading.enumerate()) <= before


def test_no_thread_is_left_behind() -> None:
    before = set(threading.enumerate())
    with Engine(WatchedStore()) as engine:
        asyncio.run(engine.read(lambda store: None))
        assert {thread.name for thread in set(threading.enumerate()) - before} >= {
            "posthouse-writer",
            "posthouse-sweeper",
        }
    assert set(threading.enumerate()) <= before


def test_hooks_and_stats_tell_of_each_commit() -> None:
    seen: list[tuple[int, int]] = []

    def hook(commands: Sequence[Command], outcomes: Sequence[Any], seconds: float) -> None:
        assert seconds >= 0
        seen.append((len(commands), len(outcomes)))

    def broken(*args: Any) -> None:
        raise ZeroDivisionError

    with Engine(WatchedStore()) as engine:
        until_blocking(lambda: engine.sweeper._sweep_at > 0)
        engine.on_commit += [broken, hook]
        commits = engine.stats.commits
        engine.call(post(1), post(2), post(3))
        engine.call(post(4))
        assert seen == [(3, 3), (1, 1)]
        stats = engine.stats
        assert stats.commits == commits + 2
        assert stats.group_size.count == stats.commit_seconds.count == stats.commits
        assert stats.group_size.sum == stats.commands
        assert sum(stats.group_size.counts) == stats.commits
        assert stats.outcomes["mail", "posted"] == 4


def test_a_failed_sync_is_told_and_whoever_waits_for_messages_is_woken() -> None:
    failure = StoreFailed("sync failed")
    store = RecordingStore()
    failures: list[BaseException] = []

    async def main(engine: Engine, pool: ThreadPoolExecutor) -> None:
        waiting = asyncio.create_task(engine.alease(Lease("mail", "alice", "t")))
        blocking = pool.submit(engine.lease, Lease("mail", None, "u"))
        await until(lambda: sum(isinstance(c, Lease) for group in store.groups for c in group) == 2)
        store._errors.append(failure)
        with pytest.raises(EngineClosed):
            await engine.do(post(1))
        with pytest.raises(EngineClosed):
            await asyncio.wait_for(waiting, WAIT_S)
        with pytest.raises(EngineClosed) as raised:
            blocking.result(WAIT_S)
        assert raised.value.__cause__ is failure

    engine = Engine(store, on_failure=failures.append)  # type: ignore[arg-type]
    engine.start()
    with ThreadPoolExecutor() as pool:
        asyncio.run(main(engine, pool))
    assert engine.failure() is failure
    until_blocking(lambda: failures == [failure])
    assert engine.closed
    engine.close()
    assert store.closed


def test_a_failure_callback_may_close_the_engine() -> None:
    store = RecordingStore()
    engine = Engine(store, on_failure=lambda error: engine.close())  # type: ignore[arg-type]
    engine.start()
    store._errors.append(StoreFailed("sync failed"))
    with pytest.raises(EngineClosed):
        engine.call(post(1))
    until_blocking(lambda: store.closed)
    engine.close()


def test_cancelling_a_wait_for_room_undoes_it() -> None:
    store = RecordingStore()

    async def main(engine: Engine) -> None:
        store.hold()
        tasks = [asyncio.create_task(engine.do(post(0)))]
        await asyncio.to_thread(store.wait_until_entered)
        tasks += [asyncio.create_task(engine.do(post(1))), asyncio.create_task(engine.apply(post(2), post(3)))]
        tasks += [asyncio.create_task(engine.do(post(4)))]
        await until(lambda: engine.waiting() == 2)
        tasks[2].cancel()
        await asyncio.wait(tasks[2:3])
        assert engine.waiting() == 1
        store.let_go()
        await asyncio.gather(*tasks, return_exceptions=True)

    engine = Engine(store, queue_max=1)  # type: ignore[arg-type]
    engine.start()
    until_blocking(lambda: any(isinstance(c, Sweep) for group in store.groups for c in group))
    asyncio.run(main(engine))
    engine.close()
    assert [id for ids in store.ids for id in ids] == ["m-0", "m-1", "m-4"]


@pytest.mark.parametrize("seed", range(6))
def test_closing_under_load_loses_nothing(seed: int) -> None:
    """All that was acknowledged is in the store; all else got an error."""
    store = WatchedStore()
    engine = Engine(store, queue_max=20, group_max=7)
    engine.start()
    random_ = random.Random(seed)
    close_after = random_.randrange(20, 400)
    acknowledged: list[str] = []
    unacknowledged: list[str] = []
    enough = threading.Event()

    def acknowledge(ids: list[str]) -> None:
        acknowledged.extend(ids)
        if len(acknowledged) >= close_after:
            enough.set()

    async def caller(name: int) -> None:
        for turn in range(10_000):
            posts = [post(f"c{name}-{turn}-{n}") for n in range(1 + turn % 3)]
            ids = [p.message.id for p in posts]
            try:
                assert len(await engine.apply(*posts)) == len(posts)
            except EngineClosed:
                unacknowledged.extend(ids)
                return
            acknowledge(ids)

    def blocking_caller(name: int) -> None:
        for turn in range(10_000):
            command = post(f"t{name}-{turn}")
            try:
                engine.call(command)
            except EngineClosed:
                unacknowledged.append(command.message.id)
                return
            acknowledge([command.message.id])

    async def main() -> None:
        with ThreadPoolExecutor(5) as pool:
            threads = [pool.submit(blocking_caller, name) for name in range(4)]
            tasks = [asyncio.create_task(caller(name)) for name in range(20)]
            assert await asyncio.to_thread(enough.wait, WAIT_S)
            if seed % 2:
                await engine.aclose()
            else:
                engine.close()
            await asyncio.wait_for(asyncio.gather(*tasks), WAIT_S)
            for done in threads:
                done.result(WAIT_S)

    (asyncio if seed % 3 else uvloop).run(main())
    stored = {c.message.id for group in store.groups for c in group if isinstance(c, Post)}
    assert set(acknowledged) <= stored
    assert len(unacknowledged) >= 24
    assert stored - set(acknowledged) <= set(unacknowledged)
    # A batch is in the store whole, or not at all.
    for group in store.groups:
        ids = [c.message.id for c in group if isinstance(c, Post) and c.message.id.startswith("c")]
        for id in ids:
            name, turn, _ = id.split("-")
            assert {f"{name}-{turn}-{n}" for n in range(1 + int(turn) % 3)} <= set(ids)


def test_what_this_iteration_submitted_is_not_cut_off_by_closing() -> None:
    store = WatchedStore()

    async def main(engine: Engine) -> None:
        future = engine.submit(post(1))
        engine.close()
        assert await future == [Posted(1, None)]

    engine = Engine(store)
    engine.start()
    asyncio.run(main(engine))


def test_work_goes_on_when_the_disk_has_room_again() -> None:
    store = RecordingStore()
    with Engine(store) as engine:  # type: ignore[arg-type]
        until_blocking(lambda: engine.sweeper._sweep_at > 0)
        store._errors.append(StoreFull("no room"))
        with pytest.raises(StoreFull):
            engine.call(post(1))
        assert engine.call(post(2)) == [Posted(2, None)]
        assert engine.failure() is None
