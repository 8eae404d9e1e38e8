"""What the store and the engine can tell at any moment: depth, age, the journal's lag, commits.

In: an engine, asked at each scrape. Out: numbers by desk and state. It costs the same however many mailboxes there are.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Iterable

from prometheus_client.core import Metric

from ..engine.engine import Engine
from ..errors import StoreCorrupt
from ..journal.chunk import decode
from ..mailbox.message import IN_LANE, SECOND, State
from .family import COUNTER, GAUGE, HISTOGRAM, Asked, Family

MESSAGES = Family("posthouse_messages", GAUGE, "Kept messages by desk and state.", ("desk", "state"))
DEPTH = Family("posthouse_depth", GAUGE, "Messages that are ready, leased or received, by desk.", ("desk",))
OLDEST = Family(
    "posthouse_oldest_age_seconds",
    GAUGE,
    "Age of the oldest message that is ready, leased or received; 0 if there is none.",
    ("desk",),
)
MAILBOXES = Family("posthouse_mailboxes", GAUGE, "Mailboxes by desk.", ("desk",))
OFFSET = Family("posthouse_journal_offset", GAUGE, "The journal's last offset.")
LAG = Family("posthouse_journal_lag_events", GAUGE, "Events that are in no segment yet.")
LAG_AGE = Family("posthouse_journal_lag_seconds", GAUGE, "Age of the oldest of them; 0 if there is none.")
OUTCOMES = Family(
    "posthouse_outcomes_total",
    COUNTER,
    "Outcomes of commands by desk: posted, duplicate, refused_full, delivered, retried, dead …",
    ("desk", "outcome"),
)
COMMANDS = Family("posthouse_commit_commands", HISTOGRAM, "Commands made durable by one commit.")
COMMIT = Family("posthouse_commit_seconds", HISTOGRAM, "Time of one commit with its sync.")
FAILED = Family("posthouse_failed_groups_total", COUNTER, "Commits that the store refused.")
SHIFTS = Family("posthouse_clock_shifts_total", COUNTER, "Times that the clock was found set.")
QUEUED = Family("posthouse_queue_commands", GAUGE, "Commands that wait for the writer.")
CALLERS = Family("posthouse_queue_callers", GAUGE, "Callers that wait for room in the writer's full queue.")
UP = Family("posthouse_up", GAUGE, "1 while the engine takes commands.")
FAMILIES = (
    MESSAGES, DEPTH, OLDEST, MAILBOXES, OFFSET, LAG, LAG_AGE, OUTCOMES, COMMANDS, COMMIT, FAILED, SHIFTS, QUEUED,
    CALLERS, UP,
)  # fmt: skip


class Standing(Asked):
    """Asks an engine and its store."""

    def __init__(self, engine: Engine, desk: Callable[[str], str]) -> None:
        self._engine = engine
        self._desk = desk

    def collect(self) -> Iterable[Metric]:
        """Everything, freshly asked."""
        yield from self._desks()
        yield from self._journal()
        yield from self._commits()

    def _desks(self) -> Iterable[Metric]:
        counts: Tally[tuple[str, State]] = Tally()
        depths: Tally[str] = Tally()
        boxes: Tally[str] = Tally()
        ages_s: dict[str, float] = {}
        now = self._engine.now()
        for view in self._engine.store.desks():
            desk = self._desk(view.desk)
            boxes[desk] += view.mailboxes
            for state in State:
                count = view.counts.get(state, 0)
                counts[desk, state] += count
                depths[desk] += count if state in IN_LANE else 0
            age_s = 0.0 if view.oldest_at is None else max(0, now - view.oldest_at) / SECOND
            ages_s[desk] = max(age_s, ages_s.get(desk, 0.0))
        yield MESSAGES.by({(desk, str(state)): count for (desk, state), count in counts.items()})
        yield DEPTH.by({(desk,): depth for desk, depth in depths.items()})
        yield OLDEST.by({(desk,): age_s for desk, age_s in ages_s.items()})
        yield MAILBOXES.by({(desk,): count for desk, count in boxes.items()})

    def _journal(self) -> Iterable[Metric]:
        store = self._engine.store
        exported = max((s.last for s in store.segments() if s.chain), default=0)
        offset = store.offset()
        yield OFFSET.of(offset)
        yield LAG.of(offset - exported)
        yield LAG_AGE.of(self._age_s(exported) if offset > exported else 0.0)

    def _age_s(self, exported: int) -> float:
        """How long the first event that is in no segment has waited."""
        for chunk in self._engine.store.chunks(exported):
            try:
                events = decode(chunk.data)
            except StoreCorrupt:
                continue  # the exporter tells of it
            return max(0, self._engine.now() - events[0].at) / SECOND
        return 0.0

    def _commits(self) -> Iterable[Metric]:
        engine, stats = self._engine, self._engine.stats
        counts: Tally[tuple[str, str]] = Tally()
        for (desk, outcome), count in list(stats.outcomes.items()):
            counts[self._desk(desk), outcome] += count
        yield OUTCOMES.by(counts)
        yield COMMANDS.distributed({(): stats.group_size})
        yield COMMIT.distributed({(): stats.commit_seconds})
        yield FAILED.of(stats.failed_groups)
        yield SHIFTS.of(stats.shifts)
        yield QUEUED.of(engine.queued())
        yield CALLERS.of(engine.waiting())
        yield UP.of(int(not engine.closed))
