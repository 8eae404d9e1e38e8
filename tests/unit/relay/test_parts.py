"""The small parts of the relay's core: buckets, blocks, receipts, challenges, pages, submissions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from nacl.signing import SigningKey

from posthouse.mailbox.command import Command, Keep, Lease, Note
from posthouse.mailbox.message import Ref
from posthouse.relay.auth import Challenge
from posthouse.relay.blocks import SHELF, Blocks
from posthouse.relay.limits import Bucket, Buckets
from posthouse.relay.page import HELD_BYTES_MAX, Pages
from posthouse.relay.receipts import Receipts
from posthouse.relay.stats import Stats
from posthouse.relay.submission import Submissions
from posthouse.wire import auth, envelope
from posthouse.wire.envelope import Envelope

NOW_MS = 1_700_000_000_000


# Buckets.


def test_a_bucket_gives_its_burst_and_then_its_rate() -> None:
    bucket = Bucket(2.0, 3, at=0.0)
    assert [bucket.take(0.0) for _ in range(4)] == [0.0, 0.0, 0.0, 0.5]
    assert bucket.take(0.5) == 0.0
    assert bucket.take(0.5) == 0.5


def test_a_bucket_never_holds_more_than_its_burst() -> None:
    bucket = Bucket(1.0, 2, at=0.0)
    assert bucket.is_full(500.0)
    assert [bucket.take(1_000.0) for _ in range(3)][2] > 0


def test_the_bucket_of_an_address_outlives_its_connection_until_it_is_full_again() -> None:
    buckets = Buckets(1.0, 2)
    first = buckets.of("a", 0.0)
    assert first is not None
    first.take(0.0)
    buckets.forget(0.5, kept=())
    assert buckets.of("a", 0.5) is first
    buckets.forget(5.0, kept={"a"})
    assert len(buckets) == 1
    buckets.forget(5.0, kept=())
    assert len(buckets) == 0


def test_a_rate_of_zero_means_no_limit() -> None:
    assert Buckets(0.0, 10).of("a", 0.0) is None


# Blocks.


def test_blocks_are_kept_by_a_command_and_loaded_from_the_shelf() -> None:
    blocks = Blocks(each_max=10)
    assert blocks.add("b", "a") == Keep(SHELF, "b a", b"1")
    assert blocks.has("b", "a")
    assert not blocks.has("a", "b")
    loaded = Blocks(each_max=10)
    loaded.load([("b a", b"1"), ("nonsense", b"1")])
    assert loaded.has("b", "a")
    assert len(loaded) == 1
    assert blocks.remove("b", "a") == Keep(SHELF, "b a", None)
    assert not blocks.has("b", "a")


def test_an_agent_has_so_many_blocks_and_no_more() -> None:
    blocks = Blocks(each_max=2)
    assert blocks.add("b", "1")
    assert blocks.add("b", "2")
    assert blocks.add("b", "3") is None
    assert blocks.add("b", "2"), "again is not more"
    assert blocks.add("c", "3"), "others have their own"


# Receipts.


def ref(id: str) -> Ref:
    return Ref("relay", "b", "a", id)


def ids(received: Sequence[Any] | None) -> list[str]:
    assert received is not None
    return [sent.ref.id for sent in received]


def test_a_pong_proves_all_frames_before_its_ping_and_none_behind() -> None:
    receipts = Receipts()
    receipts.sent(ref("1"), True, 10, False)
    payload = receipts.ping()
    receipts.sent(ref("2"), True, 10, False)
    assert ids(receipts.ponged(payload)) == ["1"]
    assert receipts.bytes == 10
    assert receipts.ponged(payload) is None, "it was answered already"


def test_a_pong_that_nobody_asked_for_proves_nothing() -> None:
    receipts = Receipts()
    receipts.sent(ref("1"), True, 10, False)
    assert receipts.ponged(b"") is None
    receipts.ping()
    assert receipts.ponged(b"guess") is None
    assert receipts.pinging


def test_a_confirmation_proves_all_frames_before_it() -> None:
    receipts = Receipts()
    for id in "123":
        receipts.sent(ref(id), True, 10, id == "2")
    live, received = receipts.confirmed(ref("2")) or (None, None)
    assert live is True
    assert ids(received) == ["1", "2"]
    assert receipts.is_unconfirmed(ref("1"))
    assert not receipts.is_unconfirmed(ref("2"))
    assert receipts.confirmed(ref("2")) is None


# Challenges.


def answer(challenge: Challenge, key: SigningKey, **changes: Any) -> bytes:
    signed = auth.challenge_bytes(changes.pop("host", challenge.host), challenge.nonce)
    public_key = changes.pop("public_key", bytes(key.verify_key))
    signature = changes.pop("signature", key.sign(signed).signature)
    nonce = changes.pop("nonce", challenge.nonce)
    made = Envelope.FromString(envelope.auth_response(public_key, signature, nonce))
    for name, value in changes.items():
        setattr(made.auth_response, name, value)
    return made.SerializeToString()


@pytest.fixture
def challenge() -> Challenge:
    return Challenge("relay.test", b"n" * 32, NOW_MS, NOW_MS + 10_000)


@pytest.fixture
def key() -> SigningKey:
    return SigningKey(b"k" * 32)


def test_the_right_answer_gives_the_public_key(challenge: Challenge, key: SigningKey) -> None:
    assert challenge.answered_by(answer(challenge, key), True, NOW_MS + 9_999) == bytes(key.verify_key)


@pytest.mark.parametrize(
    "changes",
    [
        {"host": "other.test"},
        {"nonce": b"m" * 32},
        {"nonce": b"n" * 31},
        {"signature": b"s" * 64},
        {"signature": b"s" * 63},
        {"version": 2},
        {"public_key": b"k" * 31},
        # A key of small order, for which signatures of anything can be made.
        {"public_key": bytes(32), "signature": bytes(64)},
        {"public_key": b"\1" + bytes(31), "signature": b"\1" + bytes(63)},
    ],
    ids=str,
)
def test_a_wrong_answer_gives_nothing(challenge: Challenge, key: SigningKey, changes: dict[str, Any]) -> None:
    assert challenge.answered_by(answer(challenge, key, **changes), True, NOW_MS) is None


def test_an_answer_must_be_binary_small_in_time_and_an_answer(challenge: Challenge, key: SigningKey) -> None:
    right = answer(challenge, key)
    assert challenge.answered_by(right, False, NOW_MS) is None
    assert challenge.answered_by(right, True, NOW_MS + 10_000) is None
    assert challenge.answered_by(right + b"\xfa\x3e\x80\x80\x02" + bytes(32_768), True, NOW_MS) is None
    assert challenge.answered_by(b"", True, NOW_MS) is None
    assert challenge.answered_by(b"\xff\xff", True, NOW_MS) is None
    assert challenge.answered_by(envelope.queue_status(1), True, NOW_MS) is None


# Pages.


class Reads:
    """A port for pages that answers when it is told."""

    def __init__(self) -> None:
        self.asked: list[tuple[Sequence[Ref], Callable[[Any], None]]] = []

    def read_bodies(self, refs: Sequence[Ref], read: Callable[[Any], None]) -> None:
        self.asked.append((refs, read))


def test_only_so_many_pages_are_read_at_once() -> None:
    port = Reads()
    pages = Pages(port, at_once_max=2)  # type: ignore[arg-type]
    read: list[Any] = []
    for id in "123":
        pages.read([ref(id)], read.append)
    assert len(port.asked) == 2
    port.asked[0][1]([b"1"])
    assert read == [[b"1"]]
    assert [refs[0].id for refs, _ in port.asked] == ["1", "2", "3"]


def test_only_so_many_bytes_are_held_ahead() -> None:
    pages = Pages(Reads(), at_once_max=2)  # type: ignore[arg-type]
    assert pages.hold(HELD_BYTES_MAX)
    assert not pages.hold(1)
    pages.let_go(HELD_BYTES_MAX)
    assert pages.hold(1)


# Submissions.


class Desk:
    """A port that takes submissions and answers when it is told."""

    def __init__(self) -> None:
        self.submitted: list[tuple[list[Command], Callable[[Any], None]]] = []
        self.callbacks: list[Callable[[], None]] = []

    def submit(self, commands: Sequence[Command], answered: Callable[[Any], None]) -> None:
        self.submitted.append((list(commands), answered))

    def soon(self, callback: Callable[[], None]) -> None:
        self.callbacks.append(callback)

    def turn(self) -> None:
        callbacks, self.callbacks = self.callbacks, []
        for callback in callbacks:
            callback()


class Holder:
    """Somebody who leases."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.outcomes: list[Any] = []

    def lease(self) -> tuple[Lease, Any]:
        return Lease("relay", self.name, "t"), None

    def leased(self, outcome: Any, arg: Any) -> None:
        self.outcomes.append(outcome)


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture
def submissions(desk: Desk) -> Submissions:
    return Submissions(desk, Stats(), size_max=3)  # type: ignore[arg-type]


def note(n: int) -> Note:
    return Note("connected", "relay", str(n))


def test_what_one_iteration_adds_is_one_submission_with_the_leases_last(desk: Desk, submissions: Submissions) -> None:
    told: list[Any] = []
    holder, gone = Holder("b"), Holder("gone")
    submissions.add(note(1), lambda outcome, arg: told.append((outcome, arg)), "first")
    submissions.want_lease(holder)
    submissions.want_lease(gone)
    submissions.add(note(2), lambda outcome, arg: told.append((outcome, arg)), "second")
    submissions.want_lease(holder)
    submissions.unwant_lease(gone)
    assert not desk.submitted
    desk.turn()
    [(commands, answered)] = desk.submitted
    assert commands == [note(1), note(2), Lease("relay", "b", "t")]
    answered(["one", "two", "three"])
    assert told == [("one", "first"), ("two", "second")]
    assert holder.outcomes == ["three"]


def test_a_submission_is_handed_over_when_it_is_large_enough(desk: Desk, submissions: Submissions) -> None:
    for n in range(4):
        submissions.add(note(n), lambda outcome, arg: None)
    assert [len(commands) for commands, _ in desk.submitted] == [3]


def test_what_outcomes_lead_to_is_handed_over_at_once(desk: Desk, submissions: Submissions) -> None:
    submissions.add(note(1), lambda outcome, arg: submissions.add(note(2), lambda outcome, arg: None))
    desk.turn()
    desk.submitted[0][1](["one"])
    assert [commands for commands, _ in desk.submitted] == [[note(1)], [note(2)]]


def test_each_handler_is_told_of_a_submission_that_came_to_nothing(desk: Desk, submissions: Submissions) -> None:
    told: list[Any] = []
    submissions.add(note(1), lambda outcome, arg: told.append(outcome))
    submissions.add(note(2), lambda outcome, arg: told.append(outcome))
    desk.turn()
    error = OSError("no room")
    desk.submitted[0][1](error)
    assert told == [error, error]


def test_a_handler_that_fails_does_not_keep_outcomes_from_the_others(desk: Desk, submissions: Submissions) -> None:
    told: list[Any] = []

    def fail(outcome: Any, arg: Any) -> None:
        raise ZeroDivisionError

    submissions.add(note(1), fail)
    submissions.add(note(2), lambda outcome, arg: told.append(outcome))
    desk.turn()
    with pytest.raises(ZeroDivisionError):
        desk.submitted[0][1](["one", "two"])
    assert told == ["two"]


def test_drained_is_said_when_all_is_answered(desk: Desk, submissions: Submissions) -> None:
    said: list[bool] = []
    submissions.add(note(1), lambda outcome, arg: None)
    submissions.drain(lambda: said.append(True))
    desk.turn()
    assert not said
    desk.submitted[0][1](["one"])
    assert said == [True]
