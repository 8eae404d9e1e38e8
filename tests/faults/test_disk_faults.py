"""A disk that is full, fails or is slow: what was accepted is safe, and callers are told the truth."""

from __future__ import annotations

import queue
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest
from tests.faults.cuts import small
from tests.faults.traffic import POLICIES, START_AT, Ledger, Traffic, row_faults, settle_doubt
from tests.faults.vfs import FOR_EVER, Act, Call, Disk, Fault

from posthouse.engine.engine import Engine
from posthouse.errors import EngineClosed, StoreError, StoreFailed, StoreFull, StoreUnavailable
from posthouse.mailbox.command import Lease, Post, Settle, Start, Verdict
from posthouse.mailbox.message import Message
from posthouse.mailbox.outcome import Duplicate, Leased, Posted
from posthouse.stores.sqlite import SqliteStore, checkpoint

WRITES = frozenset({Call.WRITE, Call.TRUNCATE})
SYNCS = frozenset({Call.SYNC})
DEADLINE_S = 30.0


def opened(path: Path, disk: Disk | None = None) -> SqliteStore:
    return SqliteStore.open(path, POLICIES, node="faults", vfs=disk.name if disk else None)


def faults_of(store: SqliteStore, ledger: Ledger) -> list[str]:
    return settle_doubt(store, ledger) + row_faults(store, ledger) + ledger.wrong + store.integrity()


def message(number: int, body: bytes = b"hello") -> Post:
    return Post(Message("inbox", "m", f"id{number}", body), at=START_AT)


@contextmanager
def running(store: SqliteStore) -> Iterator[Engine]:
    engine = Engine(store)
    engine.start()
    try:
        yield engine
    finally:
        engine.close()


# A full disk


@pytest.mark.parametrize("seed", range(12))
def test_a_full_disk_changes_nothing_and_work_goes_on_when_there_is_room(tmp_path: Path, seed: int) -> None:
    rng = Random(seed)
    ledger = Ledger()
    traffic = Traffic(rng, ledger)
    disk = Disk()
    refused = 0
    with small(rng):
        store = opened(tmp_path / "a.db", disk)
        traffic.send(store, [Start(POLICIES, at=traffic.at)])
        for _ in range(12):
            disk.add(Fault(Act.FULL, rng.randint(1, 120), FOR_EVER, calls=WRITES))
            while True:
                try:
                    traffic.send(store, traffic.batch())
                except StoreFull:
                    refused += 1
                    assert faults_of(store, ledger) == []
                    if rng.random() < 0.5:
                        break
            disk.clear()
            traffic.send(store, traffic.batch())
        assert faults_of(store, ledger) == []
        store.close()
        store = opened(tmp_path / "a.db", disk)
        assert faults_of(store, ledger) == []
        store.close()
    assert refused >= 12
    assert len(ledger.posted) > 20


def test_posts_on_a_full_disk_fail_with_a_clear_error_and_the_engine_lives(tmp_path: Path) -> None:
    disk = Disk()
    with running(opened(tmp_path / "a.db", disk)) as engine:
        assert isinstance(engine.call(message(1))[0], Posted)
        disk.add(Fault(Act.FULL, 1, FOR_EVER, calls=WRITES))
        for _ in range(3):
            with pytest.raises(StoreFull, match="no room"):
                engine.call(message(2))
        assert engine.failure() is None
        assert engine.store.message(message(1).message.ref) is not None
        assert engine.store.message(message(2).message.ref) is None
        disk.clear()
        assert isinstance(engine.call(message(2))[0], Posted)
        assert isinstance(engine.call(message(1))[0], Duplicate)
        (leased,) = engine.call(Lease("inbox", "m", "t"))
        assert isinstance(leased, Leased)
        assert [d.message.id for d in leased.deliveries] == ["id1"]


def fill(file: Path) -> None:
    """Grow a file until not one byte more fits."""
    with file.open("ab", buffering=0) as growing, pytest.raises(OSError, match="No space"):  # noqa: PT012
        while True:
            growing.write(bytes(512))


@pytest.mark.slow
def test_a_file_system_that_is_really_full_refuses_and_recovers(tmp_path: Path) -> None:
    mount = tmp_path / "small"
    mount.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "none", mount], capture_output=True, text=True)
    if made.returncode != 0:
        pytest.fail(f"this test needs the right to mount a tmpfs: {made.stderr.strip()}")
    try:
        with running(opened(mount / "a.db")) as engine:
            accepted = 0
            with pytest.raises(StoreFull):  # noqa: PT012
                while True:
                    engine.call(message(accepted, bytes(20_000)))
                    accepted += 1
            assert accepted > 20
            assert engine.failure() is None
            # The disk is full to the last byte, and the store is opened anew.
            filler = mount / "filler"
            fill(filler)
            # A large one: a small one may find room in what the log has already.
            with pytest.raises(StoreFull):
                engine.call(message(accepted, bytes(200_000)))
        # Closing has moved the log into the file and made room again.
        fill(filler)
        with pytest.raises(StoreFull), running(opened(mount / "a.db")) as engine:
            engine.call(message(accepted, bytes(200_000)))
        filler.unlink()
        subprocess.run(["mount", "-o", "remount,size=30m", mount], check=True)
        with running(opened(mount / "a.db")) as engine:
            for number in range(accepted):
                assert isinstance(engine.call(message(number))[0], Duplicate)
            assert isinstance(engine.call(message(accepted))[0], Posted)
            store = engine.store
            assert isinstance(store, SqliteStore)
            assert store.integrity() == []
    finally:
        subprocess.run(["umount", mount], check=True)


# A disk that fails


@pytest.mark.parametrize("calls", [SYNCS, frozenset({Call.WRITE})], ids=["sync", "write"])
def test_after_a_failed_write_or_sync_the_engine_stops_and_tries_nothing_again(
    tmp_path: Path, calls: frozenset[Call]
) -> None:
    disk = Disk()
    store = opened(tmp_path / "a.db", disk)
    told: queue.SimpleQueue[BaseException] = queue.SimpleQueue()
    engine = Engine(store, on_failure=told.put)
    engine.start()
    accepted = 0
    for number in range(20):
        engine.call(message(number))
        accepted += 1
    fault = disk.add(Fault(Act.EIO, 1, calls=calls, suffix="-wal"))
    with pytest.raises(StoreError) as raised:
        engine.call(message(99))
    assert isinstance(raised.value, StoreFailed) or isinstance(raised.value.__cause__, StoreFailed)
    assert fault.struck == 1
    assert isinstance(engine.failure(), StoreFailed)
    # Behind those who wait for an answer.
    assert told.get(timeout=DEADLINE_S) is engine.failure()
    before = [disk.count(call) for call in (Call.WRITE, Call.SYNC, Call.TRUNCATE)]
    with pytest.raises(EngineClosed):
        engine.call(message(100))
    engine.close()
    assert told.empty()
    assert [disk.count(call) for call in (Call.WRITE, Call.SYNC, Call.TRUNCATE)] == before, "it was tried again"
    # The kernel may have thrown the pages away: what was accepted must not depend on them.
    disk.cut()
    for seed in range(10):
        disk.boot(tmp_path / f"{seed}", Random(seed))
        after = opened(tmp_path / f"{seed}" / "a.db")
        assert all(after.message(message(number).message.ref) for number in range(accepted))
        assert after.integrity() == []
        after.close()


@pytest.mark.parametrize("calls", [SYNCS, frozenset({Call.WRITE})], ids=["sync", "write"])
def test_a_checkpoint_that_fails_stops_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: frozenset[Call]
) -> None:
    monkeypatch.setattr(checkpoint, "START_PAGES", 10)
    disk = Disk()
    stopped = threading.Event()
    engine = Engine(opened(tmp_path / "a.db", disk), on_failure=lambda error: stopped.set())
    engine.start()
    disk.add(Fault(Act.EIO, 1, calls=calls, suffix=".db"))
    accepted = 0
    with pytest.raises(StoreError):  # noqa: PT012
        for accepted in range(5_000):
            engine.call(message(accepted, bytes(3_000)))
    assert stopped.wait(DEADLINE_S)
    assert isinstance(engine.failure(), StoreFailed)
    engine.close()
    after = opened(tmp_path / "a.db")
    assert all(after.message(message(number).message.ref) for number in range(accepted))
    assert after.integrity() == []
    after.close()


@pytest.mark.parametrize("seed", range(12))
def test_reads_that_fail_harm_nothing(tmp_path: Path, seed: int) -> None:
    """A batch that could not read what it needed leaves no trace, and the next one sees the whole store."""
    rng = Random(seed)
    ledger = Ledger()
    traffic = Traffic(rng, ledger)
    with small(rng):
        store = opened(tmp_path / "a.db")
        for _ in range(10):
            traffic.send(store, traffic.batch())
        store.close()
        failed = 0
        for _ in range(8):
            disk = Disk(reads=True)
            store = opened(tmp_path / "a.db", disk)
            traffic.forget()
            first = rng.randint(1, 25)
            disk.add(Fault(Act.EIO, first, first + rng.choice((0, 1, 3, 8)), calls=frozenset({Call.READ})))
            for _ in range(6):
                try:
                    traffic.send(store, traffic.batch())
                except StoreUnavailable:
                    failed += 1
                    if rng.random() < 0.5:
                        disk.clear()
            disk.clear()
            assert faults_of(store, ledger) == []
            store.close()
    assert failed > 0


def test_a_slow_disk_makes_groups_larger_and_loses_nobody(tmp_path: Path) -> None:
    disk = Disk()
    with running(opened(tmp_path / "a.db", disk)) as engine:
        disk.add(Fault(Act.DELAY, 1, FOR_EVER, calls=SYNCS, delay_s=0.03))
        before = disk.count(Call.SYNC, "-wal")
        outcomes: list[object] = []
        everybody = threading.Barrier(60)

        def call(number: int) -> None:
            everybody.wait(DEADLINE_S)
            outcomes.extend(engine.call(message(number)))

        threads = [threading.Thread(target=call, args=(n,)) for n in range(60)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(o.seq for o in outcomes if isinstance(o, Posted)) == list(range(1, 61))
        assert disk.count(Call.SYNC, "-wal") - before < 15


# Leases in doubt


def test_a_settlement_that_met_a_full_disk_can_be_repeated(tmp_path: Path) -> None:
    disk = Disk()
    with running(opened(tmp_path / "a.db", disk)) as engine:
        engine.call(message(1))
        engine.call(Lease("inbox", "m", "t"))
        settle = Settle(message(1).message.ref, "t", Verdict.DELIVERED)
        disk.add(Fault(Act.FULL, 1, FOR_EVER, calls=WRITES))
        with pytest.raises(StoreFull):
            engine.call(settle)
        disk.clear()
        (settled,) = engine.call(settle)
        assert settled.state == "delivered"  # type: ignore[union-attr]
