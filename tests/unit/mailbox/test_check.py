from __future__ import annotations

from typing import Any

import pytest

from posthouse.errors import InvalidInput
from posthouse.mailbox.check import check_command
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
from posthouse.mailbox.message import Message, Ref, State
from posthouse.mailbox.policy import Policy

POLICIES = {"mail": Policy("mail")}
MESSAGE = Message("mail", "alice", "1", b"hello")
REF = MESSAGE.ref
ALL = Filter("mail")
LONG = "x" * 10_000_000

GOOD: list[Command] = [
    Post(MESSAGE),
    Post(MESSAGE._replace(due_at=1, expires_at=2, cause="0", headers={"a": "b"}), False, True, "import"),
    Lease("mail", None, "t"),
    Lease("mail", "alice", "t", "me", 100, False),
    Lease("mail", None, "t", besides=("alice", "bob")),
    Renew("mail", "t"),
    Renew("mail", "t", REF, 3),
    Settle(REF, "t", Verdict.DELIVERED),
    Settle(REF, None, Verdict.DEAD, None, "permanent", "some\nerror", "operator"),
    Settle(REF, "t", Verdict.RETRY, 5, "rate_limited"),
    Settle(REF, "t", Verdict.RETURN, None, "offline"),
    Settle(REF, "t", Verdict.UNCERTAIN, None, "unknown"),
    Release("mail", "t"),
    Release("mail", "t", "left"),
    Sweep(),
    Note("connected", "mail"),
    Note("refused", "no such desk", reason="unknown_desk", size_bytes=7, detail={"a": [1, None]}),
    Start(POLICIES),
    Start(POLICIES, {"node": "old", "offset": 7}),
    Shift(-86_400_000_000),
    Hasten("mail", "alice"),
    Lease("mail", "alice", "t", lane=""),
    Redrive(ALL, 1, 0.5, True, "operator"),
    Redrive(Filter("mail", "alice", "", "", "", "1", "attempts", "error #", 1, 2, frozenset({State.DEAD}))),
    Cancel(REF),
    Cancel(REF, "operator", "me"),
    Park(REF, "review"),
    Unpark(ALL),
    Pause("mail", "alice"),
    Pause("mail", "alice", "", "poison"),
    Resume("mail", "alice", "lane", "me"),
    Purge(ALL),
    Keep("relay.blocks", "pinch:a@h pinch:b@h", b"{}"),
    Keep("shelf", "ä" * 512, b"x" * 65_536),
    Keep("shelf", "key", None),
    Together((Post(MESSAGE), Settle(REF, "t", Verdict.DELIVERED))),
    Together(()),
]

BAD: list[tuple[Any, str]] = [
    (None, "expected a command"),
    ("post", "expected a command"),
    (MESSAGE, "expected a command"),
    (Post("hello"), "expected a Message"),  # type: ignore[arg-type]
    (Post(MESSAGE._replace(desk="nowhere")), "unknown desk 'nowhere'; known: mail"),
    (Post(MESSAGE._replace(mailbox=LONG)), "mailbox is 10000000 characters long"),
    (Post(MESSAGE._replace(id="a\x1bb")), "control character"),
    (Post(MESSAGE._replace(id="")), "must not be empty"),
    (Post(MESSAGE._replace(sender="\ud800")), "surrogate"),
    (Post(MESSAGE._replace(body="text")), "body must be bytes"),  # type: ignore[arg-type]
    (Post(MESSAGE._replace(due_at=-1)), "due_at is out of range"),
    (Post(MESSAGE._replace(expires_at=1.5)), "expires_at must be whole"),  # type: ignore[arg-type]
    (Post(MESSAGE._replace(headers={"a": "x" * 20_000})), "headers take"),
    (Post(MESSAGE._replace(headers=None)), "headers must be a mapping"),  # type: ignore[arg-type]
    (Post(MESSAGE._replace(headers=[])), "headers must be a mapping"),  # type: ignore[arg-type]
    (Post(MESSAGE._replace(kind=None)), "kind must be a string"),  # type: ignore[arg-type]
    (Post(MESSAGE._replace(batch_key=b"")), "batch_key must be a string"),  # type: ignore[arg-type]
    (Post(MESSAGE, quiet=1), "quiet must be"),  # type: ignore[arg-type]
    (Post(MESSAGE, exempt=None), "exempt must be"),  # type: ignore[arg-type]
    (Post(MESSAGE, reason="because"), "reason must be import"),
    (Post(MESSAGE, posted_at=5), "posted_at is for imports"),
    (Post(MESSAGE, reason="import", posted_at=-1), "posted_at is out of range"),
    (Lease("nowhere", None, "t"), "unknown desk"),
    (Lease(["mail"], None, "t"), "desk must be a string"),  # type: ignore[arg-type]
    (Lease("mail", "", "t"), "mailbox must not be empty"),
    (Lease("mail", None, ""), "token must not be empty"),
    (Lease("mail", None, 7), "token must be a string"),  # type: ignore[arg-type]
    (Lease("mail", None, "t", "a\nb"), "holder holds a control"),
    (Lease("mail", None, "t", limit=0), "limit must be between"),
    (Lease("mail", None, "t", limit=-5), "limit must be between"),
    (Lease("mail", None, "t", limit=True), "limit must be a whole number, not bool"),
    (Lease("mail", None, "t", limit=10**9), "limit must be between"),
    (Lease("mail", None, "t", bodies="yes"), "bodies must be"),  # type: ignore[arg-type]
    (Lease("mail", None, "t", besides=["alice"]), "besides must be a tuple"),  # type: ignore[arg-type]
    (Lease("mail", None, "t", besides=("",)), "besides must not be empty"),
    (Lease("mail", None, "t", besides=(7,)), "besides must be a string"),  # type: ignore[arg-type]
    (Lease("mail", None, "t", besides=("alice",) * 20_001), "besides names at most"),
    (Lease("mail", "bob", "t", besides=("alice",)), "besides is for a lease by desk"),
    (Keep("", "key", b""), "shelf must not be empty"),
    (Keep("a\nb", "key", b""), "shelf holds a control character"),
    (Keep("shelf", "", b""), "key must not be empty"),
    (Keep("shelf", b"key", b""), "key must be a string"),  # type: ignore[arg-type]
    (Keep("shelf", "a\x7fb", b""), "key holds a control character"),
    (Keep("shelf", "\ud800", b""), "key holds a lone surrogate"),
    (Keep("shelf", "ä" * 513, b""), "key is 1026 bytes long; at most 1024"),
    (Keep("shelf", "key", "text"), "value must be bytes or None"),  # type: ignore[arg-type]
    (Keep("shelf", "key", b"x" * 65_537), "value is 65537 bytes long; at most 65536"),
    (Renew("mail", "t", None, 3), "say which"),
    (Renew("mail", "t", REF, -1), "progress must be between"),
    (Renew("mail", "t", ("mail", "alice", "", "1")), "ref must be a Ref"),  # type: ignore[arg-type]
    (Renew("mail", "t", REF._replace(desk="nowhere")), "unknown desk"),
    (Settle(REF._replace(id="a\x00"), "t", Verdict.DELIVERED), "control character"),
    (Settle(REF._replace(mailbox=""), "t", Verdict.DELIVERED), "mailbox must not be empty"),
    (Settle(REF, "", Verdict.DELIVERED), "token must not be empty"),
    (Settle(REF, "t", "delivered"), "verdict must be"),  # type: ignore[arg-type]
    (Settle(REF, "t", Verdict.RETRY, -1), "due_at is out of range"),
    (Settle(REF, "t", Verdict.DELIVERED, reason="left"), "reason must be left out"),
    (Settle(REF, "t", Verdict.RETRY, reason="permanent"), "reason must be failed or"),
    (Settle(REF, "t", Verdict.RETRY, reason=["failed"]), "reason must be"),  # type: ignore[arg-type]
    (Settle(REF, "t", Verdict.RETRY, error=ValueError()), "error must be a string"),  # type: ignore[arg-type]
    (Settle(REF, "t", Verdict.RETRY, error="\udfff"), "surrogate"),
    (Settle(REF, "t", Verdict.RETRY, error=LONG), "error is 10000000"),
    (Release("mail", "t", "bored"), "reason must be left"),
    (Sweep(0), "limit must be between"),
    (Note("posted", "mail"), "event must be one of connected, disconnected, refused"),
    (Note(["posted"], "mail"), "event must be a string"),  # type: ignore[arg-type]
    (Note("connected", ""), "desk must not be empty"),
    (Note("connected", "mail", reason="full"), "reason must be left out"),
    (Note("refused", "mail", reason="mood"), "reason must be full"),
    (Note("refused", "mail", message_id="a\nb"), "control character"),
    (Note("refused", "mail", size_bytes=-1), "size_bytes must be between"),
    (Note("refused", "mail", detail=[1]), "detail must be a mapping"),  # type: ignore[arg-type]
    (Note("refused", "mail", detail={"a": object()}), "detail is not JSON"),
    (Note("refused", "mail", detail={"a": float("nan")}), "detail is not JSON"),
    (Note("refused", "mail", detail={"a": "\ud800"}), "detail is not JSON"),
    (Note("refused", "mail", detail={"a": "x" * 20_000}), "detail takes"),
    (Start([]), "policies must be a mapping"),  # type: ignore[arg-type]
    (Start({"post": POLICIES["mail"]}), "policies must map"),
    (Start(POLICIES, "old"), "restored_from must be"),  # type: ignore[arg-type]
    (Shift(1.5), "by_us must be a whole"),  # type: ignore[arg-type]
    (Shift(10**30), "by_us must be between"),
    (Hasten("nowhere", "alice"), "unknown desk"),
    (Lease("mail", None, "t", lane="l"), "a lane is of one mailbox"),
    (Lease("mail", "alice", "t", lane=1), "lane must be"),  # type: ignore[arg-type]
    (Hasten("mail", ""), "mailbox must not be empty"),
    (Redrive("all"), "filter must be a Filter"),  # type: ignore[arg-type]
    (Redrive(Filter("nowhere")), "unknown desk"),
    (Redrive(Filter("mail", "")), "mailbox must not be empty"),
    (Redrive(Filter("mail", since=-1)), "since is out of range"),
    (Redrive(Filter("mail", until="now")), "until must be whole"),  # type: ignore[arg-type]
    (Redrive(Filter("mail", states={State.DEAD})), "states must be a frozenset"),  # type: ignore[arg-type]
    (Redrive(Filter("mail", states=frozenset({"dead"}))), "states must be a frozenset"),  # type: ignore[arg-type]
    (Redrive(ALL, rate_per_s=0), "rate_per_s must be between"),
    (Redrive(ALL, rate_per_s=float("nan")), "rate_per_s must be between"),
    (Redrive(ALL, rate_per_s="5"), "rate_per_s must be a number"),  # type: ignore[arg-type]
    (Redrive(ALL, dry_run=1), "dry_run must be"),  # type: ignore[arg-type]
    (Unpark(ALL, 0), "limit must be between"),
    (Purge(ALL, holder=""), "holder must not be empty"),
    (Cancel(REF, "boredom"), "reason must be operator"),
    (Park(REF, "boredom"), "reason must be operator"),
    (Pause("mail", "alice", None, "boredom"), "reason must be operator"),
    (Pause("mail", ""), "mailbox must not be empty"),
    (Resume("mail", "alice", "a\nb"), "lane holds a control"),
    (Together((Together(()),)), "cannot hold another"),
    (Together((Post(MESSAGE), Sweep(0))), "limit must be between"),
    (Together([Post(MESSAGE)]), "must be a tuple"),  # type: ignore[arg-type]
    (Together((Post(MESSAGE),) * 1_001), "at most 1000"),
]


@pytest.mark.parametrize("command", GOOD, ids=lambda c: type(c).__name__)
def test_a_command_that_can_be_applied_passes(command: Command) -> None:
    check_command(command, POLICIES)


@pytest.mark.parametrize(("command", "words"), BAD, ids=[f"{type(c).__name__}-{words[:30]}" for c, words in BAD])
def test_a_command_that_cannot_is_refused_with_what_is_wrong(command: Any, words: str) -> None:
    with pytest.raises(InvalidInput, match=words) as raised:
        check_command(command, POLICIES)
    assert len(str(raised.value)) < 300, "the error does not repeat a huge input"


def test_every_command_is_known() -> None:
    kinds = {type(command) for command in GOOD}
    assert kinds == set(Command.__args__)  # type: ignore[attr-defined]


def test_a_ref_of_another_desk_is_not_what_was_leased() -> None:
    policies = {**POLICIES, "other": Policy("other")}
    with pytest.raises(InvalidInput, match="the lease of 'mail'"):
        check_command(Renew("mail", "t", Ref("other", "alice", "", "1")), policies)
