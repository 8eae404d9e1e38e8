"""Rules: decisions that are easier to see alone than in a store."""

from __future__ import annotations

import itertools

import pytest

from posthouse.mailbox import rules
from posthouse.mailbox.command import Filter, Verdict
from posthouse.mailbox.event import REASONS
from posthouse.mailbox.message import FINISHED, IN_FLIGHT, SECOND, Message, State
from posthouse.mailbox.outcome import Refusal
from posthouse.mailbox.policy import (
    LostLease,
    OnExpiry,
    Poison,
    Policy,
    SettleBy,
    exponential,
    ladder,
)

AT = 1_700_000_000 * SECOND
PLAIN = Policy("plain", retry=ladder(1, 5), attempts_max=3, capacity=2, size_bytes_max=4, ttl_s=10)
MESSAGE = Message("plain", "m", "a", b"1234", "s", "l", "k")


def test_a_message_is_admitted_until_the_mailbox_is_full() -> None:
    assert [rules.admit(PLAIN, MESSAGE, depth, False, AT) for depth in (0, 1, 2, 3)] == [
        None,
        None,
        Refusal.FULL,
        Refusal.FULL,
    ]
    assert rules.admit(PLAIN, MESSAGE, 2, True, AT) is None
    assert rules.admit(PLAIN.replace(capacity=None), MESSAGE, 10**9, False, AT) is None


def test_size_and_time_are_looked_at_before_room() -> None:
    assert rules.admit(PLAIN, MESSAGE._replace(body=b"12345", expires_at=1), 2, True, AT) is Refusal.OVERSIZE
    assert rules.admit(PLAIN, MESSAGE._replace(expires_at=AT), 2, True, AT) is Refusal.TTL
    assert rules.admit(PLAIN, MESSAGE._replace(expires_at=AT + 1), 0, False, AT) is None


def test_a_limit_is_the_messages_own_or_the_desks() -> None:
    assert rules.expiry(PLAIN, MESSAGE, AT) == AT + 10 * SECOND
    assert rules.expiry(PLAIN, MESSAGE._replace(expires_at=AT + 1), AT) == AT + 1
    assert rules.expiry(PLAIN.replace(ttl_s=None), MESSAGE, AT) is None


def test_a_new_life_is_as_long_as_the_first_and_at_least_a_second() -> None:
    assert rules.renewed_expiry(PLAIN, None, AT - 99, AT) == AT + 10 * SECOND
    assert rules.renewed_expiry(PLAIN, AT - 99 + 7 * SECOND, AT - 99, AT) == AT + 7 * SECOND
    assert rules.renewed_expiry(PLAIN, AT - 99, AT, AT) == AT + SECOND
    assert rules.renewed_expiry(PLAIN.replace(ttl_s=None), None, 0, AT) is None


def test_a_failure_waits_longer_each_time_and_then_it_is_poison() -> None:
    assert rules.failed(PLAIN, 1, 0, AT).due_at == AT + SECOND
    assert rules.failed(PLAIN, 2, 0, AT).due_at == AT + 5 * SECOND
    assert rules.failed(PLAIN, 3, 0, AT).state is State.DEAD
    assert rules.failed(PLAIN, 1, 0, AT, AT + 7).due_at == AT + 7
    assert rules.failed(PLAIN, 1, 0, AT, AT).due_at == 0
    assert rules.failed(PLAIN, 1, 0, AT, 0).due_at == 0
    assert rules.failed(PLAIN.replace(attempts_max=None), 10**6, 0, AT).state is State.READY


@pytest.mark.parametrize(
    ("poison", "state", "pause"),
    [(Poison.BLOCK, State.DEAD, True), (Poison.SKIP, State.DEAD, False), (Poison.PARK, State.PARKED, False)],
)
def test_poison_is_what_the_policy_says(poison: Poison, state: State, pause: bool) -> None:
    fate = rules.exhausted(PLAIN.replace(poison=poison), 0)
    assert (fate.state, fate.reason, fate.pause_lane) == (state, "attempts", pause)


def test_what_cannot_be_parked_any_more_dies() -> None:
    policy = PLAIN.replace(parked_max=2)
    assert rules.parked_as(policy, 1, "review").state is State.PARKED
    assert rules.parked_as(policy, 2, "review")[:3] == (State.DEAD, "died", "parked_full")
    assert rules.parked_as(policy.replace(parked_max=None), 10**6, "review").state is State.PARKED


def test_a_lost_lease_is_a_failure_or_a_doubt() -> None:
    assert rules.lost(PLAIN, 1, 0, AT)[:3] == (State.READY, "retried", "lease_lost")
    doubtful = PLAIN.replace(lost_lease=LostLease.UNCERTAIN)
    assert rules.lost(doubtful, 99, 0, AT)[:3] == (State.UNCERTAIN, "uncertain", "lease_lost")


def test_holders_that_left_are_counted_only_where_the_policy_counts_them() -> None:
    assert rules.left(PLAIN, 10**6, 0, None)[:3] == (State.READY, "released", "left")
    assert rules.left(PLAIN.replace(unreceived_max=2), 1, 0, "offline")[:3] == (State.READY, "released", "offline")
    assert rules.left(PLAIN.replace(unreceived_max=2), 2, 0, None)[:3] == (State.PARKED, "parked", "unreceived")


def test_passing_the_limit_is_silent_or_a_death() -> None:
    assert rules.passed(PLAIN)[:3] == (State.EXPIRED, "expired", "ttl")
    assert rules.passed(PLAIN.replace(on_expiry=OnExpiry.DIE))[:3] == (State.DEAD, "died", "deadline")
    assert [rules.has_expired(limit, AT) for limit in (None, AT - 1, AT, AT + 1)] == [False, True, True, False]


@pytest.mark.parametrize("settle_by", list(SettleBy))
def test_who_may_settle_what(settle_by: SettleBy) -> None:
    policy = PLAIN.replace(settle_by=settle_by)
    for state, token, verdict in itertools.product(State, (None, "mine", "other"), Verdict):
        held_by = "mine" if state in IN_FLIGHT else None
        allowed = rules.may_settle(policy, state, held_by, token, verdict)
        holds = state in IN_FLIGHT and token == "mine"
        confirms = settle_by is SettleBy.ID and verdict is Verdict.DELIVERED
        silent = (Verdict.RECEIVED, Verdict.RETURN, Verdict.UNCERTAIN)
        resolves = state is State.UNCERTAIN and token is None and verdict not in silent
        # Nobody holds it, so an import may say what became of it elsewhere.
        brought = (Verdict.DEAD, Verdict.REJECTED, Verdict.UNCERTAIN)
        imports = state is State.READY and token is None and verdict in brought
        assert allowed == (state not in FINISHED and (holds or confirms or resolves or imports)), (
            state,
            token,
            verdict,
        )


def test_an_operator_may_not_take_what_might_be_sent() -> None:
    doubtful = PLAIN.replace(lost_lease=LostLease.UNCERTAIN)
    for state in State:
        assert rules.is_revocable(PLAIN, state)
        assert rules.is_revocable(doubtful, state) == (state not in IN_FLIGHT)


def test_a_debounce_ends_with_silence_with_its_bound_or_with_a_clock_set_back() -> None:
    policy = Policy("quiet", quiet_s=2, quiet_max_s=5)
    assert rules.quiet_until(policy, AT, AT + SECOND) == AT + 3 * SECOND
    assert rules.quiet_until(policy, AT, AT + 4 * SECOND) == AT + 5 * SECOND
    assert not rules.is_quiet(policy, AT, AT, AT + 2 * SECOND - 1)
    assert rules.is_quiet(policy, AT, AT, AT + 2 * SECOND)
    assert rules.is_quiet(policy, AT, AT, AT - 1)


def test_what_is_kept_and_known_and_how_long() -> None:
    policy = Policy("p", history_s=10, aside_s=100, dedup_s=50)
    assert rules.kept_until(policy, State.DELIVERED, AT) == AT + 10 * SECOND
    assert rules.kept_until(policy, State.DEAD, AT) == AT + 100 * SECOND
    assert rules.known_until(policy, State.DELIVERED, AT) == AT + 50 * SECOND
    assert rules.known_until(policy, State.DEAD, AT) == AT + 100 * SECOND
    for_ever = policy.replace(aside_s=None)
    assert rules.kept_until(for_ever, State.PARKED, AT) is None
    assert rules.known_until(for_ever, State.DEAD, AT) is None


def test_a_wait_keeps_its_length_and_a_chosen_date_stays_when_the_clock_is_set() -> None:
    assert rules.shifted_due(0, None, 0, 99) == 0
    assert rules.shifted_due(AT, AT, 0, 99) == AT
    assert rules.shifted_due(AT, AT, 1, 99) == AT + 99
    assert rules.shifted_due(AT, None, 0, -99) == AT - 99
    # Never 0, which would mean something else.
    assert rules.shifted_due(5, None, 1, -99) == 1


@pytest.mark.parametrize("verdict", [v for v in Verdict if v not in (Verdict.RETRY, Verdict.RETURN)])
@pytest.mark.parametrize("poison", list(Poison))
def test_every_judgement_has_a_reason_of_the_closed_list(verdict: Verdict, poison: Poison) -> None:
    fate = rules.judged(PLAIN.replace(poison=poison), verdict, None)
    assert fate.reason is None or fate.reason in REASONS[fate.event]
    assert fate.pause_lane == (verdict is Verdict.DEAD and poison is Poison.BLOCK)


def test_a_filter_selects_by_all_that_it_names() -> None:
    def matched(filter: Filter, error: str | None = "user 17 unknown") -> bool:
        return rules.matches(filter, MESSAGE, State.DEAD, AT, "permanent", error)

    full = Filter("plain", "m", "l", "k", "s", "a", "permanent", "user # unknown", AT, AT + 1, frozenset({State.DEAD}))
    assert matched(Filter("plain"))
    assert matched(full)
    for field, other in (
        ("desk", "x"),
        ("mailbox", "x"),
        ("lane", ""),
        ("kind", ""),
        ("sender", ""),
        ("id", "b"),
        ("reason", "attempts"),
        ("error", "user 17 unknown"),
        ("since", AT + 1),
        ("until", AT),
        ("states", frozenset({State.READY})),
    ):
        assert not matched(full._replace(**{field: other})), field
    assert matched(Filter("plain", error=""), None)
    assert not matched(Filter("plain", error=""))


@pytest.mark.parametrize(
    ("error", "normal"),
    [
        (None, ""),
        ("", ""),
        ("   padded\n", "padded"),
        ("timeout after 30 s", "timeout after # s"),
        ("timeout after 30.5 s", "timeout after # s"),
        ("no user 6f1c2a34-9d3e-4b6a-8a3e-0123456789ab here", "no user # here"),
        ("at 0xDEADbeef", "at #"),
        ("key 9f86d081884c7d65 unknown", "key # unknown"),
        ("10.0.0.7:8080 refused", "#.#:# refused"),
        ("deadbeef is a word, cafe too", "deadbeef is a word, cafe too"),
        ("HTTP 503", "HTTP #"),
        ("ошибка 5", "ошибка #"),
    ],
)
def test_like_errors_look_alike(error: str | None, normal: str) -> None:
    assert rules.normalise_error(error) == normal


def test_a_normalised_error_is_short_and_comes_fast() -> None:
    assert len(rules.normalise_error("x" * 10_000)) == 500
    # Text that looks like the beginning of every pattern must not take a time that grows with its square.
    assert len(rules.normalise_error("abcdef0" * 2_000 + "g")) <= 500


def test_waits_grow_as_the_policy_says() -> None:
    policy = PLAIN.replace(retry=exponential(1, 4), attempts_max=None)
    waits = [(rules.failed(policy, n, 0, AT).due_at - AT) // SECOND for n in (1, 2, 3, 4, 5)]
    assert waits == [1, 2, 4, 4, 4]
