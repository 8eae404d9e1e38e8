"""A story of two or three peers: trades, much mischief, all of it from one seed; and whether every promise was kept."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import defaultdict
from typing import Any, NamedTuple
from unittest import mock

from tests.simulation.network import Party, VirtualLoop, World

from posthouse.control.trade import number_of
from posthouse.errors import InvalidInput
from posthouse.mailbox.command import Filter
from posthouse.mailbox.event import DELIVERED, DIED
from posthouse.mailbox.message import FINISHED, Ref, State
from posthouse.mailbox.outcome import Delivery
from posthouse.mailbox.policy import INBOX, OUTBOX, exponential
from posthouse.mailbox.store import MessageView
from posthouse.peer.inbox import Incoming, Reject
from posthouse.peer.line import Line
from posthouse.peer.node import Limits

DAY_S = 86_400


class Broken(AssertionError):
    """A promise was not kept."""


class Sent(NamedTuple):
    """A message that was accepted."""

    sender: Party
    to: Party
    trade: str
    id: str


class Story:
    """One run from a seed."""

    def __init__(self, loop: VirtualLoop, seed: int, parties: int | None = None) -> None:
        self.seed = seed
        usual = Limits()
        limits = dataclasses.replace(usual, send=dataclasses.replace(usual.send, idle_s=120.0))
        # Small waits where they do not matter, so that more happens in a story.
        inbox = INBOX.replace(retry=exponential(1, 5))
        self.world = World(loop, seed, parties or 2 + seed % 2, limits, (OUTBOX, inbox))
        self.loop = loop
        self.random = self.world.random
        self.world.drop = self.random.choice((0.0, 0.05, 0.3))
        self.world.repeat = self.random.choice((0.0, 0.1, 0.4))
        self.fails = self.random.choice((0.0, 0.1))
        self.rejects = self.random.choice((0.0, 0.05))
        self.sent: list[Sent] = []
        self.count = 0
        self.uncertain: list[str] = []
        """Given up by their sender, and processed all the same."""
        self.first_runs: defaultdict[tuple[str, str, str], list[int]] = defaultdict(list)
        self.calm = False

    async def run(self, steps: int = 40) -> None:
        """Live through it, then let everything come to rest, and look."""
        for number, party in enumerate(self.world.parties):
            # Clocks differ by up to a minute.
            party.skew_us = self.random.randint(-30_000_000, 30_000_000) * (number > 0)
            await self._boot(party)
        try:
            for _ in range(steps):
                await self._step()
                await asyncio.sleep(self.random.choice((0.0, 0.01, 0.5, 5.0, 40.0)))
            await self._rest()
            self._check()
        except AssertionError as error:
            raise Broken(f"seed {self.seed}: {error}") from error

    async def _boot(self, party: Party) -> None:
        async def handle(message: Incoming) -> None:
            await asyncio.sleep(self.random.choice((0.0, 0.01, 0.2)))
            if not self.calm and self.random.random() < self.fails:
                await asyncio.sleep(self.random.choice((0.0, 40.0)))
                raise OSError("the handler failed")
            seen = self.first_runs[party.id, message.peer, message.trade]
            if message.sequence not in seen:
                seen.append(message.sequence)
            if message.payload["reject"]:
                raise Reject("as it says")

        await party.boot(handle)

    # Mischief.

    async def _step(self) -> None:
        world, random = self.world, self.random
        one, other = random.sample(world.parties, 2)
        dice = random.random()
        if not one.is_up:
            await self._boot(one)
        elif dice < 0.06:
            one.crash()
        elif dice < 0.12:
            world.cut(one, other) if other.is_up else None
        elif dice < 0.17 and other.is_up:
            world.part(one, other)
        elif dice < 0.3:
            world.heal()
        elif dice < 0.34:
            await asyncio.sleep(random.uniform(100, 4_000))
        elif dice < 0.37:
            one.skew_us += random.randint(-1_000_000, 1_000_000)
        elif dice < 0.5 and other.is_up:
            one.run(self._meet(one, other))
        else:
            for _ in range(random.choice((1, 1, 3, 8))):
                one.run(self._send(one, other))

    async def _meet(self, one: Party, other: Party) -> None:
        try:
            await one.host.dial(other.peer_id)
        except Exception:
            return

    async def _send(self, one: Party, other: Party) -> None:
        self.count += 1
        number = self.count
        pair = "".join(sorted((one.id[-4:], other.id[-4:])))
        trade = f"{pair}-{self.random.randint(0, 2)}"
        # Most trades end long after the story, some while it goes on.
        lasts_s = self.random.choice((2 * DAY_S, 2 * DAY_S, 3_600 + 200, 3_600 + 2_000))
        payload = {"n": number, "reject": self.random.random() < self.rejects}
        timeout_s = one.office.now() // 1_000_000 + lasts_s
        try:
            id = await one.peer.send(other.id, trade, "nonce_exchange", payload, id=f"m{number}", timeout_s=timeout_s)
        except InvalidInput:
            return
        self.sent.append(Sent(one, other, trade, id))

    async def _rest(self) -> None:
        """Everybody is there, behaves, and has time."""
        world = self.world
        world.drop = world.repeat = 0.0
        self.calm = True
        world.heal()
        for party in world.parties:
            if not party.is_up:
                await self._boot(party)
        # Longer than the longest wait between two tries, several times over; and past the early deadlines.
        for _ in range(200):
            await asyncio.sleep(60)
            if not any(party.store.desks()[0].counts.get(state) for party in world.parties for state in _OPEN):
                break
        await asyncio.sleep(1_300)

    # Promises.

    def _check(self) -> None:
        for sent in self.sent:
            self._check_message(sent)
        for party in self.world.parties:
            self._check_inbox(party)
        self._check_journals()
        for (receiver, sender, trade), numbers in self.first_runs.items():
            assert numbers == sorted(numbers), f"out of order at {receiver[-4:]} from {sender[-4:]}: {trade} {numbers}"

    def _check_message(self, sent: Sent) -> None:
        out = sent.sender.store.message(Ref("outbox", sent.to.id, "", sent.id))
        come = sent.to.store.message(Ref("inbox", sent.sender.id, sent.sender.id, sent.id))
        assert out is not None, f"{sent.id} was accepted and is gone"
        assert out.state in FINISHED, f"{sent.id} is {out.state} after all this time: {out.error}"
        if out.state is State.DELIVERED:
            assert come is not None, f"{sent.id} is delivered, and was never recorded"
            assert come.state is State.DELIVERED, f"{sent.id} is delivered, and {come.state} at its receiver"
        elif out.reason == "rejected":
            assert come is not None, f"{sent.id} was rejected at the door: {out.error}"
            assert come.state is State.DEAD, f"{sent.id} is rejected, and {come.state} at its receiver"
            assert out.error == "as it says", f"{sent.id} was rejected for {out.error}"
        else:
            assert (out.state, out.reason) == (State.DEAD, "deadline"), f"{sent.id} is {out.state}: {out.reason}"
            if come is not None and come.state is State.DELIVERED:
                self.uncertain.append(sent.id)

    def _check_journals(self) -> None:
        """What both sides wrote down of the same message agrees, by the journals alone."""
        ended: defaultdict[tuple[str, str, str], dict[str, tuple[str, str | None]]] = defaultdict(dict)
        for party in self.world.parties:
            for _, _, event in party.store.events():
                if event.event in (DELIVERED, DIED):
                    outbound = event.desk == "outbox"
                    pair = (party.id, event.mailbox) if outbound else (event.mailbox, party.id)
                    ended[*pair, event.message_id][event.desk] = (event.event, event.reason)
        for (_, _, id), both in ended.items():
            out, come = both.get("outbox"), both.get("inbox")
            assert out is not None, f"{id} ended at its receiver, and not at its sender"
            if out[0] == DELIVERED:
                assert come == (DELIVERED, None), f"{id}: delivered for its sender, {come} for its receiver"
            elif out[1] == "rejected":
                assert come == (DIED, "rejected"), f"{id}: rejected for its sender, {come} for its receiver"

    def _check_inbox(self, party: Party) -> None:
        """What was processed was sent, once, and in the order of its numbers."""
        sent = {(s.sender.id, s.id) for s in self.sent if s.to is party}
        last: dict[tuple[str, str], int] = {}
        ended: set[tuple[str, str]] = set()
        views = {(v.message.mailbox, v.message.id): v for v in _all(party, "inbox")}
        for _, _, event in party.store.events():
            if event.desk != "inbox" or event.event not in (DELIVERED, DIED):
                continue
            key = (event.mailbox, event.message_id)
            assert key not in ended, f"{event.message_id} is finished twice"
            assert key in sent or self._was_on_its_way(event.message_id), f"{event.message_id} was never sent"
            ended.add(key)
            number = int(views[key].message.headers["sequence_num"])
            lane = (event.mailbox, event.lane)
            assert number > last.get(lane, 0), f"{event.lane}: {number} is finished behind {last[lane]}"
            last[lane] = number

    def _was_on_its_way(self, id: str) -> bool:
        """A sender that died before it heard that its message was accepted."""
        return any(v.message.id == id for party in self.world.parties for v in _all(party, "outbox"))


_OPEN = (State.READY, State.LEASED, State.RECEIVED)


def _all(party: Party, desk: str) -> list[MessageView]:
    found: list[MessageView] = []
    while page := party.store.messages(Filter(desk), found[-1].number if found else 0, 1_000):
        found += page
    return found


def numbers(party: Party) -> dict[str, list[int]]:
    """The numbers that a party gave, by trade."""
    found: defaultdict[str, list[int]] = defaultdict(list)
    for view in _all(party, "outbox"):
        trade: Any = party.peer.session.trades[view.message.lane]
        found[view.message.lane].append(number_of(trade, view.seq, view.message.headers))
    return found


async def story(loop: VirtualLoop, seed: int) -> Story:
    """One whole story."""
    # Some senders do not wait for the message before, as other programs do not: what they send overtakes.
    key = Line._key if seed % 3 == 0 else _hasty
    with mock.patch.object(Line, "_key", key):
        whole = Story(loop, seed)
        await whole.run()
    return whole


def _hasty(line: Line, delivery: Delivery) -> str:
    return delivery.message.id
