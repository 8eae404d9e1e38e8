"""What only the WebSocket does: sockets that are dead and do not say so, and frames that are none."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.gateway.channels.setups import setup
from tests.gateway.channels.websocket_bench import TOKEN, WebSocketBench
from tests.gateway.conftest import House, messages
from tests.gateway.wsnet import WsNetwork

from posthouse.errors import ConfigError
from posthouse.gateway.channel import Offline, Reconciled, Sent, Unclear
from posthouse.gateway.channels.bench import Trial, trial
from posthouse.gateway.channels.websocket import WebSocket
from posthouse.gateway.letter import INBOUND_DESK
from posthouse.mailbox.command import Post


def run(story: Callable[[WebSocketBench, Trial], Awaitable[None]], **values: Any) -> None:
    async def made() -> None:
        bench = WebSocketBench(values)
        async with trial(bench) as found:
            await found.start()
            await story(bench, found)

    asyncio.run(made())


async def frame_of(bench: WebSocketBench, type: str) -> dict[str, Any]:
    """The first frame of a type that the channel sends."""
    await bench.changes.until(lambda: any(f["type"] == type for f in bench.frames), f"a frame {type}")
    return next(f for f in bench.frames if f["type"] == type)


def test_a_socket_that_is_dead_and_does_not_say_so_is_found_by_its_silence():
    async def story(bench: WebSocketBench, trial: Trial) -> None:
        for transport in bench._transports.values():
            # From now on the server neither reads nor answers, as behind a router that forgot the connection.
            transport.pause_reading()
        found = await trial.send(trial.sending("into the dark"))
        assert isinstance(found, Unclear)
        await trial.desk.changes.until(lambda: trial.desk.ups >= 2, "it connects again")
        assert trial.desk.downs[0][0] in ("timeout", "cut")
        assert isinstance(await trial.send(trial.sending("here")), Sent)
        await trial.until_arrived("here")

    run(story, heartbeat_s=1.5, answer_s=20)


def test_a_part_that_nobody_answers_is_unclear_and_the_server_can_be_asked():
    async def story(bench: WebSocketBench, trial: Trial) -> None:
        bench.answer("mute")
        sending = trial.sending("are you there?")
        assert isinstance(await trial.send(sending), Unclear)
        assert isinstance(trial.channel, WebSocket)
        assert await trial.channel.reconcile(sending) is Reconciled.SENT
        assert await trial.channel.reconcile(trial.sending("another")) is Reconciled.NOT_SENT

    run(story, answer_s=2)


def test_all_that_is_under_way_when_the_socket_breaks_is_unclear():
    async def story(bench: WebSocketBench, trial: Trial) -> None:
        bench.answer("mute")
        sends = [asyncio.create_task(trial.send(trial.sending(f"part {n}"))) for n in range(10)]
        await bench.changes.until(lambda: len(bench.arrived()) == 10, "all are written")
        await bench.cut()
        assert [type(found) for found in await asyncio.gather(*sends)] == [Unclear] * 10

    run(story)


def test_a_server_that_is_away_costs_nothing_and_is_found_when_it_comes():
    async def story() -> None:
        bench = WebSocketBench()
        async with trial(bench) as found:
            port = bench.port
            await bench._runner.cleanup()
            await found.channel.start(found.desk)
            assert isinstance(await found.send(found.sending("too early")), Offline)
            await bench.open()
            assert bench.port != port
            await found.channel.close()
            found.channel = bench.channel()
            await found.start()
            assert isinstance(await found.send(found.sending("now")), Sent)
            assert found.desk.downs == []

    asyncio.run(story())


@pytest.mark.parametrize(
    "frame", ["", "{", "[]", "17", '"message"', "{}", '{"type":"send"}', '{"type":"sent"}', '{"type":"sent","key":[]}',
              '{"type":"message","type":"message"}', "[" * 5_000],
)  # fmt: skip
def test_a_frame_that_is_none_is_named_and_the_connection_lives(frame: str):
    async def story(bench: WebSocketBench, trial: Trial) -> None:
        await bench.say(frame)
        assert (await frame_of(bench, "error"))["text"]
        await bench.bring("good")
        await trial.until_kept(1)
        assert trial.desk.downs == []

    run(story)


def test_a_message_that_is_none_is_refused_for_good_and_one_without_room_for_now():
    async def story(bench: WebSocketBench, trial: Trial) -> None:
        await bench.say({"type": "message", "id": "m9", "text": "nowhere"})
        refused = await frame_of(bench, "refused")
        assert (refused["id"], refused["reason"], refused["again"]) == ("m9", "malformed", False)
        bench.frames.clear()
        trial.desk.full = True
        await bench.bring("no room")
        refused = await frame_of(bench, "refused")
        assert (refused["id"], refused["reason"], refused["again"]) == ("m1", "full", True)

    run(story)


def test_more_messages_than_may_wait_are_sent_back():
    async def story(bench: WebSocketBench, trial: Trial) -> None:
        trial.desk.free.clear()
        for number in range(5):
            await bench.bring(f"m {number}")
        await frame_of(bench, "refused")
        trial.desk.free.set()
        await bench.changes.until(lambda: len(bench.frames) == 5, "all are answered")
        kept = [f["id"] for f in bench.frames if f["type"] == "received"]
        back = [f["id"] for f in bench.frames if f["type"] == "refused" and f["again"]]
        assert sorted(kept + back) == [f"m{n}" for n in range(1, 6)]
        assert [i.id for i in trial.desk.kept()] == kept

    run(story, waiting_max=2)


@pytest.mark.parametrize("frame", [b"\x00\x01", "x" * 3_000])
def test_bytes_and_frames_that_are_too_large_end_the_connection(frame: Any):
    async def story(bench: WebSocketBench, trial: Trial) -> None:
        await bench.say(frame)
        await trial.desk.changes.until(lambda: trial.desk.ups == 2, "it connects again")
        assert isinstance(await trial.send(trial.sending("here")), Sent)

    run(story, frame_bytes_max=2_000)


def test_a_wrong_token_is_told_without_it():
    async def story() -> None:
        bench = WebSocketBench()
        async with trial(bench) as found:
            values = {"url": f"ws://127.0.0.1:{bench.port}/ws", "token_env": "TOKEN", "reconnect_s": 0.01}
            found.channel = WebSocket(setup("websocket", values, TOKEN="wr0ng-token"))
            await found.channel.start(found.desk)
            await found.until_said("the server answered 401")
            assert not any("wr0ng-token" in said for said in found.said)
            assert found.channel.connection() is None

    asyncio.run(story())


def test_a_section_without_a_server_cannot_be_used():
    for values, said in (
        ({}, "url, url_file or url_env is needed"),
        ({"url": f"https://example.org/?token={TOKEN}"}, "ws://"),
    ):
        with pytest.raises(ConfigError, match=said) as caught:
            WebSocket(setup("websocket", values))
        assert TOKEN not in str(caught.value)


def test_what_comes_together_is_kept_in_few_commits_and_in_its_order(tmp_path: Path):
    async def story() -> None:
        async with WsNetwork(keys=True, tells=True) as network:
            for number in range(300):
                network.say(f"chat{number % 3}", f"m{number}", str(number))
            channel = WebSocket(setup("websocket", {"url": network.url}))
            async with House(tmp_path / "gateway.db").gateway(channel) as gateway:
                engine = gateway.engine
                groups: list[int] = []
                engine.on_commit.append(
                    lambda commands, *_: groups.append(sum(isinstance(command, Post) for command in commands))
                )
                await network.until(lambda: network.unreceived == 0)
                kept = [view.message.id for view in messages(engine, INBOUND_DESK)]
        assert kept == [f"m{number}" for number in range(300)]
        assert len([posts for posts in groups if posts]) < 150, groups

    asyncio.run(story())
