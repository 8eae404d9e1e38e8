from __future__ import annotations

import time

from tests.unit.engine.fakes import FakeClock

from posthouse.engine.clock import JUMP_US, Clock
from posthouse.mailbox.message import SECOND


def test_the_time_is_in_microseconds_and_a_running_clock_was_not_set() -> None:
    before = time.time_ns() // 1_000
    clock = Clock()
    at, shift_us = clock.read()
    assert before <= at <= time.time_ns() // 1_000
    assert shift_us == 0
    assert clock.set_by() == 0
    assert abs(clock.now() - at) < 60 * SECOND


def test_a_clock_that_was_set_yields_the_shift_once() -> None:
    clock = FakeClock()
    clock.advance(10)
    assert clock.read()[1] == 0
    clock.set(-86_400)
    clock.advance(3)
    assert clock.set_by() == -86_400 * SECOND
    assert clock.set_by() == -86_400 * SECOND, "looking takes nothing away"
    assert clock.read() == (clock.now(), -86_400 * SECOND)
    assert clock.read()[1] == 0
    assert clock.set_by() == 0


def test_slow_corrections_never_add_up_to_a_jump() -> None:
    clock = FakeClock()
    for _ in range(100):
        clock.advance(60)
        clock.set(JUMP_US / SECOND / 2)
        assert clock.read()[1] == 0


def test_a_process_that_is_stopped_between_two_looks_sees_no_jump() -> None:
    # It is stopped for 10 s behind its look at the wall, before it looks at the monotonic clock.
    wall_s = iter([1_000, 1_005, 1_015])
    monotonic_s = iter([0, 0, 5, 15, 15, 15])
    clock = Clock(lambda: next(wall_s) * 10**9, lambda: next(monotonic_s) * 10**9)
    assert clock.read() == (1_015 * SECOND, 0)
