"""Reading a lake: what is selected, in which order, and what is said of a lake that is not there or not whole."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from tests.unit.pipeline.lakes import at, event, finding, lease, message, schema, small, window, write

from posthouse.errors import BadFile, InvalidInput
from posthouse.pipeline.lake import VIEWS, Lake, Selection
from posthouse.pipeline.schema import TABLES


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    return Lake(str(small(tmp_path_factory.mktemp("lake"))))


def ids(lake: Lake, **selection: object) -> list[str]:
    return [row["message_id"] for row in lake.rows("messages", Selection(**selection))]  # type: ignore[arg-type]


def micros(minutes: float) -> int:
    return int(at(minutes).timestamp() * 1_000_000)


def test_every_table_has_a_view_of_columns_that_it_has() -> None:
    assert set(VIEWS) == set(TABLES)
    for name, view in VIEWS.items():
        used = {*view.shown, *(column.removeprefix("-") for column in view.order), view.time} - {""}
        assert used <= set(TABLES[name].names), name


def test_rows_are_plain_values_in_order(lake: Lake) -> None:
    rows = list(lake.rows("books"))
    assert [row["window"] for row in rows] == [
        "2026-03-01T00:00:00.000000Z",
        "2026-03-02T00:00:00.000000Z",
        "2026-03-02T06:00:00.000000Z",
    ]
    assert rows[0]["refused"] == 4
    assert rows[0]["remainder_ids"] == []
    assert next(iter(lake.rows("latency")))["buckets"] == {"900": 1}
    assert next(iter(lake.rows("availability")))["day"] == "2026-03-01"


def test_what_is_unfinished_and_new_comes_first(lake: Lake) -> None:
    assert ids(lake, limit=10) == ["d", "c", "b", "a"]
    assert ids(lake, limit=3) == ["d", "c", "b"]
    assert sorted(ids(lake)) == ["a", "b", "c", "d"]


def test_the_first_rows_are_the_same_whatever_the_limit(tmp_path: Path) -> None:
    """Also among rows of the same instant, and of none, in one part or in several."""
    same = [message(f"same-{offset}", 3, first_offset=offset) for offset in (5, 4, 3)]
    untold = [message(f"untold-{offset}", 3, first_offset=offset, posted_at=None) for offset in (2, 1)]
    older = [message(f"older-{day}", -1_440 * day) for day in range(1, 6)]
    write(tmp_path, "messages", [*older, *untold, *same, message("newest", 4)])
    lake = Lake(str(tmp_path))
    every = ["newest", "same-5", "same-4", "same-3", "untold-2", "untold-1", *(f"older-{day}" for day in range(1, 6))]
    for limit in range(len(every) + 2):
        assert ids(lake, limit=limit) == every[:limit]
        assert (
            ids(lake, limit=limit, where="message_id != 'same-4'")
            == [each for each in every if each != "same-4"][:limit]
        )


def test_rows_are_selected_by_time_desk_kind_and_condition(lake: Lake) -> None:
    assert ids(lake, since=micros(10), limit=9) == ["d", "c", "b"]
    assert ids(lake, until=micros(10), limit=9) == ["a"]
    assert ids(lake, equal={"desk": "relay"}) == ["c"]
    assert ids(lake, equal={"kind": "invoice"}, where="outcome != delivered", limit=9) == ["d", "b"]
    assert ids(lake, where="latency < 1ms") == ["c"]
    assert [r["kind"] for r in lake.rows("anomalies", Selection(equal={"kind": "journal_gap"}))] == ["journal_gap"]


def test_hours_and_days_belong_to_a_span_as_soon_as_a_part_of_them_does(lake: Lake) -> None:
    def found(table: str, since: float, until: float) -> int:
        return len(list(lake.rows(table, Selection(since=micros(since), until=micros(until)))))

    assert found("availability", 5, 6) == 1
    assert found("availability", -5, 0) == 0
    assert found("availability", 60 * 24, 60 * 25) == 0
    assert found("books", 5, 6) == 1
    assert found("books", 60, 120) == 0
    assert found("books", -60, 0) == 0


def test_a_finding_without_a_time_belongs_to_every_span(lake: Lake) -> None:
    def kinds(**selection: object) -> list[str]:
        chosen = Selection(**selection)  # type: ignore[arg-type]
        found = [row["kind"] for row in lake.rows("anomalies", chosen)]
        assert lake.count("anomalies", chosen) == len(found)
        assert sorted(row["kind"] for row in lake.totals("anomalies", ["kind"], chosen)) == found
        return found

    assert kinds(since=micros(4)) == ["journal_gap"]
    assert kinds(until=micros(3)) == ["journal_gap"]
    assert kinds(since=micros(3), until=micros(4)) == ["answered_twice", "delivered_twice", "journal_gap"]
    assert kinds(since=micros(4), where="kind != journal_gap") == []


def test_a_message_that_was_never_posted_is_chosen_by_its_end(tmp_path: Path) -> None:
    """And one that has no end either belongs to every span; what was posted goes by its post."""
    refused = [message(f"refused-{minute}", minute, posted_at=None, outcome="refused") for minute in (0, 10)]
    orphan = message("orphan", part="open", posted_at=None, finished_at=None, outcome="open", orphan=True)
    write(tmp_path, "messages", [*refused, orphan, message("early", 0, finished_at=at(20)), message("late", 10)])
    lake = Lake(str(tmp_path))
    for limit in (None, 9):
        assert sorted(ids(lake, since=micros(12), limit=limit)) == ["orphan", "refused-10"]
        assert sorted(ids(lake, since=micros(10), limit=limit)) == ["late", "orphan", "refused-10"]
        assert sorted(ids(lake, until=micros(10), limit=limit)) == ["early", "orphan", "refused-0"]
        assert sorted(ids(lake, since=micros(2), until=micros(12), limit=limit)) == ["late", "orphan", "refused-0"]
    assert ids(lake, since=micros(10), limit=1) == ["orphan"]
    assert lake.count("messages", Selection(since=micros(10))) == 3


def test_what_lasts_belongs_to_a_span_as_soon_as_a_part_of_it_does(tmp_path: Path) -> None:
    """Clusters of dead letters and segments; a file that was rejected has no times and belongs to all."""
    lasting = {"first_at": at(10), "last_at": at(20)}
    write(tmp_path, "deadletters", [{"desk": "inbound", "error": "it broke", "count": 2, **lasting}])
    segments = [{"node": "n1", "name": "good", "state": "taken", **lasting}]
    write(tmp_path, "segments", [*segments, {"node": "n1", "name": "torn", "state": "rejected"}])
    lake = Lake(str(tmp_path))
    for since, until, found in ((12, 15, 1), (20, 30, 1), (0, 11, 1), (0, 10, 0), (21, 30, 0)):
        chosen = Selection(since=micros(since), until=micros(until))
        assert lake.count("deadletters", chosen) == found
        assert [row["name"] for row in lake.rows("segments", chosen)] == ["good", "torn"][1 - found :]


def test_only_the_wanted_columns_are_read(lake: Lake) -> None:
    (row,) = lake.rows("messages", Selection(equal={"message_id": "b"}, columns=("outcome", "error")))
    assert row == {"outcome": "dead", "error": "no customer 4711"}
    (row,) = lake.rows("messages", Selection(equal={"message_id": "b"}, columns=("outcome", "error", "outcome")))
    assert row == {"outcome": "dead", "error": "no customer 4711"}


def test_counts_and_sums(lake: Lake) -> None:
    assert lake.count("messages") == 4
    assert lake.count("messages", Selection(equal={"desk": "relay"})) == 1
    assert lake.totals("messages", ["outcome"])[0] == {"outcome": "delivered", "n": 2}
    assert lake.sums("messages", ["desk"], ["wait_idle"])[1] == {"desk": "relay", "wait_idle": 900}


BOX = ("node", "desk", "mailbox")


def test_the_first_groups_of_rows_in_an_order_of_their_sums(tmp_path: Path) -> None:
    """Also what was never told, and 0, for which the next column counts; equal ones come by name."""
    numbers = {"b": (4, 9, 1), "a": (0, 4, None), "c": (None, 3, 5), "d": (None, None, 2), "e": (-3, 2, 2)}
    depth = [
        {"window": at(60 * hour), "node": "n1", "desk": "inbound", "mailbox": name, "depth_max": most, "depth_end": end,
         "refused": refused}
        for name, (most, end, refused) in numbers.items() for hour in range(2)
    ]  # fmt: skip
    write(tmp_path, "depth", depth)
    lake = Lake(str(tmp_path))

    def found(order: list[str], **selection: object) -> list[tuple[str, int, int]]:
        chosen = Selection(**selection)  # type: ignore[arg-type]
        rows = lake.top("depth", BOX, ["refused"], order, chosen, most=("depth_max", "depth_end"))
        return [(row["mailbox"], row["depth_max"], row["refused"]) for row in rows]

    every = [("a", 4, 0), ("b", 4, 2), ("c", 3, 10), ("d", 0, 4), ("e", 0, 4)]
    assert found(["-depth_max"]) == every
    assert found(["-depth_max"], limit=2) == every[:2]
    assert found(["-refused", "-depth_max"], where="mailbox != 'c'", limit=2) == [("d", 0, 4), ("e", 0, 4)]
    assert found(["-depth_max"], since=micros(60), limit=1) == [("a", 4, 0)]
    assert found(["-depth_max"], equal={"desk": "relay"}) == []


def test_groups_of_rows_are_counted_by_the_share_of_their_sums(tmp_path: Path) -> None:
    shares = {
        "none": (0, 0), "never": (7, 0), "untold": (None, 4), "nearly": (1_000, 999), "third": (3, 1), "whole": (5, 5),
    }  # fmt: skip
    days = [
        {"day": at(1_440 * day).date(), "node": "n1", "desk": "relay", "mailbox": name, "covered": covered,
         "online": online}
        for name, (covered, online) in shares.items() for day in range(2)
    ]  # fmt: skip
    write(tmp_path, "availability", days)
    lake = Lake(str(tmp_path))
    assert lake.tenths("availability", BOX, "online", "covered") == {0: 3, 3: 1, 9: 1, 10: 1}
    one = Selection(until=micros(60), equal={"mailbox": "third"})
    assert lake.tenths("availability", BOX, "online", "covered", one) == {3: 1}
    assert lake.tenths("availability", BOX, "online", "covered", Selection(equal={"desk": "inbound"})) == {}


def test_a_lake_that_is_older_than_a_column_has_nothing_of_it(tmp_path: Path) -> None:
    later = ("depth_max", "at_cap")
    wanted = schema("depth")
    for name in later:
        wanted = wanted.remove(wanted.get_field_index(name))
    row = {"window": at(0), "node": "n1", "desk": "inbound", "mailbox": "billing", "depth_end": 2, "refused": 1}
    write_deltalake(tmp_path / "depth", pa.Table.from_pylist([row], wanted))
    lake = Lake(str(tmp_path))
    (found,) = lake.top("depth", BOX, ("at_cap", "refused"), ["-depth_max"], most=("depth_max", "depth_end"))
    assert (found["depth_max"], found["at_cap"], found["refused"]) == (2, 0, 1)
    with pytest.raises(InvalidInput, match="has no column full"):
        lake.top("depth", BOX, ["full"], [])


def test_a_message_comes_with_its_life_and_with_late_evidence(lake: Lake) -> None:
    (found,) = lake.message("a")
    assert [event["event"] for event in found["events"]] == ["posted", "leased", "delivered", "delivered"]
    assert [lease["holder"] for lease in found["attempts_made"]] == ["worker-1"]
    assert [each["kind"] for each in found["anomalies"]] == ["delivered_twice"]
    assert lake.message("a", {"desk": "relay"}) == []
    assert lake.message("nobody") == []


def test_an_open_message_comes_with_the_attempts_of_lives_that_were_over(tmp_path: Path) -> None:
    write(tmp_path, "messages", [message("a", part="open", outcome="open", last_offset=6)])
    write(tmp_path, "events", [event(n, name, "a", n) for n, name in ((1, "posted"), (2, "leased"), (6, "leased"))])
    write(tmp_path, "attempts", [lease("a", 2), lease("a", 6, part="open")])
    (found,) = Lake(str(tmp_path)).message("a")
    assert [each["lease_offset"] for each in found["attempts_made"]] == [2, 6]


def test_a_finding_without_a_message_is_found_by_the_id_that_it_names(lake: Lake) -> None:
    (found,) = lake.message("question")
    assert [each["kind"] for each in found["anomalies"]] == ["answered_twice"]


def test_a_finding_of_another_desk_is_told_with_the_message_that_it_names(tmp_path: Path) -> None:
    write(tmp_path, "messages", [message("q"), message("q", 5, node="n2")])
    write(tmp_path, "anomalies", [finding("answered_twice", "q", [8, 9], desk="outbound", mailbox="", node="n2")])
    first, second = Lake(str(tmp_path)).message("q")
    assert (first["anomalies"], [each["kind"] for each in second["anomalies"]]) == ([], ["answered_twice"])


def test_the_life_of_a_message_goes_on_where_its_store_was_restored(tmp_path: Path) -> None:
    """Each event is told with the node that wrote it and its own offset, and nothing of what was abandoned."""
    write(tmp_path, "messages", [message("a", first_offset=2, last_offset=25)])
    line = {"known_as": "n1", "start": 1, "at": at(9), "batch": 1}
    write(
        tmp_path,
        "restores",
        [
            {**line, "node": "n2", "from_node": "n1", "from_offset": 10, "shift": 10, "last": 12},
            {**line, "node": "n3", "from_node": "n2", "from_offset": 12, "shift": 22, "last": None},
            {**line, "node": "trial", "from_node": "n1", "from_offset": 7, "known_as": "trial", "shift": 0, "last": 0},
        ],
    )
    told = [("n1", 2, "posted"), ("n1", 11, "cancelled"), ("n2", 4, "leased"), ("n2", 13, "died"), ("trial", 3, "died")]
    told += [("n3", 3, "delivered"), ("n3", 4, "duplicate")]
    write(tmp_path, "events", [event(offset, name, "a", offset, node=node) for node, offset, name in told])
    (found,) = Lake(str(tmp_path)).message("a")
    assert [(each["node"], each["offset"], each["place"], each["event"]) for each in found["events"]] == [
        ("n1", 2, 2, "posted"), ("n2", 4, 14, "leased"), ("n3", 3, 25, "delivered"),
    ]  # fmt: skip


def test_generations_of_an_id_come_in_order(tmp_path: Path) -> None:
    rows = [message("x", 600, generation=2, first_offset=7, last_offset=9), message("x")]
    write(tmp_path, "messages", rows)
    assert [row["generation"] for row in Lake(str(tmp_path)).message("x")] == [1, 2]


def test_mistakes_are_named(lake: Lake, tmp_path: Path) -> None:
    for act, error, said in (
        (lambda: lake.columns("bookss"), InvalidInput, "did you mean books?"),
        (lambda: list(lake.rows("books", Selection(equal={"mailbox": "x"}))), InvalidInput, "has no column mailbox"),
        (lambda: list(lake.rows("books", Selection(columns=("when",)))), InvalidInput, "has no column when"),
        (lambda: list(lake.rows("replays", Selection(since=1))), InvalidInput, "no time"),
        (lambda: list(lake.rows("books", Selection(since=2, until=2))), InvalidInput, "since must be before until"),
        (lambda: lake.count("messages", Selection(since=3, until=2)), InvalidInput, "since must be before until"),
        (lambda: Lake(""), InvalidInput, "the lake's folder or URL is empty"),
        (lambda: Lake(" "), InvalidInput, "the lake's folder or URL is empty"),
        (lambda: lake.columns("segments"), BadFile, "has no table segments yet; it has books"),
        (lambda: Lake(str(tmp_path / "none")).columns("books"), BadFile, "there are no books in"),
    ):
        with pytest.raises(error) as raised:
            act()
        assert said in str(raised.value)


def test_a_damaged_table_is_a_clear_error(tmp_path: Path) -> None:
    write(tmp_path, "books", [window(0, posted=1, open=1)])
    (file,) = (tmp_path / "books").glob("**/*.parquet")
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(BadFile, match=r"the table books of .* cannot be read"):
        list(Lake(str(tmp_path)).rows("books"))
    for log in (tmp_path / "books" / "_delta_log").glob("*.json"):
        log.write_text("{")
    with pytest.raises(BadFile, match=r"the table books of .* cannot be read"):
        Lake(str(tmp_path)).columns("books")


def test_an_answer_sees_what_was_written_before_it(tmp_path: Path) -> None:
    write(tmp_path, "books", [window(0, posted=1, open=1)])
    before = Lake(str(tmp_path))
    assert before.version("books") == 0
    write(tmp_path, "books", [window(1, posted=1, open=1)])
    assert len(list(before.rows("books"))) == 1
    assert len(list(Lake(str(tmp_path)).rows("books"))) == 2


def test_reading_starts_no_spark() -> None:
    """Neither Spark nor pandas is loaded: that is most of why it is fast."""
    code = (
        "import sys, posthouse.cli.books_read, posthouse.pipeline.report;"
        "from posthouse.pipeline.lake import Lake; Lake('/nowhere').tables();"
        "print(sorted({'pyspark', 'py4j', 'pandas', 'pyarrow.dataset'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
