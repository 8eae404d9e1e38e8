"""The stores that are compared with memory."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

from tests.stateful.histories import POLICIES

from posthouse.mailbox.store import Store
from posthouse.stores.memory import MemoryStore

STORES = ("memory", "sqlite")
"""Memory with itself shows that the reference is deterministic."""


SIZES: dict[str, tuple[int, ...]] = {
    "LAG_ENTRIES": (1, 3),
    "LAG_DELETES": (1, 3),
    "LAG_PLACES": (1, 3),
    "SLICE_ENTRIES": (1, 2),
    "COLD_NUMBERS": (0, 3),
    "BOXES_MAX": (1, 2),
    "BODIES_BYTES_MAX": (0, 300),
    "PAGE_ENTRIES": (1, 2),
    "SCAN_PAGE": (1, 2),
    "_PAGE": (1, 2),
}
"""Sizes of the SQLite store at which it pages, lags and evicts: these are reached by a few messages."""


@contextmanager
def cramped(seed: int) -> Iterator[None]:
    """Make a store's sizes small, as the seed chooses; 0 leaves them as they are."""
    if not seed:
        yield
        return
    import posthouse.stores.sqlite as package

    rng = random.Random(seed)
    modules = [import_module(f"{package.__name__}.{found.name}") for found in iter_modules(package.__path__)]
    usual = []
    for name, sizes in SIZES.items():
        having = [module for module in modules if hasattr(module, name)]
        assert having, f"the SQLite store has no {name} any more: say what took its place"
        size = rng.choice(sizes)
        for module in having:
            usual.append((module, name, getattr(module, name)))
            setattr(module, name, size)
    try:
        yield
    finally:
        for module, name, value in usual:
            setattr(module, name, value)


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
