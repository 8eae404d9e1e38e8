"""Imported into a running gateway: what waits is sent, what may have been sent is not, the dead raise no alarm."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest
from tests.gateway.conftest import House, Watch, count
from tests.gateway.importing.test_openclaw import write
from tests.gateway.net import AskingChannel, NetChannel, Network

from posthouse.config import load
from posthouse.control.catalogue import run
from posthouse.control.operation import Context
from posthouse.engine.engine import Engine
from posthouse.gateway.importing import page
from posthouse.gateway.importing.entry import Entry
from posthouse.gateway.importing.openclaw import read
from posthouse.mailbox.message import State


def take(engine: Engine, folder: Path) -> list[str]:
    """Import a folder as the command does, through a running server."""
    now = engine.now()
    entries = [
        page.plain(found, now, engine.store.policies)
        for found in read(folder, now, engine.store.policies)
        if isinstance(found, Entry)
    ]
    context = Context(engine, load({}, folder), "operator:test", lambda done, total, doing: None)
    parameters = {"root": str(folder), "now": now, "entries": {"entries": entries}}
    answer: Any = run(context, "openclaw.import", parameters)
    return [str(became) for became in answer["entries"]]


@pytest.mark.parametrize("kind", [NetChannel, AskingChannel])
def test_what_waits_is_sent_and_what_may_have_been_sent_is_not(
    tmp_path: Path, kind: type[NetChannel], caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        async with Network(knows_keys=kind is NetChannel) as network:
            channel = kind(network.port, idempotent=kind is NetChannel)
            async with House(tmp_path / "a.db").gateway(channel) as gateway:
                engine = gateway.engine
                queue = tmp_path / "claw" / "delivery-queue"
                (queue / "failed").mkdir(parents=True)
                now_ms = engine.now() // 1_000
                common = {"channel": "net", "enqueuedAt": now_ms - 1_000}
                for number in range(3):
                    write(queue, f"w{number}", to="chat", payloads=[{"text": f"re {number}"}], **common)
                write(queue, "begun", to="chat", recoveryState="unknown_after_send", **common)
                write(queue / "failed", "dead", to="chat", retryCount=5, lastError="chat not found", **common)
                assert await asyncio.to_thread(take, engine, queue.parent) == ["imported"] * 5
                watch = Watch(engine)
                await watch.until(lambda: count(engine, "outbound", State.DELIVERED) == 3)
                assert sorted(arrived.text for arrived in network.arrived) == ["re 0", "re 1", "re 2"]
                assert count(engine, "outbound", State.UNCERTAIN) == 1
            # The next start settles first what is uncertain. Nobody knows our key for this one, which proves nothing.
            channel = kind(network.port, idempotent=kind is NetChannel)
            async with House(tmp_path / "a.db").gateway(channel) as gateway:
                engine = gateway.engine
                write(queue, "w3", to="chat", payloads=[{"text": "re 3"}], **common)
                assert (await asyncio.to_thread(take, engine, queue.parent)).count("imported") == 1
                watch = Watch(engine)
                await watch.until(lambda: count(engine, "outbound", State.DELIVERED) == 4)
                assert count(engine, "outbound", State.UNCERTAIN) == 1
                assert len(network.arrived) == 4

    with caplog.at_level(logging.INFO):
        asyncio.run(story())
    assert not [record for record in caplog.records if "dead letter" in record.getMessage()]


def test_an_imported_message_that_dies_here_does_raise_an_alarm(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        async with Network() as network:
            network.refusals["chat"] = "permanent"
            async with House(tmp_path / "a.db").gateway(NetChannel(network.port, idempotent=True)) as gateway:
                queue = tmp_path / "claw" / "delivery-queue"
                queue.mkdir(parents=True)
                write(queue, "w", to="chat", channel="net", enqueuedAt=gateway.engine.now() // 1_000)
                assert await asyncio.to_thread(take, gateway.engine, queue.parent) == ["imported"]
                await Watch(gateway.engine).until(lambda: count(gateway.engine, "outbound", State.DEAD) == 1)

    asyncio.run(story())
    assert [record for record in caplog.records if "dead letter w" in record.getMessage()]
