"""When a lane can be leased from, if nothing but time passes."""

from __future__ import annotations

from ...mailbox import rules
from ...mailbox.message import Instant
from .records import READY, Entry, Lane
from .working import WorkingSet


def leasable_at(work: WorkingSet, lane: Lane, at: Instant) -> Instant | None:
    """When a walk along the lane would do something; 0 is now, None never."""
    policy = lane.box.desk.policy
    if lane.paused is not None or not lane.depth:
        return None
    if policy.window_per_lane is not None and lane.in_flight >= policy.window_per_lane:
        return None
    for entry in work.in_lane(lane):
        if entry.state is READY:
            if entry.due_at > at:
                return entry.due_at
            if policy.quiet_s and entry.batch is None and entry.quiet:
                wake_at = quiet_at(work, lane, entry, at)
                # The walk also finishes a head whose limit has passed.
                if entry.expires_at is not None and entry.expires_at < wake_at:
                    wake_at = entry.expires_at
                return wake_at if wake_at > at else 0
            return 0
    return None


def quiet_at(work: WorkingSet, lane: Lane, head: Entry, at: Instant) -> Instant:
    """When the quiet period of the run at the lane's head ends; 0 if it has."""
    policy = lane.box.desk.policy
    last_at = head.posted_at
    for entry in work.in_lane(lane):
        if not entry.quiet:
            return 0
        last_at = entry.posted_at
    if rules.is_quiet(policy, head.posted_at, last_at, at):
        return 0
    return rules.quiet_until(policy, head.posted_at, last_at)
