"""Power cuts on the real store: seeded lives, each ended by a cut, each begun from what the disk held.

In: a seed. Out: how many cuts and acknowledgements there were, and whatever was lost, invented or damaged.
Run it by hand for figures: ``python -m tests.faults.cuts --stores 300 --synchronous FULL``.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

import apsw
from tests.faults.traffic import POLICIES, Ledger, Traffic, row_faults, settle_doubt
from tests.faults.vfs import Act, Call, Disk, Fault, let_go
from tests.stateful.replay import differences

from posthouse.errors import PosthouseError, StoreError
from posthouse.mailbox.command import Start
from posthouse.stores.sqlite import SqliteStore, checkpoint, flush, lookup


@dataclass
class Report:
    """What a number of cuts did. A cut is one state that a disk was left in."""

    cuts: int = 0
    cuts_at_start: int = 0
    posts: int = 0
    settles: int = 0
    segments: int = 0
    checkpointed: int = 0
    """Cuts of a life in which the database file itself was written."""
    elapsed_s: float = 0.0
    faults: list[str] = field(default_factory=list)
    stores_harmed: int = 0

    def __str__(self) -> str:
        rate = self.cuts / max(self.elapsed_s, 1e-9)
        return (
            f"{self.cuts} cuts ({rate:.0f}/s, {self.cuts_at_start} during start, {self.checkpointed} in or "
            f"after a checkpoint), {self.posts} posts, {self.settles} settlements and {self.segments} "
            f"trimmed segments acknowledged, {len(self.faults)} faults in {self.stores_harmed} stores"
        )


@contextlib.contextmanager
def small(rng: Random) -> Iterator[None]:
    """Thresholds so low that checkpoints, lagging indexes and evictions happen in a hundred messages."""
    limits = {
        (checkpoint, "START_PAGES"): rng.choice((5, 20, 60)),
        (flush, "LAG_ENTRIES"): rng.choice((4, 40, 16_384)),
        (flush, "LAG_DELETES"): rng.choice((4, 40, 4_096)),
        (flush, "LAG_PLACES"): rng.choice((4, 40, 16_384)),
        (flush, "SLICE_ENTRIES"): rng.choice((1, 8, 64)),
        (flush, "COLD_NUMBERS"): rng.choice((4, 40, 8_192)),
        (flush, "BOXES_MAX"): rng.choice((3, 20_000)),
        (flush, "BODIES_BYTES_MAX"): rng.choice((5_000, 16 << 20)),
        (lookup, "PAGE_ENTRIES"): rng.choice((2, 64)),
    }
    usual = {(module, name): getattr(module, name) for module, name in limits}
    try:
        for (module, name), value in limits.items():
            setattr(module, name, value)
        yield
    finally:
        for (module, name), value in usual.items():
            setattr(module, name, value)


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """That a disk without power fails is no news."""
    log = logging.getLogger("posthouse")
    usual = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(usual)


def run(folder: Path, seed: int, lives: int, report: Report, synchronous: str = "FULL") -> None:
    """One store through ``lives`` cuts. It ends early at the first fault; then its files are kept."""
    rng = Random(seed)
    with small(rng), _silence():
        _run(folder, seed, lives, report, synchronous, rng)


def _run(folder: Path, seed: int, lives: int, report: Report, synchronous: str, rng: Random) -> None:
    begun = time.perf_counter()
    ledger = Ledger()
    traffic = Traffic(rng, ledger, trims=seed % 3 == 0)
    wrong: list[str] = []
    for life in range(lives + 1):
        here = folder / f"{life}"
        here.mkdir(parents=True, exist_ok=True)
        disk = Disk()
        wrong = _live(here / "a.db", disk, traffic, report, synchronous, last=life == lives)
        if wrong or life == lives:
            break
        wrong = _look(folder / f"{life}-other", disk, rng, ledger)
        disk.boot(folder / f"{life + 1}", rng)
        report.cuts += 2
        report.checkpointed += 2 * (disk.count(Call.WRITE, ".db") > 1)  # One is of making the file.
        if wrong:
            break
        disk.unregister()
        shutil.rmtree(here)
    report.posts += len(ledger.posted)
    report.settles += ledger.settles
    report.segments += len(ledger.segments)
    report.elapsed_s += time.perf_counter() - begun
    if wrong:
        report.stores_harmed += 1
        report.faults += [f"seed {seed}, life {life}: {w}" for w in wrong]
    else:
        shutil.rmtree(folder)


def _live(path: Path, disk: Disk, traffic: Traffic, report: Report, synchronous: str, last: bool) -> list[str]:
    """Open what the disk holds, check it, work until the power goes. The answer is what was wrong."""
    ledger, rng = traffic.ledger, traffic.rng
    early = rng.random() < 0.15 and not last
    cut = Fault(Act.CUT, rng.randint(1, rng.choice((5, 50) if early else (30, 200, 1_000))))
    if early:
        disk.add(cut)
    try:
        store = SqliteStore.open(str(path), POLICIES, node="cuts", vfs=disk.name, synchronous=synchronous)
    except PosthouseError as error:
        if disk.is_off:
            report.cuts_at_start += 1
            return []
        return [f"it does not open: {error!r}"]
    try:
        wrong = _check(store, path, disk, ledger)
        if wrong or last:
            return wrong
        traffic.forget()
        if not early:
            disk.add(cut)
        try:
            traffic.send(store, [Start(POLICIES, at=traffic.at)])
            while not ledger.wrong:
                traffic.step(store)
                if rng.random() < 0.1:
                    _await_checkpoint(disk)
        except StoreError as error:
            if not disk.is_off:
                return [f"it failed with the power on: {error!r}"]
        return ledger.wrong
    finally:
        try:
            store.close()
        except StoreError:
            assert disk.is_off


def _look(folder: Path, disk: Disk, rng: Random, ledger: Ledger) -> list[str]:
    """Another disk that the same cut may have left: open it, check it, close it, check what closing left."""
    disk.boot(folder, rng)
    copy = replace(
        ledger,
        posted=dict(ledger.posted),
        finished=dict(ledger.finished),
        last_seq=dict(ledger.last_seq),
        kept=dict(ledger.kept),
        chunks=list(ledger.chunks),
        wrong=[],
    )
    path, whole = folder / "a.db", Disk()
    for _ in range(rng.choice((1, 2))):
        try:
            store = SqliteStore.open(str(path), POLICIES, node="cuts", vfs=whole.name)
        except PosthouseError as error:
            return [f"it does not open: {error!r}"]
        wrong = _check(store, path, whole, copy) + copy.wrong
        if not copy.segments:
            wrong += differences(store)
        store.close()
        if wrong:
            return wrong
    shutil.rmtree(folder)
    return []


def _await_checkpoint(disk: Disk) -> None:
    """Let the checkpoint thread come to its end now and then: only then is the log begun anew."""
    before = disk.count(Call.SYNC, ".db")
    for _ in range(10):
        if disk.is_off or disk.count(Call.SYNC, ".db") > before:
            return
        time.sleep(0.0003)


def _check(store: SqliteStore, path: Path, disk: Disk, ledger: Ledger) -> list[str]:
    own = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY, vfs=disk.name)
    try:
        found = [row[0] for row in own.execute("PRAGMA integrity_check")]
    except apsw.Error as error:
        found = [repr(error)]
    finally:
        let_go(own)
    if found != ["ok"]:
        return [f"damaged: {line}" for line in found]
    try:
        return settle_doubt(store, ledger) + row_faults(store, ledger)
    except PosthouseError as error:
        return [f"unreadable: {error!r}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stores", type=int, default=50)
    parser.add_argument("--lives", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--synchronous", default="FULL")
    chosen = parser.parse_args()
    report = Report()
    folder = Path(tempfile.mkdtemp(prefix="cuts-"))
    for seed in range(chosen.seed, chosen.seed + chosen.stores):
        run(folder / str(seed), seed, chosen.lives, report, chosen.synchronous)
    print(report)
    print(*report.faults[:20], sep="\n")
    print(f"what is left of harmed stores: {folder}" if report.faults else "")


if __name__ == "__main__":
    main()
