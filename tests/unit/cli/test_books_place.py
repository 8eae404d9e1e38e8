"""The books' commands where the place is wrong, or Spark: one line says so, and nothing is made or erased."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.unit.cli.house import House

from posthouse.pipeline import generate
from posthouse.pipeline.ledger import Ledger, State


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("made") / "journal"
    generate.generate(out, events=400, seed=1, nodes=1)
    return out


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


@pytest.mark.parametrize("command", [("forget", "--mailbox", "bob", "--yes"), ("compact",)])
def test_a_lake_that_is_not_there_is_an_error_and_is_not_made(
    house: House, journal: Path, command: tuple[str, ...]
) -> None:
    place = house.folder / "typo"
    words = ("--journal", str(journal)) if command[0] == "forget" else ()
    done = house.run("books", *command, *words, "--lake", str(place), "--json", code=2)
    assert done.stdout == ""
    assert json.loads(done.stderr)["error"] == {"code": "invalid", "message": f"there are no books at {place}"}
    assert not place.exists()


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
