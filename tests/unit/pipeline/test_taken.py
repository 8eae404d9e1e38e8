"""What was taken in, in short: as few pieces as possible, and the same findings as of all segments by name."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from posthouse.journal import schema as contract
from posthouse.pipeline import cutting, taken
from posthouse.pipeline.bronze import TAKEN, UNVERIFIED, Segment
from posthouse.pipeline.finding import findings
from posthouse.pipeline.ledger import State
from posthouse.pipeline.lineage import ALONE


def segment(first: int, last: int, node: str = "n", **values: object) -> Segment:
    """A sound one; its chain is a word that its neighbours can guess."""
    prev = contract.GENESIS if first == 1 else f"up to {first - 1}"
    plain = Segment(
        node, contract.file_name(first, last), first, last, 100, TAKEN, ((first, last),), ((first, last),),
        prev=prev, chain=f"up to {last}", first_at=first, last_at=last,
    )  # fmt: skip
    return plain._replace(**values)  # type: ignore[arg-type]


def in_table(segment: Segment) -> Segment:
    """What the table of segments keeps of it."""
    faults = (*segment.faults, *([segment.broken] if segment.broken else []))
    edges = segment.edges if len(segment.ranges) == 1 else ()
    return segment._replace(faults=faults, broken=None, backs=(), backs_more=0, edges=edges)


def in_turns(turns: Sequence[Sequence[Segment]]) -> tuple[Segment, ...]:
    """What is left when these come one after the other, each list in one run."""
    kept: tuple[Segment, ...] = ()
    table: list[Segment] = []
    for turn in turns:
        if overlapped := taken.touched(kept, turn):
            kept = taken.replaced(kept, overlapped, table)
        kept = taken.compact((*kept, *turn))
        table += map(in_table, turn)
    return kept


def test_what_follows_on_is_one_piece_however_long() -> None:
    rows = [segment(first, first + 99) for first in range(1, 100_000, 100)]
    first, piece = in_turns([rows[:10], rows[500:], rows[10:500]])
    assert first == rows[0]
    assert (piece.name, piece.first, piece.last, piece.events) == ("", 101, 100_000, 99_900)
    assert (piece.prev, piece.chain) == ("up to 100", "up to 100000")
    assert piece.size_bytes == sum(row.size_bytes for row in rows[1:])
    assert State(segments=(first, piece)).known() == {"n": [(1, 100_000)]}


def test_what_there_is_to_say_of_a_segment_stays_with_it() -> None:
    rows = [
        *(segment(first, first + 9) for first in (1, 11, 21)), segment(31, 40, faults=("odd",)),
        segment(41, 50, prev="another"), *(segment(first, first + 9) for first in (51, 61)),
        segment(71, 80, backs=((75, 9, 8),)), segment(91, 100), segment(1, 5, "m"),
    ]  # fmt: skip
    kept = taken.compact(rows)
    assert [(each.node, each.first, each.last, bool(each.name)) for each in kept] == [
        ("m", 1, 5, True), ("n", 1, 10, True), ("n", 11, 30, False), ("n", 31, 40, True), ("n", 41, 50, True),
        ("n", 51, 70, False), ("n", 71, 80, True), ("n", 91, 100, True),
    ]  # fmt: skip
    assert findings(kept, []) == findings(rows, [])


def test_a_file_that_overlaps_a_piece_brings_its_names_back() -> None:
    rows = [segment(first, first + 9) for first in range(1, 100, 10)]
    again = segment(35, 47)
    kept = in_turns([rows, [again]])
    assert findings(kept, []) == findings([*rows, again], [])
    named = [each.name for each in kept if each.name]
    assert named == [row.name for row in (rows[0], rows[3], again, rows[4], rows[5])]


@st.composite
def histories(draw: st.DrawFn) -> list[list[Segment]]:
    """Segments of one node, sound or not, in any order and in several runs."""
    rows, first = [], draw(st.sampled_from((1, 1, 4)))
    for _ in range(draw(st.integers(1, 12))):
        last = first + draw(st.integers(0, 4))
        made = segment(first, last)
        what = draw(st.integers(0, 12))
        if what == 0:
            made = made._replace(faults=("odd",))
        elif what == 1:
            made = made._replace(broken="its rows do not give the chain in its metadata")
        elif what == 2:
            made = made._replace(prev="another")
        elif what == 3:
            made = made._replace(prev=None, chain=None, state=UNVERIFIED)
        elif what == 4 and last > first:
            made = made._replace(ranges=((first, last - 1),), edges=((first, last - 1),), faults=("short",))
        elif what == 5:
            made = made._replace(first_at=first - 30, edges=((first - 30, last),))
        elif what == 6:
            made = made._replace(backs=((last, last + 1, last),), backs_more=draw(st.integers(0, 1)))
        rows.append(made)
        first = last + draw(st.sampled_from((1, 1, 1, 1, 3, 0, -1)))
        first = max(first, 1)
    rows = list({row.name: row for row in rows}.values())
    order = draw(st.permutations(rows))
    cuts = sorted(draw(st.lists(st.integers(0, len(order)), max_size=3)))
    return [list(order[a:b]) for a, b in zip([0, *cuts], [*cuts, len(order)], strict=True)]


@settings(max_examples=500)
@given(histories())
def test_findings_and_offsets_are_those_of_all_segments(turns: list[list[Segment]]) -> None:
    every = [row for turn in turns for row in turn]
    kept = in_turns(turns)
    assert findings(kept, []) == findings(every, [])
    assert State(segments=kept).known() == State(segments=tuple(every)).known()
    assert len(kept) <= len(every)


@given(histories(), st.integers(1, 20))
def test_batches_rise_and_hold_no_offset_twice(turns: list[list[Segment]], batch_events: int) -> None:
    new = [row for turn in turns[1:] for row in turn]
    pieces = cutting.cut(new, turns[0], ALONE, batch_events)
    assert sorted(row.name for piece in pieces for row in piece) == sorted(row.name for row in new)
    done = list(turns[0])
    for piece in pieces:
        known = State(segments=tuple(done)).known()
        spans = sorted(span for row in piece for span in row.ranges)
        assert all(one[1] < other[0] for one, other in pairwise(spans))
        if not cutting.is_late(piece, done, ALONE):
            last = known["n"][-1][1] if known else 0
            more = {offset for first, end in spans for offset in range(first, end + 1)}
            within = {offset for first, end in known.get("n", ()) for offset in range(first, end + 1)}
            assert all(offset > last for offset in more - within)
        done += piece
