"""Operators' commands: redrive, unpark, cancel, park, pause, resume, purge, and notes for the journal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import orjson

from ...mailbox import event as ev
from ...mailbox import rules
from ...mailbox.command import PURGEABLE, REDRIVABLE, Cancel, Filter, Note, Park, Pause, Purge, Redrive, Resume, Unpark
from ...mailbox.message import FINISHED, SECOND, Instant, Ref, State
from ...mailbox.outcome import Noted, NotFound, Outcome, Purged, Redriven, Refusal, Refused, Settled, Switched
from .changes import UNKNOWN_DESK
from .lookup import scan_sql
from .records import READY, Box, Entry, Lane
from .sweeping import Sweeping

SCAN_PAGE = 512


class Operating(Sweeping):
    """Does what operators ask for."""

    def _note(self, command: Note) -> Outcome:
        work = self.work
        self._tick(command.at)
        if command.desk not in work.policies:
            return UNKNOWN_DESK
        if command.event not in ev.NOTABLE:
            return Refused(Refusal.NOT_ALLOWED)
        detail = (
            None if command.detail is None else orjson.dumps(dict(command.detail), option=orjson.OPT_SORT_KEYS).decode()
        )
        work.events.append(
            (
                command.at, command.event, command.desk, command.mailbox, "", 0, command.message_id, command.kind,
                command.sender, 0, command.holder, command.size_bytes, command.reason, command.error, None, None, None,
                detail,
            )
        )  # fmt: skip
        return Noted()

    def _select(self, filter: Filter, allowed: frozenset[State]) -> Iterator[Entry]:
        """The kept messages that an operator's command selects and can act on, by number."""
        states = (filter.states or allowed) & allowed
        if filter.id is not None and filter.mailbox is not None and filter.sender is not None:
            entry = self._look(Ref(filter.desk, filter.mailbox, filter.sender, filter.id))
            candidates: Iterable[Entry] = [] if entry is None else [entry]
        else:
            candidates = self._scan(filter, states)
        for entry in candidates:
            if not entry.memory and entry.state in states:
                message = entry.message(b"")
                if rules.matches(filter, message, entry.state, entry.posted_at, entry.reason, entry.error):
                    yield entry

    def _scan(self, filter: Filter, states: frozenset[State]) -> Iterable[Entry]:
        """Every kept message that may be in one of these states, by number: table and this batch merged."""
        work = self.work
        where, values = scan_sql(filter, states)
        pending = sorted(number for number, entry in work.dirty.items() if not entry.memory)
        after = 0
        while True:
            rows = work.db.execute(
                f"SELECT m.number FROM {where} AND m.number > ? ORDER BY m.number LIMIT ?",
                (*values, after, SCAN_PAGE),
            ).fetchall()
            last = rows[-1][0] if len(rows) == SCAN_PAGE else None
            numbers = {row[0] for row in rows}
            numbers.update(n for n in pending if n > after and (last is None or n <= last))
            yield from work.read_rows(sorted(numbers))
            if last is None:
                return
            after = last

    def _redrive(self, command: Redrive) -> Outcome:
        filter, limit, rate_per_s, dry_run, holder, at = command
        if filter.desk not in self.work.policies:
            return UNKNOWN_DESK
        found = self._select(filter, REDRIVABLE)
        return self._revive(found, ev.REDRIVEN, limit, rate_per_s, dry_run, holder, at)

    def _unpark(self, command: Unpark) -> Outcome:
        filter, limit, dry_run, holder, at = command
        if filter.desk not in self.work.policies:
            return UNKNOWN_DESK
        found = self._select(filter, frozenset({State.PARKED}))
        return self._revive(found, ev.UNPARKED, limit, None, dry_run, holder, at)

    def _revive(
        self,
        found: Iterable[Entry],
        event: str,
        limit: int,
        rate_per_s: float | None,
        dry_run: bool,
        holder: str | None,
        at: Instant,
    ) -> Outcome:
        """Return messages to their lanes, paced by their due times, as far as their mailboxes have room."""
        work = self.work
        self._tick(at)
        refs: list[Ref] = []
        depths: dict[int, int] = {}
        skipped = 0
        for entry in found:
            if len(refs) >= limit:
                break
            box = entry.lane.box
            policy = box.desk.policy
            depth = depths.get(box.id, box.depth)
            if not rules.has_room(policy, depth):
                skipped += 1
                continue
            depths[box.id] = depth + 1
            wait_us = int(len(refs) * SECOND / rate_per_s) if rate_per_s else 0
            refs.append(Ref(box.desk.name, box.name, entry.sender, entry.id))
            if dry_run:
                continue
            work.touch(entry)
            entry.attempts = entry.unreceived = entry.progress = 0
            entry.batch = entry.since = None
            entry.row_changed = True
            entry.life += 1
            entry.due_at = at + wait_us if wait_us else 0
            entry.expires_at = rules.renewed_expiry(policy, entry.own_expires_at, entry.posted_at, at)
            work.move(entry, READY)
            due_at = (entry.due_at or at) if event == ev.REDRIVEN else None
            self._write(entry, at, event, 0, holder, due_at=due_at, expires_at=entry.expires_at)
            work.wake(entry.lane, entry.due_at)
        return Redriven(tuple(refs), skipped)

    def _cancel(self, command: Cancel) -> Outcome:
        fate = rules.Fate(State.CANCELLED, ev.CANCELLED, command.reason or "operator")
        return self._set_aside(command, fate)

    def _park(self, command: Park) -> Outcome:
        return self._set_aside(command, rules.Fate(State.PARKED, ev.PARKED, command.reason or "operator"))

    def _set_aside(self, command: Cancel | Park, fate: rules.Fate) -> Outcome:
        """Take a message out of its lane by an operator's word."""
        work = self.work
        self._tick(command.at)
        if command.ref.desk not in work.policies:
            return UNKNOWN_DESK
        entry = self._look(command.ref)
        if entry is None:
            return NotFound()
        if entry.state in FINISHED:
            return Refused(Refusal.FINISHED)
        box = entry.lane.box
        if not rules.is_revocable(box.desk.policy, entry.state):
            return Refused(Refusal.IN_FLIGHT)
        if fate.state is State.PARKED:
            if entry.state is State.PARKED:
                return Refused(Refusal.NOT_ALLOWED)
            allowed = rules.parked_as(box.desk.policy, box.counts.get(State.PARKED, 0), "operator")
            if allowed.state is not State.PARKED:
                return Refused(Refusal.PARKED_FULL)
        self._end(entry, fate, command.at, holder=command.holder, reason=fate.reason, error=entry.error)
        return Settled(entry.state, entry.attempts, None, False)

    def _pause(self, command: Pause) -> Outcome:
        desk, mailbox, lane_name, reason, holder, at = command
        work = self.work
        self._tick(at)
        if desk not in work.policies:
            return UNKNOWN_DESK
        box = work.box(desk, mailbox)
        if box is None:
            box = work.make_box(work.desks[desk], mailbox)
        lane: Lane | None = None
        if lane_name is not None:
            lane = work.lane(box, lane_name)
            if lane is None:
                lane = work.make_lane(box, lane_name)
        place: Box | Lane = box if lane is None else lane
        if place.paused is not None:
            return Switched(False)
        self._set_paused(box, lane, reason, holder, at)
        return Switched(True)

    def _resume(self, command: Resume) -> Outcome:
        desk, mailbox, lane_name, holder, at = command
        work = self.work
        self._tick(at)
        if desk not in work.policies:
            return UNKNOWN_DESK
        box = work.box(desk, mailbox)
        lane = None if box is None or lane_name is None else work.lane(box, lane_name)
        if box is None or (lane_name is not None and lane is None):
            return Switched(False)
        if lane is None:
            if box.paused is None:
                return Switched(False)
            work.touch_box(box)
            box.paused = None
            if box.desk.rota is not None:
                box.desk.rota.wake(box, 0)
        else:
            if lane.paused is None:
                return Switched(False)
            work.touch_lane(lane)
            lane.paused = None
            work.wake(lane, 0)
        self._write_switch(ev.RESUMED, box, lane, None, holder, at)
        return Switched(True)

    def _purge(self, command: Purge) -> Outcome:
        filter, limit, dry_run, holder, at = command
        work = self.work
        self._tick(at)
        if filter.desk not in work.policies:
            return UNKNOWN_DESK
        cancelled = removed = skipped = 0
        for entry in self._select(filter, PURGEABLE):
            if cancelled + removed >= limit:
                break
            if entry.state in FINISHED:
                removed += 1
                if not dry_run:
                    work.touch(entry)
                    work.make_memory(entry)
            elif not rules.is_revocable(entry.lane.box.desk.policy, entry.state):
                skipped += 1
            else:
                cancelled += 1
                if not dry_run:
                    fate = rules.Fate(State.CANCELLED, ev.CANCELLED, "purged")
                    self._end(entry, fate, at, holder=holder, reason=fate.reason, error=entry.error)
        return Purged(cancelled, removed, skipped)
