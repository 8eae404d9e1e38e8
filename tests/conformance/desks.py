"""The desks of the conformance cases: each has one thing to show."""

from __future__ import annotations

from posthouse.mailbox.policy import (
    RELAY,
    LostLease,
    OnExpiry,
    Poison,
    Policy,
    SettleBy,
    exponential,
    ladder,
)

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S

PLAIN = Policy("plain", lease_s=60, retry=ladder(1, 5, 25), dedup_s=DAY_S, history_s=HOUR_S, aside_s=DAY_S)

DESKS: dict[str, Policy] = {
    policy.name: policy
    for policy in (
        PLAIN,
        RELAY.replace(name="relay", capacity=5, attempts_max=3, unreceived_max=3, parked_max=2),
        PLAIN.replace(name="trio", window_per_lane=3, retry=ladder(0)),
        PLAIN.replace(name="small", capacity=2),
        PLAIN.replace(name="shared", capacity=4, sender_max=2),
        PLAIN.replace(name="tiny", size_bytes_max=4),
        PLAIN.replace(name="ttl", ttl_s=10, window_per_lane=3),
        PLAIN.replace(name="deadline", ttl_s=10, on_expiry=OnExpiry.DIE, window_per_lane=3),
        PLAIN.replace(name="quiet", quiet_s=5, quiet_max_s=20, ttl_s=HOUR_S),
        PLAIN.replace(name="block", window_per_lane=3, attempts_max=2, poison=Poison.BLOCK, retry=ladder(0)),
        PLAIN.replace(name="skip", window_per_lane=3, attempts_max=2, poison=Poison.SKIP, retry=ladder(0)),
        PLAIN.replace(
            name="park", window_per_lane=3, attempts_max=2, poison=Poison.PARK, retry=ladder(0), parked_max=1
        ),
        PLAIN.replace(name="unsure", window_per_lane=3, lost_lease=LostLease.UNCERTAIN, attempts_max=2),
        PLAIN.replace(name="doubling", retry=exponential(1, 8)),
        PLAIN.replace(name="by_id", window_per_lane=None, settle_by=SettleBy.ID),
        PLAIN.replace(name="brief", history_s=0, dedup_s=10),
    )
}
