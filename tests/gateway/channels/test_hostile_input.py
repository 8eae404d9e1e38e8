"""Whatever a network says, a channel makes a message of it that can be stored, or refuses it; nothing else."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.gateway.channels.setups import setup
from tests.gateway.channels.telegram_bench import TOKEN, TelegramBench
from tests.gateway.channels.websocket_bench import WebSocketBench

from posthouse.errors import InvalidInput
from posthouse.gateway.channels.bench import trial
from posthouse.gateway.channels.botapi import inbound_of
from posthouse.gateway.channels.console import inert
from posthouse.gateway.channels.plain import FIELDS, inbound_from
from posthouse.gateway.channels.telegram import Telegram
from posthouse.gateway.channels.websocket import WebSocket
from posthouse.gateway.letter import Inbound

TEXTS = st.text(max_size=20)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
MESSAGES = st.fixed_dictionaries({}, optional=dict.fromkeys(FIELDS, VALUES | TEXTS))
NAMES = ["message_id", "chat", "from", "text", "caption", "entities", "photo", "document", "voice", "sticker",
         "reply_to_message", "message_thread_id", "is_topic_message", "sender_chat", "date"]  # fmt: skip
PARTS = st.fixed_dictionaries({}, optional=dict.fromkeys(NAMES, VALUES))
NEARLY = st.fixed_dictionaries(
    {
        "message_id": st.integers(1, 99),
        "chat": st.fixed_dictionaries({"id": st.integers(-(2**53), 2**53), "type": TEXTS}),
    },
    optional={name: VALUES | PARTS for name in NAMES if name not in ("message_id", "chat")},
)
UPDATES = st.fixed_dictionaries(
    {"update_id": st.integers(0, 2**31)},
    optional={"message": NEARLY | PARTS | VALUES, "channel_post": NEARLY | VALUES, "callback_query": PARTS | VALUES},
)

SOCKET = WebSocket(setup("websocket", {"url": "ws://localhost"}))
BOT = Telegram(setup("telegram", {"token_env": "T"}, T=TOKEN))


def stored(inbound: Inbound) -> Inbound:
    """As it comes back from the store."""
    return Inbound.from_message(inbound.message())


@settings(deadline=None)
@given(MESSAGES | VALUES)
def test_any_object_is_a_message_or_refused(value: Any):
    try:
        found = inbound_from(SOCKET, value)
        again = stored(found)
    except InvalidInput:
        return
    assert (again.id, again.text, again.conversation) == (found.id, found.text, found.conversation)


@settings(max_examples=100, deadline=None)
@given(UPDATES)
def test_any_update_is_a_message_or_passed_over(update: dict[str, Any]):
    try:
        found = inbound_of(update, BOT)
    except (InvalidInput, KeyError, TypeError, AttributeError):
        # What ``updated`` passes over, with a word in the log.
        return
    if found is not None:
        try:
            again = stored(found)
        except InvalidInput:
            return
        assert (again.id, again.text) == (found.id, found.text)


@settings(max_examples=10, deadline=None)
@given(st.lists(UPDATES, max_size=5))
def test_a_bot_outlives_any_updates(updates: list[dict[str, Any]]):
    async def story() -> None:
        bench = TelegramBench()
        async with trial(bench) as found:
            await found.start()
            for update in updates:
                await bench.update({name: value for name, value in update.items() if name != "update_id"})
            await bench.bring("behind them")
            await found.desk.changes.until(
                lambda: any(i.text == "behind them" for i in found.desk.kept()), "the last is kept"
            )
            assert found.desk.downs == []

    asyncio.run(story())


@settings(max_examples=10, deadline=None)
@given(st.lists(VALUES | MESSAGES, max_size=8))
def test_a_socket_outlives_any_frames(values: list[Any]):
    async def story() -> None:
        bench = WebSocketBench()
        async with trial(bench) as found:
            await found.start()
            for value in values:
                await bench.say(json.dumps(value))
                await bench.say(json.dumps({"type": "message", **value} if isinstance(value, dict) else [value]))
            await bench.bring("behind them")
            await found.desk.changes.until(
                lambda: any(i.text == "behind them" for i in found.desk.kept()), "the last is kept"
            )
            assert found.desk.downs == []

    asyncio.run(story())


@given(st.text())
def test_nothing_that_is_printed_holds_a_control_character(text: str):
    assert all(character == "\n" or character.isprintable() for character in inert(text))
