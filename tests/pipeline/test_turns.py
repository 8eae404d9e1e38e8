"""Stories by hand whose segments come in turns, or never: after each turn every table is the oracle's."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from tests.pipeline import compare
from tests.pipeline.journal import Journal
from tests.pipeline.oracle import Oracle
from tests.pipeline.test_books_against_oracle import check

from posthouse.pipeline.job import Job

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(1_800)

QUIET = json.dumps({"policies": {"relay": {"quiet_s": 2, "quiet_max_s": 10}}})
CAPPED, MINUTE, HOUR = json.dumps({"policies": {"relay": {"capacity": 1}}}), 60, 3_600
MICROS = 1_000_000
LOST: tuple[object, ...] = ("lost",)
"""Stands for a segment that never comes, before its events."""
Turn = tuple[Any, ...]


def told(at: float, event: str, id: str = "", **other: Any) -> tuple[float, str, str, dict[str, Any]]:
    return at, event, id, other


def whole(at: float, id: str) -> list[Turn]:
    """Leased, and delivered a second later."""
    return [told(at, "leased", id), told(at + 1, "delivered", id)]


STORIES: dict[str, list[list[Turn]]] = {
    # Refused before there was a message, and mostly by nobody's name.
    "door": [
        [
            told(0, "refused", mailbox="", reason="auth"),
            told(1, "refused", mailbox="", reason="oversize", kind="text"),
            told(2, "posted", "a"),
        ],
        [told(3, "refused", mailbox="", reason="rate_limited"), told(4, "refused", mailbox="", reason="full")],
        [told(HOUR, "refused", mailbox="", reason="auth"), *whole(HOUR + 1, "a")],
    ],
    # The second time it has no limit.
    "limit": [
        [told(0, "posted", "a", expires_at=10), told(1, "posted", "b", expires_at=10), told(2, "parked", "b")],
        [told(10, "expired", "a"), told(11, "duplicate", "a", expires_at=12)],
        [told(20, "redriven", "a"), told(21, "unparked", "b"), told(22, "posted", "c", expires_at=1_000)],
        [*whole(30, "a"), told(31, "leased", "c", expires_at=31), told(32, "delivered", "c")],
        [told(33, "refused", "c", expires_at=5), told(3 * HOUR, "posted", "later")],
    ],
    # The post of b is lost; c waited behind it.
    "lane": [
        [told(0, "posted", "a"), *whole(1, "a")],
        [LOST, told(2, "posted", "b")],
        [told(3, "posted", "c"), *whole(10, "c")],
        [*whole(12, "b"), told(14, "posted", "d")],
        [told(15, "delivered", "b"), *whole(16, "d")],
    ],
    # Of the second a no more is known than that it was delivered, which is told as if it were of the first.
    "lane-again": [
        [told(0, "posted", "a"), *whole(1, "a")],
        [LOST, told(2, "posted", "a")],
        [told(3, "posted", "c"), *whole(10, "c")],
        [told(11, "delivered", "a", lane_seq=2)],
        [told(12, "delivered", "a", lane_seq=2)],
    ],
    # The second post of a is lost, and the rest is told under that number; d waits behind both.
    "numbers": [
        [told(0, "posted", "a")],
        [LOST, told(2, "posted", "a")],
        [told(3, "posted", "d"), told(5, "leased", "a"), told(6, "delivered", "a")],
        [*whole(16, "d")],
    ],
    # Of a finished one the other number is the highest.
    "own": [
        [told(0, "posted", "a"), *whole(1, "a")],
        [LOST, told(3, "posted", "a")],
        [told(5, "delivered", "a")],
        [told(6, "posted", "b"), *whole(7, "b")],
    ],
    "quiet": [
        [told(0, "started", detail=QUIET), told(0, "posted", "a")],
        [LOST, told(1, "posted", "a")],
        [told(8, "leased", "a")],
        [told(9, "delivered", "a")],
    ],
    # Refused at first; and the second one answers nothing.
    "answers": [
        [told(0, "refused", "a", cause_id="q"), told(1, "posted", "a", cause_id="q"), *whole(2, "a")],
        [told(3, "refused", "b", cause_id="r"), told(4, "posted", "b"), *whole(5, "b")],
        [told(10, "posted", "c", cause_id="q"), told(11, "posted", "d", cause_id="r")],
    ],
    # The end of the second connection is told with a clock that went back behind its begin.
    "links": [
        [
            told(0, "started"),
            told(10, "connected", holder="h1"),
            told(100, "connected", holder="h2"),
            told(50, "disconnected", holder="h2"),
            told(60, "posted", "a"),
        ],
        [*whole(200, "a")],
    ],
    "too-late": [
        [told(0, "posted", "a", expires_at=5), *whole(10, "a")],
        [told(20, "redriven", "a")],
        [*whole(21, "a")],
    ],
    # What was told before a post is of another message.
    "behind": [
        [LOST, told(0, "posted", "a"), told(0, "posted", "b")],
        [*whole(1, "a"), told(1, "refused", "c"), *whole(1, "b")],
        [told(2, "posted", "a", lane_seq=3), told(2, "posted", "c", lane_seq=4), told(2, "posted", "b", lane_seq=5)],
        [*whole(3, "a"), told(5, "duplicate", "a"), told(6, "leased", "b")],
        [told(7, "delivered", "a"), told(8, "delivered", "b"), told(9, "redriven", "b")],
        [told(10, "posted", "a", lane_seq=6), *whole(11, "b")],
        [*whole(12, "a"), told(14, "posted", "a", lane_seq=7)],
    ],
    # The end of the first m is lost, so that it stays open while others of its id come and go.
    "again": [
        [told(0, "posted", "m", expires_at=5)],
        [LOST, *whole(1, "m")],
        [told(3, "posted", "m"), *whole(4, "m")],
        [told(6, "posted", "m")],
        [told(7, "leased", "m"), told(8, "died", "m", error="no")],
        [told(9, "duplicate", "m"), told(10, "redriven", "m")],
        [*whole(11, "m"), told(13, "delivered", "m")],
        [told(14, "posted", "m"), *whole(15, "m"), told(17, "posted", "m"), told(2 * HOUR, "cancelled", "m")],
    ],
    # What is said at a start holds until the next, even if that says nothing.
    "says": [
        [told(0, "started", detail=CAPPED), told(0, "posted", "before")],
        [told(10, "started")],
        [told(20, "posted", "a", mailbox="other"), told(20 + MINUTE, "delivered", "a", mailbox="other")],
        [told(2 * MINUTE, "delivered", "before")],
        [told(3 * MINUTE, "started", detail=CAPPED), told(3 * MINUTE, "posted", "b"), told(200, "delivered", "b")],
    ],
}  # fmt: skip


class Lake(NamedTuple):
    """A lake after the last turn; the oracle that was asked then, and whether some turn was a late one."""

    place: Path
    oracle: Oracle
    late: bool

    def rows(self, table: str, node: str) -> list[dict[str, Any]]:
        return [row for row in compare.read(self.place, table) if row["node"] == node]

    def messages(self, node: str, *columns: str) -> dict[tuple[str, int], Any]:
        """Values of a node's messages, by id and generation."""
        found = {}
        for row in self.rows("messages", node):
            values = tuple(row[name] for name in columns)
            found[row["message_id"], row["generation"]] = values if len(values) > 1 else values[0]
        return found

    def findings(self, node: str) -> set[tuple[str, str]]:
        return {(row["kind"], row["message_id"]) for row in self.rows("anomalies", node) if row["message_id"]}


def written(folder: Path, node: str, turns: Iterable[list[Turn]]) -> list[Path]:
    """The segments of a story, one a turn, but for those that never come."""
    story, cuts, lost = Journal(node, desk="relay" if node != "door" else "door"), [], []
    for turn in turns:
        lost.append(turn[0] == LOST)
        for at, event, id, other in turn[lost[-1] :]:
            story.add(at, event, id, **other)
        cuts.append(len(story.rows))
    return [path for path, gone in zip(story.written(folder, cuts), lost, strict=True) if not gone]


@pytest.fixture(scope="module")
def lake(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """All stories, each a node, told turn by turn; after each turn the tables are the oracle's, and agree."""
    folder = tmp_path_factory.mktemp("turns")
    journal, place = folder / "journal", folder / "lake"
    stories = {node: written(folder / "aside", node, turns) for node, turns in STORIES.items()}
    job, late = Job(str(place), lambda: spark), False
    for segments in zip_longest(*stories.values()):
        for path in filter(None, segments):
            target = journal / path.parent.name / path.name
            target.parent.mkdir(parents=True, exist_ok=True)
            path.rename(target)
        late |= job.run(str(journal)).late
        check(journal, place)
    assert not job.verify(None).found
    return Lake(place, Oracle(journal), late)


def test_no_turn_was_computed_anew_for_being_late(lake: Lake) -> None:
    assert not lake.late


def test_what_is_refused_at_the_door_is_in_the_books_and_makes_no_message(lake: Lake) -> None:
    refused: dict[tuple[int, str], int] = {}
    for row in compare.read(lake.place, "books"):
        if row["desk"] == "door" and row["refused"]:
            refused[row["window"] // (HOUR * MICROS) % 24, row["kind"]] = row["refused"]
    assert refused == {(10, ""): 3, (10, "text"): 1, (11, ""): 1}
    assert lake.messages("door", "outcome") == {("a", 1): "delivered"}
    hour = HOUR * MICROS
    found = {(row["window"] // hour % 24, row["mailbox"]): row["refused"] for row in lake.rows("depth", "door")}
    assert found == {(10, ""): 1, (10, "m"): 0, (11, ""): 0, (11, "m"): 0}


def test_a_message_that_lives_again_without_a_limit_has_none(lake: Lake) -> None:
    start = 1_772_359_200 * MICROS
    assert lake.messages("limit", "outcome", "expires_at") == {
        ("a", 1): ("delivered", None),
        ("b", 1): ("open", None),
        ("c", 1): ("delivered", start + 1_000 * MICROS),
        ("later", 1): ("open", None),
    }
    assert lake.findings("limit") == set()


def test_a_number_that_is_told_without_its_post_is_not_missing(lake: Lake) -> None:
    assert lake.findings("lane") == {("lost", "b"), ("delivered_twice", "b")}
    assert lake.messages("lane", "wait_lane", "wait_idle")["c", 1] == (7 * MICROS, 0)
    assert ("lane_gap", "c") not in lake.findings("lane-again")


def test_a_message_has_the_number_that_is_told_of_it_first(lake: Lake) -> None:
    columns = ("lane_seq", "wait_lane", "wait_quiet", "wait_idle")
    assert lake.messages("numbers", *columns) == {
        ("a", 1): (1, 0, 0, 5 * MICROS),
        ("d", 1): (3, 3 * MICROS, 0, 10 * MICROS),
    }
    assert lake.messages("own", *columns) == {("a", 1): (1, 0, 0, MICROS), ("b", 1): (3, 0, 0, MICROS)}
    assert lake.messages("quiet", *columns) == {("a", 1): (1, 0, 2 * MICROS, 6 * MICROS)}
    assert ("lane_gap", "b") not in lake.findings("own")


def test_an_answer_is_shown_by_its_post(lake: Lake) -> None:
    found = {row["message_id"]: row["offsets"] for row in lake.rows("anomalies", "answers")}
    assert found == {"q": [2, 9]}
    assert lake.messages("answers", "cause_id", "posted_offset") == {
        ("a", 1): ("q", 2), ("b", 1): (None, 6), ("c", 1): ("q", 9), ("d", 1): ("r", 10),
    }  # fmt: skip


def test_a_connection_whose_end_is_told_before_its_begin_does_not_stand(lake: Lake) -> None:
    waits = lake.messages("links", "wait_offline", "wait_idle", "wait_in_flight")
    assert waits == {("a", 1): (100 * MICROS, 40 * MICROS, MICROS)}


def test_a_delivery_that_was_too_late_keeps_its_instant_when_another_follows(lake: Lake) -> None:
    (found,) = [row for row in lake.rows("anomalies", "too-late") if row["kind"] == "delivered_after_expiry"]
    assert (found["offsets"], found["at"]) == ([2, 3], (1_772_359_200 + 11) * MICROS)


def test_a_post_behind_what_was_told_of_its_id_is_another_message(lake: Lake) -> None:
    found = lake.messages("behind", "outcome", "orphan", "latency")
    assert found["a", 1] == ("delivered", True, None)
    assert found["a", 2] == ("delivered", False, 2 * MICROS)
    assert [found["a", 3][0], found["a", 4][0]] == ["delivered", "open"]
    assert found["b", 1][:2] == ("delivered", True)
    assert found["c", 1] == ("open", False, None)


def test_a_message_that_never_ended_keeps_its_generation_while_others_come(lake: Lake) -> None:
    found = lake.messages("again", "outcome")
    assert found == {
        ("m", 1): "open", ("m", 2): "delivered", ("m", 3): "delivered", ("m", 4): "delivered", ("m", 5): "cancelled",
    }  # fmt: skip


def test_a_start_that_says_nothing_ends_what_was_allowed(lake: Lake) -> None:
    found = {row["mailbox"]: row["at_cap"] // MICROS for row in lake.rows("depth", "says")}
    assert found == {"m": 2 * MINUTE + 20, "other": 0, "": 2 * MINUTE + 20}
