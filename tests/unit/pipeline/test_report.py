"""The report: one page that needs nothing else and shows foreign text as text."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
from tests.unit.pipeline.lakes import at, finding, message, small, window, write

from posthouse.errors import InvalidInput
from posthouse.pipeline.digest import digest, findings
from posthouse.pipeline.lake import Lake, Row, Selection
from posthouse.pipeline.plot import span
from posthouse.pipeline.report import MAILBOXES_MAX, page

NOW = datetime.datetime(2026, 3, 4, tzinfo=datetime.UTC)
VOID = {"meta", "rect", "line", "circle", "polyline"}


def micros(minutes: float) -> int:
    return int(at(minutes).timestamp() * 1_000_000)


class Balance(HTMLParser):
    """Whether every element is closed, and which there are."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.seen: set[str] = set()
        self._open: list[str] = []
        self.feed(text)
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        assert not {name for name, _ in attrs} & {"src", "href", "onload", "onclick"}
        if tag != "meta":
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag


def test_a_report_shows_every_table_and_needs_nothing_else(tmp_path: Path) -> None:
    text = page(Lake(str(small(tmp_path))), now=NOW)
    seen = Balance(text).seen
    assert {"svg", "table", "rect", "polyline"} <= seen
    assert not seen & {"script", "link", "img", "iframe", "object"}
    assert not re.search(r"https?://|url\(|@import", text)
    for heading in (
        "What became of messages",
        "By desk and kind",
        "Findings",
        "Latency",
        "What they waited for",
        "Depth",
        "Availability",
        "Dead letters",
        "Outages",
        "Other policies, replayed",
    ):
        assert f"<h2>{heading}</h2>" in text
    assert "delivered_twice" in text
    assert "no customer #" in text
    assert "ttl_s=60: expired 100.0%" in text
    assert "prefers-color-scheme:dark" in text


def test_the_verdict_follows_the_books(tmp_path: Path) -> None:
    write(tmp_path / "good", "books", [window(0, posted=2, delivered=2)])
    assert "Nothing was found." in page(Lake(str(tmp_path / "good")), now=NOW)
    write(tmp_path / "warn", "books", [window(0, posted=2, delivered=2)])
    write(tmp_path / "warn", "anomalies", [finding("lost", "x", [1])])
    assert "There are 1 findings" in page(Lake(str(tmp_path / "warn")), now=NOW)
    write(tmp_path / "bad", "books", [window(0, posted=2, delivered=2, remainder=1)])
    assert "do not close" in page(Lake(str(tmp_path / "bad")), now=NOW)


def test_a_report_of_nothing_is_a_report_that_judges_nothing(tmp_path: Path) -> None:
    write(tmp_path, "books", [])
    text = page(Lake(str(tmp_path)), now=NOW)
    Balance(text)
    assert "No message was posted in this span, and nothing was found." in text
    small(tmp_path / "some")
    (tmp_path / "some/lake/anomalies").rename(tmp_path / "away")
    text = page(Lake(str(tmp_path / "some/lake")), now=NOW, since=micros(60 * 48))
    assert "No message was posted in this span, and nothing was found." in text
    assert "The books close" not in text


def test_files_concern_every_span_and_every_desk(tmp_path: Path) -> None:
    """A gap has neither a time nor a desk: the report, the digest and the findings of a desk tell of it."""
    lake = Lake(str(small(tmp_path)))
    text = page(lake, now=NOW, since=micros(60 * 24), desk="relay")
    assert "The books close. There are 1 findings" in text
    assert "<td>journal_gap</td>" in text
    assert "delivered_twice" not in text
    assert "No message was posted in this span. There are 1 findings" in page(lake, now=NOW, since=micros(60 * 48))
    for desk in (None, "relay"):
        found = digest(lake, since=micros(60 * 24), desk=desk)["findings"]
        assert [(row["kind"], row["count"]) for row in found] == [("journal_gap", 1)]
    assert [row["kind"] for row in findings(lake, None, "relay", 9)] == ["journal_gap"]
    assert len(findings(lake, None, "inbound", 9)) == 3
    assert findings(lake, "delivered_twice", "relay", 9) == []
    for until in (None, micros(60 * 48)):
        assert [row["kind"] for row in findings(lake, None, None, 9, micros(60 * 24), until)] == ["journal_gap"]
    assert len(findings(lake, None, None, 9, micros(0), micros(60))) == 3


def test_a_desk_that_the_books_do_not_know_and_a_span_of_nothing_are_refused(tmp_path: Path) -> None:
    lake = Lake(str(small(tmp_path)))
    with pytest.raises(InvalidInput, match="the books know no message of a desk 'relai'; they have inbound, relay"):
        page(lake, now=NOW, desk="relai")
    for until in (micros(0), micros(5)):
        with pytest.raises(InvalidInput, match="since must be before until"):
            page(lake, now=NOW, since=micros(5), until=until)


def test_dead_letters_that_went_on_after_the_span_are_told(tmp_path: Path) -> None:
    write(tmp_path, "books", [window(0, posted=3, dead=3)])
    lasting = {"desk": "inbound", "error": "no customer #", "count": 3, "first_at": at(12), "last_at": at(60 * 50)}
    write(tmp_path, "deadletters", [lasting])
    lake = Lake(str(tmp_path))
    said = "their counts are over all time"
    text = page(lake, now=NOW, since=micros(0), until=micros(60 * 24))
    assert "no customer #" in text
    assert said in text
    assert said not in page(lake, now=NOW)
    assert "no customer #" not in page(lake, now=NOW, since=micros(0), until=micros(12))


def test_a_report_can_be_of_a_desk_and_a_span(tmp_path: Path) -> None:
    text = page(
        Lake(str(small(tmp_path))),
        now=NOW,
        since=micros(60 * 24),
        until=micros(60 * 25),
        desk="relay",
    )
    assert "desk relay, from 2026-03-02 00:00 UTC, until 2026-03-02 01:00 UTC" in text
    assert "invoice" not in text


def busy(folder: Path) -> Lake:
    """Two desks on two nodes for three hours and three days, with more mailboxes than are shown.

    Many of them are equal in what they are sorted by; some numbers are 0, and some are not there.
    """
    lake = folder / "lake"
    desks = [(node, desk) for node in ("n1", "n2") for desk in ("inbound", "relay")]
    write(lake, "books", [window(0, desk=desk, posted=1, delivered=1) for _, desk in desks[:2]])
    depth = []
    for hour in range(3):
        for number, (node, desk) in enumerate(desks):
            where = {"window": at(60 * hour), "node": node, "desk": desk}
            depth.append({**where, "mailbox": "", "depth_max": 40 * hour + number, "depth_end": 3})
            for box in range(15):
                told = {"depth_max": (7 * box + 5 * hour) % 11 if box % 5 else None, "depth_end": box % 4}
                told |= {"at_cap": 700_000 * box if box % 3 else None, "refused": 900 * hour * box}
                depth.append({**where, "mailbox": f"box-{box}", **told})
    write(lake, "depth", depth)
    day_us = 86_400_000_000
    write(
        lake,
        "availability",
        [
            {"day": at(1_440 * day).date(), "node": node, "desk": desk, "mailbox": f"box-{box}",
             "covered": day_us if box else 0, "online": day_us * box // 14, "connections": box % 6 + day,
             "half_open": box % 3 or None}
            for day in range(3) for node, desk in desks for box in range(15)
        ],
    )  # fmt: skip
    return Lake(str(lake))


def part_of(text: str, heading: str) -> tuple[list[tuple[str, ...]], set[str]]:
    """What a section shows: the cells of its table, and what is said of the points and bars of its plots."""
    (section,) = re.findall(rf"<h2>{heading}</h2>(.*?)</section>", text, re.DOTALL)
    rows = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in re.findall(r"<tr>(.*?)</tr>", section)]
    return [tuple(row) for row in rows if row], set(re.findall(r"<title>(.*?)</title>", section))


def by_mailbox(rows: list[Row]) -> dict[tuple[str, str, str], list[Row]]:
    found: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        found.setdefault((row["node"], row["desk"], row["mailbox"]), []).append(row)
    return found


def total(rows: list[Row], name: str) -> int:
    return sum(row[name] or 0 for row in rows)


@pytest.mark.parametrize(
    ("since", "until", "desk"), [(None, None, None), (61, None, None), (None, 60 * 25, "relay"), (61, 60 * 25, "relay")]
)
def test_depth_and_availability_are_those_of_all_rows(
    tmp_path: Path, since: int | None, until: int | None, desk: str | None
) -> None:
    lake = busy(tmp_path)
    of = {"since": None if since is None else micros(since), "until": None if until is None else micros(until)}
    chosen = Selection(**of, equal={} if desk is None else {"desk": desk})
    text = page(lake, now=NOW, desk=desk, **of)

    depth = list(lake.rows("depth", chosen))
    desks: dict[str, int] = {}
    for row in depth:
        if not row["mailbox"]:
            point = f"{row['window'][5:16].replace('T', ' ')}: {row['desk']}"
            desks[point] = max(desks.get(point, 0), row["depth_max"] or row["depth_end"])
    fullest = [
        (-max(row["depth_max"] or row["depth_end"] for row in rows), key, total(rows, "at_cap"), total(rows, "refused"))
        for key, rows in by_mailbox([row for row in depth if row["mailbox"]]).items()
    ]
    assert len(fullest) > MAILBOXES_MAX
    shown, said = part_of(text, "Depth")
    assert said == {f"{point} {most}" for point, most in desks.items()}
    assert shown == [
        (*key, str(-deepest), span(at_cap), f"{refused:,}")
        for deepest, key, at_cap, refused in sorted(fullest)[:MAILBOXES_MAX]
    ]

    mailboxes = by_mailbox(list(lake.rows("availability", chosen)))
    bins = [0] * 10
    steady = []
    for key, rows in mailboxes.items():
        covered, online = total(rows, "covered"), total(rows, "online")
        bins[min(int(10 * online / covered), 9) if covered else 0] += 1
        share = f"{online / covered:.1%}" if covered else "–"
        steady.append((-total(rows, "half_open"), -total(rows, "connections"), key, share))
    assert len(steady) > MAILBOXES_MAX
    shown, said = part_of(text, "Availability")
    assert said == {f"{10 * i}–{10 * i + 10} %: mailboxes {count}" for i, count in enumerate(bins) if count}
    assert shown == [
        (*key, share, str(-connections), str(-half_open))
        for half_open, connections, key, share in sorted(steady)[:MAILBOXES_MAX]
    ]


@pytest.mark.parametrize("desk", [None, "relay"])
def test_what_has_a_row_for_each_mailbox_and_hour_is_not_read_row_by_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, desk: str | None
) -> None:
    lake = busy(tmp_path)
    read = Lake.rows
    asked: list[str] = []

    def rows(self: Lake, name: str, selection: Selection = Selection()) -> Iterator[Row]:  # noqa: B008
        asked.append(name)
        if name in ("depth", "availability"):
            assert selection.limit is not None or selection.equal.get("mailbox") == "", name
        return read(self, name, selection)

    monkeypatch.setattr(Lake, "rows", rows)
    text = page(lake, now=NOW, desk=desk)
    assert "books" in asked
    for heading in ("Depth", "Availability"):
        shown, said = part_of(text, heading)
        assert len(shown) == MAILBOXES_MAX
        assert said


def test_years_of_hours_fit_into_a_plot(tmp_path: Path) -> None:
    write(tmp_path, "books", [window(hour, posted=1, delivered=1) for hour in range(0, 24 * 800, 24)])
    assert page(Lake(str(tmp_path)), now=NOW).count("<rect") < 130


def test_foreign_text_does_nothing(tmp_path: Path) -> None:
    evil = '<script>alert("1")</script>\u202e\x1b[31m&amp;'
    write(tmp_path, "books", [window(0, posted=1, dead=1, desk=evil, kind=evil)])
    write(tmp_path, "messages", [message(evil, desk=evil)])
    write(tmp_path, "anomalies", [finding("lost", evil, [1], desk=evil, mailbox=evil, detail=evil)])
    deadletter = {"desk": evil, "error": evil, "count": 1, "first_at": at(0), "last_at": at(0), "redriven": 0}
    write(tmp_path, "deadletters", [deadletter])
    text = page(Lake(str(tmp_path)), now=NOW)
    assert "script" not in Balance(text).seen
    assert "\x1b" not in text
    assert "\u202e" not in text
