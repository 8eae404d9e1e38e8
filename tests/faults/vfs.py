"""A disk that can lose power, for SQLite: an apsw VFS over the default one.

In: the calls of every connection that is opened with ``vfs=disk.name``. Out: the same files as
without it, and at a power cut what a disk may hold then: all that was synced, plus any choice of
what was not, sector by sector, in any order. It also fails, kills or delays at the n-th call.

How it works: each write goes through to the real file, which so plays the page cache that all
connections see, and is kept beside it as pending until a sync makes it durable. Nothing is ever
synced for real. The WAL index (-shm) and locks are left to the inherited VFS: they are volatile.

What the model takes for granted: a sector of 512 bytes is written whole or not at all and harms
nothing beside it (SQLite's POWERSAFE_OVERWRITE, its default on Linux); a sync does not lie; a file's
sync makes its name durable too (as ext4, XFS and btrfs do), and the first sync of a new journal or
WAL all names of its folder (SQLite syncs the folder then). All else goes: names may return or vanish,
sizes may stay behind or run ahead of the data, and fresh sectors that were never written may hold
zeros or rubbish.
"""

from __future__ import annotations

import enum
import itertools
import os
import signal
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import apsw

SECTOR = 512

Name = str | apsw.URIFilename | None
_TRACKED = (
    apsw.SQLITE_OPEN_MAIN_DB | apsw.SQLITE_OPEN_MAIN_JOURNAL | apsw.SQLITE_OPEN_SUPER_JOURNAL | apsw.SQLITE_OPEN_WAL
)
_Change = tuple[int, bytes | None]
"""(offset, data) of a write, or (size, None) of a truncation."""
_numbers = itertools.count(1)


class Call(enum.Enum):
    """What a fault can be tied to."""

    WRITE = "write"
    TRUNCATE = "truncate"
    SYNC = "sync"
    DELETE = "delete"
    READ = "read"  # only on a disk made with ``reads=True``: it costs


CHANGES = frozenset(Call) - {Call.READ}


class Act(enum.Enum):
    """What happens at the chosen call."""

    CUT = "cut"  # the power goes; every later call fails
    KILL = "kill"  # this process is killed with -9, half of the write done
    EIO = "eio"
    FULL = "full"
    DELAY = "delay"
    LIE = "lie"  # a sync that answers and makes nothing durable


@dataclass
class Fault:
    """Strikes from the ``first`` to the ``last`` matching call, counted from when it was added."""

    act: Act
    first: int
    last: int | None = None
    """None: the first only."""
    calls: frozenset[Call] = CHANGES
    suffix: str = ""
    """Only files whose name ends so: ``-wal``, ``.db``."""
    delay_s: float = 0.0
    seen: int = 0
    struck: int = 0

    def strikes(self, call: Call, path: str) -> bool:
        if call not in self.calls or not path.endswith(self.suffix):
            return False
        self.seen += 1
        if not self.first <= self.seen <= (self.first if self.last is None else self.last):
            return False
        self.struck += 1
        return True


FOR_EVER = 1 << 62


class PowerCut(apsw.IOError):
    """The answer to every call after the power went."""

    def __init__(self) -> None:
        super().__init__("the power is off")
        self.extendedresult = apsw.SQLITE_IOERR


@dataclass
class _File:
    """One file's contents: what is durable, and the changes since, in order."""

    durable: bytearray
    pending: list[_Change] = field(default_factory=list)

    def fold(self, size: int) -> None:
        """A sync: all pending changes are durable now, and so is the file's size."""
        for offset, data in self.pending:
            if data is None:
                del self.durable[offset:]
            else:
                if len(self.durable) < offset:
                    self.durable.extend(bytes(offset - len(self.durable)))
                self.durable[offset : offset + len(data)] = data
        self.pending.clear()
        if size > len(self.durable):  # SQLite may grow a file by a hint, without a write.
            self.durable.extend(bytes(size - len(self.durable)))

    def survivor(self, rng: Random) -> bytes:
        """What the disk may hold if the power goes now."""
        if not self.pending:
            return bytes(self.durable)
        # A bias a file, so that "nothing", "all" and everything between happen often enough.
        bias = rng.choice((0.0, 0.1, 0.5, 0.9, 1.0))
        sizes = [len(self.durable)]
        touched: dict[int, list[int]] = {}
        for number, (offset, data) in enumerate(self.pending):
            if data is None:
                touched_now = range(offset // SECTOR, -(-sizes[-1] // SECTOR))
                sizes.append(offset)
            else:
                touched_now = range(offset // SECTOR, -(-(offset + len(data)) // SECTOR))
                sizes.append(max(sizes[-1], offset + len(data)))
            for sector in touched_now:
                touched.setdefault(sector, []).append(number)
        size = sizes[-1] if rng.random() < bias else rng.choice(sizes)
        extent = -(-max(sizes) // SECTOR) * SECTOR
        image = bytearray(extent)
        image[: len(self.durable)] = self.durable
        rubbish = rng.random() < 0.3
        for sector, numbers in touched.items():
            # A sector holds what it held at some instant since the last sync: a prefix of its changes.
            kept = len(numbers) if rng.random() < bias else rng.randrange(len(numbers))
            start, end = sector * SECTOR, (sector + 1) * SECTOR
            if kept == 0 and rubbish and start >= len(self.durable):
                image[start:end] = rng.randbytes(SECTOR)
            for number in numbers[:kept]:
                offset, data = self.pending[number]
                if data is None:
                    image[max(start, offset) : end] = bytes(end - max(start, offset))
                else:
                    low, high = max(start, offset), min(end, offset + len(data))
                    image[low:high] = data[low - offset : high - offset]
        return bytes(image[:size])


class Disk(apsw.VFS):
    """The VFS. Keep the object while connections use it; its ``name`` is what they are opened with."""

    def __init__(self, *, reads: bool = False) -> None:
        self._handle = _ReadingHandle if reads else _Handle
        self.name = f"disk-{next(_numbers)}"
        self.faults: list[Fault] = []
        self._counts: Counter[tuple[Call, str]] = Counter()
        self._lock = threading.Lock()
        self._off = False
        self._names: dict[str, _File] = {}
        self._unsure: dict[str, list[_File | None]] = {}
        """What a name that changed may lead to besides its present file; None is nothing."""
        super().__init__(self.name, "")

    # Faults

    def add(self, fault: Fault) -> Fault:
        """Arm a fault; its calls are counted from now."""
        with self._lock:
            self.faults.append(fault)
        return fault

    def clear(self) -> None:
        """Disarm every fault: the disk has room again, is quick again."""
        with self._lock:
            self.faults.clear()

    def cut(self) -> None:
        """The power goes now. Every later call fails; ``survivors`` says what is left."""
        with self._lock:
            self._off = True

    @property
    def is_off(self) -> bool:
        return self._off

    def count(self, call: Call, suffix: str = "") -> int:
        """How often this was called for files whose name ends so."""
        return sum(n for (c, path), n in list(self._counts.items()) if c is call and path.endswith(suffix))

    def survivors(self, rng: Random) -> dict[str, bytes]:
        """What a disk without power may hold, by path."""
        assert self._off, "the power is still on"
        found: dict[str, bytes] = {}
        for path in sorted(self._names.keys() | self._unsure.keys()):
            choices = [*self._unsure.get(path, ()), self._names.get(path)]
            file = rng.choice(choices)
            if file is not None:
                found[path] = file.survivor(rng)
        return found

    def boot(self, folder: Path, rng: Random) -> None:
        """Write the survivors to another folder, as the disk after the cut."""
        folder.mkdir(parents=True, exist_ok=True)
        for path, data in self.survivors(rng).items():
            (folder / os.path.basename(path)).write_bytes(data)

    def _take(self, call: Call, path: str, file: _File | None = None, change: _Change | None = None) -> Fault | None:
        """Count a call, log its change, and answer with the fault that the caller must carry out."""
        with self._lock:
            if self._off:
                raise PowerCut
            self._counts[call, path] += 1
            struck = next((f for f in self.faults if f.strikes(call, path)), None)
            if file is not None and change is not None and not (struck and struck.act in (Act.EIO, Act.FULL)):
                file.pending.append(change)
            if struck is not None and struck.act is Act.CUT:
                self._off = True
                raise PowerCut
            return struck

    # What SQLite calls

    def xOpen(self, name: Name, flags: list[int]) -> apsw.VFSFile:
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        if path is None or not flags[0] & _TRACKED or flags[0] & apsw.SQLITE_OPEN_DELETEONCLOSE:
            return apsw.VFSFile("", name, flags)
        with self._lock:
            if self._off:
                raise _error(apsw.CantOpenError, apsw.SQLITE_CANTOPEN)
            file = self._names.get(path)
            if file is None and os.path.exists(path):
                file = self._names[path] = _File(bytearray(Path(path).read_bytes()))
            opened = self._handle(self, path, name, flags)
            if file is None:
                file = self._names[path] = _File(bytearray())
                self._unsure.setdefault(path, []).append(None)
                opened.is_new_journal = bool(flags[0] & ~apsw.SQLITE_OPEN_MAIN_DB & _TRACKED)
            opened.file = file
            return opened

    def xDelete(self, filename: str, syncdir: bool) -> None:
        fault = self._take(Call.DELETE, filename)
        _strike(fault, apsw.SQLITE_IOERR_DELETE)
        super().xDelete(filename, syncdir)
        with self._lock:
            file = self._names.pop(filename, None)
            if file is not None:
                self._unsure.setdefault(filename, []).append(file)
            if syncdir:
                self._sync_folder(filename)

    def _sync_folder(self, path: str) -> None:
        folder = os.path.dirname(path)
        for beside in [p for p in self._unsure if os.path.dirname(p) == folder]:
            del self._unsure[beside]

    def excepthook(self, etype: Any, evalue: Any, etraceback: Any) -> bool:
        """Errors that cannot reach the caller are expected here."""
        return True


def let_go(db: apsw.Connection) -> None:
    """Close a connection; SQLite's last checkpoint may fail, since the power is off or a fault is armed."""
    try:
        db.close()
    except apsw.Error:
        db.close(True)


class _Handle(apsw.VFSFile):
    """One open file. Reads, locks and shared memory are inherited."""

    file: _File
    is_new_journal = False

    def __init__(self, disk: Disk, path: str, name: Name, flags: list[int]) -> None:
        self.disk = disk
        self.path = path
        super().__init__("", name, flags)

    def xWrite(self, data: Any, offset: int) -> None:
        copy = bytes(data)
        fault = self.disk._take(Call.WRITE, self.path, self.file, (offset, copy))
        if fault is not None and fault.act is Act.KILL:
            super().xWrite(copy[: len(copy) // 2], offset)
        _strike(fault, apsw.SQLITE_IOERR_WRITE)
        super().xWrite(copy, offset)

    def xTruncate(self, newsize: int) -> None:
        _strike(self.disk._take(Call.TRUNCATE, self.path, self.file, (newsize, None)), apsw.SQLITE_IOERR_TRUNCATE)
        super().xTruncate(newsize)

    def xSync(self, flags: int) -> None:
        fault = self.disk._take(Call.SYNC, self.path)
        _strike(fault, apsw.SQLITE_IOERR_FSYNC)
        if fault is not None and fault.act is Act.LIE:
            return
        size = super().xFileSize()
        with self.disk._lock:
            if self.disk._off:  # The power went while we waited: this sync has not answered.
                raise PowerCut
            self.file.fold(size)
            if self.is_new_journal:
                self.is_new_journal = False
                self.disk._sync_folder(self.path)
            elif self.disk._names.get(self.path) is self.file:
                self.disk._unsure.pop(self.path, None)

    def excepthook(self, etype: Any, evalue: Any, etraceback: Any) -> bool:
        return True


class _ReadingHandle(_Handle):
    """One whose reads can fail too."""

    def xRead(self, amount: int, offset: int) -> bytes:
        _strike(self.disk._take(Call.READ, self.path), apsw.SQLITE_IOERR_READ)
        return super().xRead(amount, offset)


def _strike(fault: Fault | None, code: int) -> None:
    if fault is None or fault.act is Act.LIE:
        return
    if fault.act is Act.DELAY:
        time.sleep(fault.delay_s)
    elif fault.act is Act.KILL:
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault.act is Act.FULL:
        raise _error(apsw.FullError, apsw.SQLITE_FULL)
    else:
        raise _error(apsw.IOError, code)


def _error(kind: type[apsw.Error], code: int) -> apsw.Error:
    error: Any = kind(f"planted: {apsw.mapping_extended_result_codes.get(code, code)}")
    error.extendedresult = code
    return error  # type: ignore[no-any-return]
