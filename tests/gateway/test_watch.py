"""Alert rules on a real store: told through the gateway's own queue once, again, and to be over; across restarts."""

from __future__ import annotations

import asyncio
import logging
import re
from pathlib import Path
from typing import Any

import pytest
from tests.gateway.conftest import QUICK_OUT, House, Watch, count, messages
from tests.gateway.test_alerts import KEY, Hook
from tests.gateway.test_courier import Script, letter
from tests.unit.pipeline.lakes import START, write

from posthouse.control.alerts import SHELF, standings
from posthouse.control.rule import Measure, Rule
from posthouse.errors import ConfigError
from posthouse.gateway import watch as module
from posthouse.gateway.alerts import AlertChannel
from posthouse.gateway.letter import INBOUND_DESK, OUTBOUND_DESK, Inbound
from posthouse.gateway.metrics import GatewayCollector
from posthouse.gateway.service import Gateway
from posthouse.gateway.signature import Key
from posthouse.mailbox.command import Filter, Purge
from posthouse.mailbox.message import State
from posthouse.metrics import Metrics

BACKLOG = Rule("backlog", Measure.DEPTH, 2.0, desk=INBOUND_DESK, for_s=0.0)


def alert_to(hook: Hook) -> AlertChannel:
    return AlertChannel(hook.url, [Key(KEY)])


async def told(hook: Hook, number: int) -> list[dict[str, Any]]:
    async with asyncio.timeout(30):
        while len(hook.told) < number:
            hook.came.clear()
            await hook.came.wait()
    return hook.told


async def firing(gateway: Gateway) -> dict[str, int]:
    """How many are firing of each rule. A notice can be here before the look that told it has ended; the next waits."""
    assert gateway.watch is not None
    await asyncio.to_thread(gateway.watch.look)
    return gateway.watch.firing


async def receive(gateway: Gateway, number: int) -> None:
    for n in range(number):
        await gateway.engine.do(Inbound(f"m{n}", "net", "chat", "ann", f"hello {n}").post())


def test_a_backlog_is_told_once_and_then_that_it_is_over(house: House, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "posthouse.gateway")

    async def case() -> None:
        async with Hook(500) as hook, house.gateway(alert=alert_to(hook), rules=[BACKLOG]) as gateway:
            await receive(gateway, 3)
            (first,) = await told(hook, 1)
            assert (first["type"], first["state"], first["rule"]) == ("alert", "firing", "backlog")
            assert (first["on"], first["desk"], first["value"], first["above"]) == ("depth", "inbound", 3, 2)
            assert first["text"].startswith("alert backlog: depth of inbound is 3, above 2, since ")
            assert first["node"] == "test"
            assert await firing(gateway) == {"backlog": 1}
            metrics = Metrics(gateway.engine)
            metrics.registry.register(GatewayCollector(gateway))
            assert 'posthouse_gateway_alerts_firing{rule="backlog"} 1.0' in metrics.page().decode()
            await gateway.engine.do(Purge(Filter(INBOUND_DESK)))
            _, over = await told(hook, 2)
            assert (over["state"], over["value"]) == ("resolved", 0)
            assert await firing(gateway) == {"backlog": 0}
            assert gateway.engine.store.kept(SHELF) == []
            assert len(set(hook.ids)) == 2, "the first was tried again under its own id"

    asyncio.run(case())
    assert "alert backlog is over: depth of inbound is 0, not above 2 any more" in caplog.text


def test_what_lasts_is_told_again_and_a_new_process_knows_of_it(house: House) -> None:
    often = Rule("backlog", Measure.DEPTH, 2.0, desk=INBOUND_DESK, for_s=0.0, repeat_s=0.2)

    async def case() -> None:
        async with Hook() as hook:
            async with house.gateway(alert=alert_to(hook), rules=[BACKLOG]) as gateway:
                await receive(gateway, 3)
                await told(hook, 1)
                (kept,) = standings(gateway.engine.store).values()
            # The next process does not begin anew: it is firing already, and nothing is told at once.
            async with house.gateway(alert=alert_to(hook), rules=[BACKLOG]) as gateway:
                assert gateway.watch is not None
                await asyncio.to_thread(gateway.watch.look)
                assert list(standings(gateway.engine.store).values()) == [kept]
                assert len(messages(gateway.engine, OUTBOUND_DESK)) == 1
            async with house.gateway(alert=alert_to(hook), rules=[often]) as gateway:
                found = await told(hook, 3)
                assert [each["state"] for each in found[:3]] == ["firing", "repeated", "repeated"]
                assert "is still 3" in found[1]["text"]
                assert {each["since_us"] for each in found} == {kept.since}
            # What was over while nobody looked is told by whoever looks next.
            async with house.engine() as engine:
                await engine.do(Purge(Filter(INBOUND_DESK)))
            seen = len(hook.told)
            async with house.gateway(alert=alert_to(hook), rules=[BACKLOG]):
                # Behind what was posted and not sent yet when the gateway before it ended.
                while (await told(hook, seen + 1))[-1]["state"] != "resolved":
                    assert hook.told[-1]["state"] == "repeated"
                    seen = len(hook.told)

    asyncio.run(case())


def test_a_rule_that_is_gone_leaves_nothing_behind(house: House) -> None:
    async def case() -> None:
        async with Hook() as hook:
            async with house.gateway(alert=alert_to(hook), rules=[BACKLOG]) as gateway:
                await receive(gateway, 3)
                await told(hook, 1)
            other = Rule("other", Measure.DEAD, 0.0, desk=INBOUND_DESK)
            async with house.gateway(alert=alert_to(hook), rules=[other]) as gateway:
                assert gateway.watch is not None
                await asyncio.to_thread(gateway.watch.look)
                assert gateway.engine.store.kept(SHELF) == []

    asyncio.run(case())


def test_a_channel_of_the_users_own_tells_it_in_a_sentence(house: House) -> None:
    rule = Rule("old", Measure.AGE, 0.05, desk=INBOUND_DESK, for_s=0.0, account="net/default", to="ops")
    script = Script()

    async def case() -> None:
        async with house.gateway(script, rules=[rule]) as gateway:
            watch = Watch(gateway.engine)
            await receive(gateway, 1)
            await watch.until(lambda: count(gateway.engine, OUTBOUND_DESK, State.DELIVERED) == 1)
            (sent,) = messages(gateway.engine, OUTBOUND_DESK)
            assert (sent.message.lane, sent.message.sender) == ("ops", "alert")

    asyncio.run(case())
    (part,) = [sending.part for sending in script.sent]
    assert re.match(r"alert old: age of inbound is \d+(\.\d+)? s, above 0.05 s, since ", part.text)
    assert not part.extra


def test_an_account_that_no_channel_is_is_refused(house: House) -> None:
    rule = Rule("old", Measure.AGE, 1.0, account="email/ops", where="posthouse.toml:7")

    async def case() -> None:
        async with house.gateway(Script(), rules=[rule]):
            pass

    with pytest.raises(ConfigError, match=r"posthouse.toml:7: alert.old is told by 'email/ops'.*net/default"):
        asyncio.run(case())


def test_every_desk_is_judged_by_itself_and_without_anybody_the_log_is_enough(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    rule = Rule("full", Measure.DEPTH, 0.0, for_s=0.0)

    async def case() -> None:
        async with house.gateway(rules=[rule]) as gateway:
            watch = Watch(gateway.engine)
            await receive(gateway, 1)
            await gateway.engine.do(letter().post())
            await watch.until(lambda: len(standings(gateway.engine.store)) == 2)
            assert set(standings(gateway.engine.store)) == {"full/inbound", "full/outbound"}
            assert len(messages(gateway.engine, OUTBOUND_DESK)) == 1, "nothing was posted"

    asyncio.run(case())
    assert "alert full: depth of inbound is 1" in caplog.text
    assert "alert full: depth of outbound is 1" in caplog.text


def books(lake: Path, posted: int, delivered: int, remainder: int = 0) -> None:
    row = {"window": START, "day": START.date(), "desk": "inbound", "kind": "talk", "posted": posted}
    zero = dict.fromkeys(("dead", "expired", "cancelled", "uncertain", "open", "refused", "duplicate"), 0)
    sums = {"delivered": delivered, "remainder": remainder, "remainder_ids": [], "revision": 1}
    write(lake, "books", [{**row, **zero, **sums}], mode="overwrite")


def test_books_that_do_not_close_are_told(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "BOOKS_EVERY_S", 0.0)
    lake = tmp_path / "lake"
    found = Rule("findings", Measure.FINDINGS, 0.0, for_s=0.0, desk="inbound")
    rules = [Rule("books", Measure.BOOKS, 0.0, for_s=0.0), found]

    async def case() -> None:
        async with Hook() as hook, house.gateway(alert=alert_to(hook), rules=rules, lake=str(lake)) as gateway:
            assert gateway.watch is not None
            await asyncio.to_thread(gateway.watch.look)
            assert not hook.told, "no books are no alert"
            books(lake, posted=10, delivered=10)
            await asyncio.to_thread(gateway.watch.look)
            assert gateway.watch.firing == {"books": 0, "findings": 0}
            books(lake, posted=10, delivered=8, remainder=1)
            (first,) = await told(hook, 1)
            assert (first["rule"], first["state"], first["value"], first["desk"]) == ("books", "firing", 3, None)
            # What the journal lacks is of every desk.
            write(lake, "anomalies", [{"part": "files", "kind": "journal_gap", "desk": "", "message_id": ""}])
            assert (await told(hook, 2))[1]["rule"] == "findings"
            books(lake, posted=10, delivered=10)
            assert (await told(hook, 3))[2]["state"] == "resolved"

    asyncio.run(case())
    assert caplog.text.count("alert books cannot be judged: there are no books in") == 1


def test_a_notice_that_dies_makes_no_second_one(house: House) -> None:
    quick = QUICK_OUT.replace(attempts_max=1)

    async def case() -> None:
        async with (
            Hook(400) as hook,
            house.gateway(alert=alert_to(hook), rules=[BACKLOG], policies=(quick,)) as gateway,
        ):
            watch = Watch(gateway.engine)
            await receive(gateway, 3)
            await watch.until(lambda: count(gateway.engine, OUTBOUND_DESK, State.DEAD) == 1)
            assert gateway.watch is not None
            await asyncio.to_thread(gateway.watch.look)
            assert len(messages(gateway.engine, OUTBOUND_DESK)) == 1

    asyncio.run(case())
