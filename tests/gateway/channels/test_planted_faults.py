"""Channels with faults: the test kit finds each of them."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from tests.gateway.channels.setups import setup
from tests.gateway.channels.websocket_bench import TOKEN, WebSocketBench

from posthouse.gateway.channel import Port, Receipt, SendError, Sending, Sent, Transient, Unclear
from posthouse.gateway.channels import bench
from posthouse.gateway.channels import conformance as kit
from posthouse.gateway.channels.websocket import Live, WebSocket
from posthouse.gateway.letter import Inbound


class Faulty(WebSocket):
    """A channel that works; each fault below breaks one thing."""


class TellsTooEarly(Faulty):
    async def receive(self, inbound: Inbound) -> Receipt:
        assert self._live is not None
        await self._live._tell({"type": "received", "id": inbound.id})
        return await super().receive(inbound)


class NewIds(Faulty):
    count = 0

    async def receive(self, inbound: Inbound) -> Receipt:
        NewIds.count += 1
        return await super().receive(Inbound(**{**_fields(inbound), "id": f"{inbound.id}-{NewIds.count}"}))


class NoConversation(Faulty):
    async def receive(self, inbound: Inbound) -> Receipt:
        return await super().receive(Inbound(**{**_fields(inbound), "conversation": inbound.id}))


class SilentAboutCuts(Faulty):
    def went_down(self, reason: str, error: str) -> None:
        self._is_up = False


class Repeats(Faulty):
    def connection(self) -> Any:
        live = super().connection()
        return None if live is None else _Twice(live)


class Guesses(Faulty):
    def connection(self) -> Any:
        live = super().connection()
        return None if live is None else _Guess(live)


class Optimist(Faulty):
    def connection(self) -> Any:
        live = super().connection()
        return None if live is None else _Hope(live)


class Captured(Faulty):
    """Keeps the first connection and hands out the present one whenever it is used."""

    def connection(self) -> Any:
        return _Always(self) if self.is_up else None


class Chatty(Faulty):
    async def start(self, port: Port) -> None:
        logging.getLogger("posthouse.gateway").debug("connecting with %s", TOKEN)
        await super().start(port)


class LeavesTasks(Faulty):
    kept: list[asyncio.Task[Any]] = []  # noqa: RUF012

    async def start(self, port: Port) -> None:
        self.kept.append(asyncio.create_task(asyncio.sleep(60)))
        await super().start(port)


class SpeaksAfterTheEnd(Faulty):
    async def close(self) -> None:
        port = self._port
        await super().close()
        if port is not None:
            asyncio.get_running_loop().call_soon(port.down, "closed", "too late")


def _fields(inbound: Inbound) -> dict[str, Any]:
    return {name: getattr(inbound, name) for name in Inbound.__slots__}


class _Wrapped:
    def __init__(self, live: Live) -> None:
        self.live = live


class _Twice(_Wrapped):
    async def send(self, sending: Sending) -> Sent:
        await self.live.send(sending)
        changed = Sending(sending.outbound, sending.index, f"{sending.key}-{id(self)}", sending.attempt)
        return await self.live.send(changed)


class _Guess(_Wrapped):
    async def send(self, sending: Sending) -> Sent:
        try:
            return await self.live.send(sending)
        except Unclear as error:
            raise Transient(str(error)) from None


class _Hope(_Wrapped):
    async def send(self, sending: Sending) -> Sent:
        try:
            return await self.live.send(sending)
        except SendError:
            return Sent()


class _Always:
    def __init__(self, channel: WebSocket) -> None:
        self._channel = channel

    async def send(self, sending: Sending) -> Sent:
        live = self._channel._live
        assert live is not None
        return await live.send(sending)


FAULTS: list[tuple[type[Faulty], kit.Check]] = [
    (TellsTooEarly, kit.the_network_is_told_when_it_is_durable_and_not_before),
    (TellsTooEarly, kit.what_was_not_kept_comes_again),
    (NewIds, kit.a_message_that_comes_twice_has_one_id),
    (NoConversation, kit.what_comes_is_handed_over),
    (SilentAboutCuts, kit.a_cut_connection_is_made_again),
    (Repeats, kit.parts_arrive_in_order),
    (Repeats, kit.a_repeated_part_arrives_once),
    (Guesses, kit.silence_is_unclear),
    (Optimist, kit.refusals_are_what_they_are),
    (Optimist, kit.silence_is_unclear),
    (Captured, kit.a_cut_connection_is_made_again),
    (Chatty, kit.it_starts_and_ends),
    (LeavesTasks, kit.it_starts_and_ends),
    (SpeaksAfterTheEnd, kit.what_comes_is_handed_over),
]


@pytest.mark.parametrize(("fault", "check"), FAULTS, ids=[f"{f.__name__}-{kit.name_of(c)}" for f, c in FAULTS])
def test_the_kit_finds_the_fault(fault: type[Faulty], check: kit.Check, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bench, "DEADLINE_S", 1.5)

    class FaultyBench(WebSocketBench):
        def channel(self) -> WebSocket:
            values = {"url": f"ws://127.0.0.1:{self.port}/ws", "token_env": "TOKEN", "reconnect_s": 0.05}
            return fault(setup("websocket", values, TOKEN=TOKEN))

    with pytest.raises(kit.NotConforming):
        asyncio.run(kit.tried(check, FaultyBench))
