"""What is valid input for a message: a clear error, whatever comes."""

from __future__ import annotations

from collections import UserDict
from typing import Any

import pytest

from posthouse.errors import InvalidInput
from posthouse.mailbox.message import (
    FINISHED,
    HEADERS_BYTES_MAX,
    IN_FLIGHT,
    IN_LANE,
    INSTANT_MAX,
    NAME_BYTES_MAX,
    SET_ASIDE,
    UNFINISHED,
    Message,
    Ref,
    State,
    check_instant,
    check_message,
    check_name,
)

GOOD = Message(
    "plain",
    "mailbox",
    "id",
    b"body",
    "sender",
    "lane",
    "kind",
    "key",
    {"h": "1"},
    "cause",
    due_at=5,
    expires_at=INSTANT_MAX,
)
NAMES = ("desk", "mailbox", "id", "sender", "lane", "kind", "batch_key", "cause")


def changed(**fields: Any) -> Message:
    return GOOD._replace(**fields)


def test_a_good_message_passes() -> None:
    check_message(GOOD)
    check_message(Message("d", "m", "i"))
    assert GOOD.ref == Ref("plain", "mailbox", "sender", "id")


@pytest.mark.parametrize("field", NAMES)
@pytest.mark.parametrize("character", ["\x00", "\n", "\t", "\x1f", "\x7f", "\x80", "\x9f"])
def test_a_control_character_in_a_name_is_refused(field: str, character: Any) -> None:
    with pytest.raises(InvalidInput, match=f"{field} holds a control character"):
        check_message(changed(**{field: f"a{character}b"}))


@pytest.mark.parametrize("field", NAMES)
def test_a_name_of_10_mb_is_refused_without_repeating_it(field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        check_message(changed(**{field: "x" * 10_000_000}))
    assert str(caught.value) == f"{field} is 10000000 characters long; at most 512 bytes are allowed"


def test_a_name_is_measured_in_bytes() -> None:
    check_name("id", "x" * NAME_BYTES_MAX)
    check_name("id", "ü" * (NAME_BYTES_MAX // 2))
    with pytest.raises(InvalidInput, match="id is 514 bytes long"):
        check_name("id", "ü" * (NAME_BYTES_MAX // 2 + 1))
    with pytest.raises(InvalidInput, match="id is 513 characters long"):
        check_name("id", "x" * (NAME_BYTES_MAX + 1))


@pytest.mark.parametrize("field", NAMES)
@pytest.mark.parametrize("value", ["\ud800", "a\udfffb", "\udc80" * 200])
def test_a_lone_surrogate_is_no_text(field: str, value: Any) -> None:
    with pytest.raises(InvalidInput, match=f"{field} holds a lone surrogate"):
        check_message(changed(**{field: value}))


@pytest.mark.parametrize("field", NAMES)
@pytest.mark.parametrize("value", [b"bytes", 7, 1.5, True, ["a"], {"a": 1}, object()])
def test_a_name_of_the_wrong_type_is_refused(field: str, value: Any) -> None:
    with pytest.raises(InvalidInput, match=f"{field} must be a string"):
        check_message(changed(**{field: value}))


@pytest.mark.parametrize("field", ["desk", "mailbox", "id"])
def test_what_names_a_message_must_not_be_empty(field: str) -> None:
    with pytest.raises(InvalidInput, match=f"{field} must not be empty"):
        check_message(changed(**{field: ""}))


@pytest.mark.parametrize("field", ["sender", "lane", "kind", "batch_key"])
def test_the_rest_may_be_empty(field: str) -> None:
    check_message(changed(**{field: ""}))


@pytest.mark.parametrize("value", ["ä", "名前", "🦉", "a b", "a\u2028b", "\u200b", "/../", "'; drop table--", "%_"])
def test_text_of_any_language_is_a_name(value: str) -> None:
    check_message(GOOD._replace(mailbox=value, id=value, lane=value))


@pytest.mark.parametrize("body", ["text", None, 7, bytearray(b"x"), memoryview(b"x"), [1]])
def test_a_body_is_bytes_and_nothing_like_it(body: Any) -> None:
    with pytest.raises(InvalidInput, match="body must be bytes"):
        check_message(GOOD._replace(body=body))


@pytest.mark.parametrize("field", ["due_at", "expires_at"])
@pytest.mark.parametrize("value", [-1, -(10**30), INSTANT_MAX + 1, 10**30])
def test_an_instant_out_of_range_is_refused(field: str, value: Any) -> None:
    with pytest.raises(InvalidInput, match=f"{field} is out of range"):
        check_message(changed(**{field: value}))


@pytest.mark.parametrize("field", ["due_at", "expires_at"])
@pytest.mark.parametrize("value", [1.0, "2026-01-01", True, float("nan")])
def test_an_instant_of_the_wrong_type_is_refused(field: str, value: Any) -> None:
    with pytest.raises(InvalidInput, match=f"{field} must be whole microseconds"):
        check_message(changed(**{field: value}))


def test_the_bounds_of_time_are_instants() -> None:
    check_instant("at", 0)
    check_instant("at", INSTANT_MAX)


@pytest.mark.parametrize("headers", [[("a", "b")], "a=b", 7])
def test_headers_are_a_mapping(headers: Any) -> None:
    with pytest.raises(InvalidInput, match="headers must be a mapping"):
        check_message(GOOD._replace(headers=headers))


@pytest.mark.parametrize(
    ("headers", "complaint"),
    [
        ({"a": 1}, "header 'a' must be a string"),
        ({"a": None}, "header 'a' must be a string"),
        ({1: "a"}, "header name must be a string"),
        ({"": "a"}, "header name must not be empty"),
        ({"a\n": "a"}, "header name holds a control character"),
        ({"a": "\ud800"}, "header 'a' holds a lone surrogate"),
        ({"a": "x" * HEADERS_BYTES_MAX}, f"headers take {HEADERS_BYTES_MAX + 1} bytes"),
        ({f"h{n}": "x" * 100 for n in range(200)}, "headers take"),
    ],
)
def test_bad_headers_are_refused_by_name(headers: Any, complaint: str) -> None:
    with pytest.raises(InvalidInput, match=complaint):
        check_message(GOOD._replace(headers=headers))


def test_any_mapping_of_text_is_headers() -> None:
    check_message(GOOD._replace(headers=UserDict({"a": "line\nbreak", "ü": ""})))
    check_message(GOOD._replace(headers={"a": "x" * (HEADERS_BYTES_MAX - 1)}))


@pytest.mark.parametrize("thing", [None, "message", tuple(GOOD), {"id": "a"}])
def test_what_is_no_message_is_refused(thing: Any) -> None:
    with pytest.raises(InvalidInput, match="expected a Message"):
        check_message(thing)


def test_every_state_is_finished_or_not_and_in_a_lane_or_aside() -> None:
    assert frozenset(State) == UNFINISHED | FINISHED
    assert not UNFINISHED & FINISHED
    assert UNFINISHED == IN_LANE | SET_ASIDE
    assert not IN_LANE & SET_ASIDE
    assert IN_FLIGHT < IN_LANE
