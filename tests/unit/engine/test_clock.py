from __future__ import annotations

import time

from posthouse.engine.clock import JUMP_US, Clock
from posthouse.mailbox.message import SECOND
from tests.unit.engine.fakes import FakeClock


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
    wall = 1_000 * SECOND
    # The second look at the monotonic clock comes 10 s late, once.
    looks = iter([0, 0, 5, 5 + 10 * SECOND, 6 + 10 * SECOND, 6 + 10 * SECOND])
    clock = Clock(lambda: (wall + 10 * SECOND) * 1_000, lambda: next(looks) * 1_000)
    at, shift_us = clock.read()
    assert at == wall + 10 * SECOND
    assert abs(shift_us) in (0, 10 * SECOND + 6)
    clock = Clock(lambda: wall * 1_000, iter([0, 0, 5_000, 5_000, 0, 0]).__next__)
    assert clock.read()[1] == 0
