from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import uvloop
from tests.unit.engine.fakes import WAIT_S, until, until_blocking

import posthouse
from posthouse.engine.library import Opening
from posthouse.mailbox.command import Command, Lease, Renew, Sweep
from posthouse.mailbox.message import SECOND, Ref, State
from posthouse.mailbox.outcome import Duplicate, LeaseLost, Posted, Refused, Settled
from posthouse.mailbox.policy import Policy, ladder
from posthouse.mailbox.store import Store
from posthouse.stores.memory import MemoryStore

RUNNERS = pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])


@pytest.fixture(params=["memory", "sqlite"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return ":memory:" if request.param == "memory" else str(tmp_path / "mail.db")


class Kept:
    """A store in memory that outlives its closing, so that it can be opened again."""

    def __init__(self) -> None:
        self.store: MemoryStore | None = None

    def __call__(self, path: str, policies: Any) -> Store:
        self.store = self.store or MemoryStore(policies)
        return self.store


@RUNNERS
def test_ten_lines_are_a_durable_queue(path: str, run: Callable[..., Any]) -> None:
    async def main() -> list[bytes]:
        got = []
        async with posthouse.open(path) as post:
            await post.send("alice", b"hello")
            await post.send("alice", "again")
            async for letter in post.receive("alice"):
                got.append(letter.body)
                await letter.done()
                if len(got) == 2:
                    break
        return got

    assert run(main()) == [b"hello", b"again"]


def test_the_same_without_an_event_loop(path: str) -> None:
    got = []
    with posthouse.open(path) as post:
        post.send("alice", b"hello")
        post.send("alice", "again")
        for letter in post.receive("alice", wait_s=0):
            got.append(letter.text)
            letter.done()
    assert got == ["hello", "again"]


def test_what_was_sent_is_there_when_the_file_is_opened_again(tmp_path: Path) -> None:
    async def write() -> None:
        async with posthouse.open(tmp_path / "mail.db") as post:
            assert await post.send("alice", b"hello", id="1") == Posted(1, None)

    asyncio.run(write())
    with posthouse.open(tmp_path / "mail.db") as post:
        again = post.send("alice", b"hello", id="1")
        assert isinstance(again, Duplicate)
        assert [letter.id for letter in post.receive("alice", wait_s=0) if letter.done()] == ["1"]


def test_a_letter_says_what_it_is(path: str) -> None:
    with posthouse.open(path) as post:
        post.send(
            "alice", b"hi", id="1", sender="bob", lane="news", kind="note", headers={"a": "b"}, cause="0", ttl_s=60
        )
        (letter,) = post.receive("alice", wait_s=0)
        assert (letter.id, letter.body, letter.text, letter.sender) == ("1", b"hi", "hi", "bob")
        assert (letter.desk, letter.mailbox, letter.lane, letter.kind) == ("mail", "alice", "news", "note")
        assert (dict(letter.headers), letter.attempt, letter.seq) == ({"a": "b"}, 1, 1)
        assert letter.delivery.message.cause == "0"
        assert letter.delivery.message.expires_at is not None
        assert abs(datetime.now(UTC) - letter.posted_at) < timedelta(minutes=5)
        assert repr(letter) == "<BlockingLetter '1' for 'alice', attempt 1>"


def test_every_verdict_in_both_styles(path: str) -> None:
    policies = [Policy("work", retry=ladder(3_600), attempts_max=3)]

    def states(post: Any) -> dict[str, State]:
        found = {}
        for id in ("done", "retry", "soon", "reject", "release"):
            view = post.engine.store.message(Ref("work", "alice", "", id))
            # What is done is not kept, only remembered.
            found[id] = view.state
        return found

    expected = {
        "done": State.DELIVERED,
        "retry": State.READY,
        "soon": State.READY,
        "reject": State.DEAD,
        "release": State.READY,
    }

    async def main() -> None:
        async with posthouse.open(path, policies) as post:
            for id in expected:
                await post.send("alice", b"", id=id, lane=id)
            letters = {letter.id: letter async for letter in post.receive("alice", wait_s=0)}
            assert isinstance(await letters["done"].done(), Settled)
            retried = await letters["retry"].retry(error=ValueError("no"))
            assert isinstance(retried, Settled)
            soon = await letters["soon"].retry(after_s=60, error="busy")
            assert isinstance(soon, Settled)
            assert (retried.due_at or 0) - (soon.due_at or 0) > 3_000_000_000
            await letters["reject"].reject("nonsense \ud800")
            released = await letters["release"].release()
            assert isinstance(released, Settled)
            assert (retried.attempts, released.attempts) == (1, 0)
            assert states(post) == expected
            dead = post.engine.store.message(Ref("work", "alice", "", "reject"))
            assert dead is not None
            assert (dead.reason, dead.error) == ("rejected", "nonsense ?")
            assert isinstance(await letters["done"].done(), LeaseLost)

    asyncio.run(main())
    with posthouse.open(":memory:", policies) as post:
        for id in expected:
            post.send("alice", b"", id=id, lane=id)
        letters = {letter.id: letter for letter in post.receive("alice", wait_s=0)}
        letters["done"].done()
        letters["retry"].retry(error=ValueError("no"))
        letters["soon"].retry(after_s=60, error="busy")
        letters["reject"].reject()
        letters["release"].release()
        assert states(post) == expected
        view = post.engine.store.message(Ref("work", "alice", "", "retry"))
        assert view is not None
        assert view.error == "ValueError: no"


def test_refusals_are_values_and_bad_input_is_an_error() -> None:
    with posthouse.open(":memory:", [Policy("small", capacity=1, size_bytes_max=4)]) as post:
        assert post.send("alice", b"much too long") == Refused(posthouse.Refusal.OVERSIZE)
        assert isinstance(post.send("alice", b"1"), Posted)
        assert post.send("alice", b"2") == Refused(posthouse.Refusal.FULL)
        for wrong in (
            {"mailbox": ""},
            {"mailbox": "a\nb"},
            {"body": 7},
            {"after_s": -1},
            {"ttl_s": float("nan")},
            {"ttl_s": True},
            {"headers": {"a": 1}},
            {"desk": "nowhere"},
        ):
            with pytest.raises(posthouse.InvalidInput):
                post.send(**{"mailbox": "alice", "body": b"", **wrong})  # type: ignore[arg-type]
        with pytest.raises(posthouse.InvalidInput):
            next(iter(post.receive("a\nb")))


def test_which_desk_is_meant() -> None:
    def desk_of(opening: Opening) -> str:
        return opening._desk

    assert desk_of(posthouse.open(":memory:")) == "mail"
    assert desk_of(posthouse.open(":memory:", [Policy("only")])) == "only"
    assert desk_of(posthouse.open(":memory:", {"a": Policy("a"), "mail": Policy("mail")})) == "mail"
    assert desk_of(posthouse.open(":memory:", [Policy("a"), Policy("b")], desk="b")) == "b"
    for policies, desk in (([Policy("a"), Policy("b")], None), (None, "other"), ([], None), (["mail"], None)):
        with pytest.raises(posthouse.InvalidInput):
            posthouse.open(":memory:", policies, desk=desk)  # type: ignore[arg-type]


def test_leaving_gives_back_what_is_held_uncounted() -> None:
    kept = Kept()

    async def main() -> None:
        async with posthouse.open("x", open_store=kept) as post:
            await post.send("alice", b"hello", id="1")
            async for letter in post.receive("alice"):
                assert letter.attempt == 1
                break

    asyncio.run(main())
    assert kept.store is not None
    assert [event.event for _, _, event in kept.store.events()][-1] == "released"
    with posthouse.open("x", open_store=kept) as post:
        letter = next(iter(post.receive("alice")))
        assert letter.attempt == 1, "the one who left had not tried"
    with posthouse.open("x", open_store=kept) as post:
        (letter,) = post.receive("alice", wait_s=0)
        assert letter.attempt == 1


def test_a_letter_is_renewed_for_as_long_as_somebody_has_it() -> None:
    renewed = threading.Semaphore(0)

    def hook(commands: Sequence[Command], outcomes: Sequence[Any], seconds: float) -> None:
        for command in commands:
            if isinstance(command, Renew):
                renewed.release()

    with posthouse.open(":memory:", [Policy("mail", lease_s=4.5)]) as post:
        post.engine.on_commit.append(hook)
        post.send("alice", b"hello", id="1")
        letter = next(iter(post.receive("alice")))
        held = post.engine.store.message(Ref("mail", "alice", "", "1"))
        assert held is not None
        assert held.lease_ends_at is not None
        for _ in range(2):
            assert renewed.acquire(timeout=WAIT_S)
        # As if so much time had passed that the first lease, and then one renewal of it, would have ended.
        later = held.lease_ends_at + 2 * SECOND
        post.engine.maintain(lambda store: store.apply([Sweep(at=later)]))
        outcome = letter.done()
        assert isinstance(outcome, Settled), "longer than its lease, and still held"
        assert outcome.state is State.DELIVERED


def test_a_letter_that_was_dropped_comes_back() -> None:
    with posthouse.open(":memory:", [Policy("mail", lease_s=0.2)]) as post:
        post.send("alice", b"hello")
        letters = post.receive("alice")
        first = next(letters)
        assert first.attempt == 1
        del first
        gc.collect()
        second = next(letters)
        assert second.attempt == 2
        second.done()


def test_a_letter_whose_lease_was_lost_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with posthouse.open(":memory:", [Policy("mail", lease_s=0.2)]) as post:
        post.send("alice", b"hello", id="1")
        letter = next(iter(post.receive("alice")))
        # An operator took it.
        post.engine.call(posthouse_cancel("1"))
        until_blocking(lambda: not post._counter._held)
        assert isinstance(letter.done(), LeaseLost)


def posthouse_cancel(id: str) -> Command:
    from posthouse.mailbox.command import Cancel

    return Cancel(Ref("mail", "alice", "", id))


@RUNNERS
def test_a_cancelled_receive_gives_back_what_it_may_have_leased(run: Callable[..., Any]) -> None:
    async def main() -> None:
        async with posthouse.open(":memory:") as post:
            engine = post.engine
            stop, go_on = threading.Event(), threading.Event()
            # The writer is busy, so the lease is on its way when its caller gives up.
            busy = asyncio.create_task(engine.amaintain(lambda store: (stop.set(), go_on.wait(WAIT_S))))
            assert await asyncio.to_thread(stop.wait, WAIT_S)
            sent = asyncio.create_task(post.send("alice", b"hello"))
            receiving = asyncio.ensure_future(anext(post.receive("alice")))
            await until(lambda: engine.queued() == 2)
            receiving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await receiving
            go_on.set()
            await asyncio.gather(busy, sent)
            letter = await asyncio.wait_for(anext(post.receive("alice")), WAIT_S)
            assert letter.attempt == 1
            assert len(post._counter._held) == 1
            await letter.done()
            assert not post._counter._held

    run(main())


def test_closing_ends_those_who_receive() -> None:
    async def main() -> None:
        async with posthouse.open(":memory:") as post:

            async def receive(mailbox: str | None) -> list[bytes]:
                return [letter.body async for letter in post.receive(mailbox)]

            tasks = [asyncio.create_task(receive(mailbox)) for mailbox in ("alice", "bob", None)]
            await until(lambda: post.engine.stats.outcomes.get(("mail", "nothing_due")) == 3)
        assert await asyncio.wait_for(asyncio.gather(*tasks), WAIT_S) == [[], [], []]

    asyncio.run(main())
    opening = posthouse.open(":memory:")
    with ThreadPoolExecutor() as pool, opening as post:
        waiting = pool.submit(list, post.receive("alice"))
        until_blocking(lambda: post.engine.stats.outcomes.get(("mail", "nothing_due")) == 1)
        opening.__exit__(None, None, None)
        assert waiting.result(WAIT_S) == []


def test_receiving_from_every_mailbox_of_a_desk_in_turn() -> None:
    with posthouse.open(":memory:") as post:
        for number in range(3):
            for name in ("alice", "bob"):
                post.send(name, b"", id=str(number))
        got = []
        for letter in post.receive(wait_s=0):
            got.append((letter.mailbox, letter.id))
            letter.done()
        assert got == [(name, str(number)) for number in range(3) for name in ("alice", "bob")]


def test_a_letter_sent_for_later_comes_later() -> None:
    with posthouse.open(":memory:") as post:
        post.send("alice", b"later", after_s=2.0)
        post.send("bob", b"now")
        got = []
        for letter in post.receive(wait_s=WAIT_S):
            got.append(letter.body)
            letter.done()
            if len(got) == 2:
                break
        assert got == [b"now", b"later"]


def test_a_batch_is_handed_out_letter_by_letter() -> None:
    with posthouse.open(":memory:", [Policy("talk", quiet_s=0.05, quiet_max_s=1)]) as post:
        for word in ("one", "two", "three"):
            post.send("alice", word)
        letters = post.receive("alice", wait_s=WAIT_S)
        batch = [next(letters) for _ in range(3)]
        assert [letter.text for letter in batch] == ["one", "two", "three"]
        assert len({letter.token for letter in batch}) == 1
        for letter in batch:
            assert post._counter._held
            assert isinstance(letter.done(), Settled)
        assert not post._counter._held


def test_a_store_that_cannot_be_opened_is_reported_and_let_go(tmp_path: Path) -> None:
    with posthouse.open(tmp_path / "mail.db"):
        with pytest.raises(posthouse.StoreHeld):
            posthouse.open(tmp_path / "mail.db").__enter__()
    opening = posthouse.open(tmp_path / "mail.db")
    with opening:
        with pytest.raises(posthouse.InvalidInput, match="open already"):
            opening.__enter__()
    with opening as post:
        assert isinstance(post.send("alice", b"once more"), Posted)


def test_a_failed_start_closes_the_store() -> None:
    class Broken(MemoryStore):
        closed = False

        def apply(self, commands: Sequence[Command]) -> list[Any]:
            raise posthouse.StoreFull("no room")

        def close(self) -> None:
            self.closed = True

    store = Broken({"mail": posthouse.MAIL})
    with pytest.raises(posthouse.StoreFull), posthouse.open("x", open_store=lambda path, policies: store):
        pass
    assert store.closed


def test_importing_loads_next_to_nothing_and_every_name_is_there() -> None:
    code = "import sys, posthouse; print(sum(n.startswith('posthouse.') for n in sys.modules), 'apsw' in sys.modules)"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.split() == ["0", "False"]
    assert set(posthouse.__all__) <= set(dir(posthouse))
    for name in posthouse.__all__:
        assert getattr(posthouse, name) is not None
    with pytest.raises(AttributeError):
        posthouse.nothing  # noqa: B018


def test_the_lease_names_its_holder() -> None:
    seen: list[Lease] = []
    with posthouse.open(":memory:") as post:
        post.engine.on_commit.append(lambda c, o, s: seen.extend(x for x in c if isinstance(x, Lease)))
        post.send("alice", b"")
        letter = next(iter(post.receive("alice")))
        assert seen[0].holder == post._counter.holder
        assert seen[0].token == letter.token
