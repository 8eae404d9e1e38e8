"""Letters: what is stored is what was given, names keep apart what is apart, and what is odd is refused in words."""

from __future__ import annotations

import contextlib
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from posthouse.config import load
from posthouse.errors import ConfigError, InvalidInput
from posthouse.gateway.letter import (
    Inbound,
    Media,
    Outbound,
    Part,
    Reply,
    outbound_mailbox,
    parts_from_json,
    reply_id,
    tidy,
)
from posthouse.gateway.meter import Meter, Place
from posthouse.mailbox.event import Event
from posthouse.mailbox.message import Message, check_message

names = st.text(st.characters(blacklist_categories=["Cs", "Cc"]), min_size=1, max_size=30)
texts = st.text(st.characters(blacklist_categories=["Cs"]), max_size=50)
media = st.builds(Media, names, texts, texts)
metadata = st.dictionaries(names, st.none() | st.booleans() | st.integers(-(2**50), 2**50) | texts, max_size=3)
parts = st.builds(Part, texts, st.lists(media, max_size=2).map(tuple), metadata).filter(
    lambda part: bool(part.text or part.media or part.extra)
)
inbounds = st.builds(
    Inbound, id=names, channel=names, conversation=names, sender=texts, text=texts, account=names, session=names,
    thread=texts, reply_to=texts, media=st.lists(media, max_size=2).map(tuple), control=st.booleans(),
    metadata=metadata, tenant=names,
)  # fmt: skip
outbounds = st.builds(
    Outbound, id=names, channel=names, to=names, parts=st.lists(parts, min_size=1, max_size=3).map(tuple),
    account=names, thread=texts, reply_to=texts, origin=names, cause=st.none() | names, session=texts, tenant=names,
    metadata=metadata, expires_at=st.none() | st.integers(1, 2**50),
)  # fmt: skip


@given(inbounds)
def test_an_inbound_message_comes_back_as_it_was(letter: Inbound) -> None:
    message = letter.message()
    check_message(message)
    assert Inbound.from_message(message) == letter
    assert letter.post().quiet == (bool(letter.text.strip()) and not letter.media and not letter.control)


@given(outbounds)
def test_an_outbound_message_comes_back_as_it_was(letter: Outbound) -> None:
    message = letter.message()
    check_message(message)
    assert Outbound.from_message(message) == letter


@given(st.tuples(names, names, names), st.tuples(names, names, names))
def test_other_conversations_have_other_names(one: tuple[str, str, str], other: tuple[str, str, str]) -> None:
    def source(place: tuple[str, str, str]) -> str:
        return Inbound("1", place[0], place[2], account=place[1]).source

    assert (source(one) == source(other)) == (one == other)


def test_a_session_is_channel_account_conversation_and_thread_unless_it_is_named() -> None:
    plain = Inbound("1", "telegram", "42", account="bot")
    assert plain.lane == "telegram:bot:42"
    assert Inbound("1", "telegram", "42", account="bot", thread="7").lane == "telegram:bot:42:7"
    assert Inbound("1", "telegram", "42", session="agent:main:main").lane == "agent:main:main"
    assert outbound_mailbox("a/b", "c%") == "a%2Fb/c%25"


def test_names_that_the_engine_cannot_take_are_hashed_and_stay_the_same() -> None:
    long = "x" * 600
    assert tidy(long) == tidy(long)
    assert len(tidy(long)) < 100
    assert tidy("a\nb") != tidy("a\rb")
    assert tidy("plain") == "plain"
    check_message(Inbound("1", "net", "chat", sender="\x00" * 900, session=long).message())


@given(
    st.recursive(st.none() | st.booleans() | st.integers() | texts, lambda x: st.lists(x) | st.dictionaries(texts, x))
)
def test_a_body_of_somebody_else_is_refused_in_words_and_never_crashes(value: Any) -> None:
    try:
        body = orjson.dumps(value)
    except TypeError:
        return
    for make in (Inbound.from_message, Outbound.from_message):
        with contextlib.suppress(InvalidInput):
            assert make(Message("inbound", "default", "1", body)).id == "1"


@pytest.mark.parametrize("value", [None, {}, [], [{}], [{"text": 1}], [{"txt": "a"}], [{"text": "a"}] * 101, ["a"]])
def test_parts_that_are_none_are_refused(value: Any) -> None:
    with pytest.raises(InvalidInput):
        parts_from_json(value)


def test_replies_to_the_same_question_have_the_same_ids_and_others_do_not() -> None:
    asked = Inbound("1", "net", "chat")
    ids = {reply_id(asked.ref, n) for n in range(3)}
    assert len(ids) == 3
    assert Reply.of("a").answering(asked, 0, 0).id == reply_id(asked.ref, 0)
    assert reply_id(Inbound("1", "net", "other").ref, 0) not in ids


def test_what_the_meter_counts_is_of_the_last_five_minutes_and_bounded() -> None:
    meter = Meter()
    posted = Event(0, "posted", "inbound", "default", "chat", sender="net/default/chat")
    meter.count([posted] * 3, 0.0)
    meter.count([posted._replace(event="died"), posted._replace(desk="relay")], 100.0)
    by_lane = meter.by(lambda place: (place.lane,), 150.0)
    assert by_lane == {("chat",): {"posted": 3, "died": 1}}
    assert meter.by(lambda place: (place.lane,), 350.0) == {("chat",): {"died": 1}}
    assert meter.totals["inbound", "net/default", "posted"] == 3
    meter.count([posted._replace(lane=f"chat{n}") for n in range(30_000)], 150.0)
    assert meter.by(lambda place: (place.desk,), 160.0)["inbound",]["posted"] == 30_003
    assert len(meter.by(lambda place: Place(*place), 160.0)) <= 20_010


def test_sections_of_channels_have_a_kind_and_an_account_and_hide_the_rest(tmp_path: Any) -> None:
    file = tmp_path / "posthouse.toml"
    file.write_text(
        '[channel.telegram]\ntoken_file = "secret"\n[channel.work]\nkind = "telegram"\nurl = "hidden"\n'
        "[gateway]\ndebounce_s = '300ms'\n"
    )
    config = load({}, tmp_path)
    assert [(c.name, c.kind, c.account) for c in config.channels] == [
        ("telegram", "telegram", "default"), ("work", "telegram", "work"),
    ]  # fmt: skip
    assert config.channels[1].values == {"url": "hidden"}
    rows = {row["name"]: row["value"] for row in config.explain()}
    assert rows["channel.work.url"] == "(hidden)"
    assert rows["channel.work.kind"] == "telegram"
    assert (config.policies["inbound"].quiet_s, config.policies["inbound"].quiet_max_s) == (0.3, 1.5)
    for wrong, words in (
        ("[channel.A]", "lower-case"),
        ('[channel.a]\nkind = "b"\naccount = "c"\n[channel.c]\nkind = "b"', "the same account 'c' of b"),
        ("channel.a = 1", r"write \[channel.a\]"),
        ("[channel.a]\naccount = 'a/b'", "account is letters"),
    ):
        file.write_text(wrong)
        with pytest.raises(ConfigError, match=words):
            load({}, tmp_path)
