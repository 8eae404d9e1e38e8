"""What only a bot does: updates of all kinds, calls for all kinds of parts, and the API's own refusals."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.gateway.channels.setups import setup
from tests.gateway.channels.telegram_bench import CHAT, TOKEN, TelegramBench

from posthouse.errors import ConfigError
from posthouse.gateway.channel import Offline, Permanent, RateLimited, SendError, Sending, Sent, Unclear
from posthouse.gateway.channels import botapi
from posthouse.gateway.channels.bench import Trial, trial
from posthouse.gateway.channels.botapi import call_of
from posthouse.gateway.channels.telegram import Telegram
from posthouse.gateway.letter import Inbound, Media, Outbound, Part

ANN = {"id": 99, "first_name": "Ann", "username": "ann"}


def run(story: Callable[[TelegramBench, Trial], Awaitable[None]], **values: Any) -> None:
    async def made() -> None:
        bench = TelegramBench(values)
        async with trial(bench) as found:
            await found.start()
            await story(bench, found)

    asyncio.run(made())


def inbound_of(**update: Any) -> Inbound:
    bot = Telegram(setup("telegram", {"token_env": "T"}, T=TOKEN))
    found = botapi.inbound_of({"update_id": 1, **update}, bot)
    assert found is not None
    return found


def message(**fields: Any) -> dict[str, Any]:
    return {"message_id": 7, "date": 1, "from": ANN, "chat": {"id": CHAT, "type": "private"}, **fields}


def test_a_text_has_all_that_an_answer_needs():
    found = inbound_of(message=message(text="hello", reply_to_message={"message_id": 5}))
    assert (found.id, found.conversation, found.sender) == (f"default:{CHAT}:7", str(CHAT), "99")
    assert (found.text, found.reply_to, found.thread, found.control) == ("hello", f"default:{CHAT}:5", "", False)
    assert found.metadata["username"] == "ann"
    assert not found.bypasses


def test_a_topic_of_a_forum_is_a_thread_and_a_thread_of_replies_is_none():
    assert inbound_of(message=message(text="x", message_thread_id=3, is_topic_message=True)).thread == "3"
    assert inbound_of(message=message(text="x", message_thread_id=3)).thread == ""


def test_commands_and_buttons_do_not_wait_for_what_may_follow():
    command = {"type": "bot_command", "offset": 0, "length": 5}
    assert inbound_of(message=message(text="/stop", entities=[command])).bypasses
    assert not inbound_of(message=message(text="do /stop", entities=[command | {"offset": 3}])).bypasses
    pressed = inbound_of(callback_query={"id": "55", "from": ANN, "data": "yes", "message": message()})
    assert (pressed.id, pressed.text, pressed.reply_to) == (f"default:{CHAT}:callback:55", "yes", f"default:{CHAT}:7")
    assert pressed.bypasses


def test_media_are_named_without_the_token():
    sizes = [{"file_id": "small"}, {"file_id": "large"}]
    assert inbound_of(message=message(photo=sizes, caption="look")).media == (Media("telegram:large", "image/jpeg"),)
    animation = {"file_id": "a", "mime_type": "video/mp4", "file_name": "a.mp4"}
    found = inbound_of(message=message(animation=animation, document=animation))
    assert found.media == (Media("telegram:a", "video/mp4", "a.mp4"),)
    assert found.bypasses


def test_an_update_that_nobody_understands_is_passed_over_and_the_next_is_kept():
    async def story(bench: TelegramBench, trial: Trial) -> None:
        for odd in ({"poll": {"id": "1"}}, {"message": {"message_id": 1}}, {"message": "text"}, {"callback_query": {}}):
            await bench.update(odd)
        await bench.bring("after them")
        await trial.until_kept(1)
        assert trial.desk.kept()[0].text == "after them"
        assert trial.desk.downs == []

    run(story)


def test_a_button_that_was_pressed_is_released_when_the_message_is_kept():
    async def story(bench: TelegramBench, trial: Trial) -> None:
        await bench.update({"callback_query": {"id": "55", "from": ANN, "data": "yes", "message": message()}})
        released = ("answerCallbackQuery", {"callback_query_id": "55"})
        await bench.changes.until(lambda: released in bench.calls, "the button is released")
        assert [inbound.text for inbound in trial.desk.kept()] == ["yes"]

    run(story)


def test_while_there_is_no_room_the_update_waits_and_sending_goes_on():
    async def story(bench: TelegramBench, trial: Trial) -> None:
        trial.desk.full = True
        await bench.bring("patience")
        await trial.desk.changes.until(lambda: len(trial.desk.offered) >= 2, "it is offered again")
        assert isinstance(await trial.send(trial.sending("meanwhile")), Sent)
        assert not bench.told("patience")
        trial.desk.full = False
        await trial.until_kept(1)
        await bench.changes.until(lambda: bench.told("patience"), "it is confirmed")

    run(story)


# Out.


def call(*parts: Part, index: int = 0, **fields: Any) -> tuple[str, dict[str, Any]]:
    made = call_of(Sending(Outbound("o1", "telegram", str(CHAT), parts, **fields), index, "k", 1))
    assert made.document is None
    return made.method, made.values


def test_each_kind_of_part_has_its_method():
    photo, video, file = (Media(f"https://example.org/{n}", t) for n, t in
                          (("p", "image/png"), ("v", "video/mp4"), ("f", "application/pdf")))  # fmt: skip
    chat = {"chat_id": str(CHAT)}
    assert call(Part("hi")) == ("sendMessage", chat | {"text": "hi"})
    assert call(Part("see", (photo,))) == ("sendPhoto", chat | {"caption": "see", "photo": photo.url})
    assert call(Part("", (file,))) == ("sendDocument", chat | {"document": file.url})
    assert call(Part("", (Media("telegram:abc", "audio/ogg"),))) == ("sendAudio", chat | {"audio": "abc"})
    method, values = call(Part("two", (photo, video)))
    assert method == "sendMediaGroup"
    assert [m["type"] for m in values["media"]] == ["photo", "video"]
    assert values["media"][0]["caption"] == "two"
    assert [m["type"] for m in call(Part("", (photo, file)))[1]["media"]] == ["document", "document"]


def test_thread_and_reply_are_passed_on_and_only_the_first_part_replies():
    fields = {"thread": "3", "reply_to": f"default:{CHAT}:7"}
    _, first = call(Part("a"), Part("b"), **fields)
    _, second = call(Part("a"), Part("b"), index=1, **fields)
    assert first["message_thread_id"] == second["message_thread_id"] == 3
    assert first["reply_parameters"]["message_id"] == 7
    assert "reply_parameters" not in second


@pytest.mark.parametrize("text", ["x" * 4_097, "😀" * 2_049, "x" * 4_000 + "ü" * 97])
def test_a_text_that_is_too_long_is_sent_whole_as_a_file_in_one_call(text: str):
    async def story(bench: TelegramBench, trial: Trial) -> None:
        outbound = Outbound("o1", "telegram", str(CHAT), (Part(text, (), {"parse_mode": "HTML"}),), reply_to="d:1:7")
        assert isinstance(await trial.send(trial.part(outbound, 0)), Sent)
        ((method, values),) = [made for made in bench.calls if made[0].startswith("send")]
        assert method == "sendDocument"
        assert values["document"] == text
        assert text.startswith(values["caption"].rstrip("…"))
        assert len(values["caption"].encode("utf-16-le")) <= 2 * 1_024
        assert json.loads(values["reply_parameters"])["message_id"] == 7
        assert "parse_mode" not in values

    run(story)


def test_only_known_extras_are_passed_on():
    extra = {"parse_mode": "HTML", "chat_id": "666", "url": "http://127.0.0.1/"}
    assert call(Part("hi", (), extra))[1] == {"chat_id": str(CHAT), "text": "hi", "parse_mode": "HTML"}


@pytest.mark.parametrize(
    "part",
    [
        Part("x" * 50_000_001),
        Part("x" * 1_025, (Media("https://e.org/a", "image/png"),)),
        Part("", (), {"buttons": 1}),
        Part("", tuple(Media(f"https://e.org/{n}") for n in range(11))),
        Part("", (Media("file:///etc/passwd"),)),
    ],
)
def test_what_the_api_can_never_send_is_told_before_it_is_tried(part: Part):
    with pytest.raises(Permanent):
        call(part)


@pytest.mark.parametrize(
    ("code", "text", "error"),
    [
        (400, "Bad Request: chat not found", Permanent),
        (400, "Bad Request: message is too long", Permanent),
        (403, "Forbidden: bot was kicked from the group chat", Permanent),
        (429, "Too Many Requests", RateLimited),
        (401, "Unauthorized", Offline),
        (500, "Internal Server Error", Unclear),
        (502, "Bad Gateway", Unclear),
    ],
)
def test_each_refusal_of_the_api_means_something(code: int, text: str, error: type[SendError]):
    async def story(bench: TelegramBench, trial: Trial) -> None:
        bench.failing, bench.failure = "send", {"ok": False, "error_code": code, "description": text}
        found = await trial.send(trial.sending("hi"))
        assert type(found) is error
        assert text in str(found)

    run(story)


def test_an_answer_that_is_not_the_apis_is_unclear():
    async def story(bench: TelegramBench, trial: Trial) -> None:
        bench.failing, bench.failure = "send", {"nonsense": 1}
        assert type(await trial.send(trial.sending("hi"))) is Unclear

    run(story)


def test_a_poll_that_fails_does_not_cut_off_what_is_being_sent():
    async def story(bench: TelegramBench, trial: Trial) -> None:
        bench.slow = asyncio.Event()
        sending = asyncio.create_task(trial.send(trial.sending("under way")))
        await bench.changes.until(lambda: any(m == "sendMessage" for m, _ in bench.calls), "the call is made")
        await bench.cut()
        await trial.desk.changes.until(lambda: trial.desk.ups == 2, "it polls again")
        bench.slow.set()
        assert isinstance(await sending, Sent)

    run(story)


def test_a_second_poller_of_the_same_bot_is_told_in_the_log():
    async def story() -> None:
        bench = TelegramBench()
        async with trial(bench) as found:
            bench.failure = {"ok": False, "error_code": 409, "description": "Conflict: terminated by other getUpdates"}
            await found.channel.start(found.desk)
            await found.until_said("Conflict: terminated by other getUpdates")
            assert found.channel.connection() is None
            bench.failure = None
            await found.desk.changes.until(lambda: found.desk.is_up, "it comes up")

    asyncio.run(story())


def test_a_section_that_cannot_be_used_is_told_without_the_token():
    for values, said in (
        ({}, "token_file or token_env is needed"),
        ({"token_env": "BAD"}, "does not lead to a token"),
        ({"token_env": "T", "base_url": "telegram.org"}, "base_url must be"),
    ):
        with pytest.raises(ConfigError, match=said) as caught:
            Telegram(setup("telegram", values, T=TOKEN, BAD="hunter2 hunter2"))
        assert "hunter2" not in str(caught.value)
