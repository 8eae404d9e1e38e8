"""A test kit for channels: what every implementation must do, tried on the real thing.

Who writes a channel derives from ``Bench``: the network's other side, in the hands of a test. Then

    @pytest.mark.parametrize("check", CHECKS, ids=name_of)
    def test_my_channel(check):
        asyncio.run(tried(check, MyBench))

tries all of it. The gateway's side is a real engine in memory. A check that does not hold raises ``NotConforming`` with
one sentence. What a network cannot do at all it ``lacks``, and the check that needs it raises ``Lacking``.
In all checks, nothing that is logged, raised, told or handed over may hold one of the bench's ``secrets``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from ..channel import (
    Offline,
    Permanent,
    RateLimited,
    Reconciled,
    Reconciles,
    SendError,
    Sent,
    Transient,
    Unclear,
)
from .bench import Bench, Lacking, NotConforming, Trial, expect, trial

__all__ = ["CHECKS", "Bench", "Check", "Lacking", "NotConforming", "Trial", "name_of", "trial", "tried"]

Check = Callable[[Trial], Awaitable[None]]


async def tried(check: Check, bench: Callable[[], Bench]) -> None:
    """Make one check on a new bench."""
    async with trial(bench()) as found:
        await check(found)


def name_of(check: Check) -> str:
    """A check's name, for a test's."""
    return str(getattr(check, "__name__", check))


# The checks.


async def it_starts_and_ends(trial: Trial) -> None:
    """No connection before the start and after the end, no task left over, and ending twice is no harm."""
    expect(trial.channel.connection() is None, "there is a connection before the start")
    await trial.start()
    await trial.channel.close()
    trial.desk.closed = True
    expect(trial.channel.connection() is None, "there is a connection after the end")
    await trial.channel.close()
    await asyncio.sleep(0)
    expect(not trial.tasks, f"tasks are left over: {trial.tasks}")


async def what_comes_is_handed_over(trial: Trial) -> None:
    """Messages come in their order, with all that an answer needs."""
    trial.needs("receive")
    await trial.start()
    for number in range(3):
        await trial.bench.bring(f"grüß dich {number}")
        await trial.until_kept(number + 1)
    kept = trial.desk.kept()
    expect([inbound.text for inbound in kept] == [f"grüß dich {n}" for n in range(3)], "other texts, or another order")
    for inbound in kept:
        named = inbound.channel == trial.channel.kind and inbound.account == trial.channel.account
        expect(named, "a message names another channel or account")
        expect(bool(inbound.conversation), "a message has no conversation, so that nobody can answer it")
    expect(len({inbound.id for inbound in kept}) == 3, "two messages have the same id")
    expect(len({inbound.lane for inbound in kept}) == 1, "one conversation has two sessions")


async def the_network_is_told_when_it_is_durable_and_not_before(trial: Trial) -> None:
    """While the message is being stored, the network has not been told."""
    trial.needs("receive", "told")
    await trial.start()
    trial.desk.free.clear()
    await trial.bench.bring("patience")
    await trial.desk.changes.until(lambda: bool(trial.desk.offered), "the message is handed over")
    expect(not trial.bench.told("patience"), "the network is told before the message is durable")
    trial.desk.free.set()
    await trial.bench.changes.until(lambda: trial.bench.told("patience"), "the network is told")
    expect(bool(trial.desk.receipts), "the network is told, and the message is not kept")


async def what_was_not_kept_comes_again(trial: Trial) -> None:
    """A message that the gateway had no room for is not confirmed, and comes again, after a restart too."""
    trial.needs("receive", "told", "again")
    await trial.start()
    trial.desk.full = True
    await trial.bench.bring("no room")
    await trial.desk.changes.until(lambda: bool(trial.desk.offered), "the message is handed over")
    await trial.channel.close()
    expect(not trial.bench.told("no room"), "the network is told of a message that was not kept")
    trial.desk.full = False
    await trial.restart()
    await trial.bench.bring_again()
    await trial.until_kept(1)
    expect(trial.desk.kept()[0].text == "no room", "something else came")
    await trial.bench.changes.until(lambda: trial.bench.told("no room"), "the network is told")


async def a_message_that_comes_twice_has_one_id(trial: Trial) -> None:
    """So that it is known, across restarts."""
    trial.needs("receive", "again")
    await trial.start()
    await trial.bench.bring("once")
    await trial.until_kept(1)
    await trial.restart()
    offered = len(trial.desk.receipts)
    await trial.bench.bring_again()
    await trial.bench.bring("and then")
    await trial.desk.changes.until(
        lambda: any(i.text == "and then" for i in trial.desk.kept()), "the next message is kept"
    )
    expect([i.text for i in trial.desk.kept()] == ["once", "and then"], "a message is kept twice")
    again = [receipt for receipt in trial.desk.receipts[offered:] if receipt.duplicate]
    expect(all(receipt.id == trial.desk.kept()[0].id for receipt in again), "it came again under another id")


async def parts_arrive_in_order(trial: Trial) -> None:
    """What is reported as sent has arrived."""
    await trial.start()
    first = trial.sending("one", "two — zwei", "three")
    for index in range(3):
        sent = await trial.send(trial.part(first.outbound, index))
        expect(isinstance(sent, Sent), f"part {index} was not sent: {sent}")
    await trial.until_arrived("one", "two — zwei", "three")


async def a_repeated_part_arrives_once(trial: Trial) -> None:
    """Where the channel says that it is idempotent."""
    if not trial.channel.idempotent:
        raise Lacking("the channel is not idempotent")
    await trial.start()
    sending = trial.sending("just once")
    for attempt in (1, 2):
        again = trial.part(sending.outbound, 0, attempt)
        expect(isinstance(await trial.send(again), Sent), f"attempt {attempt} was not sent")
    expect(isinstance(await trial.send(trial.sending("behind it")), Sent), "the next was not sent")
    await trial.until_arrived("just once", "behind it")


async def refusals_are_what_they_are(trial: Trial) -> None:
    """For good, for now, or for being too many: each has its class, and nothing has arrived."""
    kinds: dict[str, tuple[type[SendError], ...]] = {
        "permanent": (Permanent,),
        "transient": (Transient, Offline),
        "rate_limited": (RateLimited,),
    }
    possible = {how: errors for how, errors in kinds.items() if how not in trial.bench.lacks}
    if not possible:
        raise Lacking("the network refuses nothing")
    await trial.start()
    for how, errors in possible.items():
        trial.bench.answer(how)
        found = await trial.send(trial.sending(f"refused: {how}"))
        expect(isinstance(found, errors), f"{how} is told as {type(found).__name__}")
        if isinstance(found, RateLimited):
            expect(0 < found.after_s <= 86_400, f"rate limited for {found.after_s} s")
    trial.bench.answer("ok")
    await trial.desk.changes.until(lambda: trial.channel.connection() is not None, "there is a connection again")
    expect(isinstance(await trial.send(trial.sending("taken")), Sent), "nothing can be sent after a refusal")
    await trial.until_arrived("taken")


async def silence_is_unclear(trial: Trial) -> None:
    """The network took the part and died before it answered: nobody may say that it was, or was not, sent."""
    trial.needs("silent")
    await trial.start()
    trial.bench.answer("silent")
    sending = trial.sending("did it arrive?")
    found = await trial.send(sending)
    expect(isinstance(found, Unclear), f"an interrupted send is told as {type(found).__name__}")
    trial.bench.answer("ok")
    await trial.desk.changes.until(lambda: trial.channel.connection() is not None, "there is a connection again")
    if isinstance(trial.channel, Reconciles):
        answer = await trial.channel.reconcile(sending)
        expect(answer is not Reconciled.NOT_SENT, "reconcile says that what arrived was not sent")
    if trial.channel.idempotent:
        expect(isinstance(await trial.send(sending), Sent), "the repeated send was not sent")
    expect(isinstance(await trial.send(trial.sending("behind it")), Sent), "the next was not sent")
    await trial.until_arrived("did it arrive?", "behind it")


async def a_cut_connection_is_made_again(trial: Trial) -> None:
    """What breaks is reported, an old connection sends nothing, and a new one does, both ways."""
    trial.needs("cut")
    await trial.start()
    old = trial.channel.connection()
    for number in range(2):
        downs, ups = len(trial.desk.downs), trial.desk.ups
        await trial.bench.cut()
        await trial.desk.changes.until(lambda: len(trial.desk.downs) > downs, "the cut is reported")  # noqa: B023
        await trial.desk.changes.until(lambda: trial.desk.ups > ups, "it comes up again")  # noqa: B023
        expect(trial.channel.connection() is not None, "it is up, and there is no connection")
        found = await trial.send_over(old, trial.sending("into the void"))
        expect(isinstance(found, SendError), "a connection that is gone sends")
        expect(isinstance(found, Offline | Transient), f"nothing was written, and it is told as {type(found).__name__}")
        sent = await trial.send(trial.sending(f"after cut {number}"))
        expect(isinstance(sent, Sent), f"nothing can be sent after a cut: {sent}")
        if "receive" not in trial.bench.lacks:
            await trial.bench.bring(f"still there {number}")
            await trial.until_kept(number + 1)
    await trial.until_arrived("after cut 0", "after cut 1")


async def reconcile_does_not_invent(trial: Trial) -> None:
    """What was sent is not called unsent, and what never was is not called sent."""
    if not isinstance(trial.channel, Reconciles):
        raise Lacking("the channel does not reconcile")
    await trial.start()
    sent, never = trial.sending("on record"), trial.sending("never")
    expect(isinstance(await trial.send(sent), Sent), "it was not sent")
    expect(await trial.channel.reconcile(sent) is not Reconciled.NOT_SENT, "what was sent is called not sent")
    expect(await trial.channel.reconcile(never) is not Reconciled.SENT, "what was never sent is called sent")


CHECKS: tuple[Check, ...] = (
    it_starts_and_ends,
    what_comes_is_handed_over,
    the_network_is_told_when_it_is_durable_and_not_before,
    what_was_not_kept_comes_again,
    a_message_that_comes_twice_has_one_id,
    parts_arrive_in_order,
    a_repeated_part_arrives_once,
    refusals_are_what_they_are,
    silence_is_unclear,
    a_cut_connection_is_made_again,
    reconcile_does_not_invent,
)
