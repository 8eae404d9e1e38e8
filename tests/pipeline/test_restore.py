"""A store that was restored from a snapshot goes on in the books: its messages, its lanes, its numbers.

Hostile journals are cut into nodes that go on from each other and compared with an independent computation, in several
orders of arrival; and a real store is put back to a snapshot while its messages are under way.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.pipeline import compare
from tests.pipeline.journals import hostile, numbered, restored_rows, write_node, write_restored
from tests.pipeline.test_books_against_oracle import check

from posthouse.journal.tail import export
from posthouse.mailbox.command import Cancel, Filter, Lease, Post, Redrive, Settle, Start, Verdict
from posthouse.mailbox.message import Message, Ref
from posthouse.mailbox.outcome import Settled
from posthouse.mailbox.policy import PRESETS
from posthouse.pipeline.job import Job
from posthouse.pipeline.lake import Lake, Selection
from posthouse.stores.sqlite import SqliteStore, restore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(900)

SECOND = 1_000_000
NOON = 1_772_366_400 * SECOND


def make(journal: Path, count: int = 24) -> None:
    """Hostile stories, each told by one node or by up to three, of which each goes on from the one before."""
    for number, rows in enumerate(hostile(count)):
        cuts = [len(rows) // 3, 2 * len(rows) // 3][: number % 3]
        write_restored(journal, f"n{number:02d}", rows, [place for place in cuts if place > 0], cut=9)


def give(source: Path, journal: Path, wanted: Callable[[str, int], bool]) -> None:
    """Put those segments into a journal that are wanted by node and place."""
    for folder in sorted(source.glob("node=*")):
        for place, path in enumerate(sorted(folder.iterdir())):
            target = journal / folder.name / path.name
            if wanted(folder.name, place) and not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, target)


def is_restored(node: str) -> bool:
    return "-again-" in node


ORDERS: dict[str, list[Callable[[str, int], bool]]] = {
    "all at once": [lambda node, place: True],
    "one after the other": [
        lambda node, place: not is_restored(node) and place < 2,
        lambda node, place: not is_restored(node),
        lambda node, place: is_restored(node) and place < 1,
        lambda node, place: True,
    ],
    "the restored ones first": [
        lambda node, place: is_restored(node) and place > 0,
        lambda node, place: is_restored(node),
        lambda node, place: True,
    ],
}


@pytest.mark.parametrize("order", ORDERS)
def test_hostile_stories_of_restored_nodes_are_the_oracles(spark: SparkSession, tmp_path: Path, order: str) -> None:
    make(tmp_path / "made")
    journal, lake = tmp_path / "journal", tmp_path / "lake"
    for wanted in ORDERS[order]:
        give(tmp_path / "made", journal, wanted)
        job = Job(str(lake), lambda: spark, batch_events=500)
        job.run(str(journal))
        check(journal, lake)
    assert {kind for kind, _, _ in job.verify(str(journal)).found} == {"abandoned", "clock_back"}
    kinds = {row["kind"] for row in compare.read(lake, "anomalies")}
    assert "abandoned" in kinds
    assert job.run(str(journal)).batches == 0


def test_of_two_that_go_on_from_one_the_newest_is_followed(spark: SparkSession, tmp_path: Path) -> None:
    journal, lake = tmp_path / "journal", tmp_path / "lake"
    rows = max(hostile(60), key=len)
    half, third, end = len(rows) // 2, len(rows) // 3, max(row["at"] for row in rows)
    write_node(journal, "a", rows)
    write_node(journal, "trial", numbered(restored_rows(rows[half:], "a", half, end + 1)))
    job = Job(str(lake), lambda: spark)
    job.run(str(journal))
    check(journal, lake)
    write_node(journal, "b", numbered(restored_rows(rows[third:], "a", third, end + 2)))
    assert job.run(str(journal)).late
    check(journal, lake)
    found = {
        row["node"]: tuple(row["offsets"]) for row in compare.read(lake, "anomalies") if row["kind"] == "abandoned"
    }
    assert found == {"a": (third + 1, len(rows)), "trial": (1, len(rows) - half + 1)}


# ── A real store ─────────────────────────────────────────────────────────────────────────────────


def ref(id: str) -> Ref:
    return Ref("inbound", "box", "s", id)


class Store:
    """A store that is put to use, with a clock of its own."""

    def __init__(self, path: Path, node: str, at: int) -> None:
        self.store = SqliteStore.open(str(path), PRESETS, node)
        self.at = at
        self.do(Start(PRESETS))

    def do(self, *commands: Any) -> Any:
        # A minute each: whatever is to be tried again is due.
        self.at += 60 * SECOND
        return self.store.apply([command._replace(at=self.at) for command in commands])

    def post(self, *ids: str) -> None:
        self.do(*(Post(Message("inbound", "box", id, sender="s")) for id in ids))

    def deliver(self, *ids: str) -> None:
        for id in ids:
            self.do(Lease("inbound", "box", f"t-{id}", holder="w"))
            self.settle(id, f"t-{id}")

    def settle(self, id: str, token: str) -> None:
        (done,) = self.do(Settle(ref(id), token, Verdict.DELIVERED))
        assert isinstance(done, Settled), done

    def end(self, journal: Path) -> int:
        export(self.store, journal, final=True)
        self.store.close()
        return self.at


def test_a_real_store_put_back_to_a_snapshot_goes_on_in_the_books(spark: SparkSession, tmp_path: Path) -> None:
    journal, lake = tmp_path / "journal", tmp_path / "lake"
    first = Store(tmp_path / "a.db", "post-1", NOON)
    first.post("done", "dead", "waits", "taken")
    first.deliver("done")
    first.do(Cancel(ref("dead")))
    first.do(Lease("inbound", "box", "held", holder="w"))
    _, offset = first.store.snapshot(str(tmp_path / "kept.db"))
    first.settle("waits", "held")
    first.post("forgotten")
    at = first.end(journal)
    job = Job(str(lake), lambda: spark)
    job.run(str(journal))

    restore(tmp_path / "kept.db", tmp_path / "b.db", "post-2")
    second = Store(tmp_path / "b.db", "post-2", at)
    second.deliver("waits", "taken")
    second.post("new")
    second.deliver("new")
    second.do(Redrive(Filter("inbound", id="dead")))
    second.end(journal)
    result = job.run(str(journal))
    assert result.late
    check(journal, lake)

    books = Lake(str(lake))
    outcomes = {row["message_id"]: (row["node"], row["outcome"]) for row in books.rows("messages")}
    assert outcomes == {
        "done": ("post-1", "delivered"), "waits": ("post-1", "delivered"), "taken": ("post-1", "delivered"),
        "new": ("post-1", "delivered"), "dead": ("post-1", "open"),
    }  # fmt: skip
    (found,) = books.rows("anomalies")
    assert (found["kind"], found["node"], found["offsets"][0]) == ("abandoned", "post-1", offset + 1)
    assert sum(row["remainder"] for row in books.rows("books")) == 0
    (told,) = books.message("waits")
    whole = [(event["node"], event["event"]) for event in told["events"]]
    assert whole[:2] == [("post-1", "posted"), ("post-1", "leased")]
    assert whole[-1] == ("post-2", "delivered")
    assert [event["place"] for event in told["events"]] == sorted(event["place"] for event in told["events"])
    assert books.count("events", Selection(equal={"node": "post-1", "message_id": "forgotten"})) == 1
    (line,) = books.rows("restores")
    assert (line["node"], line["from_node"], line["from_offset"], line["known_as"], line["shift"], line["last"]) == (
        "post-2", "post-1", offset, "post-1", offset, None,
    )  # fmt: skip
