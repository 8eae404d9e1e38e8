"""The gateway's numbers for Prometheus: read from its counters at each scrape.

Labels are bounded: accounts come from the configuration, sessions are only the ``SESSIONS_MAX`` busiest of late.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ..mailbox.message import State
from .letter import INBOUND_DESK, OUTBOUND_DESK
from .service import Gateway
from .stats import CourierStats, WorkerStats

ACCOUNTS_MAX = 200
SESSIONS_MAX = 20
_GAUGES = frozenset({"running", "sending"})
_WAITING = (State.READY, State.LEASED, State.RECEIVED)


class GatewayCollector(Collector):
    """Asks a gateway at each scrape."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def describe(self) -> Iterable[Metric]:
        """None: their names are fixed."""
        return []

    def collect(self) -> Iterable[Metric]:
        """Everything, freshly asked."""
        yield from self._worker()
        yield from self._accounts()
        yield from self._queues()
        yield from self._events()
        yield from self._sessions()

    def _worker(self) -> Iterable[Metric]:
        worker = self._gateway.worker
        if worker is None:
            return
        yield GaugeMetricFamily(
            "posthouse_gateway_sessions_running", "Sessions that are worked on now.", value=worker.stats.running
        )
        work = CounterMetricFamily(
            "posthouse_gateway_work", "Messages that handlers were given, by what became of them.", labels=("what",)
        )
        for field in dataclasses.fields(WorkerStats):
            if field.name not in _GAUGES:
                work.add_metric((field.name,), getattr(worker.stats, field.name))
        yield work

    def _accounts(self) -> Iterable[Metric]:
        up = GaugeMetricFamily("posthouse_gateway_up", "1 while an account has a connection.", labels=("account",))
        sending = GaugeMetricFamily("posthouse_gateway_sending", "Messages being sent now.", labels=("account",))
        alone = GaugeMetricFamily(
            "posthouse_gateway_targets_left_alone", "Targets that failed often.", labels=("account",)
        )
        traffic = CounterMetricFamily(
            "posthouse_gateway_account",
            "What an account received and sent, by what became of it.",
            labels=("account", "what"),
        )
        for name, courier in list(self._gateway.couriers.items())[:ACCOUNTS_MAX]:
            up.add_metric((name,), int(courier.is_up))
            sending.add_metric((name,), courier.stats.sending)
            alone.add_metric((name,), len(courier.open_targets()))
            for field in dataclasses.fields(CourierStats):
                if field.name not in _GAUGES:
                    traffic.add_metric((name, field.name), getattr(courier.stats, field.name))
        yield from (up, sending, alone, traffic)

    def _queues(self) -> Iterable[Metric]:
        """Lengths by mailbox: tenants inbound, accounts outbound."""
        length = GaugeMetricFamily(
            "posthouse_gateway_waiting", "Messages that wait or are in flight.", labels=("desk", "mailbox")
        )
        dead = GaugeMetricFamily("posthouse_gateway_dead", "Dead letters that are kept.", labels=("desk", "mailbox"))
        for desk in (INBOUND_DESK, OUTBOUND_DESK):
            for box in self._gateway.engine.store.mailboxes(desk, limit=ACCOUNTS_MAX):
                length.add_metric((desk, box.mailbox), sum(box.counts.get(state, 0) for state in _WAITING))
                dead.add_metric((desk, box.mailbox), box.counts.get(State.DEAD, 0))
        yield from (length, dead)

    def _events(self) -> Iterable[Metric]:
        events = CounterMetricFamily(
            "posthouse_gateway_events",
            "State changes by desk and channel/account: posted, delivered, failed, died, uncertain, expired.",
            labels=("desk", "channel", "what"),
        )
        totals = list(self._gateway.meter.totals.items())
        known = {channel for (_, channel, _), _ in totals[: 12 * ACCOUNTS_MAX]}
        for (desk, channel, what), count in totals:
            if channel in known:
                events.add_metric((desk, channel, what), count)
        yield events

    def _sessions(self) -> Iterable[Metric]:
        late = GaugeMetricFamily(
            "posthouse_gateway_session_events",
            f"State changes of the last five minutes, of the {SESSIONS_MAX} busiest sessions of each desk.",
            labels=("desk", "mailbox", "lane", "what"),
        )
        places = self._gateway.meter.by(lambda place: (place.desk, place.mailbox, place.lane), time.monotonic())
        for desk in (INBOUND_DESK, OUTBOUND_DESK):
            own = [(place, counts) for place, counts in places.items() if place[0] == desk and place[1]]
            for place, counts in sorted(own, key=lambda item: -sum(item[1].values()))[:SESSIONS_MAX]:
                for what, count in counts.items():
                    late.add_metric((*place, what), count)
        yield late
