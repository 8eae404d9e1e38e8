"""One timer for many waits."""

from __future__ import annotations

import asyncio

import pytest
from tests.libp2p.loop import coroutine

from posthouse.peer.deadline import Deadline


async def wait(deadline: Deadline, event: asyncio.Event, wait_s: float) -> None:
    """Wait as a task does that uses one."""
    deadline.begin(wait_s)
    try:
        await event.wait()
    except asyncio.CancelledError:
        if deadline.cut():
            raise TimeoutError from None
        raise
    finally:
        deadline.end()


WAIT_S = 2.0
"""Longer than a busy machine takes for a wait of a few milliseconds."""


@coroutine
async def test_only_the_wait_that_takes_too_long_is_cut() -> None:
    deadline, loop, done = Deadline(), asyncio.get_running_loop(), asyncio.Event()
    for _ in range(20):
        done.clear()
        loop.call_later(0.004, done.set)
        await wait(deadline, done, WAIT_S)
    done.clear()
    begun_s = loop.time()
    with pytest.raises(TimeoutError):
        await wait(deadline, done, WAIT_S)
    # The timer of an earlier wait rang in the middle of this one, and was set again for its end.
    assert loop.time() - begun_s >= WAIT_S - 0.005
    loop.call_later(0.004, done.set)
    await wait(deadline, done, WAIT_S)
    deadline.close()
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()


@coroutine
async def test_a_shorter_wait_ends_before_an_earlier_timer_rings() -> None:
    deadline, done = Deadline(), asyncio.Event()
    done.set()
    await wait(deadline, done, 1_000)
    done.clear()
    with pytest.raises(TimeoutError):
        await wait(deadline, done, 0.01)
    deadline.close()


@coroutine
async def test_who_is_cancelled_by_another_is_cancelled() -> None:
    begun, outcome = asyncio.Event(), []

    async def sit() -> None:
        deadline = Deadline()
        begun.set()
        try:
            await wait(deadline, asyncio.Event(), 1_000)
        except asyncio.CancelledError:
            outcome.append("cancelled")
            raise
        finally:
            deadline.close()

    task = asyncio.create_task(sit())
    await begun.wait()
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert task.cancelled()
    assert outcome == ["cancelled"]


@coroutine
async def test_a_timer_rings_for_nothing_when_nobody_waits() -> None:
    deadline, done = Deadline(), asyncio.Event()
    done.set()
    await wait(deadline, done, 0.01)
    await asyncio.sleep(0.03)
    await wait(deadline, done, 0.01)
    deadline.close()
