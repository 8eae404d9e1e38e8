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


LOOPS = [pytest.param(uvloop.run, id="uvloop"), pytest.param(asyncio.run, id="asyncio", marks=pytest.mark.slow)]


@pytest.mark.parametrize("run", LOOPS)
@pytest.mark.parametrize("bench", BENCHES.values(), ids=BENCHES.keys())
@pytest.mark.parametrize("check", CHECKS, ids=name_of)
def test_it_is_a_channel(check: Check, bench: Callable[[], Bench], run: Callable[..., None]):
    try:
        run(tried(check, bench))
    except Lacking as lacking:
        pytest.skip(str(lacking))
