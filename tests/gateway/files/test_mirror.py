"""The outbound queue as files: what happens to a message happens to its file, there and back."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.gateway import test_stale_socket as stale
from tests.gateway.api.test_process import ask
from tests.gateway.conftest import House as Plain
from tests.gateway.importing.test_openclaw import write
from tests.gateway.importing.test_running import take
from tests.unit.cli.house import House

from posthouse.config import Config, load
from posthouse.engine.engine import Engine
from posthouse.gateway.files.layout import stem_of
from posthouse.gateway.files.mirror import Mirror
from posthouse.gateway.letter import Media, Outbound, Part
from posthouse.mailbox.command import Filter, Lease, Park, Redrive, Settle, Unpark, Verdict
from posthouse.mailbox.message import Message, Ref, State
from posthouse.mailbox.outcome import Leased
from posthouse.mailbox.policy import Policy
from posthouse.stores.sqlite import SqliteStore


def config_of(folder: Path, backend: str) -> Config:
    (folder / "posthouse.toml").write_text(
        f'[gateway]\noutbound_backend = "{backend}"\nfiles_dir = "claw"\nfiles_every_s = 0.05\n'
    )
    return load({}, folder)


class Shelf:
    """A store with a mirror, and the files as they stand."""

    def __init__(self, folder: Path, engine: Engine, config: Config, mirror: Mirror | None = None) -> None:
        self.folder = folder / "claw"
        self.engine = engine
        self.config = config
        self.mirror = mirror

    def files(self, place: str = "") -> dict[str, Any]:
        """What is in each file of a place, by stem."""
        found = {}
        for path in (self.folder / "delivery-queue" / place).glob("*.json"):
            # The mirror goes on meanwhile: a file may be gone by now.
            with contextlib.suppress(FileNotFoundError):
                found[path.stem] = json.loads(path.read_text())
        return found

    async def until(self, what: Callable[[], bool]) -> None:
        """Wait until the files are so: they follow the store at once, but not in the same step."""
        assert self.mirror is not None
        async with asyncio.timeout(30):
            while True:
                moved = self.mirror.moved
                if await asyncio.to_thread(what):
                    return
                await moved.wait()

    async def lease(self, mailbox: str = "telegram/default") -> Message:
        leased = await self.engine.do(Lease("outbound", mailbox, "t"))
        assert isinstance(leased, Leased)
        return leased.deliveries[0].message

    def state(self, ref: Ref) -> State | None:
        view = self.engine.store.message(ref)
        return None if view is None else view.state


@contextlib.asynccontextmanager
async def shelf(folder: Path, backend: str = "files") -> AsyncIterator[Shelf]:
    config = config_of(folder, backend)
    async with Engine(SqliteStore.open(folder / "a.db", config.policies, "test")) as engine:
        mirror = Mirror(config, engine)
        try:
            await mirror.start()
            yield Shelf(folder, engine, config, mirror)
        finally:
            await mirror.close()


def tell(folder: Path, *stories: tuple[str, Callable[[Shelf], Awaitable[None]]]) -> None:
    """One story after the other on the same store, each with its backend."""

    async def told() -> None:
        for backend, story in stories:
            async with shelf(folder, backend) as made:
                await story(made)

    asyncio.run(told())


def letter(id: str, **more: Any) -> Outbound:
    return Outbound(id, "telegram", "5", (Part("one"), Part("two", (Media("https://example.org/a.png"),))), **more)


def test_a_message_has_a_file_that_openclaw_can_read(tmp_path: Path) -> None:
    sent = letter("o1", origin="handler", thread="42", reply_to="551", session="agent:main")

    async def story(shelf: Shelf) -> None:
        await shelf.engine.do(sent.post())
        stem = stem_of(sent.ref)
        await shelf.until(lambda: stem in shelf.files())
        fields = shelf.files()[stem]
        assert fields["id"] == stem
        assert (fields["channel"], fields["to"], fields["accountId"]) == ("telegram", "5", "default")
        assert fields["payloads"] == [{"text": "one"}, {"text": "two", "mediaUrl": "https://example.org/a.png"}]
        assert (fields["threadId"], fields["replyToId"], fields["retryCount"]) == ("42", "551", 0)
        assert fields["session"] == {"key": "agent:main"}
        (file,) = (shelf.folder / "delivery-queue").glob("*.json")
        assert file.stat().st_mode & 0o777 == 0o600

    tell(tmp_path, ("files", story))


def test_a_file_follows_its_message_through_its_life(tmp_path: Path) -> None:
    async def story(shelf: Shelf) -> None:
        one, two = letter("o1"), letter("o2", thread="other")
        first, second = stem_of(one.ref), stem_of(two.ref)
        await shelf.engine.apply(one.post(), two.post())
        await shelf.until(lambda: len(shelf.files()) == 2)
        message = await shelf.lease()
        assert message.id == "o1"
        await shelf.until(lambda: shelf.files()[first].get("recoveryState") == "send_attempt_started")
        await shelf.engine.do(Settle(one.ref, "t", Verdict.UNCERTAIN, error="socket hang up"))
        await shelf.until(lambda: shelf.files()[first]["recoveryState"] == "unknown_after_send")
        await shelf.engine.do(Settle(one.ref, None, Verdict.DEAD, error="gone"))
        await shelf.until(lambda: first in shelf.files("failed"))
        assert first not in shelf.files()
        assert shelf.files("failed")[first]["lastError"] == "gone"
        await shelf.engine.do(Redrive(Filter("outbound", id="o1")))
        await shelf.until(lambda: first in shelf.files())
        assert shelf.files("failed") == {}
        await shelf.engine.do(Park(two.ref))
        await shelf.until(lambda: second in shelf.files("review"))
        await shelf.engine.do(Unpark(Filter("outbound", id="o2")))
        await shelf.until(lambda: second in shelf.files())
        for _ in (one, two):
            message = await shelf.lease()
            await shelf.engine.do(Settle(message.ref, "t", Verdict.DELIVERED))
        await shelf.until(lambda: not shelf.files())
        assert list((shelf.folder / "delivery-queue").glob("*.delivered")) == []

    tell(tmp_path, ("files", story))


def test_what_another_program_puts_there_is_sent(tmp_path: Path) -> None:
    async def story(shelf: Shelf) -> None:
        ref = Ref("outbound", "telegram/default", "import", "theirs")
        now_ms = shelf.engine.now() // 1_000
        write(shelf.folder / "delivery-queue", "theirs", enqueuedAt=now_ms, silent=True)
        await shelf.until(lambda: shelf.state(ref) is State.READY)
        # The file is the message's from now on, with all that was in it.
        await shelf.until(lambda: "posthouse" in shelf.files()["theirs"])
        fields = shelf.files()["theirs"]
        assert (fields["silent"], fields["enqueuedAt"], fields["retryCount"]) == (True, now_ms, 0)
        assert (await shelf.lease()).id == "theirs"
        await shelf.engine.do(Settle(ref, "t", Verdict.DELIVERED))
        await shelf.until(lambda: not shelf.files())

    tell(tmp_path, ("files", story))


def test_damaged_and_old_files_are_not_sent(tmp_path: Path) -> None:
    async def story(shelf: Shelf) -> None:
        queue = shelf.folder / "delivery-queue"
        (queue / "torn.json").write_text('{"id": "to')
        write(queue, "old")
        write(queue, "begun", enqueuedAt=shelf.engine.now() // 1_000, recoveryState="send_attempt_started")
        ref = Ref("outbound", "telegram/default", "import", "old")
        await shelf.until(lambda: shelf.state(ref) is State.PARKED)
        begun = ref._replace(id="begun")
        await shelf.until(lambda: shelf.state(begun) is State.UNCERTAIN)
        await shelf.until(lambda: "old" in shelf.files("review"))
        assert (queue / "torn.json").read_text() == '{"id": "to'

    tell(tmp_path, ("files", story))


def test_switching_to_files_and_back_loses_and_repeats_nothing(tmp_path: Path) -> None:
    waits, dead = letter("waits"), letter("dead", thread="x")

    async def without(shelf: Shelf) -> None:
        await shelf.engine.apply(waits.post(), dead.post())
        await shelf.engine.do(Settle(dead.ref, None, Verdict.REJECTED))
        assert not (shelf.folder / "delivery-queue").exists()

    async def with_files(shelf: Shelf) -> None:
        assert set(shelf.files()) == {stem_of(waits.ref)}
        assert set(shelf.files("failed")) == {stem_of(dead.ref)}

    async def back(shelf: Shelf) -> None:
        # What another program put there meanwhile waits in the store now.
        assert shelf.state(Ref("outbound", "telegram/default", "import", "late")) is State.PARKED
        assert shelf.state(waits.ref) is State.READY
        assert shelf.files() == {}
        assert shelf.files("failed") == {}

    tell(tmp_path, ("sqlite", without), ("files", with_files))
    write(tmp_path / "claw" / "delivery-queue", "late")
    tell(tmp_path, ("sqlite", back), ("sqlite", back))


def test_after_a_crash_the_files_are_what_the_store_says(tmp_path: Path) -> None:
    one, two = letter("o1"), letter("o2", thread="x")

    async def before(shelf: Shelf) -> None:
        await shelf.engine.do(one.post())

    async def unseen(shelf: Shelf) -> None:
        await shelf.engine.do(two.post())
        assert (await shelf.lease()).id == "o1"
        await shelf.engine.do(Settle(one.ref, "t", Verdict.DELIVERED))

    async def after(shelf: Shelf) -> None:
        assert set(shelf.files()) == {stem_of(two.ref)}

    async def crashed() -> None:
        """A process that is gone before its files follow."""
        config = config_of(tmp_path, "files")
        async with Engine(SqliteStore.open(tmp_path / "a.db", config.policies, "test")) as engine:
            await unseen(Shelf(tmp_path, engine, config))

    tell(tmp_path, ("files", before))
    asyncio.run(crashed())
    assert len(list((tmp_path / "claw" / "delivery-queue").glob("*.json"))) == 1
    tell(tmp_path, ("files", after))


def test_files_of_a_store_that_is_gone_are_taken_over(tmp_path: Path) -> None:
    one = letter("o1", origin="handler")

    async def first(shelf: Shelf) -> None:
        await shelf.engine.do(one.post())

    async def second(shelf: Shelf) -> None:
        ref = Ref("outbound", "telegram/default", "import", stem_of(one.ref))
        assert shelf.state(ref) is State.READY
        view = shelf.engine.store.message(ref)
        assert view is not None
        assert Outbound.from_message(view.message).parts == one.parts
        assert set(shelf.files()) == {stem_of(one.ref)}

    tell(tmp_path, ("files", first))
    for path in tmp_path.glob("a.db*"):
        path.unlink()
    tell(tmp_path, ("files", second))


def test_an_import_of_that_folder_by_hand_knows_what_is_ours(tmp_path: Path) -> None:
    async def story(shelf: Shelf) -> None:
        await shelf.engine.apply(letter("o1").post(), letter("o2", thread="x").post())
        await shelf.engine.do(Settle(letter("o2", thread="x").ref, None, Verdict.REJECTED))
        await shelf.until(lambda: len(shelf.files()) == len(shelf.files("failed")) == 1)
        assert await asyncio.to_thread(take, shelf.engine, shelf.folder) == ["known", "known"]
        assert len(shelf.engine.store.messages(Filter("outbound"))) == 2

    tell(tmp_path, ("files", story))


class Mirrored(Plain):
    """A gateway's house whose outbound queue is kept as files too."""

    @contextlib.asynccontextmanager
    async def engine(self, *policies: Policy) -> AsyncIterator[Engine]:
        folder = self.path.with_suffix("")
        folder.mkdir(exist_ok=True)
        config = config_of(folder, "files")
        async with super().engine(*policies) as engine:
            mirror = Mirror(config, engine)
            await mirror.start()
            try:
                yield engine
            finally:
                await mirror.close()


@pytest.mark.timeout(300)
def test_stale_sockets_are_survived_with_files_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stale, "House", Mirrored)
    monkeypatch.setattr(stale, "EACH", 3)
    monkeypatch.setattr(stale, "SLOW_S", (0.05, 0.5))
    monkeypatch.setattr(stale, "check", check)
    stale.run(tmp_path, [(stale.keyed, 0), (stale.plain, 0)])
    left = {
        name: [json.loads(path.read_text()) for path in (tmp_path / name / "claw" / "delivery-queue").glob("*.json")]
        for name in ("keyed-0", "plain-0")
    }
    assert left["keyed-0"] == []
    assert {fields["recoveryState"] for fields in left["plain-0"]} <= {"unknown_after_send"}


def check(network: Any, unsure: set[str], story: str, *, exactly_once: bool, **_: Any) -> None:
    """As there; this conversation is shorter, so fewer connections drop."""
    assert network.drops > 3, story
    assert not network.twice(), story
    wanted = {f"re chat{s} {n}" for s in range(stale.SESSIONS) for n in range(stale.EACH)}
    missing = wanted - {arrived.text for arrived in network.arrived}
    assert missing <= unsure, story
    assert not (exactly_once and missing), story


def test_a_running_server_keeps_the_files(house: House) -> None:
    words = ("--no-relay", "--set", "gateway.outbound_backend=files", "--set", "gateway.files_dir=claw")
    body = json.dumps({"channel": "telegram", "to": "5", "parts": [{"text": "x"}]})
    with house.up(*words):
        house.run("message", "post", "telegram/default", "--desk", "outbound", "--body", body)
    (file,) = (house.folder / "claw" / "delivery-queue").glob("*.json")
    assert json.loads(file.read_text())["payloads"] == [{"text": "x"}]
    with house.up("--no-relay", "--set", "gateway.files_dir=claw"):
        assert not file.exists()


def test_a_killed_server_leaves_nothing_that_the_next_does_not_mend(house: House) -> None:
    (house.folder / "posthouse.toml").write_text(
        '[gateway]\noutbound_backend = "files"\nfiles_dir = "claw"\napi_port = 0\n'
    )
    queue = house.folder / "claw" / "delivery-queue"
    accepted: set[str] = set()
    with house.up("--no-relay") as (process, summary):
        token = house.json("token", "add", "node", "--scope", "outbound")["token"]
        for number in range(60):
            value = {"id": f"o{number}", "channel": "telegram", "to": f"{number % 7}", "text": f"text {number}"}
            assert ask(f"{summary['api']}/v1/outbound", token, value)[0] == 201
            accepted.add(stem_of(Ref("outbound", "telegram/default", "api/node", f"o{number}")))
            if number == 50:
                # What another program left half-written while we were killed, too.
                (queue / f".delivery-queue.1.{number}.tmp").write_text("{")
        process.kill()
        process.wait()
    assert len(set(queue.glob("*.json"))) <= 60
    with house.up("--no-relay"):
        assert {path.stem for path in queue.glob("*.json")} == accepted
    assert {path.stem for path in queue.glob("*.json")} == accepted
