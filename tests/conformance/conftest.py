"""The same cases over every store. A store is added here by name; none is left out silently."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conformance.desks import DESKS
from tests.conformance.scene import Scene

from posthouse.mailbox.store import Store

STORES = ("memory", "sqlite")


def open_store(name: str, folder: Path) -> Store:
    """A new, empty store of this kind with the desks of the cases."""
    if name == "memory":
        from posthouse.stores.memory import MemoryStore

        return MemoryStore(DESKS)
    if name == "sqlite":
        from posthouse.stores.sqlite import SqliteStore

        return SqliteStore.open(folder / "mail.db", DESKS, node="conformance")
    raise AssertionError(f"no store is called {name}")


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    opened = open_store(request.param, tmp_path)
    yield opened
    opened.close()


@pytest.fixture
def scene(store: Store) -> Scene:
    return Scene(store)
