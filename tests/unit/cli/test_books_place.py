"""The books' commands where a place, a number or Spark is wrong: one line says so, and nothing is made or erased."""

from __future__ import annotations

import io
import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.cli.house import House
from tests.unit.pipeline.lakes import recorded

from posthouse.cli.books_place import progress
from posthouse.cli.session import Session
from posthouse.pipeline import generate
from posthouse.pipeline import session as spark
from posthouse.pipeline.bronze import Journal
from posthouse.pipeline.job import Job, Result
from posthouse.pipeline.ledger import Ledger, State


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("made") / "journal"
    generate.generate(out, events=400, seed=1, nodes=1)
    return out


@pytest.fixture
def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(settings: Any) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr(spark, "start", never)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was asked before anything was done; the answer is yes."""
    questions: list[str] = []
    monkeypatch.setattr(Session, "must_ask", lambda self, yes: not yes)
    monkeypatch.setattr(Session, "confirm", lambda self, question: questions.append(question))
    return questions


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("--master", "foo"), "Master must either be yarn or start with spark, k8s, or local"),
        (("--conf", "spark.driver.memory=x"), "Invalid maximum heap size: -Xmxx"),
    ],
)
def test_settings_that_spark_does_not_start_with_are_named_in_one_line(
    house: House, journal: Path, words: tuple[str, ...], line: str
) -> None:
    process = house.spawn("books", "run", "--journal", str(journal), *words)
    printed, more = process.communicate(timeout=60)
    assert (process.returncode, printed) == (2, "")
    (said,) = more.splitlines()
    assert said.startswith("posthouse: Spark does not start with these settings: ")
    assert line in said


def test_nothing_is_forgotten_where_there_is_no_journal(house: House) -> None:
    lake = house.folder / ".posthouse" / "lake"
    Ledger(str(lake)).commit(State(batch=1))
    before = Ledger(str(lake)).state()
    for words in ((), ("--journal", str(house.folder / "typo"))):
        done = house.run("books", "forget", "--mailbox", "bob", "--yes", *words, code=2)
        assert done.stdout == ""
        place = words[1] if words else house.folder / ".posthouse" / "journal"
        assert done.stderr == f"posthouse: {place} is no folder with a journal\n"
    assert Ledger(str(lake)).state() == before


@pytest.mark.usefixtures("without_spark")
@pytest.mark.parametrize("command", [("forget", "--mailbox", "bob", "--yes"), ("rebuild", "--yes")])
def test_nothing_is_erased_where_the_journal_is_empty_and_the_lake_is_not(
    house: House, journal: Path, command: tuple[str, ...]
) -> None:
    lake, empty = house.folder / "lake", house.folder / "empty"
    empty.mkdir()
    taken = recorded(lake, Journal(str(journal)))
    before = Ledger(str(lake)).state()
    done = house.run("books", *command, "--lake", str(lake), "--journal", str(empty), code=2)
    assert done.stdout == ""
    said = f"there is no segment in {empty}, and the lake has taken in {len(taken)}"
    assert done.stderr == f"posthouse: {said}: is that the journal, and is it mounted?\n"
    assert Ledger(str(lake)).state() == before


def test_a_rebuild_says_how_many_segments_are_gone(
    house: House, journal: Path, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, place = house.folder / "lake", Path(shutil.copytree(journal, house.folder / "j"))
    taken = recorded(lake, Journal(str(place)))
    monkeypatch.setattr(Job, "run", lambda self, place, rebuild: Result())
    words = ("books", "rebuild", "--lake", str(lake), "--journal", str(place))
    house.run(*words)
    next(place.glob("node=*/*.parquet")).unlink()
    house.run(*words)
    gone = f"1 of {len(taken)} segments that were taken in are not there."
    usual = "Segments that are not there any more will be missing in the books. Go on?"
    assert asked == [usual, f"{gone} {usual}"]
    assert house.run(*words, "--yes").stdout.splitlines() == [gone, "Nothing is new."]
    document = house.json(*words, "--yes")
    assert (document["missing"], document["unrecorded"]) == (1, False)
    assert len(asked) == 2


def test_a_rebuild_says_that_nobody_knows_who_was_forgotten(
    house: House, journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = house.folder / "lake"
    entry = lake / "events" / "_delta_log" / "00000000000000000000.json"
    entry.parent.mkdir(parents=True)
    entry.write_text("")
    monkeypatch.setattr(Job, "run", lambda self, place, rebuild: Result())
    words = ("books", "rebuild", "--lake", str(lake), "--journal", str(journal), "--yes")
    said, *_ = house.run(*words).stdout.splitlines()
    assert said == "The lake's record is lost: whoever was forgotten comes back, and has to be forgotten again."
    assert house.json(*words)["unrecorded"] is True


HOLDS = [{"segment": "node=n1/1.parquet", "events": 3}]


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ({}, ["No segment of the journal holds any."]),
        (
            {"missing": 2, "unread": ["node=n1/2.parquet"]},
            [
                "No segment that could be read holds any.",
                "node=n1/2.parquet cannot be read: nobody can tell whether it holds any.",
                "2 of 5 segments that were taken in are not there: nobody can tell whether they hold any.",
            ],
        ),
        ({"segments": HOLDS}, ["SEGMENT EVENTS", "These segments still hold them."]),
    ],
)
def test_a_forget_says_what_it_does_not_reach_and_that_it_is_for_good(
    house: House, asked: list[str], monkeypatch: pytest.MonkeyPatch, found: dict[str, Any], said: list[str]
) -> None:
    Ledger(str(house.folder / ".posthouse" / "lake")).commit(State(batch=1))
    report = {"mailbox": "bob", "events_erased": 3, "segments": [], "unread": [], "taken": 5, "missing": 0} | found
    monkeypatch.setattr(Job, "forget", lambda self, mailbox, place: report)
    first, *told, future, sent = house.run("books", "forget", "--mailbox", "bob").stdout.splitlines()
    assert first == "3 events of bob were erased from the books."
    assert [" ".join(line.split()) for line in told if not line.startswith("node=n1/1")] == said
    assert future == "What comes of it later is left out of the books, too."
    assert sent == "Messages that it sent are in the mailboxes of others."
    (question,) = asked
    assert question.endswith(" and keep out all that comes of it later, for good?")
    assert house.json("books", "forget", "--mailbox", "bob", "--yes") == report


@pytest.mark.usefixtures("without_spark")
@pytest.mark.parametrize(
    "command",
    [("forget", "--mailbox", "bob", "--yes"), ("compact",), ("replay", "--desk", "relay", "--policy", "capacity=1")],
)
def test_a_lake_that_is_not_there_is_an_error_and_is_not_made(
    house: House, journal: Path, command: tuple[str, ...]
) -> None:
    place = house.folder / "typo"
    words = ("--journal", str(journal)) if command[0] == "forget" else ()
    done = house.run("books", *command, *words, "--lake", str(place), "--json", code=2)
    assert done.stdout == ""
    assert json.loads(done.stderr)["error"] == {"code": "invalid", "message": f"there are no books at {place}"}
    assert not place.exists()


@pytest.mark.usefixtures("without_spark")
@pytest.mark.parametrize("command", [("run",), ("rebuild", "--yes"), ("watch",)])
def test_where_there_is_no_journal_no_lake_is_made(house: House, command: tuple[str, ...]) -> None:
    lake, journal = house.folder / "lake", house.folder / "typo"
    done = house.run("books", *command, "--lake", str(lake), "--journal", str(journal), code=2)
    assert (done.stdout, done.stderr) == ("", f"posthouse: {journal} is no folder with a journal\n")
    assert not lake.exists()


@pytest.mark.usefixtures("without_spark")
@pytest.mark.parametrize("policy", ["", " ", "capacity=null"])
def test_a_policy_that_changes_nothing_is_refused(house: House, policy: str) -> None:
    Ledger(str(house.folder / ".posthouse" / "lake")).commit(State(batch=1))
    done = house.run("books", "replay", "--desk", "relay", "--policy", "ttl_s=60", "--policy", policy, code=2)
    assert done.stdout == ""
    assert done.stderr.startswith("posthouse: a --policy is empty or changes nothing: ")


@pytest.mark.parametrize("number", ["nan", "inf", "-inf", "1e10"])
@pytest.mark.parametrize(("command", "option"), [("watch", "--every"), ("compact", "--retain-h")])
def test_a_number_that_cannot_be_is_refused_before_anything_is_done(
    house: House, command: str, option: str, number: str
) -> None:
    done = house.run("books", command, f"{option}={number}", code=2)
    assert done.stdout == ""
    assert done.stderr.startswith(f"posthouse: Invalid value for '{option}': ")
    assert not [*house.folder.iterdir()]


@pytest.mark.parametrize("option", ["--lake", "--journal"])
@pytest.mark.parametrize("command", [("run",), ("watch",), ("verify",), ("forget", "--mailbox", "bob", "--yes")])
def test_an_empty_place_is_refused_and_does_not_mean_this_folder(
    house: House, command: tuple[str, ...], option: str
) -> None:
    before = sorted(house.folder.rglob("*"))
    for empty in ("", " "):
        done = house.run("books", *command, option, empty, code=2)
        assert done.stdout == ""
        assert done.stderr.startswith(f"posthouse: {option} is empty")
    assert sorted(house.folder.rglob("*")) == before


def test_what_comes_next_has_a_bar_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    shown = Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    session: Any = SimpleNamespace(json=False)
    with progress(session) as report:
        report(10, 10, "taking in")
        report(0, None, "waiting for more")
    _, _, last = shown.getvalue().rpartition("waiting for more")
    assert "0/?" in last
    assert "/10" not in last
