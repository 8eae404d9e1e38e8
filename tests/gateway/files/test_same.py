"""The courier's tests once more, with the outbound queue kept as files too: nothing else may differ."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.gateway.conftest import QUICK_IN, QUICK_OUT, House
from tests.gateway.files.test_mirror import Mirrored
from tests.gateway.test_courier import *  # noqa: F403 (its tests are what is meant)

from posthouse.gateway.files.layout import image
from posthouse.mailbox.command import Filter
from posthouse.stores.sqlite import SqliteStore


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    made = Mirrored(tmp_path / "gateway.db")
    yield made
    if not made.path.exists():
        return
    # Whatever the test did, the files are the image of the store.
    store = SqliteStore.open(made.path, {policy.name: policy for policy in (QUICK_IN, QUICK_OUT)}, "test")
    try:
        views = [image(view) for view in store.messages(Filter("outbound"), limit=1_000)]
    finally:
        store.close()
    wanted = {f"{shown.place}/{shown.stem}": shown.fields for shown in views if shown and shown.place is not None}
    queue = made.path.with_suffix("") / "claw" / "delivery-queue"
    found = {
        f"{place}/{path.stem}": json.loads(path.read_text())
        for place in ("", "failed", "review")
        for path in (queue / place).glob("*.json")
    }
    assert found == wanted
