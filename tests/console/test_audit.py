"""The audit log: who did what and when, in the commit that did it, from the console, the API and the command line."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.console.desk import Desk, tell
from tests.unit.cli.house import House

from posthouse.config import Given, load
from posthouse.control.catalogue import run
from posthouse.control.operation import Context
from posthouse.control.operator import open_store
from posthouse.control.record import SHELF
from posthouse.engine.clock import Clock
from posthouse.engine.engine import Engine
from posthouse.mailbox.command import Command, Keep, Pause
from posthouse.mailbox.message import SECOND
from posthouse.mailbox.outcome import Outcome
from posthouse.stores.sqlite import SqliteStore

PLACE = {"desk": "inbound", "mailbox": "alice"}


async def actions(c: Desk) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await c.operate("audit.ls"))["actions"]
    return found


def test_what_is_done_from_a_page_or_the_api_is_kept_with_who_and_what(tmp_path: Path) -> None:
    async def story(c: Desk) -> None:
        await c.post("m1", "m2")
        await c.do("mailbox.pause", PLACE)
        await c.api("POST", "/api/v1/message/cancel", {"id": "m1"}, role="operator")
        # Looking leaves nothing, and neither does a dry run.
        before = await actions(c)
        await c.page("/mailbox?desk=inbound&mailbox=alice")
        await c.page("/confirm/mailbox.purge?desk=inbound&mailbox=alice")
        await c.api("POST", "/api/v1/mailbox/purge", {**PLACE, "dry_run": True})
        assert await actions(c) == before
        cancelled, paused, *tokens = before
        assert (paused["by"], paused["act"], paused["with"]) == ("console:operator-token", "mailbox.pause", PLACE)
        assert paused["result"] == {"paused": True, "changed": True}
        assert (cancelled["by"], cancelled["act"], cancelled["with"]) == (
            "api:operator-token",
            "message.cancel",
            {"id": "m1"},
        )
        assert [token["act"] for token in tokens] == ["token.add"] * 3
        # The journal has the same operator as the holder of what he changed.
        events = [event for _, _, event in c.engine.store.events()]
        assert [e.holder for e in events if e.event == "paused"] == ["console:operator-token"]
        assert [e.holder for e in events if e.event == "cancelled"] == ["api:operator-token"]
        page = await c.page("/audit", "viewer")
        assert [given["data-act"] for _, given in page.tags if "data-act" in given] == [a["act"] for a in before]
        assert "console:operator-token" in page.text
        _, told = await c.api("GET", "/api/v1/audit/ls?limit=2", role="viewer")
        assert told["actions"] == before[:2]
        _, rest = await c.api("GET", f"/api/v1/audit/ls?after={told['next']}", role="viewer")
        assert rest["actions"] == before[2:]

    tell(story, tmp_path)


def test_a_refused_action_is_kept_as_refused(tmp_path: Path) -> None:
    async def story(c: Desk) -> None:
        await c.post("m1")
        await c.do("message.cancel", {"id": "m1"})
        await c.do("message.cancel", {"id": "m1"})
        assert "message 'm1' was not cancelled" in (await c.page("/", "operator")).text
        refused, done = (await actions(c))[:2]
        assert (refused["refused"], done["refused"]) == ("finished", None)
        assert "refused (finished)" in (await c.page("/audit")).text

    tell(story, tmp_path)


def test_the_record_is_in_the_commit_of_the_change(tmp_path: Path) -> None:
    config = load({}, tmp_path)
    batches: list[list[Command]] = []

    class Watched(SqliteStore):
        def apply(self, commands: Sequence[Command]) -> list[Outcome]:
            batches.append(list(commands))
            return super().apply(commands)

    store = Watched.open(tmp_path / "store.db", config.policies, "node")
    with Engine(store) as engine:
        context = Context(engine, config, "operator:ann", lambda done, total, doing: None)
        run(context, "mailbox.pause", {"mailbox": "a", "desk": "inbound"})
    (batch,) = [batch for batch in batches if any(isinstance(command, Pause) for command in batch)]
    (kept,) = [command for command in batch if isinstance(command, Keep)]
    assert kept.shelf == SHELF
    assert kept.value is not None
    assert json.loads(kept.value)["by"] == "operator:ann"


def test_commands_of_the_command_line_are_kept_with_and_without_a_server(house: House) -> None:
    house.post("m1", "m2", "m3")
    house.run("message", "park", "m1")
    house.run("message", "post", "bob", "--desk", "inbound", "--id", "new", "--body", "a secret")
    with house.up():
        house.run("message", "park", "m2")
        house.run("mailbox", "purge", "alice", "--yes")
        house.run("mailbox", "ls")
    with Engine(open_store(house.config())) as engine:
        context = Context(engine, house.config(), "operator:test", lambda done, total, doing: None)
        answer = run(context, "audit.ls", {})
    assert isinstance(answer, dict)
    assert [action["act"] for action in answer["actions"]] == [
        "mailbox.purge",
        "message.park",
        "message.post",
        "message.park",
    ]
    assert {action["by"].partition(":")[0] for action in answer["actions"]} == {"operator"}
    assert answer["actions"][0]["result"]["cancelled"] == 3
    # What a message says is nobody's business here.
    assert "secret" not in json.dumps(answer)


def test_a_long_action_is_one_record_however_many_steps_it_took(tmp_path: Path) -> None:
    async def story(c: Desk) -> None:
        await c.post(*(f"m{number}" for number in range(900)), desk="outbox", mailbox="alice")
        _, told = await c.do("mailbox.purge", {"desk": "outbox", "mailbox": "alice"})
        assert json.loads(told)["result"]["cancelled"] == 900
        purged, *others = await actions(c)
        assert (purged["act"], purged["result"]["cancelled"]) == ("mailbox.purge", 900)
        assert "mailbox.purge" not in [other["act"] for other in others]

    tell(story, tmp_path)


def test_old_records_are_forgotten(tmp_path: Path) -> None:
    class Hands(Clock):
        at = 1_700_000_000 * SECOND

        def now(self) -> int:
            return self.at

    clock = Hands()
    config = load({}, tmp_path, {"audit.keep_s": Given("100", "test")})
    with Engine(open_store(config, create=True), clock=clock) as engine:
        context = Context(engine, config, "operator:ann", lambda done, total, doing: None)
        for number in range(30):
            clock.at += 10 * SECOND
            run(context, "mailbox.pause", {"mailbox": f"box{number}", "desk": "inbound"})
        answer = run(context, "audit.ls", {})
        assert isinstance(answer, dict)
        kept = [action["with"]["mailbox"] for action in answer["actions"]]
        assert kept == [f"box{number}" for number in range(29, 19, -1)]


def test_a_long_parameter_is_kept_in_part(tmp_path: Path) -> None:
    config = load({}, tmp_path)
    with Engine(open_store(config, create=True)) as engine:
        context = Context(engine, config, "operator:ann", lambda done, total, doing: None)
        where = {"error": "x" * 1_000, "desk": "inbound", "states": ["dead"]}
        run(context, "dead.redrive", {"where": where})
        answer = run(context, "audit.ls", {})
    assert isinstance(answer, dict)
    (action,) = answer["actions"]
    assert action["with"]["where"] == {"error": "x" * 200 + "…", "desk": "inbound", "states": ["dead"]}
