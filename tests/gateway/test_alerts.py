"""Alerts: each dead letter is told of once, by a durable message, to a webhook or a command."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from tests.gateway.conftest import QUICK_OUT, House, Watch, count, messages
from tests.gateway.test_courier import Script, letter
from tests.listener import Listener

from posthouse.errors import ConfigError
from posthouse.gateway.alerts import MAILBOX, AlertChannel, alert_channel
from posthouse.gateway.answer import Reject, Work
from posthouse.gateway.channel import Permanent
from posthouse.gateway.letter import INBOUND_DESK, OUTBOUND_DESK, Inbound
from posthouse.gateway.signature import Key, verified
from posthouse.journal.tail import export
from posthouse.mailbox.command import Lease, Settle, Verdict
from posthouse.mailbox.message import State
from posthouse.mailbox.policy import ladder

KEY = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


async def refuse(work: Work) -> None:
    raise Reject(f"no answer to {work.text}")


class Hook(Listener):
    """A webhook that fails as often as it is told to, and remembers what it was told."""

    def __init__(self, *statuses: int) -> None:
        super().__init__("/")
        self.told: list[dict[str, Any]] = []
        self.ids: list[str] = []
        self._statuses = list(statuses)
        self.came = asyncio.Event()

    async def take(self, request: web.Request) -> web.Response:
        body = await request.read()
        verified([Key(KEY)], request.headers, body, float(request.headers["webhook-timestamp"]))
        self.ids.append(request.headers["webhook-id"])
        status = self._statuses.pop(0) if self._statuses else 200
        if status == 200:
            self.told.append(json.loads(body))
            self.came.set()
        return web.Response(status=status)


def test_a_dead_letter_is_told_with_its_whole_context_and_logged(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, "posthouse.gateway")

    async def case() -> None:
        async with Hook(500, 503) as hook:
            alert = AlertChannel(hook.url, [Key(KEY)])
            async with house.gateway(handler=refuse, alert=alert) as gateway:
                await gateway.engine.do(Inbound("m1", "net", "chat", "ann", "hello", tenant="acme").post())
                async with asyncio.timeout(30):
                    await hook.came.wait()
                (told,) = hook.told
                assert told["type"] == "dead_letter"
                assert (told["desk"], told["mailbox"], told["id"]) == ("inbound", "acme", "m1")
                assert (told["reason"], told["error"]) == ("rejected", "no answer to hello")
                assert (told["lane"], told["attempts"]) == ("net:default:chat", 1)
                assert told["content"]["text"] == "hello"
                assert told["content"]["from"] == "ann"
                assert len(set(hook.ids)) == 1, "every attempt has the same key"

    asyncio.run(case())
    assert "dead letter m1 of inbound acme" in caplog.text


def test_what_cannot_be_sent_is_told_and_an_alert_that_dies_is_not(house: House, tmp_path: Path) -> None:
    script = tmp_path / "alert.py"
    told = tmp_path / "told.jsonl"
    script.write_text(f"import sys\nopen({str(told)!r}, 'a').write(sys.stdin.read())\nsys.exit(len(sys.argv) - 1)\n")

    async def case() -> None:
        words = f"command:{sys.executable} {script}"
        async with house.gateway(Script(Permanent("no such chat")), alert=AlertChannel(words)) as gateway:
            watch = Watch(gateway.engine)
            await gateway.engine.do(letter().post())
            await watch.until(lambda: count(gateway.engine, OUTBOUND_DESK, State.DELIVERED) == 1)
        (line,) = told.read_text().splitlines()
        assert (json.loads(line)["id"], json.loads(line)["error"]) == ("out1", "no such chat")

        quick = QUICK_OUT.replace(retry=ladder(0.001), attempts_max=2)
        failing = AlertChannel(f"{words} fail")
        async with house.gateway(Script(Permanent("gone")), alert=failing, policies=(quick,)) as gateway:
            watch = Watch(gateway.engine)
            await gateway.engine.do(letter(2).post())
            await watch.until(lambda: count(gateway.engine, OUTBOUND_DESK, State.DEAD) == 3)
        # The dead alert, and the two letters: nobody is told of the alert.
        assert len(told.read_text().splitlines()) == 3

    asyncio.run(case())


def test_a_death_that_nobody_saw_is_told_by_the_next_process_and_once(house: House, tmp_path: Path) -> None:
    async def case() -> None:
        async with Hook() as hook:
            async with house.gateway(alert=AlertChannel(hook.url, [Key(KEY)])):
                pass  # from here on deaths are news
            async with house.engine() as engine:
                for number in (1, 2):
                    await engine.do(letter(number).post())
                    await engine.do(Lease(OUTBOUND_DESK, "net/default", "token"))
                    await engine.do(Settle(letter(number).ref, "token", Verdict.DEAD, error="broken"))
                    if number == 1:
                        # What is exported is trimmed: this death is in no chunk any more.
                        export(engine.store, tmp_path / "journal", final=True)
            for _ in range(2):
                async with house.gateway(alert=AlertChannel(hook.url, [Key(KEY)])) as gateway:
                    watch = Watch(gateway.engine)
                    await watch.until(lambda g=gateway: len(messages(g.engine, OUTBOUND_DESK, State.DELIVERED)) == 2)  # type: ignore[misc]
            assert sorted(told["id"] for told in hook.told) == ["out1", "out2"]

    asyncio.run(case())


def test_without_anybody_to_tell_the_log_is_enough(house: House, caplog: pytest.LogCaptureFixture) -> None:
    async def case() -> None:
        async with house.gateway(handler=refuse) as gateway:
            watch = Watch(gateway.engine)
            await gateway.engine.do(Inbound("m1", "net", "chat", "ann", "hello").post())
            await watch.until(lambda: count(gateway.engine, INBOUND_DESK, State.DEAD) == 1)
        async with house.engine() as engine:
            assert not messages(engine, OUTBOUND_DESK)
            assert MAILBOX not in {box.mailbox for box in engine.store.mailboxes(OUTBOUND_DESK)}

    asyncio.run(case())
    assert "dead letter m1" in caplog.text


def test_settings_of_alerts_that_do_not_fit_are_refused() -> None:
    assert alert_channel(None, None) is None
    with pytest.raises(ConfigError, match="nobody would be told"):
        alert_channel(None, KEY)
    with pytest.raises(ConfigError, match=r"gateway\.alert"):
        alert_channel("command:'", None)
