"""posthouse books watch as a process: signals end it, and a lake in use is waited for."""

from __future__ import annotations

import signal

import pytest
from tests.unit.cli.house import House

from posthouse.pipeline.ledger import Ledger


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_lake_in_use_is_waited_for_and_a_signal_ends_the_watch(house: House, number: signal.Signals) -> None:
    with Ledger(str(house.folder / ".posthouse" / "lake")).alone("run"):
        process = house.spawn("books", "watch", "--every", "3600")
        assert process.stderr is not None
        said = process.stderr.readline()
        assert "is at work on the lake" in said
        assert said.endswith("trying again in 3600 s\n")
        process.send_signal(number)
        printed, more = process.communicate(timeout=60)
    assert (process.returncode, printed, more) == (0, "", "")
