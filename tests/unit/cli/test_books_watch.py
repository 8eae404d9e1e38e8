"""posthouse books watch as a process: signals end it, and a lake in use is waited for."""

from __future__ import annotations

import contextlib
import errno
import json
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from tests.unit.cli.house import House

from posthouse.cli import books_watch
from posthouse.errors import InvalidInput, StoreFull, StoreHeld, StoreUnavailable
from posthouse.pipeline.finding import Finding
from posthouse.pipeline.job import Result
from posthouse.pipeline.ledger import Ledger


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_lake_in_use_is_waited_for_and_a_signal_ends_the_watch(house: House, number: signal.Signals) -> None:
    (house.folder / ".posthouse" / "journal").mkdir(parents=True)
    with Ledger(str(house.folder / ".posthouse" / "lake")).alone("run"):
        process = house.spawn("books", "watch", "--every", "3600")
        assert process.stderr is not None
        said = process.stderr.readline()
        assert "is at work on the lake" in said
        assert said.endswith("trying again in 3600 s\n")
        process.send_signal(number)
        printed, more = process.communicate(timeout=60)
    assert (process.returncode, printed, more) == (0, "", "")


Turn = Result | BaseException


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> tuple[list[Turn], list[list[str]]]:
    """What the next turns come to, and those that each job did, by the names of their types."""
    coming: list[Turn] = []
    opened: list[list[str]] = []

    class Turns:
        def run(self, place: str) -> Result:
            turn = coming.pop(0) if coming else KeyboardInterrupt()
            opened[-1].append(type(turn).__name__)
            if isinstance(turn, BaseException):
                raise turn
            return turn

    @contextlib.contextmanager
    def open_job(*arguments: Any) -> Iterator[Turns]:
        opened.append([])
        yield Turns()

    monkeypatch.setattr(books_watch, "open_job", open_job)
    monkeypatch.setattr(books_watch.time, "sleep", lambda seconds: None)
    return coming, opened


def test_after_spark_failed_it_is_started_anew_and_not_where_the_lake_was_in_use(
    house: House, turns: tuple[list[Turn], list[list[str]]]
) -> None:
    coming, opened = turns
    coming += [StoreUnavailable("Java ended"), StoreFull("no room"), StoreHeld("in use"), Result()]
    done = house.run("books", "watch", "--every", "5")
    assert opened == [["StoreUnavailable"], ["StoreFull"], ["StoreHeld", "Result", "KeyboardInterrupt"]]
    said = [f"posthouse: {why}; trying again in 5 s" for why in ("Java ended", "no room", "in use")]
    assert done.stderr.splitlines() == said


@pytest.mark.parametrize(
    ("away", "why", "code"),
    [
        (InvalidInput("no such folder"), "no such folder", 2),
        (OSError(errno.EIO, "Input/output error", "/j"), "Input/output error: /j", 1),
    ],
)
def test_a_journal_that_cannot_be_read_for_a_while_is_waited_for_once_it_could_be(
    house: House, turns: tuple[list[Turn], list[list[str]]], away: Exception, why: str, code: int
) -> None:
    coming, opened = turns
    coming += [Result(), away, Result()]
    done = house.run("books", "watch", "--every", "5")
    # Spark stays as it is.
    assert opened == [["Result", type(away).__name__, "Result", "KeyboardInterrupt"]]
    assert done.stderr == f"posthouse: {why}; trying again in 5 s\n"
    # In the first turn it is a mistake.
    coming.append(away)
    done = house.run("books", "watch", "--every", "5", code=code)
    assert done.stderr == f"posthouse: {why}\n"


def test_with_json_what_puts_a_turn_off_is_json_too(house: House, turns: tuple[list[Turn], list[list[str]]]) -> None:
    turns[0].extend([StoreHeld("in use"), StoreUnavailable("Java\nended")])
    done = house.run("books", "watch", "--json", "--every", "5")
    assert done.stdout == ""
    assert [json.loads(line) for line in done.stderr.splitlines()] == [
        {"error": {"code": "store_held", "message": "in use", "again_s": 5.0}},
        {"error": {"code": "store_unavailable", "message": "Java\nended", "again_s": 5.0}},
    ]


def test_what_is_wrong_with_files_is_told_when_it_is_first_met(
    house: House, turns: tuple[list[Turn], list[list[str]]]
) -> None:
    gap = Finding("journal_gap", "a", (3, 4), "the offsets 3 to 4 are missing")
    foreign = Finding("bad_segment", "", (), "x.parquet: it is no segment")
    seen = [[gap], [gap, foreign], [gap, foreign], [], [gap]]
    turns[0].extend(Result(findings=each) for each in seen)
    done = house.run("books", "watch")
    told, other = "journal_gap of node a: the offsets 3 to 4 are missing", "bad_segment: x.parquet: it is no segment"
    assert done.stdout.splitlines() == [told, other, told]
    turns[0].extend(Result(findings=each) for each in seen)
    found = [json.loads(line)["findings"] for line in house.run("books", "watch", "--json").stdout.splitlines()]
    assert [len(each) for each in found] == [1, 2, 1]
