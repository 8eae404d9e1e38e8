"""Every channel that comes with the gateway does what every channel must."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
import uvloop
from tests.gateway.channels.console_bench import ConsoleBench
from tests.gateway.channels.email_bench import EmailBench
from tests.gateway.channels.pinch_bench import PinchBench
from tests.gateway.channels.telegram_bench import TelegramBench
from tests.gateway.channels.webhook_bench import WebhookBench
from tests.gateway.channels.websocket_bench import WebSocketBench

from posthouse.gateway.channels.conformance import CHECKS, Bench, Check, Lacking, name_of, tried

pytestmark = pytest.mark.filterwarnings("ignore:Requiring AUTH while not requiring TLS")

BENCHES: dict[str, Callable[[], Bench]] = {
    "webhook": WebhookBench,
    "websocket": WebSocketBench,
    "pinch": PinchBench,
    "telegram": TelegramBench,
    "email": EmailBench,
    "console": ConsoleBench,
}

LACKING = {
    ("webhook", "a_cut_connection_is_made_again"): "the network lacks cut",
    ("webhook", "reconcile_does_not_invent"): "the channel does not reconcile",
    ("pinch", "silence_is_unclear"): "the network lacks silent",
    ("telegram", "a_repeated_part_arrives_once"): "the channel is not idempotent",
    ("telegram", "reconcile_does_not_invent"): "the channel does not reconcile",
    ("email", "a_repeated_part_arrives_once"): "the channel is not idempotent",
    ("email", "a_cut_connection_is_made_again"): "the network lacks cut",
    ("console", "the_network_is_told_when_it_is_durable_and_not_before"): "the network lacks told",
    ("console", "what_was_not_kept_comes_again"): "the network lacks told",
    ("console", "a_message_that_comes_twice_has_one_id"): "the network lacks again",
    ("console", "a_repeated_part_arrives_once"): "the channel is not idempotent",
    ("console", "refusals_are_what_they_are"): "the network refuses nothing",
    ("console", "silence_is_unclear"): "the network lacks silent",
    ("console", "a_cut_connection_is_made_again"): "the network lacks cut",
    ("console", "reconcile_does_not_invent"): "the channel does not reconcile",
}
"""What cannot be asked of a network, and why: nothing else may be left out."""
LOOPS = [pytest.param(uvloop.run, id="uvloop"), pytest.param(asyncio.run, id="asyncio", marks=pytest.mark.slow)]


@pytest.mark.parametrize("run", LOOPS)
@pytest.mark.parametrize("bench", BENCHES)
@pytest.mark.parametrize("check", CHECKS, ids=name_of)
def test_it_is_a_channel(check: Check, bench: str, run: Callable[..., None]) -> None:
    lacking = None
    try:
        run(tried(check, BENCHES[bench]))
    except Lacking as error:
        lacking = str(error)
    assert lacking == LACKING.get((bench, name_of(check)))
