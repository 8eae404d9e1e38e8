"""What a peer takes, holds back and refuses."""

from __future__ import annotations

from typing import Any

import pytest

from posthouse.control.trade import HEARD, TRADES, Trade
from posthouse.errors import BadFrame
from posthouse.libp2p.key import PrivateKey
from posthouse.libp2p.peer_id import PeerId
from posthouse.mailbox.command import Keep, Verdict
from posthouse.peer import frame
from posthouse.peer.frame import Direct
from posthouse.peer.session import Bucket, Early, Old, Refused, Rules, Session, Take
from posthouse.peer.signature import sign

NOW = 1_700_000_000_000_000
OTHER_KEY = PrivateKey(b"o" * 32)
OTHER = str(PeerId.of(OTHER_KEY.public))
THIRD = str(PeerId.of(PrivateKey(b"t" * 32).public))


def session(**rules: Any) -> Session:
    return Session(PrivateKey(b"k" * 32), Rules(**rules))


def message(number: int = 1, **fields: Any) -> Direct:
    whole = Direct("nonce_exchange", "t1", from_peer=OTHER, message_id=f"m{number}", sequence_num=number)
    return whole._replace(**fields)


def take(peer: Session, number: int = 1, **fields: Any) -> None:
    one = message(number, **fields)
    assert isinstance(peer.judge(OTHER, one, NOW), Take)
    peer.took(one)


def test_messages_are_taken_in_the_order_of_their_numbers() -> None:
    peer = session()
    take(peer, 1)
    take(peer, 2)
    assert peer.judge(OTHER, message(4), NOW) == Early(3)
    assert peer.judge(OTHER, message(2), NOW) == Old()
    take(peer, 3)
    assert isinstance(peer.judge(OTHER, message(4), NOW), Take)


def test_each_trade_counts_for_itself() -> None:
    peer = session()
    take(peer, 1)
    take(peer, 1, trade_id="t2")
    assert peer.heard == {"t1": 1, "t2": 1}


def test_what_is_taken_is_written_down_with_it() -> None:
    judged = session().judge(OTHER, message(1, swap_timeout=9), NOW)
    assert judged == Take(
        (Keep(TRADES, "t1", Trade(OTHER, NOW, timeout_s=9, theirs="direct").encode()), Keep(HEARD, "t1", b"1"))
    )


def test_a_trade_that_was_not_written_down_is_written_with_the_next_message() -> None:
    peer = session()
    assert isinstance(peer.judge(OTHER, message(1), NOW), Take)
    again = peer.judge(OTHER, message(1), NOW)
    assert isinstance(again, Take)
    assert [c.shelf for c in again.commands if isinstance(c, Keep)] == [TRADES, HEARD]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"type": "order_taken"}, "forbidden_type"),
        ({"type": "ack"}, "forbidden_type"),
        ({"from_peer": THIRD}, "spoofed"),
        ({"from_peer": ""}, "spoofed"),
        ({"message_id": ""}, "malformed"),
        ({"trade_id": ""}, "malformed"),
        ({"signature": "AAAA"}, "auth"),
    ],
)
def test_what_can_never_be_taken_is_refused(fields: dict[str, Any], reason: str) -> None:
    judged = session().judge(OTHER, message(1, **fields), NOW)
    assert isinstance(judged, Refused)
    assert judged.reason == reason


def test_only_the_other_party_of_a_trade_is_heard() -> None:
    peer = session()
    take(peer, 1)
    judged = peer.judge(THIRD, message(2, from_peer=THIRD), NOW)
    assert judged == Refused("spoofed", "not a party of this trade")


def test_strangers_open_trades_only_where_that_is_allowed_and_not_without_end() -> None:
    assert session(strangers=False).judge(OTHER, message(1), NOW) == Refused("unmatched", "unknown trade")
    peer = session(trades_per_peer_max=2)
    take(peer, 1)
    take(peer, 1, trade_id="t2")
    assert peer.judge(OTHER, message(1, trade_id="t3"), NOW) == Refused("full", "too many trades")
    peer.forget("t1")
    assert isinstance(peer.judge(OTHER, message(1, trade_id="t3"), NOW), Take)


def test_a_trade_that_was_signed_once_takes_nothing_unsigned() -> None:
    peer = session()
    take(peer, 1)
    signed = sign(message(2), OTHER_KEY)
    assert isinstance(peer.judge(OTHER, signed, NOW), Take)
    peer.took(signed)
    assert peer.judge(OTHER, message(3), NOW) == Refused("auth", "this trade takes signed messages only")
    assert session(signed_only=True).judge(OTHER, message(1), NOW) == Refused(
        "auth", "this trade takes signed messages only"
    )


def test_numbers_that_will_never_come_are_skipped_and_never_given_back() -> None:
    peer = session()
    take(peer, 1)
    assert peer.skip("t1", 4) == (Keep(HEARD, "t1", b"3"),)
    assert peer.skip("t1", 3) == ()
    assert isinstance(peer.judge(OTHER, message(4), NOW), Take)
    assert peer.judge(OTHER, message(3), NOW) == Old()


def test_an_acknowledgement_counts_only_for_its_own_message() -> None:
    peer = session()
    sent = message(1, message_id="mine")
    yes = frame.acknowledge(sent, OTHER, True, "", 1, "a")
    assert peer.verdict(OTHER, sent, yes) == (Verdict.DELIVERED, "")
    no = frame.acknowledge(sent, OTHER, False, "bad nonce", 1, "a")
    assert peer.verdict(OTHER, sent, no) == (Verdict.REJECTED, "bad nonce")
    with pytest.raises(BadFrame, match="another message"):
        peer.verdict(OTHER, sent._replace(message_id="other"), yes)
    with pytest.raises(BadFrame, match="signature"):
        peer.verdict(OTHER, sent, yes._replace(signature="AAAA"))


def test_a_peer_that_sends_too_much_waits_for_its_turn() -> None:
    bucket = Bucket(Rules(rate_per_s=10, burst=3), 0.0)
    assert [bucket.wait_s(0.0) for _ in range(5)] == [0, 0, 0, 0.1, 0.2]
    assert bucket.wait_s(1.0) == 0
    assert Bucket(Rules(rate_per_s=0), 0.0).wait_s(0.0) == 0


def test_trades_are_forgotten_when_their_end_is_long_past() -> None:
    peer = session()
    peer.know("old", Trade(OTHER, NOW - 10**13, timeout_s=NOW // 10**6 - 10**6))
    peer.know("new", Trade(OTHER, NOW, timeout_s=NOW // 10**6 + 10))
    assert peer.over(NOW, 7 * 86_400) == ["old"]


def test_nothing_is_written_down_for_a_trade_that_nobody_has_opened() -> None:
    peer = session()
    assert peer.skip("t1", 4) == ()
    assert peer.heard == {}
    assert peer.judge(OTHER, message(3), NOW) == Old()
    take(peer, 4)
    assert peer.heard == {"t1": 4}


def test_a_large_message_counts_for_many() -> None:
    bucket = Bucket(Rules(rate_per_s=10, burst=10), 0.0)
    assert bucket.wait_s(0.0, 10) == 0
    assert bucket.wait_s(0.0, 5) == 0.5
    bucket.give_back(5)
    assert bucket.wait_s(0.1) == 0
