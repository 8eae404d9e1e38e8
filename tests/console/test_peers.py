"""Peers and agents in the console: who is there is what the engine and its roles say."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.console.desk import Desk, tell
from tests.peer.nodes import ALICE, BOB, node
from tests.relay.harness import Relay
from tests.unit.pipeline.lakes import START, write

from posthouse.config import load
from posthouse.console.attendance import Attendance
from posthouse.console.pages import peers as module
from posthouse.control.catalogue import run
from posthouse.control.operation import Context, Refused
from posthouse.control.operator import open_store
from posthouse.engine.engine import Engine
from posthouse.journal.tail import export
from posthouse.mailbox.command import Note
from posthouse.mailbox.event import CONNECTED, DISCONNECTED
from posthouse.wire.envelope import MessageType

EVIL = 'pinch:"><script>alert(1)</script>@host'


async def came(c: Desk, *names: str, desk: str = "relay") -> None:
    await c.engine.apply(*(Note(CONNECTED, desk, name, f"{name}-1") for name in names))


async def went(c: Desk, *names: str) -> None:
    await c.engine.apply(*(Note(DISCONNECTED, "relay", name, f"{name}-1", "timeout") for name in names))


def test_every_number_is_that_of_the_engine(tmp_path: Path) -> None:
    async def story(c: Desk) -> None:
        await came(c, "ann", "bob", EVIL)
        await went(c, "bob")
        await came(c, "12D3peer", desk="outbox")
        await c.post("m1", "m2", "m3", desk="relay", mailbox="bob")
        await c.console.attendance.caught_up()
        page = await c.page("/peers")
        assert "<script>alert(1)" not in page.source
        connected = [event for _, _, event in c.engine.store.events() if event.event == CONNECTED]
        assert page.number("seen", "relay") == len({e.mailbox for e in connected if e.desk == "relay"}) == 3
        assert (page.number("online", "relay"), page.number("online", "outbox")) == (2, 1)
        assert (page.number("online", "outbound"), page.number("seen", "outbound")) == (0, 0)
        for name, state in (("ann", "online"), ("bob", "away"), (EVIL, "online")):
            box = c.engine.store.mailbox("relay", name)
            assert page.number("depth", name) == (0 if box is None else box.depth)
            assert page.said("state", name).startswith(state)
            assert page.number("connections", name) == len([e for e in connected if e.mailbox == name])
            assert page.said("rtt", name) == "–"
        assert page.number("depth", "bob") == 3
        for state, names in (("online", {"ann", EVIL}), ("away", {"bob"})):
            status, told = await c.api("GET", f"/api/v1/presence/ls?desk=relay&state={state}", role="viewer")
            assert (status, {row["name"] for row in told["parties"]}) == (200, names)
        away = await c.page("/peers?desk=relay&state=away")
        assert [value for name, value in away.data if name == "party"] == ["bob"]
        found = await c.page("/peers?desk=relay&contains=nn")
        assert [value for name, value in found.data if name == "party"] == ["ann"]
        one = await c.page("/party?desk=relay&name=bob", role="viewer")
        assert one.number("number", "depth") == 3
        assert one.said("fact", "state").startswith("away")
        assert "timeout" in one.text
        assert len([value for name, value in one.data if name == "stretch"]) == 1

    tell(story, tmp_path)


def test_pages_are_turned_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LIMIT", 2)

    async def story(c: Desk) -> None:
        names = [f"agent-{n}" for n in range(5)]
        await came(c, *reversed(names))
        await c.console.attendance.caught_up()
        seen: list[str] = []
        address = "/peers?desk=relay&state=online"
        while address:
            page = await c.page(address)
            seen += [value for name, value in page.data if name == "party"]
            address = next((href for href in page.links if "after=" in href), "")
        assert seen == names

    tell(story, tmp_path)


def test_a_restart_forgets_nobody_and_ends_what_was_open(tmp_path: Path) -> None:
    config = load({}, tmp_path)
    with Engine(open_store(config, create=True)) as engine:
        engine.call(*(Note(CONNECTED, "relay", name, f"{name}-1") for name in ("ann", "bob")))
        engine.call(Note(DISCONNECTED, "relay", "bob", "bob-1", "closed"))
        # What is exported is trimmed from the store, and read from the segment.
        export(engine.store, config.path("journal.dir"), final=True)
        engine.call(Note(CONNECTED, "relay", "carol", "carol-1"))

    async def story(c: Desk) -> None:
        await came(c, "bob")
        await c.console.attendance.caught_up()
        page = await c.page("/peers")
        assert (page.number("online", "relay"), page.number("seen", "relay")) == (1, 3)
        assert page.number("connections", "bob") == 2
        assert page.said("state", "ann").startswith("away")
        assert "restart" in (await c.page("/party?desk=relay&name=carol")).text

    tell(story, tmp_path)


def test_the_books_tell_of_days(tmp_path: Path) -> None:
    async def story(c: Desk) -> None:
        await came(c, "ann")
        own = {"node": c.engine.store.node, "desk": "relay", "mailbox": "ann", "covered": 100, "online": 25}
        row = {**own, "day": START.date(), "share": 0.25, "connections": 7, "reconnect_rate": 0.1, "half_open": 2}
        lake = Path(c.config.text("books.lake"))
        write(lake, "availability", [row, {**row, "mailbox": "bob", "connections": 9}])
        await c.console.attendance.caught_up()
        page = await c.page("/party?desk=relay&name=ann")
        day = START.date().isoformat()
        assert page.number("day-connections", day) == 7
        assert page.said("day-share", day) == "25.0 %"

    tell(story, tmp_path)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/peers?desk=inbound", 400),
        ("/peers?state=dead", 400),
        ("/party?desk=relay&name=nobody", 404),
        ("/party?desk=relay", 400),
        ("/party?desk=%3Cb%3E&name=x", 400),
    ],
)
def test_what_cannot_be_is_told(tmp_path: Path, path: str, status: int) -> None:
    async def story(c: Desk) -> None:
        found, text = await c.get(path)
        assert found == status
        assert "<b>" not in text

    tell(story, tmp_path)


async def asked(engine: Engine, folder: Path, desk: str) -> dict[str, dict[str, object]]:
    """What the operation says of a desk's parties, with a fresh look at the journal."""
    attendance = Attendance(engine, folder / "journal")
    attendance.start()
    try:
        await attendance.caught_up()
        context = Context(engine, load({}, folder), "test", lambda *_: None)
        found = await asyncio.to_thread(run, context, "presence.ls", {"desk": desk})
        assert not isinstance(found, Refused)
        return {row["name"]: row for row in found["parties"]}
    finally:
        await attendance.close()


def test_a_real_relay_knows_its_agents_round_trip(tmp_path: Path) -> None:
    (tmp_path / "relay").mkdir()
    relay = Relay(tmp_path / "relay").start()
    try:
        ann, bob = relay.online("ann", "bob")
        ann.message(bob)
        bob.expect(MessageType.MESSAGE)
        bob.until(lambda: bob.session.line.rtt_s is not None)
        bob.settled()
        # Behind the notes that they came.
        relay.wait(relay.engine.apply())
        rows = asyncio.run(asked(relay.engine, tmp_path, "relay"))
        assert set(rows) == {ann.address, bob.address}
        assert rows[bob.address]["online"] is True
        rtt_s = rows[bob.address]["rtt_s"]
        assert isinstance(rtt_s, float)
        assert 0 < rtt_s < 10
        assert rtt_s == bob.session.line.rtt_s
        assert rows[bob.address]["can"] == [], "nobody registered its key"
        box = relay.engine.store.mailbox("relay", bob.address)
        assert box is not None
        assert rows[bob.address]["depth"] == box.depth
        bob.leave()
        relay.until(lambda: relay.house.connections == 1)
        relay.wait(relay.engine.apply())
        rows = asyncio.run(asked(relay.engine, tmp_path, "relay"))
        assert (rows[bob.address]["online"], rows[bob.address]["rtt_s"]) == (False, None)
    finally:
        relay.stop()


def test_real_peers_say_what_they_can(tmp_path: Path) -> None:
    async def story() -> None:
        async with node(tmp_path, ALICE) as alice, node(tmp_path, BOB) as bob:
            await alice.meet(bob)
            await alice.host.identified(bob.host.peer_id)
            # Behind the note that it came.
            await alice.engine.apply()
            row = (await asked(alice.engine, tmp_path, "outbox"))[bob.id]
            assert row["online"] is True
            can = row["can"]
            assert isinstance(can, list)
            assert {"direct streams", "sync of trades"} <= set(can)
            assert row["depth"] == 0

    asyncio.run(story())
