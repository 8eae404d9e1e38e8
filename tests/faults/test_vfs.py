"""The disk of ``vfs.py`` itself, proved on plain SQLite: what it keeps, what it loses, how it fails."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from random import Random

import apsw
import pytest
from tests.faults.vfs import FOR_EVER, Act, Call, Disk, Fault, PowerCut, let_go

SYNC = frozenset({Call.SYNC})
WRITE = frozenset({Call.WRITE})


def opened(path: Path, disk: Disk, synchronous: str = "FULL") -> apsw.Connection:
    db = apsw.Connection(str(path), vfs=disk.name)
    db.execute("PRAGMA page_size = 8192; PRAGMA journal_mode = WAL; PRAGMA wal_autocheckpoint = 0").fetchall()
    db.execute(f"PRAGMA synchronous = {synchronous}; CREATE TABLE IF NOT EXISTS t (id INTEGER PRIMARY KEY, b BLOB)")
    return db


def rows(path: Path) -> list[int]:
    """The ids that a fresh machine finds; fails if the file is damaged."""
    db = apsw.Connection(str(path))
    try:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        if not db.execute("SELECT count(*) FROM sqlite_schema").get:
            return []
        return [id for (id,) in db.execute("SELECT id FROM t ORDER BY id")]
    finally:
        db.close()


def live_through_a_cut(folder: Path, seed: int, synchronous: str, *faults: Fault) -> tuple[list[int], list[int]]:
    """Insert with a checkpoint thread until the power goes; the acknowledged ids and those found later."""
    rng = Random(seed)
    disk = Disk()
    folder.mkdir()
    acknowledged: list[int] = []
    rung, done = threading.Event(), threading.Event()
    db = opened(folder / "a.db", disk, synchronous)
    own = apsw.Connection(str(folder / "a.db"), vfs=disk.name)
    own.execute("SELECT 1 FROM t LIMIT 1").fetchall()  # Until it has read, it checkpoints nothing.

    def checkpoint() -> None:
        try:
            while not disk.is_off:
                rung.wait(1)
                rung.clear()
                own.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
                done.set()
        except apsw.Error:
            pass
        finally:
            done.set()
            let_go(own)

    thread = threading.Thread(target=checkpoint)
    thread.start()
    for fault in (*faults, Fault(Act.CUT, rng.randint(1, 400))):
        disk.add(fault)
    try:
        while not disk.is_off:
            with db:
                ids = [
                    db.execute("INSERT INTO t (b) VALUES (?) RETURNING id", (rng.randbytes(rng.randrange(6000)),)).get
                    for _ in range(rng.randint(1, 20))
                ]
            acknowledged += ids
            if rng.random() < 0.15:
                done.clear()
                rung.set()
                if rng.random() < 0.5:  # A WAL that was checkpointed to its end is begun anew.
                    done.wait()
    except apsw.Error:
        pass
    rung.set()
    thread.join()
    let_go(db)
    disk.boot(folder / "after", rng)
    return acknowledged, rows(folder / "after" / "a.db")


def test_full_synchronous_loses_no_acknowledged_row(tmp_path: Path) -> None:
    kept = 0
    for seed in range(40):
        acknowledged, found = live_through_a_cut(tmp_path / str(seed), seed, "FULL")
        assert set(acknowledged) <= set(found), f"seed {seed}"
        assert found == list(range(1, len(found) + 1)), f"seed {seed}"
        kept += len(acknowledged)
    assert kept > 400


def test_normal_synchronous_loses_rows(tmp_path: Path) -> None:
    losses = 0
    for seed in range(40):
        acknowledged, found = live_through_a_cut(tmp_path / str(seed), seed, "NORMAL")
        losses += not set(acknowledged) <= set(found)
    assert losses > 5


def test_a_disk_that_lies_about_a_checkpoint_is_found_out(tmp_path: Path) -> None:
    """The cuts do reach into checkpoints: were the database file not synced in them, it would show."""
    damaged = 0
    for seed in range(60):
        lie = Fault(Act.LIE, 1, FOR_EVER, calls=SYNC, suffix=".db")
        try:
            acknowledged, found = live_through_a_cut(tmp_path / str(seed), seed, "FULL", lie)
            damaged += not set(acknowledged) <= set(found)
        except (apsw.Error, AssertionError):
            damaged += 1
    assert damaged > 3


def test_what_was_not_synced_may_be_torn_and_never_what_was(tmp_path: Path) -> None:
    disk = Disk()
    db = opened(tmp_path / "a.db", disk, "OFF")
    db.execute("INSERT INTO t (b) VALUES (zeroblob(100000))")
    disk.cut()
    let_go(db)
    sizes = set()
    for seed in range(50):
        disk.boot(tmp_path / str(seed), Random(seed))
        wal = tmp_path / str(seed) / "a.db-wal"
        sizes.add(wal.read_bytes() if wal.exists() else None)
    assert len(sizes) > 20
    same = {tuple(sorted(disk.survivors(Random(7)).items())) for _ in range(3)}
    assert len(same) == 1, "the same seed must leave the same bytes"


def test_a_deleted_file_may_return_until_its_folder_is_synced(tmp_path: Path) -> None:
    found = set()
    for seed in range(30):
        disk = Disk()
        folder = tmp_path / str(seed)
        folder.mkdir()
        db = opened(folder / "a.db", disk)
        db.execute("INSERT INTO t (b) VALUES (x'00')")
        db.close()  # The last to leave checkpoints and deletes the WAL.
        disk.cut()
        disk.boot(folder / "after", Random(seed))
        found.add((folder / "after" / "a.db-wal").exists())
        assert rows(folder / "after" / "a.db") == [1]
    assert found == {True, False}


@pytest.mark.parametrize(
    ("fault", "expected", "code"),
    [
        (Fault(Act.EIO, 1, calls=WRITE, suffix="-wal"), apsw.IOError, apsw.SQLITE_IOERR_WRITE),
        (Fault(Act.EIO, 1, calls=SYNC, suffix="-wal"), apsw.IOError, apsw.SQLITE_IOERR_FSYNC),
        (Fault(Act.FULL, 1, calls=WRITE, suffix="-wal"), apsw.FullError, apsw.SQLITE_FULL),
    ],
)
def test_the_nth_call_fails_with_its_own_code(
    tmp_path: Path, fault: Fault, expected: type[apsw.Error], code: int
) -> None:
    disk = Disk()
    db = opened(tmp_path / "a.db", disk)
    disk.add(fault)
    with pytest.raises(expected) as raised:
        db.execute("INSERT INTO t (b) VALUES (x'00')")
    assert getattr(raised.value, "extendedresult", None) == code
    assert fault.struck == 1
    disk.clear()
    db.execute("INSERT INTO t (b) VALUES (x'01')")
    assert db.execute("SELECT count(*) FROM t").get == 1
    let_go(db)


def test_after_the_cut_every_change_is_refused(tmp_path: Path) -> None:
    disk = Disk()
    db = opened(tmp_path / "a.db", disk)
    disk.cut()
    with pytest.raises(PowerCut):
        db.execute("INSERT INTO t (b) VALUES (x'00')")
    let_go(db)


@pytest.mark.parametrize("calls", [WRITE, SYNC])
def test_a_process_can_kill_itself_at_the_nth_call(tmp_path: Path, calls: frozenset[Call]) -> None:
    program = """if True:
        import sys
        from pathlib import Path
        from tests.faults import test_vfs, vfs
        disk = vfs.Disk()
        db = test_vfs.opened(Path(sys.argv[1]), disk)
        disk.add(vfs.Fault(vfs.Act.KILL, 9, calls=frozenset({vfs.Call(sys.argv[2])}), suffix="-wal"))
        while True:
            print(db.execute("INSERT INTO t (b) VALUES (zeroblob(9000)) RETURNING id").get, flush=True)
    """
    (call,) = calls
    child = subprocess.run(
        [sys.executable, "-c", program, tmp_path / "a.db", call.value],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONPATH": "."},
        timeout=30,
    )
    assert child.returncode == -signal.SIGKILL
    acknowledged = [int(line) for line in child.stdout.split()]
    assert acknowledged
    assert set(acknowledged) <= set(rows(tmp_path / "a.db"))


def test_a_slow_sync_is_slow(tmp_path: Path) -> None:
    disk = Disk()
    db = opened(tmp_path / "a.db", disk)
    fault = disk.add(Fault(Act.DELAY, 1, FOR_EVER, calls=SYNC, delay_s=0.001))
    db.execute("INSERT INTO t (b) VALUES (x'00')")
    assert fault.struck == 1
    assert disk.count(Call.SYNC) > 1
    let_go(db)
