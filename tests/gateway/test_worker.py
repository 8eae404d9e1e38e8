"""The worker: lanes, batches, renewal and fencing, what handlers may answer, poison, and fair shares."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tests.gateway.conftest import QUICK_IN, QUICK_OUT, House, Watch, count, messages

from posthouse.engine.engine import Engine
from posthouse.errors import StoreUnavailable
from posthouse.gateway import worker as worker_module
from posthouse.gateway.answer import Away, Reject, RetryLater, Work
from posthouse.gateway.handlers.function import FunctionHandler
from posthouse.gateway.letter import INBOUND_DESK, OUTBOUND_DESK, Inbound, Media, Outbound, Part, Reply
from posthouse.gateway.worker import Limits, Worker
from posthouse.mailbox.command import Command, Release, Settle, Sweep, Together
from posthouse.mailbox.message import SECOND, State
from posthouse.mailbox.outcome import Duplicate, Outcome
from posthouse.mailbox.policy import Poison, Policy, ladder
from posthouse.stores.memory import MemoryStore

NO_WAIT = Limits(grace_s=0.2)


def said(session: str, number: int, text: str | None = None, **fields: Any) -> Inbound:
    text = f"{session} {number}" if text is None else text
    return Inbound(f"{session}-{number}", "net", session, fields.pop("sender", "someone"), text, **fields)


class Scene:
    """An engine, a worker, and what its handler was given."""

    def __init__(self, house: House, handler: Callable[[Work], Any], limits: Limits, *policies: Policy) -> None:
        self._house, self._limits, self._policies = house, limits, policies
        self._function = handler
        self.given: list[Work] = []

    async def __aenter__(self) -> Scene:
        self._context = self._house.engine(*self._policies)
        self.engine: Engine = await self._context.__aenter__()
        self.watch = Watch(self.engine)
        self.worker = self.make()
        return self

    def make(self) -> Worker:
        async def handle(work: Work) -> Any:
            self.given.append(work)
            return await self._function(work)

        return Worker(self.engine, FunctionHandler(handle), self._limits)

    async def __aexit__(self, *_: object) -> None:
        await self.worker.close()
        await self._context.__aexit__(None, None, None)

    async def post(self, *letters: Inbound) -> None:
        await self.engine.apply(*[letter.post() for letter in letters])

    async def all_are(self, number: int, *states: State) -> None:
        await self.watch.until(lambda: count(self.engine, INBOUND_DESK, *states) == number)

    def replies(self) -> list[Outbound]:
        return [Outbound.from_message(view.message) for view in messages(self.engine, OUTBOUND_DESK)]


async def echo(work: Work) -> str:
    return work.text


def test_one_message_of_a_session_at_a_time_and_sessions_side_by_side_up_to_the_limit(house: House) -> None:
    busy: dict[str, int] = {}
    most = [0]
    full = asyncio.Event()

    async def handle(work: Work) -> str:
        busy[work.session] = busy.get(work.session, 0) + 1
        assert busy[work.session] == 1, "two of one session at once"
        most[0] = max(most[0], sum(busy.values()))
        if most[0] == 4:
            full.set()
        await full.wait()  # nobody is done before every place was taken
        await asyncio.sleep(0.005)
        busy[work.session] -= 1
        return work.text

    async def case() -> None:
        async with Scene(house, handle, Limits(slots=4, grace_s=0.2)) as scene:
            await scene.post(*[said(f"chat{s}", n) for n in range(5) for s in range(8)])
            scene.worker.start()
            await scene.all_are(40, State.DELIVERED)
            assert most[0] == 4
            for s in range(8):
                own = [work.text for work in scene.given if work.session == f"net:default:chat{s}"]
                assert own == [f"chat{s} {n}" for n in range(5)]

    asyncio.run(case())


def test_a_reply_is_posted_with_the_completion_and_knows_its_cause_place_and_thread(house: House) -> None:
    async def handle(work: Work) -> Reply:
        return Reply((Part("one"), Part("", (Media("https://example.org/cat.png"),))))

    async def case() -> None:
        async with Scene(house, handle, NO_WAIT) as scene:
            asked = said("chat", 1, thread="topic", tenant="acme")
            await scene.post(asked)
            scene.worker.start()
            await scene.all_are(1, State.DELIVERED)
            (reply,) = scene.replies()
            assert (reply.cause, reply.reply_to, reply.to, reply.thread) == ("chat-1", "chat-1", "chat", "topic")
            assert (reply.channel, reply.account, reply.tenant) == ("net", "default", "acme")
            assert reply.parts == (Part("one"), Part("", (Media("https://example.org/cat.png"),)))
            events = [(commit, e.event) for _, commit, e in scene.engine.store.events() if e.message_id]
            (done,) = [commit for commit, event in events if event == "delivered"]
            assert [event for commit, event in events if commit == done] == ["posted", "delivered"]

    asyncio.run(case())


def test_a_failed_message_comes_again_before_those_behind_it_and_is_dead_after_its_attempts(house: House) -> None:
    async def handle(work: Work) -> str:
        if work.text == "chat 1" and work.attempt < 3:
            raise RuntimeError("not yet")
        if work.text == "chat 2":
            raise RuntimeError(f"attempt {work.attempt}")
        return work.text

    async def case() -> None:
        policy = QUICK_IN.replace(retry=ladder(0.001), attempts_max=4)
        async with Scene(house, handle, NO_WAIT, policy) as scene:
            await scene.post(*[said("chat", n) for n in (1, 2, 3)])
            scene.worker.start()
            await scene.all_are(3, State.DELIVERED, State.DEAD)
            given = [(work.text, work.attempt) for work in scene.given]
            assert given == [("chat 1", n) for n in (1, 2, 3)] + [("chat 2", n) for n in (1, 2, 3, 4)] + [("chat 3", 1)]
            (dead,) = messages(scene.engine, INBOUND_DESK, State.DEAD)
            assert (dead.reason, dead.error) == ("attempts", "RuntimeError: attempt 4")

    asyncio.run(case())


@pytest.mark.parametrize(
    ("raised", "state", "reason", "attempts", "due_s"),
    [
        (RetryLater(30, "busy"), State.READY, "failed", 1, 30),
        (RetryLater(30, "slow down", rate_limited=True), State.READY, "rate_limited", 1, 30),
        (RetryLater(), State.READY, "failed", 1, 100),
        (Away("gone", after_s=9), State.READY, "offline", 0, 9),
        (Reject("no"), State.DEAD, "rejected", 1, None),
        (ValueError("odd"), State.READY, "failed", 1, 100),
        (TimeoutError(), State.READY, "failed", 1, 100),
    ],
)
def test_what_a_handler_may_answer(
    house: House, raised: Exception, state: State, reason: str, attempts: int, due_s: float | None
) -> None:
    async def handle(work: Work) -> None:
        raise raised

    async def case() -> None:
        async with Scene(house, handle, NO_WAIT, QUICK_IN.replace(retry=ladder(100))) as scene:
            asked = said("chat", 1)
            before = scene.engine.now()
            await scene.post(asked)
            scene.worker.start()
            ref = asked.ref

            def settled() -> bool:
                view = scene.engine.store.message(ref)
                return view is not None and view.reason is not None

            await scene.watch.until(settled)
            view = scene.engine.store.message(ref)
            assert view is not None
            assert (view.state, view.reason, view.attempts) == (state, reason, attempts)
            if due_s is not None:
                assert before <= view.due_at - due_s * SECOND <= scene.engine.now()
            assert not scene.replies()

    asyncio.run(case())


def test_replies_may_be_texts_lists_or_returned_refusals(house: House) -> None:
    answers: dict[str, Any] = {
        "nothing": None,
        "empty": "",
        "text": "a",
        "list": ["a", Reply.of("b", "c"), None],
        "rejection": Reject("no"),
        "nonsense": 17,
        "oversize": "x" * 2_000_000,
        "endless": Reply((Part("a"),), expires_after_s=1e30),
        "odd": Reply((Part("a"),), to="a\x00b"),
        "elsewhere": Reply((Part("a"),), channel="mail", to="ann@example.org"),
    }

    async def handle(work: Work) -> Any:
        return answers[work.text]

    async def case() -> None:
        async with Scene(house, handle, NO_WAIT) as scene:
            await scene.post(*[said(name, 1, name) for name in answers])
            scene.worker.start()
            await scene.all_are(len(answers), State.DELIVERED, State.DEAD)
            found: dict[str, list[list[str]]] = {}
            for reply in scene.replies():
                assert reply.cause is not None
                found.setdefault(reply.cause, []).append([part.text for part in reply.parts])
            assert found == {"text-1": [["a"]], "list-1": [["a"], ["b", "c"]], "elsewhere-1": [["a"]]}
            errors = {v.message.id: v.error for v in messages(scene.engine, INBOUND_DESK, State.DEAD)}
            assert set(errors) == {"rejection-1", "nonsense-1", "oversize-1", "endless-1", "odd-1"}
            assert "oversize" in str(errors["oversize-1"])
            assert "returned int" in str(errors["nonsense-1"])
            (away,) = [reply for reply in scene.replies() if reply.cause == "elsewhere-1"]
            assert (away.mailbox, away.to, away.reply_to) == ("mail/default", "ann@example.org", "")

    asyncio.run(case())


def test_a_handler_keeps_its_lease_while_it_works(house: House) -> None:
    async def case() -> None:
        go_on = asyncio.Event()

        async def handle(work: Work) -> str:
            await go_on.wait()
            return "done"

        def ends_at() -> int:
            view = scene.engine.store.message(said("chat", 1).ref)
            assert view is not None
            return view.lease_ends_at or 0

        async with Scene(house, handle, NO_WAIT, QUICK_IN.replace(lease_s=6.0)) as scene:
            await scene.post(said("chat", 1))
            scene.worker.start()
            await scene.watch.until(lambda: ends_at() > 0)
            first = ends_at()
            await scene.watch.until(lambda: ends_at() > first)
            # When the first lease would have ended.
            await scene.engine.amaintain(lambda store: store.apply([Sweep(at=first + 1)]) and None)
            assert count(scene.engine, INBOUND_DESK, State.LEASED) == 1
            go_on.set()
            await scene.all_are(1, State.DELIVERED)
            assert [work.attempt for work in scene.given] == [1]

    asyncio.run(case())


def test_a_handler_that_lost_its_lease_is_cancelled_and_neither_settles_nor_replies(house: House) -> None:
    cancelled: list[int] = []

    async def handle(work: Work) -> str:
        if work.attempt == 1:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                cancelled.append(work.attempt)
                raise
        return "late" if work.attempt == 1 else "in time"

    async def case() -> None:
        async with Scene(house, handle, NO_WAIT, QUICK_IN.replace(lease_s=0.6)) as scene:
            await scene.post(said("chat", 1))
            scene.worker.start()
            await scene.watch.until(lambda: count(scene.engine, INBOUND_DESK, State.LEASED) == 1)
            # As if this process had slept until its lease was over.
            later = scene.engine.now() + 1_000_000
            await scene.engine.amaintain(lambda store: store.apply([Sweep(at=later)]) and None)
            await scene.all_are(1, State.DELIVERED)
            await scene.watch.until(lambda: scene.worker.stats.fenced > 0)
            assert cancelled == [1]
            assert [part.text for reply in scene.replies() for part in reply.parts] == ["in time"]

    asyncio.run(case())


def test_a_handler_whose_lease_was_taken_while_it_answered_changes_nothing(house: House) -> None:
    async def case() -> None:
        release = asyncio.Event()

        async def handle(work: Work) -> str:
            if work.attempt == 1 and not release.is_set():
                # An operator ends the lease at the very moment at which the handler is done.
                token = next(iter(scene.worker._jobs))
                release.set()
                await scene.engine.do(Release(INBOUND_DESK, token))
            return f"answer {len(scene.given)}"

        async with Scene(house, handle, NO_WAIT) as scene:
            await scene.post(said("chat", 1))
            scene.worker.start()
            await scene.all_are(1, State.DELIVERED)
            assert [part.text for reply in scene.replies() for part in reply.parts] == ["answer 2"]

    asyncio.run(case())


def test_a_handler_that_says_nothing_is_given_up_and_one_that_reports_progress_is_not(house: House) -> None:
    async def handle(work: Work) -> str:
        for _ in range(10):
            await asyncio.sleep(0.1)
            if work.session.endswith("busy"):
                work.progress()
        return "done"

    async def case() -> None:
        limits = Limits(timeout_s=0.3, max_s=30, grace_s=0.2)
        policy = QUICK_IN.replace(attempts_max=1)
        async with Scene(house, handle, limits, policy) as scene:
            await scene.post(said("busy", 1), said("silent", 1))
            scene.worker.start()
            await scene.all_are(2, State.DELIVERED, State.DEAD)
            (dead,) = messages(scene.engine, INBOUND_DESK, State.DEAD)
            assert dead.message.id == "silent-1"
            assert "said nothing for 0.3 s" in str(dead.error)

    asyncio.run(case())


def test_a_handler_that_had_no_chance_to_speak_is_not_given_up(house: House) -> None:
    async def handle(work: Work) -> str:
        if work.session.endswith("rude"):
            await asyncio.sleep(0.15)
            time.sleep(1.0)  # noqa: ASYNC251 (nobody else has a turn meanwhile)
            return "done"
        for _ in range(4):
            await asyncio.sleep(0.1)
            work.progress()
        return "done"

    async def case() -> None:
        limits = Limits(timeout_s=0.3, max_s=30, grace_s=0.2)
        async with Scene(house, handle, limits, QUICK_IN.replace(attempts_max=1)) as scene:
            await scene.post(said("busy", 1), said("rude", 1))
            scene.worker.start()
            await scene.all_are(2, State.DELIVERED, State.DEAD)
            assert messages(scene.engine, INBOUND_DESK, State.DEAD) == []

    asyncio.run(case())


def test_progress_does_not_put_off_the_end_for_ever(house: House) -> None:
    async def handle(work: Work) -> str:
        while True:
            await asyncio.sleep(0.05)
            work.progress()

    async def case() -> None:
        limits = Limits(timeout_s=0.2, max_s=0.5, grace_s=0.2)
        async with Scene(house, handle, limits, QUICK_IN.replace(attempts_max=1)) as scene:
            await scene.post(said("chat", 1))
            scene.worker.start()
            await scene.all_are(1, State.DEAD)

    asyncio.run(case())


def test_what_comes_close_together_is_handed_over_together_and_what_bypasses_flushes_it(house: House) -> None:
    async def case() -> None:
        policy = QUICK_IN.replace(quiet_s=0.3, quiet_max_s=1.5)
        async with Scene(house, echo, NO_WAIT, policy) as scene:
            scene.worker.start()
            await scene.post(said("chat", 1), said("chat", 2), said("chat", 3, sender="another"))
            await scene.post(said("chat", 4), said("chat", 5, "/stop", control=True), said("chat", 6))
            await scene.post(said("other", 1, media=(Media("https://example.org/a.png"),)), said("other", 2, ""))
            await scene.all_are(8, State.DELIVERED)
            ids = [[m.id for m in work.messages] for work in scene.given]
            assert [i for i in ids if i[0].startswith("chat")] == [
                ["chat-1", "chat-2"], ["chat-3"], ["chat-4"], ["chat-5"], ["chat-6"],
            ]  # fmt: skip
            assert [i for i in ids if i[0].startswith("other")] == [["other-1"], ["other-2"]]
            both = next(work for work in scene.given if len(work.messages) == 2)
            assert both.text == "chat 1\nchat 2"
            causes = {reply.cause for reply in scene.replies()}
            assert causes == {"chat-2", "chat-3", "chat-4", "chat-5", "chat-6", "other-1"}

    asyncio.run(case())


def test_a_quiet_period_survives_the_process_and_ends_at_five_times_its_length(house: House) -> None:
    policy = QUICK_IN.replace(quiet_s=0.4, quiet_max_s=2.0)

    async def case() -> None:
        async with Scene(house, echo, NO_WAIT, policy) as scene:
            # Nobody works on them before this process ends.
            await scene.post(said("chat", 1), said("chat", 2))
        async with Scene(house, echo, NO_WAIT, policy) as scene:
            assert isinstance(await scene.engine.do(said("chat", 1).post()), Duplicate)
            scene.worker.start()
            await scene.all_are(2, State.DELIVERED)
            assert [[m.id for m in work.messages] for work in scene.given] == [["chat-1", "chat-2"]]

            for number in itertools.count():
                posts, leased_at = await talk(scene, f"talker{number}")
                # A machine that was held up was quiet meanwhile: that would be another story.
                spoke = [at for at in posts if at <= leased_at]
                if all(after - at < 0.4 * SECOND for at, after in itertools.pairwise([*spoke, leased_at])):
                    assert leased_at - posts[0] >= 2.0 * SECOND
                    break

    async def talk(scene: Scene, session: str) -> tuple[list[int], int]:
        """Say one thing more every while, so that it is never quiet, until it is handed over; when that was."""
        lane = said(session, 0).lane
        async with asyncio.timeout(60):
            for number in itertools.count():
                await scene.post(said(session, number))
                await asyncio.sleep(0.1)
                if any(work.session == lane for work in scene.given):
                    break
        events = [e for _, _, e in scene.engine.store.events() if e.lane == lane]
        posts, leases = ([e.at for e in events if e.event == kind] for kind in ("posted", "leased"))
        return posts, leases[0]

    asyncio.run(case())


@pytest.mark.parametrize("poison", list(Poison))
def test_poison_does_what_the_policy_says(house: House, poison: Poison) -> None:
    async def handle(work: Work) -> str:
        if work.text == "chat 1":
            raise RuntimeError("poison")
        return work.text

    async def case() -> None:
        policy = QUICK_IN.replace(retry=ladder(0.001), attempts_max=2, poison=poison)
        async with Scene(house, handle, NO_WAIT, policy) as scene:
            await scene.post(said("chat", 1), said("chat", 2), said("other", 1))
            scene.worker.start()
            await scene.all_are(1 if poison is Poison.BLOCK else 2, State.DELIVERED)
            aside = State.PARKED if poison is Poison.PARK else State.DEAD
            await scene.all_are(1, aside)
            lane = scene.engine.store.lane(INBOUND_DESK, "default", "net:default:chat")
            assert lane is not None
            assert lane.paused == ("poison" if poison is Poison.BLOCK else None)
            assert lane.depth == (1 if poison is Poison.BLOCK else 0)

    asyncio.run(case())


def test_a_stop_lets_handlers_finish_and_gives_back_the_rest_uncounted(house: House) -> None:
    async def case() -> None:
        begun = asyncio.Event()

        async def handle(work: Work) -> str:
            begun.set()
            await asyncio.sleep(0.05 if work.session.endswith("quick") else 60)
            return "done"

        async with Scene(house, handle, Limits(grace_s=0.5)) as scene:
            await scene.post(said("quick", 1), said("slow", 1))
            scene.worker.start()
            await begun.wait()
            await scene.worker.close()
            assert count(scene.engine, INBOUND_DESK, State.DELIVERED) == 1
            view = scene.engine.store.message(said("slow", 1).ref)
            assert view is not None
            assert (view.state, view.attempts) == (State.READY, 0)

    asyncio.run(case())


def test_a_body_that_is_no_message_of_the_gateway_is_a_dead_letter(house: House) -> None:
    async def case() -> None:
        async with Scene(house, echo, NO_WAIT) as scene:
            good = said("chat", 1).post()
            odd: list[Command] = [
                good._replace(message=good.message._replace(id=f"odd{n}", body=body))
                for n, body in enumerate((b"", b"\xff", b"[]", b'{"channel": 1}', b'{"channel": "a"}'))
            ]
            await scene.engine.apply(*odd)
            scene.worker.start()
            await scene.all_are(5, State.DEAD)
            assert not scene.given

    asyncio.run(case())


def test_tenants_are_served_in_turn_however_much_one_has_waiting(house: House) -> None:
    async def case() -> None:
        async with Scene(house, echo, Limits(slots=2, grace_s=0.2)) as scene:
            await scene.post(*[said(f"flood{n % 50}", n, tenant="flood") for n in range(500)])
            await scene.post(*[said(f"small{n}", n, tenant="small") for n in range(20)])
            scene.worker.start()
            await scene.all_are(520, State.DELIVERED)
            last = max(n for n, work in enumerate(scene.given) if work.tenant == "small")
            assert last < 60, "the small tenant waited for the flood"

    asyncio.run(case())


def test_a_tenant_whose_handlers_hang_holds_up_no_other_and_never_has_more_than_its_share(house: House) -> None:
    async def case() -> None:
        busy: Counter[str] = Counter()
        most: Counter[str] = Counter()
        go_on = asyncio.Event()

        async def handle(work: Work) -> None:
            busy[work.tenant] += 1
            busy["all"] += 1
            most.update({name: busy[name] - most[name] for name in (work.tenant, "all") if busy[name] > most[name]})
            if work.tenant == "flood":
                await go_on.wait()
            await asyncio.sleep(0)
            busy[work.tenant] -= 1
            busy["all"] -= 1

        async with Scene(house, handle, Limits(slots=4, spare=2, grace_s=0.2)) as scene:
            await scene.post(*[said(f"flood{n % 20}", n, tenant="flood") for n in range(200)])
            scene.worker.start()
            await scene.watch.until(lambda: busy["flood"] == 4)
            for number in range(10):
                await scene.post(*[said(f"small{n}", number, tenant="small") for n in range(5)])
            await scene.all_are(50, State.DELIVERED)
            assert busy == {"flood": 4, "small": 0, "all": 4}
            go_on.set()
            await scene.post(*[said(f"small{n % 7}", n, tenant="small") for n in range(10, 80)])
            await scene.all_are(320, State.DELIVERED)
        assert most["flood"] == 4
        assert 1 <= most["small"] <= 4
        assert most["all"] <= 6

    asyncio.run(case())


def test_a_tenant_alone_has_its_share_and_leaves_the_spare_places_free(house: House) -> None:
    async def case() -> None:
        busy = 0
        most = 0
        full = asyncio.Event()

        async def handle(work: Work) -> None:
            nonlocal busy, most
            busy += 1
            most = max(most, busy)
            if most == 3:
                full.set()
            await full.wait()
            await asyncio.sleep(0.002)
            busy -= 1

        async with Scene(house, handle, Limits(slots=3, spare=5, grace_s=0.2)) as scene:
            await scene.post(*[said(f"chat{n % 30}", n) for n in range(120)])
            scene.worker.start()
            await scene.all_are(120, State.DELIVERED)
        assert most == 3

    asyncio.run(case())


class Unreliable(MemoryStore):
    """Twice it says of commits that settle something that they failed, before or after they took effect."""

    def __init__(self, took_effect: bool) -> None:
        super().__init__({policy.name: policy for policy in (QUICK_IN, QUICK_OUT)})
        self._took_effect = took_effect
        self.failures = 0

    def apply(self, commands: Sequence[Command]) -> list[Outcome]:
        fails = self.failures < 2 and any(isinstance(command, Together | Settle) for command in commands)
        self.failures += fails
        if not fails or self._took_effect:
            outcomes = super().apply(commands)
        if fails:
            raise StoreUnavailable("nobody knows")
        return outcomes


@pytest.mark.parametrize("took_effect", [False, True])
def test_what_could_not_be_settled_at_once_is_settled_later_and_answered_once(
    took_effect: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "STORE_PAUSE_S", 0.02)
    given: list[str] = []

    async def handle(work: Work) -> str | None:
        given.append(work.message.id)
        return work.text if len(given) % 2 else None

    async def case() -> None:
        store = Unreliable(took_effect)
        async with Engine(store) as engine:
            worker = Worker(engine, FunctionHandler(handle), Limits(slots=4, spare=2, grace_s=30))
            watch = Watch(engine)
            await engine.apply(*[said(f"chat{n % 6}", n).post() for n in range(36)])
            worker.start()
            await watch.until(lambda: count(engine, INBOUND_DESK, State.DELIVERED) == 36)
            await worker.close()
            assert store.failures == 2
            assert sorted(given) == sorted(said(f"chat{n % 6}", n).id for n in range(36))
            replies = [view.message.cause for view in messages(engine, OUTBOUND_DESK)]
            assert sorted(replies) == sorted(given[::2])
            # Of what took effect unheard, the repeat finds the lease gone, and nobody is the wiser.
            assert worker.stats.handled + worker.stats.fenced == 36
            assert (worker.stats.fenced > 0) == took_effect

    asyncio.run(case())
