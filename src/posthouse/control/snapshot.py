"""Snapshots: a safe copy of a store while it works, and a new store made from one."""

from __future__ import annotations

import contextlib
import datetime
import os
from pathlib import Path

from ..config import Config
from ..errors import InvalidInput, StoreError
from . import view
from .operation import Answer, Context, Json, Refused, operation


@operation("snapshot.create")
def create(context: Context, *, path: str) -> Answer:
    """Copy the store as it is now to a new file, while commits go on."""
    if not os.path.isabs(path):
        raise InvalidInput(f"path must be absolute: {path[:200]!r}")
    snapshot = getattr(context.store, "snapshot", None)
    if snapshot is None:
        return Refused("unsupported", "this store cannot make snapshots")
    if os.path.lexists(path):
        return Refused("exists", f"{path} exists already")
    if not os.path.isdir(os.path.dirname(path)):
        return Refused("not_found", f"there is no folder {os.path.dirname(path)}")
    context.report(0, None, "copying")
    at = context.access.now()
    node, offset = snapshot(path)
    return {
        "path": path,
        "node": node,
        "offset": offset,
        "size_bytes": os.path.getsize(path),
        "at": view.instant(at),
    }


def restore(config: Config, snapshot: Path, node: str, *, force: bool) -> Json | Refused:
    """Make the configured store from a snapshot, under a new node name; nobody may hold it.

    With ``force`` a store that is there is kept beside the new one under another name.
    """
    from ..stores.sqlite import SqliteStore
    from ..stores.sqlite import restore as make
    from ..stores.sqlite.connection import Holder

    path = config.path("store.path")
    if not snapshot.is_file():
        return Refused("not_found", f"there is no snapshot {snapshot}")
    kept: Path | None = None
    if path.exists():
        if not force:
            return Refused("exists", f"{path} exists already; --force puts it aside")
        # Refuses with a clear error while another process has it.
        Holder(str(path)).release()
        kept = _put_aside(path)
    try:
        restored_from = make(snapshot, path, node)
    except BaseException:
        if kept is not None:
            _rename(kept, path)
        raise
    store = SqliteStore.open(path, config.policies, node)
    from ..engine.engine import Engine

    engine = Engine(store)
    try:
        # The first event of the new node tells where its messages come from.
        started = engine.start(restored_from)
    finally:
        engine.close()
    return {
        "path": str(path),
        "node": node,
        "restored_from": restored_from,
        "leases_ended": started.ended,
        "kept": str(kept) if kept else None,
    }


def _put_aside(path: Path) -> Path:
    stamp = datetime.datetime.now(datetime.UTC).strftime("%Y%m%dT%H%M%S%fZ")
    kept = path.with_name(f"{path.name}.before-{stamp}")
    try:
        _rename(path, kept)
    except OSError as error:
        raise StoreError(f"cannot put {path} aside: {error.strerror or error}") from error
    return kept


def _rename(path: Path, to: Path) -> None:
    # The log first: were the file gone and its log left, a new file of that name would be given it.
    for suffix in ("-wal", "-shm", ""):
        with contextlib.suppress(FileNotFoundError):
            os.rename(f"{path}{suffix}", f"{to}{suffix}")
