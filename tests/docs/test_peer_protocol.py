"""The peer's protocol page is compared with the code: types, fields, reasons, limits."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from posthouse.config import SETTINGS
from posthouse.peer import frame, orderbook, orders, receiver, session, signature, sync
from posthouse.peer.frame import Direct
from posthouse.peer.orderbook import BookLimits
from posthouse.peer.receiver import TakeLimits
from posthouse.peer.session import Rules

PAGE = (Path(__file__).parents[2] / "protocol" / "peer.md").read_text(encoding="utf-8")
WORDS = " ".join(PAGE.split())


def test_every_protocol_type_and_field_is_in_the_page() -> None:
    public = (orderbook.ANNOUNCE, orderbook.CANCEL, orderbook.TAKE)
    for name in (
        *frame.PRIVATE_TYPES, frame.ACK, frame.SYNC_REQUEST, frame.SYNC_RESPONSE, *public, *Direct._fields, *sync.FLAGS,
        frame.PROTOCOL, orders.SYNC, orders.TOPIC, sync.MARK, signature.DOMAIN.decode(),
    ):  # fmt: skip
        assert f"`{name}`" in PAGE, name


def test_every_reason_of_a_failed_acknowledgement_is_in_the_page_and_no_other() -> None:
    source = inspect.getsource(session) + inspect.getsource(receiver)
    in_code = set(re.findall(r'Refused\(\s*"[a-z_]+",\s*"([^"]+)"\s*\)', source))
    # These two get no answer.
    in_code -= {"too many messages", "the inbox takes no more for now"}
    table = PAGE.partition("| a failed acknowledgement says |")[2].partition("\n\n")[0]
    assert in_code == set(re.findall(r"^\| `([^`]+)` \|", table, re.MULTILINE))


def test_the_limits_in_the_page_are_those_of_the_code() -> None:
    take, rules, book = TakeLimits(), Rules(), BookLimits()
    for text in (
        f"{frame.BODY_BYTES_MAX:,} bytes".replace(",", " "),
        f"deeper than {frame.DEPTH_MAX} levels",
        f"up to {take.hold_s:g} s ({take.held_per_peer_max} of one peer, {take.held_max:,} in all)".replace(
            ",", " ", 0
        ),
        f"up to {take.process_s:g} s",
        f"{take.reading_per_peer_bytes_max >> 20} MiB of one peer, {take.reading_bytes_max >> 20} MiB in all",
        f"| time for a frame | {take.read_s:g} s |",
        f"| time for writing an answer | {take.answer_s:g} s |",
        f"they wait up to {take.turn_s:g} s",
        f"each {receiver.LARGE_BYTES >> 10} KiB",
        f"after {rules.gap_s / 60:g} minutes",
        f"{book.ahead_s} s ahead",
        f"within {book.lasts_s_max // 86_400} days",
        f"{book.per_maker_max} of one maker",
    ):
        assert text.replace("1,024", "1 024") in WORDS, text


def test_the_settings_that_the_page_names_exist() -> None:
    known = {setting.name for setting in SETTINGS}
    assert set(re.findall(r"`(peer\.[a-z_]+)`", PAGE)) <= known
