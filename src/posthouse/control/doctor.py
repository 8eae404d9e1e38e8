"""The doctor: looks at everything that a store's health depends on, and changes nothing.

Each check has a stable name and one of: ok, warn (works, but look at it), fail (broken or in danger).
"""

from __future__ import annotations

import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from typing import Any

from ..config import Config
from ..errors import MissingExtra, PosthouseError
from ..journal.verify import verify
from ..mailbox.message import SECOND
from . import socket, view
from .journal import Feed
from .operation import Answer, Context, Json, operation

FREE_BYTES_LOW = 256 * 1_048_576
WAL_BYTES_HIGH = 256 * 1_048_576
AHEAD_US = 300 * SECOND
LAG_HIGH = 5_000_000
BUILT_AT_S = 1_735_689_600
"""The beginning of 2025: a clock before it was never set."""


def _check(name: str, status: str, detail: str) -> Json:
    return {"check": name, "status": status, "detail": detail}


@operation("doctor")
def doctor(context: Context, *, quick: bool = False) -> Answer:
    """Check library, schema, file, journal, disk, clock, permissions, log and socket."""
    checks = list(_of_store(context, quick))
    checks += of_surroundings(context.config)
    return summary(context.store.node, checks)


def summary(node: str | None, checks: list[Json]) -> Json:
    """What all checks say together."""
    return {"node": node, "ok": all(check["status"] != "fail" for check in checks), "checks": checks}


def _of_store(context: Context, quick: bool) -> Iterator[Json]:
    store: Any = context.store
    facts: dict[str, Any] = store.facts() if hasattr(store, "facts") else {}
    if facts:
        yield _check("library", "ok", f"SQLite {facts['sqlite']}")
        mode = f"{facts['journal_mode']}, synchronous {facts['synchronous']}"
        safe = facts["journal_mode"] == "wal" and facts["synchronous"] == 2
        yield _check("settings", "ok" if safe else "fail", mode)
        yield _check("schema", "ok", f"version {facts['user_version']}")
        yield _check("size", "ok", f"{facts['file_bytes']} bytes in {facts['page_count']} pages")
        wal = facts["wal_bytes"]
        yield _check("log", "ok" if wal <= WAL_BYTES_HIGH else "warn", f"write-ahead log of {wal} bytes")
        corrupt = facts["corrupt"]
        yield _check("rows", "warn" if corrupt else "ok", f"{corrupt} damaged messages set aside since the start")
    if not quick:
        if hasattr(store, "integrity"):
            context.report(0, None, "checking the file")
            yield _guarded("integrity", lambda: _integrity(store))
        yield _guarded("journal", lambda: _journal(context))
    yield _lag(context)
    yield _clock(context)
    unknown = [v.desk for v in store.desks() if v.desk not in store.policies]
    status = "warn" if unknown else "ok"
    yield _check("desks", status, f"not configured: {', '.join(unknown)}" if unknown else "all configured")


def _guarded(name: str, look: Callable[[], Json]) -> Json:
    """A check that cannot be made is a finding, not the end of the others."""
    try:
        return look()
    except MissingExtra as error:
        return _check(name, "warn", str(error))
    except PosthouseError as error:
        return _check(name, "fail", str(error))


def _integrity(store: Any) -> Json:
    wrong = store.integrity()
    return _check("integrity", "fail" if wrong else "ok", "; ".join(wrong) or "the file is sound")


def _journal(context: Context) -> Json:
    found = verify(
        Feed(context.access),
        context.config.path("journal.dir"),
        progress=lambda events, total: context.report(events, total, "verifying"),
    )
    if found:
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        return _check("journal", "fail", f"{found[0]}{more}; `posthouse journal verify` lists all")
    counts = f"{found.chunks} chunks, {found.segments} segments, {found.events} events"
    return _check("journal", "ok", f"{counts} follow each other")


def _lag(context: Context) -> Json:
    exported = max((s.last for s in context.store.segments() if s.chain), default=0)
    lag = context.store.offset() - exported
    return _check("export", "ok" if lag <= LAG_HIGH else "warn", f"{lag} events in no segment yet")


def _clock(context: Context) -> Json:
    now = context.access.now()
    last_at = getattr(context.store, "last_at", lambda: 0)() or 0
    if now < BUILT_AT_S * SECOND:
        return _check("clock", "fail", f"it says {view.instant(now)}: it was never set")
    if last_at > now + AHEAD_US:
        return _check("clock", "warn", f"it says {view.instant(now)}, the last event is from {view.instant(last_at)}")
    return _check("clock", "ok", "not behind the store's last event")


def of_surroundings(config: Config) -> list[Json]:
    """What can be said without opening the store."""
    path = config.path("store.path")
    checks = []
    if path.exists():
        checks += [_disk(path), _permissions(path)]
    checks.append(_socket(config))
    return checks


def _disk(path: os.PathLike[str]) -> Json:
    usage = shutil.disk_usage(os.path.dirname(path) or ".")
    low = usage.free < FREE_BYTES_LOW
    return _check("disk", "warn" if low else "ok", f"{usage.free // 1_048_576} MiB free")


def _permissions(path: os.PathLike[str]) -> Json:
    status = os.stat(path)
    if status.st_uid != os.geteuid():
        return _check("permissions", "warn", f"{path} belongs to user {status.st_uid}, not to this one")
    if stat.S_IMODE(status.st_mode) & 0o022:
        return _check("permissions", "fail", f"others may write to {path} (mode {stat.S_IMODE(status.st_mode):o})")
    folder = os.stat(os.path.dirname(path) or ".")
    others_write = folder.st_mode & 0o022 and not folder.st_mode & stat.S_ISVTX
    if others_write:
        return _check("permissions", "warn", f"others may replace files in the folder of {path}")
    readable = stat.S_IMODE(status.st_mode) & 0o044 and folder.st_mode & 0o055
    if readable:
        return _check("permissions", "warn", f"others may read {path} (mode {stat.S_IMODE(status.st_mode):o})")
    return _check("permissions", "ok", "for its owner alone")


def _socket(config: Config) -> Json:
    path = config.path("control.path")
    if not os.path.lexists(path):
        return _check("socket", "ok", "no server listens")
    if not socket.is_socket(path):
        return _check("socket", "fail", f"{path} is no socket; a server cannot start")
    began = time.monotonic()
    alive = socket.dial(path)
    if alive is None:
        return _check("socket", "warn", f"{path} was left by a dead server; the next command removes it")
    alive.close()
    mode = stat.S_IMODE(os.lstat(path).st_mode)
    if mode & 0o077:
        return _check("socket", "fail", f"others may connect to {path} (mode {mode:o})")
    return _check("socket", "ok", f"a server answers ({(time.monotonic() - began) * 1_000:.0f} ms)")
