"""The gateway's numbers for Prometheus: read from its counters at each scrape.

Labels are bounded: accounts come from the configuration, tenants and channels are the first ``ACCOUNTS_MAX``, sessions
only the ``SESSIONS_MAX`` busiest of late.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable

from prometheus_client.core import Metric

from ..mailbox.message import IN_LANE, State
from ..metrics.family import COUNTER, GAUGE, Asked, Family
from .letter import INBOUND_DESK, OUTBOUND_DESK
from .service import Gateway
from .stats import CourierStats, WorkerStats

ACCOUNTS_MAX = 200
SESSIONS_MAX = 20
_GAUGES = frozenset({"running", "sending"})
_DESKS = (INBOUND_DESK, OUTBOUND_DESK)

RUNNING = Family("posthouse_gateway_sessions_running", GAUGE, "Sessions that are worked on now.")
WORK = Family(
    "posthouse_gateway_work_total", COUNTER, "Messages that handlers were given, by what became of them.", ("what",)
)
UP = Family("posthouse_gateway_up", GAUGE, "1 while an account has a connection.", ("account",))
SENDING = Family("posthouse_gateway_sending", GAUGE, "Messages being sent now.", ("account",))
ALONE = Family("posthouse_gateway_targets_left_alone", GAUGE, "Targets that failed often.", ("account",))
TRAFFIC = Family(
    "posthouse_gateway_account_total",
    COUNTER,
    "What an account received and sent, by what became of it.",
    ("account", "what"),
)
WAITING = Family(
    "posthouse_gateway_waiting", GAUGE, "Messages that wait or are in flight: of tenants, and of accounts.",
    ("desk", "mailbox"),
)  # fmt: skip
DEAD = Family("posthouse_gateway_dead", GAUGE, "Dead letters that are kept.", ("desk", "mailbox"))
EVENTS = Family(
    "posthouse_gateway_events_total",
    COUNTER,
    "State changes by desk and channel/account: posted, delivered, failed, died, uncertain, expired.",
    ("desk", "channel", "what"),
)
LATE = Family(
    "posthouse_gateway_session_events",
    GAUGE,
    f"State changes of the last five minutes, of the {SESSIONS_MAX} busiest sessions of each desk.",
    ("desk", "mailbox", "lane", "what"),
)
FIRING = Family("posthouse_gateway_alerts_firing", GAUGE, "What is wrong by an alert rule of the gateway.", ("rule",))
FAMILIES = (RUNNING, WORK, UP, SENDING, ALONE, TRAFFIC, WAITING, DEAD, EVENTS, LATE, FIRING)


class GatewayCollector(Asked):
    """Asks a gateway at each scrape."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def collect(self) -> Iterable[Metric]:
        """Everything, freshly asked."""
        yield from self._worker()
        yield from self._accounts()
        yield from self._queues()
        yield from self._events()
        yield from self._sessions()
        watch = self._gateway.watch
        yield FIRING.by({} if watch is None else {(rule,): count for rule, count in watch.firing.items()})

    def _worker(self) -> Iterable[Metric]:
        worker = self._gateway.worker
        if worker is None:
            return
        yield RUNNING.of(worker.stats.running)
        names = [field.name for field in dataclasses.fields(WorkerStats) if field.name not in _GAUGES]
        yield WORK.by({(name,): getattr(worker.stats, name) for name in names})

    def _accounts(self) -> Iterable[Metric]:
        couriers = list(self._gateway.couriers.items())[:ACCOUNTS_MAX]
        names = [field.name for field in dataclasses.fields(CourierStats) if field.name not in _GAUGES]
        yield UP.by({(name,): int(courier.is_up) for name, courier in couriers})
        yield SENDING.by({(name,): courier.stats.sending for name, courier in couriers})
        yield ALONE.by({(name,): len(courier.open_targets()) for name, courier in couriers})
        yield TRAFFIC.by({(name, what): getattr(courier.stats, what) for name, courier in couriers for what in names})

    def _queues(self) -> Iterable[Metric]:
        """Lengths by mailbox: tenants inbound, accounts outbound."""
        store = self._gateway.engine.store
        boxes = [box for desk in _DESKS for box in store.mailboxes(desk, limit=ACCOUNTS_MAX)]
        yield WAITING.by({(b.desk, b.mailbox): sum(b.counts.get(state, 0) for state in IN_LANE) for b in boxes})
        yield DEAD.by({(b.desk, b.mailbox): b.counts.get(State.DEAD, 0) for b in boxes})

    def _events(self) -> Iterable[Metric]:
        yield EVENTS.by(dict(self._gateway.meter.totals))

    def _sessions(self) -> Iterable[Metric]:
        late: dict[tuple[str, ...], float] = {}
        places = self._gateway.meter.by(lambda place: (place.desk, place.mailbox, place.lane), time.monotonic())
        for desk in _DESKS:
            own = [(place, counts) for place, counts in places.items() if place[0] == desk and place[1]]
            for place, counts in sorted(own, key=lambda item: -sum(item[1].values()))[:SESSIONS_MAX]:
                for what, count in counts.items():
                    late[*place, what] = count
        yield LATE.by(late)
