"""Real channels in a real gateway while their connections break, idle and in the middle of sends.

Where the other side knows keys, or can be asked, every message is answered exactly once and in order. Where it does
neither, none is answered twice, and each answer that is missing is uncertain.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from tests.gateway.channels.telegram_bench import TelegramBench
from tests.gateway.channels.websocket_bench import WebSocketBench
from tests.gateway.conftest import House, Watch, count, messages

from posthouse.gateway.answer import Work
from posthouse.gateway.channels.bench import Bench
from posthouse.gateway.courier import SendLimits
from posthouse.gateway.letter import INBOUND_DESK, OUTBOUND_DESK, Outbound
from posthouse.gateway.worker import Limits
from posthouse.mailbox.message import State

SESSIONS = 20
EACH = 5
ALL = SESSIONS * EACH
# Few at a time: a break takes all that are under way with it, and there are to be many breaks.
SEND = SendLimits(side_by_side=6, drain_per_s=0, grace_s=0.2, breaker_failures=0, reconcile_s=0.2)


class Rough:
    """What arrived where, and how often something broke."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.arrived_at: list[tuple[str, str]] = []
        self.breaks = 0

    def breaks_now(self) -> bool:
        self.breaks += (broken := self.rng.random() < 0.1)
        return broken


class RoughSocket(WebSocketBench):
    """Breaks before it takes a part, or after that and before it answers."""

    def __init__(self, seed: int, *, knows: bool, answers: bool) -> None:
        super().__init__({"idempotent": knows, "answer_s": 5})
        self.rough = Rough(seed)
        self._knows, self._answers = knows, answers

    async def _sent(self, socket: web.WebSocketResponse, value: dict[str, Any]) -> None:
        if self.rough.breaks_now():
            self._transports[socket].abort()
            return
        if value["key"] not in self._keys or not self._knows:
            self._keys.add(value["key"])
            self.rough.arrived_at.append((value["to"], value["text"]))
        if self.rough.breaks_now():
            self._transports[socket].abort()
            return
        await socket.send_str(json.dumps({"type": "sent", "key": value["key"]}))

    async def _frame(self, socket: web.WebSocketResponse, value: dict[str, Any]) -> None:
        if value["type"] == "ask" and not self._answers:
            await socket.send_str(json.dumps({"type": "known", "key": value["key"], "state": "unknown"}))
        else:
            await super()._frame(socket, value)

    async def bring_to(self, session: int, number: int) -> None:
        value = {"type": "message", "id": f"m{session}-{number}", "conversation": f"room{session}", "from": "ann"}
        value["text"] = f"{session}-{number}"
        self._unconfirmed[value["id"]] = value
        try:
            await self.say(value)
        except OSError:
            return  # it is brought again when somebody connects


class RoughBot(TelegramBench):
    """The same of a Bot API."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.rough = Rough(seed)

    def _sent(self, request: web.Request, method: str, values: dict[str, Any]) -> web.Response:
        assert request.transport is not None
        if self.rough.breaks_now():
            request.transport.abort()
            return web.Response()
        self.rough.arrived_at.append((f"room{values['chat_id']}", values["text"]))
        if self.rough.breaks_now():
            request.transport.abort()
        return web.json_response({"ok": True, "result": {"message_id": len(self.rough.arrived_at)}})

    async def cut(self) -> None:
        self._abort()

    async def bring_to(self, session: int, number: int) -> None:
        person, chat = {"id": 1, "first_name": "Ann"}, {"id": session, "type": "private"}
        message = {"message_id": number + 1, "from": person, "chat": chat, "text": f"{session}-{number}"}
        await self.update({"message": message})


async def answer(work: Work) -> str:
    await asyncio.sleep(0.01)
    return work.text


async def converse(bench: Any, store: Path) -> set[str]:
    """Everybody says all they have to say while connections break; what is uncertain in the end."""
    assert isinstance(bench, Bench)
    await bench.open()
    try:
        work = Limits(slots=SESSIONS, grace_s=0.2)
        async with House(store).gateway(bench.channel(), handler=answer, work=work, send=SEND) as gateway:
            engine = gateway.engine
            watch = Watch(engine)
            cutting = asyncio.create_task(cut_now_and_then(bench))
            for number in range(EACH):
                for session in range(SESSIONS):
                    await bench.bring_to(session, number)
            await watch.until(
                lambda: (
                    count(engine, INBOUND_DESK, State.DELIVERED) == ALL
                    and count(engine, OUTBOUND_DESK, State.DELIVERED, State.UNCERTAIN) == ALL
                ),
                90,
            )
            cutting.cancel()
            await asyncio.gather(cutting, return_exceptions=True)
            return {
                Outbound.from_message(view.message).parts[0].text
                for view in messages(engine, OUTBOUND_DESK, State.UNCERTAIN)
            }
    finally:
        await bench.close()


async def cut_now_and_then(bench: Any) -> None:
    """Break idle connections too."""
    while True:
        await asyncio.sleep(bench.rough.rng.uniform(0.1, 0.4))
        await bench.cut()


def check(rough: Rough, uncertain: set[str], *, exactly_once: bool) -> None:
    assert rough.breaks > 5
    twice = [what for what, times in Counter(rough.arrived_at).items() if times > 1]
    assert not twice, twice
    missing = {f"{s}-{n}" for s in range(SESSIONS) for n in range(EACH)} - {text for _, text in rough.arrived_at}
    assert missing <= uncertain, f"lost: {missing - uncertain}"
    if exactly_once:
        assert not uncertain
        assert not missing
    for session in range(SESSIONS):
        numbers = [int(text.partition("-")[2]) for room, text in rough.arrived_at if room == f"room{session}"]
        assert numbers == sorted(numbers), f"room{session}: {numbers}"


SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 10))]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("knows", "answers"), [(True, False), (False, True), (False, False)])
def test_a_socket_that_breaks(tmp_path: Path, seed: int, knows: bool, answers: bool):
    bench = RoughSocket(seed, knows=knows, answers=answers)
    uncertain = asyncio.run(converse(bench, tmp_path / "gateway.db"))
    check(bench.rough, uncertain, exactly_once=knows or answers)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_bot_whose_calls_break(tmp_path: Path, seed: int):
    bench = RoughBot(seed)
    uncertain = asyncio.run(converse(bench, tmp_path / "gateway.db"))
    check(bench.rough, uncertain, exactly_once=False)
