"""posthouse gateway: trying it with crashes, how it stands, and what poisoned a lane."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.gateway.conftest import Watch, count
from tests.unit.cli.house import PROGRAM, House

from posthouse.control.operator import open_store
from posthouse.engine.engine import Engine
from posthouse.gateway.letter import Inbound, Outbound, Part
from posthouse.mailbox.message import State

CONFIG = """
[gateway]
handler = "python:tests.gateway.test_cli:handle"
drain_per_s = 0

[desk.inbound]
attempts_max = 2
retry = ["1ms"]
poison = "block"

[relay]
enabled = false

[metrics]
port = 0
"""


async def handle(work: Any) -> str:
    """What the gateway of these tests answers."""
    if work.text == "poison":
        raise RuntimeError("cannot stand it")
    return f"re {work.text}"


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> House:
    monkeypatch.chdir(tmp_path)
    for name in [n for n in os.environ if n.startswith("POSTHOUSE_")]:
        monkeypatch.delenv(name)
    (tmp_path / "posthouse.toml").write_text(CONFIG)
    return House(tmp_path)


@pytest.fixture
def served(house: House) -> Iterator[dict[str, Any]]:
    """`posthouse gateway` in this folder; what it said when it served."""
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with (house.folder / "log").open("w") as log:
        process = subprocess.Popen(
            [*PROGRAM, "gateway", "--json"],
            cwd=house.folder,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    try:
        assert process.stdout is not None
        text = ""
        while not text.endswith("}\n"):
            line = process.stdout.readline()
            assert line, (house.folder / "log").read_text()
            text += line
        yield json.loads(text)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, (house.folder / "log").read_text()
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("crash", [None, "received", "handling", "sending"])
def test_a_message_that_is_tried_is_answered_once_whatever_is_killed(house: House, crash: str | None) -> None:
    told = house.json("gateway", "try", "hello", "again", *([] if crash is None else ["--crash", crash]))
    answers = [step["reply"] for step in told["steps"] if step["step"] == "answer"]
    assert answers == ["hello", "again"]
    assert told["restarts"] == (0 if crash is None else 1)
    steps = [step["step"] for step in told["steps"]]
    assert ("repeated" in steps) == (crash == "sending")
    assert steps.count("delivered") == 4


def test_lines_that_are_typed_are_messages_and_may_ask_for_a_crash(house: House) -> None:
    said = house.run("gateway", "try", input="one\n/crash handling two\n\n").stdout
    assert "    one\n" in said
    assert "the gateway was killed (-9) and is started again" in said
    assert said.index("was killed") < said.index("    two\n")
    assert "--json needs TEXT" in house.run("gateway", "try", "--json", code=2).stderr


def test_a_handler_that_cannot_be_used_is_said_at_once(house: House) -> None:
    said = house.run("gateway", "try", "--handler", "python:no.such:thing", "hello", code=2).stderr
    assert "cannot import 'no.such'" in said


def test_stats_and_metrics_tell_lengths_rates_and_errors_by_desk_channel_and_session(
    house: House, served: dict[str, Any]
) -> None:
    def say(session: str, number: int, text: str) -> None:
        letter = Inbound(f"{session}-{number}", "net", session, "ann", text)
        _post(house, letter.message())

    say("good", 1, "hello")
    say("bad", 1, "poison")
    say("bad", 2, "behind it")
    _post(house, Outbound("out1", "net", "nobody", (Part("waits"),)).message())
    _until(house, lambda found: found["desks"][0]["counts"].get("dead") == 1 and found["desks"][0]["died"] == 1)

    found = house.json("gateway", "stats")
    assert found["running"]
    inbound, outbound = found["desks"]
    assert (inbound["posted"], inbound["delivered"], inbound["failed"], inbound["died"]) == (3, 1, 1, 1)
    (channel,) = inbound["channels"]
    assert (channel["channel"], channel["waiting"], channel["dead"], channel["posted"]) == ("net/default", 1, 1, 3)
    (bad,) = [row for row in inbound["sessions"] if row["lane"] == "net:default:bad"]
    assert (bad["waiting"], bad["dead"], bad["failed"], bad["paused"]) == (1, 1, 1, "poison")
    # A reply to a channel that nobody has configured waits beside what was posted for it.
    assert outbound["counts"] == {"ready": 2}
    assert found["worker"]["handled"] == 1

    why = house.json("lane", "why", "default", "net:default:bad", "--desk", "inbound")
    assert (why["code"], why["message_id"]) == ("poisoned", "bad-1")
    assert "cannot stand it" in why["error"]

    with urllib.request.urlopen(served["metrics"]) as page:
        metrics = page.read().decode()
    for line in (
        'posthouse_gateway_waiting{desk="inbound",mailbox="default"} 1.0',
        'posthouse_gateway_dead{desk="inbound",mailbox="default"} 1.0',
        'posthouse_gateway_events_total{channel="net/default",desk="inbound",what="died"} 1.0',
        'posthouse_gateway_work_total{what="handled"} 1.0',
        'posthouse_gateway_session_events{desk="inbound",lane="net:default:bad",mailbox="default",what="died"} 1.0',
    ):
        assert line in metrics, line
    text = house.run("gateway", "stats").stdout
    assert "net:default:bad" in text
    assert "poison" in text


@pytest.mark.parametrize("poison", ["block", "skip", "park"])
def test_lane_why_names_the_poison_under_every_policy(house: House, poison: str) -> None:
    from posthouse.gateway.answer import Work
    from posthouse.gateway.handlers.function import FunctionHandler
    from posthouse.gateway.letter import INBOUND_DESK
    from posthouse.gateway.worker import Worker

    async def poisoned() -> None:
        async def refuse(work: Work) -> None:
            if work.text == "poison":
                raise RuntimeError("cannot stand it")

        async with Engine(open_store(house.config(), create=True)) as engine:
            for number, text in enumerate(("poison", "good")):
                await engine.do(Inbound(f"m{number}", "net", "chat", "ann", text).post())
            worker = Worker(engine, FunctionHandler(refuse))
            worker.start()
            watch = Watch(engine)
            ends = (State.DEAD, State.PARKED, *(() if poison == "block" else (State.DELIVERED,)))
            await watch.until(lambda: count(engine, INBOUND_DESK, *ends) == len(ends) - 1)
            await worker.close()

    (house.folder / "posthouse.toml").write_text(CONFIG.replace('poison = "block"', f'poison = "{poison}"'))
    asyncio.run(poisoned())
    why = house.json("lane", "why", "default", "net:default:chat", "--desk", "inbound")
    assert why["code"] == ("poisoned" if poison == "block" else "empty")
    assert why["aside"] == [
        {
            "id": "m0",
            "state": "parked" if poison == "park" else "dead",
            "reason": "attempts",
            "error": "RuntimeError: cannot stand it",
            "attempts": 2,
        }
    ]
    said = house.run("lane", "why", "default", "net:default:chat", "--desk", "inbound").stdout
    assert "m0" in said
    assert "cannot stand it" in said


def test_stats_of_a_store_that_nobody_serves_tell_lengths_only(house: House) -> None:
    letter = Inbound("m1", "net", "chat", "ann", "hello")
    house.apply(letter.post())
    found = house.json("gateway", "stats")
    assert not found["running"]
    assert found["desks"][0]["counts"] == {"ready": 1}
    assert found["desks"][0]["posted"] is None
    assert "No gateway runs here" in house.run("gateway", "stats").stdout


def _post(house: House, message: Any) -> None:
    words = ["message", "post", message.mailbox, "--desk", message.desk, "--id", message.id, "--lane", message.lane]
    house.run(*words, "--sender", message.sender, "--body", message.body.decode())


def _until(house: House, what: Any) -> None:
    """Ask until it is so; the tail reads the journal once a second."""
    import time

    end = time.monotonic() + 30
    while not what(found := house.json("gateway", "stats")):
        assert time.monotonic() < end, found
        time.sleep(0.1)
