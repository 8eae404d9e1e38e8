"""What only webhooks do: signatures, limits at the door, and targets that somebody else names."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.gateway.channels.setups import setup
from tests.gateway.channels.webhook_bench import ANSWERS, KEY, WebhookBench

from posthouse.errors import ConfigError
from posthouse.gateway.channel import Permanent, RateLimited, SendError, Sent, Transient, Unclear
from posthouse.gateway.channels.bench import Trial, trial
from posthouse.gateway.channels.webhook import Webhook, retry_after_s
from posthouse.gateway.letter import Media, Outbound, Part
from posthouse.gateway.signature import Key, signed

HELLO = {"id": "m1", "conversation": "room 1", "from": "ann", "text": "hello"}


def run(story: Callable[[WebhookBench, Trial], Awaitable[None]], **values: Any) -> None:
    async def made() -> None:
        bench = WebhookBench(values)
        async with trial(bench) as found:
            await found.start()
            await story(bench, found)

    asyncio.run(made())


def by(key: str, value: Any, id: str = "evt_1") -> tuple[bytes, dict[str, str]]:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return data, signed([Key(key)], id, int(time.time()), data)


# In.


def test_a_signed_message_is_kept_with_all_its_fields():
    full = {
        **HELLO,
        "thread": "t1",
        "reply_to": "m0",
        "session": "agent:main",
        "control": True,
        "media": [{"url": "https://example.org/a.png", "type": "image/png"}],
        "metadata": {"lang": "de"},
    }

    async def story(bench: WebhookBench, trial: Trial) -> None:
        assert await bench.post(*by(KEY, full)) == (202, {"id": "m1", "duplicate": False})
        assert await bench.post(*by(KEY, full)) == (202, {"id": "m1", "duplicate": True})
        (kept,) = trial.desk.kept()
        assert (kept.sender, kept.thread, kept.reply_to, kept.lane, kept.tenant) == (
            "ann", "t1", "m0", "agent:main", "acme"
        )  # fmt: skip
        assert kept.media == (Media("https://example.org/a.png", "image/png"),)
        assert kept.control
        assert kept.metadata == {"lang": "de"}

    run(story, tenant="acme")


def test_without_an_id_of_its_own_a_message_has_that_of_its_request():
    async def story(bench: WebhookBench, trial: Trial) -> None:
        status, answer = await bench.post(*by(KEY, {"conversation": "room 1", "text": "hello"}, "evt_77"))
        assert (status, answer["id"]) == (202, "evt_77")

    run(story)


def test_who_does_not_know_the_key_is_refused_and_nothing_is_kept():
    other = "whsec_" + "A" * 43 + "="

    async def story(bench: WebhookBench, trial: Trial) -> None:
        data, headers = by(KEY, HELLO)
        for changed in ({}, by(other, HELLO)[1], headers | {"webhook-id": "evt_2"}):
            status, answer = await bench.post(data, changed)
            assert (status, answer["code"]) == (401, "bad_signature")
        assert trial.desk.offered == []

    run(story)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"null",
        b"{",
        b'{"conversation": 1}',
        b'{"conversation":"r","text":null}',
        b'{"text":"no conversation"}',
        b'{"conversation":"r","txet":"a"}',
        b'{"conversation":"r","text":"\xff"}',
        b'{"conversation":"r","conversation":"s"}',
        b'{"conversation":"r","text":"\\ud800"}',
        b'{"conversation":"r","media":{}}',
        b'{"conversation":"r","control":1}',
        b'{"conversation":"r\\n","text":"x"}',
        b'{"conversation":"r","metadata":' + b'{"a":' * 5_000 + b"1" + b"}" * 5_001,
    ],
)
def test_what_is_no_message_is_refused_with_a_reason(data: bytes):
    async def story(bench: WebhookBench, trial: Trial) -> None:
        status, answer = await bench.post(*by(KEY, data))
        assert status == 400, answer
        assert answer["title"]
        assert trial.desk.kept() == []

    run(story)


def test_a_body_that_is_too_large_is_refused_also_without_a_length():
    async def story(bench: WebhookBench, trial: Trial) -> None:
        async def endless() -> Any:
            for _ in range(100):
                yield b"x" * 1_000

        for data in (b"x" * 2_000, endless()):
            status, _ = await bench.post(data)
            assert status == 413
        data, headers = by(KEY, b"x" * 100)
        assert (await bench.post(data, headers | {"Content-Encoding": "gzip"}))[0] == 400

    run(story, body_bytes_max=1_000)


def test_who_is_slow_is_cut_off_and_disturbs_nobody():
    async def story(bench: WebhookBench, trial: Trial) -> None:
        listener = bench.made._listener
        assert listener is not None
        slow = [await asyncio.open_connection("127.0.0.1", bench.made.port) for _ in range(20)]
        for number, (_, writer) in enumerate(slow):
            # Half of them never end their headers, the others never send their body.
            end = b"" if number % 2 else b"content-length: 100\r\n\r\n"
            writer.write(b"POST / HTTP/1.1\r\nhost: x\r\n" + end)
        assert (await bench.post(*by(KEY, HELLO)))[0] == 202
        for number, (reader, writer) in enumerate(slow):
            async with asyncio.timeout(30):
                answer = await reader.read(4_096)
            assert answer == b"" if number % 2 else answer.startswith(b"HTTP/1.1 408 ")
            writer.close()
        assert (await bench.post(*by(KEY, {**HELLO, "id": "m2"})))[0] == 202

    run(story, body_s=0.3, head_s=4)


def test_one_connection_too_many_is_cut():
    async def story(bench: WebhookBench, trial: Trial) -> None:
        held = [await asyncio.open_connection("127.0.0.1", bench.made.port) for _ in range(4)]
        reader, writer = await asyncio.open_connection("127.0.0.1", bench.made.port)
        async with asyncio.timeout(30):
            assert await reader.read(1) == b""
        for _, one in [*held, (reader, writer)]:
            one.close()

    run(story, connections_max=4)


def test_a_gateway_without_room_asks_to_come_again():
    async def story(bench: WebhookBench, trial: Trial) -> None:
        trial.desk.full = True
        status, answer = await bench.post(*by(KEY, HELLO))
        assert (status, answer["code"]) == (503, "full")
        trial.desk.full = False
        assert (await bench.post(*by(KEY, HELLO)))[0] == 202

    run(story)


# Out.


async def sent(trial: Trial, part: Part, to: str = "room 1", **fields: Any) -> Sent | SendError:
    outbound = Outbound("o1", "webhook", to, (part,), **fields)
    return await trial.send(trial.part(outbound, 0))


def test_a_request_says_all_that_the_receiver_needs():
    async def story(bench: WebhookBench, trial: Trial) -> None:
        part = Part("hi", (Media("https://example.org/a.png"),), {"buttons": ["yes"]})
        found = await sent(trial, part, thread="t1", reply_to="m1", metadata={"a": 1}, session="s")
        headers, data = bench.requests[0]
        assert found == Sent(f"theirs-{headers['webhook-id']}")
        assert json.loads(data) == {
            "type": "message", "message": "o1", "part": 0, "parts": 1, "account": "default", "to": "room 1",
            "thread": "t1", "reply_to": "m1", "session": "s", "text": "hi", "extra": {"buttons": ["yes"]},
            "media": [{"url": "https://example.org/a.png"}], "metadata": {"a": 1},
        }  # fmt: skip

    run(story)


@pytest.mark.parametrize(
    ("status", "error"),
    [(400, Permanent), (404, Permanent), (410, Permanent), (408, Transient), (500, Transient), (503, RateLimited),
     (429, RateLimited), (502, Unclear), (504, Unclear), (301, Permanent)],
)  # fmt: skip
def test_each_status_means_something(status: int, error: type[SendError], monkeypatch: pytest.MonkeyPatch):
    async def story(bench: WebhookBench, trial: Trial) -> None:
        monkeypatch.setitem(ANSWERS, "permanent", status)
        bench.answer("permanent")
        found = await sent(trial, Part("hi"))
        assert type(found) is error
        assert not isinstance(found, RateLimited) or found.after_s == 7

    run(story)


def test_a_target_that_is_not_public_is_refused_and_a_redirect_is_not_followed():
    async def story(bench: WebhookBench, trial: Trial) -> None:
        bench.redirect = f"http://127.0.0.1:{bench.port}/elsewhere"
        found = await sent(trial, Part("hi"), bench.url)
        assert isinstance(found, Permanent)
        assert "redirects are not followed" in str(found)
        assert len(bench.requests) == 1
        closed = Webhook(setup("webhook", {}))
        async with closing(closed, trial):
            for host in ("127.0.0.1", "localhost", "169.254.169.254", "[::1]", "10.0.0.1"):
                error = await trial.send_over(
                    closed.connection(),
                    trial.part(Outbound("o2", "webhook", f"http://{host}:{bench.port}/", (Part("hi"),)), 0),
                )
                assert isinstance(error, Permanent), host
                assert "not a public address" in str(error)
            for to in ("room 1", "ftp://example.org", "http://u:p@example.org/"):
                error = await trial.send_over(
                    closed.connection(), trial.part(Outbound("o2", "webhook", to, (Part("hi"),)), 0)
                )
                assert isinstance(error, Permanent), to
        assert len(bench.requests) == 1

    run(story)


class closing:
    """A second channel beside that of the trial."""

    def __init__(self, channel: Webhook, trial: Trial) -> None:
        self._channel, self._trial = channel, trial

    async def __aenter__(self) -> None:
        await self._channel.start(self._trial.desk)

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close()


def test_a_target_that_is_away_or_silent():
    async def story(bench: WebhookBench, trial: Trial) -> None:
        await bench._runner.cleanup()
        assert type(await sent(trial, Part("hi"))) is Transient
        server = await asyncio.start_server(lambda r, w: asyncio.sleep(60), "127.0.0.1", bench.port)
        assert type(await sent(trial, Part("hi"))) is Unclear
        server.close()

    run(story, timeout_s=2)


def test_retry_after_is_seconds_or_a_date():
    assert retry_after_s("120", 0) == 120
    assert retry_after_s("Thu, 01 Jan 1970 00:02:00 GMT", 60) == 60
    assert retry_after_s("Thu, 01 Jan 1970 00:02:00 GMT", 600) == 0
    assert retry_after_s("9" * 300, 0) == 86_400
    for nonsense in (None, "", "soon", "-1", "1e9", "Thu, 99 Jan 1970 00:02:00 GMT"):
        assert retry_after_s(nonsense, 0) is None


def test_a_port_that_somebody_else_has_is_named_at_the_start():
    async def story(bench: WebhookBench, trial: Trial) -> None:
        second = Webhook(setup("webhook", {"unsigned": True, "port": bench.made.port}))
        with pytest.raises(ConfigError, match=r"\[channel.webhook\]: port cannot be used: cannot listen on 127.0.0.1"):
            await second.start(trial.desk)

    run(story)


# The section.


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"port": 0}, "key_file or key_env is needed to receive"),
        ({"key": KEY}, "key is a secret and is not written here"),
        ({"key_env": "NOT_SET"}, "NOT_SET"),
        ({"key_env": "BAD"}, "does not lead to a key"),
        ({"key_env": "KEY", "key_file": "k"}, "exclude each other"),
        ({"key_file": "/nowhere/key"}, "cannot read /nowhere/key"),
        ({"url": "http://127.0.0.1/"}, "not a public address"),
        ({"url": "http://user:hunter2@example.org/"}, "must not hold a user"),
        ({"urll": "https://example.org"}, "did you mean url"),
        ({"timeout_s": "soon"}, "timeout_s must be"),
        ({"port": 99_999}, "port must be"),
        ({"allow": "10.0.0.0/99"}, "a network is written as"),
    ],
)
def test_a_section_that_cannot_be_used_is_told_at_once_without_its_secrets(values: dict[str, Any], said: str):
    with pytest.raises(ConfigError) as caught:
        Webhook(setup("webhook", values, KEY=KEY, BAD="hunter2-is-no-key"))
    assert said in str(caught.value)
    assert "hunter2" not in str(caught.value)
    assert KEY not in str(caught.value)
