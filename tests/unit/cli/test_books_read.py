"""posthouse books show, message, report: what they print, and for whom."""

from __future__ import annotations

import json

import pytest
from tests.unit.cli.house import House
from tests.unit.pipeline.lakes import at, message, small, write


@pytest.fixture
def books(house: House) -> House:
    small(house.folder / ".posthouse")
    return house


def test_the_books_are_shown_by_hour_desk_and_kind(books: House) -> None:
    lines = books.run("books", "show").stdout.splitlines()
    assert lines[0].split()[:4] == ["WINDOW", "DESK", "KIND", "POSTED"]
    assert lines[1].split()[:5] == ["2026-03-01T00:00:00Z", "inbound", "invoice", "2", "1"]
    assert len(lines) == 4


def test_json_prints_every_row_and_every_column(books: House) -> None:
    shown = books.json("books", "show", "anomalies")
    assert shown["table"] == "anomalies"
    assert shown["version"] == 0
    assert [row["kind"] for row in shown["rows"]] == ["answered_twice", "delivered_twice", "journal_gap"]
    assert shown["rows"][1]["offsets"] == [3, 4]
    assert books.json("books", "show", "messages", "--where", "outcome = nothing")["rows"] == []
    many = [message(f"m{i}", i / 100) for i in range(2_500)]
    write(books.folder / ".posthouse/lake", "messages", many)
    assert len(books.json("books", "show", "messages")["rows"]) == 2_504
    assert len(books.json("books", "show", "messages", "--limit", "7")["rows"]) == 7


def test_rows_are_chosen_by_options(books: House) -> None:
    def ids(*words: str) -> list[str]:
        return sorted(row["message_id"] for row in books.json("books", "show", "messages", *words)["rows"])

    assert ids("--desk", "relay") == ["c"]
    assert ids("--kind", "invoice", "--until", "2026-03-02") == ["a", "b"]
    assert ids("--since", "2026-03-02") == ["c", "d"]
    assert ids("--where", "attempts >= 3 or live = true") == ["b", "c"]


def test_people_are_told_when_there_is_more(books: House) -> None:
    shown = books.run("books", "show", "messages", "--limit", "2").stdout
    assert "These are the first 2" in shown
    assert "These are" not in books.run("books", "show", "messages").stdout
    assert "No row of outages is like that." in books.run("books", "show", "outages", "--desk", "x").stdout


def test_columns_can_be_named(books: House) -> None:
    shown = books.run("books", "show", "messages", "--columns", "message_id, wait_idle", "--limit", "1")
    assert shown.stdout.splitlines()[0].split() == ["MESSAGE_ID", "WAIT_IDLE"]
    assert "1.0 min" in shown.stdout
    row = books.json("books", "show", "messages", "--columns", "message_id", "--limit", "1")["rows"][0]
    assert row == {"message_id": "d"}
    whole = books.run("books", "show", "messages", "--columns", "all").stdout
    assert whole.count("wait_lane ") == 4
    assert "No row" in books.run("books", "show", "messages", "--columns", "all", "--desk", "x").stdout


def test_a_message_is_told_with_its_waits_and_findings(books: House) -> None:
    told = books.run("books", "message", "a").stdout
    for part in ("delivered", "in flight", "1.0 min", "50%", "worker-1", "delivered_twice", "3, 4"):
        assert part in told
    assert "Nothing was wrong with it." in books.run("books", "message", "b").stdout
    assert "No message question is known" in books.run("books", "message", "question").stdout
    found = books.json("books", "message", "a")
    assert [event["offset"] for event in found["messages"][0]["events"]] == [1, 2, 3, 4]


def test_an_unknown_message_is_refused(books: House) -> None:
    assert books.json("books", "message", "nobody", code=1)["error"]["code"] == "not_found"
    assert books.run("books", "message", "a", "--mailbox", "other", code=1)


def test_mistakes_are_usage(books: House) -> None:
    for words, said in (
        (("show", "bokks"), "did you mean books?"),
        (("show", "--where", "posted >"), "ends where a value is expected"),
        (("show", "--where", "posted > 1 ; drop table books"), "is expected at"),
        (("show", "--desk", "relay", "replays", "--since", "2h"), "no time"),
        (("show", "--lake", "nowhere"), "there are no books in nowhere"),
        (("show", "--lake", ""), "the lake's folder or URL is empty"),
        (("message", "a", "--lake", ""), "the lake's folder or URL is empty"),
        (("report", "--lake", ""), "the lake's folder or URL is empty"),
        (("show", "--columns", "secret"), "has no column secret"),
        (("show", "--since", "2026-03-02", "--until", "2026-03-01"), "since must be before until"),
        (("report", "--since", "2026-03-02", "--until", "2026-03-02"), "since must be before until"),
        (("report", "--desk", "relai"), "the books know no message of a desk 'relai'; they have inbound, relay"),
        (("show", "--since", "2026"), "'2026' is no time"),
        (("show", "--limit", str(10**20)), "is not in the range 1<=x<=1000000000"),
    ):
        assert said in books.run("books", *words, code=2).stderr


def test_a_mistake_is_told_before_a_document_begins(books: House) -> None:
    for words in (
        ("messages", "--where", "outcom = dead"),
        ("messages", "--columns", "secret"),
        ("books", "--since", "2026-03-02", "--until", "2026-03-01"),
        ("replays", "--since", "2h"),
    ):
        assert books.json("books", "show", *words, code=2)["error"]["code"] == "invalid"


def test_a_column_that_is_named_twice_is_shown_once_and_a_large_limit_is_no_mistake(books: House) -> None:
    words = ("books", "show", "messages", "--columns", "message_id,kind,message_id", "--limit", "1000000000")
    assert books.run(*words).stdout.splitlines()[0].split() == ["MESSAGE_ID", "KIND"]
    assert books.json(*words)["rows"][0] == {"message_id": "d", "kind": "invoice"}


def test_a_date_without_dashes_is_a_date(books: House) -> None:
    rows = books.json("books", "show", "messages", "--since", "20260302")["rows"]
    assert sorted(row["message_id"] for row in rows) == ["c", "d"]


def test_nothing_that_was_posted_can_move_the_terminal(books: House) -> None:
    write(books.folder / ".posthouse/lake", "messages", [message("evil\x1b[31m", 99, error="\x1b]0;x\x07")])
    assert "\x1b" not in books.run("books", "show", "messages", "--columns", "message_id,error").stdout
    assert "\x1b" not in books.run("books", "message", "evil\x1b[31m").stdout
    assert "\x1b" not in books.run("books", "show", "messages", "--json").stdout


def test_a_report_is_written_as_one_file(books: House) -> None:
    told = books.json("books", "report", "--out", "out.html", "--since", at(0).date().isoformat())
    text = (books.folder / "out.html").read_text(encoding="utf-8")
    assert told == {"path": str(books.folder / "out.html"), "size_bytes": len(text.encode())}
    assert "The books" in text
    assert books.run("books", "report").stdout.startswith(str(books.folder / "books.html"))
    assert not list(books.folder.glob(".*.html*"))
    assert "No such file" in books.run("books", "report", "--out", "no/where.html", code=1).stderr


def test_the_lake_comes_from_the_configuration(books: House) -> None:
    (books.folder / ".posthouse/lake").rename(books.folder / "elsewhere")
    (books.folder / "posthouse.toml").write_text('[books]\nlake = "elsewhere"\n')
    assert len(json.loads(books.run("books", "show", "--json").stdout)["rows"]) == 3
