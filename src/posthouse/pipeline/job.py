"""The job: takes new segments into the lake, batch by batch, each exactly once.

In: a journal, a lake, a Spark session. Out: the lake's tables, read and written through ``tables``.

A batch goes through stages: planned → events → messages → attempts → anomalies → partials → carried → segments →
committed, and at the end of a run the derived tables. Every write carries the batch's number (Delta's txnAppId and
txnVersion), so doing a batch again after a kill at any stage writes only what is missing; what the batch starts from
is read at the versions that its plan recorded. Finished rows that come again are taken out just before messages are
written: those of batches before, so that this too may be done again. When all tables have the batch, ``withdrawn`` is
told what was taken out of them.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import InvalidInput, StoreCorrupt
from . import bronze, check, cutting, filed, held, intake, ledger, lineage, schema, taken, withdrawn
from .agreement import verify_tables
from .bronze import REJECTED, File, Journal, Listing, Segment
from .finding import Finding
from .ledger import APPEND, REBUILD, RECOMPUTE, Ledger, Plan, State
from .offsets import Ranges
from .proof import Proof
from .scratch import Scratch
from .session import NEEDED, PLANS
from .tables import FILES, GOLD, SILVER, STATE_TABLES, Tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from .transforms import Keep, asleep

BATCH_EVENTS = 64_000_000
"""Events of one batch, unless a segment alone has more."""
PARTITION_EVENTS = 1_000_000
"""Events of a batch that are worked off at one time."""
TOGETHER_MAX = 500_000
"""Events of a batch that is worked off in one partition, and whose tables are all written at one time."""
LONG = 20_000_000
"""Events of a history that is long."""
SUMMED = 8
"""Events for each of their sums, at least."""
ASLEEP_MIN = 200_000
"""Rows of the open set from which on a batch leaves alone what it does not concern, unless it is large itself."""
READ_BACK = ("events", "messages", "attempts", "anomalies", "partials", "carried")
"""Tables that a batch starts from."""
KEY = schema.IDENTITY
TAKING_IN = ("events", *SILVER, "segments")
STAGES = ("planned", "events", *SILVER, "segments", "committed", *GOLD, "done")

Report = Callable[[int, int | None, str], None]
"""Called with the events done, those to do and what is being done."""


def _no_report(done: int, total: int | None, doing: str) -> None:
    pass


def _no_stage(stage: str) -> None:
    pass


@dataclass
class Result:
    """What a run did."""

    batches: int = 0
    segments: int = 0
    events: int = 0
    late: bool = False
    """Something came behind later events of its node, or was dated before them, so that rows were computed anew."""
    rejected: list[tuple[str, str]] = field(default_factory=list)
    """Files that were not taken in, and why."""
    findings: list[Finding] = field(default_factory=list)

    def plain(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "batches": self.batches,
            "segments": self.segments,
            "events": self.events,
            "late": self.late,
            "rejected": [{"file": name, "reason": reason} for name, reason in self.rejected],
            "findings": [
                {"kind": each.kind, "node": each.node, "offsets": list(each.offsets), "detail": each.detail}
                for each in self.findings
            ],
        }


class _Made(NamedTuple):
    """What a batch comes to."""

    tables: dict[str, DataFrame]
    dirty: Callable[[], list[str]]
    """Which days the derived tables are behind for, as the state has them."""
    again: Sequence[held.Row]
    """Finished rows that come again: those that are there are taken out."""
    nodes: list[str] | None
    """Whose rows are all made anew, and take the place of those that are there."""
    whole: bool
    """The tables are replaced."""
    more: bool
    """What is open is written beside what was."""

    def gone(self) -> list[withdrawn.Gone]:
        """What is taken out of the tables."""
        nodes = [withdrawn.Gone(node=node) for node in self.nodes or ()]
        return [*nodes, *(withdrawn.Gone(None, row["key"], row["generation"]) for row in self.again)]


class Job:
    """The books of one lake. ``session`` is called when Spark is needed, and only then."""

    def __init__(
        self,
        lake: str,
        session: Callable[[], SparkSession],
        *,
        report: Report = _no_report,
        stage: Callable[[str], None] = _no_stage,
        batch_events: int = BATCH_EVENTS,
    ) -> None:
        self.ledger = Ledger(lake)
        self._session = functools.cache(lambda: _prepared(session()))
        self.tables = Tables(self.ledger, self._session)
        self._report = report
        self._stage = stage
        self._batch_events = batch_events
        self._done, self._under_way, self._total = 0, 0, 0

    @property
    def spark(self) -> SparkSession:
        """The session; started at the first use."""
        return self._session()

    # Commands

    def run(self, journal: str, *, rebuild: bool = False) -> Result:
        """Take in all that is new, and bring the derived tables up to date."""
        # Before the lake is locked, which makes its folder.
        check.need_journal(journal)
        with self.ledger.alone("rebuild" if rebuild else "run"):
            return self._run(Journal(journal), rebuild)

    def missing(self, journal: str) -> tuple[int, int]:
        """How many of the segments that were taken in are not in a journal any more, and how many those were.

        InvalidInput where the journal holds none at all. Of a lake that is damaged nobody can tell: none of none.
        """
        place = Journal(journal)
        return self._missing(place, place.listing())

    def compact(self, *, retain_h: float | None = None) -> dict[str, dict[str, int]]:
        """Join small files; with ``retain_h``, also remove files that no version of the last hours needs."""
        self.need_books()
        with self.ledger.alone("compact"):
            self._refuse_unfinished("compact")
            done = {}
            for name in self.tables.names():
                done[name] = self.tables.optimize(name)
                if retain_h is not None:
                    self.tables.vacuum(name, retain_h)
            self.ledger.tidy()
            return done

    def forget(self, mailbox: str, journal: str | None) -> dict[str, Any]:
        """Erase a mailbox's rows from every table and its files, and keep out all that come later, for good."""
        if not mailbox:
            raise InvalidInput("which mailbox? its name is empty")
        place = Journal(journal) if journal else None
        with self.ledger.alone("forget"):
            self._refuse_unfinished("forget")
            # Before anything is erased: what is wrong with the journal must not look like a failure behind it.
            state = self.ledger.state()
            recorded = self.tables.segments() if place and state.segments else []
            missing, held, unread = _still_holding(place, recorded, mailbox) if place else (0, [], [])
            erased = 0
            if self.ledger.has("events"):
                from pyspark.sql import functions as F

                erased = self.tables.load("events").where(F.col("mailbox") == mailbox).count()
            after = replace(state, forgotten=tuple(sorted({*state.forgotten, mailbox})))
            if state.batch:
                after = replace(after, batch=state.batch + 1)
                self._carry_out(self._planned(RECOMPUTE, (), after, state.known()), None)
                self._derive()
                for name in self.tables.names():
                    self.tables.vacuum(name, 0)
            else:
                self.ledger.commit(after)
        return {
            "mailbox": mailbox,
            "events_erased": erased,
            "segments": held,
            "unread": unread,
            "taken": len(recorded),
            "missing": missing,
        }

    def verify(self, journal: str | None) -> check.Verified:
        """Check the journal's files against the record, and the tables against it and each other."""
        self.need_books()
        with self.ledger.alone("verify"):
            state, plan = self.ledger.state(), self.ledger.plan()
            rows = self.tables.segments() if state.batch else []
            found: list[check.Discrepancy] = []
            place = Journal(journal) if journal else None
            at_hand: dict[tuple[str, str], File] = {}
            if place is not None:
                listing = place.listing()
                looked = self._examine(place, listing.files)
                found += check.verify_files(place, rows, state.lineage, listing, looked)
                at_hand = check.as_taken(rows, listing.files, looked)
            if unfinished := [*check.unfinished(state, plan)]:
                return check.Verified([*found, *unfinished], check.forgotten(state))
            for name, batch in self._out_of_step(state):
                found.append(("mismatch", name, f"its last batch is {batch}, and the record's {state.batch}"))
            proven = Proof(self.ledger, state, place, at_hand, self._report)
            if state.batch:
                found += proven.verify(rows)
                with self._wide(sum(segment.events for segment in rows)):
                    found += verify_tables(self.tables, state, self._report)
            return check.Verified(found, [*proven.untold, *check.forgotten(state)])

    def need_books(self) -> None:
        """InvalidInput where there are no books, StoreCorrupt where there is no record of them; nothing is made."""
        if self.ledger.state().batch or self.ledger.plan() is not None:
            return
        if self.is_unrecorded():
            raise self._unrecorded()
        raise InvalidInput(f"there are no books at {self.ledger.place}")

    def is_unrecorded(self) -> bool:
        """Whether there are tables and no record of them."""
        known = self.ledger.state(rebuilding=True).batch or self.ledger.begun()
        return not known and self.ledger.has("events")

    # A run

    def _run(self, journal: Journal, rebuild: bool) -> Result:
        result = Result()
        state = self.ledger.state(rebuilding=rebuild)
        plan = None if rebuild else self.ledger.plan()
        listing = journal.listing()
        if rebuild:
            # Nothing must not take the place of all that the lake has.
            self._missing(journal, listing)
        dropped = False
        if plan is not None and plan.batch > state.batch:
            done = self._is_everywhere(plan)
            if not done and (other := _other_since(plan, listing)):
                if plan.mode == REBUILD or any(self.tables.transaction(n) >= plan.batch for n in ("events", *SILVER)):
                    raise InvalidInput(f"a run was interrupted, and {other} since: put it back as it was, or rebuild")
                # No table has anything of it: it is planned anew, under another number, which whatever the killed
                # process left at work on a server does not write.
                state, dropped = replace(state, batch=plan.batch), True
            else:
                # Begun and not committed: the same batch again, from the same versions.
                self._done = 0
                self._under_way = self._total = sum(segment.events for segment in plan.new)
                if done:
                    # Only the record lacks it. What it changed is not known any more.
                    self._write_segments(plan)
                    self._conclude(plan, _every_day())
                else:
                    self._carry_out(plan, journal)
                result.batches += 1
                result.segments += len(plan.new)
                result.events += self._under_way
                state = plan.after
        if state.batch == 0 and not rebuild and self.ledger.has("events"):
            raise self._unrecorded()
        if rebuild:
            # Numbers go on: a table never takes a batch of the same number twice. And nobody comes back whom a command
            # that was interrupted was to forget.
            reached = max(state.batch, self.ledger.begun(), *map(self.tables.transaction, STATE_TABLES))
            state = State(batch=reached, forgotten=tuple(sorted({*state.forgotten, *self.ledger.forgetting()})))
        names = {(segment.node, segment.name) for segment in self.tables.segments()} if state.segments else set()
        looked = self._examine(journal, [file for file in listing.files if (file.node, file.name) not in names])
        rejected = tuple(segment for segment in looked if segment.state == REJECTED)
        sound = [segment for segment in looked if segment.state != REJECTED]
        if rebuild and not sound:
            self._need_none(journal, rejected)
        before = state.lineage
        restores = lineage.told(*state.restores, *(segment.restored for segment in sound))
        state = replace(state, rejected=rejected, foreign=tuple(listing.foreign), restores=restores)
        if overlapped := taken.touched(state.segments, sound):
            state = replace(state, segments=taken.replaced(state.segments, overlapped, self.tables.segments()))
        self._total, self._done = sum(segment.events for segment in sound), 0
        mode = REBUILD if rebuild else APPEND
        said = self.ledger.state(rebuilding=rebuild)
        changed = dropped or (state.rejected, state.foreign) != (said.rejected, said.foreign)
        pieces = cutting.cut(sound, state.segments, state.lineage, self._batch_events)
        if (pieces or changed) and not rebuild:
            for name, batch in self._out_of_step(said):
                raise StoreCorrupt(
                    f"the table {name} of the lake {self.ledger.place} has batch {batch} as its last, and the lake's"
                    f" record {said.batch}: rebuild it"
                )
        for piece in pieces or ([()] if changed or rebuild else []):
            self._under_way = sum(segment.events for segment in piece)
            self._report(self._done, self._total, "taking in")
            after = replace(state, batch=state.batch + 1, segments=taken.compact((*state.segments, *piece)))
            known, line = state.known(), state.lineage
            moved = line.moved(before, known)
            late = mode == APPEND and (bool(moved) or cutting.is_late(piece, state.segments, line))
            self._carry_out(self._planned(RECOMPUTE if late else mode, piece, after, known, moved), journal)
            self._done += self._under_way
            result.batches += 1
            result.segments += len(piece)
            result.late |= late
            state, mode, before = after, APPEND, line
        result.events += self._done
        self._report(self._done, self._total, "summing up")
        self._derive()
        result.rejected = [(f"node={s.node}/{s.name}", s.reason) for s in state.rejected]
        result.findings = state.findings()
        return result

    def _missing(self, journal: Journal, listing: Listing) -> tuple[int, int]:
        """What ``missing`` says."""
        taken = self._taken_before()
        return check.lacking(journal, listing.files, taken), len(taken or ())

    def _need_none(self, journal: Journal, rejected: Sequence[Segment]) -> None:
        """InvalidInput where a lake that has segments is to be made anew, and no file of the journal can be read."""
        taken = self._taken_before()
        if rejected and (taken is None or taken):
            many, first = len(taken) if taken else "some", rejected[0]
            raise InvalidInput(
                f"no segment in {journal.place} can be taken in, and the lake has {many}:"
                f" node={first.node}/{first.name}: {first.reason}"
            )

    def _is_everywhere(self, plan: Plan) -> bool:
        """Whether every table has a batch that the record lacks."""
        told = [withdrawn.NAME] if _anew(plan) or self.ledger.has(withdrawn.NAME) else []
        return all(self.tables.transaction(name) >= plan.batch for name in ("events", *SILVER, *told))

    def _taken_before(self) -> list[Segment] | None:
        """The segments that the table tells of, whatever the record says; None where nobody can tell."""
        try:
            return self.tables.segments() if self.ledger.has("segments") or self.ledger.has("events") else []
        # Whatever is wrong with that table: a rebuild makes it anew, and must not fail because of it.
        except Exception:
            return None

    def _examine(self, journal: Journal, files: Sequence[File]) -> list[Segment]:
        """Look at every new file; pyarrow reads without Python's lock, so threads help."""
        found: list[Segment] = []
        with ThreadPoolExecutor(max_workers=2) as pool:
            for segment in pool.map(functools.partial(bronze.examine, journal), files):
                found.append(segment)
                self._report(len(found), len(files), "checking segments")
        return found

    def _planned(
        self,
        mode: str,
        new: Sequence[Segment],
        after: State,
        known: Mapping[str, Ranges],
        moved: Iterable[str] = (),
    ) -> Plan:
        """Record a batch; ``moved`` are names whose events are others by now, besides those of the new segments."""
        nodes = {*moved, *(after.lineage.place(segment.node).node for segment in new)}
        versions = {name: self.tables.version(name) for name in STATE_TABLES if self.ledger.has(name)}
        plan = Plan(after.batch, mode, tuple(new), after, versions, known, tuple(sorted(nodes)))
        self.ledger.begin(plan)
        self._stage("planned")
        return plan

    # A batch

    def _reach(self, stage: str) -> None:
        """A stage of a batch is done: its share of the batch's events counts as taken in."""
        if stage in TAKING_IN:
            share = (TAKING_IN.index(stage) + 1) / len(TAKING_IN)
            self._report(self._done + int(self._under_way * share), self._total, "taking in")
        self._stage(stage)

    def _carry_out(self, plan: Plan, journal: Journal | None) -> None:
        """Write a batch into all tables and commit it; what is there already is skipped."""
        if plan.new and journal is None:
            raise InvalidInput(f"the lake {self.ledger.place} has an unfinished batch: run it first")
        new = self._new_events(plan, journal)
        scratch = Scratch(self.ledger, plan.batch)
        scratch.clear()
        # As the tables were before anything of the batch was written.
        known = () if plan.mode == REBUILD else (name for name in READ_BACK if name in plan.versions)
        past = {name: self.tables.load(name, plan) for name in known}
        with self._wide(_size(plan)) as widen, ThreadPoolExecutor(max_workers=2) as beside:
            # The events are written while the other tables are made of them.
            events = beside.submit(self._write_events, plan, journal, past)
            counted = plan.after.lineage.counted
            if "events" in past:
                past = {**past, "events": counted(past["events"])}
            made = self._make(plan, counted(new), past, scratch.keep, widen, beside)
            events.result()
            self._reach("events")
            dirty = self._write(made, plan)
        self._conclude(plan, dirty)

    def _make(
        self,
        plan: Plan,
        new: DataFrame,
        past: Mapping[str, DataFrame],
        keep: Keep,
        widen: Callable[[int], None],
        beside: Executor,
    ) -> _Made:
        """What a batch comes to, before anything of it is written. ``past`` are the tables that it starts from."""
        from pyspark.sql import functions as F

        from . import transforms
        from .transforms import asleep

        mode, found = plan.mode, held.Held()
        nodes: list[str] | None = None
        still: asleep.Split | None = None
        if mode == APPEND and "carried" in past:
            stored = past["carried"].drop("batch")
            size, there = _size(plan), self.tables.counts("carried", plan)
            # Making plans and going through a long history do not wait for each other.
            seen = beside.submit(held.look, past["messages"], new, size)
            if sum(there.values()) > ASLEEP_MIN and size <= held.BROADCAST_EVENTS_MAX:
                widen(size + sum(there.values()))
                concerned = keep(asleep.awake(new, stored, past["messages"]))
                summed = beside.submit(keep, asleep.counted(past["messages"], past["partials"], concerned))
                still = asleep.split(stored, concerned)
                carried = keep(still.awake)
            else:
                carried = keep(asleep.current(stored)) if asleep.marked(stored) else stored.drop("part")
            read = functools.partial(self.tables.rows, "messages", plan)
            maybe = held.find(self.spark, seen.result(), past["events"], new, carried, keep, read)
            if maybe is None:
                mode = RECOMPUTE
                widen(_size(replace(plan, mode=mode)))
            else:
                found = maybe
                batch = transforms.advance(new, carried, found.recalled, found.before, found.answered, keep=keep)
        elif mode != RECOMPUTE:
            batch = transforms.advance(new, keep=keep)
        if mode == RECOMPUTE:
            all_of_it = self._unforgotten(past["events"].drop("day"), plan.after)
            if plan.nodes:
                # What other nodes wrote is as it was.
                nodes = list(plan.nodes)
                all_of_it = all_of_it.where(F.col("node").isin(nodes))
            batch = transforms.advance(all_of_it.unionByName(new), keep=keep)
        tables = {name: getattr(batch, name) for name in SILVER}
        old = found.before
        if mode == RECOMPUTE and "messages" in past:
            old = past["messages"].where(F.col("part") != schema.OPEN)
            if nodes is not None and "carried" in past:
                others = asleep.current(past["carried"].drop("batch")).where(~F.col("node").isin(nodes))
                tables["carried"] = tables["carried"].unionByName(others)
        tables["messages"] = _revised(tables["messages"], old)
        tables["anomalies"] = tables["anomalies"].unionByName(
            filed.findings(self.spark, plan.after.findings(), tables["anomalies"].schema), allowMissingColumns=True
        )
        if mode == APPEND and "anomalies" in past:
            # What is there for good is not told again.
            known = past["anomalies"].where(~F.col("part").isin(schema.OPEN, FILES)).select("kind", *KEY)
            tables["anomalies"] = tables["anomalies"].join(known, on=["kind", *KEY], how="left_anti")
        more = False
        if mode == APPEND and still is not None:
            for name in ("messages", "attempts", "anomalies"):
                tables[name] = tables[name].unionByName(asleep.left(past[name].drop("batch"), concerned))
            tables["partials"] = tables["partials"].unionByName(summed.result())
            tables["carried"] = tables["carried"].unionByName(still.asleep)
            more = there.get(schema.MORE, 0) <= sum(there.values()) * asleep.MORE_SHARE
            if more:
                tables["carried"] = asleep.added(tables["carried"], stored, carried, concerned)
            else:
                tables["carried"] = tables["carried"].unionByName(still.deep)
        if not more:
            tables["carried"] = asleep.whole(tables["carried"])
        dirty: Callable[[], list[str]] = _every_day
        if mode == APPEND and "partials" in past:
            dirty = functools.partial(transforms.changed, tables["partials"], past["partials"])
        anew = mode == REBUILD or (mode == RECOMPUTE and nodes is None)
        return _Made(tables, dirty, found.again, nodes, anew, more)

    def _write(self, made: _Made, plan: Plan) -> list[str]:
        """Write the tables of a batch side by side; which days of the derived tables are behind then."""

        def put(name: str) -> None:
            # Once another has done the batch, our scratch may have been cleared away, and what we made of it be wrong.
            if name == "messages" and made.again and self.tables.transaction(name) < plan.batch:
                self._withdraw(made.again, plan.batch)
            anew = made.whole or name not in plan.versions or (name == "carried" and not made.more)
            instead = None if made.nodes is None else _of_nodes(made.nodes, name)
            if name == "carried" and made.more:
                instead = f"part = '{schema.MORE}'"
            self.tables.write(name, made.tables[name], plan.batch, whole=anew, instead=instead)

        with ThreadPoolExecutor(max_workers=len(SILVER) + 2) as pool:
            dirty, segments = pool.submit(made.dirty), pool.submit(self._write_segments, plan)
            doing = {name: pool.submit(put, name) for name in SILVER if name != "attempts"}
            if _size(plan) > TOGETHER_MAX:
                # What is set for the files of messages would cost a long table much, and short ones nothing.
                doing["messages"].result()
            doing["attempts"] = pool.submit(put, "attempts")
            for name in SILVER:
                doing[name].result()
                self._reach(name)
            segments.result()
            anew = made.whole or "messages" not in plan.versions
            # Numbers that were given up took nothing out. Told behind the plan, they cannot come again.
            for number in () if anew else range(self.ledger.state().batch + 1, plan.batch):
                self.tables.tell_withdrawn([], number, whole=False)
            self.tables.tell_withdrawn(made.gone(), plan.batch, whole=anew)
            return dirty.result()

    def _conclude(self, plan: Plan, dirty: Sequence[str]) -> None:
        """Record that a batch is in all tables."""
        self._reach("segments")
        behind = {*self.ledger.state(rebuilding=plan.mode == REBUILD).dirty, *dirty}
        self.ledger.commit(replace(plan.after, dirty=tuple(sorted(behind))))
        self._reach("committed")
        Scratch(self.ledger, plan.batch).clear(done=True)

    def _write_segments(self, plan: Plan) -> None:
        """The files of a batch; those that could not be taken in are others each time."""
        said = self.ledger.state(rebuilding=plan.mode == REBUILD)
        whole = plan.mode == REBUILD or "segments" not in plan.versions
        only_more = not whole and not said.rejected and not plan.after.rejected
        rows = filed.segments(self.spark, (*plan.new, *plan.after.rejected))
        instead = f"state = '{REJECTED}'"
        self.tables.write("segments", rows, plan.batch, whole=whole, append=only_more, instead=instead)
        if plan.after.restores != said.restores:
            self.tables.write("restores", filed.restores(self.spark, plan.after.lineage), plan.batch, whole=True)

    def _new_events(self, plan: Plan, journal: Journal | None) -> DataFrame:
        urls = [journal.url(segment.node, segment.name) for segment in plan.new] if journal else []
        ranges: dict[str, list[tuple[int, int]]] = {}
        for segment in plan.new:
            ranges.setdefault(segment.node, []).extend(segment.ranges)
        return self._unforgotten(bronze.events(self.spark, urls, plan.known, ranges), plan.after)

    def _unforgotten(self, events: DataFrame, state: State) -> DataFrame:
        from pyspark.sql import functions as F

        return events.where(~F.col("mailbox").isin(list(state.forgotten))) if state.forgotten else events

    def _write_events(self, plan: Plan, journal: Journal | None, past: Mapping[str, DataFrame]) -> None:
        if plan.mode == RECOMPUTE and not plan.new:
            # A mailbox is forgotten.
            rows = self._unforgotten(past["events"], plan.after)
            self.tables.write("events", rows, plan.batch, whole=True, stamped=False)
        elif self.tables.transaction("events") < plan.batch:
            pieces = intake.take_in(journal, self.ledger, plan) if journal else []
            whole = plan.mode == REBUILD or "events" not in plan.versions
            self.tables.add_events(pieces, plan.batch, whole=whole)

    @contextlib.contextmanager
    def _wide(self, events: int, summed: int = 1) -> Iterator[Callable[[int], None]]:
        """So many partitions that each fits into memory, and one where the tasks are all that it costs.

        ``summed`` is how many events make a row at least. Yields what sets it for another number of events.
        """
        option = "spark.sql.shuffle.partitions"
        usual = self.spark.conf.get(option, "200") or "200"

        def set_for(events: int) -> None:
            wanted = max(events // summed // PARTITION_EVENTS, int(usual)) if events > TOGETHER_MAX else 1
            self.spark.conf.set(option, str(wanted))

        try:
            set_for(events)
            yield set_for
        finally:
            self.spark.conf.set(option, usual)

    def _withdraw(self, again: Iterable[held.Row], batch: int) -> None:
        """Take out the finished rows that come again. Done twice it finds nothing: those of the batch stay."""
        by: dict[int, list[Any]] = {}
        for row in again:
            by.setdefault(row["generation"], []).append(row)
        same = " OR ".join(f"(generation = {n} AND ({held.condition(own)}))" for n, own in by.items())
        self.tables.delete("messages", f"batch < {batch} AND ({same})")

    # Derived tables

    def _derive(self) -> None:
        """Make the derived tables from the summed partials, where they are behind."""
        state = self.ledger.state()
        if state.gold == state.batch or not state.batch:
            self._stage("done")
            return
        from . import transforms

        partials = self.tables.load("partials").drop("batch")
        events = sum(segment.events for segment in state.segments)
        if "*" not in state.dirty:
            # Some days of a long history are work for all cores; no more than that.
            events = PARTITION_EVENTS if events > LONG else 0
        scratch = Scratch(self.ledger, state.batch, derived=True)
        scratch.clear()
        with self._wide(events, SUMMED), ThreadPoolExecutor(max_workers=len(GOLD)) as pool:
            doing = {name: pool.submit(self._derive_one, name, partials, state, scratch.keep) for name in GOLD}
            for name, each in doing.items():
                each.result()
                self._stage(name)
        wrong = transforms.check_books(self.tables.load("books")).limit(1).collect()
        if wrong:
            raise StoreCorrupt(f"the books do not close in {wrong[0]['window']} {wrong[0]['desk']} {wrong[0]['kind']}")
        self.ledger.commit(replace(state, gold=state.batch, dirty=()))
        scratch.clear(done=True)
        self._stage("done")

    def _derive_one(self, name: str, partials: DataFrame, state: State, keep: Keep) -> None:
        """Make one derived table, or only the days of it for which it is behind."""
        from pyspark.sql import functions as F

        from . import transforms

        make, batch = getattr(transforms, name), state.batch
        if "*" in state.dirty or not self.ledger.has(name) or name == "deadletters":
            rows = make(partials)
            rows = self._revised_books(rows) if name == "books" else rows
            self.tables.write(name, rows, batch, whole=True, stamped=False)
            return
        told = (each.partition("/") for each in state.dirty)
        behind = sorted(
            dt.datetime.fromisoformat(when).replace(tzinfo=dt.UTC)
            for whose, _, when in told
            if whose == transforms.MADE_OF[name]
        )
        if not behind:
            return
        first = behind[0].date()
        if name in ("books", "latency"):
            days = sorted({each.date() for each in behind})
            wanted = ", ".join(f"'{day}'" for day in days)
            rows = make(partials.where(F.col("part").isin([*map(str, days), schema.OPEN])), days)
            rows = self._revised_books(rows) if name == "books" else rows
            self.tables.write(name, rows, batch, whole=False, stamped=False, instead=f"day IN ({wanted})")
            return
        since = first - dt.timedelta(days=transforms.AGAIN_DAYS.get(name, 0))
        reach = first - dt.timedelta(days=transforms.REACH_DAYS.get(name, 0))
        # Names of parts that are no days sort behind all days.
        own = partials.where(F.col("part") >= str(reach))
        if name == "depth":
            # The hours of that day before it are as they were.
            known = self.tables.load(name).where((F.col("day") == since) & (F.col("window") < behind[0]))
            rows = make(own, behind[0], keep=keep).unionByName(known)
        elif name == "outages":
            news = self.tables.load("partials").where(F.col("batch") > state.gold)
            rows = make(own, since, known=self.tables.load(name), changed=first, news=news, keep=keep)
        else:
            rows = make(own, since)
        self.tables.write(name, rows, batch, whole=False, stamped=False, instead=f"day >= '{since}'")

    def _revised_books(self, rows: DataFrame) -> DataFrame:
        """With the revision: one more for each change that comes after a window was closed.

        Its hour is over once the books know a later one. Then more of what it counts by its own events is late; what
        becomes of its messages is not, unless nothing was open any more.
        """
        from pyspark.sql import functions as F

        rows = rows.drop("revision")
        if not self.ledger.has("books"):
            return rows.withColumn("revision", F.lit(1))
        old = self.tables.load("books")
        values = [name for name in rows.columns if name not in ("window", "desk", "kind")]
        own = F.struct("posted", "refused", "duplicate", "remainder")
        known = old.select(
            "window", "desk", "kind", "revision", F.col("open").alias("open_before"),
            F.to_json(F.struct(*values)).alias("before"), F.to_json(own).alias("own_before"),
        )  # fmt: skip
        late = F.to_json(own) != F.col("own_before")
        again = (F.col("open_before") == 0) & (F.to_json(F.struct(*values)) != F.col("before"))
        changed = (F.col("window") < F.col("latest")) & (late | again)
        revision = F.coalesce("revision", F.lit(1)) + F.when(changed, 1).otherwise(0)
        latest = F.broadcast(old.agg(F.max("window").alias("latest")))
        joined = rows.join(known, on=["window", "desk", "kind"], how="left").crossJoin(latest)
        return joined.select(*rows.columns, revision.cast("int").alias("revision"))

    def _out_of_step(self, state: State) -> Iterator[tuple[str, int]]:
        """Tables whose last batch is not the record's, with that batch, while none is under way.

        So it is where one was put back without the other, or the machine lost the last seconds of one. A table that is
        ahead would take no batch of the same number, and one that is behind lacks what the record has.
        """
        if state.batch:
            for name in ("events", *SILVER, "segments"):
                if (batch := self.tables.transaction(name)) != state.batch:
                    yield name, batch

    def _unrecorded(self) -> StoreCorrupt:
        return StoreCorrupt(f"the lake {self.ledger.place} has tables and no record of them: rebuild it")

    def _refuse_unfinished(self, doing: str) -> None:
        state, plan = self.ledger.state(), self.ledger.plan()
        if plan is not None and plan.batch > state.batch:
            raise InvalidInput(f"a run of the lake {self.ledger.place} was interrupted: run it before you {doing}")


def _still_holding(
    journal: Journal, taken: Sequence[Segment], mailbox: str
) -> tuple[int, list[dict[str, Any]], list[str]]:
    """How many segments are not there any more, which of the others hold rows of a mailbox, and which are unread."""
    files = journal.listing().files
    return check.lacking(journal, files, taken), *check.held_by_segments(journal, files, mailbox)


def _size(plan: Plan) -> int:
    """How many events a batch works off."""
    if plan.mode != RECOMPUTE:
        return sum(segment.events for segment in plan.new)
    line = plan.after.lineage
    return sum(
        segment.events
        for segment in plan.after.segments
        if not plan.nodes or line.place(segment.node).node in plan.nodes
    )


def _other_since(plan: Plan, listing: Listing) -> str | None:
    """Which segment of a batch is not what it was when that was planned, and how; None if all are."""
    there = {(file.node, file.name): file.size_bytes for file in listing.files}
    for segment in plan.new:
        size_bytes = there.get((segment.node, segment.name))
        if size_bytes != segment.size_bytes:
            return f"node={segment.node}/{segment.name} is {'gone' if size_bytes is None else 'another one'}"
    return None


def _anew(plan: Plan) -> bool:
    """Whether a batch makes or replaces all tables, as far as the plan tells."""
    return plan.mode == REBUILD or "messages" not in plan.versions or (plan.mode == RECOMPUTE and not plan.nodes)


def _every_day() -> list[str]:
    return ["*"]


def _prepared(spark: SparkSession) -> SparkSession:
    """The session with what the tables need, and with what makes them soon where nobody wanted it otherwise."""
    given = spark.conf.getAll
    for option, value in {**{name: PLANS[name] for name in PLANS if name not in given}, **NEEDED}.items():
        spark.conf.set(option, value)
    return spark


def _revised(rows: DataFrame, old: DataFrame | None) -> DataFrame:
    """Messages with their revision: one more for each time that a finished row came out differently."""
    from pyspark.sql import functions as F

    if old is None:
        return rows.withColumn("revision", F.lit(1))
    on = [*KEY, "generation"]
    values = F.xxhash64(*(name for name in rows.columns if name not in on))
    known = old.select(*on, F.col("revision").alias("revision_before"), values.alias("values_before"))
    joined = rows.join(known, on=on, how="left")
    changed = (F.col("values_before") != values).cast("int")
    revision = F.coalesce(F.col("revision_before") + changed, F.lit(1)).cast("int")
    return joined.select(*rows.columns, revision.alias("revision"))


def _of_nodes(nodes: Sequence[str], name: str) -> str:
    """Which rows of a table are of these nodes, as a condition; findings about files come again with every batch."""
    names = ", ".join(f"'{node}'" for node in nodes)
    return f"node IN ({names})" + (f" OR part = '{FILES}'" if name == "anomalies" else "")


__all__ = ["GOLD", "SILVER", "STAGES", "Job", "Result", "ledger"]
