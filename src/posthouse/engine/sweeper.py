"""The sweeper: one timer for every wait and lease of the store, and the periodic sweep.

In: from the writer, the earliest instant that a commit is known to have added; from the store, the next
one. Out: rings for mailboxes whose wait has ended, and Sweep commands, which end lost leases, expire and
forget. It never has a timer per message, and it takes its turn in the queue like everybody else, a slice
at a time, so that a sweep of a million messages delays nobody by more than one slice.

A store may offer ``due(after, until, limit) -> list[(desk, mailbox)]``, the mailboxes with a wait that
ended after ``after`` and not later than ``until``. Without it everyone who waits is rung, and looks.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from ..errors import EngineClosed, StoreError
from ..mailbox.command import Sweep
from ..mailbox.message import SECOND, Instant
from ..mailbox.outcome import Swept
from ..mailbox.store import Store
from .bell import Bell, Key, wake
from .clock import Clock
from .effects import FAR

log = logging.getLogger("posthouse.sweeper")

SWEEP_S = 300.0
SLICE = 200
"""Messages of each kind that one Sweep handles: a few milliseconds of the writer's time."""
SLACK_US = 20_000
"""Between two turns of the timer. The first wait to end is punctual; a throng of them is served together."""
NAP_S = 60.0
"""The longest sleep, so that a clock that was set is noticed in an engine that does nothing."""
RETRY_S = 5.0
"""After the store failed to answer."""
LINES_MAX = 1_000
DUE_MAX = 1_000


class Sweeper:
    """One thread that sleeps until something ends."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        bell: Bell,
        sweep: Callable[[Sweep], Swept],
        *,
        on_failure: Callable[[BaseException], None],
        sweep_s: float = SWEEP_S,
    ) -> None:
        self._store = store
        self._clock = clock
        self._bell = bell
        self._sweep_once = sweep
        self._on_failure = on_failure
        self._sweep_us = int(sweep_s * SECOND)
        self._due = getattr(store, "due", None)
        self.leases_until: Instant = 0
        """The latest end of any lease; the engine keeps it. After it there are none to end."""
        self._changed = threading.Condition(threading.Lock())
        self._timer_at: Instant = FAR
        self._unsure = True  # at the start only the store knows what it holds
        # What ended while no process had the store is found by the first sweep.
        self._sweep_at: Instant = 0
        self._not_before: Instant = 0
        self._seen_at = clock.now()  # what ended by then has been dealt with
        self._closing = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread; the first periodic sweep is at once."""
        self._thread = threading.Thread(target=self._run, name="posthouse-sweeper", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread after the slice that it is at. Idempotent."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def arm(self, at: Instant) -> None:
        """Something ends at this instant: be awake by then. Called after commits; mostly one comparison."""
        if at < self._timer_at:
            with self._changed:
                if at < self._timer_at:
                    self._timer_at = at
                    self._changed.notify()

    def doubt(self, shifted_us: int = 0) -> None:
        """Something may end sooner than is known, or the clock was set: ask the store."""
        with self._changed:
            self._unsure = True
            if shifted_us:
                self._sweep_at = max(self._sweep_at + shifted_us, 0)
                self._not_before = 0
            self._changed.notify()

    def poke(self) -> None:
        """Look at the clock again; for clocks that do not run by themselves."""
        with self._changed:
            self._changed.notify()

    def _run(self) -> None:
        while self._sleep():
            try:
                self._turn()
            except EngineClosed:
                return
            except Exception as error:
                if not isinstance(error, StoreError):
                    # Without a sweeper lost leases would never end: better to stop than to rot in silence.
                    self._on_failure(error)
                    return
                log.warning("the sweeper will try again in %g s: %s", RETRY_S, error)
                with self._changed:
                    self._unsure = True
                    self._not_before = self._clock.now() + int(RETRY_S * SECOND)

    def _sleep(self) -> bool:
        """Wait until something is due; False when the sweeper is to end."""
        with self._changed:
            while not self._closing:
                if self._clock.set_by():
                    return True
                now = self._clock.now()
                at = 0 if self._unsure else min(self._timer_at, self._sweep_at)
                at = max(at, self._not_before)
                if now >= at:
                    return True
                self._changed.wait(min((at - now) / SECOND, NAP_S))
            return False

    def _turn(self) -> None:
        if self._clock.set_by():
            # Any command makes the writer look at the clock and put a Shift before it; what that moves,
            # it tells by `doubt`. Only then do instants of the store compare with the clock again.
            self._sweep_once(Sweep(SLICE))
        with self._changed:
            now = self._clock.now()
            # What a commit adds from here on is not overwritten by the store's older answer.
            self._timer_at = FAR
            self._unsure = False
            seen_at = min(self._seen_at, now)
        ended_at = self._store.next_at(seen_at)
        ended = ended_at is not None and ended_at <= now
        if ended:
            self._ring_due(seen_at, now)
        sweeping = now >= self._sweep_at
        if sweeping or (ended and seen_at < self.leases_until):
            self._sweep()
        with self._changed:
            self._seen_at = now
            self._not_before = now + SLACK_US
            if sweeping:
                self._sweep_at = self._clock.now() + self._sweep_us
        next_at = self._store.next_at(now)
        if next_at is not None:
            self.arm(next_at)

    def _ring_due(self, after: Instant, until: Instant) -> None:
        keys: list[Key] | None = None
        if self._due is not None:
            keys = self._due(after, until, DUE_MAX)
        if keys is None or len(keys) >= DUE_MAX:
            wake(self._bell.ring(everyone=True))
        else:
            wake(self._bell.ring(keys))

    def _sweep(self) -> None:
        """Sweep to the end, in slices."""
        cleaned: dict[Key, int] = {}
        total = 0
        mailboxes = 0
        while True:
            swept = self._sweep_once(Sweep(SLICE))
            for desk, mailbox, count in swept.expired:
                cleaned[desk, mailbox] = cleaned.get((desk, mailbox), 0) + count
                total += count
            done = swept.forgotten + swept.lost + len(swept.expired)
            last = not swept.more or not done or self._closing
            if last or len(cleaned) >= LINES_MAX:
                mailboxes += len(cleaned)
                for (desk, mailbox), count in cleaned.items():
                    log.info("Cleaned %d expired messages for %s", count, mailbox, extra={"desk": desk})
                cleaned.clear()
            if last:
                break
        if total:
            log.info("Cleaned %d expired messages in %d mailboxes", total, mailboxes)
