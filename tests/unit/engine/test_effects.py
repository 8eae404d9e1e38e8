from __future__ import annotations

from typing import Any

import pytest

from posthouse.engine.effects import FAR, Effects
from posthouse.mailbox.command import (
    Cancel,
    Command,
    Filter,
    Hasten,
    Keep,
    Lease,
    Note,
    Park,
    Pause,
    Post,
    Purge,
    Redrive,
    Release,
    Renew,
    Resume,
    Settle,
    Shift,
    Start,
    Sweep,
    Together,
    Unpark,
    Verdict,
)
from posthouse.mailbox.message import SECOND, Message, Ref, State
from posthouse.mailbox.outcome import (
    Delivery,
    Done,
    Duplicate,
    Hastened,
    Kept,
    Leased,
    LeaseLost,
    Noted,
    NotFound,
    Outcome,
    Posted,
    Purged,
    Redriven,
    Refusal,
    Refused,
    Released,
    Renewed,
    Settled,
    Shifted,
    Started,
    Swept,
    Switched,
)
from posthouse.mailbox.policy import RELAY, Policy, exponential

POLICIES = {
    p.name: p for p in (Policy("mail", retry=exponential(1, 60)), Policy("talk", quiet_s=2, quiet_max_s=9), RELAY)
}
AT = 100 * SECOND
REF = Ref("mail", "alice", "", "1")
KEY = ("mail", "alice")


def effects_of(*pairs: tuple[Command, Outcome]) -> Effects:
    effects = Effects(POLICIES, {})
    effects.begin()
    effects.gather([command for command, _ in pairs], [outcome for _, outcome in pairs])
    return effects


def delivery(desk: str = "mail", mailbox: str = "alice", ends_at: int | None = AT + 60) -> Delivery:
    return Delivery(Message(desk, mailbox, "1"), 1, 1, AT, ends_at, 0, None)


def post(desk: str = "mail", quiet: bool = True, due_at: int | None = None) -> Post:
    return Post(Message(desk, "alice", "1", due_at=due_at), quiet=quiet, at=AT)


def settled(state: State, due_at: int | None = None) -> Settled:
    return Settled(state, 1, due_at, False)


def settle(verdict: Verdict, ref: Ref = REF) -> Settle:
    return Settle(ref, "t", verdict, at=AT)


RELAYED = REF._replace(desk="relay")
EVERYONE = "everyone"


@pytest.mark.parametrize(
    ("command", "outcome", "rings", "soonest", "unsure"),
    [
        (post(), Posted(1, None), {KEY}, FAR, False),
        (post(), Duplicate(State.READY, 1, 0, None, None, None), set(), FAR, False),
        (post(), Refused(Refusal.FULL), set(), FAR, False),
        (post(due_at=AT + 5), Posted(1, None), set(), AT + 5, False),
        (post(due_at=AT - 5), Posted(1, None), {KEY}, FAR, False),
        (post("talk"), Posted(1, None), set(), AT + 2 * SECOND, False),
        (post("talk", quiet=False), Posted(1, None), {("talk", "alice")}, FAR, False),
        (Lease("mail", None, "t"), Leased("t", ()), set(), FAR, False),
        (Lease("mail", None, "t"), Leased("t", (delivery(),)), set(), AT + 60, False),
        (Lease("mail", None, "t"), Leased("t", (delivery(ends_at=None),)), set(), FAR, False),
        (Lease("mail", None, "t"), Refused(Refusal.UNKNOWN_DESK), set(), FAR, False),
        (Renew("mail", "t"), Renewed(1, AT + 70), set(), FAR, False),
        (Renew("mail", "t"), LeaseLost(None), set(), FAR, False),
        (settle(Verdict.DELIVERED), settled(State.DELIVERED), {KEY}, FAR, False),
        (settle(Verdict.DELIVERED, RELAYED), settled(State.DELIVERED), set(), FAR, False),
        (settle(Verdict.RETRY, RELAYED), settled(State.READY), {("relay", "alice")}, FAR, False),
        (settle(Verdict.DEAD, RELAYED), settled(State.DEAD), {("relay", "alice")}, FAR, False),
        (settle(Verdict.RECEIVED), settled(State.RECEIVED), set(), FAR, False),
        (settle(Verdict.RETRY), settled(State.READY, AT + 7), set(), AT + 7, False),
        (settle(Verdict.RETRY), settled(State.READY, AT), {KEY}, FAR, False),
        (settle(Verdict.RETURN), settled(State.READY), {KEY}, FAR, False),
        (settle(Verdict.DELIVERED), LeaseLost(State.DELIVERED), set(), FAR, False),
        (settle(Verdict.DELIVERED), NotFound(), set(), FAR, False),
        (Cancel(REF), settled(State.CANCELLED), {KEY}, FAR, False),
        (Park(REF), settled(State.PARKED), {KEY}, FAR, False),
        (Park(REF), Refused(Refusal.IN_FLIGHT), set(), FAR, False),
        (Release("mail", "t"), Released(0), set(), FAR, False),
        (Release("mail", "t"), Released(2), "mail", FAR, True),
        (Release("relay", "t"), Released(2), "relay", FAR, False),
        (Sweep(), Swept((), 0, 3, False), set(), FAR, False),
        (Sweep(), Swept((("mail", "alice", 3),), 0, 0, False), {KEY}, FAR, False),
        (Start(POLICIES), Started(0), EVERYONE, FAR, True),
        (Shift(5), Shifted(), EVERYONE, FAR, True),
        (Hasten("mail", "alice"), Hastened(2), {KEY}, FAR, False),
        (Hasten("mail", "alice"), Hastened(0), set(), FAR, False),
        (Hasten("nowhere", "alice"), Refused(Refusal.UNKNOWN_DESK), set(), FAR, False),
        (Redrive(Filter("mail")), Redriven((REF,), 0), {KEY}, FAR, True),
        (Redrive(Filter("mail"), dry_run=True), Redriven((REF,), 0), set(), FAR, False),
        (Unpark(Filter("mail")), Redriven((REF,), 0), {KEY}, FAR, True),
        (Pause("mail", "alice"), Switched(True), set(), FAR, False),
        (Resume("mail", "alice"), Switched(True), {KEY}, FAR, True),
        (Purge(Filter("mail")), Purged(1, 0, 0), "mail", FAR, False),
        (Purge(Filter("mail", "alice")), Purged(1, 0, 0), {KEY}, FAR, False),
        (Purge(Filter("mail"), dry_run=True), Purged(1, 0, 0), set(), FAR, False),
        (Note("connected", "relay"), Noted(), set(), FAR, False),
        (Keep("shelf", "key", b"1"), Kept(True), set(), FAR, False),
        (Together((post(), Note("connected", "mail"))), Done((Posted(1, None), Noted())), {KEY}, FAR, False),
        (Together((post(),)), Refused(Refusal.FULL), set(), FAR, False),
        (Together(()), Done(()), set(), FAR, False),
    ],
)
def test_what_rings_and_when_to_look_again(
    command: Command, outcome: Outcome, rings: Any, soonest: int, unsure: bool
) -> None:
    effects = effects_of((command, outcome))
    assert effects.everyone is (rings == EVERYONE)
    assert effects.keys == (rings if isinstance(rings, set) else set())
    assert effects.desks == ({rings} if isinstance(rings, str) and rings != EVERYONE else set())
    assert (effects.soonest, effects.unsure) == (soonest, unsure)


def test_a_lost_lease_rings_the_desks_whose_leases_end_by_time() -> None:
    assert effects_of((Sweep(), Swept((), 1, 0, False))).desks == {"mail", "talk"}


def test_a_holder_that_leaves_wakes_only_those_of_its_own_mailbox() -> None:
    lease = Lease("relay", "alice", "t")
    effects = effects_of(
        (lease, Leased("t", (delivery("relay", ends_at=None),))),
        (lease._replace(token="u"), Leased("u", (delivery("relay", ends_at=None),))),
        (lease._replace(token="u", mailbox="bob"), Leased("u", (delivery("relay", "bob", None),))),
        (Release("relay", "t"), Released(1)),
    )
    assert (effects.keys, effects.desks) == ({("relay", "alice")}, set())
    effects.begin()
    effects.gather([Release("relay", "u")], [Released(2)])
    assert (effects.keys, effects.desks) == (set(), {"relay"}), "it held from several"
    assert effects._mailboxes == {}


def test_with_too_many_holders_to_remember_the_desk_is_rung(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("posthouse.engine.effects.TOKENS_MAX", 2)
    lease = Lease("relay", "alice", "")
    pairs: list[tuple[Command, Outcome]] = [
        (lease._replace(token=str(n)), Leased(str(n), (delivery("relay", ends_at=None),))) for n in range(5)
    ]
    effects = effects_of(*pairs, (Release("relay", "4"), Released(1)))
    assert (effects.keys, effects.desks) == (set(), {"relay"})


def test_the_latest_end_of_a_lease_is_known_and_moves_with_the_clock() -> None:
    effects = effects_of(
        (Lease("mail", None, "t"), Leased("t", (delivery(),))),
        (Renew("mail", "t"), Renewed(1, AT + 90)),
        (Shift(-30), Shifted()),
    )
    assert effects.leases_until == AT + 60
    assert effects.shifted_us == -30
    effects.begin()
    assert effects.leases_until == AT + 60
    assert effects.shifted_us == 0


def test_outcomes_are_counted_by_desk() -> None:
    effects = effects_of(
        (post(), Posted(1, None)),
        (post(), Posted(2, None)),
        (post(), Refused(Refusal.FULL)),
        (post("relay"), Duplicate(State.READY, 1, 0, None, None, None)),
        (Lease("mail", None, "t"), Leased("t", (delivery(), delivery()))),
        (settle(Verdict.DELIVERED), settled(State.DELIVERED)),
        (settle(Verdict.RETRY), settled(State.READY, AT + 1)),
        (settle(Verdict.RETURN), settled(State.READY)),
        (settle(Verdict.DELIVERED), LeaseLost(None)),
        (Together((post(), post())), Refused(Refusal.FULL)),
        (Sweep(), Swept((("mail", "alice", 12),), 0, 0, False)),
    )
    assert effects.counts == {
        ("mail", "posted"): 2,
        ("mail", "refused_full"): 1,
        ("relay", "duplicate"): 1,
        ("mail", "leased"): 2,
        ("mail", "delivered"): 1,
        ("mail", "retried"): 1,
        ("mail", "released"): 1,
        ("mail", "lease_lost"): 1,
        ("mail", "undone"): 1,
        ("mail", "expired"): 12,
    }
