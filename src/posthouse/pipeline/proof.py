"""Proof: that the table of events holds what the segments held when they were taken in, each event once.

In: the lake, its record, and the journal's files as far as they are there. Out: what does not agree, and what cannot be
told. Nothing is changed. A file of the table that is a segment, byte for byte, is compared as such. Of all other rows
the chain is computed again, as it was when the segment was written; where a segment has none that holds, or some of its
rows are forgotten, its rows are compared with those of its file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from ..journal import schema as contract
from . import bronze, offsets, where
from .bronze import BATCH_ROWS, TAKEN, File, Journal, Segment
from .check import Discrepancy
from .ledger import Ledger, State
from .offsets import Ranges
from .withdrawn import READING

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import QueryBuilder

SPAN_EVENTS = 250_000
"""Events of segments that follow on each other which are asked for at one time."""
CHUNK = 8 << 20
"""Bytes of two files that are compared at one time."""
TABLE = "events"


class Share(NamedTuple):
    """A segment, and the offsets of it that were taken in: all but those that were there before."""

    segment: Segment
    ranges: Ranges

    @property
    def place(self) -> str:
        """As it is named in what is found."""
        return f"events of node={self.segment.node}/{self.segment.name}"

    @property
    def has_chain(self) -> bool:
        """Whether the rows of the table must give its chain."""
        segment = self.segment
        return segment.state == TAKEN and not segment.faults and [*self.ranges] == offsets.merged(segment.ranges)


class _Seen(NamedTuple):
    """What was found of one share or of several."""

    node: str
    rows: int
    found: list[Discrepancy]
    untold: list[str]


class Proof:
    """The table of events of one lake."""

    def __init__(
        self,
        ledger: Ledger,
        state: State,
        journal: Journal | None = None,
        at_hand: Mapping[tuple[str, str], File] | None = None,
        report: Callable[[int, int | None, str], None] = lambda done, total, doing: None,
    ) -> None:
        """``at_hand`` are files of the journal that are as they were when they were taken in, by node and name."""
        self._ledger = ledger
        self._state = state
        self._journal = journal
        self._at_hand = at_hand or {}
        self._report = report
        self._builders: dict[str, QueryBuilder] = {}
        self.untold: list[str] = []
        """What cannot be told, as sentences."""

    def verify(self, taken: Sequence[Segment]) -> Iterator[Discrepancy]:
        """What does not agree; ``taken`` are the segments that were taken in."""
        yield from self._verify_record(taken)
        if not self._ledger.has(TABLE):
            return
        try:
            shares, files = shares_of(self._in_order(taken)), self._files()
        # The package has no exception of its own for most of what it finds: whatever it is, a file is to blame.
        except Exception as error:
            yield _unreadable(TABLE, error)
            return
        total, done = sum(offsets.count(share.ranges) for share in shares), 0
        seen: dict[str, int] = {}
        untold: list[str] = []
        unread = False
        with ThreadPoolExecutor(max_workers=2) as pool:
            copied = list(pool.map(lambda share: self._is_copied(share, files), shares))
            rest = []
            for share, is_copied in zip(shares, copied, strict=True):
                if is_copied:
                    seen[share.segment.node] = seen.get(share.segment.node, 0) + share.segment.events
                    done += share.segment.events
                else:
                    rest.append(share)
            # pyarrow and the package work without Python's lock, so threads help.
            for each in pool.map(self._span, _spans(rest)):
                yield from each.found
                untold += each.untold
                unread = unread or any(kind == "unreadable" for kind, _, _ in each.found)
                seen[each.node] = seen.get(each.node, 0) + each.rows
                done += each.rows
                self._report(done, total, "checking events")
        if not unread:
            yield from self._verify_totals(seen)
        self._say_untold(untold)

    def _verify_record(self, taken: Iterable[Segment]) -> Iterator[Discrepancy]:
        """The table of segments against what the record has of it in short."""
        nodes: dict[str, list[tuple[int, int]]] = {}
        for segment in taken:
            nodes.setdefault(segment.node, []).extend(segment.ranges)
        known = self._state.known()
        for node in sorted(nodes.keys() | known.keys()):
            if offsets.merged(nodes.get(node, ())) != offsets.merged(known.get(node, ())):
                yield "mismatch", "segments", f"the offsets of node {node} are not those that the record has"

    def _in_order(self, taken: Sequence[Segment]) -> list[Segment]:
        """The segments in the order in which they were taken in."""
        batches = {
            (row["node"], row["name"]): row["batch"]
            for row in self._ask("segments", 'SELECT "node", "name", "batch" FROM t').to_pylist()
        }
        return sorted(taken, key=lambda each: (batches.get((each.node, each.name), 0), each.node, each.first))

    # Files that are segments

    def _files(self) -> dict[tuple[int, int | None, int | None], list[str]]:
        """The table's files by their size and the offsets that they begin and end with."""
        from deltalake import DeltaTable

        told = DeltaTable(self._ledger.table(TABLE)).get_add_actions(flatten=True)
        names = [name for name in ("path", "size_bytes", "min.offset", "max.offset") if name in told.schema.names]
        found: dict[tuple[int, int | None, int | None], list[str]] = {}
        for values in zip(*(told.column(name).to_pylist() for name in names), strict=True):
            row = dict(zip(names, values, strict=True))
            found.setdefault((row["size_bytes"], row.get("min.offset"), row.get("max.offset")), []).append(row["path"])
        return found

    def _is_copied(self, share: Share, files: Mapping[tuple[int, int | None, int | None], Sequence[str]]) -> bool:
        segment = share.segment
        file = self._at_hand.get((segment.node, segment.name))
        if file is None or self._journal is None or [*share.ranges] != offsets.merged(segment.ranges):
            return False
        alike = files.get((segment.size_bytes, share.ranges[0][0], share.ranges[-1][1]), ())
        return any(self._is_same(file, path) for path in alike)

    def _is_same(self, file: File, path: str) -> bool:
        assert self._journal is not None
        try:
            with (
                self._journal.open(file) as one,
                self._ledger.system.open_input_file(f"{self._ledger.folder(TABLE)}/{path}") as other,
            ):
                while piece := one.read(CHUNK):
                    if piece != other.read(CHUNK):
                        return False
                return not other.read(1)
        except OSError:
            # Its rows are asked for in the other way, and whatever is wrong shows there.
            return False

    # Rows

    def _ask(self, name: str, sql: str) -> pa.Table:
        import pyarrow as pa

        return pa.table(self._builder(name).execute(sql))

    def _builder(self, name: str) -> QueryBuilder:
        from deltalake import DeltaTable, QueryBuilder

        if name not in self._builders:
            self._builders[name] = QueryBuilder(READING).register("t", DeltaTable(self._ledger.table(name)))
        return self._builders[name]

    def _span(self, span: Sequence[Share]) -> _Seen:
        """Some segments of a node that follow on each other."""
        node = span[0].segment.node
        first, last = span[0].ranges[0][0], span[-1].ranges[-1][1]
        columns, offset = ", ".join(map(where.name, contract.NAMES)), where.name("offset")
        asked = (
            f"SELECT {columns} FROM t WHERE {where.name('node')} = {where.literal(node)}"
            f" AND {offset} BETWEEN {first:d} AND {last:d} ORDER BY {offset}"
        )
        try:
            rows = self._ask(TABLE, asked)
        # As above.
        except Exception as error:
            return _Seen(node, 0, [_unreadable(span[0].place, error)], [])
        seen = _Seen(node, 0, [], [])
        for share in span:
            own = _within(rows, share.ranges)
            more = self._share(share, own)
            seen = _Seen(node, seen.rows + len(own), [*seen.found, *more.found], [*seen.untold, *more.untold])
        return seen

    def _share(self, share: Share, rows: pa.Table) -> _Seen:
        """The rows of one segment, in order."""
        import numpy as np

        segment, place = share.segment, share.place
        none = _Seen(segment.node, len(rows), [], [])
        there = rows.column("offset").to_numpy()
        again = int((np.diff(there) == 0).sum())
        if again:
            return none._replace(found=[("twice", place, f"{again} of its offsets are there once more")])
        lacking = offsets.count(share.ranges) - len(there)
        if lacking and not self._state.forgotten:
            return none._replace(found=[_missing(place, lacking, _first_lacking(share.ranges, there))])
        if not lacking and share.has_chain:
            if digest(rows, segment.prev or "") == segment.chain:
                return none
            file = self._rows_of(share)
            detail = "its rows do not give the chain that was recorded"
            if file is not None and (offset := _first_differing(rows, file)) is not None:
                detail += f"; the first that differs from the segment is offset {offset}"
            return none._replace(found=[("altered", place, detail)])
        file = self._rows_of(share)
        if file is None:
            return none._replace(untold=[f"node={segment.node}/{segment.name}"])
        wanted = file.column("offset").to_numpy()
        if len(gone := np.setdiff1d(wanted, there)):
            return none._replace(found=[_missing(place, len(gone), gone[0])])
        if len(more := np.setdiff1d(there, wanted)):
            detail = f"{len(more)} of its events should not be there, the first at offset {more[0]}"
            return none._replace(found=[("foreign", place, detail)])
        if (offset := _first_differing(rows, file)) is not None:
            return none._replace(found=[("altered", place, f"its event at offset {offset} is not that of the segment")])
        return none

    def _rows_of(self, share: Share) -> pa.Table | None:
        """What the table should hold of a segment, from its file; None where that is not at hand."""
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc
        import pyarrow.parquet as pq

        from .writing import SCHEMA

        file = self._at_hand.get((share.segment.node, share.segment.name))
        if file is None or self._journal is None:
            return None
        try:
            with self._journal.open(file) as source:
                rows = pq.read_table(source, columns=list(contract.NAMES)).cast(SCHEMA)
        except (pa.ArrowException, OSError, ValueError):
            return None
        rows = rows.take(np.argsort(rows.column("offset").to_numpy(), kind="stable"))
        if self._state.forgotten:
            rows = rows.filter(~pc.field("mailbox").isin(list(self._state.forgotten)))
        return _within(rows, share.ranges)

    # What is there besides

    def _verify_totals(self, seen: Mapping[str, int]) -> Iterator[Discrepancy]:
        try:
            counted = self._ask(TABLE, 'SELECT "node", count(*) AS n FROM t GROUP BY "node"').to_pylist()
        # As above.
        except Exception as error:
            yield _unreadable(TABLE, error)
            return
        for row in sorted(counted, key=lambda each: str(each["node"])):
            if more := row["n"] - seen.get(row["node"], 0):
                detail = f"{more} of its rows are of no segment that was taken in, or there more than once"
                yield "foreign", f"events of {row['node']}", detail

    def _say_untold(self, untold: Sequence[str]) -> None:
        if not untold:
            return
        names = untold[0] if len(untold) == 1 else f"{untold[0]} and {len(untold) - 1} more segments"
        self.untold.append(
            f"The events of {names} cannot be checked without the segments as they were taken in"
            + ("; what is missing there may be what was forgotten." if self._state.forgotten else ".")
        )


def shares_of(segments: Iterable[Segment]) -> list[Share]:
    """What each segment gave to the table, given in the order in which they were taken in."""
    known: dict[str, list[tuple[int, int]]] = {}
    found = []
    for segment in segments:
        there = known.get(segment.node, [])
        own = _without(offsets.merged(segment.ranges), there)
        if own:
            found.append(Share(segment, own))
            known[segment.node] = offsets.merged([*there, *own])
    return found


def digest(rows: pa.Table, prev: str) -> str:
    """The chain of these rows, in their order, behind another."""
    made = hashlib.sha256(f"{prev}\n".encode())
    for batch in rows.to_batches(max_chunksize=BATCH_ROWS):
        made.update(bronze.lines(batch))
    return made.hexdigest()


def _without(ranges: Ranges, others: Ranges) -> list[tuple[int, int]]:
    """The offsets of the first that are not in the second; each must be merged."""
    found = []
    for first, last in ranges:
        due = first
        for begin, end in offsets.common([(first, last)], others):
            if begin > due:
                found.append((due, begin - 1))
            due = end + 1
        if due <= last:
            found.append((due, last))
    return found


def _spans(shares: Iterable[Share]) -> Iterator[list[Share]]:
    """Shares of a node that follow on each other, some at a time."""
    span: list[Share] = []
    size = 0
    for share in sorted(shares, key=lambda each: (each.segment.node, each.ranges[0])):
        events = offsets.count(share.ranges)
        follows = (
            span
            and span[-1].segment.node == share.segment.node
            and span[-1].ranges[-1][1] + 1 == share.ranges[0][0]
            and size + events <= SPAN_EVENTS
        )
        if span and not follows:
            yield span
            span, size = [], 0
        span.append(share)
        size += events
    if span:
        yield span


def _within(rows: pa.Table, ranges: Ranges) -> pa.Table:
    """The rows at these offsets; they are in order."""
    import numpy as np
    import pyarrow as pa

    there = rows.column("offset").to_numpy()
    pieces = []
    for first, last in ranges:
        begin, end = int(np.searchsorted(there, first, "left")), int(np.searchsorted(there, last, "right"))
        pieces.append(rows.slice(begin, end - begin))
    return pieces[0] if len(pieces) == 1 else pa.concat_tables(pieces)


def _first_lacking(ranges: Ranges, there: Any) -> int:
    have = offsets.merged((offset, offset) for offset in there.tolist())
    return _without(offsets.merged(ranges), have)[0][0]


def _first_differing(rows: pa.Table, others: pa.Table) -> int | None:
    """The offset of the first row that is not the same in both; None if all are."""
    ours, theirs = (each.to_batches(max_chunksize=BATCH_ROWS) for each in (_even(rows), _even(others)))
    for one, other in zip(ours, theirs, strict=False):
        mine, yours = (bytes(bronze.lines(each)) for each in (one, other))
        if mine != yours:
            pairs = zip(mine.split(b"\n"), yours.split(b"\n"), strict=False)
            line = next(line for line, wanted in pairs if line != wanted)
            return int(orjson.loads(line)[1]) if line else None
    return None


def _even(rows: pa.Table) -> pa.Table:
    """In one piece, so that two tables are cut in the same places."""
    return rows.unify_dictionaries().combine_chunks()


def _missing(place: str, lacking: int, first: int) -> Discrepancy:
    return "missing", place, f"{lacking} of its events are not there, the first at offset {first}"


def _unreadable(place: str, error: BaseException) -> Discrepancy:
    text = " ".join(str(error).split()) or type(error).__name__
    return "unreadable", place, f"it cannot be read: {text:.300}"
