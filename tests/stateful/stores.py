"""The stores that are compared with memory."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.stateful.histories import POLICIES

from posthouse.mailbox.store import Store
from posthouse.stores.memory import MemoryStore

STORES = ("memory", "sqlite")
"""Memory with itself shows that the reference is deterministic."""


@contextmanager
def opened(name: str) -> Iterator[tuple[Store, Callable[[Store], Store]]]:
    """A new, empty store of this kind, and how to close it and open it again."""
    if name == "memory":
        yield MemoryStore(POLICIES), lambda store: store
        return
    assert name == "sqlite", f"no store is called {name}"
    from posthouse.stores.sqlite import SqliteStore

    # Power cuts are tested elsewhere: here a file in memory saves the disk thousands of syncs.
    shm = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="posthouse-", dir=shm if shm.is_dir() else None))
    store: Store = SqliteStore.open(folder / "mail.db", POLICIES, node="other")

    def reopen(_: Store) -> Store:
        nonlocal store
        store.close()
        store = SqliteStore.open(folder / "mail.db", POLICIES, node="other")
        return store

    try:
        yield store, reopen
    finally:
        store.close()
        shutil.rmtree(folder)
