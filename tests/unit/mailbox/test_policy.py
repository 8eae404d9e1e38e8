"""Policies: the presets are those of the design, and a wrong field is named."""

from __future__ import annotations

import json
from typing import Any

import pytest

from posthouse.errors import InvalidInput
from posthouse.mailbox.policy import (
    DAY_S,
    INBOUND,
    INBOX,
    OUTBOUND,
    OUTBOX,
    PRESETS,
    RELAY,
    LostLease,
    OnExpiry,
    Poison,
    Policy,
    Retry,
    SettleBy,
    exponential,
    ladder,
    policy_from,
)


def test_the_presets_are_the_five_of_the_design_under_their_own_names() -> None:
    assert list(PRESETS) == ["relay", "outbox", "inbox", "inbound", "outbound"]
    assert all(policy.name == name for name, policy in PRESETS.items())


@pytest.mark.parametrize(
    ("policy", "capacity", "ttl_s", "window", "lease_s", "attempts_max"),
    [
        (RELAY, 1_000, 7 * DAY_S, None, None, 5),
        (OUTBOX, None, None, 1, 30.0, None),
        (INBOX, None, None, 1, 60.0, None),
        (INBOUND, 100_000, None, 1, 60.0, 6),
        (OUTBOUND, 100_000, DAY_S, 1, 60.0, 6),
    ],
    ids=lambda value: value.name if isinstance(value, Policy) else None,
)
def test_a_preset_has_the_row_of_the_design_table(
    policy: Policy,
    capacity: int | None,
    ttl_s: float | None,
    window: int | None,
    lease_s: float | None,
    attempts_max: int | None,
) -> None:
    assert policy.capacity == capacity
    assert policy.ttl_s == ttl_s
    assert policy.window_per_lane == window
    assert policy.lease_s == lease_s
    assert policy.attempts_max == attempts_max


def test_the_relay_settles_by_id_and_parks_what_is_never_confirmed() -> None:
    assert RELAY.settle_by is SettleBy.ID
    assert RELAY.poison is Poison.PARK
    assert RELAY.unreceived_max == 5
    assert RELAY.on_expiry is OnExpiry.EXPIRE
    assert RELAY.retry.delay_us(3) == 0
    assert RELAY.history_s == 0
    assert all(p.settle_by is SettleBy.TOKEN for p in PRESETS.values() if p not in (RELAY, OUTBOX))


def test_the_outbox_dies_at_its_deadline_and_waits_from_10_s_to_10_min() -> None:
    assert OUTBOX.on_expiry is OnExpiry.DIE
    waits = [OUTBOX.retry.delay_us(n) // 1_000_000 for n in range(1, 10)]
    assert waits == [10, 20, 40, 80, 160, 320, 600, 600, 600]


def test_the_inbox_remembers_for_a_week() -> None:
    assert INBOX.dedup_s >= 7 * DAY_S


def test_the_gateway_climbs_its_ladder_in_five_retries() -> None:
    for policy in (INBOUND, OUTBOUND):
        assert [policy.retry.delay_us(n) // 1_000_000 for n in range(1, 6)] == [1, 5, 25, 120, 600]
        assert policy.attempts_max == 6
    assert OUTBOUND.lost_lease is LostLease.UNCERTAIN
    assert INBOUND.lost_lease is LostLease.RETRY


def test_every_policy_survives_json() -> None:
    odd = Policy("odd", retry=exponential(0.5, 9, 3), quiet_s=1, quiet_max_s=2, poison=Poison.BLOCK)
    for policy in (*PRESETS.values(), odd):
        plain = json.loads(json.dumps(policy.as_json()))
        assert policy_from(policy.name, plain) == policy


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("capacity", 0),
        ("capacity", -1),
        ("capacity", 1.5),
        ("capacity", True),
        ("capacity", "many"),
        ("parked_max", -1),
        ("size_bytes_max", -1),
        ("size_bytes_max", None),
        ("window_per_lane", 0),
        ("attempts_max", 0),
        ("unreceived_max", 0),
        ("ttl_s", -1),
        ("ttl_s", 0),
        ("ttl_s", "1 d"),
        ("ttl_s", float("nan")),
        ("ttl_s", float("inf")),
        ("lease_s", 0),
        ("lease_s", -0.1),
        ("dedup_s", None),
        ("dedup_s", -1),
        ("history_s", True),
        ("aside_s", -1),
        ("quiet_s", -1),
        ("retry", 5),
        ("poison", "skip"),
        ("settle_by", "token"),
        ("on_expiry", None),
        ("lost_lease", "retry"),
    ],
)
def test_a_value_that_cannot_be_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(InvalidInput, match=rf"policy mine: {field} must be"):
        Policy("mine", **{field: value})


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 600, None, 7])
def test_a_policy_has_a_usable_name(name: Any) -> None:
    with pytest.raises(InvalidInput, match="policy name"):
        Policy(name)


def test_a_quiet_period_needs_a_window_of_one_and_an_upper_bound() -> None:
    with pytest.raises(InvalidInput, match="a quiet period needs window_per_lane = 1"):
        Policy("mine", quiet_s=1, quiet_max_s=2, window_per_lane=3)
    with pytest.raises(InvalidInput, match="quiet_max_s must be at least quiet_s"):
        Policy("mine", quiet_s=3, quiet_max_s=2)


@pytest.mark.parametrize("retry", [ladder(1, -1), Retry(first_s=-1), exponential(1, float("nan")), ladder(1e11)])
def test_a_wait_between_attempts_is_never_negative_or_endless(retry: Retry) -> None:
    with pytest.raises(InvalidInput, match="retry waits must be 0 s or more"):
        Policy("mine", retry=retry)


@pytest.mark.parametrize(
    ("field", "near"),
    [("capacty", "capacity"), ("ttl", "ttl_s"), ("retries", "retry"), ("windows_per_lane", "window_per_lane")],
)
def test_an_unknown_field_names_the_nearest_known_one(field: str, near: str) -> None:
    with pytest.raises(InvalidInput, match=rf"policy mine: unknown field '{field}'; did you mean {near}\?"):
        policy_from("mine", {field: 1})


def test_an_unknown_field_that_is_like_none_has_no_hint() -> None:
    with pytest.raises(InvalidInput) as caught:
        policy_from("mine", {"zzz": 1})
    assert str(caught.value) == "policy mine: unknown field 'zzz'"


def test_plain_values_make_a_policy_over_another() -> None:
    mine = policy_from("mine", {"capacity": 3, "poison": "park", "retry": [1, 2]}, RELAY)
    assert mine == RELAY.replace(name="mine", capacity=3, poison=Poison.PARK, retry=ladder(1, 2))
    assert policy_from("mine", {}) == Policy("mine")


def test_a_word_that_is_no_choice_is_refused_with_the_choices() -> None:
    with pytest.raises(InvalidInput, match="poison must be one of block, skip, park: 'explode'"):
        policy_from("mine", {"poison": "explode"})


@pytest.mark.parametrize("value", ["often", {"first": 1}, {"cap_s": 1}, [1, "2"], 5, [True]])
def test_a_retry_that_is_neither_ladder_nor_exponential_is_refused(value: Any) -> None:
    with pytest.raises(InvalidInput, match="policy mine: retry must be a list of seconds"):
        policy_from("mine", {"retry": value})


def test_a_changed_policy_is_checked_again() -> None:
    with pytest.raises(InvalidInput):
        RELAY.replace(capacity=0)
    with pytest.raises(AttributeError):
        RELAY.capacity = 5  # type: ignore[misc]


def test_the_ladder_repeats_its_last_step() -> None:
    assert [ladder(1, 5).delay_us(n) for n in (1, 2, 3, 100)] == [1_000_000, 5_000_000, 5_000_000, 5_000_000]


def test_exponential_waits_never_exceed_their_cap_nor_overflow() -> None:
    retry = exponential(1, 60)
    assert [retry.delay_us(n) // 1_000_000 for n in (1, 2, 3, 6, 7, 10**6)] == [1, 2, 4, 32, 60, 60]
    assert exponential(100, 60).delay_us(2) == 60_000_000


def test_no_retry_at_all_is_at_once() -> None:
    assert Retry().delay_us(1) == 0
    assert ladder(0).delay_us(9) == 0
    assert ladder(0.25).delay_us(1) == 250_000
