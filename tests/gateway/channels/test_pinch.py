"""What only an agent does: contacts, strangers, and an outbox of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.gateway.channels.pinch_bench import PinchBench
from tests.gateway.channels.setups import setup

from posthouse.errors import ConfigError
from posthouse.gateway.channel import Offline, Permanent, Reconciled, Sent
from posthouse.gateway.channels.bench import DEADLINE_S, Trial, trial
from posthouse.gateway.channels.pinch import Pinch, id_of
from posthouse.gateway.letter import Media, Outbound, Part


def run(story: Callable[[PinchBench, Trial], Awaitable[None]], **values: Any) -> None:
    async def made() -> None:
        bench = PinchBench(values)
        async with trial(bench) as found:
            await found.start()
            await story(bench, found)

    asyncio.run(made())


def test_strangers_are_not_heard_and_contacts_are():
    async def story(bench: PinchBench, trial: Trial) -> None:
        await bench.bring("who are you?")
        await trial.until_said("who is no contact, is not taken")
        await bench.ann.connect(bench.bot, "may I?")
        await bench.changes.until(lambda: bool(bench.ann.contacts()), "she asks")
        while bench.ann.contacts()[0].standing != "accepted":
            await bench.ann.settle_down(0.05)
        await bench.bring("a friend")
        await trial.until_kept(1)
        (kept,) = trial.desk.kept()
        assert kept.text == "a friend"
        assert kept.conversation == kept.sender == bench.to

    run(story, accept="*")


def test_who_is_not_on_the_list_is_not_accepted():
    async def story(bench: PinchBench, trial: Trial) -> None:
        id = await bench.ann.connect(bench.bot, "may I?")
        await bench.ann.wait_state(bench.bot, id, ["delivered"], DEADLINE_S)
        agent = bench.made.agent
        assert agent is not None
        await agent.settle_down(0.2)
        assert agent.contacts()[0].standing == "asks"

    run(story, accept=["pinch:somebody@else"])


def test_what_was_put_into_the_outbox_is_known_and_what_was_not_is_not():
    async def story(bench: PinchBench, trial: Trial) -> None:
        sent, never = trial.sending("on record"), trial.sending("never")
        found = await trial.send(sent)
        assert found == Sent(id_of(sent.key))
        assert isinstance(trial.channel, Pinch)
        assert await trial.channel.reconcile(sent) is Reconciled.SENT
        assert await trial.channel.reconcile(never) is Reconciled.NOT_SENT

    run(story, strangers=True)


def test_parts_that_can_never_be_sent_are_told_so():
    async def story(bench: PinchBench, trial: Trial) -> None:
        for to, part in (
            (bench.bot, Part("to myself")),
            ("pinch:nonsense@nowhere", Part("x")),
            (bench.to, Part("x" * 70_000)),
            (bench.to, Part(extra={"a": 1})),
        ):
            outbound = Outbound("o1", "pinch", to, (part,))
            assert isinstance(await trial.send(trial.part(outbound, 0)), Permanent), to
        pictures = Outbound("o2", "pinch", bench.to, (Part("see", (Media("https://example.org/a.png"),)),))
        assert isinstance(await trial.send(trial.part(pictures, 0)), Sent)
        await trial.until_arrived("see\nhttps://example.org/a.png")

    run(story, strangers=True)


def test_while_the_relay_is_away_nothing_is_taken():
    async def story(bench: PinchBench, trial: Trial) -> None:
        link = trial.channel.connection()
        assert link is not None
        await asyncio.to_thread(bench.relay.stop)
        await trial.desk.changes.until(lambda: not trial.desk.is_up, "it is down")
        assert trial.channel.connection() is None
        assert isinstance(await trial.send_over(link, trial.sending("too late")), Offline)
        await asyncio.to_thread(bench.relay.start)
        await trial.desk.changes.until(lambda: trial.desk.is_up, "it is up")
        assert isinstance(await trial.send(trial.sending("in time")), Sent)
        await trial.until_arrived("in time")

    run(story, strangers=True)


def test_a_relay_that_does_not_admit_us_is_told_in_the_log():
    async def story() -> None:
        bench = PinchBench()
        async with trial(bench) as found:
            values = {"relay": bench.url, "folder": str(bench.folder / "bot"), "relay_host": "another.example.org"}
            found.channel = Pinch(setup("pinch", values))
            await found.channel.start(found.desk)
            await found.until_said("does not admit us")
            assert found.channel.connection() is None

    asyncio.run(story())


def test_a_relay_that_is_none_is_told_at_once():
    with pytest.raises(ConfigError, match="relay is none"):
        Pinch(setup("pinch", {"relay": "http://example.org"}))
