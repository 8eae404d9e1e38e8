"""Foreign text is inert, whatever it contains, wherever it is shown; and a terminal is asked before harm."""

from __future__ import annotations

import os
import pty
import select
import subprocess

import pytest
from tests.unit.cli.house import PROGRAM, House

from posthouse.cli.text import age, inert, inert_lines, parse_instant, size, span

ID = "[bold red]\u202etxt.exe[/]<script>'; DROP TABLE--"
ERROR = "\x1b]0;pwned\x07\x1b[2J\x9b31m\r\nforged line\u2028[link=http://x]y[/link]"
BODY = "\x1b[31mred\x1b[0m\nline two\t\u202e\x00".encode()

COMMANDS = [
    ["mailbox", "ls"],
    ["mailbox", "show", ID],
    ["lane", "why", ID],
    ["message", "show", ID],
    ["message", "history", ID],
    ["dead", "ls"],
    ["dead", "ls", "--each"],
    ["dead", "show", ID],
    ["journal", "tail"],
    ["dead", "redrive", "--id", ID, "--dry-run"],
    ["mailbox", "pause", ID],
    ["message", "show", "nothing" + ID],
    ["mailbox", "show", "nothing\x1b[2J"],
]


@pytest.fixture
def hostile(house: House) -> House:
    (house.folder / "posthouse.toml").write_text('[desk.inbound]\npoison = "block"\n')
    house.post(ID, mailbox=ID, lane=ID, kind=ID, sender=ID, body=BODY, headers={ID: ERROR})
    house.kill(ID, mailbox=ID, error=ERROR)
    return house


def is_inert(text: str) -> bool:
    return all(c.isprintable() or c == "\n" for c in text)


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: " ".join(words[:2]))
def test_hostile_text_moves_no_terminal(hostile: House, words: list[str]) -> None:
    code = 0 if "nothing" not in words[-1] else 2 if "\x1b" in words[-1] else 1
    plain = hostile.run(*words, code=code)
    assert is_inert(plain.stdout)
    assert is_inert(plain.stderr)
    as_json = hostile.run(*words, "--json", code=code)
    assert as_json.stdout.isascii()
    assert is_inert(as_json.stdout)
    assert is_inert(as_json.stderr)


def test_hostile_text_is_shown_as_it_is_and_not_as_markup(hostile: House) -> None:
    shown = hostile.run("message", "show", ID).stdout
    assert "[bold red]\\u202etxt.exe[/]<script>" in shown
    assert "\\x1b]0;pwned\\x07\\x1b[2J\\x9b31m\\r\\nforged line\\u2028[link=http://x]y[/link]" in shown
    assert "\\x1b[31mred\\x1b[0m\nline two\\t\\u202e\\x00" in shown
    assert hostile.json("message", "show", ID)["error"] == ERROR


def on_a_terminal(house: House, *words: str, answer: str = "") -> tuple[int, str]:
    """Run a command with a terminal at all three ends; give it an answer when it asks."""
    master, slave = pty.openpty()
    environ = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "300"}
    process = subprocess.Popen(
        [*PROGRAM, *words], cwd=house.folder, env=environ, stdin=slave, stdout=slave, stderr=slave
    )
    os.close(slave)
    seen = b""
    answered = False
    try:
        while select.select([master], [], [], 60)[0]:
            try:
                part = os.read(master, 65_536)
            except OSError:  # Linux says so when the other end is closed
                break
            if not part:
                break
            seen += part
            if answer and not answered and b"[y/N]" in seen:
                os.write(master, answer.encode() + b"\n")
                answered = True
        return process.wait(30), seen.decode(errors="replace")
    finally:
        os.close(master)
        if process.poll() is None:
            process.kill()
            process.wait()


def test_hostile_text_is_inert_on_a_real_terminal_too(hostile: House) -> None:
    for words in (["dead", "ls"], ["message", "show", ID], ["lane", "why", ID]):
        code, seen = on_a_terminal(hostile, *words)
        assert code == 0
        assert "pwned" in seen or "ls" not in words
        for sequence in ("\x1b]0;", "\x1b[2J", "\x9b", "\u202e", "\x07"):
            assert sequence not in seen


def test_a_terminal_is_asked_before_harm_and_no_means_no(house: House) -> None:
    house.post("m1", "m2")
    code, seen = on_a_terminal(house, "mailbox", "purge", "alice", answer="n")
    assert code == 1
    assert "Purge mailbox alice: 2 cancelled, 0 removed?" in seen
    assert house.json("mailbox", "show", "alice")["counts"] == {"ready": 2}
    code, seen = on_a_terminal(house, "mailbox", "purge", "alice", answer="y")
    assert code == 0
    assert house.json("mailbox", "show", "alice")["depth"] == 0


def test_long_work_shows_its_progress_on_a_terminal(house: House) -> None:
    house.post("m1")
    house.kill("m1")
    code, seen = on_a_terminal(house, "dead", "redrive", answer="y")
    assert code == 0
    assert "redriving" in seen
    assert "Redrove 1 message." in seen


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ünïcödé 漢字", "plain ünïcödé 漢字"),
        ("a\x1b[0m", "a\\x1b[0m"),
        ("\r\n\t", "\\r\\n\\t"),
        ("\u202e\u2066\ufeff", "\\u202e\\u2066\\ufeff"),
        ("\U000e0041", "\\U000e0041"),
        ("\ud800", "\\ud800"),
    ],
)
def test_what_does_not_print_is_escaped(text: str, shown: str) -> None:
    assert inert(text) == shown


def test_lines_stay_lines_where_they_may() -> None:
    assert inert_lines("a\r\nb\n\x1bc") == "a\nb\n\\x1bc"


def test_spans_ages_and_sizes_are_short() -> None:
    assert [span(s) for s in (0, 59, 60, 200, 7_199, 7_200, 100_000, 200_000)] == [
        "0 s", "59 s", "1 min", "3 min", "119 min", "2 h", "27 h", "2 d",
    ]  # fmt: skip
    now = __import__("datetime").datetime.fromisoformat("2026-01-01T00:05:00Z")
    assert age("2026-01-01T00:00:00.000000Z", now) == "5 min"
    assert age("2026-01-01T00:10:00.000000Z", now) == "in 5 min"
    assert age(None, now) == "–"
    assert [size(n) for n in (0, 1_023, 1_536, 20_480, 5 * 2**40)] == ["0 B", "1023 B", "1.5 KiB", "20 KiB", "5.0 TiB"]
    assert parse_instant("1970-01-01T00:00:01", now) == 1_000_000
    assert parse_instant("1970-01-01T01:00:01+01:00", now) == 1_000_000
    assert parse_instant("5m", now) == parse_instant("2026-01-01", now)
    assert parse_instant("yesterday", now) is None
    # Without a unit it is no duration.
    assert parse_instant("19700102", now) == parse_instant("1970-01-02", now) == 86_400_000_000
    for text in ("", "0", "90", "1.5", "2026", "202603", "1700000000", "20261331"):
        assert parse_instant(text, now) is None
