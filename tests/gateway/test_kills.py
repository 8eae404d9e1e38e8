"""kill -9 of the gateway at random moments under load: nothing is lost, and nothing is sent twice blindly.

The gateway is the real program with its own channel over WebSocket; the network on the other side is a real server.
What a network that knows keys or can be asked receives is complete, once, and in order. To one that can do neither
nothing is sent twice: an answer that was on its way when the process died is uncertain. The books over each run close.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.gateway.conftest import messages
from tests.gateway.net import ordered
from tests.gateway.process import PATIENT, GatewayProcess
from tests.gateway.wsnet import WsNetwork
from tests.pipeline.oracle import Oracle

from posthouse.engine.engine import Engine
from posthouse.gateway.letter import INBOUND_DESK, OUTBOUND_DESK, Outbound
from posthouse.journal.tail import export
from posthouse.mailbox.message import UNFINISHED, State
from posthouse.mailbox.policy import PRESETS
from posthouse.stores.sqlite import SqliteStore

SESSIONS = 100
EACH = 10
SETTINGS = {
    **PATIENT,
    "gateway.handler": "python:tests.gateway.slow_handler:handle",
    "gateway.workers": str(SESSIONS),
    "gateway.sends": "64",
    "gateway.drain_per_s": "0",
    "gateway.breaker_failures": "0",
    "gateway.reconcile_s": "500ms",
    "channel.net.kind": "websocket",
    "channel.net.url_env": "NET_URL",
    "channel.net.reconnect_s": "50ms",
    "channel.net.waiting_max": "10000",
}


class Kind(NamedTuple):
    """What a network can do."""

    keys: bool
    tells: bool


KEYED, ASKED, PLAIN = Kind(True, False), Kind(False, True), Kind(False, False)


async def converse(folder: Path, kind: Kind, kills: int, seed: int, more: dict[str, str] | None = None) -> None:
    """All sessions say what they have to say to a gateway that is killed so many times; then all is checked."""
    rng = random.Random(seed)
    network = WsNetwork(keys=kind.keys, tells=kind.tells, seed=seed)
    for number in range(EACH):
        for session in range(SESSIONS):
            network.say(f"chat{session}", f"chat{session}-{number}", f"chat{session} {number}")
    async with network:
        settings = {**SETTINGS, "channel.net.idempotent": str(kind.keys).lower(), **(more or {})}
        gateway = GatewayProcess(folder, settings, {"NET_URL": network.url})
        try:
            for _ in range(kills):
                await gateway.start()
                # While it lives, its connection breaks too, now and then.
                await asyncio.sleep(rng.uniform(0.3, 2.0))
                if rng.random() < 0.3:
                    network.drop()
                    await asyncio.sleep(rng.uniform(0.0, 0.5))
                await gateway.kill()
            await gateway.start()
            await finished(gateway, network)
            await gateway.stop()
        finally:
            await gateway.abandon()
    check(gateway, network, kind, f"seed {seed}, {kind}, {kills} kills, {network.connects} connections")


async def finished(gateway: GatewayProcess, network: WsNetwork) -> None:
    """Wait until nothing is under way any more."""

    def over(desks: dict[str, dict[str, int]]) -> bool:
        under_way = sum(desks[d].get(s, 0) for d in (INBOUND_DESK, OUTBOUND_DESK) for s in ("ready", "leased"))
        return not network.unreceived and not under_way

    await finished_desks(gateway, over)


async def finished_desks(gateway: GatewayProcess, over: Callable[[dict[str, dict[str, int]]], bool]) -> None:
    """Ask the gateway how many messages its desks have in each state, until that is enough."""
    async with asyncio.timeout(600):
        while not over(await stats(gateway)):  # noqa: ASYNC110 (another process)
            await asyncio.sleep(0.3)


async def stats(gateway: GatewayProcess) -> dict[str, dict[str, int]]:
    from posthouse.config import Given, load
    from posthouse.control.operator import Operator

    def ask() -> dict[str, dict[str, int]]:
        operator = Operator.connect(load({}, gateway.folder, {"store.path": Given(str(gateway.store), "test")}))
        try:
            found = operator.call("gateway.stats", {}, lambda *_: None)
            assert isinstance(found, dict)
            return {desk["desk"]: desk["counts"] for desk in found["desks"]}
        finally:
            operator.close()

    return await asyncio.to_thread(ask)


def check(gateway: GatewayProcess, network: WsNetwork, kind: Kind, story: str) -> None:
    with Engine(SqliteStore.open(gateway.store, PRESETS, node="check")) as engine:
        asked = messages(engine, INBOUND_DESK)
        assert {view.state for view in asked} == {State.DELIVERED}, story
        assert len(asked) == SESSIONS * EACH, story
        answers = messages(engine, OUTBOUND_DESK)
        assert len(answers) == SESSIONS * EACH, f"{story}: {len(answers)} answers"
        assert {view.message.cause for view in answers} == {view.message.id for view in asked}, story
        unsure = {Outbound.from_message(v.message).parts[0].text for v in answers if v.state is State.UNCERTAIN}
        assert not [v for v in answers if v.state in UNFINISHED - {State.UNCERTAIN}], story
        if not engine.store.segments():
            export(engine.store, gateway.folder / "journal", final=True)
            close_books(gateway.folder / "journal", len(unsure), story)
    assert not network.twice(), f"{story}: twice {network.twice()[:10]}"
    arrived = {(a.to, a.text) for a in network.arrived}
    missing = {f"re chat{s} {n}" for s in range(SESSIONS) for n in range(EACH)} - {text for _, text in arrived}
    if kind is PLAIN:
        assert missing <= unsure, f"{story}: lost {sorted(missing - unsure)[:10]}"
    else:
        assert not missing, f"{story}: lost {sorted(missing)[:10]}"
        assert not unsure, f"{story}: {sorted(unsure)[:10]}"
    for session in range(SESSIONS):
        assert ordered(network.texts(f"chat{session}")), f"{story}: {network.texts(f'chat{session}')}"
    assert "Traceback" not in gateway.log.read_text(), gateway.log.read_text()[-3000:]


def close_books(journal: Path, uncertain: int, story: str) -> None:
    """The books over this journal close: nothing is left over, every reply has its cause, and none has two."""
    oracle = Oracle(journal)
    assert oracle.rows("select * from findings") == [], story
    ends = ("posted", "delivered", "uncertain", "dead", "expired", "open", "remainder")
    sums = ", ".join(f"sum({name})::bigint as {name}" for name in ends)
    total = SESSIONS * EACH
    nothing = {"dead": 0, "expired": 0, "open": 0, "remainder": 0}
    assert oracle.rows(
        f"select desk, {sums} from books where desk in ('inbound', 'outbound') group by 1 order by 1"
    ) == [
        {"desk": "inbound", "posted": total, "delivered": total, "uncertain": 0, **nothing},
        {"desk": "outbound", "posted": total, "delivered": total - uncertain, "uncertain": uncertain, **nothing},
    ], story
    linked = """select count(*) as replies, count(distinct r.cause_id) as causes from messages r join messages q
        on q.message_id = r.cause_id and q.desk = 'inbound' where r.desk = 'outbound'"""
    assert oracle.rows(linked) == [{"replies": total, "causes": total}], story


def run(folder: Path, cases: list[tuple[Kind, int, int]]) -> None:
    """All of these side by side."""
    folders = [folder / str(number) for number in range(len(cases))]
    for one in folders:
        one.mkdir()

    async def case() -> None:
        async with asyncio.TaskGroup() as group:
            for one, (kind, kills, seed) in zip(folders, cases, strict=True):
                group.create_task(converse(one, kind, kills, seed))

    asyncio.run(case())


@pytest.mark.timeout(700)
def test_five_kills_lose_nothing_and_send_nothing_twice(tmp_path: Path) -> None:
    run(tmp_path, [(KEYED, 5, 1), (PLAIN, 5, 2)])


@pytest.mark.slow
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("kind", [KEYED, ASKED, PLAIN], ids=["keyed", "asked", "plain"])
def test_fifty_kills_lose_nothing_and_send_nothing_twice(tmp_path: Path, kind: Kind) -> None:
    run(tmp_path, [(kind, 50, 3)])
