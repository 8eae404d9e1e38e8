"""Alert rules: what is written wrongly is refused by its line, and what is due when is a pure function."""

from __future__ import annotations

from pathlib import Path

import pytest

from posthouse.config import Given, load
from posthouse.control.rule import FIRING, QUIET, REPEATED, RESOLVED, RULES_MAX, Measure, Rule, Standing, rules_of, step
from posthouse.errors import ConfigError
from posthouse.mailbox.message import SECOND


def rules(folder: Path, text: str) -> tuple[Rule, ...]:
    (folder / "posthouse.toml").write_text(text, encoding="utf-8")
    return rules_of(load({}, folder))


def test_a_rule_is_what_was_written(tmp_path: Path) -> None:
    text = """
[alert.backlog]
on = "depth"
desk = "inbound"
mailbox = "acme"
above = 1000
for_s = "5m"
repeat_s = 0
account = "email/ops"
to = "ops@example.org"

[alert.old]
on = "age"
above = "1h30m"

[alert.books]
on = "books"
"""
    backlog, old, books = rules(tmp_path, text)
    where = f"{tmp_path}/posthouse.toml:2"
    assert backlog == Rule(
        "backlog", Measure.DEPTH, 1000, "inbound", "acme", 300, 0, "email/ops", "ops@example.org", where
    )
    assert (old.on, old.above, old.desk, old.for_s, old.repeat_s) == (Measure.AGE, 5400, None, 60, 14_400)
    assert (books.on, books.above, books.account, books.to) == (Measure.BOOKS, 0, "alert/default", "operator")
    rows = {row["name"]: row for row in load({}, tmp_path).explain()}
    assert (rows["alert.old.above"]["value"], rows["alert.old.above"]["source"]) == ("1h30m", "file")


def test_flags_make_rules_too(tmp_path: Path) -> None:
    flags = {"alert.dead.on": Given("dead", "--set"), "alert.dead.above": Given("5", "--set")}
    (rule,) = rules_of(load({}, tmp_path, flags))
    assert (rule.name, rule.on, rule.above) == ("dead", Measure.DEAD, 5)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[alert.x]\nabove = 1", r":1: alert.x must say what it looks at: on = one of depth, age"),
        ('[alert.x]\non = "deep"\nabove = 1', r":2: alert.x.on must be one of .*did you mean depth\?"),
        ('[alert.x]\non = "depth"', r":1: alert.x must say how much is too much, as in above = 1000"),
        ('[alert.x]\non = "age"', r'above = "1h"'),
        ('[alert.x]\non = "age"\nabove = "soon"', r":3: alert.x.above must be a duration"),
        ('[alert.x]\non = "depth"\nabove = "1h"', r":3: alert.x.above must be a number"),
        ('[alert.x]\non = "depth"\nabove = -1', r":3: alert.x.above must be between 0"),
        ('[alert.x]\non = "depth"\nabvoe = 1', r":3: unknown key alert.x.abvoe; did you mean above\?"),
        ('[alert.x]\non = "depth"\nabove = 1\ndesk = "inbond"', r":4: .*'inbond'.*did you mean inbound\?"),
        ('[alert.x]\non = "depth"\nabove = 1\nmailbox = "a"', r":4: .*names a mailbox and no desk"),
        ('[alert.x]\non = "books"\ndesk = "relay"\nmailbox = "a"', r":4: .*not told by mailbox"),
        ('[alert.x]\non = "dead"\naccount = "email"', r":3: alert.x.account must be of the form"),
        ('[alert.x]\non = "dead"\nfor_s = "1y"', r":3: alert.x.for_s must be a duration"),
        ('[alert.x]\non = "dead"\nto = 5', r":3: alert.x.to must be text"),
        ('[alert]\nx = "depth"', r":2: it is a section of its own: write \[alert.x\]"),
        ('[alert."A b"]\non = "dead"', r"an alert's name is lower-case letters"),
        ('[alret.x]\non = "dead"', r"unknown section 'alret'; did you mean alert\?"),
    ],
)
def test_what_cannot_be_is_refused_by_its_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        rules(tmp_path, text)


def test_rules_have_a_limit(tmp_path: Path) -> None:
    text = "".join(f'[alert.r{n}]\non = "dead"\n' for n in range(RULES_MAX + 1))
    with pytest.raises(ConfigError, match=f"more than {RULES_MAX} alert rules"):
        rules(tmp_path, text)


RULE = Rule("r", Measure.DEPTH, 10.0, for_s=60, repeat_s=600)
T = 1_000 * SECOND


def told(*readings: tuple[float, float], rule: Rule = RULE) -> list[tuple[float, str]]:
    """The notices of a story of (seconds, value), with their seconds."""
    standing, found = QUIET, []
    for seconds, value in readings:
        standing, notice = step(rule, standing, value, T + int(seconds * SECOND))
        if notice is not None:
            found.append((seconds, notice))
    return found


def test_it_is_told_after_it_lasted_and_again_and_that_it_is_over() -> None:
    story = [(0, 11), (59, 11), (60, 11), (61, 12), (659, 12), (660, 12), (700, 3), (759, 3), (760, 3), (800, 0)]
    assert told(*story) == [(60, FIRING), (660, REPEATED), (760, RESOLVED)]


def test_exactly_the_limit_is_not_too_much() -> None:
    assert told((0, 10), (100, 10)) == []


def test_what_flickers_is_told_once() -> None:
    on_and_off = [(n * 30.0, 11.0 if n % 2 else 3.0) for n in range(2, 20)]
    assert told(*on_and_off) == [], "it never lasted"
    assert told((0, 11), (60, 11), *((60 + n, value) for n, value in on_and_off)) == [(60, FIRING)]


def test_a_rule_that_waits_for_nothing_is_told_at_once_and_with_repeat_0_once() -> None:
    rule = Rule("r", Measure.DEPTH, 10.0, for_s=0, repeat_s=0)
    assert told((0, 11), (10_000, 11), (10_001, 1), rule=rule) == [(0, FIRING), (10_001, RESOLVED)]


def test_a_clock_that_goes_back_makes_nobody_wait() -> None:
    day = 86_400.0
    assert told((day, 11), (0, 11), (60, 11)) == [(60, FIRING)]
    assert told((day, 11), (day + 60, 11), (0, 11), (600, 11)) == [(day + 60, FIRING), (600, REPEATED)]


def test_standings_have_a_word() -> None:
    assert [s.word for s in (QUIET, Standing(5), Standing(5, 6, 6, 0, 1))] == ["quiet", "pending", "firing"]
