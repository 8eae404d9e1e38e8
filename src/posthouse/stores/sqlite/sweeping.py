"""Sweep, Start, Shift and Hasten: what time, restarts and arrivals do to messages."""

from __future__ import annotations

import heapq
from typing import Any

import orjson

from ...mailbox import event as ev
from ...mailbox import rules
from ...mailbox.command import Hasten, Shift, Start, Sweep
from ...mailbox.event import Event
from ...mailbox.message import FINISHED, Instant, State
from ...mailbox.outcome import Hastened, Outcome, Shifted, Started, Swept
from .changes import UNKNOWN_DESK, number_of
from .records import READY, RECEIVED, Entry
from .settling import Settling


class Sweeping(Settling):
    """Ends what has lasted long enough."""

    def _sweep(self, command: Sweep) -> Outcome:
        limit, at = command
        self._tick(at)
        lost = self._sweep_leases(limit, at)
        expired = self._sweep_expired(limit, at)
        aside, stale = self._sweep_kept(limit, at)
        ended = self._sweep_memories(limit, at)
        counts: dict[tuple[str, str], int] = {}
        for entry in expired:
            key = (entry.lane.box.desk.name, entry.lane.box.name)
            counts[key] = counts.get(key, 0) + 1
        return Swept(
            tuple((*key, count) for key, count in sorted(counts.items())),
            lost,
            aside + stale + ended,
            max(lost, len(expired), aside, stale, ended) >= limit,
        )

    def _sweep_leases(self, limit: int, at: Instant) -> int:
        """End the leases that ran out, the earliest first; stale ends are dropped on the way."""
        work = self.work
        lost = 0
        while lost < limit and work.ends and work.ends[0][0] <= at:
            ends_at, number = heapq.heappop(work.ends)
            entry = work.entries.get(number)
            if entry is None or entry.token is None or entry.ends_at != ends_at:
                continue
            if entry.lane.box.desk.name in work.policies:
                self._lose(entry, at, recall=True)
                lost += 1
        return lost

    def _sweep_expired(self, limit: int, at: Instant) -> list[Entry]:
        work = self.work
        # What is held and not received waits for its holder; what this very batch has changed comes on top.
        rows = work.db.execute(
            "SELECT number FROM message m WHERE expires_at IS NOT NULL AND state = 0 AND expires_at <= ?"
            " AND NOT EXISTS (SELECT 1 FROM lease l WHERE l.number = m.number AND NOT l.received)"
            " AND NOT EXISTS (SELECT 1 FROM gone g WHERE g.number = m.number) ORDER BY expires_at, number LIMIT ?",
            (at, limit + work.slack()),
        ).fetchall()
        numbers = {row[0] for row in rows} | work.dirty.keys()
        due = [
            (entry.expires_at, entry.number)
            for entry in work.read_rows(list(numbers))
            if entry.expires_at is not None and entry.expires_at <= at
        ]
        heapq.heapify(due)
        done: list[Entry] = []
        while due and len(done) < limit:
            turn = heapq.heappop(due)
            entry = work.entries[turn[1]]
            was = entry.state
            if entry.lane.box.desk.name not in work.policies or (was is not READY and was is not RECEIVED):
                continue
            self._pass(entry, at)
            done.append(entry)
            if was is RECEIVED:
                # What was leased behind it has come back, and may have passed its limit too. Twice in line is harmless.
                for follower in work.in_lane(entry.lane):
                    limit_at = follower.expires_at
                    if limit_at is not None and limit_at <= at and (limit_at, follower.number) > turn:
                        heapq.heappush(due, (limit_at, follower.number))
        return done

    def _sweep_kept(self, limit: int, at: Instant) -> tuple[int, int]:
        """End what was kept long enough: how many set-aside ones, how many finished ones."""
        work = self.work
        enough = limit + work.slack()
        numbers = set(work.dirty)
        for states in ("state IN (1, 2)", "state > 2"):
            rows = work.db.execute(
                f"SELECT number FROM message m WHERE keep_until IS NOT NULL AND keep_until <= ? AND {states}"
                " AND NOT EXISTS (SELECT 1 FROM gone g WHERE g.number = m.number) ORDER BY keep_until, number LIMIT ?",
                (at, enough),
            ).fetchall()
            numbers |= {row[0] for row in rows}
        due: list[tuple[Instant, int, Entry]] = []
        for entry in work.read_rows(list(numbers)):
            if entry.since is not None and not entry.memory and entry.lane.box.desk.in_force:
                keep_us = entry.lane.box.desk.keep_us[entry.state]
                if keep_us is not None and entry.since + keep_us <= at:
                    due.append((entry.since + keep_us, entry.number, entry))
        due.sort(key=lambda item: item[:2])
        aside = [entry for _, _, entry in due if entry.state not in FINISHED][:limit]
        for entry in aside:
            fate = rules.Fate(State.CANCELLED, ev.CANCELLED, "kept_long_enough")
            self._end(entry, fate, at, reason=fate.reason, error=entry.error)
        stale = [entry for _, _, entry in due if entry.state in FINISHED and entry not in aside][:limit]
        for entry in stale:
            work.touch(entry)
            work.make_memory(entry)
        return len(aside), len(stale)

    def _sweep_memories(self, limit: int, at: Instant) -> int:
        """Forget the ids whose memory has ended."""
        work = self.work
        rows = work.db.execute(
            "SELECT number FROM memory WHERE forget_at IS NOT NULL AND forget_at <= ?"
            " ORDER BY forget_at, number LIMIT ?",
            (at, limit + work.slack()),
        ).fetchall()
        numbers = {row[0] for row in rows} | work.dirty.keys()
        ended: list[tuple[Instant, int, Entry]] = []
        for entry in work.read_rows(list(numbers)):
            desk = entry.lane.box.desk
            if entry.memory and desk.in_force:
                assert entry.since is not None
                know_us = desk.know_us[entry.state]
                if know_us is not None and entry.since + know_us <= at:
                    ended.append((entry.since + know_us, entry.number, entry))
        ended.sort(key=lambda item: item[:2])
        for _, _, entry in ended[:limit]:
            work.forget(entry)
        return min(len(ended), limit)

    def _start(self, command: Start) -> Outcome:
        work = self.work
        at = command.at
        self._tick(at)
        detail: dict[str, Any] = {"policies": {name: policy.as_json() for name, policy in command.policies.items()}}
        restored_from = command.restored_from or work.restored_from
        if restored_from is not None:
            detail["restored_from"] = dict(restored_from)
            work.recorded_restore = True
        text = orjson.dumps(detail, option=orjson.OPT_SORT_KEYS).decode()
        work.events.append(tuple(Event(at, ev.STARTED, "", detail=text)))
        held = [entry for (desk, _), held in work.held.items() if desk in work.policies for entry in held.values()]
        seen: set[int] = set()
        for entry in sorted(held, key=number_of):
            if entry.lane.box.desk.policy.lease_s is None:
                self._leave(entry, seen, None, at)
            else:
                self._lose(entry, at, recall=False)
        return Started(len(held))

    def _shift(self, command: Shift) -> Outcome:
        by_us, at = command
        work = self.work
        self._tick(at)
        rows = work.db.execute("SELECT number FROM message WHERE due_at > 0 AND state = 0").fetchall()
        numbers = {row[0] for row in rows} | {number for number, entry in work.dirty.items() if entry.due_at}
        for entry in work.read_rows(sorted(numbers)):
            if entry.state is READY and entry.due_at:
                due_at = rules.shifted_due(entry.due_at, entry.own_due_at, entry.attempts, by_us)
                if due_at != entry.due_at:
                    work.touch(entry)
                    entry.due_at = due_at
                    entry.row_changed = True
                work.wake(entry.lane, due_at if due_at > at else 0)
        for held in work.held.values():
            for entry in held.values():
                if entry.ends_at is not None:
                    work.touch(entry)
                    entry.ends_at += by_us
                    entry.lease_changed = True
                    heapq.heappush(work.ends, (entry.ends_at, entry.number))
        return Shifted()

    def _hasten(self, command: Hasten) -> Outcome:
        desk, mailbox, at = command
        work = self.work
        self._tick(at)
        if desk not in work.policies:
            return UNKNOWN_DESK
        box = work.box(desk, mailbox)
        if box is None or not box.depth:
            return Hastened(0)
        rows = work.db.execute(
            "SELECT number FROM message WHERE due_at > ? AND due_at > 0 AND state = 0"
            " AND lane_id IN (SELECT id FROM lane WHERE mailbox_id = ?)",
            (at, box.id),
        ).fetchall()
        numbers = {row[0] for row in rows} | {number for number, entry in work.dirty.items() if entry.due_at}
        count = 0
        for entry in work.read_rows(sorted(numbers)):
            due_at = rules.hastened_due(entry.due_at, entry.attempts, at)
            if entry.state is READY and due_at != entry.due_at and entry.lane.box is box:
                work.touch(entry)
                entry.due_at = due_at
                entry.row_changed = True
                work.wake(entry.lane, 0)
                count += 1
        return Hastened(count)
