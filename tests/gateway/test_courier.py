"""The courier: parts in order, connections that come and go, breakers, pace, expiry, and sends nobody is sure of."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from tests.gateway.conftest import QUICK_OUT, House, Watch, count, messages
from tests.gateway.net import AskingChannel, NetChannel, Network
from tests.port import free_port

from posthouse.engine.engine import Engine
from posthouse.gateway import courier as courier_module
from posthouse.gateway.channel import (
    Offline,
    Permanent,
    Port,
    RateLimited,
    Reconciled,
    Sending,
    Sent,
    Transient,
    Unclear,
)
from posthouse.gateway.courier import SendLimits
from posthouse.gateway.letter import OUTBOUND_DESK, Outbound, Part
from posthouse.gateway.pacing import Breaker, Pace
from posthouse.gateway.service import Gateway
from posthouse.mailbox.command import Cancel, Hasten, Lease
from posthouse.mailbox.message import SECOND, State
from posthouse.mailbox.outcome import Leased, Posted, Refused, Settled
from posthouse.mailbox.policy import Policy, ladder
from posthouse.mailbox.store import MessageView

LATER = QUICK_OUT.replace(retry=ladder(100))
QUICK = SendLimits(grace_s=0.2, reconcile_s=0.1, drain_per_s=0)


class Script:
    """A channel whose sends come to what it is told, in turn; the last answer stays. It is up when told so."""

    kind = "net"
    account = "default"

    def __init__(self, *answers: Any, idempotent: bool = False, up: bool = True) -> None:
        self.idempotent = idempotent
        self.sent: list[Sending] = []
        self.live = up
        self._answers = list(answers)
        self._port: Port | None = None

    async def start(self, port: Port) -> None:
        self._port = port
        if self.live:
            port.up()

    async def close(self) -> None:
        self._port = None

    def connection(self) -> Script | None:
        return self if self.live else None

    def come_up(self) -> None:
        assert self._port is not None
        self.live = True
        self._port.up()

    async def send(self, sending: Sending) -> Sent:
        self.sent.append(sending)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0] if self._answers else None
        if callable(answer):
            answer = answer(sending)
            if asyncio.iscoroutine(answer):
                answer = await answer
        if isinstance(answer, BaseException):
            raise answer
        return Sent("1")


class Asked(Script):
    """The same, where it can be asked."""

    def __init__(self, *answers: Any, found: Reconciled | Exception) -> None:
        super().__init__(*answers)
        self.found: Reconciled | Exception = found

    async def reconcile(self, sending: Sending) -> Reconciled:
        if isinstance(self.found, Exception):
            raise self.found
        return self.found


def letter(number: int = 1, to: str = "chat", parts: int = 1, **fields: Any) -> Outbound:
    texts = tuple(Part(f"{number}.{part}") for part in range(parts))
    return Outbound(f"out{number}", "net", to, texts, **fields)


def run(
    house: House,
    channel: Any,
    story: Callable[[Gateway, Watch], Any],
    *policies: Policy,
    send: SendLimits = QUICK,
) -> None:
    async def case() -> None:
        async with house.gateway(channel, policies=policies, send=send) as gateway:
            await story(gateway, Watch(gateway.engine))

    asyncio.run(case())


def view(engine: Engine, out: Outbound) -> MessageView:
    found = engine.store.message(out.ref)
    assert found is not None
    return found


async def settled(gateway: Gateway, watch: Watch, out: Outbound) -> MessageView:
    """When something has become of it."""
    engine = gateway.engine
    await watch.until(lambda: view(engine, out).state is not State.LEASED and bool(view(engine, out).reason))
    return view(engine, out)


@pytest.mark.parametrize(
    ("answer", "state", "reason", "attempts", "due_s"),
    [
        (Permanent("no such chat"), State.DEAD, "permanent", 1, None),
        (Transient("try later"), State.READY, "failed", 1, 100),
        (RateLimited(30), State.READY, "rate_limited", 1, 30),
        (RateLimited(1e30), State.READY, "rate_limited", 1, 7 * 86_400),
        (RateLimited(float("nan")), State.READY, "rate_limited", 1, 7 * 86_400),
        (Offline("away", after_s=50), State.READY, "offline", 0, 50),
        (Unclear("cut"), State.UNCERTAIN, "unknown", 1, None),
        (ValueError("a fault of the channel"), State.UNCERTAIN, "unknown", 1, None),
    ],
)
def test_what_a_send_comes_to(
    house: House, answer: Exception, state: State, reason: str, attempts: int, due_s: float | None
) -> None:
    async def story(gateway: Gateway, watch: Watch) -> None:
        before = gateway.engine.now()
        await gateway.engine.do(letter().post())
        found = await settled(gateway, watch, letter())
        assert (found.state, found.reason, found.attempts) == (state, reason, attempts)
        assert str(answer) in str(found.error)
        if due_s is not None:
            assert before <= found.due_at - due_s * SECOND <= gateway.engine.now()

    run(house, Script(answer), story, LATER)


def test_a_resumed_send_starts_at_the_first_part_that_was_not_sent(house: House) -> None:
    channel = Script(None, None, Transient("broken"), None)

    async def story(gateway: Gateway, watch: Watch) -> None:
        await gateway.engine.do(letter(parts=4).post())
        await watch.until(lambda: count(gateway.engine, OUTBOUND_DESK, State.DELIVERED) == 1)
        assert [(s.index, s.attempt) for s in channel.sent] == [(0, 1), (1, 1), (2, 1), (2, 2), (3, 2)]
        keys = [s.key for s in channel.sent]
        assert keys[2] == keys[3]
        assert len(set(keys)) == 4

    run(house, channel, story)


def test_parts_that_were_sent_are_not_sent_again_by_the_next_process(house: House) -> None:
    async def first(gateway: Gateway, watch: Watch) -> None:
        await gateway.engine.do(letter(parts=3).post())
        await watch.until(lambda: view(gateway.engine, letter(parts=3)).progress == 2)

    async def hang(sending: Sending) -> None:
        await asyncio.sleep(60)

    second = Script()

    async def then(gateway: Gateway, watch: Watch) -> None:
        await watch.until(lambda: count(gateway.engine, OUTBOUND_DESK, State.DELIVERED) == 1)
        assert [s.index for s in second.sent] == [2]

    second.idempotent = True
    run(house, Script(None, None, hang, idempotent=True), first)
    run(house, second, then)


def test_a_channel_that_is_not_up_yet_costs_nothing_and_its_backlog_is_sent_when_it_comes(house: House) -> None:
    channel = Script(up=False)

    async def story(gateway: Gateway, watch: Watch) -> None:
        engine = gateway.engine
        await engine.apply(*[letter(n, to=f"chat{n}").post() for n in range(5)])
        assert count(engine, OUTBOUND_DESK, State.READY) == 5
        channel.come_up()
        await watch.until(lambda: count(engine, OUTBOUND_DESK, State.DELIVERED) == 5)
        assert {view(engine, letter(n, to=f"chat{n}")).attempts for n in range(5)} == {1}
        assert {s.attempt for s in channel.sent} == {1}

    run(house, channel, story)


def test_a_connection_that_is_replaced_in_the_middle_moves_the_send_to_the_new_one(house: House) -> None:
    class Renewed(Script):
        """Its connection is replaced after the second part: the old one sends no more."""

        def __init__(self) -> None:
            super().__init__(idempotent=False)
            self.lines = [Line(self, 0), Line(self, 1)]
            self.now = 0

        def connection(self) -> Any:
            return self.lines[self.now]

    class Line:
        def __init__(self, channel: Renewed, number: int) -> None:
            self.channel, self.number = channel, number

        async def send(self, sending: Sending) -> Sent:
            if sending.index == 2 and self.channel.now == 0:
                self.channel.now = 1
                assert self.channel._port is not None
                self.channel._port.down("replaced")
                self.channel._port.up()
                raise Offline("this connection is gone")
            assert self.number == self.channel.now, "sent over a stale connection"
            self.channel.sent.append(sending)
            return Sent()

    channel = Renewed()

    async def story(gateway: Gateway, watch: Watch) -> None:
        await gateway.engine.do(letter(parts=4).post())
        await watch.until(lambda: count(gateway.engine, OUTBOUND_DESK, State.DELIVERED) == 1)
        assert [s.index for s in channel.sent] == [0, 1, 2, 3]
        assert view(gateway.engine, letter(parts=4)).attempts == 1

    run(house, channel, story)


def test_what_is_for_one_target_is_sent_in_order_and_targets_side_by_side(house: House) -> None:
    busy: dict[str, int] = {}
    most = [0]

    async def slow(sending: Sending) -> None:
        to = sending.outbound.to
        busy[to] = busy.get(to, 0) + 1
        assert busy[to] == 1
        most[0] = max(most[0], sum(busy.values()))
        await asyncio.sleep(0.01)
        busy[to] -= 1

    channel = Script(slow)

    async def story(gateway: Gateway, watch: Watch) -> None:
        await gateway.engine.apply(*[letter(n * 10 + t, to=f"chat{t}").post() for n in range(5) for t in range(6)])
        await watch.until(lambda: count(gateway.engine, OUTBOUND_DESK, State.DELIVERED) == 30)
        assert most[0] == 3
        for target in range(6):
            own = [s.outbound.id for s in channel.sent if s.outbound.to == f"chat{target}"]
            assert own == [f"out{n * 10 + target}" for n in range(5)]

    run(house, channel, story, send=SendLimits(side_by_side=3, grace_s=0.2, drain_per_s=0))


def test_a_target_that_failed_often_is_left_alone_without_losing_attempts_and_others_are_not(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead_s = [0.0]
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + ahead_s[0])
    monkeypatch.setattr(courier_module, "time", clock)

    def broken(sending: Sending) -> Exception | None:
        return Transient("down") if sending.outbound.to == "bad" and not healed else None

    healed: list[bool] = []
    channel = Script(broken)

    async def story(gateway: Gateway, watch: Watch) -> None:
        engine = gateway.engine
        await engine.apply(letter(1, to="bad").post(), letter(2, to="bad").post(), letter(3, to="good").post())
        courier = gateway.couriers["net/default"]
        await watch.until(lambda: courier.stats.held_back == courier.stats.sent == 1)
        assert courier.open_targets() == ["bad"]
        held = view(engine, letter(1, to="bad"))
        assert (held.state, held.attempts, held.reason) == (State.READY, 3, "offline")
        assert view(engine, letter(3, to="good")).state is State.DELIVERED
        healed.append(True)
        # The time is over, by both clocks.
        ahead_s[0] = 600.0
        await engine.do(Hasten(OUTBOUND_DESK, "net/default"))
        await watch.until(lambda: count(engine, OUTBOUND_DESK, State.DELIVERED) == 3)
        assert [s.outbound.id for s in channel.sent if s.outbound.to == "bad"] == ["out1"] * 4 + ["out2"]
        assert courier.open_targets() == []

    limits = SendLimits(breaker_failures=3, breaker_s=600.0, grace_s=0.2, drain_per_s=0)
    run(house, channel, story, QUICK_OUT.replace(retry=ladder(0.001), attempts_max=20), send=limits)


def test_what_waited_for_a_channel_is_sent_at_a_pace(house: House) -> None:
    channel = Script(up=False)

    async def story(gateway: Gateway, watch: Watch) -> None:
        await gateway.engine.apply(*[letter(n, to=f"chat{n}").post() for n in range(20)])
        begun = time.monotonic()
        channel.come_up()
        await watch.until(lambda: count(gateway.engine, OUTBOUND_DESK, State.DELIVERED) == 20)
        assert time.monotonic() - begun > 0.8  # 20 at 20 a second

    run(house, channel, story, send=SendLimits(side_by_side=4, drain_per_s=20, grace_s=0.2))


def test_what_has_expired_is_not_sent(house: House) -> None:
    channel = Script(up=False)

    async def story(gateway: Gateway, watch: Watch) -> None:
        engine = gateway.engine
        assert isinstance(await engine.do(letter(1, expires_at=engine.now() + 2 * SECOND).post()), Posted)
        await engine.do(letter(2).post())
        await watch.until(lambda: engine.now() > int(view(engine, letter(1)).expires_at or 0))
        channel.come_up()
        await watch.until(lambda: count(engine, OUTBOUND_DESK, State.DELIVERED) == 1)
        assert [s.outbound.id for s in channel.sent] == ["out2"]
        assert view(engine, letter(1)).state is State.EXPIRED

    run(house, channel, story)


def test_what_was_cancelled_is_never_sent_and_what_is_being_sent_cannot_be_cancelled(house: House) -> None:
    going = asyncio.Event()
    go_on = asyncio.Event()

    async def wait(sending: Sending) -> None:
        going.set()
        await go_on.wait()

    channel = Script(wait)

    async def story(gateway: Gateway, watch: Watch) -> None:
        engine = gateway.engine
        await engine.apply(letter(1).post(), letter(2).post())
        await going.wait()
        assert isinstance(await engine.do(Cancel(letter(1).ref)), Refused)
        assert isinstance(await engine.do(Cancel(letter(2).ref)), Settled)
        go_on.set()
        await watch.until(lambda: count(engine, OUTBOUND_DESK, State.DELIVERED) == 1)
        assert [s.outbound.id for s in channel.sent] == ["out1"]

    run(house, channel, story)


def test_an_unclear_send_is_repeated_with_its_key_where_the_network_knows_keys(house: House) -> None:
    channel = Script(Unclear("cut"), Unclear("cut"), None, idempotent=True)

    async def story(gateway: Gateway, watch: Watch) -> None:
        await gateway.engine.do(letter().post())
        await watch.until(lambda: count(gateway.engine, OUTBOUND_DESK, State.DELIVERED) == 1)
        assert len({s.key for s in channel.sent}) == 1
        assert [s.attempt for s in channel.sent] == [1, 1, 1]

    run(house, channel, story)


@pytest.mark.parametrize(("found", "sent"), [(Reconciled.SENT, [0, 1]), (Reconciled.NOT_SENT, [0, 0, 1])])
def test_a_channel_that_can_be_asked_decides_an_unclear_send(house: House, found: Reconciled, sent: list[int]) -> None:
    channel = Asked(Unclear("cut"), None, found=found)

    async def story(gateway: Gateway, watch: Watch) -> None:
        await gateway.engine.do(letter(parts=2).post())
        await watch.until(lambda: count(gateway.engine, OUTBOUND_DESK, State.DELIVERED) == 1)
        assert [s.index for s in channel.sent] == sent

    run(house, channel, story)


def test_what_the_channel_does_not_know_yet_is_uncertain_and_asked_about_again(house: House) -> None:
    channel = Asked(Unclear("cut"), None, found=Reconciled.UNKNOWN)

    async def story(gateway: Gateway, watch: Watch) -> None:
        engine = gateway.engine
        await engine.do(letter(1, parts=2).post())
        await watch.until(lambda: count(engine, OUTBOUND_DESK, State.UNCERTAIN) == 1)
        channel.found = RuntimeError("not reachable")
        await engine.do(letter(2).post())
        await watch.until(lambda: count(engine, OUTBOUND_DESK, State.DELIVERED) == 1)
        assert count(engine, OUTBOUND_DESK, State.UNCERTAIN) == 1, "what is uncertain does not hold its lane"
        channel.found = Reconciled.SENT
        await watch.until(lambda: count(engine, OUTBOUND_DESK, State.DELIVERED) == 2)
        # The part that was in doubt is not sent again; the one behind it is.
        assert [(s.outbound.id, s.index) for s in channel.sent] == [("out1", 0), ("out2", 0), ("out1", 1)]

    run(house, channel, story)


@pytest.mark.parametrize(
    ("make", "state", "sent"),
    [
        (lambda: Script(), State.UNCERTAIN, 0),
        (lambda: Script(idempotent=True), State.DELIVERED, 1),
        (lambda: Asked(found=Reconciled.SENT), State.DELIVERED, 0),
        (lambda: Asked(found=Reconciled.NOT_SENT), State.DELIVERED, 1),
        (lambda: Asked(found=Reconciled.UNKNOWN), State.UNCERTAIN, 0),
    ],
)
def test_what_a_crash_interrupted_is_settled_by_what_the_channel_knows(
    house: House, make: Callable[[], Script], state: State, sent: int
) -> None:
    async def crashed() -> None:
        async with house.engine() as engine:
            await engine.do(letter().post())
            leased = await engine.do(Lease(OUTBOUND_DESK, "net/default", "token"))
            assert isinstance(leased, Leased)
            assert leased.deliveries
            # The process is gone: nobody settles.

    asyncio.run(crashed())
    channel = make()

    async def story(gateway: Gateway, watch: Watch) -> None:
        await gateway.engine.do(letter(2, to="another").post())
        await watch.until(lambda: view(gateway.engine, letter(2, to="another")).state is State.DELIVERED)
        await watch.until(lambda: view(gateway.engine, letter()).state is state)
        assert len([s for s in channel.sent if s.outbound.id == "out1"]) == sent

    run(house, channel, story)


@pytest.mark.parametrize(("idempotent", "state"), [(True, State.READY), (False, State.UNCERTAIN)])
def test_a_stop_in_the_middle_of_a_send_leaves_what_is_certain(house: House, idempotent: bool, state: State) -> None:
    going = asyncio.Event()

    async def hang(sending: Sending) -> None:
        going.set()
        await asyncio.sleep(60)

    async def case() -> None:
        async with house.gateway(Script(hang, idempotent=idempotent), send=QUICK) as gateway:
            await gateway.engine.do(letter().post())
            await going.wait()
            await gateway.close()
            assert view(gateway.engine, letter()).state is state

    asyncio.run(case())


def test_a_network_that_goes_away_and_comes_back_gets_everything_in_order(house: House) -> None:
    async def case() -> None:
        port = free_port()
        network = await Network().start(port)
        async with house.gateway(NetChannel(port), send=QUICK) as gateway:
            await network.until(lambda: network.connects == 1)
            await network.close()
            await gateway.engine.apply(*[letter(n, to=f"chat{n % 3}").post() for n in range(30)])
            back = await Network().start(port)
            await back.until(lambda: len(back.arrived) == 30)
            for chat in range(3):
                assert back.texts(f"chat{chat}") == [f"{n}.0" for n in range(30) if n % 3 == chat]
            stats = gateway.couriers["net/default"].stats
            assert (stats.retried, stats.uncertain) == (0, 0)
            await back.close()

    asyncio.run(case())


def test_a_refusal_of_the_network_is_a_dead_letter_and_the_lane_goes_on(house: House) -> None:
    async def case() -> None:
        async with Network() as network:
            network.refusals["gone"] = "bot was blocked by the user"
            async with house.gateway(AskingChannel(network.port, idempotent=False), send=QUICK) as gateway:
                watch = Watch(gateway.engine)
                await gateway.engine.apply(letter(1, to="gone").post(), letter(2, to="here").post())
                await watch.until(lambda: count(gateway.engine, OUTBOUND_DESK, State.DELIVERED, State.DEAD) == 2)
                (dead,) = messages(gateway.engine, OUTBOUND_DESK, State.DEAD)
                assert (dead.reason, dead.error) == ("permanent", "bot was blocked by the user")

    asyncio.run(case())


def test_a_breaker_opens_after_failures_in_a_row_and_closes_with_a_success() -> None:
    breaker = Breaker(3, 10.0)
    for now in (1.0, 2.0):
        breaker.failed("a", now)
        assert breaker.wait_s("a", now) == 0
    breaker.failed("a", 3.0)
    assert breaker.wait_s("a", 4.0) == 9.0
    assert breaker.wait_s("b", 4.0) == 0
    assert breaker.open(4.0) == ["a"]
    assert breaker.wait_s("a", 13.0) == 0  # one try
    breaker.failed("a", 13.0)
    assert breaker.wait_s("a", 14.0) == 9.0
    breaker.succeeded("a")
    assert breaker.wait_s("a", 14.0) == 0
    never = Breaker(0, 10.0)
    for _ in range(100):
        never.failed("a", 1.0)
    assert never.wait_s("a", 1.0) == 0


def test_a_pace_gives_turns_at_equal_distances() -> None:
    pace = Pace(10.0)
    assert [round(pace.take_s(0.0), 6) for _ in range(3)] == [0.0, 0.1, 0.2]
    assert pace.take_s(5.0) == 0.0
    assert Pace(0).take_s(0.0) == 0.0
