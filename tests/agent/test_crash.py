"""Agents that are killed, and relays that are: nothing is lost, nothing is shown twice, order holds."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.agent.test_client import DEADLINE_S, address_of_new, run, url_of
from tests.relay.harness import Relay

from posthouse.agent import Agent

MESSAGES = 120
LISTEN = """
import sys
from posthouse.cli import main
main(["agent", "listen", "--json", "--as", "bob", *sys.argv[1:]])
"""
SEND = """
import asyncio, sys
from posthouse.agent import Agent

async def send(folder, relay, to, first, last):
    async with Agent(folder, relay) as agent:
        for number in range(int(first), int(last)):
            await agent.send(to, str(number))
            print(number, flush=True)
        await asyncio.Event().wait()

asyncio.run(send(*sys.argv[1:]))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / ".posthouse/agents"


def start(code: str, tmp_path: Path, *words: str) -> subprocess.Popen[str]:
    environ = {name: text for name, text in os.environ.items() if not name.startswith("POSTHOUSE_")}
    return subprocess.Popen(
        [sys.executable, "-c", code, *words], cwd=tmp_path, env=environ, stdout=subprocess.PIPE, text=True
    )


def kill(process: subprocess.Popen[str]) -> list[str]:
    """Kill it; the whole lines that it printed and nobody read."""
    process.send_signal(signal.SIGKILL)
    assert process.stdout is not None
    # From the stream that lines were read from: it may have taken more than these from the pipe, and the half of one.
    with process.stdout as stdout:
        printed = stdout.read()
    process.wait(60)
    return [line for line in printed.splitlines(keepends=True) if line.endswith("\n")]


def test_a_listener_that_is_killed_again_and_again_loses_nothing_and_keeps_nothing_twice(
    relay: Relay, tmp_path: Path, folder: Path
):
    async def story() -> None:
        theirs = await address_of_new(folder / "bob", url_of(relay))
        async with Agent(folder / "alice", url_of(relay)) as alice:
            sending = asyncio.create_task(_send_all(alice, theirs))
            shown: list[str] = []
            for count in (5, 20, 40):
                listener = start(LISTEN, tmp_path, "--relay", url_of(relay))
                assert listener.stdout is not None
                for _ in range(count):
                    shown.append(await asyncio.to_thread(listener.stdout.readline))
                shown += await asyncio.to_thread(kill, listener)
            ids = await sending
            async with Agent(folder / "bob", url_of(relay)) as bob:
                for id in ids:
                    assert await alice.wait_state(theirs, id, ["delivered"], DEADLINE_S) == "delivered"
                kept = bob.book.history(None, MESSAGES * 2)
            assert [item["text"] for item in kept] == [str(number) for number in range(MESSAGES)]
            # Shown at least once, in order; at most the one that was being shown at a kill is shown again.
            texts = [int(json.loads(line)["text"]) for line in shown]
            assert texts == sorted(texts)
            assert len(texts) - len(set(texts)) <= 3

    run(story())


async def _send_all(agent: Agent, to: str) -> list[str]:
    return [await agent.send(to, str(number)) for number in range(MESSAGES)]


def test_a_sender_that_is_killed_again_and_again_sends_everything_in_order(relay: Relay, tmp_path: Path, folder: Path):
    async def story() -> None:
        async with Agent(folder / "bob", url_of(relay)) as bob:
            theirs, first = await bob.wait_connected(DEADLINE_S), 0
            for count in (7, 30, 1):
                words = (str(folder / "alice"), url_of(relay), theirs, str(first), str(first + 40))
                sender = start(SEND, tmp_path, *words)
                assert sender.stdout is not None
                for _ in range(count):
                    await asyncio.to_thread(sender.stdout.readline)
                await asyncio.to_thread(kill, sender)
                async with Agent(folder / "alice") as alice:
                    # What was being posted when it was killed may be there or not.
                    first = len(alice.book.history(None, 1_000))
            async with Agent(folder / "alice", url_of(relay)) as alice:
                for item in alice.book.history(None, 1_000):
                    assert await alice.wait_state(theirs, item["id"], ["delivered"], DEADLINE_S) == "delivered"
            kept = bob.book.history(None, 1_000)
            assert [item["text"] for item in kept] == [str(number) for number in range(first)]

    run(story())


def test_a_relay_that_goes_and_comes_in_between_loses_nothing(relay: Relay, tmp_path: Path, folder: Path):
    async def story() -> None:
        told: list[Any] = []
        async with Agent(folder / "bob", url_of(relay), on_happening=told.append) as bob:
            theirs = await bob.wait_connected(DEADLINE_S)
            async with Agent(folder / "alice", url_of(relay)) as alice:
                sending = asyncio.create_task(_send_all(alice, theirs))
                for _ in range(2):
                    await asyncio.to_thread(relay.restart)
                    await bob.wait_connected(DEADLINE_S)
                for id in await sending:
                    assert await alice.wait_state(theirs, id, ["delivered"], DEADLINE_S) == "delivered"
            kept = bob.book.history(None, MESSAGES * 2)
            assert [item["text"] for item in kept] == [str(number) for number in range(MESSAGES)]

    run(story())
