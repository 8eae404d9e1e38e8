"""The working set: what a batch of commands changes, between the rules and the tables.

In: decisions of ``commands``, by the rules. Out: changed records, which ``flush`` writes. Each change can
be undone within a group of commands that must all succeed.
"""

from __future__ import annotations

import bisect
import heapq
from typing import Any

from ...mailbox.message import NO_HEADERS, Instant, State
from .lookup import Lookup, known_key, seq_of
from .records import LEASED, READY, RECEIVED, Box, Desk, Entry, Lane, restore, state_of


class WorkingSet(Lookup):
    """Records, which of them changed, and how to take a change back."""

    def touch(self, entry: Entry) -> None:
        """Say that a message is about to change."""
        if self.undo is not None:
            values = state_of(entry)

            def back() -> None:
                restore(entry, values)
                # A look in vain is harmless, a missed one is not.
                self.wake(entry.lane, 0)
                if entry.ends_at is not None:
                    heapq.heappush(self.ends, (entry.ends_at, entry.number))

            self.undo.append(back)
        self.dirty[entry.number] = entry

    def touch_lane(self, lane: Lane) -> None:
        """Say that a lane and its mailbox's counts are about to change."""
        box = lane.box
        desk = box.desk
        if self.undo is not None:
            values, box_values, desk_values = state_of(lane), state_of(box), state_of(desk)
            counts, box_counts, desk_counts = dict(lane.counts), dict(box.counts), dict(desk.counts)

            def back() -> None:
                restore(lane, values)
                restore(box, box_values)
                restore(desk, desk_values)
                lane.counts, box.counts, desk.counts = counts, box_counts, desk_counts
                # A visit in vain is harmless, a missed one is not.
                lane.hint = box.hint = None
                self.wake(lane, 0)

            self.undo.append(back)
        self.dirty_lanes[lane.id] = lane
        if box.lane_count > 1:
            self.dirty_boxes[box.id] = box

    def touch_box(self, box: Box) -> None:
        """Say that a mailbox is about to be paused, resumed or served."""
        if self.undo is not None:
            values = state_of(box)

            def back() -> None:
                restore(box, values)
                box.hint = None
                if box.desk.rota is not None:
                    box.desk.rota.wake(box, 0)

            self.undo.append(back)
        self.dirty_boxes[box.id] = box

    def make_box(self, desk: Desk, name: str) -> Box:
        """A mailbox that was never posted to."""
        box = Box(self.next_box, desk, name, new=True)
        box.used = self.tick
        self.next_box += 1
        desk.mailboxes += 1
        self.boxes[(desk.name, name)] = box
        self.boxes_by_id[box.id] = box
        if self.undo is not None:

            def back() -> None:
                del self.boxes[(desk.name, name)], self.boxes_by_id[box.id]
                self.dirty_boxes.pop(box.id, None)
                box.hint = None
                desk.mailboxes -= 1
                self.next_box = box.id

            self.undo.append(back)
        self.dirty_boxes[box.id] = box
        return box

    def make_lane(self, box: Box, name: str) -> Lane:
        """A lane that was never posted to."""
        self.touch_box(box)
        lane = Lane(self.next_lane, box, name, new=True)
        self.next_lane += 1
        self.lanes[lane.id] = lane
        box.lanes[name] = lane
        box.lane_count += 1
        if self.undo is not None:

            def back() -> None:
                del self.lanes[lane.id], box.lanes[name]
                self.dirty_lanes.pop(lane.id, None)
                lane.hint = None
                self.next_lane = lane.id

            self.undo.append(back)
        self.dirty_lanes[lane.id] = lane
        return lane

    def add(self, entry: Entry) -> None:
        """Take in a message that was just posted, the last of its lane."""
        number = entry.number
        lane = entry.lane
        box = lane.box
        ref = (box.id, entry.sender, entry.id)
        if self.undo is not None:
            self._undo_add(entry, ref)
        self.next_number = number + 1
        self.entries[number] = self.refs[ref] = self.dirty[number] = self.bodied[number] = self.fresh[number] = entry
        self.bodies_bytes += entry.size_bytes
        self.unknown[number] = self.probed.get(ref) or known_key(*ref)
        entry.unknown = entry.unindexed = True
        lane.fresh.append(entry)
        lane.depth += 1
        box.depth += 1
        desk = box.desk
        if not desk.depth:
            desk.oldest = number - 1
        desk.depth += 1

    def _undo_add(self, entry: Entry, ref: tuple[int, str, str]) -> None:
        number = entry.number
        before = self.refs.get(ref)
        assert self.undo is not None

        def back() -> None:
            for numbered in (self.dirty, self.entries, self.fresh, self.unknown):
                numbered.pop(number, None)
            if before is None:
                self.refs.pop(ref, None)
            else:
                self.refs[ref] = before
            entry.lane.fresh.remove(entry)
            if self.bodied.pop(number, None) is not None:
                self.bodies_bytes -= entry.size_bytes
            self.next_number = number

        self.undo.append(back)

    def fly(self, entry: Entry) -> None:
        """A ready message is leased (the caller has touched it)."""
        lane = entry.lane
        if self.undo is not None:
            in_flight = lane.in_flight
            self.undo.append(lambda: setattr(lane, "in_flight", in_flight))
        entry.state = LEASED
        lane.in_flight += 1

    def move(self, entry: Entry, state: State, *, keep: bool = True) -> None:
        """Change a message's state (the caller has touched it), with all counts; leases are the caller's.

        ``keep`` False: of a message that finishes, only the memory of its id is kept.
        """
        old = entry.state
        lane = entry.lane
        box = lane.box
        was_in = old is READY or old is LEASED or old is RECEIVED
        now_in = state is READY or state is LEASED or state is RECEIVED
        was_flying = was_in and old is not READY
        now_flying = now_in and state is not READY
        entry.state = state
        if was_flying != now_flying:
            if self.undo is not None:
                in_flight = lane.in_flight
                self.undo.append(lambda: setattr(lane, "in_flight", in_flight))
            lane.in_flight += 1 if now_flying else -1
        if was_in and now_in:
            return
        entry.row_changed = True
        self.touch_lane(lane)
        if was_in:
            lane.depth -= 1
            box.depth -= 1
            box.desk.depth -= 1
            lane.holes += 1
        else:
            self._count(lane, old, -1)
        if now_in:
            lane.depth += 1
            box.depth += 1
            box.desk.depth += 1
            self._return(entry)
        elif keep:
            self._count(lane, state, 1)
        else:
            self._reduce(entry)

    def _return(self, entry: Entry) -> None:
        """Put a message back in its place in its lane; the queue index has lost it or is about to."""
        lane = entry.lane
        lane.box.desk.oldest = min(lane.box.desk.oldest, entry.number - 1)
        was_in_old, was_unindexed, was_requeued = entry.in_old, entry.unindexed, entry.number in self.requeued
        if was_in_old:
            entry.in_old = False
            lane.old.remove(entry)
        if not was_unindexed:
            self._mark_unindexed(entry)
            self.unsorted = True
        self.requeued[entry.number] = entry
        if self.undo is not None:

            def back() -> None:
                if not was_unindexed:
                    entry.unindexed = False
                    lane.fresh.remove(entry)
                    self.fresh.pop(entry.number, None)
                if was_in_old:
                    entry.in_old = True
                    bisect.insort(lane.old, entry, key=seq_of)
                if not was_requeued:
                    self.requeued.pop(entry.number, None)

            self.undo.append(back)

    def _count(self, lane: Lane, state: State, by: int) -> None:
        for counts in (lane.counts, lane.box.counts, lane.box.desk.counts):
            counts[state] = counts.get(state, 0) + by
            if not counts[state]:
                del counts[state]

    def make_memory(self, entry: Entry) -> None:
        """Keep only the id and the outcome of a finished message (the caller has touched it)."""
        self.touch_lane(entry.lane)
        self._count(entry.lane, entry.state, -1)
        self._reduce(entry)

    def _reduce(self, entry: Entry) -> None:
        """Drop all of a message that a memory does not have."""
        self.drop_body(entry)
        entry.memory = entry.quiet = entry.row_changed = True
        entry.headers = NO_HEADERS
        entry.batch_key = ""
        entry.due_at = entry.unreceived = entry.progress = 0
        entry.expires_at = entry.own_due_at = entry.own_expires_at = entry.cause = entry.batch = None

    def drop_body(self, entry: Entry) -> None:
        """Let go of a body in memory."""
        body = entry.body
        if body is None or self.bodied.pop(entry.number, None) is None:
            return
        self.bodies_bytes -= len(body)
        entry.body = None
        if self.undo is not None:
            self.undo.append(lambda: self._keep_body(entry, body))

    def forget(self, entry: Entry) -> None:
        """Remove the last trace of a finished message whose memory has ended."""
        number = entry.number
        ref = (entry.lane.box.id, entry.sender, entry.id)
        if not entry.memory:
            self.touch_lane(entry.lane)
            self._count(entry.lane, entry.state, -1)
            self.drop_body(entry)
        current = self.refs.get(ref) is entry
        key = self.unknown.get(number)
        dropped: list[tuple[list[Any], Any]] = []
        if key is None:
            dropped.append((self.dropped_known, (known_key(*ref), number)))
        if entry.remembered:
            dropped.append((self.dropped_memories, number))
        if entry.stored:
            dropped.append((self.dropped_rows, number))
        if entry.lease_stored:
            dropped.append((self.dropped_leases, number))
        for rows, row in dropped:
            rows.append(row)
        was_dirty = self.dirty.pop(number, None)
        self.unknown.pop(number, None)
        if current:
            del self.refs[ref]
        self.entries.pop(number, None)
        self.forgotten.add(number)
        self.probed[ref] = known_key(*ref) if key is None else key
        if self.undo is not None:

            def back() -> None:
                for rows, row in dropped:
                    rows.remove(row)
                self.forgotten.discard(number)
                if was_dirty is not None:
                    self.dirty[number] = entry
                if key is not None:
                    self.unknown[number] = key
                    self.unsorted = True
                if current:
                    self.refs[ref] = entry
                self.entries[number] = entry

            self.undo.append(back)

    def let_go(self, entry: Entry) -> None:
        """End a message's lease (the caller has touched it)."""
        key = (entry.lane.box.desk.name, entry.token or "")
        self._unhold(key, entry)
        if self.undo is not None:
            self.undo.append(lambda: self.held.setdefault(key, {}).update({entry.number: entry}))
        entry.token = entry.holder = entry.ends_at = None
        entry.lease_changed = True

    def ring_at(self, lane: Lane, at: Instant) -> None:
        """Let whoever waits look at this lane at this instant; once too often does no harm."""
        heapq.heappush(self.timers, (at, lane.id))

    def wake(self, lane: Lane, at: Instant) -> None:
        """Something may be leased from this lane at this instant (0: now)."""
        if at:
            self.ring_at(lane, at)
        box = lane.box
        if box.rota is not None:
            box.rota.wake(lane, at)
        if box.desk.rota is not None:
            box.desk.rota.wake(box, at)
