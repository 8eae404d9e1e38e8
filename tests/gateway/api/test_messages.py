"""Posting and asking over HTTP: durable when answered, once by id, and told when it is finished."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.gateway.api.desk import HELLO, SEND, Desk, tell

from posthouse.gateway.letter import Inbound, Outbound
from posthouse.mailbox.command import Filter, Verdict


def test_an_inbound_message_is_durable_when_it_is_answered(tmp_path: Path) -> None:
    full = {
        **HELLO,
        "account": "second",
        "session": "agent:main",
        "thread": "t1",
        "reply_to": "m0",
        "media": [{"url": "https://example.org/a.png", "type": "image/png", "name": "a"}],
        "control": True,
        "metadata": {"lang": "de", "deep": [1, {"x": None}]},
        "tenant": "acme",
    }

    async def story(desk: Desk) -> None:
        code, answer = await desk.ask("POST", "/v1/inbound", full)
        assert code == 201
        assert (answer["outcome"], answer["state"], answer["status"]) == ("posted", "ready", "pending")
        (view,) = desk.engine.store.find("m1")
        letter = Inbound.from_message(view.message)
        assert (letter.sender, letter.text, letter.account, letter.tenant) == ("ann", "hello", "second", "acme")
        assert (letter.session, letter.thread, letter.reply_to, letter.control) == ("agent:main", "t1", "m0", True)
        assert letter.media[0].as_json() == full["media"][0]
        assert letter.metadata == full["metadata"]
        assert view.message.headers == {"api": "all"}

    tell(story, tmp_path)


def test_a_repeat_by_id_changes_nothing(tmp_path: Path) -> None:
    async def story(desk: Desk) -> None:
        for path, value in (("/v1/inbound", HELLO), ("/v1/outbound", SEND)):
            assert (await desk.ask("POST", path, value))[0] == 201
            code, answer = await desk.ask("POST", path, value)
            assert (code, answer["outcome"]) == (200, "duplicate")
            code, problem = await desk.ask("POST", path, {**value, "text": "another"})
            assert (code, problem["code"]) == (409, "conflict")
        assert len(desk.engine.store.messages(Filter("inbound"))) == 1

    tell(story, tmp_path)


def test_nobody_spends_anothers_id(tmp_path: Path) -> None:
    async def story(desk: Desk) -> None:
        other = await desk.token_for("other", "outbound")
        assert (await desk.ask("POST", "/v1/outbound", SEND))[0] == 201
        assert (await desk.ask("POST", "/v1/outbound", {**SEND, "text": "mine"}, token=other))[0] == 201
        code, problem = await desk.ask("GET", "/v1/outbound/o1")
        assert (code, problem["code"]) == (409, "ambiguous")
        code, answer = await desk.ask("GET", "/v1/outbound/o1?origin=other")
        assert (code, answer["parts"], answer["origin"]) == (200, [{"text": "mine"}], "api/other")

    tell(story, tmp_path)


def test_an_outbound_message_is_posted_with_its_parts_and_limits(tmp_path: Path) -> None:
    parts = [{"text": "one"}, {"media": [{"url": "https://example.org/b.png"}]}, {"extra": {"buttons": ["a"]}}]
    value = {"id": "o2", "channel": "telegram", "to": "5", "parts": parts, "cause": "m9", "expires_after_s": 60}

    async def story(desk: Desk) -> None:
        code, answer = await desk.ask("POST", "/v1/outbound", value)
        assert code == 201
        (view,) = desk.engine.store.find("o2")
        letter = Outbound.from_message(view.message)
        assert [part.as_json() for part in letter.parts] == parts
        assert (letter.cause, letter.mailbox, letter.origin) == ("m9", "telegram/default", "api/all")
        assert view.expires_at is not None
        assert 0 < view.expires_at - view.posted_at <= 60_000_000
        assert answer["expires_at"] is not None

    tell(story, tmp_path)


def test_the_status_of_an_inbound_message_has_its_replies(tmp_path: Path) -> None:
    async def story(desk: Desk) -> None:
        await desk.ask("POST", "/v1/inbound", HELLO)
        code, answer = await desk.ask("GET", "/v1/inbound/m1")
        assert (code, answer["state"], answer["replies"]) == (200, "ready", [])
        assert (answer["channel"], answer["account"], answer["conversation"]) == ("whatsapp", "default", "chat 1")
        await desk.handle("first", "second")
        await desk.send("whatsapp/default")
        code, answer = await desk.ask("GET", "/v1/inbound/m1")
        assert (answer["status"], answer["attempts"]) == ("completed", 1)
        assert answer["finished_at"] is not None
        assert [reply["parts"] for reply in answer["replies"]] == [[{"text": "first"}], [{"text": "second"}]]
        assert [reply["status"] for reply in answer["replies"]] == ["completed", "pending"]
        assert {reply["cause"] for reply in answer["replies"]} == {"m1"}

    tell(story, tmp_path)


def test_a_failure_is_told_with_its_reason(tmp_path: Path) -> None:
    async def story(desk: Desk) -> None:
        await desk.ask("POST", "/v1/outbound", SEND)
        await desk.send("whatsapp/default", Verdict.DEAD, "chat not found")
        _, answer = await desk.ask("GET", "/v1/outbound/o1?channel=whatsapp&account=default")
        assert (answer["status"], answer["state"], answer["reason"]) == ("failed", "dead", "permanent")
        assert answer["error"] == "chat not found"

    tell(story, tmp_path)


def test_a_long_poll_answers_as_soon_as_the_message_is_finished(tmp_path: Path) -> None:
    async def story(desk: Desk) -> None:
        loop = asyncio.get_running_loop()
        await desk.ask("POST", "/v1/inbound", HELLO)
        begun = loop.time()
        waiting = asyncio.create_task(desk.ask("GET", "/v1/inbound/m1?wait_s=30"))
        await desk.until_listening()
        # What happens to others does not end the wait.
        await desk.ask("POST", "/v1/inbound", {**HELLO, "id": "m2", "conversation": "chat 2"})
        assert not waiting.done()
        await desk.handle("here you are")
        code, answer = await waiting
        assert (code, answer["status"]) == (200, "completed")
        assert answer["replies"][0]["parts"] == [{"text": "here you are"}]
        assert loop.time() - begun < 20
        assert desk.api.feed.listening == 0

    tell(story, tmp_path)


def test_a_long_poll_ends_with_its_time(tmp_path: Path) -> None:
    async def story(desk: Desk) -> None:
        await desk.ask("POST", "/v1/inbound", HELLO)
        code, answer = await desk.ask("GET", "/v1/inbound/m1?wait_s=0.2")
        assert (code, answer["status"]) == (200, "pending")

    tell(story, tmp_path)


def test_what_was_refused_is_said_with_a_stable_code(tmp_path: Path) -> None:
    async def story(desk: Desk) -> None:
        assert (await desk.ask("POST", "/v1/inbound", HELLO))[0] == 201
        code, problem = await desk.ask("POST", "/v1/inbound", {**HELLO, "id": "m2"})
        assert (code, problem["code"]) == (429, "full")
        code, problem = await desk.ask("POST", "/v1/outbound", {**SEND, "text": "x" * 3_000})
        assert (code, problem["code"]) == (422, "oversize")
        code, problem = await desk.ask("GET", "/v1/inbound/nobody")
        assert (code, problem["code"]) == (404, "not_found")

    tell(story, tmp_path, inbound="capacity = 1", outbound="size_bytes_max = 2000")


WRONG: list[tuple[str, Any]] = [
    ("/v1/inbound", []),
    ("/v1/inbound", "text"),
    ("/v1/inbound", {}),
    ("/v1/inbound", {**HELLO, "id": ""}),
    ("/v1/inbound", {**HELLO, "id": 5}),
    ("/v1/inbound", {**HELLO, "id": "x" * 129}),
    ("/v1/inbound", {**HELLO, "id": "a\nb"}),
    ("/v1/inbound", {**HELLO, "surprise": 1}),
    ("/v1/inbound", {**HELLO, "control": "yes"}),
    ("/v1/inbound", {**HELLO, "media": {"url": "x"}}),
    ("/v1/inbound", {**HELLO, "media": [{"type": "x"}]}),
    ("/v1/inbound", {**HELLO, "metadata": []}),
    ("/v1/outbound", {**SEND, "parts": [{"text": "x"}]}),
    ("/v1/outbound", {"id": "o1", "channel": "c", "to": "t"}),
    ("/v1/outbound", {"id": "o1", "channel": "c", "to": "t", "parts": []}),
    ("/v1/outbound", {"id": "o1", "channel": "c", "to": "t", "parts": [{}]}),
    ("/v1/outbound", {"id": "o1", "channel": "c", "to": "t", "parts": [{"text": "x"}] * 101}),
    ("/v1/outbound", {**SEND, "expires_after_s": 0}),
    ("/v1/outbound", {**SEND, "expires_after_s": True}),
]


def test_what_is_not_as_documented_is_refused(tmp_path: Path) -> None:
    raw = [
        b"",
        b"{",
        b'{"id": "a", "id": "b"}',
        b'{"id": NaN}',
        b'{"id": 1e999}',
        b"\xff\xfe",
        b"[" * 10_000 + b"]" * 10_000,
        b'{"id": "\\ud800"}',
        b'{"id": ' + b"9" * 400 + b"}",
    ]

    async def story(desk: Desk) -> None:
        for path, value in WRONG:
            code, problem = await desk.ask("POST", path, value)
            assert (code, problem["code"]) == (400, "invalid"), value
            assert problem["detail"]
        for data in raw:
            headers = {"Content-Type": "application/json"}
            code, problem = await desk.ask("POST", "/v1/inbound", data=data, headers=headers)
            assert (code, problem["code"]) == (400, "invalid"), data[:40]
        code, problem = await desk.ask(
            "POST", "/v1/inbound", data=json.dumps(HELLO), headers={"Content-Type": "text/x"}
        )
        assert (code, problem["code"]) == (415, "unsupported_media_type")
        for query in ("wait_s=61", "wait_s=-1", "wait_s=x", "wait_s=nan", "wait_s=1&wait_s=2", "foo=1", "channel="):
            code, problem = await desk.ask("GET", f"/v1/inbound/m1?{query}")
            assert (code, problem["code"]) == (400, "invalid"), query
        assert desk.engine.store.messages(Filter("inbound")) == []

    tell(story, tmp_path)


@pytest.mark.parametrize("id", ["a/b", "ü 1", "50%", "a?b#c", "../x", "é" * 60])
def test_an_id_may_hold_any_character_that_prints(tmp_path: Path, id: str) -> None:
    async def story(desk: Desk) -> None:
        from urllib.parse import quote

        import yarl

        await desk.ask("POST", "/v1/inbound", {**HELLO, "id": id})
        headers = {"Authorization": f"Bearer {desk.token}"}
        url = yarl.URL(f"{desk.url}/v1/inbound/{quote(id, safe='')}", encoded=True)
        async with desk.session.get(url, headers=headers) as response:
            assert (await response.json())["id"] == id

    tell(story, tmp_path)


def test_what_the_store_cannot_do_is_said_so(tmp_path: Path) -> None:
    async def story(desk: Desk) -> None:
        await desk.engine.aclose()
        code, problem = await desk.ask("POST", "/v1/inbound", HELLO)
        assert (code, problem["code"]) == (503, "unavailable")

    tell(story, tmp_path)
