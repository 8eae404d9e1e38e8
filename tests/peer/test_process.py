"""Whole processes: `posthouse up` with the peer on, the commands beside it, and a process that is killed."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.libp2p.loop import coroutine, until
from tests.peer.nodes import ALICE, BOB, id_of, node
from tests.unit.cli.house import House

from posthouse.errors import ConfigError
from posthouse.mailbox.message import State
from posthouse.peer.handler import handler_of
from posthouse.peer.inbox import Reject, RetryLater

HERE = ("--no-relay", "--no-gateway", "--set", "peer.enabled=true", "--set", "peer.listen=/ip4/127.0.0.1/tcp/0")


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> House:
    monkeypatch.chdir(tmp_path)
    return House(tmp_path)


def test_the_commands_see_what_a_running_peer_does(house: House, tmp_path: Path) -> None:
    with house.up(*HERE, "--set", "peer.handler=accept") as (_, summary):
        assert summary["peer"] == house.json("peer", "id")["id"]
        peer = id_of(BOB)
        sent = house.json("peer", "send", peer, "t1", "abort", '{"why": "late"}', "--id", "m1")
        assert sent == {"id": "m1", "peer": peer, "trade": "t1", "duplicate": False}
        assert house.json("peer", "send", peer, "t1", "abort", "1", "--id", "m1")["duplicate"]
        (row,) = house.json("peer", "outbox", "--waiting")["messages"]
        assert (row["id"], row["trade"], row["sequence"], row["kind"]) == ("m1", "t1", 1, "abort")
        assert row["status"] in ("pending", "sent")

        async def meet() -> None:
            async with node(tmp_path, BOB) as bob:
                await bob.host.dial(summary["peer_addresses"][0])
                await until(lambda: bob.came)
                assert bob.came[0].payload == {"why": "late"}
                await bob.peer.send(summary["peer"], "t1", "complete", 1)
                await until(lambda: bob.sent(State.DELIVERED))
                # What bob acknowledged is counted when that is on disk there.
                while not (found := await asyncio.to_thread(house.json, "peer", "peers"))["counts"]["acked"]:
                    pass
                assert [p["peer"] for p in found["peers"]] == [peer]
                assert (found["counts"]["acked"], found["counts"]["processed"]) == (1, 1)

        asyncio.run(meet())
        assert house.json("peer", "orders") == {"running": True, "orders": [], "total": 0}
        assert "Nothing is offered" in house.run("peer", "orders").stdout
        (trade,) = house.json("peer", "trades")["trades"]
        assert (trade["local_sequence"], trade["remote_sequence"], trade["signed"]) == (1, 1, True)
    assert house.json("peer", "outbox")["messages"][0]["status"] == "acked"
    assert house.json("peer", "peers")["running"] is False
    assert house.json("peer", "orders") == {"running": False, "orders": [], "total": 0}
    assert "No peer" in house.run("peer", "orders").stdout
    assert "No peer runs here" in house.run("peer", "peers").stdout
    assert "acked" in house.run("peer", "outbox").stdout
    assert "t1" in house.run("peer", "trades").stdout


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        (("nobody", "t1", "abort"), "peer id"),
        ((id_of(BOB), "t1", "order_announce"), "no type"),
        ((id_of(BOB), "t1", "abort", "{"), "not JSON"),
        ((id_of(BOB), "t1", "abort", '{"a":1,"a":2}'), "twice"),
        ((id_of(BOB), "t\x1b", "abort"), "control"),
        ((id_of(BOB), "t1", "abort", "1", "--timeout-at", "5"), "too late"),
    ],
)
def test_what_cannot_be_sent_is_said(house: House, words: tuple[str, ...], wrong: str) -> None:
    house.apply()
    assert wrong in house.json("peer", "send", *words, code=2)["error"]["message"]


def test_a_trade_has_one_other_party(house: House) -> None:
    house.apply()
    house.run("peer", "send", id_of(BOB), "t1", "abort")
    assert "other party" in house.json("peer", "send", id_of(ALICE), "t1", "abort", code=1)["error"]["message"]


@pytest.mark.parametrize(
    ("setting", "wrong"),
    [
        ("peer.listen=/ip4/1.2.3.4", "an address looks like"),
        ("peer.peers=/ip4/127.0.0.1/tcp/1", "an address looks like"),
        ("peer.listen=nowhere", "peer.listen"),
        ("peer.handler=python:no_such_module:f", "cannot import"),
    ],
)
def test_a_peer_that_cannot_be_started_says_why(house: House, setting: str, wrong: str) -> None:
    process = house.spawn("peer", "run", "--json", "--no-metrics", "--set", setting)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    assert wrong in json.loads(errors.splitlines()[-1])["error"]["message"]


def test_what_a_killed_process_had_accepted_is_sent_by_the_next(house: House, tmp_path: Path) -> None:
    async def run() -> None:
        async with node(tmp_path, BOB) as bob:
            place = ("--set", f"peer.peers={bob.host.addresses[0]}")
            with house.up(*HERE, *place) as (process, _):
                for number in range(20):
                    await asyncio.to_thread(house.json, "peer", "send", bob.id, "t1", "abort", str(number))
                process.kill()
                await asyncio.to_thread(process.wait)
            with house.up(*HERE, *place):
                await until(lambda: len(bob.came) == 20)
            assert [m.payload for m in bob.came] == list(range(20))

    asyncio.run(run())


# Handlers.


class Message:
    """As much of a message as a handler sees."""

    def plain(self) -> dict[str, Any]:
        return {"type": "abort", "payload": {"n": 1}}


@coroutine
async def test_a_program_processes_rejects_or_postpones_a_message() -> None:
    message: Any = Message()
    script = "import json,sys; sys.exit(0 if json.load(sys.stdin)['payload']['n'] == 1 else 1)"
    await handler_of(f'command:{sys.executable} -c "{script}"')(message)
    with pytest.raises(Reject, match="no such order"):
        await handler_of("command:sh -c 'echo no such order >&2; exit 65'")(message)
    with pytest.raises(RetryLater, match="ended with 3: later"):
        await handler_of("command:sh -c 'echo later >&2; exit 3'")(message)
    with pytest.raises(RetryLater, match="cannot be started"):
        await handler_of("command:/no/such/program")(message)


@pytest.mark.parametrize("text", ["python:json:nothing", "command:", "command:'", "other"])
def test_a_handler_that_does_not_exist_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"peer\.handler"):
        handler_of(text)
